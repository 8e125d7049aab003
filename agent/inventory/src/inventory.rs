//! The workloads and slices that are known, with their handles. Walks directories, opens files and allocates: for a
//! thread of its own.

mod lookup;

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_node::cgroup::{Handle, PageCache, Purpose, Root, children};
use plimsoll_node::clock::monotonic;
use plimsoll_node::{Fault, NodeError};
use plimsoll_policy::kubelet::Critical;
use plimsoll_policy::{Key, Owner, Protected as Why, SliceId, SliceSet, Uid};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, counted};
use rustix::fd::AsFd as _;

use crate::identity::{identify, is_monitor};
use crate::orphans::{OrphanedPods, Orphans};
use crate::pods::{Pods, Rank};
use crate::seen::Seen;
use crate::storage::Storage;
use crate::{
    Bounds, Discovery, Facts, Found, MOST_PARTS, MOST_PODS, Mark, Measurer, PathEnd, Patterns, Pod, PodFacts,
    PodIdentity, PodMessage, PodStorage, Protected, SLOTS, SliceFacts, SlicePlace, StorageLimit, StorageMessage,
    Update, discover, slices, workload_of,
};

/// Where an inventory sends what it finds.
pub trait Sink {
    /// A change for the table. May wait until there is room for it.
    fn update(&mut self, update: Update);

    /// Writes which pods are protected, so that it outlives this process, before it has any effect; those that are `gone`
    /// are so no more. False: it could not be written, and is tried again with what is sent next.
    fn protect(&mut self, protected: &HashMap<Uid, Critical>, gone: &[Uid]) -> bool;

    /// What was tried did not work, or works again.
    fn trouble(&mut self, tried: &'static str, text: Option<String>);
}

/// What is looked for, and where.
#[derive(Debug)]
pub struct Config {
    /// The cgroup tree.
    pub root: Root,
    /// Workloads, and cgroups that are never touched.
    pub patterns: Patterns,
    /// By the place of its pattern in the list.
    pub priorities: Vec<i32>,
    /// The agent, init, the kubelet and container runtimes.
    pub protected: Protected,
    /// Slices with thresholds of their own.
    pub slices: Vec<SlicePlace>,
    /// The slices that the kernel brakes, and cgroups that are never touched; absent where there are none.
    pub brakes: Option<Patterns>,
    /// The most slices that the kernel brakes.
    pub max_brakes: usize,
    /// The most workloads, as far as the limit of open files allows.
    pub max_workloads: usize,
    /// Their tasks are counted, for which each keeps a descriptor more.
    pub counts_tasks: bool,
}

/// What keeping it costs, and what it leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Workloads for which there is no row, as of the last walk.
    pub without_row: u32,
    /// Memory that is charged to cgroups and to no workload that is known.
    pub outside: Bytes,
    /// Descriptors that are kept open for workloads.
    pub descriptors: u32,
    /// Memory of the kernel's own that is charged to the agent's cgroup: descriptors, BPF maps, page tables. Absent
    /// where it is in the root cgroup, and before Linux 5.18.
    pub kernel_memory: Option<Bytes>,
}

#[derive(Debug)]
struct Known {
    slot: u32,
    handle: Arc<Handle>,
    priority: i32,
    started: MonotonicNs,
    slices: SliceSet,
    standing: Standing,
    cache: PageCache,
    /// What it used when that was read; absent where it could not be.
    cache_seen: Option<Seen>,
    /// It was read since it was sent last.
    is_cache_read: bool,
    /// As it was last sent.
    pod: Option<(Pod, Rank)>,
    /// What it takes of disks, as it was last sent.
    storage: Option<Arc<PodStorage>>,
    /// It has to be sent.
    is_changed: bool,
    seen: u64,
}

/// Of which workloads page cache is read, and what of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// Of those whose usage has moved; what has changed. A decision waits until what it needs was read anew.
    Moved,
    /// Of all; what has changed.
    All,
    /// Of all; all of it, where the table has figures that another thread read meanwhile.
    Replace,
}

/// What a walk finds out about a workload each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    owner: Option<Owner>,
    reservation: Bytes,
    pod: Option<PodIdentity>,
}

/// The workloads and slices that are known.
#[derive(Debug)]
pub struct Inventory {
    config: Config,
    known: HashMap<CgroupId, Known>,
    pods: Pods,
    storage: Storage,
    orphans: Orphans,
    /// Kept for as long as the table may have them: it frees nothing.
    replaced: Vec<Arc<PodStorage>>,
    free: Vec<u32>,
    slices: Vec<Option<slices::Read>>,
    marks: Vec<Option<Mark>>,
    walk: u64,
    /// How often a workload came or went.
    revision: u64,
    without_row: u32,
    /// The last walk found a workload that could not be opened, or one could not be since.
    has_unopened: bool,
    /// The agent's own cgroup.
    own: Option<Handle>,
}

impl Inventory {
    /// An empty one.
    pub fn new(config: Config) -> Self {
        let end = u32::try_from(SLOTS.min(config.max_workloads)).unwrap_or(0);
        Self {
            known: HashMap::with_capacity(256),
            pods: Pods::default(),
            storage: Storage::default(),
            orphans: Orphans::default(),
            replaced: Vec::new(),
            free: (0..end).rev().collect(),
            slices: config.slices.iter().map(|_| None).collect(),
            marks: vec![None; config.max_brakes],
            walk: 0,
            revision: 0,
            without_row: 0,
            has_unopened: false,
            own: Handle::open(&config.root, &config.protected.own).ok().flatten(),
            config,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many workloads are known.
    pub fn workloads(&self) -> u32 {
        u32::try_from(self.known.len()).unwrap_or(u32::MAX)
    }

    /// Reads what it costs and what it leaves out. As costly as a sample of all workloads.
    pub fn coverage(&self) -> Coverage {
        let sum = |usages: &mut dyn Iterator<Item = Bytes>| usages.fold(Bytes::ZERO, Bytes::saturating_add);
        let top = children(self.config.root.as_fd()).unwrap_or_default();
        let top = top.iter().filter_map(|name| Handle::open(&self.config.root, name).ok()??.usage().ok());
        let inside = self.known.values().filter_map(|known| known.handle.usage().ok());
        Coverage {
            without_row: self.without_row,
            outside: sum(&mut { top }).saturating_sub(sum(&mut { inside })),
            descriptors: self.known.values().map(|known| known.handle.descriptors()).sum(),
            kernel_memory: self.own.as_ref().and_then(|own| own.kernel_memory().ok()),
        }
    }

    /// Goes on with the protections that an earlier process has written: they are never withdrawn.
    pub fn take_over(&mut self, protected: HashMap<Uid, Critical>) {
        self.pods.take_over(protected);
    }

    /// Takes in where the kubelet and container runtimes are. Gives whether that is new: then what was a workload may be none
    /// any more, which the next walk finds. What is in a pod is left out: a process there may have made a socket in a
    /// directory of the kubelet's that it was given, and must not be out of reach by that.
    pub fn protect_node(&mut self, cgroups: impl IntoIterator<Item = Vec<u8>>) -> bool {
        let is_in_pod = |path: &[u8]| self.config.patterns.concerns_pods(path) || identify(path).is_some();
        let mut node: Vec<_> = cgroups.into_iter().filter(|path| !path.is_empty() && !is_in_pod(path)).collect();
        node.sort_unstable();
        node.dedup();
        let is_new = node != self.config.protected.node;
        self.config.protected.node = node;
        is_new
    }

    /// Takes in what another process knows of pods.
    pub fn learn(&mut self, messages: impl Iterator<Item = PodMessage>, sink: &mut impl Sink) {
        let Self { known, pods, storage, .. } = self;
        let present = || known.values().filter_map(|known| Some(known.standing.pod?.uid)).collect();
        let mut take = |message: PodMessage| {
            if let PodMessage::Pod(PodFacts { uid, .. })
            | PodMessage::Limit(StorageLimit { uid, .. })
            | PodMessage::Gone(uid) = message
            {
                storage.touch(uid);
            }
            pods.take(message, present)
        };
        let refused = messages.filter(|message| !take(*message)).count();
        let why = || format!("facts of pods are left out: no more than {MOST_PODS} pods are kept");
        sink.trouble("pods", (refused > 0).then(why));
        self.send(sink);
    }

    /// Takes in what this process measured of pods' storage.
    pub fn learn_storage(
        &mut self,
        messages: impl Iterator<Item = StorageMessage>,
        measurer: Measurer,
        sink: &mut impl Sink,
    ) {
        for message in messages {
            self.storage.take(message, measurer);
        }
        let (topic, parts) = match measurer {
            Measurer::Scanner => ("storage", "volumes and logs"),
            Measurer::Services => ("layers", "writable layers"),
        };
        let why = || {
            format!(
                "pods of which figures are left out are not decided about: no more than {MOST_PARTS} {parts} are kept"
            )
        };
        sink.trouble(topic, self.storage.is_full(measurer).then(why));
        self.send_storage(sink);
    }

    /// Sends what has changed of pods' storage, and what is known of pods that are new.
    fn send_storage(&mut self, sink: &mut impl Sink) {
        let changed = self.storage.changed();
        for (id, known) in &mut self.known {
            let Some(PodIdentity { uid, .. }) = known.standing.pod else { continue };
            if known.storage.is_some() && !changed.contains(&uid) {
                continue;
            }
            let storage = self.pods.storage_of(uid).and_then(|(facts, limits)| self.storage.of(facts, limits));
            if known.storage.as_deref() == storage.as_ref() {
                continue;
            }
            let storage = storage.map(Arc::new);
            sink.update(Update::Storage(Key { slot: known.slot, id: *id }, storage.clone()));
            self.replaced.extend(std::mem::replace(&mut known.storage, storage));
        }
        self.replaced.retain(|storage| Arc::strong_count(storage) > 1);
    }

    /// Finds pods that are gone for good and have directories all the same. `None` where no round of what measures storage
    /// has ended since, and where it is not known which are gone: until all have said it, and while there may be cgroups of
    /// pods that are not known.
    ///
    /// Also whether their number or the first of them is another than at the last time, as with none before the first.
    pub fn orphans(&mut self, now: MonotonicNs) -> Option<(OrphanedPods, bool)> {
        if self.has_unopened || self.without_row > 0 || !self.orphans.may_differ(&self.storage) {
            return None;
        }
        let cgroups = self.known.values().filter_map(|known| Some(known.standing.pod?.uid)).collect();
        let found = self.orphans.find(&self.storage, &self.pods, &cgroups, now)?;
        Some((found, self.orphans.is_new(found)))
    }

    /// Walks the tree, opens what is new and closes what is gone.
    pub fn discover(&mut self, sink: &mut impl Sink) {
        let count = self.config.max_workloads.min(SLOTS);
        match self.find(&self.config.patterns, Bounds { count, ..Bounds::default() }) {
            Ok(discovery) => {
                let unread = discovery.unread.as_ref().map(|(path, errno)| {
                    format!("cannot read {}: {errno}; workloads below it are kept as they were", path.escape_ascii())
                });
                let is_whole = unread.is_none();
                sink.trouble("walk", unread);
                self.walk += 1;
                for found in &discovery.workloads {
                    if let Some(known) = self.known.get_mut(&found.id) {
                        known.seen = self.walk;
                        known.is_changed |= known.standing != Standing::of(found);
                        known.standing = Standing::of(found);
                    }
                }
                // Those that are known keep their slots: what is new cannot displace them. Where a directory was not read, what
                // is below it was not seen either.
                let walk = self.walk;
                let is_over = |known: &Known| is_whole || is_over(known, &discovery);
                self.close(|known| known.seen != walk && is_over(known), sink);
                (self.without_row, self.has_unopened) = (0, false);
                for found in &discovery.workloads {
                    self.meet(found, sink);
                }
                if !self.has_unopened {
                    sink.trouble("open", None);
                }
                sink.trouble("count", self.uncounted(&discovery));
            }
            Err(error) => sink.trouble("walk", Some(format!("cannot find workloads: {error}"))),
        }
        self.find_slices(false, sink);
        self.find_marks(sink);
        self.send(sink);
        // What is known of a pod may come somewhat later than its cgroup.
        sink.trouble("unknown", self.unknown().filter(|_| self.walk > 1));
    }

    /// Opens the workload that a cgroup is or lies in, without a walk. False: whether there is one cannot be found out so.
    pub fn sight(&mut self, id: CgroupId, sink: &mut impl Sink) -> bool {
        if self.known.contains_key(&id) {
            return true;
        }
        let path = match self.config.root.path_of(id) {
            Ok(path) => {
                sink.trouble("sight", None);
                // Absent: it is gone.
                let Some(path) = path else { return true };
                path
            }
            Err(error) => {
                sink.trouble("sight", Some(format!("new workloads are found by walks only: {error}")));
                return false;
            }
        };
        self.sight_at(&path, sink)
    }

    fn sight_at(&mut self, path: &[u8], sink: &mut impl Sink) -> bool {
        let is_below = |path: &[u8], above: &[u8]| path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"));
        let Config { root, patterns, protected, .. } = &self.config;
        let Some(found) = workload_of(root, patterns, protected, path) else {
            if patterns.is_never(path) {
                // What holds it is no workload any more.
                self.close(|known| is_below(path, known.handle.path()), sink);
            }
            return true;
        };
        let of_owner = self.known.values().filter(|known| known.standing.owner.is_some_and(|it| is_owner(&found, it)));
        if of_owner.count() >= Bounds::default().of_owner {
            return false;
        }
        let is_merged = found.owner.is_some_and(|owner| self.known.contains_key(&owner.id));
        if !is_merged {
            // What was a leaf is none any more where a cgroup was made in it.
            self.close(|known| is_below(&found.path, known.handle.path()), sink);
            let without_row = self.without_row;
            self.meet(&found, sink);
            // The same one is sighted at each of its events: how many there are is known after a walk.
            self.without_row = self.without_row.min(without_row.max(1));
            self.send(sink);
        }
        true
    }

    /// Closes a workload that may be gone, and the part of a pod.
    pub fn check(&mut self, id: CgroupId, sink: &mut impl Sink) {
        if let Some(pod) = self.known.values().find(|known| known.handle.has_part(id)).map(|known| known.handle.id()) {
            self.renew(pod, sink);
            self.send(sink);
        }
        if let Some(known) = self.known.get(&id)
            && matches!(known.handle.populated_now(), Err(Fault::Gone | Fault::Absent { .. }))
        {
            self.close(|known| known.handle.id() == id, sink);
        }
    }

    fn find(&self, patterns: &Patterns, bounds: Bounds) -> Result<Discovery, NodeError> {
        discover(&self.config.root, patterns, &self.config.protected, bounds)
    }

    fn meet(&mut self, found: &Found, sink: &mut impl Sink) {
        if self.known.contains_key(&found.id) {
            return self.renew(found.id, sink);
        }
        let Some(slot) = self.free.pop() else {
            self.without_row += 1;
            return;
        };
        match self.open(found, slot) {
            Ok(Some(known)) => {
                self.known.insert(found.id, known);
                self.revision += 1;
            }
            // It was removed, or another one was made in its place, which the next walk finds.
            Ok(None) => self.free.push(slot),
            Err(error) => {
                self.free.push(slot);
                (self.without_row, self.has_unopened) = (self.without_row + 1, true);
                sink.trouble("open", Some(format!("cannot watch a workload: {error}")));
            }
        }
    }

    /// Opens a pod anew that is known, where containers or their monitors came or went.
    fn renew(&mut self, id: CgroupId, sink: &mut impl Sink) {
        let Some(known) = self.known.get(&id).filter(|known| known.handle.is_outdated()) else { return };
        match self.open_handle(known.handle.path(), id, known.standing.pod) {
            Ok(Some(handle)) => {
                if let Some(known) = self.known.get_mut(&id) {
                    (known.handle, known.is_changed) = (Arc::new(handle), true);
                }
            }
            // It was removed, which an event or the next walk finds.
            Ok(None) => {}
            Err(error) => {
                self.has_unopened = true;
                sink.trouble("open", Some(format!("cannot watch the containers of a pod: {error}")));
            }
        }
    }

    fn open_handle(&self, path: &[u8], id: CgroupId, pod: Option<PodIdentity>) -> Result<Option<Handle>, NodeError> {
        let Config { root, counts_tasks, .. } = &self.config;
        let spares = pod.map(|_| is_monitor as _);
        let purpose = Purpose { is_written: true, counts_tasks: *counts_tasks, spares };
        let handle = Handle::open_for(root, path, purpose)?.filter(|handle| handle.id() == id);
        Ok(handle.inspect(Handle::read_all_once))
    }

    fn open(&self, found: &Found, slot: u32) -> Result<Option<Known>, NodeError> {
        let Some(handle) = self.open_handle(&found.path, found.id, found.pod)? else { return Ok(None) };
        let slices = (0_u8..).zip(&self.config.slices).filter(|(_, slice)| slice.holds(found));
        let started = monotonic();
        let (cache, cache_seen) = read_cache(&handle, started);
        Ok(Some(Known {
            slot,
            cache,
            cache_seen,
            is_cache_read: true,
            pod: None,
            storage: None,
            handle: Arc::new(handle),
            priority: self.config.priorities.get(found.pattern).copied().unwrap_or(0),
            started,
            slices: slices.fold(SliceSet::NONE, |set, (index, _)| set.with(SliceId(index))),
            standing: Standing::of(found),
            is_changed: true,
            seen: self.walk,
        }))
    }

    /// Closes the workloads for which `is_gone` holds.
    fn close(&mut self, is_gone: impl Fn(&Known) -> bool, sink: &mut impl Sink) {
        let Self { config, known, pods, free, revision, replaced, .. } = self;
        for (_, known) in known.extract_if(|_, known| is_gone(known)) {
            replaced.extend(known.storage);
            sink.update(Update::Gone(known.slot));
            free.push(known.slot);
            *revision += 1;
            // One that is merely no workload any more keeps its protection.
            if let Some(pod) = known.standing.pod
                && matches!(Handle::open(&config.root, known.handle.path()), Ok(None))
            {
                pods.forget(pod.uid);
            }
        }
    }

    /// What is reported of pods that are protected because nothing is known of them.
    fn unknown(&self) -> Option<String> {
        let is_unknown = |known: &&Known| known.pod.is_some_and(|(pod, _)| pod.protected == Some(Why::Unknown));
        let count = self.known.values().filter(is_unknown).count();
        let name = if count == 1 { "it" } else { "them" };
        (count > 0)
            .then(|| format!("{} never evicted: podFacts does not name {name}", counted(count, "pod is", "pods are")))
    }

    /// What is reported of workloads that are not watched, or not by themselves.
    fn uncounted(&self, discovery: &Discovery) -> Option<String> {
        let Self { without_row, .. } = *self;
        if without_row > 0 {
            let most = self.known.len();
            let without_row = counted(without_row, "workload is", "workloads are");
            return Some(format!("{without_row} not watched beside the {most} that there is room for"));
        }
        (discovery.exceeding > 0).then(|| {
            let most = Bounds::default().of_owner;
            format!(
                "{} more than {most} workloads, of which the rest is not watched: they hold what must not be touched",
                counted(discovery.exceeding, "owner has", "owners have")
            )
        })
    }

    /// Reads the page cache of workloads, and sends it.
    pub fn refresh(&mut self, how: Refresh, sink: &mut impl Sink) {
        let now = monotonic();
        for known in self.known.values_mut() {
            if how == Refresh::Moved && known.cache_seen.is_some_and(|seen| seen.holds(&known.handle, now)) {
                continue;
            }
            let cache;
            (cache, known.cache_seen) = read_cache(&known.handle, now);
            if how == Refresh::Replace || known.cache.differs(&cache) {
                known.is_changed = true;
                known.is_cache_read = true;
                known.cache = cache;
            }
        }
        self.send(sink);
    }

    fn send(&mut self, sink: &mut impl Sink) {
        if let Some((protected, gone)) = self.pods.unwritten()
            && sink.protect(protected, gone)
        {
            self.pods.wrote();
        }
        for known in self.known.values_mut() {
            let pod = known.standing.pod.map(|identity| self.pods.of(identity));
            known.is_changed |= known.pod != pod;
            known.pod = pod;
            if !std::mem::take(&mut known.is_changed) {
                continue;
            }
            // It cannot have been started after its cgroup was seen.
            let started = pod.and_then(|(_, rank)| rank.started).map_or(known.started, |it| it.min(known.started));
            let facts = Facts {
                handle: Arc::clone(&known.handle),
                owner: known.standing.owner,
                reservation: known.standing.reservation,
                cache: known.cache,
                is_cache_read: std::mem::take(&mut known.is_cache_read),
                priority: pod.map_or(known.priority, |(_, rank)| rank.priority),
                started,
                slices: known.slices,
                pod: pod.map(|(pod, _)| pod),
            };
            sink.update(Update::Workload(known.slot, facts));
        }
        self.send_storage(sink);
    }

    /// Reads the limits and slow figures of slices with thresholds of their own, and sends those that changed, or `all`,
    /// as [`Refresh::Replace`] does.
    pub fn find_slices(&mut self, all: bool, sink: &mut impl Sink) {
        let mut unobserved = Vec::new();
        for (index, (known, place)) in (0..).zip(self.slices.iter_mut().zip(&self.config.slices)) {
            let now = place.read(known.as_ref(), &self.config.root, &self.config.patterns);
            match place {
                SlicePlace::Path(_) => unobserved.extend(now.as_ref().err().cloned()),
                SlicePlace::Pods => {
                    let why = now.as_ref().err();
                    let why = why.map(|why| format!("allocatableMemory.available is not observed: {why}"));
                    sink.trouble("allocatable", why);
                }
            }
            let now = now.ok();
            let facts = |(handle, figures): &(Arc<Handle>, _)| (handle.id(), *figures);
            if all || known.as_ref().map(facts) != now.as_ref().map(facts) {
                known.clone_from(&now);
                sink.update(Update::Slice(index, now.map(|(handle, figures)| SliceFacts { handle, figures })));
            }
        }
        let why = unobserved.join("; ");
        sink.trouble("slices", (!why.is_empty()).then(|| format!("thresholds of slices are not observed: {why}")));
    }

    /// Finds the slices that the kernel brakes.
    fn find_marks(&mut self, sink: &mut impl Sink) {
        let Some(patterns) = &self.config.brakes else { return };
        let mut discovery = match self.find(patterns, Bounds::default()) {
            // What is below the directory that was not read may be one of them.
            Ok(Discovery { unread: Some(_), .. }) => return,
            Ok(discovery) => discovery,
            Err(error) => return sink.trouble("mark", Some(format!("cannot find slices to mark: {error}"))),
        };
        // The kernel does not ask whether a pod may be stopped.
        let of_pods = discovery.workloads.extract_if(.., |found| self.config.patterns.concerns_pods(&found.path));
        discovery.refused.extend(of_pods.map(|found| found.path));
        sink.trouble("mark", unmarked(&discovery, self.marks.len()));
        let depth = |path: &[u8]| u8::try_from(path.split(|byte| *byte == b'/').count()).unwrap_or(u8::MAX);
        let mut marks = discovery.workloads.iter().map(|found| Mark {
            slice: found.id,
            level: depth(&found.path),
            path: PathEnd::of(&found.path),
        });
        for (index, known) in (0..).zip(&mut self.marks) {
            let mark = marks.next();
            if *known != mark {
                *known = mark;
                sink.update(Update::Mark(index, mark));
            }
        }
    }
}

/// The page cache of a workload; without a figure nothing is subtracted from its usage.
fn read_cache(handle: &Handle, now: MonotonicNs) -> (PageCache, Option<Seen>) {
    let cache = handle.page_cache().ok();
    (cache.unwrap_or_default(), cache.map(|cache| Seen { at: now, usage: cache.charged }))
}

/// Whether one that a walk did not see is no workload any more, although that walk did not read every directory: it is gone
/// by its own files, must not be touched now, or lies in another one.
fn is_over(known: &Known, discovery: &Discovery) -> bool {
    let path = known.handle.path();
    let is_in = |outer: &[u8]| path.strip_prefix(outer).is_some_and(|rest| rest.first() == Some(&b'/'));
    matches!(known.handle.populated(), Err(Fault::Gone))
        || discovery.refused.iter().any(|refused| refused == path || is_in(refused))
        || discovery.workloads.iter().any(|found| is_in(&found.path))
}

fn is_owner(found: &Found, owner: Owner) -> bool {
    found.owner.is_some_and(|of_found| of_found.id == owner.id)
}

impl Standing {
    fn of(found: &Found) -> Self {
        Self { owner: found.owner, reservation: found.reservation, pod: found.pod }
    }
}

/// What is reported of slices that the kernel is configured to brake and does not.
fn unmarked(discovery: &Discovery, most: usize) -> Option<String> {
    const WHY: &str = "would stop what must not be touched: it holds this agent, init, pods, or what `never` names";
    if let Some(path) = discovery.refused.first() {
        let others = match discovery.refused.len() - 1 {
            0 => String::new(),
            others => format!("; so would {others} more"),
        };
        return Some(format!("the kernel does not brake {}: that {WHY}{others}", path.escape_ascii()));
    }
    if discovery.workloads.len() > most {
        return Some(format!("the kernel brakes at most {most} slices; the rest is not marked"));
    }
    discovery.workloads.is_empty().then(|| "the kernel brakes nothing: no slice of `inKernel` exists".to_owned())
}

#[cfg(test)]
mod tests;
