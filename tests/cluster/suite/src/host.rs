//! What runs the cluster on this machine: its processes, which a test may stop for a time, and the console of its node.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cluster::wait_for;

/// The list of the processes, beside the kubeconfig (`xtask/src/cluster/processes.rs`).
const PROCESSES: &str = "processes.json";

/// A process that does not run until this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops the process with this name of the cluster in `folder`.
    pub(crate) fn of(folder: &Path, name: &str) -> Result<Self> {
        let list: Value = serde_json::from_reader(File::open(folder.join(PROCESSES))?)?;
        let mut processes = list.as_array().into_iter().flatten();
        let pid = processes.find(|it| it["name"] == name).and_then(|it| it["pid"].as_i64());
        let pid = pid.and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        let pid = pid.with_context(|| format!("no process {name} is written down in {}", folder.display()))?;
        kill_process(pid, Signal::STOP).with_context(|| format!("cannot stop {name}"))?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It can have ended meanwhile, which the next request shows.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// What the node prints, from one point on: the agent's log, and what becomes of memory.
pub struct Console {
    log: PathBuf,
    at: u64,
    /// The lines from there on that were read.
    pub lines: Vec<String>,
}

impl Console {
    pub(crate) fn from_now(log: PathBuf) -> Result<Self> {
        let at = log.metadata().with_context(|| format!("cannot read {}", log.display()))?.len();
        Ok(Self { log, at, lines: Vec::new() })
    }

    /// Reads on.
    pub fn read(&mut self) -> Result<&[String]> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.at))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // Whole lines.
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        self.at += bytes.len() as u64;
        self.lines.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned));
        Ok(&self.lines)
    }

    /// Waits for a line, from the point on, that has all of these parts.
    pub fn wait(&mut self, parts: &[&str], patience: Duration) -> Result<String> {
        wait_for(&format!("the node's console has a line with {parts:?}"), patience, || {
            let lines = self.read()?;
            Ok(lines.iter().find(|line| parts.iter().all(|part| line.contains(part))).cloned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_console_is_read_from_a_point_on_in_whole_lines() {
        let path = std::env::temp_dir().join(format!("plimsoll-console-{}", std::process::id()));
        let mut log = File::create(&path).expect("a file");
        log.write_all(b"before\n").expect("written");
        let mut console = Console::from_now(path.clone()).expect("it is there");
        log.write_all(b"first\nsec").expect("written");
        assert_eq!(console.read().expect("read"), ["first"]);
        log.write_all(b"ond a b\n").expect("written");
        assert_eq!(console.wait(&["a", "sec"], Duration::ZERO).expect("it is there"), "second a b");
        assert!(console.wait(&["before"], Duration::ZERO).is_err());
        std::fs::remove_file(path).expect("removed");
    }
}
