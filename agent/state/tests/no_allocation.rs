//! From a wake to a kill nothing allocates: everything that the core's thread calls between the two is called here, and
//! the allocations of the calling thread are counted.

use allocation_counter::measure;
use plimsoll_act::{Begun, BrakeEvent, BrakeLimits, Brakes, KillEvent, KillLimits, Kills, Workers};
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_node::{clock, limits, meminfo};
use plimsoll_state::queue;
use plimsoll_state::{Record, StoppedProcesses};
use plimsoll_units::Bytes;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn from_a_wake_to_a_kill_nothing_is_allocated() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let run = tempfile::tempdir().expect("a temporary directory");
    let dir = tree.path().join("work.slice");
    fs::create_dir(&dir).expect("writable");
    for (name, text) in [
        ("cgroup.events", "populated 1\nfrozen 0\n"),
        ("cgroup.procs", ""),
        ("cgroup.freeze", "0\n"),
        ("cgroup.kill", ""),
        ("memory.current", "104857600\n"),
        ("memory.low", "0\n"),
        ("memory.min", "max\n"),
        ("pids.current", "7\n"),
    ] {
        fs::write(dir.join(name), text).expect("writable");
    }
    let root = Root::open(tree.path()).expect("it is there");
    let handle = Arc::new(Handle::open_with_tasks(&root, b"work.slice").expect("readable").expect("it is there"));
    let boot = BootId::read().expect("a boot id");
    let (mut record, _) = Record::open(&run.path().join("record"), boot).expect("writable");
    let (mut queue, _descriptors) = queue::create(4).expect("memory");
    let stopped = StoppedProcesses::open(&run.path().join("stopped"), boot).expect("writable");
    let brake_limits = BrakeLimits::of(2, Bytes(4096), Bytes::mib(2));
    let mut brakes = Brakes::with_capacity(brake_limits, 2, Arc::new(stopped));
    let mut kills = Kills::with_capacity(KillLimits::default(), 2);
    let mut workers = Workers::start(8).expect("threads start");
    let memory = meminfo::MemInfo::open().expect("there is a /proc");
    let tasks = limits::TaskLimits::open().expect("there is a /proc");

    let control = measure(|| drop(std::hint::black_box(vec![0_u8; 100])));
    assert_eq!(control.count_total, 1, "allocations are not counted");

    let now = clock::monotonic();
    let counted = measure(|| {
        memory.read().expect("readable");
        tasks.read().expect("readable");
        handle.usage().expect("readable");
        handle.tasks().expect("readable");
        assert!(handle.populated().expect("readable"));
        brakes.brake(&handle, now, &mut record, &mut workers).expect("room");
        // As where the freeze waits, so that its processes are stopped one by one.
        assert!(brakes.poll(now.after(Duration::from_millis(5)), &mut record, &mut workers).is_none());
        let begun = kills.begin(&handle, now, &mut record, &mut workers);
        assert_eq!(begun, Ok(Begun::Requested));
        brakes.thaw(handle.id(), now, &mut workers);
        assert!(kills.poll(now, &mut record, &mut workers).is_none());
        let mut is_thawed = false;
        while !is_thawed || kills.awaits_signal() {
            let Some(done) = workers.poll() else { continue };
            let event = brakes.done(done, now, &mut record, &mut workers);
            is_thawed |= matches!(event, Some(BrakeEvent::Thawed { .. }));
            kills.done(done, now, &mut record);
        }
        for _ in 0..5 {
            queue.push(b"a record of what was done");
        }
        queue.wake();
    });
    assert_eq!((counted.count_total, counted.count_current), (0, 0));

    fs::write(dir.join("cgroup.events"), "populated 0\nfrozen 0\n").expect("writable");
    let mut event = None;
    let counted = measure(|| event = kills.poll(now, &mut record, &mut workers));
    assert!(matches!(event, Some(KillEvent::Emptied { .. })));
    assert_eq!((counted.count_total, counted.count_current), (0, 0));
}
