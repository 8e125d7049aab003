//! A client of containerd's CRI socket, one call at a time. It creates pods, as only a kubelet does: the agent's own
//! client cannot.

use anyhow::{Context as _, Result, ensure};
use api::image_service_client::ImageServiceClient;
use api::runtime_service_client::RuntimeServiceClient;
use std::future::Future;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// The messages of `cri.proto`.
#[expect(
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::enum_variant_names,
    clippy::pedantic,
    reason = "it is generated"
)]
pub(crate) mod api {
    tonic::include_proto!("runtime.v1");
}

/// Where containerd serves CRI.
pub(crate) const SOCKET: &str = "unix:///run/containerd/containerd.sock";
/// How long one call may take. To create a sandbox takes seconds on an emulated machine.
const LIMIT: Duration = Duration::from_mins(2);

/// A connection, which is made anew when it is lost.
pub(crate) struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    /// Connects with the first call.
    pub(crate) fn new() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("cannot make a runtime of tokio")?;
        let channel =
            runtime.block_on(async { Ok::<_, tonic::transport::Error>(Endpoint::new(SOCKET)?.connect_lazy()) })?;
        Ok(Self { runtime, channel })
    }

    /// Makes a sandbox, and gives its id.
    pub(crate) fn run_sandbox(&self, config: api::PodSandboxConfig) -> Result<String> {
        let request = api::RunPodSandboxRequest { config: Some(config) };
        let answer = self.call("RunPodSandbox", |mut client| async move { client.run_pod_sandbox(request).await })?;
        Ok(answer.pod_sandbox_id)
    }

    /// The ids of all sandboxes, running or not.
    pub(crate) fn sandboxes(&self) -> Result<Vec<String>> {
        let answer =
            self.call("ListPodSandbox", |mut client| async move { client.list_pod_sandbox(api::Empty {}).await })?;
        Ok(answer.items.into_iter().map(|sandbox| sandbox.id).collect())
    }

    /// Stops a sandbox with all its containers.
    pub(crate) fn stop_sandbox(&self, id: &str) -> Result<()> {
        let request = api::PodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call("StopPodSandbox", |mut client| async move { client.stop_pod_sandbox(request).await }).map(drop)
    }

    /// Does so, and removes it with them.
    pub(crate) fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.stop_sandbox(id)?;
        let request = api::PodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call("RemovePodSandbox", |mut client| async move { client.remove_pod_sandbox(request).await }).map(drop)
    }

    /// Makes a container in a sandbox, and gives its id.
    pub(crate) fn create_container(
        &self,
        sandbox: &str,
        config: api::ContainerConfig,
        sandbox_config: api::PodSandboxConfig,
    ) -> Result<String> {
        let request = api::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer =
            self.call("CreateContainer", |mut client| async move { client.create_container(request).await })?;
        Ok(answer.container_id)
    }

    /// Starts a container.
    pub(crate) fn start_container(&self, id: &str) -> Result<()> {
        let request = api::ContainerRequest { container_id: id.to_owned() };
        self.call("StartContainer", |mut client| async move { client.start_container(request).await }).map(drop)
    }

    /// Has a container stopped by SIGTERM, and by SIGKILL after so many seconds. Returns once it has ended.
    pub(crate) fn stop_container(&self, id: &str, seconds: i64) -> Result<()> {
        let request = api::StopContainerRequest { container_id: id.to_owned(), timeout: seconds };
        self.call("StopContainer", |mut client| async move { client.stop_container(request).await }).map(drop)
    }

    /// The state of a container, and how it ended if it did.
    pub(crate) fn status(&self, id: &str) -> Result<(api::ContainerState, i32)> {
        let request = api::ContainerRequest { container_id: id.to_owned() };
        let answer =
            self.call("ContainerStatus", |mut client| async move { client.container_status(request).await })?;
        let status = answer.status.context("ContainerStatus gave no status")?;
        Ok((status.state(), status.exit_code))
    }

    /// The image of this name, if there is one.
    pub(crate) fn image(&self, name: &str) -> Result<Option<api::Image>> {
        Ok(self.wait("ImageStatus", self.images_client().image_status(named(name)))?.image)
    }

    /// Whether there is an image of this name.
    pub(crate) fn has_image(&self, name: &str) -> Result<bool> {
        Ok(self.image(name)?.is_some())
    }

    /// All images.
    pub(crate) fn images(&self) -> Result<Vec<api::Image>> {
        Ok(self.wait("ListImages", self.images_client().list_images(api::Empty {}))?.images)
    }

    /// Removes an image with all its names, and waits until its space is free.
    pub(crate) fn remove_image(&self, id: &str) -> Result<()> {
        self.wait("RemoveImage", self.images_client().remove_image(named(id))).map(drop)
    }

    fn images_client(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone())
    }

    fn call<T, F>(&self, name: &str, call: impl FnOnce(RuntimeServiceClient<Channel>) -> F) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.wait(name, call(RuntimeServiceClient::new(self.channel.clone())))
    }

    fn wait<T>(&self, name: &str, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
        let answer = self.runtime.block_on(async { tokio::time::timeout(LIMIT, call).await });
        let answer = answer.with_context(|| format!("{name}: no answer within {} s", LIMIT.as_secs()))?;
        ensure!(answer.is_ok(), "{name}: {}", answer.err().map_or_else(String::new, |status| status.to_string()));
        Ok(answer?.into_inner())
    }
}

fn named(image: &str) -> api::ImageStatusRequest {
    api::ImageStatusRequest { image: Some(api::ImageSpec { image: image.to_owned() }) }
}
