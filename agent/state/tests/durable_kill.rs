//! The store in a process of its own, which is killed at any moment, and which finds no room. That process is this
//! program again, with what it is to do in its environment.

use plimsoll_node::boot::BootId;
use plimsoll_state::durable::{Commit, Found, Opened, Store};
use plimsoll_units::MonotonicNs;
use std::io::{BufRead as _, BufReader, Write as _, stdout};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

const BOOT: BootId = BootId([7; 16]);
/// The directory that the other process writes to.
const DIRECTORY: &str = "PLIMSOLL_TEST_DIRECTORY";
/// What it does there: `count` or `grow`.
const DUTY: &str = "PLIMSOLL_TEST_DUTY";

/// The other process's part; nothing in a usual run.
#[test]
fn in_the_other_process() {
    let (Ok(directory), Ok(duty)) = (std::env::var(DIRECTORY), std::env::var(DUTY)) else { return };
    let Opened { store, .. } = Store::open(Path::new(&directory), BOOT).expect("it can be opened");
    if duty == "count" { count(store) } else { grow(store) }
}

/// Commits one number after the other, and says each that was acknowledged.
fn count(mut store: Store) {
    let first = number(&store).map_or(0, |last| last + 1);
    for number in first.. {
        // Of another length each, so that files grow and shrink.
        let text = format!("{number}{}", " ".repeat(number * 997 % 9000));
        store.set_facts("u".into(), text).expect("room");
        assert_eq!(store.commit(MonotonicNs(0)), Commit::Written);
        say(&number.to_string());
    }
}

/// Has content that becomes larger than a file may be, and then small again.
fn grow(mut store: Store) {
    for pod in 0..40 {
        store.set_facts(format!("{pod}"), "x".repeat(10_000)).expect("room");
    }
    for second in [0, 1] {
        match store.commit(MonotonicNs(second * 1_000_000_000)) {
            Commit::Degraded(error) => say(&error.to_string()),
            commit => say(&format!("{commit:?}")),
        }
    }
    for pod in 1..40 {
        store.remove_facts(&format!("{pod}"));
    }
    say(&format!("{:?}", store.commit(MonotonicNs(9_000_000_000))));
}

fn say(text: &str) {
    // A line in one write: the reader never sees a part of one.
    stdout().write_all(format!("said {text}\n").as_bytes()).expect("the parent reads");
}

fn number(store: &Store) -> Option<usize> {
    let (_, text) = store.facts().pop()?;
    Some(text.trim_end().parse().expect("a number was written"))
}

/// What the other process says, without what the test harness prints.
fn said(output: ChildStdout) -> impl Iterator<Item = String> {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    // The harness prints a test's name before its output, on the same line.
    lines.filter_map(|line| line.split_once("said ").map(|(_, text)| text.to_owned()))
}

fn other_process(command: &mut Command, directory: &Path, duty: &str) -> std::process::Child {
    command
        .args(["--exact", "in_the_other_process", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(DUTY, duty)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts again")
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("this test")
}

#[test]
fn killed_at_any_moment_what_was_acknowledged_is_found() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let directory = home.path().join("durable");
    let mut last = None;
    for round in 0..12 {
        let mut child = other_process(&mut Command::new(this_program()), &directory, "count");
        let mut said = said(child.stdout.take().expect("it is piped"));
        // After a number that differs by round, and at whatever moment of the next write that is.
        let mut acknowledged: Option<usize> = None;
        for _ in 0..=round % 4 {
            acknowledged = said.next().map(|text| text.parse().expect("a number"));
        }
        child.kill().expect("it runs");
        acknowledged = said.last().map_or(acknowledged, |text| Some(text.parse().expect("a number")));
        child.wait().expect("it was killed");
        let acknowledged = acknowledged.expect("it said some");
        let Opened { store, found, .. } = Store::open(&directory, BOOT).expect("the lock ended with its holder");
        let found_number = number(&store).expect("some were written");
        assert_eq!(found, Found::Continued);
        assert!([acknowledged, acknowledged + 1].contains(&found_number), "{found_number} after {acknowledged}");
        assert!(last < Some(found_number), "it goes on where the last one was: {found_number} after {last:?}");
        last = Some(found_number);
    }
}

#[test]
fn without_room_the_last_state_holds_and_the_next_that_fits_is_written() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let directory = home.path().join("durable");
    let Opened { mut store, .. } = Store::open(&directory, BOOT).expect("it can be opened");
    store.set_facts("before".into(), "1".into()).expect("room");
    assert_eq!(store.commit(MonotonicNs(0)), Commit::Written);
    drop(store);
    // No file may have more than 64 blocks of 512 bytes. A shell that ignores the signal for it hands that on.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""]).arg(this_program());
    let mut child = other_process(&mut shell, &directory, "grow");
    let said: Vec<String> = said(child.stdout.take().expect("it is piped")).collect();
    assert!(child.wait().expect("it ends").success());
    let [degraded, again, recovered] = &said[..] else { panic!("{said:?}") };
    assert!(degraded.starts_with("cannot write ") && degraded.contains("state.1"), "{degraded}");
    assert_eq!((again.as_str(), recovered.as_str()), ("StillDegraded", "Recovered { failures: 2 }"));
    let Opened { store, problems, .. } = Store::open(&directory, BOOT).expect("it can be opened");
    let uids: Vec<String> = store.facts().into_iter().map(|(uid, _)| uid).collect();
    assert_eq!((uids, problems), (vec!["0".to_owned(), "before".to_owned()], Vec::new()));
}
