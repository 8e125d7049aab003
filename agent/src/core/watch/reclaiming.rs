//! Page cache that a plan has the kernel take back before anything is evicted.

use std::sync::Arc;

use plimsoll_act::Job;
use plimsoll_node::cgroup::PageCache;
use plimsoll_policy::{ReclaimOrder, Reclaimed, Scope, Stage};
use plimsoll_units::{Bytes, MonotonicNs};

use super::super::inventory::Request;
use super::Watch;
use super::sampling::stats_time;
use super::scopes::Reclaiming;

impl Watch {
    /// Requests page cache of workloads over their reservation, in the order in which they would be evicted. One reclaim
    /// runs at a time. A later order for its scope ends with it: a reclaim that lasts longer than the pause between two
    /// orders would never be seen to end otherwise. What a plan for another scope asks for meanwhile is asked for again
    /// after its pause.
    pub(super) fn reclaim(&mut self, scope: Scope, order: ReclaimOrder, now: MonotonicNs) {
        if let Some(under_way) = &mut self.scopes.reclaiming {
            if under_way.scope == scope {
                under_way.order = order.order;
            }
            return;
        }
        // On disks nothing is reclaimed here.
        let Stage::Memory(amount) = order.stage else { return };
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        let mut left = amount.to_bytes();
        let mut jobs = 0;
        for ranked in &self.engine.plan.ranked {
            let Some(workload) = self.workloads.table.get(ranked.key) else { continue };
            // Page cache alone, and no more than its owner is over what is reserved for it.
            let PageCache { inactive_file, reclaimable, .. } = workload.facts.cache;
            let over = ranked.over.to_bytes().saturating_add(inactive_file);
            let amount = reclaimable.unwrap_or(inactive_file).min(over).min(left);
            if amount == Bytes::ZERO {
                continue;
            }
            let handle = Arc::clone(&workload.facts.handle);
            if enforcer.reclaim.submit(Job::Reclaim { handle, amount }).is_err() {
                break;
            }
            jobs += 1;
            left = left.saturating_sub(amount);
            if left == Bytes::ZERO {
                break;
            }
        }
        let order = order.order;
        if jobs > 0 {
            self.scopes.reclaiming = Some(Reclaiming { jobs, scope, order });
        } else {
            self.scopes.get_mut(scope).reclaimed = Some(Reclaimed { order, at: stats_time(now) });
        }
    }

    /// One job of a reclaim is done. With the last one the reclaim has ended.
    pub(super) fn job_reclaimed(&mut self, now: MonotonicNs) {
        let Some(reclaiming) = &mut self.scopes.reclaiming else { return };
        reclaiming.jobs = reclaiming.jobs.saturating_sub(1);
        let Reclaiming { jobs, scope, order } = *reclaiming;
        if jobs == 0 {
            self.scopes.reclaiming = None;
            self.scopes.get_mut(scope).reclaimed = Some(Reclaimed { order, at: stats_time(now) });
            self.workloads.handle.request(Request::Refresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, SLICE_SCOPE, Scene};
    use super::super::triggers::Trigger;
    use super::*;
    use plimsoll_inventory::{Facts, Update};
    use plimsoll_node::clock::monotonic;
    use plimsoll_policy::kubelet::Amount;
    use plimsoll_policy::{Owner, Why};
    use plimsoll_units::CgroupId;
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
    use std::fs;
    use std::time::{Duration, Instant};

    fn order(order: u64, mib: u64) -> ReclaimOrder {
        let stage = Stage::Memory(Amount::counted(Bytes::mib(mib).0));
        ReclaimOrder { order, stage, why: Why::Threshold(0) }
    }

    #[test]
    fn a_reclaim_that_lasts_longer_than_the_pause_ends_the_orders_that_came_meanwhile() {
        let mut scene = Scene::new(10);
        holds(&scene, "a", 50, 30);
        // A writer of it waits for a reader: the kernel that is busy reclaiming.
        let reclaim = scene.tree.path().join("a/memory.reclaim");
        fs::remove_file(&reclaim).expect("it is there");
        mknodat(CWD, &reclaim, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("writable");
        scene.joins(0, "a");
        scene.uses("slice", SLICE - 1);
        scene.sample();
        for number in [1, 2] {
            scene.watch.reclaim(SLICE_SCOPE, order(number, 10), monotonic());
        }
        scene.watch.reclaim(Scope::Node, order(3, 10), monotonic());
        assert_eq!(scene.watch.scopes.get(SLICE_SCOPE).reclaimed, None, "it is under way");
        let until = Instant::now() + Duration::from_secs(30);
        let _reader = openat(CWD, &reclaim, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("readable");
        while scene.watch.scopes.reclaiming.is_some() && Instant::now() < until {
            scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
        }
        let ended = |scope| scene.watch.scopes.get(scope).reclaimed.map(|reclaimed| reclaimed.order);
        assert_eq!((ended(SLICE_SCOPE), ended(Scope::Node)), (Some(2), None));
    }

    #[test]
    fn page_cache_is_requested_of_the_workload_that_holds_it() {
        let mut scene = Scene::new(10);
        for (slot, name, mib, active) in [(0, "anon", 60, 0), (1, "cache", 40, 30)] {
            holds(&scene, name, mib, active);
            scene.joins(slot, name);
        }
        scene.uses("slice", SLICE - 1);
        scene.sample();
        scene.watch.reclaim(SLICE_SCOPE, order(1, 10), monotonic());
        await_reclaim(&scene, "cache", 10);
        assert_eq!(scene.text("anon", "memory.reclaim"), "");
    }

    /// A cgroup that uses so many MiB, of which so many are active page cache.
    fn holds(scene: &Scene, name: &str, mib: u64, active: u64) {
        scene.cgroup(name, mib);
        scene.write(name, "memory.reclaim", "");
        let stat = format!("inactive_file 0\nactive_file {}\nslab_reclaimable 0\n", active << 20);
        scene.write(name, "memory.stat", &stat);
    }

    /// Waits until so many MiB are requested of it.
    fn await_reclaim(scene: &Scene, name: &str, mib: u64) {
        let until = Instant::now() + Duration::from_secs(30);
        while scene.text(name, "memory.reclaim").is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(scene.text(name, "memory.reclaim"), format!("{} swappiness=0", mib << 20), "{name}");
    }

    #[test]
    fn no_more_is_requested_of_a_workload_than_the_page_cache_that_it_holds_itself() {
        let mut scene = Scene::new(10);
        let owner = Some(Owner { id: CgroupId(7), request: Bytes::ZERO });
        for (slot, name, mib) in [(0, "large", 30), (1, "small", 10)] {
            holds(&scene, name, mib + 1, mib);
            let facts = Facts { owner, ..scene.facts(name) };
            scene.update(Update::Workload(slot, facts));
        }
        scene.uses("slice", SLICE - 1);
        scene.sample();
        scene.watch.reclaim(SLICE_SCOPE, order(1, SLICE), monotonic());
        for (name, mib) in [("large", 30), ("small", 10)] {
            await_reclaim(&scene, name, mib);
        }
    }

    #[test]
    fn page_cache_that_a_reservation_covers_is_not_requested() {
        let mut scene = Scene::new(10);
        holds(&scene, "reserved", 50, 40);
        let facts = Facts { reservation: Bytes::mib(45), ..scene.facts("reserved") };
        scene.update(Update::Workload(0, facts));
        scene.uses("slice", SLICE - 1);
        scene.sample();
        scene.watch.reclaim(SLICE_SCOPE, order(1, SLICE), monotonic());
        await_reclaim(&scene, "reserved", 5);
    }
}
