//! Readings of the node and the slices, and the observation that a decision is taken from.

use core::time::Duration;

use plimsoll_inventory::{Observed, Table};
use plimsoll_node::Fault;
use plimsoll_node::limits::{TaskLimits, TaskReading};
use plimsoll_node::meminfo::MemInfo;
use plimsoll_node::pressure::MemoryPressure;
use plimsoll_policy::kubelet::{DiskLayout, MemoryStats, NodeStats, PidStats, Readings, StatsTime};
use plimsoll_policy::{EvictionPolicy, MemoryReading, Observation, Scope, Stall};
use plimsoll_units::{Bytes, MonotonicNs};

use super::scopes::ScopeState;

/// Earlier stall totals are so far apart at least.
const STALL_APART: Duration = Duration::from_millis(500);

/// Memory of the machine as it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct MachineMemory {
    /// With the huge page pool still in it.
    pub(super) reading: MemoryReading,
    /// What the kernel's estimate leaves out.
    pub(super) withheld: Bytes,
    /// Memory that only its own users could have.
    pub(super) huge_page_pool: Bytes,
}

impl MachineMemory {
    /// As it is decided by: the kubelet takes the huge page pool for available and knows one reading.
    pub(super) fn decided_by(&self, policy: EvictionPolicy) -> MemoryReading {
        let Self { reading, huge_page_pool, .. } = *self;
        match policy {
            EvictionPolicy::Kubelet => MemoryReading { mem_available: None, ..reading },
            EvictionPolicy::Plimsoll | EvictionPolicy::OpenShift3 => MemoryReading {
                capacity: reading.capacity.saturating_sub(huge_page_pool),
                kubelet_available: reading.kubelet_available.saturating_sub(huge_page_pool),
                ..reading
            },
        }
    }
}

/// The stall since boot at two earlier times, for as long as it is read.
#[derive(Debug)]
struct StallWindow(Option<[(MonotonicNs, Duration); 2]>);

impl StallWindow {
    /// Takes in what it is now, and gives what it grew by since the time before the last that was kept.
    fn read(&mut self, total: Option<Duration>, now: MonotonicNs) -> Option<Stall> {
        let Some(total) = total else {
            self.0 = None;
            return None;
        };
        let kept = match self.0 {
            None => [(now, total); 2],
            Some([_, last]) if now.since(last.0) >= STALL_APART => [last, (now, total)],
            Some(kept) => kept,
        };
        self.0 = Some(kept);
        let (since, before) = kept[0];
        let window = now.since(since);
        (window >= STALL_APART).then(|| Stall { full: total.saturating_sub(before), window })
    }
}

/// Reads the machine.
pub(in crate::core) struct Sampler {
    meminfo: MemInfo,
    pressure: Option<MemoryPressure>,
    /// Absent where the kernel has no such figures.
    tasks: Option<TaskLimits>,
    stall: StallWindow,
}

impl Sampler {
    pub(in crate::core) const fn new(
        meminfo: MemInfo,
        pressure: Option<MemoryPressure>,
        tasks: Option<TaskLimits>,
    ) -> Self {
        Self { meminfo, pressure, tasks, stall: StallWindow(None) }
    }

    /// How many tasks there are now, and how many there can be; absent where the kernel has no such figures.
    pub(super) fn tasks(&self) -> Option<Result<TaskReading, Fault>> {
        self.tasks.as_ref().map(TaskLimits::read)
    }

    /// Memory of the machine now; absent where it cannot be read.
    pub(super) fn machine(&self) -> Option<MachineMemory> {
        let reading = self.meminfo.read().ok()?;
        Some(MachineMemory {
            reading: MemoryReading {
                capacity: reading.total,
                kubelet_available: reading.kubelet_available(),
                mem_available: Some(reading.mem_available()),
            },
            withheld: reading.withheld(),
            huge_page_pool: reading.hugetlb.unwrap_or(Bytes::ZERO),
        })
    }

    /// Memory of a scope now, as it is decided by.
    pub(super) fn reading(&self, scope: Scope, policy: EvictionPolicy, table: &Table) -> Option<MemoryReading> {
        match scope {
            Scope::Node => self.machine().map(|memory| memory.decided_by(policy)),
            Scope::Slice(slice) => table.slice_reading(slice.0.into()),
        }
    }

    /// The stall of the last while; absent where it is not needed, and at first. It is read only where it is: a reader of
    /// /proc/pressure/memory waits for the others (`avgs_lock`, kernel/sched/psi.c), which any user may be, with the lowest
    /// priority there is.
    pub(super) fn stall(&mut self, is_needed: bool, now: MonotonicNs) -> Option<Stall> {
        let total = self.pressure.as_ref().filter(|_| is_needed).and_then(|file| Some(file.read().ok()?.full?.total));
        self.stall.read(total, now)
    }
}

/// What one sample read of the machine. All scopes are decided on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) taken: MonotonicNs,
    /// When the workloads were read as well.
    pub(super) completed: MonotonicNs,
    pub(super) machine: MachineMemory,
    /// Absent where no threshold is on them, and where they could not be read.
    pub(super) tasks: Option<TaskReading>,
    pub(super) stall: Option<Stall>,
    /// A threshold of any scope on memory is crossed.
    pub(super) is_below: bool,
}

impl Sample {
    pub(super) fn observation<'w>(
        &self,
        scope: Scope,
        state: &ScopeState,
        workloads: &'w [Observed],
    ) -> Observation<'w> {
        // The pool is a part of what the statistics say, as in the kubelet's.
        let MachineMemory { reading, withheld, huge_page_pool } = self.machine;
        let (memory, withheld, huge_page_pool, tasks) = match scope {
            Scope::Node => (Some(reading), Some(withheld), huge_page_pool, self.tasks),
            Scope::Slice(_) => (state.reading, None, Bytes::ZERO, None),
        };
        Observation {
            taken: self.taken,
            scope,
            // No disk is read here, so that which there are makes no difference.
            layout: Some(DiskLayout::Single),
            readings: Some(statistics(memory, tasks, self.taken)),
            mem_available: memory.and_then(|memory| memory.mem_available),
            mem_available_at: Some(stats_time(self.taken)),
            withheld,
            huge_page_pool,
            stall: self.stall,
            reclaimed: state.reclaimed,
            workloads,
            ..Observation::default()
        }
    }
}

/// Memory and tasks as the statistics of a node have them. What could not be read is absent.
fn statistics(memory: Option<MemoryReading>, tasks: Option<TaskReading>, taken: MonotonicNs) -> Readings {
    Readings::of(&NodeStats {
        memory: memory.map(|memory| memory_stats(memory, taken)),
        pids: tasks.map(|tasks| pid_stats(tasks, taken)),
        ..NodeStats::default()
    })
}

/// By the kubelet's formula.
pub(super) fn memory_stats(memory: MemoryReading, taken: MonotonicNs) -> MemoryStats {
    MemoryStats {
        available: Some(memory.kubelet_available.0),
        working_set: Some(memory.capacity.saturating_sub(memory.kubelet_available).0),
        time: Some(stats_time(taken)),
    }
}

pub(super) fn pid_stats(tasks: TaskReading, taken: MonotonicNs) -> PidStats {
    PidStats {
        max: i64::try_from(tasks.limit()).ok(),
        running: i64::try_from(tasks.tasks).ok(),
        time: Some(stats_time(taken)),
    }
}

/// The same time on the clock of statistics.
pub(super) fn stats_time(at: MonotonicNs) -> StatsTime {
    StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stall_is_of_half_a_second_at_least_and_of_no_time_in_which_it_was_not_read() {
        let mut window = StallWindow(None);
        let mut read = |total: Option<u64>, at: u64| {
            let stall = window.read(total.map(Duration::from_millis), MonotonicNs(0).after(Duration::from_millis(at)));
            stall.map(|Stall { full, window }| (full.as_millis(), window.as_millis()))
        };
        let steps = [
            (Some(7000), 1000, None),
            (Some(7100), 1499, None),
            (Some(7200), 1500, Some((200, 500))),
            (Some(7250), 1600, Some((250, 600))),
            (Some(7900), 2500, Some((700, 1000))),
            (None, 2600, None),
            (Some(9000), 9000, None),
            (Some(9300), 9500, Some((300, 500))),
        ];
        for (total, at, expected) in steps {
            assert_eq!(read(total, at), expected, "{at}");
        }
    }
}
