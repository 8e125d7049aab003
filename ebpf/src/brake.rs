//! The in-kernel brake: stops the charging process itself, before the agent is awake. Off unless configured.
//!
//! What is stopped is written down first, in a map that outlives the agent; where it cannot be written, nothing is
//! stopped.

use aya_ebpf::helpers::{
    bpf_get_current_ancestor_cgroup_id, bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns,
    bpf_send_signal,
};
use plimsoll_abi::{StoppedRecord, StoppedSlot, counter, kind};

use crate::{
    kernel, maps,
    threshold::{DEPTH, Readings},
};

const SIGSTOP: u32 = 19;

/// Marked slices are found at these levels below the root cgroup.
const LEVELS: i32 = 8;

/// Stops the running process if it is in a marked slice, memory is below that slice's threshold, and what is charged
/// belongs to the same slice; not after `until`, in nanoseconds of the monotonic clock. Where nothing is charged (reclaim)
/// no process is stopped: the next one to charge is.
#[inline(always)]
pub fn apply(levels: u64, until: u64, now: Readings, counter: u64) {
    for level in 1..=LEVELS {
        if levels & (1 << level) == 0 {
            continue;
        }
        // SAFETY: reads the running task's cgroup; zero where it has no ancestor at that level.
        let slice = unsafe { bpf_get_current_ancestor_cgroup_id(level) };
        if slice == 0 {
            return;
        }
        let Some(mark) = maps::BRAKES.get_ptr(slice) else { continue };
        // SAFETY: the value of a map.
        let (kubelet, mem_available) =
            unsafe { (maps::peek(&raw const (*mark).kubelet), maps::peek(&raw const (*mark).mem_available)) };
        if now.kubelet < kubelet || now.mem_available < mem_available {
            if is_charged(counter, slice) {
                stop(slice, until);
            }
            return;
        }
    }
}

/// Whether the page counter belongs to the slice or to something in it.
#[inline(always)]
fn is_charged(counter: u64, slice: u64) -> bool {
    let mut at = counter;
    for _ in 0..DEPTH {
        if kernel::counter_cgroup(at) == Some(slice) {
            return true;
        }
        at = match kernel::member(at, &kernel::COUNTER_PARENT) {
            Some(parent) if parent != 0 => parent,
            _ => return false,
        };
    }
    false
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
        if unsafe { (*known).start_ns } == start_ns {
            // On its way to stop: the signal takes effect only as the task returns to user space.
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
    // User space may have continued it and removed the record just before the signal: no process stays stopped without a
    // record. Should it run already, the next undo finds a process that needs nothing.
    if maps::STOPPED.get_ptr(tgid).is_none() {
        let _ = maps::STOPPED.insert(tgid, StoppedSlot { start_ns, slice, at_ns }, 0);
    }
    maps::count(counter::BRAKES_APPLIED);
    if let Some(mut entry) = maps::EVENT_RING.reserve::<StoppedRecord>(0) {
        entry.write(StoppedRecord { kind: kind::STOPPED, tgid, at_ns, slice });
        entry.submit(maps::WAKE);
    } else {
        maps::count(counter::LOST_EVENTS);
    }
    0
}
