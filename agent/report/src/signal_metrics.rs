//! What each signal reads, when, and what that costs, as gauges by the kubelet's names of the signals.

use std::hash::Hash;
use std::time::Duration;

use plimsoll_node::clock::epoch_ns;
use plimsoll_policy::kubelet::{Reading, Signal, StatsTime, Threshold};
use plimsoll_policy::message::SIGNAL_LABEL;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{Atomic, Gauge};
use prometheus_client::registry::{Registry, Unit};

use crate::metrics::{FloatGauge, Label};
use crate::record::ReadingsRecord;

/// A signal has a series as long as it is read.
#[derive(Clone, Default)]
pub(crate) struct SignalMetrics {
    available: Family<Label, Gauge>,
    capacity: Family<Label, Gauge>,
    threshold: Family<[(&'static str, String); 2], Gauge>,
    /// The configured ones, on all signals.
    pub(crate) thresholds: Vec<Threshold>,
    read_timestamp: Family<Label, FloatGauge>,
    read_cost: Family<Label, FloatGauge>,
}

impl SignalMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { available, capacity, threshold, thresholds: _, read_timestamp, read_cost } = metrics.clone();
        let help = "What an eviction signal reads: bytes, inodes or process ids";
        registry.register("signal_available", help, available);
        let help = "All that there is of what an eviction signal reads: bytes, inodes or process ids";
        registry.register("signal_capacity", help, capacity);
        let help = "Where an eviction signal is met, by whether at once (hard) or after a grace period (soft): bytes, inodes or \
                    process ids";
        registry.register("signal_threshold", help, threshold);
        let help = "When an eviction signal was read, in Unix time";
        registry.register_with_unit("signal_read_timestamp", help, Unit::Seconds, read_timestamp);
        let help = "How long the last reading of an eviction signal took, in wall time of the thread that reads";
        registry.register_with_unit("signal_read_cost", help, Unit::Seconds, read_cost);
        metrics
    }

    /// Sets the gauges to what the core read; those of signals that it did not read are gone.
    pub(crate) fn record(&self, record: &ReadingsRecord) {
        let ReadingsRecord { readings, costs } = record;
        // Once, so that signals that were read together have one time.
        let epoch_ns = epoch_ns();
        for (signal, cost) in Signal::ALL.into_iter().zip(costs) {
            self.set(signal, readings.get(signal), *cost, epoch_ns);
        }
    }

    /// Sets the gauges of one, or removes them where it is not read. `epoch_ns`: see [`epoch_ns`].
    pub(crate) fn set(&self, signal: Signal, reading: Option<Reading>, cost: Option<Duration>, epoch_ns: Option<i64>) {
        let label = [(SIGNAL_LABEL, signal.name().to_owned())];
        show(&self.available, &label, reading.map(|reading| reading.available));
        show(&self.capacity, &label, reading.map(|reading| reading.capacity));
        for threshold in self.thresholds.iter().filter(|threshold| threshold.signal == signal) {
            let kind = if threshold.is_hard() { "hard" } else { "soft" };
            let label = [(SIGNAL_LABEL, signal.name().to_owned()), ("kind", kind.to_owned())];
            let at = reading.and_then(|reading| Some(threshold.amount?.of(reading.capacity).to_bytes()));
            show(&self.threshold, &label, at.map(|at| i64::try_from(at.0).unwrap_or(i64::MAX)));
        }
        let timestamp = reading.and_then(|reading| unix_seconds(reading.time?, epoch_ns?));
        show(&self.read_timestamp, &label, timestamp);
        show(&self.read_cost, &label, reading.and(cost).map(|cost| cost.as_secs_f64()));
    }

    /// What another core read is not known to this one.
    pub(crate) fn clear(&self) {
        self.available.clear();
        self.capacity.clear();
        self.threshold.clear();
        self.read_timestamp.clear();
        self.read_cost.clear();
    }
}

/// Sets one series, or removes it where there is no value.
fn show<L, N, A>(family: &Family<L, Gauge<N, A>>, label: &L, value: Option<N>)
where
    L: Clone + Eq + Hash,
    A: Atomic<N> + Default,
{
    match value {
        Some(value) => _ = family.get_or_create(label).set(value),
        None => _ = family.remove(label),
    }
}

/// A time of the monotonic clock as Unix time. Absent before 1970.
fn unix_seconds(time: StatsTime, epoch_ns: i64) -> Option<f64> {
    let since_1970 = u64::try_from(time.0.checked_add(epoch_ns)?).ok()?;
    Some(Duration::from_nanos(since_1970).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use plimsoll_policy::kubelet::{FsStats, MemoryStats, NodeStats, PidStats, Readings};

    /// A signal costs as many quarters of a second as there are signals before it.
    fn record(stats: &NodeStats) -> ReadingsRecord {
        let readings = Readings::of(stats);
        let cost = |place| Duration::from_millis(250) * place;
        let costs = Signal::ALL.map(|signal| readings.get(signal).and(Some(cost(signal as u32))));
        ReadingsRecord { readings, costs }
    }

    #[test]
    fn each_signal_has_a_series_while_it_is_read() {
        let metrics = Metrics::new(true);
        let time = Some(StatsTime(0));
        let memory = |mib: u64| Some(MemoryStats { available: Some(mib), working_set: Some(1000), time });
        let fs = |bytes: u64| {
            Some(FsStats { available: Some(bytes), capacity: Some(99), inodes_free: Some(7), inodes: Some(70), time })
        };
        let stats = NodeStats {
            memory: memory(1),
            pods: memory(2),
            node_fs: fs(3),
            image_fs: fs(4),
            container_fs: fs(5),
            pids: Some(PidStats { max: Some(10), running: Some(12), time }),
        };
        metrics.signals.record(&record(&stats));
        let text = metrics.text();
        for (signal, available, capacity, cost) in [
            ("memory.available", 1, 1001, "0.0"),
            ("allocatableMemory.available", 2, 1002, "0.25"),
            ("nodefs.available", 3, 99, "0.5"),
            ("nodefs.inodesFree", 7, 70, "0.75"),
            ("imagefs.available", 4, 99, "1.0"),
            ("imagefs.inodesFree", 7, 70, "1.25"),
            ("containerfs.available", 5, 99, "1.5"),
            ("containerfs.inodesFree", 7, 70, "1.75"),
            ("pid.available", -2, 10, "2.0"),
        ] {
            for (name, value) in [
                ("available", available.to_string()),
                ("capacity", capacity.to_string()),
                ("read_cost_seconds", cost.to_owned()),
            ] {
                let line = format!("plimsoll_signal_{name}{{eviction_signal=\"{signal}\"}} {value}\n");
                assert!(text.contains(&line), "{line} in {text}");
            }
        }
        let timestamps = text.lines().filter_map(|line| line.strip_prefix("plimsoll_signal_read_timestamp_seconds{"));
        let timestamps: Vec<_> = timestamps.filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        assert_eq!(timestamps.len(), Signal::ALL.len(), "{text}");
        assert!(timestamps.iter().all(|time| *time == timestamps[0]), "they were read at one time: {timestamps:?}");
        metrics.signals.record(&record(&NodeStats { memory: memory(8), ..NodeStats::default() }));
        let text = metrics.text();
        let series = text.lines().filter(|line| line.starts_with("plimsoll_signal_"));
        assert_eq!(series.count(), 4, "what is not read has none: {text}");
        metrics.signals.clear();
        assert!(!metrics.text().contains("eviction_signal="));
    }

    #[test]
    fn a_threshold_has_a_series_while_its_signal_is_read_a_percentage_by_the_capacity() {
        let text = "evictionHard: {memory.available: 100Mi, nodefs.inodesFree: 5%}\n\
                    evictionSoft: {memory.available: 10%}\nevictionSoftGracePeriod: {memory.available: 1m}\n";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let metrics = Metrics::new(true).with_thresholds(&configuration);
        let set = |signal, capacity: Option<i64>| {
            let reading = capacity.map(|capacity| Reading { available: 1, capacity, time: None });
            metrics.signals.set(signal, reading, None, None);
            let text = metrics.text();
            let series =
                text.lines().filter_map(|line| line.strip_prefix("plimsoll_signal_threshold{eviction_signal="));
            let mut series: Vec<String> = series.map(str::to_owned).collect();
            series.sort_unstable();
            series
        };
        let hard = "\"memory.available\",kind=\"hard\"} 104857600";
        let soft = "\"memory.available\",kind=\"soft\"} 1000";
        assert_eq!(set(Signal::MemoryAvailable, Some(10_000)), [hard, soft]);
        assert_eq!(set(Signal::PidAvailable, Some(7)), [hard, soft], "there is none on it");
        let inodes = "\"nodefs.inodesFree\",kind=\"hard\"} 10";
        assert_eq!(set(Signal::NodeFsInodesFree, Some(200)), [hard, soft, inodes]);
        assert_eq!(set(Signal::MemoryAvailable, None), [inodes]);
        metrics.signals.clear();
        assert!(!metrics.text().contains("plimsoll_signal_threshold{"));
    }

    #[test]
    fn a_time_is_unix_time_and_has_no_series_where_it_is_none() {
        let metrics = Metrics::new(true);
        let epoch = Some(1_700_000_000_000_000_000);
        let series = |time, epoch| {
            let reading = Reading { available: 1, capacity: 2, time };
            metrics.signals.set(Signal::PidAvailable, Some(reading), Some(Duration::MAX), epoch);
            let text = metrics.text();
            assert!(text.contains("plimsoll_signal_read_cost_seconds{eviction_signal=\"pid.available\"} 1"), "{text}");
            let name = "plimsoll_signal_read_timestamp_seconds{eviction_signal=\"pid.available\"} ";
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.to_owned()))
        };
        let time = Some(StatsTime(500_000_000));
        assert_eq!(series(time, epoch).as_deref(), Some("1700000000.5"));
        for (time, epoch) in
            [(None, epoch), (time, None), (Some(StatsTime(i64::MAX)), epoch), (time, Some(-1_000_000_000))]
        {
            assert_eq!(series(time, epoch), None, "{time:?} {epoch:?}");
        }
    }
}
