//! Statistics through an eviction policy over pods.

use crate::Settings;
use crate::api::{Pod, Seen, Summary, critical, seen};
use crate::machine::{judged_anew, looks, most_workloads, stall};
use crate::report::{Decided, Turn};
use crate::trace::{self, Look, Memory, Reported, Trace, Workload};
use core::time::Duration;
use plimsoll_config::{Configuration, PodRules, kubelet as config};
use plimsoll_policy::kubelet::{
    self, Amount, DiskLayout, Limit, MemoryStats, NodeStats, PodStats, QosClass, Readings, Resource, StatsTime,
    Threshold, Usage,
};
use plimsoll_policy::message::{Line, Message, MessageContext, OverLimit, Victim, VictimUsage};
use plimsoll_policy::plimsoll::{self, Action, Going, PodUid, ReclaimOrder, Reclaimed, Swap};
use plimsoll_policy::{EvictionPolicy, Stall};
use plimsoll_units::{Bytes, MonotonicNs};
use std::collections::BTreeMap;

/// How often a kubelet looks; for statistics without a time.
const TURN: Duration = Duration::from_secs(10);

/// One look.
struct Frame<'a> {
    at: MonotonicNs,
    epoch_ns: Option<i64>,
    reported: Option<&'a str>,
    node: NodeStats,
    mem_available: Option<Bytes>,
    /// What pods together have if all their cache could be dropped.
    pods_mem_available: Option<Bytes>,
    stall: Option<Stall>,
    swap: Option<Swap>,
    names: Vec<String>,
    pods: Vec<plimsoll::Pod<'a>>,
    /// What of each pod's memory is no cache: what its going gives back by the kernel's own estimate.
    held: Vec<Bytes>,
    /// Where each pod was seen; nowhere those of a trace.
    seen: Vec<Option<&'a Seen<'a>>>,
}

/// What messages repeat.
struct Texts<'a> {
    lines: &'a [Line],
    names: &'a [String],
    pods: &'a [plimsoll::Pod<'a>],
    seen: &'a [Option<&'a Seen<'a>>],
}

impl Texts<'_> {
    fn seen(&self, pod: u32) -> Option<&Seen<'_>> {
        self.seen.get(pod as usize).copied().flatten()
    }
}

impl MessageContext for Texts<'_> {
    fn line(&self, threshold: u32) -> Line {
        self.lines.get(threshold as usize).cloned().unwrap_or_else(|| Line::Written(String::new()))
    }

    fn victim(&self, pod: u32, resource: Resource) -> Victim {
        let of_workload = || {
            let stats = self.pods.get(pod as usize).and_then(|pod| pod.facts.stats);
            let used = stats.map(|stats| VictimUsage { working_set: stats.working_set, containers: Vec::new() });
            Victim { name: self.names.get(pod as usize).cloned().unwrap_or_default(), used, ..Victim::default() }
        };
        self.seen(pod).map_or_else(of_workload, |seen| seen.victim(resource))
    }

    fn over(&self, pod: u32, limit: Limit) -> OverLimit {
        // A workload of a trace has no limit of its own.
        let none = || OverLimit::Pod { limit: String::new() };
        self.seen(pod).map_or_else(none, |seen| seen.over(limit))
    }
}

/// Each threshold as it was written, on its own signal if possible; those that were derived repeat another's text.
fn lines(configuration: &Configuration, thresholds: &[Threshold]) -> Vec<Line> {
    let written = |threshold: &Threshold, amount: Amount| {
        let known = configuration.kubelet.thresholds.iter().filter_map(|known| match &known.value {
            config::ThresholdValue::Quantity(quantity) if Amount::nanos(quantity.nanos()) == amount => {
                Some((known.signal != threshold.signal, quantity))
            }
            _ => None,
        });
        known.min_by_key(|(is_of_other, _)| *is_of_other).map(|(_, quantity)| quantity.to_string())
    };
    let line = |threshold: &Threshold| match threshold.line {
        Some(kubelet::Line::Share(fraction)) => Line::Fraction(fraction),
        Some(kubelet::Line::At(amount)) => Line::Written(written(threshold, amount).unwrap_or_default()),
        None => Line::Written(String::new()),
    };
    thresholds.iter().map(line).collect()
}

/// An eviction policy with what it remembers.
enum Book {
    Kubelet {
        config: kubelet::Config,
        state: kubelet::State,
        plan: kubelet::Plan,
    },
    Plimsoll {
        config: plimsoll::Config,
        state: Box<plimsoll::State>,
        plan: plimsoll::Plan,
        /// The last clean-up. It ended when it was asked for, and brought nothing.
        reclaimed: Option<Reclaimed>,
    },
}

struct Run {
    layout: DiskLayout,
    book: Book,
    /// Where each threshold is, as messages say it.
    lines: Vec<Line>,
    /// Until when somebody whom the replay evicted has time, and whether that is a grace period.
    taken: BTreeMap<PodUid, (MonotonicNs, bool)>,
}

impl Run {
    fn new(settings: &Settings<'_>, book: EvictionPolicy, layout: DiskLayout, pods: usize) -> Self {
        let disks = config::DiskLayout {
            dedicated_image_fs: layout.has_image_fs(),
            split_container_fs: layout == DiskLayout::SplitImageFs,
        };
        let configuration = Configuration { eviction_policy: book, ..settings.configuration.clone() };
        let rules = configuration.pod_rules(disks);
        let (PodRules::Kubelet(kubelet::Config { thresholds, .. })
        | PodRules::Plimsoll(plimsoll::Config { thresholds, .. })) = &rules;
        let lines = lines(&configuration, thresholds);
        let book = match rules {
            PodRules::Kubelet(config) => {
                let mut state = kubelet::State::new(&config);
                let mut plan = kubelet::Plan::with_capacity(pods);
                // A kubelet that has just started does not look at thresholds that it derived; this one has run for
                // long.
                let started = kubelet::Observation { layout: Some(layout), node: None, pods: &[] };
                kubelet::decide(&config, &mut state, &started, MonotonicNs(0), &mut plan);
                Book::Kubelet { config, state, plan }
            }
            PodRules::Plimsoll(config) => {
                let state = Box::new(plimsoll::State::with_capacity(&config, pods));
                let plan = plimsoll::Plan::with_capacity(&config, pods, 0);
                Book::Plimsoll { config, state, plan, reclaimed: None }
            }
        };
        Self { layout, book, lines, taken: BTreeMap::new() }
    }

    fn turn(&mut self, mut frame: Frame<'_>, each: &mut dyn FnMut(&Turn<'_>)) {
        self.take_out(&mut frame);
        let Frame {
            at,
            epoch_ns,
            reported,
            node,
            mem_available,
            pods_mem_available,
            stall,
            swap,
            names,
            pods,
            held: _,
            seen,
        } = frame;
        let mut gone = Vec::new();
        let mut messages = Vec::new();
        let readings = Readings::of(&node);
        let words = Texts { lines: &self.lines, names: &names, pods: &pods, seen: &seen };
        let decided = match &mut self.book {
            Book::Kubelet { config, state, plan } => {
                let facts: Vec<kubelet::Pod<'_>> = pods.iter().map(|pod| pod.facts).collect();
                let observation = kubelet::Observation { layout: Some(self.layout), node: Some(node), pods: &facts };
                kubelet::decide(config, state, &observation, at, plan);
                kubelet::after_reclaim(config, state, &observation, Some(&node), plan);
                gone.extend(plan.evictions.iter().map(|eviction| (eviction.pod, eviction.grace_seconds, false)));
                let reported = |eviction| Message::of_kubelet(config, &readings, eviction, &words);
                messages.extend(plan.evictions.iter().map(|eviction| (eviction.pod, reported(eviction))));
                Decided::Kubelet { config, plan, readings: &readings, conditions: state.conditions() }
            }
            Book::Plimsoll { config, state, plan, reclaimed } => {
                let observation = plimsoll::Observation {
                    layout: Some(self.layout),
                    node: Some(node),
                    mem_available,
                    pods_mem_available,
                    stall,
                    swap,
                    dead_containers: Some(0),
                    reclaimed: *reclaimed,
                    pods: &pods,
                    ..plimsoll::Observation::default()
                };
                plimsoll::decide(config, state, &observation, at, plan);
                for action in &plan.actions {
                    let message = Message::of_plimsoll(config, &readings, plan, action, &words);
                    match *action {
                        Action::Evict { pod, grace_seconds, .. } => {
                            gone.push((pod, grace_seconds, grace_seconds > 1));
                            messages.extend(message.map(|message| (pod, message)));
                        }
                        Action::Hasten { pod, .. } => gone.push((pod, 0, false)),
                        Action::Reclaim(ReclaimOrder { order, .. }) => {
                            let at = StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX));
                            *reclaimed = Some(Reclaimed { order, at });
                        }
                    }
                }
                Decided::Plimsoll { config, plan }
            }
        };
        for (pod, grace_seconds, is_gentle) in gone {
            let Some(pod) = pods.get(pod as usize) else { continue };
            let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
            self.taken.insert(pod.uid, (at.after(grace), is_gentle));
        }
        each(&Turn { at, epoch_ns, reported, names: &names, messages: &messages, decided });
    }

    /// Takes out whom an earlier turn evicted, and gives back what it holds by now; or marks it as going, while its
    /// grace lasts. The kubelet waits for its victims.
    fn take_out(&self, frame: &mut Frame<'_>) {
        let waits = matches!(self.book, Book::Kubelet { .. });
        let (names, pods) = (core::mem::take(&mut frame.names), core::mem::take(&mut frame.pods));
        let (held, seen) = (core::mem::take(&mut frame.held), core::mem::take(&mut frame.seen));
        for ((name, mut pod), (held, seen)) in names.into_iter().zip(pods).zip(held.into_iter().zip(seen)) {
            match self.taken.get(&pod.uid) {
                Some((until, _)) if waits || *until <= frame.at => {
                    give_back(&mut frame.node, &pod, self.layout);
                    for mem_available in [&mut frame.mem_available, &mut frame.pods_mem_available].into_iter().flatten()
                    {
                        *mem_available = mem_available.saturating_add(held);
                    }
                    if let (Some(swap), Some(swapped)) = (&mut frame.swap, pod.swapped) {
                        swap.free = swap.free.saturating_add(swapped).min(swap.total);
                    }
                    continue;
                }
                Some((_, is_gentle)) => pod.going = Some(Going { is_stuck: false, is_gentle: *is_gentle }),
                None => {}
            }
            frame.names.push(name);
            frame.pods.push(pod);
            frame.seen.push(seen);
        }
    }
}

/// Counts what a pod holds as available.
fn give_back(node: &mut NodeStats, pod: &plimsoll::Pod<'_>, layout: DiskLayout) {
    let Some(PodStats { working_set, processes, ephemeral_storage: _, containers, volumes }) = pod.facts.stats else {
        return;
    };
    let held = working_set.unwrap_or(0);
    for memory in [&mut node.memory, &mut node.pods].into_iter().flatten() {
        let back = memory.working_set.map_or(0, |used| used.min(held));
        memory.working_set = memory.working_set.map(|used| used - back);
        memory.available = memory.available.map(|available| available.saturating_add(back));
    }
    if let Some(pids) = &mut node.pids {
        let back = i64::try_from(processes.unwrap_or(0)).unwrap_or(i64::MAX);
        pids.running = pids.running.map(|running| running.saturating_sub(back));
    }
    let layers = sum(containers.iter().map(|container| container.rootfs));
    let local = volumes
        .iter()
        .filter(|stats| pod.facts.volumes.iter().any(|volume| volume.is_local && volume.name == stats.name));
    let rest = sum(containers.iter().map(|container| container.logs).chain(local.map(|stats| stats.usage)));
    let all = sum([layers, rest].into_iter());
    let [on_node, on_images, on_containers] = match layout {
        DiskLayout::Single => [all; 3],
        DiskLayout::DedicatedImageFs => [rest, layers, layers],
        DiskLayout::SplitImageFs => [all, Usage::default(), all],
    };
    for (fs, back) in
        [(&mut node.node_fs, on_node), (&mut node.image_fs, on_images), (&mut node.container_fs, on_containers)]
    {
        let Some(fs) = fs else { continue };
        fs.available = fs.available.map(|available| available.saturating_add(back.bytes.unwrap_or(0)));
        fs.inodes_free = fs.inodes_free.map(|free| free.saturating_add(back.inodes.unwrap_or(0)));
    }
}

fn sum(usages: impl Iterator<Item = Usage>) -> Usage {
    usages.fold(Usage { bytes: Some(0), inodes: Some(0) }, |sum, usage| Usage {
        bytes: sum.bytes.map(|bytes| bytes.saturating_add(usage.bytes.unwrap_or(0))),
        inodes: sum.inodes.map(|inodes| inodes.saturating_add(usage.inodes.unwrap_or(0))),
    })
}

/// Runs saved statistics, each as a turn.
pub(crate) fn run_summaries(
    summaries: &[Summary],
    pods: Option<&[Pod]>,
    settings: &Settings<'_>,
    book: EvictionPolicy,
    each: &mut dyn FnMut(&Turn<'_>),
) {
    let Some(first) = summaries.first() else { return };
    let layout = settings.layout.unwrap_or_else(|| first.layout());
    let most = summaries.iter().map(|summary| summary.pods.len()).max().unwrap_or(0).max(pods.map_or(0, <[_]>::len));
    let mut run = Run::new(settings, book, layout, most);
    let mut last: Option<MonotonicNs> = None;
    for summary in summaries {
        let seen = seen(summary, pods);
        let time = summary.time().map(crate::api::Time::monotonic);
        let at = match (time, last) {
            (Some(time), last) => last.map_or(time, |last| last.max(time)),
            (None, last) => last.map_or(MonotonicNs(0), |last| last.after(TURN)),
        };
        last = Some(at);
        let frame = Frame {
            at,
            epoch_ns: time.map(|_| 0),
            reported: None,
            node: summary.node_stats(),
            mem_available: None,
            pods_mem_available: summary.pods_mem_available(),
            stall: summary.stall(),
            // A kubelet does not tell whether pages come back from it.
            swap: None,
            names: seen.iter().map(|seen| seen.name.clone()).collect(),
            pods: seen.iter().map(|seen| seen.pod(at)).collect(),
            held: seen.iter().map(Seen::rss).collect(),
            seen: seen.iter().map(Some).collect(),
        };
        run.turn(frame, each);
    }
}

/// Swap from look to look. A plan that was told between two does not tell of it: the last look's figures hold, and if
/// pages came back up to there they still do.
#[derive(Default)]
struct SwapSeen {
    last: Option<trace::Swap>,
    /// How many came back between the last two looks.
    came_back: u64,
    /// The counter as the eviction policy sees it.
    refaults: u64,
}

impl SwapSeen {
    fn at(&mut self, swap: Option<trace::Swap>, is_reported: bool) -> Option<Swap> {
        if !is_reported {
            let before = core::mem::replace(&mut self.last, swap);
            let counters = before.zip(swap).map(|(before, swap)| swap.refaults.saturating_sub(before.refaults));
            self.came_back = counters.unwrap_or(0);
        }
        let trace::Swap { total_bytes, free_bytes, refaults: _ } = self.last?;
        self.refaults = self.refaults.saturating_add(self.came_back);
        Some(Swap { total: total_bytes, free: free_bytes, refaults: self.refaults })
    }
}

/// Runs a trace of a machine, each workload as a pod, each look as a turn.
pub(crate) fn run_trace(trace: &Trace, settings: &Settings<'_>, book: EvictionPolicy, each: &mut dyn FnMut(&Turn<'_>)) {
    let mut run = Run::new(settings, book, DiskLayout::Single, most_workloads(trace));
    let mut swap_seen = SwapSeen::default();
    for (mut look, reported) in looks(trace) {
        // Where no process is left there is no pod any more, whatever is still charged there.
        look.workloads.retain(|workload| !workload.empty);
        let Look { at_ns, memory, workloads, .. } = &look;
        let time = Some(StatsTime(i64::try_from(at_ns.0).unwrap_or(i64::MAX)));
        let of_memory = |memory: &Memory| MemoryStats {
            available: Some(memory.kubelet_bytes.0),
            working_set: Some(memory.capacity_bytes.saturating_sub(memory.kubelet_bytes).0),
            time,
        };
        let frame = Frame {
            at: *at_ns,
            epoch_ns: trace.header.epoch_ns,
            reported: reported.map(|reported: &Reported| reported.line.as_str()),
            node: NodeStats { memory: memory.as_ref().map(of_memory), ..NodeStats::default() },
            mem_available: memory.and_then(|memory| memory.mem_available_bytes),
            pods_mem_available: None,
            stall: stall(&look),
            swap: swap_seen.at(look.swap, reported.is_some()),
            names: workloads.iter().map(|workload| workload.cgroup.clone()).collect(),
            pods: workloads.iter().map(|workload| as_pod(workload, settings)).collect(),
            held: workloads.iter().map(Workload::held).collect(),
            seen: vec![None; workloads.len()],
        };
        run.turn(frame, each);
    }
}

fn as_pod(workload: &Workload, settings: &Settings<'_>) -> plimsoll::Pod<'static> {
    let (priority, protected) = judged_anew(workload, settings.configuration);
    let stats = workload.usage_bytes.map(|usage| PodStats { working_set: Some(usage.0), ..PodStats::default() });
    let has_promise = workload.reservation_bytes > Bytes::ZERO;
    plimsoll::Pod {
        uid: PodUid(workload.id.0.into()),
        facts: kubelet::Pod {
            priority,
            critical: protected.map(critical),
            memory_request: Amount::counted(workload.reservation_bytes.0),
            stats,
            ..kubelet::Pod::default()
        },
        qos: if has_promise { QosClass::Burstable } else { QosClass::BestEffort },
        started: workload.started_ns,
        swapped: workload.swapped_bytes,
        ..plimsoll::Pod::default()
    }
}
