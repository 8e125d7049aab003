//! Who would go first, and who cannot.

use super::observation::Pod;
use super::plan::{Fate, Plan, Ranked};
use super::{config::MemoryOrder, loops::Loops};
use crate::kubelet::{Amount, DiskLayout, Measured, Resource, Signal};
use crate::openshift3;
use core::cmp::{Ordering, Reverse};

/// What is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    /// What a signal measures.
    Signal(Signal),
    /// Swap: whoever goes frees its memory, wherever that is.
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

/// What a pod uses, was promised, and gives back. Absent if nothing is known of that.
#[derive(Clone, Copy)]
struct Share {
    usage: Amount,
    /// Absent where nothing can be promised.
    request: Option<Amount>,
    frees: Amount,
}

impl Share {
    fn of(pod: &Pod<'_>, short: Short, layout: DiskLayout) -> Option<Self> {
        let counted = |count: Option<u64>| count.map(Amount::counted);
        let all = |usage: Amount, request| Some(Self { usage, request, frees: usage });
        let disk = |signal| Measured::of(signal, layout);
        match short {
            Short::Swap => all(memory(pod)?, Some(pod.facts.memory_request)),
            Short::Signal(signal) => match signal.resource() {
                Resource::Memory => Some(Self {
                    usage: memory(pod)?,
                    request: Some(pod.facts.memory_request),
                    // What is swapped out takes none of the memory that is short.
                    frees: counted(pod.facts.stats?.working_set)?,
                }),
                Resource::EphemeralStorage if of_images(signal, layout) => all(counted(pod.own_images.bytes)?, None),
                Resource::Inodes if of_images(signal, layout) => all(counted(pod.own_images.inodes)?, None),
                Resource::EphemeralStorage => {
                    let usage = disk(signal).usage(&pod.facts, &pod.facts.stats?, |usage| usage.bytes);
                    all(usage, Some(pod.facts.ephemeral_storage_request))
                }
                // Nobody was promised inodes, and bytes are not subtracted from them.
                Resource::Inodes => all(disk(signal).usage(&pod.facts, &pod.facts.stats?, |usage| usage.inodes), None),
                Resource::Pids => all(counted(pod.facts.stats?.processes)?, None),
            },
        }
    }
}

/// Memory of a pod, wherever it is.
fn memory(pod: &Pod<'_>) -> Option<Amount> {
    let working_set = Amount::counted(pod.facts.stats?.working_set?);
    Some(working_set + pod.swapped.map_or(Amount::ZERO, |bytes| Amount::counted(bytes.0)))
}

/// Whether only images are on the disk in question.
const fn of_images(signal: Signal, layout: DiskLayout) -> bool {
    matches!(layout, DiskLayout::SplitImageFs) && matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree)
}

/// What comes back of what is short from those who are going. A hard threshold does not wait for the grace of a soft
/// one.
pub(super) fn coming(pods: &[Pod<'_>], short: Short, layout: DiskLayout, is_soft: bool) -> Amount {
    pods.iter()
        .filter(|pod| pod.going.is_some_and(|going| !going.is_stuck && (is_soft || !going.is_gentle)))
        .filter_map(|pod| Share::of(pod, short, layout))
        .map(|share| share.frees)
        .sum()
}

/// What comes back from those who go for limits of their own.
pub(super) fn coming_by_limits(plan: &Plan, pods: &[Pod<'_>], short: Short, layout: DiskLayout) -> Amount {
    let counted = plan.limited.iter().filter(|limited| limited.counts);
    counted.filter_map(|limited| Share::of(&pods[limited.pod as usize], short, layout)).map(|share| share.frees).sum()
}

/// What is known of a pod before anybody is taken.
fn first_fate(pod: &Pod<'_>, share: Option<Share>) -> Fate {
    match (pod.facts.critical, pod.going, share) {
        (Some(why), ..) => Fate::Protected(why),
        (None, Some(going), _) if going.is_stuck => Fate::Stuck,
        (None, Some(_), _) => Fate::Going,
        (None, None, None) => Fate::NoStatistics,
        (None, None, Some(share)) if !share.frees.is_positive() => Fate::NothingToFree,
        (None, None, Some(_)) => Fate::NotNeeded,
    }
}

/// First to go is less: read before unread, over the request before within it, low priority before high, much over
/// before little over, young before old, and by UID for the rest, so that no two are ever equal.
fn order(one: &Ranked, other: &Ranked) -> Ordering {
    let key = |r: &Ranked| (!r.is_measured, !r.exceeds, r.priority, Reverse(r.over), Reverse(r.started), r.uid, r.pod);
    key(one).cmp(&key(other))
}

/// Fills the plan's ranked list: everybody, in order, with a first fate.
pub(super) fn rank(
    pods: &[Pod<'_>],
    short: Short,
    layout: DiskLayout,
    memory_order: MemoryOrder,
    loops: &Loops,
    plan: &mut Plan,
) {
    plan.ranked.clear();
    plan.ranked.extend((0_u32..).zip(pods).map(|(index, pod)| {
        let share = Share::of(pod, short, layout);
        let Share { usage, request, frees } =
            share.unwrap_or(Share { usage: Amount::ZERO, request: None, frees: Amount::ZERO });
        let promised = request.unwrap_or_default();
        Ranked {
            pod: index,
            uid: pod.uid,
            qos: pod.qos,
            is_measured: share.is_some(),
            request,
            exceeds: usage > promised,
            priority: pod.facts.priority,
            usage,
            over: usage - promised,
            frees,
            started: pod.started,
            returns: loops.returns(pod),
            fate: first_fate(pod, share),
        }
    }));
    for limited in &plan.limited {
        plan.ranked[limited.pod as usize].fate = Fate::OverLimit;
    }
    let order = match (short.resource(), memory_order) {
        (Resource::Memory, MemoryOrder::OpenShift3) => openshift3::order,
        _ => order,
    };
    // Unstable sorting allocates nothing, and with no two equal it is as good as stable.
    plan.ranked.sort_unstable_by(order);
}
