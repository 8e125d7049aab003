//! Cgroups that are created, removed, populated and emptied. One thread can make tens of thousands of them a second: they
//! wake the reader at most once in a while, after which it reads what came since.

use aya_ebpf::{EbpfContext as _, helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use plimsoll_abi::{CGROUP_WAKE_PACE_NS, CgroupRecord, change, counter, kind};

use crate::{kernel, maps};

#[btf_tracepoint(function = "cgroup_mkdir")]
pub fn cgroup_made(ctx: BtfTracePointContext) -> i32 {
    changed(ctx.as_ptr() as u64, change::CREATED);
    0
}

#[btf_tracepoint(function = "cgroup_rmdir")]
pub fn cgroup_removed(ctx: BtfTracePointContext) -> i32 {
    changed(ctx.as_ptr() as u64, change::REMOVED);
    0
}

#[btf_tracepoint(function = "cgroup_notify_populated")]
pub fn cgroup_populated(ctx: BtfTracePointContext) -> i32 {
    let arguments = ctx.as_ptr() as u64;
    // The third argument, after the cgroup and its path.
    match kernel::half(arguments + 16) {
        Some(0) => changed(arguments, change::EMPTIED),
        Some(_) => changed(arguments, change::POPULATED),
        None => {}
    }
    0
}

#[inline(always)]
fn changed(arguments: u64, change: u32) {
    let Some(id) = kernel::word(arguments).and_then(kernel::cgroup_id) else { return };
    let Some(mut entry) = maps::EVENT_RING.reserve::<CgroupRecord>(0) else {
        maps::count(counter::LOST_EVENTS);
        return;
    };
    // SAFETY: reads the clock.
    let at_ns = unsafe { bpf_ktime_get_ns() };
    entry.write(CgroupRecord { kind: kind::CGROUP, change, at_ns, id });
    entry.submit(wake(at_ns));
}

/// Two CPUs at the same moment may both wake the reader, which costs nothing but that.
#[inline(always)]
fn wake(at_ns: u64) -> u64 {
    let Some(last) = maps::CGROUP_WAKE.get_ptr_mut(0) else { return maps::WAKE };
    if at_ns.wrapping_sub(maps::peek(last)) < CGROUP_WAKE_PACE_NS {
        return maps::NO_WAKE;
    }
    // SAFETY: the map's only value, aligned and alive as long as the program runs.
    unsafe { last.write_volatile(at_ns) };
    maps::WAKE
}
