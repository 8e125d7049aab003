//! What `check` reports of the file that says what is known of pods.

use std::path::Path;

use plimsoll_report::text::printable;
use plimsoll_units::counted;

use super::{Row, row};
use crate::confine::{Files, SERVICES};
use crate::services::{Listed, PodFile, PodReader, at};

/// What follows where a list of pods names one that cannot be read.
pub(super) const UNREAD: &str = "a pod that cannot be read is never evicted";

/// What reading the file gave.
pub(super) struct PodFacts {
    path: String,
    /// What it says; or why it cannot be read, with its path.
    read: Result<Listed, String>,
    /// It was read by the user that `services` is.
    is_tried: bool,
}

impl PodFacts {
    /// What it says, where it can be read.
    pub(super) fn listed(&self) -> Option<&Listed> {
        self.read.as_ref().ok()
    }
}

/// Reads the file at `path` as `services` does: it opens the directory as root, and the file as a user of its own that
/// reaches nothing else.
pub(super) fn read(path: &Path) -> PodFacts {
    let mut file = PodFile::open(path, PodReader::default());
    // Another thread keeps its user.
    let tried = std::thread::scope(|scope| {
        let read = || {
            let files = Files { read: file.directory(), ..Files::default() };
            SERVICES.try_out(files).ok().map(|()| file.read())
        };
        scope.spawn(read).join().ok().flatten()
    });
    let (path, is_tried) = (path.display().to_string(), tried.is_some());
    let read = tried.unwrap_or_else(|| file.read()).map_err(|error| at(&path, &error)).map(Option::unwrap_or_default);
    PodFacts { path, read, is_tried }
}

pub(super) fn pod_facts_row(PodFacts { path, read, is_tried }: &PodFacts) -> Row {
    let pods = |listed: &Listed| counted(listed.pods.len(), "pod", "pods").to_string();
    let (found, advice) = match read {
        Ok(listed) => match &listed.first_error {
            None if *is_tried => (format!("{} in {path}", pods(listed)), ""),
            None => (
                format!("{} in {path}, as this user reads it", pods(listed)),
                if rustix::process::geteuid().is_root() {
                    "whether the agent can read it is not known: this process may not become user 65525"
                } else {
                    "whether the agent can read it is not known: run as root"
                },
            ),
            Some(error) => {
                (format!("{} in {path}, and {} cannot be read; line {error}", pods(listed), listed.unread), UNREAD)
            }
        },
        Err(why) => (
            why.clone(),
            "no pod is evicted of which nothing is known: write there what `kubectl get pods -A -o json` prints of the \
             pods of this node, readable by user 65525",
        ),
    };
    row("pod facts", advice.is_empty(), printable(&found), advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_that_is_missing_or_of_which_a_part_or_all_cannot_be_read_is_degraded() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
        mode(directory.path(), 0o711);
        let path = directory.path().join("pods.json");
        let pod = |uid: &str| format!(r#"{{"metadata":{{"uid":{uid},"name":"a","namespace":"b"}}}}"#);
        let good = pod(r#""01234567-89ab-cdef-0123-456789abcdef""#);
        let found = || pod_facts_row(&read(&path));
        assert_eq!(found().found, format!("{}: it is not there", path.display()));
        for (text, expected) in [
            ("{".to_owned(), "pods.json:1: EOF"),
            (format!(r#"{{"items":[{good},{}]}}"#, pod("7")), "and 1 cannot be read; line 1"),
            (format!(r#"{{"items":[{good}]}}"#), "1 pod in "),
        ] {
            write(&path, text).expect("writable");
            mode(&path, 0o644);
            let Row { found, advice, .. } = found();
            assert!(found.contains(expected), "{found}");
            assert_eq!(advice.is_empty(), expected == "1 pod in " && is_root(), "{found}: {advice}");
        }
        // What root alone may read, or find, `services` cannot.
        mode(&path, 0o600);
        expect_refused(&found(), "it cannot be opened; let user 65525 read it: Permission denied");
        mode(&path, 0o644);
        mode(directory.path(), 0o700);
        expect_refused(&found(), "it cannot be found; let user 65525 enter its directory: Permission denied");
        mode(directory.path(), 0o711);
        let elsewhere = tempfile::NamedTempFile::new().expect("a temporary file");
        write(elsewhere.path(), format!(r#"{{"items":[{good}]}}"#)).expect("writable");
        mode(elsewhere.path(), 0o644);
        std::fs::remove_file(&path).expect("it is ours");
        std::os::unix::fs::symlink(elsewhere.path(), &path).expect("writable");
        expect_refused(&found(), "it cannot be opened; let user 65525 read it: Permission denied");
    }

    /// A user that cannot become the agent's does not know.
    fn expect_refused(Row { found, advice, .. }: &Row, expected: &str) {
        if is_root() {
            assert!(found.contains(expected), "{found}");
        } else {
            assert!(advice.contains("run as root"), "{found}: {advice}");
        }
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }
}
