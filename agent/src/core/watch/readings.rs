//! What each signal reads, reported for metrics. Nothing is decided by what is read here.

use core::time::Duration;

use plimsoll_inventory::DiskRole;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Scope;
use plimsoll_policy::kubelet::{NodeStats, Reading, Readings, Signal};
use plimsoll_units::MonotonicNs;

use super::Watch;
use super::sampling::{memory_stats, pid_stats};
use super::scopes::ScopeState;
use crate::record::ReadingsRecord;

/// How often they are looked at.
const PACE: Duration = Duration::from_secs(5);
/// What has not changed is reported this often, and before that nothing that changed by less than
const AGAIN: Duration = Duration::from_mins(1);
/// this part of all that there is. Each report wakes the reporter.
const PART: i64 = 512;

/// What was reported last.
#[derive(Debug, Default)]
pub(super) struct ReadingReports {
    looked: Option<MonotonicNs>,
    sent: Option<(Readings, MonotonicNs)>,
}

/// Whether one is much different, new or absent.
fn has_changed(before: &Readings, now: &Readings) -> bool {
    Signal::ALL.into_iter().any(|signal| match (before.get(signal), now.get(signal)) {
        (Some(before), Some(now)) => is_other(before, now),
        (before, now) => before.is_some() != now.is_some(),
    })
}

fn is_other(before: Reading, now: Reading) -> bool {
    before.capacity != now.capacity
        || before.available.abs_diff(now.available) > now.capacity.checked_div(PART).unwrap_or(0).unsigned_abs()
}

impl ReadingReports {
    /// Whether they are to be looked at now.
    fn take_due(&mut self, now: MonotonicNs) -> bool {
        let is_due = self.looked.is_none_or(|looked| now.since(looked) >= PACE);
        self.looked = if is_due { Some(now) } else { self.looked };
        is_due
    }

    /// Whether these are to be reported.
    fn take(&mut self, readings: &Readings, now: MonotonicNs) -> bool {
        let is_sent = self.sent.is_some_and(|(sent, at)| now.since(at) < AGAIN && !has_changed(&sent, readings));
        if !is_sent {
            self.sent = Some((*readings, now));
        }
        !is_sent
    }
}

impl Watch {
    /// Reports what the signals read, where that is due and different.
    pub(super) fn report_readings(&mut self, now: MonotonicNs) {
        if !self.readings.take_due(now) {
            return;
        }
        let record = self.signal_readings(now);
        if self.readings.take(&record.readings, now) {
            self.reporting.send(record);
            // A reporter that was started again does not have it.
            if self.enforcement.holds_down() {
                self.report_holds();
            }
        }
    }

    /// Memory as it was read last, tasks as they are, and disks as `services` says, by the age that is believed.
    fn signal_readings(&self, now: MonotonicNs) -> ReadingsRecord {
        let is_of_pods = |scope: &Scope| {
            self.engine.policy.thresholds_on(*scope, Signal::AllocatableMemoryAvailable).next().is_some()
        };
        let memory = |state: &ScopeState| state.reading.map(|memory| memory_stats(memory, state.read_at));
        let (node, pods) = (self.scopes.get(Scope::Node), self.scopes.all().find(is_of_pods));
        let pods = pods.map(|scope| self.scopes.get(scope));
        let [node_fs, image_fs, container_fs] = self.disks.stats(now);
        let begun = monotonic();
        let tasks = self.sampler.tasks().and_then(Result::ok);
        let tasks_cost = monotonic().since(begun);
        let readings = Readings::of(&NodeStats {
            memory: memory(node),
            pods: pods.and_then(memory),
            node_fs,
            image_fs,
            container_fs,
            pids: tasks.map(|tasks| pid_stats(tasks, begun)),
        });
        let cost = |signal| match signal {
            Signal::MemoryAvailable => Some(node.read_cost),
            Signal::AllocatableMemoryAvailable => pods.map(|state| state.read_cost),
            Signal::PidAvailable => Some(tasks_cost),
            on_disk => DiskRole::of(on_disk).and_then(|role| self.disks.cost(role)),
        };
        let costs = Signal::ALL.map(|signal| readings.get(signal).and_then(|_| cost(signal)));
        ReadingsRecord { readings, costs }
    }
}

#[cfg(test)]
mod tests {
    use super::super::disks::Disks;
    use super::super::sampling::stats_time;
    use super::super::testing::{Scene, slice_policy};
    use super::super::triggers::Trigger;
    use super::*;
    use crate::core::inventory::News;
    use crate::record::Record;
    use plimsoll_inventory::{DiskReading, Room};
    use plimsoll_policy::kubelet::{FsStats, PidStats};

    fn readings(free: u64, running: Option<i64>) -> Readings {
        let node_fs = FsStats { available: Some(free), capacity: Some(51_200), ..FsStats::default() };
        let pids = running.map(|running| PidStats { max: Some(1000), running: Some(running), time: None });
        Readings::of(&NodeStats { node_fs: Some(node_fs), pids, ..NodeStats::default() })
    }

    #[test]
    fn what_changed_is_reported_soon_and_the_rest_once_a_minute() {
        let mut reports = ReadingReports::default();
        let second = |seconds| MonotonicNs(0).after(Duration::from_secs(seconds));
        for (at, free, running, is_sent, why) in [
            (0, 5000, Some(5), true, "the first"),
            (5, 5100, Some(6), false, "by less than a part"),
            (10, 5101, Some(6), true, "bytes"),
            (15, 5101, Some(9), true, "tasks"),
            (20, 5101, None, true, "tasks are not read any more"),
            (79, 5101, None, false, "nothing"),
            (80, 5101, None, true, "it was long ago"),
        ] {
            assert_eq!(reports.take(&readings(free, running), second(at)), is_sent, "{why}");
        }
        assert_eq!([0, 4, 5, 9].map(|at| reports.take_due(second(at))), [true, false, true, false]);
    }

    #[test]
    fn each_signal_that_is_read_is_reported_with_its_time_and_cost() {
        let mut policy = slice_policy(10);
        policy.slices[0].thresholds[0].signal = Signal::AllocatableMemoryAvailable;
        let mut scene = Scene::with(policy);
        let configuration = plimsoll_config::parse("evictionHard: {nodefs.available: \"1\"}\n", "f").expect("in order");
        scene.watch.disks = Disks::new(configuration.disk_policy());
        let begun = monotonic();
        scene.watch.sample(&Trigger::new(begun));
        let ended = monotonic();
        let room = Some(Room { left: 1, all: 1000 });
        let disk = DiskReading { role: DiskRole::Node, bytes: room, inodes: room, at: ended, layout: None };
        scene.receive(News::Disk(disk, Duration::MAX));
        scene.settle();
        scene.frames();
        let now = monotonic();
        scene.watch.report_readings(now);
        scene.watch.report_readings(now);
        let frames = scene.frames();
        let reported: Vec<_> = frames
            .iter()
            .filter_map(|frame| match Record::read(frame) {
                Some(Record::Readings(record)) => Some(record),
                _ => None,
            })
            .collect();
        let [ReadingsRecord { readings, costs }] = &reported[..] else { panic!("{reported:?}") };
        let memory = readings.get(Signal::MemoryAvailable).expect("it is read");
        assert!(memory.available > 0 && memory.available <= memory.capacity, "{memory:?}");
        for signal in Signal::ALL {
            let time = readings.get(signal).and_then(|reading| reading.time);
            let cost = costs[signal as usize];
            match signal {
                Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => {
                    let sample = stats_time(begun)..=stats_time(ended);
                    assert!(time.is_some_and(|time| sample.contains(&time)), "{signal} {time:?} {sample:?}");
                    let cost = cost.expect("it is known");
                    assert!(cost > Duration::ZERO && cost <= ended.since(begun), "{signal} {cost:?}");
                }
                Signal::PidAvailable => {
                    assert!(time >= Some(stats_time(now)) && cost > Some(Duration::ZERO), "{time:?} {cost:?}");
                }
                Signal::NodeFsAvailable | Signal::NodeFsInodesFree => {
                    assert_eq!((time, cost), (Some(stats_time(ended)), Some(Duration::MAX)), "{signal}");
                }
                _ => assert_eq!((time, cost), (None, None), "{signal} was not read"),
            }
        }
    }
}
