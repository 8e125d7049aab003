//! Deciding allocates nothing: a counting allocator looks on.

#![expect(unsafe_code, reason = "a global allocator cannot be had without")]

use plimsoll_policy::{
    Candidate, Config, Key, Line, MemoryReading, Observation, Outcome, Plan, Signal, State, Threshold, decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // The thread's storage may be gone already while it ends.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches a thread-local cell that is
// initialised without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls() -> usize {
    CALLS.with(Cell::get)
}

#[test]
fn deciding_allocates_nothing_however_many_there_are() {
    for count in [0_u32, 1, 100, 1_000, 10_000] {
        let config = Config {
            thresholds: vec![
                Threshold::hard(Signal::MemoryAvailable, Line::Quantity(Bytes(1 << 30))),
                Threshold {
                    grace: std::time::Duration::from_secs(1),
                    ..Threshold::hard(Signal::MemoryAvailable, Line::Quantity(Bytes(2 << 30)))
                },
            ],
            victims_per_minute: 100,
            ..Config::default()
        };
        // More candidates than room, so that what finds none is met too.
        let candidates: Vec<Candidate> = (0..count + 10)
            .map(|slot| Candidate {
                key: Key { slot, id: CgroupId(u64::from(slot)) },
                usage: Some(Bytes(u64::from(slot.wrapping_mul(2_654_435_761)) % 10_000_000)),
                priority: i32::from(slot % 3 == 0),
                ..Candidate::default()
            })
            .collect();
        let mut state = State::with_capacity(&config, count as usize);
        let mut plan = Plan::with_capacity(&config, count as usize);
        let before = calls();
        let mut outcomes = [Outcome::Calm; 4];
        for (second, available) in (1_u64..).zip([8_u64 << 30, 0, 1 << 29, 3 << 29]) {
            let now = MonotonicNs(second * 1_000_000_000);
            let memory = MemoryReading {
                capacity: Bytes(8 << 30),
                kubelet_available: Bytes(available),
                honest_available: Some(Bytes(available)),
            };
            let observation =
                Observation { taken: now, memory: Some(memory), candidates: &candidates, ..Observation::default() };
            decide(&config, &mut state, &observation, now, &mut plan);
            outcomes[usize::try_from(second).expect("small") - 1] = plan.outcome;
        }
        assert_eq!(calls() - before, 0, "{count} candidates: {outcomes:?}");
        assert_eq!(outcomes[0], Outcome::Calm);
        assert!(outcomes[1] != Outcome::Calm, "{count} candidates");
    }
    // The counter counts.
    let before = calls();
    drop(std::hint::black_box(vec![1_u8]));
    assert!(calls() >= before + 2);
}
