//! What agents keep on a machine for the next one, and its removal where there is to be none.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use plimsoll_config::Configuration;

use crate::acting::{Locks, machine_lock};
use crate::state_directory::StateDirectory;

/// The name of directories that are the agent's alone. One with another name, which a configuration can have, may have files of
/// others in it.
const OWN: &str = "plimsoll";

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Removed {
    /// Directories that are gone, with all that was in them.
    pub(super) gone: Vec<PathBuf>,
    /// Those that are there still, and why.
    pub(super) left: Vec<String>,
}

/// Removes the state of agents: the run record, the journal, and what the kernel side has pinned. Nothing while an agent acts or
/// writes the record.
pub(super) fn remove_all(configuration: &Configuration) -> anyhow::Result<Removed> {
    let state = StateDirectory::find(&configuration.machine.state_directory).path;
    let pin = plimsoll_sense::Config::default().stopped_pin;
    let pins = pin.parent().context("the pinned map is in a directory")?;
    let places = [&state, &configuration.machine.journal_directory, pins];
    remove(&places, &Locks::of(&state), machine_lock())
}

/// The same of these directories. `kept` is a file that stays: another agent may hold it open and wait for its lock.
fn remove(places: &[&Path], locks: &Locks, kept: &Path) -> anyhow::Result<Removed> {
    // Held until all is removed.
    let free = locks.free()?;
    let mut removed = Removed::default();
    if !free.stopped {
        removed.left.push("nothing was removed: an agent acts on this machine".to_owned());
        return Ok(removed);
    }
    for place in places {
        let is_own = place.ancestors().take(2).any(|it| it.file_name().is_some_and(|name| name == OWN));
        if !is_own && fs::symlink_metadata(place).is_ok() {
            removed.left.push(format!("{} is left: it may have files of others", place.display()));
        } else if remove_one(place, kept).with_context(|| format!("cannot remove {}", place.display()))? {
            removed.gone.push(place.to_path_buf());
        }
    }
    Ok(removed)
}

/// Removes a directory of the agent's, and the one it is in where that is the agent's as well and is empty then. False: there is
/// none.
fn remove_one(place: &Path, kept: &Path) -> io::Result<bool> {
    let removed = if kept.starts_with(place) {
        fs::read_dir(place).and_then(|mut entries| entries.try_for_each(|entry| remove_entry(&entry?.path(), kept)))
    } else {
        fs::remove_dir_all(place)
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        removed => removed?,
    }
    if let Some(parent) = place.parent().filter(|parent| parent.file_name().is_some_and(|name| name == OWN)) {
        match fs::remove_dir(parent) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => return Err(error),
            _ => {}
        }
    }
    Ok(true)
}

fn remove_entry(path: &Path, kept: &Path) -> io::Result<()> {
    match path {
        _ if path == kept => Ok(()),
        _ if fs::symlink_metadata(path)?.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_agents_is_removed_whole_and_what_may_be_of_others_is_named() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let at = |path: &str| place.path().join(path);
        for path in
            ["run/plimsoll/record", "lib/plimsoll/journal/0", "data/own/record", "bpf/other/x", "bpf/plimsoll/stopped"]
        {
            fs::create_dir_all(at(path).parent().expect("it has one")).expect("writable");
            fs::write(at(path), "").expect("writable");
        }
        let [state, journal, pins, configured, missing] =
            ["run/plimsoll", "lib/plimsoll/journal", "bpf/plimsoll", "data/own", "none/plimsoll"].map(at);
        let locks = Locks::at(&at("machine"), &state);
        let places = [&*state, &*journal, &*pins, &*configured, &*missing];
        let acting = locks.try_acquire().expect("writable");
        let refused = remove(&places, &locks, &at("machine")).expect("nothing is removed");
        assert!(refused.gone.is_empty() && refused.left.len() == 1 && refused.left[0].contains("acts"), "{refused:?}");
        assert!(state.join("record").exists() && journal.join("0").exists());
        drop(acting);
        let removed = remove(&places, &locks, &at("machine")).expect("removable");
        assert_eq!(removed.gone, places[..3]);
        assert_eq!(removed.left, [format!("{} is left: it may have files of others", configured.display())]);
        assert!(!state.exists() && !at("lib/plimsoll").exists() && !at("bpf/plimsoll").exists());
        assert!(configured.join("record").exists() && at("lib").exists() && at("bpf/other/x").exists());
        assert_eq!(remove(&places[..3], &locks, &at("machine")).expect("nothing is there"), Removed::default());
    }

    #[test]
    fn the_file_that_another_agent_may_wait_for_stays() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let state = place.path().join("plimsoll");
        fs::create_dir_all(state.join("more")).expect("writable");
        for name in ["lock", "record"] {
            fs::write(state.join(name), "").expect("writable");
        }
        let lock = state.join("lock");
        remove(&[&state], &Locks::at(&lock, &state), &lock).expect("removable");
        let left: Vec<_> =
            fs::read_dir(&state).expect("it is there").map(|it| it.expect("readable").file_name()).collect();
        assert_eq!(left, ["lock"]);
    }
}
