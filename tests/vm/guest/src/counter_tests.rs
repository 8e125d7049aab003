//! How far the kernel's counters of pages are off, and what makes them exact.

use crate::machine;
use crate::map::Mapping;
use crate::suite::figure;
use anyhow::{Result, ensure};
use plimsoll_node::meminfo::cpus;
use plimsoll_node::vmstat;
use plimsoll_node::zoneinfo::Zones;
use rustix::mm::MapFlags;
use rustix::param::page_size;
use std::time::Instant;

/// Fewer than any CPU keeps back of a counter at most.
const PAGES: usize = 6;
/// The kernel folds by itself once a second, perhaps just then.
const TRIES: usize = 10;

/// Pages that were just taken are missing in the counter until it is folded in. And what a machine of several nodes may
/// keep back is what the kernel's formula gives for each of its zones.
pub(crate) fn folds_counters() -> Result<()> {
    let mut seen = Vec::new();
    let is_folded = (0..TRIES).map(|_| hidden_and_shown()).any(|found| {
        let is_folded = matches!(found, Ok((hidden, shown)) if hidden <= 1 && shown >= PAGES as u64 - 1);
        seen.push(found);
        is_folded
    });
    ensure!(is_folded, "of {PAGES} pages that were taken, before and after folding: {seen:?}");
    let zoneinfo = std::fs::read_to_string("/proc/zoneinfo")?;
    let nodes = zoneinfo.lines().filter(|line| line.starts_with("Node ") && line.ends_with(" DMA32")).count();
    let (zones, computed) = (Zones::read()?, by_formula(&zoneinfo)?);
    ensure!(nodes == 2, "{nodes} nodes have a zone DMA32");
    ensure!(zones.zone_drift.0 == computed, "{} pages may be kept back, by the formula {computed}", zones.zone_drift.0);
    let mut costs: Vec<u128> = (0..100).map(|_| cost()).collect::<Result<_>>()?;
    costs.sort_unstable();
    let drift = zones.drift().mem_available.0;
    figure("folding", &[("median_us", &costs[50]), ("p90_us", &costs[90]), ("max_us", &costs[99]), ("drift", &drift)]);
    Ok(())
}

/// How many of the pages that were taken the counter has before and after folding.
fn hidden_and_shown() -> Result<(u64, u64)> {
    vmstat::fold()?;
    let before = machine::vmstat("nr_anon_pages")?;
    let memory = Mapping::anonymous(PAGES * page_size(), MapFlags::empty())?;
    memory.touch(0, PAGES * page_size(), page_size());
    let kept_back = machine::vmstat("nr_anon_pages")?;
    vmstat::fold()?;
    let folded = machine::vmstat("nr_anon_pages")?;
    Ok((kept_back.saturating_sub(before), folded.saturating_sub(before)))
}

fn cost() -> Result<u128> {
    let begun = Instant::now();
    vmstat::fold()?;
    Ok(begun.elapsed().as_micros())
}

/// The sum over all zones and CPUs by `calculate_normal_threshold`, mm/vmstat.c.
fn by_formula(zoneinfo: &str) -> Result<u64> {
    let cpus = cpus();
    let magnitude = |number: u64| u64::from(u64::BITS - number.leading_zeros());
    let sizes = zoneinfo.lines().filter_map(|line| line.trim_start().strip_prefix("managed "));
    let mut sum = 0;
    for pages in sizes {
        let units = (pages.trim().parse::<u64>()? * page_size() as u64) >> 27;
        let threshold = (2 * magnitude(cpus) * (1 + magnitude(units))).min(125);
        sum += if pages.trim() == "0" { 0 } else { threshold * cpus };
    }
    Ok(sum)
}
