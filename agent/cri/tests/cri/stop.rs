//! A pod's orderly end, by a runtime in the same process.

use crate::fake::{Manner, connected, container, proto};
use core::time::Duration;
use plimsoll_cri::{ContainerId, Error, RunningPod, SandboxId};
use proto::ContainerState::{ContainerCreated, ContainerExited, ContainerRunning, ContainerUnknown};
use proto::PodSandboxState::{SandboxNotready, SandboxReady};
use tokio::time::Instant;

fn sandbox(id: &str, uid: &str, state: proto::PodSandboxState) -> proto::PodSandbox {
    let metadata = Some(proto::PodSandboxMetadata { uid: uid.to_owned(), ..proto::PodSandboxMetadata::default() });
    proto::PodSandbox { id: id.to_owned(), metadata, state: state.into(), ..proto::PodSandbox::default() }
}

/// The pod `web`, of which a sandbox was made anew, beside another one.
fn fill(node: &mut crate::fake::Node) {
    node.sandboxes = vec![
        sandbox("s1", "web", SandboxNotready),
        sandbox("s2", "web", SandboxReady),
        sandbox("o", "other", SandboxReady),
    ];
    let of = |id: &str, sandbox: &str, state: proto::ContainerState| {
        container(id, |made| (made.pod_sandbox_id, made.state) = (sandbox.to_owned(), state.into()))
    };
    node.containers = vec![
        of("app", "s2", ContainerRunning),
        of("lost", "s1", ContainerUnknown),
        of("ended", "s2", ContainerExited),
        of("made", "s2", ContainerCreated),
        of("theirs", "o", ContainerRunning),
    ];
}

fn names(pod: &RunningPod) -> (Vec<&str>, Vec<&str>) {
    (pod.containers.iter().map(ContainerId::as_str).collect(), pod.sandboxes.iter().map(SandboxId::as_str).collect())
}

#[tokio::test]
async fn of_a_pod_what_runs_is_stopped_with_its_grace_and_then_its_sandbox_and_nothing_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) = connected(folder.path(), fill).await;
    let pod = runtime.running_pod(|uid| uid == "web").await.expect("it is listed");
    assert_eq!(names(&pod), (vec!["app", "lost"], vec!["s2"]));
    let none = runtime.running_pod(|uid| uid == "gone").await.expect("it is listed");
    assert_eq!(none, RunningPod::default());
    fake.calls();
    runtime.stop_pod(&pod, Duration::from_secs(7)).await.expect("it is stopped");
    let mut calls = fake.calls();
    calls[..2].sort();
    assert_eq!(calls, ["StopContainer app 7", "StopContainer lost 7", "StopPodSandbox s2"], "on one connection");
}

#[tokio::test]
async fn containers_are_stopped_at_the_same_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) = connected(folder.path(), fill).await;
    let pod = runtime.running_pod(|uid| uid == "web").await.expect("it is listed");
    fake.change(|node| node.manner = Manner::Hang);
    fake.calls();
    let stopping = tokio::spawn(async move { runtime.stop_pod(&pod, Duration::from_secs(7)).await });
    let begun = Instant::now();
    let mut calls = Vec::new();
    while calls.len() < 2 && begun.elapsed() < Duration::from_mins(1) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        calls.extend(fake.calls());
    }
    calls.sort();
    assert_eq!(calls, ["StopContainer app 7", "StopContainer lost 7"], "neither waits for the other");
    stopping.abort();
}

#[tokio::test]
async fn where_a_container_is_not_stopped_the_sandbox_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) = connected(folder.path(), fill).await;
    let pod = runtime.running_pod(|uid| uid == "web").await.expect("it is listed");
    fake.change(|node| node.manner = Manner::Refuse(tonic::Code::Internal, "no"));
    fake.calls();
    let error = runtime.stop_pod(&pod, Duration::ZERO).await.expect_err("it is refused");
    assert!(matches!(error, Error::Failed { .. }), "{error}");
    assert!(fake.calls().iter().all(|call| call.starts_with("StopContainer")));
}
