//! The processes that the OOM killer would select, by what the kernel says of each.

use plimsoll_node::meminfo::MemReading;
use plimsoll_node::process::{self, Memory, Pid};
use plimsoll_pods::Pod;
use plimsoll_policy::kubelet::QosClass;
use plimsoll_policy::oom_score::{Requests, oom_score_adj};
use plimsoll_replay::printable;
use plimsoll_units::Bytes;
use serde::Serialize;

use super::pods::Listed;

/// How many processes are reported.
pub(super) const MOST: usize = 3;

/// A process that the OOM killer would select.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Victim {
    pub(super) pid: i32,
    pub(super) name: String,
    pub(super) cgroup: Option<String>,
    /// The pod whose container it runs in, where that is listed.
    pub(super) pod: Option<String>,
    /// The kernel's own figure, or what it comes to where that cannot be read.
    pub(super) score: i64,
    pub(super) is_computed: bool,
    pub(super) resident_bytes: Bytes,
    pub(super) swapped_bytes: Bytes,
}

pub(super) fn victims(reading: &MemReading, pods: &Listed) -> Vec<Victim> {
    let mut all: Vec<Victim> = process::all()
        .filter_map(|process| {
            let cgroup = Pid::from_raw(process.pid).and_then(|pid| process::cgroup_path(Some(pid)));
            let (reported, adjustment) = (process.oom_score().ok(), process.oom_score_adj().ok());
            of(Memory::of(&process)?, reported.map(Into::into), adjustment.map(Into::into), cgroup, reading, pods)
        })
        .collect();
    all.sort_by_key(|victim| (std::cmp::Reverse((victim.score, victim.resident_bytes)), victim.pid));
    all.truncate(MOST);
    all
}

/// A process as the OOM killer sees it, with its score and adjustment where the kernel has them; `None` for one that it
/// never selects.
fn of(
    memory: Memory,
    reported: Option<i64>,
    adjustment: Option<i64>,
    cgroup: Option<Vec<u8>>,
    reading: &MemReading,
    pods: &Listed,
) -> Option<Victim> {
    let Memory { pid, name, resident, swapped, page_tables, huge_pages: _ } = memory;
    let holds_nothing = resident == Bytes::ZERO && swapped == Bytes::ZERO;
    // Init is never selected, nor is a process with an adjustment of -1000.
    if holds_nothing || pid == 1 || adjustment == Some(-1000) {
        return None;
    }
    let cgroup = cgroup.map(|path| String::from_utf8_lossy(&path).into_owned());
    let path = cgroup.as_deref().unwrap_or("");
    let score = reported.unwrap_or_else(|| {
        let adjustment = adjustment.unwrap_or_else(|| i64::from(expected_adjustment(path, reading.total, pods)));
        let held = resident.saturating_add(swapped).saturating_add(page_tables);
        let total = reading.total.saturating_add(reading.swap_total);
        let thousandths = (u128::from(held.0) * 1000).checked_div(u128::from(total.0)).unwrap_or(0);
        // As the kernel scales it, so that nothing is below zero.
        (1000 + i64::try_from(thousandths).unwrap_or(1000) + adjustment) * 2 / 3
    });
    Some(Victim {
        pid,
        name: printable(&name),
        pod: pods.of_path(path).map(Pod::full_name),
        score,
        is_computed: reported.is_none(),
        resident_bytes: resident,
        swapped_bytes: swapped,
        cgroup,
    })
}

/// The adjustment that a kubelet gives to processes of this cgroup: by the container's requests where the pod is listed,
/// else by the class in the path. Zero outside of pods.
fn expected_adjustment(cgroup: &str, machine: Bytes, pods: &Listed) -> i32 {
    if let Some(pod) = pods.of_path(cgroup) {
        let is_in = |id: &str| cgroup.contains(id);
        let own = pod.spec.running().find(|container| container.id.as_deref().is_some_and(is_in));
        let score = |container| pod.oom_score_adj(container, machine);
        // Of a container that the list does not have: the highest of its pod's.
        if let Some(score) = own.map(score).or_else(|| pod.spec.running().map(score).max()) {
            return score;
        }
    }
    class_of(cgroup).map_or(0, |class| oom_score_adj(class, false, Requests::default(), machine))
}

/// The class that a pod's cgroup stands under.
pub(super) fn class_of(cgroup: &str) -> Option<QosClass> {
    if !cgroup.contains("kubepods") {
        return None;
    }
    let class = if cgroup.contains("besteffort") {
        QosClass::BestEffort
    } else if cgroup.contains("burstable") {
        QosClass::Burstable
    } else {
        QosClass::Guaranteed
    };
    Some(class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::pods::tests::{UID, listed};

    fn reading() -> MemReading {
        let file = plimsoll_node::meminfo::MemInfo::open().expect("there is a /proc");
        file.read().expect("readable")
    }

    #[test]
    fn the_kernels_own_score_goes_before_what_is_computed() {
        let total = Bytes::mib(1000);
        let reading = MemReading { total, swap_total: Bytes::ZERO, ..reading() };
        let holds = |resident, swapped, page_tables| {
            let [resident, swapped, page_tables] = [resident, swapped, page_tables].map(Bytes::mib);
            Memory { pid: 5, resident, swapped, page_tables, ..Memory::default() }
        };
        let score = |memory, reported, adjustment, cgroup: &str, pods: &Listed| {
            of(memory, reported, adjustment, Some(cgroup.into()), &reading, pods).map(|it| (it.score, it.is_computed))
        };
        let none = Listed::default();
        for (cgroup, expected) in [
            ("kubepods.slice/kubepods-besteffort.slice/x", 1400),
            ("kubepods.slice/kubepods-burstable.slice/x", 1399),
            ("kubepods.slice/x", 68),
            ("system.slice/a.service", 733),
        ] {
            assert_eq!(score(holds(100, 0, 0), None, None, cgroup, &none), Some((expected, true)), "{cgroup}");
        }
        let pods = listed(&format!("\"memory\": \"{}\"", total.0 / 2), "");
        let path = format!("kubepods/burstable/pod{UID}/abc");
        let half = score(holds(100, 0, 0), None, None, &path, &pods);
        assert_eq!(half, Some((1066, true)), "a request of half of the machine is 500 points less");
        for (memory, reported, adjustment, expected) in [
            (holds(0, 0, 0), None, None, None),
            (holds(100, 190, 10), None, None, Some((866, true))),
            (holds(100, 190, 10), None, Some(100), Some((933, true))),
            // All of it is in swap.
            (holds(0, 190, 10), None, Some(100), Some((866, true))),
            (holds(0, 190, 10), Some(321), Some(100), Some((321, false))),
            (holds(100, 0, 0), Some(321), Some(-1000), None),
            (Memory { pid: 1, ..holds(100, 0, 0) }, Some(321), Some(0), None),
        ] {
            assert_eq!(
                score(memory.clone(), reported, adjustment, "system.slice/a.service", &none),
                expected,
                "{memory:?}"
            );
        }
    }

    #[test]
    fn this_machine_has_processes_for_the_oom_killer() {
        let victims = victims(&reading(), &Listed::default());
        assert!(!victims.is_empty() && victims.len() <= MOST);
        assert!(victims.is_sorted_by_key(|victim| std::cmp::Reverse(victim.score)));
    }
}
