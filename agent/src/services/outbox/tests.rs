use super::*;
use crate::services::Serving;
use plimsoll_config::{Overrides, Text, Texts, examine_texts};
use plimsoll_policy::kubelet::Signal;
use plimsoll_units::CgroupId;

fn eviction(number: u64, uid: u128, step: EvictionStep) -> Eviction {
    Eviction {
        number: EvictionNumber(number),
        uid: Uid(uid),
        cgroup: CgroupId(7),
        step,
        cause: EvictionCause::Threshold { signal: Signal::MemoryAvailable, threshold: 100, available: 90 },
        is_soft: false,
        grace_seconds: 0,
        used: Some(Bytes(50)),
        decided: monotonic(),
        wall_ms: 1_795_000_000_000,
    }
}

fn receive(outbox: &mut Outbox, eviction: &Eviction) {
    outbox.receive(eviction, ("shop".into(), "cart".into()));
}

/// One whose journal was read and was empty.
fn outbox(has_cluster: bool) -> Outbox {
    let mut outbox = Outbox::new(has_cluster, true);
    outbox.restore(Reports::default());
    outbox
}

/// The journal writes all that there is.
fn write(outbox: &mut Outbox) -> Reports {
    let reports = outbox.reports().expect("it was read");
    outbox.kept(true, outbox.version());
    reports
}

fn messages(outbox: &mut Outbox) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(message) = outbox.next_message() {
        outbox.sent();
        messages.push(message);
    }
    messages
}

fn receipts(outbox: &mut Outbox) -> Vec<(u64, EvictionStep, bool)> {
    let of = |message| match message {
        Message::Receipt(Receipt { of: ReceiptOf::Eviction(number, step), is_durable }) => (number.0, step, is_durable),
        other => panic!("{other:?}"),
    };
    messages(outbox).into_iter().map(of).collect()
}

fn pending(outbox: &Outbox) -> Vec<(u64, Progress)> {
    outbox.pending().map(|eviction| (eviction.number, eviction.progress)).collect()
}

use EvictionStep::{Decided, GivenUp, Killed, Verified};

#[test]
fn an_eviction_is_acknowledged_once_it_is_on_the_disk_and_stays_until_it_is_reported() {
    let mut outbox = outbox(true);
    receive(&mut outbox, &eviction(5, 1, Decided));
    receive(&mut outbox, &eviction(6, 2, Decided));
    assert_eq!(messages(&mut outbox), [], "nothing is written yet");
    let version = outbox.version();
    receive(&mut outbox, &eviction(5, 1, Killed));
    outbox.kept(true, version);
    assert_eq!(receipts(&mut outbox), [(5, Decided, true), (6, Decided, true)]);
    receive(&mut outbox, &eviction(5, 1, Verified));
    write(&mut outbox);
    assert_eq!(receipts(&mut outbox), [(5, Killed, true), (5, Verified, true)]);
    assert_eq!(pending(&outbox), [(5, Progress::Verified), (6, Progress::Decided)]);
    let kept = write(&mut outbox);
    assert_eq!(kept.evictions[0].pod.uid, "00000000-0000-0000-0000-000000000001");
    assert_eq!((kept.evictions[0].pod.namespace.as_str(), kept.evictions[0].pod.name.as_str()), ("shop", "cart"));
    assert!(outbox.mark_reported(EvictionNumber(5)) && !outbox.mark_reported(EvictionNumber(9)));
    assert_eq!(pending(&outbox), [(6, Progress::Decided)]);
    outbox.learn(|uid| uid == Uid(1));
    assert_eq!(
        write(&mut outbox).evictions.len(),
        2,
        "a reported one stays while the pod is there, others in any case"
    );
    outbox.kept(false, outbox.version());
    outbox.learn(|_| false);
    assert_eq!(write(&mut outbox).evictions.len(), 2, "the core goes on to name it, and it is not reported once more");
    receive(&mut outbox, &eviction(5, 1, Verified));
    assert_eq!(pending(&outbox), [(6, Progress::Decided)]);
    outbox.kept(true, outbox.version());
    outbox.learn(|_| false);
    assert_eq!(write(&mut outbox).evictions.len(), 1);
}

#[test]
fn what_is_named_again_changes_nothing_and_is_acknowledged_again_and_no_step_is_taken_back() {
    let mut outbox = outbox(true);
    for step in [Decided, Killed, Verified] {
        receive(&mut outbox, &eviction(5, 1, step));
    }
    let (kept, version) = (write(&mut outbox), outbox.version());
    messages(&mut outbox);
    for step in [Verified, Killed, Decided, GivenUp] {
        receive(&mut outbox, &eviction(5, 1, step));
        assert_eq!(receipts(&mut outbox), [(5, step, true)]);
    }
    assert_eq!((write(&mut outbox), outbox.version()), (kept, version));
    assert_eq!(pending(&outbox), [(5, Progress::Verified)], "there is one");
}

#[test]
fn one_that_was_given_up_is_not_reported_until_its_processes_have_ended() {
    let mut outbox = outbox(true);
    for (step, is_pending) in [(Killed, true), (GivenUp, false), (Verified, true)] {
        receive(&mut outbox, &eviction(5, 1, step));
        assert_eq!(pending(&outbox).len(), usize::from(is_pending), "{step:?}");
    }
    receive(&mut outbox, &eviction(4, 1, Decided));
    assert_eq!(pending(&outbox), [(5, Progress::Verified)], "an earlier one of the pod comes too late");
    receive(&mut outbox, &eviction(9, 1, Decided));
    assert_eq!(pending(&outbox), [(9, Progress::Decided)], "a later one of the pod is in its place");
}

#[test]
fn without_a_journal_that_works_what_is_received_is_kept_and_said_not_to_be_durable() {
    for has_journal in [false, true] {
        let mut outbox = Outbox::new(true, has_journal);
        receive(&mut outbox, &eviction(5, 1, Verified));
        outbox.kept(false, 0);
        assert_eq!(receipts(&mut outbox), [(5, Verified, false)]);
        assert_eq!(pending(&outbox), [(5, Progress::Verified)]);
        assert_eq!(outbox.reports().is_some(), !has_journal, "before it was read nothing may be written to it");
    }
    // It works again: the core names it once more.
    let mut outbox = Outbox::new(true, true);
    outbox.restore(Reports::default());
    outbox.kept(false, 0);
    receive(&mut outbox, &eviction(5, 1, Verified));
    assert_eq!(receipts(&mut outbox), [(5, Verified, false)]);
    write(&mut outbox);
    receive(&mut outbox, &eviction(5, 1, Verified));
    assert_eq!(receipts(&mut outbox), [(5, Verified, true)]);
}

#[test]
fn without_a_cluster_an_eviction_ends_with_its_processes() {
    let mut outbox = outbox(false);
    receive(&mut outbox, &eviction(5, 1, Killed));
    assert_eq!(pending(&outbox).len(), 1);
    receive(&mut outbox, &eviction(5, 1, Verified));
    assert_eq!(pending(&outbox), []);
    let kept = write(&mut outbox);
    assert!(kept.evictions.len() == 1 && kept.evictions[0].is_reported);
}

#[test]
fn a_restart_goes_on_with_what_was_kept_and_what_came_meanwhile_is_newer() {
    let mut before = outbox(true);
    receive(&mut before, &eviction(5, 1, Killed));
    receive(&mut before, &eviction(6, 2, Decided));
    let mut kept = write(&mut before);
    let earlier = durable::Eviction {
        number: u64::MAX,
        pod: PodName { uid: uid_text(Uid(3)), ..PodName::default() },
        decided: Moment { wall_ms: 1, boot_ms: None },
        progress: Progress::Verified,
        ..kept.evictions[0].clone()
    };
    kept.evictions.push(earlier);
    let mut outbox = Outbox::new(true, true);
    receive(&mut outbox, &eviction(5, 1, Verified));
    receive(&mut outbox, &eviction(7, 4, Decided));
    outbox.restore(kept);
    let numbers =
        [(u64::MAX, Progress::Verified), (5, Progress::Verified), (6, Progress::Decided), (7, Progress::Decided)];
    assert_eq!(pending(&outbox), numbers, "the pod of an earlier boot is first");
    receive(&mut outbox, &eviction(8, 3, Decided));
    assert_eq!(pending(&outbox).last(), Some(&(8, Progress::Decided)), "a number is of a boot");
}

#[test]
fn of_too_many_the_reported_go_first_then_those_given_up_then_the_oldest() {
    let mut outbox = outbox(true);
    let most = u64::try_from(MOST).expect("a number");
    for number in 1..=most {
        receive(&mut outbox, &eviction(number, number.into(), Verified));
    }
    receive(&mut outbox, &eviction(most + 1, 999_999, GivenUp));
    assert_eq!(pending(&outbox)[0].0, 2, "the oldest went");
    assert!(outbox.mark_reported(EvictionNumber(7)));
    for (number, is_there) in [(most + 2, 7), (most + 3, most + 1), (most + 4, 2)] {
        receive(&mut outbox, &eviction(number, u128::from(number) << 64, Decided));
        assert!(outbox.evictions.iter().all(|eviction| eviction.number != is_there), "{is_there}");
        assert_eq!(outbox.evictions.len(), MOST);
    }
}

#[test]
fn a_cause_comes_back_as_it_was_sent() {
    let limit = |on| EvictionCause::Limit { on, limit: Bytes(9) };
    let causes = [
        EvictionCause::Threshold { signal: Signal::NodeFsInodesFree, threshold: 5, available: -1 },
        EvictionCause::Swap,
        EvictionCause::Throttled,
        limit(None),
        limit(Some(Limited::Volume(3))),
        limit(Some(Limited::Container(4))),
    ];
    for cause in causes {
        let mut outbox = outbox(true);
        receive(&mut outbox, &Eviction { cause, ..eviction(5, 1, Decided) });
        let kept = write(&mut outbox);
        assert_eq!(Outbox::cause_of(&kept.evictions[0]), Some(cause));
        assert_eq!(kept.evictions[0].figures.used, Some(50));
    }
    let mut outbox = outbox(true);
    receive(&mut outbox, &eviction(5, 1, Decided));
    let unknown = Reason::Unknown("tomorrow".into());
    let kept = durable::Eviction { reason: unknown, ..write(&mut outbox).evictions[0].clone() };
    assert_eq!(Outbox::cause_of(&kept), None);
}

fn state(is_true: bool, since: MonotonicNs, observed: Option<MonotonicNs>) -> ConditionState {
    ConditionState { condition: Condition::DiskPressure, is_true, since, wall_ms: 1_795_000_000_000, observed }
}

fn sent_before(outbox: &mut Outbox) -> Vec<ConditionState> {
    outbox.begin();
    let of = |message| if let Message::Condition(state) = message { state } else { panic!("{message:?}") };
    messages(outbox).into_iter().map(of).collect()
}

#[test]
fn the_time_of_a_transition_outlives_cores_and_a_new_core_goes_on_with_it() {
    let mut outbox = outbox(true);
    let begun = monotonic();
    outbox.conclude(state(true, begun, None));
    assert!(outbox.presses(0), "a transition");
    let first = write(&mut outbox).conditions;
    let version = outbox.version();
    assert_eq!((first[0].name.as_str(), first[0].is_true, first[0].is_crossed), ("DiskPressure", true, true));
    assert_eq!(messages(&mut outbox).len(), 1);
    // Another core knows nothing of when it began.
    outbox.conclude(state(true, MonotonicNs(begun.0 + 5_000_000_000), Some(monotonic())));
    assert!(outbox.version() > version && !outbox.presses(version), "the same condition");
    let second = write(&mut outbox).conditions;
    assert_eq!((second[0].since, second[0].is_crossed), (first[0].since, false));
    assert!(outbox.conditions().eq([(Condition::DiskPressure, &second[0])]));
    let before = sent_before(&mut outbox);
    assert_eq!(before.iter().map(|state| state.condition).collect::<Vec<_>>(), Condition::ALL);
    let disk = before.iter().find(|state| state.condition == Condition::DiskPressure).expect("all are sent");
    assert!(disk.is_true && disk.since.0.abs_diff(begun.0) < 1_000_000_000, "{disk:?}");
    assert!(disk.observed.is_some_and(|observed| monotonic().since(observed).as_secs() < 2), "{disk:?}");
    assert!(before.iter().filter(|state| state.is_true).count() == 1);
    outbox.conclude(state(false, monotonic(), None));
    let third = write(&mut outbox).conditions;
    assert!(!third[0].is_true && third[0].since.boot_ms >= second[0].since.boot_ms);
}

#[test]
fn after_a_reboot_a_condition_held_until_the_boot_and_the_wall_s_clock_gives_its_age() {
    let mut before = outbox(true);
    before.conclude(state(true, monotonic(), None));
    let mut kept = write(&mut before);
    let wall_ms = Moment::now().wall_ms.saturating_sub(3_600_000);
    kept.conditions[0].since = Moment { wall_ms, boot_ms: None };
    kept.conditions[0].observed = Some(Moment { wall_ms, boot_ms: None });
    let mut outbox = Outbox::new(true, true);
    outbox.restore(kept.clone());
    let sent = sent_before(&mut outbox);
    let disk = sent.iter().find(|state| state.is_true).expect("it was true");
    assert_eq!((disk.wall_ms, disk.observed), (wall_ms, Some(MonotonicNs(0))));
    kept.conditions[0].is_crossed = false;
    let mut outbox = Outbox::new(true, true);
    outbox.restore(kept);
    let sent = sent_before(&mut outbox);
    let disk = sent.iter().find(|state| state.is_true).expect("it was true");
    // It was crossed before this boot, however long that is ago by the clock of the wall.
    assert!(disk.observed.is_some_and(|observed| observed.0 < 60_000_000_000), "{disk:?}");
}

#[test]
fn a_condition_that_no_threshold_can_set_any_more_is_left() {
    let mut before = outbox(true);
    for condition in Condition::ALL {
        before.conclude(ConditionState { condition, ..state(true, monotonic(), None) });
    }
    let kept = write(&mut before);
    let (memory, disk, pids) = (Condition::MemoryPressure, Condition::DiskPressure, Condition::PidPressure);
    for (thresholds, expected) in [
        ("nodefs.available: 1Gi, pid.available: 10", vec![disk, memory, pids]),
        ("imagefs.inodesFree: 5%", vec![disk, memory]),
        ("memory.available: 1Gi", vec![memory]),
    ] {
        let own = Some(Text { file: "f".into(), text: format!("evictionHard: {{{thresholds}}}\n") });
        let texts = Texts { own, ..Texts::default() };
        let configuration = examine_texts(&texts, &Overrides::default()).configuration;
        let mut outbox = Serving::of(&configuration, true).outbox;
        outbox.restore(kept.clone());
        assert_eq!(outbox.conditions().map(|(condition, _)| condition).collect::<Vec<_>>(), expected);
        let in_journal = outbox.reports().map(|reports| reports.conditions.len());
        assert_eq!(in_journal, Some(expected.len()), "the others leave the journal");
    }
}

#[test]
fn what_conditions_were_is_not_sent_before_the_journal_was_read_or_could_not_be() {
    let mut outbox = Outbox::new(true, true);
    assert_eq!(sent_before(&mut outbox), []);
    outbox.kept(false, 0);
    assert_eq!(messages(&mut outbox).len(), Condition::ALL.len());
    let mut without = Outbox::new(true, false);
    assert_eq!(sent_before(&mut without).len(), Condition::ALL.len());
}
