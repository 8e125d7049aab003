//! The group `cluster`: what is installed into a cluster, beside a real control plane on this machine's loopback, and one race
//! beside a real node: a machine with containerd and a kubelet. Beside that are long runs of all tests, and of all races.

use std::path::Path;
use std::process::Command;

use anyhow::ensure;

use super::report::{self, Report};
use crate::cluster::{self, kube};
use crate::install::{self, Need};
use crate::{build_ebpf, run};

/// Where a control plane leaves its logs, alone and beside a node.
const PLACE: &str = "target/test/cluster";
const PLACE_WITH_NODE: &str = "target/test/cluster-with-node";
/// Packages with tests behind the feature `cluster-tests`, and the files of those for which a control plane is enough.
const BESIDE_A_CONTROL_PLANE: [(&str, &str); 3] =
    [("plimsoll-cluster-suite", "control_plane"), ("plimsoll-kube", "api_server"), ("plimsoll", "cluster")];

/// The modules of tests beside a node (`tests/cluster/suite/tests/node`) that are groups of their own: all together take hours.
const OUTAGES: [&str; 5] = ["dry_run", "kill_switch", "outages", "removal", "upgrade"];
const SIGNALS: [&str; 7] = ["allocatable", "disks", "figures", "many", "pids", "standard", "tokens"];
const ORDER: [&str; 3] = ["crowd", "priorities", "refusals"];
/// The kernel of the suite whose containerd is 2.0 or later, and the modules that run beside it: of these the first one nowhere
/// else, as a kubelet has user namespaces with that alone.
pub(super) const NEWEST: &str = "7.2";
const WITH_NEWEST: [&str; 3] = ["user_namespaces", "eviction", "shapes"];

/// How fast the pod of a race grows, in MiB a second, or as fast as it can for 0; and how often each is run, so that times are
/// compared (`tests/cluster/suite/tests/node/race.rs`).
const RATES: [(&str, &str); 3] = [("50 MiB/s", "50"), ("200 MiB/s", "200"), ("as fast as it can", "0")];
const ROUNDS: &str = "5";

pub(super) fn needs(kernels: &[&str]) -> anyhow::Result<Vec<Need>> {
    let node = (!kernels.is_empty()).then_some(cluster::NODE_KERNEL);
    Ok([&install::EBPF[..], &cluster::needs_beside(node)?].concat())
}

/// The tests beside a control plane, and one race beside a node where its kernel is booted.
pub(super) fn run(kernels: &[&str], report: &mut Report) -> anyhow::Result<()> {
    let program = kube::program()?;
    // One of the packages has it in its program.
    build_ebpf::run(&build_ebpf::PROCESSORS)?;
    cluster::beside(run::root().join(PLACE), None, |kubeconfig| {
        for (package, file) in BESIDE_A_CONTROL_PLANE {
            let mut tests = cluster::tests(package, file, kubeconfig, &program);
            report.tests(&format!("{package} {file}"), &mut tests)?;
        }
        Ok(())
    })?;
    if kernels.is_empty() {
        report.not_run("a race beside a node", "its kernel was not asked for");
        return Ok(());
    }
    cluster::beside(run::root().join(PLACE_WITH_NODE), Some(cluster::NODE_KERNEL), |kubeconfig| {
        report.tests("a race beside a node", &mut race(kubeconfig, &program))
    })
}

/// What the tests beside a node need.
pub(super) fn needs_with_node(_: &[&str]) -> anyhow::Result<Vec<Need>> {
    cluster::needs_beside(Some(cluster::NODE_KERNEL))
}

/// The same with the newest kernel.
pub(super) fn needs_with_newest(_: &[&str]) -> anyhow::Result<Vec<Need>> {
    cluster::needs_beside(Some(NEWEST))
}

/// The tests beside a node but for [`signals`], [`outages`] and [`order`], and those that need a newer one.
pub(super) fn evictions(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    let is_elsewhere = |module: &str| {
        [&SIGNALS[..], &OUTAGES, &ORDER, &WITH_NEWEST[..1]].iter().any(|modules| modules.contains(&module))
    };
    beside_a_node_where(cluster::NODE_KERNEL, |module| !is_elsewhere(module), report)
}

/// A few of them beside the newest kernel and containerd.
pub(super) fn with_newest(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    beside_a_node_where(NEWEST, |module| WITH_NEWEST.contains(&module), report)
}

/// Those of other signals than memory and of the standard conditions, and those that wait long.
pub(super) fn signals(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    beside_a_node_where(cluster::NODE_KERNEL, |module| SIGNALS.contains(&module), report)
}

/// Those in which the agent, the kubelet, the API server or what people do of them is not as usual.
pub(super) fn outages(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    beside_a_node_where(cluster::NODE_KERNEL, |module| OUTAGES.contains(&module), report)
}

/// Those of many pods and of the order in which several go, and those in which the API server refuses what the agent writes.
pub(super) fn order(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    beside_a_node_where(cluster::NODE_KERNEL, |module| ORDER.contains(&module), report)
}

/// The tests in these modules beside a node with this kernel.
fn beside_a_node_where(
    kernel: &'static str,
    is_asked: impl Fn(&str) -> bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let program = kube::program()?;
    // To list them no cluster is needed.
    let mut list = beside_a_node(Path::new(""), &program);
    let mut names = report::listed(list.args(["--", "--list", "--format", "terse"]))?;
    names.retain(|name| is_asked(name.split("::").next().unwrap_or_default()));
    ensure!(!names.is_empty(), "no test beside a node is in a module of this group");
    names.retain(|name| !report.passed_before(name));
    if names.is_empty() {
        return Ok(());
    }
    cluster::beside(run::root().join(PLACE_WITH_NODE), Some(kernel), |kubeconfig| {
        let mut tests = beside_a_node(kubeconfig, &program);
        report.tests_of("tests beside a node", tests.args(["--", "--exact"]).args(names))
    })
}

/// Races beside a node: the same pod at each rate, beside the kubelet alone, a bare kill, and the agent.
pub(super) fn races(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    let left: Vec<_> = RATES.iter().filter(|(name, _)| !report.passed_before(name)).collect();
    if left.is_empty() {
        return Ok(());
    }
    let program = kube::program()?;
    cluster::beside(run::root().join(PLACE_WITH_NODE), Some(cluster::NODE_KERNEL), |kubeconfig| {
        for (name, rate) in left {
            let mut races = race(kubeconfig, &program);
            races.env("PLIMSOLL_TEST_RATE", rate).env("PLIMSOLL_TEST_ROUNDS", ROUNDS);
            report.run(name, &mut races);
        }
        Ok(())
    })
}

fn beside_a_node(kubeconfig: &Path, program: &Path) -> Command {
    cluster::tests("plimsoll-cluster-suite", "node", kubeconfig, program)
}

fn race(kubeconfig: &Path, program: &Path) -> Command {
    let mut race = beside_a_node(kubeconfig, program);
    race.args(["--", "--exact", cluster::RACE]);
    race
}
