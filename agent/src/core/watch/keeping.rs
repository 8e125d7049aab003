//! What the next core goes on with if this one is killed: conditions, grace periods, latches, what was evicted lately, and
//! the pauses between pods that are evicted for disks.
//!
//! It is written after each decision, once that is carried out, where it differs from what is there: as the run record
//! is, by this thread itself, into memory that is mapped and locked. That neither allocates nor waits, and a thread that
//! may be slow is not needed between the decision and what is known of it. Only an agent that acts writes it: another one
//! may keep its state in the same directory.

use plimsoll_inventory::DiskRole;
use plimsoll_policy::{Kept, State};
use plimsoll_units::MonotonicNs;

use super::Watch;
use super::disk_victims::Pauses;
use crate::record::HealthRecord;

/// What is kept, in the order of the file: of memory and tasks, of the conditions of disks with those that were read, and of
/// pods that are evicted for disks.
type Read = (Kept, Kept, [bool; DiskRole::ALL.len()], Option<(Kept, Pauses)>);

impl Watch {
    /// Goes on with what the core before this one has kept. What was kept for another configuration begins anew, and so
    /// does what cannot be read, which is reported.
    pub(super) fn resume(&mut self, now: MonotonicNs) {
        let kept = self.enforcement.enforcer.as_ref().map(|enforcer| enforcer.kept.bytes()).unwrap_or_default();
        if kept.is_empty() {
            return;
        }
        let Ok((memory, disks, read, victims)) = postcard::from_bytes::<Read>(&kept) else {
            let what = "read what the core before this one kept of conditions and grace periods";
            return self.reporting.send(HealthRecord::Failed { what, errno: None });
        };
        if let Some(state) = State::resume(memory, &self.engine.policy, self.workloads.table.slots(), now) {
            self.engine.state = state;
        }
        self.disks.resume(disks, read, now);
        if let (Some(own), Some((kept, pauses))) = (&mut self.disk_victims, victims) {
            own.resume(kept, pauses, now);
        }
    }

    /// Writes it, if it has changed. Where there is no room for what was evicted lately, that is left out.
    pub(super) fn keep(&mut self) {
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        let (memory, (disks, read), victims) = (&self.engine, self.disks.keep(), &self.disk_victims);
        enforcer.kept.write(|room| {
            let mut encode = |has_taken: bool, of_disks: bool| {
                let victims = victims.as_ref().map(|victims| victims.keep(of_disks));
                let kept = (memory.state.keep(&memory.policy, has_taken), &disks, read, victims);
                postcard::to_slice(&kept, room).ok().map(|bytes| bytes.len())
            };
            encode(true, true).or_else(|| encode(true, false)).or_else(|| encode(false, false))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Disks;
    use super::super::testing::{Scene, slice_policy};
    use super::*;
    use crate::core::inventory::News;
    use core::time::Duration;
    use plimsoll_inventory::{DiskReading, Room};
    use plimsoll_node::clock::monotonic;
    use plimsoll_policy::Config as Policy;
    use plimsoll_policy::kubelet::Condition;

    /// A soft threshold on the slice.
    fn policy(grace: Duration, victims_per_minute: u32) -> Policy {
        let mut policy = slice_policy(victims_per_minute);
        policy.slices[0].thresholds[0].grace = grace;
        policy
    }

    fn kept(scene: &Scene) -> Vec<u8> {
        scene.watch.enforcement.enforcer.as_ref().map(|enforcer| enforcer.kept.bytes()).unwrap_or_default()
    }

    /// The core of `before` is killed, and this one begins.
    fn resume(scene: &mut Scene, before: &Scene) {
        let kept = kept(before);
        put(scene, &kept);
        scene.watch.resume(monotonic());
    }

    fn put(scene: &mut Scene, bytes: &[u8]) {
        let enforcer = scene.watch.enforcement.enforcer.as_mut().expect("it acts");
        enforcer.kept.write(|room| {
            room[..bytes.len()].copy_from_slice(bytes);
            Some(bytes.len())
        });
    }

    /// A core whose first turn sees the slice below its threshold, and since when.
    fn below(policy: Policy, before: Option<&Scene>) -> (Scene, Option<MonotonicNs>) {
        let mut scene = Scene::with(policy);
        scene.cgroup("slice", 95);
        if let Some(before) = before {
            resume(&mut scene, before);
        }
        scene.turn(&[], Duration::ZERO);
        let since = scene.watch.engine.plan.thresholds.first().and_then(|status| status.since);
        (scene, since)
    }

    #[test]
    fn a_grace_goes_on_in_the_next_core_also_where_there_is_no_room_for_limits() {
        let minute = Duration::from_mins(1);
        for victims_per_minute in [10, 100_000] {
            let (scene, since) = below(policy(minute, victims_per_minute), None);
            assert!(since.is_some());
            let (scene, again) = below(policy(minute, victims_per_minute), Some(&scene));
            assert_eq!(again, since, "{victims_per_minute}");
            let (_, other) = below(policy(2 * minute, victims_per_minute), Some(&scene));
            assert!(other > since, "{victims_per_minute}: of another threshold, it begins anew");
        }
    }

    #[test]
    fn an_agent_that_shadows_writes_nothing_and_what_cannot_be_read_is_reported() {
        let mut scene = Scene::new(1);
        let enforcer = scene.watch.enforcement.enforcer.take();
        scene.turn(&[], Duration::ZERO);
        scene.watch.enforcement.enforcer = enforcer;
        assert!(kept(&scene).is_empty());
        for (bytes, reports) in [(&[][..], 0), (&[0xff; 30], 1)] {
            put(&mut scene, bytes);
            scene.frames();
            scene.watch.resume(monotonic());
            scene.watch.reporting.publish();
            assert_eq!(scene.frames().len(), reports, "{bytes:?}");
        }
    }

    #[test]
    fn pressure_on_a_disk_holds_from_the_first_turn_of_the_next_core() {
        let text = "evictionHard: {nodefs.available: \"100\"}\n";
        let configuration = plimsoll_config::parse(text, "f").expect("in order");
        let mut scene = Scene::new(1);
        scene.watch.disks = Disks::new(configuration.disk_policy());
        let room = Some(Room { left: 1, all: 1000 });
        let reading = DiskReading { role: DiskRole::Node, bytes: room, inodes: None, at: monotonic(), layout: None };
        scene.receive(News::Disk(reading, Duration::ZERO));
        scene.turn(&[], Duration::ZERO);
        let mut next = Scene::new(1);
        next.watch.disks = Disks::new(configuration.disk_policy());
        resume(&mut next, &scene);
        assert_eq!(next.watch.disks.reported_pressure(), None);
        next.turn(&[], Duration::ZERO);
        assert_eq!(next.watch.disks.reported_pressure(), Some(true));
        assert!(kept(&next) == kept(&scene), "what is awaited is kept for the one after it, too");
        assert!(!next.watch.engine.plan.conditions.has(Condition::DiskPressure), "it is none of memory");
    }
}
