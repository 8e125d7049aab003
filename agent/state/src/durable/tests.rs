use super::*;
use plimsoll_policy::kubelet::Signal;
use plimsoll_policy::message::Cause;
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
        reason: Reason::Cause(Cause::Signal(Signal::MemoryAvailable)),
        grace_seconds: 0,
        decided: AT,
        progress,
        is_reported: false,
        number: 0,
        is_soft: false,
        is_given_up: false,
        figures: Figures::default(),
    }
}

/// A store with one of everything.
fn fill(store: &mut Store) {
    store.set_eviction(eviction("killed", Progress::Killed)).expect("room");
    store.set_eviction(eviction("decided", Progress::Decided)).expect("room");
    let condition =
        Condition { name: "MemoryPressure".into(), is_true: true, since: AT, observed: Some(AT), is_crossed: false };
    store.set_condition(condition).expect("room");
    store.set_facts("killed".into(), "{\"qos\":\"Burstable\"}".into()).expect("room");
}

type All = (Vec<Eviction>, Vec<Condition>, Vec<(String, String)>);

fn all(store: &Store) -> All {
    (store.evictions(), store.conditions(), store.facts())
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
    assert_eq!((before.0.len(), before.1.len(), before.2.len()), (2, 1, 1));
    assert_eq!(store.commit(NOW), Commit::Written);
    fill(&mut store);
    assert_eq!(store.commit(NOW), Commit::Unchanged, "the same again");
    assert_eq!(fs::metadata(path.join("state.0")).expect("it was written").mode() & 0o777, 0o600);
    drop(store);
    let Opened { mut store, found, problems } = open(&path);
    assert_eq!((found, problems), (Found::Continued, Vec::new()));
    assert_eq!(all(&store), before);
    store.remove_eviction("killed");
    store.remove_facts("killed");
    store.remove_facts("none");
    assert_eq!(store.commit(NOW), Commit::Written);
    drop(store);
    let (evictions, _, facts) = all(&open(&path).store);
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
    assert_eq!((found, problems), (Found::Rebooted { dropped: 1 }, Vec::new()));
    let earlier = Moment { boot_ms: None, ..AT };
    let verified = Eviction { decided: earlier, ..eviction("killed", Progress::Verified) };
    let condition = Condition {
        name: "MemoryPressure".into(),
        is_true: true,
        since: earlier,
        observed: Some(earlier),
        is_crossed: false,
    };
    let facts = vec![("killed".to_owned(), "{\"qos\":\"Burstable\"}".to_owned())];
    let expected = (vec![verified], vec![condition], facts);
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

/// What version 2 added, each with a value.
fn fill_of_version_2(store: &mut Store) {
    fill(store);
    let figures = Figures {
        threshold: Some(100 << 20),
        available: Some(-1),
        limit: Some(5),
        part: Some(u32::MAX),
        used: Some(1 << 40),
    };
    let given_up =
        Eviction { number: 8, is_soft: true, is_given_up: true, figures, ..eviction("b", Progress::Decided) };
    store.set_eviction(given_up).expect("room");
    let condition =
        Condition { name: "DiskPressure".into(), is_true: true, since: AT, observed: None, is_crossed: true };
    store.set_condition(condition).expect("room");
    store.set_image("sha256:0".into(), "{\"first\":1}".into()).expect("room");
}

fn saved(version: u32) -> Vec<u8> {
    let file = format!("tests/data/durable/version-{version}/state.0");
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("it is saved")
}

/// A store that finds these bytes in its first file.
fn open_with(bytes: &[u8]) -> (tempfile::TempDir, Opened) {
    let (dir, path) = home();
    fs::create_dir(&path).expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("it is ours");
    fs::write(path.join("state.0"), bytes).expect("writable");
    fs::set_permissions(path.join("state.0"), fs::Permissions::from_mode(0o600)).expect("it is ours");
    let opened = open(&path);
    (dir, opened)
}

/// Every version reads the file that version 1 wrote, which has two fields of an eviction that later ones do not keep.
#[test]
fn the_file_of_version_1_is_read() {
    let (_dir, path) = home();
    let mut store = open(&path).store;
    fill(&mut store);
    let expected = all(&store);
    let (_dir, Opened { store, found, problems }) = open_with(&saved(1));
    assert_eq!((found, problems, all(&store)), (Found::Continued, Vec::new(), expected));
}

/// Version 2 wrote the file in `tests/data`: every later version reads it, and as long as the version is 2, writes the
/// same bytes.
#[test]
fn the_file_of_version_2_is_read() {
    let (_dir, path) = home();
    let mut store = open(&path).store;
    fill_of_version_2(&mut store);
    store.commit(NOW);
    let expected = (all(&store), store.images());
    drop(store);
    let written = fs::read(path.join("state.0")).expect("it was written");
    assert!(written == saved(2), "{}", String::from_utf8_lossy(&written));
    let (_dir, Opened { store, found, problems }) = open_with(&saved(2));
    assert_eq!((found, problems, (all(&store), store.images())), (Found::Continued, Vec::new(), expected));
}

/// The entries as version 1 declared them, for what an older agent makes of a newer one's file.
mod version_1 {
    use super::super::moment::Moment;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum Entry {
        Condition {
            name: String,
            is_true: bool,
            since: Moment,
            #[serde(default)]
            observed: Option<Moment>,
        },
        Eviction(Eviction),
        Facts {
            uid: String,
            text: String,
        },
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    pub(super) struct Eviction {
        pub(super) pod: super::PodName,
        #[serde(default)]
        pub(super) cgroups: Vec<u64>,
        pub(super) reason: String,
        #[serde(default)]
        pub(super) message: String,
        #[serde(default)]
        pub(super) grace_seconds: u32,
        pub(super) decided: Moment,
        pub(super) progress: Progress,
        #[serde(default)]
        pub(super) is_reported: bool,
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum Progress {
        Decided,
        Killed,
        Verified,
    }
}

#[test]
fn version_1_reads_what_it_knows_of_the_file_of_version_2() {
    let bytes = saved(2);
    assert_eq!((&bytes[8..12], &bytes[12..16]), (&[2, 0, 0, 0][..], &[1, 0, 0, 0][..]), "version 1 may read it");
    let lines = bytes[image::HEADER..].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let (read, unknown): (Vec<_>, Vec<_>) = lines
        .map(|line| (line, serde_json::from_slice::<version_1::Entry>(line)))
        .partition(|(_, entry)| entry.is_ok());
    let read: Vec<_> = read.into_iter().filter_map(|(_, entry)| entry.ok()).collect();
    assert_eq!(read.len(), 6, "{read:?}");
    assert!(unknown.iter().all(|(line, _)| line.starts_with(b"{\"images\"")) && unknown.len() == 1, "{unknown:?}");
    let given_up = read.iter().find_map(|entry| match entry {
        version_1::Entry::Eviction(eviction) if eviction.pod.uid == "b" => Some(eviction),
        _ => None,
    });
    assert_eq!(given_up.map(|eviction| &eviction.progress), Some(&version_1::Progress::Decided));
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
    assert!(!eviction.is_reported);
}
