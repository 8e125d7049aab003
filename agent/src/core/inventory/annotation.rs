//! The annotation on the node's object by which its agent is switched off, as another process says.
//!
//! That process is not trusted: it can say that the annotation is there, or that it is not, and has no say about the file of
//! the kill switch. The switch is thrown at once, and is taken back no sooner than [`LEAST`] after that, so that what is
//! said in turn makes little work. What was said last holds for as long as nothing else is said, and for the next core of
//! this boot: that it is there is kept as a file in the state directory.

use core::time::Duration;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use plimsoll_node::clock::monotonic;
use plimsoll_units::MonotonicNs;

/// So long it is thrown at least.
const LEAST: Duration = Duration::from_secs(10);
/// The file, in the state directory.
const KEPT: &str = "kill-switch-annotation";

/// What was said of it.
#[derive(Debug)]
pub(in crate::core) struct Annotation {
    kept: PathBuf,
    /// What was said last.
    is_there: bool,
    /// Since when it is thrown.
    thrown: Option<MonotonicNs>,
    /// The next core would go on with it as thrown.
    is_kept: bool,
}

impl Annotation {
    /// As an earlier core of this boot knew it.
    pub(in crate::core) fn resume(state_directory: &Path) -> Self {
        let kept = state_directory.join(KEPT);
        let is_there = fs::symlink_metadata(&kept).is_ok();
        Self { kept, is_there, thrown: is_there.then(monotonic), is_kept: is_there }
    }

    /// It is there, or is not.
    pub(super) const fn say(&mut self, is_there: bool) {
        self.is_there = is_there;
    }

    /// Throws the switch or takes it back, where that is due, and keeps that for the next core. What could not be kept is
    /// tried again at each call, so that it is an error for as long as it is not kept.
    ///
    /// # Errors
    /// Where the next core will not know of it.
    pub(super) fn settle(&mut self, now: MonotonicNs) -> io::Result<()> {
        match self.thrown {
            None if self.is_there => self.thrown = Some(now),
            Some(_) if self.due().is_some_and(|due| due <= now) => self.thrown = None,
            Some(_) | None => {}
        }
        if self.is_kept == self.is_thrown() {
            return Ok(());
        }
        if self.is_thrown() { self.keep() } else { self.forget() }?;
        self.is_kept = self.is_thrown();
        Ok(())
    }

    /// Whether it is thrown.
    pub(super) const fn is_thrown(&self) -> bool {
        self.thrown.is_some()
    }

    /// When it is taken back, if that was said.
    pub(super) fn due(&self) -> Option<MonotonicNs> {
        self.thrown.filter(|_| !self.is_there).map(|thrown| thrown.after(LEAST))
    }

    fn keep(&self) -> io::Result<()> {
        match fs::File::create_new(&self.kept) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn forget(&self) -> io::Result<()> {
        match fs::remove_file(&self.kept) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(at: u64) -> MonotonicNs {
        MonotonicNs(at * 1_000_000_000)
    }

    #[test]
    fn it_is_thrown_at_once_and_taken_back_once_that_is_said_and_it_was_thrown_for_a_while() {
        let state = tempfile::tempdir().expect("a temporary directory");
        let mut annotation = Annotation::resume(state.path());
        assert!(!annotation.is_thrown());
        // At each second, what is said if anything is, and whether it is thrown then.
        for (at, said, is_thrown) in [
            (100, Some(false), false),
            (101, Some(true), true),
            (102, Some(false), true),
            (103, Some(true), true),
            (112, None, true),
            (130, Some(false), false),
            (131, Some(true), true),
            (132, Some(false), true),
            (140, None, true),
            (141, None, false),
        ] {
            if let Some(is_there) = said {
                annotation.say(is_there);
            }
            annotation.settle(second(at)).expect("writable");
            assert_eq!(annotation.is_thrown(), is_thrown, "at {at} s");
            assert_eq!(state.path().join(KEPT).exists(), is_thrown, "at {at} s");
        }
    }

    #[test]
    fn the_next_core_goes_on_with_it_until_something_else_is_said() {
        let state = tempfile::tempdir().expect("a temporary directory");
        let mut first = Annotation::resume(state.path());
        first.say(true);
        first.settle(second(1)).expect("writable");
        let mut next = Annotation::resume(state.path());
        next.settle(MonotonicNs(u64::MAX)).expect("writable");
        assert!(next.is_thrown() && next.due().is_none(), "nothing else was said");
        next.say(false);
        next.settle(MonotonicNs(u64::MAX)).expect("writable");
        assert!(!next.is_thrown() && !Annotation::resume(state.path()).is_thrown());
        drop(state);
        first.say(false);
        first.settle(MonotonicNs(u64::MAX)).expect("it is gone already");
        first.say(true);
        assert!(first.settle(second(2)).is_err() && first.is_thrown(), "it is thrown all the same");
    }

    #[test]
    fn what_could_not_be_kept_is_an_error_and_is_tried_again_until_it_is() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let state = folder.path().join("state");
        let mut annotation = Annotation::resume(&state);
        annotation.say(true);
        for at in [1, 2] {
            assert!(
                annotation.settle(second(at)).is_err() && annotation.is_thrown(),
                "there is no directory at {at} s"
            );
        }
        fs::create_dir(&state).expect("writable");
        annotation.settle(second(3)).expect("writable");
        assert!(state.join(KEPT).exists(), "the next core knows of it");
        // One that cannot be removed as a file.
        fs::remove_file(state.join(KEPT)).expect("it is there");
        fs::create_dir(state.join(KEPT)).expect("writable");
        annotation.say(false);
        for at in [30, 31] {
            assert!(annotation.settle(second(at)).is_err() && !annotation.is_thrown(), "it is kept still at {at} s");
        }
        fs::remove_dir(state.join(KEPT)).expect("it is there");
        annotation.settle(second(32)).expect("it is gone already");
    }
}
