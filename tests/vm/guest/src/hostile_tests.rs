//! What code that runs in the reporter could do to the other processes. Here root with every capability does it, who may
//! do more than the reporter.

use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::wait_for;
use crate::scene::{PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

/// Memory of the queues between the core and the reporter, opened to read and write; by name.
fn queues(supervisor: u32) -> Result<Vec<(String, File)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{supervisor}/fd"))? {
        let path = entry?.path();
        let target = fs::read_link(&path)?.to_string_lossy().into_owned();
        let name = target.strip_prefix("/memfd:plimsoll-").and_then(|name| name.split(' ').next());
        if let Some(name @ ("queue" | "place")) = name {
            let file = File::options().read(true).write(true).open(&path);
            found.push((name.to_owned(), file.with_context(|| format!("cannot open the memory of a {name}"))?));
        }
    }
    Ok(found)
}

/// Fills the memory with a word, cuts holes into it and cuts it off: as far as the kernel allows, which is the answer.
fn spoil(file: &File, word: u64) -> Result<bool> {
    let length = file.metadata()?.len();
    let bytes = word.to_ne_bytes().repeat(usize::try_from(length / 8)?);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = word == 0 && fallocate(file, hole, 0, length).is_ok();
    let wrote = file.write_all_at(&bytes, 0).is_ok();
    let cut = file.set_len(0).is_ok();
    Ok(punched || wrote || cut)
}

/// Whatever is done to the queues, the core that runs acts and is heard of, and so is each one after it.
pub(crate) fn reporter_spoils_the_queues() -> Result<()> {
    let mut scene = Scene::set(96)?;
    let mut changed = Vec::new();
    for (round, word) in [0, u64::MAX].into_iter().enumerate() {
        let found = queues(scene.agent.pid())?;
        ensure!(found.iter().filter(|(name, _)| name == "queue").count() == 2, "these are the queues: {found:?}");
        for (name, file) in &found {
            if spoil(file, word)? {
                changed.push(name.clone());
            }
        }
        let victim = Cgroup::create(&format!("work.slice/spoilt-{round}"))?;
        let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("by the core whose queues hold {word:#x}"))?;
        let core = scene.agent.process("core")?;
        kill_process(core, Signal::KILL)?;
        wait_for("the core is started again", PATIENCE, || {
            Ok(scene.agent.process("core").is_ok_and(|new| new != core))
        })?;
        scene.agent.wait_ready(PATIENCE).with_context(|| format!("after the queues held {word:#x}"))?;
        let victim = Cgroup::create(&format!("work.slice/after-{round}"))?;
        let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("by the core after {word:#x}"))?;
    }
    ensure!(!changed.iter().any(|name| name == "queue"), "a queue's frames can be changed: {changed:?}");
    scene.end()
}
