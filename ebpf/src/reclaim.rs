//! What the charge hook cannot see: tasks in the root cgroup and huge page pools take memory without a charge, but not
//! without making the kernel reclaim. Both tracepoints run in the allocating task.

use aya_ebpf::{EbpfContext as _, helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use plimsoll_abi::{ABSENT, ReclaimRecord, counter, kind, reclaimer};

use crate::{kernel, maps, threshold};

#[btf_tracepoint(function = "mm_vmscan_wakeup_kswapd")]
pub fn kswapd_wake(ctx: BtfTracePointContext) -> i32 {
    #[cfg(feature = "log")]
    aya_log_ebpf::debug!(&ctx, "kswapd is woken");
    began(reclaimer::KSWAPD, kernel::or_absent(kernel::half(ctx.as_ptr() as u64).map(u64::from)));
    0
}

#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_begin")]
pub fn direct_reclaim(_ctx: BtfTracePointContext) -> i32 {
    began(reclaimer::DIRECT, ABSENT);
    0
}

#[inline(always)]
fn began(by: u32, node: u64) {
    let Some(table) = maps::TABLE.get_ptr_mut(0) else { return };
    threshold::node(table, 0);
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
