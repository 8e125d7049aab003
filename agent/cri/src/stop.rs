//! An orderly end of a pod: each of its containers is stopped as the kubelet stops them, and then its sandboxes.

use crate::error::Error;
use crate::id::{ContainerId, SandboxId};
use crate::listed::{ContainerState, SandboxState};
use crate::runtime::Runtime;
use core::time::Duration;
use tokio::task::JoinSet;

/// What runs of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningPod {
    /// Containers that run, or of which the runtime has lost track.
    pub containers: Vec<ContainerId>,
    /// Sandboxes in which containers can run; more than one where the kubelet has made it anew.
    pub sandboxes: Vec<SandboxId>,
}

impl Runtime {
    /// What runs of the pod with a UID of which `is_pod` holds.
    ///
    /// # Errors
    /// Where the lists cannot be read.
    pub async fn running_pod(&mut self, is_pod: impl Fn(&str) -> bool) -> Result<RunningPod, Error> {
        let of_pod = self.sandboxes().await?.into_iter().filter(|sandbox| is_pod(&sandbox.uid));
        let of_pod: Vec<_> = of_pod.map(|sandbox| (sandbox.id, sandbox.state)).collect();
        let mut containers = self.containers().await?;
        containers.retain(|container| {
            let runs = !matches!(container.state, ContainerState::Created | ContainerState::Exited);
            runs && of_pod.iter().any(|(sandbox, _)| *sandbox == container.sandbox)
        });
        let ready = of_pod.into_iter().filter(|(_, state)| *state == SandboxState::Ready);
        Ok(RunningPod {
            containers: containers.into_iter().map(|container| container.id).collect(),
            sandboxes: ready.map(|(sandbox, _)| sandbox).collect(),
        })
    }

    /// Stops all containers of a pod at once, each with this grace, and its sandboxes once all have ended. It takes the grace
    /// and twice [`Limits::change`](crate::Limits::change) at most. No preStop hook runs, and sidecars end with the others:
    /// hooks and that order are the kubelet's.
    ///
    /// # Errors
    /// Where one was not stopped: the last error. All others are stopped, and the sandboxes stay.
    pub async fn stop_pod(&mut self, pod: &RunningPod, grace: Duration) -> Result<(), Error> {
        let mut calls = JoinSet::new();
        for id in pod.containers.clone() {
            let mut runtime = self.clone();
            calls.spawn(async move { runtime.stop_container(&id, grace).await });
        }
        let mut stopped = Ok(());
        while let Some(ended) = calls.join_next().await {
            // A call does not panic, and none is aborted.
            stopped = ended.unwrap_or(Ok(())).and(stopped);
        }
        stopped?;
        for id in &pod.sandboxes {
            self.stop_sandbox(id).await?;
        }
        Ok(())
    }
}
