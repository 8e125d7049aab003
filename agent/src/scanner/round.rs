//! One round over all pods: their volumes and logs, each by a scan of bounded pace.
//!
//! A tree of millions of files keeps no other from being measured, nor do many large ones of one pod: a scan with which its
//! pod has taken its share of a round is put aside, and goes on beside the others, in this round and the next ones, until it
//! ends. One is put aside at a time, and gives way to the next one after a while.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_inventory::{MOST_PODS, PartUsage, StorageMessage, StoragePart, name_number};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_storage::{
    Count, Measure, Part, PodDirectories, PodDirectory, PodName, Progress, Scan, Slice, StorageError, VolumeKind,
};
use plimsoll_units::MonotonicNs;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::left::DisksLeft;
use super::quotas::Figure;

/// A scan is put aside with which so many entries of its pod were gone through in one round.
const SHARE: u32 = 200_000;
/// So many entries of each tree are gone through, whatever its pod has taken: small trees are measured beside large ones.
const LEAST: u32 = 1000;
/// A scan that was put aside gives way after so long, where another one waits.
const TURN: Duration = Duration::from_mins(20);
/// Of so many large trees at most what was found last is kept.
const MOST_LARGE: usize = 64;
/// The most volumes of one kind, and the most logs, of a pod that are measured.
const MOST_OF_A_POD: usize = 512;

/// Where figures go.
pub(super) trait Sink {
    /// Sends a message, and may wait for room for it.
    fn send(&mut self, message: StorageMessage);

    /// Whether the round goes on.
    fn goes_on(&mut self) -> bool;

    /// Has it in the log that something cannot be measured.
    fn complain(&mut self, error: &StorageError);
}

/// One part of a pod, by what directories are called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Volume(VolumeKind, String),
    ContainerLogs(String),
    PodLogs,
    EtcHosts,
}

/// A pod, by what its directories are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    uid: String,
    /// Namespace and name, as its log directory has them.
    name: Option<(String, String)>,
}

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    count: Option<Count>,
    is_local: bool,
    begun: MonotonicNs,
    ended: MonotonicNs,
}

/// A part of a pod.
type Key = (String, Target);

/// A scan that takes longer than one round.
struct Aside {
    key: Key,
    scan: Box<Scan>,
    is_local: bool,
    begun: MonotonicNs,
    /// It was come to in this round: it is there still.
    is_there: bool,
}

/// All rounds.
pub(super) struct Rounds {
    kubelet: PathBuf,
    logs: PathBuf,
    slice: Slice,
    share: u32,
    least: u32,
    turn: Duration,
    /// Entries of the present pod that were gone through in this round.
    seen: u32,
    aside: Option<Aside>,
    /// The next one that is put aside, and whether it was come to in this round.
    waiting: Option<(Key, bool)>,
    /// What those found last that were put aside.
    large: BTreeMap<Key, Measured>,
    /// What the kernel counts itself, for the next round.
    counted: BTreeMap<Key, Measured>,
    failing: Failing,
    /// A part that was measured in the last round is in memory.
    has_memory: bool,
}

/// When the directories of pods, the kubelet's and those of logs, changed last; absent of one that is not there.
pub(super) type Changed = [Option<(i64, u32)>; 2];

/// Whether parts could not be opened: in the last round, of which that was reported, and in this one.
#[derive(Clone, Copy, Debug, Default)]
struct Failing {
    before: bool,
    now: bool,
}

impl Rounds {
    /// Over the pods in the kubelet's directory, with their logs in the other one.
    pub(super) fn new(kubelet: PathBuf, logs: PathBuf) -> Self {
        Self {
            kubelet,
            logs,
            slice: Slice::GENTLE,
            share: SHARE,
            least: LEAST,
            turn: TURN,
            seen: 0,
            aside: None,
            waiting: None,
            large: BTreeMap::new(),
            counted: BTreeMap::new(),
            failing: Failing::default(),
            has_memory: false,
        }
    }

    /// What is left where the pods' volumes and logs are.
    pub(super) fn left(&self) -> DisksLeft {
        // They may be a mount of their own, and not be there yet.
        let pods = self.directories()[0].map_or_else(|| self.kubelet.clone(), |_| self.kubelet.join("pods"));
        DisksLeft::of([&pods, &self.logs])
    }

    /// When a pod's directory was made or removed last.
    pub(super) fn directories(&self) -> Changed {
        [self.kubelet.join("pods"), self.logs.clone()].map(|directory| {
            let found = statx(CWD, &directory, AtFlags::empty(), StatxFlags::MTIME);
            found.ok().map(|found| (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec))
        })
    }

    /// Whether a part that was measured in the last round is in memory, where it grows on no disk.
    pub(super) const fn has_memory(&self) -> bool {
        self.has_memory
    }

    /// In the next round these volumes take what the kernel counts for their projects, which was asked then.
    pub(super) fn set_counted(&mut self, asked: MonotonicNs, figures: Vec<Figure>) {
        let ended = monotonic();
        let counted = figures.into_iter().map(|Figure { pod, volume, bytes, inodes }| {
            let count = Some(Count { bytes, inodes });
            (
                (pod, Target::Volume(VolumeKind::EmptyDir, volume)),
                Measured { count, is_local: true, begun: asked, ended },
            )
        });
        self.counted = counted.collect();
    }

    /// Measures every pod, or stops where the sink says so.
    pub(super) fn go(&mut self, sink: &mut impl Sink) {
        self.has_memory = false;
        let directories = PodDirectories::open(&self.kubelet, &self.logs);
        let pods = match pods(&directories) {
            Ok(pods) => pods,
            // There is no kubelet yet.
            Err(error) if error.is_not_found() => return,
            Err(error) => return self.failed(&error, sink),
        };
        for pod in &pods {
            if !sink.goes_on() || self.pod(pod, &directories, sink).is_break() {
                return;
            }
        }
        sink.send(StorageMessage::Round);
        self.failing = Failing { before: self.failing.now, now: false };
        // What is gone is not gone on with.
        self.aside = self.aside.take().filter(|aside| aside.is_there);
        if let Some(aside) = &mut self.aside {
            aside.is_there = false;
        }
        self.waiting = self.waiting.take().filter(|(_, is_there)| *is_there).map(|(key, _)| (key, false));
    }

    /// Goes on between two rounds with what was put aside. Gives whether there is something.
    pub(super) fn rest(&mut self) -> bool {
        self.step_aside();
        self.aside.is_some()
    }

    /// Measures a pod, or stops in the middle of it.
    fn pod(&mut self, pod: &Found, directories: &PodDirectories, sink: &mut impl Sink) -> ControlFlow<()> {
        let uid = Uid::of(&pod.uid);
        let name = pod.name.as_ref().map(|(namespace, name)| (&**namespace, &**name));
        // What has no name of a pod is none of the kubelet's.
        let open = |name| directories.pod(PodName { name, uid: &pod.uid });
        let Ok(directory) = open(name).or_else(|_| open(None)) else { return ControlFlow::Continue(()) };
        let mut parts: BTreeMap<StoragePart, Measured> = BTreeMap::new();
        let Targets { listed, unlisted, is_cut } = Targets::of(&directory);
        if let Some(error) = &unlisted {
            self.failed(error, sink);
        }
        if unlisted.is_some() || is_cut {
            parts.insert(StoragePart::Rest, Measured::unknown());
        }
        self.seen = 0;
        for target in listed {
            let Some(measured) = self.measure(pod, &directory, &target, sink)? else { continue };
            self.has_memory |= !measured.is_local;
            let part = part_of(&target, measured.is_local);
            // Two names with one number are one part.
            let sum = parts.get(&part).map_or(measured, |before| before.with(measured));
            parts.insert(part, sum);
        }
        for (part, Measured { count, begun, ended, .. }) in parts {
            let used = count.map(|count| (count.bytes, count.inodes));
            sink.send(StorageMessage::Part(PartUsage { uid, part, used, begun, ended }));
        }
        sink.send(StorageMessage::Measured(uid));
        ControlFlow::Continue(())
    }

    /// Measures a part, or stops in the middle of it; absent where it is gone, or is none.
    fn measure(
        &mut self,
        pod: &Found,
        directory: &PodDirectory,
        target: &Target,
        sink: &mut impl Sink,
    ) -> ControlFlow<(), Option<Measured>> {
        use ControlFlow::Continue;
        let key = (pod.uid.clone(), target.clone());
        if let Some(counted) = self.counted.get(&key).copied() {
            self.forget(&key);
            return Continue(Some(counted));
        }
        let waits = self.waiting.as_mut().filter(|(waiting, _)| *waiting == key).map(|(_, is_there)| *is_there = true);
        if let Some(aside) = &mut self.aside {
            let is_it = aside.key == key;
            aside.is_there |= is_it;
            // What is large, too, has its turn after it.
            if is_it || waits.is_some() || self.large.contains_key(&key) {
                self.waiting = self.waiting.take().or_else(|| (!is_it).then(|| (key.clone(), true)));
                return Continue(Some(self.known(&key)));
            }
        }
        let begun = monotonic();
        let done = |count, is_local| Measured { count, is_local, begun, ended: monotonic() };
        let (scan, is_local) = match directory.measure(target.part()) {
            Ok(Measure::Done(count)) => return Continue(Some(done(Some(count), true))),
            Ok(Measure::InMemory(count)) => return Continue(Some(done(Some(count), false))),
            Ok(Measure::Scan(scan)) => (scan, true),
            Ok(Measure::ScanInMemory(scan)) => (scan, false),
            Err(error) if is_gone(&error) => return Continue(None),
            Err(error) => {
                self.failed(&error, sink);
                return Continue(Some(done(None, true)));
            }
        };
        self.scan(Aside { key, scan, is_local, begun, is_there: true }, sink).map_continue(Some)
    }

    /// Goes on with a scan to its end, or puts it aside, or stops in the middle of it.
    fn scan(&mut self, mut aside: Aside, sink: &mut impl Sink) -> ControlFlow<(), Measured> {
        let mut own = 0_u32;
        loop {
            if let Some(measured) = aside.step(self.slice) {
                self.large.remove(&aside.key);
                return ControlFlow::Continue(measured);
            }
            self.step_aside();
            own = own.saturating_add(self.slice.entries);
            self.seen = self.seen.saturating_add(self.slice.entries);
            if self.seen >= self.share && own >= self.least {
                let known = self.known(&aside.key);
                if self.aside.is_none() && self.waiting.as_ref().is_none_or(|(waiting, _)| *waiting == aside.key) {
                    self.waiting = None;
                    self.aside = Some(aside);
                } else {
                    self.waiting.get_or_insert((aside.key, true));
                }
                return ControlFlow::Continue(known);
            }
            if !sink.goes_on() {
                return ControlFlow::Break(());
            }
        }
    }

    /// Goes on with no scan of it, and takes nothing that one found for what there is.
    fn forget(&mut self, key: &Key) {
        self.large.remove(key);
        self.aside.take_if(|aside| aside.key == *key);
        self.waiting.take_if(|(waiting, _)| waiting == key);
    }

    /// What was found last of a large tree; until its first scan has ended, that it is there.
    fn known(&self, key: &Key) -> Measured {
        self.large.get(key).copied().unwrap_or_else(Measured::unknown)
    }

    /// Something cannot be measured, which is reported once.
    fn failed(&mut self, error: &StorageError, sink: &mut impl Sink) {
        let was_reported = self.failing.before || self.failing.now;
        self.failing.now = true;
        if !was_reported {
            sink.complain(error);
        }
    }

    /// Goes on with the scan that was put aside.
    fn step_aside(&mut self) {
        let Some(aside) = &mut self.aside else { return };
        let gives_way = self.waiting.is_some() && monotonic().since(aside.begun) >= self.turn;
        let measured = if gives_way { Some(Measured::unknown()) } else { aside.step(self.slice) };
        if let Some(measured) = measured {
            if self.large.len() >= MOST_LARGE {
                self.large.clear();
            }
            if let Some(aside) = self.aside.take() {
                self.large.insert(aside.key, measured);
            }
        }
    }
}

/// The pods that have directories of either kind; an error where the kubelet's cannot be listed. Of a pod that is gone those
/// of logs may be left alone.
fn pods(directories: &PodDirectories) -> Result<Vec<Found>, StorageError> {
    let names: BTreeMap<String, (String, String)> = directories
        .logs(MOST_PODS)
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| {
            let (rest, uid) = entry.rsplit_once('_')?;
            let (namespace, name) = rest.split_once('_')?;
            Some((uid.to_owned(), (namespace.to_owned(), name.to_owned())))
        })
        .collect();
    let of_kubelet = directories.pods(MOST_PODS)?;
    let of_logs = names.keys().filter(|uid| of_kubelet.binary_search(*uid).is_err()).cloned();
    let uids: Vec<String> = of_kubelet.iter().cloned().chain(of_logs).collect();
    let found = |uid: String| Found { name: names.get(&uid).cloned(), uid };
    Ok(uids.into_iter().take(MOST_PODS).map(found).collect())
}

/// What of a pod is measured.
struct Targets {
    listed: BTreeSet<Target>,
    /// Why there may be more.
    unlisted: Option<StorageError>,
    /// There is more of a kind than is measured.
    is_cut: bool,
}

impl Targets {
    fn of(directory: &PodDirectory) -> Self {
        let listed = BTreeSet::from([Target::EtcHosts, Target::PodLogs]);
        let mut all = Self { listed, unlisted: None, is_cut: false };
        for kind in VolumeKind::ALL {
            all.add(directory.volumes(kind, MOST_OF_A_POD + 1), |name| Target::Volume(kind, name));
        }
        all.add(directory.containers(MOST_OF_A_POD + 1), Target::ContainerLogs);
        all
    }

    fn add(&mut self, names: Result<Vec<String>, StorageError>, target: impl Fn(String) -> Target) {
        match names {
            Ok(names) => {
                self.is_cut |= names.len() > MOST_OF_A_POD;
                self.listed.extend(names.into_iter().take(MOST_OF_A_POD).map(target));
            }
            Err(error) => self.unlisted = Some(error),
        }
    }
}

impl Aside {
    /// One slice and its rest. Gives what was found, at the end.
    fn step(&mut self, slice: Slice) -> Option<Measured> {
        let Self { is_local, begun, .. } = *self;
        if let Progress::Done(outcome) = self.scan.step(slice.entries) {
            let count = outcome.incomplete.is_none().then_some(outcome.count);
            return Some(Measured { count, is_local, begun, ended: monotonic() });
        }
        std::thread::sleep(slice.rest);
        None
    }
}

impl Measured {
    /// Of what is there and was not measured.
    fn unknown() -> Self {
        let now = monotonic();
        Self { count: None, is_local: true, begun: now, ended: now }
    }

    fn with(self, other: Self) -> Self {
        Self {
            count: self.count.zip(other.count).map(|(one, other)| one.plus(other)),
            begun: self.begun.min(other.begun),
            ended: self.ended.max(other.ended),
            ..self
        }
    }
}

impl Target {
    fn part(&self) -> Part<'_> {
        match self {
            Self::Volume(kind, name) => Part::Volume(*kind, name),
            Self::ContainerLogs(name) => Part::ContainerLogs(name),
            Self::PodLogs => Part::PodLogs,
            Self::EtcHosts => Part::EtcHosts,
        }
    }
}

fn part_of(target: &Target, is_local: bool) -> StoragePart {
    match target {
        Target::Volume(_, name) => StoragePart::Volume { name: name_number(name.as_bytes()), is_local },
        Target::ContainerLogs(name) => StoragePart::Logs(name_number(name.as_bytes())),
        Target::PodLogs | Target::EtcHosts => StoragePart::Rest,
    }
}

/// Whether there is nothing to be measured: it is gone, or a file among directories.
fn is_gone(error: &StorageError) -> bool {
    error.is_not_found() || matches!(error, StorageError::File { source: rustix::io::Errno::NOTDIR, .. })
}

#[cfg(test)]
mod tests;
