use super::*;
use crate::testing::Fake;
use std::process::Command;

#[test]
fn living_processes_keep_their_memory() {
    let fake = Fake::new("w");
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep starts");
    fake.make("a");
    fake.write("a/cgroup.procs", &format!("{}\n", child.id()));
    let mut tally = Tally::default();
    let never = MonotonicNs(u64::MAX);
    assert!(tally.round(&fake.handle, never), "it is not dying: to be tried again");
    assert_eq!((tally.released, tally.gone, tally.kept), (0, 0, 0));
    assert!(!tally.round(&fake.handle, MonotonicNs(1)), "its time is over");
    let held = Opened { pid: Pid::from_child(&child), fd: process::open(Pid::from_child(&child)).expect("it lives") };
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    tally.take(&held);
    assert_eq!(tally.gone, 1);
    assert!(!tally.round(&fake.handle, never));
}

#[test]
fn a_victim_has_its_head_start() {
    let fake = Fake::new("w");
    let from = monotonic().after(HEAD_START);
    let Done::Released { released: 0, gone: 0, kept: 0, .. } = release(&fake.handle, from) else {
        panic!("there is no process");
    };
    assert!(monotonic() >= from);
}
