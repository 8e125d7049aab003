//! From the kernel side's records to wakes.

use plimsoll_abi::{ABSENT, Event, ThresholdRecord, change, reclaimer, scope};
use plimsoll_units::{CgroupId, MonotonicNs, Pages};

use crate::{
    thresholds::Generation,
    wake::{CgroupChange, CommandName, CrossedThreshold, OomScope, Reclaimer, Wake},
};

/// The wake for a record of the threshold ring buffer.
pub(super) fn threshold_wake(record: &ThresholdRecord) -> Wake {
    Wake::ThresholdCrossed {
        threshold: match record.threshold {
            0 => CrossedThreshold::Node,
            slot => CrossedThreshold::Slice(slot as usize - 1),
        },
        generation: Generation(record.generation),
        crossed: MonotonicNs(record.at_ns),
        kubelet_available: Pages(record.kubelet),
        mem_available: Pages(record.mem_available),
        usage: present(record.usage).map(Pages),
        lineage: record.lineage.map(cgroup),
        pid: record.pid,
        tgid: record.tgid,
    }
}

fn cgroup(id: u64) -> Option<CgroupId> {
    (id != 0).then_some(CgroupId(id))
}

fn present(value: u64) -> Option<u64> {
    (value != ABSENT).then_some(value)
}

/// What is behind its end, which may be of an earlier name, is left out.
fn command_name([first, second]: [u64; 2]) -> CommandName {
    let mut name = CommandName::default();
    name[..8].copy_from_slice(&first.to_ne_bytes());
    name[8..].copy_from_slice(&second.to_ne_bytes());
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name[end..].fill(0);
    name
}

/// The wake for a record of the event ring buffer.
pub(super) fn event_wake(event: Event) -> Wake {
    match event {
        Event::Reclaim(record) => Wake::ReclaimStarted {
            by: if record.by == reclaimer::KSWAPD { Reclaimer::Kswapd } else { Reclaimer::Direct },
            node: present(record.node).and_then(|node| u32::try_from(node).ok()),
            at: MonotonicNs(record.at_ns),
        },
        Event::Stall(record) => Wake::StallBurst {
            cgroup: CgroupId(record.cgroup),
            stalled_ns: record.stalled_ns,
            at: MonotonicNs(record.at_ns),
        },
        Event::Oom(record) => Wake::Oom {
            at: MonotonicNs(record.at_ns),
            victim: present(record.victim).and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
            name: command_name(record.name),
            victim_cgroup: present(record.cgroup).map(CgroupId),
            lineage: record.lineage.map(cgroup),
            mapped: present(record.mapped).map(Pages),
            resident: present(record.resident).map(Pages),
            scope: match record.scope {
                scope::CGROUP => OomScope::Cgroup,
                scope::CPUSET => OomScope::Cpuset,
                scope::NUMA_NODE => OomScope::NumaNode,
                _ => OomScope::Global,
            },
            limit: present(record.limit).map(CgroupId),
        },
        Event::Tasks(record) => Wake::Tasks {
            count: record.count,
            generation: Generation(record.generation),
            at: MonotonicNs(record.at_ns),
            tgid: u32::try_from(record.tgid).unwrap_or(0),
            cgroup: CgroupId(record.cgroup),
        },
        Event::Cgroup(record) => Wake::Cgroup {
            id: CgroupId(record.id),
            change: match record.change {
                change::CREATED => CgroupChange::Created,
                change::REMOVED => CgroupChange::Removed,
                change::EMPTIED => CgroupChange::Emptied,
                _ => CgroupChange::Populated,
            },
            at: MonotonicNs(record.at_ns),
        },
        Event::Stopped(record) => {
            Wake::Stopped { tgid: record.tgid, slice: CgroupId(record.slice), at: MonotonicNs(record.at_ns) }
        }
    }
}
