//! The node for one test at a time, with or without the agent.

use std::ops::Deref;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::{Cluster, wait_for};
use serde_json::{Value, json};

use crate::view::{self, PODS, condition, conditions_of_ours, ends, pressure, taints_of_ours};
use crate::{NODE, PATIENCE, TAINT, overlay};

/// What tests make: what would make pods anew before the pods.
const KINDS: &str = "deployments,statefulsets,daemonsets,poddisruptionbudgets,pods";

/// One test at a time.
static NODE_IS_USED: Mutex<()> = Mutex::new(());

/// The cluster, until it is dropped for no other test.
pub(crate) struct Turn {
    cluster: Cluster,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for Turn {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Turn {
    fn take() -> Result<Self> {
        // A test that failed has left no more than what is removed here.
        let alone = NODE_IS_USED.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Cluster::of_environment()?;
        cluster.kubectl(&["delete", KINDS, "--all", "--grace-period=1"])?;
        Ok(Self { cluster, _alone: alone })
    }

    /// With the agent, installed or upgraded to this configuration, and no pressure.
    pub(crate) fn with_agent(configuration: &str) -> Result<Self> {
        let turn = Self::take()?;
        turn.install(configuration)?;
        Ok(turn)
    }

    /// Installs the agent, or upgrades it to this configuration, and waits until there is no pressure.
    pub(crate) fn install(&self, configuration: &str) -> Result<()> {
        self.install_from(&overlay::of_agents(self, configuration)?)
    }

    /// The same from this kustomization.
    pub(crate) fn install_from(&self, folder: &Path) -> Result<()> {
        self.apply(folder)?;
        self.kubectl(&["--namespace", "plimsoll", "rollout", "status", "daemonset/plimsoll", "--timeout=4m"])?;
        self.pressure_ends()
    }

    /// With the agent in a dry run, in which it is never ready and writes nothing.
    pub(crate) fn with_dry_run() -> Result<Self> {
        let turn = Self::take()?;
        turn.remove_agent()?;
        let mut console = turn.console(NODE)?;
        turn.apply(&overlay::of_agents(&turn, &overlay::with_metrics(overlay::DRY_RUN, ""))?)?;
        console.wait(&["armed with source ebpf", "shadows: dry run"], PATIENCE)?;
        Ok(turn)
    }

    /// With the kubelet alone.
    pub(crate) fn without_agent() -> Result<Self> {
        let turn = Self::take()?;
        turn.remove_agent()?;
        Ok(turn)
    }

    /// Removes the agent, and what it has written of the node, as cluster.md says.
    pub(crate) fn remove_agent(&self) -> Result<()> {
        if self.api.get("/api/v1/namespaces/plimsoll")?.status == 404 {
            return Ok(());
        }
        self.kubectl(&[
            "--namespace",
            "plimsoll",
            "delete",
            "daemonset",
            "plimsoll",
            "--ignore-not-found",
            "--cascade=foreground",
        ])?;
        let uninstall = overlay::of_uninstall(self)?;
        self.clean_up(&uninstall)?;
        let nodes = "daemonset/plimsoll-uninstall-nodes";
        Cluster::install(self, "uninstall-nodes")?;
        self.kubectl(&["--namespace", "plimsoll", "rollout", "status", nodes, "--timeout=4m"])?;
        let left = (conditions_of_ours(self)?, taints_of_ours(self)?);
        ensure!(left.0.is_empty() && left.1.is_empty(), "{left:?}");
        self.remove(&Cluster::manifests("uninstall-nodes"))?;
        self.remove(&uninstall)?;
        self.remove(&overlay::of_agents(self, overlay::SENSITIVE)?)
    }

    /// Has the job of this kustomization run to its end.
    pub(crate) fn clean_up(&self, uninstall: &Path) -> Result<()> {
        let job = "job/plimsoll-uninstall";
        // One that has completed, of other nodes: its template cannot be changed.
        self.kubectl(&["--namespace", "plimsoll", "delete", "--ignore-not-found", job])?;
        self.apply(uninstall)?;
        self.kubectl(&["--namespace", "plimsoll", "wait", "--for=condition=complete", "--timeout=4m", job]).map(drop)
    }

    /// Makes a pod.
    pub(crate) fn create(&self, pod: &Value) -> Result<()> {
        self.api.create(PODS, pod)?.object().map(drop)
    }

    /// Makes the priority class `high`.
    pub(crate) fn make_class(&self) -> Result<()> {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"},
            "value": 1_000_000,
        });
        let made = self.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class)?;
        // Of an earlier test.
        ensure!(made.status == 201 || made.status == 409, "{}", made.message());
        Ok(())
    }

    /// Waits until a pod runs. No container of it was started again, and it was not evicted.
    pub(crate) fn runs(&self, name: &str) -> Result<()> {
        wait_for(&format!("{name} runs"), PATIENCE, || {
            let pod = view::stored(self, name)?;
            ensure!(pod["status"]["phase"] != "Failed", "{}", pod["status"]);
            Ok(is_running(&pod).then_some(()))
        })
    }

    /// Whether a pod runs now, as [`Self::runs`] says.
    pub(crate) fn runs_on(&self, name: &str) -> bool {
        view::stored(self, name).is_ok_and(|pod| is_running(&pod))
    }

    /// Waits until memory is reported as short, with the taint.
    pub(crate) fn pressure_begins(&self) -> Result<()> {
        wait_for("memory is reported as short", PATIENCE, || {
            Ok(pressure(self)?.is_some_and(|condition| condition["status"] == "True").then_some(()))
        })?;
        wait_for("the taint is there", PATIENCE, || Ok(taints_of_ours(self)?.contains(&TAINT.to_owned()).then_some(())))
    }

    /// Waits until memory is reported as not short, without a taint.
    pub(crate) fn pressure_ends(&self) -> Result<()> {
        wait_for("memory is reported as not short", PATIENCE, || {
            Ok(pressure(self)?.is_some_and(|condition| condition["status"] == "False").then_some(()))
        })?;
        wait_for("the taint is gone", PATIENCE, || Ok(taints_of_ours(self)?.is_empty().then_some(())))
    }

    /// Waits until a condition of the node has this status.
    pub(crate) fn becomes(&self, kind: &str, status: &str) -> Result<()> {
        wait_for(&format!("{kind} is {status}"), PATIENCE, || {
            Ok(condition(self, kind)?.is_some_and(|it| it["status"] == status).then_some(()))
        })
    }

    /// Waits until a pod is recorded as evicted and all of its containers as ended.
    pub(crate) fn is_evicted(&self, name: &str) -> Result<()> {
        let waited = wait_for("the pod is evicted and its containers have ended", PATIENCE, || {
            let pod = view::stored(self, name)?;
            let is_evicted = pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted";
            Ok((is_evicted && ends(&pod)).then_some(()))
        });
        waited.with_context(|| format!("{name}: {:?}", view::stored(self, name)))
    }
}

/// All containers run, for the first time.
fn is_running(pod: &Value) -> bool {
    let containers = view::containers(pod);
    let runs = containers.iter().all(|it| it["state"]["running"].is_object() && it["restartCount"] == 0);
    !containers.is_empty() && pod["status"]["phase"] == "Running" && runs
}
