//! Which thresholds to arm next, from those that are configured and what was read.

use plimsoll_node::limits::TaskReading;
use plimsoll_node::zoneinfo::Drift;
use plimsoll_policy::MemoryReading;
use plimsoll_policy::kubelet::{Amount, Resource, Signal, Threshold};
use plimsoll_sense::{NodeThreshold, SliceThreshold, TaskThreshold};
use plimsoll_units::{Bytes, CgroupId, Pages};

/// Below all thresholds, the next event comes when this much more is gone, or a sixteenth of the lowest threshold if
/// that is more.
const STEP: Bytes = Bytes::mib(4);

/// What the kernel's programs need to know of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) reserve: Pages,
    pub(super) low_watermark: Pages,
    /// What the zones say that they keep: the reserve follows it.
    pub(super) kept: Pages,
    pub(super) drift: Drift,
    pub(super) page_bytes: u64,
}

impl Machine {
    /// What to go by after it was read again; `None`: as before.
    ///
    /// The drift only grows: the kernel lets its counters drift less while kswapd is awake, and more again without any
    /// sign. The reserve is computed from figures that move while they are read, so a change of it alone is passed over:
    /// it changes with the watermarks and, where `vm.lowmem_reserve_ratio` is set, with what the zones keep.
    pub(super) fn renewed(&self, read: Self) -> Option<Self> {
        let drift = Drift {
            kubelet: self.drift.kubelet.max(read.drift.kubelet),
            mem_available: self.drift.mem_available.max(read.drift.mem_available),
        };
        let same = drift == self.drift && (read.low_watermark, read.kept) == (self.low_watermark, self.kept);
        (!same).then_some(Self { drift, ..read })
    }
}

/// Those on memory, of the machine or of a slice.
fn configured(thresholds: &[Threshold], capacity: Bytes) -> impl Iterator<Item = Bytes> {
    let on_memory = thresholds.iter().filter(|threshold| threshold.signal.resource() == Resource::Memory);
    on_memory.filter_map(move |threshold| threshold.bytes(capacity))
}

/// The highest threshold that `reading` is not below.
fn ahead(thresholds: &[Threshold], capacity: Bytes, reading: Bytes) -> Option<Bytes> {
    configured(thresholds, capacity).filter(|at| reading >= *at).max()
}

/// The highest threshold that `reading` is not below; below all of them, a step further down.
fn next(thresholds: &[Threshold], capacity: Bytes, reading: Bytes) -> Bytes {
    ahead(thresholds, capacity, reading).unwrap_or_else(|| {
        let lowest = configured(thresholds, capacity).min().unwrap_or(Bytes::ZERO);
        reading.saturating_sub(STEP.max(Bytes(lowest.0 / 16)))
    })
}

/// The node's threshold, and whether memory is so near to one that is configured that the event, early by the drift, would come
/// at once: the caller samples from time to time until memory is clear of it. The drift of a reading is left out where it would
/// have the event come at once, also below all thresholds, where the step is smaller than the drift: samples become rarer there
/// all the same.
pub(super) fn node(
    thresholds: &[Threshold],
    memory: &MemoryReading,
    machine: &Machine,
) -> Option<(NodeThreshold, bool)> {
    configured(thresholds, memory.capacity).next()?;
    let mut is_near = false;
    let mut armed = |reading: Bytes, drift: Pages| {
        let at = next(thresholds, memory.capacity, reading);
        let is_within = reading < at.saturating_add(drift.to_bytes(machine.page_bytes));
        is_near |= is_within && ahead(thresholds, memory.capacity, reading).is_some();
        (at, if is_within { Pages(0) } else { drift })
    };
    let (kubelet, kubelet_drift) = armed(memory.kubelet_available, machine.drift.kubelet);
    let own = memory.mem_available.map(|reading| armed(reading, machine.drift.mem_available));
    let (mem_available, mem_available_drift) = own.unwrap_or((Bytes::ZERO, machine.drift.mem_available));
    let threshold = NodeThreshold {
        kubelet,
        mem_available,
        // Without the huge page pool, which may change at any time.
        total: Pages::from_bytes(memory.capacity, machine.page_bytes),
        reserve: machine.reserve,
        low_watermark: machine.low_watermark,
        kubelet_drift,
        mem_available_drift,
    };
    Some((threshold, is_near))
}

/// A drift of less than one in so many of a threshold is not worth waiting for.
const NARROW: u64 = 16;

/// Whether a reading may be on the wrong side of a threshold by the drift alone, and that is a good part of the threshold.
pub(super) fn is_uncertain(thresholds: &[Threshold], memory: &MemoryReading, machine: &Machine) -> bool {
    let is_within = |reading: Bytes, drift: Pages| {
        let drift = drift.to_bytes(machine.page_bytes).0;
        configured(thresholds, memory.capacity).any(|at| reading.0.abs_diff(at.0) < drift && drift >= at.0 / NARROW)
    };
    is_within(memory.kubelet_available, machine.drift.kubelet)
        || memory.mem_available.is_some_and(|reading| is_within(reading, machine.drift.mem_available))
}

/// Whether a slice's threshold is armed as if its page cache were used. No threshold can be crossed then before what is charged
/// comes to that, whatever replaces page cache meanwhile, so that nothing has to be read to see it. Where page cache is more
/// than half of what is left until the threshold, the event would come soon and for nothing.
pub(super) fn is_early(thresholds: &[Threshold], memory: &MemoryReading, inactive_file: Bytes) -> bool {
    let ahead = ahead(thresholds, memory.capacity, memory.kubelet_available);
    ahead.is_some_and(|at| inactive_file.0 <= memory.kubelet_available.saturating_sub(at).0 / 2)
}

/// A slice's threshold. The kernel compares what is charged, which holds `inactive_file` that is not counted as used: it is
/// left out where that can be ([`is_early`]).
///
/// `cgroup`: the slice, and its depth below the root cgroup.
pub(super) fn slice(
    (cgroup, level): (CgroupId, u16),
    thresholds: &[Threshold],
    memory: &MemoryReading,
    inactive_file: Bytes,
) -> Option<SliceThreshold> {
    if thresholds.is_empty() {
        return None;
    }
    let at = next(thresholds, memory.capacity, memory.kubelet_available);
    let not_used = if is_early(thresholds, memory, inactive_file) { Bytes::ZERO } else { inactive_file };
    let usage = memory.capacity.saturating_sub(at).saturating_add(not_used);
    // At its limit nothing is charged any more: there would be no event for a threshold there.
    Some(SliceThreshold { cgroup, level, usage: usage.min(memory.capacity.saturating_sub(STEP)) })
}

/// How much of a slice's memory can be taken without an event until it is below the next threshold: what replaces page
/// cache adds nothing to what is charged, and where no threshold is armed no charge submits an event. `None`: none can,
/// as where the event comes before that ([`is_early`]).
pub(super) fn unseen(
    thresholds: &[Threshold],
    memory: &MemoryReading,
    inactive_file: Bytes,
    is_armed: bool,
) -> Option<Bytes> {
    let ahead = ahead(thresholds, memory.capacity, memory.kubelet_available);
    let room = ahead.map(|at| memory.kubelet_available.saturating_sub(at));
    if is_armed {
        room.filter(|_| !is_early(thresholds, memory, inactive_file))
    } else {
        Some(room.unwrap_or(Bytes::ZERO))
    }
}

/// Below all thresholds, the next event comes when this many tasks more exist, or a sixteenth of the lowest threshold if
/// that is more.
const TASK_STEP: u64 = 16;

/// An amount of tasks, of which there are only whole ones.
fn whole(amount: Amount) -> u64 {
    u64::try_from(amount.rounded_up().max(0)).unwrap_or(u64::MAX)
}

/// How many tasks each threshold leaves, and how many it leaves with its minimum reclaim.
fn tasks_left(thresholds: &[Threshold], limit: u64) -> impl Iterator<Item = (u64, u64)> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let on_tasks = thresholds.iter().filter(|threshold| threshold.signal == Signal::PidAvailable);
    on_tasks.filter_map(move |threshold| {
        let at = threshold.amount?.of(limit);
        Some((whole(at), whole(at + threshold.min_reclaim.map_or(Amount::ZERO, |more| more.of(limit)))))
    })
}

/// Whether tasks are short: each workload's count then.
pub(super) fn is_short_of_tasks(thresholds: &[Threshold], tasks: &TaskReading) -> bool {
    tasks_left(thresholds, tasks.limit()).any(|(_, target)| tasks.available() < target)
}

/// How many tasks more there may be until the next threshold is crossed; absent below all of them.
pub(super) fn room_for_tasks(thresholds: &[Threshold], tasks: &TaskReading) -> Option<u64> {
    let left = tasks_left(thresholds, tasks.limit()).map(|(at, _)| at);
    left.filter_map(|at| tasks.available().checked_sub(at)).min()
}

/// The threshold of tasks: where the next one is crossed; below all of them a step further.
pub(super) fn tasks(thresholds: &[Threshold], tasks: &TaskReading) -> Option<TaskThreshold> {
    let (lowest, _) = tasks_left(thresholds, tasks.limit()).min()?;
    let more = room_for_tasks(thresholds, tasks).map_or(TASK_STEP.max(lowest / 16), |room| room.saturating_add(1));
    Some(TaskThreshold { count: u32::try_from(tasks.tasks.saturating_add(more)).unwrap_or(u32::MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use plimsoll_policy::kubelet::ThresholdAmount;
    use plimsoll_units::Percentage;

    const MACHINE: Machine = Machine {
        reserve: Pages(0),
        low_watermark: Pages(0),
        kept: Pages(0),
        drift: Drift { kubelet: Pages(128), mem_available: Pages(256) },
        page_bytes: 4096,
    };

    fn thresholds() -> Vec<Threshold> {
        let hard = Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes::mib(100)));
        vec![
            hard,
            Threshold { amount: Some(ThresholdAmount::bytes(Bytes::mib(200))), grace: Duration::from_mins(1), ..hard },
        ]
    }

    fn memory(kubelet: u64, mem_available: u64) -> MemoryReading {
        MemoryReading {
            capacity: Bytes::mib(1000),
            kubelet_available: Bytes::mib(kubelet),
            mem_available: Some(Bytes::mib(mem_available)),
        }
    }

    #[test]
    fn each_reading_has_the_next_threshold_below_it() {
        for (kubelet, mem_available, expected) in [
            (500, 500, (200, 200)),
            (200, 199, (200, 100)),
            (150, 90, (100, 84)),
            // Below all: a step of a sixteenth of the lowest threshold.
            (50, 3, (44, 0)),
        ] {
            let (armed, _) = node(&thresholds(), &memory(kubelet, mem_available), &MACHINE).expect("there are some");
            let within_a_mib = |bytes: Bytes, mib: u64| bytes.0.abs_diff(mib << 20) < 1 << 20;
            assert!(within_a_mib(armed.kubelet, expected.0), "{kubelet} {mem_available}: {:?}", armed.kubelet);
            assert!(
                within_a_mib(armed.mem_available, expected.1),
                "{kubelet} {mem_available}: {:?}",
                armed.mem_available
            );
        }
        assert!(node(&[], &memory(1, 1), &MACHINE).is_none());
        assert!(node(&on_tasks(), &memory(1, 1), &MACHINE).is_none(), "one on tasks is none on memory");
    }

    /// A hard threshold at 100 tasks and a soft one at a fifth, with 10 more to be reclaimed.
    fn on_tasks() -> Vec<Threshold> {
        let at = |tasks| ThresholdAmount::At(Amount::whole(tasks));
        let hard = Threshold { min_reclaim: Some(at(10)), ..Threshold::hard(Signal::PidAvailable, at(100)) };
        let soft = ThresholdAmount::Share(Percentage::of_one(0.2));
        vec![hard, Threshold { amount: Some(soft), grace: Duration::from_mins(1), ..hard }]
    }

    #[test]
    fn the_event_comes_with_the_task_that_crosses_the_next_threshold_and_below_all_of_them_a_step_further() {
        for (count, room, armed, is_short) in [
            // The soft one: of 1000 tasks, fewer than 200 are left from 801 on.
            (500, Some(300), 801, false),
            (790, Some(10), 801, false),
            (791, Some(9), 801, true),
            (800, Some(0), 801, true),
            (801, Some(99), 901, true),
            (900, Some(0), 901, true),
            (901, None, 917, true),
            // More than there can be, after the limit was lowered.
            (1200, None, 1216, true),
        ] {
            let reading = TaskReading { tasks: count, pid_max: 4000, threads_max: 1000 };
            assert_eq!(room_for_tasks(&on_tasks(), &reading), room, "{count}");
            assert_eq!(tasks(&on_tasks(), &reading).map(|armed| armed.count), Some(armed), "{count}");
            assert_eq!(is_short_of_tasks(&on_tasks(), &reading), is_short, "{count}");
            assert_eq!((tasks(&thresholds(), &reading), is_short_of_tasks(&thresholds(), &reading)), (None, false));
        }
    }

    #[test]
    fn thresholds_in_percent_follow_what_there_is() {
        let tenth = |signal| [Threshold::hard(signal, ThresholdAmount::Share(Percentage::of_one(0.1)))];
        for mib in [1000, 500, 2000] {
            let memory = MemoryReading {
                capacity: Bytes::mib(mib),
                kubelet_available: Bytes::mib(mib / 2),
                mem_available: Some(Bytes::mib(mib / 2)),
            };
            let (armed, _) = node(&tenth(Signal::MemoryAvailable), &memory, &MACHINE).expect("there is one");
            assert_eq!((armed.kubelet.0 >> 20, armed.total), (mib / 10, Pages::from_bytes(memory.capacity, 4096)));
            let of_pods = tenth(Signal::AllocatableMemoryAvailable);
            let slice = slice((CgroupId(7), 1), &of_pods, &memory, Bytes::ZERO).expect("there is one");
            assert_eq!(slice.usage.0.div_ceil(1 << 20), mib - mib / 10, "{mib}");
        }
        for (pid_max, threads_max, armed) in [(4000, 1000, 901), (4000, 2000, 1801), (500, 2000, 451)] {
            let reading = TaskReading { tasks: 100, pid_max, threads_max };
            let found = tasks(&tenth(Signal::PidAvailable), &reading).map(|armed| armed.count);
            assert_eq!(found, Some(armed), "{pid_max} {threads_max}");
        }
    }

    #[test]
    fn what_was_read_again_counts_where_watermarks_or_what_zones_keep_moved_or_the_drift_grew() {
        let drift = |kubelet, mem_available| Drift { kubelet: Pages(kubelet), mem_available: Pages(mem_available) };
        let read =
            |reserve, low, drift| Machine { reserve: Pages(reserve), low_watermark: Pages(low), drift, ..MACHINE };
        let keeping = |kept, drift| Machine { kept: Pages(kept), ..read(9, 0, drift) };
        for (read, expected) in [
            (read(9, 0, drift(128, 256)), None),
            (read(9, 0, drift(12, 25)), None),
            (read(9, 7, drift(12, 25)), Some(read(9, 7, drift(128, 256)))),
            (keeping(5, drift(12, 25)), Some(keeping(5, drift(128, 256)))),
            (read(9, 0, drift(130, 25)), Some(read(9, 0, drift(130, 256)))),
        ] {
            assert_eq!(MACHINE.renewed(read), expected, "{read:?}");
        }
    }

    #[test]
    fn near_a_threshold_the_drift_is_left_out() {
        // 256 pages are one mebibyte.
        for (mem_available, is_near) in [(202, false), (200, true), (101, false), (100, true), (500, false)] {
            let (armed, near) = node(&thresholds(), &memory(500, mem_available), &MACHINE).expect("there are some");
            assert_eq!(near, is_near, "{mem_available}");
            let own = if is_near { Pages(0) } else { MACHINE.drift.mem_available };
            let drift = (armed.kubelet_drift, armed.mem_available_drift);
            assert_eq!(drift, (MACHINE.drift.kubelet, own), "{mem_available}");
        }
    }

    #[test]
    fn below_all_thresholds_a_drift_that_is_more_than_the_step_is_left_out_and_memory_is_near_none() {
        let many_cpus = Machine {
            drift: Drift { mem_available: Pages::from_bytes(Bytes::mib(7), 4096), ..MACHINE.drift },
            ..MACHINE
        };
        for (mem_available, is_near, is_early) in
            [(90, false, false), (106, true, false), (107, false, true), (206, true, false), (207, false, true)]
        {
            let (armed, near) = node(&thresholds(), &memory(500, mem_available), &many_cpus).expect("there are some");
            assert_eq!((near, armed.mem_available_drift != Pages(0)), (is_near, is_early), "{mem_available}");
        }
        // By the one reading it is below all of them, and by the other one near to the higher one.
        let (_, near) = node(&thresholds(), &memory(90, 201), &many_cpus).expect("there are some");
        assert!(near);
        // Page cache in use: the reading that is clear of all thresholds has its drift.
        let drift = Drift { kubelet: Pages::from_bytes(Bytes::mib(7), 4096), ..many_cpus.drift };
        let (armed, near) =
            node(&thresholds(), &memory(90, 500), &Machine { drift, ..MACHINE }).expect("there are some");
        assert_eq!((armed.kubelet_drift, armed.mem_available_drift, near), (Pages(0), drift.mem_available, false));
    }

    #[test]
    fn a_reading_is_uncertain_where_the_drift_is_much_of_a_threshold_and_reaches_it() {
        let large = |mib: u64| Machine {
            drift: Drift { kubelet: Pages(0), mem_available: Pages::from_bytes(Bytes::mib(mib), 4096) },
            ..MACHINE
        };
        for (drift, mem_available, expected) in [
            (40, 161, true),
            (40, 239, true),
            (40, 240, false),
            (40, 60, false),
            (40, 61, true),
            (751, 900, true),
            (751, 951, false),
            // A sixteenth of a hundred, and of two hundred.
            (7, 94, true),
            (7, 194, false),
            (6, 99, false),
        ] {
            let memory = memory(500, mem_available);
            assert_eq!(is_uncertain(&thresholds(), &memory, &large(drift)), expected, "{drift} {mem_available}");
        }
        let by_kubelet = Machine { drift: Drift { kubelet: Pages(1 << 13), ..Drift::default() }, ..MACHINE };
        assert!(is_uncertain(&thresholds(), &memory(190, 500), &by_kubelet));
    }

    #[test]
    fn a_slice_has_its_event_at_what_is_charged_and_always_below_its_limit() {
        let at = |available: u64, cache: u64| {
            let armed = slice((CgroupId(7), 1), &thresholds(), &memory(available, available), Bytes::mib(cache));
            armed.expect("there are some").usage.0 >> 20
        };
        assert_eq!(at(500, 0), 800);
        // With up to half of what is left, 300 MiB, as if it were used.
        assert_eq!([at(500, 150), at(500, 151)], [800, 951]);
        assert_eq!(at(150, 0), 900);
        assert_eq!([at(150, 25), at(150, 26)], [900, 926]);
        assert_eq!(at(150, 400), 996);
        // Below all of them, where the next one is a step.
        assert_eq!(at(50, 1), 957);
    }

    #[test]
    fn no_threshold_of_a_slice_is_crossed_without_an_event_before_what_is_charged_comes_to_it() {
        for (available, cache) in [(1000, 0), (500, 1), (500, 150), (101, 0), (201, 0), (220, 10)] {
            let (memory, inactive_file) = (memory(available, available), Bytes::mib(cache));
            assert!(is_early(&thresholds(), &memory, inactive_file), "{available} {cache}");
            let armed = slice((CgroupId(7), 1), &thresholds(), &memory, inactive_file).expect("there are some");
            // One byte less is charged, and all page cache was replaced.
            let left = memory.capacity.0 - (armed.usage.0 - 1);
            let crossed = |at: Bytes| memory.kubelet_available >= at && Bytes(left) < at;
            assert!(!configured(&thresholds(), memory.capacity).any(crossed), "{available} {cache}");
        }
    }

    #[test]
    fn page_cache_and_a_limit_that_is_reached_hide_what_is_taken() {
        for (kubelet, inactive_file, is_armed, room) in [
            (500, 0, true, None),
            (500, 150, true, None),
            (500, 151, true, Some(300)),
            (150, 26, true, Some(50)),
            (150, 0, false, Some(50)),
            // Below all thresholds, samples are due anyway where an event can come.
            (50, 1, true, None),
            (50, 1, false, Some(0)),
        ] {
            let memory = MemoryReading { mem_available: None, ..memory(kubelet, 0) };
            let unseen = unseen(&thresholds(), &memory, Bytes::mib(inactive_file), is_armed);
            assert_eq!(unseen, room.map(Bytes::mib), "{kubelet} {inactive_file} {is_armed}");
        }
    }
}
