//! What is done about a container that memory.high throttles: its memory.high is raised, and where that does not help its
//! pod is evicted. Decides alone: no clock, no files, and nothing is sent here.
//!
//! A limit is raised by another process, through the container runtime, which is not trusted: that it was raised is what
//! the kernel says.

use core::time::Duration;
use std::collections::HashMap;

use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

/// A pod is evicted where one of its containers is throttled for so long without a break, and its memory.high was raised
/// so long ago. What began before the limit was raised is over by then: the kernel has a task wait for 2 s at most
/// (`MEMCG_MAX_HIGH_DELAY_JIFFIES`, mm/memcontrol.c), and 3 s without count as relief
/// ([`Throttle`](crate::Throttle)). It is the interval at which a kubelet looks at its pods, too
/// (`evictionMonitoringPeriod`).
pub const EVICTED_AFTER: Duration = Duration::from_secs(10);
/// A limit that was not raised so long after it was ordered is not going to be. The runtime may take 20 s to list
/// (`Limits::read` in agent/cri), and does not list for this.
pub const RAISED_WITHIN: Duration = Duration::from_secs(10);
/// Between two orders for one container. It doubles with each that was not carried out.
const PAUSE: Duration = Duration::from_secs(30);
const PAUSE_MOST: Duration = Duration::from_mins(5);
/// Where a pod was not evicted, for which that was due, it is due again so much later.
const SAID_AGAIN: Duration = Duration::from_mins(1);
/// Where a pod may be evicted for it, memory.high is raised by half of what it is below the limit, so that a container that
/// goes on growing is throttled there once more, before the kernel's OOM killer selects one of its processes. It is not
/// raised where no more than this part of the limit is between them.
const LEFT_FOR_EVICTION: u64 = 64;

/// What is done at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReliefMode {
    /// Nothing.
    Report,
    /// memory.high is raised.
    Relax,
    /// Where that does not help, the pod is evicted.
    Evict,
}

/// A container that is throttled, as the kernel has it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// Its memory.high; absent for none, or where it could not be read.
    pub high: Option<Bytes>,
    /// The least memory.max of it, its pod, and the cgroups around that; absent where none has one.
    pub limit: Option<Bytes>,
}

/// What is due for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relief {
    /// Have its memory.high raised from this to that.
    Raise(Bytes, Bytes),
    /// It was raised, to this, so long after that was ordered.
    Raised(Bytes, Duration),
    /// It was not raised in time.
    NotRaised,
    /// Evict its pod: it is throttled for so long.
    Evict(Duration),
}

/// What was done for one container.
#[derive(Clone, Copy, Debug)]
struct Done {
    /// It is throttled since.
    since: MonotonicNs,
    /// It was looked at.
    seen: MonotonicNs,
    /// An order that is on its way: since when, and what memory.high is to be.
    ordered: Option<(MonotonicNs, Bytes)>,
    /// No order before.
    next: MonotonicNs,
    pause: Duration,
    /// It was seen to be raised, or to be as high as it may be: when, and what it was.
    raised: Option<(MonotonicNs, Bytes)>,
    /// That the pod is to be evicted was said then.
    said: Option<MonotonicNs>,
}

impl Done {
    const fn new(now: MonotonicNs) -> Self {
        Self { since: now, seen: now, ordered: None, next: now, pause: PAUSE, raised: None, said: None }
    }
}

impl Done {
    /// What came of an order, if anything did.
    fn answer(&mut self, at: MonotonicNs, to: Bytes, high: Bytes, now: MonotonicNs) -> Option<Relief> {
        if high >= to {
            (self.ordered, self.raised) = (None, Some((now, high)));
            return Some(Relief::Raised(high, now.since(at)));
        }
        if now.since(at) < RAISED_WITHIN {
            return None;
        }
        (self.ordered, self.next) = (None, now.after(self.pause));
        self.pause = self.pause.saturating_mul(2).min(PAUSE_MOST);
        Some(Relief::NotRaised)
    }

    /// Whether its pod is to be evicted. That it is said is remembered.
    fn is_in_vain(&mut self, now: MonotonicNs) -> bool {
        let is_long = |at: MonotonicNs| now.since(at) >= EVICTED_AFTER;
        let was_said = self.said.is_some_and(|at| now.since(at) < SAID_AGAIN);
        let is_in_vain = is_long(self.since) && self.raised.is_some_and(|(at, _)| is_long(at)) && !was_said;
        if is_in_vain {
            self.said = Some(now);
        }
        is_in_vain
    }
}

/// All that are throttled.
#[derive(Debug)]
pub struct Reliefs {
    mode: ReliefMode,
    /// In bytes.
    page: u64,
    known: HashMap<CgroupId, Done>,
}

impl Reliefs {
    /// `page`: the size of the kernel's pages, to which it rounds limits down.
    pub fn new(mode: ReliefMode, page: u64) -> Self {
        Self { mode, page: page.max(1), known: HashMap::new() }
    }

    /// What is done at most.
    pub const fn mode(&self) -> ReliefMode {
        self.mode
    }

    /// To what it is to be raised; `None` where it is as high as it may be.
    fn target(&self, high: Bytes, limit: Bytes) -> Option<Bytes> {
        let between = limit.saturating_sub(high);
        let target = match self.mode {
            ReliefMode::Report => return None,
            ReliefMode::Relax => limit,
            ReliefMode::Evict if between.0 <= limit.0 / LEFT_FOR_EVICTION => return None,
            ReliefMode::Evict => Bytes(high.0 + between.0 / 2),
        };
        Some(Bytes(target.0 / self.page * self.page)).filter(|target| *target > high)
    }

    /// What is due for a container that is throttled at `now`. `may_raise`: there is room for what it may take then.
    pub fn look(&mut self, id: CgroupId, is: Throttled, may_raise: bool, now: MonotonicNs) -> Option<Relief> {
        // Without a memory.high of its own it is throttled no more; without a limit there is nothing to raise it to.
        let (high, limit) = (is.high?, is.limit?);
        if self.mode == ReliefMode::Report {
            return None;
        }
        let target = self.target(high, limit);
        let evicts = self.mode == ReliefMode::Evict;
        let done = self.known.entry(id).or_insert(Done::new(now));
        done.seen = now;
        if let Some((at, to)) = done.ordered {
            return done.answer(at, to, high, now);
        }
        // It was lowered again.
        done.raised.take_if(|(_, then)| high < *then);
        match (done.raised, target) {
            (None, Some(to)) if may_raise && now >= done.next => {
                done.ordered = Some((now, to));
                return Some(Relief::Raise(high, to));
            }
            (None, Some(_)) => return None,
            (None, None) => done.raised = Some((now, high)),
            (Some(_), _) => {}
        }
        Some(Relief::Evict(now.since(done.since))).filter(|_| evicts && done.is_in_vain(now))
    }

    /// What was ordered is not on its way: this agent does not act, so that it is only said what it would do. The next
    /// order is after a pause.
    pub fn only_said(&mut self, id: CgroupId, now: MonotonicNs) {
        if let Some(done) = self.known.get_mut(&id) {
            done.ordered = None;
            done.next = now.after(PAUSE_MOST);
        }
    }

    /// Forgets those that were not looked at since `then`: they are throttled no more, or gone.
    pub fn forget_before(&mut self, then: MonotonicNs) {
        self.known.retain(|_, done| done.seen >= then);
    }
}

#[cfg(test)]
mod tests;
