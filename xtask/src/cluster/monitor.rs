//! QEMU's machine protocol (QMP), as far as a machine is saved and restored by it.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::vm::{SAVED_DISK, SAVED_MEMORY};

/// How long QEMU may take for one answer, or for the next part of the memory. It answers at once, on an idle host.
const LIMIT: Duration = Duration::from_mins(1);
/// How often the state of something is asked for that takes longer.
const PERIOD: Duration = Duration::from_millis(50);
/// The first disk.
const ROOT: &str = "virtio0";
/// QEMU's names of the file that a disk is saved into, and of that as qcow2.
const FILE: &str = "saved-file";
const DISK: &str = "saved-disk";

/// A connection.
pub(super) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    pub(super) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        ensure!(monitor.line()?.get("QMP").is_some(), "{} is no monitor of QEMU", socket.display());
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line).context("QEMU does not answer")? > 0, "QEMU has ended");
        serde_json::from_str(&line).with_context(|| format!("QEMU answers {line:?}"))
    }

    /// Has a command carried out, and gives what it returns.
    fn execute(&mut self, command: &str, arguments: &Value) -> anyhow::Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.stream.get_mut(), "{request}").context("QEMU has ended")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {}", error["desc"]);
            }
            // All else are events.
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
        }
    }

    /// Has a job done to its end.
    fn job(&mut self, command: &str, mut arguments: Value) -> anyhow::Result<()> {
        arguments["job-id"] = json!(command);
        self.execute(command, &arguments)?;
        loop {
            let jobs = self.execute("query-jobs", &json!({}))?;
            let job = jobs.as_array().into_iter().flatten().find(|job| job["id"] == command);
            let job = job.with_context(|| format!("{command} is gone"))?;
            if job["status"] == "concluded" {
                ensure!(job.get("error").is_none(), "{command}: {}", job["error"]);
                return self.execute("job-dismiss", &json!({"id": command})).map(drop);
            }
            std::thread::sleep(PERIOD);
        }
    }

    /// Stops the machine.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        self.execute("stop", &json!({})).map(drop)
    }

    /// Saves a machine that was stopped into this directory. It cannot continue.
    pub(super) fn save(&mut self, folder: &Path) -> anyhow::Result<()> {
        self.save_disk(&folder.join(SAVED_DISK))?;
        let socket = folder.join("socket");
        let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        // Nothing else wants the bandwidth.
        self.execute("migrate-set-parameters", &json!({"max-bandwidth": 1_u64 << 40}))?;
        // It connects at once.
        self.execute("migrate", &json!({"uri": format!("unix:{}", socket.display())}))?;
        let (mut from, _) = listener.accept()?;
        fs::remove_file(&socket)?;
        from.set_read_timeout(Some(LIMIT))?;
        let memory = folder.join(SAVED_MEMORY);
        let mut file = File::create(&memory).with_context(|| format!("cannot write {}", memory.display()))?;
        io::copy(&mut from, &mut file).with_context(|| format!("cannot write {}", memory.display()))?;
        let done = self.execute("query-migrate", &json!({}))?;
        ensure!(done["status"] == "completed", "QEMU does not save the memory: {done}");
        Ok(())
    }

    /// Saves what the machine has written to its root, without the image below that.
    fn save_disk(&mut self, file: &Path) -> anyhow::Result<()> {
        let disks = self.execute("query-block", &json!({}))?;
        let root = disks.as_array().into_iter().flatten().find(|disk| disk["device"] == ROOT);
        let size = root.and_then(|root| root["inserted"]["image"]["virtual-size"].as_u64());
        let size = size.with_context(|| format!("no disk {ROOT}: {disks}"))?;
        let place = file.display().to_string();
        self.job("blockdev-create", json!({"options": {"driver": "file", "filename": place, "size": 0}}))?;
        self.execute("blockdev-add", &json!({"driver": "file", "node-name": FILE, "filename": place}))?;
        self.job("blockdev-create", json!({"options": {"driver": "qcow2", "file": FILE, "size": size}}))?;
        self.execute("blockdev-add", &json!({"driver": "qcow2", "node-name": DISK, "file": FILE, "backing": null}))?;
        // Not drive-backup, which opens the image below with the flags of the file without a name above it, and so removes it.
        let copy = json!({"device": ROOT, "target": DISK, "sync": "top", "auto-dismiss": false});
        self.job("blockdev-backup", copy)?;
        for node in [DISK, FILE] {
            self.execute("blockdev-del", &json!({"node-name": node}))?;
        }
        Ok(())
    }

    /// Has a machine continue that is restored. An error before that.
    pub(super) fn resume(&mut self) -> anyhow::Result<()> {
        let status = self.execute("query-status", &json!({}))?;
        ensure!(status["status"] != "inmigrate", "it has not read all of its memory");
        self.execute("cont", &json!({})).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// What a QEMU that gives these lines after its greeting leads to, and the commands that it got.
    fn spoken<T>(lines: &[&str], work: impl FnOnce(&mut Monitor) -> T) -> (T, Vec<Value>) {
        let place = tempfile::tempdir().expect("a directory");
        let socket = place.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("it is free");
        let lines: Vec<String> = ["{\"return\": {}}"].iter().chain(lines).map(|line| format!("{line}\n")).collect();
        let qemu = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            writeln!(stream, "{{\"QMP\": {{}}}}").expect("it reads");
            let mut commands = Vec::new();
            let reader = BufReader::new(stream.try_clone().expect("a descriptor"));
            for (command, answer) in reader.lines().zip(lines) {
                commands.push(serde_json::from_str(&command.expect("a line")).expect("JSON"));
                stream.write_all(answer.as_bytes()).expect("it reads");
            }
            commands
        });
        let mut monitor = Monitor::connect(&socket).expect("it greets");
        let done = work(&mut monitor);
        drop(monitor);
        (done, qemu.join().expect("no panic"))
    }

    #[test]
    fn a_machine_continues_when_all_of_it_has_come() {
        for (status, continues) in [("inmigrate", false), ("paused", true)] {
            let status = format!("{{\"event\": \"MIGRATION\"}}\n{{\"return\": {{\"status\": \"{status}\"}}}}");
            let (resumed, commands) = spoken(&[&status, r#"{"return": {}}"#], Monitor::resume);
            assert_eq!(resumed.is_ok(), continues, "{resumed:?}");
            let commands: Vec<_> = commands.iter().map(|it| it["execute"].as_str().expect("a name")).collect();
            let expected = ["qmp_capabilities", "query-status", "cont"];
            assert_eq!(commands, expected[..if continues { 3 } else { 2 }]);
        }
    }

    #[test]
    fn what_qemu_refuses_is_an_error_and_so_is_its_end() {
        let (refused, _) = spoken(&[r#"{"error": {"class": "GenericError", "desc": "no"}}"#], Monitor::stop);
        assert_eq!(refused.expect_err("it is refused").to_string(), "stop: \"no\"");
        let (ended, _) = spoken(&[], Monitor::stop);
        assert!(ended.expect_err("it ended").to_string().contains("QEMU has ended"));
    }

    #[test]
    fn a_job_that_failed_is_an_error() {
        let concluded = r#"{"return": [{"id": "blockdev-backup", "status": "concluded", "error": "full"}]}"#;
        let (failed, _) = spoken(&[r#"{"return": {}}"#, concluded], |it| it.job("blockdev-backup", json!({})));
        assert_eq!(failed.expect_err("it failed").to_string(), "blockdev-backup: \"full\"");
    }
}
