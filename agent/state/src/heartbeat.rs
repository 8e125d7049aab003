//! Shows the supervisor that the core's watching thread runs: a counter in shared memory, which the core alone adds to
//! and the supervisor only reads. A value that an attacker wrote there could only hide that the core does not run.

use crate::error::StateError;
use crate::queue::{memory, seal};
use crate::shared::{Shared, View};
use core::sync::atomic::Ordering;
use core::time::Duration;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;

/// The watching thread beats at least so often, also where nothing happens.
pub const PERIOD: Duration = Duration::from_secs(1);

/// Words of the memory: the counter.
const WORDS: usize = 1;

/// The side that beats.
#[derive(Debug)]
pub struct Heart(Shared);

/// The side that counts.
#[derive(Debug)]
pub struct Pulse(View);

/// Makes the memory for one core, and gives what is handed to it.
pub fn create() -> Result<(Pulse, OwnedFd), StateError> {
    let memory = memory("plimsoll-heartbeat", WORDS)?;
    seal(&memory, SealFlags::empty())?;
    let view = View::map(&memory, WORDS).map_err(|source| StateError::Memory { what: "map memory", source })?;
    Ok((Pulse(view), memory))
}

impl Heart {
    /// The heart of this process, in the memory that its supervisor made.
    pub fn attach(memory: impl AsFd) -> Result<Self, StateError> {
        let shared = Shared::map(memory, WORDS);
        Ok(Self(shared.map_err(|source| StateError::Memory { what: "map memory", source })?))
    }

    /// One store: neither allocates nor waits.
    pub fn beat(&self) {
        self.0.words()[0].fetch_add(1, Ordering::Relaxed);
    }
}

impl Pulse {
    /// How often it beat; zero: the thread has not begun.
    pub fn count(&self) -> u64 {
        self.0.load(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_beat_is_counted() {
        let (pulse, memory) = create().expect("memory");
        let heart = Heart::attach(&memory).expect("it can be written");
        for count in 0..3 {
            assert_eq!(pulse.count(), count);
            heart.beat();
        }
    }
}
