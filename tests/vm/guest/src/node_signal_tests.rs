//! The kubelet's thresholds on pods that a containerd runs: memory, by hard and soft thresholds, with minimum reclaim and
//! of all pods together, and processes.

use crate::cgroup::Cgroup;
use crate::cri::SOCKET;
use crate::machine::{self, KernelLog, KernelSetting, named, wait_for};
use crate::node::{
    Breathing, CRITICAL, MANIFESTS, Node, acting, await_available, await_begun, await_metric, await_read, eviction_of,
    expect_dead, kills, number, plans, threshold,
};
use crate::node_tests::{begun_kills, is_whole, logged};
use crate::pod::{Class, Pod, SIGTERM_SENT, container_cgroup};
use crate::scene::{MIB, PATIENCE};
use crate::systemd::{journal, start_guest, systemctl};
use anyhow::{Context as _, Result, ensure};
use plimsoll_node::limits::TaskLimits;
use serde_json::{Value, json};
use std::time::Duration;

/// What is available above the threshold before pods grow, in MiB, and what one takes that crosses it.
const ROOM: u64 = 128;
const GROWTH: u64 = 256;
/// A hard threshold that is not reached.
const FAR: u64 = 32 * MIB;
const PRESSURE: &str = "plimsoll_memory_pressure 1";
const NO_PRESSURE: &str = "plimsoll_memory_pressure 0";
/// The usual priority and grace of a pod.
const USUAL: (i32, i64) = (0, 30);

fn nanoseconds(duration: Duration) -> Result<u64> {
    Ok(u64::try_from(duration.as_nanos())?)
}

/// How long the soft threshold is crossed before it evicts, and the condition lasts beyond what causes it.
const GRACE: Duration = Duration::from_secs(10);
const TRANSITION: Duration = Duration::from_secs(8);

/// A soft threshold that is crossed for less than its grace period sets the condition, which stays while memory oscillates
/// around the threshold, and evicts no pod. Crossed for its whole grace period it evicts at once, because there is no
/// evictionMaxPodGracePeriod; the condition then lasts for its transition period.
pub(crate) fn soft_threshold_has_its_grace_period() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let pod = node.pod("breathing", Class::BestEffort, USUAL)?;
    let mut breathing = Breathing::start(&node.client, &pod, GROWTH)?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\"}}\nevictionSoft: {{memory.available: \"{}\"}}\n\
         evictionSoftGracePeriod: {{memory.available: {}s}}\nevictionPressureTransitionPeriod: {}s\n",
        threshold(ROOM)?,
        GRACE.as_secs(),
        TRANSITION.as_secs()
    ))?;
    for round in 1..=2 {
        breathing.fill()?;
        await_metric(PRESSURE, PATIENCE)?;
        breathing.give_back()?;
        let above = || Ok(plans()?.iter().filter(|plan| plan["outcome"] == "no-pressure").count() == round);
        wait_for("memory is above the threshold", PATIENCE, above).with_context(logged)?;
    }
    is_whole(&pod)?;
    breathing.fill()?;
    expect_dead(&pod)?;
    let plan = eviction_of(&pod)?;
    await_metric(NO_PRESSURE, PATIENCE)?;
    let (since, killed) = (number(acting(&plan)?, "since_ns")?, number(&kills(&pod, "begun")?[0], "at_ns")?);
    ensure!(killed - since >= nanoseconds(GRACE)?, "crossed at {since}, it was killed at {killed}: {plan}");
    ensure!(kills(&pod, "asked")?.is_empty(), "it was asked to terminate; {}", logged());
    let plans = plans()?;
    let outcomes: Vec<&str> = plans.iter().filter_map(|plan| plan["outcome"].as_str()).collect();
    let in_grace = plans.iter().filter(|plan| plan["outcome"] == "in-grace");
    ensure!(in_grace.clone().count() >= 3, "each time within the grace period is reported: {outcomes:?}");
    let above = plans.iter().rfind(|plan| plan["outcome"] == "no-pressure" && plan["memory_pressure"] == true);
    let above = number(above.context("above the threshold, the condition lasts")?, "taken_ns")?;
    ensure!(above > killed || above < since, "the grace period did not begin anew: {outcomes:?}");
    let mut conditions: Vec<&Value> = plans.iter().map(|plan| &plan["memory_pressure"]).collect();
    conditions.dedup();
    ensure!(conditions == [true, false], "the condition is {conditions:?}, in plans that are {outcomes:?}");
    let over = number(plans.last().context("there are plans")?, "made_ns")?;
    ensure!(over - killed >= nanoseconds(TRANSITION)?, "killed at {killed}, the condition ended at {over}");
    node.expect_room()?;
    node.end(&[&pod], &[&bystander])
}

/// With evictionMaxPodGracePeriod, a pod that a soft threshold evicts is sent SIGTERM, and has the lesser of that and its
/// own grace until it is killed.
pub(crate) fn soft_victims_have_the_lesser_grace() -> Result<()> {
    const MAXIMUM: u64 = 5;
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let short = node.pod("short", Class::BestEffort, (0, 2))?;
    let long = node.pod("long", Class::BestEffort, (0, 30))?;
    for pod in [&short, &long] {
        pod.start_held(&node.client, "main", &["anon", "--mib", &GROWTH.to_string()])?;
    }
    let soft = threshold(ROOM)?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\"}}\nevictionSoft: {{memory.available: \"{soft}\"}}\n\
         evictionSoftGracePeriod: {{memory.available: 1s}}\nevictionMaxPodGracePeriod: {MAXIMUM}\n"
    ))?;
    for (pod, grace) in [(&short, 2), (&long, MAXIMUM)] {
        pod.let_go()?;
        let sent = pod.volume().join(SIGTERM_SENT);
        wait_for("the container was sent SIGTERM", PATIENCE, || Ok(sent.exists())).with_context(logged)?;
        expect_dead(pod)?;
        await_available(soft + ROOM / 2 * MIB)?;
        await_begun(pod)?;
        let asked = kills(pod, "asked")?;
        ensure!(asked.len() == 1, "{} was asked to terminate {} times", pod.name, asked.len());
        let message = asked[0]["message"].as_str().unwrap_or_default();
        ensure!(message.ends_with(&format!("within {grace}s")), "{message}");
        let killed = number(&kills(pod, "begun")?[0], "at_ns")?;
        let had = Duration::from_nanos(killed - number(&asked[0], "at_ns")?);
        let expected = Duration::from_secs(grace)..Duration::from_secs(grace + 2);
        ensure!(expected.contains(&had), "{} had {had:?}, not {expected:?}", pod.name);
    }
    node.expect_room()?;
    node.end(&[&short, &long], &[&bystander])
}

/// Pods that all grow: of those that may be evicted the one of low priority is, for the signal and with the figures that
/// the log has, and neither a static pod of lower priority, nor a critical one, nor one of higher priority, nor one within
/// its request. A static pod that no list has is ranked by its manifest, which root alone may read. Memory is above the
/// threshold then, the condition lasts for its transition period, and a new pod runs.
pub(crate) fn static_and_critical_pods_survive() -> Result<()> {
    let mut node = Node::new()?.behind(SOCKET.trim_start_matches("unix://"), &format!("  staticPods: {MANIFESTS}\n"));
    let bystander = node.bystander()?;
    let unlisted = node.unlisted_static_pod("unlisted", Class::Burstable, 7)?;
    unlisted.start(&node.client, "main", &["idle", "--mib", "16"])?;
    let fixed = node.static_pod("static", Class::BestEffort, -1000)?;
    let critical = node.pod("critical", Class::BestEffort, (CRITICAL, 30))?;
    let high = node.pod("high", Class::BestEffort, (999_999_999, 30))?;
    let low = node.pod("low", Class::BestEffort, USUAL)?;
    let spared = [&fixed, &critical, &high];
    let small = ROOM / 4;
    for (pod, mib) in spared.map(|pod| (pod, small)).into_iter().chain([(&low, GROWTH)]) {
        // What is allocated until memory is back is missing too, and all that grew pay for it.
        pod.start_held(&node.client, "main", &["anon", "--mib", &mib.to_string(), "--rate", "48"])?;
    }
    let hard = threshold(ROOM + small)?;
    let transition = Duration::from_secs(5);
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{hard}\"}}\nevictionPressureTransitionPeriod: {}s\n",
        transition.as_secs()
    ))?;
    let known = "1 static pod is known by manifests";
    wait_for(known, PATIENCE, || Ok(journal()?.contains(known))).with_context(logged)?;
    let mut kernel_log = KernelLog::from_now()?;
    for pod in spared {
        pod.let_go()?;
        wait_for("the pod has grown", PATIENCE, || Ok(pod.cgroup()?.current()? >= small * MIB))?;
    }
    low.let_go()?;
    expect_dead(&low)?;
    await_available(hard)?;
    await_metric(PRESSURE, PATIENCE)?;
    await_metric(NO_PRESSURE, PATIENCE)?;
    let plan = eviction_of(&low)?;
    let by = acting(&plan)?;
    ensure!(by["signal"] == "memory.available" && number(by, "at")? == hard, "{plan}");
    let candidates = plan["candidates"].as_array().context("the plan has candidates")?;
    let by_manifest = candidates.iter().find(|it| it["cgroup"] == unlisted.path()).context("it is ranked")?;
    let ranked = ["priority", "request", "protected_as"].map(|field| &by_manifest[field]);
    ensure!(ranked == [&json!(7), &json!(64 * MIB), &json!("static")], "by its manifest: {by_manifest}");
    let line = format!("plimsoll: killed {}: usage ", low.path());
    let line = kernel_log.find(&line)?.with_context(|| format!("no line {line:?} in the kernel's log"))?;
    ensure!(line.contains(", threshold ") && line.trim_end().ends_with(", pod default/low"), "{line}");
    let killed = number(&kills(&low, "begun")?[0], "at_ns")?;
    let plans = plans()?;
    let over = plans.iter().find(|plan| plan["memory_pressure"] == false && plan["taken_ns"].as_u64() > Some(killed));
    let over = number(over.context("the condition ends")?, "made_ns")?;
    ensure!(over - killed >= nanoseconds(transition)?, "killed at {killed}, the condition ended at {over}");
    node.expect_room()?;
    node.end(&[&low], &[&bystander, &unlisted, &fixed, &critical, &high])
}

/// How many tasks there can be beside those that there are, with how few left pods are evicted, and how many the bomb may
/// have at most.
const TASKS: u64 = 700;
const TASKS_LEFT: u64 = 500;
const BOMB: u64 = 400;

/// A fork bomb in a container crosses a threshold on pid.available: its pod alone is evicted, and no runtime's process. The
/// condition ends, and a new pod runs.
pub(crate) fn fork_bomb() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let bomb = node.pod("bomb", Class::BestEffort, USUAL)?;
    let container = bomb.start_held(&node.client, "main", &["fork", "--mib", "1"])?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\", pid.available: \"{TASKS_LEFT}\"}}\n\
         evictionPressureTransitionPeriod: {}s\n",
        TRANSITION.as_secs()
    ))?;
    let scope = container_cgroup(&bomb, &container)?;
    scope.write("pids.max", &BOMB.to_string())?;
    let limits = TaskLimits::open()?;
    let _limit = KernelSetting::begin("/proc/sys/kernel/pid_max", &(limits.read()?.tasks + TASKS).to_string())?;
    bomb.let_go()?;
    expect_dead(&bomb)?;
    await_metric("plimsoll_pid_pressure 1", PATIENCE)?;
    wait_for("the machine can have more tasks again", PATIENCE, || Ok(limits.read()?.available() > TASKS_LEFT))?;
    let plan = eviction_of(&bomb)?;
    let by = acting(&plan)?;
    ensure!(by["signal"] == "pid.available" && number(by, "at")? == TASKS_LEFT, "{plan}");
    await_metric("plimsoll_pid_pressure 0", PATIENCE)?;
    node.expect_room()?;
    node.end(&[&bomb], &[&bystander])
}

/// What all pods may take together, in MiB, how much of that is to be left, and what one of them has.
const ALLOCATABLE: u64 = 320;
const ALLOCATABLE_LEFT: u64 = 64;
const CALM: u64 = 48;

/// Pods come near to what is allocatable while the machine has plenty: the one that grew is evicted before the kernel kills
/// at the limit of all pods, and neither the other pod nor a larger service outside. What is left to pods is above the
/// threshold then, the condition ends, and a new pod runs.
pub(crate) fn allocatable_memory() -> Result<()> {
    let mut node = Node::new()?;
    let calm = node.pod("calm", Class::Burstable, USUAL)?;
    calm.start(&node.client, "main", &["idle", "--mib", &CALM.to_string()])?;
    let growing = node.pod("growing", Class::BestEffort, USUAL)?;
    growing.start_held(&node.client, "main", &["anon", "--mib", &ALLOCATABLE.to_string(), "--rate", "64"])?;
    let outside = start_guest("outside", &[], &["idle", "--mib", &(2 * CALM).to_string()])?;
    let limit = format!("MemoryMax={}", ALLOCATABLE * MIB);
    systemctl(&["set-property", "--runtime", "kubepods.slice", &limit])?;
    let all = Cgroup::existing("kubepods.slice")?;
    wait_for("all pods have a limit", PATIENCE, || {
        Ok(all.read("memory.max")?.trim() == (ALLOCATABLE * MIB).to_string())
    })?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: {ALLOCATABLE_LEFT}Mi}}\nevictionPressureTransitionPeriod: {}s\n",
        TRANSITION.as_secs()
    ))?;
    growing.let_go()?;
    expect_dead(&growing)?;
    // Of the node, as the kubelet has it.
    await_metric(PRESSURE, PATIENCE)?;
    wait_for("pods can take more again", PATIENCE, || Ok(all.current()? < (ALLOCATABLE - ALLOCATABLE_LEFT) * MIB))?;
    let plan = eviction_of(&growing)?;
    let by = acting(&plan)?;
    ensure!(plan["slice"] == "pods" && by["signal"] == "allocatableMemory.available", "{plan}");
    ensure!(plan["memory_pressure"] == true, "{plan}");
    ensure!(number(by, "at")? == ALLOCATABLE_LEFT * MIB, "{plan}");
    let available = machine::meminfo("MemAvailable")?;
    ensure!(available > 2 * ALLOCATABLE_LEFT * MIB, "the machine had {available} bytes available");
    let events = all.read("memory.events")?;
    ensure!(named(&events, "oom_kill") == Some(0), "the kernel killed at the limit of all pods: {events}");
    ensure!(outside.populated()?, "the service outside died; {}", logged());
    await_read(&["allocatableMemory.available"])?;
    await_metric(NO_PRESSURE, PATIENCE)?;
    node.expect_room()?;
    node.end(&[&growing], &[&calm])
}

/// Pods are evicted for memory until the threshold and its minimum reclaim are available, where the first victim alone
/// would have been enough for the threshold.
pub(crate) fn minimum_reclaim() -> Result<()> {
    const EACH: u64 = 96;
    const RECLAIM: u64 = 120;
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let pods = ["one", "two", "three"].map(|name| node.pod(name, Class::BestEffort, USUAL));
    let [one, two, three] = pods;
    let pods = [one?, two?, three?];
    for pod in &pods {
        pod.start_held(&node.client, "main", &["anon", "--mib", &EACH.to_string(), "--rate", "64"])?;
    }
    // The third one crosses it.
    let hard = threshold(2 * EACH + EACH / 2)?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{hard}\"}}\nevictionMinimumReclaim: {{memory.available: {RECLAIM}Mi}}\n"
    ))?;
    for pod in &pods {
        pod.let_go()?;
        let grown = || Ok(pod.cgroup()?.current()? >= EACH * MIB || machine::meminfo("MemAvailable")? < hard);
        wait_for("the pod has grown", PATIENCE, grown)?;
    }
    await_available(hard + RECLAIM * MIB)?;
    node.expect_room()?;
    let mut killed: Vec<&Pod> = Vec::new();
    wait_for("kills are reported", PATIENCE, || {
        killed = pods.iter().filter(|pod| kills(pod, "begun").is_ok_and(|kills| !kills.is_empty())).collect();
        Ok(killed.len() >= 2)
    })
    .with_context(logged)?;
    let plan = eviction_of(killed[0])?;
    let by = acting(&plan)?;
    let (at, target, available) = (number(by, "at")?, number(by, "target")?, number(by, "available")?);
    ensure!((at, target) == (hard, hard + RECLAIM * MIB), "{plan}");
    ensure!(at - available.min(at) < EACH * MIB, "one pod was not enough for the threshold itself: {plan}");
    // Two workers kill side by side, and are reported in either order.
    let begun = begun_kills(&journal()?);
    killed.sort_by_key(|pod| begun.iter().position(|(cgroup, _)| *cgroup == pod.path()));
    let alive: Vec<&Pod> = pods.iter().filter(|pod| killed.iter().all(|dead| dead.name != pod.name)).collect();
    node.end(&killed, &[alive, vec![&bystander]].concat())
}
