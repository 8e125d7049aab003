//! What outlives this process and the machine, kept on a disk: what is known of pods, so that where its source is
//! missing after a restart they are decided about as before; what is to be reported to the cluster ([`super::outbox`]);
//! and when images were used.
//!
//! A thread of its own waits for the disk. Nothing that is sent to the core waits for that thread.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use plimsoll_cri::History;
use plimsoll_inventory::{PodFacts, StorageLimit};
use plimsoll_node::boot::BootId;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_state::durable::{Commit, Found, OpenError, Opened, Store};
use plimsoll_units::counted;
use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::outbox::Reports;
use crate::confine;

/// The least pause between two writes, each of which writes all that is kept.
const PAUSE: Duration = Duration::from_secs(5);
/// The least pause before a write of what presses: evictions and transitions of conditions.
const REPORT_PAUSE: Duration = Duration::from_millis(100);
/// How often a directory that could not be used is tried again, where it is not another agent that has it.
const OPENED_AGAIN: Duration = Duration::from_secs(30);

/// What is known of pods, and their limits of local storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) pods: BTreeMap<Uid, PodFacts>,
    pub(super) limits: BTreeMap<Uid, Vec<StorageLimit>>,
}

/// What was kept, as far as it can be true.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Restored {
    pub(super) known: Known,
    pub(super) reports: Reports,
    /// Of an earlier boot with the order of use alone.
    pub(super) images: History,
}

/// What comes from the disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// What was there when it was written last. Once, and before it is written to.
    Restored(Box<Restored>),
    /// What of what is to be kept is kept.
    Works(Works),
}

/// How far the disk has what it is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Works {
    /// All of it.
    pub(super) all: bool,
    /// All reports: a pod of which too much is known does not keep the core waiting for those of others.
    pub(super) reports: bool,
    /// The last version of reports that is there.
    pub(super) version: u64,
    /// None of it yet, as another agent has the directory.
    pub(super) is_held: bool,
}

/// What is kept of one pod. Every field is needed but those that may be absent: of a pod that another version wrote otherwise
/// nothing is known, so that it is protected.
#[derive(Serialize, Deserialize)]
struct Kept {
    facts: PodFacts,
    limits: Vec<StorageLimit>,
}

/// The newest of what is to be kept, as far as it was not taken yet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Newest {
    known: Option<Known>,
    /// With its version.
    reports: Option<(u64, Reports)>,
    /// A part of them must be on the disk soon.
    presses: bool,
    images: Option<History>,
}

/// The way of that to the thread.
#[derive(Default)]
struct Next {
    newest: Mutex<Newest>,
    changed: Condvar,
}

impl Next {
    fn lock(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, put: impl FnOnce(&mut Newest)) {
        put(&mut self.lock());
        self.changed.notify_one();
    }

    /// Waits for something to write: at once for what presses, for others until `written` is long enough ago. `retries`: no
    /// longer than that pause.
    fn wait(&self, written: Option<Instant>, retries: bool) -> Newest {
        let others = written.map_or_else(Instant::now, |written| written + PAUSE);
        let mut newest = self.lock();
        loop {
            let left = others.saturating_duration_since(Instant::now());
            let is_empty = *newest == Newest::default();
            if newest.presses || left.is_zero() && (retries || !is_empty) {
                return std::mem::take(&mut *newest);
            }
            newest = if is_empty && !retries {
                self.changed.wait(newest).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.changed.wait_timeout(newest, left).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

/// The way to the thread.
pub(super) struct Journal {
    next: Arc<Next>,
    events: mpsc::Receiver<Event>,
}

impl Journal {
    /// Starts the thread, which is confined as the calling one is.
    pub(super) fn start(place: Place) -> anyhow::Result<Self> {
        let (send, events) = mpsc::channel(4);
        let next = Arc::<Next>::default();
        let keeper =
            Keeper { place, next: Arc::clone(&next), events: send, trouble: None, refused: [const { None }; 3] };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(|| keeper.run());
        thread.context("cannot start the thread that writes the journal")?;
        Ok(Self { next, events })
    }

    /// This is known now.
    pub(super) fn keep(&self, known: Known) {
        self.next.put(|newest| newest.known = Some(known));
    }

    /// This is to be reported now, by its version. `presses`: what is new in it must be on the disk soon.
    pub(super) fn keep_reports(&self, version: u64, reports: Reports, presses: bool) {
        self.next.put(|newest| {
            newest.reports = Some((version, reports));
            newest.presses |= presses;
        });
    }

    /// This is remembered of images now.
    pub(super) fn keep_images(&self, images: History) {
        self.next.put(|newest| newest.images = Some(images));
    }

    /// What comes next from the disk.
    pub(super) async fn event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

/// Where it is kept.
pub(super) struct Place {
    /// As it was found: to be opened by the user of services.
    directory: OwnedFd,
    /// For messages.
    path: PathBuf,
    boot: BootId,
}

impl Place {
    /// Makes it, and gives it to the user of services: as root, and while this boot's number can be read.
    pub(super) fn enter(path: &Path) -> anyhow::Result<Self> {
        let directory = confine::find_journal(path).with_context(|| format!("cannot find {}", path.display()))?;
        Ok(Self { directory, path: path.to_owned(), boot: BootId::read()? })
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// `is_held`: another agent has it, and it is waited for.
    fn open(&self, is_held: bool) -> anyhow::Result<Opened> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.directory, ".", how, Mode::empty()).context("it cannot be opened")?;
        let open = if is_held { Store::open_once_free_in } else { Store::open_in };
        Ok(open(directory, &self.path, self.boot)?)
    }
}

/// The thread.
struct Keeper {
    place: Place,
    next: Arc<Next>,
    events: mpsc::Sender<Event>,
    /// What was logged as wrong last.
    trouble: Option<String>,
    /// Why the first of pods, of reports, and of images is not kept, if one is not.
    refused: [Option<String>; 3],
}

impl Keeper {
    /// Until nothing receives what comes from the disk.
    fn run(mut self) {
        let Some(mut store) = self.open() else { return };
        // Of reports the version that the store was given, and that which is on the disk.
        let (mut written, mut given, mut version) = (None, 0, 0);
        loop {
            let Newest { known, reports, images, .. } = self.next.wait(written, store.degraded().is_some());
            let [of_pods, of_reports, of_images] = &mut self.refused;
            if let Some(known) = known {
                *of_pods = put(&mut store, &known);
            }
            if let Some((newest, reports)) = reports {
                *of_reports = put_reports(&mut store, &reports);
                given = newest;
            }
            if let Some(images) = images {
                *of_images = put_images(&mut store, &images);
            }
            let refused = self.refused.iter().flatten().next().cloned();
            self.note("something is not kept in it", refused);
            match store.commit(monotonic()) {
                Commit::Degraded(error) => tracing::warn!("the journal is not kept: {error}"),
                Commit::Recovered { failures } => tracing::info!(failures, "the journal is kept again"),
                Commit::Unchanged | Commit::StillDegraded | Commit::Written => {}
            }
            let is_written = store.degraded().is_none();
            version = if is_written { given } else { version };
            let all = is_written && self.trouble.is_none();
            let works = Works { all, reports: is_written && self.refused[1].is_none(), version, is_held: false };
            if self.events.blocking_send(Event::Works(works)).is_err() {
                return;
            }
            written = Some(Instant::now());
            std::thread::sleep(REPORT_PAUSE);
        }
    }

    /// The store, once it can be opened, and what is in it is sent. One that another agent has is open the moment that agent
    /// has ended, so that the next one has what it wrote last when it takes over.
    fn open(&mut self) -> Option<Store> {
        let mut is_held = false;
        loop {
            match self.place.open(is_held) {
                Ok(Opened { store, found, problems }) => {
                    self.note("it cannot be used", None);
                    for problem in problems {
                        tracing::warn!("{problem}");
                    }
                    let is_rebooted = matches!(found, Found::Rebooted { .. });
                    let (known, unread) = read(&store, is_rebooted);
                    let reports = Reports { evictions: store.evictions(), conditions: store.conditions() };
                    let images = read_images(&store, is_rebooted);
                    let path = self.place.path.display();
                    if unread > 0 {
                        tracing::warn!("{path}: nothing is known of {}", counted(unread, "pod of it", "pods of it"));
                    }
                    tracing::debug!(pods = known.pods.len(), "what was known of pods is in {path}");
                    let restored = Restored { known, reports, images };
                    self.events.blocking_send(Event::Restored(Box::new(restored))).ok()?;
                    return Some(store);
                }
                Err(error) => {
                    is_held = matches!(error.downcast_ref(), Some(OpenError::Held { .. }));
                    self.note("it cannot be used", Some(format!("{error:#}")));
                }
            }
            self.events.blocking_send(Event::Works(Works { is_held, ..Works::default() })).ok()?;
            if !is_held {
                std::thread::sleep(OPENED_AGAIN);
            }
        }
    }

    /// Logs it once, until it is another or over.
    fn note(&mut self, what: &str, why: Option<String>) {
        if let Some(why) = why.as_ref().filter(|why| self.trouble.as_ref() != Some(why)) {
            tracing::warn!("the journal {}: {what}: {why}", self.place.path.display());
        }
        self.trouble = why;
    }
}

/// What is in it, and how many pods of it cannot be read. Times of another boot are of another clock.
fn read(store: &Store, is_rebooted: bool) -> (Known, usize) {
    let (mut known, mut unread) = (Known::default(), 0);
    for (_, text) in store.facts() {
        let Ok(Kept { mut facts, limits }) = serde_json::from_str::<Kept>(&text) else {
            unread += 1;
            continue;
        };
        facts.started = facts.started.filter(|_| !is_rebooted);
        facts.ends = facts.ends.filter(|_| !is_rebooted);
        known.limits.insert(facts.uid, limits);
        known.pods.insert(facts.uid, facts);
    }
    (known, unread)
}

/// What was remembered of images. The clock by which they are remembered begins anew with a boot.
fn read_images(store: &Store, is_rebooted: bool) -> History {
    let mut history = History::default();
    for (id, text) in store.images() {
        // Of one that another version wrote otherwise nothing is known: it is seen for the first time.
        history.restore(&id, &text);
    }
    if is_rebooted {
        history.after_reboot();
    }
    history
}

/// Has it hold what is remembered of images, and nothing else. Gives why the first image is refused, if one is.
fn put_images(store: &mut Store, images: &History) -> Option<String> {
    for (id, _) in store.images().into_iter().filter(|(id, _)| !images.has(id)) {
        store.remove_image(&id);
    }
    let refused = images.texts().filter_map(|(id, text)| store.set_image(id.to_owned(), text).err());
    // All are put.
    refused.map(|refused| refused.to_string()).reduce(|first, _| first)
}

/// Has it hold these reports, and nothing else. Gives why the first is refused, if one is.
fn put_reports(store: &mut Store, reports: &Reports) -> Option<String> {
    let uids: BTreeSet<&str> = reports.evictions.iter().map(|eviction| eviction.pod.uid.as_str()).collect();
    for gone in store.evictions().into_iter().filter(|kept| !uids.contains(kept.pod.uid.as_str())) {
        store.remove_eviction(&gone.pod.uid);
    }
    let evictions = reports.evictions.iter().map(|eviction| store.set_eviction(eviction.clone()));
    let refused = evictions.filter_map(Result::err).map(|refused| refused.to_string()).reduce(|first, _| first);
    let conditions = reports.conditions.iter().map(|condition| store.set_condition(condition.clone()));
    refused.or(conditions.filter_map(Result::err).map(|refused| refused.to_string()).reduce(|first, _| first))
}

/// Has it hold what is known, and nothing else. Gives why the first pod is refused, if one is.
fn put(store: &mut Store, known: &Known) -> Option<String> {
    let name = |uid: &Uid| format!("{:032x}", uid.0);
    let names: BTreeSet<String> = known.pods.keys().map(name).collect();
    for (uid, _) in store.facts().into_iter().filter(|(uid, _)| !names.contains(uid)) {
        store.remove_facts(&uid);
    }
    let mut refused = None;
    for (uid, facts) in &known.pods {
        let limits = known.limits.get(uid).cloned().unwrap_or_default();
        let put = serde_json::to_string(&Kept { facts: *facts, limits })
            .map_err(|error| error.to_string())
            .and_then(|text| store.set_facts(name(uid), text).map_err(|error| error.to_string()));
        if let Err(error) = put {
            refused.get_or_insert(error);
        }
    }
    refused
}

#[cfg(test)]
mod tests;
