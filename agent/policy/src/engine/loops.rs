//! Pods that return at once after they were evicted and are over again.
//!
//! A `DaemonSet` tolerates the node's pressure and starts its pod anew within seconds. If that takes the memory again,
//! evicting goes round in a circle: a failed pod each time, and nothing gained. Such a pod is named, and left alone for
//! a pause that doubles each time.

use crate::config::Config;
use crate::observation::{OwnerUid, Uid, Workload};
use crate::room::bring_in;
use core::time::Duration;
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

/// So soon after its eviction a pod has returned at once.
const AT_ONCE: Duration = Duration::from_mins(1);
/// The API has starts in whole seconds, rounded down, and a `DaemonSet` needs far less than one to start anew: what
/// seems to have been started so long before the eviction was started after it.
const START_ROUNDING: Duration = Duration::from_secs(1);
/// So many owners are remembered; of more, those evicted longest ago are forgotten.
const CAPACITY_LEFT: usize = 256;
/// Doubled more often than this, any pause is beyond all bounds.
const MOST_DOUBLINGS: u32 = 16;

/// An eviction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Eviction {
    pod: Uid,
    at: MonotonicNs,
    /// How often it had returned at once before that.
    returns: u32,
}

/// The last eviction of an owner's pods.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Evicted {
    owner: OwnerUid,
    last: Eviction,
    #[serde(skip)]
    before: Before,
}

/// What was remembered of an owner before its last eviction, which counts again where that is not done after all.
#[derive(Clone, Copy, Debug, Default)]
enum Before {
    /// Another process knew.
    #[default]
    Unknown,
    Nothing,
    Eviction(Eviction),
}

/// Pods that were evicted lately, by owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Loops(Vec<Evicted>);

impl Loops {
    pub(super) fn with_capacity() -> Self {
        Self(Vec::with_capacity(CAPACITY_LEFT))
    }

    /// Brings in what it takes.
    pub(super) fn bring_in(&mut self) {
        bring_in(&mut self.0, CAPACITY_LEFT);
    }

    /// Has all the room again that it was made with.
    pub(super) fn reserve(&mut self) {
        self.0.truncate(CAPACITY_LEFT);
        self.0.reserve_exact(CAPACITY_LEFT - self.0.len());
    }

    /// How often in a row this pod's like returned at once, this time included.
    pub(super) fn returns(&self, pod: &Workload<'_>) -> u32 {
        self.evicted_before(pod).map_or(0, |before| before.returns + 1)
    }

    /// Until when a pod that is over again is left alone.
    pub(super) fn left_alone_until(&self, pod: &Workload<'_>, config: &Config) -> Option<MonotonicNs> {
        let before = self.evicted_before(pod)?;
        let pause = config.loop_pause.saturating_mul(1 << before.returns.min(MOST_DOUBLINGS));
        Some(before.at.after(pause.min(config.loop_pause_most)))
    }

    /// Remembers an eviction that is planned. Where one of the same pod was planned before, that was not carried out: the pod
    /// has not returned since.
    pub(super) fn took(&mut self, pod: &Workload<'_>, at: MonotonicNs) {
        let Some(owner) = pod.daemon_set else { return };
        let returns = self.returns(pod);
        let last = Eviction { pod: pod.uid, at, returns };
        if let Some(known) = self.0.iter_mut().find(|known| known.owner == owner) {
            if known.last.pod == pod.uid {
                known.last.at = at;
            } else {
                *known = Evicted { owner, last, before: Before::Eviction(known.last) };
            }
            return;
        }
        let evicted = Evicted { owner, last, before: Before::Nothing };
        if self.0.len() < CAPACITY_LEFT {
            self.0.push(evicted);
        } else if let Some(oldest) = self.0.iter_mut().min_by_key(|known| known.last.at) {
            *oldest = evicted;
        }
    }

    /// This pod, which was to be evicted, was not.
    pub(super) fn not_taken(&mut self, pod: Uid) {
        let Some(place) = self.0.iter().position(|known| known.last.pod == pod) else { return };
        let Evicted { owner, before, .. } = self.0[place];
        match before {
            Before::Unknown => {}
            Before::Nothing => _ = self.0.swap_remove(place),
            Before::Eviction(last) => self.0[place] = Evicted { owner, last, before: Before::Unknown },
        }
    }

    /// The eviction after which this pod was started at once.
    fn evicted_before(&self, pod: &Workload<'_>) -> Option<&Eviction> {
        let owner = pod.daemon_set?;
        self.0
            .iter()
            .find(|known| known.owner == owner)
            .map(|known| &known.last)
            .filter(|last| last.pod != pod.uid)
            .filter(|last| pod.started.after(START_ROUNDING) >= last.at && pod.started.since(last.at) <= AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> MonotonicNs {
        MonotonicNs(seconds * 1_000_000_000)
    }

    /// A pod of the one `DaemonSet`.
    fn pod(uid: u128, started: u64) -> Workload<'static> {
        Workload { uid: Uid(uid), daemon_set: Some(OwnerUid(9)), started: at(started), ..Workload::default() }
    }

    /// The second pod returned once, and is to be evicted at 30.
    fn returned_once() -> Loops {
        let mut loops = Loops::with_capacity();
        loops.took(&pod(1, 1), at(10));
        loops.took(&pod(2, 11), at(30));
        loops
    }

    /// How often a pod returned, and until when it is left alone.
    fn of(loops: &Loops, pod: &Workload<'_>) -> (u32, Option<MonotonicNs>) {
        (loops.returns(pod), loops.left_alone_until(pod, &Config::default()))
    }

    #[test]
    fn a_pod_that_is_to_be_evicted_again_has_returned_as_often_as_before() {
        let mut loops = returned_once();
        assert_eq!(of(&loops, &pod(3, 31)), (2, Some(at(50))));
        loops.took(&pod(2, 11), at(40));
        assert_eq!(of(&loops, &pod(3, 41)), (2, Some(at(60))), "its pause doubles as it would have");
    }

    #[test]
    fn what_was_not_evicted_leaves_what_was_remembered_before() {
        for again in [None, Some(at(40))] {
            let mut loops = returned_once();
            if let Some(at) = again {
                loops.took(&pod(2, 11), at);
            }
            loops.not_taken(Uid(2));
            assert_eq!(of(&loops, &pod(2, 11)), (1, Some(at(20))), "{again:?}");
            assert_eq!(of(&loops, &pod(3, 41)).0, 1, "after the first one: {again:?}");
            loops.took(&pod(2, 11), at(50));
            assert_eq!(of(&loops, &pod(3, 51)), (2, Some(at(70))), "{again:?}");
        }
        let mut loops = Loops::with_capacity();
        loops.took(&pod(1, 1), at(10));
        loops.not_taken(Uid(1));
        assert_eq!(of(&loops, &pod(2, 11)), (0, None), "none was evicted");
    }

    #[test]
    fn what_another_process_was_to_evict_is_remembered_where_it_was_not() {
        let mut room = [0; 64];
        let kept = postcard::to_slice(&returned_once(), &mut room).expect("there is room");
        let mut loops: Loops = postcard::from_bytes(kept).expect("it can be read");
        loops.not_taken(Uid(2));
        assert_eq!(of(&loops, &pod(3, 31)), (2, Some(at(50))));
    }
}
