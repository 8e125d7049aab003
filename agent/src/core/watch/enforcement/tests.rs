use super::super::testing::{SLICE, Scene, slice_policy};
use super::super::triggers::Ready;
use super::super::{END_MOST, End};
use super::*;
use crate::record::Record;
use plimsoll_act::KillLimits;
use plimsoll_inventory::{Facts, Update};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::{Config as Policy, Outcome};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn a_workload_that_cannot_be_killed_uses_up_no_limit_and_the_next_one_is_killed() {
    let mut scene = Scene::new(1);
    for (name, mib) in [("large", 60), ("small", 30)] {
        scene.cgroup(name, mib);
    }
    let refusing = scene.tree.path().join("large/cgroup.kill");
    fs::remove_file(&refusing).expect("it is there");
    symlink("/dev/full", &refusing).expect("writable");
    let (large, small) = (scene.joins(0, "large"), scene.joins(1, "small"));
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert!(
        matches!(scene.termination(0, &large), Some(Termination::Refused(_))),
        "{:?}",
        scene.termination(0, &large)
    );
    assert_eq!(scene.text("small", "cgroup.kill"), "", "one was enough for the plan");
    scene.sample();
    assert_eq!(scene.text("small", "cgroup.kill"), "1");
    assert_eq!(scene.termination(1, &small), Some(Termination::Killed(Bytes::mib(30))));
}

#[test]
fn a_victim_for_which_there_is_no_room_is_killed_when_an_earlier_one_has_ended_and_no_other_pays_for_it() {
    // No more than four victims are waited for.
    let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(100) });
    let names = ["a", "b", "c", "d", "e"];
    for (slot, name) in (0..).zip(names) {
        scene.cgroup(name, 2);
        scene.joins(slot, name);
    }
    scene.cgroup("bystander", 20);
    let facts = Facts { priority: 1, ..scene.facts("bystander") };
    scene.update(Update::Workload(5, facts));
    scene.uses("slice", SLICE - 1);
    let killed = |scene: &Scene| names.into_iter().filter(|name| scene.text(name, "cgroup.kill") == "1").count();
    for _ in 0..3 {
        scene.sample();
        assert_eq!((killed(&scene), scene.text("bystander", "cgroup.kill").as_str()), (4, ""));
    }
    let refusals = scene.frames().iter().filter(|frame| is_refusal(frame)).count();
    assert_eq!(refusals, 1, "reported once");
    let ended = names.into_iter().find(|name| scene.text(name, "cgroup.kill") == "1").expect("four were killed");
    scene.write(ended, "cgroup.events", "populated 0\n");
    scene.uses(ended, 0);
    scene.uses("slice", SLICE - 3);
    scene.follow_up(monotonic());
    scene.sample();
    assert_eq!((killed(&scene), scene.text("bystander", "cgroup.kill").as_str()), (5, ""));
}

#[test]
fn a_workload_whose_grace_is_over_is_killed_once_there_is_room() {
    let mut scene = Scene::new(100);
    for (slot, name) in (0..).zip(["a", "b", "c", "d", "asked"]) {
        scene.cgroup(name, 2);
        let handle = scene.joins(slot, name);
        let (key, now) = (Key { slot, id: handle.id() }, monotonic());
        if name == "asked" {
            scene.watch.workloads.table.set_termination(key.id, Termination::Asked(now, 7));
            scene.follow_up(now);
            assert!(matches!(scene.termination(slot, &handle), Some(Termination::Asked(until, 7)) if until > now));
            scene.write("a", "cgroup.events", "populated 0\n");
            scene.follow_up(now);
            let later = now.after(Duration::from_secs(1));
            scene.follow_up(later);
            assert_eq!(scene.text("asked", "cgroup.kill"), "1");
        } else {
            assert_eq!(scene.watch.kill(1, key, None, now), KillOutcome::Yes);
        }
    }
}

#[test]
fn a_kill_that_the_workers_came_to_too_late_is_decided_anew_at_once() {
    for (patience, killed) in [(Duration::ZERO, ""), (Duration::from_mins(1), "1")] {
        let mut scene = Scene::new(1);
        if let Some(enforcer) = &mut scene.watch.enforcement.enforcer {
            enforcer.kills = Kills::with_capacity(KillLimits { patience, ..KillLimits::default() }, 4);
        }
        scene.cgroup("batch", 90);
        let batch = scene.joins(0, "batch");
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert_eq!(scene.text("batch", "cgroup.kill"), killed);
        let is_refused =
            matches!(scene.termination(0, &batch), Some(Termination::Refused(until)) if until <= monotonic());
        assert_eq!(is_refused, killed.is_empty());
    }
}

fn is_refusal(frame: &[u8]) -> bool {
    let full = Killed::Refused(Refused::Full);
    matches!(Record::read(frame), Some(Record::Enforcement(EnforcementRecord::Kill { what, .. })) if what == full)
}

#[test]
fn an_empty_workload_is_no_victim_and_a_stuck_one_is_again_once_it_grows() {
    let mut scene = Scene::new(10);
    for (name, mib) in [("left", 60), ("batch", 30)] {
        scene.cgroup(name, mib);
    }
    scene.write("left", "cgroup.events", "populated 0\n");
    let (left, batch) = (scene.joins(0, "left"), scene.joins(1, "batch"));
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!(
        (scene.text("left", "cgroup.kill"), scene.termination(0, &left)),
        (String::new(), Some(Termination::Stays))
    );
    assert_eq!(scene.text("batch", "cgroup.kill"), "1");
    // It does not end.
    scene.write("batch", "cgroup.kill", "");
    scene.end_patience();
    scene.sample();
    assert_eq!(
        (scene.text("batch", "cgroup.kill"), scene.termination(1, &batch)),
        (String::new(), Some(Termination::Stuck(Bytes::mib(30))))
    );
    // A process was started in it.
    scene.uses("batch", 60);
    scene.sample();
    assert_eq!(
        (scene.text("batch", "cgroup.kill").as_str(), scene.termination(1, &batch)),
        ("1", Some(Termination::Killed(Bytes::mib(60))))
    );
}

#[test]
fn what_a_victim_takes_until_it_is_sent_the_signal_comes_back_and_no_other_pays_for_it() {
    let mut scene = Scene::new(10);
    scene.cgroup("batch", 0);
    scene.cgroup("bystander", 80);
    let (batch, _) = (scene.joins(0, "batch"), scene.joins(1, "bystander"));
    scene.uses("slice", SLICE - 16);
    scene.sample();
    scene.uses("batch", 7);
    scene.uses("slice", SLICE - 9);
    scene.decide();
    assert_eq!(scene.termination(0, &batch), Some(Termination::Killing));
    // More than it had at the request, and less than it has now.
    scene.uses("batch", 15);
    scene.uses("slice", SLICE - 1);
    scene.decide();
    assert_eq!(scene.watch.engine.plan.outcome, Outcome::ComingBack);
    scene.settle();
    assert_eq!(scene.termination(0, &batch), Some(Termination::Killed(Bytes::mib(15))));
    scene.sample();
    assert_eq!(
        (scene.text("batch", "cgroup.kill").as_str(), scene.text("bystander", "cgroup.kill").as_str()),
        ("1", "")
    );
}

#[test]
fn a_victim_that_is_refilled_is_killed_again_and_what_it_took_since_does_not_count() {
    let mut scene = Scene::new(10);
    scene.cgroup("batch", 90);
    let batch = scene.joins(0, "batch");
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!(
        (scene.text("batch", "cgroup.kill").as_str(), scene.termination(0, &batch)),
        ("1", Some(Termination::Killed(Bytes::mib(90))))
    );
    scene.write("batch", "cgroup.kill", "");
    scene.uses("batch", 10);
    scene.follow_up(monotonic().after(Duration::from_millis(5)));
    scene.sample();
    assert_eq!(scene.termination(0, &batch), Some(Termination::Killed(Bytes::mib(10))));
    // Another process is in it now.
    for (mib, killed, held) in [(26, "", 10), (27, "1", 27)] {
        scene.uses("batch", mib);
        scene.follow_up(monotonic().after(Duration::from_millis(5)));
        scene.sample();
        assert_eq!(scene.termination(0, &batch), Some(Termination::Killed(Bytes::mib(held))), "{mib} MiB");
        // A worker writes it, and no decision waits for that.
        let since = monotonic();
        while scene.text("batch", "cgroup.kill") != killed && monotonic().since(since) < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        assert_eq!(scene.text("batch", "cgroup.kill"), killed, "{mib} MiB");
    }
}

#[test]
fn an_agent_that_is_asked_to_end_finishes_the_kill_first_for_a_bounded_time() {
    let mut scene = Scene::new(10);
    scene.cgroup("batch", 50);
    let batch = scene.joins(0, "batch");
    assert_eq!(scene.turn(&[Ready::Term], Duration::ZERO), Some(End::Asked), "there is nothing to finish");

    for ends in [true, false] {
        let mut scene = Scene::new(10);
        scene.cgroup("batch", 50);
        let batch = scene.joins(0, "batch");
        scene.freeze(&batch);
        // The threshold was crossed, and no sample was taken yet.
        scene.uses("slice", SLICE - 1);
        assert_eq!(scene.turn(&[Ready::Term], Duration::ZERO), None, "a workload is frozen and memory is short");
        assert_eq!(
            (scene.text("batch", "cgroup.kill").as_str(), scene.termination(0, &batch)),
            ("1", Some(Termination::Killed(Bytes::mib(50))))
        );
        assert_eq!(scene.turn(&[], Duration::from_millis(1)), None, "it is dying");
        assert!(scene.watch.timeout().is_some(), "nothing would wake it");
        if ends {
            scene.write("batch", "cgroup.events", "populated 0\n");
            scene.uses("slice", 1);
            // Also where it is thawed only then.
            let mut turns = std::iter::repeat_with(|| scene.turn(&[], Duration::from_millis(2)));
            assert_eq!(turns.by_ref().take(3).flatten().next(), Some(End::Asked));
        } else {
            // It gives back, so that it never counts as stuck, and it never ends either.
            scene.uses("batch", 40);
            assert_eq!(scene.turn(&[], END_MOST.saturating_sub(Duration::from_secs(1))), None);
            scene.uses("batch", 30);
            assert_eq!(scene.turn(&[], END_MOST), Some(End::Asked));
        }
    }
    drop(batch);
}

#[test]
fn a_shadowing_agent_acts_as_soon_as_it_is_its_turn_and_has_used_up_no_limit() {
    let mut scene = Scene::new(1);
    let enforcer = scene.watch.enforcement.enforcer.take().expect("it acted");
    scene.cgroup("batch", 50);
    scene.joins(0, "batch");
    scene.uses("slice", SLICE - 1);
    for _ in 0..3 {
        scene.sample();
    }
    assert_eq!(scene.text("batch", "cgroup.kill"), "", "it shadows");
    assert_eq!(scene.turn(&[Ready::Inventory], Duration::ZERO), None);
    assert_eq!(scene.text("batch", "cgroup.kill"), "", "it is not its turn");
    assert!(scene.give_means.push(Means { enforcer, resumer: None }).is_ok());
    assert_eq!(scene.turn(&[Ready::Inventory], Duration::ZERO), None);
    assert_eq!(scene.text("batch", "cgroup.kill"), "1");
}

#[test]
fn what_an_earlier_process_froze_is_forgotten_once_it_is_thawed_unless_it_is_held_anew() {
    let mut scene = Scene::new(1);
    for (slot, name) in [(0, "left"), (1, "anew")] {
        scene.cgroup(name, 1);
        let handle = scene.joins(slot, name);
        let enforcer = scene.watch.enforcement.enforcer.as_mut().expect("it acts");
        let (cgroup, path) = (handle.id(), handle.path());
        let (step, since) = (plimsoll_act::Step::Frozen, MonotonicNs(1));
        let intent = plimsoll_act::Intent { step, cgroup, path, since, by_parts: false };
        enforcer.record.write(intent).expect("room");
        if name == "anew" {
            enforcer.brakes.brake(&handle, monotonic(), &mut enforcer.record, &mut enforcer.workers).expect("room");
        }
    }
    let [left, anew] = ["left", "anew"].map(|name| scene.open(name).id());
    for cgroup in [left, anew] {
        scene.receive(super::super::News::Thawed(cgroup));
    }
    let enforcer = scene.watch.enforcement.enforcer.as_ref().expect("it acts");
    let kept: Vec<CgroupId> = enforcer.record.entries().iter().map(|entry| entry.cgroup).collect();
    assert_eq!(kept, [anew]);
}

#[test]
fn what_a_victim_of_an_earlier_process_holds_is_coming_back_and_no_other_workload_pays_for_it() {
    for (is_doubtful, expected) in [(false, ""), (true, "1")] {
        let mut scene = Scene::new(10);
        for (name, mib) in [("victim", 40), ("other", 50)] {
            scene.cgroup(name, mib);
        }
        let (victim, now) = (scene.open("victim"), monotonic());
        let enforcer = scene.watch.enforcement.enforcer.as_mut().expect("it acts");
        assert!(enforcer.kills.adopt(&victim, now, now));
        if is_doubtful {
            enforcer.doubtful.push(victim.id());
        }
        for (slot, name) in [(0, "victim"), (1, "other")] {
            let facts = scene.facts(name);
            scene.update(Update::Workload(slot, facts));
        }
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert_eq!(scene.text("other", "cgroup.kill"), expected, "{is_doubtful}");
    }
}

#[test]
fn a_kill_is_in_doubt_no_more_once_it_succeeded_or_was_refused_or_was_begun_anew() {
    fn doubtful(scene: &mut Scene) -> &mut Vec<CgroupId> {
        &mut scene.watch.enforcement.enforcer.as_mut().expect("it acts").doubtful
    }
    type Happens = fn(&mut Scene);
    let happens: [(&str, Happens); 3] = [
        ("it succeeded", |scene| {
            let (victim, now) = (scene.joins(0, "victim"), monotonic());
            let enforcer = scene.watch.enforcement.enforcer.as_mut().expect("it acts");
            assert!(enforcer.kills.adopt(&victim, now, now));
            doubtful(scene).push(victim.id());
            scene.write("victim", "cgroup.events", "populated 0\n");
            scene.follow_up(now);
        }),
        ("it was refused", |scene| {
            let refusing = scene.tree.path().join("victim/cgroup.kill");
            fs::remove_file(&refusing).expect("it is there");
            symlink("/dev/full", &refusing).expect("writable");
            let victim = scene.joins(0, "victim");
            let key = Key { slot: 0, id: victim.id() };
            assert_eq!(scene.watch.kill(1, key, None, monotonic()), KillOutcome::Yes);
            doubtful(scene).push(victim.id());
            scene.settle();
            assert!(matches!(scene.termination(0, &victim), Some(Termination::Refused(_))));
        }),
        ("it was begun anew", |scene| {
            let victim = scene.joins(0, "victim");
            let key = Key { slot: 0, id: victim.id() };
            doubtful(scene).push(victim.id());
            assert_eq!(scene.watch.kill(1, key, None, monotonic()), KillOutcome::Yes);
        }),
    ];
    for (what, happens) in happens {
        let mut scene = Scene::new(10);
        scene.cgroup("victim", 40);
        happens(&mut scene);
        assert!(doubtful(&mut scene).is_empty(), "{what}");
    }
}

#[test]
fn a_victim_that_is_stuck_counts_as_such_though_an_earlier_kill_of_its_cgroup_was_in_doubt() {
    let mut scene = Scene::new(10);
    scene.cgroup("victim", 90);
    let (victim, now) = (scene.joins(0, "victim"), monotonic());
    let enforcer = scene.watch.enforcement.enforcer.as_mut().expect("it acts");
    assert!(enforcer.kills.adopt(&victim, now, now));
    enforcer.doubtful.push(victim.id());
    scene.write("victim", "cgroup.events", "populated 0\n");
    scene.follow_up(now);
    // Another process is started in it, which does not end.
    scene.write("victim", "cgroup.events", "populated 1\n");
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!(scene.text("victim", "cgroup.kill"), "1");
    scene.end_patience();
    assert_eq!(scene.termination(0, &victim), Some(Termination::Stuck(Bytes::mib(90))));
}
