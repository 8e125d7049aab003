use super::*;
use crate::LATE;
use crate::testing::{Book, Fake, WriterThatWaits, ms};
use plimsoll_node::clock::monotonic;
use std::process::Command;

/// Time leaps in these tests.
fn limits() -> KillLimits {
    KillLimits { pause: Duration::MAX, ..KillLimits::default() }
}

fn kills() -> (Kills, Workers) {
    let workers = Workers::start(8).expect("threads start");
    (Kills::with_capacity(limits(), 2), workers)
}

/// Kills a cgroup, and waits until that is written.
fn kill(kills: &mut Kills, workers: &mut Workers, book: &mut Book, fake: &Fake, at: u64) {
    assert_eq!(kills.begin(&fake.handle, ms(at), book, workers), Ok(Begun::Requested));
    let event = results(kills, workers, book, at);
    assert!(matches!(event, Some(KillEvent::Signalled { .. })), "{event:?}");
}

/// Waits for the next result that is an event.
fn results(kills: &mut Kills, workers: &mut Workers, book: &mut Book, at: u64) -> Option<KillEvent> {
    let since = monotonic();
    while monotonic().since(since) < Duration::from_secs(20) {
        if let Some(event) = workers.poll().and_then(|done| kills.done(done, ms(at), book)) {
            return Some(event);
        }
        std::thread::yield_now();
    }
    None
}

/// Waits until cgroup.kill is written.
fn is_written(fake: &Fake) {
    while fake.text("cgroup.kill") != "1" {
        std::thread::yield_now();
    }
}

/// What happened up to `at`, after whatever is being measured was measured.
fn poll_measured(kills: &mut Kills, workers: &mut Workers, book: &mut Book, at: u64) -> Option<KillEvent> {
    let event = kills.poll(ms(at), book, workers);
    let asked =
        |kills: &Kills| kills.table.iter().filter(|kill| kill.wait == Wait::Measured(ms(at).after(ANSWER))).count();
    if event.is_some() || asked(kills) == 0 {
        return event;
    }
    while asked(kills) > 0 {
        let done = workers.poll();
        done.and_then(|done| kills.done(done, ms(at), book));
    }
    kills.poll(ms(at), book, workers)
}

#[test]
fn a_victim_is_written_down_killed_and_seen_to_be_empty() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    kill(&mut kills, &mut workers, &mut book, &fake, 0);
    assert_eq!(fake.text("cgroup.kill"), "1");
    assert_eq!(book.steps(), [Step::Killing, Step::KillWritten]);
    assert!(kills.poll(ms(499), &mut book, &mut workers).is_none());
    let again = kills.begin(&fake.handle, ms(1), &mut book, &mut workers);
    assert_eq!(again, Err(KillRefused::Already));
    fake.write("cgroup.events", "populated 0\nfrozen 0\n");
    fake.write("memory.current", "4096\n");
    let event = kills.poll(ms(499), &mut book, &mut workers);
    let Some(KillEvent::Emptied { took, left, .. }) = event else { panic!("{event:?}") };
    assert_eq!((took, left), (Duration::from_millis(499), Some(Bytes(4096))));
    assert!(book.is_clear());
    assert!(kills.poll(ms(600), &mut book, &mut workers).is_none());
}

#[test]
fn what_does_not_empty_is_stuck_once_and_not_killed_again_by_itself() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    kill(&mut kills, &mut workers, &mut book, &fake, 0);
    fake.write("cgroup.kill", "");
    let event = poll_measured(&mut kills, &mut workers, &mut book, 500);
    assert!(matches!(event, Some(KillEvent::Stuck { left: Some(_), .. })), "{event:?}");
    assert_eq!((kills.hopeful(), kills.count()), (0, 1));
    assert!(kills.poll(ms(501), &mut book, &mut workers).is_none());
    assert!(kills.poll(ms(60_000), &mut book, &mut workers).is_none());
    assert_eq!(fake.text("cgroup.kill"), "");
    assert!(!book.is_clear(), "the next process must know");
    fake.write("cgroup.events", "populated 0\nfrozen 0\n");
    assert!(matches!(kills.poll(ms(60_001), &mut book, &mut workers), Some(KillEvent::Emptied { .. })));
    assert!(book.is_clear());
}

#[test]
fn a_victim_that_gives_back_is_not_stuck_and_one_that_hardly_does_is() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    fake.write("memory.current", "800000\n");
    kill(&mut kills, &mut workers, &mut book, &fake, 0);
    for (at, left) in [(500, "699999\n"), (1000, "600000\n")] {
        fake.write("memory.current", left);
        assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{at}");
        assert!(kills.poll(ms(at + 499), &mut book, &mut workers).is_none(), "{at}");
        assert_eq!(kills.hopeful(), 1);
    }
    // Exactly an eighth is too little.
    fake.write("memory.current", "525000\n");
    let event = poll_measured(&mut kills, &mut workers, &mut book, 1500);
    assert!(matches!(event, Some(KillEvent::Stuck { left: Some(Bytes(525_000)), .. })), "{event:?}");
    assert_eq!(kills.hopeful(), 0);
}

#[test]
fn a_victim_whose_threads_run_or_end_is_not_stuck_yet() {
    let page_tables = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    let does = |used_us: u64, threads: usize| {
        page_tables.write("cpu.stat", &format!("usage_usec {used_us}\n"));
        page_tables.write("cgroup.threads", &"7\n".repeat(threads));
    };
    does(1_000_000, 3);
    kill(&mut kills, &mut workers, &mut book, &page_tables, 0);
    // What it did by the time of the kill.
    while kills.table[0].activity.is_none() {
        let done = workers.poll();
        done.and_then(|done| kills.done(done, ms(1), &mut book));
    }
    let mut at = 500;
    // A hundredth of the time on a CPU, then one thread less; without either it is stuck.
    for (used_us, threads, goes_on) in [(1_005_000, 3, true), (1_009_999, 2, true), (1_014_998, 2, false)] {
        does(used_us, threads);
        let event = poll_measured(&mut kills, &mut workers, &mut book, at);
        assert_eq!(event.is_none(), goes_on, "{used_us} us, {threads} threads: {event:?}");
        at += 500;
    }
    assert_eq!(kills.hopeful(), 0);
}

#[test]
fn threads_that_run_for_ever_are_not_waited_for_without_end() {
    // With a CPU of their own; with a quarter of one, as where three others run; and with as little as counts.
    for (part_us, turns) in [(500_000, 10), (125_000, 40), (5_000, 100)] {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        let mut used = 0;
        let mut runs = || {
            used += part_us;
            fake.write("cpu.stat", &format!("usage_usec {used}\n"));
        };
        runs();
        kill(&mut kills, &mut workers, &mut book, &fake, 0);
        while kills.table[0].activity.is_none() {
            let done = workers.poll();
            done.and_then(|done| kills.done(done, ms(1), &mut book));
        }
        for turn in 1..=turns {
            runs();
            assert!(poll_measured(&mut kills, &mut workers, &mut book, turn * 500).is_none(), "{turn} of {turns}");
        }
        runs();
        let event = poll_measured(&mut kills, &mut workers, &mut book, (turns + 1) * 500);
        assert!(matches!(event, Some(KillEvent::Stuck { .. })), "{event:?} after {turns}");
    }
}

#[test]
fn a_victim_that_is_refilled_is_killed_again_and_in_the_end_stuck() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    let uses = |mib: u64| fake.write("memory.current", &format!("{}\n", mib << 20));
    uses(100);
    kill(&mut kills, &mut workers, &mut book, &fake, 0);
    // What was on its way arrives, then it dies to 40 MiB; up to 16 MiB more is nothing yet.
    for (at, mib) in [(4, 200), (5, 200), (6, 40), (7, 56)] {
        fake.write("cgroup.kill", "");
        uses(mib);
        assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{mib} MiB");
    }
    for (at, mib) in [(8, 57), (108, 74), (208, 91)] {
        uses(mib);
        let event = kills.poll(ms(at), &mut book, &mut workers);
        let Some(KillEvent::Again { grown, left, .. }) = event else { panic!("{mib} MiB: {event:?}") };
        assert_eq!((grown, left), (Bytes::mib(17), Bytes::mib(mib)));
        is_written(&fake);
        fake.write("cgroup.kill", "");
        assert!(kills.poll(ms(at), &mut book, &mut workers).is_none());
        assert!(kills.poll(ms(at + 5), &mut book, &mut workers).is_none());
    }
    // Its time began anew with the last of them.
    assert!(kills.poll(ms(707), &mut book, &mut workers).is_none());
    assert_eq!(kills.table[0].again, KillLimits::default().again);
    uses(108);
    let event = kills.poll(ms(707), &mut book, &mut workers);
    assert!(matches!(event, Some(KillEvent::Stuck { left: Some(left), .. }) if left == Bytes::mib(108)), "{event:?}");
    assert_eq!(fake.text("cgroup.kill"), "");
}

#[test]
fn what_a_victim_takes_before_it_is_sent_the_signal_is_no_refill() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    let uses = |mib: u64| fake.write("memory.current", &format!("{}\n", mib << 20));
    uses(10);
    assert_eq!(kills.begin(&fake.handle, ms(0), &mut book, &mut workers), Ok(Begun::Requested));
    // The machine stalls, and the workers come to it late.
    for (at, mib) in [(5, 10), (50, 40), (200, 90), (400, 160)] {
        uses(mib);
        assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{mib} MiB");
    }
    assert!(kills.awaits_signal_of(fake.handle.id()));
    let done = Done::KillWritten { cgroup: fake.handle.id(), outcome: Ok(()), at: ms(410) };
    assert!(matches!(kills.done(done, ms(410), &mut book), Some(KillEvent::Signalled { .. })));
    assert!(!kills.awaits_signal_of(fake.handle.id()));
    // What was in flight.
    uses(180);
    assert!(kills.poll(ms(414), &mut book, &mut workers).is_none());
    assert!(kills.poll(ms(415), &mut book, &mut workers).is_none());
    uses(197);
    assert!(matches!(kills.poll(ms(416), &mut book, &mut workers), Some(KillEvent::Again { .. })));
}

#[test]
fn a_victim_that_the_workers_did_not_come_to_is_not_stuck_for_some_time_and_has_its_own_from_the_signal_on() {
    for signalled_at in [Some(2_700), None] {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        assert_eq!(kills.begin(&fake.handle, ms(0), &mut book, &mut workers), Ok(Begun::Requested));
        // Its threads run, as they did before: that is no progress.
        let ran = |at: u64| Done::Measured {
            cgroup: fake.handle.id(),
            activity: Some(Activity { cpu: Duration::from_millis(at), threads: None }),
        };
        assert!(kills.done(ran(0), ms(1), &mut book).is_none());
        for at in (500..=5_000).step_by(500) {
            if let Some(signalled) = signalled_at.filter(|signalled| at > *signalled) {
                let done = Done::KillWritten { cgroup: fake.handle.id(), outcome: Ok(()), at: ms(signalled) };
                assert!(matches!(kills.done(done, ms(signalled), &mut book), Some(KillEvent::Signalled { .. })));
                break;
            }
            assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{at}");
            assert!(matches!(kills.table[0].wait, Wait::Until(_)), "{at}");
        }
        let over = signalled_at.map_or(5_500, |at| at + 500);
        assert!(kills.poll(ms(over - 1), &mut book, &mut workers).is_none());
        assert_eq!(kills.table[0].wait, Wait::Until(ms(over)));
        assert!(kills.poll(ms(over), &mut book, &mut workers).is_none());
        assert!(matches!(kills.table[0].wait, Wait::Measured(_)));
        if signalled_at.is_none() {
            assert!(kills.done(ran(500), ms(over), &mut book).is_none());
            let event = kills.poll(ms(over), &mut book, &mut workers);
            assert!(matches!(event, Some(KillEvent::Stuck { .. })), "{event:?}");
        }
    }
}

#[test]
fn what_is_stuck_can_be_killed_anew_and_makes_room() {
    let fakes = ["a", "b", "c"].map(Fake::new);
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    for (fake, at) in fakes.iter().zip([0, 1]) {
        kill(&mut kills, &mut workers, &mut book, fake, at);
    }
    assert!(kills.give_up(&mut book).is_none(), "both are hopeful");
    while poll_measured(&mut kills, &mut workers, &mut book, 501).is_some() {}
    assert_eq!(kills.hopeful(), 0);
    // A process was started in it meanwhile.
    fakes[0].write("cgroup.kill", "");
    let again = kills.begin(&fakes[0].handle, ms(600), &mut book, &mut workers);
    assert_eq!(again, Ok(Begun::Requested));
    is_written(&fakes[0]);
    assert_eq!((kills.count(), kills.hopeful()), (2, 1));
    let again = kills.begin(&fakes[0].handle, ms(601), &mut book, &mut workers);
    assert_eq!(again, Err(KillRefused::Already));
    assert_eq!(kills.begin(&fakes[2].handle, ms(601), &mut book, &mut workers), Err(KillRefused::Full));
    assert_eq!(kills.give_up(&mut book).map(|handle| handle.id()), Some(fakes[1].handle.id()));
    assert_eq!(kills.begin(&fakes[2].handle, ms(601), &mut book, &mut workers), Ok(Begun::Requested));
}

#[test]
fn time_in_which_the_machine_did_not_run_is_left_out() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    kills.limits.pause = Duration::from_millis(50);
    assert!(kills.poll(ms(1_000), &mut book, &mut workers).is_none());
    // Nothing was waited for until then.
    kill(&mut kills, &mut workers, &mut book, &fake, 10_000);
    // 50 of 900 ms count, and 440 of 11 polls.
    for at in (10_900..=11_340).step_by(40) {
        assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{at}");
        assert!(matches!(kills.table[0].wait, Wait::Until(_)), "{at}");
    }
    assert_eq!(kills.table[0].wait, Wait::Until(ms(11_350)));
    // Another kill ends no pause.
    let other = Fake::new("v");
    kill(&mut kills, &mut workers, &mut book, &other, 11_440);
    assert_eq!(kills.table[0].wait, Wait::Until(ms(11_400)));
    assert_eq!(kills.table[1].wait, Wait::Until(ms(11_940)));
    assert!(matches!(poll_measured(&mut kills, &mut workers, &mut book, 11_441), Some(KillEvent::Stuck { .. })));
}

#[test]
fn an_adopted_victim_is_waited_for_but_not_written_to() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    assert!(kills.adopt(&fake.handle, ms(0), ms(10_000)));
    assert_eq!(fake.text("cgroup.kill"), "");
    let begun = kills.begin(&fake.handle, ms(10_001), &mut book, &mut workers);
    assert_eq!(begun, Err(KillRefused::Already));
    assert!(kills.poll(ms(10_499), &mut book, &mut workers).is_none());
    assert!(kills.poll(ms(10_500), &mut book, &mut workers).is_none());
    // No word from the worker, which may be as slow as all is on a machine without memory.
    for turn in 0..10 {
        let at = 10_600 + turn * 600;
        assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{turn}");
        assert_eq!(kills.table[0].wait, Wait::Until(ms(at + 500)));
        assert!(kills.poll(ms(at + 500), &mut book, &mut workers).is_none(), "{turn}");
        assert_eq!(kills.table[0].wait, Wait::Measured(ms(at + 600)));
        // The answer is lost.
        while workers.poll().is_none() {
            std::thread::yield_now();
        }
    }
    assert!(matches!(kills.poll(ms(16_600), &mut book, &mut workers), Some(KillEvent::Stuck { .. })));
    assert!(kills.forget(fake.handle.id(), &mut book).is_some());
    assert_eq!(kills.count(), 0);
    // It may not have been killed at all: that is not done unasked.
    assert!(kills.adopt(&fake.handle, ms(0), ms(20_000)));
    assert!(kills.poll(ms(20_005), &mut book, &mut workers).is_none());
    fake.write("memory.current", "1000000000\n");
    assert!(matches!(kills.poll(ms(20_006), &mut book, &mut workers), Some(KillEvent::Stuck { .. })));
    assert_eq!(fake.text("cgroup.kill"), "");
}

#[test]
fn nothing_is_killed_that_is_not_written_down() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::with_room(0));
    let begun = kills.begin(&fake.handle, ms(0), &mut book, &mut workers);
    assert_eq!(begun, Err(KillRefused::Journal(JournalFull)));
    assert_eq!(fake.text("cgroup.kill"), "");
}

#[test]
fn an_empty_cgroup_is_not_killed() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    fake.write("cgroup.events", "populated 0\nfrozen 0\n");
    let begun = kills.begin(&fake.handle, ms(0), &mut book, &mut workers);
    assert_eq!(begun, Ok(Begun::Gone));
    assert_eq!((fake.text("cgroup.kill").as_str(), kills.count(), book.steps().len()), ("", 0, 0));
}

#[test]
fn room_is_bounded_and_each_victim_is_looked_at() {
    let fakes = ["a", "b", "c"].map(Fake::new);
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    for fake in &fakes[..2] {
        kill(&mut kills, &mut workers, &mut book, fake, 0);
        fake.write("cgroup.events", "populated 0\nfrozen 0\n");
    }
    let begun = kills.begin(&fakes[2].handle, ms(0), &mut book, &mut workers);
    assert_eq!(begun, Err(KillRefused::Full));
    for _ in 0..2 {
        assert!(matches!(kills.poll(ms(1), &mut book, &mut workers), Some(KillEvent::Emptied { .. })));
    }
    assert!(kills.poll(ms(1), &mut book, &mut workers).is_none());
    assert!(book.is_clear());
}

#[test]
fn a_victim_is_signalled_though_its_cgroup_kill_waits() {
    let fake = Fake::new("w");
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep starts");
    fake.write("cgroup.procs", &format!("{}\n", child.id()));
    let (writer, release) = WriterThatWaits::start();
    let mut workers = Workers::beside(writer, 8).expect("threads start");
    let (mut kills, mut book) = (Kills::with_capacity(KillLimits::default(), 2), Book::default());
    kill(&mut kills, &mut workers, &mut book, &fake, 0);
    child.wait().expect("it is ours");
    assert_eq!((fake.text("cgroup.kill").as_str(), book.steps()), ("", &[Step::Killing, Step::KillWritten][..]));
    release.end_wait();
    is_written(&fake);
}

#[test]
fn a_cgroup_kill_that_waited_for_too_long_is_not_written() {
    let fake = Fake::new("w");
    let (writer, release) = WriterThatWaits::start();
    let mut workers = Workers::beside(writer, 8).expect("threads start");
    let limits = KillLimits { patience: Duration::from_millis(1), ..KillLimits::default() };
    let (mut kills, mut book) = (Kills::with_capacity(limits, 2), Book::default());
    assert_eq!(kills.begin(&fake.handle, ms(0), &mut book, &mut workers), Ok(Begun::Requested));
    let over = monotonic().after(2 * limits.patience);
    while monotonic() <= over {
        std::thread::yield_now();
    }
    release.end_wait();
    let event = results(&mut kills, &mut workers, &mut book, 0);
    assert!(matches!(event, Some(KillEvent::Refused { .. })), "{event:?}");
    assert_eq!((fake.text("cgroup.kill").as_str(), book.is_clear()), ("", true));
}

#[test]
fn a_cgroup_kill_that_is_refused_is_a_refusal_only_where_no_process_can_be_signalled() {
    for has_process in [false, true] {
        let fake = Fake::that_refuses("w", "cgroup.kill");
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep starts");
        if has_process {
            fake.write("cgroup.procs", &format!("{}\n", child.id()));
        }
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        assert_eq!(kills.begin(&fake.handle, ms(0), &mut book, &mut workers), Ok(Begun::Requested));
        let event = results(&mut kills, &mut workers, &mut book, 0);
        if has_process {
            assert!(matches!(event, Some(KillEvent::Signalled { .. })), "{event:?}");
            assert_eq!((kills.count(), book.is_clear()), (1, false));
        } else {
            assert!(matches!(event, Some(KillEvent::Refused { fault: Fault::Write { .. }, .. })), "{event:?}");
            assert_eq!((kills.count(), book.is_clear()), (0, true));
            child.kill().expect("it is ours");
        }
        child.wait().expect("it is ours");
    }
}

#[test]
fn a_victim_of_which_a_part_alone_was_reached_without_cgroup_kill_is_killed_again() {
    for (is_whole, outcome, again) in [(false, Err(LATE), 1), (true, Err(LATE), 0), (false, Ok(()), 0)] {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        kill(&mut kills, &mut workers, &mut book, &fake, 0);
        let (cgroup, at) = (fake.handle.id(), ms(1));
        for done in [Done::KillWritten { cgroup, outcome, at }, Done::Killed { cgroup, sent: 7, is_whole, at }] {
            kills.done(done, at, &mut book);
        }
        for at in [2, 3] {
            assert!(kills.poll(ms(at), &mut book, &mut workers).is_none());
            assert_eq!(kills.table[0].again, again, "{is_whole} {outcome:?}");
        }
    }
}

#[test]
fn a_victim_is_not_judged_by_a_late_answer_to_its_kill() {
    let fake = Fake::new("w");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    kill(&mut kills, &mut workers, &mut book, &fake, 0);
    // A busy worker has not measured it yet when it has given back nothing in time.
    (kills.table[0].is_measured, kills.table[0].activity) = (false, None);
    assert!(kills.poll(ms(500), &mut book, &mut workers).is_none());
    for (used_ms, at) in [(1000, 510), (1010, 520)] {
        let activity = Some(Activity { cpu: Duration::from_millis(used_ms), threads: None });
        kills.done(Done::Measured { cgroup: fake.handle.id(), activity }, ms(at), &mut book);
        assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{at}");
    }
    assert_eq!((kills.hopeful(), kills.table[0].spent), (1, Duration::from_millis(50)));
}

const NONE: &str = "populated 0\nfrozen 0\n";

/// Polls, and takes the workers' results in, until there is an event.
fn next(kills: &mut Kills, workers: &mut Workers, book: &mut Book, at: u64) -> Option<KillEvent> {
    for _ in 0..1000 {
        while let Some(done) = workers.poll() {
            kills.done(done, ms(at), book);
        }
        if let Some(event) = kills.poll(ms(at), book, workers) {
            return Some(event);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    None
}

#[test]
fn what_is_spared_is_not_waited_for_and_what_came_later_is_killed_as_well() {
    let fake = Fake::with_part("w");
    fake.write("cpu.stat", "usage_usec 0\n");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    assert_eq!(kills.begin(&fake.handle, ms(0), &mut book, &mut workers), Ok(Begun::Requested));
    let event = results(&mut kills, &mut workers, &mut book, 0);
    assert!(matches!(event, Some(KillEvent::Signalled { .. })), "{event:?}");
    let killed = |name: &str| fake.text(&format!("{name}/cgroup.kill"));
    assert_eq!(
        (fake.text("cgroup.kill"), killed("part"), killed("spared")),
        (String::new(), "1".into(), String::new())
    );
    assert!(next(&mut kills, &mut workers, &mut book, 10).is_none(), "its part lives");
    // A container is started in it, and then the first one is empty.
    fake.make("later");
    fake.fill("later");
    fake.write("later/cgroup.threads", "7\n");
    fake.write("part/cgroup.events", NONE);
    assert!(next(&mut kills, &mut workers, &mut book, 20).is_none(), "what came later lives");
    assert_eq!((killed("later"), killed("spared")), ("1".into(), String::new()));
    fake.write("later/cgroup.threads", "");
    let event = next(&mut kills, &mut workers, &mut book, 30);
    assert!(matches!(event, Some(KillEvent::Emptied { .. })), "{event:?}");
    assert!(book.is_clear());
    // Nothing is there to be killed any more, although its monitor lives.
    fake.write("part/cgroup.events", NONE);
    assert_eq!(kills.begin(&fake.handle, ms(40), &mut book, &mut workers), Ok(Begun::Gone));
}

#[test]
fn what_comes_again_and_again_is_stuck_and_seen_to_end_in_the_end() {
    let fake = Fake::with_part("w");
    fake.write("cpu.stat", "usage_usec 0\n");
    fake.write("part/cgroup.threads", "7\n");
    let ((mut kills, mut workers), mut book) = (kills(), Book::default());
    assert_eq!(kills.begin(&fake.handle, ms(0), &mut book, &mut workers), Ok(Begun::Requested));
    let event = results(&mut kills, &mut workers, &mut book, 0);
    assert!(matches!(event, Some(KillEvent::Signalled { .. })), "{event:?}");
    // As where the threads are in a part that came later, which is not kept open.
    fake.write("part/cgroup.events", NONE);
    fake.write("part/cgroup.kill", "");
    let event = next(&mut kills, &mut workers, &mut book, 1);
    assert!(event.is_none(), "{event:?}");
    assert_eq!((fake.text("part/cgroup.kill").as_str(), kills.table[0].again), ("1", limits().again));
    let patience = u64::try_from(limits().patience.as_millis()).expect("small");
    let event = (1..40).find_map(|turn| next(&mut kills, &mut workers, &mut book, turn * patience));
    assert!(matches!(event, Some(KillEvent::Stuck { .. })), "{event:?}");
    fake.write("part/cgroup.threads", "");
    let event = next(&mut kills, &mut workers, &mut book, 50 * patience);
    assert!(matches!(event, Some(KillEvent::Emptied { .. })), "{event:?}");
}
