//! Pods that are held down after their eviction: what containerd starts in them meanwhile hangs, until the hold is undone.

use crate::cri::Client;
use crate::machine::{named, wait_for};
use crate::node::{Node, await_available, await_metric, expect_dead, lines, number, threshold};
use crate::node_surroundings_tests::with_arguments;
use crate::node_tests::logged;
use crate::pod::{Class, Pod};
use crate::scene::{MIB, PATIENCE, held};
use crate::suite::figure;
use crate::systemd_tests::processes;
use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What is available above the threshold before a pod grows, in MiB, and what one takes that crosses it.
const ROOM: u64 = 128;
const GROWTH: u64 = 256;
const USUAL: (i32, i64) = (0, 30);
/// How long what hangs is looked at.
const HANGS: Duration = Duration::from_secs(3);
/// How long containerd may take to answer once it can.
const ANSWERED: Duration = Duration::from_mins(1);

/// A pod that was evicted and is held down, with the agent beside it that holds it for so long at most.
fn held_pod(node: &mut Node, name: &str, hold: Duration) -> Result<Pod> {
    let pod = node.pod(name, Class::BestEffort, USUAL)?;
    pod.start_held(&node.client, "main", &["anon", "--mib", &GROWTH.to_string()])?;
    with_arguments(&format!("--hold-down {}s", hold.as_secs()), "")?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{}\"}}\n", threshold(ROOM)?))?;
    pod.let_go()?;
    expect_dead(&pod)?;
    let cgroup = pod.cgroup()?;
    wait_for("the pod is held down", PATIENCE, || cgroup.is_frozen()).with_context(logged)?;
    await_metric("plimsoll_pods_held_down 1", PATIENCE)?;
    Ok(pod)
}

/// What was reported of holding a pod down, oldest first: `begun`, `ended`.
fn holds(pod: &Pod, what: &str) -> Result<Vec<Value>> {
    let path = pod.path();
    Ok(lines()?.into_iter().filter(|line| line["cgroup"] == path && line["hold"] == what).collect())
}

/// Why and after how long a pod was not held down any more.
fn end_of(pod: &Pod) -> Result<(String, Duration)> {
    wait_for("the end is reported", PATIENCE, || Ok(!holds(pod, "ended")?.is_empty())).with_context(logged)?;
    let (begun, ended) = (holds(pod, "begun")?, holds(pod, "ended")?);
    ensure!(begun.len() == 1 && ended.len() == 1, "{begun:?} {ended:?}");
    let lasted = number(&ended[0], "at_ns")? - number(&begun[0], "at_ns")?;
    let reason = ended[0]["reason"].as_str().context("no reason")?;
    Ok((reason.to_owned(), Duration::from_nanos(lasted)))
}

/// Has containerd make the pod's sandbox anew, as its kubelet does, and waits until that hangs: processes are in the pod and
/// none of them runs.
fn start_again(pod: &Pod) -> Result<JoinHandle<Result<String>>> {
    let again = pod.sandbox_again();
    let call = thread::spawn(move || Client::new()?.run_sandbox(again));
    let cgroup = pod.cgroup()?;
    wait_for("a process of the new sandbox is in the pod", ANSWERED, || cgroup.populated()).with_context(logged)?;
    let is_frozen = || Ok(named(&cgroup.read("cgroup.events")?, "frozen") == Some(1));
    wait_for("it is frozen", PATIENCE, is_frozen)?;
    thread::sleep(HANGS);
    ensure!(!call.is_finished(), "the sandbox does not hang: {:?}", call.join());
    ensure!(is_frozen()? && cgroup.populated()?, "it runs");
    Ok(call)
}

/// The call is answered with a sandbox, whose process runs then.
fn expect_started(pod: &Pod, call: JoinHandle<Result<String>>) -> Result<()> {
    wait_for("the sandbox is made", ANSWERED, || Ok(call.is_finished())).with_context(logged)?;
    call.join().map_err(|_| anyhow!("the call panicked"))?.with_context(logged)?;
    ensure!(pod.cgroup()?.populated()?, "nothing runs in it");
    wait_for("nothing is frozen", PATIENCE, || Ok(held().is_empty())).with_context(|| format!("{:?}", held()))?;
    await_metric("plimsoll_pods_held_down 0", PATIENCE)
}

/// An evicted pod is held down: the sandbox that is made for it anew hangs, until its time is over. Then it runs, and
/// nothing is frozen.
pub(crate) fn evicted_pods_are_held_down() -> Result<()> {
    const HOLD: Duration = Duration::from_secs(40);
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let pod = held_pod(&mut node, "held", HOLD)?;
    let call = start_again(&pod)?;
    let (why, lasted) = end_of(&pod)?;
    figure("held", &[("ms", &lasted.as_millis())]);
    // Its time begins with the request to freeze it.
    ensure!(why == "over" && lasted.abs_diff(HOLD) < Duration::from_secs(2), "{why} after {lasted:?}");
    expect_started(&pod, call)?;
    node.end(&[&pod], &[&bystander])
}

/// Where the core is killed while it holds a pod down, the supervisor undoes that, and the pod runs again.
pub(crate) fn held_pods_go_on_without_the_core() -> Result<()> {
    const HOLD: Duration = Duration::from_mins(10);
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let pod = held_pod(&mut node, "held", HOLD)?;
    let call = start_again(&pod)?;
    let core = *processes()?.get("core").context("the unit has no process `core`")?;
    kill_process(Pid::from_raw(core.try_into()?).context("no process has the number zero")?, Signal::KILL)?;
    expect_started(&pod, call)?;
    ensure!(holds(&pod, "ended")?.is_empty(), "it was undone by no core; {}", logged());
    await_available(GROWTH / 2 * MIB)?;
    node.end(&[&pod], &[&bystander])
}
