//! Tests of what is done to cgroups, by the agent's own crates and without the agent: on real processes and real
//! cgroups.

use crate::block::{Slow, Swap};
use crate::cgroup::{Cgroup, ROOT};
use crate::hog::join;
use crate::hog_tests::{self, Hog, guest};
use crate::machine::{self, KernelSetting, named, wait_for};
use crate::suite;
use anyhow::{Context as _, Result, bail, ensure};
use plimsoll_act::{
    Begun, BrakeEvent, BrakeLimits, BrakeRefused, Brakes, Done, Job, KillEvent, KillLimits, Kills, Reclaimed, Worker,
    Workers,
};
use plimsoll_inventory::{Bounds, Patterns, Protected, discover};
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::{Bound, Handle, Root, TaskList};
use plimsoll_node::priority::{Level, raise_this_thread};
use plimsoll_node::zoneinfo::Zones;
use plimsoll_node::{Fault, clock, limits, meminfo, pressure};
use plimsoll_state::{Found, Record, StoppedProcesses, undo};
use plimsoll_units::{Bytes, CgroupId};
use std::fs::{self, File};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Everything that acts, with its record.
pub(crate) struct Hand {
    root: Root,
    record: Record,
    pub(crate) brakes: Brakes,
    kills: Kills,
    pub(crate) workers: Workers,
}

impl Hand {
    pub(crate) fn new(record: &str) -> Result<Self> {
        let stopped = StoppedProcesses::open(Path::new(&format!("{record}-stopped")), BootId::read()?)?;
        let (record, _) = Record::open(Path::new(record), BootId::read()?)?;
        ensure!(record.is_locked(), "the record is not locked in memory");
        Ok(Self {
            root: Root::open(Path::new(ROOT))?,
            record,
            brakes: Brakes::with_capacity(BrakeLimits::of(2, Bytes(4096), Bytes::mib(2)), 4, Arc::new(stopped)),
            kills: Kills::with_capacity(KillLimits::default(), 4),
            workers: Workers::beside(Worker::start_with("write", 16, raise)?, 16)?,
        })
    }

    pub(crate) fn handle(&self, cgroup: &Cgroup) -> Result<Arc<Handle>> {
        let handle = Handle::open(&self.root, cgroup.name().as_bytes())?.context("it was just made")?;
        ensure!(handle.id() == CgroupId(cgroup.id()?), "another cgroup was opened");
        Ok(Arc::new(handle))
    }

    /// Requests a freeze.
    pub(crate) fn request_brake(&mut self, handle: &Arc<Handle>) -> Result<(), BrakeRefused> {
        self.brakes.brake(handle, clock::monotonic(), &mut self.record, &mut self.workers)
    }

    /// Freezes, and waits until that is written.
    fn brake(&mut self, handle: &Arc<Handle>) -> Result<()> {
        self.request_brake(handle)?;
        let mut event = self.braked()?;
        // On a slow machine the write takes longer than it may.
        while let BrakeEvent::Stopped { .. } = event {
            event = self.braked()?;
        }
        ensure!(matches!(event, BrakeEvent::Frozen { .. }), "not frozen: {event:?}");
        Ok(())
    }

    /// Kills as the agent does.
    pub(crate) fn kill(&mut self, handle: &Arc<Handle>) -> Result<Begun> {
        Ok(self.kills.begin(handle, clock::monotonic(), &mut self.record, &mut self.workers)?)
    }

    /// The next result of a worker, taken in as the agent does, and the event that it led to.
    pub(crate) fn take(&mut self) -> (Option<Done>, Option<BrakeEvent>, Option<KillEvent>) {
        let (done, now) = (self.workers.poll(), clock::monotonic());
        if let Some(Done::Killed { cgroup, .. }) = done {
            self.brakes.thaw(cgroup, now, &mut self.workers);
        }
        let brake = done.and_then(|done| self.brakes.done(done, now, &mut self.record, &mut self.workers));
        let kill = done.and_then(|done| self.kills.done(done, now, &mut self.record));
        (done, brake, kill)
    }

    /// The next result of a worker.
    fn poll(&mut self) -> Option<Done> {
        self.take().0
    }

    /// The end of a victim, if there is one that has ended.
    pub(crate) fn end_of_kill(&mut self) -> Option<KillEvent> {
        self.take();
        let event = self.kills.poll(clock::monotonic(), &mut self.record, &mut self.workers);
        event.filter(|event| matches!(event, KillEvent::Emptied { .. }))
    }

    fn killed(&mut self) -> Result<KillEvent> {
        let mut event = None;
        wait_for("the victim's end is reported", PATIENCE, || {
            event = self.kills.poll(clock::monotonic(), &mut self.record, &mut self.workers);
            Ok(event.is_some())
        })?;
        event.context("there was an event")
    }

    /// Has what is due done, and gives the next event of a brake, if there is one.
    pub(crate) fn poll_brakes(&mut self) -> Option<BrakeEvent> {
        // Results first, as in the agent: what is written is not waited for.
        while let (Some(_), event, _) = self.take() {
            if event.is_some() {
                return event;
            }
        }
        self.brakes.poll(clock::monotonic(), &mut self.record, &mut self.workers)
    }

    /// The next event of a brake.
    fn braked(&mut self) -> Result<BrakeEvent> {
        let mut event = None;
        wait_for("what became of the brake is reported", PATIENCE, || {
            event = self.poll_brakes();
            Ok(event.is_some())
        })?;
        event.context("there was an event")
    }

    /// What came of the memory of a victim or of reclaim.
    fn done(&mut self) -> Result<Done> {
        let mut done = None;
        wait_for("the worker is done", PATIENCE, || {
            done = self.poll().filter(|done| matches!(done, Done::Released { .. } | Done::Reclaimed { .. }));
            Ok(done.is_some())
        })?;
        done.context("there was a result")
    }
}

/// Gives the calling thread the priority of the worker that writes.
fn raise() {
    let _ = raise_this_thread(Level::Writing);
}

/// Kills and waits for it; most are dead before.
fn end(mut child: Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

pub(crate) fn reads_this_kernel() -> Result<()> {
    let reading = meminfo::MemInfo::open()?.read()?;
    ensure!(reading.total == Bytes(machine::meminfo("MemTotal")?), "another total: {reading:?}");
    let zones = Zones::read()?;
    ensure!(zones.zone_drift.0 > 0 && zones.node_drift.0 > 0, "no drift: {zones:?}");
    let reserve = zones.total_reserve(&reading, meminfo::page_bytes());
    let (expected, _) = machine::reserves(&std::fs::read_to_string("/proc/zoneinfo")?);
    suite::figure(
        "reserve",
        &[
            ("derived_bytes", &reserve.0),
            ("from_zones_bytes", &(expected * meminfo::page_bytes())),
            ("drift", &zones.drift().mem_available.0),
        ],
    );
    let tasks = limits::TaskLimits::open()?.read()?;
    ensure!(tasks.tasks > 0 && tasks.tasks < tasks.limit(), "tasks: {tasks:?}");
    pressure::MemoryPressure::open()?.read()?;
    Ok(())
}

pub(crate) fn discovers() -> Result<()> {
    let root = Root::open(Path::new(ROOT))?;
    for name in
        ["work.slice/a", "work.slice/b/inner", "work.slice/x\\x2dy.service", "deep.slice/one/two", "deep.slice/three"]
    {
        Cgroup::create(name)?;
    }
    let patterns = Patterns {
        workloads: vec!["work.slice/*".parse()?, "deep.slice/**".parse()?],
        never: vec!["work.slice/a".parse()?],
        pods: None,
    };
    let found = discover(&root, &patterns, &Protected::read(), Bounds::default())?;
    let paths = found.workloads.iter().map(|found| String::from_utf8(found.path.clone()));
    let paths = paths.collect::<Result<Vec<String>, _>>()?;
    let expected = ["deep.slice/one/two", "deep.slice/three", "work.slice/b", "work.slice/x\\x2dy.service"];
    ensure!(
        paths.iter().map(String::as_str).collect::<std::collections::BTreeSet<_>>() == expected.into_iter().collect(),
        "found {paths:?}"
    );
    ensure!(found.refused == [b"work.slice/a".to_vec()], "refused {:?}", found.refused);
    for one in &found.workloads {
        let handle = Handle::open(&root, &one.path)?.context("it was found")?;
        ensure!(handle.id() == one.id && handle.has_memory() && handle.has_kill(), "{one:?}: {handle:?}");
        ensure!(root.find(one.id)?.as_ref() == Some(&one.path), "not found by its id: {one:?}");
        ensure!(root.path_of(one.id)?.as_ref() == Some(&one.path), "not opened by its id: {one:?}");
        handle.usage()?;
        handle.page_cache()?;
        ensure!(handle.max()?.is_none() && !handle.populated()?, "{one:?} has a limit or a process");
    }
    Ok(())
}

pub(crate) fn brake_holds_and_is_undone() -> Result<()> {
    let mut hand = Hand::new("/run/act-brake")?;
    let cgroup = Cgroup::create("work.slice/braked")?;
    let mut hog = Hog::start("anon", cgroup.path(), 200, &["--rate", "20", "--hold", "60"])?;
    hog.wait_taken(8, PATIENCE)?;
    let handle = hand.handle(&cgroup)?;
    hand.brake(&handle)?;
    wait_for("all of it is frozen", PATIENCE, || Ok(handle.frozen()?))?;
    let before = hog.taken()?;
    ensure!(hand.request_brake(&handle) == Err(BrakeRefused::Already));
    let event = hand.braked()?;
    ensure!(matches!(event, BrakeEvent::Thawed { held, .. } if held >= Duration::from_secs(2)), "{event:?}");
    // Nothing but the deadline was reported, so it had not grown.
    ensure!(hand.record.entries().is_empty(), "left in the record: {:?}", hand.record.entries());
    wait_for("it goes on", PATIENCE, || Ok(hog.taken()? > before + (4 << 20)))
}

pub(crate) fn what_still_grows_is_seen() -> Result<()> {
    let mut hand = Hand::new("/run/act-grows")?;
    // Where this process has to wait for a CPU, the hog may have grown up before it is sampled.
    for round in 0..5 {
        if still_grows(&mut hand, round)? {
            return Ok(());
        }
    }
    bail!("never seen to grow under the brake")
}

/// One round. Gives whether it grew under the brake.
fn still_grows(hand: &mut Hand, round: u32) -> Result<bool> {
    let cgroup = Cgroup::create(&format!("work.slice/populate-{round}"))?;
    let handle = hand.handle(&cgroup)?;
    // All in one system call, which no freeze interrupts.
    let mut hog = Hog::start("populate", cgroup.path(), 512, &["--chunk", "524288", "--hold", "60"])?;
    wait_for("it has begun", PATIENCE, || Ok(cgroup.current()? > 24 << 20))?;
    hand.brake(&handle)?;
    let event = hand.braked()?;
    let grew = match event {
        BrakeEvent::StillGrows { grown, .. } => {
            suite::figure("still-grows", &[("grown_bytes", &grown.0)]);
            true
        }
        BrakeEvent::Thawed { .. } => false,
        _ => bail!("instead: {event:?}"),
    };
    ensure!(hand.kill(&handle)? == Begun::Requested);
    while let KillEvent::Stuck { .. } = hand.killed()? {}
    wait_for("it dies", PATIENCE, || Ok(hog.child.try_wait()?.is_some()))?;
    Ok(grew)
}

pub(crate) fn frozen_victim_dies_and_its_memory_comes_back() -> Result<()> {
    let mut hand = Hand::new("/run/act-kill")?;
    let cgroup = Cgroup::create("work.slice/victim/nested")?;
    let parent = Cgroup::create("work.slice/victim")?;
    let mut hog = Hog::start("anon", cgroup.path(), 96, &["--hold", "60"])?;
    hog.wait_taken(96, PATIENCE)?;
    let handle = hand.handle(&parent)?;
    ensure!(handle.usage()? >= Bytes::mib(90), "charged: {:?}", handle.usage());
    hand.brake(&handle)?;
    wait_for("all of it is frozen", PATIENCE, || Ok(handle.frozen()?))?;
    ensure!(hand.kill(&handle)? == Begun::Requested);
    // On a slow machine it counts as stuck before it is empty, and the worker, which checks a bounded number of times,
    // may be through by then.
    let (mut done, mut emptied, mut early) = (None, None, false);
    wait_for("the victim is empty and its memory taken", PATIENCE, || {
        if done.is_none() {
            done = hand.poll().filter(|done| matches!(done, Done::Released { .. }));
            early = done.is_some() && handle.populated()?;
        }
        if let Some(KillEvent::Emptied { took, left, .. }) =
            hand.kills.poll(clock::monotonic(), &mut hand.record, &mut hand.workers)
        {
            emptied = Some((took, left));
        }
        Ok(done.is_some() && emptied.is_some())
    })?;
    let (took, left) = emptied.context("it is empty")?;
    let left = left.context("it is still there")?;
    // The last that had the process's memory open gives it back, which may be the worker that looked it up.
    wait_for("its memory is given back", PATIENCE, || Ok(handle.usage()? < Bytes::mib(8)))?;
    let Some(Done::Released { released, gone, kept, .. }) = done else { bail!("not a release: {done:?}") };
    // Where it was gone before the worker looked, there was nothing left to take; newer kernels list no process that
    // is about to end although the cgroup is not empty yet.
    ensure!(released + gone + kept <= 1, "there was one process: released {released}, gone {gone}, kept {kept}");
    ensure!(early || kept == 0, "released {released}, gone {gone}, kept {kept}, before it was empty: {early}");
    suite::figure("kill", &[("emptied_us", &took.as_micros()), ("left_bytes", &left.0), ("released", &released)]);
    // It may have died before each process was sent the signal.
    wait_for("its thaw is recorded", PATIENCE, || {
        hand.poll();
        Ok(hand.record.entries().is_empty())
    })?;
    ensure!(!handle.freeze_asked()?, "it is frozen");
    wait_for("it is dead", PATIENCE, || Ok(hog.child.try_wait()?.is_some()))
}

/// A process whose first thread has exited, which cgroup.kill does not end, wherever its threads are: frozen in a
/// nested cgroup, moved on since to a cgroup whose list of processes does not have it, in a threaded cgroup.
pub(crate) fn process_without_its_first_thread_dies() -> Result<()> {
    let mut hand = Hand::new("/run/act-first-thread")?;

    let (parent, inner) = (Cgroup::create("work.slice/first")?, Cgroup::create("work.slice/first/inner")?);
    let handle = hand.handle(&parent)?;
    let mut hog = without_first_thread(inner.path())?;
    let mut zombie = guest().args(["idle", "--cgroup"]).arg(inner.path()).spawn()?;
    let listed = |list| -> Result<usize> {
        let mut count = 0;
        handle.each_task(list, Bound::NONE, &mut |_| {
            count += 1;
            true
        })?;
        Ok(count)
    };
    wait_for("two processes are listed", PATIENCE, || Ok(listed(TaskList::Processes)? == 2))?;
    zombie.kill()?;
    wait_for("a process that has ended is not listed", PATIENCE, || {
        Ok(machine::process_state(zombie.id()) == Some('Z')
            && (listed(TaskList::Processes)?, listed(TaskList::Threads)?) == (1, 3))
    })?;
    handle.kill()?;
    std::thread::sleep(Duration::from_millis(500));
    let lives_on = handle.populated()?;
    suite::figure("cgroup-kill-alone", &[("populated_after_500_ms", &lives_on)]);
    if !lives_on {
        // This kernel ends the other threads, too.
        hog.child.wait()?;
        hog = without_first_thread(inner.path())?;
    }
    hand.brake(&handle)?;
    wait_for("all of it is frozen", PATIENCE, || Ok(handle.frozen()?))?;
    dies(&mut hand, "frozen", &handle, &mut hog)?;
    zombie.wait()?;

    let (parent, left) = (Cgroup::create("work.slice/moved")?, Cgroup::create("work.slice/moved/left")?);
    let mut hog = without_first_thread(left.path())?;
    let now = Cgroup::create("work.slice/moved/now")?;
    now.write("cgroup.procs", &hog.child.id().to_string())?;
    left.remove()?;
    ensure!(now.read("cgroup.procs")?.is_empty() && now.populated()?, "listed: {:?}", now.read("cgroup.procs"));
    let handle = hand.handle(&parent)?;
    dies(&mut hand, "moved", &handle, &mut hog)?;

    let domain = Cgroup::create("work.slice/threads")?;
    let mut hog = without_first_thread(domain.path())?;
    let threaded = domain.path().join("inner");
    std::fs::create_dir(&threaded)?;
    machine::set(threaded.join("cgroup.type"), "threaded")?;
    for entry in std::fs::read_dir(format!("/proc/{}/task", hog.child.id()))? {
        let thread = entry?.file_name();
        let thread = thread.to_str().context("a number")?;
        if thread != hog.child.id().to_string() {
            machine::set(threaded.join("cgroup.threads"), thread)?;
        }
    }
    let handle = hand.handle(&domain)?;
    dies(&mut hand, "threaded", &handle, &mut hog)?;
    as_fast_as_others(&mut hand)
}

/// How many times as long as that of one like it the end of a process without its first thread may take.
const AS_FAST: u32 = 10;

/// One round each in turn, so that both wait for a busy host alike.
fn as_fast_as_others(hand: &mut Hand) -> Result<()> {
    let (mut others, mut without) = (Vec::new(), Vec::new());
    for round in 0..5 {
        let cgroup = Cgroup::create(&format!("work.slice/normal-{round}"))?;
        let (handle, mut hog) = (hand.handle(&cgroup)?, two_threads(cgroup.path(), &[])?);
        others.push(dies(hand, "normal", &handle, &mut hog)?);
        let cgroup = Cgroup::create(&format!("work.slice/without-{round}"))?;
        let (handle, mut hog) = (hand.handle(&cgroup)?, without_first_thread(cgroup.path())?);
        without.push(dies(hand, "without", &handle, &mut hog)?);
    }
    let [normal, took] = [others, without].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    ensure!(
        took <= AS_FAST * normal,
        "without its first thread a process died after {took:?}, others after {normal:?}"
    );
    Ok(())
}

/// A tree that is deep and wide, with a process in its last cgroup that cgroup.kill does not end: each cgroup is visited
/// once, that process is killed, what was requested of the worker meanwhile is not behind it, and what all of that takes
/// of memory does not depend on the tree.
pub(crate) fn large_tree_is_walked_once_and_killed_in_turns() -> Result<()> {
    const DEEP: usize = 200;
    const WIDE: usize = 1000;
    let mut hand = Hand::new("/run/act-large-tree")?;
    let parent = Cgroup::create("work.slice/large")?;
    let other = Cgroup::create("work.slice/other")?;
    // Without the memory controller, as below a workload.
    let mut path = parent.path().to_owned();
    for _ in 0..DEEP {
        path.push("deep-below-it");
        std::fs::create_dir(&path)?;
    }
    for number in 0..WIDE {
        std::fs::create_dir(path.join(format!("{number:0200}")))?;
    }
    let (handle, other) = (hand.handle(&parent)?, hand.handle(&other)?);
    let mut walk = handle.walk()?;
    let (mut visited, mut last) = (0, Vec::new());
    while walk.advance().is_some() {
        visited += 1;
        last = walk.path();
    }
    ensure!((visited, walk.is_whole()) == (1 + DEEP + WIDE, true), "{visited} visited, all: {}", walk.is_whole());
    let mut hog = without_first_thread(&parent.path().join(std::str::from_utf8(&last)?))?;

    let resident = || -> Result<u64> {
        let text = std::fs::read_to_string("/proc/self/statm")?;
        let pages: u64 = text.split(' ').nth(1).context("statm has two fields")?.parse()?;
        Ok(pages * meminfo::page_bytes())
    };
    let before = resident()?;
    // However slow this machine is.
    let never = plimsoll_units::MonotonicNs(u64::MAX);
    ensure!(hand.workers.kill.submit(Job::Kill(Arc::clone(&handle), never)).is_ok());
    ensure!(hand.workers.kill.submit(Job::Measure(Arc::clone(&other))).is_ok());
    let mut order = Vec::new();
    wait_for("both are done", PATIENCE, || {
        match hand.poll() {
            Some(Done::Killed { cgroup, .. }) => order.push(("killed", cgroup)),
            Some(Done::Measured { cgroup, .. }) if cgroup == other.id() => order.push(("measured", cgroup)),
            _ => {}
        }
        Ok(order.len() == 2)
    })?;
    let grown = resident()?.saturating_sub(before);
    suite::figure("large-tree", &[("grown_kib", &(grown >> 10))]);
    ensure!(order == [("measured", other.id()), ("killed", handle.id())], "{order:?}");
    ensure!(grown < 2 << 20, "{grown} bytes");
    wait_for("it is dead", PATIENCE, || Ok(hog.child.try_wait()?.is_some()))?;
    parent.remove()
}

/// A hog that grows slowly in two threads.
fn two_threads(cgroup: &Path, more: &[&str]) -> Result<Hog> {
    let arguments = [&["--threads", "2", "--rate", "8", "--hold", "60"], more].concat();
    let mut hog = Hog::start("anon", cgroup, 256, &arguments)?;
    hog.wait_taken(2, PATIENCE)?;
    Ok(hog)
}

/// One that has no first thread any more.
fn without_first_thread(cgroup: &Path) -> Result<Hog> {
    let hog = two_threads(cgroup, &["--pthread-exit"])?;
    wait_for("the first thread has ended", PATIENCE, || Ok(machine::process_state(hog.child.id()) == Some('Z')))?;
    Ok(hog)
}

/// Kills as the agent does, and waits for the end. Gives how long it took until the cgroup was empty.
fn dies(hand: &mut Hand, case: &str, handle: &Arc<Handle>, hog: &mut Hog) -> Result<Duration> {
    let begun = clock::monotonic();
    ensure!(hand.kill(handle)? == Begun::Requested);
    let mut sent = None;
    wait_for("it dies", PATIENCE, || {
        if matches!(hand.poll(), Some(Done::Killed { cgroup, .. }) if cgroup == handle.id()) {
            sent = Some(clock::monotonic().since(begun));
        }
        Ok(matches!(
            hand.kills.poll(clock::monotonic(), &mut hand.record, &mut hand.workers),
            Some(KillEvent::Emptied { .. })
        ))
    })?;
    let took = clock::monotonic().since(begun);
    wait_for("it is dead", PATIENCE, || Ok(hog.child.try_wait()?.is_some()))?;
    let sent = sent.map_or_else(|| "after-the-end".to_owned(), |sent| sent.as_micros().to_string());
    suite::figure(
        "kill-without-first-thread",
        &[("case", &case), ("sent_us", &sent), ("emptied_us", &took.as_micros())],
    );
    Ok(took)
}

pub(crate) fn removed_cgroup_is_gone() -> Result<()> {
    let mut hand = Hand::new("/run/act-gone")?;
    let cgroup = Cgroup::create("work.slice/gone")?;
    let handle = hand.handle(&cgroup)?;
    cgroup.remove()?;
    // Made again at the same path: another cgroup.
    let cgroup = Cgroup::create("work.slice/gone")?;
    let child = guest().args(["idle", "--mib", "4", "--cgroup"]).arg(cgroup.path()).spawn()?;
    wait_for("the newcomer is there", PATIENCE, || cgroup.populated())?;
    ensure!(handle.usage() == Err(Fault::Gone), "{:?}", handle.usage());
    ensure!(handle.populated() == Err(Fault::Gone), "{:?}", handle.populated());
    ensure!(handle.freeze(true) == Err(Fault::Gone));
    let braked = hand.request_brake(&handle);
    ensure!(braked == Err(BrakeRefused::Fault(Fault::Gone)), "{braked:?}");
    let begun = hand.kills.begin(&handle, clock::monotonic(), &mut hand.record, &mut hand.workers);
    ensure!(begun == Ok(Begun::Gone), "{begun:?}");
    ensure!(hand.record.entries().is_empty(), "left in the record: {:?}", hand.record.entries());
    ensure!(cgroup.populated()?, "the newcomer died");
    end(child)
}

/// What the kernel keeps of cgroups that were open when they were removed is charged to this process.
pub(crate) fn removed_cgroups_leave_nothing() -> Result<()> {
    const CGROUPS: u64 = 500;
    let own = Cgroup::create("agent.slice/opener")?;
    join(own.path())?;
    let root = Root::open(Path::new(ROOT))?;
    let kernel_memory = || named(&own.read("memory.stat")?, "kernel").context("memory.stat has no kernel memory");
    let open_and_remove = || -> Result<()> {
        let cgroup = Cgroup::create("work.slice/removed")?;
        let handle = Handle::open(&root, cgroup.name().as_bytes())?.context("it was just made")?;
        // As a helper thread has it open that counts its tasks.
        let list = File::open(cgroup.path().join("cgroup.procs"))?;
        std::fs::remove_dir(cgroup.path())?;
        drop((list, handle));
        Ok(())
    };
    open_and_remove()?;
    let before = kernel_memory()?;
    (0..CGROUPS).try_for_each(|_| open_and_remove())?;
    suite::figure("removed", &[("cgroups", &CGROUPS), ("before", &before), ("after", &kernel_memory()?)]);
    wait_for("a quarter of what each would leave is left at most", PATIENCE, || {
        Ok(kernel_memory()? <= before + CGROUPS * 1024)
    })
}

pub(crate) fn uninterruptible_is_stuck_then_empty() -> Result<()> {
    let mut hand = Hand::new("/run/act-stuck")?;
    let device = Slow::one_by_one("act")?;
    let cgroup = Cgroup::create("work.slice/stuck")?;
    let mut waiting = hog_tests::waiting_for(&device, &cgroup, 5)?;
    let handle = hand.handle(&cgroup)?;
    ensure!(hand.kill(&handle)? == Begun::Requested);
    let event = hand.killed()?;
    ensure!(matches!(event, KillEvent::Stuck { .. }), "{event:?}");
    ensure!(hand.record.entries().len() == 1, "the next agent must find it: {:?}", hand.record.entries());
    let event = hand.killed()?;
    ensure!(matches!(event, KillEvent::Emptied { .. }), "{event:?}");
    waiting.wait()?;
    Ok(())
}

/// A process that joins a victim which cannot end yet is killed when it grows, without another decision.
pub(crate) fn refilled_victim_is_killed_again() -> Result<()> {
    let mut hand = Hand::new("/run/act-refilled")?;
    let device = Slow::one_by_one("refill")?;
    let cgroup = Cgroup::create("work.slice/refilled")?;
    let mut waiting = hog_tests::waiting_for(&device, &cgroup, 2)?;
    let handle = hand.handle(&cgroup)?;
    ensure!(hand.kill(&handle)? == Begun::Requested);
    // What the kill does by itself is over, so that it is not met by that.
    wait_for("each process was sent the signal", PATIENCE, || Ok(matches!(hand.poll(), Some(Done::Killed { .. }))))?;
    let mut hog = Hog::start("anon", cgroup.path(), 128, &["--hold", "60"])?;
    let event = hand.killed()?;
    let KillEvent::Again { grown, .. } = event else { bail!("instead: {event:?}") };
    wait_for("the newcomer dies", PATIENCE, || Ok(hog.child.try_wait()?.is_some()))?;
    suite::figure("refilled", &[("grown_bytes", &grown.0), ("taken_bytes", &hog.taken()?)]);
    while !matches!(hand.killed()?, KillEvent::Emptied { .. }) {}
    waiting.wait()?;
    Ok(())
}

/// Its page tables are freed when all of its address space was walked, and it gives nothing back until then: by its
/// memory alone it counts as stuck, by its threads it is not.
pub(crate) fn exit_on_a_cpu_is_not_stuck() -> Result<()> {
    let mut hand = Hand::new("/run/act-exit")?;
    // How long the walk takes is this machine's matter.
    for gib in [16, 32, 64] {
        let cgroup = Cgroup::create(&format!("work.slice/exit-{gib}"))?;
        let mut hog = Hog::start("page-tables", cgroup.path(), gib << 10, &["--hold", "60"])?;
        hog.wait_taken(gib << 10, PATIENCE)?;
        let handle = hand.handle(&cgroup)?;
        ensure!(hand.kill(&handle)? == Begun::Requested);
        // Goes by memory alone: its worker's results are not taken, and not waited for.
        let limits = KillLimits { extensions: 0, ..KillLimits::default() };
        let mut unmeasured = (Kills::with_capacity(limits, 1), Workers::start(4)?);
        let now = clock::monotonic();
        ensure!(unmeasured.0.adopt(&handle, now, now), "there is room");
        let (mut stuck, mut event) = (false, None);
        wait_for("the victim's end is reported", PATIENCE, || {
            hand.poll();
            let now = clock::monotonic();
            stuck |=
                matches!(unmeasured.0.poll(now, &mut hand.record, &mut unmeasured.1), Some(KillEvent::Stuck { .. }));
            event = hand.kills.poll(now, &mut hand.record, &mut hand.workers);
            Ok(event.is_some())
        })?;
        let Some(KillEvent::Emptied { took, .. }) = event else { bail!("{gib} GiB of page tables: {event:?}") };
        suite::figure("exit", &[("gib", &gib), ("took_us", &took.as_micros()), ("stuck_by_memory_alone", &stuck)]);
        if stuck {
            return Ok(());
        }
    }
    bail!("each of them ended before it could have counted as stuck")
}

pub(crate) fn fork_bomb_dies_at_once() -> Result<()> {
    let mut hand = Hand::new("/run/act-bomb")?;
    let cgroup = Cgroup::create("work.slice/bomb")?;
    cgroup.write("pids.max", "48")?;
    let mut bomb = guest().args(["hog", "fork", "--mib", "1", "--cgroup"]).arg(cgroup.path()).spawn()?;
    wait_for("the bomb fills its cgroup", PATIENCE, || Ok(cgroup.read("pids.current")?.trim() == "48"))?;
    let handle = hand.handle(&cgroup)?;
    ensure!(hand.kill(&handle)? == Begun::Requested);
    // So many need longer to die on a slow machine; nothing is sent to them again.
    while let KillEvent::Stuck { .. } = hand.killed()? {}
    let Done::Released { released, gone, kept, .. } = hand.done()? else { bail!("not a release") };
    suite::figure("release", &[("released", &released), ("gone", &gone), ("kept", &kept)]);
    bomb.wait()?;
    ensure!(hand.record.entries().is_empty(), "left in the record: {:?}", hand.record.entries());
    Ok(())
}

pub(crate) fn reclaim_takes_what_it_can() -> Result<()> {
    let mut hand = Hand::new("/run/act-reclaim")?;
    let cgroup = Cgroup::create("work.slice/quiet")?;
    let handle = hand.handle(&cgroup)?;
    let amount = Bytes::mib(64);
    let job = Job::Reclaim { handle: Arc::clone(&handle), amount };
    ensure!(hand.workers.release.submit(job).is_ok(), "the queue is full");
    let done = hand.done()?;
    // Nothing is charged to it, so less than that was had.
    let asked = matches!(done, Done::Reclaimed { asked, outcome: Reclaimed::Less(_), .. } if asked == amount);
    ensure!(asked, "{done:?}");
    Ok(())
}

/// Page cache is taken back, and memory that is not used meanwhile is not swapped out for it, where the kernel knows the
/// key `swappiness`.
pub(crate) fn reclaim_takes_page_cache_alone() -> Result<()> {
    const CACHE: usize = 48;
    let _swap = Swap::start(64)?;
    // As owners set it for zram: the kernel would rather swap.
    let _rather = KernelSetting::begin("/proc/sys/vm/swappiness", "200")?;
    let mut hand = Hand::new("/run/act-cache")?;
    let cgroup = Cgroup::create("work.slice/cached")?;
    let knows_key = fs::write(cgroup.path().join("memory.reclaim"), "0 swappiness=0").is_ok();
    suite::figure("reclaim", &[("knows_swappiness", &knows_key)]);
    let device = Slow::create("cached", CACHE as u64, Duration::from_micros(10))?;
    let path = device.device.to_str().context("a device has a name")?;
    let mut idle = Hog::start("anon", cgroup.path(), 48, &["--hold", "120"])?;
    idle.wait_taken(48, PATIENCE)?;
    let churn = ["hog", "churn", "--mapped", "--mib", &CACHE.to_string(), "--hold", "120", "--path", path, "--cgroup"];
    let mut reader = guest().args(churn).arg(cgroup.path()).spawn()?;
    let most = |name: &str| Ok(named(&cgroup.read("memory.stat")?, name).unwrap_or(0) >= (CACHE as u64 - 4) << 20);
    wait_for("it has page cache", PATIENCE, || most("file"))?;
    // What is inactive is taken in any case. 7.2 leaves it so although it is read again and again.
    let is_active = wait_for("that is active", Duration::from_secs(10), || most("active_file")).is_ok();
    suite::figure("cache", &[("active", &is_active)]);
    // With its last user a device's page cache would go.
    let _open = File::open(path)?;
    reader.kill()?;
    reader.wait()?;
    let before = cgroup.current()?;
    let job = Job::Reclaim { handle: hand.handle(&cgroup)?, amount: Bytes::mib(40) };
    ensure!(hand.workers.release.submit(job).is_ok(), "the queue is full");
    let done = hand.done()?;
    let gained = before.saturating_sub(cgroup.current()?);
    ensure!(gained >= 32 << 20, "{gained} bytes were taken back of 40 MiB: {done:?}; {}", cgroup.read("memory.stat")?);
    let swapped: u64 = cgroup.read("memory.swap.current")?.trim().parse()?;
    suite::figure("reclaimed", &[("gained_bytes", &gained), ("swapped_bytes", &swapped)]);
    ensure!(!knows_key || swapped == 0, "{swapped} bytes were written to swap");
    Ok(())
}

pub(crate) fn next_one_undoes() -> Result<()> {
    let cgroup = Cgroup::create("work.slice/left")?;
    let mut hog = Hog::start("anon", cgroup.path(), 200, &["--rate", "4", "--hold", "60"])?;
    hog.wait_taken(4, PATIENCE)?;
    let victim = Cgroup::create("work.slice/dying")?;
    let device = Slow::one_by_one("undo")?;
    let mut waiting = hog_tests::waiting_for(&device, &victim, 5)?;
    {
        let mut hand = Hand::new("/run/act-undo")?;
        let (held, dying) = (hand.handle(&cgroup)?, hand.handle(&victim)?);
        hand.brake(&held)?;
        wait_for("all of it is frozen", PATIENCE, || Ok(held.frozen()?))?;
        hand.kill(&dying)?;
        wait_for("the kill is recorded", PATIENCE, || Ok(matches!(hand.take().2, Some(KillEvent::Signalled { .. }))))?;
        // Dies here: nothing is undone when it is dropped.
    }
    let (mut record, found) = Record::open(Path::new("/run/act-undo"), BootId::read()?)?;
    ensure!(matches!(found, Found::Continued), "{found:?}");
    let undone = undo(&mut record, &Root::open(Path::new(ROOT))?);
    ensure!(undone.thawed == [b"work.slice/left".to_vec()] && undone.failed.is_empty(), "{undone:?}");
    ensure!(undone.kills.len() == 1 && undone.kills[0].written, "{undone:?}");
    let before = hog.taken()?;
    wait_for("it goes on", PATIENCE, || Ok(hog.taken()? > before))?;
    waiting.wait()?;
    Ok(())
}
