//! The group `cluster`: what is installed into a cluster, beside a real control plane on this machine's loopback.

use super::report::Report;
use super::unit::cargo;
use crate::cluster::{self, kube};
use crate::run;

/// Where the control plane leaves its logs.
const PLACE: &str = "target/test/cluster";
/// The variables in which the tests find the kubeconfig and the program of Kubernetes (`tests/cluster/suite`).
const KUBECONFIG: &str = "PLIMSOLL_TEST_KUBECONFIG";
const KUBE: &str = "PLIMSOLL_TEST_KUBE";
/// Tests that need a control plane, behind the feature `cluster-tests` of their packages.
const TESTS: [(&str, &str); 3] =
    [("plimsoll-cluster-suite", "control_plane"), ("plimsoll-kube", "api_server"), ("plimsoll", "cluster")];

pub(super) fn run(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    let program = kube::program()?;
    cluster::beside(run::root().join(PLACE), |kubeconfig| {
        for (package, test) in TESTS {
            let mut tests = cargo(&["test", "--locked", "--no-fail-fast", "--features", "cluster-tests"]);
            tests.args(["-p", package, "--test", test]);
            report.tests(package, tests.env(KUBECONFIG, kubeconfig).env(KUBE, &program))?;
        }
        Ok(())
    })
}
