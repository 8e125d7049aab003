//! What root with CAP_BPF and CAP_SYS_ADMIN can do to the agent's programs and maps, and how long that stays so.

use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::{self, wait_for};
use crate::map::{Mapping, bpf, own};
use crate::scene::{PATIENCE, Scene};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use plimsoll_node::clock;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use std::fs;
use std::iter::successors;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Commands of bpf(2), `include/uapi/linux/bpf.h`.
const MAP_GET_NEXT_ID: u32 = 12;
const MAP_GET_FD_BY_ID: u32 = 14;
const LINK_GET_FD_BY_ID: u32 = 30;
const LINK_GET_NEXT_ID: u32 = 31;
const LINK_DETACH: u32 = 34;

/// How long it takes at most, in milliseconds, until a change of the table is found: it is compared every 1.25 s where samples
/// rest.
const EDITED: u64 = 1250;
/// The same of programs that do not run, while memory moves.
const SILENT: u64 = 2000;
/// The same while memory does not move, so that there is nothing for them to see.
const SILENT_AT_REST: u64 = 27_000;
/// From there into the log, on a slow machine beside another one on the same processors.
const TO_THE_LOG: u64 = 2000;

const FTRACE: &str = "/proc/sys/kernel/ftrace_enabled";

/// Everything of a kind, opened by its id.
fn opened(next: u32, open: u32) -> Result<Vec<OwnedFd>> {
    let ids = successors(Some(0), |id| bpf(next, *id).ok().map(|(_, next)| next)).skip(1);
    ids.map(|id| Ok(own(bpf(open, id)?.0)?)).collect()
}

/// The agent's table of thresholds: the only array in these machines that is mapped and longer than a line of the cache.
fn thresholds() -> Result<(Mapping, usize)> {
    for map in opened(MAP_GET_NEXT_ID, MAP_GET_FD_BY_ID)? {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))?;
        let value = |key: &str| machine::named(&info, key);
        let bytes = value("value_size:").unwrap_or(0);
        if value("map_type:") == Some(2) && info.contains("map_flags:\t0x400") && bytes > 64 {
            let bytes = usize::try_from(bytes)?;
            return Ok((Mapping::shared(&map, bytes)?, bytes / size_of::<u64>()));
        }
    }
    anyhow::bail!("the agent has no table of thresholds")
}

/// Waits for the report of a change, and gives how many milliseconds it took.
fn reported(scene: &Scene, what: &str) -> Result<u64> {
    let begun = clock::monotonic();
    let count = scene.agent.lines().iter().filter(|line| line["tampered"] == what).count();
    wait_for("the change is reported", PATIENCE, || {
        Ok(scene.agent.lines().iter().filter(|line| line["tampered"] == what).count() > count)
    })
    .with_context(|| format!("of {what}; the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    Ok(u64::try_from(clock::monotonic().since(begun).as_millis())?)
}

/// Keeps all programs from running until the agent has given them up for another source, and gives how many milliseconds it
/// took until that was reported.
fn silence(scene: &Scene) -> Result<u64> {
    let core = scene.agent.process("core")?;
    machine::set(FTRACE, "0")?;
    let silent = reported(scene, "programs");
    let taken_over = wait_ready_with(scene, "the next core takes another source", &["source psi", "ftrace_enabled"]);
    machine::set(FTRACE, "1")?;
    let silent = silent?;
    taken_over?;
    ensure!(scene.agent.process("core")? != core, "the core was not started again");
    Ok(silent)
}

/// Waits until the agent is ready and names all of these.
fn wait_ready_with(scene: &Scene, what: &str, named: &[&str]) -> Result<()> {
    wait_for(what, PATIENCE, || {
        let Ok((status, text)) = scene.agent.get("/readyz") else { return Ok(false) };
        Ok(status == 200 && named.iter().all(|name| text.contains(name)))
    })
    .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))
}

/// Programs cannot be detached, what is written into the table is found and written anew, and programs that do not run are
/// given up for another source: each within its bound.
pub(crate) fn detaches_and_edits() -> Result<()> {
    let mut scene = Scene::set(96)?;
    let links = opened(LINK_GET_NEXT_ID, LINK_GET_FD_BY_ID)?;
    ensure!(links.len() >= 8, "the agent has {} programs attached", links.len());
    for link in &links {
        let detached = bpf(LINK_DETACH, u32::try_from(link.as_raw_fd())?);
        let errno = detached.as_ref().err().and_then(Errno::from_io_error);
        ensure!(errno == Some(Errno::OPNOTSUPP), "detaching a program gave {detached:?}");
    }
    drop(links);

    let (table, words) = thresholds()?;
    // All thresholds disarmed, and far from what is read.
    (0..words).for_each(|word| table.publish(word, 0));
    let edited = reported(&scene, "thresholds")?;
    let node_level = table.word(2).context("a table")?;
    wait_for("the threshold is armed again", PATIENCE, || Ok(node_level.load(Ordering::Relaxed) != 0))?;

    let outside = Cgroup::create("other.slice/outside")?;
    let mut hog = Hog::start("anon", outside.path(), 64, &["--rate", "8"])?;
    hog.wait_taken(8, PATIENCE)?;
    let silent = silence(&scene)?;
    drop(hog);
    kill_process(scene.agent.process("core")?, Signal::KILL)?;
    wait_ready_with(&scene, "the next core attaches them again", &["source ebpf"])?;
    // What its start moved is over, and samples rest.
    std::thread::sleep(Duration::from_secs(4));
    let silent_at_rest = silence(&scene)?;
    figure("tampered", &[("table_ms", &edited), ("programs_ms", &silent), ("programs_at_rest_ms", &silent_at_rest)]);
    for (what, took, most) in [
        ("a change of the table", edited, EDITED),
        ("programs that do not run", silent, SILENT),
        ("programs that do not run, at rest,", silent_at_rest, SILENT_AT_REST),
    ] {
        ensure!(took <= most + TO_THE_LOG, "{what} was reported after {took} ms, and has to be after {most} ms");
    }
    scene.check()?;
    scene.agent.stop()
}
