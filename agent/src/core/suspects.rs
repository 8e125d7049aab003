//! Who holds much memory that is charged to no workload: outside all of them, or in huge pages, which are in no cgroup's
//! usage. Named where nobody who may be evicted grew.

use plimsoll_node::cgroup::Root;
use plimsoll_node::discover::{Protected, workload_of};
use plimsoll_node::patterns::Patterns;
use plimsoll_node::process::{Pid, cgroup_path};
use plimsoll_units::Bytes;

/// How many are named.
const MOST: usize = 3;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) pid: u32,
    pub(super) name: Vec<u8>,
    pub(super) resident: Bytes,
    /// Of the huge page pool.
    pub(super) huge_pages: Bytes,
}

/// The largest processes that are in no workload or hold huge pages, largest first.
pub(super) fn largest(patterns: &Patterns, root: &Root, protected: &Protected) -> Vec<Suspect> {
    let mut all: Vec<(Holds, Pid)> = processes().filter_map(|pid| Some((holds(pid)?, pid))).collect();
    all.sort_unstable_by_key(|(holds, pid)| (std::cmp::Reverse(holds.all()), pid.as_raw_nonzero()));
    let outside = |pid: Pid| {
        let path = cgroup_path(Some(pid))?;
        workload_of(root, patterns, protected, &path).is_none().then_some(())
    };
    all.into_iter()
        .filter_map(|(Holds { resident, huge_pages }, pid)| {
            if huge_pages == Bytes::ZERO {
                outside(pid)?;
            }
            let comm = std::fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero())).ok()?;
            let name = comm.strip_suffix(b"\n").unwrap_or(&comm).to_vec();
            Some(Suspect { pid: u32::try_from(pid.as_raw_nonzero().get()).ok()?, name, resident, huge_pages })
        })
        .take(MOST)
        .collect()
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holds {
    resident: Bytes,
    huge_pages: Bytes,
}

impl Holds {
    fn all(self) -> Bytes {
        self.resident.saturating_add(self.huge_pages)
    }
}

/// What a process holds; `None` for one that is gone or a thread of the kernel.
fn holds(pid: Pid) -> Option<Holds> {
    parse(&std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?)
}

fn parse(status: &str) -> Option<Holds> {
    let field = |name: &str| -> Option<Bytes> {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(Bytes(kib.saturating_mul(1024)))
    };
    let holds = Holds { resident: field("VmRSS:")?, huge_pages: field("HugetlbPages:").unwrap_or(Bytes::ZERO) };
    (holds.all() > Bytes::ZERO).then_some(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_with_its_memory() {
        let own = Pid::from_raw(i32::try_from(std::process::id()).expect("small")).expect("not zero");
        assert!(holds(own).is_some_and(|holds| holds.resident > Bytes(100_000) && holds.huge_pages == Bytes::ZERO));
        assert!(processes().any(|pid| pid == own));
    }

    #[test]
    fn huge_pages_are_not_resident_and_count_all_the_same() {
        let holds = |resident, huge_pages| Some(Holds { resident: Bytes(resident), huge_pages: Bytes(huge_pages) });
        for (status, expected) in [
            ("Name:\tx\nVmRSS:\t     100 kB\nHugetlbPages:\t    2048 kB\n", holds(102_400, 2_097_152)),
            ("VmRSS:\t     100 kB\n", holds(102_400, 0)),
            ("VmRSS:\t       0 kB\nHugetlbPages:\t       0 kB\n", None),
            ("Name:\tkthreadd\n", None),
        ] {
            assert_eq!(parse(status), expected, "{status}");
        }
    }
}
