use super::super::testing::{Arms, SLICE, Scene, slice_policy};
use super::*;
use crate::record::{Cause, PlanRecord, Record};
use plimsoll_inventory::{Facts, SliceFacts, SliceFigures, Update};
use plimsoll_node::cgroup::PageCache;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::{Config as Policy, SliceSet};
use std::sync::atomic::{AtomicU32, Ordering};

/// A workload of so many MiB, of which the inventory thread last saw so much as page cache, and so much is now.
fn joins(scene: &mut Scene, slot: u32, name: &str, mib: u64, seen: u64, now: u64) {
    scene.cgroup(name, mib);
    scene.write(name, "memory.stat", &format!("inactive_file {}\n", now << 20));
    scene.joins_with_cache(slot, name, Bytes::mib(seen));
}

fn only_one_is_killed(scene: &Scene, victim: &str) {
    let killed = [victim, "bystander"].map(|name| scene.text(name, "cgroup.kill"));
    assert_eq!(killed, ["1", ""], "{victim} and the bystander");
}

#[test]
fn a_process_that_replaced_page_cache_by_anonymous_memory_is_the_victim() {
    let mut scene = Scene::new(10);
    joins(&mut scene, 0, "replaced", 70, 70, 0);
    joins(&mut scene, 1, "bystander", 20, 0, 0);
    scene.uses("slice", SLICE - 1);
    scene.sample();
    only_one_is_killed(&scene, "replaced");
}

#[test]
fn what_has_little_charged_is_not_read_anew_for_a_decision() {
    for (mib, left) in [(3, 2), (4, 0)] {
        let mut scene = Scene::new(10);
        joins(&mut scene, 0, "large", 90, 0, 0);
        joins(&mut scene, 1, "small", mib, 2, 0);
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert_eq!(
            (scene.text("large", "cgroup.kill"), scene.text("small", "cgroup.kill")),
            ("1".into(), String::new())
        );
        let (_, small) = scene.watch.workloads.table.iter().last().expect("it is there");
        assert_eq!(small.facts.cache.inactive_file, Bytes::mib(left), "{mib}");
    }
}

#[test]
fn the_workloads_of_a_slice_are_read_anew_however_many_are_larger_outside_it() {
    let mut scene = Scene::new(10);
    for slot in 0..64 {
        let name = format!("outside{slot}");
        scene.cgroup(&name, 200);
        let facts = Facts { slices: SliceSet::NONE, ..scene.facts(&name) };
        scene.update(Update::Workload(slot, facts));
    }
    joins(&mut scene, 64, "replaced", 70, 70, 0);
    joins(&mut scene, 65, "bystander", 20, 0, 0);
    scene.uses("slice", SLICE - 1);
    scene.sample();
    only_one_is_killed(&scene, "replaced");
}

#[test]
fn a_workload_that_has_read_much_is_no_victim_for_its_page_cache() {
    let mut scene = Scene::new(10);
    joins(&mut scene, 0, "backup", 50, 0, 49);
    joins(&mut scene, 1, "hog", 49, 0, 0);
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!((scene.text("backup", "cgroup.kill"), scene.text("hog", "cgroup.kill")), (String::new(), "1".into()));
}

#[test]
fn page_cache_of_the_slice_itself_is_no_reason_to_evict() {
    let mut scene = Scene::new(10);
    scene.write("slice", "memory.stat", &format!("inactive_file {0}\nactive_file 0\nslab_reclaimable 0\n", 60 << 20));
    joins(&mut scene, 0, "backup", 70, 0, 60);
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!(scene.text("backup", "cgroup.kill"), "");
}

/// A slice that is charged as much as it may be, so much of it as page cache, and a workload with all of that.
fn full_of_page_cache(mib: u64) -> Scene {
    let mut scene = Scene::woken_by(Arms(|_: &_| ()), slice_policy(10));
    joins(&mut scene, 0, "replaces", SLICE, mib, mib);
    scene.uses("slice", SLICE);
    let (handle, max, cache) = (scene.open("slice"), Bytes::mib(SLICE), Bytes::mib(mib));
    let figures =
        SliceFigures { max, cache: PageCache { charged: max, inactive_file: cache, reclaimable: Some(cache) } };
    scene.update(Update::Slice(0, Some(SliceFacts { handle, figures })));
    has_page_cache(&scene, mib);
    scene.sample();
    scene
}

fn has_page_cache(scene: &Scene, mib: u64) {
    scene.write("slice", "memory.stat", &format!("inactive_file {0}\nactive_file 0\nslab_reclaimable 0\n", mib << 20));
    scene.write("replaces", "memory.stat", &format!("inactive_file {}\n", mib << 20));
}

#[test]
fn page_cache_that_is_replaced_crosses_a_slices_threshold_without_an_event() {
    let mut scene = full_of_page_cache(60);
    // What is charged is as before, so that no event comes.
    has_page_cache(&scene, 0);
    let begun = monotonic();
    while scene.text("replaces", "cgroup.kill").is_empty() && monotonic().since(begun) < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
        scene.watch.turn(&[], monotonic());
    }
    assert_eq!(scene.text("replaces", "cgroup.kill"), "1");
}

#[test]
fn page_cache_that_was_read_lately_hides_no_growth_that_replaces_it() {
    // After the slow timer's sample it is read anew, and counts as page cache; before that it may be.
    for (cause, is_read) in [(Cause::Timer, true), (Cause::Reclaim, false)] {
        let mut scene = Scene::new(10);
        joins(&mut scene, 0, "replaces", 0, 0, 0);
        joins(&mut scene, 1, "bystander", 20, 0, 0);
        scene.sample();
        // Read while memory is plentiful, and not known to the inventory thread.
        scene.uses("replaces", 60);
        scene.write("replaces", "memory.stat", &format!("inactive_file {}\n", 60 << 20));
        scene.watch.sample(&Trigger::of(cause, monotonic()));
        assert_eq!(scene.watch.figures.is_pending(), is_read);
        scene.awaits_figures();
        scene.sample();
        scene.write("replaces", "memory.stat", "inactive_file 0\n");
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert_eq!(
            (scene.text("replaces", "cgroup.kill"), scene.text("bystander", "cgroup.kill")),
            ("1".into(), String::new()),
            "{cause:?}"
        );
    }
}

#[test]
fn an_older_figure_of_a_slice_that_comes_late_is_read_again() {
    let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(10) });
    scene.write("slice", "memory.stat", &format!("inactive_file {0}\nactive_file 0\nslab_reclaimable 0\n", 5 << 20));
    joins(&mut scene, 0, "hog", 6, 0, 0);
    joins(&mut scene, 1, "bystander", 5, 0, 0);
    scene.uses("slice", SLICE - 1);
    scene.sample();
    // As the inventory thread read it before: as if the victim were not enough.
    let (handle, max) = (scene.open("slice"), Bytes::mib(SLICE));
    let figures = SliceFigures { max, cache: PageCache { reclaimable: Some(Bytes::ZERO), ..PageCache::default() } };
    scene.update(Update::Slice(0, Some(SliceFacts { handle, figures })));
    scene.sample();
    assert_eq!((scene.text("hog", "cgroup.kill"), scene.text("bystander", "cgroup.kill")), ("1".into(), String::new()));
}

#[test]
fn after_a_shortage_the_inventory_thread_sends_all_figures_again_once() {
    let mut scene = Scene::new(10);
    joins(&mut scene, 0, "hog", 70, 0, 0);
    let is_requested = |scene: &Scene| scene.watch.workloads.handle.is_asked(Request::RefreshAll);
    for (mib, expected) in [(0, false), (SLICE - 1, false), (0, true)] {
        scene.uses("slice", mib);
        scene.sample();
        assert_eq!(is_requested(&scene), expected, "{mib}");
    }
    assert!(!scene.watch.figures.is_ahead);
}

#[test]
fn a_decision_that_waited_knows_the_crossing_and_arms_the_threshold_again() {
    for is_below in [true, false] {
        let arms = Arc::new(AtomicU32::new(0));
        let armed = Arc::clone(&arms);
        let source = Arms(move |_: &_| _ = armed.fetch_add(1, Ordering::Relaxed));
        let mut scene = Scene::woken_by(source, slice_policy(10));
        joins(&mut scene, 0, "hog", 70, 0, 0);
        scene.uses("slice", SLICE - 1);
        let at = monotonic();
        let mut trigger = Trigger::of(Cause::Threshold, at);
        trigger.crossed = Some(at);
        scene.watch.sample(&trigger);
        assert!(scene.watch.figures.is_awaited() && arms.load(Ordering::Relaxed) == 0);
        if !is_below {
            scene.uses("slice", 0);
        }
        while scene.watch.figures.is_pending() {
            scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
        }
        scene.watch.sample(&Trigger::of(Cause::Reclaim, monotonic()));
        assert_eq!(arms.load(Ordering::Relaxed), 1, "its event was taken, and no other would come");
        let crossed = scene.frames().iter().find_map(|frame| match Record::read(frame) {
            Some(Record::Plan(PlanRecord::Begin { cause: Cause::Threshold, crossed, .. })) => crossed,
            _ => None,
        });
        assert_eq!(crossed, is_below.then_some(at));
    }
}

#[test]
fn a_decision_that_waits_above_the_threshold_does_not_wait_to_see_that_memory_is_below() {
    for (used, soon) in [(SLICE - 20, true), (SLICE - 1, false)] {
        let mut scene = Scene::new(10);
        scene.watch.figures.set_patience(Duration::from_mins(1));
        joins(&mut scene, 0, "hog", 70, 0, 0);
        scene.uses("slice", used);
        let at = monotonic();
        let mut trigger = Trigger::of(Cause::Threshold, at);
        trigger.crossed = Some(at);
        scene.watch.sample(&trigger);
        assert!(scene.watch.figures.is_awaited());
        // Below it what grows is frozen already.
        let due = scene.watch.schedule.next_sample().expect("patience ends");
        assert_eq!(due < monotonic().after(Duration::from_secs(30)), soon, "{used}");
    }
}

#[test]
fn a_decision_is_taken_on_older_figures_where_none_come_in_time() {
    let mut scene = Scene::new(10);
    scene.watch.figures.set_patience(Duration::ZERO);
    // By the newer figure all that it uses is page cache.
    joins(&mut scene, 0, "hog", 70, 0, 70);
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!(scene.text("hog", "cgroup.kill"), "1");
}

#[test]
fn a_victim_that_is_not_among_the_largest_is_read_before_it_is_killed() {
    let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(1000) });
    for slot in 0..64 {
        joins(&mut scene, slot, &format!("large{slot}"), 2, 2, 2);
    }
    // All that it uses is page cache by now.
    joins(&mut scene, 64, "small", 1, 0, 1);
    scene.uses("slice", SLICE - 1);
    for _ in 0..3 {
        scene.sample();
    }
    assert_eq!(scene.text("small", "cgroup.kill"), "");
    // And now it is not, which the inventory thread has seen.
    joins(&mut scene, 64, "small", 1, 0, 0);
    // A threshold is crossed each time, so that all figures are old again.
    for _ in 0..3 {
        scene.cross();
    }
    assert_eq!(scene.text("small", "cgroup.kill"), "1");
}

#[test]
fn of_many_small_victims_none_is_killed_for_page_cache() {
    let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(1000) });
    for slot in 0..64 {
        joins(&mut scene, slot, &format!("large{slot}"), 2, 2, 2);
    }
    let names: Vec<_> = (64..164).map(|slot| (slot, format!("small{slot}"))).collect();
    for (slot, name) in &names {
        joins(&mut scene, *slot, name, 0, 0, 0);
        // All that it uses is page cache by now.
        scene.write(name, "memory.current", "65536\n");
        scene.write(name, "memory.stat", "inactive_file 65536\n");
    }
    scene.uses("slice", SLICE - 1);
    for _ in 0..40 {
        scene.sample();
    }
    for (_, name) in names {
        assert_eq!(scene.text(&name, "cgroup.kill"), "", "{name}");
    }
}

#[test]
fn many_small_victims_are_killed_as_far_as_there_is_room_for_them() {
    let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(1000) });
    for slot in 0..64 {
        joins(&mut scene, slot, &format!("large{slot}"), 2, 2, 2);
    }
    let names: Vec<_> = (64..164).map(|slot| (slot, format!("small{slot}"))).collect();
    for (slot, name) in &names {
        joins(&mut scene, *slot, name, 0, 0, 0);
        scene.write(name, "memory.current", "65536\n");
    }
    scene.uses("slice", SLICE - 1);
    for killed in 1..=25 {
        // Twice, and more often where the machine is so busy that figures are old before all are read.
        for _ in 0..20 {
            scene.cross();
            if scene.watch.enforcement.dying().count() == 4 {
                break;
            }
        }
        let dying = |name: &&String| scene.text(name, "cgroup.kill") == "1";
        let dying: Vec<_> = names.iter().map(|(_, name)| name).filter(dying).collect();
        assert_eq!(dying.len(), 4, "four at a time, the {killed}th time");
        for name in dying {
            scene.write(name, "cgroup.kill", "");
            scene.write(name, "cgroup.events", "populated 0\n");
            scene.uses(name, 0);
        }
        scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
        while scene.returned.pop().is_ok() {}
    }
}

#[test]
fn figures_are_read_again_after_an_event_and_after_an_older_one_came() {
    let at = |ms: u64| MonotonicNs(0).after(Duration::from_millis(ms));
    let cgroup = CgroupId(7);
    let mut figures = Figures::new();
    figures.crossed(at(1000));
    figures.begin();
    figures.read.push(Figure { cgroup, requested: at(1001), is_answered: false });
    assert!(!figures.is_new(cgroup, at(1002)) && figures.is_pending());
    assert!(!figures.answered(cgroup, at(999)), "that was requested before the event");
    assert!(!figures.is_new(cgroup, at(1002)) && figures.is_pending());
    assert!(figures.answered(cgroup, at(1001)));
    for (now, is_new) in [(1002, true), (2001, true), (2002, false)] {
        assert_eq!(figures.is_new(cgroup, at(now)), is_new, "{now}");
    }
    // A decision that waits does not wait again for later events; the next one does.
    figures.waits = Some(at(1002));
    figures.crossed(at(1003));
    figures.begin();
    assert!(figures.is_new(cgroup, at(2200)));
    figures.end_wait();
    figures.begin();
    assert!(!figures.is_new(cgroup, at(1005)));
    figures.event = at(1000);
    figures.outdate(cgroup);
    assert!(!figures.is_new(cgroup, at(1002)));
}

#[test]
fn the_smallest_are_left_out_as_long_as_they_have_little_together() {
    let id = CgroupId(1);
    let list = |mib: &[u64]| -> ArrayVec<(Bytes, Key), LARGEST> {
        (0..).zip(mib).map(|(slot, mib)| (Bytes::mib(*mib), Key { slot, id })).collect()
    };
    for (all, kept) in
        [(&[90, 20, 4, 3, 1][..], 3), (&[3; 30], 25), (&[3, 3, 3, 3, 3], 0), (&[16], 1), (&[4], 1), (&[], 0)]
    {
        assert_eq!(without_smallest(list(all)).len(), kept, "{all:?}");
    }
}
