use super::*;
use crate::testing::{Book, Fake, StopList, WriterThatWaits, ms};
use plimsoll_node::clock::monotonic;
use plimsoll_node::process::{Pid, Stat};
use std::process::{Child, Command};

const MIB: u64 = 1 << 20;

/// Two CPUs: 4.5 MiB can be in flight.
fn limits() -> BrakeLimits {
    BrakeLimits::of(2, Bytes(4096), Bytes::mib(2))
}

/// Brakes with all that they need.
struct Scene {
    brakes: Brakes,
    workers: Workers,
    book: Book,
    stopped: Arc<StopList>,
}

impl Scene {
    fn new() -> Self {
        Self::with(Workers::start(8).expect("threads start"), Book::default())
    }

    fn with(workers: Workers, book: Book) -> Self {
        let stopped = Arc::new(StopList::default());
        let journal: Arc<dyn StopJournal> = Arc::clone(&stopped) as _;
        Self { brakes: Brakes::with_capacity(limits(), 2, journal), workers, book, stopped }
    }

    fn brake(&mut self, fake: &Fake, at: u64) -> Result<(), BrakeRefused> {
        self.brakes.brake(&fake.handle, ms(at), &mut self.book, &mut self.workers)
    }

    fn poll(&mut self, at: u64) -> Option<BrakeEvent> {
        self.brakes.poll(ms(at), &mut self.book, &mut self.workers)
    }

    fn thaw(&mut self, fake: &Fake, at: u64) {
        self.brakes.thaw(fake.handle.id(), ms(at), &mut self.workers);
    }

    /// Waits for the next result that is an event.
    fn result(&mut self, at: u64) -> BrakeEvent {
        let since = monotonic();
        loop {
            assert!(monotonic().since(since) < Duration::from_secs(10), "no event");
            let done = self.workers.poll();
            let event = done.and_then(|done| self.brakes.done(done, ms(at), &mut self.book, &mut self.workers));
            if let Some(event) = event {
                return event;
            }
            std::thread::yield_now();
        }
    }

    /// Freezes a cgroup, and waits until that is written.
    fn freeze(&mut self, fake: &Fake, at: u64) {
        self.brake(fake, at).expect("it fits");
        let event = self.result(at);
        assert!(matches!(event, BrakeEvent::Frozen { .. }), "{event:?}");
        assert_eq!(fake.text("cgroup.freeze"), "1");
    }
}

/// A cgroup with a process, whose freeze waits.
fn waiting() -> (Scene, WriterThatWaits, Fake, Child) {
    let (writer, release) = WriterThatWaits::start();
    let scene = Scene::with(Workers::beside(writer, 8).expect("threads start"), Book::default());
    let fake = Fake::new("w");
    let child = Command::new("sleep").arg("600").spawn().expect("sleep starts");
    fake.write("cgroup.procs", &format!("{}\n", child.id()));
    (scene, release, fake, child)
}

fn wait_until_stopped(child: &Child, is_stopped: bool) {
    while Stat::read(Pid::from_child(child)).expect("it runs").is_stopped != is_stopped {
        std::thread::yield_now();
    }
}

fn end(mut child: Child) {
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
}

#[test]
fn processes_are_stopped_one_by_one_while_a_freeze_waits_and_the_freezer_has_them_afterwards() {
    let (mut scene, release, fake, child) = waiting();
    scene.brake(&fake, 0).expect("it fits");
    assert_eq!(scene.brakes.next_due(), Some(ms(3)));
    assert!(scene.poll(2).is_none() && scene.stopped.count() == 0, "it may be written yet");
    assert!(scene.poll(3).is_none() && scene.poll(4).is_none());
    let event = scene.result(5);
    assert!(matches!(event, BrakeEvent::Stopped { processes: 1, .. }), "{event:?}");
    wait_until_stopped(&child, true);
    assert_eq!((scene.stopped.count(), fake.text("cgroup.freeze").as_str()), (1, "0"));
    assert_eq!(scene.book.steps(), [Step::Freezing]);
    release.end_wait();
    let event = scene.result(90);
    assert!(matches!(event, BrakeEvent::Frozen { .. }), "{event:?}");
    wait_until_stopped(&child, false);
    assert_eq!((scene.stopped.count(), fake.text("cgroup.freeze").as_str()), (0, "1"));
    assert_eq!(scene.book.steps(), [Step::Freezing, Step::Frozen]);
    assert_eq!(scene.brakes.next_due(), Some(ms(95)), "its growth counts from the freeze");
    end(child);
}

#[test]
fn what_is_thawed_before_its_freeze_is_written_goes_on_at_once_and_is_not_frozen_in_the_end() {
    // By itself, and at its deadline.
    for at in [50, 2000] {
        let (mut scene, release, fake, child) = waiting();
        scene.brake(&fake, 0).expect("it fits");
        assert!(scene.poll(3).is_none());
        scene.result(4);
        wait_until_stopped(&child, true);
        if at == 50 {
            scene.thaw(&fake, at);
        } else {
            assert!(scene.poll(at).is_none());
        }
        wait_until_stopped(&child, false);
        assert_eq!((scene.brakes.count(), scene.book.is_clear(), scene.stopped.count()), (1, false, 0));
        assert_eq!(scene.brake(&fake, at), Err(BrakeRefused::Already), "its write is not read for");
        release.end_wait();
        let event = scene.result(at + 1);
        assert!(matches!(event, BrakeEvent::Thawed { .. }), "{event:?}");
        assert_eq!((fake.text("cgroup.freeze").as_str(), scene.book.is_clear()), ("0", true));
        end(child);
    }
}

#[test]
fn a_freeze_that_the_kernel_refuses_leaves_nothing_behind() {
    let (mut scene, _release, fake, child) = waiting();
    scene.brake(&fake, 0).expect("it fits");
    assert!(scene.poll(3).is_none());
    scene.result(4);
    wait_until_stopped(&child, true);
    let (cgroup, fault) = (fake.handle.id(), Fault::Absent { file: "cgroup.freeze" });
    let refused = Done::FreezeWritten { cgroup, is_freeze: true, outcome: Err(fault), at: ms(5) };
    let event = scene.brakes.done(refused, ms(5), &mut scene.book, &mut scene.workers);
    assert!(matches!(event, Some(BrakeEvent::Refused { .. })), "{event:?}");
    wait_until_stopped(&child, false);
    assert_eq!((scene.brakes.count(), scene.book.is_clear()), (0, true));
    end(child);
}

#[test]
fn a_brake_is_undone_at_its_deadline() {
    let fake = Fake::new("w");
    let mut scene = Scene::new();
    scene.freeze(&fake, 100);
    assert_eq!(scene.book.steps(), [Step::Freezing, Step::Frozen]);
    for at in [100, 105, 120, 2099, 2100] {
        assert!(scene.poll(at).is_none(), "{at}");
    }
    let event = scene.result(2100);
    assert!(matches!(&event, BrakeEvent::Thawed { held, .. } if *held == Duration::from_secs(2)), "{event:?}");
    assert_eq!(fake.text("cgroup.freeze"), "0");
    assert!(scene.book.is_clear());
    assert!(scene.poll(9000).is_none());
}

#[test]
fn what_can_be_in_flight_is_a_huge_page_and_a_batch_for_each_cpu() {
    assert_eq!(limits().in_flight, Bytes(2 * (2 * MIB + 64 * 4096)));
    let of_64_kib = BrakeLimits::of(1, Bytes(65_536), Bytes::mib(512));
    assert_eq!((of_64_kib.in_flight, of_64_kib.batch), (Bytes::mib(516), Bytes::mib(4)));
}

/// Freezes a cgroup of 100 MiB and reads it at these times with these usages in KiB more. Gives when growth was
/// reported, and by how much.
fn judged(readings: &[(u64, u64)]) -> Vec<(u64, Bytes)> {
    let fake = Fake::new("w");
    let mut scene = Scene::new();
    scene.freeze(&fake, 0);
    let mut reported = Vec::new();
    for (at, kib) in readings {
        fake.write("memory.current", &format!("{}\n", 100 * MIB + (kib << 10)));
        if let Some(BrakeEvent::StillGrows { grown, .. }) = scene.poll(*at) {
            reported.push((*at, grown));
            assert!(scene.brakes.growing().eq([fake.handle.id()]));
        }
        assert_eq!(fake.text("cgroup.freeze"), "1");
    }
    assert_eq!(scene.brakes.growing().count(), reported.len());
    reported
}

#[test]
fn growth_while_frozen_is_reported_once_beyond_what_was_in_flight_and_at_two_readings() {
    let in_flight = 4608;
    // Growth before the first reading was in flight as well.
    assert_eq!(judged(&[(5, 90_000), (20, 90_000 + in_flight), (35, 90_000 + in_flight)]), []);
    // It grows on, and is read no more once that is known.
    let grows = [(5, 0), (20, in_flight + 1), (35, in_flight + 258), (50, 90_000), (65, 180_000)];
    assert_eq!(judged(&grows), [(35, Bytes((in_flight + 258) << 10))]);
    // One leap, and no more than one batch after it.
    assert_eq!(judged(&[(5, 0), (20, 9000), (35, 9256), (50, 9256), (65, 9256)]), []);
    // Slow growth adds up.
    assert_eq!(judged(&[(5, 0), (20, 3000), (35, 6000), (50, 9000)]), [(50, Bytes(9000 << 10))]);
    // One that is read early is judged at the same distance.
    assert_eq!(judged(&[(5, 0), (19, 90_000), (20, 90_000), (34, 180_000)]), []);
}

#[test]
fn a_late_reading_is_judged_by_its_own_time() {
    let fake = Fake::new("w");
    let mut scene = Scene::new();
    scene.freeze(&fake, 0);
    fake.write("memory.current", "900000000\n");
    assert_eq!(scene.brakes.next_due(), Some(ms(5)));
    assert!(scene.poll(300).is_none());
    assert_eq!(scene.brakes.next_due(), Some(ms(315)));
}

#[test]
fn a_freeze_by_another_program_is_left_alone() {
    let fake = Fake::new("w");
    fake.write("cgroup.freeze", "1\n");
    let mut scene = Scene::new();
    assert_eq!(scene.brake(&fake, 0), Err(BrakeRefused::ByOther));
    assert!(scene.book.is_clear());
    scene.thaw(&fake, 1);
    assert!(!scene.brakes.awaits_write());
    assert_eq!(fake.text("cgroup.freeze"), "1");
}

#[test]
fn nothing_is_frozen_that_is_not_written_down() {
    let fake = Fake::new("w");
    let mut scene = Scene::with(Workers::start(8).expect("threads start"), Book::with_room(0));
    assert_eq!(scene.brake(&fake, 0), Err(BrakeRefused::Journal(JournalFull)));
    assert!(!scene.brakes.awaits_write());
    assert_eq!(fake.text("cgroup.freeze"), "0");
}

#[test]
fn room_is_bounded_and_comes_back() {
    let fakes = ["a", "b", "c"].map(Fake::new);
    let mut scene = Scene::new();
    for fake in &fakes[..2] {
        scene.freeze(fake, 0);
    }
    assert_eq!(scene.brake(&fakes[0], 0), Err(BrakeRefused::Already));
    assert_eq!(scene.brake(&fakes[2], 0), Err(BrakeRefused::Full));
    scene.thaw(&fakes[0], 1);
    scene.result(1);
    scene.freeze(&fakes[2], 1);
    scene.brakes.thaw_all(ms(2), &mut scene.workers);
    for _ in 0..2 {
        assert!(matches!(scene.result(2), BrakeEvent::Thawed { .. }));
    }
    assert!(scene.book.is_clear());
    assert_eq!(scene.brakes.count(), 0);
}

#[test]
fn what_is_spared_is_not_frozen_and_the_record_says_so() {
    let mut scene = Scene::new();
    let fake = Fake::with_part("w");
    let frozen = |fake: &Fake| ["", "part/", "spared/"].map(|name| fake.text(&format!("{name}cgroup.freeze")));
    scene.brake(&fake, 0).expect("it fits");
    assert!(matches!(scene.result(0), BrakeEvent::Frozen { .. }));
    assert_eq!(frozen(&fake), ["0", "1", "0"]);
    assert_eq!(scene.book.by_parts(), [true, true]);
    scene.thaw(&fake, 1);
    assert!(matches!(scene.result(2), BrakeEvent::Thawed { .. }));
    assert_eq!(frozen(&fake), ["0", "0", "0"]);
}

#[test]
fn what_is_empty_is_not_looked_at_until_its_time_is_over() {
    let mut scene = Scene::new();
    let journal: Arc<dyn StopJournal> = Arc::clone(&scene.stopped) as _;
    scene.brakes = Brakes::with_capacity(BrakeLimits::of_empty(Duration::from_mins(5)), 2, journal);
    let fake = Fake::new("w");
    scene.freeze(&fake, 100);
    assert_eq!(scene.brakes.next_due(), Some(ms(300_100)));
    fake.write("memory.current", &format!("{}\n", 900 * MIB));
    assert!(scene.poll(200_000).is_none() && !scene.brakes.is_gone(fake.handle.id()));
    assert_eq!(scene.brakes.growing().count(), 0);
    assert!(scene.poll(300_100).is_none());
    let event = scene.result(300_101);
    assert!(matches!(event, BrakeEvent::Thawed { .. }), "{event:?}");
}

#[test]
fn what_is_held_is_killed_before_it_is_thawed() {
    let mut scene = Scene::new();
    let fake = Fake::new("w");
    assert!(!scene.brakes.kill(fake.handle.id(), &mut scene.workers), "it is not held");
    scene.freeze(&fake, 100);
    assert!(scene.brakes.kill(fake.handle.id(), &mut scene.workers));
    scene.thaw(&fake, 110);
    let mut written = Vec::new();
    while written.len() < 2 {
        match scene.workers.poll() {
            Some(Done::KillWritten { outcome, .. }) => written.push(("kill", outcome)),
            Some(Done::FreezeWritten { is_freeze: false, outcome, .. }) => written.push(("thaw", outcome)),
            _ => std::thread::yield_now(),
        }
    }
    assert_eq!(written, [("kill", Ok(())), ("thaw", Ok(()))]);
    assert_eq!((fake.text("cgroup.kill").as_str(), fake.text("cgroup.freeze").as_str()), ("1", "0"));
}
