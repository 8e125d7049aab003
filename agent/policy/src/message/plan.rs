//! From what an eviction policy decided to what is said of each pod that is evicted.

use super::{Cause, Met, NodeLow, OverLimit, ThresholdText, Victim, binary};
use crate::config::Config;
use crate::eviction_policy::EvictionPolicy;
use crate::kubelet::{Amount, Limit, Reading, Readings, Resource};
use crate::plan::{Action, Case, Plan, ThresholdStatus, Why};
use core::fmt;

/// What stands in files and specifications and messages repeat. Decisions go by exact amounts and keep no texts.
pub trait MessageContext {
    /// Where this threshold of the configuration is.
    fn threshold(&self, threshold: u32) -> ThresholdText;
    /// This pod of the observation, with what it asks for of what is short.
    fn victim(&self, pod: u32, resource: Resource) -> Victim;
    /// The limit of its own that this pod of the observation is over.
    fn over(&self, pod: u32, limit: Limit) -> OverLimit;
}

/// What is said of a pod that is evicted.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The node is low on something.
    Low(NodeLow),
    /// The pod is over a limit of its own.
    Over(OverLimit),
}

impl Message {
    /// Of an eviction, in the kubelet's words whatever the policy. Nothing is said of reclaims, nor of a pod whose
    /// grace is cut short: it was said when it was asked to end.
    ///
    /// The kubelet names the first threshold about the resource of those that it hands on. Its manager hands on those
    /// that are met alone, of which this is the first: it acts on that one. Swap is no signal of the kubelet's: such a
    /// pod is evicted for memory, without a threshold.
    pub fn of(
        config: &Config,
        readings: &Readings,
        plan: &Plan,
        action: &Action,
        words: &impl MessageContext,
    ) -> Option<Self> {
        let Action::Evict { workload: pod, why, grace_seconds: _ } = *action else { return None };
        let (resource, met) = match why {
            Why::Limit(limit) => return Some(Self::Over(words.over(pod, limit))),
            Why::Swap => (Resource::Memory, None),
            Why::Threshold(index) => {
                let signal = config.thresholds_in(plan.scope).get(index as usize)?.signal;
                let status = plan.thresholds.iter().find(|status| status.why == why);
                let met = |reading| match status.filter(|_| config.eviction_policy != EvictionPolicy::Kubelet) {
                    None => Met { signal, threshold: words.threshold(index), reading },
                    Some(status) => {
                        let threshold = match words.threshold(index) {
                            // Of what it was really taken of: without the huge page pool.
                            ThresholdText::Fraction(_) => ThresholdText::Written(binary(whole(status.at)).to_string()),
                            written @ ThresholdText::Written(_) => written,
                        };
                        Met { signal, threshold, reading: below(status, reading) }
                    }
                };
                (signal.resource(), readings.in_scope(plan.scope).get(signal).map(met))
            }
        };
        Some(Self::Low(NodeLow::of(resource, met, &words.victim(pod, resource))))
    }

    /// The annotations of the event, by key. One about a limit has none.
    pub fn annotations(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Low(low) => low.annotations(),
            Self::Over(_) => Vec::new(),
        }
    }

    /// What the metrics count it by; absent for swap, which they do not know.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Low(low) => low.met.as_ref().map(|met| Cause::Signal(met.signal)),
            Self::Over(OverLimit::EmptyDir { .. }) => Some(Cause::EmptyDirLimit),
            Self::Over(OverLimit::Pod { .. }) => Some(Cause::PodLimit),
            Self::Over(OverLimit::Container { .. }) => Some(Cause::ContainerLimit),
        }
    }
}

impl fmt::Display for Message {
    /// With a space at its end, as the kubelet has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Low(low) => low.fmt(f),
            Self::Over(over) => over.fmt(f),
        }
    }
}

/// The kubelet's own figure where that is what is below the threshold; otherwise the one that is.
fn below(status: &ThresholdStatus, reading: Reading) -> Reading {
    if status.case != Case::MemAvailableOnly && Amount::whole(reading.available) < status.target {
        return reading;
    }
    Reading { available: whole(status.available), ..reading }
}

fn whole(amount: Amount) -> i64 {
    let whole = amount.rounded_up();
    i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::super::{Asked, MemoryUsage, Used, VictimUsage};
    use super::*;
    use crate::kubelet::{self, DiskLayout, NodeStats, Signal, Threshold};
    use crate::{Observation, Reclaimed, State, Swap, SwapThreshold, Workload, decide};
    use core::time::Duration;
    use plimsoll_units::{Bytes, MonotonicNs, Percentage, Quantity};

    /// One pod that asks for 10 of everything in its only container.
    struct OnePod(ThresholdText);

    impl MessageContext for OnePod {
        fn threshold(&self, _threshold: u32) -> ThresholdText {
            self.0.clone()
        }

        fn victim(&self, pod: u32, _resource: Resource) -> Victim {
            assert_eq!(pod, 0);
            let request = Quantity::decimal(10);
            let used = Used { name: "c".into(), working_set: Some(2048), root_fs: Some(2048), logs: Some(1) };
            Victim {
                name: "p".into(),
                request: None,
                containers: vec![Asked { name: "c".into(), request }],
                used: Some(VictimUsage {
                    memory: Some(MemoryUsage { working_set: Some(2048) }),
                    containers: vec![used],
                }),
            }
        }

        fn over(&self, pod: u32, limit: Limit) -> OverLimit {
            assert_eq!((pod, limit), (0, Limit::Pod));
            OverLimit::Pod { limit: "1Ki".into() }
        }
    }

    fn threshold(signal: Signal, amount: kubelet::ThresholdAmount) -> Threshold {
        let origin = kubelet::Origin::Configured;
        Threshold { signal, amount: Some(amount), grace: Duration::ZERO, min_reclaim: None, origin }
    }

    /// Less than a tenth of everything is left.
    fn node() -> NodeStats {
        let memory = kubelet::MemoryStats { available: Some(4096), working_set: Some(61440), time: None };
        let fs = kubelet::FsStats {
            available: Some(4096),
            capacity: Some(65536),
            inodes_free: Some(4000),
            inodes: Some(65536),
            time: None,
        };
        NodeStats {
            memory: Some(memory),
            pods: Some(memory),
            node_fs: Some(fs),
            image_fs: Some(fs),
            container_fs: Some(fs),
            pids: Some(kubelet::PidStats { max: Some(65536), running: Some(61440), time: None }),
        }
    }

    fn pod(storage_limit: Option<Amount>, check: impl FnOnce(&Workload<'_>)) {
        let used = kubelet::Usage { bytes: Some(2048), inodes: Some(2000) };
        let container = kubelet::ContainerStats { number: kubelet::Number(0), rootfs: used, logs: used };
        let stats = kubelet::PodStats {
            working_set: Some(2048),
            processes: Some(2000),
            ephemeral_storage: Some(2048),
            containers: &[container],
            volumes: &[],
        };
        let facts =
            kubelet::Pod { stats: Some(stats), ephemeral_storage_limit: storage_limit, ..kubelet::Pod::default() };
        check(&Workload { facts, ..Workload::default() });
    }

    /// What is said of the only pod, in the first turn that evicts it. Reclaims change nothing.
    fn by(config: &Config, pod: &Workload<'_>, words: &OnePod, more: &Observation<'_>) -> Message {
        let config = Config { evict_for_unattributed: true, ..config.clone() };
        let (mut state, mut plan) = (State::with_capacity(&config, 1), Plan::with_capacity(&config, 1, 0));
        let workloads = [*pod];
        let readings = Readings::of(&node());
        let mut observation = Observation {
            layout: Some(DiskLayout::Single),
            readings: Some(readings),
            dead_containers: Some(0),
            workloads: &workloads,
            ..*more
        };
        for turn in 1..4 {
            decide(&config, &mut state, &observation, MonotonicNs(turn), &mut plan);
            // Pages come back from swap.
            observation.swap = observation.swap.map(|swap| Swap { refaults: swap.refaults + turn, ..swap });
            observation.reclaimed =
                plan.reclaim().map(|order| Reclaimed { order: order.order, at: kubelet::StatsTime(0) });
            if plan.victims().next().is_some() {
                break;
            }
        }
        let reported = |action| Message::of(&config, &readings, &plan, action, words);
        plan.actions.iter().find_map(reported).unwrap_or_else(|| panic!("the pod is evicted: {plan:?}"))
    }

    #[test]
    fn all_policies_say_the_same_of_every_signal_and_limit() {
        let written = || (kubelet::ThresholdAmount::At(Amount::whole(5120)), ThresholdText::Written("5Ki".into()));
        let share = || {
            (
                kubelet::ThresholdAmount::Share(Percentage::of_one(0.125)),
                ThresholdText::Fraction(Percentage::of_one(0.125)),
            )
        };
        for (amount, text) in [written(), share()] {
            let words = OnePod(text);
            for signal in Signal::ALL {
                let threshold = threshold(signal, amount);
                let config =
                    |eviction_policy| Config { eviction_policy, thresholds: vec![threshold], ..Config::default() };
                for limit in [None, Some(Amount::whole(1024))] {
                    pod(limit, |pod| {
                        let said = |policy| by(&config(policy), pod, &words, &Observation::default());
                        let kubelet = said(EvictionPolicy::Kubelet);
                        let cause = if limit.is_some() { Cause::PodLimit } else { Cause::Signal(signal) };
                        for policy in EvictionPolicy::ALL {
                            let ours = said(policy);
                            assert_eq!(ours.to_string(), kubelet.to_string(), "{policy} {signal}");
                            assert_eq!(ours.annotations(), kubelet.annotations(), "{policy} {signal}");
                            assert_eq!(ours.cause(), Some(cause), "{policy}");
                        }
                    });
                }
            }
        }
    }

    #[test]
    fn the_figure_that_is_below_is_named_and_swap_names_no_threshold() {
        let words = OnePod(ThresholdText::Fraction(Percentage::of_one(0.125)));
        let memory = |amount| {
            let thresholds = vec![threshold(Signal::MemoryAvailable, amount)];
            Config { thresholds, ..Config::default() }
        };
        let reported = |config: &Config, more: &Observation<'_>| {
            let mut text = String::new();
            pod(None, |pod| text = by(config, pod, &words, more).to_string());
            let (figures, offending) = text.split_once("Container").expect("it is over its request");
            assert!(offending.starts_with(" c was using 2Ki, request is 10, has larger"), "{offending}");
            figures.to_owned()
        };
        let low = "The node was low on resource: memory. ";
        let mem_available = |bytes| Observation { mem_available: Some(Bytes(bytes)), ..Default::default() };
        // A thirty-second of it is 2Ki, and the kubelet's figure is 4Ki.
        let config = memory(kubelet::ThresholdAmount::Share(Percentage::of_one(0.031_25)));
        assert_eq!(reported(&config, &mem_available(1024)), format!("{low}Threshold quantity: 2Ki, available: 1Ki. "));
        let config = memory(kubelet::ThresholdAmount::Share(Percentage::of_one(0.125)));
        assert_eq!(reported(&config, &mem_available(1024)), format!("{low}Threshold quantity: 8Ki, available: 4Ki. "));
        // Huge pages are not available.
        let pool = Observation { huge_page_pool: Bytes(3072), ..Default::default() };
        let config = memory(kubelet::ThresholdAmount::Share(Percentage::of_one(0.031_25)));
        assert_eq!(reported(&config, &pool), format!("{low}Threshold quantity: 1952, available: 1Ki. "));
        let swap = Swap { total: Bytes(100), free: Bytes(1), refaults: 7 };
        let stall = crate::Stall { full: Duration::from_secs(1), window: Duration::from_secs(1) };
        let swapping = Observation { swap: Some(swap), stall: Some(stall), ..Observation::default() };
        let swap =
            SwapThreshold { free: kubelet::ThresholdAmount::Share(Percentage::of_one(0.5)), grace: Duration::ZERO };
        let config = Config { swap: Some(swap), thresholds: Vec::new(), ..Config::default() };
        assert_eq!(reported(&config, &swapping), low);
    }
}
