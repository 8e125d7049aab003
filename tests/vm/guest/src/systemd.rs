//! systemd as tests use it: through its own commands, in a machine that it manages.

use crate::cgroup::Cgroup;
use crate::machine::wait_for;
use crate::scene::PATIENCE;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The agent's unit.
pub(crate) const UNIT: &str = "plimsoll.service";
/// The agent's configuration.
pub(crate) const CONFIGURATION: &str = "/etc/plimsoll/plimsoll.yaml";
/// The user of a machine with systemd that is not root.
pub(crate) const USER: u32 = 1000;
/// Lines that a test adds to the unit, until the machine is cleaned.
const DROP_INS: &str = "/run/systemd/system/plimsoll.service.d";
/// Settings of systemd itself that a test adds.
const MANAGER: &str = "/run/systemd/system.conf.d";
/// What all units of tests begin with.
const PREFIX: &str = "test-";

/// Whether it is this machine's first process (sd_booted(3)).
pub(crate) fn is_here() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// How long systemd's commands wait for its answer. A clock that follows instructions goes on to the next timer while nothing
/// but a disk is waited for, so that the 25 s that they have by themselves may be over soon.
const BUS: (&str, &str) = ("SYSTEMD_BUS_TIMEOUT", "15min");

/// Runs a command and gives what it prints; an error with that where it fails.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output =
        command.env(BUS.0, BUS.1).stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    let trouble = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {said} {}", output.status, trouble.trim_end());
    Ok(said)
}

/// What `systemctl` prints.
pub(crate) fn systemctl(words: &[&str]) -> Result<String> {
    run(Command::new("systemctl").args(words))
}

/// A property of a unit, as `systemctl show` prints it.
pub(crate) fn property(unit: &str, name: &str) -> Result<String> {
    systemctl(&["show", "--value", "--property", name, unit])
}

/// A property of the agent's unit that is a number.
pub(crate) fn number(name: &str) -> Result<u32> {
    let text = property(UNIT, name)?;
    text.parse().with_context(|| format!("{name} is {text:?}"))
}

/// Has the journal run again, where the OOM killer ended it more often than systemd starts it again.
pub(crate) fn start_journal() -> Result<()> {
    let units = ["systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald.service"];
    systemctl(&[&["reset-failed"], &units[..]].concat())?;
    systemctl(&[&["start"], &units[..]].concat()).map(drop)
}

/// What the agent's unit has logged since the machine was cleaned, systemd's own messages about it included.
pub(crate) fn journal() -> Result<String> {
    // The OOM killer may have ended it just now.
    let is_synced = || Ok(run(Command::new("journalctl").arg("--sync")).is_ok());
    wait_for("the journal is written", PATIENCE, is_synced)?;
    run(Command::new("journalctl").args(["--unit", UNIT, "--output", "cat", "--no-pager", "--quiet"]))
}

/// Adds these lines to the section `[Service]` of the agent's unit, in place of those that were added before.
pub(crate) fn drop_in(lines: &str) -> Result<()> {
    put(DROP_INS, &format!("[Service]\n{lines}\n"))?;
    systemctl(&["daemon-reload"]).map(drop)
}

/// Gives systemd itself these settings, and has it start anew with them.
pub(crate) fn manager(lines: &str) -> Result<()> {
    put(MANAGER, &format!("[Manager]\n{lines}\n"))?;
    systemctl(&["daemon-reexec"]).map(drop)
}

fn put(folder: &str, text: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {folder}"))?;
    fs::write(Path::new(folder).join("test.conf"), text).with_context(|| format!("cannot write below {folder}"))
}

/// Starts a service of system.slice that runs this program, with these properties, and gives its cgroup.
pub(crate) fn start_guest(name: &str, properties: &[&str], words: &[&str]) -> Result<Cgroup> {
    start_guest_in("system.slice", name, properties, words)
}

/// The same in another slice.
pub(crate) fn start_guest_in(slice: &str, name: &str, properties: &[&str], words: &[&str]) -> Result<Cgroup> {
    let unit = unit_of(name);
    // It may be frozen when it is stopped.
    let properties = ["KillSignal=SIGKILL"].iter().chain(properties).flat_map(|property| ["--property", property]);
    let program = std::env::current_exe()?;
    let mut command = Command::new("systemd-run");
    command.args(["--quiet", "--slice", slice, "--unit", &unit]).args(properties).arg(program).args(words);
    run(&mut command)?;
    Cgroup::existing(&format!("{slice}/{unit}"))
}

/// The name of such a service.
pub(crate) fn unit_of(name: &str) -> String {
    format!("{PREFIX}{name}.service")
}

/// A command that runs as [`USER`] with the user's own manager at hand, which is started if need be.
pub(crate) fn as_user(program: &str) -> Result<Command> {
    systemctl(&["start", &format!("user@{USER}.service")])?;
    let mut command = Command::new(program);
    command.uid(USER).gid(USER).env("XDG_RUNTIME_DIR", format!("/run/user/{USER}")).stdin(Stdio::null());
    Ok(command)
}

/// Stops what tests start, and takes back what they configure.
pub(crate) fn clean() -> Result<()> {
    systemctl(&["stop", UNIT, &format!("{PREFIX}*.service"), &format!("user-{USER}.slice")])?;
    for (folder, again) in [(DROP_INS, "daemon-reload"), (MANAGER, "daemon-reexec")] {
        if Path::new(folder).exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {folder}"))?;
            systemctl(&[again])?;
        }
    }
    // Units that failed keep their state, and their names, until then.
    systemctl(&["reset-failed"])?;
    run(Command::new("journalctl").args(["--rotate", "--vacuum-files=1", "--quiet"])).map(drop)
}
