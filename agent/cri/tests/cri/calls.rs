//! What is listed, stopped and removed, against a runtime that answers well.

use crate::fake::{Manner, connected, container, image, proto, spec};
use core::time::Duration;
use plimsoll_cri::{ContainerId, ContainerState, Error, ImageId, SandboxId, SandboxState};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A name made to hurt: a terminal escape, a line break, a direction override, quotes.
const HOSTILE: &str = "\u{1b}]0;x\u{7}\n\u{202e}'\"";

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn at(nanoseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)
}

#[tokio::test]
async fn sandboxes_and_containers_come_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) = connected(folder.path(), |node| {
        let metadata = proto::PodSandboxMetadata {
            name: HOSTILE.to_owned(),
            uid: "uid-1".to_owned(),
            namespace: "default".to_owned(),
            attempt: 3,
        };
        node.sandboxes = vec![proto::PodSandbox {
            id: "sandbox".to_owned(),
            metadata: Some(metadata),
            state: 1,
            created_at: 5_000_000_007,
            labels: map(&[("app", HOSTILE)]),
            annotations: map(&[("kubernetes.io/config.source", "file")]),
        }];
        node.containers = vec![
            container("first", |it| {
                it.metadata = Some(proto::ContainerMetadata { name: HOSTILE.to_owned(), attempt: 7 });
                it.image = Some(proto::ImageSpec { user_specified_image: "nginx:1".to_owned(), ..spec("sha256:spec") });
                it.image_ref = "sha256:ref".to_owned();
                it.image_id = "sha256:id".to_owned();
                it.state = 1;
                it.created_at = 9;
                it.labels = map(&[("io.kubernetes.pod.uid", "uid-1")]);
                it.annotations = map(&[("io.kubernetes.container.restartCount", "7")]);
            }),
            container("second", |it| (it.state, it.created_at) = (2, -1)),
            container("third", |it| it.state = 4),
        ];
    })
    .await;

    let sandboxes = runtime.sandboxes().await.expect("they are listed");
    let sandbox = &sandboxes[0];
    assert_eq!((sandbox.id.as_str(), sandbox.uid.as_str(), sandbox.attempt), ("sandbox", "uid-1", 3));
    assert_eq!((sandbox.name.as_str(), sandbox.namespace.as_str()), (HOSTILE, "default"));
    assert_eq!((sandbox.state, sandbox.created), (SandboxState::NotReady, Some(at(5_000_000_007))));
    assert_eq!(sandbox.labels, map(&[("app", HOSTILE)]));
    assert_eq!(sandbox.annotations, map(&[("kubernetes.io/config.source", "file")]));

    let containers = runtime.containers().await.expect("they are listed");
    let first = &containers[0];
    assert_eq!((first.id.as_str(), first.sandbox.as_str()), ("first", "sandbox"));
    assert_eq!((first.name.as_str(), first.attempt, first.created), (HOSTILE, 7, Some(at(9))));
    assert_eq!(first.image.names().collect::<Vec<_>>(), ["nginx:1", "sha256:spec", "sha256:ref", "sha256:id"]);
    assert_eq!(first.labels, map(&[("io.kubernetes.pod.uid", "uid-1")]));
    assert_eq!(first.annotations, map(&[("io.kubernetes.container.restartCount", "7")]));
    let states: Vec<_> = containers.iter().map(|it| it.state).collect();
    assert_eq!(states, [ContainerState::Running, ContainerState::Exited, ContainerState::Other(4)]);
    assert_eq!((containers[1].created, containers[2].created), (None, None), "absent, never 1970");
    assert_eq!(containers[1].image.names().count(), 0);
    assert_eq!(fake.calls(), ["ListPodSandbox", "ListContainers"], "one connection serves both");
}

#[tokio::test]
async fn a_container_s_status_has_the_images_that_are_mounted_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_fake, _served, mut runtime) = connected(folder.path(), |node| {
        let mounts = vec![proto::Mount { image: None }, proto::Mount { image: Some(spec("sha256:volume")) }];
        node.statuses = [("here".to_owned(), Some(proto::ContainerStatus { mounts })), ("odd".to_owned(), None)].into();
    })
    .await;
    let id = |text: &str| ContainerId::try_from(text.to_owned()).expect("an id");

    let status = runtime.container_status(&id("here")).await.expect("it answers").expect("it is there");
    let [volume] = &status.mounted_images[..] else { panic!("{status:?}") };
    assert_eq!(volume.names().collect::<Vec<_>>(), ["sha256:volume"]);

    assert_eq!(runtime.container_status(&id("gone")).await.expect("it answers"), None);
    let odd = runtime.container_status(&id("odd")).await.expect_err("there is no status");
    assert!(matches!(odd, Error::Malformed { .. }), "{odd}");
}

#[tokio::test]
async fn images_and_file_systems_come_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_fake, _served, mut runtime) = connected(folder.path(), |node| {
        let mut full = image("sha256:a", 77);
        full.repo_tags = vec!["a:1".to_owned(), HOSTILE.to_owned()];
        full.repo_digests = vec!["a@sha256:d".to_owned()];
        full.spec = Some(proto::ImageSpec { annotations: map(&[("k", "v")]), ..spec("") });
        full.pinned = true;
        node.images = vec![full, image("sha256:b", 0)];
        let place = |path: &str, used, inodes| proto::FilesystemUsage {
            timestamp: 3,
            fs_id: Some(proto::FilesystemIdentifier { mountpoint: path.to_owned() }),
            used_bytes: used,
            inodes_used: inodes,
        };
        node.file_systems = proto::ImageFsInfoResponse {
            image_filesystems: vec![place("/images", Some(proto::UInt64Value { value: 5 }), None)],
            container_filesystems: vec![place("/layers", None, Some(proto::UInt64Value { value: 0 }))],
        };
    })
    .await;

    let images = runtime.images().await.expect("they are listed");
    assert_eq!((images[0].id.as_str(), images[0].size, images[0].is_pinned), ("sha256:a", Some(Bytes(77)), true));
    assert_eq!(
        (&images[0].tags[..], &images[0].digests[..]),
        (&["a:1", HOSTILE].map(str::to_owned)[..], &["a@sha256:d".to_owned()][..])
    );
    assert_eq!(images[0].annotations, map(&[("k", "v")]));
    assert_eq!((images[1].size, images[1].is_pinned), (None, false), "no image takes nothing");

    let places = runtime.file_systems().await.expect("they are reported");
    let figures = |it: &plimsoll_cri::FileSystem| (it.directory.clone(), it.used, it.inodes, it.counted);
    assert_eq!(
        places.images.iter().map(figures).collect::<Vec<_>>(),
        [("/images".into(), Some(Bytes(5)), None, Some(at(3)))]
    );
    assert_eq!(
        places.containers.iter().map(figures).collect::<Vec<_>>(),
        [("/layers".into(), None, Some(0), Some(at(3)))]
    );
}

#[tokio::test]
async fn writable_layers_have_what_was_counted_and_no_zero_for_the_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    let value = |value| Some(proto::UInt64Value { value });
    let stats = |id: &str, writable_layer| proto::ContainerStats {
        attributes: Some(proto::ContainerAttributes { id: id.to_owned() }),
        writable_layer,
    };
    let counted = proto::FilesystemUsage { timestamp: 3, fs_id: None, used_bytes: value(4096), inodes_used: value(2) };
    let half = proto::FilesystemUsage { inodes_used: None, used_bytes: value(0), ..counted.clone() };
    let (fake, _served, mut runtime) = connected(folder.path(), |node| {
        node.stats = vec![stats("full", Some(counted)), stats("half", Some(half)), stats("new", None)];
    })
    .await;
    let layers = runtime.writable_layers().await.expect("they are listed");
    let figures: Vec<_> = layers.iter().map(|it| (it.container.as_str(), it.used, it.inodes, it.counted)).collect();
    let expected = [
        ("full", Some(Bytes(4096)), Some(2), Some(at(3))),
        ("half", Some(Bytes(0)), None, Some(at(3))),
        ("new", None, None, None),
    ];
    assert_eq!(figures, expected);
    assert_eq!(fake.calls(), ["ListContainerStats"]);
    fake.change(|node| node.stats[0].attributes = None);
    let error = runtime.writable_layers().await.expect_err("it is of no container");
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[tokio::test]
async fn what_is_stopped_and_removed_is_what_was_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) = connected(folder.path(), |_| ()).await;
    let container = ContainerId::try_from("c".to_owned()).expect("an id");
    let sandbox = SandboxId::try_from("s".to_owned()).expect("an id");
    let image = ImageId::try_from("sha256:i".to_owned()).expect("an id");
    for grace in [Duration::ZERO, Duration::from_millis(1001), Duration::from_secs(30), Duration::MAX] {
        runtime.stop_container(&container, grace).await.expect("it is stopped");
    }
    runtime.remove_container(&container).await.expect("it is removed");
    runtime.set_memory_high(&container, Bytes::mib(3)).await.expect("it is set");
    runtime.stop_sandbox(&sandbox).await.expect("it is stopped");
    runtime.remove_sandbox(&sandbox).await.expect("it is removed");
    runtime.remove_image(&image).await.expect("it is removed");
    assert_eq!(
        fake.calls(),
        [
            "StopContainer c 0",
            "StopContainer c 2",
            "StopContainer c 30",
            "StopContainer c 9223372036854775807",
            "RemoveContainer c",
            r#"UpdateContainerResources c {"memory.high": "3145728"}"#,
            "StopPodSandbox s",
            "RemovePodSandbox s",
            "RemoveImage sha256:i",
        ]
    );
}

#[tokio::test]
async fn images_in_use_are_those_of_containers_and_those_that_they_mount() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) = connected(folder.path(), |node| {
        let image = proto::Mount { image: Some(spec("sha256:volume")) };
        let status = proto::ContainerStatus { mounts: vec![image] };
        node.containers = vec![
            container("exited", |it| (it.state, it.image_id) = (2, "sha256:root".to_owned())),
            container("vanished", |it| it.image_ref = "sha256:other".to_owned()),
        ];
        node.statuses = [("exited".to_owned(), Some(status))].into();
        node.images = ["sha256:root", "sha256:volume", "sha256:other", "sha256:free"].map(image_of).into();
    })
    .await;
    let images = runtime.images().await.expect("they are listed");
    let in_use = runtime.images_in_use().await.expect("they are reported");
    assert_eq!(images.iter().map(|it| in_use.has(it)).collect::<Vec<_>>(), [true, true, true, false]);
    assert_eq!(
        fake.calls(),
        ["ListImages", "Status", "ListContainers", "ContainerStatus exited", "ContainerStatus vanished"]
    );

    // One that cannot be read may use any image.
    fake.change(|node| {
        node.statuses.insert("vanished".to_owned(), None);
    });
    let error = runtime.images_in_use().await.expect_err("one status is missing");
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    fake.change(|node| node.manner = Manner::Refuse(tonic::Code::Internal, "no"));
    let error = runtime.images_in_use().await.expect_err("nothing is reported");
    assert!(matches!(error, Error::Failed { .. }), "{error}");
}

#[tokio::test]
async fn the_image_of_sandboxes_is_used_however_the_runtime_says_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let tagged = |id: &str, tag: &str| proto::Image { repo_tags: vec![tag.to_owned()], ..image_of(id) };
    let (fake, _served, mut runtime) = connected(folder.path(), |node| {
        node.images =
            vec![tagged("sha256:a", "docker.io/rancher/pause:3.6"), tagged("sha256:b", "registry.local/app:1")];
    })
    .await;
    let images = runtime.images().await.expect("they are listed");
    for (config, expected) in [
        (Some(r#"{"sandboxImage": "docker.io/rancher/pause:3.6", "cni": {}}"#), true),
        (Some(r#"{"sandboxImage": "rancher/pause:3.6"}"#), true),
        (Some(r#"{"sandboxImage": "rancher/pause:3.7"}"#), false),
        (Some(r#"{"sandboxImage": ""}"#), false),
        (Some(r#"{"other": true}"#), false),
        (Some("not JSON"), false),
        (None, false),
    ] {
        fake.change(|node| node.config = config);
        let in_use = runtime.images_in_use().await.expect("they are reported");
        assert_eq!(images.iter().map(|it| in_use.has(it)).collect::<Vec<_>>(), [expected, false], "{config:?}");
    }
}

#[tokio::test]
async fn calls_may_be_made_in_a_task_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_fake, _served, mut runtime) = connected(folder.path(), |_| ()).await;
    let in_use = tokio::spawn(async move { runtime.images_in_use().await }).await.expect("the task ends");
    assert_eq!(in_use.expect("it answers"), plimsoll_cri::InUse::default());
}

fn image_of(id: &str) -> proto::Image {
    image(id, 1)
}
