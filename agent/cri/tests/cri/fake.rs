//! A container runtime in the test's own process, served over a unix socket.

/// The same messages as the client's, compiled a second time, with a server.
pub(crate) mod proto {
    #![expect(
        unreachable_pub,
        clippy::allow_attributes,
        clippy::allow_attributes_without_reason,
        clippy::default_trait_access,
        clippy::enum_variant_names,
        clippy::struct_field_names,
        clippy::too_many_lines,
        clippy::trivially_copy_pass_by_ref,
        reason = "generated"
    )]
    include!(concat!(env!("OUT_DIR"), "/server/runtime.v1.rs"));
}

use core::convert::Infallible;
use core::future::pending;
use core::time::Duration;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_cri::{Limits, Runtime};
use proto::image_service_server::{ImageService, ImageServiceServer};
use proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status};

/// How calls other than `Version` are answered.
#[derive(Clone, Debug, Default)]
pub(crate) enum Manner {
    /// As they should be.
    #[default]
    Well,
    /// After this time.
    Slow(Duration),
    /// Never.
    Hang,
    /// All connections are dropped while the call is under way; once, or each time.
    Drop {
        /// Well from then on.
        once: bool,
    },
    /// With an error.
    Refuse(tonic::Code, &'static str),
    /// With these bytes for a message.
    Raw(Vec<u8>),
}

/// What it has, and what was asked of it.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) sandboxes: Vec<proto::PodSandbox>,
    pub(crate) containers: Vec<proto::Container>,
    /// By container; of others it says that they are not found.
    pub(crate) statuses: BTreeMap<String, Option<proto::ContainerStatus>>,
    pub(crate) stats: Vec<proto::ContainerStats>,
    pub(crate) images: Vec<proto::Image>,
    /// Of its configuration, as JSON.
    pub(crate) config: Option<&'static str>,
    pub(crate) file_systems: proto::ImageFsInfoResponse,
    /// Ids of what it refuses to remove.
    pub(crate) stuck: Vec<String>,
    pub(crate) manner: Manner,
    /// It has no name, as what is no container runtime.
    pub(crate) is_nameless: bool,
    /// It has no such services.
    pub(crate) has_no_v1: bool,
    /// The calls in order, with what they name.
    pub(crate) calls: Vec<String>,
}

impl Node {
    fn removes(&self, id: &str) -> Result<(), Status> {
        if self.stuck.iter().any(|stuck| stuck == id) {
            Err(Status::internal("device or resource busy"))
        } else {
            Ok(())
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Fake {
    node: Arc<Mutex<Node>>,
    drop_all: Arc<Notify>,
}

impl Fake {
    pub(crate) fn with(change: impl FnOnce(&mut Node)) -> Self {
        let fake = Self::default();
        fake.change(change);
        fake
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Node) -> R) -> R {
        change(&mut self.node.lock().expect("no test panics with it"))
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.change(|node| core::mem::take(&mut node.calls))
    }

    async fn answer<A>(
        &self,
        call: String,
        take: impl FnOnce(&mut Node) -> Result<A, Status>,
    ) -> Result<Response<A>, Status> {
        let manner = self.change(|node| {
            node.calls.push(call);
            node.manner.clone()
        });
        match manner {
            Manner::Well | Manner::Raw(_) => self.change(take).map(Response::new),
            Manner::Slow(time) => {
                tokio::time::sleep(time).await;
                self.change(take).map(Response::new)
            }
            Manner::Hang => pending().await,
            Manner::Drop { once } => {
                if once {
                    self.change(|node| node.manner = Manner::Well);
                }
                self.drop_all.notify_one();
                pending().await
            }
            Manner::Refuse(code, why) => Err(Status::new(code, why)),
        }
    }

    async fn route(self, request: http::Request<Incoming>) -> Result<http::Response<Body>, Infallible> {
        let path = request.uri().path().to_owned();
        let (raw, has_no_v1) = self.change(|node| {
            let raw = if let Manner::Raw(bytes) = &node.manner { Some(bytes.clone()) } else { None };
            (raw.filter(|_| !path.ends_with("/Version")), node.has_no_v1)
        });
        if has_no_v1 {
            return Ok(Status::unimplemented("unknown service runtime.v1.RuntimeService").into_http());
        }
        if let Some(bytes) = raw {
            let mut framed = vec![0];
            framed.extend(u32::try_from(bytes.len()).expect("it is small").to_be_bytes());
            framed.extend(bytes);
            let end =
                async { Some(Ok(http::HeaderMap::from_iter([("grpc-status".parse().ok()?, "0".parse().ok()?)]))) };
            let body = Body::new(Full::new(Bytes::from(framed)).with_trailers(end));
            return Ok(http::Response::builder()
                .header("content-type", "application/grpc")
                .body(body)
                .expect("it is valid"));
        }
        if path.starts_with("/runtime.v1.RuntimeService/") {
            RuntimeServiceServer::new(self).call(request).await
        } else {
            ImageServiceServer::new(self).call(request).await
        }
    }
}

/// A runtime that is being served, until it is dropped or stopped.
pub(crate) struct Served {
    pub(crate) socket: PathBuf,
    task: JoinHandle<()>,
}

impl Served {
    /// Ends it with all its connections, and removes its socket.
    pub(crate) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
        std::fs::remove_file(&self.socket).expect("the socket was there");
    }
}

/// Serves at `runtime.sock` in this folder.
pub(crate) fn serve(folder: &Path, fake: &Fake) -> Served {
    serve_at(folder.join("runtime.sock"), fake)
}

pub(crate) fn serve_at(socket: PathBuf, fake: &Fake) -> Served {
    let listener = UnixListener::bind(&socket).expect("the folder is new");
    let fake = fake.clone();
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = fake.drop_all.notified() => connections.abort_all(),
                accepted = listener.accept() => {
                    let (stream, _) = accepted.expect("a listener accepts");
                    let fake = fake.clone();
                    let service = hyper::service::service_fn(move |request| fake.clone().route(request));
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    connections.spawn(server.serve_connection(TokioIo::new(stream), service));
                }
            }
        }
    });
    Served { socket, task }
}

/// A runtime that has what is needed, and a client of it.
pub(crate) async fn connected(folder: &Path, change: impl FnOnce(&mut Node)) -> (Fake, Served, Runtime) {
    let fake = Fake::with(change);
    let served = serve(folder, &fake);
    let runtime = Runtime::connect(&served.socket, Limits::default()).await.expect("it answers");
    fake.calls();
    (fake, served, runtime)
}

pub(crate) fn container(id: &str, change: impl FnOnce(&mut proto::Container)) -> proto::Container {
    let metadata = Some(proto::ContainerMetadata { name: "app".to_owned(), attempt: 0 });
    let (id, pod_sandbox_id) = (id.to_owned(), "sandbox".to_owned());
    let mut container = proto::Container { id, pod_sandbox_id, metadata, ..proto::Container::default() };
    change(&mut container);
    container
}

pub(crate) fn image(id: &str, size: u64) -> proto::Image {
    proto::Image { id: id.to_owned(), size, ..proto::Image::default() }
}

pub(crate) fn spec(image: &str) -> proto::ImageSpec {
    proto::ImageSpec { image: image.to_owned(), ..proto::ImageSpec::default() }
}

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn version(&self, _: Request<proto::VersionRequest>) -> Result<Response<proto::VersionResponse>, Status> {
        let name = self.change(|node| {
            node.calls.push("Version".to_owned());
            if node.is_nameless { "" } else { "fake" }
        });
        Ok(Response::new(proto::VersionResponse {
            runtime_name: name.to_owned(),
            runtime_version: "1".to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<proto::ListPodSandboxRequest>,
    ) -> Result<Response<proto::ListPodSandboxResponse>, Status> {
        let take = |node: &mut Node| Ok(proto::ListPodSandboxResponse { items: node.sandboxes.clone() });
        self.answer("ListPodSandbox".to_owned(), take).await
    }

    async fn list_containers(
        &self,
        _: Request<proto::ListContainersRequest>,
    ) -> Result<Response<proto::ListContainersResponse>, Status> {
        let take = |node: &mut Node| Ok(proto::ListContainersResponse { containers: node.containers.clone() });
        self.answer("ListContainers".to_owned(), take).await
    }

    async fn container_status(
        &self,
        request: Request<proto::ContainerStatusRequest>,
    ) -> Result<Response<proto::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        self.answer(format!("ContainerStatus {id}"), |node| match node.statuses.get(&id) {
            Some(status) => Ok(proto::ContainerStatusResponse { status: status.clone() }),
            None => Err(Status::not_found("no such container")),
        })
        .await
    }

    async fn list_container_stats(
        &self,
        _: Request<proto::ListContainerStatsRequest>,
    ) -> Result<Response<proto::ListContainerStatsResponse>, Status> {
        let take = |node: &mut Node| Ok(proto::ListContainerStatsResponse { stats: node.stats.clone() });
        self.answer("ListContainerStats".to_owned(), take).await
    }

    async fn stop_container(
        &self,
        request: Request<proto::StopContainerRequest>,
    ) -> Result<Response<proto::StopContainerResponse>, Status> {
        let proto::StopContainerRequest { container_id, timeout } = request.into_inner();
        self.answer(format!("StopContainer {container_id} {timeout}"), |_| Ok(proto::StopContainerResponse {})).await
    }

    async fn remove_container(
        &self,
        request: Request<proto::RemoveContainerRequest>,
    ) -> Result<Response<proto::RemoveContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        self.answer(format!("RemoveContainer {id}"), |node| {
            node.removes(&id)?;
            node.containers.retain(|container| container.id != id);
            Ok(proto::RemoveContainerResponse {})
        })
        .await
    }

    async fn status(&self, request: Request<proto::StatusRequest>) -> Result<Response<proto::StatusResponse>, Status> {
        let is_verbose = request.into_inner().verbose;
        self.answer("Status".to_owned(), |node| {
            let config = node.config.filter(|_| is_verbose).map(|text| ("config".to_owned(), text.to_owned()));
            Ok(proto::StatusResponse { info: config.into_iter().collect() })
        })
        .await
    }

    async fn update_container_resources(
        &self,
        request: Request<proto::UpdateContainerResourcesRequest>,
    ) -> Result<Response<proto::UpdateContainerResourcesResponse>, Status> {
        let proto::UpdateContainerResourcesRequest { container_id, linux } = request.into_inner();
        let unified = linux.map(|linux| linux.unified).unwrap_or_default();
        self.answer(format!("UpdateContainerResources {container_id} {unified:?}"), |node| {
            node.removes(&container_id)?;
            Ok(proto::UpdateContainerResourcesResponse {})
        })
        .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<proto::StopPodSandboxRequest>,
    ) -> Result<Response<proto::StopPodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.answer(format!("StopPodSandbox {id}"), |_| Ok(proto::StopPodSandboxResponse {})).await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<proto::RemovePodSandboxRequest>,
    ) -> Result<Response<proto::RemovePodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.answer(format!("RemovePodSandbox {id}"), |node| {
            node.removes(&id)?;
            node.sandboxes.retain(|sandbox| sandbox.id != id);
            Ok(proto::RemovePodSandboxResponse {})
        })
        .await
    }
}

#[tonic::async_trait]
impl ImageService for Fake {
    async fn list_images(
        &self,
        _: Request<proto::ListImagesRequest>,
    ) -> Result<Response<proto::ListImagesResponse>, Status> {
        let take = |node: &mut Node| Ok(proto::ListImagesResponse { images: node.images.clone() });
        self.answer("ListImages".to_owned(), take).await
    }

    async fn remove_image(
        &self,
        request: Request<proto::RemoveImageRequest>,
    ) -> Result<Response<proto::RemoveImageResponse>, Status> {
        let id = request.into_inner().image.map(|spec| spec.image).unwrap_or_default();
        self.answer(format!("RemoveImage {id}"), |node| {
            node.removes(&id)?;
            node.images.retain(|image| image.id != id);
            Ok(proto::RemoveImageResponse {})
        })
        .await
    }

    async fn image_fs_info(
        &self,
        _: Request<proto::ImageFsInfoRequest>,
    ) -> Result<Response<proto::ImageFsInfoResponse>, Status> {
        self.answer("ImageFsInfo".to_owned(), |node| Ok(node.file_systems.clone())).await
    }
}
