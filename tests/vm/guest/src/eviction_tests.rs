//! Evictions of pods outlive every process of the agent: each is finished, taken once, and in the journal once.

use crate::agent::{Agent, tail};
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::{meminfo, wait_for};
use crate::pods_tests::{FACTS, Pod, write_facts};
use crate::scenarios_of_death::{KILL_POINT, TRIES, grown, has_reached};
use crate::scene::{MIB, PATIENCE, Scene, held};
use anyhow::{Context as _, Result, ensure};
use plimsoll_node::boot::BootId;
use plimsoll_state::durable::{Eviction, Moment, Progress, Store};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

/// Where services keeps them.
pub(crate) const JOURNAL: &str = "/var/lib/plimsoll/journal";
/// A copy of it, since one process at a time has it open.
const COPY: &str = "/run/journal";

/// The steps at which all processes die, and whether the decision is the one from before, as no process is left to decide
/// about again.
const STEPS: [(&str, bool); 3] = [("kill-intent-written", false), ("kill-written", true), ("victim-emptied", true)];

/// All processes of the agent are killed at once at a step of an eviction, and started again: the pod ends, the journal has
/// its eviction once and as one that has ended, and what is started in the pod later is left alone.
pub(crate) fn outlive_all_processes() -> Result<()> {
    let mut number = 0;
    for (step, is_from_before) in STEPS {
        let mut is_reached = false;
        for _ in 0..TRIES {
            number += 1;
            is_reached = die_at(step, is_from_before, number).with_context(|| format!("all killed at {step}"))?;
            if is_reached {
                break;
            }
        }
        ensure!(is_reached, "{step} was not reached in {TRIES} rounds");
    }
    Ok(())
}

/// One round with a pod of this number. Gives whether the step was reached.
fn die_at(step: &str, is_from_before: bool, number: u16) -> Result<bool> {
    let begun = Moment::now();
    let pod = Pod::create("burstable", number, 0, &json!({"requests": {"memory": "16Mi"}}))?;
    write_facts(FACTS, &json!({"items": [pod.facts]}).to_string())?;
    let mut scene = Scene::set_with(96, |settings| {
        settings.pod_facts = Some(FACTS.into());
        settings.environment.push((KILL_POINT, format!("{step}:all")));
    })?;
    known(&scene)?;
    let mut hog = Hog::start("anon", pod.container.path(), grown()?, &["--hold", "120"])?;
    wait_for("the kill point is reached, or the pod is dead", PATIENCE, || {
        Ok(has_reached(&scene, step) || hog.child.try_wait()?.is_some())
    })
    .with_context(|| tail(&scene.agent.text()))?;
    // Steps after its death come a moment later.
    let _ = wait_for("the kill point is reached", Duration::from_secs(4), || Ok(has_reached(&scene, step)));
    if !has_reached(&scene, step) {
        scene.expect_dead(&mut hog.child, &pod.cgroup)?;
        scene.end()?;
        return Ok(false);
    }
    scene.agent.wait_end(PATIENCE)?;
    let died = Moment::now();
    let eviction = finished_once(&mut scene, &mut hog, &pod, begun)?;
    ensure!(!is_from_before || eviction.decided.boot_ms < died.boot_ms, "it was decided again: {eviction:?}, {died:?}");
    scene.end()?;
    Ok(true)
}

fn known(scene: &Scene) -> Result<()> {
    wait_for("the pod is known", PATIENCE, || Ok(scene.agent.text().contains("1 pods are known")))
        .with_context(|| tail(&scene.agent.text()))
}

/// All processes of the agent are killed at once, so many times, each time at another moment around an eviction.
pub(crate) fn outlive_random_moments() -> Result<()> {
    const ROUNDS: u16 = 50;
    /// From shortly before the crossing: an eviction takes about half of that on an emulated machine.
    const WITHIN: Duration = Duration::from_millis(120);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 1..=ROUNDS {
        let after = WITHIN.mul_f64(random.f64());
        die_after(after, number).with_context(|| format!("seed {seed}, round {number}, killed after {after:?}"))?;
    }
    crate::suite::figure("random-moments", &[("rounds", &ROUNDS)]);
    Ok(())
}

/// One round with a pod of this number.
fn die_after(after: Duration, number: u16) -> Result<()> {
    let begun = Moment::now();
    let pod = Pod::create("burstable", number, 0, &json!({"requests": {"memory": "16Mi"}}))?;
    write_facts(FACTS, &json!({"items": [pod.facts]}).to_string())?;
    let mut scene = Scene::set_with(96, |settings| settings.pod_facts = Some(FACTS.into()))?;
    known(&scene)?;
    let cgroup = scene.settings.cgroup()?;
    let mut hog = Hog::start("anon", pod.container.path(), grown()?, &["--hold", "120"])?;
    let soon = scene.settings.threshold_bytes + 16 * MIB;
    let filling = Instant::now();
    while meminfo("MemAvailable")? > soon {
        ensure!(filling.elapsed() < PATIENCE, "memory is not short: {}", tail(&scene.agent.text()));
    }
    std::thread::sleep(after);
    cgroup.write("cgroup.kill", "1")?;
    scene.agent.wait_end(PATIENCE)?;
    finished_once(&mut scene, &mut hog, &pod, begun)?;
    scene.end()
}

/// After all processes of the agent died: it is started again, the pod ends, its eviction is in the journal once and as one
/// that has ended, what is started in the pod later lives, and nothing is held.
fn finished_once(scene: &mut Scene, hog: &mut Hog, pod: &Pod, begun: Moment) -> Result<Eviction> {
    let cgroup = scene.settings.cgroup()?;
    wait_for("nothing of the agent is left", PATIENCE, || Ok(!cgroup.populated()?))?;
    scene.settings.environment.clear();
    scene.agent = Agent::start(&scene.settings)?;
    known(scene)?;
    scene.expect_dead(&mut hog.child, &pod.cgroup)?;
    let name = pod.facts["metadata"]["name"].as_str().unwrap_or_default();
    let uid = pod.facts["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    // It may have one of a pod of the same UID in an earlier test.
    let is_of_round = |eviction: &Eviction| eviction.decided.boot_ms >= begun.boot_ms;
    let of_round = || -> Result<Vec<_>> { Ok(kept(&uid)?.into_iter().filter(is_of_round).collect()) };
    let mut found = Vec::new();
    let ended = wait_for("the journal has that it has ended", PATIENCE, || {
        found = of_round()?;
        Ok(found.iter().any(|eviction| eviction.progress == Progress::Verified))
    });
    ended.with_context(|| format!("the journal has {found:?}; the log ends with: {}", tail(&scene.agent.text())))?;
    ensure!(found.len() == 1, "the journal has it more than once: {found:?}");
    let eviction = found[0].clone();
    let has_figures = eviction.figures.threshold.is_some() && eviction.figures.available < eviction.figures.threshold;
    ensure!(has_figures && eviction.number > 0 && eviction.pod.name == name, "{eviction:?}");
    spared(scene, pod)?;
    let later = of_round()?;
    ensure!(later == found, "the journal has changed from {found:?} to {later:?}");
    ensure!(held().is_empty(), "held: {}", held().join(", "));
    Ok(eviction)
}

/// What is started in the pod later, as the kubelet does, lives.
fn spared(scene: &mut Scene, pod: &Pod) -> Result<()> {
    let again = Cgroup::create(&format!("{}/cri-containerd-{:064x}.scope", pod.cgroup.name(), 0xbeef))?;
    let mut newcomer = guest().args(["idle", "--mib", "4", "--cgroup"]).arg(again.path()).spawn()?;
    std::thread::sleep(Duration::from_secs(2));
    let ended = newcomer.try_wait()?;
    ensure!(ended.is_none(), "what was started in the pod later died: {ended:?}: {}", tail(&scene.agent.text()));
    newcomer.kill()?;
    newcomer.wait()?;
    Ok(())
}

/// The evictions of this pod that the journal has.
pub(crate) fn kept(uid: &str) -> Result<Vec<Eviction>> {
    if fs::exists(COPY)? {
        fs::remove_dir_all(COPY)?;
    }
    fs::create_dir(COPY)?;
    fs::set_permissions(COPY, fs::Permissions::from_mode(0o700))?;
    for file in fs::read_dir(JOURNAL)? {
        let file = file?;
        let copy = format!("{COPY}/{}", file.file_name().to_string_lossy());
        fs::write(&copy, fs::read(file.path())?)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600))?;
    }
    let opened = Store::open(COPY.as_ref(), BootId::read()?)?;
    Ok(opened.store.evictions().into_iter().filter(|eviction| eviction.pod.uid == uid).collect())
}
