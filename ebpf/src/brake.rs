//! The in-kernel brake: stops the charging process itself, before the agent is awake. Off unless configured.
//!
//! What is stopped is written down first, in a map that outlives the agent; where it cannot be written, nothing is
//! stopped.

use aya_ebpf::helpers::{
    bpf_get_current_ancestor_cgroup_id, bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns,
    bpf_send_signal,
};
use plimsoll_abi::{BRAKES as MARKS, BrakeSlot, StoppedRecord, StoppedSlot, ThresholdTable, counter, kind};

use crate::{kernel, maps, threshold::Readings};

const SIGSTOP: u32 = 19;

/// A process that still charges so long after it was written down was continued by another process.
const AGAIN_NS: u64 = 5_000_000;

/// Stops the running process if it is in a marked slice, memory is below that slice's threshold, and what is charged
/// belongs to the same slice; not after the time in the table. Where nothing is charged (reclaim) no process is stopped:
/// the next one to charge is.
#[inline(always)]
pub fn apply(table: *const ThresholdTable, now: Readings, counter: u64) {
    // SAFETY: `table` is the value of a map; only addresses of its fields are taken.
    let (count, until) =
        unsafe { (maps::peek(&raw const (*table).brake_count), maps::peek(&raw const (*table).brake_until)) };
    // The running task's ancestor at the level of the last mark: most marked slices are siblings.
    let (mut level, mut id) = (0, 0);
    for slot in 0..MARKS {
        if slot as u64 >= count {
            return;
        }
        // SAFETY: `table` is the value of a map and the index is within the marks; only addresses of fields are taken.
        let (slice, own_level, kubelet, mem_available) = unsafe {
            let mark = (&raw const (*table).brakes).cast::<BrakeSlot>().add(slot);
            (
                maps::peek(&raw const (*mark).cgroup),
                maps::peek(&raw const (*mark).level),
                maps::peek(&raw const (*mark).kubelet),
                maps::peek(&raw const (*mark).mem_available),
            )
        };
        if own_level != level {
            level = own_level;
            // SAFETY: reads the running task's cgroup; zero where it has no ancestor at that level.
            id = unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) };
        }
        if id == 0 || id != slice {
            continue;
        }
        if (now.kubelet < kubelet || now.mem_available < mem_available) && is_charged(counter, slice, level) {
            stop(slice, until);
        }
        return;
    }
}

/// Whether the page counter belongs to the slice at this level, or to something in it.
#[inline(always)]
fn is_charged(counter: u64, slice: u64, level: u64) -> bool {
    let charged = kernel::or_zero(kernel::cgroup_of(counter));
    let ancestor = kernel::or_zero(kernel::ancestor(charged, level));
    kernel::or_zero(kernel::cgroup_id(ancestor)) == slice
}

#[inline(never)]
fn stop(slice: u64, until: u64) -> i32 {
    // SAFETY: reads the clock.
    let at_ns = unsafe { bpf_ktime_get_ns() };
    if at_ns >= until {
        // The agent does not run, so nothing that is stopped now would be continued.
        return 0;
    }
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: the running task's address.
    let task = unsafe { bpf_get_current_task() };
    let start =
        kernel::member(task, &kernel::TASK_LEADER).and_then(|leader| kernel::member(leader, &kernel::TASK_START));
    let Some(start_ns) = start else {
        maps::count(counter::BRAKES_REFUSED);
        return 0;
    };
    if let Some(known) = maps::STOPPED.get_ptr(tgid) {
        // SAFETY: the value of a map.
        let (known_start, stopped_at) = unsafe { ((*known).start_ns, (*known).at_ns) };
        if known_start == start_ns {
            // On its way to stop: the signal takes effect only as the task returns to user space. Later, it is on a long
            // way through the kernel, and the signal is pending already, or it was continued. The record stays as it is:
            // the hold ends by the time of the first signal.
            if at_ns.saturating_sub(stopped_at) >= AGAIN_NS {
                // SAFETY: signals the running process, which the record names.
                unsafe { bpf_send_signal(SIGSTOP) };
                maps::count(counter::BRAKES_REPEATED);
                keep(tgid, StoppedSlot { start_ns, slice, at_ns: stopped_at });
            }
            return 0;
        }
    }
    if maps::STOPPED.insert(tgid, StoppedSlot { start_ns, slice, at_ns }, 0).is_err() {
        maps::count(counter::BRAKES_REFUSED);
        return 0;
    }
    // SAFETY: signals the running process, which the record just written names.
    if unsafe { bpf_send_signal(SIGSTOP) } != 0 {
        let _ = maps::STOPPED.remove(tgid);
        maps::count(counter::BRAKES_REFUSED);
        return 0;
    }
    keep(tgid, StoppedSlot { start_ns, slice, at_ns });
    maps::count(counter::BRAKES_APPLIED);
    if let Some(mut entry) = maps::EVENT_RING.reserve::<StoppedRecord>(0) {
        entry.write(StoppedRecord { kind: kind::STOPPED, tgid, at_ns, slice });
        entry.submit(maps::WAKE);
    } else {
        maps::count(counter::LOST_EVENTS);
    }
    0
}

/// User space may have continued the process and removed its record just before the signal: no process stays stopped
/// without a record. Should it run already, the next undo finds a process that needs nothing.
#[inline(always)]
fn keep(tgid: u32, slot: StoppedSlot) {
    if maps::STOPPED.get_ptr(tgid).is_none() {
        let _ = maps::STOPPED.insert(tgid, slot, 0);
    }
}
