//! Disks of a trace through [`decide`]: the condition, and what would be removed. Pods are not in it: what they take of disks
//! is in no trace.

use crate::report::Turn;
use crate::trace::{DiskSample, Entry, Trace};
use core::iter::Peekable;
use core::time::Duration;
use plimsoll_config::Configuration;
use plimsoll_policy::kubelet::{DiskLayout, Readings};
use plimsoll_policy::{Config, Image, Observation, Plan, Reclaimed, Removal, State, decide};
use plimsoll_units::MonotonicNs;

/// What [`Turn::scope`] says of them.
pub(crate) const SCOPE: &str = "disks";

/// The disks of a trace, in their order.
pub(crate) struct Disks<'t, I: Iterator<Item = &'t DiskSample>> {
    samples: Peekable<I>,
    epoch_ns: Option<i64>,
    policy: Config,
    state: State,
    plan: Plan,
    images: [Image; Image::MOST_UNUSED],
    /// The end of the last reclaim that the recorded agent did not ask for: it ended at once, and brought nothing.
    ended: Option<Reclaimed>,
    /// Whether the condition held then.
    then: Option<bool>,
}

/// The samples of disks in a trace.
pub(crate) fn samples(trace: &Trace) -> impl Iterator<Item = &DiskSample> {
    trace.entries.iter().filter_map(|entry| match entry {
        Entry::Disks(sample) => Some(sample),
        Entry::Sample(_) | Entry::Reported(_) => None,
    })
}

impl<'t, I: Iterator<Item = &'t DiskSample>> Disks<'t, I> {
    /// Through this configuration.
    pub(crate) fn new(samples: I, epoch_ns: Option<i64>, configuration: &Configuration) -> Self {
        // As in `run`, where each reclaim is reported to have ended.
        let policy = Config { reclaim_patience: Duration::MAX, ..configuration.disk_policy() };
        Self {
            samples: samples.peekable(),
            epoch_ns,
            state: State::with_capacity(&policy, 0),
            plan: Plan::with_capacity(&policy, 0, 0),
            policy,
            images: [Image::UNUSED; Image::MOST_UNUSED],
            ended: None,
            then: None,
        }
    }

    /// Decides on all that were decided on by then.
    pub(crate) fn until(&mut self, time: MonotonicNs, each: &mut dyn FnMut(&Turn<'_>)) {
        while let Some(sample) = self.samples.next_if(|sample| sample.at_ns <= time) {
            self.turn(sample, each);
        }
    }

    fn turn(&mut self, sample: &DiskSample, each: &mut dyn FnMut(&Turn<'_>)) {
        let images = &self.images[..usize::from(sample.unused_images).min(Image::MOST_UNUSED)];
        let observation = Observation {
            taken: sample.at_ns,
            layout: Some(DiskLayout::Single),
            readings: Some(Readings::of(&sample.stats())),
            images,
            // Numbers count alike as long as the same is asked for.
            reclaimed: [self.ended, sample.ended()].into_iter().flatten().max_by_key(|ended| ended.order),
            ..Observation::default()
        };
        decide(&self.policy, &mut self.state, &observation, sample.at_ns, &mut self.plan);
        let order = self.plan.reclaim();
        if let Some(order) = order.filter(|order| sample.reclaim != Some(order.order)) {
            let at = crate::stats_time(sample.at_ns);
            self.ended = Some(Reclaimed { order: order.order, at });
        }
        let removal = order.and_then(|order| Removal::of(&self.policy, &self.plan, order, sample.layout));
        let has_changed = self.then.replace(sample.disk_pressure) != Some(sample.disk_pressure);
        let is_news = sample.reclaim.is_some() || has_changed;
        let said = is_news.then(|| format!("DiskPressure {}, {:?}", sample.disk_pressure, sample.outcome));
        each(&Turn {
            at: sample.at_ns,
            epoch_ns: self.epoch_ns,
            reported: said.as_deref(),
            names: &[],
            messages: &[],
            config: &self.policy,
            plan: &self.plan,
            slice: None,
            is_of_disks: true,
            removal,
        });
    }
}
