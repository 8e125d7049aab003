//! What `services` is to report to the cluster for people: workloads that were frozen, page cache that was taken back, and the
//! OOM killer where it was first or where NUMA nodes were exhausted. Each is handed over once, by an agent that acts. Where half
//! of the way to `services` is taken it is left out: evictions go before it, and the log and the metrics have it.

use plimsoll_inventory::{CoreMessage, Exhausted, Incident, IncidentKind, IncidentOf, PathEnd};
use plimsoll_node::clock::wall_ms;
use plimsoll_sense::{OomScope, Wake};
use plimsoll_units::{Bytes, CgroupId};

use super::Watch;

impl Watch {
    /// Something happened in the cgroup with this lineage.
    pub(super) fn happened(&mut self, what: IncidentKind, lineage: &[Option<CgroupId>]) {
        if self.enforcement.acts() && self.evictions.has_room_beside() {
            let of = self.place_of(lineage);
            let incident = Incident { what, of, wall_ms: wall_ms() };
            self.evictions.hand_over_beside(CoreMessage::Incident(incident), &self.workloads.handle);
        }
    }

    /// The OOM killer was first where this agent has a threshold, on the node or on the slice whose memory.max was reached, or
    /// NUMA nodes were exhausted, which no threshold is for. A container that reached its own limit is its owner's concern.
    pub(super) fn oom_killed(&mut self, wake: &Wake, resident: Option<Bytes>) {
        let Wake::Oom { victim, name, victim_cgroup, lineage, scope, limit, .. } = *wake else { return };
        let exhausted = match (scope, limit.and_then(|limit| self.slice_path(limit))) {
            (OomScope::Global, _) => Exhausted::Machine,
            (OomScope::Cgroup, Some(slice)) => Exhausted::Slice(slice),
            (OomScope::Cgroup, None) => return,
            (OomScope::Cpuset | OomScope::NumaNode, _) => Exhausted::NumaNodes,
        };
        let what = IncidentKind::OomKill { pid: victim, name, resident, exhausted };
        // Without the memory controller it has no lineage.
        if lineage[0].is_some() { self.happened(what, &lineage) } else { self.happened(what, &[victim_cgroup]) }
    }

    /// The pod that has a cgroup with this lineage, or what is known of the cgroup.
    fn place_of(&self, lineage: &[Option<CgroupId>]) -> IncidentOf {
        let table = &self.workloads.table;
        let workload = table.of(lineage).and_then(|key| table.get(key));
        if let Some(pod) = workload.and_then(|workload| workload.facts.pod) {
            return IncidentOf::Pod(pod.uid);
        }
        let id = lineage.first().copied().flatten();
        let path = workload.map(|workload| PathEnd::of(workload.facts.handle.path()));
        let path = path.or_else(|| self.slice_path(id?)).unwrap_or_default();
        IncidentOf::Cgroup { id, path }
    }

    fn slice_path(&self, id: CgroupId) -> Option<PathEnd> {
        let slices = self.workloads.table.slices();
        let slice = slices.iter().map(|(_, slice)| &slice.handle).find(|handle| handle.id() == id);
        slice.map(|handle| PathEnd::of(handle.path())).or_else(|| self.enforcement.kernel_brake.path(id))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, Scene};
    use super::super::triggers::Trigger;
    use super::*;
    use core::time::Duration;
    use plimsoll_inventory::{Facts, Mark, Pod, Update};
    use plimsoll_node::cgroup::Handle;
    use plimsoll_node::clock::monotonic;
    use plimsoll_policy::Uid;
    use plimsoll_policy::kubelet::QosClass;
    use plimsoll_sense::LINEAGE;
    use std::sync::Arc;

    fn incidents(scene: &mut Scene) -> Vec<(IncidentKind, IncidentOf)> {
        let messages = core::iter::from_fn(|| scene.informed.pop().ok());
        let incidents = messages.filter_map(|message| match message {
            CoreMessage::Incident(Incident { what, of, .. }) => Some((what, of)),
            _ => None,
        });
        incidents.collect()
    }

    /// A pod in the slice.
    fn pod(scene: &mut Scene, slot: u32, name: &str) -> Arc<Handle> {
        let pod = Pod {
            uid: Uid(7),
            qos: QosClass::Burstable,
            protected: None,
            memory_request: Bytes::ZERO,
            grace_seconds: None,
            daemon_set: None,
            serves_others: false,
            ends: None,
        };
        scene.cgroup(name, 50);
        let facts = scene.facts(name);
        let handle = Arc::clone(&facts.handle);
        scene.update(Update::Workload(slot, Facts { pod: Some(pod), ..facts }));
        handle
    }

    fn oom(scope: OomScope, lineage: &[CgroupId], limit: Option<CgroupId>) -> Wake {
        let (at, mut name, mut all) = (monotonic(), [0; 16], [None; LINEAGE]);
        name[..5].copy_from_slice(b"a\x1bhog");
        for (place, id) in all.iter_mut().zip(lineage) {
            *place = Some(*id);
        }
        let (victim_cgroup, mapped, resident) = (lineage.first().copied(), None, None);
        Wake::Oom { at, victim: 77, name, victim_cgroup, lineage: all, mapped, resident, scope, limit }
    }

    #[test]
    fn the_oom_killer_is_an_incident_but_where_a_container_is_at_its_own_limit() {
        let mut scene = Scene::new(1);
        let id = pod(&mut scene, 0, "a").id();
        let (container, slice) = (CgroupId(1 << 40), scene.open("slice").id());
        let (inside, outside) = ([container, slice, id, container], [CgroupId(9)]);
        let path = PathEnd::of(b"slice");
        let of_pod = IncidentOf::Pod(Uid(7));
        for (scope, lineage, limit, expected) in [
            (OomScope::Global, &inside[..], None, Some((Exhausted::Machine, of_pod))),
            (OomScope::Cgroup, &inside, Some(slice), Some((Exhausted::Slice(path), of_pod))),
            (OomScope::Cgroup, &inside, Some(container), None),
            (OomScope::Cgroup, &inside, None, None),
            (OomScope::Cpuset, &inside, None, Some((Exhausted::NumaNodes, of_pod))),
            (OomScope::NumaNode, &inside, None, Some((Exhausted::NumaNodes, of_pod))),
            (
                OomScope::Global,
                &outside,
                None,
                Some((Exhausted::Machine, IncidentOf::Cgroup { id: Some(CgroupId(9)), path: PathEnd::default() })),
            ),
            (
                OomScope::Global,
                &[slice],
                None,
                Some((Exhausted::Machine, IncidentOf::Cgroup { id: Some(slice), path })),
            ),
        ] {
            scene.watch.notice(&oom(scope, lineage, limit), &mut Trigger::new(monotonic()));
            let mut name = [0; 16];
            name[..5].copy_from_slice(b"a\x1bhog");
            let of = |(exhausted, of)| (IncidentKind::OomKill { pid: 77, name, resident: None, exhausted }, of);
            assert_eq!(incidents(&mut scene), Vec::from_iter(expected.map(of)), "{scope:?} {limit:?}");
        }
    }

    #[test]
    fn a_freeze_is_handed_over_with_how_long_it_lasted_and_page_cache_with_how_much_was_taken_back() {
        let mut scene = Scene::new(1);
        let handle = pod(&mut scene, 0, "a");
        scene.write("a", "memory.reclaim", "");
        scene.uses("slice", SLICE - 20);
        scene.freeze(&handle);
        assert_eq!(incidents(&mut scene), [], "how long it lasts is not known");
        scene.watch.thaw(handle.id(), monotonic().after(Duration::from_millis(300)));
        scene.settle();
        let [(IncidentKind::Frozen(held), IncidentOf::Pod(Uid(7)))] = incidents(&mut scene)[..] else {
            panic!("it was frozen")
        };
        assert!(held < Duration::from_mins(1), "{held:?}");
        let handle = Arc::clone(&handle);
        let job = plimsoll_act::Job::Reclaim { handle, amount: Bytes::mib(3) };
        let enforcer = scene.watch.enforcement.enforcer.as_mut().expect("it acts");
        enforcer.reclaim.submit(job).expect("room");
        let mut found = Vec::new();
        while found.is_empty() {
            scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
            found = incidents(&mut scene);
        }
        let what = IncidentKind::Reclaimed { asked: Bytes::mib(3), is_all: true };
        assert_eq!(found, [(what, IncidentOf::Pod(Uid(7)))]);
    }

    #[test]
    fn a_process_that_the_kernel_stopped_is_handed_over_with_what_names_its_slice() {
        let mut scene = Scene::new(1);
        let (slice, path) = (CgroupId(9), PathEnd::of(b"system.slice/backup.slice"));
        scene.update(Update::Mark(0, Some(Mark { slice, level: 2, path })));
        scene.watch.notice(&Wake::Stopped { tgid: 7, slice, at: monotonic() }, &mut Trigger::new(monotonic()));
        assert_eq!(incidents(&mut scene), [(IncidentKind::Stopped, IncidentOf::Cgroup { id: Some(slice), path })]);
    }

    #[test]
    fn nothing_is_handed_over_that_leaves_no_room_for_evictions_or_while_the_agent_does_not_act() {
        let mut scene = Scene::new(1);
        for _ in 0..2 * super::super::MESSAGES {
            scene.watch.happened(IncidentKind::Stopped, &[]);
        }
        assert_eq!(incidents(&mut scene).len(), super::super::MESSAGES / 2);
        scene.watch.enforcement.is_off = true;
        scene.watch.happened(IncidentKind::Stopped, &[]);
        assert_eq!(incidents(&mut scene), [], "the kill switch is thrown");
    }
}
