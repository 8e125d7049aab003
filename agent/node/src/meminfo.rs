//! /proc/meminfo, and the two readings of how much memory is available.
//!
//! The kubelet's own formula and the kernel's estimate differ under pressure: reclaim moves file pages from the
//! active to the inactive list, and what is inactive the kubelet counts as available. So its figure can rise while
//! memory runs out. Both are given; which one a threshold is compared with is configuration.

use crate::file::KeptFile;
use crate::{Fault, NodeError, parse};
use plimsoll_units::Bytes;

const PATH: &str = "/proc/meminfo";

/// /proc/meminfo is about 1.6 KiB; this leaves room for what future kernels add.
const BUFFER: usize = 4096;

/// /proc/meminfo, kept open.
#[derive(Debug)]
pub struct MemInfo {
    file: KeptFile,
}

impl MemInfo {
    /// Opens it.
    pub fn open() -> Result<Self, NodeError> {
        Ok(Self { file: KeptFile::open(PATH)? })
    }

    /// Reads it now. One system call or two, no allocation.
    pub fn read(&self) -> Result<MemReading, Fault> {
        let mut buffer = [0; BUFFER];
        MemReading::parse(self.file.read(&mut buffer)?)
    }
}

/// One reading. What this kernel does not report is absent, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemReading {
    /// Memory that the kernel manages, the pool of huge pages included.
    pub total: Bytes,
    /// Free pages.
    pub free: Bytes,
    /// The kernel's own estimate of what could be had without swapping.
    pub available: Bytes,
    /// Page cache of block devices.
    pub buffers: Bytes,
    /// Page cache of files, tmpfs included, without what is in the swap cache.
    pub cached: Bytes,
    /// Pages in memory and in swap at once.
    pub swap_cached: Bytes,
    /// Anonymous memory that is mapped.
    pub anon: Bytes,
    /// File pages on the active list.
    pub active_file: Bytes,
    /// File pages on the inactive list, which reclaim scans first.
    pub inactive_file: Bytes,
    /// Slab and other kernel memory that reclaim can shrink.
    pub kernel_reclaimable: Bytes,
    /// All swap.
    pub swap_total: Bytes,
    /// Swap that is free.
    pub swap_free: Bytes,
    /// What is swapped out and in memory in compressed form takes there (Linux 5.19 and later, with zswap built in).
    pub zswap: Option<Bytes>,
    /// What that would take uncompressed.
    pub zswapped: Option<Bytes>,
    /// All memory set aside for huge pages of every size; no process gets it in another way.
    pub hugetlb: Option<Bytes>,
}

impl MemReading {
    /// Available memory as the kubelet computes it: all memory, less what anonymous pages and page cache take, plus the
    /// page cache on the inactive list.
    pub fn kubelet_available(&self) -> Bytes {
        let file = self.cached.saturating_add(self.swap_cached).saturating_add(self.buffers);
        let usage = self.anon.saturating_add(file);
        self.total.saturating_sub(usage.saturating_sub(self.inactive_file))
    }

    /// Available memory as the kernel estimates it: free, and the part of page cache and slab that can be dropped, less
    /// what the kernel keeps for itself. Memory in the huge page pool is in none of these.
    pub fn mem_available(&self) -> Bytes {
        self.available
    }

    /// What the kernel's estimate takes for used although it is free, page cache, or slab that can shrink: its reserves,
    /// and of page cache and of slab half, but no more than the low watermarks (`si_mem_available`, mm/show_mem.c).
    pub fn withheld(&self) -> Bytes {
        let all = self.free.saturating_add(self.file_lru()).saturating_add(self.kernel_reclaimable);
        all.saturating_sub(self.available)
    }

    /// Page cache on either list, tmpfs not included: what dropping caches could free at most.
    pub fn file_lru(&self) -> Bytes {
        self.active_file.saturating_add(self.inactive_file)
    }

    fn parse(text: &[u8]) -> Result<Self, Fault> {
        let mut found = Found::default();
        for line in parse::lines(text) {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let Some(value) = parse::u64_after_blanks(&line[colon + 1..]) else { continue };
            found.take(&line[..colon], value);
        }
        found.finish().map_err(|field| Fault::Malformed { file: PATH, field })
    }
}

/// Every line that is used, while it is not known yet whether all were there. In kibibytes.
#[derive(Default)]
struct Found {
    total: Option<u64>,
    free: Option<u64>,
    available: Option<u64>,
    buffers: Option<u64>,
    cached: Option<u64>,
    swap_cached: Option<u64>,
    anon: Option<u64>,
    active_file: Option<u64>,
    inactive_file: Option<u64>,
    kernel_reclaimable: Option<u64>,
    slab_reclaimable: Option<u64>,
    swap_total: Option<u64>,
    swap_free: Option<u64>,
    zswap: Option<u64>,
    zswapped: Option<u64>,
    hugetlb: Option<u64>,
}

impl Found {
    fn take(&mut self, key: &[u8], value: u64) {
        let slot = match key {
            b"MemTotal" => &mut self.total,
            b"MemFree" => &mut self.free,
            b"MemAvailable" => &mut self.available,
            b"Buffers" => &mut self.buffers,
            b"Cached" => &mut self.cached,
            b"SwapCached" => &mut self.swap_cached,
            b"AnonPages" => &mut self.anon,
            b"Active(file)" => &mut self.active_file,
            b"Inactive(file)" => &mut self.inactive_file,
            b"KReclaimable" => &mut self.kernel_reclaimable,
            b"SReclaimable" => &mut self.slab_reclaimable,
            b"SwapTotal" => &mut self.swap_total,
            b"SwapFree" => &mut self.swap_free,
            b"Zswap" => &mut self.zswap,
            b"Zswapped" => &mut self.zswapped,
            b"Hugetlb" => &mut self.hugetlb,
            _ => return,
        };
        *slot = Some(value);
    }

    fn finish(self) -> Result<MemReading, &'static str> {
        let kib = |value: u64| Bytes(value.saturating_mul(1024));
        let need = |value: Option<u64>, name| value.map(kib).ok_or(name);
        Ok(MemReading {
            total: need(self.total, "MemTotal")?,
            free: need(self.free, "MemFree")?,
            available: need(self.available, "MemAvailable")?,
            buffers: need(self.buffers, "Buffers")?,
            cached: need(self.cached, "Cached")?,
            swap_cached: need(self.swap_cached, "SwapCached")?,
            anon: need(self.anon, "AnonPages")?,
            active_file: need(self.active_file, "Active(file)")?,
            inactive_file: need(self.inactive_file, "Inactive(file)")?,
            kernel_reclaimable: need(self.kernel_reclaimable.or(self.slab_reclaimable), "SReclaimable")?,
            swap_total: need(self.swap_total, "SwapTotal")?,
            swap_free: need(self.swap_free, "SwapFree")?,
            zswap: self.zswap.map(kib),
            zswapped: self.zswapped.map(kib),
            hugetlb: self.hugetlb.map(kib),
        })
    }
}

/// The base page size of the running kernel, in bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The size of a transparent huge page, in bytes; that of a base page where the kernel has none.
pub fn huge_page_bytes() -> u64 {
    let size = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    size.ok().and_then(|size| size.trim_end().parse().ok()).unwrap_or_else(page_bytes)
}

/// One more than the highest number of a CPU that is online; 1 where that cannot be read.
pub fn cpus() -> u64 {
    // A list of ranges in order: `0-3,6`.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = online.trim_end().rsplit([',', '-']).next().and_then(|last| last.parse::<u64>().ok());
    last.map_or(1, |last| last.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &[u8] = include_bytes!("../tests/data/meminfo-6.18");

    #[test]
    fn a_saved_file_gives_both_readings() {
        let reading = MemReading::parse(SAVED).expect("a whole file");
        assert_eq!(reading.total, Bytes(24_684_092 << 10));
        assert_eq!(reading.mem_available(), Bytes(24_377_948 << 10));
        // 24684092 - (15688 + 78532 + 0 + 1168 - 64816)
        assert_eq!(reading.kubelet_available(), Bytes(24_653_520 << 10));
        assert_eq!(reading.kernel_reclaimable, Bytes(95_564 << 10));
        assert_eq!(reading.hugetlb, Some(Bytes::ZERO));
        assert_eq!((reading.zswap, reading.zswapped), (Some(Bytes::ZERO), Some(Bytes::ZERO)));
    }

    #[test]
    fn what_is_compressed_in_memory_is_read_where_the_kernel_has_it() {
        let text = String::from_utf8(SAVED.to_vec()).expect("text");
        let text = text.replace("Zswap:                 0 kB", "Zswap:             12032 kB");
        let text = text.replace("Zswapped:              0 kB", "Zswapped:          40960 kB");
        let reading = MemReading::parse(text.as_bytes()).expect("a whole file");
        assert_eq!((reading.zswap, reading.zswapped), (Some(Bytes(12_032 << 10)), Some(Bytes::mib(40))));
        let without: Vec<u8> = parse::lines(SAVED)
            .filter(|line| !line.starts_with(b"Zswap"))
            .flat_map(|line| [line, b"\n"].concat())
            .collect();
        let reading = MemReading::parse(&without).expect("optional lines");
        assert_eq!((reading.zswap, reading.zswapped), (None, None), "absent, never zero");
    }

    #[test]
    fn what_is_missing_is_named() {
        for key in ["MemTotal", "MemAvailable", "Inactive(file)", "SwapFree"] {
            let text: Vec<u8> = parse::lines(SAVED)
                .filter(|line| !line.starts_with(key.as_bytes()))
                .flat_map(|line| [line, b"\n"].concat())
                .collect();
            assert_eq!(MemReading::parse(&text), Err(Fault::Malformed { file: PATH, field: key }));
        }
        let text: Vec<u8> = parse::lines(SAVED)
            .filter(|line| !line.starts_with(b"Huge"))
            .flat_map(|line| [line, b"\n"].concat())
            .collect();
        assert_eq!(MemReading::parse(&text).expect("optional lines").hugetlb, None);
    }

    #[test]
    fn more_inactive_file_than_usage_is_all_available() {
        let reading = MemReading { total: Bytes(100), inactive_file: Bytes(50), anon: Bytes(10), ..Default::default() };
        assert_eq!(reading.kubelet_available(), Bytes(100));
    }

    #[test]
    fn this_machine_can_be_read() {
        let reading = MemInfo::open().expect("there is a /proc").read().expect("readable");
        assert!(reading.total > reading.free);
        assert!(page_bytes().is_power_of_two());
    }
}
