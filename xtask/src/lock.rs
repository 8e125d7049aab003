//! Locks between commands that run at the same time. A lock ends when it is dropped, or with the process that has it.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use anyhow::Context;

/// How the name of the file ends that has the lock.
const LOCK: &str = "lock";

/// The lock on a file or folder, whether or not that is there: of a file beside it. Waits until no other command has it.
pub(crate) fn wait(place: &Path) -> anyhow::Result<File> {
    let lock = file(place)?;
    if !take(&lock, place)? {
        println!("another command uses {}, which is waited for", place.display());
        lock.lock().with_context(|| format!("cannot lock {}", place.display()))?;
    }
    Ok(lock)
}

/// The same, and nothing where another command has it.
pub(crate) fn try_now(place: &Path) -> anyhow::Result<Option<File>> {
    let lock = file(place)?;
    Ok(take(&lock, place)?.then_some(lock))
}

/// The file of the lock, not locked yet.
pub(crate) fn file(place: &Path) -> anyhow::Result<File> {
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let path = place.with_added_extension(LOCK);
    File::create(&path).with_context(|| format!("cannot write {}", path.display()))
}

/// Whether the lock was free, and is taken now.
fn take(lock: &File, place: &Path) -> anyhow::Result<bool> {
    match lock.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", place.display())),
    }
}

/// Has `make` make what is to be at `place`, where that is not there: once, however many commands want it.
pub(crate) fn once(
    place: &Path,
    is_there: impl Fn() -> anyhow::Result<bool>,
    make: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if is_there()? {
        return Ok(());
    }
    let _lock = wait(place)?;
    // The command that was waited for may have made it.
    if is_there()? { Ok(()) } else { make() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_several_want_at_once_is_made_by_one_and_the_others_wait() {
        let place = tempfile::tempdir().expect("a directory");
        let (folder, made) = (place.path().join("below/kernel"), AtomicU32::new(0));
        let is_there = || Ok(folder.join("complete").is_file());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let get = once(&folder, is_there, || {
                        made.fetch_add(1, Ordering::Relaxed);
                        // The others find no complete one meanwhile.
                        thread::sleep(Duration::from_millis(200));
                        fs::create_dir(&folder)?;
                        Ok(fs::write(folder.join("complete"), "")?)
                    });
                    get.expect("made");
                    assert!(is_there().expect("a folder"));
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn what_could_not_be_made_is_made_by_the_next() {
        let place = tempfile::tempdir().expect("a directory");
        let one = place.path().join("one");
        let error = once(&one, || Ok(false), || anyhow::bail!("no mirror")).expect_err("not made");
        assert_eq!(error.to_string(), "no mirror");
        once(&one, || Ok(one.is_file()), || Ok(fs::write(&one, "")?)).expect("made");
        once(&one, || Ok(one.is_file()), || anyhow::bail!("made again")).expect("it is there");
    }
}
