//! Processes that outlive the command that started them: the next one finds them by what is written down of them, and
//! ends none but those.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::run;

/// How long a process may take to end after SIGTERM before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
/// How many of a log's last lines an error has.
const TAIL: usize = 12;

/// A process that was started in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) name: String,
    pid: u32,
    /// When it started, in clock ticks since the boot: with the id, no other process has it.
    started: u64,
    /// What it writes to its standard output and error.
    pub(super) log: PathBuf,
}

impl Process {
    /// Starts `command` in a process group of its own, so that an interrupt of the terminal does not reach it.
    pub(super) fn start(name: &str, folder: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let started = start_time(child.id()).with_context(|| format!("{name} ended at once; {}", tail(&log)))?;
        Ok(Self { name: name.into(), pid: child.id(), started, log })
    }

    /// Whether it still runs.
    pub(super) fn runs(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// An error with the last lines of its log unless it runs.
    pub(super) fn ensure_runs(&self) -> anyhow::Result<()> {
        ensure!(self.runs(), "{} has ended; {}", self.name, tail(&self.log));
        Ok(())
    }

    /// Ends it, and waits until it is gone.
    pub(super) fn end(&self) -> anyhow::Result<()> {
        for (signal, patience) in [("TERM", GRACE), ("KILL", GRACE)] {
            if !self.runs() {
                return Ok(());
            }
            // All of its group, which it leads. It may end by itself meanwhile.
            let kill = format!("kill -s {signal} -- -{}", self.pid);
            let _ = run::text(Command::new("sh").args(["-c", &kill]));
            let begun = Instant::now();
            while self.runs() && begun.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        ensure!(!self.runs(), "{} (process {}) does not end", self.name, self.pid);
        Ok(())
    }
}

/// Ends processes, with all that they started, when this process has ended, however it did: what would do that itself is
/// not run when it is killed.
pub(super) struct Guard {
    shell: Child,
    /// Its input. It closes with this process.
    pipe: ChildStdin,
}

impl Guard {
    /// Keeps the ids that it reads, one a line, each of which leads a group; kills those groups at the end of its input,
    /// and none after the line `done`. In a group of its own, so that an interrupt of the terminal does not end it.
    const SCRIPT: &str = "groups=; while read -r line; do test \"$line\" = done && exit; groups=\"$groups -$line\"; done; \
                          test -z \"$groups\" || kill -s KILL -- $groups";

    pub(super) fn start() -> anyhow::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", Self::SCRIPT]).stdin(Stdio::piped()).process_group(0);
        let mut shell = shell.spawn().context("cannot start sh")?;
        let pipe = shell.stdin.take().context("sh has no standard input")?;
        Ok(Self { shell, pipe })
    }

    /// Ends this process, too, unless [`Self::done`] comes first.
    pub(super) fn watch(&self, process: &Process) -> anyhow::Result<()> {
        writeln!(&self.pipe, "{}", process.pid).context("what ends the cluster with this command has ended")
    }

    /// Lets go of all of them: they were ended.
    pub(super) fn done(mut self) -> anyhow::Result<()> {
        writeln!(self.pipe, "done")?;
        drop(self.pipe);
        self.shell.wait().map(drop).context("cannot wait for sh")
    }
}

/// The processes that are written down in a file, in the order in which they were started.
pub(super) fn read(file: &Path) -> anyhow::Result<Vec<Process>> {
    match fs::read(file) {
        Ok(text) => {
            serde_json::from_slice(&text).with_context(|| format!("{} is no list of processes", file.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// Writes them down, so that a command that is interrupted in between leaves the old list or the new one.
pub(super) fn write(file: &Path, processes: &[Process]) -> anyhow::Result<()> {
    let unfinished = file.with_added_extension("new");
    fs::write(&unfinished, serde_json::to_vec_pretty(processes)?)
        .and_then(|()| fs::rename(&unfinished, file))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// When the process with this id started; absent where there is none, or it has ended and was not waited for yet.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may have anything in it. State is the first field behind it, start time the twentieth.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if ["Z", "X"].contains(&state) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The last lines of a log, as the end of a sentence.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    format!("{} ends with:\n{}", log.display(), lines[lines.len().saturating_sub(TAIL)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Guard, Process, read, write};

    #[test]
    fn only_the_process_that_was_started_is_ended() {
        let place = tempfile::tempdir().expect("a directory");
        let process = Process::start("sleeper", place.path(), Command::new("sleep").arg("60")).expect("it starts");
        assert!(process.runs());
        let other = Process { started: process.started + 1, ..process.clone() };
        other.end().expect("there is no such process");
        assert!(process.runs(), "a process with the same id that started later is another one");
        process.end().expect("it ends");
        assert!(!process.runs());
        process.end().expect("it has ended");
    }

    #[test]
    fn what_is_guarded_ends_with_the_guard_unless_it_let_go() {
        let place = tempfile::tempdir().expect("a directory");
        for lets_go in [false, true] {
            let process = Process::start("sleeper", place.path(), Command::new("sleep").arg("60")).expect("it starts");
            let mut guard = Guard::start().expect("sh starts");
            guard.watch(&process).expect("it listens");
            if lets_go {
                guard.done().expect("it listens");
                assert!(process.runs());
                process.end().expect("it ends");
            } else {
                // As when this process is gone.
                drop(guard.pipe);
                guard.shell.wait().expect("it ends");
                let begun = std::time::Instant::now();
                while process.runs() && begun.elapsed() < super::GRACE {
                    std::thread::yield_now();
                }
                assert!(!process.runs());
            }
        }
    }

    #[test]
    fn an_early_end_is_reported_with_the_end_of_the_log() {
        let place = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("sh");
        let process = Process::start("speaker", place.path(), command.args(["-c", "echo no such flag; exec sleep 60"]));
        let process = process.expect("it starts");
        process.ensure_runs().expect("it runs");
        while std::fs::read_to_string(&process.log).expect("it is there").is_empty() {
            std::thread::yield_now();
        }
        process.end().expect("it ends");
        let error = process.ensure_runs().expect_err("it has ended").to_string();
        assert!(error.starts_with("speaker has ended") && error.ends_with("no such flag"), "{error}");
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("processes.json");
        assert_eq!(read(&file).expect("none"), []);
        let one = Process { name: "a".into(), pid: 1, started: 2, log: "/log".into() };
        write(&file, std::slice::from_ref(&one)).expect("written");
        assert_eq!(read(&file).expect("one"), [one]);
        std::fs::write(&file, "[").expect("written");
        assert!(read(&file).expect_err("torn").to_string().contains("no list of processes"));
    }
}
