//! The messages of calls that stop, remove or change something: with what is asked for and nothing else.

use core::time::Duration;

use plimsoll_units::Bytes;

use crate::id::{ContainerId, ImageId, SandboxId};
use crate::proto;

/// The one file of a container's cgroup that is written to.
pub(crate) const MEMORY_HIGH: &str = "memory.high";

pub(crate) fn stop_container(id: &ContainerId, grace: Duration) -> proto::StopContainerRequest {
    let timeout = i64::try_from(whole_seconds(grace)).unwrap_or(i64::MAX);
    proto::StopContainerRequest { container_id: id.as_str().to_owned(), timeout }
}

/// Rounded up.
pub(crate) fn whole_seconds(grace: Duration) -> u64 {
    grace.as_secs().saturating_add(u64::from(grace.subsec_nanos() > 0))
}

pub(crate) fn remove_container(id: &ContainerId) -> proto::RemoveContainerRequest {
    proto::RemoveContainerRequest { container_id: id.as_str().to_owned() }
}

pub(crate) fn set_memory_high(id: &ContainerId, high: Bytes) -> proto::UpdateContainerResourcesRequest {
    let unified = [(MEMORY_HIGH.to_owned(), high.0.to_string())].into();
    let linux = Some(proto::LinuxContainerResources { unified });
    proto::UpdateContainerResourcesRequest { container_id: id.as_str().to_owned(), linux }
}

pub(crate) fn stop_sandbox(id: &SandboxId) -> proto::StopPodSandboxRequest {
    proto::StopPodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() }
}

pub(crate) fn remove_sandbox(id: &SandboxId) -> proto::RemovePodSandboxRequest {
    proto::RemovePodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() }
}

pub(crate) fn remove_image(id: &ImageId) -> proto::RemoveImageRequest {
    let image = proto::ImageSpec { image: id.as_str().to_owned(), ..proto::ImageSpec::default() };
    proto::RemoveImageRequest { image: Some(image) }
}
