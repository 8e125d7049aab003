//! The kubelet and container runtimes, as the inventory thread follows them: the process behind each socket is held, so
//! that its end wakes this thread, and looked for until there is another. Until then its last cgroup stays protected: a
//! service manager starts it again in a cgroup with the same path.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use plimsoll_inventory::Sink as _;
use plimsoll_node::clock::monotonic;
use plimsoll_node::process::{self, Pid};
use plimsoll_units::MonotonicNs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::schedule::Schedule;
use super::{Request, Thread};
use crate::node_services::{self, Listeners, MOST_SOCKETS};

/// After one has ended it is looked for at once, and again after so long; each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause. From then on it is looked for with each heartbeat alone, for which this thread wakes anyway: most nodes
/// never have all of them.
const LONGEST_PAUSE: Duration = super::PACE;
/// After a cgroup was made, which may be that of a service, pauses begin anew with this one.
const PAUSE_AFTER_EVENT: Duration = Duration::from_secs(1);
/// How long the start of the core waits for the first answer.
const START: Duration = Duration::from_secs(1);

/// What is known of one socket.
#[derive(Debug, Default)]
struct Service {
    /// The process that listens.
    process: Option<(Pid, OwnedFd)>,
    /// Its cgroup, and that of the one before where there is none now.
    cgroup: Option<Vec<u8>>,
}

/// All of them.
#[derive(Debug)]
pub(in crate::core) struct NodeServices {
    /// To the thread of the supervisor that connects; absent where there is none.
    way: Option<OwnedFd>,
    services: [Service; MOST_SOCKETS],
    /// When those without a process were last looked for, and when they are again.
    asked: MonotonicNs,
    due: MonotonicNs,
    pause: Duration,
}

impl NodeServices {
    pub(in crate::core) fn new(way: Option<OwnedFd>) -> Self {
        let (services, start) = (std::array::from_fn(|_| Service::default()), MonotonicNs(0));
        Self { way, services, asked: start, due: start, pause: FIRST_PAUSE }
    }

    /// Readable when there is an answer, or when a process has ended.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let processes = self.services.iter().filter_map(|service| Some(service.process.as_ref()?.1.as_fd()));
        self.way.iter().map(OwnedFd::as_fd).chain(processes)
    }

    /// When those that are missing are looked for again without a heartbeat.
    pub(super) fn due(&self) -> Option<MonotonicNs> {
        (self.way.is_some() && self.missing().contains(&true)).then_some(self.due)
    }

    /// The cgroups that are known.
    pub(super) fn cgroups(&self) -> impl Iterator<Item = Vec<u8>> {
        self.services.iter().filter_map(|service| service.cgroup.clone())
    }

    fn missing(&self) -> [bool; MOST_SOCKETS] {
        std::array::from_fn(|place| self.services[place].process.is_none())
    }

    /// Looks for all of them, and waits for the answer, but not for long.
    fn find(&mut self, now: MonotonicNs) {
        self.look(now);
        if let Some(way) = &self.way
            && let Ok(limit) = Timespec::try_from(START)
        {
            let _ = poll(&mut [PollFd::new(way, PollFlags::IN)], Some(&limit));
        }
        self.take();
        self.locate();
    }

    /// Follows what has ended and what was found. `is_stirred`: a cgroup was made. `is_slow`: this thread has woken
    /// for its heartbeat; cgroups are read again, as a service may have moved itself since.
    fn follow(&mut self, now: MonotonicNs, is_stirred: bool, is_slow: bool) {
        let mut has_ended = false;
        for service in &mut self.services {
            if service.process.as_ref().is_some_and(|(_, process)| process::is_over(process)) {
                (service.process, has_ended) = (None, true);
            }
        }
        if has_ended {
            (self.due, self.pause) = (now, FIRST_PAUSE);
        } else if is_stirred {
            self.due = self.due.min(self.asked.after(PAUSE_AFTER_EVENT));
            self.pause = self.pause.min(PAUSE_AFTER_EVENT);
        }
        if self.take() || is_slow {
            self.locate();
        }
        if self.due().is_some_and(|due| due <= now || is_slow) {
            self.look(now);
        }
    }

    /// Has those looked for that are missing.
    fn look(&mut self, now: MonotonicNs) {
        let missing = self.missing();
        if let Some(way) = &self.way {
            // Where earlier questions are not answered yet, there is no room for another one.
            let _ = node_services::ask(way, missing);
        }
        let pause = if self.pause > LONGEST_PAUSE { Duration::MAX } else { self.pause };
        (self.asked, self.due) = (now, now.after(pause));
        self.pause = pause.saturating_mul(2);
    }

    /// Takes the answers that are there. Gives whether any names a process that was missing.
    fn take(&mut self) -> bool {
        let mut is_any = false;
        while let Some(way) = &self.way {
            match node_services::answer(way) {
                Ok(listeners) => is_any |= self.hold(&listeners),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => self.way = None,
            }
        }
        is_any
    }

    fn hold(&mut self, listeners: &Listeners) -> bool {
        let mut is_any = false;
        for (service, found) in self.services.iter_mut().zip(listeners) {
            if let (None, Some(pid)) = (&service.process, *found)
                && let Ok(process) = process::open(pid)
            {
                (service.process, is_any) = (Some((pid, process)), true);
            }
        }
        is_any
    }

    /// Reads the cgroups of those that run.
    fn locate(&mut self) {
        for service in &mut self.services {
            if let Some((pid, process)) = &service.process
                && let Some(path) = process::cgroup_path(Some(*pid))
                && !process::is_over(process)
            {
                service.cgroup = Some(path);
            }
        }
    }
}

impl Thread {
    /// Finds the kubelet and container runtimes before the first workload is.
    pub(super) fn find_node_services(&mut self) {
        self.node_services.find(monotonic());
        self.inventory.protect_node(self.node_services.cgroups());
    }

    /// Follows them. Where one is elsewhere, the tree is walked at once: it is no workload from then on.
    pub(super) fn follow_node_services(&mut self, asked: u32, schedule: &mut Schedule) {
        let (now, is_stirred) = (monotonic(), asked & Request::Events as u32 != 0);
        self.node_services.follow(now, is_stirred, schedule.beat.is_overdue(now));
        if self.inventory.protect_node(self.node_services.cgroups()) {
            schedule.walk.hurry(now);
        }
        let lost = self.node_services.way.is_none();
        let why = "a kubelet or container runtime that is started from here on is not found, and is evicted where a \
                   pattern matches it";
        self.outgoing.trouble("node services", lost.then(|| why.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_state::handover::messages_pair;
    use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
    use std::process::{Child, Command};

    fn at(ms: u64) -> MonotonicNs {
        MonotonicNs(0).after(Duration::from_millis(ms))
    }

    fn sleeping() -> (Child, i32) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = i32::try_from(child.id()).expect("small");
        (child, pid)
    }

    /// Answers the questions that were asked with this process in the second place, and gives what was meant by each.
    fn answered(supervisor: &OwnedFd, pid: i32) -> Vec<u8> {
        let (mut question, mut all) = ([0; 2], Vec::new());
        while recv(supervisor, &mut question[..], RecvFlags::DONTWAIT).is_ok() {
            all.push(question[0]);
            let mut answer = [0; MOST_SOCKETS * 4];
            answer[4..8].copy_from_slice(&pid.to_ne_bytes());
            send(supervisor, &answer, SendFlags::NOSIGNAL).expect("room");
        }
        all
    }

    #[test]
    fn one_that_is_started_again_is_looked_for_at_once_and_stays_protected_meanwhile() {
        let (core, supervisor) = messages_pair().expect("sockets");
        let mut services = NodeServices::new(Some(core));
        services.look(at(0));
        let (mut first, pid) = sleeping();
        assert_eq!(answered(&supervisor, pid), [0b11_1111]);
        services.follow(at(1), false, false);
        let own = process::cgroup_path(None).expect("this is Linux");
        assert_eq!(services.cgroups().collect::<Vec<_>>(), std::slice::from_ref(&own));
        assert_eq!(services.descriptors().count(), 2, "the way and the process");
        first.kill().expect("it is ours");
        first.wait().expect("it is ours");
        // Where the next one is, is read anew.
        services.services[1].cgroup = Some(b"before".to_vec());
        services.follow(at(60_000), false, false);
        assert_eq!(answered(&supervisor, 0), [0b11_1111], "at once");
        assert_eq!(services.cgroups().collect::<Vec<_>>(), [b"before"]);
        for (ms, asked) in [(60_099, 0), (60_100, 1), (60_299, 0), (60_300, 1), (60_699, 0), (60_700, 1)] {
            services.follow(at(ms), false, false);
            assert_eq!(answered(&supervisor, 0).len(), asked, "{ms}");
        }
        let (mut second, pid) = sleeping();
        services.follow(at(61_500), false, false);
        assert_eq!(answered(&supervisor, pid), [0b11_1111]);
        services.follow(at(61_501), false, false);
        assert_eq!(services.cgroups().collect::<Vec<_>>(), [own]);
        services.follow(at(200_000), false, false);
        assert_eq!(answered(&supervisor, 0), [0b11_1101], "it is not asked for again while it runs");
        second.kill().expect("it is ours");
        second.wait().expect("it is ours");
    }

    #[test]
    fn what_was_never_there_is_looked_for_with_the_heartbeat_and_after_a_cgroup_was_made() {
        let (core, supervisor) = messages_pair().expect("sockets");
        let mut services = NodeServices::new(Some(core));
        for _ in 0..20 {
            services.look(at(0));
            answered(&supervisor, 0);
        }
        let never = Some(at(0).after(Duration::MAX));
        assert_eq!(services.due(), never);
        services.follow(at(400), false, true);
        assert_eq!((answered(&supervisor, 0).len(), services.due()), (1, never), "with the heartbeat");
        services.follow(at(500), true, false);
        assert_eq!((services.due(), services.asked), (Some(at(1400)), at(400)), "no sooner than that");
        for (now, due) in [(1400, 2400), (2400, 4400), (4400, 8400)] {
            services.follow(at(now), false, false);
            assert_eq!(services.due(), Some(at(due)));
        }
        services.follow(at(8400), false, false);
        assert!(services.due().is_some_and(|due| due > at(3_600_000)), "with the heartbeat again");
    }

    #[test]
    fn a_service_that_moves_is_followed_and_without_an_answer_nothing_waits() {
        let (core, supervisor) = messages_pair().expect("sockets");
        let mut services = NodeServices::new(Some(core));
        services.look(at(0));
        answered(&supervisor, rustix::process::getpid().as_raw_pid());
        services.follow(at(1), false, false);
        services.services[1].cgroup = Some(b"where it was started".to_vec());
        services.follow(at(2), false, false);
        assert_eq!(services.cgroups().collect::<Vec<_>>(), [b"where it was started"]);
        services.follow(at(3), false, true);
        assert_eq!(services.cgroups().next(), process::cgroup_path(None));
        // Its descriptor may be open for a moment longer, in a child that another test has just forked.
        shutdown(&supervisor, Shutdown::Both).expect("it is open");
        services.follow(at(4), false, false);
        assert_eq!((services.due(), services.way.is_none()), (None, true));
        assert_eq!(services.cgroups().count(), 1, "what is known stays");
    }
}
