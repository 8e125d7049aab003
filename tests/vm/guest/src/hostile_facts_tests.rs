//! A hostile `services`: a build for tests has it send the core facts, readings and answers that are not true, and garbage.

use crate::agent::tail;
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::wait_for;
use crate::pods_tests::{FACTS, HOG, Pod, ROOM, expect_spared, write_facts};
use crate::scene::{PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// By which it is given the pods.
const FIFO: &str = "/run/hostile-forger";
/// So long nothing is short while it lies: a disk is decided about once in ten seconds.
const LIES: Duration = Duration::from_secs(12);

/// While memory is plentiful nothing is evicted for what it says, whatever that is. Below the threshold no pod goes that was
/// known as critical before, also where that is the one that grew, and a workload that is no pod goes as ever. Pods
/// that are not protected rank by the lies, and may be evicted before it, or be protected by what a changed byte makes of them.
pub(crate) fn services_forges_facts() -> Result<()> {
    let memory = |request: &str| json!({"requests": {"memory": request}});
    let critical = Pod::create("burstable", 1, 2_000_001_000, &memory("16Mi"))?;
    let bystander = Pod::create("burstable", 2, 1000, &memory("64Mi"))?;
    let lowest = Pod::create("besteffort", 3, 0, &json!({}))?;
    let held = [("critical", &critical, 64), ("bystander", &bystander, 24), ("lowest", &lowest, 24)];
    let mut others = Vec::new();
    for (name, pod, mib) in held {
        others.push((name, pod.holds(mib)?));
    }
    let all = [&critical, &bystander, &lowest].map(|pod| &pod.facts);
    write_facts(FACTS, &json!({"items": all}).to_string())?;
    let _ = fs::remove_file(FIFO);
    mknodat(CWD, FIFO, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("cannot make a FIFO")?;
    let mut scene = Scene::set_with(ROOM, |settings| {
        settings.pod_facts = Some(FACTS.into());
        settings.environment.push(("PLIMSOLL_HOSTILE_FORGER", FIFO.to_owned()));
    })?;
    wait_for("the pods are known", PATIENCE, || Ok(scene.agent.text().contains("3 pods are known")))
        .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    let uids: Vec<&str> = all.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
    fs::write(FIFO, format!("{}\n", uids.join(" ")))?;
    let begun = Instant::now();
    while begun.elapsed() < LIES {
        scene.check()?;
        for (name, child) in &mut others {
            ensure!(child.try_wait()?.is_none(), "{name} died of lies: {}", tail(&scene.agent.text()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    expect_spared(&mut scene, &critical).context("the pod that was known as critical")?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--hold", "60"])?;
    scene.expect_killed(&mut hog, &victim).context("the workload that grew")?;
    wait_for("it has sent everything", PATIENCE, || Ok(scene.agent.text().contains("plimsoll: hostile: done")))?;
    for (name, child) in &mut others {
        let is_spared = *name != "critical" || child.try_wait()?.is_none();
        ensure!(is_spared, "{name} died: {}", scene.agent.why_killed(critical.cgroup.name()));
        child.kill()?;
        child.wait()?;
    }
    scene.end()
}
