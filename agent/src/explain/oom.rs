//! Whom the OOM killer would take, by what the kernel says of each process.

use std::path::Path;

use plimsoll_node::meminfo::{MemReading, page_bytes};
use plimsoll_node::process::{Pid, cgroup_path};
use plimsoll_policy::kubelet::QosClass;
use plimsoll_policy::oom_score::{Requests, oom_score_adj};
use plimsoll_replay::printable;
use plimsoll_units::{Bytes, Pages};
use serde::Serialize;

use super::pods::Listed;

/// So many of the OOM killer's next ones are told.
pub(super) const MOST: usize = 3;

/// A process that the OOM killer would take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Victim {
    pub(super) pid: i32,
    pub(super) name: String,
    pub(super) cgroup: Option<String>,
    /// Whose container it runs in, where that is listed.
    pub(super) pod: Option<String>,
    /// The kernel's own figure, or what it comes to where that cannot be read.
    pub(super) score: i64,
    pub(super) is_computed: bool,
    pub(super) resident_bytes: Bytes,
    pub(super) swapped_bytes: Bytes,
}

pub(super) fn victims(reading: &MemReading, pods: &Listed) -> Vec<Victim> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut all: Vec<Victim> = processes
        .filter_map(|pid| {
            let folder = Path::new("/proc").join(pid.to_string());
            let cgroup = Pid::from_raw(pid).and_then(|pid| cgroup_path(Some(pid)));
            of(&folder, pid, cgroup, reading, pods)
        })
        .collect();
    all.sort_by_key(|victim| (std::cmp::Reverse((victim.score, victim.resident_bytes)), victim.pid));
    all.truncate(MOST);
    all
}

/// A process as the OOM killer sees it; `None` for a thread of the kernel, what is gone, and what it never takes.
fn of(folder: &Path, pid: i32, cgroup: Option<Vec<u8>>, reading: &MemReading, pods: &Listed) -> Option<Victim> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<i64>().ok();
    let pages: u64 = read("statm")?.split(' ').nth(1)?.parse().ok()?;
    let resident_bytes = Pages(pages).to_bytes(page_bytes());
    let status = read("status").unwrap_or_default();
    let kilobytes = |name: &str| {
        let text = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB"));
        Bytes(text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024))
    };
    let (swapped_bytes, tables) = (kilobytes("VmSwap:"), kilobytes("VmPTE:"));
    let adjustment = number("oom_score_adj");
    let holds_nothing = pages == 0 && swapped_bytes == Bytes::ZERO;
    // Init is never taken, nor is what is set to -1000.
    if holds_nothing || pid == 1 || adjustment == Some(-1000) {
        return None;
    }
    let cgroup = cgroup.map(|path| String::from_utf8_lossy(&path).into_owned());
    let path = cgroup.as_deref().unwrap_or("");
    let reported = number("oom_score");
    let score = reported.unwrap_or_else(|| {
        let adjustment = adjustment.unwrap_or_else(|| i64::from(expected_adjustment(path, reading.total, pods)));
        // What a process holds in memory, in swap, and in tables to find both.
        let held = resident_bytes.saturating_add(swapped_bytes).saturating_add(tables);
        let total = reading.total.saturating_add(reading.swap_total);
        let thousandths = (u128::from(held.0) * 1000).checked_div(u128::from(total.0)).unwrap_or(0);
        // As the kernel scales it, so that nothing is below zero.
        (1000 + i64::try_from(thousandths).unwrap_or(1000) + adjustment) * 2 / 3
    });
    let name = read("comm").map_or_else(|| "?".to_owned(), |name| printable(name.trim_end_matches('\n')));
    Some(Victim {
        pid,
        name,
        pod: pods.of_path(path).map(|pod| pod.name.clone()),
        score,
        is_computed: reported.is_none(),
        resident_bytes,
        swapped_bytes,
        cgroup,
    })
}

/// The adjustment that a kubelet gives to who is in this cgroup: by its container's requests where the pod is listed,
/// by the class in the path where not. Zero for who is no pod's.
fn expected_adjustment(cgroup: &str, machine: Bytes, pods: &Listed) -> i32 {
    if let Some(pod) = pods.of_path(cgroup) {
        let is_in = |id: &str| cgroup.contains(id);
        let own = pod.containers.iter().find(|container| container.id.as_deref().is_some_and(is_in));
        let score = |container| pod.oom_score_adj(container, machine);
        // Of a container that the list does not know: what most threatens it.
        if let Some(score) = own.map(score).or_else(|| pod.containers.iter().map(score).max()) {
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
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("writable");
        let total = Bytes(page_bytes() * 1000);
        let reading = MemReading { total, swap_total: Bytes::ZERO, ..reading() };
        let of_pods = |cgroup: &str, pods: &Listed| {
            of(dir.path(), 5, Some(cgroup.into()), &reading, pods).map(|it| (it.score, it.is_computed))
        };
        let score = |cgroup: &str| of_pods(cgroup, &Listed::default());
        assert_eq!(score(""), None);
        write("statm", "900 100 0 0 0 0 0\n");
        for (cgroup, expected) in [
            ("kubepods.slice/kubepods-besteffort.slice/x", 1400),
            ("kubepods.slice/kubepods-burstable.slice/x", 1399),
            ("kubepods.slice/x", 68),
            ("system.slice/a.service", 733),
        ] {
            assert_eq!(score(cgroup), Some((expected, true)), "{cgroup}");
        }
        let pods = listed(&format!("\"memory\": \"{}\"", total.0 / 2), "");
        let path = format!("kubepods/burstable/pod{UID}/abc");
        assert_eq!(of_pods(&path, &pods), Some((1066, true)), "half of the machine asked for is 500 points less");
        let kilobytes = page_bytes() / 1024;
        write("status", &format!("VmPTE:\t {} kB\nVmSwap:\t {} kB\n", 10 * kilobytes, 190 * kilobytes));
        assert_eq!(score("system.slice/a.service"), Some((866, true)));
        write("oom_score_adj", "100\n");
        assert_eq!(score("kubepods.slice/x"), Some((933, true)));
        write("statm", "900 0 0 0 0 0 0\n");
        assert_eq!(score("kubepods.slice/x"), Some((866, true)), "all of it is in swap");
        write("oom_score", "321\n");
        assert_eq!(score("kubepods.slice/x"), Some((321, false)));
        write("oom_score_adj", "-1000\n");
        assert_eq!(score("kubepods.slice/x"), None);
    }

    #[test]
    fn this_machine_has_somebody_for_the_oom_killer() {
        let victims = victims(&reading(), &Listed::default());
        assert!(!victims.is_empty() && victims.len() <= MOST);
        assert!(victims.is_sorted_by_key(|victim| std::cmp::Reverse(victim.score)));
    }
}
