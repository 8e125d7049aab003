//! From a wake to a kill nothing allocates: everything that the core's thread calls on that way is called here, under an
//! allocator that counts what the calling thread asks for.
#![expect(unsafe_code, reason = "a global allocator cannot be written without it")]

use plimsoll_act::{Begun, BrakeEvent, BrakeLimits, Brakes, KillEvent, KillLimits, Kills, Owner, Workers};
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_node::{clock, limits, meminfo, vmstat};
use plimsoll_state::Record;
use plimsoll_state::queue;
use plimsoll_units::Bytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands everything to the system's allocator as it came; counting touches one thread-local number that neither
// allocates nor is dropped.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.with(|asked| asked.set(asked.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ASKED.with(|asked| asked.set(asked.get() + 1));
        // SAFETY: the caller's promise is passed on; it came from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `work` asked for memory or gave some back.
fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ASKED.with(Cell::get);
    let result = work();
    (result, ASKED.with(Cell::get) - before)
}

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
    ] {
        fs::write(dir.join(name), text).expect("writable");
    }
    let root = Root::open(tree.path()).expect("it is there");
    let handle = Arc::new(Handle::open(&root, b"work.slice").expect("readable").expect("it is there"));
    let boot = BootId::read().expect("a boot id");
    let (mut record, _) = Record::open(&run.path().join("record"), boot).expect("writable");
    let (mut queue, _descriptors) = queue::create(4).expect("memory");
    let mut brakes = Brakes::with_capacity(BrakeLimits::of(2, Bytes(4096), Bytes::mib(2)), 2);
    let mut kills = Kills::with_capacity(KillLimits::default(), 2);
    let mut workers = Workers::start(4).expect("threads start");
    let memory = meminfo::MemInfo::open().expect("there is a /proc");
    let counters = vmstat::VmStat::open().expect("there is a /proc");
    let tasks = limits::TaskLimits::open().expect("there is a /proc");

    let (control, asked) = counted(|| vec![0_u8; 100]);
    assert!(asked > 0 && control.len() == 100, "the allocator does not count");

    let now = clock::monotonic();
    let ((), asked) = counted(|| {
        memory.read().expect("readable");
        counters.read().expect("readable");
        tasks.read().expect("readable");
        handle.usage().expect("readable");
        assert!(handle.populated().expect("readable"));
        brakes.brake(&handle, Owner(1), now, &mut record).expect("room");
        assert!(brakes.poll(now.after(Duration::from_millis(5)), &mut record).is_none());
        let begun = kills.begin(&handle, now, &mut record, &mut workers);
        assert_eq!(begun, Ok(Begun::Written));
        let thawed = brakes.thaw(handle.id(), now, &mut record);
        assert!(matches!(thawed, Some(BrakeEvent::Thawed { .. })));
        assert!(kills.poll(now, &mut record, &mut workers).is_none());
        for _ in 0..5 {
            queue.push(b"a record of what was done");
        }
        while workers.poll().is_some() {}
    });
    assert_eq!(asked, 0);

    fs::write(dir.join("cgroup.events"), "populated 0\nfrozen 0\n").expect("writable");
    let (event, asked) = counted(|| kills.poll(now, &mut record, &mut workers));
    assert!(matches!(event, Some(KillEvent::Emptied { .. })));
    assert_eq!(asked, 0);
}
