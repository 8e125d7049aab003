//! What is reclaimed on the node before anything is evicted.
//!
//! One thing after the other, each followed by a new observation: dead containers and their logs, then images, then
//! pods. The kubelet does both at once, removes every unused image, and takes a failed reading for a bad one.

use super::state::{Asked, InVain, ScopeState, ThresholdKind};
use crate::config::Config;
use crate::kubelet::{Amount, DiskLayout, Readings, Reclaim, Resource, Signal};
use crate::observation::{Image, Observation};
use crate::plan::{Case, Plan, Stage, ThresholdStatus};
use plimsoll_units::MonotonicNs;

/// What a crossed threshold asks for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Reclaiming did not help, or there is nothing to reclaim.
    Evict,
    /// Reclaim this.
    Reclaim(Stage),
    /// A reclaim is under way, or nothing was read since it ended.
    Await,
    /// What is missing comes back from workloads that are terminating.
    ComingBack,
    /// Cache is in the way, and no task suffers from it.
    LeaveCache,
}

/// What to do about a threshold on `signal` that is met.
pub(super) fn step(
    config: &Config,
    scope: &ScopeState,
    layout: DiskLayout,
    (signal, kind, status): (Signal, ThresholdKind, &ThresholdStatus),
    (readings, observation): (&Readings, &Observation<'_>),
    now: MonotonicNs,
) -> Step {
    let asked = scope.asked(signal, kind);
    // It ended, and something was read since.
    let is_seen = asked
        .and_then(|asked| asked.ended)
        .is_some_and(|ended| readings.get(signal).is_some_and(|reading| reading.time.is_none_or(|time| time > ended)));
    match (status.case, signal.resource()) {
        (Case::Neither, _) => Step::LeaveCache,
        (Case::KubeletOnly, _) => match asked {
            None => Step::Reclaim(Stage::Memory(status.missing())),
            Some(_) if is_seen && observation.stall.is_some_and(|stall| stall.is_at_least(config.stall_percent)) => {
                Step::Evict
            }
            Some(asked) if now.since(asked.at) >= config.reclaim_pause => {
                Step::Reclaim(Stage::Memory(status.missing()))
            }
            Some(_) if is_seen => Step::LeaveCache,
            Some(_) => Step::Await,
        },
        (Case::Both | Case::MemAvailableOnly, Resource::Memory | Resource::Pids) => Step::Evict,
        (Case::Both | Case::MemAvailableOnly, Resource::EphemeralStorage | Resource::Inodes) => {
            // Once it is known to have ended only newer figures count, however long they take.
            if asked.is_some_and(|asked| {
                !is_seen && (asked.ended.is_some() || now.since(asked.at) < config.reclaim_patience)
            }) {
                return Step::Await;
            }
            let asked = asked.filter(|asked| !begins_anew(config, asked, observation, now));
            next_stage(asked, config.eviction_policy.reclaims(signal, layout), observation)
                .map_or(Step::Evict, Step::Reclaim)
        }
    }
}

/// Whether all of it is tried again: nothing could be evicted after it, and since then there is more to reclaim, or
/// time went by. Never for as long as something is evicted: else what is reclaimed again and again would spare all.
fn begins_anew(config: &Config, asked: &Asked, observation: &Observation<'_>, now: MonotonicNs) -> bool {
    asked.in_vain.is_some_and(|InVain { at, dead_containers, unused_images }| {
        let is_more = observation.dead_containers > dead_containers || unused(observation.images) > unused_images;
        now > at && (is_more || now.since(at) >= config.reclaim_pause)
    })
}

/// What is reclaimed after what was. Images are gone through again as long as fewer of them are left each time.
fn next_stage(asked: Option<Asked>, reclaims: Reclaim, observation: &Observation<'_>) -> Option<Stage> {
    let unused = unused(observation.images);
    if asked.is_none() && reclaims.containers && observation.dead_containers != Some(0) {
        return Some(Stage::Containers);
    }
    let had = asked.filter(|asked| asked.order.stage == Stage::Images).map(|asked| asked.unused_images);
    (reclaims.images && unused > 0 && had.is_none_or(|had| unused < had)).then_some(Stage::Images)
}

/// How many images could be removed.
pub(super) fn unused(images: &[Image]) -> usize {
    images.iter().filter(|image| image.is_unused).count()
}

/// Chooses unused images, those first that were last used longest ago, until they make up for what is missing. After
/// one of unknown size another observation is due.
pub(super) fn choose_images(resource: Resource, missing: Amount, images: &[Image], plan: &mut Plan) {
    let room = plan.images.capacity();
    let unused = (0_u32..).zip(images).filter(|(_, image)| image.is_unused).map(|(index, _)| index);
    plan.images.extend(unused.take(room));
    plan.images.sort_unstable_by_key(|&index| (images[index as usize].last_used, index));
    let mut found = Amount::ZERO;
    let enough = plan.images.iter().position(|&index| {
        let usage = images[index as usize].usage;
        let frees = if resource == Resource::Inodes { usage.inodes } else { usage.bytes };
        found = found + frees.map_or(missing, Amount::counted);
        found >= missing
    });
    if let Some(last) = enough {
        plan.images.truncate(last + 1);
    }
}
