//! The group `cluster`: what is installed into a cluster, beside a real control plane on this machine's loopback, and one race
//! beside a real node: a machine with containerd and a kubelet. Beside that are long runs of all tests, and of all races.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::report::{self, Report};
use crate::cluster::{self, kube};
use crate::install::{self, Need};
use crate::{build_ebpf, run, vm};

/// Where a control plane leaves its logs, alone and beside a node.
const PLACE: &str = "target/test/cluster";
const PLACE_WITH_NODE: &str = "target/test/cluster-with-node";
/// Packages with tests behind the feature `cluster-tests`, and the files of those for which a control plane is enough.
const BESIDE_A_CONTROL_PLANE: [(&str, &str); 3] =
    [("plimsoll-cluster-suite", "control_plane"), ("plimsoll-kube", "api_server"), ("plimsoll", "cluster")];

/// The modules of tests beside a node (`tests/cluster/suite/tests/node`) that are groups of their own: all together take hours.
const OUTAGES: [&str; 4] = ["dry_run", "kill_switch", "outages", "upgrade"];
const SIGNALS: [&str; 7] = ["allocatable", "disks", "figures", "many", "pids", "standard", "tokens"];
const ORDER: [&str; 5] = ["crowd", "outside", "priorities", "refusals", "removal"];
/// And the one that is a group of its own.
const KUBELETS: &str = "kubelets";
/// The kernel of the suite whose containerd is 2.0 or later, and the modules that run beside it: of these the first one nowhere
/// else, as a kubelet has user namespaces with that alone.
pub(super) const NEWEST: &str = "7.2";
const WITH_NEWEST: [&str; 3] = ["user_namespaces", "eviction", "shapes"];

/// How often a long race is run, so that times are compared (`tests/cluster/suite/tests/node/race.rs`).
const ROUNDS: &str = "5";

pub(super) fn needs(kernels: &[&str]) -> anyhow::Result<Vec<Need>> {
    let node = (!kernels.is_empty()).then_some(cluster::NODE_KERNEL);
    let proxy = install::go_programs(&[&kube::RBAC_PROXY])?;
    Ok([&install::EBPF[..], &cluster::needs_beside(node)?, &proxy].concat())
}

/// The tests beside a control plane, and one race beside a node where its kernel is booted.
pub(super) fn run(kernels: &[&str], report: &mut Report) -> anyhow::Result<()> {
    let (program, proxy) = (kube::program()?, kube::RBAC_PROXY.get()?);
    // One of the packages has it in its program.
    build_ebpf::run(&build_ebpf::PROCESSORS)?;
    cluster::beside(run::root().join(PLACE), None, |kubeconfig| {
        for (package, file) in BESIDE_A_CONTROL_PLANE {
            let mut tests = cluster::tests(package, file, kubeconfig, &program);
            tests.env("PLIMSOLL_TEST_RBAC_PROXY", &proxy);
            report.tests(&format!("{package} {file}"), &mut tests)?;
        }
        Ok(())
    })?;
    if kernels.is_empty() {
        report.not_run("a race beside a node", "its kernel was not asked for");
        return Ok(());
    }
    let tests = BesideANode::build()?;
    beside_a_node_each(cluster::NODE_KERNEL, vec![cluster::RACE.to_owned()], report, |kubeconfig, name, report| {
        report.tests_of(name, &mut tests.one(kubeconfig, name))
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
        [&SIGNALS[..], &OUTAGES, &ORDER, &WITH_NEWEST[..1], &[KUBELETS]].iter().any(|modules| modules.contains(&module))
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

/// Those of many pods, of the order in which several go and of what no pod has taken, those in which the API server refuses what
/// the agent writes, and the removal.
pub(super) fn order(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    beside_a_node_where(cluster::NODE_KERNEL, |module| ORDER.contains(&module), report)
}

/// The pod of the races beside the kubelet alone, as it can be configured beside its defaults.
pub(super) fn kubelets(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    beside_a_node_where(cluster::NODE_KERNEL, |module| module == KUBELETS, report)
}

/// The tests in these modules beside a node with this kernel.
fn beside_a_node_where(
    kernel: &'static str,
    is_asked: impl Fn(&str) -> bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let tests = BesideANode::build()?;
    let mut names = report::listed(Command::new(&tests.program).args(["--list", "--format", "terse"]))?;
    names.retain(|name| is_asked(name.split("::").next().unwrap_or_default()));
    ensure!(!names.is_empty(), "no test beside a node is in a module of this group");
    names.retain(|name| !report.passed_before(name));
    beside_a_node_each(kernel, names, report, |kubeconfig, name, report| {
        report.tests_of(name, &mut tests.one(kubeconfig, name))
    })
}

/// Runs the tests or steps with these names beside a node with this kernel. One that fails where the emulator has ended the node's
/// kernel says nothing ([`crate::vm::boot`]): it is run again, as those after it are, beside another node, twice at most.
fn beside_a_node_each(
    kernel: &'static str,
    names: Vec<String>,
    report: &mut Report,
    one: impl Fn(&Path, &str, &mut Report) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (place, mut left, mut booted_again) = (run::root().join(PLACE_WITH_NODE), VecDeque::from(names), 0);
    while !left.is_empty() {
        cluster::beside(place.clone(), Some(kernel), |kubeconfig| {
            while let Some(name) = left.front() {
                let failures = report.failures();
                one(kubeconfig, name, report)?;
                let console = cluster::console(&place);
                let oops = stale_breakpoint(&console)?.filter(|_| booted_again < vm::BOOTS_AGAIN);
                if let Some(oops) = oops.filter(|_| report.take_back(failures)) {
                    booted_again += 1;
                    // The next node has the name and the place.
                    let kept = place.with_extension(format!("{booted_again}.log"));
                    fs::copy(&console, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
                    println!("{}{kernel}: {oops}; its console is {}", vm::BOOTED_AGAIN, kept.display());
                    report.booted_again(1);
                    return Ok(());
                }
                left.pop_front();
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The line in which a kernel reported a breakpoint that is no more, if it did.
fn stale_breakpoint(console: &Path) -> anyhow::Result<Option<String>> {
    let text = fs::read(console).with_context(|| format!("cannot read {}", console.display()))?;
    Ok(String::from_utf8_lossy(&text).lines().find(|line| line.contains(vm::STALE_BREAKPOINT)).map(str::to_owned))
}

/// Races beside a node: the same pod beside the kubelet alone, a bare kill, and the agent. It grows at this rate, in MiB a second,
/// or as fast as it can for 0.
pub(super) fn races(rate: &str, report: &mut Report) -> anyhow::Result<()> {
    let name = if rate == "0" { "as fast as it can".to_owned() } else { format!("{rate} MiB/s") };
    if report.passed_before(&name) {
        return Ok(());
    }
    let tests = BesideANode::build()?;
    beside_a_node_each(cluster::NODE_KERNEL, vec![name], report, |kubeconfig, name, report| {
        let mut races = tests.one(kubeconfig, cluster::RACE);
        races.env("PLIMSOLL_TEST_RATE", rate).env("PLIMSOLL_TEST_ROUNDS", ROUNDS);
        report.run(name, &mut races);
        Ok(())
    })
}

/// The tests beside a node, built once: what is edited while one runs is in none of them.
struct BesideANode {
    program: PathBuf,
    kube: PathBuf,
}

impl BesideANode {
    fn build() -> anyhow::Result<Self> {
        Ok(Self { program: cluster::built_tests("plimsoll-cluster-suite", "node")?, kube: kube::program()? })
    }

    /// What runs the one with this name.
    fn one(&self, kubeconfig: &Path, name: &str) -> Command {
        let mut test = Command::new(&self.program);
        cluster::beside_it(test.args(["--exact", name]).current_dir(run::root()), kubeconfig, &self.kube);
        test
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_the_emulator_has_ended_is_known_by_its_console() {
        let place = tempfile::tempdir().expect("a directory");
        let console = place.path().join("console");
        for (text, expected) in [
            (
                &b"[  1.0] Run /init\n[ 24.5] Oops: int3: 0000 [#1] PREEMPT SMP\nend"[..],
                Some("[ 24.5] Oops: int3: 0000 [#1] PREEMPT SMP"),
            ),
            (b"[  1.0] Run /init\n\xff agent | int3\n", None),
        ] {
            fs::write(&console, text).expect("writable");
            assert_eq!(stale_breakpoint(&console).expect("readable").as_deref(), expected);
        }
        assert!(stale_breakpoint(&place.path().join("none")).is_err());
    }
}
