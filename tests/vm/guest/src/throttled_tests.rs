//! A container that memory.high throttles, as Memory QoS of the kubelet sets it: with or without eBPF.

use crate::agent::{tail, values};
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::{named, wait_for};
use crate::pods_tests::{FACTS, Pod, write_facts};
use crate::scene::{MIB, PATIENCE, Scene};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use plimsoll_node::clock::monotonic;
use serde_json::{Value, json};
use std::time::Duration;

/// Far from what is available, in MiB.
const ROOM: u64 = 256;
/// The container's memory.high and memory.max, and what its process would take.
const HIGH: &str = "16M";
const MAX: &str = "512M";
const HOG: usize = 64;
/// From the first excess to the name.
const NAMED_WITHIN: Duration = Duration::from_secs(1);

/// It is named within a second with its stall, in the log and the metrics, and neither its sibling nor a container of
/// another pod is; nothing is evicted for it, and the name vanishes when its limit is raised and when it is removed.
pub(crate) fn named_with_its_stall() -> Result<()> {
    for source in ["auto", "psi"] {
        with_source(source).with_context(|| format!("with source {source}"))?;
    }
    Ok(())
}

fn with_source(source: &'static str) -> Result<()> {
    let memory = json!({"requests": {"memory": "16Mi"}, "limits": {"memory": MAX}});
    let (pod, other) = (Pod::create("burstable", 1, 0, &memory)?, Pod::create("burstable", 2, 0, &memory)?);
    let sibling = Cgroup::create(&format!("{}/cri-containerd-{:064x}.scope", pod.cgroup.name(), 99))?;
    for cgroup in [&sibling, &pod.container, &other.container] {
        cgroup.write("memory.max", MAX)?;
    }
    let mut idle = vec![other.holds(8)?];
    idle.push(guest().args(["idle", "--mib", "4", "--cgroup"]).arg(sibling.path()).spawn()?);
    write_facts(FACTS, &json!({"items": [pod.facts, other.facts]}).to_string())?;
    let scene = Scene::set_with(ROOM, |settings| {
        settings.pod_facts = Some(FACTS.into());
        settings.source = source;
    })?;
    wait_for("pods are known", PATIENCE, || Ok(scene.agent.text().contains("2 pods are known")))?;

    pod.container.write("memory.high", HIGH)?;
    let mut hog = Hog::start("anon", pod.container.path(), HOG, &["--hold", "300"])?;
    let exceeded = || Ok(named(&pod.container.read("memory.events.local")?, "high").is_some_and(|count| count > 0));
    wait_for("memory.high is exceeded", PATIENCE, exceeded)?;
    let begun = monotonic();
    let line = says(&scene, "begins", 1)?;
    let at = line["at_ns"].as_u64().context("it has a time")?.saturating_sub(begun.0);
    figure(
        "throttled",
        &[("named_after_ms", &(at / 1_000_000)), ("stall_ns", &line["stall_ns"]), ("within_ns", &line["within_ns"])],
    );
    ensure!(u128::from(at) <= NAMED_WITHIN.as_nanos(), "it was named after {at} ns");
    let name = pod.container.name();
    let is_named = line["cgroup"] == name && line["pod"] == "test/pod-1" && line["high_bytes"] == 16 * MIB;
    ensure!(is_named && line["stall_ns"].as_u64().is_some_and(|stall| stall > 0), "{line}");
    let (_, metrics) = scene.agent.get("/metrics")?;
    let ratio = series(&metrics, "plimsoll_container_stall_ratio", name).context("its stall has no series")?;
    ensure!((0.1..=1.0).contains(&ratio), "it stalls for {ratio} of the time: {metrics}");
    ensure!(series(&metrics, "plimsoll_container_throttled", name).is_some(), "{metrics}");
    for unnamed in [sibling.name(), other.container.name()] {
        ensure!(!metrics.contains(&format!("plimsoll_container_throttled{{cgroup=\"{unnamed}\"")), "{metrics}");
    }
    ensure!(pod.container.current()? < 2 * 16 * MIB, "it was not throttled: the test means nothing");

    pod.container.write("memory.high", "max")?;
    vanishes(&scene, name, 1)?;
    hog.wait_taken(HOG, PATIENCE)?;
    end(&mut hog, &scene)?;
    pod.container.write("memory.high", HIGH)?;
    let mut hog = Hog::start("anon", pod.container.path(), HOG, &["--hold", "300"])?;
    says(&scene, "begins", 2)?;
    end(&mut hog, &scene)?;
    pod.container.remove()?;
    vanishes(&scene, name, 2)?;

    let lines = scene.agent.lines();
    let others: Vec<_> = lines.iter().filter(|line| line["throttled"].is_string() && line["cgroup"] != name).collect();
    ensure!(others.is_empty(), "another one is named: {others:?}");
    let evicts = scene.agent.plans().iter().any(|plan| plan["outcome"] == "evict");
    ensure!(scene.agent.killed() == 0 && !evicts, "it acted: {}", tail(&scene.agent.text()));
    for child in &mut idle {
        ensure!(child.try_wait()?.is_none(), "a bystander died");
        child.kill()?;
        child.wait()?;
    }
    scene.end()?;
    [&pod.cgroup, &other.cgroup].into_iter().try_for_each(Cgroup::remove)
}

/// Ends a process, which the agent has to have left alone.
fn end(hog: &mut Hog, scene: &Scene) -> Result<()> {
    ensure!(hog.child.try_wait()?.is_none(), "it was killed: {}", tail(&scene.agent.text()));
    hog.child.kill()?;
    hog.child.wait()?;
    Ok(())
}

/// Waits until the log says for the `number`th time that a container begins or ends to be throttled, and gives that line.
fn says(scene: &Scene, what: &str, number: usize) -> Result<Value> {
    let mut found = None;
    wait_for(&format!("the log says that throttling {what}"), PATIENCE, || {
        found = scene.agent.lines().into_iter().filter(|line| line["throttled"] == what).nth(number - 1);
        Ok(found.is_some())
    })
    .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    found.context("it was just there")
}

/// Waits until the container is named no more.
fn vanishes(scene: &Scene, name: &str, number: usize) -> Result<()> {
    let line = says(scene, "ends", number)?;
    ensure!(line["cgroup"] == name, "{line}");
    let (_, metrics) = scene.agent.get("/metrics")?;
    for metric in ["plimsoll_container_throttled", "plimsoll_container_stall_ratio"] {
        ensure!(series(&metrics, metric, name).is_none(), "{metric} is left: {metrics}");
    }
    ensure!(metrics.contains("\nplimsoll_containers_throttled 0\n"), "{metrics}");
    Ok(())
}

/// The value of a metric of the container with this cgroup, and with its pod's name.
fn series(metrics: &str, metric: &str, name: &str) -> Option<f64> {
    let labels = format!("{metric}{{cgroup=\"{name}\",pod=\"test/pod-1\",container=\"");
    values(metrics, &labels).next()
}
