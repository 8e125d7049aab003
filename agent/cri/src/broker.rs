//! Between a client that is not trusted and a runtime: what only reads passes, what stops, removes or changes something
//! passes where a [`Guard`] allows it, and nothing else passes at all.
//!
//! A call is sent on as what was read of it, so that no field reaches the runtime that was not looked at. Answers pass as they
//! come, in parts of no more than HTTP/2 has under way.

use core::time::Duration;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes as Data, Incoming};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_dial::EndedByDrop;
use plimsoll_units::Bytes;
use prost::Message as _;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::body::Body;

use crate::connection::{Call, Connection, ORIGIN};
use crate::error::Error;
use crate::id::{ContainerId, ImageId, SandboxId};
use crate::in_use::InUse;
use crate::listed::{Container, Image, Sandbox};
use crate::runtime::Runtime;
use crate::{proto, request};

/// The longest request, in bytes: those that are sent have an id, or nothing.
const MOST: usize = 64 << 10;
/// So many calls are under way on a connection at most: a pod's containers are stopped at the same time.
const STREAMS: u32 = 64;
/// gRPC's prefix of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A call that stops, removes or changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Ends a container, with this grace.
    StopContainer(ContainerId, Duration),
    /// Removes a container, and kills what runs in it.
    RemoveContainer(ContainerId),
    /// Sets memory.high of a container, in bytes.
    SetMemoryHigh(ContainerId, Bytes),
    /// Kills what runs in a sandbox.
    StopSandbox(SandboxId),
    /// Removes a sandbox with all containers in it, and kills what runs there.
    RemoveSandbox(SandboxId),
    /// Removes an image with all its tags.
    RemoveImage(ImageId),
}

/// What the runtime has, as it lists it right before a change of it.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// All sandboxes; none where an image is removed.
    pub sandboxes: Vec<Sandbox>,
    /// All containers, running or not; none where an image is removed.
    pub containers: Vec<Container>,
    /// All images, where one is removed.
    pub images: Vec<Image>,
    /// Which of the images containers are made from, or sandboxes. Image volumes are not among them.
    pub in_use: InUse,
}

/// Says which changes may pass.
pub trait Guard: Send + Sync + 'static {
    /// Why no change of this kind may pass, whatever the runtime lists; absent where one may.
    fn refusal_of_kind(&self, change: &Change) -> Option<&'static str>;

    /// Why this change may not pass; absent where it may. Where a limit is set, nothing is listed.
    fn refusal(&self, change: &Change, listed: &Listed) -> Option<&'static str>;
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Reads(Call, Vec<u8>),
    Changes(Change),
}

/// Passes the calls that come by `client` on to `runtime`, until either side has ended.
pub async fn pass<G: Guard>(client: UnixStream, runtime: UnixStream, guard: Arc<G>) {
    let Ok((connection, driver)) = Connection::over(runtime).await else { return };
    let service = service_fn(move |request| answer(request, connection.clone(), Arc::clone(&guard)));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(STREAMS);
    let served = builder.serve_connection(TokioIo::new(EndedByDrop(client)), service);
    tokio::select! {
        // A client whose runtime has ended sees the same as without this in between.
        _ = driver => {}
        _ = served => {}
    }
}

async fn answer<G: Guard>(
    request: Request<Incoming>,
    mut connection: Connection,
    guard: Arc<G>,
) -> Result<Response<Body>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let body = Limited::new(request.into_body(), MOST).collect().await;
    let asked = match body {
        Ok(body) => read(&path, &body.to_bytes()),
        Err(error) => Err(Status::invalid_argument(format!("a request that cannot be read: {error}"))),
    };
    let allowed = match asked {
        Ok(Asked::Reads(call, message)) => Ok((call, message)),
        Ok(Asked::Changes(change)) => allowed(&change, &connection, &*guard).await.map(|()| change.into_message()),
        Err(status) => Err(status),
    };
    match allowed {
        Ok((call, message)) => connection.send(grpc(call, &message)).await.map(|response| response.map(Body::new)),
        Err(status) => Ok(status.into_http()),
    }
}

async fn allowed(change: &Change, connection: &Connection, guard: &impl Guard) -> Result<(), Status> {
    let mut refusal = guard.refusal_of_kind(change);
    if refusal.is_none() {
        let listed = list(change, Runtime::over(connection.clone())).await;
        let listed = listed.map_err(|error| Status::unavailable(format!("what it is about is not listed: {error}")))?;
        refusal = guard.refusal(change, &listed);
    }
    refusal.map_or(Ok(()), |why| Err(Status::permission_denied(why)))
}

/// What a change may be about.
async fn list(change: &Change, mut runtime: Runtime) -> Result<Listed, Error> {
    let mut listed = Listed::default();
    match change {
        Change::SetMemoryHigh(..) => {}
        Change::RemoveImage(_) => {
            // Before the containers: an image that is used in between is used then.
            listed.images = runtime.images().await?;
            if let Some(name) = runtime.sandbox_image().await? {
                listed.in_use.add_sandbox_image(&name);
            }
            runtime.containers().await?.iter().for_each(|container| listed.in_use.add_container(container));
        }
        Change::StopContainer(..) | Change::RemoveContainer(_) | Change::StopSandbox(_) | Change::RemoveSandbox(_) => {
            listed.sandboxes = runtime.sandboxes().await?;
            listed.containers = runtime.containers().await?;
        }
    }
    Ok(listed)
}

/// The one message of a request.
fn read(path: &str, body: &[u8]) -> Result<Asked, Status> {
    let Some(call) = Call::ALL.into_iter().find(|call| call.path() == path) else {
        return Err(Status::unimplemented("this call is never made here"));
    };
    let message = match body.split_first_chunk::<PREFIX>() {
        Some(([0, a, b, c, d], message)) if u32::from_be_bytes([*a, *b, *c, *d]).try_into() == Ok(message.len()) => {
            message
        }
        Some(_) | None => return Err(Status::invalid_argument("expected one message that is not compressed")),
    };
    let asked = Change::read(call, message).and_then(|change| match change {
        Some(change) => Ok(Asked::Changes(change)),
        None => reading(call, message).map(|message| Asked::Reads(call, message)),
    });
    asked.map_err(Status::invalid_argument)
}

/// The message of a call that only reads, with nothing in it but what `proto/runtime.proto` has.
fn reading(call: Call, message: &[u8]) -> Result<Vec<u8>, String> {
    let unread = |error: prost::DecodeError| error.to_string();
    match call {
        Call::Status => proto::StatusRequest::decode(message).map(|request| request.encode_to_vec()).map_err(unread),
        Call::ContainerStatus => {
            proto::ContainerStatusRequest::decode(message).map(|request| request.encode_to_vec()).map_err(unread)
        }
        // Without a filter.
        _ => Ok(Vec::new()),
    }
}

impl Change {
    /// The change that this call is; absent where it only reads.
    fn read(call: Call, message: &[u8]) -> Result<Option<Self>, String> {
        let unread = |error: prost::DecodeError| error.to_string();
        let container = |id: String| ContainerId::try_from(id).map_err(|error| error.to_string());
        let sandbox = |id: String| SandboxId::try_from(id).map_err(|error| error.to_string());
        Ok(Some(match call {
            Call::StopContainer => {
                let proto::StopContainerRequest { container_id, timeout } =
                    proto::StopContainerRequest::decode(message).map_err(unread)?;
                let seconds = u64::try_from(timeout).map_err(|_| "a grace below zero")?;
                Self::StopContainer(container(container_id)?, Duration::from_secs(seconds))
            }
            Call::RemoveContainer => {
                let request = proto::RemoveContainerRequest::decode(message).map_err(unread)?;
                Self::RemoveContainer(container(request.container_id)?)
            }
            Call::UpdateContainerResources => {
                let request = proto::UpdateContainerResourcesRequest::decode(message).map_err(unread)?;
                let unified = request.linux.unwrap_or_default().unified;
                let high = unified.get(request::MEMORY_HIGH).and_then(|bytes| bytes.parse().ok());
                let high = high.filter(|_| unified.len() == 1).ok_or("expected bytes of memory.high alone")?;
                Self::SetMemoryHigh(container(request.container_id)?, Bytes(high))
            }
            Call::StopPodSandbox => {
                let request = proto::StopPodSandboxRequest::decode(message).map_err(unread)?;
                Self::StopSandbox(sandbox(request.pod_sandbox_id)?)
            }
            Call::RemovePodSandbox => {
                let request = proto::RemovePodSandboxRequest::decode(message).map_err(unread)?;
                Self::RemoveSandbox(sandbox(request.pod_sandbox_id)?)
            }
            Call::RemoveImage => {
                let request = proto::RemoveImageRequest::decode(message).map_err(unread)?;
                let image = request.image.unwrap_or_default().image;
                Self::RemoveImage(ImageId::try_from(image).map_err(|error| error.to_string())?)
            }
            Call::Version
            | Call::Status
            | Call::ListPodSandbox
            | Call::ListContainers
            | Call::ContainerStatus
            | Call::ListContainerStats
            | Call::ListImages
            | Call::ImageFsInfo => return Ok(None),
        }))
    }

    /// The call, with nothing in its message but what was read.
    fn into_message(self) -> (Call, Vec<u8>) {
        match self {
            Self::StopContainer(id, grace) => {
                (Call::StopContainer, request::stop_container(&id, grace).encode_to_vec())
            }
            Self::RemoveContainer(id) => (Call::RemoveContainer, request::remove_container(&id).encode_to_vec()),
            Self::SetMemoryHigh(id, high) => {
                (Call::UpdateContainerResources, request::set_memory_high(&id, high).encode_to_vec())
            }
            Self::StopSandbox(id) => (Call::StopPodSandbox, request::stop_sandbox(&id).encode_to_vec()),
            Self::RemoveSandbox(id) => (Call::RemovePodSandbox, request::remove_sandbox(&id).encode_to_vec()),
            Self::RemoveImage(id) => (Call::RemoveImage, request::remove_image(&id).encode_to_vec()),
        }
    }
}

/// A request of gRPC's with this message.
fn grpc(call: Call, message: &[u8]) -> Request<Body> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    let body = [&[0], &length[..], message].concat();
    let mut request = Request::new(Body::new(Full::new(Data::from(body))));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_maybe_shared(format!("{ORIGIN}{}", call.path())).unwrap_or_default();
    request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0, 0, 0, 0, u8::try_from(message.len()).expect("it is short")], message].concat()
    }

    fn code(path: &str, body: &[u8]) -> Option<tonic::Code> {
        read(path, body).err().map(|status| status.code())
    }

    #[test]
    fn a_call_that_is_not_known_and_what_is_no_message_are_refused() {
        let list = Call::ListContainers.path();
        // A filter, and what a container's status is to be verbose by (api.proto): neither is passed on.
        assert_eq!(
            read(list, &framed(&[1 << 3 | 2, 0])).expect("it reads"),
            Asked::Reads(Call::ListContainers, vec![])
        );
        let status = [1 << 3 | 2, 1, b'c'];
        let verbose = [&status[..], &[2 << 3, 1]].concat();
        let asked = read(Call::ContainerStatus.path(), &framed(&verbose)).expect("it reads");
        assert_eq!(asked, Asked::Reads(Call::ContainerStatus, status.to_vec()));
        for other in ["/runtime.v1.RuntimeService/ExecSync", "/runtime.v1.RuntimeService/", "/", "", "runtime.v1"] {
            assert_eq!(code(other, &framed(b"")), Some(tonic::Code::Unimplemented), "{other}");
        }
        // Compressed, cut off, and two at once.
        let two = [framed(b"a"), framed(b"b")].concat();
        for body in [&b""[..], &[0, 0, 0], &[1, 0, 0, 0, 0], &[0, 0, 0, 0, 2, 7], &two] {
            assert_eq!(code(list, body), Some(tonic::Code::InvalidArgument), "{body:?}");
        }
        for call in Call::ALL.into_iter().filter(|call| matches!(Change::read(*call, b""), Err(_) | Ok(Some(_)))) {
            assert_eq!(code(call.path(), &framed(b"")), Some(tonic::Code::InvalidArgument), "{call} names nothing");
        }
    }

    #[test]
    fn nothing_of_a_change_passes_that_was_not_read() {
        let id = ContainerId::try_from("c".to_owned()).expect("an id");
        // A field 5 of a container's resources is memory_limit_in_bytes (api.proto), here of one byte.
        let linux = proto::LinuxContainerResources { unified: [("memory.high".to_owned(), "4096".to_owned())].into() };
        let linux = [&linux.encode_to_vec()[..], &[5 << 3, 1]].concat();
        let length = u8::try_from(linux.len()).expect("it is short");
        let asked = [&[1 << 3 | 2, 1, b'c', 2 << 3 | 2, length][..], &linux].concat();
        let change = Change::read(Call::UpdateContainerResources, &asked).expect("it is read").expect("a change");
        assert_eq!(change, Change::SetMemoryHigh(id.clone(), Bytes(4096)));
        let (call, message) = change.into_message();
        assert_eq!(call, Call::UpdateContainerResources);
        assert_eq!(message, request::set_memory_high(&id, Bytes(4096)).encode_to_vec());
        for unified in [
            &[("memory.high", "4096"), ("memory.max", "1")][..],
            &[("memory.max", "1")],
            &[("memory.high", "max")],
            &[("memory.high", "-1")],
            &[],
        ] {
            let unified = unified.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            let linux = Some(proto::LinuxContainerResources { unified });
            let asked = proto::UpdateContainerResourcesRequest { container_id: "c".to_owned(), linux }.encode_to_vec();
            Change::read(Call::UpdateContainerResources, &asked).expect_err("it is not memory.high alone");
        }
        let below_zero = proto::StopContainerRequest { container_id: "c".to_owned(), timeout: -1 }.encode_to_vec();
        Change::read(Call::StopContainer, &below_zero).expect_err("containerd takes it for none");
    }
}
