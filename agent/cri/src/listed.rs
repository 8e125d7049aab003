//! What the runtime lists, in types of our own. Text is as it came: untrusted.

use crate::id::{ContainerId, IdError, ImageId, SandboxId};
use crate::proto;
use core::time::Duration;
use plimsoll_units::Bytes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

/// Whether a sandbox is there to run containers in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxState {
    /// It is.
    Ready,
    /// Its own process has ended, or it was stopped.
    NotReady,
    /// A number that the interface did not have when this was written.
    Other(i32),
}

/// A pod's sandbox: its network and its pause process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's own id, which is in its cgroup's name and in no object of the API.
    pub id: SandboxId,
    /// The pod's UID. Of a static pod that is a hash of its manifest, without dashes.
    pub uid: String,
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// How many sandboxes the pod had before this one.
    pub attempt: u32,
    /// Whether containers can run in it.
    pub state: SandboxState,
    /// When it was made, by the clock of that time.
    pub created: Option<SystemTime>,
    /// The pod's labels, and the kubelet's (`io.kubernetes.pod.*`).
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations, and the kubelet's (`kubernetes.io/config.source` and others).
    pub annotations: BTreeMap<String, String>,
}

/// What a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It was not started yet.
    Created,
    /// It runs, or is paused.
    Running,
    /// It has ended.
    Exited,
    /// The runtime has lost track of it. It may run.
    Unknown,
    /// A number that the interface did not have when this was written. It may run.
    Other(i32),
}

/// By what names something uses an image; absent where the runtime does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUse {
    /// As the pod asks for it.
    pub requested: Option<String>,
    /// As the kubelet asked the runtime for it: mostly the image's id.
    pub spec: Option<String>,
    /// As the runtime resolved it: its id, or a name with a digest.
    pub reference: Option<String>,
    /// The image's id. Older runtimes do not say.
    pub id: Option<String>,
}

impl ImageUse {
    /// Each name that there is.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let Self { requested, spec, reference, id } = self;
        [requested, spec, reference, id].into_iter().flatten().map(String::as_str)
    }

    fn of(spec: Option<proto::ImageSpec>) -> Self {
        let proto::ImageSpec { image, user_specified_image, image_ref, annotations: _ } = spec.unwrap_or_default();
        Self { requested: said(user_specified_image), spec: said(image), reference: said(image_ref), id: None }
    }
}

/// A container, running or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox that it is in.
    pub sandbox: SandboxId,
    /// Its name in the pod.
    pub name: String,
    /// How many containers of that name the pod had before this one: the kubelet's restart count.
    pub attempt: u32,
    /// What it does.
    pub state: ContainerState,
    /// When it was made, by the clock of that time.
    pub created: Option<SystemTime>,
    /// The image that it was made from.
    pub image: ImageUse,
    /// The kubelet's labels (`io.kubernetes.pod.*`, `io.kubernetes.container.name`).
    pub labels: BTreeMap<String, String>,
    /// The kubelet's annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What the list leaves out of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// The images that are mounted in it, as volumes of that type.
    pub mounted_images: Vec<ImageUse>,
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its id.
    pub id: ImageId,
    /// Its names with tags. All of them go when it is removed.
    pub tags: Vec<String>,
    /// Its names with digests.
    pub digests: Vec<String>,
    /// What it takes on disk by the runtime's account, layers that it shares with others included: removing it may free
    /// less.
    pub size: Option<Bytes>,
    /// The runtime asks to keep it (its own sandbox image, say), and would remove it nevertheless.
    pub is_pinned: bool,
    /// Annotations of the specification that it was pulled by.
    pub annotations: BTreeMap<String, String>,
}

/// What a container's writable layer takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritableLayer {
    /// The container.
    pub container: ContainerId,
    /// Bytes on disk; absent where the runtime has not counted them yet.
    pub used: Option<Bytes>,
    /// Inodes.
    pub inodes: Option<u64>,
    /// When that was counted. containerd counts from time to time, not when it is asked.
    pub counted: Option<SystemTime>,
}

/// Where something of the runtime's is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// A directory on it, which is not always the mount point.
    pub directory: PathBuf,
    /// What the runtime uses there.
    pub used: Option<Bytes>,
    /// Inodes that the runtime uses there.
    pub inodes: Option<u64>,
    /// When that was counted. containerd counts from time to time, not when it is asked.
    pub counted: Option<SystemTime>,
}

/// Where images and writable layers are. Where both lists begin with the same directory, or the second is empty, they are
/// together; else the layout is split (`HasDedicatedImageFs` and `IsSplitImageFs` of the kubelet's summary).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSystems {
    /// Of images.
    pub images: Vec<FileSystem>,
    /// Of writable layers; empty from runtimes that do not say.
    pub containers: Vec<FileSystem>,
}

/// All of them, or what is missing in one.
pub(crate) fn each<P, T: TryFrom<P, Error = String>>(items: Vec<P>) -> Result<Vec<T>, String> {
    items.into_iter().map(T::try_from).collect()
}

fn said(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Nanoseconds since 1970; zero is what a runtime writes for what did not happen.
fn time(nanoseconds: i64) -> Option<SystemTime> {
    let since = u64::try_from(nanoseconds).ok().filter(|&since| since > 0)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(since))
}

fn no_id(kind: &str) -> impl Fn(IdError) -> String {
    move |error| format!("{kind} without a usable id: {error}")
}

impl From<i32> for ContainerState {
    fn from(number: i32) -> Self {
        match proto::ContainerState::try_from(number) {
            Ok(proto::ContainerState::ContainerCreated) => Self::Created,
            Ok(proto::ContainerState::ContainerRunning) => Self::Running,
            Ok(proto::ContainerState::ContainerExited) => Self::Exited,
            Ok(proto::ContainerState::ContainerUnknown) => Self::Unknown,
            Err(_) => Self::Other(number),
        }
    }
}

impl From<i32> for SandboxState {
    fn from(number: i32) -> Self {
        match proto::PodSandboxState::try_from(number) {
            Ok(proto::PodSandboxState::SandboxReady) => Self::Ready,
            Ok(proto::PodSandboxState::SandboxNotready) => Self::NotReady,
            Err(_) => Self::Other(number),
        }
    }
}

impl TryFrom<proto::PodSandbox> for Sandbox {
    type Error = String;

    fn try_from(listed: proto::PodSandbox) -> Result<Self, String> {
        let proto::PodSandbox { id, metadata, state, created_at, labels, annotations } = listed;
        let id = SandboxId::try_from(id).map_err(no_id("a sandbox"))?;
        let Some(proto::PodSandboxMetadata { name, uid, namespace, attempt }) = metadata else {
            return Err(format!("sandbox {id} without metadata"));
        };
        let (state, created) = (state.into(), time(created_at));
        Ok(Self { id, uid, name, namespace, attempt, state, created, labels, annotations })
    }
}

impl TryFrom<proto::Container> for Container {
    type Error = String;

    fn try_from(listed: proto::Container) -> Result<Self, String> {
        let proto::Container {
            id,
            pod_sandbox_id,
            metadata,
            image,
            image_ref,
            state,
            created_at,
            labels,
            annotations,
            image_id,
        } = listed;
        let id = ContainerId::try_from(id).map_err(no_id("a container"))?;
        let sandbox = SandboxId::try_from(pod_sandbox_id).map_err(no_id("a container's sandbox"))?;
        let Some(proto::ContainerMetadata { name, attempt }) = metadata else {
            return Err(format!("container {id} without metadata"));
        };
        let image = ImageUse { reference: said(image_ref), id: said(image_id), ..ImageUse::of(image) };
        let (state, created) = (state.into(), time(created_at));
        Ok(Self { id, sandbox, name, attempt, state, created, image, labels, annotations })
    }
}

impl From<proto::ContainerStatus> for ContainerStatus {
    fn from(status: proto::ContainerStatus) -> Self {
        let images = status.mounts.into_iter().filter_map(|mount| mount.image);
        Self { mounted_images: images.map(|spec| ImageUse::of(Some(spec))).collect() }
    }
}

impl TryFrom<proto::Image> for Image {
    type Error = String;

    fn try_from(listed: proto::Image) -> Result<Self, String> {
        let proto::Image { id, repo_tags, repo_digests, size, spec, pinned } = listed;
        Ok(Self {
            id: ImageId::try_from(id).map_err(no_id("an image"))?,
            tags: repo_tags,
            digests: repo_digests,
            size: (size > 0).then_some(Bytes(size)),
            is_pinned: pinned,
            annotations: spec.map(|spec| spec.annotations).unwrap_or_default(),
        })
    }
}

impl TryFrom<proto::FilesystemUsage> for FileSystem {
    type Error = String;

    fn try_from(usage: proto::FilesystemUsage) -> Result<Self, String> {
        let proto::FilesystemUsage { timestamp, fs_id, used_bytes, inodes_used } = usage;
        let directory = fs_id.map(|id| id.mountpoint).filter(|path| path.starts_with('/'));
        Ok(Self {
            directory: directory.ok_or("a file system without an absolute path")?.into(),
            used: used_bytes.map(|bytes| Bytes(bytes.value)),
            inodes: inodes_used.map(|inodes| inodes.value),
            counted: time(timestamp),
        })
    }
}

impl TryFrom<proto::ContainerStats> for WritableLayer {
    type Error = String;

    fn try_from(listed: proto::ContainerStats) -> Result<Self, String> {
        let proto::ContainerStats { attributes, writable_layer } = listed;
        let id = attributes.unwrap_or_default().id;
        let proto::FilesystemUsage { timestamp, fs_id: _, used_bytes, inodes_used } =
            writable_layer.unwrap_or_default();
        Ok(Self {
            container: ContainerId::try_from(id).map_err(no_id("statistics of a container"))?,
            used: used_bytes.map(|bytes| Bytes(bytes.value)),
            inodes: inodes_used.map(|inodes| inodes.value),
            counted: time(timestamp),
        })
    }
}

impl TryFrom<proto::ImageFsInfoResponse> for FileSystems {
    type Error = String;

    fn try_from(answer: proto::ImageFsInfoResponse) -> Result<Self, String> {
        let proto::ImageFsInfoResponse { image_filesystems, container_filesystems } = answer;
        if image_filesystems.is_empty() {
            return Err("no file system of images".to_owned());
        }
        Ok(Self { images: each(image_filesystems)?, containers: each(container_filesystems)? })
    }
}
