//! `cargo xtask cluster`: a real Kubernetes on this machine, for people and for tests.

mod control_plane;
pub(crate) mod kube;
mod monitor;
mod node;
mod ports;
mod processes;
mod saved;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::install::{self, Need};
use crate::{kernels, run};
use control_plane::ControlPlane;
pub(crate) use node::KERNEL as NODE_KERNEL;

/// The test beside a node in which a pod fills its memory, with the agent and without.
pub(crate) const RACE: &str = "race::with_the_agent_nothing_is_killed_for_memory_but_the_pod_that_grew";

/// What to do with the cluster of this checkout.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Start the control plane on the loopback, and wait until it is ready: etcd, kube-apiserver,
    /// kube-controller-manager, kube-scheduler. Their logs are in target/cluster.
    Up {
        /// With a node: a virtual machine with containerd and a kubelet. It is booted once, saved, and restored from then on.
        #[arg(long)]
        node: bool,
        /// The node's kernel, with systemd and containerd of the Debian suite that has it: a suite or a version. One of another
        /// kernel than this is booted each time.
        #[arg(long, requires = "node", default_value = NODE_KERNEL, value_parser = kernels::version)]
        kernel: &'static str,
    },
    /// End all of it. What it stored is removed with the next start.
    Down,
    /// Run kubectl with every right.
    #[command(disable_help_flag = true)]
    Kubectl {
        /// As kubectl takes them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// What has to be there before.
pub(crate) fn needs(arguments: &Arguments) -> anyhow::Result<Vec<Need>> {
    let mut needs = install::go_programs(&[&kube::KUBERNETES])?;
    if let Action::Up { node: true, kernel } = arguments.action {
        needs.extend(node::needs(kernel)?);
    }
    Ok(needs)
}

/// Runs the action; the exit code is kubectl's where that is what was run.
pub(crate) fn command(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    install::all(&needs(arguments)?)?;
    let mut plane = ControlPlane::here();
    match &arguments.action {
        Action::Up { node, kernel } => {
            plane.up(node.then_some(*kernel))?;
            println!(
                "the control plane of Kubernetes {} is ready; `cargo xtask cluster kubectl` reaches it, and so does\n  \
                 export KUBECONFIG={}",
                kube::release()?,
                plane.kubeconfig().display()
            );
        }
        Action::Down => match plane.down()? {
            0 => println!("no cluster of this checkout runs"),
            ended => println!("{ended} processes were ended"),
        },
        Action::Kubectl { arguments } => {
            let status = plane.kubectl()?.args(arguments).status().context("cannot start kubectl")?;
            return Ok(status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .map_or(ExitCode::FAILURE, ExitCode::from));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What [`beside`] needs.
pub(crate) fn needs_beside(node: Option<&'static str>) -> anyhow::Result<Vec<Need>> {
    needs(&Arguments { action: Action::Up { node: node.is_some(), kernel: node.unwrap_or(NODE_KERNEL) } })
}

/// The tests in this file of a package, beside the cluster of this kubeconfig and with this program of Kubernetes. They find
/// both by variables (`tests/cluster/suite`).
pub(crate) fn tests(package: &str, file: &str, kubeconfig: &Path, program: &Path) -> Command {
    let mut tests = cargo_test(package, file);
    beside_it(&mut tests, kubeconfig, program);
    tests
}

fn cargo_test(package: &str, file: &str) -> Command {
    let mut tests = Command::new("cargo");
    tests.current_dir(run::root()).args(["test", "--locked", "--no-fail-fast", "--features", "cluster-tests"]);
    tests.args(["-p", package, "--test", file]);
    tests
}

/// Has tests find the cluster, and what kubectl is in.
pub(crate) fn beside_it(tests: &mut Command, kubeconfig: &Path, program: &Path) {
    tests.env("PLIMSOLL_TEST_KUBECONFIG", kubeconfig).env("PLIMSOLL_TEST_KUBE", program);
}

/// Builds the same tests, and gives their program.
pub(crate) fn built_tests(package: &str, file: &str) -> anyhow::Result<PathBuf> {
    // What is compiled is shown, which the second one does not do.
    run::shown(cargo_test(package, file).arg("--no-run"))?;
    let said = run::text(cargo_test(package, file).args(["--no-run", "--message-format", "json"]))?;
    let artifacts = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut programs =
        artifacts.filter(|it| it["target"]["name"] == file).filter_map(|it| Some(it["executable"].as_str()?.into()));
    programs.next().with_context(|| format!("cargo names no program of the tests {file} of {package}"))
}

/// What the console of a node has printed whose control plane is in this folder.
pub(crate) fn console(folder: &Path) -> PathBuf {
    folder.join(format!("{}.log", control_plane::NODE))
}

/// Runs `work` beside a control plane of its own in this folder, and a node with this kernel, with a kubeconfig that has every
/// right. All of it ends before this returns, and with this process where that is killed; its logs stay.
pub(crate) fn beside<T>(
    folder: PathBuf,
    node: Option<&'static str>,
    work: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut plane = ControlPlane::guarded(folder)?;
    plane.up(node)?;
    let done = work(&plane.kubeconfig());
    plane.end()?;
    done
}
