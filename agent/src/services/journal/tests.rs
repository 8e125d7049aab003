use super::*;
use plimsoll_inventory::Limited;
use plimsoll_policy::kubelet::Critical;
use plimsoll_units::{Bytes, MonotonicNs};
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;

fn known(uids: &[u128]) -> Known {
    let facts = |uid: u128| PodFacts {
        uid: Uid(uid),
        priority: -7,
        critical: Some(Critical::Priority),
        memory_request: Bytes::mib(64),
        started: Some(MonotonicNs(5)),
        ends: Some(MonotonicNs(6)),
        ..PodFacts::default()
    };
    let limit = |uid: u128| StorageLimit { uid: Uid(uid), on: Limited::Volume(u32::MAX), bytes: Bytes(9) };
    Known {
        pods: uids.iter().map(|uid| (Uid(*uid), facts(*uid))).collect(),
        limits: uids.iter().map(|uid| (Uid(*uid), vec![limit(*uid)])).collect(),
    }
}

fn start(path: &Path) -> Journal {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    let directory = File::open(path).expect("a directory").into();
    let boot = BootId::read().expect("a boot");
    Journal::start(Place { directory, path: path.to_owned(), boot }).expect("it starts")
}

fn restored(journal: &mut Journal) -> Restored {
    match journal.events.blocking_recv() {
        Some(Event::Restored(restored)) => *restored,
        other => panic!("{other:?}"),
    }
}

fn works(journal: &mut Journal) -> Works {
    match journal.events.blocking_recv() {
        Some(Event::Works(works)) => works,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_next_process_knows_what_this_one_knew_last() {
    let place = tempfile::tempdir().expect("a directory");
    let mut first = start(place.path());
    assert_eq!(restored(&mut first), Restored::default());
    first.keep(known(&[1, u128::MAX]));
    assert!(works(&mut first).all);
    // Its lock goes with its thread, after the pause; that of a process at once.
    let copy = tempfile::tempdir().expect("a directory");
    for name in ["state.0", "state.1"] {
        let _ = std::fs::copy(place.path().join(name), copy.path().join(name));
    }
    assert_eq!(restored(&mut start(copy.path())).known, known(&[1, u128::MAX]));
}

#[test]
fn what_is_gone_is_forgotten_and_times_of_another_boot_are_too() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    let boot = BootId::read().expect("a boot");
    let Opened { mut store, .. } = Store::open(place.path(), boot).expect("it opens");
    assert_eq!(put(&mut store, &known(&[1, 2])), None);
    assert_eq!(put(&mut store, &known(&[2])), None);
    assert_eq!(read(&store, false), (known(&[2]), 0));
    let (after, _) = read(&store, true);
    assert_eq!((after.pods[&Uid(2)].started, after.pods[&Uid(2)].ends), (None, None));
    store.set_facts("3".into(), r#"{"facts": {"uid": 3}}"#.into()).expect("there is room");
    assert_eq!(read(&store, false), (known(&[2]), 1), "a field is missing");
}

#[test]
fn one_that_another_agent_has_does_not_work_until_the_moment_that_agent_has_ended() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    let boot = BootId::read().expect("a boot");
    let Opened { store: mut first, .. } = Store::open(place.path(), boot).expect("it opens");
    let mut second = start(place.path());
    assert_eq!(works(&mut second), Works { is_held: true, ..Works::default() });
    assert_eq!(put(&mut first, &known(&[7])), None);
    assert_eq!(first.commit(monotonic()), Commit::Written);
    assert!(second.events.try_recv().is_err(), "it waits");
    let ended = Instant::now();
    // Its lock goes with it.
    drop(first);
    assert_eq!(restored(&mut second).known, known(&[7]));
    assert!(ended.elapsed() < OPENED_AGAIN / 2, "{:?}", ended.elapsed());
    second.keep(known(&[8]));
    assert_eq!(works(&mut second), Works { all: true, reports: true, ..Works::default() });
}

#[test]
fn what_presses_is_written_at_once_and_with_it_all_else() {
    let next = Next::default();
    let reports = |version| Some((version, Reports::default()));
    let long_ago = Instant::now().checked_sub(PAUSE);
    for (written, presses) in [(Some(Instant::now()), true), (long_ago, false), (None, false)] {
        next.put(|newest| *newest = Newest { reports: reports(7), presses, ..Newest::default() });
        let begun = Instant::now();
        assert_eq!(next.wait(written, false), Newest { reports: reports(7), presses, ..Newest::default() });
        assert!(begun.elapsed() < PAUSE, "{presses}");
    }
    next.put(|newest| newest.reports = reports(8));
    let written = Instant::now();
    next.wait(Some(written), false);
    assert!(written.elapsed() >= PAUSE, "what does not press waits");
}

#[test]
fn a_pod_that_is_refused_keeps_no_report_from_the_disk() {
    let place = tempfile::tempdir().expect("a directory");
    let mut journal = start(place.path());
    restored(&mut journal);
    let mut too_much = known(&[1]);
    let limits = too_much.limits.get_mut(&Uid(1)).expect("it has one");
    *limits = (0..4096).map(|volume| StorageLimit { on: Limited::Volume(volume), ..limits[0] }).collect();
    journal.keep(too_much);
    assert_eq!(works(&mut journal), Works { reports: true, ..Works::default() });
    journal.keep_reports(7, Reports::default(), true);
    assert_eq!(works(&mut journal), Works { reports: true, version: 7, ..Works::default() });
}

#[test]
fn what_cannot_be_written_does_not_count_as_kept() {
    let place = tempfile::tempdir().expect("a directory");
    let mut journal = start(place.path());
    restored(&mut journal);
    // No file can be made in it any more, as where the disk is full or can only be read.
    std::fs::remove_dir(place.path()).expect("nothing was written yet");
    journal.keep(known(&[1]));
    assert_eq!(works(&mut journal), Works::default());
    journal.keep_reports(7, Reports::default(), true);
    assert_eq!(works(&mut journal), Works::default(), "of the reports nothing is on a disk");
}

#[test]
fn reports_that_could_not_be_written_count_as_kept_once_they_are_though_nothing_new_came() {
    let place = tempfile::tempdir().expect("a directory");
    let mut journal = start(place.path());
    restored(&mut journal);
    // Something else has the names of its files, until that is set aside with the second try.
    for name in ["state.0", "state.1"] {
        std::fs::create_dir(place.path().join(name)).expect("nothing was written yet");
    }
    journal.keep_reports(7, Reports::default(), true);
    journal.keep(known(&[1]));
    assert_eq!(works(&mut journal), Works::default());
    assert_eq!(works(&mut journal), Works { all: true, reports: true, version: 7, ..Works::default() });
}
