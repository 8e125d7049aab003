//! What `check` reports of the file that says what is known of pods.

use std::path::Path;

use plimsoll_report::text::printable;
use plimsoll_units::counted;

use super::{Row, row};
use crate::services::{PodFile, PodReader, at};

/// How many pods the file names, and what of it cannot be read; or why nothing can be, with its path.
pub(super) type PodFacts = (String, Result<(usize, Option<String>), String>);

/// Reads the file at `path`, as `services` does.
pub(super) fn read(path: &Path) -> PodFacts {
    let name = path.display().to_string();
    let said = PodFile::open(path, PodReader::default()).read().map_err(|error| at(&name, &error)).map(|listed| {
        let listed = listed.unwrap_or_default();
        (listed.pods.len(), listed.first_error.map(|error| format!("{} cannot be read; line {error}", listed.unread)))
    });
    (name, said)
}

pub(super) fn pod_facts_row((path, read): &PodFacts) -> Row {
    let (found, advice) = match read {
        Ok((pods, None)) => (format!("{} in {path}", counted(*pods, "pod", "pods")), ""),
        Ok((pods, Some(unread))) => (
            format!("{} in {path}, and {unread}", counted(*pods, "pod", "pods")),
            "a pod that cannot be read is never evicted",
        ),
        Err(why) => (
            why.clone(),
            "no pod is evicted of which nothing is known: write there what `kubectl get pods -A -o json` prints of the \
             pods of this node, readable by every user",
        ),
    };
    row("pod facts", advice.is_empty(), printable(&found), advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_or_of_which_a_part_cannot_be_read_is_degraded() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("pods.json");
        let pod = |uid: &str| format!(r#"{{"metadata":{{"uid":{uid},"name":"a","namespace":"b"}}}}"#);
        let good = pod(r#""01234567-89ab-cdef-0123-456789abcdef""#);
        for (text, expected) in [
            (None, "pods.json: it is not there"),
            (Some("{".to_owned()), "pods.json:1: EOF"),
            (Some(format!(r#"{{"items":[{good}]}}"#)), "1 pod in "),
            (Some(format!(r#"{{"items":[{good},{}]}}"#, pod("7"))), "and 1 cannot be read; line 1"),
        ] {
            if let Some(text) = text {
                std::fs::write(&path, text).expect("writable");
            }
            let Row { found, advice, .. } = pod_facts_row(&read(&path));
            assert!(found.contains(expected), "{found}");
            assert_eq!(advice.is_empty(), expected == "1 pod in ", "{found}");
        }
    }
}
