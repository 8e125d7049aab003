//! What grows, and what must come of it.

use crate::agent::{Agent, Settings};
use crate::block::{Slow, Swap};
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::{self, wait_for};
use crate::record;
use crate::scene::{MIB, PATIENCE, Scene};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::path::Path;
use std::time::Duration;

/// How far below what is available the line is drawn, in MiB.
const ROOM: u64 = 96;
/// What a hog would take if nobody met it, in MiB: past the line, far from the end of memory.
const HOG: usize = 256;

fn met(kind: &str, more: &[&str]) -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start(kind, victim.path(), HOG, more)?;
    scene.expect_killed(&mut hog, &victim)?;
    figure("met", &[("kind", &kind), ("taken_mib", &(hog.taken()? / MIB)), ("room_mib", &ROOM)]);
    wait_for("memory is back above the line", PATIENCE, || {
        Ok(machine::meminfo("MemAvailable")? > scene.settings.line_bytes)
    })?;
    scene.end()
}

pub(crate) fn anon() -> Result<()> {
    met("anon", &[])
}

pub(crate) fn threads() -> Result<()> {
    met("anon", &["--threads", "4"])
}

pub(crate) fn slowly() -> Result<()> {
    met("anon", &["--rate", "40"])
}

pub(crate) fn thp() -> Result<()> {
    met("thp", &[])
}

pub(crate) fn populate() -> Result<()> {
    met("populate", &[])
}

pub(crate) fn mlock() -> Result<()> {
    met("mlock", &[])
}

pub(crate) fn tmpfs() -> Result<()> {
    met("tmpfs", &[])
}

pub(crate) fn fallocate() -> Result<()> {
    met("fallocate", &[])
}

pub(crate) fn pipes() -> Result<()> {
    met("pipes", &[])
}

pub(crate) fn hugetlb() -> Result<()> {
    let pages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";
    machine::set(pages, "128")?;
    let outcome = huge_pages();
    machine::set(pages, "0")?;
    outcome
}

/// Pages of hugetlb are charged to nobody's memory: nobody is known to have grown, so the crossing is told, whoever
/// grew is named if anybody can be, and no innocent pays.
fn huge_pages() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let cgroup = Cgroup::create("work.slice/hog")?;
    let before = scene.agent.lines().len();
    let mut hog = Hog::start("hugetlb", cgroup.path(), 192, &["--rate", "60", "--hold", "60"])?;
    hog.wait_taken(160, PATIENCE).or_else(|error| if hog.child.try_wait()?.is_some() { Ok(()) } else { Err(error) })?;
    wait_for("the agent says something of the crossing", PATIENCE, || {
        scene.check()?;
        Ok(scene.agent.lines().len() > before)
    })?;
    scene.settled()?;
    scene.end()
}

pub(crate) fn root_cgroup() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let hog = Hog::start("anon", Path::new(crate::cgroup::ROOT), 128, &["--rate", "80", "--hold", "60"])?;
    let pid = hog.child.id();
    wait_for("the agent names the process in the root cgroup", PATIENCE, || {
        scene.check()?;
        Ok(scene.agent.lines().iter().any(|line| names(line, pid)))
    })
    .with_context(|| format!("process {pid}; the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    ensure!(machine::alive(pid), "the process in the root cgroup was killed");
    scene.end()
}

/// Whether a value anywhere in a line of the log is this process.
fn names(value: &serde_json::Value, pid: u32) -> bool {
    match value {
        serde_json::Value::Number(number) => number.as_u64() == Some(u64::from(pid)),
        serde_json::Value::String(text) => {
            text.split(|c: char| !c.is_ascii_digit()).any(|word| word.parse() == Ok(pid))
        }
        serde_json::Value::Array(values) => values.iter().any(|value| names(value, pid)),
        serde_json::Value::Object(values) => values.values().any(|value| names(value, pid)),
        serde_json::Value::Null | serde_json::Value::Bool(_) => false,
    }
}

pub(crate) fn slab() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let cgroup = Cgroup::create("work.slice/names")?;
    let mut hog = Hog::start("dentries", cgroup.path(), 160, &["--hold", "60"])?;
    hog.wait_taken(160, Duration::from_mins(2))?;
    // Time for an answer, which must not be a kill: what grew can be taken back.
    std::thread::sleep(Duration::from_secs(3));
    scene.settled()?;
    ensure!(hog.child.try_wait()?.is_none(), "a process was killed for slab that can be taken back");
    scene.end()
}

pub(crate) fn nested() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let pod = Cgroup::create("work.slice/pod")?;
    let sibling = Cgroup::create("work.slice/pod/other")?;
    let inner = Cgroup::create("work.slice/pod/app/worker")?;
    let mut beside = guest().args(["idle", "--cgroup"]).arg(sibling.path()).spawn()?;
    let mut hog = Hog::start("anon", inner.path(), HOG, &[])?;
    scene.expect_killed(&mut hog, &pod)?;
    ensure!(beside.try_wait()?.is_some(), "a part of the victim survived it");
    scene.end()
}

pub(crate) fn under_slice_limit() -> Result<()> {
    let slice = Cgroup::create("work.slice")?;
    // Far below what the node has: only the slice's own line can be met.
    slice.write("memory.max", &(160 * MIB).to_string())?;
    let mut scene = Scene::set_with(ROOM, |settings| {
        settings.line_bytes = 32 * MIB;
        settings.slice_line_bytes = Some(64 * MIB);
    })?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "100"])?;
    scene.expect_killed(&mut hog, &victim)?;
    let events = slice.read("memory.events")?;
    ensure!(machine::named(&events, "oom_kill") == Some(0), "the kernel killed at the slice's limit first");
    scene.end()
}

pub(crate) fn with_swap() -> Result<()> {
    let swap = Swap::start(128)?;
    let outcome = met("anon", &[]);
    drop(swap);
    outcome
}

pub(crate) fn ten_small_ones() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let mut hogs = Vec::new();
    for number in 0..10 {
        let cgroup = Cgroup::create(&format!("work.slice/small-{number}"))?;
        hogs.push(Hog::start("anon", cgroup.path(), 24, &["--rate", "8", "--hold", "60"])?);
    }
    wait_for("one of ten is killed", PATIENCE, || {
        scene.check()?;
        Ok(hogs.iter_mut().any(|hog| hog.child.try_wait().is_ok_and(|ended| ended.is_some())))
    })
    .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    // All of them have grown up by then, and the answer must hold.
    std::thread::sleep(Duration::from_secs(6));
    scene.settled()?;
    let dead = hogs.iter_mut().filter_map(|hog| hog.child.try_wait().ok().flatten()).count();
    figure("ten-small", &[("killed", &dead)]);
    ensure!(dead < 10, "all ten were killed where some would have done");
    let available = machine::meminfo("MemAvailable")?;
    ensure!(available > scene.settings.line_bytes, "{available} bytes are available, below the line");
    scene.end()
}

pub(crate) fn disk_bound() -> Result<()> {
    let device = Slow::create("slow", 128, Duration::from_millis(2))?;
    let mut scene = Scene::set(ROOM)?;
    let cgroup = Cgroup::create("work.slice/disk")?;
    // Less than it reads round and round: each page is read again and again, with the node's memory free.
    cgroup.write("memory.max", "24M")?;
    let mut reader = guest()
        .args(["hog", "churn", "--mib", "48", "--hold", "60", "--cgroup"])
        .arg(cgroup.path())
        .arg("--path")
        .arg(&device.device)
        .spawn()?;
    let stalled = || -> Result<u64> {
        let text = cgroup.read("memory.pressure")?;
        let total = text.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="));
        Ok(total.context("memory.pressure has no total")?.parse()?)
    };
    wait_for("the reader stalls for 200 ms", PATIENCE, || Ok(stalled()? > 200_000))?;
    std::thread::sleep(Duration::from_secs(5));
    scene.settled()?;
    ensure!(reader.try_wait()?.is_none(), "a process that waits for its disk was killed with memory free");
    figure("disk-bound", &[("stalled_us", &stalled()?)]);
    reader.kill()?;
    reader.wait()?;
    scene.end()
}

pub(crate) fn page_cache() -> Result<()> {
    let mib = machine::meminfo("MemTotal")? / MIB;
    let device = Slow::create("cache", mib, Duration::from_micros(10))?;
    let mut scene = Scene::set(ROOM)?;
    let cgroup = Cgroup::create("work.slice/cache")?;
    let mut reader = guest()
        .args(["hog", "churn", "--mib", &mib.to_string(), "--hold", "120", "--cgroup"])
        .arg(cgroup.path())
        .arg("--path")
        .arg(&device.device)
        .spawn()?;
    wait_for("page cache has filled what was free", Duration::from_mins(2), || {
        scene.check()?;
        ensure!(reader.try_wait()?.is_none(), "a process was killed for page cache that can be dropped");
        Ok(machine::meminfo("MemFree")? < scene.settings.line_bytes / 4)
    })?;
    std::thread::sleep(Duration::from_secs(3));
    scene.settled()?;
    ensure!(reader.try_wait()?.is_none(), "a process was killed for page cache that can be dropped");
    reader.kill()?;
    reader.wait()?;
    scene.end()
}

pub(crate) fn second_agent() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let other = Settings { port: scene.settings.port + 1, ..scene.settings.clone() };
    let mut second = Agent::start(&other)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    // The kernel says who wrote cgroup.kill to nobody; the second's own words must be that it only watched.
    ensure!(second.text().contains("shadow"), "the second agent does not say that it shadows: {}", second.text());
    ensure!(second.running()?, "the second agent ended");
    // The first goes for good, all of it at once: the second acts from then on.
    Cgroup::create(&format!("agent.slice/plimsoll-{}", scene.settings.port))?.write("cgroup.kill", "1")?;
    scene.agent.wait_end(PATIENCE)?;
    std::mem::swap(&mut scene.agent, &mut second);
    let victim = Cgroup::create("work.slice/next")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "40"])?;
    scene.expect_killed(&mut hog, &victim).context("after the first agent's end")?;
    scene.end()
}

pub(crate) fn clock_stepped() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let now = clock_gettime(ClockId::Realtime);
    for (name, step) in [("ahead", 86_400), ("back", -172_800), ("again", 86_400)] {
        let stepped = Timespec { tv_sec: now.tv_sec + step, tv_nsec: now.tv_nsec };
        clock_settime(ClockId::Realtime, stepped).context("cannot step the clock")?;
        let victim = Cgroup::create(&format!("work.slice/{name}"))?;
        let mut hog = Hog::start("anon", victim.path(), HOG, &[])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("clock stepped {name}"))?;
    }
    clock_settime(ClockId::Realtime, now).context("cannot step the clock back")?;
    scene.end()
}

pub(crate) fn uninterruptible() -> Result<()> {
    let delay = Duration::from_secs(3);
    let device = Slow::create("stuck", 16, delay)?;
    let mut scene = Scene::set(ROOM)?;
    let cgroup = Cgroup::create("work.slice/stuck")?;
    // The largest of all, so the first to be chosen, with a task that cannot die yet.
    let mut waiting = guest()
        .args(["hog", "stuck", "--hold", "60", "--cgroup"])
        .arg(cgroup.path())
        .arg("--path")
        .arg(&device.device)
        .spawn()?;
    wait_for("a task waits uninterruptibly", PATIENCE, || Ok(machine::process_state(waiting.id()) == Some('D')))?;
    let mut large = Hog::start("anon", cgroup.path(), 64, &[])?;
    large.wait_taken(64, PATIENCE)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "60"])?;
    wait_for("the hog is killed although another victim cannot die", PATIENCE, || {
        scene.check()?;
        Ok(hog.child.try_wait()?.is_some())
    })?;
    scene.settled()?;
    drop((large, hog));
    waiting.kill()?;
    waiting.wait()?;
    scene.end()
}

pub(crate) fn fork_bomb() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let victim = Cgroup::create("work.slice/bomb")?;
    victim.write("pids.max", "96")?;
    let mut bomb = guest().args(["hog", "fork", "--mib", "4", "--cgroup"]).arg(victim.path()).spawn()?;
    wait_for("the bomb is killed", PATIENCE, || {
        scene.check()?;
        Ok(bomb.try_wait()?.is_some())
    })
    .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    wait_for("all of the bomb is gone", PATIENCE, || Ok(!victim.populated()?))?;
    scene.settled()?;
    scene.end()
}

pub(crate) fn cgroup_gone() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    for round in 0..6 {
        let cgroup = Cgroup::create(&format!("work.slice/gone-{round}"))?;
        let mut hog = Hog::start("anon", cgroup.path(), HOG, &[])?;
        // Around the moment at which it crosses, it and its cgroup go by themselves.
        let past = usize::try_from(ROOM)? - 8 + round * 4;
        let seen = wait_for("the hog comes close to the line", PATIENCE, || {
            Ok(hog.taken()? >= past as u64 * MIB || hog.child.try_wait()?.is_some())
        });
        seen?;
        hog.child.kill()?;
        hog.child.wait()?;
        cgroup.remove()?;
        scene.settled()?;
    }
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()
}

pub(crate) fn records_lost() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    let core = scene.agent.part("core")?;
    let core = Pid::from_raw(i32::try_from(core)?).context("no process has the number zero")?;
    // While the core cannot read, cgroups come and go until every ring is full.
    kill_process(core, Signal::STOP)?;
    let busy = (0..4000).try_for_each(|number| -> Result<()> {
        let path = Path::new(crate::cgroup::ROOT).join(format!("work.slice/many-{number}"));
        std::fs::create_dir(&path)?;
        std::fs::remove_dir(&path)?;
        Ok(())
    });
    kill_process(core, Signal::CONT)?;
    busy?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    // The core looks at the kernel's own counters every few seconds.
    wait_for("records that were made while nobody read are counted as lost", PATIENCE, || {
        Ok(counted(&scene, "plimsoll_lost_records")? > 0.0)
    })?;
    scene.end()
}

pub(crate) fn core_dies() -> Result<()> {
    let mut scene = Scene::set(ROOM)?;
    // Whoever is started again goes by what was read at the start, not by a mistake that somebody makes meanwhile.
    std::fs::write(scene.agent.configuration(), "evictionHard: [")?;
    for part in ["reporter", "core"] {
        let pid = Pid::from_raw(i32::try_from(scene.agent.part(part)?)?).context("no process has the number zero")?;
        kill_process(pid, Signal::KILL)?;
        // Ready again, and by another process than before.
        wait_for(&format!("the {part} is started again"), PATIENCE, || {
            Ok(scene.agent.part(part).is_ok_and(|next| i32::try_from(next) != Ok(pid.as_raw_pid())))
        })?;
        scene.agent.wait_ready(PATIENCE)?;
        let victim = Cgroup::create(&format!("work.slice/after-{part}"))?;
        let mut hog = Hog::start("anon", victim.path(), HOG, &[])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("after the {part}'s death"))?;
    }
    scene.end()
}

/// The sum of the metrics whose lines begin so.
fn counted(scene: &Scene, prefix: &str) -> Result<f64> {
    let (_, metrics) = scene.agent.get("/metrics")?;
    let values = metrics.lines().filter(|line| line.starts_with(prefix));
    Ok(values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}

pub(crate) fn kernel_brake() -> Result<()> {
    let mut scene = Scene::set_with(ROOM, |settings| settings.kernel_brake = true)?;
    for (name, threads) in [("one", "1"), ("two", "2")] {
        let victim = Cgroup::create(&format!("work.slice/{name}"))?;
        let mut hog = Hog::start("anon", victim.path(), HOG, &["--threads", threads])?;
        scene.expect_killed(&mut hog, &victim)?;
        let taken = record::read(&hog.record)?.last().map_or(0, |entry| entry.bytes);
        figure("kernel-brake", &[("threads", &threads), ("taken_mib", &(taken / MIB)), ("room_mib", &ROOM)]);
    }
    wait_for("brakes of the kernel are counted", PATIENCE, || {
        Ok(counted(&scene, "plimsoll_kernel_brakes_total{outcome=\"applied\"}")? > 0.0)
    })
    .context("the kernel stopped nobody")?;
    scene.end()
}
