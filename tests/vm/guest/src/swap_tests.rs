//! Swap as the agent and `plimsoll pods` report it: of the machine, and of a container that has as much of it as a kubelet
//! with `LimitedSwap` gives it.

use crate::agent::{PROGRAM, values};
use crate::block::Swap;
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::wait_for;
use crate::pods_tests::{FACTS, Pod, write_facts};
use crate::scene::{MIB, PATIENCE, Scene};
use crate::systemd::run;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::process::Command;

/// Far from what is available, and all swap, in MiB.
const ROOM: u64 = 256;
const SWAP: u64 = 64;
/// The container's memory.high and memory.swap.max, and what its process would take, in MiB.
const HIGH: u64 = 16;
const LIMIT: u64 = 24;
const HOG: usize = 64;

/// A container above its memory.high is swapped out as far as its limit allows, and is throttled then: metrics have what is in
/// swap of it and of how much, and all swap with what is free; `plimsoll pods` has the same of the pod.
pub(crate) fn is_observed() -> Result<()> {
    let swap = Swap::start(SWAP)?;
    let memory = json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "512M"}});
    let pod = Pod::create("burstable", 1, 0, &memory)?;
    for (file, mib) in [("memory.high", HIGH), ("memory.swap.max", LIMIT), ("memory.max", 512)] {
        pod.container.write(file, &(mib * MIB).to_string())?;
    }
    write_facts(FACTS, &json!({"items": [pod.facts]}).to_string())?;
    let scene = Scene::set_with(ROOM, |settings| settings.pod_facts = Some(FACTS.into()))?;
    let total = value(&scene, "plimsoll_swap_bytes{what=\"total\"}")?;
    ensure!(total > 0 && total <= SWAP * MIB, "there are {total} bytes of swap, of a device of {SWAP} MiB");

    let mut hog = Hog::start("anon", pod.container.path(), HOG, &["--hold", "300"])?;
    let labels = format!("{{cgroup=\"{}\",pod=\"test/pod-1\",container=\"\"}}", pod.container.name());
    let (mut used, of_container) = (0, format!("plimsoll_container_swap_bytes{labels}"));
    wait_for("the container's swap has a series", PATIENCE, || {
        used = value(&scene, &of_container).unwrap_or(0);
        Ok(used >= LIMIT / 2 * MIB)
    })
    .with_context(|| format!("{used} bytes; {:?}", scene.agent.get("/metrics")))?;
    ensure!(used <= LIMIT * MIB, "{used} bytes are in swap, beyond the limit");
    ensure!(value(&scene, &format!("plimsoll_container_swap_limit_bytes{labels}"))? == LIMIT * MIB, "its limit");
    let free = value(&scene, "plimsoll_swap_bytes{what=\"free\"}")?;
    ensure!(total - free >= LIMIT / 2 * MIB, "{free} of {total} are free while the container has {used}");

    let said = run(Command::new(PROGRAM).args(["pods", "--pods", FACTS, "--output", "json"]))?;
    let answer: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let [of_pod, of_container] = [&answer["pods"][0], &answer["pods"][0]["containers"][0]];
    for row in [of_pod, of_container] {
        let used = row["swapped_bytes"].as_u64().unwrap_or(0);
        ensure!((LIMIT / 2 * MIB..=LIMIT * MIB).contains(&used), "{answer}");
        ensure!(row["swap_limit_bytes"] == LIMIT * MIB, "{answer}");
    }
    hog.child.kill()?;
    hog.child.wait()?;
    ensure!(scene.agent.killed() == 0, "it acted");
    scene.end()?;
    [&pod.cgroup].into_iter().try_for_each(Cgroup::remove)?;
    drop(swap);
    Ok(())
}

/// The value of a series.
fn value(scene: &Scene, series: &str) -> Result<u64> {
    let (_, text) = scene.agent.get("/metrics")?;
    values(&text, series).next().with_context(|| format!("no {series}"))
}
