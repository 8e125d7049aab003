//! `plimsoll explain`: how far this machine is from each threshold, which workloads would be evicted first and why, and
//! which processes the OOM killer would select instead. Decides in shadow over a fresh sample; changes nothing.

mod memory;
mod oom;
mod pods;
mod print;
mod thresholds;

pub(crate) use pods::{all_needed, may_be_evicted, uid_of, words};

use std::path::PathBuf;
use std::time::SystemTime;

use plimsoll_config::Configuration;
use plimsoll_node::meminfo::MemReading;
use plimsoll_node::os::CgroupMode;
use plimsoll_pods::{Pod, read_pods};
use plimsoll_policy::kubelet::{DiskLayout, Readings, Resource};
use plimsoll_policy::{
    Config, EvictionPolicy, Growth, MemoryReading, Observation, Outcome, Plan, Scope, SliceId, State, Workload, decide,
    ranking, text,
};
use plimsoll_replay::trace::{Sample, Workload as Sampled};
use plimsoll_replay::{node_stats, plan_fields, printable, workloads_of};
use plimsoll_units::{Bytes, MonotonicNs};
use serde_json::json;

use crate::observe::{Observer, Own};
use crate::options::{Options, Output};

const CODES: &str = "Exit codes: 0 done; 1 this machine's memory or the list of pods cannot be read; 2 wrong arguments or \
configuration.";

/// What to explain by, and how to print it.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The pods, as `kubectl get pods -A -o json` or the kubelet's /pods prints them: requests, priorities, and which
    /// pods are never evicted.
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// For people, or one JSON object.
    #[arg(long, default_value = "text")]
    output: Output,
}

/// The whole answer.
struct Answer<'a> {
    policy: &'a Config,
    sample: Sample,
    plan: Plan,
    /// By path, those that have a limit.
    slices: Vec<(String, Plan)>,
    distances: Vec<thresholds::Distance>,
    others: Vec<thresholds::Other>,
    oom: Vec<oom::Victim>,
    cache: Vec<memory::Cache>,
    reserved: Vec<memory::Kept>,
    capacity: memory::Capacity,
    /// Absent without a list of them.
    pods: Option<pods::Answer>,
    /// The pods of workloads that are theirs, by the index of the workload.
    pod_names: Vec<Option<String>>,
}

/// Explains, prints, and gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let configuration = crate::supervisor::configuration(&arguments.options)?;
    let own = Own::read_and_enter(arguments.pods.as_deref(), &configuration)?;
    let listed = own.list.as_ref().map(|list| list.parsed(read_pods)).transpose()?;
    let listed = pods::Listed::of(listed);
    let mode = CgroupMode::detect();
    if let Some(sentence) = mode.refusal() {
        crate::log::complain(&format!("no workload can be seen: {sentence}"));
    }
    let observer = Observer::new(&configuration, mode.root(), &own);
    let Some(reading) = observer.memory() else { anyhow::bail!("cannot read /proc/meminfo") };
    let victims = oom::victims(&reading, &listed);
    let places = thresholds::Places::new(&configuration, &observer);
    let answer = answer(&configuration, &observer, &reading, victims, &listed, &places);
    let printed = match arguments.output {
        Output::Text => answer.text(),
        Output::Json => format!("{}\n", answer.json()),
    };
    crate::log::print(&printed);
    Ok(0)
}

fn answer<'a>(
    configuration: &'a Configuration,
    observer: &Observer,
    reading: &MemReading,
    oom: Vec<oom::Victim>,
    listed: &pods::Listed,
    places: &thresholds::Places,
) -> Answer<'a> {
    let policy = &configuration.policy;
    let sample = observer.sample();
    let workloads = workloads_of(&sample, configuration);
    let plan = decided(policy, Scope::Node, sample.memory.map(Into::into), &sample, &workloads);
    let slices = (0_u8..).zip(configuration.slices()).filter_map(|(index, slice)| {
        let path = slice.name();
        let memory = thresholds::slice_memory(&sample, path)?;
        let plan = decided(policy, Scope::Slice(SliceId(index)), Some(memory), &sample, &workloads);
        Some((path.to_owned(), plan))
    });
    let cgroups = pods::cgroups(observer);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = MonotonicNs(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX));
    let pods = pods::answer(configuration, listed, &cgroups, &sample, reading.total, now);
    let pod_name = |workload: &Sampled| {
        let listed = listed.of_path(&workload.cgroup).map(Pod::full_name);
        listed.or_else(|| observer.pod_name(workload).map(str::to_owned))
    };
    Answer {
        policy,
        slices: slices.collect(),
        distances: thresholds::distances(configuration, &sample, plan.memory),
        plan,
        others: thresholds::others(configuration, &sample, reading, places, observer),
        cache: memory::cache(observer, &sample, &cgroups, listed),
        reserved: memory::reserved(configuration, observer),
        capacity: memory::capacity(configuration, &sample, reading, pods.as_ref()),
        pod_names: sample.workloads.iter().map(pod_name).collect(),
        oom,
        pods,
        sample,
    }
}

/// What would be decided about the machine or a slice of it now by rank alone: one sample does not show which workloads
/// grew. Where memory is above the thresholds, the order of eviction.
fn decided(
    policy: &Config,
    scope: Scope,
    memory: Option<MemoryReading>,
    sample: &Sample,
    workloads: &[Workload<'_>],
) -> Plan {
    let observation = Observation {
        taken: sample.at_ns,
        scope,
        // Nothing is decided about disks: which there are makes no difference.
        layout: Some(DiskLayout::Single),
        readings: Some(Readings::of(&node_stats(memory, sample.tasks.filter(|_| scope == Scope::Node), sample.at_ns))),
        mem_available: memory.and_then(|memory| memory.mem_available),
        huge_page_pool: if scope == Scope::Node { sample.huge_page_pool_bytes } else { Bytes::ZERO },
        workloads,
        ..Observation::default()
    };
    // Else all that a workload uses would count as growth.
    let by_rank = Config { evict_for_unattributed: true, responsible_percent: 0, ..policy.clone() };
    let mut plan = Plan::with_capacity(policy, workloads.len(), 0);
    let mut state = State::with_capacity(&by_rank, workloads.len());
    decide(&by_rank, &mut state, &observation, sample.at_ns, &mut plan);
    plan.attribution = None;
    for ranked in &mut plan.ranked {
        (ranked.growth, ranked.grew) = (Growth::default(), false);
    }
    if plan.ranked.is_empty() {
        let mut unpressed = Plan::with_capacity(policy, workloads.len(), 0);
        ranking(policy, &observation, &mut unpressed);
        unpressed.ranked.retain(|ranked| workloads[ranked.workload as usize].is_in(scope));
        plan.ranked = unpressed.ranked;
    }
    plan
}

/// What to know beside a plan that evicts for memory.
fn caveat(policy: &Config, plan: &Plan) -> Option<&'static str> {
    let signal = plan.acting().and_then(|acting| policy.signal_of(plan.scope, acting.why));
    let is_for_memory = signal.is_some_and(|signal| signal.resource() == Resource::Memory);
    let is_by_growth = policy.eviction_policy != EvictionPolicy::Kubelet && is_for_memory;
    (is_by_growth && plan.outcome == Outcome::Evict).then_some(
        "by rank alone: a running agent knows which workloads grew since memory was plentiful, and may evict others, or none",
    )
}

impl Answer<'_> {
    fn name(&self, workload: u32) -> String {
        let index = workload as usize;
        let Some(workload) = self.sample.workloads.get(index) else { return "?".to_owned() };
        let cgroup = printable(&workload.cgroup);
        match self.pod_names.get(index).and_then(Option::as_deref) {
            Some(pod) => format!("{cgroup} (pod {})", printable(pod)),
            None => cgroup,
        }
    }

    fn json(&self) -> serde_json::Value {
        let of = |plan: &Plan, slice: Option<&str>| {
            json!({
                "slice": slice,
                "plan": plan_fields(self.policy, plan, slice, |workload| self.name(workload)),
                "line": text::line(self.policy, plan, slice, |workload| self.name(workload)),
                "caveat": caveat(self.policy, plan),
            })
        };
        let slices: Vec<_> = self.slices.iter().map(|(path, plan)| of(plan, Some(path))).collect();
        let node = of(&self.plan, None);
        json!({
            "plan": node["plan"],
            "line": node["line"],
            "caveat": node["caveat"],
            "slices": slices,
            "thresholds": self.distances,
            "other_thresholds": self.others,
            "capacity": self.capacity,
            "pods": self.pods,
            "oom": self.oom,
            "cache": self.cache,
            "reserved": self.reserved,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::tree;
    use plimsoll_replay::trace::Memory;

    const MIB: u64 = 1 << 20;

    fn explain<'a>(
        configuration: &'a Configuration,
        root: &std::path::Path,
        listed: &pods::Listed,
        oom: Vec<oom::Victim>,
    ) -> Answer<'a> {
        let observer = Observer::new(configuration, Some(root), &Own::default());
        let reading = observer.memory().expect("this machine's memory");
        let places = thresholds::places(root, Err("there is no /proc".to_owned()), None);
        answer(configuration, &observer, &reading, oom, listed, &places)
    }

    #[test]
    fn the_answer_has_the_order_of_eviction_its_reasons_and_the_page_cache_that_counts_as_used() {
        let dir = tree(&[
            ("system.slice", 700 * MIB, 150 * MIB, 0, 600 * MIB, 0),
            ("system.slice/db.service", 400 * MIB, 100 * MIB, 0, 500 * MIB, 600 * MIB),
            ("system.slice/web.service", 200 * MIB, 50 * MIB, 0, 600 * MIB, 600 * MIB),
            ("system.slice/batch.service", 300 * MIB, 20 * MIB, 10 * MIB, 0, 0),
            ("system.slice/never.service", 350 * MIB, 0, 0, 0, 0),
            ("user.slice", 90 * MIB, 0, 0, 64 * MIB, 100 * MIB),
            ("user.slice/a.scope", 80 * MIB, 0, 0, 0, 0),
        ]);
        let text = "evictionHard: {memory.available: 1Mi, imagefs.available: 15%}\nsystemReserved: {memory: 500Mi}\n\
                    machine: {workloads: [{match: 'system.slice/*'}, {match: 'user.slice/*'}], \
                    never: [system.slice/never.service], \
                    slices: [{path: user.slice, evictionHard: {memory.available: 1Mi}}]}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let victim = oom::Victim {
            pid: 7,
            name: "batch".into(),
            cgroup: Some("system.slice/batch.service".into()),
            score: 700,
            resident_bytes: Bytes(300 * MIB),
            swapped_bytes: Bytes(5 * MIB),
            ..oom::Victim::default()
        };
        let answer = explain(&configuration, dir.path(), &pods::Listed::default(), vec![victim]);
        let printed = answer.text();
        for line in [
            "    system.slice/never.service: never evicted: listed by the owner; uses 350.0 MiB, 350.0 MiB over its \
             request, priority 0, BestEffort",
            "    system.slice/batch.service: may be evicted; uses 290.0 MiB, 290.0 MiB over its request, priority 0, BestEffort",
            "    system.slice/db.service: may be evicted; uses 400.0 MiB, within its request, priority 0, Burstable",
            "    batch (process 7) in /system.slice/batch.service: score 700, 300.0 MiB resident, 5.0 MiB in swap",
            "    system.slice: 150.0 MiB of 700.0 MiB; everything in it together; peak 700.0 MiB",
            "    system.slice/db.service: 100.0 MiB of 400.0 MiB; set its memory.low to its memory.max; peak 400.0 MiB",
            "    system.slice/web.service: 50.0 MiB of 200.0 MiB; its memory.low is its memory.max, as it should be; \
             peak 200.0 MiB",
            "    system.slice: uses 700.0 MiB of 500.0 MiB (systemReserved)",
            "    user.slice: uses 90.0 MiB of 64.0 MiB (memory.low and memory.min)",
            "hard threshold of user.slice, 1.0 MiB: 9.0 MiB away by the kubelet's reading, 9.0 MiB away by the kernel's",
            "hard threshold of imagefs.available, 15%: not read, because only the container runtime knows where its images are",
            "    user.slice/a.scope: may be evicted; uses 80.0 MiB, 80.0 MiB over its request, priority 0, BestEffort",
        ] {
            assert!(printed.lines().any(|printed| printed == line), "{line}\n{printed}");
        }
        let (_, in_slice) = printed.split_once("\neviction order in user.slice, now: ").expect("it has thresholds");
        let (in_slice, _) = in_slice.split_once("\n\n").expect("more follows");
        assert!(in_slice.contains("user.slice/a.scope") && !in_slice.contains("batch"), "{in_slice}");
        let json = answer.json();
        assert_eq!(json["plan"]["candidates"].as_array().map(Vec::len), Some(5));
        assert_eq!(json["slices"][0]["plan"]["candidates"].as_array().map(Vec::len), Some(1));
        assert_eq!(json["capacity"]["promised_bytes"], 1100 * MIB);
        assert_eq!(json["capacity"]["requests_bytes"], serde_json::Value::Null);
        assert_eq!(json["thresholds"][0]["threshold_bytes"], MIB);
    }

    #[test]
    fn only_the_policy_kubelet_takes_the_huge_page_pool_for_available() {
        let memory = Memory {
            capacity_bytes: Bytes(16 * MIB),
            kubelet_bytes: Bytes(9 * MIB),
            mem_available_bytes: Some(Bytes(MIB)),
        };
        let sample = Sample { memory: Some(memory), huge_page_pool_bytes: Bytes(8 * MIB), ..Sample::default() };
        let mib = i128::from(MIB);
        for (policy, distance) in [("kubelet", 7 * mib), ("plimsoll", -mib), ("openshift3", -mib)] {
            let text = format!("evictionPolicy: {policy}\nevictionHard: {{memory.available: 2Mi}}");
            let configuration = plimsoll_config::parse(&text, "f").expect("it is in order");
            let plan = decided(&configuration.policy, Scope::Node, sample.memory.map(Into::into), &sample, &[]);
            let distances = thresholds::distances(&configuration, &sample, plan.memory);
            assert_eq!(distances[0].kubelet_bytes, distance, "{policy}");
        }
    }

    #[test]
    fn below_a_threshold_no_usage_is_taken_for_growth() {
        let dir = tree(&[("a.slice/x.service", 5 * MIB, 0, 0, 0, 0), ("a.slice/y.service", 70 * MIB, 0, 0, 0, 0)]);
        let text = "evictionHard: {memory.available: 100Mi}\nmachine: {workloads: [{match: 'a.slice/*'}]}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let available = Bytes(50 * MIB);
        let memory = Memory {
            capacity_bytes: Bytes(1000 * MIB),
            kubelet_bytes: available,
            mem_available_bytes: Some(available),
        };
        let observer = Observer::new(&configuration, Some(dir.path()), &Own::default());
        let sample = Sample { memory: Some(memory), huge_page_pool_bytes: Bytes::ZERO, ..observer.sample() };
        let workloads = workloads_of(&sample, &configuration);
        let policy = &configuration.policy;
        let plan = decided(policy, Scope::Node, Some(memory.into()), &sample, &workloads);
        // Of the 950 MiB that are in use, these have less than machine.responsiblePercent.
        assert_eq!((plan.outcome, plan.attribution), (Outcome::Evict, None));
        assert_eq!(plan.victims().count(), 1);
        assert!(plan.ranked.iter().all(|ranked| ranked.growth.own.is_none() && !ranked.grew));
        assert!(caveat(policy, &plan).is_some());
        let kubelet = Config { eviction_policy: EvictionPolicy::Kubelet, ..policy.clone() };
        let plan = decided(&kubelet, Scope::Node, Some(memory.into()), &sample, &workloads);
        assert_eq!((plan.outcome, caveat(&kubelet, &plan)), (Outcome::Evict, None));
        let plenty = MemoryReading { kubelet_available: Bytes(500 * MIB), mem_available: None, ..memory.into() };
        assert_eq!(caveat(policy, &decided(policy, Scope::Node, Some(plenty), &sample, &workloads)), None);
    }

    #[test]
    fn with_a_list_pods_are_named_and_their_requests_are_what_counts() {
        use pods::tests::{UID, listed, listed_pods, pod};
        let slice = "kubepods.slice/kubepods-burstable.slice";
        let path = format!("{slice}/kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        let guaranteed = "kubepods.slice/kubepods-pod00000000_0000_0000_0000_000000000000.slice";
        let dir = tree(&[
            ("kubepods.slice", 500 * MIB, 90 * MIB, 0, 0, 900 * MIB),
            (slice, 300 * MIB, 0, 0, 0, 0),
            (&path, 300 * MIB, 60 * MIB, 0, 0, 400 * MIB),
            (guaranteed, 100 * MIB, 30 * MIB, 0, 0, 200 * MIB),
        ]);
        let text = format!("machine: {{workloads: [{{match: '{path}'}}]}}");
        let configuration = plimsoll_config::parse(&text, "f").expect("it is in order");
        let reported = |listed: &pods::Listed| explain(&configuration, dir.path(), listed, Vec::new()).text();
        let advice = |advice: &str| format!("60.0 MiB of 300.0 MiB; {advice}");

        let without = reported(&pods::Listed::default());
        assert!(without.contains("the requests of pods are not known without --pods"), "{without}");
        assert!(without.contains(&advice("request and limit are not known without --pods")), "{without}");
        assert!(
            without.contains(&format!("{guaranteed}: 30.0 MiB of 100.0 MiB; its request is its limit")),
            "{without}"
        );
        assert!(without.contains("    kubepods.slice: 90.0 MiB of 500.0 MiB; everything in it together"), "{without}");

        let less = reported(&listed("\"memory\": \"100Mi\"", "\"memory\": \"400Mi\""));
        assert!(less.contains("1 pod requests 100.0 MiB"), "{less}");
        assert!(less.contains(&advice("set its request to its limit")), "{less}");
        assert!(less.contains(&format!("{path} (pod n/a): may be evicted")), "{less}");
        assert!(less.contains(&format!("{guaranteed}: a pod that is not in the list")), "{less}");

        let equal = reported(&listed("\"memory\": \"400Mi\"", "\"memory\": \"400Mi\""));
        assert!(equal.contains(&advice("its request is its limit, as it should be")), "{equal}");

        let mirror = r#"{"kubernetes.io/config.mirror": "x"}"#;
        let mirrored = reported(&listed_pods(&format!("[{}]", pod("a", UID, mirror, 5, ""))));
        let line = "    n/a (BestEffort, priority 5): never evicted: the mirror of a static pod; uses 300.0 MiB and 9 B in swap, requests 0 B, \
                    expected oom_score_adj 1000; but machine.workloads selects it, and without machine.podFacts or \
                    machine.cluster `run` knows no pods: list it in machine.never";
        assert!(mirrored.lines().any(|printed| printed == line), "{mirrored}");
    }
}
