//! The journal on a disk that has no room, and on one that can only be read: that costs the journal alone, is reported, and
//! is over as soon as the disk can be written to.

use crate::agent::tail;
use crate::eviction_tests::{JOURNAL, kept};
use crate::hog_tests::Hog;
use crate::machine::wait_for;
use crate::pods_tests::{FACTS, HOG, Pod, ROOM, expect_degraded, memory_is_back, write_facts};
use crate::scene::{PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use plimsoll_state::durable::Progress;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use serde_json::json;
use std::ffi::CStr;
use std::fs;
use std::time::Duration;

/// A disk with room for the directory alone, and one with room for both files.
const FULL: &CStr = c"size=4k,nr_inodes=1,mode=0700";
const ROOMY: &CStr = c"size=16m,nr_inodes=16";
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
    wait_for(works, PATIENCE, || Ok(scene.agent.get("/metrics")?.1.lines().any(|line| line == works)))
}
