//! PID 1 of the project's virtual machines: mounts what a test needs, runs the command of `/command` (one
//! argument a line), writes its exit code to the second serial port, and powers off.

#![forbid(unsafe_code)]

use std::fs;
use std::process::Command;

use anyhow::Context;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};

/// Where each file system goes: type, place.
const MOUNTS: [(&str, &str); 8] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
];
/// The second serial port, which only this program writes to.
const RESULT: &str = "/dev/ttyS1";

fn main() {
    let code = match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("init: {error:#}");
            125
        }
    };
    if let Err(error) = fs::write(RESULT, format!("exit {code}\n")) {
        eprintln!("init: cannot write {RESULT}: {error}");
    }
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        eprintln!("init: cannot power off: {error}");
    }
}

fn run() -> anyhow::Result<i32> {
    for (kind, place) in MOUNTS {
        fs::create_dir_all(place).with_context(|| format!("cannot make {place}"))?;
        mount(kind, place, kind, MountFlags::empty(), None).with_context(|| format!("cannot mount {kind}"))?;
    }
    // Loopback, for the servers that a test asks.
    let busybox = |arguments: &[&str]| Command::new("/bin/busybox").args(arguments).status();
    busybox(&["ip", "link", "set", "lo", "up"]).context("cannot bring loopback up")?;
    let command = fs::read_to_string("/command").context("cannot read /command")?;
    let mut words = command.lines();
    let program = words.next().context("/command is empty")?;
    let status = Command::new(program)
        .args(words)
        .env("PATH", "/bin")
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    Ok(status.code().unwrap_or(126))
}
