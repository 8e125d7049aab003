//! A hostile `services` on a node: it has connections that lead to the container runtime, which are equivalent to root.

use crate::agent::tail;
use crate::containerd::{GUEST, IMAGE, SANDBOX_IMAGE};
use crate::cri::api::ContainerState;
use crate::machine::wait_for;
use crate::node::{CRITICAL, Node, expect_dead, kills, threshold};
use crate::node_runtime_tests::runtime_log;
use crate::node_surroundings_tests::with_arguments;
use crate::node_tests::{is_whole, logged};
use crate::pod::{Class, Pod, SIGTERM_SENT, container_cgroup};
use crate::scene::{MIB, PATIENCE};
use crate::systemd::journal;
use crate::systemd_tests::processes;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::time::Duration;

/// What is available above the soft threshold before a pod grows, in MiB, and what one takes that crosses it.
const ROOM: u64 = 128;
const GROWTH: u64 = 256;
/// A hard threshold that is not reached.
const FAR: u64 = 32 * MIB;
/// memory.high of the container that has one.
const HIGH: u64 = 96 * MIB;
/// By which it is given a program to run in containers.
const FIFO: &str = "/run/hostile-orderer";
/// Until all was tried: a connection a second.
const TRIES: Duration = Duration::from_mins(3);
/// Each kind of call that it tries.
const CALLS: [&str; 11] = [
    "run-a-program",
    "stop-by-the-older-interface",
    "kill-by-containerd",
    "set-memory-high",
    "stop-by-a-part-of-the-id",
    "stop-container",
    "stop-pods",
    "remove-container",
    "stop-sandbox",
    "remove-sandbox",
    "remove-image",
];

/// What is there of pods and images.
#[derive(Debug, PartialEq, Eq)]
struct There {
    sandboxes: Vec<String>,
    images: Vec<String>,
    /// Of each container: its state, and its memory.high.
    containers: Vec<(ContainerState, String)>,
    /// Of each pod, those of its sandbox and its containers.
    processes: Vec<Vec<u32>>,
}

impl There {
    fn now(node: &Node, pods: &[(&Pod, &String)]) -> Result<Self> {
        let mut sandboxes = node.client.sandboxes()?;
        let mut images: Vec<_> = node.client.images()?.into_iter().map(|image| image.id).collect();
        sandboxes.sort();
        images.sort();
        let (mut containers, mut processes) = (Vec::new(), Vec::new());
        for (pod, container) in pods {
            let high = container_cgroup(pod, container)?.read("memory.high")?;
            containers.push((node.client.status(container)?.0, high.trim().to_owned()));
            let mut all = pod.processes()?;
            all.sort_unstable();
            processes.push(all);
        }
        Ok(Self { sandboxes, images, containers, processes })
    }
}

/// What it reported of one kind of call.
fn outcome<'a>(log: &'a str, call: &str) -> Option<&'a str> {
    log.lines().find_map(|line| line.strip_prefix("plimsoll: hostile: ")?.strip_prefix(call)?.strip_prefix(": "))
}

/// It changes, stops and removes nothing that the core did not order: not by the calls that the agent has use for, nor by
/// others, nor by garbage. What the core orders is done as ever.
pub(crate) fn services_has_a_runtime() -> Result<()> {
    let mut node = Node::new()?;
    let critical = node.static_pod("critical", Class::Guaranteed, CRITICAL)?.throttled_at(HIGH);
    let first = critical.start(&node.client, "main", &["idle", "--mib", "16"])?;
    let orderly = node.pod("orderly", Class::BestEffort, (0, 30))?;
    let second = orderly.start_orderly(&node.client, "main", &["anon", "--mib", &GROWTH.to_string()])?;
    let pods = [(&critical, &first), (&orderly, &second)];
    let _ = fs::remove_file(FIFO);
    mknodat(CWD, FIFO, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("cannot make a FIFO")?;
    with_arguments("", &format!("Environment=PLIMSOLL_HOSTILE_RUNTIME={FIFO}\n"))?;
    let soft = threshold(ROOM)?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\"}}\nevictionSoft: {{memory.available: \"{soft}\"}}\n\
         evictionSoftGracePeriod: {{memory.available: 1s}}\nevictionMaxPodGracePeriod: 20\n"
    ))?;
    wait_for("the pods have names", PATIENCE, || Ok(journal()?.contains("the container runtime names 2 pods")))
        .with_context(logged)?;
    let (before, agent) = (There::now(&node, &pods)?, processes()?);
    ensure!(before.images.len() >= [IMAGE, SANDBOX_IMAGE].len(), "{before:?}");
    fs::write(FIFO, format!("{GUEST}\n"))?;
    wait_for("all was tried", TRIES, || Ok(journal()?.contains("plimsoll: hostile: done"))).with_context(logged)?;
    let log = journal()?;
    let outcomes: Vec<&str> = log.lines().filter(|line| line.starts_with("plimsoll: hostile: ")).collect();
    let after = There::now(&node, &pods).with_context(|| format!("{outcomes:?}"))?;
    ensure!(after == before, "{before:?} became {after:?}: {outcomes:?}");
    for call in CALLS {
        let refused = outcome(&log, call)
            .and_then(|it| it.strip_prefix("0 carried out, ")?.strip_suffix(" refused, 0 failed")?.parse::<u32>().ok());
        ensure!(refused.is_some_and(|calls| calls > 0), "{call} was not refused alone: {outcomes:?}");
    }
    ensure!(outcome(&log, "listed") == Some("2 of 2 containers"), "{outcomes:?}");
    let now = processes()?;
    ensure!(now == agent, "a process of the agent ended: {agent:?} became {now:?}; {}", tail(&log));

    orderly.let_go()?;
    expect_dead(&orderly)?;
    ensure!(orderly.volume().join(SIGTERM_SENT).exists(), "it was sent no SIGTERM; {}", logged());
    ensure!(kills(&orderly, "asked")?.len() == 1 && kills(&orderly, "begun")?.is_empty(), "{}", logged());
    let said = format!("StopContainer for \\\"{second}\\\" with timeout 20 (s)");
    ensure!(runtime_log()?.contains(&said), "containerd's log has no {said:?}; {}", logged());
    is_whole(&critical)?;
    node.end(&[], &[&critical])
}
