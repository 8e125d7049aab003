use super::*;
use plimsoll_policy::kubelet::Signal;
use plimsoll_policy::message::Cause;
use plimsoll_units::CgroupId;
use rustix::fs::{Mode, chmod, mknodat};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

const BOOT: BootId = BootId([7; 16]);
const LATER_BOOT: BootId = BootId([8; 16]);
const AT: Moment = Moment { wall_ms: 1_795_000_000_000, boot_ms: Some(3_600_000) };
const NOW: MonotonicNs = MonotonicNs(1);

fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("durable");
    (dir, path)
}

fn open(path: &Path) -> Opened {
    Store::open(path, BOOT).expect("it can be opened")
}

fn eviction(uid: &str, progress: Progress) -> Eviction {
    Eviction {
        pod: PodName { uid: uid.into(), namespace: "shop".into(), name: "cart\u{1b}[31m\n".into() },
        cgroups: vec![CgroupId(u64::MAX), CgroupId(7)],
        reason: Reason::Cause(Cause::Signal(Signal::MemoryAvailable)),
        message: "The node was low on resource: memory. ".into(),
        grace_seconds: 0,
        decided: AT,
        progress,
        is_reported: false,
    }
}

/// A store with one of everything.
fn fill(store: &mut Store) {
    store.set_eviction(eviction("killed", Progress::Killed)).expect("room");
    store.set_eviction(eviction("decided", Progress::Decided)).expect("room");
    let condition = Condition { name: "MemoryPressure".into(), is_true: true, since: AT, observed: Some(AT) };
    store.set_condition(condition).expect("room");
    store.set_engine(Engine { made_by: "build".into(), state: "{\"room\":4096}".into() }).expect("room");
    store.set_facts("killed".into(), "{\"qos\":\"Burstable\"}".into()).expect("room");
}

type All = (Vec<Eviction>, Vec<Condition>, Option<String>, Vec<(String, String)>);

fn all(store: &Store) -> All {
    (store.evictions(), store.conditions(), store.engine("build"), store.facts())
}

#[test]
fn what_is_committed_is_there_after_a_restart() {
    let (_dir, path) = home();
    let Opened { mut store, found, problems } = open(&path);
    assert_eq!((found, problems), (Found::Nothing, Vec::new()));
    assert_eq!(fs::metadata(&path).expect("it was made").mode() & 0o777, 0o700);
    assert_eq!(store.commit(NOW), Commit::Written, "room is reserved at once");
    assert_eq!(store.commit(NOW), Commit::Unchanged);
    fill(&mut store);
    let before = all(&store);
    assert_eq!((before.0.len(), before.1.len(), before.2.is_some(), before.3.len()), (2, 1, true, 1));
    assert_eq!(store.commit(NOW), Commit::Written);
    fill(&mut store);
    assert_eq!(store.commit(NOW), Commit::Unchanged, "the same again");
    assert_eq!(fs::metadata(path.join("state.0")).expect("it was written").mode() & 0o777, 0o600);
    drop(store);
    let Opened { mut store, found, problems } = open(&path);
    assert_eq!((found, problems), (Found::Continued, Vec::new()));
    assert_eq!(all(&store), before);
    assert_eq!(store.engine("another build"), None);
    store.remove_eviction("killed");
    store.remove_facts("killed");
    store.remove_facts("none");
    assert_eq!(store.commit(NOW), Commit::Written);
    drop(store);
    let (evictions, _, _, facts) = all(&open(&path).store);
    assert_eq!((evictions, facts), (vec![eviction("decided", Progress::Decided)], Vec::new()));
}

#[test]
fn a_reboot_drops_what_cannot_be_true() {
    let (_dir, path) = home();
    let mut store = open(&path).store;
    fill(&mut store);
    store.commit(NOW);
    drop(store);
    let Opened { mut store, found, problems } = Store::open(&path, LATER_BOOT).expect("it can be opened");
    assert_eq!((found, problems), (Found::Rebooted { dropped: 2 }, Vec::new()));
    let earlier = Moment { boot_ms: None, ..AT };
    let verified = Eviction { cgroups: Vec::new(), decided: earlier, ..eviction("killed", Progress::Verified) };
    let condition = Condition { name: "MemoryPressure".into(), is_true: true, since: earlier, observed: Some(earlier) };
    let facts = vec![("killed".to_owned(), "{\"qos\":\"Burstable\"}".to_owned())];
    let expected = (vec![verified], vec![condition], None, facts);
    assert_eq!(all(&store), expected);
    assert_eq!(store.commit(NOW), Commit::Written, "it is of this boot now");
    drop(store);
    let Opened { store, found, .. } = Store::open(&path, LATER_BOOT).expect("it can be opened");
    assert_eq!((found, all(&store)), (Found::Continued, expected));
}

#[test]
fn a_second_writer_is_refused() {
    let (_dir, path) = home();
    let first = open(&path);
    let error = Store::open(&path, BOOT).expect_err("the first one has it");
    assert!(matches!(error, OpenError::Held { .. }), "{error}");
    assert!(error.to_string().contains("durable"), "{error}");
    drop(first);
    open(&path);
}

#[test]
fn a_directory_that_cannot_be_trusted_or_used_is_named() {
    let (dir, path) = home();
    for (mode, refused) in [(0o700, false), (0o755, false), (0o770, true), (0o702, true)] {
        fs::create_dir_all(&path).expect("writable");
        chmod(&path, Mode::from_raw_mode(mode)).expect("it is ours");
        match Store::open(&path, BOOT) {
            Ok(_) => assert!(!refused, "{mode:o}"),
            Err(error) => assert!(refused && error.to_string().contains(&format!("{mode:o}")), "{error}"),
        }
    }
    chmod(&path, Mode::RWXU).expect("it is ours");
    // Root alone can give it away.
    if chown(&path, Some(12_345), None).is_ok() {
        let error = Store::open(&path, BOOT).expect_err("it is another user's").to_string();
        assert!(error.contains("12345"), "{error}");
    }
    fs::remove_dir_all(&path).expect("writable");
    fs::write(&path, "a file").expect("writable");
    for path in [path, dir.path().join("none/durable"), dir.path().join("x".repeat(300))] {
        let error = Store::open(&path, BOOT).expect_err("it is no directory").to_string();
        assert!(error.contains(path.to_str().expect("UTF-8")), "{error}");
    }
}

/// Puts something of another kind in the place of a file.
fn plant(kind: &str, at: &Path, target: &Path) {
    if kind == "writable for others" {
        return fs::set_permissions(at, fs::Permissions::from_mode(0o666)).expect("it is ours");
    }
    fs::remove_file(at).expect("it was made");
    match kind {
        "link" => symlink(target, at).expect("writable"),
        "directory" => fs::create_dir(at).expect("writable"),
        "pipe" => {
            let pipe = rustix::fs::FileType::Fifo;
            mknodat(rustix::fs::CWD, at, pipe, Mode::RUSR | Mode::WUSR, 0).expect("writable");
        }
        "garbage" => fs::write(at, "garbage").expect("writable"),
        _ => unreachable!(),
    }
}

#[test]
fn what_stands_in_the_place_of_a_file_is_neither_followed_nor_waited_for_nor_lost() {
    for kind in ["link", "directory", "pipe", "writable for others", "garbage"] {
        for name in ["state.0", "state.1"] {
            let (dir, path) = home();
            let target = dir.path().join("target");
            fs::write(&target, "precious").expect("writable");
            let mut store = open(&path).store;
            fill(&mut store);
            assert_eq!([store.commit(NOW), store.commit(NOW)], [Commit::Written, Commit::Unchanged]);
            let before = all(&store);
            drop(store);
            plant(kind, &path.join(name), &target);
            let Opened { mut store, found, problems } = open(&path);
            // The first file has it; the second one was only reserved.
            let is_lost = name == "state.0";
            assert_eq!(found, if is_lost { Found::Nothing } else { Found::Continued });
            assert!(
                matches!(&problems[..], [Problem::NotUsed { path: at, .. }] if *at == path.join(name)),
                "{problems:?}"
            );
            fill(&mut store);
            for text in ["1", "2"] {
                store.set_facts("more".into(), text.into()).expect("room");
                assert_eq!(store.commit(NOW), Commit::Written, "{kind} as {name}");
            }
            store.remove_facts("more");
            store.commit(NOW);
            drop(store);
            assert_eq!(fs::read(&target).expect("it is there"), b"precious");
            assert!(fs::symlink_metadata(path.join(format!("{name}.broken"))).is_ok(), "{kind} as {name}");
            let Opened { store, found, problems } = open(&path);
            assert_eq!((found, problems), (Found::Continued, Vec::new()), "{kind} as {name}");
            assert_eq!(all(&store), before);
        }
    }
}

#[test]
fn a_file_is_read_no_further_than_it_can_be_long() {
    let (_dir, path) = home();
    let mut store = open(&path).store;
    fill(&mut store);
    store.commit(NOW);
    let before = all(&store);
    drop(store);
    let file = fs::OpenOptions::new().write(true).open(path.join("state.0")).expect("it was written");
    // More than there is memory for.
    file.set_len(1 << 40).expect("it has holes");
    let Opened { store, found, problems } = open(&path);
    assert_eq!((found, problems, all(&store)), (Found::Continued, Vec::new(), before));
}

#[test]
fn a_link_planted_while_it_runs_is_reported_and_overcome() {
    let (dir, path) = home();
    let target = dir.path().join("target");
    fs::write(&target, "precious").expect("writable");
    let mut store = open(&path).store;
    assert_eq!(store.commit(NOW), Commit::Written);
    plant("link", &path.join("state.1"), &target);
    fill(&mut store);
    let Commit::Degraded(error) = store.commit(NOW) else { panic!("it is a link") };
    assert!(error.to_string().contains("state.1"), "{error}");
    assert_eq!(store.degraded(), Some(&error));
    assert_eq!(store.commit(NOW), Commit::StillDegraded, "it waits before it tries again");
    assert_eq!(store.commit(NOW.after(FIRST_PAUSE)), Commit::Recovered { failures: 1 });
    assert_eq!(store.degraded(), None);
    assert_eq!(fs::read(&target).expect("it is there"), b"precious");
}

#[test]
fn a_failure_is_said_once_and_tried_again_with_growing_pauses() {
    let (_dir, path) = home();
    let mut store = open(&path).store;
    // The directory goes away under the store: nothing can be made in it any more.
    fs::remove_dir_all(&path).expect("writable");
    fill(&mut store);
    let (mut tries, mut now, mut said) = (Vec::new(), 0, 0);
    while tries.len() < 9 {
        let before = store.failing.as_ref().map_or(0, |failing| failing.failures);
        said += usize::from(matches!(store.commit(MonotonicNs(now * 1_000_000_000)), Commit::Degraded(_)));
        if store.failing.as_ref().is_some_and(|failing| failing.failures > before) {
            tries.push(now);
        }
        now += 1;
    }
    assert_eq!(said, 1);
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    assert_eq!(all(&store).0.len(), 2, "it is all in memory");
}

/// Version 1 wrote the file in `tests/data`: every later version reads it, and as long as the version is 1, writes the
/// same bytes.
#[test]
fn the_file_of_version_1_is_read() {
    let saved = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/durable/version-1/state.0");
    let bytes = fs::read(&saved).expect("it is saved");
    let (_dir, path) = home();
    let mut store = open(&path).store;
    fill(&mut store);
    store.commit(NOW);
    let expected = all(&store);
    drop(store);
    assert_eq!(fs::read(path.join("state.0")).expect("it was written"), bytes);
    let (_dir, path) = home();
    fs::create_dir(&path).expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("it is ours");
    fs::write(path.join("state.0"), &bytes).expect("writable");
    fs::set_permissions(path.join("state.0"), fs::Permissions::from_mode(0o600)).expect("it is ours");
    let Opened { store, found, problems } = open(&path);
    assert_eq!((found, problems, all(&store)), (Found::Continued, Vec::new(), expected));
}

/// The fewest fields that a file of version 1 can have, as a later version must still read them.
#[test]
fn absent_fields_are_unknown() {
    let lines = r#"{"condition":{"name":"DiskPressure","is_true":false,"since":{"wall_ms":5}}}
{"eviction":{"pod":{"uid":"u"},"reason":"tomorrow","decided":{"wall_ms":5,"later":[]},"progress":"killed","later":1}}
{"later":{"kind":"of entry"}}
"#;
    let (content, read) = Content::read(lines.as_bytes(), false);
    assert_eq!((read.skipped, read.dropped), (1, 0));
    let entries: Vec<Entry> = content.entries(Kind::Condition).chain(content.entries(Kind::Eviction)).collect();
    let [Entry::Condition(condition), Entry::Eviction(eviction)] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((condition.observed, condition.since.boot_ms), (None, None));
    assert_eq!((&eviction.reason, eviction.grace_seconds), (&Reason::Unknown("tomorrow".into()), 0));
    assert!(eviction.cgroups.is_empty() && !eviction.is_reported);
}
