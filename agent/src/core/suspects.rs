//! Who holds much memory outside all workloads: named where nobody who may be evicted grew.

use plimsoll_node::cgroup::Root;
use plimsoll_node::discover::{Protected, workload_of};
use plimsoll_node::meminfo::page_bytes;
use plimsoll_node::patterns::Patterns;
use plimsoll_node::process::{Pid, cgroup_path};
use plimsoll_units::{Bytes, Pages};

/// How many are named.
const MOST: usize = 3;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) pid: u32,
    pub(super) name: Vec<u8>,
    pub(super) resident: Bytes,
}

/// The largest processes that are in no workload, largest first.
pub(super) fn largest(patterns: &Patterns, root: &Root, protected: &Protected) -> Vec<Suspect> {
    let mut all: Vec<(Bytes, Pid)> = processes().filter_map(|pid| Some((resident(pid)?, pid))).collect();
    all.sort_unstable_by_key(|(resident, pid)| (std::cmp::Reverse(*resident), pid.as_raw_nonzero()));
    let outside = |pid: Pid| {
        let path = cgroup_path(Some(pid))?;
        workload_of(root, patterns, protected, &path).is_none().then_some(())
    };
    all.into_iter()
        .filter_map(|(resident, pid)| {
            outside(pid)?;
            let comm = std::fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero())).ok()?;
            let name = comm.strip_suffix(b"\n").unwrap_or(&comm).to_vec();
            Some(Suspect { pid: u32::try_from(pid.as_raw_nonzero().get()).ok()?, name, resident })
        })
        .take(MOST)
        .collect()
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// What a process has resident; `None` for one that is gone or a thread of the kernel.
fn resident(pid: Pid) -> Option<Bytes> {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    (pages > 0).then(|| Pages(pages).to_bytes(page_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_with_its_memory() {
        let own = Pid::from_raw(i32::try_from(std::process::id()).expect("small")).expect("not zero");
        assert!(resident(own).is_some_and(|bytes| bytes > Bytes(100_000)));
        assert!(processes().any(|pid| pid == own));
    }
}
