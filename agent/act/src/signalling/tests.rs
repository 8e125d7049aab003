use super::*;
use crate::testing::Fake;

/// A kill of a cgroup whose list of threads has one of this process, which is known.
fn killing(fake: &Fake, thread: Pid, recent: &[Pid]) -> Killing {
    fake.write("cgroup.threads", &format!("{}\n", thread.as_raw_nonzero()));
    let new = Killing::new(Arc::clone(&fake.handle), MonotonicNs(u64::MAX));
    let known = HashSet::from([rustix::process::getpid()]);
    Killing { list: TaskList::Threads, known, recent: recent.iter().copied().collect(), ..new }
}

#[test]
fn threads_of_processes_that_were_signalled_are_not_opened() {
    let fake = Fake::with_files("w", &[]);
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            send.send(rustix::thread::gettid()).expect("it is awaited");
            wait.recv().unwrap_or_default();
        });
        let (thread, own) = (receive.recv().expect("it lives"), rustix::process::getpid());
        for (recent, is_opened) in [(&[own][..], false), (&[], true)] {
            let mut killing = killing(&fake, thread, recent);
            while killing.go_on().is_none() {}
            assert_eq!((killing.known.contains(&thread), killing.sent), (is_opened, 0));
            // By one thread the process is known for the others.
            assert!(killing.recent.contains(&own));
        }
        drop(end);
    });
}

#[test]
fn a_kill_goes_on_where_it_was_and_ends_in_time() {
    let fake = Fake::with_files("w", &[]);
    for number in 0..2 * SLICE_STEPS {
        fake.make(&number.to_string());
    }
    let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep starts");
    for number in 0..2 * SLICE_STEPS {
        fake.write(&format!("{number}/cgroup.procs"), &format!("{}\n", child.id()));
    }
    let mut killing = Killing::new(Arc::clone(&fake.handle), MonotonicNs(u64::MAX));
    assert!(killing.go_on().is_none() && killing.sent == 1, "it is not at the end");
    let (mut slices, longest) = (1, 6 * SLICE_STEPS);
    while killing.go_on().is_none() {
        slices += 1;
        assert!(slices < longest, "it begins anew with each slice");
    }
    assert_eq!(killing.sent, 1);
    child.wait().expect("it is ours");
    let mut late = Killing::new(Arc::clone(&fake.handle), MonotonicNs(u64::MAX));
    assert!(late.go_on().is_none());
    late.by = MonotonicNs(1);
    assert!(late.go_on().is_some(), "its time is over");
}
