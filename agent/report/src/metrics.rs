//! The metrics, in OpenMetrics. Labels come from closed sets: no name from outside is one, but of the few containers that
//! [`crate::container_metrics`] has.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use plimsoll_config::Configuration;
use plimsoll_config::kubelet::DiskLayout;
use plimsoll_node::clock::epoch_ns;
use plimsoll_node::meminfo::MemReading;
use plimsoll_policy::kubelet::{Reading, Signal, StatsTime};
use plimsoll_policy::{Plan, Protected, Verdict};
use plimsoll_units::{Bytes, MonotonicNs};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::comparison::Comparison;
use crate::container_metrics::ContainerMetrics;
use crate::fields::variant;
use crate::signal_metrics::SignalMetrics;
use crate::witnessed::WitnessedMetrics;

/// One label.
pub(crate) type Label = [(&'static str, String); 1];
pub(crate) type FloatGauge = Gauge<f64, AtomicU64>;
type FloatCounter = Counter<f64, AtomicU64>;

/// All metrics. A clone has the same values.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub(crate) crossed_to_awake: Histogram,
    pub(crate) crossed_to_stopped: Histogram,
    pub(crate) crossed_to_memory_back: Histogram,
    pub(crate) past_threshold: Histogram,
    pub(crate) races_lost: Counter,
    pub(crate) oom_kills: Family<Label, Counter>,
    pub(crate) witnessed: WitnessedMetrics,
    pub(crate) comparison: Comparison,
    pub(crate) kills: Counter,
    pub(crate) kills_refused: Counter,
    pub(crate) stuck_victims: Counter,
    pub(crate) asked_to_end: Counter,
    pub(crate) brakes: Family<Label, Counter>,
    pub(crate) kernel_brakes: Family<Label, Counter>,
    pub(crate) held_down: Gauge,
    pub(crate) decisions: Family<Label, Counter>,
    pub(crate) candidates: Family<Label, Counter>,
    pub(crate) lost_records: Family<Label, Counter>,
    pub(crate) lost_log_lines: Counter,
    pub(crate) malformed_records: Family<Label, Counter>,
    pub(crate) broken_plans: Counter,
    pub(crate) failures: Family<Label, Counter>,
    pub(crate) tampered: Family<Label, Counter>,
    pub(crate) program_run_time: Family<Label, FloatCounter>,
    pub(crate) program_runs: Family<Label, Counter>,
    pub(crate) program_recursion_misses: Family<Label, Counter>,
    pub(crate) source: Family<Label, Gauge>,
    pub(crate) reporter_confined: Gauge,
    pub(crate) acting: Gauge,
    pub(crate) kill_switch: Gauge,
    pub(crate) available: Family<Label, Gauge>,
    pub(crate) memory_pressure: Gauge,
    pub(crate) pid_pressure: Gauge,
    pub(crate) signals: SignalMetrics,
    pub(crate) disks: DiskMetrics,
    pub(crate) workloads: Gauge,
    pub(crate) inventory: InventoryMetrics,
    pub(crate) containers: ContainerMetrics,
    pub(crate) core_start: Family<Label, FloatGauge>,
    pub(crate) hook_attached: Family<Label, Gauge>,
}

/// What the inventory leaves out, what it costs, and what does not work beside the watching thread.
#[derive(Clone, Default)]
pub(crate) struct InventoryMetrics {
    pub(crate) without_row: Gauge,
    pub(crate) outside: Gauge,
    pub(crate) descriptors: Gauge,
    pub(crate) kernel_memory: Gauge,
    pub(crate) sample_cost: FloatGauge,
    pub(crate) delayed_samples: Counter,
    pub(crate) troubles: Family<Label, Gauge>,
    pub(crate) swap: Family<Label, Gauge>,
}

impl InventoryMetrics {
    fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { without_row, outside, descriptors, kernel_memory, sample_cost, delayed_samples, troubles, swap } =
            metrics.clone();
        registry.register("workloads_without_row", "Workloads that there is no room to watch", without_row);
        let help = "Memory that is charged to cgroups and to no workload that is watched";
        registry.register_with_unit("memory_outside_workloads", help, Unit::Bytes, outside);
        registry.register("workload_descriptors", "Descriptors that are kept open for workloads", descriptors);
        let help = "Memory of the kernel's own that is charged to the agent's cgroup";
        registry.register_with_unit("kernel_memory", help, Unit::Bytes, kernel_memory);
        let help =
            "How long the last sample took; without pressure, samples are 50 times as far apart, up to ten seconds";
        registry.register_with_unit("sample_cost", help, Unit::Seconds, sample_cost);
        let help = "Samples that came later than they would have, so that they take no more than their share of a CPU";
        registry.register("samples_delayed", help, delayed_samples);
        let help = "1 for what does not work and costs its part alone, 0 once it works again";
        registry.register("trouble", help, troubles);
        let help = "All swap, what is free of it, and what is swapped to compressed memory: as it takes there, and uncompressed";
        registry.register_with_unit("swap", help, Unit::Bytes, swap);
        metrics
    }
}

/// Disks against their thresholds.
#[derive(Clone, Default)]
pub(crate) struct DiskMetrics {
    pub(crate) pressure: Gauge,
    pub(crate) read: Family<Label, Gauge>,
    pub(crate) orders: Family<Label, Counter>,
    pub(crate) removed: Family<Label, Counter>,
    pub(crate) freed: Counter,
    pub(crate) evictions: Family<Label, Counter>,
    pub(crate) orphaned: Family<Label, Gauge>,
    pub(crate) orphaned_bytes: Family<Label, Gauge>,
}

impl DiskMetrics {
    fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { pressure, read, orders, removed, freed, evictions, orphaned, orphaned_bytes } = metrics.clone();
        registry.register("disk_pressure", "1 while the disk pressure condition holds", pressure);
        registry.register("disk_read", "1 while there are figures of the disk, 0 where they are absent", read);
        registry.register("disk_removal_orders", "Orders to remove what is dead or unused, by outcome", orders);
        registry.register("disk_removed", "What was removed by these orders, as services reports it", removed);
        let help = "What the removed images took by the container runtime's account";
        registry.register_with_unit("disk_removed_images", help, Unit::Bytes, freed);
        let help = "Pods evicted for disks and for limits of local storage, by the kubelet's name of the cause";
        registry.register("disk_evictions", help, evictions);
        let help =
            "Pods that are gone for good and of which directories are left, by whether what these take was measured";
        registry.register("orphaned_pods", help, orphaned);
        let help = "What the directories of those take that were measured, by whether it is logs or volumes";
        registry.register_with_unit("orphaned_pods", help, Unit::Bytes, orphaned_bytes);
        metrics
    }
}

/// From 50 microseconds to nearly a minute.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(50e-6, 2.0, 20))
}

impl Metrics {
    /// All at zero. `is_confined`: this process is refused all files.
    pub fn new(is_confined: bool) -> Self {
        let mut registry = Registry::with_prefix("plimsoll");
        macro_rules! registered {
            ($name:literal, $help:literal) => {{
                let metric = Default::default();
                registry.register($name, $help, Clone::clone(&metric));
                metric
            }};
            ($name:literal, $help:literal, $unit:expr) => {{
                let metric = Default::default();
                registry.register_with_unit($name, $help, $unit, Clone::clone(&metric));
                metric
            }};
            ($name:literal, $help:literal, $unit:expr, $metric:expr) => {{
                let metric = $metric;
                registry.register_with_unit($name, $help, $unit, Clone::clone(&metric));
                metric
            }};
        }
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of the agent", build);
        let metrics = Self {
            crossed_to_awake: registered!(
                "crossed_to_awake",
                "From the crossing of a threshold, as the kernel saw it, to the core being awake",
                Unit::Seconds,
                seconds()
            ),
            crossed_to_stopped: registered!(
                "crossed_to_stopped",
                "From the crossing of a threshold to the brake or kill of what grew",
                Unit::Seconds,
                seconds()
            ),
            crossed_to_memory_back: registered!(
                "crossed_to_memory_back",
                "From the crossing of a threshold to memory being above it again, where something was done",
                Unit::Seconds,
                seconds()
            ),
            past_threshold: registered!(
                "past_threshold",
                "How far below the threshold memory was at the brake or kill of what grew",
                Unit::Bytes,
                // From 64 KiB to 8 GiB.
                Histogram::new(exponential_buckets(65_536.0, 2.0, 18))
            ),
            races_lost: registered!("races_lost", "OOM kills because the whole machine was short of memory"),
            oom_kills: registered!("oom_kills", "Victims of the OOM killer, by where memory was short"),
            witnessed: WitnessedMetrics::new(&mut registry),
            comparison: Comparison::new(&mut registry),
            kills: registered!("kills", "Workloads with all processes sent SIGKILL"),
            kills_refused: registered!("kills_refused", "Kills that were refused"),
            stuck_victims: registered!("stuck_victims", "Killed workloads with processes that did not exit in time"),
            asked_to_end: registered!("asked_to_end", "Workloads asked to terminate within their grace period"),
            brakes: registered!("brakes", "Freezes and thaws, by outcome"),
            kernel_brakes: registered!("kernel_brakes", "In-kernel brakes of the running core, by outcome"),
            held_down: registered!("pods_held_down", "Evicted pods that are kept frozen, so that nothing runs in them"),
            decisions: registered!("decisions", "Reported plans, by outcome"),
            candidates: registered!("candidates", "Candidates of reported plans, by verdict"),
            lost_records: registered!(
                "lost_records",
                "Records that found a ring buffer full or were overwritten in a queue before they were read"
            ),
            lost_log_lines: registered!("lost_log_lines", "Lines of the log that were not read in time"),
            malformed_records: registered!("malformed_records", "Records that could not be decoded"),
            broken_plans: registered!("broken_plans", "Plans of which a part was lost on the way to the reporter"),
            failures: registered!("failures", "Calls that should not fail and did"),
            tampered: registered!("tampered", "Changes of the agent's thresholds or programs by another program"),
            program_run_time: registered!(
                "program_run_time",
                "How long each kernel program ran, over all CPUs",
                Unit::Seconds
            ),
            program_runs: registered!("program_runs", "How often each kernel program ran"),
            program_recursion_misses: registered!(
                "program_recursion_misses",
                "How often each kernel program was left out because it was running already"
            ),
            source: registered!("source", "1 for the source in use"),
            reporter_confined: registered!("reporter_confined", "1 where the reporter is refused all files"),
            acting: registered!("acting", "1 where this agent acts, 0 where it shadows or its core does not run"),
            kill_switch: registered!("kill_switch", "1 while the kill switch stops every action"),
            available: registered!(
                "memory_available",
                "Available memory, by the kubelet's formula and by the kernel's estimate",
                Unit::Bytes
            ),
            memory_pressure: registered!("memory_pressure", "1 while the memory pressure condition holds"),
            pid_pressure: registered!("pid_pressure", "1 while the PID pressure condition holds"),
            signals: SignalMetrics::new(&mut registry),
            disks: DiskMetrics::new(&mut registry),
            workloads: registered!("workloads", "Workloads that are watched"),
            inventory: InventoryMetrics::new(&mut registry),
            containers: ContainerMetrics::new(&mut registry),
            core_start: registered!("core_start", "How long the core's start took, part by part", Unit::Seconds),
            hook_attached: registered!("hook_attached", "1 for a hook that is attached, 0 for a missing one"),
            registry: Arc::new(registry),
        };
        metrics.begin(is_confined);
        metrics
    }

    /// The same with the thresholds of this configuration. How a kubelet derives those on containerfs depends on disks that are
    /// known later: they are as on one disk.
    #[must_use]
    pub(crate) fn with_thresholds(mut self, configuration: &Configuration) -> Self {
        let layout = DiskLayout { dedicated_image_fs: false, split_container_fs: false };
        self.signals.thresholds = configuration.policy_on(layout).thresholds;
        self
    }

    /// What counts a line of the log that was lost.
    pub fn count_lost_log_lines(&self) -> impl Fn() + Send + Sync + use<> {
        let lost = self.lost_log_lines.clone();
        move || _ = lost.inc()
    }

    /// Makes the series that an alert is on before there is a first event.
    fn begin(&self, is_confined: bool) {
        self.reporter_confined.set(is_confined.into());
        let known: [(&Family<Label, Counter>, _, &[&str]); 6] = [
            (&self.oom_kills, "scope", &["global", "cgroup", "cpuset", "numa-node"]),
            (
                &self.brakes,
                "outcome",
                &["frozen", "stopped", "thawed", "still-grows", "gone", "refused", "thaw-failed"],
            ),
            (&self.kernel_brakes, "outcome", &["applied", "refused", "repeated"]),
            (&self.tampered, "what", &["thresholds", "programs"]),
            (&self.lost_records, "ring", &["watch-queue", "inventory-queue"]),
            (&self.malformed_records, "side", &["agent", "kernel"]),
        ];
        for verdict in verdicts() {
            let _ = self.candidates.get_or_create(&[("verdict", name_of(verdict))]);
        }
        for (family, label, values) in known {
            for value in values {
                let _ = family.get_or_create(&[(label, (*value).into())]);
            }
        }
    }

    /// Sets the gauges of available memory and of swap to what was read at `time`. `cost`: how long that took.
    pub(crate) fn set_available(&self, reading: &MemReading, time: MonotonicNs, cost: Duration) {
        // As decisions take it: the huge page pool is available to no workload.
        let pool = reading.hugetlb.unwrap_or(Bytes::ZERO);
        let kubelet = reading.kubelet_available().saturating_sub(pool);
        let signed = |bytes: Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
        for (name, bytes) in [("kubelet", kubelet), ("kernel", reading.mem_available())] {
            self.available.get_or_create(&[("reading", name.into())]).set(signed(bytes));
        }
        let (available, capacity) = (signed(kubelet), signed(reading.total.saturating_sub(pool)));
        let time = i64::try_from(time.0).ok().map(StatsTime);
        self.signals.set(Signal::MemoryAvailable, Some(Reading { available, capacity, time }), Some(cost), epoch_ns());
        let swap = [
            ("total", Some(reading.swap_total)),
            ("free", Some(reading.swap_free)),
            ("zswap", reading.zswap),
            ("zswapped", reading.zswapped),
        ];
        // What the kernel does not report has no series.
        for (name, bytes) in swap.into_iter().filter_map(|(name, bytes)| Some((name, bytes?))) {
            self.inventory.swap.get_or_create(&[("what", name.into())]).set(signed(bytes));
        }
    }

    /// All of them as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// All verdicts that a candidate can have. The time in one is no part of its name.
fn verdicts() -> impl Iterator<Item = Verdict> {
    let protected = [
        Protected::Init,
        Protected::Agent,
        Protected::Listed,
        Protected::Critical,
        Protected::Static,
        Protected::Mirror,
        Protected::Unknown,
        Protected::Node,
    ];
    let others = [
        Verdict::Evicted,
        Verdict::EscalatedToKill,
        Verdict::OverLimit,
        Verdict::NotNeeded,
        Verdict::Terminating,
        Verdict::Stuck,
        Verdict::NoStatistics,
        Verdict::NothingToFree,
        Verdict::Looping(MonotonicNs(0)),
        Verdict::SparedByLoop,
        Verdict::ClassRemains,
        Verdict::TooLittle,
        Verdict::RateLimited,
        Verdict::NotResponsible,
    ];
    others.into_iter().chain(protected.map(Verdict::Protected))
}

/// A verdict as a label: `not-needed`, `protected-static`.
fn name_of(verdict: Verdict) -> String {
    match verdict {
        Verdict::Protected(why) => format!("protected-{}", variant(&why).0),
        verdict => variant(&verdict).0,
    }
}

/// Counts each candidate of a reported plan by its verdict.
pub(crate) fn count_candidates(metrics: &Metrics, plan: &Plan) {
    for ranked in &plan.ranked {
        count(&metrics.candidates, ("verdict", &name_of(ranked.verdict)));
    }
}

/// Sets a counter whose total the kernel side keeps.
pub(crate) fn store(family: &Family<Label, Counter>, label: (&'static str, &str), total: u64) {
    let counter = family.get_or_create(&[(label.0, label.1.to_owned())]);
    counter.inner().store(total, std::sync::atomic::Ordering::Relaxed);
}

/// Counts one.
pub(crate) fn count(family: &Family<Label, Counter>, label: (&'static str, &str)) {
    family.get_or_create(&[(label.0, label.1.to_owned())]).inc();
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::kubelet::{Pod, PodStats};
    use plimsoll_policy::{Config, NoVictim, Observation, Outcome, Workload, ranking};

    #[test]
    fn all_are_named_by_the_rules_of_open_metrics() {
        let metrics = Metrics::new(true);
        // A family shows up with its first member.
        for family in [&metrics.decisions, &metrics.failures, &metrics.program_runs, &metrics.program_recursion_misses]
        {
            store(family, ("program", "charge"), 3);
        }
        for family in [&metrics.source, &metrics.available, &metrics.inventory.swap, &metrics.hook_attached] {
            let _ = family.get_or_create(&[("reading", "kernel".into())]);
        }
        let _ = metrics.program_run_time.get_or_create(&[("program", "charge".into())]);
        let _ = metrics.core_start.get_or_create(&[("part", "armed".into())]);
        let text = metrics.text();
        for (name, kind) in [
            ("crossed_to_awake_seconds", "histogram"),
            ("crossed_to_stopped_seconds", "histogram"),
            ("crossed_to_memory_back_seconds", "histogram"),
            ("past_threshold_bytes", "histogram"),
            ("races_lost", "counter"),
            ("oom_kills", "counter"),
            ("oom_killed_containers", "counter"),
            ("kubelet_evictions", "counter"),
            ("shadow_evictions", "counter"),
            ("shadow_missed", "counter"),
            ("shadow_lead_seconds", "histogram"),
            ("kills", "counter"),
            ("kills_refused", "counter"),
            ("stuck_victims", "counter"),
            ("asked_to_end", "counter"),
            ("brakes", "counter"),
            ("kernel_brakes", "counter"),
            ("pods_held_down", "gauge"),
            ("decisions", "counter"),
            ("candidates", "counter"),
            ("lost_records", "counter"),
            ("lost_log_lines", "counter"),
            ("malformed_records", "counter"),
            ("broken_plans", "counter"),
            ("failures", "counter"),
            ("tampered", "counter"),
            ("program_run_time_seconds", "counter"),
            ("program_runs", "counter"),
            ("program_recursion_misses", "counter"),
            ("source", "gauge"),
            ("acting", "gauge"),
            ("reporter_confined", "gauge"),
            ("memory_available_bytes", "gauge"),
            ("swap_bytes", "gauge"),
            ("memory_pressure", "gauge"),
            ("pid_pressure", "gauge"),
            ("workloads", "gauge"),
            ("workloads_without_row", "gauge"),
            ("memory_outside_workloads_bytes", "gauge"),
            ("workload_descriptors", "gauge"),
            ("kernel_memory_bytes", "gauge"),
            ("sample_cost_seconds", "gauge"),
            ("samples_delayed", "counter"),
            ("core_start_seconds", "gauge"),
            ("hook_attached", "gauge"),
            ("build", "info"),
        ] {
            assert!(text.contains(&format!("# TYPE plimsoll_{name} {kind}\n")), "{name} in {text}");
            assert!(text.contains(&format!("# HELP plimsoll_{name} ")), "{name} in {text}");
        }
        assert!(text.contains("# UNIT plimsoll_past_threshold_bytes bytes\n"), "{text}");
        let build = format!("plimsoll_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&build), "{text}");
        assert!(text.contains("plimsoll_program_runs_total{program=\"charge\"} 3\n"), "{text}");
        assert!(text.contains("plimsoll_kernel_brakes_total{outcome=\"refused\"} 0\n"), "{text}");
        for verdict in ["evicted", "not-needed", "no-statistics", "protected-listed", "protected-init"] {
            assert!(
                text.contains(&format!("plimsoll_candidates_total{{verdict=\"{verdict}\"}} 0\n")),
                "{verdict} in {text}"
            );
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    const DOCUMENTED: &str = include_str!("../../docs/metrics.md");
    const RULES: &str = include_str!("../../deploy/prometheus/rules.yaml");

    /// The names of all metrics, without prefix and unit. A registry does not list them, and writes a family only with its
    /// first member.
    fn names() -> Vec<&'static str> {
        let sources = [
            include_str!("metrics.rs"),
            include_str!("witnessed.rs"),
            include_str!("comparison.rs"),
            include_str!("signal_metrics.rs"),
            include_str!("container_metrics.rs"),
        ];
        let calls = sources.iter().flat_map(|source| source.split("regist").skip(1));
        let name_in = |call: &'static str| {
            let (before, arguments) = call.split_once('(')?;
            let (name, _) = arguments.trim_start().strip_prefix('"')?.split_once('"')?;
            ["er", "er_with_unit", "ered!"].contains(&before).then_some(name)
        };
        calls.filter_map(name_in).collect()
    }

    /// What the series of a metric may be called, by its unit and kind.
    fn series(name: &str) -> impl Iterator<Item = String> {
        let units = ["", "_bytes", "_seconds", "_info"].into_iter();
        units.flat_map(move |unit| ["", "_total"].map(|end| format!("plimsoll_{name}{unit}{end}")))
    }

    #[test]
    fn each_metric_is_documented() {
        let names = names();
        assert!(names.len() > 60 && names.contains(&"races_lost") && names.contains(&"kubelet_evictions"), "{names:?}");
        for name in names {
            let is_documented = series(name).any(|full| DOCUMENTED.contains(&format!("`{full}`")));
            assert!(is_documented, "plimsoll_{name} is not in agent/docs/metrics.md");
        }
    }

    #[test]
    fn shipped_alerts_are_on_metrics_that_there_are() {
        let known: Vec<String> = names().into_iter().flat_map(series).collect();
        let words = |text: &'static str| {
            text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("plimsoll_"))
        };
        let used: Vec<&str> = words(RULES).collect();
        for name in &used {
            // With the right unit, too: with that it is documented.
            let is_documented = ["`", "{"].iter().any(|end| DOCUMENTED.contains(&format!("`{name}{end}")));
            let is_known = known.iter().any(|it| it == name) && is_documented;
            assert!(is_known, "{name} is no metric");
        }
        let (_, alerts) = DOCUMENTED.split_once("## What to alert on").expect("a section");
        let rows = alerts.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
        let asked: Vec<&str> = rows.filter_map(|row| row.split(" | ").next()).flat_map(words).collect();
        assert!(asked.len() > 10, "{asked:?}");
        for name in asked {
            assert!(used.contains(&name), "agent/docs/metrics.md advises an alert on {name}");
        }
        let count = |what: &str| RULES.matches(what).count();
        let rules = count("- alert: ");
        for what in ["expr: ", "for: ", "labels: {severity: ", "annotations:", "summary: "] {
            assert_eq!(count(what), rules, "{what}");
        }
        for outcome in [Outcome::NoVictim(NoVictim::NoCandidates), Outcome::Unattributed, Outcome::NoStatistics] {
            assert!(RULES.contains(&variant(&outcome).0), "{outcome}");
        }
        // The proxies are found by what their manifest has.
        let (monitor, proxies) = (
            include_str!("../../deploy/prometheus/podmonitor.yaml"),
            include_str!("../../deploy/kustomize/metrics/daemonset.yaml"),
        );
        for (monitored, there) in [
            ("app.kubernetes.io/name: plimsoll-metrics", "app.kubernetes.io/name: plimsoll-metrics"),
            ("- port: metrics", "- name: metrics"),
            ("path: /metrics", "--allow-paths=/metrics"),
        ] {
            assert!(monitor.contains(monitored) && proxies.contains(there), "{monitored}");
        }
    }

    #[test]
    fn each_verdict_begins_a_series_and_is_documented() {
        let (text, documented) = (Metrics::new(true).text(), include_str!("../../docs/explain.md"));
        let names: Vec<_> = verdicts().map(name_of).collect();
        assert!(["looping", "spared-by-loop", "over-limit"].iter().all(|name| names.iter().any(|it| it == name)));
        for name in names {
            assert!(text.contains(&format!("plimsoll_candidates_total{{verdict=\"{name}\"}} 0\n")), "{name}");
            let name = name.strip_prefix("protected-").unwrap_or(&name);
            assert!(documented.contains(&format!("`\"{name}\"`")), "{name} or its series is not documented");
        }
    }

    #[test]
    fn candidates_are_counted_by_verdict() {
        let metrics = Metrics::new(true);
        let workload = |protected, usage| Workload {
            facts: Pod { stats: Some(PodStats { working_set: Some(usage), ..PodStats::default() }), ..Pod::default() },
            protected,
            ..Workload::default()
        };
        let workloads = [workload(None, 5), workload(None, 0), workload(Some(Protected::Static), 7)];
        let observation = Observation { workloads: &workloads, ..Observation::default() };
        let mut plan = Plan::with_capacity(&Config::default(), workloads.len(), 0);
        ranking(&Config::default(), &observation, &mut plan);
        count_candidates(&metrics, &plan);
        count_candidates(&metrics, &plan);
        let text = metrics.text();
        for (verdict, times) in
            [("not-needed", 2), ("nothing-to-free", 2), ("protected-static", 2), ("protected-mirror", 0)]
        {
            let line = format!("plimsoll_candidates_total{{verdict=\"{verdict}\"}} {times}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
}
