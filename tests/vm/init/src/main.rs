//! PID 1 of the project's virtual machines: loads modules, mounts what a test needs, runs the command of `/command`
//! (one argument a line), sends what it left in `/out` over the third serial port and its exit code over the second,
//! and powers off.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;

use anyhow::{Context, ensure};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

/// Where each file system goes: type, place.
const MOUNTS: [(&str, &str); 9] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/out"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
];
/// Those that some kernels have as a module, or not at all.
const OPTIONAL_MOUNTS: [(&str, &str); 2] = [("configfs", "/sys/kernel/config"), ("tracefs", "/sys/kernel/tracing")];
/// The serial ports that only this program writes to: on the first that it started, and the command's exit code.
const RESULT: &str = "/dev/ttyS1";
const FILES: &str = "/dev/ttyS2";
/// Names the disk with the root to run from, on the kernel's command line.
const ROOT: &str = "plimsoll.root=";

fn main() {
    let code = match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("init: {error:#}");
            125
        }
    };
    if let Err(error) = send() {
        eprintln!("init: cannot send the files of /out: {error:#}");
    }
    if let Err(error) = fs::write(RESULT, format!("exit {code}\n")) {
        eprintln!("init: cannot write {RESULT}: {error}");
    }
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        eprintln!("init: cannot power off: {error}");
    }
}

fn run() -> anyhow::Result<i32> {
    mount_all(&MOUNTS[..3])?;
    fs::write(RESULT, "started\n").with_context(|| format!("cannot write {RESULT}"))?;
    load_modules()?;
    let line = fs::read_to_string("/proc/cmdline").context("cannot read /proc/cmdline")?;
    if let Some(disk) = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(ROOT)) {
        mount(disk, "/new", "ext4", MountFlags::empty(), None).with_context(|| format!("cannot mount {disk}"))?;
        rustix::process::chroot("/new").context("cannot change the root")?;
        std::env::set_current_dir("/")?;
        mount_all(&MOUNTS[..3])?;
    }
    mount_all(&MOUNTS[3..])?;
    for (kind, place) in OPTIONAL_MOUNTS {
        // Tests that need one say so themselves.
        let _ = mount(kind, place, kind, MountFlags::empty(), None);
    }
    // Loopback, for the servers that a test asks.
    busybox(&["ip", "link", "set", "lo", "up"])?;
    bring_up_processors()?;
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

fn busybox(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("/bin/busybox").args(arguments).status().context("cannot start busybox")?;
    ensure!(status.success(), "busybox {arguments:?} ended with {status}");
    Ok(())
}

/// Loads the modules of `/modules/list`, in its order: a path and parameters on each line.
fn load_modules() -> anyhow::Result<()> {
    let list = fs::read_to_string("/modules/list").context("cannot read /modules/list")?;
    for line in list.lines() {
        let words: Vec<&str> = ["insmod"].into_iter().chain(line.split(' ')).collect();
        busybox(&words)?;
    }
    Ok(())
}

/// Brings up the processors that the kernel's command line left out of the boot.
fn bring_up_processors() -> anyhow::Result<()> {
    for entry in fs::read_dir("/sys/devices/system/cpu").context("cannot list processors")? {
        let online = entry?.path().join("online");
        // The first one may have no such file: it cannot be taken down.
        if fs::read_to_string(&online).is_ok_and(|state| state.trim() == "0") {
            fs::write(&online, "1").with_context(|| format!("cannot write {}", online.display()))?;
        }
    }
    Ok(())
}

fn mount_all(mounts: &[(&str, &str)]) -> anyhow::Result<()> {
    for (kind, place) in mounts {
        fs::create_dir_all(place).with_context(|| format!("cannot make {place}"))?;
        mount(*kind, *place, *kind, MountFlags::empty(), None).with_context(|| format!("cannot mount {kind}"))?;
    }
    Ok(())
}

/// Sends the files of /out: length and name, length and content, and a length of zero at the end.
fn send() -> anyhow::Result<()> {
    let mut port =
        File::options().read(true).write(true).open(FILES).with_context(|| format!("cannot open {FILES}"))?;
    // As it is: a terminal would put a carriage return before each end of line.
    let mut settings = tcgetattr(&port)?;
    settings.make_raw();
    tcsetattr(&port, OptionalActions::Now, &settings)?;
    for entry in fs::read_dir("/out").context("cannot read /out")? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let name = entry.file_name().into_encoded_bytes();
        let data = fs::read(entry.path())?;
        for part in [&name, &data] {
            port.write_all(&(part.len() as u64).to_le_bytes())?;
            port.write_all(part)?;
        }
    }
    port.write_all(&0_u64.to_le_bytes())?;
    rustix::termios::tcdrain(&port)?;
    Ok(())
}
