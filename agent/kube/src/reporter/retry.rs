//! When what failed is tried again.

use crate::budget::pause_after;
use core::fmt;
use core::time::Duration;
use tokio::time::Instant;

/// So often something is tried that another try may not change: a patch that is in conflict, a request that is not
/// understood.
const TRIES: u32 = 5;
/// For so long something is tried that is forbidden each time. An API server that has just started serves before it has read
/// the roles, and forbids everything until then (kubernetes/kubernetes#101422).
const FORBIDDEN: Duration = Duration::from_mins(2);
/// The longest pause that an API server may name.
const NAMED_MOST: Duration = Duration::from_mins(5);

/// Failures of one kind of write in a row, and what is logged of them: the first one, each that is another one than before
/// it, and the end.
#[derive(Debug)]
pub(super) struct Retry {
    failures: u32,
    /// Those of them that another try may not change.
    futile: u32,
    /// Since when each answer was that it is forbidden, where the last one was.
    forbidden: Option<Instant>,
    /// When it is tried again.
    due: Instant,
    trouble: Option<String>,
}

impl Retry {
    pub(super) const fn new(now: Instant) -> Self {
        Self { failures: 0, futile: 0, forbidden: None, due: now, trouble: None }
    }

    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// It failed in a way that another try may not change. Whether that was so often enough for none to follow.
    pub(super) const fn is_futile(&mut self) -> bool {
        self.futile += 1;
        self.futile >= TRIES
    }

    /// It is forbidden. Whether that was so for long enough for none to follow.
    pub(super) fn is_forbidden(&mut self) -> bool {
        self.forbidden.get_or_insert_with(Instant::now).elapsed() >= FORBIDDEN
    }

    /// What came of it is not that it is forbidden.
    pub(super) const fn end_forbidden(&mut self) {
        self.forbidden = None;
    }

    /// It failed. `named`: the pause that the API server asks for.
    pub(super) fn fail(&mut self, what: impl fmt::Display, why: &str, named: Option<Duration>) {
        self.note(what, why);
        self.delay(named);
    }

    /// It is tried again after a pause that doubles; nothing is logged of it.
    pub(super) fn delay(&mut self, named: Option<Duration>) {
        self.failures += 1;
        let named = named.unwrap_or_default().min(NAMED_MOST);
        self.due = Instant::now() + pause_after(self.failures, fastrand::f64()).max(named);
    }

    /// It is tried again after this pause.
    pub(super) fn delay_by(&mut self, pause: Duration) {
        self.failures += 1;
        self.due = Instant::now() + pause;
    }

    /// Logs why it failed, unless that is what was logged last.
    pub(super) fn note(&mut self, what: impl fmt::Display, why: &str) {
        if self.trouble.as_deref() != Some(why) {
            tracing::warn!("the API server does not take {what}: {why}");
            self.trouble = Some(why.to_owned());
        }
    }

    /// It was done. Where it is to be done again, it is due from now on: those go first that have waited for longer.
    pub(super) fn succeed(&mut self, what: impl fmt::Display) {
        (self.failures, self.futile, self.due) = (0, 0, Instant::now());
        if self.trouble.take().is_some() {
            tracing::info!("the API server takes {what} again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_the_one_that_the_api_server_names_up_to_five_minutes() {
        for (named, least, most) in [(0, 0, 1), (90, 90, 90), (86_400, 300, 300)] {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            runtime.expect("a runtime").block_on(async {
                let now = Instant::now();
                let mut retry = Retry::new(now);
                retry.fail("it", "it is busy", Some(Duration::from_secs(named)));
                let pause = retry.due() - now;
                let expected = Duration::from_secs(least)..=Duration::from_secs(most);
                assert!(expected.contains(&pause), "{named} s: {pause:?}");
            });
        }
    }

    #[test]
    fn what_was_done_is_due_again_from_then_on_so_that_it_is_behind_what_waits() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let [mut done, waits] = [Retry::new(Instant::now()), Retry::new(Instant::now())];
            tokio::time::advance(Duration::from_secs(1)).await;
            done.succeed("it");
            assert_eq!(done.due() - waits.due(), Duration::from_secs(1));
        });
    }
}
