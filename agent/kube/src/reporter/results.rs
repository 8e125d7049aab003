//! What follows from what came of a write.

use super::retry::Retry;
use super::{CONFLICT, Due, HEARTBEAT, Outcome, Reporter, Write};
use crate::budget::spread;
use crate::error::Refusal;
use crate::eviction::Progress;
use jiff::Timestamp;
use tokio::time::Instant;

impl Reporter {
    /// Takes in what came of a write of that time.
    pub(super) fn done(&mut self, write: Write, time: Timestamp, result: Result<(), Refusal>) {
        let what = self.what(write);
        let is_of_node = matches!(write, Write::Compare | Write::Conditions | Write::Taints | Write::Standard);
        self.node_yields = is_of_node && result.is_err();
        if !matches!(result, Err(Refusal::Later(..) | Refusal::Unusable(_))) {
            self.of_server.succeed("what is reported");
        }
        if !matches!(result, Err(Refusal::Forbidden(_))) {
            self.retry(write).end_forbidden();
        }
        let refusal = match result {
            Ok(()) => return self.written(write, time),
            Err(Refusal::Unusable(why)) if self.retry(write).is_futile() => Refusal::Never(why),
            Err(Refusal::Forbidden(why)) if self.retry(write).is_forbidden() => Refusal::Never(why),
            Err(refusal) => refusal,
        };
        match (write, refusal) {
            (_, Refusal::Later(why, pause)) => {
                self.of_server.fail("what is reported", &why, pause);
                // It may be this request alone, and others are to be tried before it.
                self.retry(write).delay(pause);
            }
            (_, Refusal::Failed(why, pause)) => self.retry(write).fail(what, &why, pause),
            (_, Refusal::Unusable(why) | Refusal::Forbidden(why)) => self.retry(write).fail(what, &why, None),
            (Write::Compare | Write::Conditions | Write::Taints | Write::Standard, Refusal::Conflict) => {
                let retry = self.retry(write);
                retry.delay_by(spread(CONFLICT, fastrand::f64()) * (retry.failures() + 1).min(10));
            }
            (Write::Compare | Write::Conditions | Write::Taints, Refusal::Gone) => {
                self.leave_conditions(write, "there is no such node");
            }
            // What is written all the same has the times of this process, and is news.
            (Write::Compare, Refusal::Never(why)) => {
                self.of_conditions.note(what, &why);
                self.compare(&[]);
            }
            (Write::Conditions | Write::Taints, Refusal::Never(why)) => self.leave_conditions(write, &why),
            (Write::Standard, Refusal::Gone) => self.standard.end(),
            (Write::Standard, Refusal::Never(why)) => {
                self.standard.retry.note(what, &why);
                self.standard.end();
            }
            (Write::Patch(at) | Write::Look(at), Refusal::Conflict) => self.outbox[at].is_in_conflict = true,
            (Write::Patch(at) | Write::Look(at), Refusal::Never(why)) => self.refuse_patch(at, &why),
            (Write::Delete(at), Refusal::Never(why)) => {
                tracing::warn!("{} was evicted and cannot be deleted: {why}", self.outbox[at].pod());
                self.outbox[at].entry.progress = Progress::Over;
            }
            // It is gone, or the UID is that of another one.
            (Write::Patch(at) | Write::Look(at) | Write::Delete(at), Refusal::Gone)
            | (Write::Delete(at), Refusal::Conflict) => self.outbox[at].entry.progress = Progress::Over,
            (Write::Note(at), Refusal::Conflict) => self.notes.end(at),
            (Write::Note(at), refusal @ (Refusal::Gone | Refusal::Never(_))) => {
                tracing::warn!("{what} is refused: {refusal:?}");
                self.notes.end(at);
            }
            // It was written before: its answer was lost.
            (Write::Event(at), Refusal::Conflict) => self.outbox[at].entry.has_event = true,
            (Write::Event(at), refusal @ (Refusal::Gone | Refusal::Never(_))) => {
                tracing::warn!("{what} is refused: {refusal:?}");
                self.outbox[at].entry.has_event = true;
            }
        }
    }

    fn written(&mut self, write: Write, time: Timestamp) {
        if let Write::Look(at) = write {
            return self.try_again(at);
        }
        let what = self.what(write);
        self.retry(write).succeed(what);
        match write {
            Write::Conditions => {
                (self.due, self.astray) = (Due::Taints, None);
                self.heartbeat = Instant::now() + spread(HEARTBEAT, fastrand::f64());
            }
            Write::Taints => self.due = Due::Nothing,
            Write::Standard => self.standard.end(),
            Write::Patch(at) => {
                let entry = &mut self.outbox[at].entry;
                let first = if let Progress::Patched { first, .. } = entry.progress { first } else { time };
                entry.progress = Progress::Patched { first, last: time };
                self.outcomes.push(Outcome::Ends(entry.eviction.uid.clone()));
            }
            Write::Delete(at) => {
                let entry = &mut self.outbox[at].entry;
                entry.progress = Progress::Over;
                self.outcomes.push(Outcome::Ends(entry.eviction.uid.clone()));
            }
            Write::Event(at) => self.outbox[at].entry.has_event = true,
            Write::Note(at) => self.notes.end(at),
            Write::Compare | Write::Look(_) => {}
        }
    }

    /// The pod is the one that was evicted: its patch was in conflict with another write, for a short time as a rule.
    fn try_again(&mut self, at: usize) {
        let open = &mut self.outbox[at];
        open.is_in_conflict = false;
        open.of_pod.delay(None);
        if open.of_pod.is_futile() {
            self.refuse_patch(at, "it was in conflict with other writes each time");
        }
    }

    fn refuse_patch(&mut self, at: usize, why: &str) {
        let open = &mut self.outbox[at];
        tracing::warn!("the status of {} cannot be set, and it is deleted: {why}", open.pod());
        (open.entry.progress, open.of_pod) = (Progress::ToDelete, Retry::new(Instant::now()));
    }

    /// They are tried again with the next heartbeat: taints with that of the conditions that were written before them.
    fn leave_conditions(&mut self, write: Write, why: &str) {
        let what = self.what(write);
        self.retry(write).note(what, why);
        (self.due, self.astray) = (Due::Nothing, None);
        if write != Write::Taints {
            self.heartbeat = Instant::now() + spread(HEARTBEAT, fastrand::f64());
        }
    }
}
