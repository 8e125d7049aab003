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

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Evicted {
    owner: OwnerUid,
    pod: Uid,
    at: MonotonicNs,
    /// How often it had returned at once before that.
    returns: u32,
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

    /// Remembers an eviction.
    pub(super) fn took(&mut self, pod: &Workload<'_>, at: MonotonicNs) {
        let Some(owner) = pod.daemon_set else { return };
        let evicted = Evicted { owner, pod: pod.uid, at, returns: self.returns(pod) };
        let place = self.0.iter().position(|known| known.owner == owner);
        if let Some(place) = place {
            self.0[place] = evicted;
        } else if self.0.len() < CAPACITY_LEFT {
            self.0.push(evicted);
        } else if let Some(oldest) = self.0.iter_mut().min_by_key(|known| known.at) {
            *oldest = evicted;
        }
    }

    /// The eviction after which this pod was started at once.
    fn evicted_before(&self, pod: &Workload<'_>) -> Option<&Evicted> {
        let owner = pod.daemon_set?;
        self.0
            .iter()
            .find(|known| known.owner == owner)
            .filter(|known| known.pod != pod.uid)
            .filter(|known| pod.started.after(START_ROUNDING) >= known.at && pod.started.since(known.at) <= AT_ONCE)
    }
}
