//! What is left on the disks of this node: read in threads that may hang, as often as a threshold could be reached.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_config::Configuration;
use plimsoll_cri::FileSystems;
use plimsoll_inventory::{DiskReading, DiskRole, Room};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::{DiskLayout, FsStats, NodeStats, Threshold};
use plimsoll_report::text::printable;
use plimsoll_storage::{
    DiskWatch, Disks as Layout, FileSystem, Left, Mounts, Pace, Roots, Slots, StorageError, Worker, has_moved,
    next_reading,
};
use plimsoll_units::{Bytes, MonotonicNs};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};

use super::rest::Stir;
use super::runtime_sockets;

/// The runtime has so long to say where its directories are before nodefs alone is read. On an emulated machine containerd
/// took 4 s.
const RUNTIME_SAYS: Duration = Duration::from_secs(4);
/// How long answers are waited for before they are left to the next turn. A local disk answers in microseconds.
const ANSWERS: Duration = Duration::from_millis(20);
/// After so long without an answer a disk hangs.
const HANGS: Duration = Duration::from_secs(1);
/// How often the layout is found anew, so that what is mounted over a directory later is seen.
const LAYOUT_PACE: Duration = Duration::from_secs(30);
/// Threads: one that finds the layout, one for each file system, and as many that hang since the layout was another.
const THREADS: usize = 7;

/// Whether a threshold is on disks.
pub(crate) fn are_configured(configuration: &Configuration) -> bool {
    configuration.disk_policy().thresholds.iter().any(|threshold| threshold.amount.is_some())
}

/// Whether this is a node: the kubelet's directory is named, or is where it usually is. One that does not answer, or whose
/// parent may not be searched, is there. The thread that asks for it may hang, and is confined as the calling thread is.
pub(super) fn are_there(configuration: &Configuration) -> bool {
    if configuration.machine.kubelet_root.is_some() {
        return true;
    }
    let root = configuration.kubelet_root();
    let name = root.display().to_string();
    let Ok(looks) = Worker::start(&Slots::new(1), &name, move || is_there(&root)) else { return false };
    let begun = monotonic();
    looks.ask(begun);
    while looks.outstanding(begun).is_some() && monotonic().since(begun) < HANGS {
        std::thread::sleep(Duration::from_millis(1));
    }
    looks.answer(begun, Duration::MAX).is_none_or(|(_, is_there)| is_there)
}

/// By `statx(2)`, which the filter of system calls allows: musl's `stat` makes another call.
fn is_there(directory: &Path) -> bool {
    match statx(CWD, directory, AtFlags::empty(), StatxFlags::TYPE) {
        Ok(found) => FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory,
        Err(errno) => !matches!(errno, Errno::NOENT | Errno::NOTDIR),
    }
}

/// What has to be opened as root, and what is configured.
pub(super) struct Sources {
    kubelet: PathBuf,
    /// Why the runtime is not asked for its directories, if so.
    unasked: Option<String>,
    mounts: Mounts,
    thresholds: Vec<Threshold>,
}

impl Sources {
    /// Opens the list of mounts. No directory is looked at yet: that may hang.
    pub(super) fn open(configuration: &Configuration) -> anyhow::Result<Self> {
        let unasked = match runtime_sockets(configuration) {
            Ok(sockets) if sockets.is_empty() => {
                Some("no container runtime is named (machine.runtimeSocket)".to_owned())
            }
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        let thresholds = configuration.disk_policy().thresholds;
        Ok(Self { kubelet: configuration.kubelet_root(), unasked, mounts: Mounts::open()?, thresholds })
    }
}

/// Where the runtime keeps its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Directories {
    images: PathBuf,
    /// Writable layers; absent where they are with images.
    layers: Option<PathBuf>,
}

impl Directories {
    /// Of several the first counts, as for the kubelet.
    fn of(said: FileSystems) -> Result<Self, String> {
        let first = said.images.into_iter().next().ok_or("the container runtime names no file system of images")?;
        Ok(Self { images: first.directory, layers: said.containers.into_iter().next().map(|fs| fs.directory) })
    }
}

/// As they were said last, or why they are not known: for the thread that finds the layout, too.
#[derive(Clone, Debug)]
struct Located(Arc<Mutex<Result<Directories, String>>>);

impl Located {
    fn new(directories: Result<Directories, String>) -> Self {
        Self(Arc::new(Mutex::new(directories)))
    }

    /// No thread holds it while it looks at a disk.
    fn lock(&self) -> MutexGuard<'_, Result<Directories, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file systems, and why `nodefs` alone of them is known, if so.
type Found = Result<(Layout, Option<String>), String>;

fn find(mounts: &mut Mounts, kubelet: &Path, directories: Result<Directories, String>) -> Found {
    let all = directories.and_then(|Directories { images, layers }| {
        let roots = Roots { kubelet, images: &images, containers: layers.as_deref() };
        mounts.disks(roots).map_err(|error| error.to_string())
    });
    let why = match all {
        Ok(disks) => return Ok((disks, None)),
        Err(why) => why,
    };
    let node = mounts.disks(Roots { kubelet, images: kubelet, containers: None });
    node.map(|disks| (disks, Some(why))).map_err(|error| error.to_string())
}

/// The disks, and what was read of them.
pub(super) struct Disks {
    located: Located,
    layout: Worker<Found>,
    layout_due: MonotonicNs,
    /// Of the answer that was taken last.
    layout_at: Option<MonotonicNs>,
    slots: Slots,
    watch: Option<DiskWatch>,
    /// Imagefs and containerfs are not known.
    is_node_alone: bool,
    thresholds: Vec<Threshold>,
    /// By role, the reading before the last one, and that.
    read: [[Option<FsStats>; 2]; DiskRole::ALL.len()],
    /// The reading since which each has not moved.
    still: [Option<FsStats>; DiskRole::ALL.len()],
    /// What waits for one to move.
    moved: Stir,
    /// What the core was sent last of each: when it was read, whether it was below a threshold, and in which layout.
    sent: [Option<(MonotonicNs, bool, Option<DiskLayout>)>; DiskRole::ALL.len()],
    /// What was logged as wrong, by what it is about.
    troubles: BTreeMap<String, String>,
    /// Answers are due.
    is_asked: bool,
    due: Instant,
}

impl Disks {
    /// Starts the thread that finds the layout; it and all later ones are confined as the calling thread is.
    pub(super) fn start(sources: Sources, moved: Stir) -> Result<Self, StorageError> {
        let Sources { kubelet, unasked, mut mounts, thresholds } = sources;
        let slots = Slots::new(THREADS);
        let name = kubelet.display().to_string();
        let (now, is_asked) = (monotonic(), unasked.is_none());
        let located = Located::new(Err(unasked.unwrap_or_else(|| "the container runtime does not answer".to_owned())));
        let seen = located.clone();
        let layout = Worker::start(&slots, &name, move || {
            let directories = seen.lock().clone();
            find(&mut mounts, &kubelet, directories)
        })?;
        Ok(Self {
            located,
            layout,
            layout_due: if is_asked { now.after(RUNTIME_SAYS) } else { now },
            layout_at: None,
            slots,
            watch: None,
            is_node_alone: false,
            thresholds,
            read: [[None; 2]; DiskRole::ALL.len()],
            still: [None; DiskRole::ALL.len()],
            moved,
            sent: [None; DiskRole::ALL.len()],
            troubles: BTreeMap::new(),
            is_asked: false,
            due: Instant::now(),
        })
    }

    /// Takes in where the runtime says that its directories are, or why it does not say: then those hold that it said before.
    pub(super) fn locate(&mut self, said: Result<FileSystems, String>) {
        let said = said.and_then(Directories::of);
        let mut located = self.located.lock();
        if *located == said || located.is_ok() && said.is_err() {
            return;
        }
        *located = said;
        (self.layout_due, self.due) = (monotonic(), Instant::now());
    }

    /// Waits for the next readings that the core has to be sent, each with what it cost.
    pub(super) async fn next(&mut self) -> Vec<(DiskReading, Duration)> {
        loop {
            sleep_until(self.due).await;
            let (mut readings, wait) = self.turn(monotonic());
            self.due = Instant::now() + wait;
            readings.retain(|(reading, _)| self.is_news(reading, wait));
            if !readings.is_empty() {
                return readings;
            }
        }
    }

    /// Whether the core has to be sent it: where it is below a threshold or the last one was, and where that would be too old
    /// at the next one, after so long. Of a disk that is near a threshold, and still, most readings say nothing more.
    fn is_news(&mut self, reading: &DiskReading, next: Duration) -> bool {
        let DiskReading { role, at, layout, .. } = *reading;
        let is_below = self.thresholds.iter().any(|threshold| is_below(reading, threshold));
        let sent = &mut self.sent[role as usize];
        let is_news = sent.is_none_or(|(last, was_below, before)| {
            is_below || was_below || layout != before || at.since(last).saturating_add(next) > Pace::BYTES.most
        });
        if is_news {
            *sent = Some((at, is_below, layout));
        }
        is_news
    }

    /// Asks, or takes the answers. Gives what is new, and when the next turn is.
    fn turn(&mut self, now: MonotonicNs) -> (Vec<(DiskReading, Duration)>, Duration) {
        self.is_asked = !self.is_asked;
        if self.is_asked {
            if self.layout_due <= now {
                self.layout.ask(now);
                self.layout_due = now.after(LAYOUT_PACE);
            }
            self.watch.iter().for_each(|watch| watch.ask(now));
            return (Vec::new(), ANSWERS);
        }
        if self.take_layout() {
            return (Vec::new(), Duration::ZERO);
        }
        let readings = self.take_readings(now);
        self.log_troubles(now);
        (readings, self.pace(now).min(self.layout_due.since(now)))
    }

    /// Takes the layout in. Gives whether there is another one, whose disks were not asked yet.
    fn take_layout(&mut self) -> bool {
        let answer = self.layout.answer(monotonic(), Duration::MAX).filter(|(at, _)| self.layout_at != Some(*at));
        let Some((at, found)) = answer else { return false };
        self.layout_at = Some(at);
        match found {
            Ok((disks, why)) => {
                self.trouble("imagefs and containerfs are not read", why.clone());
                let is_same = self.watch.as_ref().is_some_and(|watch| *watch.disks() == disks);
                if is_same && self.is_node_alone == why.is_some() {
                    return false;
                }
                self.is_node_alone = why.is_some();
                log_layout(&disks, self.is_node_alone);
                (self.read, self.sent) = ([[None; 2]; DiskRole::ALL.len()], [None; DiskRole::ALL.len()]);
                // The threads of the last one end once they have their answers.
                self.watch = None;
                let started = DiskWatch::start(disks, &self.slots);
                self.trouble("disks are not read", started.as_ref().err().map(StorageError::to_string));
                self.watch = started.ok();
                self.watch.is_some()
            }
            Err(why) => {
                self.trouble("disks are not read", Some(why));
                self.watch = None;
                false
            }
        }
    }

    fn is_read(&self, role: DiskRole) -> bool {
        let Some(layout) = self.watch.as_ref().map(|watch| watch.disks().layout) else { return false };
        match role {
            DiskRole::Node => true,
            DiskRole::Image => !self.is_node_alone,
            // Where it is with images, its thresholds are those of imagefs, on the same file system.
            DiskRole::Container => !self.is_node_alone && layout != DiskLayout::DedicatedImageFs,
        }
    }

    fn take_readings(&mut self, now: MonotonicNs) -> Vec<(DiskReading, Duration)> {
        let mut stats = NodeStats::default();
        let costs = self.watch.as_ref().map(|watch| watch.fill(now, Duration::MAX, &mut stats)).unwrap_or_default();
        let layout = self.watch.as_ref().filter(|_| !self.is_node_alone).map(|watch| watch.disks().layout);
        let mut readings = Vec::new();
        let all = DiskRole::ALL.into_iter().zip([stats.node_fs, stats.image_fs, stats.container_fs]).zip(costs);
        for ((role, stats), cost) in all {
            let read = &mut self.read[role as usize];
            let is_new = stats.is_some_and(|stats| stats.time > read[1].and_then(|last| last.time));
            if is_new {
                *read = [read[1], stats];
                self.note(role, stats);
            } else if role == DiskRole::Image || self.is_read(role) {
                // Writable layers may be on one that is not read now.
                self.moved.stir();
            }
            if is_new && self.is_read(role) {
                readings.extend(stats.and_then(|stats| DiskReading::of(role, &stats, layout)).zip(cost));
            }
        }
        readings
    }

    /// Stirs what waits for a disk to move, where this reading shows it.
    fn note(&mut self, role: DiskRole, read: Option<FsStats>) {
        let still = &mut self.still[role as usize];
        if still.zip(read).is_none_or(|(before, now)| has_moved(&before, &now)) {
            *still = read;
            self.moved.stir();
        }
    }

    /// Logs of each disk that it hangs or fails, and that it answers again. Another file system in its place has the layout
    /// found anew.
    fn log_troubles(&mut self, now: MonotonicNs) {
        let Some(watch) = &self.watch else { return };
        let of = |fs: &FileSystem| printable(&fs.mount_point.to_string_lossy());
        let states: Vec<_> = watch
            .states(now)
            .map(|state| {
                let hangs = state.outstanding.is_some_and(|outstanding| outstanding >= HANGS);
                let failed = state.answer.and_then(|(_, answer)| answer.err());
                let why = if hangs { Some("it does not answer".to_owned()) } else { failed.map(|it| it.to_string()) };
                (format!("the disk at {} is not read", of(state.fs)), why, failed.is_some())
            })
            .collect();
        if states.iter().any(|(_, _, has_failed)| *has_failed) {
            self.layout_due = self.layout_due.min(now.after(Pace::BYTES.calm));
        }
        for (what, why, _) in states {
            self.trouble(&what, why);
        }
    }

    /// Logs it once, until it is another or over.
    fn trouble(&mut self, what: &str, why: Option<String>) {
        match why {
            Some(why) if self.troubles.get(what) != Some(&why) => {
                tracing::warn!("{what}: {}", printable(&why));
                self.troubles.insert(what.to_owned(), why);
            }
            Some(_) => {}
            None => {
                if self.troubles.remove(what).is_some() {
                    tracing::info!("no longer: {what}");
                }
            }
        }
    }

    /// When to read again: as soon as the first threshold could be reached.
    fn pace(&self, now: MonotonicNs) -> Duration {
        let hangs = self.layout.outstanding(now).is_some()
            || self.watch.iter().any(|watch| watch.states(now).any(|state| state.outstanding.is_some()));
        let most = if hangs { HANGS } else { Pace::BYTES.most };
        self.thresholds.iter().filter_map(|threshold| self.pace_for(threshold)).fold(most, Duration::min)
    }

    fn pace_for(&self, threshold: &Threshold) -> Option<Duration> {
        let (role, is_bytes) = (DiskRole::of(threshold.signal)?, threshold.signal.is_bytes());
        let [before, last] = self.read[role as usize];
        let part = |stats: FsStats| {
            let pair = if is_bytes { (stats.available, stats.capacity) } else { (stats.inodes_free, stats.inodes) };
            let (left, all) = pair.0.zip(pair.1)?;
            Some((Left { left, at: stats.time? }, all))
        };
        let (last, all) = part(last?)?;
        let at = threshold.amount?.of_bytes(Bytes(all)).0;
        let pace = if is_bytes { Pace::BYTES } else { Pace::INODES };
        Some(next_reading(&pace, at, last, before.and_then(part).map(|(left, _)| left)))
    }
}

/// Whether less is left than a threshold has, or than its minimum reclaim asks for once it was crossed.
fn is_below(reading: &DiskReading, threshold: &Threshold) -> bool {
    let room = if threshold.signal.is_bytes() { reading.bytes } else { reading.inodes };
    let is_short = |room: Room| {
        let [at, more] =
            [threshold.amount, threshold.min_reclaim].map(|amount| Some(amount?.of_bytes(Bytes(room.all)).0));
        at.is_some_and(|at| room.left < at.saturating_add(more.unwrap_or(0)))
    };
    DiskRole::of(threshold.signal) == Some(reading.role) && room.is_some_and(is_short)
}

fn log_layout(disks: &Layout, is_node_alone: bool) {
    let at = |fs: &FileSystem| printable(&fs.mount_point.to_string_lossy());
    if is_node_alone {
        tracing::info!("disks are read: nodefs at {}", at(&disks.node));
        return;
    }
    let [node, image, container] = [&disks.node, &disks.image, &disks.container].map(at);
    tracing::info!("disks are read: nodefs at {node}, imagefs at {image}, containerfs at {container}");
    for warning in &disks.warnings {
        tracing::warn!("{}", printable(&warning.to_string()));
    }
}

#[cfg(test)]
mod tests;
