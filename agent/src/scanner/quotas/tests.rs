use super::*;
use crate::answering::tests::await_end;
use rustix::net::{Shutdown, shutdown};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::mpsc;

fn figure(number: usize) -> Figure {
    // Names as long as they may be.
    let [pod, volume] = ["p", "v"].map(|letter| format!("{number:0>4}{}", letter.repeat(59)));
    Figure { pod, volume, bytes: u64::MAX, inodes: u64::MAX }
}

fn quotas(figures: Vec<Figure>) -> Quotas {
    Quotas { listed: figures.len(), figures, refused: None }
}

/// Has a thread answer with what comes by a channel.
fn answering() -> (Answering, Asking, mpsc::Sender<Quotas>) {
    let (answers, answer) = mpsc::channel();
    let mut answering = Answering::default();
    let read = move || answer.recv().map_err(|_| ErrorKind::Other.into());
    let way = serve_by(&mut answering, Duration::ZERO, read).expect("a thread");
    (answering, Asking::new(way), answers)
}

#[test]
fn an_answer_is_whole_however_many_figures_it_has() {
    let (answering, mut asking, answers) = answering();
    for count in [0, 1, FIGURES, 500] {
        let figures: Vec<Figure> = (0..count).map(figure).collect();
        answers.send(quotas(figures.clone())).expect("it waits");
        assert_eq!(asking.ask_within(Duration::from_mins(1)), figures);
    }
    drop(asking);
    await_end(&answering);
}

#[test]
fn what_is_said_too_late_counts_for_nothing_and_the_next_answer_does() {
    let (_answering, mut asking, answers) = answering();
    for _ in 0..3 {
        assert_eq!(asking.ask_within(Duration::from_millis(5)), [], "its disk hangs, and it is asked once");
    }
    answers.send(quotas(vec![figure(1)])).expect("it waits");
    // That answer was of then.
    while asking.is_outstanding && asking.take(Duration::ZERO).is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    answers.send(quotas(vec![figure(2)])).expect("it waits");
    assert_eq!(asking.ask_within(Duration::from_mins(1)), [figure(2)]);
}

#[test]
fn a_pod_without_a_user_namespace_and_what_is_not_in_the_list_is_not_asked_for() {
    let place = tempfile::tempdir().expect("a directory");
    let [list, kubelet] = ["projects", "kubelet"].map(|name| place.path().join(name));
    assert_eq!(read(&list, &kubelet).expect("there is none"), Quotas::default());
    for pod in ["own", "others", "changing"] {
        let pod = kubelet.join("pods").join(pod);
        for volume in ["listed", "unlisted"] {
            fs::create_dir_all(pod.join("volumes/kubernetes.io~empty-dir").join(volume)).expect("a directory");
        }
        if !pod.ends_with("changing") {
            fs::write(pod.join("userns"), "{}").expect("a file");
        }
    }
    let line = |number: u32, pod| {
        format!("{number}:{}/pods/{pod}/volumes/kubernetes.io~empty-dir/listed\n", kubelet.display())
    };
    let lines = [(5, "own"), (6, "changing"), (7, "gone"), (8, "others")].map(|(number, pod)| line(number, pod));
    fs::write(&list, lines.concat()).expect("a file");
    let taken = Taken { bytes: 4096, inodes: 2 };
    // The kernel has another project for the last one.
    let found = read_by(&list, &kubelet, |_, number| Ok((number != 8).then_some(taken))).expect("it can be read");
    let own = Figure { pod: "own".into(), volume: "listed".into(), bytes: 4096, inodes: 2 };
    assert_eq!(found, Quotas { listed: 4, figures: vec![own.clone()], refused: None });
    let found = read_by(&list, &kubelet, |_, number| if number == 5 { Ok(Some(taken)) } else { Err(Errno::SRCH) });
    assert_eq!(found.expect("it can be read").figures, [own]);
    for (errno, asks) in [(Errno::PERM, 1), (Errno::NOSYS, 1), (Errno::ACCESS, 2)] {
        let asked = std::cell::Cell::new(0);
        let refused = read_by(&list, &kubelet, |_, _| {
            asked.set(asked.get() + 1);
            Err(errno)
        });
        let expected = Quotas { listed: 4, figures: Vec::new(), refused: Some(errno) };
        assert_eq!(
            (refused.expect("it can be read"), asked.get()),
            (expected, asks),
            "the others would be refused, too"
        );
    }
    let closed = |_: &OwnedFd, number| if number == 5 { Ok(Some(taken)) } else { Err(Errno::ACCESS) };
    let found = read_by(&list, &kubelet, closed).expect("it can be read");
    assert_eq!((found.figures.len(), found.refused), (1, None), "one volume that is closed costs itself alone");
    // This file system's own answer: no directory here has a project.
    assert_eq!(read(&list, &kubelet).expect("it can be read").figures, []);
}

#[test]
fn where_this_process_may_not_look_at_volumes_that_is_said() {
    if rustix::process::geteuid().is_root() {
        // It may look at all.
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let [list, kubelet] = ["projects", "kubelet"].map(|name| place.path().join(name));
    let pods = kubelet.join("pods");
    fs::create_dir_all(pods.join("own")).expect("a directory");
    let line = format!("5:{}/own/volumes/kubernetes.io~empty-dir/listed\n", pods.display());
    fs::write(&list, line).expect("a file");
    let permit = |mode| fs::set_permissions(&pods, fs::Permissions::from_mode(mode)).expect("it is ours");
    permit(0);
    let found = read(&list, &kubelet);
    permit(0o700);
    assert_eq!(found.expect("it can be read").refused, Some(Errno::ACCESS));
}

#[test]
fn what_is_no_list_is_an_error_and_is_not_waited_for() {
    let place = tempfile::tempdir().expect("a directory");
    let pipe = place.path().join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    for list in [&pipe, place.path()] {
        assert_eq!(read(list, place.path()).expect_err("it is no file").kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn what_is_found_is_said_by_its_kind() {
    let refused = Quotas { listed: 1, figures: Vec::new(), refused: Some(Errno::PERM) };
    for (found, expected) in [
        (Ok(Quotas::default()), Said::Nothing),
        (Ok(Quotas { listed: 3, ..Quotas::default() }), Said::Nothing),
        (Ok(quotas(vec![figure(1)])), Said::Read),
        (Ok(refused), Said::Refused(Errno::PERM)),
        (Err(ErrorKind::FileTooLarge.into()), Said::Unreadable(ErrorKind::FileTooLarge)),
    ] {
        assert_eq!(Said::of(&found), expected, "{found:?}");
    }
}

#[test]
fn what_was_said_is_not_said_again_for_each_pod_that_comes_and_goes() {
    let (refused, mut said) = (Said::Refused(Errno::PERM), Said::Nothing);
    for (new, is_said) in [
        (Said::Nothing, false),
        (refused, true),
        (Said::Nothing, false),
        (refused, false),
        (Said::Read, true),
        (Said::Nothing, false),
        (Said::Read, false),
        (refused, true),
    ] {
        assert_eq!(said.changes_to(new), is_said, "{new:?}");
    }
}

#[test]
fn that_there_will_be_no_answer_is_noticed_when_it_is_asked_and_while_one_is_waited_for() {
    let (_answering, mut asking, answers) = answering();
    assert_eq!(asking.ask_within(Duration::from_millis(5)), []);
    assert!(asking.is_outstanding && !asking.has_ended, "it is only slow");
    drop((asking, answers));
    for is_outstanding in [false, true] {
        let (way, other) = plimsoll_state::handover::messages_pair().expect("sockets");
        // Its descriptor may be open for a moment longer, in a child that another test has just forked.
        shutdown(&other, Shutdown::Both).expect("it is open");
        let mut asking = Asking { is_outstanding, ..Asking::new(way) };
        assert_eq!(asking.ask_within(Duration::from_mins(1)), []);
        assert!(asking.has_ended);
    }
}
