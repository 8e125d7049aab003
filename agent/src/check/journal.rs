//! What `check` reports of the journal: what outlives a restart of the agent, and of the machine.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use plimsoll_config::Configuration;
use plimsoll_inventory::Source;
use plimsoll_report::text::printable;
use plimsoll_state::durable::{Look, look};
use plimsoll_units::counted;
use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use super::{Row, row};
use crate::confine::SERVICES;
use crate::state_directory::IN_MEMORY;

/// A local disk answers in microseconds. One that hangs is a row.
const LIMIT: Duration = Duration::from_secs(1);

/// Its directory, and what is there.
pub(super) struct JournalFacts {
    directory: PathBuf,
    found: Result<Place, String>,
}

/// What is there.
struct Place {
    /// `None`: the directory is not there yet.
    look: Option<Look>,
    /// Why nothing can be written there.
    unwritable: Option<&'static str>,
    /// It is in memory alone.
    is_in_memory: bool,
}

/// Looks at the directory; absent where nothing would be kept.
pub(super) fn find(configuration: &Configuration) -> Option<JournalFacts> {
    let directory = configuration.machine.journal_directory.clone();
    crate::services::keeps_journal(configuration).then(|| JournalFacts { found: ask(directory.clone()), directory })
}

/// In a thread that may hang. It ends with this process.
fn ask(directory: PathBuf) -> Result<Place, String> {
    let (send, receive) = mpsc::channel();
    let look = move || drop(send.send(Place::of(&directory, SERVICES.id)));
    std::thread::Builder::new().name("journal".into()).spawn(look).map_err(|error| error.to_string())?;
    receive.recv_timeout(LIMIT).unwrap_or_else(|_| Err(format!("its disk does not answer within {LIMIT:?}")))
}

impl Place {
    fn of(directory: &Path, user: u32) -> Result<Self, String> {
        let look = look(directory, user).map_err(|error| error.to_string())?;
        // Of one that is made at the start, the file system that it is made on.
        let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
        let fs = statfs(there).map_err(|errno| errno.to_string())?;
        let is_read_only =
            statvfs(there).map_err(|errno| errno.to_string())?.f_flag.contains(StatVfsMountFlags::RDONLY);
        // What is there already has its room.
        let needs_room = look.as_ref().is_none_or(|look| look.version.is_none());
        let unwritable = if is_read_only {
            Some("its file system is read-only")
        } else {
            (needs_room && fs.f_bavail == 0).then_some("its disk is full")
        };
        Ok(Self { look, unwritable, is_in_memory: IN_MEMORY.contains(&fs.f_type) })
    }
}

pub(super) fn journal_row(JournalFacts { directory, found }: &JournalFacts) -> Row {
    let (name, path) = ("journal", directory.display());
    let lost = Source::Journal.lost();
    let Place { look, unwritable, is_in_memory } = match found {
        Ok(place) => place,
        Err(why) => return row(name, false, printable(&format!("{path}: {why}")), lost),
    };
    let content = match look {
        None => "it is made at the start of the agent".to_owned(),
        Some(Look { version: None, .. }) => "nothing is kept in it yet".to_owned(),
        Some(Look { version: Some(version), pods, evictions, problems: _ }) => format!(
            "version {version}, with what is known of {} and {}",
            counted(*pods, "pod", "pods"),
            counted(*evictions, "eviction", "evictions")
        ),
    };
    let problems = look.as_ref().map_or(&[][..], |look| &look.problems);
    let (trouble, advice) = match (problems, unwritable) {
        (_, Some(why)) => ((*why).to_owned(), lost),
        ([_, ..], None) => (problems.join("; "), "what cannot be read of it is lost, and written anew"),
        ([], None) if *is_in_memory => {
            let advice = "what is known of pods, evictions, conditions and the use of images does not outlive the \
                          machine: set machine.journalDirectory to a directory on a disk";
            ("it is in memory".to_owned(), advice)
        }
        ([], None) => return row(name, true, printable(&format!("{path}: {content}")), ""),
    };
    row(name, false, printable(&format!("{path}: {content}; {trouble}")), advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_node::boot::BootId;
    use plimsoll_state::durable::Store;
    use plimsoll_units::MonotonicNs;

    fn shown(directory: &Path, found: Result<Place, String>) -> (String, String) {
        let Row { found, advice, .. } = journal_row(&JournalFacts { directory: directory.to_owned(), found });
        (found, advice)
    }

    #[test]
    fn a_directory_that_is_there_or_can_be_made_is_in_order() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (path, user) = (folder.path().join("below/journal"), rustix::process::geteuid().as_raw());
        // Where the tests run may be in memory.
        let place = |path: &Path| Place { is_in_memory: false, ..Place::of(path, user).expect("it can be looked at") };
        assert_eq!(
            shown(&path, Ok(place(&path))),
            (format!("{}: it is made at the start of the agent", path.display()), String::new())
        );
        assert!(!path.exists());
        std::fs::create_dir(folder.path().join("below")).expect("writable");
        let mut store = Store::open(&path, BootId([1; 16])).expect("it opens").store;
        let (found, advice) = shown(&path, Ok(place(&path)));
        assert!(found.ends_with(": nothing is kept in it yet") && advice.is_empty(), "{found}");
        store.set_facts("a".into(), "{}".into()).expect("room");
        store.commit(MonotonicNs(1));
        let (found, advice) = shown(&path, Ok(place(&path)));
        let expected = ": version 2, with what is known of 1 pod and 0 evictions";
        assert!(found.ends_with(expected) && advice.is_empty(), "{found}");
    }

    #[test]
    fn what_is_wrong_with_it_is_a_row_that_says_what_is_lost() {
        let good = || Place { look: Some(Look::default()), unwritable: None, is_in_memory: false };
        let problems = vec!["state.0 is not used: it is damaged".to_owned()];
        for (found, says, lost) in [
            (Err("cannot open it".to_owned()), "cannot open it", "outlive a restart"),
            (Ok(Place { unwritable: Some("its disk is full"), ..good() }), "its disk is full", "outlive a restart"),
            (Ok(Place { is_in_memory: true, ..good() }), "it is in memory", "outlive the machine"),
            (
                Ok(Place { look: Some(Look { problems, ..Look::default() }), ..good() }),
                "state.0 is not used",
                "written anew",
            ),
        ] {
            let (found, advice) = shown(Path::new("/j"), found);
            assert!(found.contains(says) && advice.contains(lost), "{found} {advice}");
        }
    }
}
