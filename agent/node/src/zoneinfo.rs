//! /proc/zoneinfo: how far the kernel's cheap counters may be off, and what it keeps for itself.
//!
//! Read when the agent starts and every few seconds, off the watching thread: it is long, so this allocates.

use crate::meminfo::MemReading;
use crate::{NodeError, file, parse};
use plimsoll_units::{Bytes, Pages};
use std::path::Path;

const PATH: &str = "/proc/zoneinfo";

/// What the zones say, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// How far the sum over all zones of one zone counter (free pages) may be off: each processor keeps back up to the
    /// zone's threshold.
    pub zone_drift: Pages,
    /// The same for one node counter (inactive file pages): a node's threshold is the largest of its zones'.
    pub node_drift: Pages,
    /// The sum of the zones' low watermarks, below which kswapd wakes, without [`Self::boost`].
    pub low_watermark: Pages,
    /// By how much all watermarks of the zones are raised for now, added up: while memory is fragmented, for as long as
    /// kswapd takes to free as much (`boost_watermark`, mm/page_alloc.c). Where a kernel does not report it, it is a part of
    /// them.
    pub boost: Pages,
    /// What the zones keep: each its high watermark, without the boost, and the most that it withholds from allocations that
    /// could go to a higher zone, but never more than it has.
    pub kept: Pages,
}

/// How far the two readings of available memory may be off, by the counters that they are summed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Anonymous, file and inactive file pages: three of the node.
    pub kubelet: Pages,
    /// Free pages of the zones; active file, inactive file, and two kinds of reclaimable kernel pages of the node.
    pub mem_available: Pages,
}

impl Zones {
    /// Reads and adds up.
    pub fn read() -> Result<Self, NodeError> {
        let path = Path::new(PATH);
        let text = file::read_all(path)?;
        Self::parse(&text).ok_or_else(|| NodeError::Malformed { path: path.to_owned(), what: "zone" })
    }

    /// How far available memory may be off, summed from the kernel's counters.
    pub fn drift(&self) -> Drift {
        let node = |counters: u64| self.node_drift.0.saturating_mul(counters);
        Drift { kubelet: Pages(node(3)), mem_available: Pages(self.zone_drift.0.saturating_add(node(4))) }
    }

    /// What the kernel takes off in `MemAvailable` for its own reserves (watermarks and protection of lower zones): it
    /// is published nowhere, but the other terms of that sum are. Where nothing is available they do not give it, as the
    /// kernel does not go below zero: it is what the zones keep then, as the kernel adds it up
    /// (`calculate_totalreserve_pages`, mm/page_alloc.c).
    pub fn total_reserve(&self, reading: &MemReading, page_bytes: u64) -> Bytes {
        if reading.available == Bytes::ZERO {
            return self.kept.to_bytes(page_bytes);
        }
        let low = Pages(self.low_watermark.0.saturating_add(self.boost.0)).to_bytes(page_bytes);
        let usable = |cache: Bytes| cache.saturating_sub(Bytes(cache.0 / 2).min(low));
        reading
            .free
            .saturating_add(usable(reading.file_lru()))
            .saturating_add(usable(reading.kernel_reclaimable))
            .saturating_sub(reading.available)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut zones = Self::default();
        let mut node = None;
        // Thresholds of the node at hand, one a processor: the largest over the node's zones.
        let mut largest: Vec<u64> = Vec::new();
        let mut processor = 0;
        // Of the zone at hand.
        let (mut boost, mut high, mut managed) = (0, 0, 0);
        for line in parse::lines(text) {
            let line = line.trim_ascii_start();
            if let Some(rest) = line.strip_prefix(b"Node ") {
                let (number, _) = parse::leading_u64(rest)?;
                (boost, high, managed) = (0, 0, 0);
                if node != Some(number) {
                    zones.node_drift.0 += largest.drain(..).sum::<u64>();
                    node = Some(number);
                }
            } else if let Some(rest) = line.strip_prefix(b"cpu:") {
                processor = usize::try_from(parse::u64_after_blanks(rest)?).ok()?;
            } else if let Some(rest) = line.strip_prefix(b"vm stats threshold:") {
                let threshold = parse::u64_after_blanks(rest)?;
                zones.zone_drift.0 += threshold;
                if processor >= largest.len() {
                    largest.resize(processor.checked_add(1).filter(|count| *count <= 1 << 16)?, 0);
                }
                largest[processor] = largest[processor].max(threshold);
            } else if let Some(rest) = watermark(line, b"boost") {
                boost = parse::u64_after_blanks(rest)?;
                zones.boost.0 = zones.boost.0.checked_add(boost)?;
            } else if let Some(rest) = watermark(line, b"low") {
                let low = parse::u64_after_blanks(rest)?.saturating_sub(boost);
                zones.low_watermark.0 = zones.low_watermark.0.checked_add(low)?;
            } else if let Some(rest) = watermark(line, b"high") {
                high = parse::u64_after_blanks(rest)?.saturating_sub(boost);
            } else if let Some(rest) = watermark(line, b"managed") {
                managed = parse::u64_after_blanks(rest)?;
            } else if let Some(rest) = line.strip_prefix(b"protection: (") {
                let kept = most(rest)?.saturating_add(high).min(managed);
                zones.kept.0 = zones.kept.0.checked_add(kept)?;
            }
        }
        node?;
        zones.node_drift.0 += largest.iter().sum::<u64>();
        Some(zones)
    }
}

/// The largest number of a list such as `0, 3019, 8907)`.
fn most(list: &[u8]) -> Option<u64> {
    let mut numbers = list.split(|byte| *byte == b',').map(parse::u64_after_blanks);
    numbers.try_fold(0, |most, number| Some(most.max(number?)))
}

fn watermark<'t>(line: &'t [u8], name: &[u8]) -> Option<&'t [u8]> {
    line.strip_prefix(name).filter(|rest| rest.first() == Some(&b' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_file_is_added_up() {
        let zones = Zones::parse(include_bytes!("../tests/data/zoneinfo-6.18")).expect("a whole file");
        // Thresholds 4, 24 and 28 on each of two processors; Movable and Device are empty.
        assert_eq!(zones.zone_drift, Pages(2 * (4 + 24 + 28)));
        assert_eq!(zones.node_drift, Pages(2 * 28));
        assert_eq!(zones.drift(), Drift { kubelet: Pages(168), mem_available: Pages(112 + 4 * 56) });
        assert_eq!(zones.low_watermark, Pages(35 + 7146 + 13_937 + 32));
        // The first would keep 42 + 8907 pages and has fewer; Movable would keep 32 and has none.
        assert_eq!(zones.kept, Pages(3840 + (8575 + 5888) + 16_724));
    }

    #[test]
    fn two_nodes_keep_their_thresholds_apart() {
        let zone = |node: u8, thresholds: [u64; 2]| {
            format!(
                "Node {node}, zone Normal\n  min 1\n  low 2\n  cpu: 0\n  vm stats threshold: {}\n  cpu: 1\n  vm stats threshold: {}\n",
                thresholds[0], thresholds[1]
            )
        };
        let text = [zone(0, [1, 2]), zone(0, [5, 1]), zone(1, [3, 3])].concat();
        let zones = Zones::parse(text.as_bytes()).expect("three zones");
        assert_eq!(zones.zone_drift, Pages(15));
        assert_eq!(zones.node_drift, Pages(5 + 2 + 3 + 3));
        assert_eq!(zones.low_watermark, Pages(6));
    }

    #[test]
    fn a_boost_is_no_part_of_the_watermarks_but_of_what_is_taken_off_while_it_lasts() {
        let text = |boost: u64| {
            let [low, high] = [20 + boost, 30 + boost];
            format!(
                "Node 0, zone Normal\n  pages free 9\n        boost {boost}\n        min 5\n        low {low}\n        high \
                 {high}\n        managed 900\n        protection: (0, 7)\n"
            )
        };
        let [at_rest, boosted] = [0, 12].map(|boost| Zones::parse(text(boost).as_bytes()).expect("a zone"));
        assert_eq!((at_rest.low_watermark, at_rest.kept, at_rest.boost), (Pages(20), Pages(37), Pages(0)));
        assert_eq!(boosted, Zones { boost: Pages(12), ..at_rest });
        // `MemAvailable` as the kernel sums it with either, of 100 pages of page cache and no free ones.
        for (zones, low) in [(at_rest, 20), (boosted, 32)] {
            let available = Bytes((100 - low - 37) * 4096);
            let reading = MemReading { active_file: Bytes(100 * 4096), available, ..MemReading::default() };
            assert_eq!(zones.total_reserve(&reading, 4096), Bytes(37 * 4096), "{low}");
        }
    }

    /// The zones of a machine whose first node has 16 MiB in zone DMA and 3 GiB in DMA32, with the thresholds that the
    /// kernel computes at its start (mm/vmstat.c, `calculate_normal_threshold`): the more CPUs and memory, the higher,
    /// 125 at most.
    fn zoneinfo(cpus: u32, nodes: u64, node_gib: u64) -> String {
        let magnitude = |number: u64| u64::from(u64::BITS - number.leading_zeros());
        let zone = |node: u64, name: &str, mib: u64| {
            let threshold = (2 * magnitude(cpus.into()) * (1 + magnitude(mib / 128))).min(125);
            let of_cpu = |cpu| format!("    cpu: {cpu}\n  vm stats threshold: {threshold}\n");
            let each = (0..cpus).map(of_cpu).collect::<Vec<_>>().concat();
            format!("Node {node}, zone {name:>8}\n        min      1\n        low      2\n  pagesets\n{each}")
        };
        let low = [zone(0, "DMA", 15), zone(0, "DMA32", 3 << 10)].concat();
        (0..nodes).fold(low, |text, node| text + &zone(node, "Normal", node_gib << 10))
    }

    #[test]
    fn many_cpus_and_nodes_let_available_memory_be_off_by_gigabytes() {
        for (cpus, nodes, node_gib, mem_available, kubelet) in [
            (2, 1, 1, 1, 0),
            (8, 1, 28, 13, 6),
            (64, 2, 256, 337, 187),
            (256, 1, 1024, 751, 375),
            (256, 2, 512, 1376, 750),
            (256, 8, 128, 5126, 3000),
        ] {
            let zones = Zones::parse(zoneinfo(cpus, nodes, node_gib).as_bytes()).expect("a whole file");
            let mib = |pages: Pages| pages.to_bytes(4096).0 >> 20;
            let Drift { kubelet: found_kubelet, mem_available: found } = zones.drift();
            assert_eq!((mib(found), mib(found_kubelet)), (mem_available, kubelet), "{cpus} CPUs, {nodes} nodes");
        }
    }

    #[test]
    fn the_reserve_is_what_is_left_of_the_sum() {
        let zones = Zones { low_watermark: Pages(10), ..Zones::default() };
        let reading = MemReading {
            free: Bytes(1 << 20),
            active_file: Bytes(200_000),
            inactive_file: Bytes(100_000),
            kernel_reclaimable: Bytes(4096),
            available: Bytes((1 << 20) + 300_000 - 40_960 + 2048 - 7777),
            ..MemReading::default()
        };
        assert_eq!(zones.total_reserve(&reading, 4096), Bytes(7777));
        // Of what is below zero the reading does not show how much.
        let (zones, reading) = (Zones { kept: Pages(3), ..zones }, MemReading { available: Bytes::ZERO, ..reading });
        assert_eq!(zones.total_reserve(&reading, 4096), Bytes(3 * 4096));
    }

    #[test]
    fn what_is_no_zoneinfo_is_refused() {
        for text in ["", "cpu: 0\n", "Node x\n", "Node 0, zone A\ncpu: 99999999\nvm stats threshold: 1\n"] {
            assert_eq!(Zones::parse(text.as_bytes()), None, "{text}");
        }
    }
}
