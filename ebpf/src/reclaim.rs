//! What the charge hook cannot see: tasks in the root cgroup and huge page pools take memory without a charge, but not
//! without making the kernel reclaim. Both tracepoints run where memory is allocated: direct reclaim always in the task
//! that allocates, the wake-up of kswapd in an interrupt as well.

use aya_ebpf::{EbpfContext as _, helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use plimsoll_abi::{ABSENT, ReclaimRecord, counter, kind, reclaimer};

use crate::{
    kernel, maps,
    threshold::{self, Allocation},
};

/// `___GFP_DIRECT_RECLAIM` (`include/linux/gfp_types.h`), the same bit since Linux 5.0. An allocation with it may
/// sleep, so it is the running task's own, never an interrupt's.
const GFP_DIRECT_RECLAIM: u32 = 1 << 10;

#[btf_tracepoint(function = "mm_vmscan_wakeup_kswapd")]
pub fn kswapd_wake(ctx: BtfTracePointContext) -> i32 {
    #[cfg(feature = "log")]
    aya_log_ebpf::debug!(&ctx, "kswapd is woken");
    let arguments = ctx.as_ptr() as u64;
    // The node, the zone, the order, the flags of the allocation.
    let is_of_task = kernel::half(arguments + 24).is_some_and(|flags| flags & GFP_DIRECT_RECLAIM != 0);
    began(reclaimer::KSWAPD, kernel::or_absent(kernel::half(arguments).map(u64::from)), is_of_task);
    0
}

#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_begin")]
pub fn direct_reclaim(_ctx: BtfTracePointContext) -> i32 {
    began(reclaimer::DIRECT, ABSENT, true);
    0
}

#[inline(always)]
fn began(by: u32, node: u64, is_of_task: bool) {
    let Some(table) = maps::TABLE.get_ptr_mut(0) else { return };
    threshold::node(table, if is_of_task { Allocation::Task } else { Allocation::Unknown });
    // SAFETY: `table` is the value of a map; only the address of a field is taken.
    let generation = unsafe { &raw mut (*table).reclaim_generation };
    if maps::peek(generation) == 0 {
        return;
    }
    let Some(mut entry) = maps::EVENT_RING.reserve::<ReclaimRecord>(0) else {
        maps::count(counter::LOST_EVENTS);
        return;
    };
    if maps::take(generation) == 0 {
        entry.discard(0);
        return;
    }
    // SAFETY: reads the clock.
    let at_ns = unsafe { bpf_ktime_get_ns() };
    entry.write(ReclaimRecord { kind: kind::RECLAIM, by, at_ns, node });
    entry.submit(maps::WAKE);
}
