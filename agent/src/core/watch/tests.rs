//! The watching thread's decisions carried out, on cgroups made of plain files: a slice with a limit of 100 MiB and a
//! hard line at 10 MiB, and workloads in it.

use super::super::inventory::eventfd;
use super::super::table::{Facts, SliceFacts, SliceFigures, Termination};
use super::*;
use arrayvec::ArrayVec;
use plimsoll_act::{BrakeLimits, KillLimits};
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::Root;
use plimsoll_policy::SliceThresholds;
use plimsoll_policy::kubelet::{Line, Signal, Threshold};
use plimsoll_sense::{BrakeMark, Descriptor, Generation, MAX_DESCRIPTORS, Polling, SenseError};
use plimsoll_state::queue;
use plimsoll_units::Bytes;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};

const SLICE: u64 = 100;
const LINE: u64 = 10;

struct Scene {
    tree: tempfile::TempDir,
    watch: Watch,
    updates: rtrb::Producer<Update>,
    returned: rtrb::Consumer<Arc<Handle>>,
    reported: queue::Consumer,
    give_means: rtrb::Producer<Means>,
}

/// A hard threshold on the slice alone.
fn slice_policy(victims_per_minute: u32) -> Policy {
    let thresholds = vec![Threshold::hard(Signal::MemoryAvailable, Line::bytes(Bytes::mib(LINE)))];
    Policy {
        thresholds: Vec::new(),
        slices: vec![SliceThresholds { thresholds }],
        hard_victims_per_minute: victims_per_minute,
        ..Policy::default()
    }
}

impl Scene {
    fn new(victims_per_minute: u32) -> Self {
        Self::with(slice_policy(victims_per_minute))
    }

    fn with(policy: Policy) -> Self {
        Self::woken_by(Polling::new(Duration::from_mins(1), Duration::ZERO).expect("a period"), policy)
    }

    fn woken_by(source: impl Source + 'static, policy: Policy) -> Self {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let (record, _) = RunRecord::open(&tree.path().join("record"), BootId([1; 16])).expect("writable");
        let enforcer = Enforcer {
            record,
            brakes: Brakes::with_capacity(BrakeLimits::default(), 4),
            kills: Kills::with_capacity(KillLimits::default(), 4),
            doubtful: Vec::new(),
            workers: Workers::start(16).expect("threads start"),
            reclaim: Worker::start("reclaim", 16).expect("a thread starts"),
            freeze: true,
        };
        let (queue, reader) = queue::create(1024).expect("memory");
        let (updates, take) = rtrb::RingBuffer::new(16);
        let (give_back, returned) = rtrb::RingBuffer::new(16);
        let (give_means, means) = rtrb::RingBuffer::new(1);
        let fd = || eventfd().expect("a descriptor");
        let context = Context {
            policy,
            is_traced: true,
            source: Box::new(source),
            enforcer: Some(enforcer),
            meminfo: MemInfo::open().expect("this is Linux"),
            pressure: None,
            machine: Machine { page_bytes: 4096, ..Machine::default() },
            tasks: None,
            updates: take,
            give_back,
            inventory: InventoryHandle::new().expect("a descriptor"),
            resumer: None,
            hold: Duration::from_secs(2),
            news: fd(),
            queue,
            slow: None,
            term: fd(),
            parent: fd(),
            means,
        };
        let mut scene = Self {
            watch: Watch::new(context).expect("descriptors"),
            updates,
            returned,
            reported: queue::Consumer::attach(&reader).expect("a queue"),
            give_means,
            tree,
        };
        scene.cgroup("slice", 0);
        let (handle, max) = (scene.open("slice"), Bytes::mib(SLICE));
        let figures = SliceFigures { max, inactive_file: Bytes::ZERO, reclaimable: Some(Bytes::ZERO) };
        scene.update(Update::Slice(0, Some(SliceFacts { handle, figures })));
        scene
    }

    fn cgroup(&self, name: &str, mib: u64) {
        fs::create_dir_all(self.tree.path().join(name)).expect("writable");
        for (file, text) in
            [("cgroup.events", "populated 1\n"), ("cgroup.procs", ""), ("cgroup.freeze", "0\n"), ("cgroup.kill", "")]
        {
            self.write(name, file, text);
        }
        self.uses(name, mib);
    }

    fn open(&self, name: &str) -> Arc<Handle> {
        let root = Root::open(self.tree.path()).expect("it is there");
        Arc::new(Handle::open(&root, name.as_bytes()).expect("readable").expect("it is there"))
    }

    fn update(&mut self, update: Update) {
        self.updates.push(update).expect("room");
        self.watch.take_updates();
    }

    /// A workload in the slice that `cgroup` made.
    fn joins(&mut self, slot: u32, name: &str) -> Arc<Handle> {
        let facts = Facts {
            handle: self.open(name),
            reservation: Bytes::ZERO,
            inactive_file: Bytes::ZERO,
            priority: 0,
            started: MonotonicNs(1),
            slices: SliceSet::NONE.with(SliceId(0)),
        };
        let handle = Arc::clone(&facts.handle);
        self.update(Update::Workload(slot, facts));
        handle
    }

    fn write(&self, name: &str, file: &str, text: &str) {
        fs::write(self.tree.path().join(name).join(file), text).expect("writable");
    }

    fn uses(&self, name: &str, mib: u64) {
        self.write(name, "memory.current", &format!("{}\n", mib << 20));
    }

    fn text(&self, name: &str, file: &str) -> String {
        fs::read_to_string(self.tree.path().join(name).join(file)).expect("readable").trim_end().to_owned()
    }

    fn sample(&mut self) {
        self.watch.sample(Trigger::default(), monotonic());
    }

    /// Lets the time go by that a victim has, and then the worker's.
    fn end_patience(&mut self) {
        for seconds in [1, 2] {
            self.watch.follow_up(monotonic().after(Duration::from_secs(seconds)), &mut Trigger::default());
        }
    }

    /// What was told so far.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut frame = [0; queue::FRAME];
        std::iter::from_fn(|| self.reported.pop(&mut frame).map(<[u8]>::to_vec)).collect()
    }

    /// One turn in which these tokens are ready, `after` now.
    fn turn(&mut self, tokens: &[u64], after: Duration) -> Option<End> {
        let ready =
            |token: &u64| epoll::Event { flags: epoll::EventFlags::IN, data: epoll::EventData::new_u64(*token) };
        let events: Vec<epoll::Event> = tokens.iter().map(ready).collect();
        self.watch.turn(&events, monotonic().after(after))
    }

    fn termination(&self, slot: u32, handle: &Handle) -> Option<Termination> {
        self.watch.table.get(Key { slot, id: handle.id() }).map(|workload| workload.termination)
    }
}

#[test]
fn what_still_grows_is_killed_where_its_slice_is_short_and_else_goes_on() {
    for (slice_mib, victims, killed, frozen) in
        [(SLICE - LINE + 1, 1, "1", "1"), (SLICE - LINE, 1, "", "0"), (SLICE - LINE + 1, 0, "", "1")]
    {
        let mut scene = Scene::new(victims);
        scene.cgroup("a", 50);
        // Whoever opens it to read waits for one that writes: a worker that does not come to its end.
        let procs = scene.tree.path().join("a/cgroup.procs");
        fs::remove_file(&procs).expect("it is there");
        mknodat(CWD, &procs, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("writable");
        let handle = scene.joins(3, "a");
        scene.watch.freeze(&handle, 1, Bytes::ZERO);
        assert_eq!(scene.text("a", "cgroup.freeze"), "1");
        scene.uses("slice", slice_mib);
        let begun = monotonic();
        for (after, mib) in [(5, 50), (20, 60)] {
            scene.uses("a", mib);
            scene.watch.follow_up(begun.after(Duration::from_millis(after + 1)), &mut Trigger::default());
        }
        let found = (scene.text("a", "cgroup.kill"), scene.text("a", "cgroup.freeze"));
        assert_eq!((found.0.as_str(), found.1.as_str()), (killed, frozen), "{slice_mib} MiB, {victims} victims");
        if killed.is_empty() {
            continue;
        }
        // It goes on when each of its processes was sent the signal, not before.
        let since = monotonic();
        while scene.text("a", "cgroup.freeze") == "1" {
            assert!(monotonic().since(since) < Duration::from_secs(10), "it is never thawed");
            // Lets go on who waits just now, if anybody does.
            drop(openat(CWD, &procs, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()));
            scene.watch.follow_up(begun.after(Duration::from_millis(22)), &mut Trigger::default());
        }
    }
}

#[test]
fn who_cannot_be_killed_spends_nothing_and_does_not_keep_others_from_their_turn() {
    let mut scene = Scene::new(1);
    for (name, mib) in [("large", 60), ("small", 30)] {
        scene.cgroup(name, mib);
    }
    let refusing = scene.tree.path().join("large/cgroup.kill");
    fs::remove_file(&refusing).expect("it is there");
    symlink("/dev/full", &refusing).expect("writable");
    let (large, small) = (scene.joins(0, "large"), scene.joins(1, "small"));
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert!(
        matches!(scene.termination(0, &large), Some(Termination::Refused(_))),
        "{:?}",
        scene.termination(0, &large)
    );
    assert_eq!(scene.text("small", "cgroup.kill"), "", "one was enough for the plan");
    scene.sample();
    assert_eq!(scene.text("small", "cgroup.kill"), "1");
    assert_eq!(scene.termination(1, &small), Some(Termination::Killed(Bytes::mib(30))));
}

#[test]
fn the_empty_is_nobodys_victim_and_the_stuck_is_one_again_once_it_grows() {
    let mut scene = Scene::new(10);
    for (name, mib) in [("left", 60), ("hog", 30)] {
        scene.cgroup(name, mib);
    }
    scene.write("left", "cgroup.events", "populated 0\n");
    let (left, hog) = (scene.joins(0, "left"), scene.joins(1, "hog"));
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!(
        (scene.text("left", "cgroup.kill"), scene.termination(0, &left)),
        (String::new(), Some(Termination::Stays))
    );
    assert_eq!(scene.text("hog", "cgroup.kill"), "1");
    // It does not end.
    scene.write("hog", "cgroup.kill", "");
    scene.end_patience();
    scene.sample();
    assert_eq!(
        (scene.text("hog", "cgroup.kill"), scene.termination(1, &hog)),
        (String::new(), Some(Termination::Stuck(Bytes::mib(30))))
    );
    // Somebody was started in it.
    scene.uses("hog", 60);
    scene.sample();
    assert_eq!(
        (scene.text("hog", "cgroup.kill").as_str(), scene.termination(1, &hog)),
        ("1", Some(Termination::Killed(Bytes::mib(60))))
    );
}

#[test]
fn a_victim_that_is_refilled_is_killed_again_and_what_it_took_since_does_not_count() {
    let mut scene = Scene::new(10);
    scene.cgroup("hog", 90);
    let hog = scene.joins(0, "hog");
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!(
        (scene.text("hog", "cgroup.kill").as_str(), scene.termination(0, &hog)),
        ("1", Some(Termination::Killed(Bytes::mib(90))))
    );
    scene.write("hog", "cgroup.kill", "");
    scene.uses("hog", 10);
    scene.watch.follow_up(monotonic().after(Duration::from_millis(5)), &mut Trigger::default());
    scene.sample();
    assert_eq!(scene.termination(0, &hog), Some(Termination::Killed(Bytes::mib(10))));
    // Another process is in it now.
    for (mib, killed, held) in [(26, "", 10), (27, "1", 27)] {
        scene.uses("hog", mib);
        scene.watch.follow_up(monotonic().after(Duration::from_millis(5)), &mut Trigger::default());
        scene.sample();
        let found = (scene.text("hog", "cgroup.kill"), scene.termination(0, &hog));
        assert_eq!(found, (killed.to_owned(), Some(Termination::Killed(Bytes::mib(held)))), "{mib} MiB");
    }
}

#[test]
fn a_decision_is_told_anew_when_a_victim_has_ended() {
    let mut scene = Scene::new(10);
    for (name, mib) in [("hog", 90), ("left", 1)] {
        scene.cgroup(name, mib);
    }
    // So that the outcome is the same before and after: nobody has anything to give back.
    scene.write("left", "cgroup.events", "populated 0\n");
    scene.joins(0, "hog");
    scene.joins(1, "left");
    scene.uses("slice", SLICE - 1);
    scene.sample();
    scene.end_patience();
    scene.sample();
    let reported = |scene: &Scene| scene.watch.reported[1].map(|last| (last.outcome, last.at)).expect("it was told");
    let stuck = reported(&scene);
    scene.sample();
    assert_eq!(reported(&scene), stuck, "there is no news");
    // It ends after all, but memory does not come back by it.
    scene.write("hog", "cgroup.events", "populated 0\n");
    scene.watch.follow_up(monotonic(), &mut Trigger::default());
    scene.sample();
    let ended = reported(&scene);
    assert_eq!(ended.0, stuck.0);
    assert!(ended.1 > stuck.1, "what was told still says that it does not end");
}

#[test]
fn who_shadows_closes_nothing_itself_either() {
    let mut scene = Scene::new(1);
    scene.watch.context.enforcer = None;
    scene.cgroup("a", 1);
    let handle = Arc::downgrade(&scene.joins(0, "a"));
    scene.update(Update::Gone(0));
    assert_eq!(handle.strong_count(), 1, "the watching thread dropped the last one");
    assert!(scene.returned.pop().is_ok_and(|returned| returned.path() == b"a"));
}

#[test]
fn a_machine_that_changed_is_looked_at_with_its_new_figures() {
    let mut scene = Scene::new(1);
    scene.sample();
    assert_eq!(scene.watch.next_sample, None);
    let machine = Machine { low_watermark: plimsoll_units::Pages(7), ..scene.watch.context.machine };
    scene.update(Update::Machine(machine));
    assert_eq!(scene.watch.context.machine, machine);
    assert!(scene.watch.next_sample.is_some_and(|at| at <= monotonic()));
}

/// The node is always below its threshold here, and the slice becomes so.
#[test]
fn what_is_traced_gives_the_same_plans_when_it_is_replayed() {
    for policy in EvictionPolicy::ALL {
        let text = format!(
            "evictionHard: {{memory.available: 16Ei}}\nevictionPolicy: {policy}\nmachine: {{victimsPerMinute: 2, \
             evictForUnattributed: true, slices: [{{path: slice, evictionHard: {{memory.available: {LINE}Mi}}}}]}}"
        );
        let configuration = plimsoll_config::parse(&text, "f").expect("it is in order");
        let mut scene = Scene::with(configuration.policy.clone());
        for (slot, name, mib) in [(0, "slice/a", 40), (1, "slice/b", 30), (2, "slice/c", 20)] {
            scene.cgroup(name, mib);
            scene.joins(slot, name);
        }
        for (slice, emptied) in [(50, None), (SLICE - 1, None), (SLICE - 1, Some("slice/a")), (60, Some("slice/b"))] {
            scene.uses("slice", slice);
            if let Some(name) = emptied {
                scene.write(name, "cgroup.events", "populated 0\n");
            }
            scene.sample();
            scene.watch.follow_up(monotonic(), &mut Trigger::default());
            scene.sample();
        }
        let entries = crate::reporter::traced(&scene.frames(), &configuration);
        let plans: Vec<_> = entries
            .iter()
            .filter_map(|entry| match entry {
                plimsoll_replay::trace::Entry::Reported(reported) => Some(reported.plan.clone()),
                plimsoll_replay::trace::Entry::Look(_) => None,
            })
            .collect();
        assert!(plans.len() > 2 && plans.iter().any(|plan| plan["outcome"] == "evict"), "{policy}: {}", plans.len());
        assert_eq!(entries.len() - plans.len(), 8, "{policy}: every look is in it");
        let header = plimsoll_replay::trace::Header {
            version: plimsoll_replay::trace::VERSION,
            agent: "x".to_owned(),
            epoch_ns: None,
        };
        let armed = [serde_json::to_string(&header)].into_iter().chain(entries.iter().map(serde_json::to_string));
        let text: String = armed.map(|line| line.expect("JSON") + "\n").collect();
        let recording = plimsoll_replay::read(text.as_bytes()).expect("a trace");
        let settings = plimsoll_replay::Settings { configuration: &configuration, eviction_policy: None, layout: None };
        let mut turns = Vec::new();
        plimsoll_replay::run(&recording, None, &settings, &mut |turn| turns.push(turn.json()));
        for plan in plans {
            let same = |turn: &&serde_json::Value| ["taken_ns", "slice"].iter().all(|key| turn[*key] == plan[*key]);
            let turn = turns.iter().find(same).expect("a turn of that look");
            for (field, value) in &plan {
                assert_eq!(turn[field], *value, "{policy}: {field}");
            }
        }
    }
}

#[test]
fn who_is_asked_to_end_finishes_the_kill_first_but_not_for_ever() {
    let mut scene = Scene::new(10);
    scene.cgroup("hog", 50);
    let hog = scene.joins(0, "hog");
    assert_eq!(scene.turn(&[TOKEN_TERM], Duration::ZERO), Some(End::Asked), "there is nothing to finish");

    for ends in [true, false] {
        let mut scene = Scene::new(10);
        scene.cgroup("hog", 50);
        let hog = scene.joins(0, "hog");
        scene.watch.freeze(&hog, 1, Bytes::ZERO);
        // The line was crossed, and nobody looked yet.
        scene.uses("slice", SLICE - 1);
        assert_eq!(scene.turn(&[TOKEN_TERM], Duration::ZERO), None, "somebody is frozen and memory is short");
        assert_eq!(
            (scene.text("hog", "cgroup.kill").as_str(), scene.termination(0, &hog)),
            ("1", Some(Termination::Killed(Bytes::mib(50))))
        );
        assert_eq!(scene.turn(&[], Duration::from_millis(1)), None, "it is dying");
        assert!(scene.watch.timeout().is_some(), "nothing would wake it");
        if ends {
            scene.write("hog", "cgroup.events", "populated 0\n");
            scene.uses("slice", 1);
            assert_eq!(scene.turn(&[], Duration::from_millis(2)), Some(End::Asked));
        } else {
            // It gives back, so that it never counts as stuck, and it never ends either.
            scene.uses("hog", 40);
            assert_eq!(scene.turn(&[], END_MOST.saturating_sub(Duration::from_secs(1))), None);
            scene.uses("hog", 30);
            assert_eq!(scene.turn(&[], END_MOST), Some(End::Asked));
        }
    }
    drop(hog);
}

#[test]
fn who_shadowed_acts_as_soon_as_it_is_its_turn_and_has_used_up_nothing() {
    let mut scene = Scene::new(1);
    let enforcer = scene.watch.context.enforcer.take().expect("it acted");
    scene.cgroup("hog", 50);
    scene.joins(0, "hog");
    scene.uses("slice", SLICE - 1);
    for _ in 0..3 {
        scene.sample();
    }
    assert_eq!(scene.text("hog", "cgroup.kill"), "", "it only watches");
    assert_eq!(scene.turn(&[TOKEN_INVENTORY], Duration::ZERO), None);
    assert_eq!(scene.text("hog", "cgroup.kill"), "", "it is not its turn");
    assert!(scene.give_means.push(Means { enforcer, resumer: None }).is_ok());
    assert_eq!(scene.turn(&[TOKEN_INVENTORY], Duration::ZERO), None);
    assert_eq!(scene.text("hog", "cgroup.kill"), "1");
}

/// Readable without end, and nothing can be read: a record that is reserved and not submitted.
struct Busy {
    ready: OwnedFd,
    drains: Arc<AtomicU32>,
}

impl Source for Busy {
    fn kind(&self) -> Kind {
        Kind::Ebpf
    }

    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
        let descriptor = Descriptor { fd: self.ready.as_fd(), interest: Interest::Readable, token: 0 };
        std::iter::once(descriptor).collect()
    }

    fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
        self.drains.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn arm(&mut self, _: &ArmedThresholds) -> Result<Generation, SenseError> {
        Ok(Generation(1))
    }

    fn disarm(&mut self) -> Result<(), SenseError> {
        Ok(())
    }

    fn set_brakes(&mut self, _: &[BrakeMark]) -> Result<(), SenseError> {
        Ok(())
    }
}

#[test]
fn a_record_that_stays_busy_leaves_the_cpu_to_others_and_the_timers_go_on() {
    let (ready, drains) = (eventfd().expect("a descriptor"), Arc::new(AtomicU32::new(0)));
    super::super::inventory::ring(&ready);
    let mut scene = Scene::woken_by(Busy { ready, drains: Arc::clone(&drains) }, slice_policy(1));
    scene.cgroup("hog", 0);
    scene.joins(0, "hog");
    for (tokens, in_a_row) in [(&[0][..], 1), (&[0], 2), (&[], 0), (&[0], 1)] {
        scene.turn(tokens, Duration::ZERO);
        assert_eq!(scene.watch.empty_drains, in_a_row);
    }
    scene.watch.context.slow = Some(Duration::from_millis(20));
    scene.watch.next_slow = Some(monotonic());
    let term = scene.watch.context.term.try_clone().expect("a descriptor more");
    let tree = scene.tree.path().to_owned();
    let write = move |file: &str, text: &str| fs::write(tree.join(file), text).expect("writable");
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        write("hog/memory.current", &format!("{}\n", (SLICE - 1) << 20));
        write("slice/memory.current", &format!("{}\n", (SLICE - 1) << 20));
        std::thread::sleep(Duration::from_millis(200));
        write("slice/memory.current", "0\n");
        write("hog/cgroup.events", "populated 0\n");
        super::super::inventory::ring(&term);
    });
    let begun = monotonic();
    assert_eq!(scene.watch.run(), End::Asked);
    let (took, drains) = (monotonic().since(begun), drains.load(Ordering::Relaxed));
    other.join().expect("it wrote everything");
    assert_eq!(scene.text("hog", "cgroup.kill"), "1", "the slow timer did not look");
    // Twice at once, then once in a millisecond.
    assert!(u128::from(drains) <= 10 + took.as_millis(), "{drains} drains in {took:?}");
}
