//! One connection to a runtime's socket, and one call on it.

use crate::dial::Dial;
use crate::error::Error;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use http::Uri;
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_dial::EndedByDrop;
use plimsoll_units::Bytes;
use std::path::Path;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// What HTTP names a server by; a socket has no name.
pub(crate) const ORIGIN: &str = "http://localhost";

/// The calls, all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Which runtime it is.
    Version,
    /// The pods' sandboxes.
    ListPodSandbox,
    /// The containers, running or not.
    ListContainers,
    /// What the runtime says of itself; of that, which image sandboxes are made from.
    Status,
    /// What the list leaves out of one container.
    ContainerStatus,
    /// What containers use; of that, what their writable layers take is read.
    ListContainerStats,
    /// Ends a container, with a grace period.
    StopContainer,
    /// Removes a container, its writable layer and its log.
    RemoveContainer,
    /// Sets limits of a container.
    UpdateContainerResources,
    /// Ends a pod's containers and gives back its network.
    StopPodSandbox,
    /// Removes a sandbox.
    RemovePodSandbox,
    /// The images.
    ListImages,
    /// Removes an image with all its tags.
    RemoveImage,
    /// The file systems of images and of writable layers.
    ImageFsInfo,
}

impl Call {
    /// All of them.
    pub(crate) const ALL: [Self; 14] = [
        Self::Version,
        Self::ListPodSandbox,
        Self::ListContainers,
        Self::Status,
        Self::ContainerStatus,
        Self::ListContainerStats,
        Self::StopContainer,
        Self::RemoveContainer,
        Self::UpdateContainerResources,
        Self::StopPodSandbox,
        Self::RemovePodSandbox,
        Self::ListImages,
        Self::RemoveImage,
        Self::ImageFsInfo,
    ];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Version => "/runtime.v1.RuntimeService/Version",
            Self::ListPodSandbox => "/runtime.v1.RuntimeService/ListPodSandbox",
            Self::ListContainers => "/runtime.v1.RuntimeService/ListContainers",
            Self::Status => "/runtime.v1.RuntimeService/Status",
            Self::ContainerStatus => "/runtime.v1.RuntimeService/ContainerStatus",
            Self::ListContainerStats => "/runtime.v1.RuntimeService/ListContainerStats",
            Self::StopContainer => "/runtime.v1.RuntimeService/StopContainer",
            Self::RemoveContainer => "/runtime.v1.RuntimeService/RemoveContainer",
            Self::UpdateContainerResources => "/runtime.v1.RuntimeService/UpdateContainerResources",
            Self::StopPodSandbox => "/runtime.v1.RuntimeService/StopPodSandbox",
            Self::RemovePodSandbox => "/runtime.v1.RuntimeService/RemovePodSandbox",
            Self::ListImages => "/runtime.v1.ImageService/ListImages",
            Self::RemoveImage => "/runtime.v1.ImageService/RemoveImage",
            Self::ImageFsInfo => "/runtime.v1.ImageService/ImageFsInfo",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Which runtime answers. Untrusted only in so far as it is text; escaped where errors print it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// `containerd`, `cri-o`, `docker`.
    pub runtime: String,
    /// Its version, as it writes it.
    pub version: String,
    /// The version of the interface; `v1` from most.
    pub interface: String,
}

/// How long calls may take, and how large answers may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For connecting, with the first `Version`, and for each call that only reads; 20 s. On an emulated machine
    /// containerd took 1.7 s for the first `Version`, 0.7 s for lists and 0.3 s for the file systems.
    pub read: Duration,
    /// For each call that stops, removes or changes something, beyond the grace period of a stop, and for the statistics of
    /// containers; 2 min, as the kubelet gives (`runtimeRequestTimeout`). Statistics of six pods took up to 11 s on an
    /// emulated machine, because containerd asks each shim. Removing an image waits until its layers are gone from the disk,
    /// and stopping a sandbox for the network plugins.
    pub change: Duration,
    /// For the answer to a call that lists; 16 MiB, as the kubelet allows (`maxMsgSize` in cri-client) and containerd
    /// sends. That is 110 pods with 140 KiB of labels and annotations each, 8,000 containers with 2,000 bytes
    /// each, or 20,000 images with 800. A node with more is one that its kubelet cannot list either. An answer
    /// about one container may take 1 MiB.
    pub list: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self { read: Duration::from_secs(20), change: Duration::from_mins(2), list: Bytes::mib(16) }
    }
}

impl Limits {
    /// For an answer about one thing.
    pub(crate) const ONE: Bytes = Bytes::mib(1);
}

/// A connection. Once all clones of it are dropped it is closed, whether the other side listens or not.
#[derive(Clone)]
pub(crate) struct Connection(Sender);

impl Connection {
    /// Connects. Nothing was sent or received yet.
    pub(crate) async fn open(socket: &Path, dial: &Dial) -> Result<Self, Error> {
        let stream =
            dial.connect(socket).await.map_err(|source| Error::Connect { socket: socket.to_owned(), source })?;
        let (connection, driver) = Self::over(stream)
            .await
            .map_err(|error| Error::NotCri { socket: socket.to_owned(), why: error.to_string() })?;
        // Its errors are also those of the call that is under way.
        tokio::spawn(driver);
        Ok(connection)
    }

    /// Over a stream to a runtime, with what has to be polled for it, and ends with it.
    pub(crate) async fn over(
        stream: UnixStream,
    ) -> hyper::Result<(Self, impl Future<Output = hyper::Result<()>> + Send)> {
        let (sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(EndedByDrop(stream))).await?;
        Ok((Self(Sender(sender)), driver))
    }

    /// Whether the other side has closed it, as far as was noticed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.0.is_closed()
    }

    /// Sends a request as it is, and gives the answer as it comes.
    pub(crate) async fn send(&mut self, request: http::Request<Body>) -> hyper::Result<http::Response<Incoming>> {
        self.0.0.send_request(request).await
    }

    /// Sends a request and waits for the answer, of at most this size.
    pub(crate) async fn unary<Q, A>(&self, call: Call, request: Q, most: Bytes) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let origin = Uri::from_static(ORIGIN);
        let most = usize::try_from(most.0).unwrap_or(usize::MAX);
        let mut client = tonic::client::Grpc::with_origin(self.0.clone(), origin).max_decoding_message_size(most);
        client.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = PathAndQuery::from_static(call.path());
        client.unary(Request::new(request), path, ProstCodec::<Q, A>::default()).await.map(tonic::Response::into_inner)
    }
}

/// What tonic sends requests with.
#[derive(Clone)]
struct Sender(http2::SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Sender {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
