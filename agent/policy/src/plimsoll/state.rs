//! What is remembered from turn to turn.

use super::config::Config;
use super::loops::Loops;
use super::observation::{PodUid, Reclaimed};
use super::plan::{ReclaimOrder, Stage, Why};
use crate::kubelet::{Condition, Conditions, DiskLayout, Readings, Signal, StatsTime};
use crate::state::Victims;
use plimsoll_units::MonotonicNs;

/// One line's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    /// Below without a break since then.
    pub(super) since: Option<MonotonicNs>,
    /// It was met and is not resolved: its minimum reclaim counts.
    pub(super) is_latched: bool,
}

/// A clean-up that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// What.
    pub(super) order: ReclaimOrder,
    /// When.
    pub(super) at: MonotonicNs,
    /// How many unused images there were then.
    pub(super) unused_images: usize,
    /// When it ended, or the first later one that was heard of; absent until then.
    pub(super) ended: Option<StatsTime>,
    /// It did not help, and then nobody could go.
    pub(super) in_vain: Option<InVain>,
}

/// What there was to clean up when nobody could go.
#[derive(Clone, Copy, Debug)]
pub(super) struct InVain {
    pub(super) at: MonotonicNs,
    pub(super) dead_containers: Option<u32>,
    pub(super) unused_images: usize,
}

/// Who was taken lately. Hard and soft thresholds each have their own, so that what a soft one took never stands in the
/// way of a hard one.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) victims: Victims,
    pub(super) loops: Loops,
}

impl Taken {
    fn new(a_minute: u32) -> Self {
        Self { victims: Victims::new(a_minute), loops: Loops::with_capacity() }
    }
}

/// What [`decide`](super::decide()) remembers, for one configuration. Sized when it is made.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) layout: Option<DiskLayout>,
    /// By threshold; swap last.
    pub(super) watched: Vec<Watched>,
    /// When a line behind each condition was last crossed.
    pub(super) last_observed: [Option<MonotonicNs>; Condition::ALL.len()],
    pub(super) conditions: Conditions,
    /// The last turn's.
    pub(super) last: Readings,
    pub(super) last_mem_available: Option<StatsTime>,
    pub(super) refaults: Option<u64>,
    /// The last clean-up for each signal, while a threshold on it is crossed; for hard thresholds, then for soft ones.
    /// What is asked for a hard one serves the soft ones too, and never the other way.
    asked: [[Option<Asked>; Signal::ALL.len()]; 2],
    pub(super) orders: u64,
    pub(super) hard: Taken,
    pub(super) soft: Taken,
    /// Who was to go last turn for a limit of its own.
    pub(super) over_limits: Vec<PodUid>,
}

impl State {
    /// A state for a configuration, which needs a new one when it changes, and for up to so many pods, as the plan.
    /// Nothing allocates later.
    pub fn with_capacity(config: &Config, pods: usize) -> Self {
        Self {
            layout: None,
            watched: vec![Watched::default(); config.thresholds.len() + 1],
            last_observed: [None; Condition::ALL.len()],
            conditions: Conditions::default(),
            last: Readings::default(),
            last_mem_available: None,
            refaults: None,
            asked: [[None; Signal::ALL.len()]; 2],
            orders: 0,
            hard: Taken::new(config.hard_victims_per_minute),
            soft: Taken::new(config.soft_victims_per_minute),
            over_limits: Vec::with_capacity(pods),
        }
    }

    /// Conditions to report.
    pub const fn conditions(&self) -> Conditions {
        self.conditions
    }

    pub(super) const fn taken(&mut self, is_soft: bool) -> &mut Taken {
        if is_soft { &mut self.soft } else { &mut self.hard }
    }

    /// Numbers a clean-up and remembers it.
    pub(super) fn ask(
        &mut self,
        signal: Signal,
        is_soft: bool,
        stage: Stage,
        line: Why,
        unused_images: usize,
        at: MonotonicNs,
    ) -> ReclaimOrder {
        self.orders += 1;
        let order = ReclaimOrder { order: self.orders, stage, line };
        for asked in &mut self.asked[usize::from(is_soft)..] {
            asked[signal as usize] = Some(Asked { order, at, unused_images, ended: None, in_vain: None });
        }
        order
    }

    /// The last clean-up for lines of this kind on a signal.
    pub(super) const fn asked(&self, signal: Signal, is_soft: bool) -> Option<Asked> {
        self.asked[is_soft as usize][signal as usize]
    }

    /// Forgets it. Another is asked for before anybody goes.
    pub(super) const fn forget(&mut self, signal: Signal, is_soft: bool) {
        self.asked[is_soft as usize][signal as usize] = None;
    }

    /// Remembers that nobody could go after it, and gives when that was first so.
    pub(super) fn was_in_vain(&mut self, signal: Signal, is_soft: bool, now: InVain) -> Option<MonotonicNs> {
        let asked = self.asked[usize::from(is_soft)][signal as usize].as_mut()?;
        Some(asked.in_vain.get_or_insert(now).at)
    }

    /// Remembers when clean-ups ended: of a later one nothing can be told of those before.
    pub(super) fn hear(&mut self, reclaimed: Option<Reclaimed>) {
        for asked in self.asked.iter_mut().flatten().flatten() {
            if asked.ended.is_none() && asked.order.has_ended(reclaimed) {
                asked.ended = reclaimed.map(|reclaimed| reclaimed.at);
            }
        }
    }
}
