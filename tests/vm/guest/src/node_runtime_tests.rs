//! What the agent has containerd do with pods that run: stop those that are evicted with a grace, and raise memory.high of
//! containers that it throttles, as Memory QoS of the kubelet sets it.

use crate::agent::PROGRAM;
use crate::cgroup::Cgroup;
use crate::containerd::{self, Driver};
use crate::cri::Client;
use crate::hog_tests::Hog;
use crate::machine::{named, wait_for};
use crate::node::{Node, await_available, await_begun, expect_dead, kills, lines, number, plans, threshold};
use crate::node_surroundings_tests::with_arguments;
use crate::node_tests::{is_whole, logged};
use crate::pod::{Class, Pod, SIGTERM_SENT, container_cgroup};
use crate::scene::{MIB, PATIENCE};
use crate::suite::figure;
use crate::systemd::{CONFIGURATION, UNIT, property, run, start_guest, systemctl};
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// What is available above the threshold before pods grow, in MiB, and what one takes that crosses it.
const ROOM: u64 = 128;
const GROWTH: u64 = 256;
/// A hard threshold that is not reached.
const FAR: u64 = 32 * MIB;
/// memory.high of a container, and the memory.max of a guaranteed one.
const HIGH: u64 = 32 * MIB;
const MAX: u64 = 128 * MIB;
const USUAL: (i32, i64) = (0, 30);

/// What containerd has logged.
pub(crate) fn runtime_log() -> Result<String> {
    run(Command::new("journalctl").arg("--sync"))?;
    run(Command::new("journalctl").args(["--unit", containerd::UNIT, "--output", "cat", "--no-pager", "--quiet"]))
}

/// A pod that a soft threshold evicts is stopped by containerd, its container with the lesser grace and then its sandbox,
/// and so ends in order before that is over. While containerd does not answer, the processes of another one are sent SIGTERM
/// after a third of its grace, and killed when that is over.
pub(crate) fn soft_victims_end_in_order() -> Result<()> {
    const GRACE: u64 = 20;
    const SHORT: u64 = 6;
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let orderly = node.pod("orderly", Class::BestEffort, USUAL)?;
    let hog = ["anon", "--mib", &GROWTH.to_string()];
    let container = orderly.start_orderly(&node.client, "main", &hog)?;
    let stubborn = node.pod("stubborn", Class::BestEffort, (0, i64::try_from(SHORT)?))?;
    stubborn.start_held(&node.client, "main", &hog)?;
    let soft = threshold(ROOM)?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\"}}\nevictionSoft: {{memory.available: \"{soft}\"}}\n\
         evictionSoftGracePeriod: {{memory.available: 1s}}\nevictionMaxPodGracePeriod: {GRACE}\n"
    ))?;
    orderly.let_go()?;
    expect_dead(&orderly)?;
    ensure!(orderly.volume().join(SIGTERM_SENT).exists(), "it was sent no SIGTERM; {}", logged());
    ensure!(kills(&orderly, "asked")?.len() == 1 && kills(&orderly, "begun")?.is_empty(), "{}", logged());
    let log = runtime_log()?;
    for said in [
        format!("StopContainer for \\\"{container}\\\" with timeout {GRACE} (s)"),
        format!("StopPodSandbox for \\\"{}\\\"", orderly.sandbox),
    ] {
        ensure!(log.contains(&said), "containerd's log has no {said:?}: {log}");
    }
    await_available(soft + ROOM / 2 * MIB)?;

    let containerd = containerd::main_process()?;
    kill_process(containerd, Signal::STOP)?;
    stubborn.let_go()?;
    let sent = stubborn.volume().join(SIGTERM_SENT);
    wait_for("the container was sent SIGTERM", PATIENCE, || Ok(sent.exists())).with_context(logged)?;
    is_whole(&stubborn)?;
    expect_dead(&stubborn)?;
    await_begun(&stubborn)?;
    let [asked, killed] = ["asked", "begun"].map(|what| kills(&stubborn, what).and_then(|it| number(&it[0], "at_ns")));
    let had = Duration::from_nanos(killed? - asked?);
    kill_process(containerd, Signal::CONT)?;
    let expected = Duration::from_secs(SHORT)..Duration::from_secs(SHORT + 2);
    ensure!(expected.contains(&had), "it had {had:?}");
    node.expect_room()?;
    node.end(&[&stubborn], &[&bystander])
}

/// The service of a runtime that grows is not killed although a pattern matches it and `never` does not name it: not when it
/// is started again, nor under another name. What grows beside it is.
pub(crate) fn runtime_is_never_evicted() -> Result<()> {
    const CROSSES: usize = 192;
    const RENAMED: &str = "test-renamed.service";
    /// Until the agent has found a service that was started elsewhere.
    const FOUND: Duration = Duration::from_secs(10);
    containerd::start(Driver::Systemd)?;
    let hard = threshold(ROOM)?;
    fs::write(
        CONFIGURATION,
        format!(
            "evictionHard: {{memory.available: \"{hard}\"}}\nmachine:\n  logFormat: json\n  workloads:\n  \
             - match: system.slice/*.service\n    priority: 0\n"
        ),
    )?;
    systemctl(&["start", UNIT]).with_context(logged)?;
    let main = |unit: &str| property(unit, "MainPID");
    let survives = |unit: &str, when: &str| -> Result<()> {
        let (process, plans_before) = (main(unit)?, plans()?.len());
        let service = Cgroup::existing(&format!("system.slice/{unit}"))?;
        let mut hog = Hog::start("anon", service.path(), CROSSES, &["--hold", "120"])?;
        hog.wait_taken(CROSSES, PATIENCE).with_context(|| format!("{when}; {}", logged()))?;
        wait_for("what is short is reported", PATIENCE, || Ok(plans()?.len() > plans_before)).with_context(logged)?;
        std::thread::sleep(Duration::from_secs(3));
        ensure!(hog.child.try_wait()?.is_none(), "{when}: what runs in {unit} was killed; {}", logged());
        ensure!(main(unit)? == process, "{when}: {unit} was ended; {}", logged());
        drop(hog);
        await_available(hard + ROOM / 2 * MIB)
    };
    survives(containerd::UNIT, "as it was found")?;
    systemctl(&["restart", containerd::UNIT])?;
    wait_for("the runtime answers", PATIENCE, || Ok(Client::new()?.sandboxes().is_ok()))?;
    survives(containerd::UNIT, "started again")?;
    containerd::stop()?;
    run(Command::new("systemd-run").args([
        "--quiet",
        "--unit",
        RENAMED,
        "--property=Delegate=yes",
        containerd::PROGRAM,
    ]))?;
    wait_for("the runtime answers", PATIENCE, || Ok(Client::new()?.sandboxes().is_ok()))?;
    std::thread::sleep(FOUND);
    survives(RENAMED, "under another name")?;
    let said = run(Command::new(PROGRAM).args(["explain", "--config", CONFIGURATION]))?;
    let line = said.lines().find(|line| line.contains(RENAMED)).context("explain does not name it")?;
    ensure!(line.contains("the kubelet or the container runtime"), "{line}");
    let killed: Vec<_> = lines()?.into_iter().filter(|line| line["kill"] == "begun").collect();
    ensure!(killed.is_empty(), "{killed:?}");
    // The same in another service.
    let other = start_guest("other", &[], &["hog", "anon", "--mib", &CROSSES.to_string(), "--hold", "120"])?;
    wait_for("the other service is killed", PATIENCE, || Ok(!other.populated().unwrap_or(false))).with_context(logged)
}

/// The lines of what was done about throttled containers, oldest first.
fn throttled(what: &str) -> Result<Vec<Value>> {
    Ok(lines()?.into_iter().filter(|line| line["throttled"] == what).collect())
}

/// A pod whose container is throttled once it is let go, beside an agent that acts on that so.
fn throttled_pod(node: &mut Node, mode: &str, mib: u64) -> Result<(Pod, Cgroup, String)> {
    let pod = node.pod("throttled", Class::Guaranteed, USUAL)?.throttled_at(HIGH);
    let container = pod.start_held(&node.client, "main", &["anon", "--mib", &mib.to_string()])?;
    let cgroup = container_cgroup(&pod, &container)?;
    ensure!(cgroup.read("memory.high")?.trim() == HIGH.to_string(), "containerd sets no memory.high");
    with_arguments(&format!("--throttled {mode}"), "")?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{FAR}\"}}\n"))?;
    pod.let_go()?;
    let exceeded = || Ok(named(&cgroup.read("memory.events.local")?, "high").is_some_and(|count| count > 0));
    wait_for("memory.high is exceeded", PATIENCE, exceeded)?;
    Ok((pod, cgroup, container))
}

/// Waits until the log has such a line.
fn await_line(what: &str) -> Result<Value> {
    wait_for(&format!("the log has {what:?}"), PATIENCE, || Ok(!throttled(what)?.is_empty())).with_context(logged)?;
    throttled(what)?.into_iter().next().context("it was just there")
}

/// memory.high of a throttled container is raised by containerd to its memory.max, stays so when systemd loads its units
/// anew, and the container has what it asked for.
pub(crate) fn throttled_is_relaxed() -> Result<()> {
    const HOG: u64 = 96;
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let (pod, cgroup, container) = throttled_pod(&mut node, "relax", HOG)?;
    let raised = await_line("raised")?;
    figure("relaxed", &[("took_ns", &raised["took_ns"])]);
    ensure!(raised["high_bytes"] == MAX && raised["pod"] == pod.full_name(), "{raised}");
    ensure!(cgroup.read("memory.max")?.trim() == MAX.to_string(), "memory.max was changed");
    wait_for("the container has its memory", PATIENCE, || Ok(cgroup.current()? >= HOG * MIB)).with_context(logged)?;
    systemctl(&["daemon-reload"])?;
    let scope = format!("cri-containerd-{container}.scope");
    ensure!(property(&scope, "MemoryHigh")? == MAX.to_string(), "systemd has {}", property(&scope, "MemoryHigh")?);
    ensure!(cgroup.read("memory.high")?.trim() == MAX.to_string(), "it was taken back");
    await_line("ends")?;
    ensure!(throttled("raising")?.len() == 1 && throttled("in-vain")?.is_empty(), "{}", logged());
    is_whole(&pod)?;
    node.end(&[], &[&pod, &bystander])
}

/// Where the container goes on growing, it is throttled at the limit that was raised by half as well, and ten seconds later
/// its pod is evicted, before the OOM killer selects one of its processes.
pub(crate) fn throttled_is_evicted() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let (pod, _, _) = throttled_pod(&mut node, "evict", GROWTH)?;
    let raised = await_line("raised")?;
    ensure!(raised["high_bytes"] == u64::midpoint(HIGH, MAX), "{raised}");
    expect_dead(&pod)?;
    let (in_vain, evict) = (await_line("in-vain")?, await_line("evict")?);
    ensure!(evict["cgroup"] == pod.path() && evict["shadow"] == false, "{evict}");
    let since = number(&in_vain, "at_ns")? - number(&raised, "at_ns")?;
    ensure!(since >= 10_000_000_000, "it was evicted {since} ns after the limit was raised");
    node.end(&[&pod], &[&bystander])
}
