//! The maps, and the counters of what went wrong.

use core::intrinsics::{AtomicOrdering, atomic_xadd, atomic_xchg};

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_RDONLY, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use plimsoll_abi::{StallSlot, StoppedSlot, ThresholdTable, counter};

use crate::allowance::Allowance;

/// Wakes the reader with this very record, however full the ring buffer is.
pub const WAKE: u64 = BPF_RB_FORCE_WAKEUP as u64;

/// Leaves the reader asleep.
pub const NO_WAKE: u64 = BPF_RB_NO_WAKEUP as u64;

/// What the threshold programs compare with; the agent has it mapped.
#[map(name = "thresholds")]
pub static TABLE: Array<ThresholdTable> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// What each CPU may charge without a comparison. System calls only read it.
#[map(name = "allowances")]
pub static ALLOWANCES: PerCpuArray<Allowance> = PerCpuArray::with_max_entries(1, BPF_F_RDONLY);

/// Crossed thresholds alone: no other event can fill it. A multiple of 64 KiB, the largest page size.
#[map(name = "threshold_ring")]
pub static THRESHOLD_RING: RingBuf = RingBuf::with_byte_size(1 << 16, 0);

/// Everything else that is rare.
#[map(name = "event_ring")]
pub static EVENT_RING: RingBuf = RingBuf::with_byte_size(1 << 17, 0);

/// Losses and refusals, by [`counter`].
#[map(name = "counts")]
pub static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(counter::COUNT, 0);

/// When a change of a cgroup last woke the reader.
#[map(name = "cgroup_wake")]
pub static CGROUP_WAKE: Array<u64> = Array::with_max_entries(1, 0);

/// What the brake stopped, by process id. The agent pins it, so that its supervisor or successor can undo it.
#[map(name = "stopped")]
pub static STOPPED: HashMap<u32, StoppedSlot> = HashMap::with_max_entries(1024, 0);

/// When a thread began to wait for memory, by thread.
#[map(name = "waiting")]
pub static WAITING: LruHashMap<u64, u64> = LruHashMap::with_max_entries(8192, 0);

/// What each cgroup waited, by id.
#[map(name = "stalls")]
pub static STALLS: LruHashMap<u64, StallSlot> = LruHashMap::with_max_entries(2048, 0);

/// Counts one.
#[inline(always)]
pub fn count(slot: u32) {
    if let Some(slot) = COUNTS.get_ptr_mut(slot) {
        // SAFETY: a slot of this CPU's own; a program that interrupts this one may cost a count, nothing else.
        unsafe { *slot += 1 }
    }
}

/// Reads what another CPU or the agent may be writing.
#[inline(always)]
pub fn peek(word: *const u64) -> u64 {
    // SAFETY: callers pass words of a map's value, aligned and alive as long as the program runs.
    unsafe { core::ptr::read_volatile(word) }
}

/// Takes an armed generation: one caller gets it and submits, all others get zero.
#[inline(always)]
pub fn take(generation: *mut u64) -> u64 {
    // SAFETY: as for `peek`.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(generation, 0) }
}

/// Adds to a shared counter.
#[inline(always)]
pub fn add(word: *mut u64, amount: u64) {
    // SAFETY: as for `peek`.
    unsafe {
        atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, amount);
    }
}
