//! The one entry point, over two implementations: [`engine`](crate::engine) and [`kubelet`](crate::kubelet).

use crate::config::Config;
use crate::engine;
use crate::eviction_policy::EvictionPolicy;
use crate::kept::{Keep, KeepOf, Kept, KeptOf};
use crate::kubelet;
use crate::kubelet_policy;
use crate::observation::Observation;
use crate::plan::Plan;
use core::hash::{Hash as _, Hasher as _};
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};
use std::hash::DefaultHasher;

/// What [`decide`] remembers, for one configuration: a new one needs a new state.
#[derive(Clone, Debug)]
pub struct State(Of, MadeFor);

#[derive(Clone, Debug)]
enum Of {
    Engine(Box<engine::State>),
    Kubelet(Box<kubelet_policy::State>),
}

/// Stands for the configuration and the number of slots that a state was made for. A build whose `Debug` or hash gives
/// another one does not take the state: what is remembered by the place of a threshold must never be taken for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MadeFor(u64);

impl MadeFor {
    fn of(config: &Config, slots: usize) -> Self {
        let mut hasher = DefaultHasher::new();
        // Shares of a capacity are floating point, which has no hash. Their text is exact.
        (format!("{config:?}"), slots).hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl State {
    /// For `config`, up to `slots` workloads, and slots below that. Nothing allocates later.
    pub fn with_capacity(config: &Config, slots: usize) -> Self {
        let of = match config.eviction_policy {
            EvictionPolicy::Kubelet => Of::Kubelet(Box::new(kubelet_policy::State::with_capacity(config, slots))),
            EvictionPolicy::Plimsoll | EvictionPolicy::OpenShift3 => {
                Of::Engine(Box::new(engine::State::with_capacity(config, slots)))
            }
        };
        Self(of, MadeFor::of(config, slots))
    }

    /// Brings the storage for slots below `slots` in, as [`bring_in`](crate::room::bring_in) does, before there are workloads in them.
    pub fn bring_in(&mut self, slots: usize) {
        match &mut self.0 {
            Of::Engine(state) => state.bring_in(slots),
            Of::Kubelet(state) => state.bring_in(slots),
        }
    }

    /// What of it outlives this process, which decides by `config`. `has_taken`: with what was evicted lately, whose size
    /// depends on the limits a minute; all else takes 4 KiB at most.
    pub fn keep<'a>(&'a self, config: &'a Config, has_taken: bool) -> Keep<'a> {
        let of = match &self.0 {
            Of::Engine(state) => KeepOf::Engine(engine::Keep { state, config, has_taken }),
            Of::Kubelet(state) => KeepOf::Kubelet(state.keep(has_taken)),
        };
        Keep(self.1, of)
    }

    /// A new state that goes on at `now` with what another process of the same boot kept. A threshold that was crossed
    /// counts as crossed since then, and a time to come is now. `None` where that was kept for another configuration or for
    /// another number of slots.
    pub fn resume(kept: Kept, config: &Config, slots: usize, now: MonotonicNs) -> Option<Self> {
        let made_for = MadeFor::of(config, slots);
        let of = match (kept.1, config.eviction_policy) {
            _ if kept.0 != made_for => return None,
            (KeptOf::Engine(kept), EvictionPolicy::Plimsoll | EvictionPolicy::OpenShift3) => {
                Of::Engine(Box::new(engine::State::resumed(kept, config, slots, now)?))
            }
            (KeptOf::Kubelet(kept), EvictionPolicy::Kubelet) => {
                Of::Kubelet(Box::new(kubelet_policy::State::resumed(kept, config, slots, now)?))
            }
            (KeptOf::Engine(_) | KeptOf::Kubelet(_), _) => return None,
        };
        Some(Self(of, made_for))
    }

    /// Asks for the layout of the disks anew, which is else asked for once: the next observation that has one decides it.
    pub fn forget_layout(&mut self) {
        match &mut self.0 {
            Of::Engine(state) => state.layout = None,
            Of::Kubelet(state) => state.forget_layout(),
        }
    }

    /// The conditions of the node, as of the last decisions by `config` about it and about all pods.
    pub fn conditions(&self, config: &Config) -> kubelet::Conditions {
        match &self.0 {
            Of::Engine(state) => state.conditions(config),
            Of::Kubelet(state) => state.manager().conditions(),
        }
    }

    /// A threshold behind this condition of the node was last crossed then, as another process says that decided before: the
    /// transition period counts from there, unless this state has observed it later itself.
    pub fn take_observed(&mut self, condition: kubelet::Condition, at: MonotonicNs) {
        let last = match &mut self.0 {
            Of::Engine(state) => state.last_observed_mut(),
            Of::Kubelet(state) => state.manager_mut().last_observed_mut(),
        };
        let last = &mut last[condition as usize];
        *last = (*last).max(Some(at));
    }

    /// Takes in an observation whose workloads were not read, because nothing moves. Nothing is decided about it, but
    /// where memory is still plentiful, it counts as falling since then, and not since the last decision. Allocates
    /// nothing.
    pub fn rest(&mut self, config: &Config, observation: &Observation<'_>) {
        match &mut self.0 {
            Of::Engine(state) => engine::rest(config, state, observation),
            // It knows no growth.
            Of::Kubelet(_) => {}
        }
    }

    /// What the reference remembers, under the policy `kubelet`: to be held against the kubelet's own.
    pub fn of_kubelet(&self) -> Option<&kubelet::State> {
        match &self.0 {
            Of::Engine(_) => None,
            Of::Kubelet(state) => Some(state.manager()),
        }
    }
}

/// Decides what to do about `observation`, at `now`, and writes it into `plan`.
///
/// `state` remembers what the next decision needs. The caller reports victims as terminating from the next observation
/// on. One that is there and not terminating, or [refused](crate::Terminating::is_refused), was not killed, and does not
/// count for the limit of victims a minute. Reclaims are reported as [`Reclaimed`](crate::Reclaimed) when they have ended,
/// whatever came of them. Allocates nothing.
pub fn decide(config: &Config, state: &mut State, observation: &Observation<'_>, now: MonotonicNs, plan: &mut Plan) {
    match &mut state.0 {
        Of::Engine(state) => engine::decide(config, state, observation, now, plan),
        Of::Kubelet(state) => kubelet_policy::decide(config, state, observation, now, plan),
    }
}

/// Whether [`decide`] would act on memory or processes that the workloads of the observation do not account for:
/// - on memory, where at least [`Config::responsible_percent`] of what it fell by since it was last plentiful is in none;
/// - on processes, where the first victim has fewer of them than are missing, or than belong to no workload.
///
/// One that the caller does not know yet may have taken it: a caller that can look for such does so before it decides. The
/// policy `kubelet` knows no growth, and gives false. Allocates nothing.
pub fn is_unaccounted(config: &Config, state: &State, observation: &Observation<'_>, now: MonotonicNs) -> bool {
    match &state.0 {
        Of::Engine(state) => engine::is_unaccounted(config, state, observation, now),
        Of::Kubelet(_) => false,
    }
}

/// Ranks as [`decide`] would if memory were short now, for a caller that asks while it is not: which workload would be
/// evicted first, and which never.
pub fn ranking(config: &Config, observation: &Observation<'_>, plan: &mut Plan) {
    match config.eviction_policy {
        EvictionPolicy::Kubelet => kubelet_policy::ranking(observation, plan),
        EvictionPolicy::Plimsoll | EvictionPolicy::OpenShift3 => engine::ranking(config, observation, plan),
    }
}
