//! What passes between a client and a runtime, and what does not.

use crate::fake::{Fake, Manner, Served, connected, container, image, proto};
use core::time::Duration;
use plimsoll_cri::{Change, ContainerId, Dial, Error, Guard, ImageId, Limits, Listed, Runtime, SandboxId, pass};
use plimsoll_units::Bytes;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tonic::Code;

const GRACE: Duration = Duration::from_secs(7);

/// What it was asked for, with how much was listed of pods and of images then, and how many of these were used; and whether it allows that.
#[derive(Default)]
struct Asked {
    allows: Mutex<bool>,
    changes: Mutex<Vec<(Change, [usize; 3])>>,
}

impl Guard for Asked {
    fn refusal_of_kind(&self, _: &Change) -> Option<&'static str> {
        None
    }

    fn refusal(&self, change: &Change, listed: &Listed) -> Option<&'static str> {
        let is_used = |image| usize::from(listed.in_use.has(image));
        let used = listed.images.iter().map(is_used).sum();
        let counts = [listed.sandboxes.len() + listed.containers.len(), listed.images.len(), used];
        self.changes.lock().expect("no panic").push((change.clone(), counts));
        (!*self.allows.lock().expect("no panic")).then_some("no order covers it")
    }
}

/// A client of the runtime behind this socket, with a broker in between.
fn brokered(socket: PathBuf, guard: &Arc<Asked>) -> Runtime {
    let (dialled, guard) = (socket.clone(), Arc::clone(guard));
    let dial = Dial::by(move |_: &Path| {
        let (socket, guard) = (dialled.clone(), Arc::clone(&guard));
        async move {
            let (near, far) = UnixStream::pair()?;
            tokio::spawn(pass(far, UnixStream::connect(socket).await?, guard));
            Ok(near)
        }
    });
    Runtime::at(socket, Limits::default()).through(dial)
}

async fn between(folder: &Path) -> (Fake, Served, Arc<Asked>, Runtime) {
    let (fake, served, _) = connected(folder, |node| {
        node.sandboxes = vec![proto::PodSandbox {
            id: "s".to_owned(),
            metadata: Some(proto::PodSandboxMetadata::default()),
            ..proto::PodSandbox::default()
        }];
        let used = proto::Container { image_id: "sha256:2".to_owned(), ..container("b", |_| {}) };
        node.containers = vec![container("a", |it| it.state = 2), used];
        let sandboxes = proto::Image { repo_tags: vec!["pause".to_owned()], ..image("sha256:3", 9) };
        node.images = vec![image("sha256:1", 9), image("sha256:2", 9), sandboxes];
        node.config = Some(r#"{"sandboxImage": "pause"}"#);
    })
    .await;
    let guard = Arc::default();
    let runtime = brokered(served.socket.clone(), &guard);
    (fake, served, guard, runtime)
}

/// Each of the calls that change something, with the change that it is.
async fn change_all(runtime: &mut Runtime) -> Vec<(Change, Result<(), Error>)> {
    let container = ContainerId::try_from("a".to_owned()).expect("an id");
    let sandbox = SandboxId::try_from("s".to_owned()).expect("an id");
    let image = ImageId::try_from("sha256:1".to_owned()).expect("an id");
    vec![
        (Change::StopContainer(container.clone(), GRACE), runtime.stop_container(&container, GRACE).await),
        (Change::SetMemoryHigh(container.clone(), Bytes(4096)), runtime.set_memory_high(&container, Bytes(4096)).await),
        (Change::RemoveContainer(container.clone()), runtime.remove_container(&container).await),
        (Change::StopSandbox(sandbox.clone()), runtime.stop_sandbox(&sandbox).await),
        (Change::RemoveSandbox(sandbox.clone()), runtime.remove_sandbox(&sandbox).await),
        (Change::RemoveImage(image.clone()), runtime.remove_image(&image).await),
    ]
}

#[tokio::test]
async fn what_reads_passes_and_a_change_passes_where_it_is_allowed_and_is_asked_about_with_what_is_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, guard, mut runtime) = between(folder.path()).await;
    assert_eq!(runtime.sandboxes().await.expect("it passes").len(), 1);
    assert_eq!(runtime.containers().await.expect("it passes").len(), 2);
    assert_eq!(runtime.images().await.expect("it passes").len(), 3);
    let gone = ContainerId::try_from("gone".to_owned()).expect("an id");
    assert!(runtime.container_status(&gone).await.expect("it passes").is_none(), "the runtime's own error");
    fake.calls();
    for allows in [false, true] {
        *guard.allows.lock().expect("no panic") = allows;
        let outcomes = change_all(&mut runtime).await;
        let asked = core::mem::take(&mut *guard.changes.lock().expect("no panic"));
        for ((change, outcome), (asked, listed)) in outcomes.iter().zip(&asked) {
            assert_eq!(change, asked);
            let is_listed = match change {
                Change::SetMemoryHigh(..) => [0; 3],
                Change::RemoveImage(_) => [0, 3, 2],
                _ => *listed,
            };
            assert_eq!(*listed, is_listed, "{change:?}");
            assert!(listed.iter().any(|count| *count > 0) || matches!(change, Change::SetMemoryHigh(..)), "{change:?}");
            match outcome {
                Ok(()) => assert!(allows, "{change:?}"),
                Err(Error::Failed { code: Code::PermissionDenied, why, .. }) if !allows => {
                    assert_eq!(why, "no order covers it");
                }
                Err(error) => panic!("{change:?}: {error}"),
            }
        }
        assert_eq!(asked.len(), outcomes.len());
        let mut calls = fake.calls();
        calls.retain(|call| !call.starts_with("List") && call != "Version" && call != "Status");
        let expected = [
            "StopContainer a 7",
            "UpdateContainerResources a {\"memory.high\": \"4096\"}",
            "RemoveContainer a",
            "StopPodSandbox s",
            "RemovePodSandbox s",
            "RemoveImage sha256:1",
        ];
        assert_eq!(calls, if allows { &expected[..] } else { &[] });
    }
}

#[tokio::test]
async fn a_change_of_what_cannot_be_listed_does_not_pass_and_a_runtime_that_ends_is_seen_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, served, guard, mut runtime) = between(folder.path()).await;
    *guard.allows.lock().expect("no panic") = true;
    fake.change(|node| node.manner = Manner::Refuse(Code::Internal, "no lists"));
    let container = ContainerId::try_from("a".to_owned()).expect("an id");
    let error = runtime.stop_container(&container, GRACE).await.expect_err("it does not pass");
    assert!(error.to_string().contains("no lists"), "{error}");
    assert!(
        guard.changes.lock().expect("no panic").is_empty() && !fake.calls().contains(&"StopContainer a 7".to_owned())
    );
    fake.change(|node| node.manner = Manner::Well);
    runtime.containers().await.expect("it passes");
    fake.change(|node| node.manner = Manner::Drop { once: true });
    runtime.containers().await.expect("it is asked again on another connection");
    served.stop().await;
    let error = runtime.containers().await.expect_err("there is none");
    assert!(matches!(error, Error::Connect { .. }), "{error}");
}

#[tokio::test]
async fn what_is_no_http_ends_the_connection_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, served, guard, _) = between(folder.path()).await;
    let (mut near, far) = UnixStream::pair().expect("sockets");
    let runtime = UnixStream::connect(&served.socket).await.expect("it listens");
    let passing = tokio::spawn(pass(far, runtime, Arc::clone(&guard)));
    near.write_all(&[b'x'; 4096]).await.expect("it is open");
    passing.await.expect("it ends");
    // It ends; as one that was reset where not all of it was read.
    let _ = near.read_to_end(&mut Vec::new()).await;
    assert_eq!(fake.calls(), [""; 0]);
}
