//! The cgroups of pods as a real runtime makes them, for saved trees in `tests/data/cgroups`: one pod of each class, and
//! one with the UID of a static pod, with either driver. Each has a sandbox and a container, whose ids the runtime draws:
//! they are replaced by others, so that two captures agree.

use crate::cgroup::{self, Cgroup, ROOT};
use crate::containerd::{self, Driver};
use crate::pod::{Class, Pod};
use crate::systemd;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// UIDs and classes.
const PODS: [(&str, Class); 4] = [
    ("0a000000-0000-4000-8000-000000000001", Class::Guaranteed),
    ("0a000000-0000-4000-8000-000000000002", Class::Burstable),
    ("0a000000-0000-4000-8000-000000000003", Class::BestEffort),
    // The kubelet makes it of a checksum (applyDefaults in pkg/kubelet/config/common.go).
    ("5bd0c1f2a3e49687b5a4c3d2e1f00f1e", Class::Burstable),
];
/// The files of a cgroup that are written down.
const FILES: [&str; 8] = [
    "cgroup.controllers",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.oom.group",
    "memory.swap.max",
    "pids.max",
];
/// What a machine leaves behind.
const OUT: &str = "/out";

/// Writes the tree of each driver.
pub(crate) fn main() -> Result<()> {
    for (name, driver) in [("systemd", Driver::Systemd), ("cgroupfs", Driver::Cgroupfs)] {
        let client = containerd::start(driver)?;
        let mut ids = Vec::new();
        for (number, (uid, class)) in (1..).zip(PODS) {
            let pod = Pod::with_uid(&client, driver, &format!("pod-{number}"), uid, class)?;
            let container = pod.start(&client, "main", &["idle", "--mib", "1"])?;
            ids.push((pod.sandbox, format!("5a0{number}").repeat(16)));
            ids.push((container, format!("c00{number}").repeat(16)));
        }
        for (what, lines) in [("tree", paths()?), ("values", values()?)] {
            let text = ids.iter().fold(lines.join("\n"), |text, (drawn, other)| text.replace(drawn, other));
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            let text = head(name)? + &lines.join("\n") + "\n";
            fs::write(Path::new(OUT).join(format!("containerd-{name}-{what}.txt")), text)?;
        }
        containerd::clean()?;
        containerd::stop()?;
    }
    Ok(())
}

/// Where it was captured.
fn head(driver: &str) -> Result<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let version = |program: &str| {
        let said = systemd::run(Command::new(program).arg("--version"))?;
        Ok::<_, anyhow::Error>(said.lines().next().unwrap_or_default().to_owned())
    };
    Ok(format!(
        "# Captured by `plimsoll-guest pod-tree`, with the {driver} driver. UIDs and ids are made up, and pods are made as\n\
         # the kubelet makes them, without one: {}.\n# Linux {}\n# {}\n# {}\n# {}\n",
        "tests/vm/guest/src/pod.rs",
        kernel.trim(),
        version("systemctl")?,
        version("containerd")?,
        version("runc")?
    ))
}

/// The paths of all cgroups.
fn paths() -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for path in cgroup::all() {
        paths.push(path.strip_prefix(ROOT)?.to_str().context("a cgroup's name is not UTF-8")?.to_owned());
    }
    Ok(paths)
}

/// `PATH FILE VALUE` for each file, and `PATH oom_score_adj VALUE` for each process, of pods and what is above them.
fn values() -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for path in paths()?.into_iter().filter(|path| path.starts_with("kubepods")) {
        let cgroup = Cgroup::existing(&path)?;
        let files = FILES.into_iter().filter_map(|file| Some((file, cgroup.read(file).ok()?)));
        lines.extend(files.map(|(file, value)| format!("{path} {file} {}", value.trim())));
        for pid in cgroup.read("cgroup.procs")?.lines() {
            let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
            lines.push(format!("{path} oom_score_adj {}", score.trim()));
        }
    }
    Ok(lines)
}
