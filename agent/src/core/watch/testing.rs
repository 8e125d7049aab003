//! What the tests of the watching thread share: cgroups made of plain files, a slice with a limit of 100 MiB and a hard
//! threshold at 10 MiB, and workloads in it.

use super::super::inventory::{InventoryHandle, News, eventfd};
use super::super::kernel_brake::KernelBrake;
use super::super::thresholds::Machine;
use super::triggers::{Ready, Trigger};
use super::{
    Arming, Disks, End, Enforcement, Enforcer, Engine, Evictions, Holding, MOST_HELD, Means, Parts, Reporting, Sampler,
    Signals, Stopping, Triggers, Walking, Watch, Workloads,
};
use crate::record::{Braked, EnforcementRecord, Record};
use arrayvec::ArrayVec;
use core::time::Duration;
use plimsoll_act::{BrakeLimits, Brakes, KillLimits, Kills, Worker, Workers};
use plimsoll_inventory::{CoreMessage, Facts, SliceFacts, SliceFigures, Table, Termination, Update};
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::{Handle, PageCache, Root};
use plimsoll_node::clock::monotonic;
use plimsoll_node::limits::TaskLimits;
use plimsoll_node::lock::Locked;
use plimsoll_node::meminfo::MemInfo;
use plimsoll_policy::kubelet::{Amount, Signal, Threshold, ThresholdAmount};
use plimsoll_policy::{Config as Policy, Key, Scope, SliceId, SliceSet, SliceThresholds};
use plimsoll_sense::{
    ArmedThresholds, Descriptor, Generation, Kind, MAX_DESCRIPTORS, Polling, SenseError, Source, WakeList,
};
use plimsoll_state::heartbeat::{self, Heart};
use plimsoll_state::queue;
use plimsoll_state::{Kept, Record as RunRecord, StoppedProcesses};
use plimsoll_units::{Bytes, MonotonicNs};
use rustix::event::epoll;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// How long victims and figures have, by the clock of a test: however busy the machine is, none comes to the end of it but
/// by [`Scene::end_patience`].
const PATIENCE: Duration = Duration::from_mins(1);
/// How long evicted pods are held down.
pub(super) const HOLD: Duration = Duration::from_mins(5);
pub(super) const SLICE: u64 = 100;
pub(super) const THRESHOLD: u64 = 10;
/// The slice as a scope.
pub(super) const SLICE_SCOPE: Scope = Scope::Slice(SliceId(0));

/// A source that submits nothing, and calls this when it is armed.
pub(super) struct Arms<F>(pub(super) F);

impl<F: FnMut(&ArmedThresholds) + Send> Source for Arms<F> {
    fn kind(&self) -> Kind {
        Kind::Ebpf
    }

    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
        ArrayVec::new()
    }

    fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
        Ok(())
    }

    fn arm(&mut self, armed: &ArmedThresholds) -> Result<Generation, SenseError> {
        (self.0)(armed);
        Ok(Generation(1))
    }
}

pub(super) struct Scene {
    pub(super) tree: tempfile::TempDir,
    pub(super) watch: Watch,
    pub(super) updates: rtrb::Producer<News>,
    pub(super) returned: rtrb::Consumer<Arc<Handle>>,
    pub(super) reported: queue::Consumer,
    pub(super) give_means: rtrb::Producer<Means>,
    pub(super) informed: rtrb::Consumer<CoreMessage>,
}

/// A hard threshold on the slice alone.
pub(super) fn slice_policy(victims_per_minute: u32) -> Policy {
    let thresholds = vec![Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes::mib(THRESHOLD)))];
    Policy {
        thresholds: Vec::new(),
        slices: vec![SliceThresholds { thresholds }],
        hard_victims_per_minute: victims_per_minute,
        ..Policy::default()
    }
}

/// The same and a hard threshold on tasks, for which so many more are missing than are available now.
pub(super) fn task_policy(missing: i64) -> Policy {
    let tasks = TaskLimits::open().expect("this is Linux").read().expect("readable");
    let at = i64::try_from(tasks.available()).expect("no machine has as many") + missing;
    let on_tasks = Threshold::hard(Signal::PidAvailable, ThresholdAmount::At(Amount::whole(at)));
    Policy { thresholds: vec![on_tasks], ..slice_policy(10) }
}

impl Scene {
    pub(super) fn new(victims_per_minute: u32) -> Self {
        Self::with(slice_policy(victims_per_minute))
    }

    pub(super) fn with(policy: Policy) -> Self {
        Self::woken_by(Polling::new(Duration::from_mins(1), Duration::ZERO).expect("a period"), policy)
    }

    pub(super) fn woken_by(source: impl Source + 'static, policy: Policy) -> Self {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let (record, _) = RunRecord::open(&tree.path().join("record"), BootId([1; 16])).expect("writable");
        let stopped = StoppedProcesses::open(&tree.path().join("stopped"), BootId([1; 16])).expect("writable");
        let (kept, _) = Kept::open(&tree.path().join("kept"), BootId([1; 16])).expect("writable");
        let (evictions, _) = Kept::open_evictions(&tree.path().join("evictions"), BootId([1; 16])).expect("writable");
        let stopped: Arc<dyn plimsoll_act::StopJournal> = Arc::new(stopped);
        let held = Brakes::with_capacity(BrakeLimits::of_empty(HOLD), MOST_HELD, Arc::clone(&stopped));
        let enforcer = Enforcer {
            record,
            kept,
            evictions,
            evicted: Default::default(),
            brakes: Brakes::with_capacity(BrakeLimits::of(2, Bytes(4096), Bytes::mib(2)), 4, stopped),
            held: Holding::new(HOLD, held),
            kills: Kills::with_capacity(
                KillLimits { patience: PATIENCE, extensions: 0, pause: Duration::MAX, ..KillLimits::default() },
                4,
            ),
            doubtful: Vec::new(),
            workers: Workers::start(16).expect("threads start"),
            reclaim: Worker::start("reclaim", 16).expect("a thread starts"),
            figures: Worker::start("figures", super::FIGURES).expect("a thread starts"),
            fold: Worker::start("fold", 1).expect("a thread starts"),
            freeze: true,
        };
        let (queue, reader) = queue::create(1024).expect("memory");
        let (updates, take) = rtrb::RingBuffer::new(16);
        let (give_back, returned) = rtrb::RingBuffer::new(16);
        let (give_means, means) = rtrb::RingBuffer::new(1);
        let (inform, informed) = rtrb::RingBuffer::new(super::MESSAGES);
        let fd = || eventfd().expect("a descriptor");
        let signals = Signals { inventory: fd(), term: fd(), parent: fd() };
        let handle = InventoryHandle::new().expect("a descriptor");
        let kernel_brake = KernelBrake::new(Duration::from_secs(2), None);
        let (_, heart) = heartbeat::create().expect("memory");
        let table = Table::with_slots(plimsoll_inventory::SLOTS);
        let parts = Parts {
            engine: Engine::new(policy, table.slots()),
            heart: Heart::attach(heart.memory, heart.alarm).expect("memory"),
            triggers: Triggers::new(Box::new(source), signals).expect("descriptors"),
            workloads: Workloads::new(table, take, give_back, handle),
            sampler: Sampler::new(MemInfo::open().expect("this is Linux"), None, TaskLimits::open().ok()),
            arming: Arming::new(Machine { page_bytes: 4096, ..Machine::default() }),
            enforcement: Enforcement::new(Some(enforcer), kernel_brake, means),
            reporting: Reporting::new(queue, true),
            walking: Walking::new(true),
            evictions: Evictions::new(Some(inform), monotonic()),
            disks: Disks::new(Policy::default()),
            disk_victims: None,
            stopping: Stopping::default(),
        };
        let mut scene = Self {
            watch: Watch::new(parts, None, &Locked::default()),
            updates,
            returned,
            reported: queue::Consumer::attach(&reader).expect("a queue"),
            give_means,
            informed,
            tree,
        };
        scene.watch.figures.set_patience(PATIENCE);
        scene.cgroup("slice", 0);
        let (handle, max) = (scene.open("slice"), Bytes::mib(SLICE));
        let figures = SliceFigures { max, cache: PageCache { reclaimable: Some(Bytes::ZERO), ..PageCache::default() } };
        scene.update(Update::Slice(0, Some(SliceFacts { handle, figures })));
        scene
    }

    pub(super) fn cgroup(&self, name: &str, mib: u64) {
        fs::create_dir_all(self.tree.path().join(name)).expect("writable");
        for (file, text) in [
            ("cgroup.events", "populated 1\n"),
            ("cgroup.procs", ""),
            ("cgroup.freeze", "0\n"),
            ("cgroup.kill", ""),
            ("pids.current", "1\n"),
        ] {
            self.write(name, file, text);
        }
        self.uses(name, mib);
    }

    pub(super) fn open(&self, name: &str) -> Arc<Handle> {
        let root = Root::open(self.tree.path()).expect("it is there");
        Arc::new(Handle::open_with_tasks(&root, name.as_bytes()).expect("readable").expect("it is there"))
    }

    pub(super) fn update(&mut self, update: Update) {
        self.receive(News::Table(update));
    }

    pub(super) fn receive(&mut self, news: News) {
        self.updates.push(news).expect("room");
        self.watch.take_updates();
    }

    /// A workload in the slice that `cgroup` made.
    pub(super) fn joins(&mut self, slot: u32, name: &str) -> Arc<Handle> {
        self.joins_with_cache(slot, name, Bytes::ZERO)
    }

    /// Likewise, with so much page cache as the inventory thread last saw it.
    pub(super) fn joins_with_cache(&mut self, slot: u32, name: &str, inactive_file: Bytes) -> Arc<Handle> {
        let mut facts = self.facts(name);
        facts.cache.inactive_file = inactive_file;
        let handle = Arc::clone(&facts.handle);
        self.update(Update::Workload(slot, facts));
        handle
    }

    /// Of a workload in the slice, without page cache and its own owner.
    pub(super) fn facts(&self, name: &str) -> Facts {
        let handle = self.open(name);
        let charged = handle.usage().expect("readable");
        Facts {
            handle,
            owner: None,
            reservation: Bytes::ZERO,
            cache: PageCache { charged, ..PageCache::default() },
            is_cache_read: true,
            priority: 0,
            started: MonotonicNs(1),
            slices: SliceSet::NONE.with(SliceId(0)),
            pod: None,
        }
    }

    pub(super) fn file(&self, name: &str, file: &str) -> PathBuf {
        self.tree.path().join(name).join(file)
    }

    pub(super) fn write(&self, name: &str, file: &str, text: &str) {
        fs::write(self.file(name, file), text).expect("writable");
    }

    pub(super) fn uses(&self, name: &str, mib: u64) {
        self.write(name, "memory.current", &format!("{}\n", mib << 20));
    }

    pub(super) fn text(&self, name: &str, file: &str) -> String {
        fs::read_to_string(self.file(name, file)).expect("readable").trim_end().to_owned()
    }

    /// Samples, and waits until what that led to is done.
    pub(super) fn sample(&mut self) {
        self.decide();
        self.settle();
    }

    /// Samples, and again when the figures are read that the decision waits for.
    pub(super) fn decide(&mut self) {
        self.watch.sample(&Trigger::new(monotonic()));
        while self.awaits_figures() {
            self.watch.sample(&Trigger::new(monotonic()));
        }
    }

    /// Waits until what was requested is written, and takes the results in.
    pub(super) fn settle(&mut self) {
        while self.watch.enforcement.awaits_writes() {
            let now = monotonic();
            self.watch.take_results(now, &mut Trigger::new(now));
        }
    }

    /// Freezes a cgroup for the slice, and waits until that is written.
    pub(super) fn freeze(&mut self, handle: &Arc<Handle>) {
        self.watch.freeze(handle, Bytes::ZERO);
        self.settle();
    }

    /// Follows up what was requested, at `now`.
    pub(super) fn follow_up(&mut self, now: MonotonicNs) {
        self.watch.follow_up(now, &mut Trigger::new(now));
        self.settle();
    }

    /// Samples because a threshold was crossed just now, and once more when the figures are read.
    pub(super) fn cross(&mut self) {
        for _ in 0..2 {
            let now = monotonic();
            let mut trigger = Trigger::new(now);
            trigger.crossed = Some(now);
            self.watch.sample(&trigger);
            self.awaits_figures();
            self.settle();
        }
    }

    /// Whether a decision waits for figures, which are read then.
    pub(super) fn awaits_figures(&mut self) -> bool {
        while self.watch.figures.is_pending() || self.watch.folding.is_pending() {
            self.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
        }
        self.watch.figures.is_awaited()
    }

    /// Lets the time pass that a victim has, and then the worker's.
    pub(super) fn end_patience(&mut self) {
        for turn in [1, 2] {
            self.watch.follow_up(monotonic().after(2 * turn * PATIENCE), &mut Trigger::new(monotonic()));
        }
    }

    /// What was reported so far.
    pub(super) fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut frame = [0; queue::FRAME];
        std::iter::from_fn(|| self.reported.pop(&mut frame).map(<[u8]>::to_vec)).collect()
    }

    /// What was reported of brakes since this was last asked.
    pub(super) fn brakes(&mut self) -> Vec<Braked> {
        let frames = self.frames();
        let records = frames.iter().filter_map(|frame| Record::read(frame));
        records
            .filter_map(|record| {
                if let Record::Enforcement(EnforcementRecord::Brake { what, .. }) = record { Some(what) } else { None }
            })
            .collect()
    }

    /// One turn in which these are ready, `after` now.
    pub(super) fn turn(&mut self, ready: &[Ready], after: Duration) -> Option<End> {
        let event = |ready: &Ready| epoll::Event {
            flags: epoll::EventFlags::IN,
            data: epoll::EventData::new_u64(ready.token()),
        };
        let events: Vec<epoll::Event> = ready.iter().map(event).collect();
        let mut end = self.watch.turn(&events, monotonic().after(after));
        while end.is_none() && self.awaits_figures() {
            self.watch.sample(&Trigger::new(monotonic()));
            end = self.watch.turn(&[], monotonic().after(after));
        }
        self.settle();
        end
    }

    pub(super) fn termination(&self, slot: u32, handle: &Handle) -> Option<Termination> {
        self.watch.workloads.table.get(Key { slot, id: handle.id() }).map(|workload| workload.termination)
    }
}
