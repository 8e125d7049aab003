//! What each signal reads, as gauges by the kubelet's names of the signals.

use plimsoll_policy::kubelet::{Reading, Signal};
use plimsoll_policy::message::SIGNAL_LABEL;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::Label;

/// A signal has a series as long as it is read.
#[derive(Clone, Default)]
pub(crate) struct SignalMetrics {
    available: Family<Label, Gauge>,
    capacity: Family<Label, Gauge>,
}

impl SignalMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { available, capacity } = metrics.clone();
        let help = "What an eviction signal reads: bytes, inodes or process ids";
        registry.register("signal_available", help, available);
        let help = "All that there is of what an eviction signal reads: bytes, inodes or process ids";
        registry.register("signal_capacity", help, capacity);
        metrics
    }

    /// Sets the gauges of one, or removes them where it is not read.
    pub(crate) fn set(&self, signal: Signal, reading: Option<Reading>) {
        let label = [(SIGNAL_LABEL, signal.name().to_owned())];
        if let Some(Reading { available, capacity, time: _ }) = reading {
            self.available.get_or_create(&label).set(available);
            self.capacity.get_or_create(&label).set(capacity);
        } else {
            self.available.remove(&label);
            self.capacity.remove(&label);
        }
    }

    /// What another core read is not known to this one.
    pub(crate) fn clear(&self) {
        self.available.clear();
        self.capacity.clear();
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;
    use plimsoll_policy::kubelet::{FsStats, MemoryStats, NodeStats, PidStats, Readings};

    #[test]
    fn each_signal_has_a_series_while_it_is_read() {
        let metrics = Metrics::new(true);
        let memory = |mib: u64| Some(MemoryStats { available: Some(mib), working_set: Some(1000), time: None });
        let fs = |bytes: u64| {
            Some(FsStats {
                available: Some(bytes),
                capacity: Some(99),
                inodes_free: Some(7),
                inodes: Some(70),
                time: None,
            })
        };
        let stats = NodeStats {
            memory: memory(1),
            pods: memory(2),
            node_fs: fs(3),
            image_fs: fs(4),
            container_fs: fs(5),
            pids: Some(PidStats { max: Some(10), running: Some(12), time: None }),
        };
        metrics.set_readings(&Readings::of(&stats));
        let text = metrics.text();
        for (signal, available, capacity) in [
            ("memory.available", 1, 1001),
            ("allocatableMemory.available", 2, 1002),
            ("nodefs.available", 3, 99),
            ("nodefs.inodesFree", 7, 70),
            ("imagefs.available", 4, 99),
            ("imagefs.inodesFree", 7, 70),
            ("containerfs.available", 5, 99),
            ("containerfs.inodesFree", 7, 70),
            ("pid.available", -2, 10),
        ] {
            for (name, value) in [("available", available), ("capacity", capacity)] {
                let line = format!("plimsoll_signal_{name}{{eviction_signal=\"{signal}\"}} {value}\n");
                assert!(text.contains(&line), "{line} in {text}");
            }
        }
        metrics.set_readings(&Readings::of(&NodeStats { memory: memory(8), ..NodeStats::default() }));
        let text = metrics.text();
        let series = text.lines().filter(|line| line.starts_with("plimsoll_signal_"));
        assert_eq!(series.count(), 2, "what is not read has none: {text}");
        metrics.signals.clear();
        assert!(!metrics.text().contains("eviction_signal="));
    }
}
