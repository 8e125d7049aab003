//! Undoing what a core left that died: thaw what it froze, continue what the kernel side stopped for it.
//!
//! The supervisor does this the moment the core is gone; `plimsoll undo` does it where all processes were killed at once.

use std::fmt;

use plimsoll_config::Configuration;
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::Root;
use plimsoll_node::os::CGROUP_ROOT;
use plimsoll_sense::stopped;
use plimsoll_state::{ActingLock, Record, undo};

use crate::options::Options;

/// `plimsoll undo`: whose record to undo.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
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

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.other_acts {
            return f.write_str("another agent acts on this machine; nothing was undone");
        }
        let Self { thawed, continued, failed, kills, .. } = self;
        write!(f, "{} cgroups thawed, {continued} processes continued, {kills} victims still ending", thawed.len())?;
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
    let directory = &configuration.state_directory;
    let mut summary = Summary::default();
    if !directory.join("record").exists() {
        return Ok(summary);
    }
    let Some(_lock) = ActingLock::try_acquire(&directory.join("lock"))? else {
        summary.other_acts = true;
        return Ok(summary);
    };
    // Before the record: a stopped process in a frozen cgroup goes on only when both are undone, in either order.
    match stopped::undo(&plimsoll_sense::Config::default().stopped_pin) {
        Ok(undone) => {
            summary.continued = undone.continued;
            if undone.failed > 0 {
                summary.failed.push(format!("{} stopped processes could not be continued", undone.failed));
            }
        }
        Err(error) => summary.failed.push(error.to_string()),
    }
    let (mut record, _) = Record::open(&directory.join("record"), BootId::read()?)?;
    let undone = undo(&mut record, &Root::open(CGROUP_ROOT.as_ref())?);
    summary.thawed = undone.thawed;
    summary.kills = undone.kills.len();
    summary.failed.extend(undone.failed.into_iter().map(|(id, why)| format!("cgroup {}: {why}", id.0)));
    Ok(summary)
}

/// Undoes, says what, and gives the exit code: 1 where something is left.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let summary = undo_all(&crate::supervisor::configuration(&arguments.options)?)?;
    println!("plimsoll: {summary}");
    Ok(u8::from(!summary.failed.is_empty()))
}
