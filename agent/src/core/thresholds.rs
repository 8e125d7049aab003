//! Where to ring next, from the lines that are configured and what was read.

use plimsoll_node::zoneinfo::Drift;
use plimsoll_policy::MemoryReading;
use plimsoll_policy::kubelet::Threshold;
use plimsoll_sense::{NodeThreshold, SliceThreshold};
use plimsoll_units::{Bytes, CgroupId, Pages};

/// Below all lines, the next ring comes when this much more is gone, or a sixteenth of the lowest line if that is more.
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
    /// The drift only grows: the kernel lets its counters drift less while kswapd is awake, and more again without a
    /// word. The reserve is reckoned from figures that move while they are read, so it alone is no news: it changes
    /// with the watermarks and, where `vm.lowmem_reserve_ratio` is set, with what the zones keep.
    pub(super) fn renewed(&self, read: Self) -> Option<Self> {
        let drift = Drift {
            kubelet: self.drift.kubelet.max(read.drift.kubelet),
            mem_available: self.drift.mem_available.max(read.drift.mem_available),
        };
        let same = drift == self.drift && (read.low_watermark, read.kept) == (self.low_watermark, self.kept);
        (!same).then_some(Self { drift, ..read })
    }
}

/// The highest line that `reading` is not below; below all of them, a step further down.
fn next(thresholds: &[Threshold], capacity: Bytes, reading: Bytes) -> Bytes {
    let armed = || thresholds.iter().filter_map(|threshold| threshold.bytes(capacity));
    let ahead = armed().filter(|line| reading >= *line).max();
    ahead.unwrap_or_else(|| {
        let step = STEP.max(Bytes(armed().min().unwrap_or(Bytes::ZERO).0 / 16));
        reading.saturating_sub(step)
    })
}

/// Whether a line that is watched is so near that the ring, early by the drift, would come again at once.
pub(super) fn is_near(thresholds: &[Threshold], memory: &MemoryReading, machine: &Machine) -> bool {
    let near = |reading: Bytes, drift: Pages| {
        let line = next(thresholds, memory.capacity, reading);
        reading < line.saturating_add(drift.to_bytes(machine.page_bytes))
    };
    near(memory.kubelet_available, machine.drift.kubelet)
        || memory.mem_available.is_some_and(|mem_available| near(mem_available, machine.drift.mem_available))
}

/// The node's threshold. Where memory is so near to it that the drift would ring it at once, the drift is left out: the
/// caller looks from time to time until it is clear of it.
pub(super) fn node(thresholds: &[Threshold], memory: &MemoryReading, machine: &Machine) -> Option<NodeThreshold> {
    if thresholds.is_empty() {
        return None;
    }
    let drift = if is_near(thresholds, memory, machine) { Drift::default() } else { machine.drift };
    Some(NodeThreshold {
        kubelet: next(thresholds, memory.capacity, memory.kubelet_available),
        mem_available: memory
            .mem_available
            .map_or(Bytes::ZERO, |mem_available| next(thresholds, memory.capacity, mem_available)),
        // Without the huge page pool, which may change at any time.
        total: Pages::from_bytes(memory.capacity, machine.page_bytes),
        reserve: machine.reserve,
        low_watermark: machine.low_watermark,
        kubelet_drift: drift.kubelet,
        mem_available_drift: drift.mem_available,
    })
}

/// A slice's threshold. The kernel compares what is charged, which holds `inactive_file` that is not counted as used.
pub(super) fn slice(
    cgroup: CgroupId,
    thresholds: &[Threshold],
    memory: &MemoryReading,
    inactive_file: Bytes,
) -> Option<SliceThreshold> {
    if thresholds.is_empty() {
        return None;
    }
    let line = next(thresholds, memory.capacity, memory.kubelet_available);
    let usage = memory.capacity.saturating_sub(line).saturating_add(inactive_file);
    // At its limit nothing is charged any more: a line there would never ring.
    Some(SliceThreshold { cgroup, usage: usage.min(memory.capacity.saturating_sub(STEP)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use plimsoll_policy::kubelet::{Line, Signal};

    const MACHINE: Machine = Machine {
        reserve: Pages(0),
        low_watermark: Pages(0),
        kept: Pages(0),
        drift: Drift { kubelet: Pages(128), mem_available: Pages(256) },
        page_bytes: 4096,
    };

    fn thresholds() -> Vec<Threshold> {
        let hard = Threshold::hard(Signal::MemoryAvailable, Line::bytes(Bytes::mib(100)));
        vec![hard, Threshold { line: Some(Line::bytes(Bytes::mib(200))), grace: Duration::from_mins(1), ..hard }]
    }

    fn memory(kubelet: u64, mem_available: u64) -> MemoryReading {
        MemoryReading {
            capacity: Bytes::mib(1000),
            kubelet_available: Bytes::mib(kubelet),
            mem_available: Some(Bytes::mib(mem_available)),
        }
    }

    #[test]
    fn each_reading_has_the_next_line_below_it() {
        for (kubelet, mem_available, expected) in [
            (500, 500, (200, 200)),
            (200, 199, (200, 100)),
            (150, 90, (100, 84)),
            // Below all: a step of a sixteenth of the lowest line.
            (50, 3, (44, 0)),
        ] {
            let line = node(&thresholds(), &memory(kubelet, mem_available), &MACHINE).expect("there are lines");
            let within_a_mib = |bytes: Bytes, mib: u64| bytes.0.abs_diff(mib << 20) < 1 << 20;
            assert!(within_a_mib(line.kubelet, expected.0), "{kubelet} {mem_available}: {:?}", line.kubelet);
            assert!(
                within_a_mib(line.mem_available, expected.1),
                "{kubelet} {mem_available}: {:?}",
                line.mem_available
            );
        }
        assert!(node(&[], &memory(1, 1), &MACHINE).is_none());
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
    fn near_a_line_the_drift_is_left_out() {
        // 256 pages are one mebibyte.
        for (mem_available, is_near) in [(202, false), (200, true), (101, false), (100, true), (500, false)] {
            let line = node(&thresholds(), &memory(500, mem_available), &MACHINE).expect("there are lines");
            let drift = if is_near { Drift::default() } else { MACHINE.drift };
            assert_eq!(
                (line.kubelet_drift, line.mem_available_drift),
                (drift.kubelet, drift.mem_available),
                "{mem_available}"
            );
        }
    }

    #[test]
    fn a_slice_rings_at_what_is_charged_and_always_below_its_limit() {
        let at = |available: u64, cache: u64| {
            let line = slice(CgroupId(7), &thresholds(), &memory(available, available), Bytes::mib(cache));
            line.expect("there are lines").usage.0 >> 20
        };
        assert_eq!(at(500, 0), 800);
        assert_eq!(at(500, 50), 850);
        assert_eq!(at(150, 0), 900);
        assert_eq!(at(150, 400), 996);
    }
}
