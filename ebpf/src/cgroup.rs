//! Cgroups that are created, removed, populated and emptied. Not urgent: the ring buffer's own wake-up rule applies.

use aya_ebpf::{EbpfContext as _, helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use plimsoll_abi::{CgroupRecord, change, counter, kind};

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
    entry.submit(0);
}
