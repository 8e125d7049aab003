//! How far this machine and its slices are from each threshold that is configured. A threshold whose figure cannot be
//! read here is named with the reason.

use std::path::PathBuf;

use plimsoll_config::Configuration;
use plimsoll_node::limits::{TaskLimits, TaskReading};
use plimsoll_node::meminfo::MemReading;
use plimsoll_policy::MemoryReading;
use plimsoll_policy::kubelet::{Signal, Threshold, ThresholdAmount};
use plimsoll_replay::trace::Sample;
use plimsoll_units::{Bytes, Quantity};
use serde::Serialize;

use crate::observe::{Figures, Observer};

/// How far the machine or a slice is from a threshold on its memory, in bytes; below zero: it is crossed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Distance {
    /// The slice; absent for the machine.
    pub(super) slice: Option<String>,
    pub(super) hard: bool,
    pub(super) threshold_bytes: Bytes,
    pub(super) kubelet_bytes: i128,
    pub(super) mem_available_bytes: Option<i128>,
}

/// What there is of something, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amounts {
    capacity: u64,
    available: u64,
}

/// In what a signal counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unit {
    Bytes,
    Inodes,
    Processes,
}

/// A threshold on something else than memory, or one whose figure cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Other {
    /// The signal, `swap`, or `memory.available of` a slice.
    pub(super) signal: String,
    pub(super) hard: bool,
    pub(super) unit: Unit,
    /// The threshold as it is configured.
    pub(super) written: Option<String>,
    pub(super) threshold: Option<u64>,
    pub(super) distance: Option<i128>,
    /// What was read, or why nothing was.
    pub(super) source: String,
}

/// Where figures are read, and those that are read already.
pub(super) struct Places {
    /// The file system of it is nodefs.
    kubelet: PathBuf,
    tasks: Result<TaskReading, String>,
    /// The cgroup of all pods, by its path.
    pods: Option<(String, Figures)>,
}

impl Places {
    pub(super) fn new(configuration: &Configuration, observer: &Observer) -> Self {
        let tasks = TaskLimits::open().map_err(|error| error.to_string());
        let tasks = tasks.and_then(|limits| limits.read().map_err(|fault| fault.to_string()));
        Self { kubelet: configuration.kubelet_root(), tasks, pods: observer.all_pods() }
    }

    /// The figure of this signal and where it was read, or why it was not.
    fn read(&self, signal: Signal) -> Result<(Amounts, String), String> {
        match signal {
            Signal::NodeFsAvailable => self.node_fs(|fs| Amounts {
                capacity: fs.f_blocks.saturating_mul(fs.f_frsize),
                available: fs.f_bavail.saturating_mul(fs.f_frsize),
            }),
            Signal::NodeFsInodesFree => self.node_fs(|fs| Amounts { capacity: fs.f_files, available: fs.f_ffree }),
            Signal::PidAvailable => self.pids(),
            Signal::AllocatableMemoryAvailable => self.of_pods(),
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => {
                Err("only the container runtime knows where its images are".to_owned())
            }
            Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => {
                Err("the kubelet takes the threshold of nodefs or imagefs in its place".to_owned())
            }
            Signal::MemoryAvailable => Err("/proc/meminfo cannot be read".to_owned()),
        }
    }

    fn node_fs(&self, of: impl Fn(&rustix::fs::StatVfs) -> Amounts) -> Result<(Amounts, String), String> {
        let place = self.kubelet.display();
        let fs = rustix::fs::statvfs(&self.kubelet).map_err(|error| format!("{place}: {error}"))?;
        Ok((of(&fs), format!("the file system of {place}")))
    }

    /// As the kubelet computes it: threads against the lesser of both bounds.
    fn pids(&self) -> Result<(Amounts, String), String> {
        let reading = self.tasks.as_ref().map_err(String::clone)?;
        let amounts = Amounts { capacity: reading.limit(), available: reading.available() };
        Ok((amounts, "threads against the lesser of pid_max and threads-max".to_owned()))
    }

    /// As the kubelet computes it: the limit of all pods less their working set.
    fn of_pods(&self) -> Result<(Amounts, String), String> {
        let (name, figures) = self.pods.as_ref().ok_or("there is no kubepods cgroup here")?;
        let max = figures.max.ok_or_else(|| format!("{name} has no memory.max"))?;
        let used = figures.working_set().ok_or_else(|| format!("memory.current of {name} cannot be read"))?;
        let amounts = Amounts { capacity: max.0, available: max.saturating_sub(used).0 };
        Ok((amounts, format!("memory.max of {name} less its working set")))
    }
}

/// `machine`: its memory, as it was decided by.
pub(super) fn distances(
    configuration: &Configuration,
    sample: &Sample,
    machine: Option<MemoryReading>,
) -> Vec<Distance> {
    let of = |slice: Option<&str>, thresholds: &[Threshold], memory: MemoryReading| -> Vec<Distance> {
        let distance = |threshold: &Threshold| {
            let at = threshold.bytes(memory.capacity)?;
            let from = |available: Bytes| i128::from(available.0) - i128::from(at.0);
            Some(Distance {
                slice: slice.map(str::to_owned),
                hard: threshold.is_hard(),
                threshold_bytes: at,
                kubelet_bytes: from(memory.kubelet_available),
                mem_available_bytes: memory.mem_available.map(from),
            })
        };
        let on_memory = thresholds.iter().filter(|threshold| threshold.signal == Signal::MemoryAvailable);
        on_memory.filter_map(distance).collect()
    };
    let node = machine.map(|memory| of(None, &configuration.policy.thresholds, memory));
    let slices = configuration.machine.slices.iter().zip(&configuration.policy.slices).filter_map(|(slice, own)| {
        let reading = slice_memory(sample, slice.path.as_str())?;
        Some(of(Some(slice.path.as_str()), &own.thresholds, reading))
    });
    node.into_iter().chain(slices).flatten().collect()
}

/// The memory of a slice below its own limit.
pub(super) fn slice_memory(sample: &Sample, path: &str) -> Option<MemoryReading> {
    let seen = sample.slices.iter().find(|seen| seen.path == path)?;
    Some(MemoryReading {
        capacity: seen.capacity_bytes,
        kubelet_available: seen.available_bytes,
        mem_available: seen.mem_available_bytes,
    })
}

/// Every threshold that [`distances`] leaves out.
pub(super) fn others(
    configuration: &Configuration,
    sample: &Sample,
    reading: &MemReading,
    places: &Places,
    observer: &Observer,
) -> Vec<Other> {
    let of_kubelet = configuration
        .kubelet
        .thresholds
        .iter()
        .filter(|threshold| threshold.signal != Signal::MemoryAvailable || sample.memory.is_none());
    let of_kubelet = of_kubelet.map(|threshold| {
        let written = configuration.kubelet.eviction.written(threshold).map(|(_, _, text)| text.to_owned());
        Other { written, ..other(threshold, places) }
    });
    let mut others: Vec<Other> = of_kubelet.collect();
    if let Some(swap) = configuration.policy.swap {
        others.push(of_swap(swap.free, swap.grace.is_zero(), reading));
    }
    for (slice, own) in configuration.machine.slices.iter().zip(&configuration.policy.slices) {
        let path = slice.path.as_str();
        if slice_memory(sample, path).is_some() {
            continue;
        }
        let is_there = observer.folder(path.as_bytes()).is_some_and(|folder| folder.is_dir());
        let why = if is_there { "it has no memory.max, or it cannot be read" } else { "there is no such cgroup here" };
        others.extend(own.thresholds.iter().map(|threshold| Other {
            signal: format!("memory.available of {path}"),
            hard: threshold.is_hard(),
            unit: Unit::Bytes,
            written: None,
            threshold: None,
            distance: None,
            source: why.to_owned(),
        }));
    }
    others
}

fn other(threshold: &Threshold<Quantity>, places: &Places) -> Other {
    let of = |capacity: u64| threshold.exact().bytes(Bytes(capacity)).map(|at| at.0);
    let (at, distance, source) = match places.read(threshold.signal) {
        Ok((Amounts { capacity, available }, source)) => {
            let at = of(capacity);
            (at, at.map(|at| i128::from(available) - i128::from(at)), source)
        }
        Err(why) => {
            let is_absolute = matches!(threshold.amount, Some(ThresholdAmount::At(_)));
            (of(0).filter(|_| is_absolute), None, why)
        }
    };
    Other {
        signal: threshold.signal.to_string(),
        hard: threshold.is_hard(),
        unit: match threshold.signal {
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree | Signal::ContainerFsInodesFree => Unit::Inodes,
            Signal::PidAvailable => Unit::Processes,
            Signal::MemoryAvailable
            | Signal::AllocatableMemoryAvailable
            | Signal::NodeFsAvailable
            | Signal::ImageFsAvailable
            | Signal::ContainerFsAvailable => Unit::Bytes,
        },
        written: None,
        threshold: at,
        distance,
        source,
    }
}

fn of_swap(free: ThresholdAmount, hard: bool, reading: &MemReading) -> Other {
    let at = free.of_bytes(reading.swap_total).0;
    let has_swap = reading.swap_total > Bytes::ZERO;
    Other {
        signal: "swap.free".to_owned(),
        hard,
        unit: Unit::Bytes,
        written: None,
        threshold: has_swap.then_some(at),
        distance: has_swap.then(|| i128::from(reading.swap_free.0) - i128::from(at)),
        source: if has_swap { "/proc/meminfo" } else { "there is no swap here" }.to_owned(),
    }
}

/// Places that are not this machine's.
#[cfg(test)]
pub(super) fn places(kubelet: &std::path::Path, tasks: Result<TaskReading, String>, pods: Option<Figures>) -> Places {
    Places { kubelet: kubelet.to_owned(), tasks, pods: pods.map(|pods| ("kubepods".to_owned(), pods)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::tree;
    use plimsoll_replay::trace::Slice;

    const TEXT: &str = "evictionHard: {memory.available: 1Mi, nodefs.available: 1Ki, nodefs.inodesFree: 0.0001%, \
                        imagefs.available: 15%, containerfs.available: 1Gi, pid.available: 10%}\n\
                        evictionSoft: {pid.available: 90%}\nevictionSoftGracePeriod: {pid.available: 1m}\n\
                        swap: {free: 1Mi}\n\
                        machine: {slices: [{path: none.slice, evictionHard: {memory.available: 1Mi}}, \
                        {path: a.slice, evictionHard: {memory.available: 1Mi}}]}";

    #[test]
    fn every_threshold_has_a_distance_or_a_reason() {
        let cgroups = tree(&[("kubepods", 700, 0, 100, 0, 1000), ("a.slice", 5, 0, 0, 0, 0)]);
        let tasks = Ok(TaskReading { tasks: 200, pid_max: 4000, threads_max: 1000 });
        let configuration = plimsoll_config::parse(TEXT, "f").expect("it is in order");
        let observer = Observer::new(&configuration, Some(cgroups.path()), &crate::observe::Own::default());
        let sample = observer.sample();
        let mut reading = observer.memory().expect("this machine's memory");
        (reading.swap_total, reading.swap_free) = (Bytes::mib(4), Bytes::mib(3));
        let pods = observer.figures(b"kubepods");
        let places = places(cgroups.path(), tasks, pods);
        let others = others(&configuration, &sample, &reading, &places, &observer);
        let reported = |signal: &str, hard: bool| {
            let mut all = others.iter().filter(|it| it.signal == signal && it.hard == hard);
            all.next().unwrap_or_else(|| panic!("{signal}: {others:?}"))
        };
        for (signal, hard, threshold, distance) in [
            ("pid.available", true, Some(100), Some(700)),
            // The nearest to nine tenths in 32 bits is below it.
            ("pid.available", false, Some(899), Some(-99)),
            ("allocatableMemory.available", true, Some(1 << 20), Some(400 - (1 << 20))),
            ("imagefs.available", true, None, None),
            ("containerfs.available", true, Some(1 << 30), None),
            ("swap.free", false, Some(1 << 20), Some(2 << 20)),
            ("memory.available of none.slice", true, None, None),
            ("memory.available of a.slice", true, None, None),
        ] {
            let found = reported(signal, hard);
            assert_eq!((found.threshold, found.distance), (threshold, distance), "{signal} {}", found.source);
            assert!(!found.source.is_empty());
        }
        let node_fs = reported("nodefs.available", true);
        assert!(
            node_fs.unit == Unit::Bytes && node_fs.threshold == Some(1024) && node_fs.distance.is_some(),
            "{node_fs:?}"
        );
        assert_eq!(reported("nodefs.inodesFree", true).unit, Unit::Inodes);
        assert!(reported("nodefs.inodesFree", true).distance.is_some());
        assert_eq!(reported("imagefs.available", true).written.as_deref(), Some("15%"));
        assert_eq!(reported("pid.available", false).written.as_deref(), Some("90%"));
        assert_eq!(reported("allocatableMemory.available", true).written.as_deref(), Some("1Mi"));
        assert!(others.iter().all(|it| it.signal != "memory.available"), "the machine's own is among the distances");
        assert_eq!(distances(&configuration, &sample, sample.memory.map(Into::into)).len(), 1);
    }

    #[test]
    fn a_slice_is_judged_by_both_readings_as_the_core_does() {
        let text = "machine: {slices: [{path: a, evictionHard: {memory.available: 300}}]}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        for (mem_available_bytes, reported) in [(None, None), (Some(Bytes(700)), Some(400))] {
            let (capacity_bytes, available_bytes) = (Bytes(1000), Bytes(200));
            let slice = Slice { path: "a".to_owned(), capacity_bytes, available_bytes, mem_available_bytes };
            let sample = Sample { slices: vec![slice], ..Sample::default() };
            let distances = distances(&configuration, &sample, None);
            let of_slice = distances.iter().find(|it| it.slice.is_some()).expect("it has a threshold");
            assert_eq!((of_slice.kubelet_bytes, of_slice.mem_available_bytes), (-100, reported));
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let nowhere = std::path::Path::new("/nowhere at all");
        let places = places(nowhere, Err("there is no /proc".to_owned()), None);
        for (signal, why) in [
            (Signal::NodeFsAvailable, "/nowhere at all: No such file"),
            (Signal::NodeFsInodesFree, "/nowhere at all: No such file"),
            (Signal::PidAvailable, "there is no /proc"),
            (Signal::AllocatableMemoryAvailable, "there is no kubepods cgroup here"),
        ] {
            let refused = places.read(signal).expect_err("there is nothing");
            assert!(refused.starts_with(why), "{refused}");
        }
    }
}
