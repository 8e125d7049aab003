//! Which workload would be evicted first, and which cannot be.

use super::account::account;
use super::attribution::Baseline;
use super::left_behind::{self, LeftBehind};
use super::loops::Loops;
use super::openshift3;
use crate::eviction_policy::EvictionPolicy;
use crate::kubelet::{Amount, DiskLayout, Measured, Resource, Signal};
use crate::observation::{Observation, Terminating, Uid, Workload};
use crate::plan::{Attribution, Growth, Plan, Ranked, Verdict};
use core::cmp::{Ordering, Reverse};
use core::time::Duration;
use plimsoll_units::MonotonicNs;

/// What is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    /// What a signal measures.
    Signal(Signal),
    /// Swap: an eviction frees memory, wherever that is.
    Swap,
}

impl Short {
    pub(super) const fn resource(self) -> Resource {
        match self {
            Self::Signal(signal) => signal.resource(),
            Self::Swap => Resource::Memory,
        }
    }
}

/// What a workload uses, requests, and gives back. Absent if nothing is known of that.
#[derive(Clone, Copy)]
struct Share {
    usage: Amount,
    /// Absent where nothing can be requested.
    request: Option<Amount>,
    frees: Amount,
}

impl Share {
    fn of(workload: &Workload<'_>, short: Short, layout: DiskLayout) -> Option<Self> {
        let counted = |count: Option<u64>| count.map(Amount::counted);
        let all = |usage: Amount, request| Some(Self { usage, request, frees: usage });
        let disk = |signal| Measured::of(signal, layout);
        match short {
            Short::Swap => all(memory(workload)?, Some(workload.facts.memory_request)),
            Short::Signal(signal) => match signal.resource() {
                Resource::Memory => Some(Self {
                    usage: memory(workload)?,
                    request: Some(workload.facts.memory_request),
                    // What is swapped out takes none of the memory that is short.
                    frees: counted(workload.facts.stats?.working_set)?,
                }),
                Resource::EphemeralStorage if of_images(signal, layout) => {
                    all(counted(workload.own_images.bytes)?, None)
                }
                Resource::Inodes if of_images(signal, layout) => all(counted(workload.own_images.inodes)?, None),
                Resource::EphemeralStorage => {
                    let usage = disk(signal).usage(&workload.facts, &workload.facts.stats?, |usage| usage.bytes);
                    all(usage, Some(workload.facts.ephemeral_storage_request))
                }
                // Inodes cannot be requested, and bytes are not subtracted from them.
                Resource::Inodes => {
                    all(disk(signal).usage(&workload.facts, &workload.facts.stats?, |usage| usage.inodes), None)
                }
                Resource::Pids => all(counted(workload.facts.stats?.processes)?, None),
            },
        }
    }
}

/// Memory of a workload, wherever it is.
fn memory(workload: &Workload<'_>) -> Option<Amount> {
    let working_set = Amount::counted(workload.facts.stats?.working_set?);
    Some(working_set + workload.swapped.map_or(Amount::ZERO, |bytes| Amount::counted(bytes.0)))
}

/// Whether only images are on the disk in question.
const fn of_images(signal: Signal, layout: DiskLayout) -> bool {
    matches!(layout, DiskLayout::SplitImageFs) && matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree)
}

/// What the eviction of a workload gives back of what is short; nothing where no process is left in it.
fn frees(workload: &Workload<'_>, share: Share) -> Amount {
    if workload.is_empty { Amount::ZERO } else { share.frees }
}

/// For which terminating workloads a threshold waits.
#[derive(Clone, Copy)]
pub(super) enum Waits {
    /// A hard one for those that were killed.
    ForKilled,
    /// A soft one for those, too, whose grace is over by then.
    Until(MonotonicNs),
}

impl Waits {
    /// Whether what this one holds comes back in time.
    pub(super) fn for_one(self, terminating: Terminating) -> bool {
        let is_in_time = match self {
            Self::ForKilled => !terminating.is_graceful,
            Self::Until(latest) => terminating.until.is_none_or(|until| until <= latest),
        };
        is_in_time && !terminating.is_stuck
    }
}

/// What comes back of what is short from workloads that are terminating.
pub(super) fn coming(observation: &Observation<'_>, short: Short, layout: DiskLayout, waits: Waits) -> Amount {
    let in_scope = observation.workloads.iter().filter(|workload| workload.is_in(observation.scope));
    in_scope
        .filter(|workload| workload.terminating.is_some_and(|terminating| waits.for_one(terminating)))
        .filter_map(|workload| {
            let freed = frees(workload, Share::of(workload, short, layout)?);
            let at_most = workload.returns_at_most.filter(|_| short.resource() == Resource::Memory);
            Some(at_most.map_or(freed, |most| freed.min(Amount::counted(most.0))))
        })
        .sum()
}

/// What comes back from pods that are evicted for limits of their own.
pub(super) fn coming_by_limits(plan: &Plan, observation: &Observation<'_>, short: Short, layout: DiskLayout) -> Amount {
    let counted = plan.limited.iter().filter(|limited| limited.counts);
    let of = |workload: u32| Share::of(&observation.workloads[workload as usize], short, layout);
    counted.filter_map(|limited| of(limited.workload)).map(|share| share.frees).sum()
}

/// What is known of a workload before any is chosen.
fn first_verdict(workload: &Workload<'_>, share: Option<Share>) -> Verdict {
    match (workload.protection(), workload.terminating, share) {
        (Some(why), ..) => Verdict::Protected(why),
        (None, Some(terminating), _) if terminating.is_stuck => Verdict::Stuck,
        (None, Some(_), _) => Verdict::Terminating,
        // Also where it cannot be read: without a process its end gives nothing back.
        (None, None, _) if workload.is_empty => Verdict::NothingToFree,
        (None, None, None) => Verdict::NoStatistics,
        (None, None, Some(share)) if !share.frees.is_positive() => Verdict::NothingToFree,
        (None, None, Some(_)) => Verdict::NotNeeded,
    }
}

/// The first to be evicted is less: read before unread, of an owner over its request before within it, low priority
/// before high; over the request, of an owner that grew before the others; of one much over before little over.
fn order(one: &Ranked, other: &Ranked) -> Ordering {
    let key = |r: &Ranked| (!r.is_measured, !r.exceeds, r.priority, r.exceeds && !r.growth.is_large, Reverse(r.over));
    key(one).cmp(&key(other)).then_with(|| order_of_equals(one, other))
}

/// Of equal owners the younger is first, then the UID decides; an owner of several has no age. Of one owner's workloads
/// those are first that grew or may hold what its empty ones are charged with; of these the one that grew most, then the
/// largest. No two are ever equal.
pub(super) fn order_of_equals(one: &Ranked, other: &Ranked) -> Ordering {
    let owner = |r: &Ranked| match r.owner {
        None => (Reverse(r.started), r.uid),
        Some(id) => (Reverse(MonotonicNs(0)), Uid(id.0.into())),
    };
    let own = |r: &Ranked| (Reverse((r.grew, r.growth.own, r.usage, r.started)), r.uid, r.key, r.workload);
    owner(one).cmp(&owner(other)).then_with(|| own(one).cmp(&own(other)))
}

/// By what workloads are ranked.
#[derive(Clone, Copy)]
pub(super) struct By<'a> {
    pub(super) policy: EvictionPolicy,
    pub(super) short: Short,
    pub(super) layout: DiskLayout,
    /// Absent where nothing is remembered.
    pub(super) loops: Option<&'a Loops>,
    /// Absent where growth is not asked for.
    pub(super) baseline: Option<&'a Baseline>,
    /// [`Config::responsible_percent`](crate::Config::responsible_percent).
    pub(super) responsible_percent: u8,
    /// For which terminating workloads the threshold waits.
    pub(super) waits: Waits,
    /// For how long it waits for what their end gives back.
    pub(super) returns_within: Duration,
    pub(super) now: MonotonicNs,
}

/// Fills the plan's ranked list: all workloads of the scope, in order, with a first verdict. Gives what grew together, and
/// what of it is left behind.
pub(super) fn rank(observation: &Observation<'_>, by: By<'_>, plan: &mut Plan) -> (Attribution, LeftBehind) {
    plan.ranked.clear();
    let in_scope = (0_u32..).zip(observation.workloads).filter(|(_, workload)| workload.is_in(observation.scope));
    plan.ranked.extend(in_scope.map(|(index, workload)| row(index, workload, &by)));
    let grown = account(observation, &by, plan);
    for limited in &plan.limited {
        // Only the node's decisions are about limits, and all workloads are in its list, in their order.
        plan.ranked[limited.workload as usize].verdict = Verdict::OverLimit;
    }
    let order = match (by.short.resource(), by.policy) {
        (Resource::Memory, EvictionPolicy::OpenShift3) => openshift3::order,
        _ => order,
    };
    let left_behind = left_behind::count(observation, &by, order, plan);
    // Unstable sorting allocates nothing, and with no two equal it is as good as stable.
    plan.ranked.sort_unstable_by(order);
    (grown, left_behind)
}

/// A workload by itself, as if it were its own owner.
fn row(index: u32, workload: &Workload<'_>, by: &By<'_>) -> Ranked {
    let share = Share::of(workload, by.short, by.layout);
    let nothing = Share { usage: Amount::ZERO, request: None, frees: Amount::ZERO };
    let Share { usage, request, .. } = share.unwrap_or(nothing);
    let requested = request.unwrap_or_default();
    let own = by.baseline.zip(workload.working_set()).map(|(known, usage)| known.growth(workload.key, usage));
    Ranked {
        workload: index,
        key: workload.key,
        uid: workload.uid,
        owner: workload.owner.map(|owner| owner.id),
        qos: workload.class(),
        is_measured: share.is_some(),
        request,
        exceeds: usage > requested,
        priority: workload.facts.priority,
        usage,
        over: usage - requested,
        frees: share.map_or(Amount::ZERO, |share| frees(workload, share)),
        started: workload.started,
        growth: Growth { own, ..Growth::default() },
        grew: false,
        returns: by.loops.map_or(0, |loops| loops.returns(workload)),
        verdict: first_verdict(workload, share),
    }
}
