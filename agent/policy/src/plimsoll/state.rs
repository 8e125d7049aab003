//! What is remembered from turn to turn.

use super::config::Config;
use super::loops::Loops;
use super::observation::PodUid;
use super::plan::{ReclaimOrder, Stage, Why};
use crate::kubelet::{Condition, Conditions, DiskLayout, Readings, Signal};
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
}

/// Who was taken lately. Hard and soft lines each have their own, so that what a soft one took never stands in the way of
/// a hard one.
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
    pub(super) refaults: Option<u64>,
    /// The last clean-up for each signal, while a line on it is crossed.
    pub(super) asked: [Option<Asked>; Signal::ALL.len()],
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
            refaults: None,
            asked: [None; Signal::ALL.len()],
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
        stage: Stage,
        line: Why,
        unused_images: usize,
        at: MonotonicNs,
    ) -> ReclaimOrder {
        self.orders += 1;
        let order = ReclaimOrder { order: self.orders, stage, line };
        self.asked[signal as usize] = Some(Asked { order, at, unused_images });
        order
    }
}
