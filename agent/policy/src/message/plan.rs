//! From what an eviction policy decided to what is said of each pod that goes.

use super::{Binary, Cause, Line, Met, NodeLow, OverLimit, Victim};
use crate::kubelet::{self, Amount, Limit, Reading, Readings, Resource};
use crate::plan::Case;
use crate::plimsoll;
use core::fmt;

/// What stands in files and specifications and messages repeat. Decisions go by exact amounts and keep no texts.
pub trait MessageContext {
    /// Where this threshold of the configuration is.
    fn line(&self, threshold: u32) -> Line;
    /// This pod of the observation, with what it asks for of what is short.
    fn victim(&self, pod: u32, resource: Resource) -> Victim;
    /// The limit of its own that this pod of the observation is over.
    fn over(&self, pod: u32, limit: Limit) -> OverLimit;
}

/// What is said of a pod that goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The node is low on something.
    Low(NodeLow),
    /// The pod is over a limit of its own.
    Over(OverLimit),
}

impl Message {
    /// Of an eviction by the eviction policy `kubelet`.
    pub fn of_kubelet(
        config: &kubelet::Config,
        readings: &Readings,
        eviction: &kubelet::Eviction,
        words: &impl MessageContext,
    ) -> Self {
        match eviction.why {
            kubelet::Why::Threshold(index) => {
                let signal = config.thresholds.get(index as usize).map(|threshold| threshold.signal);
                let resource = signal.map_or(Resource::Memory, kubelet::Signal::resource);
                // The kubelet names the first about the resource of those that it hands on. Its manager hands on those
                // that are met alone, of which this is the first: it acts on that one.
                let met = signal
                    .and_then(|signal| Some(Met { signal, line: words.line(index), reading: readings.get(signal)? }));
                Self::Low(NodeLow::of(resource, met, &words.victim(eviction.pod, resource)))
            }
            kubelet::Why::Limit(limit) => Self::Over(words.over(eviction.pod, limit)),
        }
    }

    /// Of an eviction by `plimsoll` or `openshift3`, in the kubelet's words. Nothing is said of clean-ups, nor of a pod
    /// that is hastened: it was said when it was asked to end.
    ///
    /// Swap is no signal of the kubelet's: such a pod goes for memory, without a threshold.
    pub fn of_plimsoll(
        config: &plimsoll::Config,
        readings: &Readings,
        plan: &plimsoll::Plan,
        action: &plimsoll::Action,
        words: &impl MessageContext,
    ) -> Option<Self> {
        let plimsoll::Action::Evict { pod, why, grace_seconds: _ } = *action else { return None };
        let (resource, met) = match why {
            plimsoll::Why::Limit(limit) => return Some(Self::Over(words.over(pod, limit))),
            plimsoll::Why::Swap => (Resource::Memory, None),
            plimsoll::Why::Threshold(index) => {
                let signal = config.thresholds.get(index as usize)?.signal;
                let judged = plan.judged.iter().find(|judged| judged.line == why);
                let met = judged.zip(readings.get(signal)).map(|(judged, reading)| {
                    let line = match words.line(index) {
                        // Of what it was really taken of: without the huge page pool.
                        Line::Fraction(_) => Line::Written(Binary(whole(judged.at)).to_string()),
                        written @ Line::Written(_) => written,
                    };
                    Met { signal, line, reading: below(judged, reading) }
                });
                (signal.resource(), met)
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
fn below(judged: &plimsoll::Judged, reading: Reading) -> Reading {
    if judged.case != Case::MemAvailableOnly && Amount::whole(reading.available) < judged.target {
        return reading;
    }
    Reading { available: whole(judged.target - judged.missing), ..reading }
}

fn whole(amount: Amount) -> i64 {
    let whole = amount.rounded_up();
    i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::super::{Asked, Used, VictimUsage, Written};
    use super::*;
    use crate::kubelet::{DiskLayout, NodeStats, Signal, Threshold};
    use core::time::Duration;
    use plimsoll_units::{Bytes, MonotonicNs};

    /// One pod that asks for 10 of everything in its only container.
    struct OnePod(Line);

    impl MessageContext for OnePod {
        fn line(&self, _threshold: u32) -> Line {
            self.0.clone()
        }

        fn victim(&self, pod: u32, _resource: Resource) -> Victim {
            assert_eq!(pod, 0);
            let request = Written { amount: Amount::whole(10), text: "10".into() };
            let used = Used { name: "c".into(), working_set: Some(2048), root_fs: Some(2048), logs: Some(1) };
            Victim {
                name: "p".into(),
                request: None,
                containers: vec![Asked { name: "c".into(), request }],
                used: Some(VictimUsage { working_set: Some(2048), containers: vec![used] }),
            }
        }

        fn over(&self, pod: u32, limit: Limit) -> OverLimit {
            assert_eq!((pod, limit), (0, Limit::Pod));
            OverLimit::Pod { limit: "1Ki".into() }
        }
    }

    fn threshold(signal: Signal, line: kubelet::Line) -> Threshold {
        let origin = kubelet::Origin::Configured;
        Threshold { signal, line: Some(line), grace: Duration::ZERO, min_reclaim: None, origin }
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

    fn pod(storage_limit: Option<Amount>, look: impl FnOnce(&plimsoll::Pod<'_>)) {
        let used = kubelet::Usage { bytes: Some(2048), inodes: Some(20) };
        let container = kubelet::ContainerStats { name: "c", rootfs: used, logs: used };
        let stats = kubelet::PodStats {
            working_set: Some(2048),
            processes: Some(20),
            ephemeral_storage: Some(2048),
            containers: &[container],
            volumes: &[],
        };
        let facts =
            kubelet::Pod { stats: Some(stats), ephemeral_storage_limit: storage_limit, ..kubelet::Pod::default() };
        look(&plimsoll::Pod { facts, ..plimsoll::Pod::default() });
    }

    fn by_kubelet(threshold: Threshold, pod: &plimsoll::Pod<'_>, words: &OnePod) -> Message {
        let config = kubelet::Config {
            thresholds: vec![threshold],
            local_storage_isolation: true,
            ..kubelet::Config::default()
        };
        let (mut state, mut plan) = (kubelet::State::new(&config), kubelet::Plan::with_capacity(1));
        let pods = [pod.facts];
        let observation = kubelet::Observation { layout: Some(DiskLayout::Single), node: Some(node()), pods: &pods };
        kubelet::decide(&config, &mut state, &observation, MonotonicNs(1), &mut plan);
        kubelet::after_reclaim(&config, &state, &observation, None, &mut plan);
        Message::of_kubelet(&config, &Readings::of(&node()), &plan.evictions[0], words)
    }

    fn by_plimsoll(
        config: &plimsoll::Config,
        pod: &plimsoll::Pod<'_>,
        words: &OnePod,
        more: &plimsoll::Observation<'_>,
    ) -> Message {
        let (mut state, mut plan) =
            (plimsoll::State::with_capacity(config, 1), plimsoll::Plan::with_capacity(config, 1, 0));
        let pods = [*pod];
        let mut observation = plimsoll::Observation {
            layout: Some(DiskLayout::Single),
            node: Some(node()),
            dead_containers: Some(0),
            pods: &pods,
            ..*more
        };
        for turn in 1..3 {
            plimsoll::decide(config, &mut state, &observation, MonotonicNs(turn), &mut plan);
            // Pages come back from swap.
            observation.swap = observation.swap.map(|swap| plimsoll::Swap { refaults: swap.refaults + turn, ..swap });
            if !plan.actions.is_empty() {
                break;
            }
        }
        let reported = |action| Message::of_plimsoll(config, &Readings::of(&node()), &plan, action, words);
        plan.actions.iter().find_map(reported).unwrap_or_else(|| panic!("somebody goes: {plan:?}"))
    }

    #[test]
    fn both_rule_books_say_the_same_of_every_signal_and_limit() {
        let written = || (kubelet::Line::At(Amount::whole(5120)), Line::Written("5Ki".into()));
        let share = || (kubelet::Line::Share(0.125), Line::Fraction(0.125));
        for (line, text) in [written(), share()] {
            let words = OnePod(text);
            for signal in Signal::ALL {
                let threshold = threshold(signal, line);
                let config = plimsoll::Config { thresholds: vec![threshold], ..plimsoll::Config::default() };
                for limit in [None, Some(Amount::whole(1024))] {
                    pod(limit, |pod| {
                        let kubelet = by_kubelet(threshold, pod, &words);
                        let plimsoll = by_plimsoll(&config, pod, &words, &plimsoll::Observation::default());
                        assert_eq!(plimsoll.to_string(), kubelet.to_string(), "{signal}");
                        assert_eq!(plimsoll.annotations(), kubelet.annotations(), "{signal}");
                        let cause = if limit.is_some() { Cause::PodLimit } else { Cause::Signal(signal) };
                        assert_eq!((plimsoll.cause(), kubelet.cause()), (Some(cause), Some(cause)));
                    });
                }
            }
        }
    }

    #[test]
    fn the_figure_that_is_below_is_told_and_swap_names_no_threshold() {
        let words = OnePod(Line::Fraction(0.125));
        let memory = |line| {
            let thresholds = vec![threshold(Signal::MemoryAvailable, line)];
            plimsoll::Config { thresholds, ..plimsoll::Config::default() }
        };
        let reported = |config: &plimsoll::Config, more: &plimsoll::Observation<'_>| {
            let mut text = String::new();
            pod(None, |pod| text = by_plimsoll(config, pod, &words, more).to_string());
            let (figures, offending) = text.split_once("Container").expect("it is over its request");
            assert!(offending.starts_with(" c was using 2Ki, request is 10, has larger"), "{offending}");
            figures.to_owned()
        };
        let low = "The node was low on resource: memory. ";
        let mem_available = |bytes| plimsoll::Observation { mem_available: Some(Bytes(bytes)), ..Default::default() };
        // A thirty-second of it is 2Ki, and the kubelet's figure is 4Ki.
        let config = memory(kubelet::Line::Share(0.031_25));
        assert_eq!(reported(&config, &mem_available(1024)), format!("{low}Threshold quantity: 2Ki, available: 1Ki. "));
        let config = memory(kubelet::Line::Share(0.125));
        assert_eq!(reported(&config, &mem_available(1024)), format!("{low}Threshold quantity: 8Ki, available: 4Ki. "));
        // Huge pages are available to nobody.
        let pool = plimsoll::Observation { huge_page_pool: Bytes(3072), ..Default::default() };
        let config = memory(kubelet::Line::Share(0.031_25));
        assert_eq!(reported(&config, &pool), format!("{low}Threshold quantity: 1952, available: 1Ki. "));
        let swap = plimsoll::Swap { total: Bytes(100), free: Bytes(1), refaults: 7 };
        let stall = crate::Stall { full: Duration::from_secs(1), window: Duration::from_secs(1) };
        let swapping =
            plimsoll::Observation { swap: Some(swap), stall: Some(stall), ..plimsoll::Observation::default() };
        let line = plimsoll::SwapThreshold { free: kubelet::Line::Share(0.5), grace: Duration::ZERO };
        let config = plimsoll::Config { swap: Some(line), ..plimsoll::Config::default() };
        assert_eq!(reported(&config, &swapping), low);
    }
}
