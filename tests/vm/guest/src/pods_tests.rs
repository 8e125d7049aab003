//! Pods, by what the agent reads of them: cgroups as the kubelet and containerd make them with systemd's driver, without
//! either.

use crate::agent::{Settings, tail};
use crate::cgroup::Cgroup;
use crate::eviction_tests::JOURNAL;
use crate::hog_tests::{Hog, guest};
use crate::machine::{named, wait_for};
use crate::scenarios_of_death::{KILL_POINT, TRIES, grown};
use crate::scene::{MIB, PATIENCE, Scene, was_killed};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

/// Where it reads that.
pub(crate) const FACTS: &str = "/run/pods.json";

/// How far below what is available the threshold is, in MiB, and what a hog takes that crosses it.
pub(crate) const ROOM: u64 = 96;
pub(crate) const HOG: usize = 256;

/// A pod with one container.
pub(crate) struct Pod {
    /// Its own.
    pub(crate) cgroup: Cgroup,
    /// In that.
    pub(crate) container: Cgroup,
    /// As the API has them.
    pub(crate) facts: Value,
}

impl Pod {
    /// `class` is empty for guaranteed; `number` makes the UID.
    pub(crate) fn create(class: &str, number: u16, priority: i32, resources: &Value) -> Result<Self> {
        Self::create_by("cri-containerd", class, number, priority, resources)
    }

    /// The same by a runtime that names cgroups of containers like this.
    fn create_by(prefix: &str, class: &str, number: u16, priority: i32, resources: &Value) -> Result<Self> {
        let uid = format!("0a1b2c3d-4e5f-6071-8293-a4b5c6d7{number:04x}");
        let (dash, folder) = if class.is_empty() { ("", "") } else { ("-", "/") };
        let slice = if class.is_empty() { String::new() } else { format!("kubepods-{class}.slice") };
        let written = uid.replace('-', "_");
        let name = format!("kubepods.slice/{slice}{folder}kubepods{dash}{class}-pod{written}.slice");
        let container = Cgroup::create(&format!("{name}/{prefix}-{number:064x}.scope"))?;
        let facts = json!({
            "metadata": {"name": format!("pod-{number}"), "namespace": "test", "uid": uid},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
        });
        Ok(Self { cgroup: Cgroup::existing(&name)?, container, facts })
    }

    /// Has a process in it that holds so much.
    pub(crate) fn holds(&self, mib: u64) -> Result<Child> {
        holds(&self.container, mib)
    }

    /// Another cgroup in it.
    pub(crate) fn beside(&self, prefix: &str, number: u16) -> Result<Cgroup> {
        Cgroup::create(&format!("{}/{prefix}-{number:064x}.scope", self.cgroup.name()))
    }
}

/// A process has so long to be there, which is no part of any test: on a slow machine 40 s were not enough.
const IN_PLACE: Duration = Duration::from_mins(2);

/// Has a process in this cgroup that holds so much.
fn holds(cgroup: &Cgroup, mib: u64) -> Result<Child> {
    let mut idle = guest();
    let child = idle.args(["idle", "--mib", &mib.to_string(), "--cgroup"]).arg(cgroup.path()).spawn()?;
    wait_for("a pod's process is in place", IN_PLACE, || Ok(cgroup.current()? >= mib * MIB))?;
    Ok(child)
}

/// Replaces the file by a rename, so that it is never read in part.
pub(crate) fn write_facts(path: &str, text: &str) -> Result<()> {
    let next = format!("{path}.new");
    fs::write(&next, text)?;
    Ok(fs::rename(&next, path)?)
}

pub(crate) fn memory_is_back(scene: &Scene) -> Result<()> {
    wait_for("memory is back", PATIENCE, || {
        Ok(crate::machine::meminfo("MemAvailable")? > scene.settings.threshold_bytes + ROOM / 4 * MIB)
    })
}

/// That something does not work is in the metrics and in the answer to whether the agent is ready, which it is.
pub(crate) fn expect_degraded(scene: &Scene, what: &str) -> Result<()> {
    let metric = format!("plimsoll_trouble{{what=\"{what}\"}} 1");
    scene.agent.await_metric(&metric, PATIENCE)?;
    let (status, said) = scene.agent.get("/readyz")?;
    ensure!(status == 200 && said.contains(&format!("\ntrouble with {what}: ")), "{status}: {said}");
    Ok(())
}

/// A pod that crosses the threshold by itself is decided about, and lives.
pub(crate) fn expect_spared(scene: &mut Scene, pod: &Pod) -> Result<()> {
    scene.agent.empty_log()?;
    let mut hog = Hog::start("anon", pod.container.path(), HOG, &["--hold", "60"])?;
    let mut ended = None;
    wait_for("a pod that is protected has crossed the threshold, and nothing is evicted", PATIENCE, || {
        ended = hog.child.try_wait()?;
        let has_grown = pod.cgroup.current()? >= HOG as u64 * MIB;
        let is_spared = || scene.agent.plans().iter().any(|plan| plan["outcome"] == "unattributed");
        Ok(ended.is_some() || has_grown && is_spared())
    })
    .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    ensure!(ended.is_none(), "it died: {ended:?}: {}", scene.agent.text());
    scene.check()?;
    hog.child.kill()?;
    hog.child.wait()?;
    memory_is_back(scene)
}

/// The pod that grew over its request is evicted, whole, and none that is within its request or did not grow, nor one that
/// is protected or unknown, also where that is what grew. The same where the facts cannot be read any more, and where the
/// process that reads them is killed, after which what is new in them counts, or hangs.
pub(crate) fn ranked_by_facts() -> Result<()> {
    let memory = |request: &str, limit: &str| json!({"requests": {"memory": request}, "limits": {"memory": limit}});
    let guaranteed = json!({"requests": {"memory": "64Mi", "cpu": 1}, "limits": {"memory": "64Mi", "cpu": 1}});
    let high = Pod::create("", 1, 1000, &guaranteed)?;
    let over = Pod::create("burstable", 2, 0, &memory("16Mi", "1Gi"))?;
    let bystander = Pod::create("besteffort", 3, 0, &json!({}))?;
    let critical = Pod::create("burstable", 4, 2_000_001_000, &memory("16Mi", "1Gi"))?;
    let unknown = Pod::create("besteffort", 5, 0, &json!({}))?;
    let mut others = Vec::new();
    for (name, pod, mib) in
        [("high", &high, 8), ("bystander", &bystander, 24), ("critical", &critical, 64), ("unknown", &unknown, 48)]
    {
        others.push((name, pod.holds(mib)?));
    }
    let known: Vec<&Value> = [&high, &over, &bystander, &critical].map(|pod| &pod.facts).into();
    write_facts(FACTS, &json!({"items": known}).to_string())?;
    let mut scene = Scene::set_with(ROOM, |settings| settings.pod_facts = Some(FACTS.into()))?;
    let says = |scene: &Scene, text: &str| {
        wait_for(text, PATIENCE, || Ok(scene.agent.text().contains(text)))
            .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))
    };
    says(&scene, "4 pods are known")?;
    expect_degraded(&scene, "unknown")?;
    let mut little = Hog::start("anon", high.container.path(), 16, &["--rate", "8", "--hold", "300"])?;
    let known: Vec<&Value> = [&high, &over, &bystander, &critical, &unknown].map(|pod| &pod.facts).into();
    let all = json!({"items": known}).to_string();
    for trouble in ["none", "protected", "broken", "killed", "stopped"] {
        match trouble {
            "broken" => {
                write_facts(FACTS, "{\"items\": [{")?;
                says(&scene, "is not renewed")?;
                expect_degraded(&scene, "podFacts")?;
            }
            // All that is known is in place, as the first eviction showed.
            "protected" => {
                expect_spared(&mut scene, &critical).context("the critical pod")?;
                expect_spared(&mut scene, &unknown).context("the pod that the file does not name")?;
            }
            // The next one reads that the unknown pod is one that may be evicted.
            "killed" => {
                kill_process(scene.agent.process("services")?, Signal::KILL)?;
                write_facts(FACTS, &all)?;
                says(&scene, "5 pods are known")?;
                scene.agent.empty_log()?;
                let (_, mut idle) =
                    others.remove(others.iter().position(|(name, _)| *name == "unknown").context("it is there")?);
                let mut hog = Hog::start("anon", unknown.container.path(), HOG, &["--hold", "60"])?;
                scene.expect_killed(&mut hog, &unknown.cgroup).context("the pod that has come to be known")?;
                idle.wait()?;
                memory_is_back(&scene)?;
            }
            "stopped" => {
                wait_for("services runs again", PATIENCE, || Ok(scene.agent.process("services").is_ok()))?;
                kill_process(scene.agent.process("services")?, Signal::STOP)?;
            }
            _ => {}
        }
        scene.agent.empty_log()?;
        let mut hog = Hog::start("anon", over.container.path(), HOG, &["--hold", "60"])?;
        if trouble == "stopped" {
            // What stays stopped is an error otherwise.
            let mut ended = None;
            wait_for("the hog is killed", PATIENCE, || {
                scene.check()?;
                ended = hog.child.try_wait()?;
                Ok(ended.is_some())
            })?;
            ensure!(ended.is_some_and(was_killed), "the hog ended by itself: {ended:?}");
            kill_process(scene.agent.process("services")?, Signal::CONT)?;
            scene.expect_reported(&over.cgroup)?;
            scene.settled()?;
        } else {
            scene.expect_killed(&mut hog, &over.cgroup).with_context(|| format!("with services {trouble}"))?;
            says(&scene, "(pod test/pod-2)").with_context(|| format!("with services {trouble}"))?;
        }
        for (name, child) in &mut others {
            let ended = child.try_wait()?;
            ensure!(ended.is_none(), "{name} died: {ended:?}, with services {trouble}: {}", scene.agent.text());
        }
        ensure!(little.child.try_wait()?.is_none(), "the pod of high priority died, with services {trouble}");
        memory_is_back(&scene)?;
    }
    let services = scene.agent.part("services")?;
    let status = fs::read_to_string(format!("/proc/{services}/status"))?;
    for expected in ["Uid:\t65525\t65525\t65525\t65525", "CapPrm:\t0000000000000000", "Seccomp:\t2", "NoNewPrivs:\t1"] {
        ensure!(status.contains(expected), "services has no {expected:?}: {status}");
    }
    let score = fs::read_to_string(format!("/proc/{services}/oom_score_adj"))?;
    ensure!(score.trim() == "0", "services is killed as late as the core, or before what is larger: {score}");
    ensure!(Path::new(FACTS).exists(), "it was only read");
    for (_, child) in &mut others {
        child.kill()?;
        child.wait()?;
    }
    scene.end()
}

/// What was known of pods decides after a restart without its source, of which not even the directory is there: the pod that
/// grew over its request is evicted, and the one that was said to be critical is not. The source is read once it is there.
pub(crate) fn known_without_their_source() -> Result<()> {
    let over = Pod::create("burstable", 2, 0, &json!({"requests": {"memory": "16Mi"}}))?;
    let critical = Pod::create("burstable", 4, 2_000_001_000, &json!({"requests": {"memory": "16Mi"}}))?;
    let mut held = critical.holds(64)?;
    let (directory, file) = ("/run/facts", "/run/facts/pods.json");
    let with_facts = |settings: &mut Settings| settings.pod_facts = Some(file.into());
    let write_all = || -> Result<()> {
        fs::create_dir(directory)?;
        write_facts(file, &json!({"items": [over.facts, critical.facts]}).to_string())
    };
    write_all()?;
    let first = Scene::set_with(ROOM, with_facts)?;
    let is_kept = || {
        let files = fs::read_dir(JOURNAL).into_iter().flatten().flatten();
        let texts = files.map(|file| String::from_utf8_lossy(&fs::read(file.path()).unwrap_or_default()).into_owned());
        Ok(texts.into_iter().any(|text| text.matches("memory_request").count() == 2))
    };
    let found = || {
        let files = fs::read_dir(JOURNAL).into_iter().flatten().flatten();
        let files = files.map(|file| (file.file_name(), fs::read(file.path()).unwrap_or_default().len()));
        format!("in {JOURNAL} there is {:?}; the log: {}", files.collect::<Vec<_>>(), first.agent.text())
    };
    wait_for("both pods are kept", PATIENCE, is_kept).with_context(found)?;
    let (owner, mode) = fs::metadata(JOURNAL).map(|found| (found.uid(), found.mode() & 0o777))?;
    ensure!((owner, mode) == (65525, 0o700), "the journal belongs to {owner} with mode {mode:o}");
    first.end()?;
    fs::remove_dir_all(directory)?;
    let mut scene = Scene::set_with(ROOM, with_facts)?;
    wait_for("they are known", PATIENCE, || Ok(scene.agent.text().contains("2 pods are known as they were kept")))
        .with_context(|| scene.agent.text())?;
    expect_degraded(&scene, "podFacts")?;
    let mut hog = Hog::start("anon", over.container.path(), HOG, &["--hold", "60"])?;
    scene.expect_killed(&mut hog, &over.cgroup)?;
    let ended = held.try_wait()?;
    ensure!(ended.is_none(), "the critical pod died: {ended:?}: {}", scene.agent.text());
    held.kill()?;
    held.wait()?;
    memory_is_back(&scene)?;
    write_all()?;
    wait_for("the file is read", PATIENCE, || Ok(scene.agent.text().contains("2 pods are known from")))
        .with_context(|| scene.agent.text())?;
    scene.end()
}

/// What all pods may take together, in MiB, and how much of it is to be left.
const ALLOCATABLE: u64 = 256;
const SHARE: &str = "25%";
/// What one of them has, in MiB.
const CALM: u64 = 48;

/// Pods that reach what is allocatable, while the machine has plenty: the one that grows is evicted before the kernel kills
/// at their limit, and neither the other pod nor what is outside. The threshold is the kubelet's on memory, in percent, from
/// its own configuration, and follows the limit.
pub(crate) fn bounded_together() -> Result<()> {
    let [growing, calm] = [Pod::create("burstable", 1, 0, &json!({}))?, Pod::create("besteffort", 2, 0, &json!({}))?];
    let all = Cgroup::existing("kubepods.slice")?;
    let limit = |mib: u64| all.write("memory.max", &(mib * MIB).to_string());
    limit(ALLOCATABLE)?;
    let outside = Cgroup::create("work.slice/outside")?;
    let mut large = guest().args(["idle", "--mib", "64", "--cgroup"]).arg(outside.path()).spawn()?;
    let mut idle = calm.holds(CALM)?;
    write_facts(FACTS, &json!({"items": [growing.facts, calm.facts]}).to_string())?;
    let node_config = "/run/node-config.yaml";
    fs::write(node_config, format!("kubeletArguments:\n  eviction-hard: ['memory.available<{SHARE}']\n"))?;
    let mut scene = Scene::set_with(ROOM, |settings| {
        settings.pod_facts = Some(FACTS.into());
        settings.node_config = Some(node_config.into());
    })?;
    wait_for("both pods are known", PATIENCE, || Ok(scene.agent.text().contains("2 pods are known")))?;
    // The second one takes less than the first threshold left.
    for (max, mib) in [(ALLOCATABLE, 300), (ALLOCATABLE / 2, 60)] {
        limit(max)?;
        scene.agent.empty_log()?;
        let mut hog = Hog::start("anon", growing.container.path(), mib, &["--rate", "64", "--hold", "300"])?;
        scene.expect_killed(&mut hog, &growing.cgroup).with_context(|| format!("below {max} MiB"))?;
        let is_of_pods = |plan: &Value| plan["slice"] == "pods" && plan["outcome"] == "evict";
        // It kills first and reports the plan later.
        wait_for("a plan for all pods together is reported", PATIENCE, || {
            Ok(scene.agent.plans().iter().any(is_of_pods))
        })
        .with_context(|| tail(&scene.agent.text()))?;
        let text = scene.agent.text();
        ensure!(text.contains("; allocatableMemory.available "), "by another signal: {}", tail(&text));
        let events = all.read("memory.events")?;
        ensure!(named(&events, "oom_kill") == Some(0), "the kernel killed at the limit of all pods first");
        for (name, child) in [("the other pod", &mut idle), ("what is outside", &mut large)] {
            let ended = child.try_wait()?;
            ensure!(ended.is_none(), "{name} died: {ended:?}: {}", scene.agent.text());
        }
    }
    for child in [&mut idle, &mut large] {
        child.kill()?;
        child.wait()?;
    }
    scene.end()
}

/// Where the core is killed, and what reports on pods reports to the next one that a critical pod is none, that pod is not
/// evicted. Another one is, as soon as the next core knows the pods.
pub(crate) fn protection_outlives_the_core() -> Result<()> {
    let resources = json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "1Gi"}});
    let mut critical = Pod::create("burstable", 1, 2_000_001_000, &resources)?;
    let other = Pod::create("burstable", 2, 0, &resources)?;
    let mut holders = [critical.holds(24)?, other.holds(8)?];
    write_facts(FACTS, &json!({"items": [&critical.facts, &other.facts]}).to_string())?;
    let mut scene = Scene::set_with(ROOM, |settings| settings.pod_facts = Some(FACTS.into()))?;
    let knows = |scene: &Scene| {
        wait_for("pods are known", PATIENCE, || Ok(scene.agent.text().contains("2 pods are known")))
            .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))
    };
    knows(&scene)?;
    expect_spared(&mut scene, &critical).context("by the first core")?;
    // The one that runs never reads the new file, so that no core is sent it beside the old one.
    let services = scene.agent.process("services")?;
    kill_process(services, Signal::STOP)?;
    scene.agent.empty_log()?;
    critical.facts["spec"]["priority"] = json!(0);
    write_facts(FACTS, &json!({"items": [&critical.facts, &other.facts]}).to_string())?;
    kill_process(scene.agent.process("core")?, Signal::KILL)?;
    kill_process(services, Signal::KILL)?;
    knows(&scene)?;
    wait_for("the next core runs", PATIENCE, || Ok(scene.agent.text().contains("armed with source")))?;
    let mut hog = Hog::start("anon", other.container.path(), HOG, &["--hold", "60"])?;
    let [of_critical, of_other] = &mut holders;
    scene.expect_killed(&mut hog, &other.cgroup).context("the next core knows the pods")?;
    of_other.wait()?;
    memory_is_back(&scene)?;
    expect_spared(&mut scene, &critical).context("by the next core")?;
    ensure!(of_critical.try_wait()?.is_none(), "the critical pod was evicted: {}", scene.agent.text());
    of_critical.kill()?;
    of_critical.wait()?;
    scene.end()
}

/// A pod with CRI-O's monitors in it ends by its containers, all of them, and is reported as empty while a monitor lives,
/// which does; also where the core dies when it has frozen them.
pub(crate) fn end_by_their_containers() -> Result<()> {
    ensure!(end_beside_monitors(None)? == 0, "the core died by itself");
    for _ in 0..TRIES {
        // The pod may be killed before it is frozen.
        if end_beside_monitors(Some("freeze-written")).context("with a core that dies")? == 1 {
            return Ok(());
        }
    }
    bail!("the core did not die in {TRIES} rounds")
}

/// Gives how often the core died.
fn end_beside_monitors(dies_at: Option<&str>) -> Result<usize> {
    let requests = json!({"requests": {"memory": "16Mi"}});
    let pods = [1, 2].map(|number| Pod::create_by("crio", "burstable", number, 0, &requests));
    let [growing, calm] = pods;
    let (growing, calm) = (growing?, calm?);
    let second = growing.beside("crio", 3)?;
    let mut monitors = Vec::new();
    for (pod, number) in [(&growing, 1), (&growing, 3), (&calm, 2)] {
        monitors.push(holds(&pod.beside("crio-conmon", number)?, 2)?);
    }
    let (mut beside, mut bystander) = (holds(&second, 8)?, calm.holds(8)?);
    write_facts(FACTS, &json!({"items": [&growing.facts, &calm.facts]}).to_string())?;
    let mut scene = Scene::set_with(ROOM, |settings| {
        settings.pod_facts = Some(FACTS.into());
        settings.environment.extend(dies_at.map(|step| (KILL_POINT, format!("{step}:core"))));
    })?;
    let logged = |scene: &Scene| format!("the log ends with: {}", tail(&scene.agent.text()));
    wait_for("both pods are known", PATIENCE, || Ok(scene.agent.text().contains("2 pods are known")))
        .with_context(|| logged(&scene))?;
    let mut hog = Hog::start("anon", growing.container.path(), HOG.max(grown()?), &["--hold", "60"])?;
    scene.expect_dead(&mut hog.child, &growing.container)?;
    let name = growing.cgroup.name();
    wait_for("the agent reports that the pod is empty", PATIENCE, || {
        Ok(!scene.agent.kills(name, "emptied").is_empty())
    })
    .with_context(|| logged(&scene))?;
    ensure!(beside.try_wait()?.is_some_and(was_killed), "the pod's other container lives: {}", logged(&scene));
    for child in monitors.iter_mut().chain([&mut bystander]) {
        let ended = child.try_wait()?;
        ensure!(ended.is_none(), "a monitor or the other pod died: {ended:?}: {}", logged(&scene));
    }
    let deaths = scene.agent.text().matches("the core ended and is started again").count();
    memory_is_back(&scene)?;
    scene.settled()?;
    for mut child in monitors.into_iter().chain([bystander]) {
        child.kill()?;
        child.wait()?;
    }
    scene.end()?;
    Ok(deaths)
}
