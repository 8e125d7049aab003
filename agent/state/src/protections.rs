//! Which pods were reported as protected, in a file beside the run record: the next core takes that over before it
//! believes any other process about pods.
//!
//! The core alone writes it, before what was reported has any effect, and each time as a whole. It is mapped only while it
//! is read or written, so that it takes no memory of the core. Two agents may keep their state in one directory: each adds
//! its own to what the other one has written, under a lock.

use crate::error::StateError;
use crate::lock::ActingLock;
use crate::two_slots::{Found, Image, Layout, TwoSlots};
use plimsoll_node::boot::BootId;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::Critical;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most pods of which it is kept.
const MOST: usize = 4096;
/// So often the lock is tried: another agent that holds it for longer hangs, and is not waited for.
const TRIES: u32 = 50;
/// The pause before the lock is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// The halves of the UID, the low one first, and why.
static LAYOUT: Layout =
    Layout { magic: u64::from_le_bytes(*b"PLIMPODS"), row: 3, rows: MOST, is_row: |row| critical_of(row[2]).is_some() };

/// Protected pods, and why they are.
pub type Protected = HashMap<Uid, Critical>;

/// Where it is.
#[derive(Clone, Debug)]
pub struct Protections {
    directory: PathBuf,
    boot: BootId,
}

impl Protections {
    /// In this directory, for this boot.
    pub fn new(directory: &Path, boot: BootId) -> Self {
        Self { directory: directory.to_owned(), boot }
    }

    /// What an earlier process of this boot has written. Never fails for what is in the file: that is in `Found`.
    pub fn read(&self) -> Result<(Protected, Found), StateError> {
        let Ok(_lock) = self.lock() else {
            let image = TwoSlots::read(&LAYOUT, &self.path(), self.boot)?;
            return Ok((image.as_ref().map(protected).unwrap_or_default(), Found::Continued));
        };
        let (slots, found) = TwoSlots::open(&LAYOUT, &self.path(), self.boot)?;
        Ok((protected(slots.image()), found))
    }

    /// Writes that these pods are protected, and that those are not which are `gone`. What else is there is kept, as far
    /// as there is room for it.
    pub fn write(&self, own: &Protected, gone: &[Uid]) -> Result<(), StateError> {
        let _lock = self.lock()?;
        let (mut slots, _) = TwoSlots::open(&LAYOUT, &self.path(), self.boot)?;
        let mut others = protected(slots.image());
        others.retain(|uid, _| !own.contains_key(uid) && !gone.contains(uid));
        slots.clear();
        for (uid, critical) in own.iter().chain(&others) {
            let Some(row) = slots.push() else { break };
            row[..2].copy_from_slice(&halves(*uid));
            row[2] = word_of(*critical);
        }
        slots.publish();
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.directory.join("protected")
    }

    fn lock(&self) -> Result<ActingLock, StateError> {
        let path = self.directory.join("protected.lock");
        for _ in 0..TRIES {
            if let Some(lock) = ActingLock::try_acquire(&path)? {
                return Ok(lock);
            }
            std::thread::sleep(PAUSE);
        }
        Err(StateError::File { what: "lock", path, source: Errno::WOULDBLOCK })
    }
}

fn protected(image: &Image) -> Protected {
    let pod = |row: &[u64]| Some((Uid(u128::from(row[1]) << 64 | u128::from(row[0])), critical_of(row[2])?));
    image.rows().filter_map(pod).collect()
}

/// The low half of a UID, then the high one.
fn halves(Uid(uid): Uid) -> [u64; 2] {
    [uid, uid >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0))
}

const fn word_of(critical: Critical) -> u64 {
    match critical {
        Critical::Static => 1,
        Critical::Mirror => 2,
        Critical::Priority => 3,
    }
}

const fn critical_of(word: u64) -> Option<Critical> {
    match word {
        1 => Some(Critical::Static),
        2 => Some(Critical::Mirror),
        3 => Some(Critical::Priority),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId([1; 16]);

    fn pods(uids: impl IntoIterator<Item = u128>, critical: Critical) -> Protected {
        uids.into_iter().map(|uid| (Uid(uid), critical)).collect()
    }

    fn read(protections: &Protections) -> Protected {
        protections.read().expect("readable").0
    }

    #[test]
    fn what_was_protected_is_taken_over_within_a_boot_and_why() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let protections = Protections::new(run.path(), BOOT);
        assert!(matches!(protections.read().expect("writable"), (none, Found::New) if none.is_empty()));
        let own = HashMap::from([
            (Uid(u128::MAX), Critical::Static),
            (Uid(1 << 64), Critical::Mirror),
            (Uid(7), Critical::Priority),
        ]);
        protections.write(&own, &[]).expect("writable");
        assert!(matches!(protections.read().expect("readable"), (all, Found::Continued) if all == own));
        let rebooted = Protections::new(run.path(), BootId([2; 16]));
        assert!(matches!(rebooted.read().expect("readable"), (none, Found::OtherBoot) if none.is_empty()));
    }

    #[test]
    fn another_agent_in_the_directory_withdraws_nothing_and_what_is_gone_goes() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let [one, other] = [(); 2].map(|()| Protections::new(run.path(), BOOT));
        one.write(&pods([1, 2], Critical::Priority), &[]).expect("writable");
        other.write(&pods([3], Critical::Mirror), &[]).expect("writable");
        assert_eq!(read(&one).len(), 3);
        one.write(&pods([1], Critical::Priority), &[Uid(2)]).expect("writable");
        assert_eq!(read(&other), HashMap::from([(Uid(1), Critical::Priority), (Uid(3), Critical::Mirror)]));
    }

    #[test]
    fn a_full_file_keeps_what_its_writer_knows_and_as_many_others_as_fit() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let protections = Protections::new(run.path(), BOOT);
        let all = MOST as u128;
        protections.write(&pods(0..all, Critical::Priority), &[]).expect("writable");
        let own = pods(all..2 * all - 1, Critical::Mirror);
        protections.write(&own, &[]).expect("writable");
        let kept = read(&protections);
        assert_eq!(kept.len(), MOST);
        assert!(own.iter().all(|(uid, why)| kept.get(uid) == Some(why)));
    }

    #[test]
    fn a_holder_that_hangs_is_not_waited_for_and_what_is_there_is_read_all_the_same() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let protections = Protections::new(run.path(), BOOT);
        let own = pods([1], Critical::Priority);
        protections.write(&own, &[]).expect("writable");
        let held = protections.lock().expect("it is free");
        assert_eq!(read(&protections), own);
        let error = protections.write(&pods([2], Critical::Priority), &[]).expect_err("it is held").to_string();
        assert!(error.contains("protected.lock"), "{error}");
        drop(held);
        protections.write(&pods([2], Critical::Priority), &[]).expect("it is free");
    }

    #[test]
    fn garbage_is_moved_aside_and_protects_none() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let protections = Protections::new(run.path(), BOOT);
        std::fs::write(run.path().join("protected"), b"garbage").expect("writable");
        let (none, found) = protections.read().expect("writable");
        assert!(none.is_empty() && matches!(found, Found::Broken { .. }), "{found:?}");
        protections.write(&pods([2], Critical::Priority), &[]).expect("writable");
        assert_eq!(read(&protections).len(), 1);
    }
}
