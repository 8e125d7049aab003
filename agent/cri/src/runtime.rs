//! The calls.

use crate::connection::{Call, Connection, Limits, Version};
use crate::dial::{self, Dial};
use crate::error::Error;
use crate::id::{ContainerId, ImageId, SandboxId};
use crate::in_use::InUse;
use crate::listed::{Container, ContainerStatus, FileSystems, Image, Sandbox, WritableLayer, each};
use crate::{proto, request};
use core::time::Duration;
use plimsoll_units::Bytes;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use tokio::time::timeout;
use tonic::{Code, Status};

/// A container runtime behind its socket. Needs a tokio runtime with IO and time.
///
/// It connects when it is first asked something, and again when the connection was lost. Each new connection begins with
/// `Version`, so that nothing is said to what is no runtime. It has one call under way at a time; where a list must not
/// wait for a stop, make two, or a clone, which begins with the same connection. A call that is dropped, or out of time,
/// closes the connection with it.
///
/// A runtime that was restarted is not noticed: the call is sent again on a new connection, once, because every call of
/// the interface that is used here is idempotent by its definition.
#[derive(Clone)]
pub struct Runtime {
    socket: PathBuf,
    limits: Limits,
    dial: Dial,
    connection: Option<Connection>,
    version: Option<Version>,
}

impl Runtime {
    /// The runtime at this socket. Nothing is opened yet.
    pub fn at(socket: impl Into<PathBuf>, limits: Limits) -> Self {
        Self { socket: socket.into(), limits, dial: dial::by_this_process(), connection: None, version: None }
    }

    /// The one behind a connection, which is not made anew where it is lost.
    pub(crate) fn over(connection: Connection) -> Self {
        let lost = Dial::by(|_: &Path| async { Err(std::io::ErrorKind::NotConnected.into()) });
        Self { connection: Some(connection), ..Self::at("of the connection", Limits::default()).through(lost) }
    }

    /// The runtime at this socket, once it has said its version. [`Limits::read`] is for both.
    pub async fn connect(socket: impl Into<PathBuf>, limits: Limits) -> Result<Self, Error> {
        Self::at(socket, limits).answering().await
    }

    /// The same runtime over connections that are made so.
    #[must_use]
    pub fn through(self, dial: Dial) -> Self {
        Self { dial, ..self }
    }

    /// The same, once it has said its version.
    pub(crate) async fn answering(mut self) -> Result<Self, Error> {
        let limit = self.limits.read;
        match timeout(limit, self.open()).await {
            Ok(connection) => self.connection = Some(connection?),
            Err(_) => return Err(Error::TimedOut { socket: self.socket, call: Call::Version, limit }),
        }
        Ok(self)
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What answered on the last connection; absent before the first.
    pub const fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// All pod sandboxes.
    pub async fn sandboxes(&mut self) -> Result<Vec<Sandbox>, Error> {
        let call = Call::ListPodSandbox;
        let answer: proto::ListPodSandboxResponse = self.list(call, proto::ListPodSandboxRequest {}).await?;
        each(answer.items).map_err(|what| self.malformed(call, what))
    }

    /// All containers, running or not.
    pub async fn containers(&mut self) -> Result<Vec<Container>, Error> {
        let call = Call::ListContainers;
        let answer: proto::ListContainersResponse = self.list(call, proto::ListContainersRequest {}).await?;
        each(answer.containers).map_err(|what| self.malformed(call, what))
    }

    /// What the list leaves out of a container; absent where it is gone.
    pub async fn container_status(&mut self, id: &ContainerId) -> Result<Option<ContainerStatus>, Error> {
        let call = Call::ContainerStatus;
        let request = proto::ContainerStatusRequest { container_id: id.as_str().to_owned() };
        match self.call::<_, proto::ContainerStatusResponse>(call, request, self.limits.read, Limits::ONE).await {
            Ok(answer) => match answer.status {
                Some(status) => Ok(Some(status.into())),
                None => Err(self.malformed(call, "no status".to_owned())),
            },
            Err(Error::Failed { code: Code::NotFound, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the writable layers of containers take, of those that the runtime has statistics of: mostly those that run. It
    /// takes seconds and [`Limits::change`] at most, so nothing that is urgent may wait for it.
    pub async fn writable_layers(&mut self) -> Result<Vec<WritableLayer>, Error> {
        let (call, request) = (Call::ListContainerStats, proto::ListContainerStatsRequest {});
        let limits = self.limits;
        let answer: proto::ListContainerStatsResponse = self.call(call, request, limits.change, limits.list).await?;
        each(answer.stats).map_err(|what| self.malformed(call, what))
    }

    /// All images.
    pub async fn images(&mut self) -> Result<Vec<Image>, Error> {
        let call = Call::ListImages;
        let answer: proto::ListImagesResponse = self.list(call, proto::ListImagesRequest {}).await?;
        each(answer.images).map_err(|what| self.malformed(call, what))
    }

    /// The images that containers use, running or not, those that they have mounted as volumes included: the mounts are
    /// in each container's status alone (`handleImageVolumes` in the kubelet's `image_gc_manager.go`). It takes
    /// [`Limits::change`] at most for all of them, and any error is one of the whole, because what cannot be read may be in
    /// use. List the images before: one that is pulled and used in between is then not among them.
    ///
    /// The image of sandboxes, which no container is made from, counts as used as well: containerd before 1.7 reports no
    /// image as pinned.
    pub async fn images_in_use(&mut self) -> Result<InUse, Error> {
        let limit = self.limits.change;
        let gathered = timeout(limit, async {
            let mut in_use = InUse::default();
            if let Some(name) = self.sandbox_image().await? {
                in_use.add_sandbox_image(&name);
            }
            for container in self.containers().await? {
                in_use.add_container(&container);
                if let Some(status) = self.container_status(&container.id).await? {
                    in_use.add_status(&status);
                }
            }
            Ok(in_use)
        });
        let Ok(in_use) = gathered.await else {
            return Err(Error::TimedOut { socket: self.socket.clone(), call: Call::ContainerStatus, limit });
        };
        in_use
    }

    /// The name of the image that sandboxes are made from, as it is configured; absent where the runtime does not say it.
    /// containerd and CRI-O do, with the rest of their configuration as JSON.
    pub(crate) async fn sandbox_image(&mut self) -> Result<Option<String>, Error> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Config {
            sandbox_image: Option<String>,
        }
        let answer: proto::StatusResponse = self.list(Call::Status, proto::StatusRequest { verbose: true }).await?;
        let config = answer.info.get("config").and_then(|text| serde_json::from_str(text).ok());
        Ok(config.and_then(|Config { sandbox_image }| sandbox_image).filter(|name| !name.is_empty()))
    }

    /// Where images and writable layers are, and what they use.
    pub async fn file_systems(&mut self) -> Result<FileSystems, Error> {
        let call = Call::ImageFsInfo;
        let answer: proto::ImageFsInfoResponse = self.list(call, proto::ImageFsInfoRequest {}).await?;
        FileSystems::try_from(answer).map_err(|what| self.malformed(call, what))
    }

    /// Ends a container: SIGTERM (or the image's own signal), and SIGKILL when the grace period is over; at once without
    /// one. The grace period is in whole seconds, rounded up. It takes the grace period and [`Limits::change`] at most. No
    /// preStop hook runs: that is the kubelet's. One that was stopped before, or is gone, is no error.
    pub async fn stop_container(&mut self, id: &ContainerId, grace: Duration) -> Result<(), Error> {
        let request = request::stop_container(id, grace);
        let limit = self.limits.change.saturating_add(Duration::from_secs(request::whole_seconds(grace)));
        self.call(Call::StopContainer, request, limit, Limits::ONE).await.map(|proto::StopContainerResponse {}| ())
    }

    /// Removes a container, its writable layer and what the runtime keeps of it; one that runs is killed. One that is gone
    /// is no error.
    pub async fn remove_container(&mut self, id: &ContainerId) -> Result<(), Error> {
        self.change(Call::RemoveContainer, request::remove_container(id))
            .await
            .map(|proto::RemoveContainerResponse {}| ())
    }

    /// Sets memory.high of a container, in bytes, and nothing else of it: the runtime keeps all other resources as it has
    /// them (`WithResources` in containerd's `pkg/cri/opts`), and writes the new value down, so that neither the runtime nor
    /// systemd takes it back with the next change. The kernel rounds it down to whole pages. That it is below what the pod
    /// may take is for the caller to see to.
    pub async fn set_memory_high(&mut self, id: &ContainerId, high: Bytes) -> Result<(), Error> {
        let (call, request) = (Call::UpdateContainerResources, request::set_memory_high(id, high));
        self.change(call, request).await.map(|proto::UpdateContainerResourcesResponse {}| ())
    }

    /// Kills what runs in a sandbox and gives its network back. Due before it is removed. One that is gone is no error.
    pub async fn stop_sandbox(&mut self, id: &SandboxId) -> Result<(), Error> {
        self.change(Call::StopPodSandbox, request::stop_sandbox(id)).await.map(|proto::StopPodSandboxResponse {}| ())
    }

    /// Removes a sandbox and all containers in it, killing those that run. One that is gone is no error.
    pub async fn remove_sandbox(&mut self, id: &SandboxId) -> Result<(), Error> {
        self.change(Call::RemovePodSandbox, request::remove_sandbox(id))
            .await
            .map(|proto::RemovePodSandboxResponse {}| ())
    }

    /// Removes an image with all its tags. The runtime refuses nothing: neither a pinned image, nor one that a container
    /// uses ([`assess`](crate::assess)). One that is gone is no error.
    pub async fn remove_image(&mut self, id: &ImageId) -> Result<(), Error> {
        self.change(Call::RemoveImage, request::remove_image(id)).await.map(|proto::RemoveImageResponse {}| ())
    }

    async fn list<Q, A>(&mut self, call: Call, request: Q) -> Result<A, Error>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        self.call(call, request, self.limits.read, self.limits.list).await
    }

    async fn change<Q, A>(&mut self, call: Call, request: Q) -> Result<A, Error>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        self.call(call, request, self.limits.change, Limits::ONE).await
    }

    /// One call, within its limits.
    async fn call<Q, A>(&mut self, call: Call, request: Q, limit: Duration, most: Bytes) -> Result<A, Error>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut at = Call::Version;
        match timeout(limit, self.try_twice(call, request, most, &mut at)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::TimedOut { socket: self.socket.clone(), call: at, limit }),
        }
    }

    /// One call, and again on a new connection where the old one was lost. The connection is kept where the answer was one
    /// of the runtime's.
    async fn try_twice<Q, A>(&mut self, call: Call, request: Q, most: Bytes, at: &mut Call) -> Result<A, Error>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        if let Some(connection) = self.connection.take().filter(|connection| !connection.is_closed()) {
            *at = call;
            match connection.unary(call, request.clone(), most).await {
                Err(status) if is_lost(&status) => *at = Call::Version,
                outcome => return self.outcome(call, connection, outcome),
            }
        }
        let connection = self.open().await?;
        *at = call;
        let outcome = connection.unary(call, request, most).await;
        self.outcome(call, connection, outcome)
    }

    fn outcome<A>(&mut self, call: Call, connection: Connection, outcome: Result<A, Status>) -> Result<A, Error> {
        // A refusal is an answer as well: a new connection for each of many would take the time that an order has. A new one is
        // the safer one after what is of the connection, was not read to its end, or says that what is behind it does not answer.
        let is_answer = outcome
            .as_ref()
            .err()
            .is_none_or(|status| !is_lost(status) && !matches!(status.code(), Code::OutOfRange | Code::Unavailable));
        self.connection = is_answer.then_some(connection);
        outcome.map_err(|status| self.failed(call, &status))
    }

    /// A new connection on which a runtime has said its version.
    async fn open(&mut self) -> Result<Connection, Error> {
        let connection = Connection::open(&self.socket, &self.dial).await?;
        let (socket, call) = (self.socket.clone(), Call::Version);
        match connection.unary(call, proto::VersionRequest {}, Limits::ONE).await {
            Ok(proto::VersionResponse { runtime_name, .. }) if runtime_name.is_empty() => {
                Err(Error::NotCri { socket, why: "a version without the name of a runtime".to_owned() })
            }
            Ok(proto::VersionResponse { runtime_name, runtime_version, runtime_api_version }) => {
                self.version =
                    Some(Version { runtime: runtime_name, version: runtime_version, interface: runtime_api_version });
                Ok(connection)
            }
            Err(status) if status.code() == Code::Unimplemented => Err(Error::NoV1 { socket, why: text(&status) }),
            Err(status) if is_lost(&status) => Err(Error::NotCri { socket, why: text(&status) }),
            Err(status) => Err(self.failed(call, &status)),
        }
    }

    fn failed(&self, call: Call, status: &Status) -> Error {
        let (socket, why) = (self.socket.clone(), text(status));
        match status.code() {
            _ if is_lost(status) => Error::Lost { socket, call, why },
            // The decoder's alone: a runtime has no reason for it.
            Code::OutOfRange => Error::TooLarge { socket, call, why },
            code => Error::Failed { socket, call, code, why },
        }
    }

    fn malformed(&self, call: Call, what: String) -> Error {
        Error::Malformed { socket: self.socket.clone(), call, what }
    }
}

/// Whether this is of the connection, not from the runtime: only then it has a source.
fn is_lost(status: &Status) -> bool {
    status.source().is_some()
}

/// What was said, with all causes. Never more than what HTTP/2 headers may take, 16 KiB.
fn text(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}
