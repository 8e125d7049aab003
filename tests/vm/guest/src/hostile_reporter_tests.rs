//! What code that an attacker runs in the reporter could do to the other processes and to the machine, done from inside:
//! a build for tests has its reporter try it.

use crate::agent::tail;
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::{KernelLog, wait_for};
use crate::scene::{PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;

/// Names the FIFO by which a build for tests has its reporter attack.
const HOSTILE: &str = "PLIMSOLL_HOSTILE_REPORTER";

/// The reporter is neither root nor can it become so: it reaches no socket, process, file or part of the kernel that it
/// does not need, on its own word and as seen from outside, and serves on.
pub(crate) fn reporter_tries_to_become_root() -> Result<()> {
    let (fifo, socket) = ("/run/hostile.fifo", "/run/hostile.socket");
    // A repetition of the test finds those of the time before.
    for path in [fifo, socket] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context(format!("cannot remove {path}"));
            }
            _ => {}
        }
    }
    mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("cannot make a FIFO")?;
    let listener = UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    rustix::fs::chmod(socket, Mode::from_raw_mode(0o777))?;
    let mut log = KernelLog::from_now()?;
    let mut scene = Scene::set_with(96, |settings| settings.environment.push((HOSTILE, fifo.to_owned())))?;
    let core = scene.agent.process("core")?;
    let reporter = scene.agent.part("reporter")?;
    let status = fs::read_to_string(format!("/proc/{reporter}/status"))?;
    for expected in ["Uid:\t65526\t65526\t65526\t65526", "Gid:\t65526\t", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        ensure!(status.contains(expected), "the reporter has no {expected:?}: {status}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", core.as_raw_pid()))?;
    ensure!(status.contains("Seccomp:\t2"), "the core has no filter of system calls: {status}");
    let limit = || {
        let text = fs::read_to_string(format!("/proc/{}/limits", core.as_raw_pid()));
        Ok::<_, anyhow::Error>(text?.lines().find(|line| line.starts_with("Max cpu time")).map(str::to_owned))
    };
    let before = limit()?;
    fs::write(fifo, format!("{} {socket}\n", core.as_raw_pid()))?;
    let attempts = || {
        scene
            .agent
            .text()
            .lines()
            .filter_map(attempt)
            .map(|(name, it)| (name.to_owned(), it.to_owned()))
            .collect::<Vec<_>>()
    };
    wait_for("the reporter has tried all", PATIENCE, || Ok(attempts().iter().any(|(name, _)| name == "done")))
        .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    let done = attempts();
    let refused = Errno::PERM.raw_os_error().to_string();
    let succeeded: Vec<_> = done.iter().filter(|(name, outcome)| name != "done" && *outcome != refused).collect();
    ensure!(succeeded.is_empty() && done.len() > 15, "the reporter was not refused {succeeded:?} of {done:?}");
    ensure!(listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it connected");
    ensure!(limit()? == before, "it changed a limit of the core: {before:?} to {:?}", limit()?);
    ensure!(scene.agent.process("core")? == core && scene.agent.part("reporter")? == reporter, "a process ended");
    let (_, metrics) = scene.agent.get("/metrics")?;
    ensure!(metrics.contains("plimsoll_reporter_confined 1\n"), "{metrics}");
    log.expect("audit: type=1326 ").context("what was refused is not in the kernel's log")?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()
}

/// What the reporter said of an attempt: its name, and the error.
fn attempt(line: &str) -> Option<(&str, &str)> {
    let said = line.strip_prefix("plimsoll: hostile: ")?;
    Some(said.split_once(": ").unwrap_or((said, "")))
}
