//! A user whose writes to its own cgroups hold `cgroup_mutex`, for which freezes and kills of all cgroups wait.

use crate::act_tests::{Hand, PATIENCE};
use crate::attacker::Attacker;
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::{self, wait_for};
use crate::scene::{MIB, Scene, was_killed};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use plimsoll_act::{Begun, BrakeEvent, Done, KillEvent};
use plimsoll_node::cgroup::Handle;
use plimsoll_node::clock::monotonic;
use plimsoll_node::priority::{Level, raise_this_thread};
use plimsoll_units::MonotonicNs;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A user that freezes and thaws a subtree of its own without a pause. Dropping it ends that.
struct Toggling {
    tree: Cgroup,
    child: Child,
}

impl Toggling {
    /// With so many cgroups in the subtree.
    fn start(cgroups: usize) -> Result<Self> {
        let user = Attacker::User.home("user")?;
        let toggle = "while :; do echo 1 > cgroup.freeze; echo 0 > cgroup.freeze; done";
        let child =
            Attacker::User.run(&user, &format!("mkdir tree; cd tree; mkdir $(seq {cgroups}) last; {toggle}"))?;
        let last = user.path().join("tree/last");
        let begun = Instant::now();
        wait_for("the user has its cgroups", 10 * PATIENCE, || Ok(last.exists()))?;
        figure("cgroups-made", &[("cgroups", &cgroups), ("ms", &begun.elapsed().as_millis())]);
        Ok(Self { tree: Cgroup::create("user.slice/user/tree")?, child })
    }

    fn end(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.tree.write("cgroup.freeze", "0")
    }
}

/// Times in nanoseconds.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn add(&mut self, from: MonotonicNs, to: MonotonicNs) {
        self.0.push(u64::try_from(to.since(from).as_nanos()).unwrap_or(u64::MAX));
    }

    /// Median, 90th percentile and maximum, in microseconds.
    fn text(&mut self) -> String {
        [50, 90, 100].map(|percent| (percentile(&mut self.0, percent) / 1000).to_string()).join("/")
    }
}

/// What was measured of one kind of write.
#[derive(Default)]
struct Measured {
    /// Written by the calling thread itself: until the write returned.
    itself: Times,
    /// Requested of the workers: until the request returned.
    request: Times,
    /// Requested of the workers: until the processes were stopped or killed, in whichever way was first.
    stopped: Times,
    /// How often that was by signals, while the write waited.
    by_signals: usize,
}

impl Measured {
    fn print(&mut self, name: &str, cgroups: usize) {
        let Self { itself, request, stopped, by_signals } = self;
        let (itself, request, stopped) = (itself.text(), request.text(), stopped.text());
        let unit = "us, p50/p90/max";
        figure(
            name,
            &[
                ("cgroups", &cgroups),
                ("unit", &unit),
                ("itself", &itself),
                ("request", &request),
                ("stopped", &stopped),
                ("by_signals", by_signals),
                ("rounds", &self.stopped.0.len()),
            ],
        );
    }
}

/// A process in a cgroup of its own.
fn idle(hand: &Hand, name: &str) -> Result<(Arc<Handle>, Child)> {
    let cgroup = Cgroup::create(name)?;
    let child = guest().args(["idle", "--mib", "4", "--cgroup"]).arg(cgroup.path()).spawn()?;
    wait_for("a process is in place", PATIENCE, || Ok(cgroup.current()? >= 4 * MIB))?;
    Ok((hand.handle(&cgroup)?, child))
}

/// Waits for an event of a brake, as the watching thread does, which is due every few milliseconds.
fn event(hand: &mut Hand) -> Result<BrakeEvent> {
    let begun = Instant::now();
    loop {
        if let Some(event) = hand.poll_brakes() {
            return Ok(event);
        }
        ensure!(begun.elapsed() < PATIENCE, "no event of a brake");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Freezes and thaws once by a write of this thread, and once as the agent does.
fn freeze(hand: &mut Hand, handle: &Arc<Handle>, process: &Child, measured: &mut Measured) -> Result<()> {
    let begun = monotonic();
    handle.freeze(true)?;
    measured.itself.add(begun, monotonic());
    handle.freeze(false)?;
    let begun = monotonic();
    hand.request_brake(handle)?;
    measured.request.add(begun, monotonic());
    let mut first = event(hand)?;
    if let BrakeEvent::Stopped { processes, at, .. } = first {
        ensure!(processes == 1, "{processes} processes were stopped");
        measured.stopped.add(begun, at);
        measured.by_signals += 1;
        first = event(hand)?;
    } else if let BrakeEvent::Frozen { at, .. } = first {
        measured.stopped.add(begun, at);
    }
    ensure!(matches!(first, BrakeEvent::Frozen { .. }), "not frozen: {first:?}");
    wait_for("it is frozen", PATIENCE, || Ok(handle.frozen()?))?;
    hand.brakes.thaw(handle.id(), monotonic(), &mut hand.workers);
    let last = event(hand)?;
    ensure!(matches!(last, BrakeEvent::Thawed { .. }), "not thawed: {last:?}");
    wait_for("it goes on", PATIENCE, || {
        Ok(!handle.frozen()? && !matches!(machine::process_state(process.id()), Some('T')))
    })
}

/// Kills once by a write of this thread, in a cgroup without a process, and a process as the agent does.
fn kill(hand: &mut Hand, empty: &Handle, number: usize, measured: &mut Measured) -> Result<()> {
    let (handle, mut process) = idle(hand, &format!("work.slice/victim-{number}"))?;
    let begun = monotonic();
    empty.kill()?;
    measured.itself.add(begun, monotonic());
    let begun = monotonic();
    ensure!(hand.kill(&handle)? == Begun::Requested);
    measured.request.add(begun, monotonic());
    let (mut is_written, mut is_dead) = (false, false);
    wait_for("it is dead, and its cgroup.kill is written", PATIENCE, || {
        while let (Some(done), _, event) = hand.take() {
            is_written |= matches!(done, Done::KillWritten { .. });
            if let Some(KillEvent::Signalled { at, .. }) = event {
                measured.stopped.add(begun, at);
                measured.by_signals += usize::from(!is_written);
            }
        }
        if !is_dead && let Some(status) = process.try_wait()? {
            ensure!(was_killed(status), "it ended with {status}");
            is_dead = true;
        }
        Ok(is_dead && is_written)
    })?;
    // No more victims are waited for than there is room for.
    wait_for("its end is seen", PATIENCE, || Ok(hand.end_of_kill().is_some()))
}

/// Freezes and kills beside a user with so many cgroups, so often at least, and until each was overtaken by signals.
fn beside(cgroups: usize, rounds: usize) -> Result<()> {
    let _ = raise_this_thread(Level::Watching);
    let mut hand = Hand::new("/run/act-blocked")?;
    let (handle, mut process) = idle(&hand, "work.slice/victim")?;
    let empty = hand.handle(&Cgroup::create("work.slice/empty")?)?;
    let mut quiet = Measured::default();
    for _ in 0..rounds {
        freeze(&mut hand, &handle, &process, &mut quiet)?;
    }
    quiet.print("freeze-without-others", 0);

    let attacker = Toggling::start(cgroups)?;
    let (mut freezes, mut kills) = (Measured::default(), Measured::default());
    let begun = Instant::now();
    for number in 0.. {
        freeze(&mut hand, &handle, &process, &mut freezes)?;
        kill(&mut hand, &empty, number, &mut kills)?;
        if number + 1 >= rounds && freezes.by_signals > 0 && kills.by_signals > 0 {
            break;
        }
        ensure!(
            begun.elapsed() < 4 * PATIENCE,
            "never by signals while the write waited: {} freezes and {} kills of {number} were",
            freezes.by_signals,
            kills.by_signals
        );
    }
    freezes.print("freeze-beside-writes", cgroups);
    kills.print("kill-beside-writes", cgroups);
    attacker.end()?;
    process.kill()?;
    process.wait()?;
    Ok(())
}

/// Processes are stopped and killed while the freeze and the kill of their cgroup wait for writes of another user; and the
/// whole agent beside that user leaves nothing stopped or frozen.
pub(crate) fn many_cgroups() -> Result<()> {
    const MANY: usize = 20_000;
    beside(MANY, 50)?;
    Cgroup::create("user.slice/user/tree")?.remove()?;
    let attacker = Toggling::start(MANY)?;
    let mut scene = Scene::set(96)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
    wait_for("the hog is killed", PATIENCE, || {
        scene.check()?;
        Ok(hog.child.try_wait()?.is_some())
    })
    .with_context(|| format!("the agent's log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    scene.expect_reported(&victim)?;
    attacker.end()?;
    scene.settled()?;
    scene.end()
}

/// The smallest value that at least `percent` of 100 are not above.
fn percentile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        for (percent, value) in [(50, 100), (99, 198), (100, 200)] {
            assert_eq!(percentile(&mut values, percent), value);
        }
        assert_eq!(percentile(&mut [7], 99), 7);
    }
}
