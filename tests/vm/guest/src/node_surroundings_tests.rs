//! What is around the agent on a node: OpenShift's file of configuration with its policy, traces that are replayed, processes
//! that hang or die while memory is short, and what the kubelet writes for the OOM killer.

use crate::agent::{self, PROGRAM};
use crate::containerd;
use crate::cri::api::ContainerState;
use crate::machine::{self, wait_for};
use crate::node::{Node, acting, await_available, await_metric, eviction_of, expect_dead, number, plans, threshold};
use crate::node_tests::{begun_kills, is_whole, logged};
use crate::pod::{Class, Pod};
use crate::scenarios::{expect_alike, reported};
use crate::scene::{MIB, PATIENCE};
use crate::systemd::{CONFIGURATION, drop_in, journal, property, run};
use crate::systemd_tests::processes;
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What is available above the threshold before pods grow, in MiB, and what one takes that crosses it.
const ROOM: u64 = 128;
const GROWTH: u64 = 256;
/// The usual priority and grace of a pod.
const USUAL: (i32, i64) = (0, 30);
/// How long systemd and containerd may take until containerd runs again and reports what ended.
const STARTED_AGAIN: Duration = Duration::from_secs(90);

/// Starts the unit with more arguments.
pub(crate) fn with_arguments(words: &str, properties: &str) -> Result<()> {
    drop_in(&format!(
        "{properties}ExecStart=\nExecStart={PROGRAM} run --config {CONFIGURATION} --state-directory %t/plimsoll {words}"
    ))
}

/// OpenShift's node-config.yaml has the thresholds, and the policy is that of OpenShift 3: whichever pod grows, the
/// best-effort pod is evicted first, then the burstable one, and a guaranteed one only when no other class is left, whatever
/// the priorities.
pub(crate) fn openshift3() -> Result<()> {
    const EACH: u64 = 100;
    let mut node = Node::new()?;
    let best_effort = node.pod("best-effort", Class::BestEffort, (1000, 30))?;
    best_effort.start(&node.client, "main", &["idle", "--mib", "60"])?;
    let burstable = node.pod("burstable", Class::Burstable, (1000, 30))?;
    burstable.start(&node.client, "main", &["idle", "--mib", "80"])?;
    let mut guaranteed = Vec::new();
    for name in ["one", "two", "three"] {
        let pod = node.pod(name, Class::Guaranteed, USUAL)?;
        pod.start_held(&node.client, "main", &["anon", "--mib", &EACH.to_string(), "--rate", "64"])?;
        guaranteed.push(pod);
    }
    let hard = threshold(EACH * 2 / 3)?;
    let file = "/run/node-config.yaml";
    fs::write(file, format!("kubeletArguments:\n  eviction-hard: ['memory.available<{hard}']\n"))?;
    with_arguments(&format!("--node-config {file}"), "")?;
    node.start_agent("evictionPolicy: openshift3\n")?;
    for pod in &guaranteed {
        pod.let_go()?;
        let path = pod.cgroup()?;
        wait_for("the pod has grown", PATIENCE, || Ok(!path.populated()? || path.current()? >= EACH * MIB))?;
        await_available(hard)?;
    }
    expect_dead(&best_effort)?;
    expect_dead(&burstable)?;
    let plan = eviction_of(&best_effort)?;
    ensure!(plan["eviction_policy"] == "openshift3" && number(acting(&plan)?, "at")? == hard, "{plan}");
    let mut log = String::new();
    wait_for("a guaranteed pod is evicted", PATIENCE, || {
        log = journal()?;
        Ok(begun_kills(&log).len() >= 3)
    })
    .with_context(logged)?;
    let all: Vec<&Pod> = [&best_effort, &burstable].into_iter().chain(&guaranteed).collect();
    let of = |(path, _): &(String, String)| all.iter().copied().find(|pod| pod.path() == *path);
    let killed = begun_kills(&log).iter().map(of).collect::<Option<Vec<_>>>().context("what it killed is no pod")?;
    let names: Vec<&str> = killed.iter().map(|pod| &pod.name[..]).collect();
    ensure!(names.starts_with(&["best-effort", "burstable"]), "it killed {names:?}");
    let alive: Vec<&Pod> = all.iter().copied().filter(|pod| !names.contains(&&pod.name[..])).collect();
    node.end(&killed, &alive)
}

/// The kill switch, and where the trace is written.
const KILL_SWITCH: &str = "/etc/plimsoll/kill-switch";
const TRACES: &str = "/run/traces";
/// The user that the reporter takes.
const REPORTER: u32 = 65526;

/// The plan of an agent that shadows evicts the pod that the same agent evicts once it acts, and what it traced of both
/// gives the same plans when it is replayed.
pub(crate) fn shadow_replays_alike() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let growing = node.pod("growing", Class::BestEffort, USUAL)?;
    growing.start_held(&node.client, "main", &["anon", "--mib", &GROWTH.to_string()])?;
    let trace = traced("")?;
    let switch = Switch::throw()?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{}\"}}\n", threshold(ROOM)?))?;
    growing.let_go()?;
    let shadowed = eviction_of(&growing)?;
    ensure!(shadowed["shadow"] == true, "it acts while the kill switch is thrown: {shadowed}");
    await_metric("plimsoll_acting 0", PATIENCE)?;
    is_whole(&growing)?;
    drop(switch);
    expect_dead(&growing)?;
    let mut traced = Vec::new();
    let evicts = |plan: &Value| plan["actions"].as_array().is_some_and(|actions| !actions.is_empty());
    wait_for("both plans are in the trace", PATIENCE, || {
        traced = reported(&trace)?;
        Ok(traced.iter().filter(|plan| evicts(plan)).count() >= 2)
    })
    .with_context(logged)?;
    let victims =
        |plan: &Value| plan["actions"].as_array().map(|all| all.iter().map(|it| it["cgroup"].clone()).collect());
    let of: Vec<Option<Vec<Value>>> = traced.iter().filter(|plan| evicts(plan)).map(victims).collect();
    ensure!(of.iter().all(|victims| *victims == Some(vec![growing.path().into()])), "victims in the trace: {of:?}");
    node.end(&[&growing], &[&bystander])?;
    let turns = agent::replayed(&trace, Path::new(CONFIGURATION))?;
    expect_alike(&reported(&trace)?, &turns)
}

/// A dry run evicts none, and its trace gives the same plans when it is replayed as of an agent that acts: its
/// configuration does not have that it shadowed.
pub(crate) fn dry_run_replays_alike() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let growing = node.pod("growing", Class::BestEffort, USUAL)?;
    growing.start_held(&node.client, "main", &["anon", "--mib", &GROWTH.to_string()])?;
    let trace = traced("--shadow ")?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{}\"}}\n", threshold(ROOM)?))?;
    growing.let_go()?;
    let shadowed = eviction_of(&growing)?;
    ensure!(shadowed["shadow"] == true, "a dry run acts: {shadowed}");
    is_whole(&growing)?;
    node.end(&[], &[&growing, &bystander])?;
    let turns = agent::replayed(&trace, Path::new(CONFIGURATION))?;
    expect_alike(&reported(&trace)?, &turns)
}

/// Has the agent write a trace to the path that this gives. `words`: more arguments, each with a space after it.
fn traced(words: &str) -> Result<PathBuf> {
    fs::create_dir_all(TRACES)?;
    chown(TRACES, Some(REPORTER), Some(REPORTER)).with_context(|| format!("cannot give {TRACES} away"))?;
    with_arguments(&format!("{words}--trace {TRACES}"), &format!("ReadWritePaths={TRACES}\n"))?;
    Ok(Path::new(TRACES).join("trace.jsonl"))
}

/// The kill switch, thrown for as long as this lives.
struct Switch;

impl Switch {
    fn throw() -> Result<Self> {
        fs::write(KILL_SWITCH, "").with_context(|| format!("cannot make {KILL_SWITCH}"))?;
        Ok(Self)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(KILL_SWITCH) {
            eprintln!("cannot remove {KILL_SWITCH}: {error}");
        }
    }
}

/// While the process hangs that reads what is known of pods, and containerd is killed, memory is decided on what was known:
/// of two pods that grow the one of lower priority is evicted. containerd is started again, and reports its end.
pub(crate) fn by_the_last_facts() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let high = node.pod("high", Class::BestEffort, (1000, 30))?;
    let low = node.pod("low", Class::BestEffort, USUAL)?;
    high.start_held(&node.client, "main", &["anon", "--mib", &ROOM.to_string()])?;
    // At a bounded rate: what is expected to be allocated until memory is back must be less than this pod frees.
    let container = low.start_held(&node.client, "main", &["anon", "--mib", &GROWTH.to_string(), "--rate", "64"])?;
    let hard = threshold(2 * ROOM)?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{hard}\"}}\n"))?;
    high.let_go()?;
    wait_for("the other pod has grown", PATIENCE, || Ok(high.cgroup()?.current()? >= ROOM * MIB))?;
    let services = *processes()?.get("services").context("the unit has no process `services`")?;
    let services = Pid::from_raw(services.try_into()?).context("no process has the number zero")?;
    kill_process(services, Signal::STOP)?;
    low.let_go()?;
    wait_for("memory becomes short", PATIENCE, || Ok(machine::meminfo("MemAvailable")? < hard + ROOM / 2 * MIB))?;
    let before = containerd::main_process()?;
    kill_process(before, Signal::KILL)?;
    expect_dead(&low)?;
    await_available(hard)?;
    ensure!(machine::process_state(services.as_raw_nonzero().get().try_into()?) == Some('T'), "services was continued");
    kill_process(services, Signal::CONT)?;
    wait_for("containerd runs again", STARTED_AGAIN, || {
        Ok(property(containerd::UNIT, "ActiveState")? == "active" && containerd::main_process()? != before)
    })?;
    wait_for("containerd reports the container's end", STARTED_AGAIN, || {
        Ok(node.client.status(&container).is_ok_and(|(state, _)| state == ContainerState::ContainerExited))
    })?;
    let plans = plans()?;
    ensure!(plans.iter().any(|plan| plan["outcome"] == "evict"), "no plan evicts; {}", logged());
    node.end(&[&low], &[&bystander, &high]).with_context(|| format!("planned: {plans:?}"))
}

/// What `plimsoll explain` computes of each container is what a kubelet had containerd write for the OOM killer.
pub(crate) fn oom_scores_are_the_kubelets() -> Result<()> {
    let mut node = Node::new()?;
    let mut pods = Vec::new();
    for class in [Class::Guaranteed, Class::Burstable, Class::BestEffort] {
        let pod = node.pod(&format!("{class:?}").to_lowercase(), class, USUAL)?;
        let container = pod.start(&node.client, "main", &["idle", "--mib", "16"])?;
        pods.push((pod, container));
    }
    fs::write(CONFIGURATION, "evictionHard: {memory.available: 16Mi}\n")?;
    let answer = run(Command::new(PROGRAM)
        .args(["explain", "--config", CONFIGURATION, "--output", "json", "--pods"])
        .arg(node.write_facts()?))?;
    let answer: Value = serde_json::from_str(&answer)?;
    for (pod, container) in &pods {
        let scope = Path::new(crate::cgroup::ROOT).join(pod.path()).join(format!("cri-containerd-{container}.scope"));
        let process = fs::read_to_string(scope.join("cgroup.procs"))?;
        let written = fs::read_to_string(format!("/proc/{}/oom_score_adj", process.trim()))?;
        let written: i64 = written.trim().parse()?;
        let mut listed = answer["pods"]["pods"].as_array().into_iter().flatten();
        let found =
            listed.find(|it| it["pod"] == pod.full_name()).with_context(|| format!("no {} in {answer}", pod.name))?;
        ensure!(found["oom_score_adj"] == serde_json::json!([written, written]), "{written} was written: {found}");
    }
    Ok(())
}
