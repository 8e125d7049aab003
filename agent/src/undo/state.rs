//! What agents keep on a machine for the next one, and its removal where there is to be none.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use plimsoll_config::Configuration;

use crate::acting::{Locks, machine_lock};
use crate::state_directory::StateDirectory;

/// What is the agent's alone, with all that is in it: where it keeps things unless configured, or where it cannot write there.
const OWN: [&str; 4] = ["/run/plimsoll", "/dev/shm/plimsoll", "/var/lib/plimsoll", "/sys/fs/bpf/plimsoll"];

/// Removes the run record, the journal, and what the kernel side has pinned. Gives the directories that were removed; directories
/// that a configuration has elsewhere may have files of others, and are left.
///
/// # Errors
/// Nothing is removed while an agent acts.
pub(super) fn remove_all(configuration: &Configuration) -> anyhow::Result<Vec<&'static Path>> {
    let directory = StateDirectory::find(&configuration.machine.state_directory).path;
    remove(&OWN.map(Path::new), &Locks::of(&directory), machine_lock())
}

/// The same of these directories. `kept` is a file that stays: another agent may hold it open and wait for its lock.
fn remove<'a>(places: &[&'a Path], locks: &Locks, kept: &Path) -> anyhow::Result<Vec<&'a Path>> {
    // Held until all is removed.
    let free = locks.free()?;
    anyhow::ensure!(free.stopped, "an agent acts on this machine, and nothing of it was removed: end it first");
    let mut removed = Vec::new();
    for place in places {
        if remove_one(place, kept).with_context(|| format!("cannot remove {}", place.display()))? {
            removed.push(*place);
        }
    }
    Ok(removed)
}

/// Removes a directory. False: it is not there, or has the file that stays.
fn remove_one(place: &Path, kept: &Path) -> io::Result<bool> {
    let has_kept = kept.starts_with(place);
    let removed = if has_kept {
        fs::read_dir(place).and_then(|mut entries| entries.try_for_each(|entry| remove_entry(&entry?.path(), kept)))
    } else {
        fs::remove_dir_all(place)
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| !has_kept),
    }
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
    use crate::state_directory::FALLBACKS;
    use std::path::PathBuf;

    fn place(files: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let place = tempfile::tempdir().expect("a temporary directory");
        for file in files {
            let file = place.path().join(file);
            fs::create_dir_all(file.parent().expect("it has one")).expect("writable");
            fs::write(file, "").expect("writable");
        }
        let paths = files.iter().map(|file| place.path().join(file)).collect();
        (place, paths)
    }

    #[test]
    fn what_is_kept_unless_configured_is_removed() {
        let machine = Configuration::default().machine;
        let pin = plimsoll_sense::Config::default().stopped_pin;
        let configured = [machine.state_directory, machine.journal_directory, pin];
        for path in configured.into_iter().chain(FALLBACKS.map(PathBuf::from)) {
            assert!(OWN.iter().any(|own| path.starts_with(own)), "{} is left", path.display());
        }
    }

    #[test]
    fn directories_are_removed_whole_but_while_an_agent_acts() {
        let (place, files) = place(&["run/record", "lib/journal/0", "other/x"]);
        let [state, journal, missing] = ["run", "lib", "none"].map(|name| place.path().join(name));
        let (lock, places) = (place.path().join("lock"), [&*state, &*journal, &*missing]);
        let locks = Locks::at(&lock, &state);
        let acting = locks.try_acquire().expect("writable");
        assert!(remove(&places, &locks, &lock).is_err() && files.iter().all(|file| file.exists()));
        drop(acting);
        assert_eq!(remove(&places, &locks, &lock).expect("removable"), places[..2]);
        assert!(!state.exists() && !journal.exists() && files[2].exists());
        assert!(remove(&places, &locks, &lock).expect("nothing is there").is_empty());
    }

    #[test]
    fn the_file_that_another_agent_may_wait_for_stays() {
        let (place, files) = place(&["run/lock", "run/record", "run/more/x"]);
        let state = place.path().join("run");
        let removed = remove(&[&state], &Locks::at(&files[0], &state), &files[0]).expect("removable");
        assert!(removed.is_empty(), "it is there still");
        let left = fs::read_dir(&state).expect("it is there").map(|it| it.expect("readable").file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["lock"]);
    }
}
