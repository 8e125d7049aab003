//! Directories that are left of a pod that is gone for good: reported, and left alone.

use crate::agent::{self, tail};
use crate::containerd;
use crate::machine::wait_for;
use crate::node::{Node, await_metric, lines};
use crate::node_storage_tests::{FAR, Filled};
use crate::node_tests::logged;
use crate::scene::MIB;
use crate::systemd::systemctl;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A pod has to have been gone for two minutes, and the container runtime is asked every half a minute at most.
const REPORTED: Duration = Duration::from_mins(6);
/// The scanner looks once a minute, and less often only where no directory has come or gone for minutes.
const SEEN: Duration = Duration::from_mins(3);
const MEASURED: &str = "plimsoll_orphaned_pods{measured=\"true\"}";

/// A pod is removed from the container runtime, its cgroup and its source, as by a kubelet that cannot remove its
/// directories: they are reported with what they take, and left; a pod that runs is not among them. Once they are
/// removed that is reported, too.
pub(crate) fn directories_of_a_pod_that_is_gone() -> Result<()> {
    let mut node = Node::new()?;
    let gone = Filled::make(&mut node, "gone", [4, 0])?;
    let stays = Filled::make(&mut node, "stays", [2, 0])?;
    let rotated = gone.pod.logs().join("main/0.log.20260101-000000");
    fs::write(&rotated, vec![1; usize::try_from(MIB)?])
        .with_context(|| format!("cannot write {}", rotated.display()))?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{FAR}\"}}\n"))?;
    await_metric(&format!("{MEASURED} 0"), SEEN)?;
    containerd::remove_sandbox(&node.client, &gone.pod.sandbox)?;
    let path = gone.pod.path();
    systemctl(&["stop", Path::new(&path).file_name().and_then(|name| name.to_str()).context("it is a slice")?])?;
    node.forget(&gone.pod)?;
    await_metric(&format!("{MEASURED} 1"), REPORTED)?;
    await_metric("plimsoll_orphaned_pods{measured=\"false\"} 0", SEEN)?;
    for (part, least) in [("logs", MIB), ("volumes", 4 * MIB)] {
        let bytes = bytes(part)?;
        ensure!((least..2 * least).contains(&bytes), "{part} take {bytes} bytes; {}", logged());
    }
    let is_said = || {
        let of_it = |line: &serde_json::Value| line["uid"] == gone.pod.uid.as_str() && line["orphaned"] == 1;
        Ok(lines()?.iter().any(of_it))
    };
    wait_for("it is in the log", SEEN, is_said).with_context(logged)?;
    let directories = [gone.pod.volume(), gone.pod.logs()];
    for directory in &directories {
        ensure!(directory.is_dir(), "{} was removed; {}", directory.display(), tail(&crate::systemd::journal()?));
    }
    let of_kubelet = gone.pod.volume();
    let of_kubelet = of_kubelet.ancestors().nth(3).context("the directory of the pod")?;
    for directory in [of_kubelet, &gone.pod.logs()] {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    await_metric(&format!("{MEASURED} 0"), SEEN)?;
    node.end(&[], &[&stays.pod])
}

/// What these parts of all that are measured take, as the metrics have it.
fn bytes(part: &str) -> Result<u64> {
    let (_, metrics) = agent::get(crate::node::ADDRESS.into(), "/metrics")?;
    let name = format!("plimsoll_orphaned_pods_bytes{{part=\"{part}\"}} ");
    agent::values(&metrics, &name).next().context("there is no such metric")
}
