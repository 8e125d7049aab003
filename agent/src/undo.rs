//! Undoes what a core left that died: thaws what it froze, continues what it and the kernel side stopped.
//!
//! The supervisor does this as soon as the core has ended; `plimsoll undo` does it where all processes were killed, and can remove
//! what agents keep on the machine as well.

mod state;

use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use plimsoll_config::Configuration;
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::Root;
use plimsoll_node::os::CGROUP_ROOT;
use plimsoll_node::process;
use plimsoll_sense::stopped;
use plimsoll_state::{Found, Record, continue_stopped, thaw, undo};
use plimsoll_units::counted;

use crate::acting::Locks;
use crate::core::STOPPED;
use crate::options::Options;
use crate::state_directory::StateDirectory;
use crate::supervisor::in_the_machine;

/// Exit codes, as `--help` has them.
const CODES: &str = "Exit codes: 0 nothing is left to undo, or another agent acts and holds what it holds; 1 something \
could not be undone, or be removed, and a line says what; 2 wrong arguments or configuration; 3 this is a container \
that may not see the machine.";

/// `plimsoll undo`: the configuration that names the record, and what comes after it.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Then remove what agents keep on this machine for the next one, where nothing is left to undo and none acts:
    /// /run/plimsoll, /dev/shm/plimsoll, /var/lib/plimsoll and /sys/fs/bpf/plimsoll. Directories that the configuration has
    /// elsewhere are left
    #[arg(long)]
    remove_state: bool,
    #[command(flatten)]
    options: Options,
}

/// What was undone.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Another agent acts: what there is to undo is its own.
    pub(crate) other_acts: bool,
    /// Cgroups thawed, by path.
    pub(crate) thawed: Vec<Vec<u8>>,
    /// Processes continued.
    pub(crate) continued: usize,
    /// What could not be undone, and why. It stays recorded.
    pub(crate) failed: Vec<String>,
    /// Kills that were begun and whose victims have not ended yet.
    pub(crate) kills: usize,
}

impl Summary {
    /// Continues what the kernel side stopped. That is recorded in a place of its own.
    fn resume(&mut self, stopped_pin: &Path) {
        match stopped::undo(stopped_pin, process::resume) {
            Ok(undone) => self.add(undone.continued, undone.failed),
            Err(error) => self.failed.push(error.to_string()),
        }
    }

    /// Continues what was stopped one by one, as the file in `directory` has it.
    fn resume_one_by_one(&mut self, directory: &Path, boot: BootId) {
        match continue_stopped(&directory.join(STOPPED), boot) {
            Ok(undone) => self.add(undone.continued, undone.failed),
            Err(error) => self.failed.push(error.to_string()),
        }
    }

    fn add(&mut self, continued: usize, failed: usize) {
        self.continued += continued;
        if failed > 0 {
            let stopped = counted(failed, "stopped process", "stopped processes");
            self.failed.push(format!("{stopped} could not be continued"));
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.other_acts {
            return f.write_str("another agent acts on this machine; nothing was undone");
        }
        let Self { thawed, continued, failed, kills, .. } = self;
        let thawed_cgroups = counted(thawed.len(), "cgroup", "cgroups");
        let continued = counted(*continued, "process", "processes");
        let kills = counted(*kills, "victim", "victims");
        write!(f, "{thawed_cgroups} thawed, {continued} continued, {kills} still ending")?;
        for path in thawed {
            write!(f, "; thawed {}", path.escape_ascii())?;
        }
        for why in failed {
            write!(f, "; not undone: {why}")?;
        }
        Ok(())
    }
}

/// Undoes everything that is recorded, unless another agent acts. Safe to do again.
pub(crate) fn undo_all(configuration: &Configuration) -> anyhow::Result<Summary> {
    let directory = &StateDirectory::find(&configuration.machine.state_directory).path;
    undo_in(directory, &Locks::of(directory), &plimsoll_sense::Config::default().stopped_pin)
}

/// Thaws and continues what a core holds that was killed and is not dead yet: it still has its locks, and what it wrote
/// down stays for [`undo_all`] after its death.
pub(crate) fn undo_before_death(directory: &Path) -> anyhow::Result<Summary> {
    let boot = BootId::read()?;
    let entries = Record::read(&directory.join("record"), boot)?;
    let (thawed, failed) = thaw(&entries, &Root::open(CGROUP_ROOT.as_ref())?);
    let failed = failed.into_iter().map(|(id, why)| format!("cgroup {}: {why}", id.0)).collect();
    let mut summary = Summary { thawed, failed, ..Summary::default() };
    summary.resume(&plimsoll_sense::Config::default().stopped_pin);
    summary.resume_one_by_one(directory, boot);
    Ok(summary)
}

fn undo_in(directory: &Path, locks: &Locks, stopped_pin: &Path) -> anyhow::Result<Summary> {
    let mut summary = Summary::default();
    let free = locks.free()?;
    if !free.record {
        summary.other_acts = true;
        return Ok(summary);
    }
    // Where another agent acts it has undone that, and what is there now is its own. A stopped process in a frozen cgroup
    // goes on once both are undone, in either order.
    if free.stopped {
        summary.resume(stopped_pin);
    }
    let boot = BootId::read()?;
    summary.resume_one_by_one(directory, boot);
    let path = directory.join("record");
    if !std::fs::exists(&path).with_context(|| format!("cannot access {}", path.display()))? {
        return Ok(summary);
    }
    let (mut record, found) = Record::open(&path, boot)?;
    if let Found::Broken { aside, why } = found {
        // What it held cannot be known any more: a person has to check.
        summary.failed.push(format!("the run record could not be used ({why}); it is kept as {}", aside.display()));
    }
    let undone = undo(&mut record, &Root::open(CGROUP_ROOT.as_ref())?);
    summary.thawed = undone.thawed;
    summary.kills = undone.kills.len();
    summary.failed.extend(undone.failed.into_iter().map(|(id, why)| format!("cgroup {}: {why}", id.0)));
    Ok(summary)
}

/// Undoes, prints what, and gives the exit code: 1 where something is left.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let Some(configuration) = in_the_machine(|| arguments.options.load(None))? else { return Ok(crate::NOT_HERE) };
    let summary = undo_all(&configuration)?;
    crate::log::print(&format!("plimsoll: {summary}\n"));
    let is_undone = summary.failed.is_empty();
    if arguments.remove_state && is_undone {
        for path in state::remove_all(&configuration)? {
            crate::log::print(&format!("plimsoll: removed {}\n", path.display()));
        }
    }
    Ok(u8::from(!is_undone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Place {
        directory: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().expect("a temporary directory") }
        }

        fn undo(&self, directory: &str) -> Summary {
            let pin = self.directory.path().join("stopped");
            undo_in(&self.directory.path().join(directory), &self.locks(directory), &pin).expect("readable")
        }

        fn locks(&self, directory: &str) -> Locks {
            Locks::at(&self.directory.path().join("machine"), &self.directory.path().join(directory))
        }
    }

    #[test]
    fn where_nothing_is_recorded_nothing_is_made() {
        let place = Place::new();
        let summary = place.undo("missing");
        assert!(!summary.other_acts && summary.failed.is_empty() && summary.thawed.is_empty(), "{summary}");
        assert!(!place.directory.path().join("missing").exists());
        // A directory without a record.
        assert!(place.undo("").failed.is_empty());
        assert!(!place.directory.path().join("record").exists());
    }

    #[test]
    fn what_another_agent_holds_is_left_alone() {
        let place = Place::new();
        fs::write(place.directory.path().join("stopped"), "no map").expect("writable");
        let lock = place.locks("").try_acquire().expect("writable");
        assert!(lock.is_some());
        let summary = place.undo("");
        assert!(summary.other_acts && summary.failed.is_empty(), "{summary}");
        assert!(summary.to_string().contains("another agent acts"));
        // It keeps its state in another directory: only what the kernel side stopped is its own.
        let summary = place.undo("elsewhere");
        assert!(!summary.other_acts && summary.failed.is_empty(), "{summary}");
        // Once it has ended, also without a run record, what the kernel side stopped is read.
        drop(lock);
        let summary = place.undo("");
        assert!(!summary.other_acts, "{summary}");
        assert_eq!(summary.failed.len(), 1, "a pin that is no map is reported: {summary}");
    }
}
