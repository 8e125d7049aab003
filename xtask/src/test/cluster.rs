//! The group `cluster`: what is installed into a cluster, beside a real control plane on this machine's loopback. In long
//! runs the same beside a real node: a machine with containerd and a kubelet.

use super::report::Report;
use crate::cluster::{self, kube};
use crate::install::Need;
use crate::run;

/// Where the control plane leaves its logs.
const PLACE: &str = "target/test/cluster";
/// Packages with tests behind the feature `cluster-tests`, and the files of those for which a control plane is enough.
const BESIDE_A_CONTROL_PLANE: [(&str, &str); 3] =
    [("plimsoll-cluster-suite", "control_plane"), ("plimsoll-kube", "api_server"), ("plimsoll", "cluster")];
/// The same of those that need a node.
const BESIDE_A_NODE: [(&str, &str); 1] = [("plimsoll-cluster-suite", "node")];

pub(super) fn needs(_: &[&str]) -> anyhow::Result<Vec<Need>> {
    cluster::needs_beside(false)
}

pub(super) fn run(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    tests(false, &BESIDE_A_CONTROL_PLANE, report)
}

/// What the tests beside a node need.
pub(super) fn needs_with_node(_: &[&str]) -> anyhow::Result<Vec<Need>> {
    cluster::needs_beside(true)
}

/// The tests beside a node.
pub(super) fn run_with_node(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    tests(true, &BESIDE_A_NODE, report)
}

fn tests(with_node: bool, files: &[(&str, &str)], report: &mut Report) -> anyhow::Result<()> {
    let program = kube::program()?;
    cluster::beside(run::root().join(PLACE), with_node, |kubeconfig| {
        for (package, file) in files {
            let mut tests = cluster::tests(package, file, kubeconfig, &program);
            report.tests(&format!("{package} {file}"), &mut tests)?;
        }
        Ok(())
    })
}
