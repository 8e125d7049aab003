//! What code that an attacker runs in the reporter, in `services` or in the broker could do to the other processes and to the machine,
//! done from inside: a build for tests has the process try it.

use crate::agent::{Settings, tail};
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::{KernelLog, KernelSetting, wait_for};
use crate::pods_tests::{self, Pod};
use crate::scene::{PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use serde_json::json;
use std::fs;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// What the test makes for attempts: a FIFO, a socket, a file, and the directory of a list of pods.
const DIRECTORY: &str = "/run/hostile";
const FACTS: &str = "/run/hostile/facts/pods.json";
/// Of other programs, which are not there.
const SOCKETS: [&str; 4] =
    ["/run/hostile/socket", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/containerd/containerd.sock"];
/// An abstract one.
const ABSTRACT: &[u8] = b"plimsoll-hostile";
/// What every user may read here, so that nothing but the agent's own confinement bars it.
const FILES: [(&str, &str); 4] = [
    ("/run/hostile/beside", "secret"),
    ("/etc/shadow", "root::1::::::\n"),
    ("/var/lib/kubelet/config.yaml", "{}"),
    (FACTS, "{\"items\": []}"),
];
/// As many attempts there are at least.
const ATTEMPTS: usize = 100;

/// A process of the agent, and what an attacker in it is given.
struct Inside {
    part: &'static str,
    user: u32,
    /// Names the FIFO by which a build for tests has the process attack.
    variable: &'static str,
    /// With which error an attempt of this name has to end, or with 0.
    expected: fn(&str) -> i32,
}

const REPORTER: Inside = Inside {
    part: "reporter",
    user: 65526,
    variable: "PLIMSOLL_HOSTILE_REPORTER",
    expected: |name| if name == "newer-clone" { Errno::NOSYS } else { Errno::PERM }.raw_os_error(),
};

/// Its filter allows opening files, and renaming them, and Landlock bars all but the directories of the list and of the journal.
const SERVICES: Inside = Inside {
    part: "services",
    user: 65525,
    variable: "PLIMSOLL_HOSTILE_SERVICES",
    expected: |name| match name {
        "facts" => 0,
        _ if OPENED.iter().any(|kind| name.starts_with(kind)) && !BY_OTHER_CALLS.contains(&name) => {
            Errno::ACCESS.raw_os_error()
        }
        // Of a name that cannot be read: the filter lets it pass.
        "rename-file" => Errno::FAULT.raw_os_error(),
        _ => (REPORTER.expected)(name),
    },
};

const BROKER: Inside =
    Inside { part: "broker", user: 65523, variable: "PLIMSOLL_HOSTILE_BROKER", expected: REPORTER.expected };

/// What opens a file, to read it or to write it.
const OPENED: [&str; 6] = ["read-", "write-", "empty-", "make-facts", "make-unnamed", "make-state"];
/// What reads or writes without opening a file.
const BY_OTHER_CALLS: [&str; 3] = ["read-link", "read-memory-of-the-core", "write-memory-of-the-core"];

/// What is attacked on this machine, until it is dropped.
struct Place {
    listeners: Vec<UnixListener>,
    made: Vec<PathBuf>,
}

impl Place {
    fn make() -> Result<Self> {
        // A repetition of the test finds those of the time before.
        clear(DIRECTORY)?;
        let mut place = Self { listeners: Vec::new(), made: Vec::new() };
        for (path, text) in FILES {
            place.makes(path)?;
            fs::write(path, text).with_context(|| format!("cannot write {path}"))?;
        }
        for path in SOCKETS {
            place.makes(path)?;
            let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {path}"))?;
            rustix::fs::chmod(path, Mode::from_raw_mode(0o777))?;
            place.listeners.push(listener);
        }
        place.listeners.push(UnixListener::bind_addr(&SocketAddr::from_abstract_name(ABSTRACT)?)?);
        for listener in &place.listeners {
            listener.set_nonblocking(true)?;
        }
        symlink("../beside", "/run/hostile/facts/link").context("cannot make a link")?;
        mknodat(CWD, fifo(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("cannot make a FIFO")?;
        Ok(place)
    }

    /// Something is made at this path, in directories that are made.
    fn makes(&mut self, path: &str) -> Result<()> {
        let folder = Path::new(path).parent().context("a directory")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        clear(path)?;
        self.made.push(path.into());
        Ok(())
    }

    /// How many connections this user made to what listens. The supervisor, which is root, makes one to the runtime's
    /// socket where `services` asks for it.
    fn connections_of(&self, user: u32) -> Result<usize> {
        let mut made = 0;
        for listener in &self.listeners {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => made += usize::from(socket_peercred(&stream)?.uid.as_raw() == user),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("cannot accept a connection"),
                }
            }
        }
        Ok(made)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for path in &self.made {
            let _ = clear(path);
            // Where it is empty.
            let _ = path.parent().map(fs::remove_dir);
        }
        let _ = clear(DIRECTORY);
    }
}

fn clear(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let cleared = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match cleared {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn fifo() -> PathBuf {
    Path::new(DIRECTORY).join("fifo")
}

/// The reporter is neither root nor can it become so: it reaches no socket, process, file or part of the kernel that it
/// does not need, on its own word and as seen from outside, and serves on.
pub(crate) fn reporter_tries_to_become_root() -> Result<()> {
    let place = Place::make()?;
    let mut scene = REPORTER.tries_all(&place, |_| {})?;
    let (_, metrics) = scene.agent.get("/metrics")?;
    ensure!(metrics.contains("plimsoll_reporter_confined 1\n"), "{metrics}");
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()
}

/// The same of `services`, which may open the directory of the list of pods beyond that, and reads on: a pod that is listed
/// afterwards is evicted, which one is not of which nothing is known.
pub(crate) fn services_tries_to_become_root() -> Result<()> {
    let place = Place::make()?;
    let mut scene = SERVICES.tries_all(&place, |settings| settings.pod_facts = Some(FACTS.into()))?;
    let pod = Pod::create("besteffort", 1, 0, &json!({}))?;
    pods_tests::write_facts(FACTS, &json!({"items": [pod.facts]}).to_string())?;
    // So slow that the list is read before the threshold is crossed: that is done once a second.
    let mut hog = Hog::start("anon", pod.container.path(), 256, &["--rate", "32", "--hold", "60"])?;
    scene.expect_killed(&mut hog, &pod.cgroup)?;
    scene.end()
}

/// The same of the broker, which is there where pods are known.
pub(crate) fn broker_tries_to_become_root() -> Result<()> {
    let place = Place::make()?;
    BROKER.tries_all(&place, |settings| settings.pod_facts = Some(FACTS.into()))?.end()
}

impl Inside {
    /// Has an agent with this process attack, and checks that each attempt was refused as it has to be, that no process
    /// ended for it and that nothing was reached.
    fn tries_all(&self, place: &Place, change: impl FnOnce(&mut Settings)) -> Result<Scene> {
        // Without audit's daemon the kernel prints ten of its lines in five seconds, which the test before may have used up.
        let _all = KernelSetting::begin("/proc/sys/kernel/printk_ratelimit", "0")?;
        let mut log = KernelLog::from_now()?;
        let scene = Scene::set_with(96, |settings| {
            settings.environment.push((self.variable, fifo().to_string_lossy().into_owned()));
            change(settings);
        })?;
        let (core, process) = (scene.agent.process("core")?, scene.agent.process(self.part)?);
        let status = status(core)?;
        ensure!(status.contains("Seccomp:\t2"), "the core has no filter of system calls: {status}");
        let limit = || {
            let text = fs::read_to_string(format!("/proc/{}/limits", core.as_raw_pid()));
            Ok::<_, anyhow::Error>(text?.lines().find(|line| line.starts_with("Max cpu time")).map(str::to_owned))
        };
        let before = limit()?;
        fs::write(fifo(), format!("{} {DIRECTORY}\n", core.as_raw_pid()))?;
        wait_for("all was tried", PATIENCE, || Ok(attempts(&scene).iter().any(|(name, _)| name == "done")))
            .with_context(|| format!("by {}; the log ends with: {}", self.part, tail(&scene.agent.text())))?;
        self.judge(&attempts(&scene))?;
        self.is_confined(process)?;
        ensure!(place.connections_of(self.user)? == 0, "{} connected", self.part);
        ensure!(limit()? == before, "it changed a limit of the core: {before:?} to {:?}", limit()?);
        let are_the_same = scene.agent.process("core")? == core && scene.agent.process(self.part)? == process;
        ensure!(are_the_same, "a process ended: {}", tail(&scene.agent.text()));
        log.expect("audit: type=1326 ").context("what was refused is not in the kernel's log")?;
        Ok(scene)
    }

    fn is_confined(&self, process: Pid) -> Result<()> {
        let Self { part, user, .. } = self;
        let status = status(process)?;
        let ids = |key: &str| format!("{key}:\t{user}\t{user}\t{user}\t{user}");
        for expected in [&ids("Uid"), &ids("Gid"), "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
            ensure!(status.contains(expected), "{part} has no {expected:?}: {status}");
        }
        Ok(())
    }

    /// Each attempt ended as it has to.
    fn judge(&self, done: &[(String, i32)]) -> Result<()> {
        let tried = || done.iter().filter(|(name, _)| name != "done");
        let otherwise: Vec<_> = tried().filter(|(name, errno)| (self.expected)(name) != *errno).collect();
        ensure!(otherwise.is_empty(), "{} was not refused as expected: {otherwise:?}", self.part);
        ensure!(tried().count() >= ATTEMPTS, "{} tried {} alone: {done:?}", self.part, tried().count());
        Ok(())
    }
}

fn status(process: Pid) -> Result<String> {
    Ok(fs::read_to_string(format!("/proc/{}/status", process.as_raw_pid()))?)
}

/// What the process reported of its attempts: the name of each, and the error.
fn attempts(scene: &Scene) -> Vec<(String, i32)> {
    let attempt = |line: &str| {
        let reported = line.strip_prefix("plimsoll: hostile: ")?;
        let (name, errno) = reported.split_once(": ").unwrap_or((reported, "-1"));
        Some((name.to_owned(), errno.parse().ok()?))
    };
    scene.agent.text().lines().filter_map(attempt).collect()
}
