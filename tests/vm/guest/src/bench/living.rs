//! Which processes live in which cgroup, and which cgroups lost some.

use crate::cgroup;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::{fs, thread};

/// Processes and their cgroups. A process that has died is in none, whether or not it was waited for.
pub(super) type Living = BTreeMap<u32, String>;

/// All processes but those in the root cgroup, which are mostly the kernel's own, and those beside this one.
pub(super) fn living() -> Result<Living> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.trim().trim_start_matches("0::/").to_owned();
    let mut living = Living::new();
    for path in cgroup::all() {
        let name = path.strip_prefix(cgroup::ROOT).unwrap_or(&path).to_string_lossy().into_owned();
        // A cgroup may be gone by now.
        let Some(processes) = fs::read_to_string(path.join("cgroup.procs")).ok().filter(|_| name != own) else {
            continue;
        };
        let pids = processes.lines().filter_map(|pid| pid.parse::<u32>().ok()).filter(|pid| !ends_by_itself(*pid));
        living.extend(pids.map(|pid| (pid, name.clone())));
    }
    Ok(living)
}

/// Whether it is one of those that udev has for a while after each event.
fn ends_by_itself(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "(udev-worker)")
}

/// Those of them that are not over at once.
pub(super) fn lasting() -> Result<Living> {
    let mut before = living()?;
    thread::sleep(Duration::from_millis(200));
    let after = living()?;
    before.retain(|pid, _| after.contains_key(pid));
    Ok(before)
}

/// The cgroups with a process in `before` that is not in `after`.
pub(super) fn lost(before: &Living, after: &Living) -> BTreeSet<String> {
    before.iter().filter(|(pid, _)| !after.contains_key(pid)).map(|(_, cgroup)| cgroup.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_loses_a_process_that_is_not_there_any_more() {
        let living = |all: &[(u32, &str)]| all.iter().map(|(pid, cgroup)| (*pid, (*cgroup).to_owned())).collect();
        let before: Living = living(&[(1, "work.slice/hog"), (2, "work.slice/hog"), (3, "system.slice/a.service")]);
        let after: Living = living(&[(1, "work.slice/hog"), (3, "system.slice/a.service"), (9, "b.slice")]);
        assert_eq!(lost(&before, &after).into_iter().collect::<Vec<_>>(), ["work.slice/hog"]);
        assert_eq!(lost(&before, &before).len(), 0);
    }
}
