//! PID 1 of the project's virtual machines: loads modules, mounts what a test needs, runs the command of `/command`
//! (one argument a line), sends what it left in `/out` over the third serial port and its exit code over the second,
//! and powers off.
//!
//! Where the kernel's command line names another first process, such as systemd, it hands a root on a disk over to that,
//! and is started by it again for the command alone.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use rustix::mount::{MountFlags, mount, mount_move};
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
/// Names the program on that disk that is to be the first process.
const INIT: &str = "plimsoll.init=";
/// Where the disk is mounted first.
const NEW: &str = "/new";
/// What of the initramfs is of no use on a root that brings its own modules and mounts.
const LEFT_BEHIND: [&str; 8] = ["dev", "modules", "new", "out", "proc", "run", "sys", "tmp"];

fn main() {
    let prepared = if std::process::id() == 1 { prepare() } else { Ok(()) };
    let code = match prepared.and_then(|()| run()) {
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

/// Makes the machine ready for the command, or hands it over to another first process.
fn prepare() -> anyhow::Result<()> {
    mount_all(&MOUNTS[..3])?;
    fs::write(RESULT, "started\n").with_context(|| format!("cannot write {RESULT}"))?;
    load_modules()?;
    bring_up_processors()?;
    let line = fs::read_to_string("/proc/cmdline").context("cannot read /proc/cmdline")?;
    let named = |key: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key));
    if let Some(disk) = named(ROOT) {
        mount(disk, NEW, "ext4", MountFlags::empty(), None).with_context(|| format!("cannot mount {disk}"))?;
        if let Some(init) = named(INIT) {
            return hand_over(init);
        }
        rustix::process::chroot(NEW).context("cannot change the root")?;
        std::env::set_current_dir("/")?;
        mount_all(&MOUNTS[..3])?;
    }
    mount_all(&MOUNTS[3..])?;
    for (kind, place) in OPTIONAL_MOUNTS {
        // Tests that need one say so themselves.
        let _ = mount(kind, place, kind, MountFlags::empty(), None);
    }
    // Loopback, for the servers that a test asks.
    busybox(&["ip", "link", "set", "lo", "up"])
}

/// Has a program of the disk be the first process, with all that the initramfs brought on the disk.
fn hand_over(init: &str) -> anyhow::Result<()> {
    for entry in fs::read_dir("/").context("cannot list the initramfs")? {
        let entry = entry?;
        if LEFT_BEHIND.iter().all(|name| entry.file_name() != *name) {
            move_file(&entry.path(), &Path::new(NEW).join(entry.file_name()))?;
        }
    }
    fs::remove_dir_all("/modules").context("cannot remove /modules")?;
    fs::create_dir_all(Path::new(NEW).join("out"))?;
    for place in ["/dev", "/proc", "/sys"] {
        mount_move(place, format!("{NEW}{place}")).with_context(|| format!("cannot move {place}"))?;
    }
    std::env::set_current_dir(NEW)?;
    mount_move(".", "/").context("cannot move the root")?;
    rustix::process::chroot(".").context("cannot change the root")?;
    Err(Command::new(init).exec()).with_context(|| format!("cannot start {init}"))
}

/// Moves a file, or a folder with all below it, to another file system. Memory is short: nothing is to be there twice.
fn move_file(from: &Path, to: &Path) -> anyhow::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            move_file(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::copy(from, to).with_context(|| format!("cannot write {}", to.display()))?;
    fs::remove_file(from).with_context(|| format!("cannot remove {}", from.display()))
}

/// Runs the command and gives its exit code.
fn run() -> anyhow::Result<i32> {
    let command = fs::read_to_string("/command").context("cannot read /command")?;
    let mut words = command.lines();
    let program = words.next().context("/command is empty")?;
    let status = Command::new(program)
        .args(words)
        .env("PATH", "/bin:/sbin")
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
