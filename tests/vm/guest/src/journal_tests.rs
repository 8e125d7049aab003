//! The journal on a disk that has no room, and on one that can only be read: that costs the journal alone, is reported, and
//! is over as soon as the disk can be written to. And a state directory that can only be read: state is kept in memory.

use crate::agent::{PROGRAM, tail};
use crate::cgroup::Cgroup;
use crate::eviction_tests::{JOURNAL, kept};
use crate::hog_tests::Hog;
use crate::machine::wait_for;
use crate::pods_tests::{FACTS, HOG, Pod, ROOM, expect_degraded, memory_is_back, write_facts};
use crate::scene::{PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use plimsoll_state::durable::Progress;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::ffi::CStr;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// A disk with room for the directory alone, and one with room for both files.
const FULL: &CStr = c"size=4k,nr_inodes=1,mode=0700";
const ROOMY: &CStr = c"size=16m,nr_inodes=16";
/// A state directory on a disk.
const STATE: &str = "/state-on-disk";
/// Where state is kept instead.
const STATE_IN_MEMORY: &str = "/run/plimsoll";
/// What configures it.
const STATE_VARIABLE: &str = "PLIMSOLL_STATE_DIRECTORY";
/// What could not be written is tried again once a minute at least, and named again as often.
const TRIED_AGAIN: Duration = Duration::from_secs(150);

/// On a full disk, and on one that can only be read, a pod is evicted as ever, and its eviction is in the journal once the
/// disk can be written to.
pub(crate) fn without_its_disk() -> Result<()> {
    let [first, second] = [6, 7].map(|number| Pod::create("burstable", number, 0, &json!({})));
    let (first, second) = (first?, second?);
    if fs::exists(JOURNAL)? {
        fs::remove_dir_all(JOURNAL)?;
    }
    fs::create_dir_all(JOURNAL)?;
    mount("none", JOURNAL, "tmpfs", MountFlags::empty(), FULL)?;
    write_facts(FACTS, &json!({"items": [first.facts, second.facts]}).to_string())?;
    let mut scene = Scene::set_with(ROOM, |settings| settings.pod_facts = Some(FACTS.into()))?;
    expect_degraded(&scene, "journal")?;
    evicted(&mut scene, &first)?;
    mount_remount(JOURNAL, MountFlags::empty(), ROOMY)?;
    in_journal(&scene, &first)?;
    mount_remount(JOURNAL, MountFlags::BIND | MountFlags::RDONLY, c"")?;
    evicted(&mut scene, &second)?;
    expect_degraded(&scene, "journal")?;
    mount_remount(JOURNAL, MountFlags::BIND, c"")?;
    in_journal(&scene, &second)?;
    // Each failure is in the log once, with the file and the error.
    let log = scene.agent.text();
    for error in ["No space left on device", "Read-only file system"] {
        let lines =
            log.lines().filter(|line| line.contains("the journal is not kept: ") && line.contains(error)).count();
        ensure!(lines == 1, "{error:?} is in the log {lines} times: {}", tail(&log));
    }
    scene.end()?;
    unmount(JOURNAL, UnmountFlags::empty())?;
    Ok(fs::remove_file(FACTS)?)
}

/// A pod that grows is evicted.
fn evicted(scene: &mut Scene, pod: &Pod) -> Result<()> {
    let mut hog = Hog::start("anon", pod.container.path(), HOG, &["--hold", "60"])?;
    scene.expect_killed(&mut hog, &pod.cgroup)?;
    memory_is_back(scene)
}

/// The eviction comes into the journal as one that has ended, and all that is to be kept is.
fn in_journal(scene: &Scene, pod: &Pod) -> Result<()> {
    let uid = pod.facts["metadata"]["uid"].as_str().context("a pod has a UID")?;
    let has_ended = || Ok(kept(uid)?.iter().any(|eviction| eviction.progress == Progress::Verified));
    wait_for("the journal has the eviction", TRIED_AGAIN, has_ended).with_context(|| tail(&scene.agent.text()))?;
    let works = "plimsoll_trouble{what=\"journal\"} 0";
    scene.agent.await_metric(works, PATIENCE)
}

/// With a state directory that can only be read, state is kept in memory, which the log says once, and so do readiness, a
/// metric and `check`. What grows is frozen and evicted as ever, also by the next core, which finds what the one before it
/// has written; nothing stays frozen, and `undo` by the same configuration succeeds.
pub(crate) fn state_directory_can_only_be_read() -> Result<()> {
    fs::create_dir_all(STATE)?;
    mount("none", STATE, "tmpfs", MountFlags::RDONLY, c"")?;
    let done = with_state_in_memory();
    let listed = fs::read_dir(STATE)?.count();
    unmount(STATE, UnmountFlags::empty())?;
    done?;
    ensure!(listed == 0, "{listed} files were made in a directory that can only be read");
    Ok(())
}

fn with_state_in_memory() -> Result<()> {
    let mut scene = Scene::set_with(ROOM, |settings| settings.environment.push((STATE_VARIABLE, STATE.to_owned())))?;
    expect_degraded(&scene, "start")?;
    let said = "machine.stateDirectory, /state-on-disk, can only be read";
    let (_, readiness) = scene.agent.get("/readyz")?;
    ensure!(readiness.contains(said), "readiness does not say so: {readiness}");
    for core in ["first", "second"] {
        let log = scene.agent.text();
        let lines = log.lines().filter(|line| line.contains(said)).count();
        ensure!(lines == 1, "of the {core} core the log says so {lines} times: {}", tail(&log));
        let victim = Cgroup::create("work.slice/hog")?;
        let mut hog = Hog::start("anon", victim.path(), HOG, &["--hold", "60"])?;
        scene.expect_killed(&mut hog, &victim)?;
        memory_is_back(&scene)?;
        ensure!(fs::exists(format!("{STATE_IN_MEMORY}/record"))?, "there is no run record in memory");
        if core == "first" {
            scene.agent.empty_log()?;
            let process = scene.agent.process("core")?;
            kill_process(process, Signal::KILL)?;
            let is_next = |next: Pid| next != process;
            wait_for("the core is started again", PATIENCE, || Ok(scene.agent.process("core").is_ok_and(is_next)))?;
            scene.agent.wait_ready(PATIENCE)?;
            expect_degraded(&scene, "start")?;
        }
    }
    let checked = Command::new(PROGRAM).args(["check", "--output", "json"]).env(STATE_VARIABLE, STATE).output()?;
    let checked: Value = serde_json::from_slice(&checked.stdout).context("check prints no JSON")?;
    let row = checked["rows"].as_array().into_iter().flatten().find(|row| row["name"] == "state directory");
    let found = row.filter(|row| row["state"] == "degraded").and_then(|row| row["found"].as_str());
    ensure!(found.is_some_and(|found| found.contains(said)), "check does not say so: {row:?}");
    scene.end()?;
    let undone = Command::new(PROGRAM).args(["undo", "--state-directory", STATE]).output()?;
    let undone_says = String::from_utf8_lossy(&undone.stderr);
    ensure!(undone.status.success(), "undo ends with {}: {undone_says}", undone.status);
    Ok(())
}
