//! Stalls for memory, added up per cgroup and second: an event when a cgroup stalls for more than its share of one.
//!
//! Sections nest; only the outermost counts. The flags word shows which it is: after entering it holds
//! zero for the outermost, and still does when that one leaves.

use aya_ebpf::{
    helpers::{bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};
use plimsoll_abi::{StallRecord, StallSlot, counter, kind};

use crate::{kernel, maps};

const WINDOW_NS: u64 = 1_000_000_000;

#[fexit(function = "psi_memstall_enter")]
pub fn stall_enter(ctx: FExitContext) -> i32 {
    if kernel::word(ctx.arg::<u64>(0)) == Some(0) {
        // SAFETY: reads the clock.
        let now = unsafe { bpf_ktime_get_ns() };
        // Full: the oldest waiter is forgotten and its stall goes uncounted.
        let _ = maps::WAITING.insert(bpf_get_current_pid_tgid(), now, 0);
    }
    0
}

#[fentry(function = "psi_memstall_leave")]
pub fn stall_leave(ctx: FEntryContext) -> i32 {
    if kernel::word(ctx.arg::<u64>(0)) == Some(0) {
        left();
    }
    0
}

#[inline(always)]
fn left() {
    let thread = bpf_get_current_pid_tgid();
    let Some(since) = maps::WAITING.get_ptr(thread) else { return };
    // SAFETY: the value of a map, and the clock.
    let (since, now) = unsafe { (*since, bpf_ktime_get_ns()) };
    let _ = maps::WAITING.remove(thread);
    let waited = now.saturating_sub(since);
    // SAFETY: reads the running task's cgroup.
    let cgroup = unsafe { bpf_get_current_cgroup_id() };
    let Some(slot) = maps::STALLS.get_ptr_mut(cgroup) else {
        // A single stall may be a burst.
        let is_burst = waited >= kernel::STALL_BURST.load();
        let first = StallSlot { window_at: now, window_ns: waited, trigger: is_burst.into() };
        let _ = maps::STALLS.insert(cgroup, first, 0);
        if is_burst {
            submit(now, cgroup, waited);
        }
        return;
    };
    // SAFETY: the value of a map; only addresses of its fields are taken.
    let (window_at, window, trigger) =
        unsafe { (&raw mut (*slot).window_at, &raw mut (*slot).window_ns, &raw mut (*slot).trigger) };
    if now.saturating_sub(maps::peek(window_at)) >= WINDOW_NS {
        // Two CPUs may both begin the window: one of the stalls is then missing from it.
        // SAFETY: as above.
        unsafe {
            window_at.write_volatile(now);
            window.write_volatile(waited);
            trigger.write_volatile(0);
        }
    } else {
        maps::add(window, waited);
    }
    let stalled_ns = maps::peek(window);
    if stalled_ns < kernel::STALL_BURST.load() || maps::peek(trigger) != 0 {
        return;
    }
    // SAFETY: as above.
    unsafe { trigger.write_volatile(1) };
    submit(now, cgroup, stalled_ns);
}

#[inline(always)]
fn submit(now: u64, cgroup: u64, stalled_ns: u64) {
    let Some(mut entry) = maps::EVENT_RING.reserve::<StallRecord>(0) else {
        maps::count(counter::LOST_EVENTS);
        return;
    };
    entry.write(StallRecord { kind: kind::STALL, reserved: 0, at_ns: now, cgroup, stalled_ns });
    entry.submit(maps::WAKE);
}
