use super::*;
use crate::testing::{Fake, StopList};
use core::time::Duration;
use plimsoll_node::process::{self, Stat};
use std::process::{Child, Command};

fn wait(worker: &mut Worker) -> Done {
    loop {
        if let Some(done) = worker.poll() {
            return done;
        }
        thread::yield_now();
    }
}

fn sleeper() -> Child {
    Command::new("sleep").arg("600").spawn().expect("sleep starts")
}

#[test]
fn reclaim_is_asked_and_answered() {
    let fake = Fake::with_files("w", &[("memory.reclaim", "")]);
    let mut worker = Worker::start("test", 4).expect("a thread starts");
    let (handle, amount) = (Arc::clone(&fake.handle), Bytes::mib(3));
    worker.submit(Job::Reclaim { handle, amount }).expect("there is room");
    let cgroup = fake.handle.id();
    assert_eq!(wait(&mut worker), Done::Reclaimed { cgroup, asked: amount, outcome: Reclaimed::All });
    assert_eq!(fake.text("memory.reclaim"), "3145728 swappiness=0");

    let old = Fake::new("w");
    let handle = Arc::clone(&old.handle);
    worker.submit(Job::Reclaim { handle, amount }).expect("there is room");
    let outcome = Reclaimed::Less(Fault::Absent { file: "memory.reclaim" });
    assert_eq!(wait(&mut worker), Done::Reclaimed { cgroup: old.handle.id(), asked: amount, outcome });
}

#[test]
fn a_result_that_is_waited_for_wakes_its_reader() {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    let news = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
    let copy = news.try_clone().expect("another one");
    let mut worker = Worker::start_with_news("test", 4, || {}, copy).expect("a thread starts");
    let fake = Fake::new("w");
    for _ in 0..2 {
        worker.submit(Job::ReadCache(Arc::clone(&fake.handle), monotonic())).expect("there is room");
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&news, PollFlags::IN)], Some(&patience)), Ok(1), "it was not woken");
        rustix::io::read(&news, &mut [0; 8]).expect("it is readable");
        assert!(matches!(worker.poll(), Some(Done::CacheRead { .. })));
    }
}

#[test]
fn each_process_of_either_list_is_killed() {
    let fake = Fake::with_files("w", &[]);
    let mut children = [sleeper(), sleeper(), sleeper()];
    let list: Vec<String> = children.iter().map(|child| child.id().to_string()).collect();
    fake.write("cgroup.procs", &(list[..2].join("\n") + "\n"));
    fake.write("cgroup.threads", &(list[1..].join("\n") + "\n"));
    let mut worker = Worker::start("test", 4).expect("a thread starts");
    worker.submit(Job::Kill(Arc::clone(&fake.handle), monotonic())).expect("there is room");
    assert!(matches!(wait(&mut worker), Done::Killed { sent: 0, .. }), "the worker comes to it too late");
    worker.submit(Job::Kill(Arc::clone(&fake.handle), MonotonicNs(u64::MAX))).expect("there is room");
    for child in &mut children {
        let status = child.wait().expect("it is ours");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
    assert!(matches!(wait(&mut worker), Done::Killed { cgroup, .. } if cgroup == fake.handle.id()));
}

#[test]
fn processes_are_stopped_as_far_as_they_can_be_written_down_and_others_stay_stopped() {
    let fake = Fake::new("w");
    let mut children = [sleeper(), sleeper(), sleeper(), sleeper()];
    let pids = children.each_ref().map(process::Pid::from_child);
    let stopped = || pids.map(|pid| Stat::read(pid).is_some_and(|stat| stat.is_stopped));
    let wait_for = |expected: usize| {
        while stopped().iter().filter(|is_stopped| **is_stopped).count() != expected {
            thread::yield_now();
        }
    };
    process::stop(process::open(pids[0]).expect("it runs")).expect("it is ours");
    wait_for(1);
    fake.write("cgroup.procs", &pids.map(|pid| pid.as_raw_nonzero().to_string() + "\n").concat());
    let mut worker = Worker::start("test", 4).expect("a thread starts");
    let list: Arc<dyn StopJournal> = Arc::new(StopList::default());
    worker
        .submit(Job::Stop(Arc::clone(&fake.handle), Arc::clone(&list), MonotonicNs(u64::MAX)))
        .expect("there is room");
    let Done::Stopped { processes, .. } = wait(&mut worker) else { panic!("another result") };
    assert_eq!(processes, 2);
    wait_for(3);
    worker.submit(Job::Continue(fake.handle.id(), list)).expect("there is room");
    wait_for(1);
    assert!(stopped()[0], "the one that another program stopped");
    for child in &mut children {
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }
}

#[test]
fn activity_is_measured_or_absent() {
    let mut worker = Worker::start("test", 4).expect("a thread starts");
    for (files, activity) in [
        (&[("cpu.stat", "usage_usec 7\n")][..], Some(Activity { cpu: Duration::from_micros(7), threads: Some(0) })),
        (&[], None),
    ] {
        let fake = Fake::with_files("w", files);
        worker.submit(Job::Measure(Arc::clone(&fake.handle))).expect("there is room");
        assert_eq!(wait(&mut worker), Done::Measured { cgroup: fake.handle.id(), activity });
    }
}

/// A cgroup with so many below it that a kill takes several slices.
fn large() -> Fake {
    let fake = Fake::with_files("w", &[]);
    for number in 0..600 {
        fake.make(&format!("{number:0200}"));
    }
    fake
}

#[test]
fn others_pass_a_kill_that_takes_long() {
    let (large, small) = (large(), Fake::with_files("w", &[("cpu.stat", "usage_usec 7\n")]));
    let never = MonotonicNs(u64::MAX);
    for job in [Job::Measure(Arc::clone(&small.handle)), Job::Kill(Arc::clone(&small.handle), never)] {
        let mut worker = Worker::start("test", 4).expect("a thread starts");
        let passes = format!("{job:?}");
        worker.submit(Job::Kill(Arc::clone(&large.handle), never)).expect("there is room");
        worker.submit(job).expect("there is room");
        let first = wait(&mut worker);
        let (Done::Measured { cgroup, .. } | Done::Killed { cgroup, .. }) = first else { panic!("{first:?}") };
        assert_eq!(cgroup, small.handle.id(), "{passes}");
        assert!(matches!(wait(&mut worker), Done::Killed { cgroup, .. } if cgroup == large.handle.id()));
    }
}

#[test]
fn a_short_kill_does_not_wait_for_what_is_behind_it() {
    let fake = Fake::with_files("w", &[]);
    let (mut queue, mut items) = (Queue::default(), Vec::new());
    queue.take(Job::Kill(Arc::clone(&fake.handle), MonotonicNs(u64::MAX)), &mut |item| items.push(item));
    assert!(matches!(items[..], [Some(Done::Killed { .. })]), "{items:?}");
}

#[test]
fn what_was_stopped_is_continued_while_another_one_is_killed() {
    let (large, fake) = (large(), Fake::new("w"));
    let mut child = sleeper();
    fake.write("cgroup.procs", &format!("{}\n", child.id()));
    let mut worker = Worker::start("test", 8).expect("a thread starts");
    let list = Arc::new(StopList::default());
    let never = MonotonicNs(u64::MAX);
    worker.submit(Job::Stop(Arc::clone(&fake.handle), Arc::clone(&list) as _, never)).expect("there is room");
    assert!(matches!(wait(&mut worker), Done::Stopped { processes: 1, .. }));
    worker.submit(Job::Kill(Arc::clone(&large.handle), never)).expect("there is room");
    worker.submit(Job::Continue(fake.handle.id(), Arc::clone(&list) as _)).expect("there is room");
    assert!(matches!(wait(&mut worker), Done::Killed { .. }));
    assert_eq!(list.count(), 0, "it is continued before the other one is done");
    // A stop that was not begun when its end was asked for is not done at all, nor one whose time is over.
    let mut queue = Queue::default();
    let mut items = Vec::new();
    let mut give = |item| items.push(item);
    queue.take(Job::Stop(Arc::clone(&fake.handle), Arc::clone(&list) as _, never), &mut give);
    queue.take(Job::Continue(fake.handle.id(), Arc::clone(&list) as _), &mut give);
    assert!(!queue.go_on(&mut give));
    queue.take(Job::Stop(Arc::clone(&fake.handle), Arc::clone(&list) as _, MonotonicNs(1)), &mut give);
    assert!(queue.go_on(&mut give) && !queue.go_on(&mut give));
    assert_eq!(items.len(), 3, "one for each job");
    assert!(matches!(items[..], [None, None, Some(Done::Stopped { processes: 0, .. })]), "{items:?}");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
}

#[test]
fn no_result_is_lost() {
    let fake = Fake::with_files("w", &[("cpu.stat", "usage_usec 7\n")]);
    let mut worker = Worker::start("test", 4).expect("a thread starts");
    let mut accepted = 0;
    for _ in 0..10_000 {
        accepted += usize::from(worker.submit(Job::Measure(Arc::clone(&fake.handle))).is_ok());
        thread::yield_now();
    }
    assert_eq!(accepted, 4, "as many as there is room for results");
    for _ in 0..accepted {
        wait(&mut worker);
    }
    // Those that give no result make room as well; and requests to end leave room for others.
    for _ in 0..100 {
        let list: Arc<dyn StopJournal> = Arc::new(StopList::default());
        while worker.submit(Job::Continue(fake.handle.id(), Arc::clone(&list))).is_err() {
            assert_eq!(worker.poll(), None);
        }
    }
    while worker.in_flight > 0 {
        assert_eq!(worker.poll(), None);
    }
    let terminate = || Job::Terminate(Arc::clone(&fake.handle));
    let taken = (0..4).filter(|_| worker.submit(terminate()).is_ok()).count();
    assert_eq!(taken, 2);
    assert!(worker.submit(Job::Measure(Arc::clone(&fake.handle))).is_ok());
}

#[test]
fn a_full_queue_gives_the_job_back() {
    let fake = Fake::new("w");
    let (jobs, _keep) = RingBuffer::new(1);
    let (_give, done) = RingBuffer::new(1);
    let stop = Arc::new(AtomicBool::new(false));
    let mut worker = Worker { jobs, done, in_flight: 0, capacity: 1, thread: thread::current(), stop };
    assert!(worker.submit(Job::Release(Arc::clone(&fake.handle), MonotonicNs(0))).is_ok());
    assert!(matches!(worker.submit(Job::Release(Arc::clone(&fake.handle), MonotonicNs(0))), Err(Job::Release(..))));
}
