//! Undoes what a process left that died: every cgroup that it froze is thawed, no kill is repeated.

use crate::record::{Entry, Record};
use plimsoll_act::{Action, Journal as _, Step};
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_node::{Fault, NodeError};
use plimsoll_units::{CgroupId, MonotonicNs};

/// A kill that was begun and whose victim still has processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingKill {
    /// The victim.
    pub cgroup: CgroupId,
    /// Where it is.
    pub path: Vec<u8>,
    /// When the kill began.
    pub since: MonotonicNs,
    /// The kill was written. Otherwise it may have been, or not: after the usual wait the workload may be evicted again.
    pub written: bool,
    /// It was killed by its parts, beside something that was spared and may live on.
    pub by_parts: bool,
}

/// What was undone, and what is left.
#[derive(Debug, Default)]
pub struct Undone {
    /// Cgroups that were thawed.
    pub thawed: Vec<Vec<u8>>,
    /// Actions whose cgroup was removed, or whose victim is empty: over.
    pub over: usize,
    /// Cgroups that could not be thawed, and why; their entries stay in the record.
    pub failed: Vec<(CgroupId, String)>,
    /// Kills to be waited for.
    pub kills: Vec<PendingKill>,
}

/// Thaws everything that the record says is frozen, or may be, and gives what is still to be waited for. The process
/// that wrote the record must be dead. Safe to call again, after dying in the middle of it too.
pub fn undo(record: &mut Record, root: &Root) -> Undone {
    let mut undone = Undone::default();
    for entry in record.entries() {
        let (action, cgroup) = (entry.step.action(), entry.cgroup);
        let handle = match find(root, cgroup, entry.path.as_deref()) {
            Ok(Some(handle)) => handle,
            Ok(None) => {
                record.clear(cgroup, action);
                undone.over += 1;
                continue;
            }
            Err(error) => {
                undone.failed.push((cgroup, error.to_string()));
                continue;
            }
        };
        match action {
            Action::Brake => match thaw_one(&handle, entry.by_parts) {
                Ok(()) => {
                    record.clear(cgroup, action);
                    undone.thawed.push(handle.path().to_vec());
                }
                Err(Fault::Gone) => {
                    record.clear(cgroup, action);
                    undone.over += 1;
                }
                Err(fault) => undone.failed.push((cgroup, fault.to_string())),
            },
            Action::Kill => match handle.populated() {
                Ok(false) | Err(Fault::Gone) => {
                    record.clear(cgroup, action);
                    undone.over += 1;
                }
                Ok(true) | Err(_) => undone.kills.push(PendingKill {
                    cgroup,
                    path: handle.path().to_vec(),
                    since: entry.since,
                    written: entry.step == Step::KillWritten,
                    by_parts: entry.by_parts,
                }),
            },
        }
    }
    undone
}

/// Thaws everything that these entries say is frozen, or may be, and leaves the record as it is: the process that wrote
/// it was killed and is not dead yet, and a write that it is in may still end. Gives what was thawed, and what could
/// not be, with the reason. Safe to call again.
pub fn thaw(entries: &[Entry], root: &Root) -> (Vec<Vec<u8>>, Vec<(CgroupId, String)>) {
    let (mut thawed, mut failed) = (Vec::new(), Vec::new());
    for entry in entries.iter().filter(|entry| entry.step.action() == Action::Brake) {
        match find(root, entry.cgroup, entry.path.as_deref()) {
            Ok(Some(handle)) => match thaw_one(&handle, entry.by_parts) {
                Ok(()) => thawed.push(handle.path().to_vec()),
                Err(Fault::Gone) => {}
                Err(fault) => failed.push((entry.cgroup, fault.to_string())),
            },
            Ok(None) => {}
            Err(error) => failed.push((entry.cgroup, error.to_string())),
        }
    }
    (thawed, failed)
}

fn thaw_one(handle: &Handle, by_parts: bool) -> Result<(), Fault> {
    if by_parts { handle.thaw_inside() } else { handle.freeze(false) }
}

/// The cgroup that was meant, by its id: another one at its path is not it.
fn find(root: &Root, cgroup: CgroupId, path: Option<&[u8]>) -> Result<Option<Handle>, NodeError> {
    let found = match path {
        Some(path) => Handle::open(root, path)?,
        // By its id, whatever the size of the tree. Without the right to that it is searched.
        None => match root.path_of(cgroup).or_else(|_| root.find(cgroup))? {
            Some(path) => Handle::open(root, &path)?,
            None => None,
        },
    };
    Ok(found.filter(|handle| handle.id() == cgroup))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_act::Intent;
    use plimsoll_node::boot::BootId;
    use std::fs;
    use std::path::Path;

    fn cgroup(tree: &Path, path: &str, populated: u8) -> CgroupId {
        let dir = tree.join(path);
        fs::create_dir_all(&dir).expect("writable");
        let events = format!("populated {populated}\nfrozen 1\n");
        for (name, text) in [("cgroup.events", events.as_str()), ("cgroup.procs", ""), ("cgroup.freeze", "1\n")] {
            fs::write(dir.join(name), text).expect("writable");
        }
        CgroupId(std::os::unix::fs::MetadataExt::ino(&fs::metadata(&dir).expect("it is there")))
    }

    #[test]
    fn frozen_cgroups_are_thawed_and_killed_ones_are_waited_for() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let run = tempfile::tempdir().expect("a temporary directory");
        let deep = vec!["d"; 150].join("/");
        let frozen = cgroup(tree.path(), "frozen", 1);
        let freezing = cgroup(tree.path(), &deep, 1);
        let other = cgroup(tree.path(), "other", 1);
        let dying = cgroup(tree.path(), "dying", 1);
        let perhaps = cgroup(tree.path(), "perhaps", 1);
        let dead = cgroup(tree.path(), "dead", 0);
        let (mut record, _) = Record::open(&run.path().join("record"), BootId([1; 16])).expect("writable");
        for (step, cgroup, path) in [
            (Step::Frozen, frozen, "frozen"),
            (Step::Freezing, freezing, deep.as_str()),
            // Removed and made again: another cgroup is there.
            (Step::Frozen, CgroupId(other.0 + 1_000_000), "other"),
            (Step::Frozen, CgroupId(3), "gone"),
            (Step::KillWritten, dying, "dying"),
            (Step::Frozen, dying, "dying"),
            (Step::Killing, perhaps, "perhaps"),
            (Step::KillWritten, dead, "dead"),
        ] {
            let since = MonotonicNs(9);
            record.write(Intent { step, cgroup, path: path.as_bytes(), since, by_parts: false }).expect("room");
        }
        let root = Root::open(tree.path()).expect("it is there");
        // While its writer is not dead yet, nothing in the record changes.
        let (before, path) = (record.entries(), run.path().join("record"));
        let read = Record::read(&path, BootId([1; 16])).expect("readable");
        assert_eq!((&read, Record::read(&path, BootId([2; 16])).expect("readable").len()), (&before, 0));
        let (thawed, failed) = thaw(&read, &root);
        assert_eq!((thawed.len(), failed.len()), (3, 0), "{failed:?}");
        assert_eq!(Record::read(&path, BootId([1; 16])).expect("readable"), before);
        let undone = undo(&mut record, &root);
        assert_eq!(undone.thawed, [b"frozen", deep.as_bytes(), b"dying"]);
        assert_eq!(undone.over, 3);
        assert!(undone.failed.is_empty(), "{:?}", undone.failed);
        let kill = |cgroup, path: &str, written| PendingKill {
            cgroup,
            path: path.as_bytes().to_vec(),
            since: MonotonicNs(9),
            written,
            by_parts: false,
        };
        assert_eq!(undone.kills, [kill(dying, "dying", true), kill(perhaps, "perhaps", false)]);
        let asked = |path: &str| fs::read_to_string(tree.path().join(path).join("cgroup.freeze")).expect("readable");
        for (path, state) in [("frozen", "0\n"), (&deep, "0\n"), ("dying", "0\n"), ("other", "1\n"), ("dead", "1\n")] {
            assert_eq!(asked(path), state, "{path}");
        }
        // Again: nothing but the kills is left.
        let again = undo(&mut record, &root);
        assert_eq!((again.thawed.len(), again.over, again.kills.len()), (0, 0, 2));
    }
    /// The core may die when it has frozen one container of a pod and not the next, or killed one.
    #[test]
    fn the_parts_of_what_is_by_parts_are_thawed_and_not_itself() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let run = tempfile::tempdir().expect("a temporary directory");
        let pod = cgroup(tree.path(), "pod", 1);
        for name in ["pod/a", "pod/b", "pod/monitor", "pod/a/inner"] {
            cgroup(tree.path(), name, 1);
        }
        let asked = |path: &str| fs::read_to_string(tree.path().join(path).join("cgroup.freeze")).expect("readable");
        fs::write(tree.path().join("pod/b/cgroup.freeze"), "0\n").expect("writable");
        let path = run.path().join("record");
        let root = Root::open(tree.path()).expect("it is there");
        for step in [Step::Freezing, Step::Frozen] {
            fs::write(tree.path().join("pod/a/cgroup.freeze"), "1\n").expect("writable");
            let (mut record, _) = Record::open(&path, BootId([1; 16])).expect("writable");
            for step in [step, Step::Killing] {
                let intent = Intent { step, cgroup: pod, path: b"pod", since: MonotonicNs(9), by_parts: true };
                record.write(intent).expect("room");
            }
            drop(record);
            let (mut record, _) = Record::open(&path, BootId([1; 16])).expect("writable");
            let undone = undo(&mut record, &root);
            assert_eq!((undone.thawed, undone.failed.len()), (vec![b"pod".to_vec()], 0));
            assert!(matches!(&undone.kills[..], [PendingKill { written: false, by_parts: true, .. }]));
            assert_eq!(["pod/a", "pod/b"].map(asked), ["0\n", "0\n"]);
            assert_eq!(["pod", "pod/a/inner"].map(asked), ["1\n", "1\n"], "another program froze it");
        }
    }
}
