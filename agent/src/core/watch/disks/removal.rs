//! Orders to remove what is dead or unused: which is given, what came of it, and when the next may be.
//!
//! One is under way at a time. Its end is a result, or that none came in time; then the policy decides by a newer figure
//! of the disk. What is removed by a process that is not trusted is never taken for room.

use core::time::Duration;

use plimsoll_inventory::{RemovalError, RemovalOrder, RemovalResult};
use plimsoll_policy::kubelet::Reclaim;
use plimsoll_policy::{Image, Reclaimed, Removal as Wanted};
use plimsoll_units::{Bytes, MonotonicNs};

use super::super::sampling::stats_time;
use crate::record::DiskRecord;

/// No removal is begun for an order after so long.
const LASTS: Duration = Duration::from_mins(1);
/// A result is waited for so long: one removal may take two minutes (`Limits::change` in agent/cri).
const WAIT: Duration = Duration::from_secs(60 + 120 + 10);
/// A figure of the disk shows what was removed, and that more is to be removed, so long after a result.
const SETTLES: Duration = Duration::from_secs(5);
/// The longest pause after an order that removed nothing.
const PAUSE_MOST: Duration = Duration::from_mins(5);

/// What a policy is given for images: of how many are unused it knows no more than the number. Where that is not known, or
/// too large, all of these.
const UNUSED: [Image; Image::MOST_UNUSED] = [Image::UNUSED; Image::MOST_UNUSED];

/// An order that was given.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    order: RemovalOrder,
    /// The policy's last reclaim, which ends with it.
    reclaim: u64,
    since: MonotonicNs,
    is_repeated: bool,
    is_stopped: bool,
}

/// When containers, or images, may be removed again.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    /// Absent where the last order removed some and left more.
    until: Option<MonotonicNs>,
    length: Duration,
    /// That there is nothing to remove was reported.
    is_reported: bool,
}

impl Pause {
    /// That there is nothing to remove was reported, and not long ago.
    fn is_quiet(&self, now: MonotonicNs) -> bool {
        self.is_reported && self.is_recent(now)
    }

    fn is_recent(&self, now: MonotonicNs) -> bool {
        self.until.is_some_and(|until| now < until.after(self.length))
    }

    fn is_over(&self, now: MonotonicNs) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Begins one, twice as long as the last unless that is over for as long as it took.
    fn begin(&mut self, least: Duration, now: MonotonicNs) {
        self.length = if self.is_recent(now) { self.length.saturating_mul(2).min(PAUSE_MOST) } else { least };
        self.until = Some(now.after(self.length));
    }
}

/// The state of removals.
#[derive(Debug, Default)]
pub(super) struct Removal {
    /// The least pause.
    pause: Duration,
    /// Of the last order. Each core begins anew, with a way of its own.
    number: u64,
    under_way: Option<UnderWay>,
    ended: Option<Reclaimed>,
    /// When the last result came that something was removed.
    freed: Option<MonotonicNs>,
    containers: Pause,
    images: Pause,
    /// How many images are left, as the last result has it.
    unused: Option<usize>,
    /// How many the policy saw when it asked for the last order.
    shown: usize,
    acts: bool,
}

impl Removal {
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, ..Self::default() }
    }

    /// The policy's last reclaim that has ended.
    pub(super) const fn ended(&self) -> Option<Reclaimed> {
        self.ended
    }

    /// Whether a figure of then may lack what is removed: an order is under way, or one has removed something since, or not
    /// long before.
    pub(super) fn frees(&self, taken: MonotonicNs) -> bool {
        self.under_way.is_some() || self.freed.is_some_and(|freed| taken < freed.after(SETTLES))
    }

    /// As many images as may be removed, as far as that is known. What the last order left counts until its pause is over.
    pub(super) fn unused(&self, now: MonotonicNs) -> &'static [Image] {
        let is_known = self.images.until.is_none_or(|until| now < until);
        let left = self.unused.filter(|_| is_known);
        // One less than all, so that fewer are seen to be left than before the first order.
        left.map_or(&UNUSED, |left| &UNUSED[..left.min(UNUSED.len() - 1)])
    }

    /// Whether this agent acts. Where it does not any more, gives the order that stops what is under way.
    pub(super) fn act(&mut self, acts: bool) -> Option<RemovalOrder> {
        if acts && !self.acts {
            // What was only reported so far is done.
            (self.containers, self.images, self.unused) = (Pause::default(), Pause::default(), None);
        }
        self.acts = acts;
        let under_way = self.under_way.as_mut().filter(|under_way| !acts && !under_way.is_stopped)?;
        under_way.is_stopped = true;
        Some(under_way.order.stopping())
    }

    /// Takes up what a policy asks for, and gives what is reported of it and, unless it is reported alone, the order. A
    /// later reclaim ends with the one that is under way. One that could remove nothing ends at once.
    pub(super) fn ask(
        &mut self,
        reclaim: u64,
        wanted: Option<Wanted>,
        now: MonotonicNs,
    ) -> Option<(DiskRecord<'static>, Option<RemovalOrder>)> {
        if let Some(under_way) = &mut self.under_way {
            under_way.reclaim = reclaim;
            return None;
        }
        let Some(Wanted { signal, what, bytes }) =
            wanted.map(|wanted| self.due(wanted, now)).filter(|wanted| !wanted.what.is_nothing())
        else {
            self.end(reclaim, now);
            return None;
        };
        let is_repeated = self.pauses(what).all(|pause| pause.is_quiet(now));
        let record = |number| DiskRecord::Order { number, signal, what, bytes, is_repeated, at: now };
        if !self.acts {
            self.end(reclaim, now);
            let least = self.pause;
            for pause in self.pauses(what) {
                pause.begin(least, now);
                pause.is_reported = true;
            }
            return Some((record(None), None));
        }
        self.number += 1;
        self.shown = self.unused(now).len();
        let (number, until) = (self.number, now.after(LASTS));
        let order = RemovalOrder { number, what, bytes: bytes.unwrap_or(Bytes(u64::MAX)), until };
        self.under_way = Some(UnderWay { order, reclaim, since: now, is_repeated, is_stopped: false });
        Some((record(Some(number)), Some(order)))
    }

    /// Takes a result in, and gives what is reported of it; nothing of one that is not of the order under way.
    pub(super) fn learn(&mut self, result: RemovalResult, now: MonotonicNs) -> Option<DiskRecord<'static>> {
        let under_way = self.under_way.filter(|under_way| under_way.order.number == result.number)?;
        self.under_way = None;
        self.end(under_way.reclaim, now);
        if !result.is_nothing() {
            self.freed = Some(now);
        }
        let RemovalOrder { what, .. } = under_way.order;
        let least = self.pause;
        if what.containers {
            let has_removed = result.containers > 0 || result.sandboxes > 0;
            settle(&mut self.containers, has_removed, false, least, now);
            if has_removed {
                // What these used is unused now.
                (self.images, self.unused) = (Pause::default(), None);
            }
        }
        if what.images {
            // The policy goes on for as long as it sees fewer each time, also where there are more than it can see.
            let most = if result.images > 0 && self.shown > 1 { self.shown - 1 } else { UNUSED.len() };
            self.unused = result.unused.and_then(|left| usize::try_from(left).ok()).map(|left| left.min(most));
            settle(&mut self.images, result.images > 0, result.unused == Some(0), least, now);
        }
        let took = now.since(under_way.since);
        Some(DiskRecord::Removed { result, took, is_repeated: under_way.is_repeated && result.is_nothing() })
    }

    /// Ends an order whose result does not come, and gives what is reported of that.
    pub(super) fn expire(&mut self, now: MonotonicNs) -> Option<DiskRecord<'static>> {
        let under_way = self.under_way.filter(|under_way| now.since(under_way.since) >= WAIT)?;
        self.learn(RemovalResult::failed(under_way.order.number, RemovalError::Unanswered), now)
    }

    /// Without what has its pause.
    fn due(&self, wanted: Wanted, now: MonotonicNs) -> Wanted {
        let containers = wanted.what.containers && self.containers.is_over(now);
        let images = wanted.what.images && self.images.is_over(now);
        Wanted { what: Reclaim { containers, images }, ..wanted }
    }

    fn pauses(&mut self, what: Reclaim) -> impl Iterator<Item = &mut Pause> {
        let containers = Some(&mut self.containers).filter(|_| what.containers);
        containers.into_iter().chain(Some(&mut self.images).filter(|_| what.images))
    }

    fn end(&mut self, order: u64, now: MonotonicNs) {
        self.ended = Some(Reclaimed { order, at: stats_time(now) });
    }
}

/// After an order for these, which removed some or not, and left none or more.
fn settle(pause: &mut Pause, has_removed: bool, is_none_left: bool, least: Duration, now: MonotonicNs) {
    if has_removed {
        *pause = Pause::default();
    }
    if !has_removed || is_none_left {
        pause.begin(least, now);
    }
    pause.is_reported = !has_removed;
}

#[cfg(test)]
mod tests;
