//! What the kernel counts for the programs, read by another thread than the one that the events wake.

use std::{
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use aya::{
    Ebpf,
    maps::{MapData, PerCpuArray},
    programs::ProgramFd,
};
use plimsoll_abi::counter;
use plimsoll_units::MEMCG_CHARGE_BATCH;

use super::table::CHARGE_RAN;
use crate::{
    hooks::attachments,
    mapped::{self, MappedWords},
    source::{Health, Hook, ProgramStats, ReadHealth},
};

/// Pages to be charged so that the charge hook runs: more than what is left of a batch.
const PROBE_PAGES: usize = 80;
const _: () = assert!(PROBE_PAGES as u64 > MEMCG_CHARGE_BATCH);
const _: () = assert!(MEMCG_CHARGE_BATCH == plimsoll_abi::CHARGE_BATCH);

/// The thread may move to another processor each time.
const PROBES: usize = 3;

/// What the kernel counts for the programs, and what became of the hooks.
pub(super) struct Counts {
    pub(super) sums: PerCpuArray<MapData, u64>,
    pub(super) malformed: AtomicU64,
    pub(super) hooks: Vec<Hook>,
    pub(super) programs: Vec<(&'static str, ProgramFd)>,
    /// The table of thresholds, in which the charge hook shows that it runs.
    pub(super) table: Arc<MappedWords>,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counts").field("hooks", &self.hooks).finish_non_exhaustive()
    }
}

impl Counts {
    /// A record could not be decoded.
    pub(super) fn malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }
}

impl ReadHealth for Counts {
    fn health(&self) -> Health {
        let sum = |slot: u32| self.sums.get(&slot, 0).map_or(0, |each| each.iter().sum());
        // The agent does not have it counted: that costs every BPF program of the machine.
        let counted = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|value| value.trim() == "1");
        Health {
            lost: vec![("thresholds", sum(counter::LOST_THRESHOLD_EVENTS)), ("events", sum(counter::LOST_EVENTS))],
            malformed: self.malformed.load(Ordering::Relaxed),
            programs: self.programs.iter().map(|(name, fd)| program_stats(name, fd, counted)).collect(),
            hooks: self.hooks.clone(),
            brakes_applied: sum(counter::BRAKES_APPLIED),
            brakes_refused: sum(counter::BRAKES_REFUSED),
            brakes_repeated: sum(counter::BRAKES_REPEATED),
        }
    }

    fn runs(&self) -> bool {
        let ran = || self.table.at(CHARGE_RAN).load(Ordering::Relaxed) != 0;
        (0..PROBES).any(|_| mapped::charge(PROBE_PAGES).is_err() || ran()) || !is_charged(Path::new("/"))
    }
}

/// Whether this process's memory is charged to a cgroup: the root cgroup has no charges, nor has any for which the memory
/// controller is off up to there. The file system's root is `root`.
fn is_charged(root: &Path) -> bool {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    let cgroups = Path::new(own).ancestors().filter(|path| !path.as_os_str().is_empty());
    cgroups.into_iter().any(|path| root.join("sys/fs/cgroup").join(path).join("memory.current").exists())
}

/// The programs that are loaded, by their names.
pub(super) fn loaded_programs(ebpf: &Ebpf) -> Vec<(&'static str, ProgramFd)> {
    let loaded = attachments().filter_map(|attachment| {
        let fd = ebpf.program(attachment.program)?.fd().ok()?;
        Some((attachment.program, fd.try_clone().ok()?))
    });
    loaded.collect()
}

/// What the kernel shows of a program under its descriptor; zeros of statistics that are off are left out.
fn program_stats(name: &'static str, fd: &ProgramFd, counted: bool) -> ProgramStats {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd())).unwrap_or_default();
    stats_from(name, &text, counted)
}

fn stats_from(name: &'static str, fdinfo: &str, counted: bool) -> ProgramStats {
    let value = |key: &str| {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    };
    ProgramStats {
        name,
        runs: value("run_cnt").filter(|_| counted),
        run_time_ns: value("run_time_ns").filter(|_| counted),
        recursion_misses: value("recursion_misses"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_charged_below_the_root_cgroup_where_the_memory_controller_is_on() {
        for (own, charged) in
            [("0::/", false), ("0::/a/b/c", true), ("0::/other/b", false), ("1:name=x:/a", false), ("", false)]
        {
            let root = tempfile::tempdir().expect("tempdir");
            for place in ["proc/self", "sys/fs/cgroup/a/b/c", "sys/fs/cgroup/other/b"] {
                fs::create_dir_all(root.path().join(place)).expect("writable");
            }
            fs::write(root.path().join("sys/fs/cgroup/a/memory.current"), "0").expect("writable");
            fs::write(root.path().join("proc/self/cgroup"), own).expect("writable");
            assert_eq!(is_charged(root.path()), charged, "{own}");
        }
    }

    #[test]
    fn program_statistics_are_read_by_name() {
        let text = "pos:\t0\nprog_type:\t26\nrun_time_ns:\t1234\nrun_cnt:\t7\nrecursion_misses:\t2\n";
        assert_eq!(
            stats_from("x", text, true),
            ProgramStats { name: "x", runs: Some(7), run_time_ns: Some(1234), recursion_misses: Some(2) }
        );
        let misses_alone = ProgramStats { name: "x", recursion_misses: Some(2), ..ProgramStats::default() };
        assert_eq!(stats_from("x", text, false), misses_alone, "zeros of statistics that are off");
        assert_eq!(stats_from("x", "prog_type:\t26\n", true), ProgramStats { name: "x", ..ProgramStats::default() });
    }
}
