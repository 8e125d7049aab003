//! The number of tasks against its threshold, at every fork.

use aya_ebpf::{
    helpers::{bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use plimsoll_abi::{TaskRecord, counter, kind};

use crate::{kernel, maps};

#[btf_tracepoint(function = "sched_process_fork")]
pub fn fork(_ctx: BtfTracePointContext) -> i32 {
    forked();
    0
}

#[inline(always)]
fn forked() {
    let Some(table) = maps::TABLE.get_ptr_mut(0) else { return };
    // SAFETY: `table` is the value of a map; only addresses of its fields are taken.
    let (generation, level) = unsafe { (&raw mut (*table).task_generation, &raw const (*table).task_count) };
    if maps::peek(generation) == 0 {
        return;
    }
    let Some(count) = kernel::half(kernel::NR_THREADS.load()) else { return };
    if u64::from(count) < maps::peek(level) {
        return;
    }
    let Some(mut entry) = maps::EVENT_RING.reserve::<TaskRecord>(0) else {
        maps::count(counter::LOST_EVENTS);
        return;
    };
    let generation = maps::take(generation);
    if generation == 0 {
        entry.discard(0);
        return;
    }
    // SAFETY: read the clock and the running task's cgroup.
    let (at_ns, cgroup) = unsafe { (bpf_ktime_get_ns(), bpf_get_current_cgroup_id()) };
    let tgid = bpf_get_current_pid_tgid() >> 32;
    entry.write(TaskRecord { kind: kind::TASKS, count, generation, at_ns, tgid, cgroup });
    entry.submit(maps::WAKE);
}
