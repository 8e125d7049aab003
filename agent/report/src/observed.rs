//! An observation, put together from its parts, as a trace has it.

use plimsoll_config::Configuration;
use plimsoll_policy::{Scope, SliceId};
use plimsoll_units::MonotonicNs;

use crate::fields::nanoseconds as ns;
use crate::record::{ObservationRecord, ObservedTasks};
use crate::text::escaped;
use crate::trace::{Memory, Owner, Pod, Reclaimed, Sample, Slice, Stall, Tasks, Terminating, Workload};

/// Samples of the core on their way into a trace.
#[derive(Default)]
pub(crate) struct Observed {
    sample: Option<Sample>,
    /// Samples of which a part was lost since one was written.
    missing: u32,
}

impl Observed {
    /// Takes a part in. Gives the sample that it completes.
    pub(crate) fn take(&mut self, record: &ObservationRecord<'_>, configuration: &Configuration) -> Option<Sample> {
        let path = |scope: Scope| match scope {
            Scope::Node => None,
            Scope::Slice(slice) => configuration.slice_name(slice).map(str::to_owned),
        };
        match *record {
            ObservationRecord::Begin { taken, made, memory, withheld, huge_page_pool, tasks, stall } => {
                // Its end was lost.
                self.missing += u32::from(self.sample.is_some());
                self.sample = Some(Sample {
                    at_ns: taken,
                    made_ns: Some(made),
                    memory: Some(memory.into()),
                    withheld_bytes: withheld,
                    huge_page_pool_bytes: huge_page_pool,
                    tasks: tasks.map(|ObservedTasks { count, limit }| Tasks { count, limit }),
                    stall: stall.map(|stall| Stall { full_ns: ns(stall.full), window_ns: ns(stall.window) }),
                    ..Sample::default()
                });
            }
            ObservationRecord::Slice { index, memory } => {
                let path = path(Scope::Slice(SliceId(index)));
                if let (Some(sample), Some(path)) = (&mut self.sample, path) {
                    let Memory { capacity_bytes, kubelet_bytes: available_bytes, mem_available_bytes } = memory.into();
                    sample.slices.push(Slice { path, capacity_bytes, available_bytes, mem_available_bytes });
                }
            }
            ObservationRecord::Reclaim { scope, reclaimed } => {
                if let Some(sample) = &mut self.sample {
                    let at_ns = MonotonicNs(u64::try_from(reclaimed.at.0).unwrap_or(0));
                    sample.reclaimed.push(Reclaimed { slice: path(scope), order: reclaimed.order, at_ns });
                }
            }
            ObservationRecord::Workload {
                id,
                owner,
                usage,
                settled,
                tasks,
                reservation,
                priority,
                started,
                terminating,
                returns_at_most,
                empty,
                grows_while_frozen,
                pod,
                path,
            } => {
                if let Some(sample) = &mut self.sample {
                    sample.workloads.push(Workload {
                        cgroup: escaped(path),
                        id,
                        owner: owner.map(|owner| Owner { id: owner.id, request_bytes: owner.request }),
                        usage_bytes: usage,
                        settled_bytes: settled,
                        tasks,
                        empty,
                        grows_while_frozen,
                        reservation_bytes: reservation,
                        priority,
                        started_ns: started,
                        terminating: terminating.map(|it| match it.until {
                            _ if it.is_refused => Terminating::Refused,
                            _ if it.is_stuck => Terminating::Stuck,
                            Some(until_ns) => Terminating::Graceful { until_ns },
                            None => Terminating::Killed,
                        }),
                        returns_at_most_bytes: returns_at_most,
                        protected: pod.and_then(|pod| pod.protected),
                        pod: pod.map(|pod| Pod::new(pod.uid, pod.qos, pod.grace_seconds, pod.daemon_set)),
                        ..Workload::default()
                    });
                }
            }
            ObservationRecord::End { workloads } => {
                let whole = self.sample.take().filter(|sample| sample.workloads.len() == workloads as usize);
                let missing = std::mem::take(&mut self.missing);
                if let Some(sample) = whole {
                    return Some(Sample { missing, ..sample });
                }
                self.missing = missing + 1;
            }
        }
        None
    }

    /// A sample that was complete, before which so many are missing, was not written.
    pub(crate) fn lost(&mut self, missing: u32) {
        self.missing += missing + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::MemoryReading;
    use plimsoll_units::{Bytes, CgroupId};

    #[test]
    fn only_a_whole_sample_is_written_and_missing_ones_are_counted() {
        let configuration = plimsoll_config::parse("", "f").expect("it is in order");
        let memory = MemoryReading {
            capacity: Bytes::mib(9),
            kubelet_available: Bytes::mib(5),
            mem_available: Some(Bytes::mib(4)),
        };
        let begin = ObservationRecord::Begin {
            taken: MonotonicNs(7),
            made: MonotonicNs(8),
            memory,
            withheld: Some(Bytes::mib(3)),
            huge_page_pool: Bytes::mib(1),
            tasks: Some(ObservedTasks { count: 90, limit: 100 }),
            stall: None,
        };
        let workload = ObservationRecord::Workload {
            id: CgroupId(3),
            owner: None,
            usage: Some(Bytes::mib(2)),
            settled: None,
            tasks: Some(7),
            reservation: Bytes::ZERO,
            priority: -1,
            started: MonotonicNs(1),
            terminating: None,
            returns_at_most: Some(Bytes::mib(1)),
            empty: false,
            grows_while_frozen: false,
            pod: None,
            path: b"work.slice/a",
        };
        let end = ObservationRecord::End { workloads: 1 };
        let mut observed = Observed::default();
        let mut take = |record| observed.take(&record, &configuration);
        // The begin, the workload, or the end is lost.
        for lost in [[workload, end], [begin, end], [begin, workload]] {
            for record in lost {
                assert_eq!(take(record), None);
            }
        }
        assert_eq!((take(begin), take(workload)), (None, None));
        let sample = take(end).expect("it is whole");
        assert_eq!((sample.missing, sample.made_ns, sample.workloads.len()), (3, Some(MonotonicNs(8)), 1));
        assert_eq!(sample.workloads[0].cgroup, "work.slice/a");
        assert_eq!((sample.tasks, sample.workloads[0].tasks), (Some(Tasks { count: 90, limit: 100 }), Some(7)));
        assert_eq!(sample.workloads[0].returns_at_most_bytes, Some(Bytes::mib(1)));
        observed.lost(sample.missing);
        let mut take = |record| observed.take(&record, &configuration);
        assert_eq!((take(begin), take(workload)), (None, None));
        assert_eq!(take(end).map(|sample| sample.missing), Some(4));
    }
}
