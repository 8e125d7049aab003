//! An observation, put together from its parts, as a trace has it.

use plimsoll_config::Configuration;
use plimsoll_policy::{MemoryReading, Scope};
use plimsoll_replay::trace::{Memory, Owner, Reclaimed, Sample, Slice, Stall, Terminating, Workload};
use plimsoll_units::MonotonicNs;

use super::plan::ns;
use crate::log::escaped;
use crate::record::Record;

/// Looks of the core on their way into a trace.
#[derive(Default)]
pub(super) struct Observed {
    look: Option<Sample>,
    /// Looks of which a part was lost since one was written.
    missing: u32,
}

impl Observed {
    /// Takes a part in. Gives the look that it completes.
    pub(super) fn take(&mut self, record: &Record<'_>, configuration: &Configuration) -> Option<Sample> {
        let path = |scope: Scope| match scope {
            Scope::Node => None,
            Scope::Slice(slice) => {
                Some(configuration.machine.slices.get(usize::from(slice.0))?.path.as_str().to_owned())
            }
        };
        match *record {
            Record::Observed { taken, made, memory, huge_page_pool, stall } => {
                // Its end was lost.
                self.missing += u32::from(self.look.is_some());
                self.look = Some(Sample {
                    at_ns: taken,
                    made_ns: Some(made),
                    memory: Some(of_memory(memory)),
                    huge_page_pool_bytes: huge_page_pool,
                    stall: stall.map(|stall| Stall { full_ns: ns(stall.full), window_ns: ns(stall.window) }),
                    ..Sample::default()
                });
            }
            Record::ObservedSlice { index, memory } => {
                let slice = configuration.machine.slices.get(usize::from(index));
                if let (Some(look), Some(slice)) = (&mut self.look, slice) {
                    let Memory { capacity_bytes, kubelet_bytes: available_bytes, mem_available_bytes } =
                        of_memory(memory);
                    let path = slice.path.as_str().to_owned();
                    look.slices.push(Slice { path, capacity_bytes, available_bytes, mem_available_bytes });
                }
            }
            Record::ObservedReclaim { scope, reclaimed } => {
                if let Some(look) = &mut self.look {
                    let at_ns = MonotonicNs(u64::try_from(reclaimed.at.0).unwrap_or(0));
                    look.reclaimed.push(Reclaimed { slice: path(scope), order: reclaimed.order, at_ns });
                }
            }
            Record::ObservedWorkload {
                id,
                owner,
                usage,
                reservation,
                priority,
                started,
                terminating,
                empty,
                grows_while_frozen,
                path,
            } => {
                if let Some(look) = &mut self.look {
                    look.workloads.push(Workload {
                        cgroup: escaped(path),
                        id,
                        owner: owner.map(|owner| Owner { id: owner.id, request_bytes: owner.request }),
                        usage_bytes: usage,
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
                        ..Workload::default()
                    });
                }
            }
            Record::ObservedEnd { workloads } => {
                let whole = self.look.take().filter(|look| look.workloads.len() == workloads as usize);
                let missing = std::mem::take(&mut self.missing);
                if let Some(look) = whole {
                    return Some(Sample { missing, ..look });
                }
                self.missing = missing + 1;
            }
            _ => {}
        }
        None
    }

    /// A look that was complete was not written.
    pub(super) fn lost(&mut self, look: &Sample) {
        self.missing += look.missing + 1;
    }
}

fn of_memory(memory: MemoryReading) -> Memory {
    let MemoryReading { capacity, kubelet_available, mem_available } = memory;
    Memory { capacity_bytes: capacity, kubelet_bytes: kubelet_available, mem_available_bytes: mem_available }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::{Bytes, CgroupId};

    #[test]
    fn only_a_whole_look_is_written_and_those_that_are_missing_are_counted() {
        let configuration = plimsoll_config::parse("", "f").expect("it is in order");
        let memory = MemoryReading {
            capacity: Bytes::mib(9),
            kubelet_available: Bytes::mib(5),
            mem_available: Some(Bytes::mib(4)),
        };
        let begin = Record::Observed {
            taken: MonotonicNs(7),
            made: MonotonicNs(8),
            memory,
            huge_page_pool: Bytes::mib(1),
            stall: None,
        };
        let workload = Record::ObservedWorkload {
            id: CgroupId(3),
            owner: None,
            usage: Some(Bytes::mib(2)),
            reservation: Bytes::ZERO,
            priority: -1,
            started: MonotonicNs(1),
            terminating: None,
            empty: false,
            grows_while_frozen: false,
            path: b"work.slice/a",
        };
        let end = Record::ObservedEnd { workloads: 1 };
        let mut observed = Observed::default();
        let mut take = |record| observed.take(&record, &configuration);
        // The begin, the workload, or the end is lost.
        for lost in [[workload, end], [begin, end], [begin, workload]] {
            for record in lost {
                assert_eq!(take(record), None);
            }
        }
        assert_eq!((take(begin), take(workload)), (None, None));
        let look = take(end).expect("it is whole");
        assert_eq!((look.missing, look.made_ns, look.workloads.len()), (3, Some(MonotonicNs(8)), 1));
        assert_eq!(look.workloads[0].cgroup, "work.slice/a");
        observed.lost(&look);
        let mut take = |record| observed.take(&record, &configuration);
        assert_eq!((take(begin), take(workload)), (None, None));
        assert_eq!(take(end).map(|look| look.missing), Some(4));
    }
}
