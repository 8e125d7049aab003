//! Figures of workloads and of the cgroups directly in them, which in a pod are its containers: how much they take, how
//! fast that grows, how far it is to their memory.max, whether memory.high throttles them, and their tasks. Opens files
//! and allocates: for a thread of its own. Nothing is decided by these figures but what is done about those that are
//! throttled ([`Reliefs`](crate::Reliefs)).

use core::time::Duration;
use std::collections::HashMap;

use plimsoll_node::cgroup::{Handle, Pids, Root, Swap};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

use crate::rate::Rate;
use crate::seen::Seen;
use crate::throttle::{Change, Stall, Throttle};

/// Cgroups of which figures are kept.
pub const MOST_CONTAINERS: usize = 8192;
/// Cgroups directly in one workload that are read; the first ones by name.
const MOST_IN_ONE: usize = 32;

/// What is known of a cgroup. What is unknown is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerFigures {
    /// Its working set: what is charged to it without inactive page cache.
    pub working_set: Option<Bytes>,
    /// How fast that grows which reclaim could not take without swap, smoothed, in bytes a second; below zero where it
    /// shrinks.
    pub rate: Option<i64>,
    /// How much of that it may take until its own memory.max. Absent where it has none.
    pub distance: Option<Bytes>,
    /// When it is there at this rate: the kernel's OOM killer ends it then. Absent where it does not grow, has no
    /// memory.max, or is further away than a day.
    pub forecast: Option<Duration>,
    /// How long tasks waited for memory when that was last read, while memory.high throttles it.
    pub stall: Option<Stall>,
    /// memory.high throttles it.
    pub is_throttled: bool,
    /// What of its memory is in swap, compressed in memory or not.
    pub swapped: Option<Bytes>,
    /// How much may be (`memory.swap.max`): what a kubelet with `LimitedSwap` gives it. Absent for no limit.
    pub swap_limit: Option<Bytes>,
    /// What of its swap is compressed in memory takes there.
    pub zswap: Option<Bytes>,
    /// How many tasks it has.
    pub tasks: Option<u64>,
    /// How many it may have: its own pids.max. Absent for no limit.
    pub task_limit: Option<u64>,
}

/// At so many percent of its pids.max a cgroup is near it.
const NEAR_TASK_LIMIT: u64 = 90;

impl ContainerFigures {
    /// Whether it will soon be refused a new task.
    pub fn is_near_task_limit(&self) -> bool {
        let part = |(tasks, limit): (u64, u64)| tasks.saturating_mul(100) >= limit.saturating_mul(NEAR_TASK_LIMIT);
        self.tasks.zip(self.task_limit).is_some_and(part)
    }

    /// Whether memory.high throttles it, or it is on its way to a limit of its own.
    fn is_foremost(&self) -> bool {
        self.is_throttled || self.forecast.is_some() || self.is_near_task_limit()
    }
}

/// A workload, or a cgroup directly in it.
#[derive(Debug)]
pub struct Container {
    /// The workload that it is or is in.
    workload: CgroupId,
    path: Vec<u8>,
    working_set: Option<Bytes>,
    rate: Rate,
    distance: Option<Bytes>,
    swap: Swap,
    pids: Pids,
    throttle: Throttle,
    seen: MonotonicNs,
}

impl Container {
    /// The workload that it is or is in.
    pub const fn workload(&self) -> CgroupId {
        self.workload
    }

    /// Its path below the cgroup root.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// What is known of it.
    pub fn figures(&self) -> ContainerFigures {
        ContainerFigures {
            working_set: self.working_set,
            rate: self.rate.bytes_per_second(),
            distance: self.distance,
            forecast: self.distance.and_then(|distance| self.rate.time_until(distance)),
            stall: self.throttle.stall().filter(|_| self.throttle.is_throttled()),
            is_throttled: self.throttle.is_throttled(),
            swapped: self.swap.used,
            swap_limit: self.swap.limit,
            zswap: self.swap.compressed,
            tasks: self.pids.current,
            task_limit: self.pids.limit,
        }
    }

    fn read_figures(&mut self, cgroup: &Handle, now: MonotonicNs) {
        let cache = cgroup.page_cache().ok();
        self.working_set = cache.map(|cache| cache.charged.saturating_sub(cache.inactive_file));
        let held = cache.and_then(|cache| Some(cache.charged.saturating_sub(cache.reclaimable?)));
        match held {
            Some(held) => self.rate.take(now, held),
            None => self.rate.forget(),
        }
        self.swap = cgroup.swap();
        self.pids = cgroup.pids();
        self.distance = held.and_then(|held| Some(cgroup.max().ok()??.saturating_sub(held)));
    }
}

/// What a look at a cgroup found.
#[derive(Debug)]
pub struct Found<'c> {
    /// Its path below the cgroup root.
    pub path: &'c [u8],
    /// What is known of it.
    pub figures: ContainerFigures,
    /// What has changed.
    pub change: Change,
    /// It is there no more.
    pub is_gone: bool,
}

/// All that are known, of [`MOST_CONTAINERS`] at most.
#[derive(Debug, Default)]
pub struct Containers {
    known: HashMap<CgroupId, Container>,
    /// Workloads that were read before, and what was seen then of those that have none of the foremost.
    workloads: HashMap<CgroupId, Option<Seen>>,
    is_full: bool,
}

impl Containers {
    /// Reads a workload and what is directly in it, and gives to `report` what has changed. Gives whether that is to be done
    /// again soon: memory.high throttles one, or one exceeded it just before. `has_figures`: it reads more than whether
    /// memory.high throttles them.
    pub fn read(
        &mut self,
        root: &Root,
        workload: &Handle,
        now: MonotonicNs,
        has_figures: bool,
        report: &mut impl FnMut(Found<'_>),
    ) -> bool {
        let (before, usage) = (self.workloads.get(&workload.id()).copied(), workload.usage_seen());
        let (is_known, mut is_open, mut is_foremost) = (before.is_some(), false, false);
        let mut visit = |cgroup: &Handle| {
            let Some(container) = self.visit_one(cgroup, workload.id(), is_known, now, has_figures, report) else {
                return;
            };
            is_open |= container.throttle.is_open(now);
            is_foremost |= container.figures().is_foremost();
        };
        visit(workload);
        for path in &workload.below(MOST_IN_ONE).unwrap_or_default() {
            if let Ok(Some(cgroup)) = Handle::open_to_read(root, path) {
                visit(&cgroup);
            }
        }
        self.remove(|container| container.workload == workload.id() && container.seen != now, report);
        let seen = if has_figures {
            usage.filter(|_| !is_foremost).map(|usage| Seen { at: now, usage })
        } else {
            before.flatten()
        };
        self.workloads.insert(workload.id(), seen);
        is_open
    }

    /// Whether figures of a workload may stay as they are.
    pub fn rests(&self, workload: &Handle, now: MonotonicNs) -> bool {
        self.workloads.get(&workload.id()).is_some_and(|seen| seen.is_some_and(|seen| seen.holds(workload, now)))
    }

    fn visit_one(
        &mut self,
        cgroup: &Handle,
        workload: CgroupId,
        is_known: bool,
        now: MonotonicNs,
        has_figures: bool,
        report: &mut impl FnMut(Found<'_>),
    ) -> Option<&Container> {
        if !cgroup.has_memory() {
            return None;
        }
        if !self.known.contains_key(&cgroup.id()) && self.known.len() >= MOST_CONTAINERS {
            self.is_full = true;
            return None;
        }
        let container = self.known.entry(cgroup.id()).or_insert_with(|| Container {
            workload,
            path: cgroup.path().to_vec(),
            working_set: None,
            rate: Rate::default(),
            distance: None,
            swap: Swap::default(),
            pids: Pids::default(),
            // One that was not there when its workload was read before has counted nothing until then.
            throttle: if is_known { Throttle::of_new(now) } else { Throttle::default() },
            seen: now,
        });
        container.seen = now;
        if has_figures {
            container.read_figures(cgroup, now);
        }
        if let Ok(reading) = cgroup.throttling()
            && let Some(change) = container.throttle.take(now, reading)
        {
            report(Found { path: &container.path, figures: container.figures(), change, is_gone: false });
        }
        Some(container)
    }

    /// Forgets the workloads that are none any more, and what is in them.
    pub fn retain(&mut self, is_workload: impl Fn(CgroupId) -> bool, report: &mut impl FnMut(Found<'_>)) {
        self.workloads.retain(|workload, _| is_workload(*workload));
        self.remove(|container| !is_workload(container.workload), report);
    }

    fn remove(&mut self, is_gone: impl Fn(&Container) -> bool, report: &mut impl FnMut(Found<'_>)) {
        for (_, mut container) in self.known.extract_if(|_, container| is_gone(container)) {
            self.is_full = false;
            if let Some(ended) = container.throttle.end() {
                let change = Change::Ends(ended);
                report(Found { path: &container.path, figures: container.figures(), change, is_gone: true });
            }
        }
    }

    /// Those that memory.high throttles, then those that reach their memory.max the soonest, then those that are near their
    /// pids.max: `most` at most.
    pub fn foremost(&self, most: usize) -> Vec<&Container> {
        let mut foremost: Vec<(&Container, ContainerFigures)> = self
            .known
            .values()
            .map(|container| (container, container.figures()))
            .filter(|(_, figures)| figures.is_foremost())
            .collect();
        foremost.sort_unstable_by_key(|(container, figures)| {
            (!figures.is_throttled, figures.forecast.unwrap_or(Duration::MAX), &container.path)
        });
        foremost.truncate(most);
        foremost.into_iter().map(|(container, _)| container).collect()
    }

    /// Those that memory.high throttles.
    pub fn throttled_ones(&self) -> impl Iterator<Item = (CgroupId, &Container)> {
        let ones = self.known.iter().filter(|(_, container)| container.throttle.is_throttled());
        ones.map(|(id, container)| (*id, container))
    }

    /// How many are throttled.
    pub fn throttled(&self) -> usize {
        self.known.values().filter(|container| container.throttle.is_throttled()).count()
    }

    /// All of a workload, itself among them.
    pub fn of(&self, workload: CgroupId) -> impl Iterator<Item = &Container> {
        self.known.values().filter(move |container| container.workload == workload)
    }

    /// There are more cgroups than there is room for.
    pub const fn is_full(&self) -> bool {
        self.is_full
    }
}

#[cfg(test)]
mod tests;
