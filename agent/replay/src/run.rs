//! A recording through [`decide`]. What came of a victim is taken from the recording where that has it. Any other victim
//! is absent from everything that follows, and gives back what it holds.

use crate::Settings;
use crate::disks::{self, Disks};
use crate::give_back::give_back;
use crate::report::Turn;
use crate::slots::Slots;
use crate::trace::Trace;
use crate::trace_frames::{each_frame, most_workloads, node_stats, stats_time};
use core::time::Duration;
use plimsoll_config::{Configuration, kubelet as config};
use plimsoll_pods::{Observed, Pod, Summary, Time, observed};
use plimsoll_policy::kubelet::{self, Amount, DiskLayout, Limit, NodeStats, PodStats, Readings, Resource, Threshold};
use plimsoll_policy::message::{MemoryUsage, Message, MessageContext, OverLimit, ThresholdText, Victim, VictimUsage};
use plimsoll_policy::{
    Action, Config, EvictionPolicy, MemoryReading, Observation, Plan, Reclaimed, Scope, SliceId, Stall, State, Swap,
    Terminating, Uid, Workload, decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::collections::BTreeMap;

/// The kubelet's period; for statistics without a time.
const TURN: Duration = Duration::from_secs(10);
/// The number of workloads at one time whose growth is remembered, at least.
const SLOTS: usize = 4096;

/// Memory of a slice with thresholds of its own.
pub(crate) struct Slice {
    pub(crate) memory: MemoryReading,
}

/// One sample.
pub(crate) struct Frame<'a> {
    pub(crate) at: MonotonicNs,
    /// When the decision on it was taken.
    pub(crate) made: MonotonicNs,
    /// The reclaims that have ended, by scope, where the recording says so itself; and then it also says which
    /// workloads are terminating.
    pub(crate) reclaimed: Option<Vec<Option<Reclaimed>>>,
    /// The workloads that the agent's own plans evicted then, and whether each is still there in the next sample, and
    /// not terminating.
    pub(crate) evicted_then: BTreeMap<CgroupId, bool>,
    pub(crate) epoch_ns: Option<i64>,
    /// What the agent reported then, by slice.
    pub(crate) reported: Vec<(Option<&'a str>, &'a str)>,
    pub(crate) node: NodeStats,
    pub(crate) mem_available: Option<Bytes>,
    /// What is available to pods together if all their cache could be dropped.
    pub(crate) pods_mem_available: Option<Bytes>,
    /// What the kernel's own estimate leaves out of what could be freed.
    pub(crate) withheld: Option<Bytes>,
    pub(crate) huge_page_pool: Bytes,
    pub(crate) stall: Option<Stall>,
    pub(crate) swap: Option<Swap>,
    /// By place in the configuration.
    pub(crate) slices: Vec<Option<Slice>>,
    pub(crate) names: Vec<String>,
    pub(crate) workloads: Vec<Workload<'a>>,
    /// The part of each workload's memory that is no cache: what its eviction gives back by the kernel's own estimate.
    pub(crate) held: Vec<Bytes>,
    /// The pods behind the workloads; a workload of a trace has none.
    pub(crate) pods: Vec<Option<&'a Observed<'a>>>,
}

/// What messages repeat.
struct Texts<'a> {
    thresholds: &'a [ThresholdText],
    names: &'a [String],
    workloads: &'a [Workload<'a>],
    pods: &'a [Option<&'a Observed<'a>>],
}

impl Texts<'_> {
    fn pod(&self, pod: u32) -> Option<&Observed<'_>> {
        self.pods.get(pod as usize).copied().flatten()
    }
}

impl MessageContext for Texts<'_> {
    fn threshold(&self, index: u32) -> ThresholdText {
        self.thresholds.get(index as usize).cloned().unwrap_or_else(|| ThresholdText::Written(String::new()))
    }

    fn victim(&self, pod: u32, resource: Resource) -> Victim {
        let of_workload = || {
            let stats = self.workloads.get(pod as usize).and_then(|workload| workload.facts.stats);
            let memory = |stats: PodStats<'_>| MemoryUsage { working_set: stats.working_set };
            let used = stats.map(|stats| VictimUsage { memory: Some(memory(stats)), containers: Vec::new() });
            Victim { name: self.names.get(pod as usize).cloned().unwrap_or_default(), used, ..Victim::default() }
        };
        self.pod(pod).map_or_else(of_workload, |pod| pod.victim(resource))
    }

    fn over(&self, pod: u32, limit: Limit) -> OverLimit {
        // A workload of a trace has no limit of its own.
        let none = || OverLimit::Pod { limit: String::new() };
        self.pod(pod).map_or_else(none, |pod| pod.over(limit))
    }
}

/// Each threshold as it was written, on its own signal if possible; those that were derived repeat another's text.
fn texts(configuration: &Configuration, thresholds: &[Threshold]) -> Vec<ThresholdText> {
    let written = |threshold: &Threshold, amount: Amount| {
        let known = configuration.kubelet.thresholds.iter().filter_map(|known| match &known.amount {
            Some(kubelet::ThresholdAmount::At(quantity)) if quantity.amount() == amount => {
                Some((known.signal != threshold.signal, quantity))
            }
            _ => None,
        });
        known.min_by_key(|(is_of_other, _)| *is_of_other).map(|(_, quantity)| quantity.to_string())
    };
    let text = |threshold: &Threshold| match threshold.amount {
        Some(kubelet::ThresholdAmount::Share(fraction)) => ThresholdText::Fraction(fraction),
        Some(kubelet::ThresholdAmount::At(amount)) => {
            ThresholdText::Written(written(threshold, amount).unwrap_or_default())
        }
        None => ThresholdText::Written(String::new()),
    };
    thresholds.iter().map(text).collect()
}

/// A workload that the replay evicted, and the recorded agent did not.
#[derive(Clone, Copy)]
struct Taken {
    until: MonotonicNs,
    is_graceful: bool,
}

struct Run<'a> {
    configuration: &'a Configuration,
    layout: DiskLayout,
    policy: Config,
    state: State,
    plan: Plan,
    /// Where each threshold is, as messages say it.
    threshold_texts: Vec<ThresholdText>,
    slots: Slots,
    taken: BTreeMap<Uid, Taken>,
    /// The last reclaim of each scope. It ended when it was asked for, and brought nothing.
    reclaimed: Vec<Option<Reclaimed>>,
}

impl<'a> Run<'a> {
    fn new(configuration: &'a Configuration, policy: Config, layout: DiskLayout, workloads: usize) -> Self {
        let slots = SLOTS.max(workloads);
        let mut run = Self {
            configuration,
            layout,
            state: State::with_capacity(&policy, slots),
            plan: Plan::with_capacity(&policy, workloads, 0),
            threshold_texts: texts(configuration, &policy.thresholds),
            slots: Slots::new(slots),
            taken: BTreeMap::new(),
            reclaimed: vec![None; 1 + policy.slices.len()],
            policy,
        };
        if run.policy.eviction_policy == EvictionPolicy::Kubelet {
            // A kubelet that has just started does not use thresholds that it derived; the recorded one had.
            let started = Observation { layout: Some(layout), ..Observation::default() };
            decide(&run.policy, &mut run.state, &started, MonotonicNs(0), &mut run.plan);
        }
        run
    }

    fn turn(&mut self, mut frame: Frame<'_>, each: &mut dyn FnMut(&Turn<'_>)) {
        self.take_out(&mut frame);
        self.slots.assign(&mut frame.workloads);
        for scope in 0..=self.policy.slices.len() {
            self.decide(scope, &mut frame, each);
        }
    }

    fn decide(&mut self, index: usize, frame: &mut Frame<'_>, each: &mut dyn FnMut(&Turn<'_>)) {
        let of_slice = index.checked_sub(1);
        let slice = of_slice.and_then(|slice| frame.slices.get(slice)).and_then(Option::as_ref);
        let (scope, name, node, mem_available) = match of_slice {
            None => (Scope::Node, None, frame.node, frame.mem_available),
            Some(place) => {
                let memory = slice.map(|slice| slice.memory);
                let id = SliceId(u8::try_from(place).unwrap_or(u8::MAX));
                (
                    Scope::Slice(id),
                    self.configuration.slice_name(id),
                    node_stats(memory, None, frame.at),
                    memory.and_then(|memory| memory.mem_available),
                )
            }
        };
        let is_node = of_slice.is_none();
        let readings = Readings::of(&node);
        let observation = Observation {
            scope,
            taken: frame.at,
            layout: Some(self.layout),
            readings: Some(readings),
            mem_available,
            mem_available_at: Some(stats_time(frame.at)),
            withheld: frame.withheld.filter(|_| is_node),
            huge_page_pool: if is_node { frame.huge_page_pool } else { Bytes::ZERO },
            pods_mem_available: frame.pods_mem_available.filter(|_| is_node),
            stall: frame.stall,
            swap: frame.swap.filter(|_| is_node),
            dead_containers: Some(0),
            workloads: &frame.workloads,
            ..Observation::default()
        };
        let texts = Texts {
            thresholds: &self.threshold_texts,
            names: &frame.names,
            workloads: &frame.workloads,
            pods: &frame.pods,
        };
        // A turn of the kubelet continues as soon as its reclaim has ended.
        for _ in 0..2 {
            let reclaimed = match &frame.reclaimed {
                Some(recorded) => recorded.get(index).copied().flatten(),
                None => self.reclaimed[index],
            };
            let observation = Observation { reclaimed, ..observation };
            decide(&self.policy, &mut self.state, &observation, frame.made, &mut self.plan);
            let message = |action: &Action| {
                Some((action.victim()?, Message::of(&self.policy, &readings, &self.plan, action, &texts)?))
            };
            let messages: Vec<_> = self.plan.actions.iter().filter_map(message).collect();
            each(&Turn {
                at: frame.at,
                epoch_ns: frame.epoch_ns,
                reported: frame.reported.iter().find(|(slice, _)| *slice == name).map(|(_, line)| *line),
                names: &frame.names,
                messages: &messages,
                config: &self.policy,
                plan: &self.plan,
                slice: name,
                is_of_disks: false,
                removal: None,
            });
            let Some(order) = self.plan.reclaim() else { break };
            self.reclaimed[index] = Some(Reclaimed { order: order.order, at: stats_time(frame.at) });
            if self.policy.eviction_policy != EvictionPolicy::Kubelet || frame.reclaimed.is_some() {
                break;
            }
        }
        self.evict(frame);
    }

    /// Remembers what the plan evicts, but for what the recorded agent evicted too: what came of that is in the recording.
    fn evict(&mut self, frame: &mut Frame<'_>) {
        for action in &self.plan.actions {
            let (victim, grace_seconds) = match *action {
                Action::Evict { workload, grace_seconds, .. } => (workload, grace_seconds),
                Action::EscalateToKill { workload, .. } => (workload, 0),
                Action::Reclaim(_) => continue,
            };
            let Some(workload) = frame.workloads.get_mut(victim as usize) else { continue };
            let is_graceful = grace_seconds > 1;
            let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
            let goes_on = frame.evicted_then.get(&workload.key.id);
            if goes_on.is_some() {
                self.taken.remove(&workload.uid);
            } else {
                self.taken.insert(workload.uid, Taken { until: frame.at.after(grace), is_graceful });
            }
            if goes_on == Some(&true) {
                continue;
            }
            // For the slices, whose decisions follow.
            workload.terminating = Some(Terminating {
                is_graceful,
                until: is_graceful.then_some(frame.at.after(grace)),
                ..Terminating::default()
            });
        }
    }

    /// Takes out what an earlier turn evicted, and gives back what it holds by now; or marks it as terminating while its
    /// grace lasts. The kubelet waits for its victims.
    fn take_out(&self, frame: &mut Frame<'_>) {
        let waits = self.policy.eviction_policy == EvictionPolicy::Kubelet;
        let (names, workloads) = (core::mem::take(&mut frame.names), core::mem::take(&mut frame.workloads));
        let (held, pods) = (core::mem::take(&mut frame.held), core::mem::take(&mut frame.pods));
        for ((name, mut workload), (held, pod)) in names.into_iter().zip(workloads).zip(held.into_iter().zip(pods)) {
            let is_recorded = frame.reclaimed.is_some();
            match self.taken.get(&workload.uid) {
                // It was evicted then, too.
                Some(_) if is_recorded && (workload.terminating.is_some() || workload.is_empty) => {}
                Some(taken) if waits || taken.until <= frame.at => {
                    self.give_back(frame, &workload, held);
                    continue;
                }
                Some(taken) => {
                    let until = taken.is_graceful.then_some(taken.until);
                    workload.terminating =
                        Some(Terminating { is_graceful: taken.is_graceful, until, ..Terminating::default() });
                }
                // It does not count what is terminating otherwise.
                None if waits && !is_recorded => workload.terminating = None,
                None => {}
            }
            frame.names.push(name);
            frame.workloads.push(workload);
            frame.pods.push(pod);
        }
    }

    /// Counts what a workload holds as available.
    fn give_back(&self, frame: &mut Frame<'_>, workload: &Workload<'_>, held: Bytes) {
        give_back(&mut frame.node, workload, self.layout);
        for available in [&mut frame.mem_available, &mut frame.pods_mem_available].into_iter().flatten() {
            *available = available.saturating_add(held);
        }
        if let (Some(swap), Some(swapped)) = (&mut frame.swap, workload.swapped) {
            swap.free = swap.free.saturating_add(swapped).min(swap.total);
        }
        let all = workload.working_set().unwrap_or(Bytes::ZERO);
        for (index, slice) in (0_u8..).zip(&mut frame.slices) {
            let Some(Slice { memory }) = slice else { continue };
            if workload.slices.contains(SliceId(index)) {
                let more = |available: Bytes, back| available.saturating_add(back).min(memory.capacity);
                memory.kubelet_available = more(memory.kubelet_available, all);
                memory.mem_available = memory.mem_available.map(|available| more(available, held));
            }
        }
    }
}

/// Runs saved statistics, each as a turn.
pub(crate) fn run_summaries(
    summaries: &[Summary],
    pods: Option<&[Pod]>,
    settings: &Settings<'_>,
    each: &mut dyn FnMut(&Turn<'_>),
) {
    let Some(first) = summaries.first() else { return };
    let layout = settings.layout.unwrap_or_else(|| first.layout());
    let most = summaries.iter().map(Summary::pods).max().unwrap_or(0).max(pods.map_or(0, <[_]>::len));
    let disks = config::DiskLayout {
        dedicated_image_fs: layout.has_image_fs(),
        split_container_fs: layout == DiskLayout::SplitImageFs,
    };
    let mut run = Run::new(settings.configuration, settings.configuration.policy_on(disks), layout, most);
    let mut last: Option<MonotonicNs> = None;
    for summary in summaries {
        let of_summary = observed(summary, pods);
        let time = summary.time().map(Time::monotonic);
        let at = match (time, last) {
            (Some(time), last) => last.map_or(time, |last| last.max(time)),
            (None, last) => last.map_or(MonotonicNs(0), |last| last.after(TURN)),
        };
        last = Some(at);
        let frame = Frame {
            at,
            made: at,
            reclaimed: None,
            evicted_then: BTreeMap::new(),
            epoch_ns: time.map(|_| 0),
            reported: Vec::new(),
            node: summary.node_stats(),
            mem_available: None,
            pods_mem_available: summary.pods_mem_available(),
            // A kubelet does not report either.
            withheld: None,
            huge_page_pool: Bytes::ZERO,
            stall: summary.stall(),
            // A kubelet does not report whether pages come back from swap,
            swap: None,
            // nor slices other than that of all pods.
            slices: Vec::new(),
            names: of_summary.iter().map(Observed::name).collect(),
            workloads: of_summary.iter().map(|pod| pod.workload(at)).collect(),
            held: of_summary.iter().map(Observed::rss).collect(),
            pods: of_summary.iter().map(Some).collect(),
        };
        run.turn(frame, each);
    }
}

/// Runs a trace of a machine, each sample as a turn, with the thresholds of `run`.
pub(crate) fn run_trace(trace: &Trace, settings: &Settings<'_>, each: &mut dyn FnMut(&Turn<'_>)) {
    let configuration = settings.configuration;
    let mut run = Run::new(configuration, configuration.policy.clone(), DiskLayout::Single, most_workloads(trace));
    let mut disks = Disks::new(disks::samples(trace), trace.header.epoch_ns, configuration);
    each_frame(trace, configuration, |frame| {
        disks.until(frame.made, each);
        run.turn(frame, each);
    });
    disks.until(MonotonicNs(u64::MAX), each);
}
