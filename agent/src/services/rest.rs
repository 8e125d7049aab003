//! How often the container runtime is asked: the less often, the longer nothing has happened that would change its answers.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Has what waits by a [`Rest`] ask again.
#[derive(Clone, Debug)]
pub(super) struct Stir(watch::Sender<Instant>);

impl Stir {
    /// As if something had happened now.
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Instant::now()))
    }

    /// Something has happened.
    pub(super) fn stir(&self) {
        self.0.send_replace(Instant::now());
    }

    pub(super) fn rest(&self) -> Rest {
        Rest(self.0.subscribe())
    }
}

/// When something happened last.
#[derive(Debug)]
pub(super) struct Rest(watch::Receiver<Instant>);

impl Rest {
    /// Waits until something has happened since it was called; for `least` in any case, and in all for no longer than a third
    /// of the time for which nothing had, nor than `most`, where that is not less.
    pub(super) async fn pause(&mut self, least: Duration, most: Duration) {
        let still = self.0.borrow_and_update().elapsed();
        sleep(least).await;
        let more = (still / 3).min(most).saturating_sub(least);
        // Where nothing can happen any more, there is nothing to wait for either.
        let _ = timeout(more, self.0.changed()).await;
    }

    /// Whether something has happened since it was made or waited last.
    #[cfg(test)]
    pub(super) fn is_over(&self) -> bool {
        self.0.has_changed().unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How long each of so many pauses of 10 s to a minute lasts, in seconds.
    async fn pauses(rest: &mut Rest, count: usize) -> Vec<u64> {
        let mut lasted = Vec::new();
        for _ in 0..count {
            let begun = Instant::now();
            rest.pause(SECOND * 10, SECOND * 60).await;
            lasted.push(begun.elapsed().as_secs());
        }
        lasted
    }

    #[test]
    fn pauses_grow_while_nothing_happens_and_end_when_something_does() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        tokio.expect("a runtime").block_on(async {
            let stir = Stir::new();
            let mut rest = stir.rest();
            assert_eq!(pauses(&mut rest, 9).await, [10, 10, 10, 10, 13, 17, 23, 31, 42]);
            assert_eq!(pauses(&mut rest, 3).await, [56, 60, 60]);
            let later = stir.clone();
            tokio::spawn(async move {
                sleep(SECOND * 35).await;
                later.stir();
                sleep(SECOND * 5).await;
                later.stir();
            });
            assert_eq!(pauses(&mut rest, 4).await, [35, 10, 10, 10], "once at once, and then no more often than ever");
            rest.pause(SECOND * 70, SECOND * 60).await;
            drop(stir);
            assert_eq!(pauses(&mut rest, 2).await, [10, 10]);
        });
    }
}
