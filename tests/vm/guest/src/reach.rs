//! What an attacker could reach of the agent and of other workloads, tried from its place, one attempt after another.

use anyhow::{Result, ensure};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, open, statfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_remount};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_getfd, pidfd_open,
    pidfd_send_signal, prlimit,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The agent's processes.
    #[arg(long = "process")]
    processes: Vec<i32>,
    /// Directories of cgroups that the attacker has no right to.
    #[arg(long = "cgroup")]
    cgroups: Vec<PathBuf>,
    /// What cannot be found is a failure: an attempt at what is not there shows nothing.
    #[arg(long)]
    found: bool,
}

/// What is tried, and how.
type OnProcess = (&'static str, fn(Pid) -> Result<(), Errno>);
type OnCgroup = (&'static str, fn(&Path) -> Result<(), Errno>);
type OnMachine = (&'static str, fn() -> Result<(), Errno>);

const OF_A_PROCESS: &[OnProcess] = &[
    ("stop it", |pid| kill_process(pid, Signal::STOP)),
    ("kill it", |pid| kill_process(pid, Signal::KILL)),
    ("signal its descriptor", |pid| pidfd_send_signal(pidfd_open(pid, PidfdFlags::empty())?, Signal::STOP)),
    ("take a descriptor from it", |pid| {
        pidfd_getfd(pidfd_open(pid, PidfdFlags::empty())?, 0, PidfdGetfdFlags::empty()).map(drop)
    }),
    ("limit its CPU time", |pid| {
        prlimit(Some(pid), Resource::Cpu, Rlimit { current: Some(0), maximum: Some(0) }).map(drop)
    }),
    ("move it to one CPU", |pid| {
        let mut cpu = CpuSet::new();
        cpu.set(0);
        sched_setaffinity(Some(pid), &cpu)
    }),
    ("read its memory", |pid| file_of(pid, "mem", OFlags::RDONLY)),
    ("write its memory", |pid| file_of(pid, "mem", OFlags::RDWR)),
    ("read its environment", |pid| file_of(pid, "environ", OFlags::RDONLY)),
    ("open its first file", |pid| file_of(pid, "fd/0", OFlags::RDONLY)),
    ("offer it to the OOM killer", |pid| file_of(pid, "oom_score_adj", OFlags::WRONLY)),
];

const OF_A_CGROUP: &[OnCgroup] = &[
    ("join it", |path| write(path, "cgroup.procs")),
    ("freeze it", |path| write(path, "cgroup.freeze")),
    ("kill it", |path| write(path, "cgroup.kill")),
    ("limit it", |path| write(path, "memory.max")),
    ("protect it", |path| write(path, "memory.low")),
    ("reclaim from it", |path| write(path, "memory.reclaim")),
    ("make a cgroup in it", |path| mkdirat(CWD, path.join("made"), Mode::RWXU)),
];

const OF_THE_MACHINE: &[OnMachine] = &[
    ("read the run record", || file("/run/plimsoll/record", OFlags::RDONLY)),
    ("write the run record", || file("/run/plimsoll/record", OFlags::WRONLY)),
    ("make a file beside it", || mkdirat(CWD, "/run/plimsoll/made", Mode::RWXU)),
    ("open the lock", || file("/sys/fs/cgroup/memory.reclaim", OFlags::WRONLY)),
    ("open the pinned map", || file("/sys/fs/bpf/plimsoll/stopped", OFlags::RDONLY)),
    ("make a directory among pinned maps", || mkdirat(CWD, "/sys/fs/bpf/plimsoll/made", Mode::RWXU)),
    ("write the kernel's log", || file("/dev/kmsg", OFlags::WRONLY)),
    ("write a kernel setting", || file("/proc/sys/vm/drop_caches", OFlags::WRONLY)),
    ("call the OOM killer", || file("/proc/sysrq-trigger", OFlags::WRONLY)),
    ("have its cgroups writable", || mount_remount("/sys/fs/cgroup", MountFlags::BIND, "")),
    ("mount cgroups anew", || mount("cgroup2", "/tmp", "cgroup2", MountFlags::empty(), None)),
];

/// Tries all of it, prints what each attempt met, and fails where one succeeded.
pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    let mut met = Vec::new();
    for pid in arguments.processes.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        met.extend(OF_A_PROCESS.iter().map(|(name, attempt)| (format!("{name}: {pid:?}"), attempt(pid))));
    }
    for path in &arguments.cgroups {
        met.extend(OF_A_CGROUP.iter().map(|(name, attempt)| (format!("{name}: {}", path.display()), attempt(path))));
    }
    met.extend(OF_THE_MACHINE.iter().map(|(name, attempt)| ((*name).to_owned(), attempt())));
    for (name, outcome) in &met {
        println!("reach: {name}: {outcome:?}");
    }
    let is_missing = |errno| matches!(errno, Errno::NOENT | Errno::SRCH);
    let open = met.iter().filter(|(_, outcome)| match outcome {
        Ok(()) => true,
        Err(errno) => arguments.found && is_missing(*errno),
    });
    let open: Vec<_> = open.collect();
    ensure!(open.is_empty(), "not refused: {open:?}");
    Ok(())
}

fn file(path: &str, how: OFlags) -> Result<(), Errno> {
    open(path, how, Mode::empty()).map(drop)
}

fn file_of(pid: Pid, name: &str, how: OFlags) -> Result<(), Errno> {
    file(&format!("/proc/{}/{name}", pid.as_raw_pid()), how)
}

/// Only a file that is there can be refused.
fn write(cgroup: &Path, name: &str) -> Result<(), Errno> {
    let path = cgroup.join(name);
    statfs(&path)?;
    open(&path, OFlags::WRONLY, Mode::empty()).map(drop)
}
