//! Figures of containers as metrics: those that memory.high throttles, those that reach their memory.max the soonest, and
//! those that are near their pids.max.
//! The series of at most [`REPORTED_CONTAINERS`] are there at a time; one that is neither any more has none.

use std::sync::{Arc, Mutex};

use plimsoll_inventory::ContainerFigures;
use plimsoll_units::Bytes;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::lock;
use crate::metrics::FloatGauge;
use crate::names::{Cgroup, Names};
use crate::record::{ContainerRecord, REPORTED_CONTAINERS};

/// Which container: `cgroup`, and `pod` and `container` where they are known, else empty.
type Labels = [(&'static str, String); 3];

fn labels(Cgroup { path, pod, container }: Cgroup) -> Labels {
    [("cgroup", path), ("pod", pod.unwrap_or_default()), ("container", container.unwrap_or_default())]
}

/// The metrics. A clone has the same values.
#[derive(Clone, Default)]
pub(crate) struct ContainerMetrics {
    throttled: Gauge,
    is_throttled: Family<Labels, Gauge>,
    stall: Family<Labels, FloatGauge>,
    working_set: Family<Labels, Gauge>,
    rate: Family<Labels, Gauge>,
    distance: Family<Labels, Gauge>,
    forecast: Family<Labels, FloatGauge>,
    swapped: Family<Labels, Gauge>,
    swap_limit: Family<Labels, Gauge>,
    zswap: Family<Labels, Gauge>,
    tasks: Family<Labels, Gauge>,
    task_limit: Family<Labels, Gauge>,
    raised: Counter,
    not_raised: Counter,
    evicted: Counter,
    rows: Arc<Mutex<Rows>>,
}

/// Those that have series, by path, and those of a list that is not complete yet.
#[derive(Default)]
struct Rows {
    shown: Vec<(Vec<u8>, ContainerFigures)>,
    next: Vec<(Vec<u8>, ContainerFigures)>,
    throttled: u32,
}

impl Rows {
    fn remove(&mut self, path: &[u8]) {
        self.shown.retain(|(other, _)| other != path);
    }
}

impl ContainerMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { raised, not_raised, evicted, swapped, swap_limit, zswap, tasks, task_limit, .. } = metrics.clone();
        let Self { throttled, is_throttled, stall, working_set, rate, distance, forecast, .. } = metrics.clone();
        let help = "Containers that memory.high throttles, so that their tasks wait";
        registry.register("containers_throttled", help, throttled);
        registry.register("container_throttled", "1 for a container that memory.high throttles", is_throttled);
        let help = "The part of the time for which tasks of a throttled container wait for memory, from 0 to 1";
        registry.register("container_stall_ratio", help, stall);
        let help = "The working set of a container that is throttled or near its memory.max";
        registry.register_with_unit("container_working_set", help, Unit::Bytes, working_set);
        let help = "How fast it grows without page cache, in bytes a second, smoothed";
        registry.register("container_charge_rate", help, rate);
        let help = "How much it may take without page cache until its own memory.max";
        registry.register_with_unit("container_limit_distance", help, Unit::Bytes, distance);
        let help = "When it reaches its own memory.max at that rate and is killed by the OOM killer";
        registry.register_with_unit("container_oom_forecast", help, Unit::Seconds, forecast);
        let help = "What of its memory is in swap, compressed in memory or not";
        registry.register_with_unit("container_swap", help, Unit::Bytes, swapped);
        let help = "How much of its memory may be in swap; absent for no limit";
        registry.register_with_unit("container_swap_limit", help, Unit::Bytes, swap_limit);
        let help = "What of its swap is compressed in memory takes there";
        registry.register_with_unit("container_zswap", help, Unit::Bytes, zswap);
        registry.register("container_tasks", "How many tasks it has", tasks);
        registry.register("container_task_limit", "How many tasks it may have; absent for no limit", task_limit);
        let help = "How often memory.high of a throttled container was raised";
        registry.register("throttled_relaxed", help, raised);
        let help = "How often memory.high of a throttled container was ordered to be raised, and was not";
        registry.register("throttled_not_relaxed", help, not_raised);
        let help = "Pods that were evicted because memory.high throttled a container of theirs after it was raised";
        registry.register("throttled_pods_evicted", help, evicted);
        metrics
    }

    pub(crate) fn record(&self, record: &ContainerRecord<'_>, names: &Names) {
        let mut rows = lock(&self.rows);
        match *record {
            ContainerRecord::Raised { .. } => {
                self.raised.inc();
                return;
            }
            ContainerRecord::NotRaised { .. } => {
                self.not_raised.inc();
                return;
            }
            ContainerRecord::Victim { shadow, .. } => {
                self.evicted.inc_by(u64::from(!shadow));
                return;
            }
            ContainerRecord::Raising { .. } | ContainerRecord::InVain { .. } => return,
            ContainerRecord::Throttled { path, figures, .. } => {
                rows.remove(path);
                // The list that comes next has those that count most.
                rows.shown.truncate(REPORTED_CONTAINERS - 1);
                rows.shown.push((path.to_vec(), figures));
                rows.throttled = rows.throttled.saturating_add(1);
            }
            ContainerRecord::Relieved { path, .. } => {
                rows.remove(path);
                rows.throttled = rows.throttled.saturating_sub(1);
            }
            ContainerRecord::Begin { throttled } => {
                rows.next.clear();
                rows.throttled = throttled;
                return;
            }
            ContainerRecord::Figures { path, figures } => {
                if rows.next.len() < REPORTED_CONTAINERS {
                    rows.next.push((path.to_vec(), figures));
                }
                return;
            }
            ContainerRecord::End => rows.shown = std::mem::take(&mut rows.next),
        }
        self.show(&rows, names);
    }

    /// What another core had is not there any more.
    pub(crate) fn clear(&self) {
        let mut rows = lock(&self.rows);
        *rows = Rows::default();
        self.show(&rows, &Names::default());
    }

    fn show(&self, rows: &Rows, names: &Names) {
        let Self { throttled, is_throttled, stall, working_set, rate, distance, forecast, .. } = self;
        let Self { swapped, swap_limit, zswap, tasks, task_limit, .. } = self;
        throttled.set(rows.throttled.into());
        for family in [is_throttled, working_set, rate, distance, swapped, swap_limit, zswap, tasks, task_limit] {
            family.clear();
        }
        for family in [stall, forecast] {
            family.clear();
        }
        for (path, figures) in &rows.shown {
            let labels = labels(names.cgroup(path));
            let gauge = |family: &Family<Labels, Gauge>, value: Option<i64>| {
                if let Some(value) = value {
                    family.get_or_create(&labels).set(value);
                }
            };
            let bytes = |bytes: Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
            gauge(is_throttled, figures.is_throttled.then_some(1));
            gauge(working_set, figures.working_set.map(bytes));
            gauge(rate, figures.rate);
            gauge(distance, figures.distance.map(bytes));
            gauge(swapped, figures.swapped.map(bytes));
            gauge(swap_limit, figures.swap_limit.map(bytes));
            gauge(zswap, figures.zswap.map(bytes));
            let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            gauge(tasks, figures.tasks.map(count));
            gauge(task_limit, figures.task_limit.map(count));
            let float = |family: &Family<Labels, FloatGauge>, value: Option<f64>| {
                if let Some(value) = value {
                    family.get_or_create(&labels).set(value);
                }
            };
            float(stall, figures.stall.map(|stall| stall.share()));
            float(forecast, figures.forecast.map(|time| time.as_secs_f64()));
        }
    }
}
