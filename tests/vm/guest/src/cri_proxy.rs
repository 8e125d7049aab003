//! A container runtime whose images and writable layers are on two file systems, as CRI-O's with an `imagestore`: a proxy
//! before a containerd that keeps them so, but says of both that they are in one place.
//!
//! It forwards every call with its answer as it is, whatever is in them, and changes one answer: to `ImageFsInfo`.

use crate::containerd::Places;
use crate::cri::api::{FilesystemIdentifier, FilesystemUsage, ImageFsInfoResponse};
use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use std::fs;
use std::path::Path;
use std::thread::{self, JoinHandle};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tonic::body::Body;

/// Where it listens.
pub(crate) const SOCKET: &str = "/run/test-cri-proxy.sock";
/// The call that it answers in its own way.
const IMAGE_FS_INFO: &str = "/runtime.v1.ImageService/ImageFsInfo";
/// What is before a message of gRPC: that it is not compressed, and its length.
const FRAME: usize = 5;

/// Serves until it is dropped.
pub(crate) struct Proxy {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Before the runtime at this socket, which keeps images and layers in these directories.
    pub(crate) fn start(runtime: &'static str, places: Places) -> Result<Self> {
        let _ = fs::remove_file(SOCKET);
        let tokio = Builder::new_current_thread().enable_all().build().context("cannot make a runtime of tokio")?;
        let listener = tokio.block_on(async { UnixListener::bind(SOCKET) });
        let listener = listener.with_context(|| format!("cannot listen on {SOCKET}"))?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            tokio.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serve(listener, runtime, places) => {}
                }
            });
        });
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = fs::remove_file(SOCKET);
    }
}

async fn serve(listener: UnixListener, runtime: &'static str, places: Places) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            // The client sees that the connection ends.
            if let Err(error) = forward(stream, Path::new(runtime), places).await {
                eprintln!("the proxy of CRI: {error:#}");
            }
        });
    }
}

/// One connection of a client, and one to the runtime for it.
async fn forward(client: UnixStream, runtime: &Path, places: Places) -> Result<()> {
    let stream = UnixStream::connect(runtime).await.context("cannot connect to the container runtime")?;
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let service = service_fn(move |request| answer(sender.clone(), request, places));
    // The client closes it when it likes.
    let _ =
        server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(client), service).await;
    Ok(())
}

async fn answer(
    mut runtime: SendRequest<Incoming>,
    request: Request<Incoming>,
    places: Places,
) -> Result<Response<Body>> {
    let is_changed = request.uri().path() == IMAGE_FS_INFO;
    let answer = runtime.send_request(request).await.context("the container runtime does not answer")?;
    if !is_changed {
        return Ok(answer.map(Body::new));
    }
    let (head, body) = answer.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned();
    let bytes = split(&body.to_bytes(), places)?;
    let end = async { trailers.map(Ok::<HeaderMap, _>) };
    Ok(Response::from_parts(head, Body::new(Full::new(bytes).with_trailers(end))))
}

/// What is said of images, with these places: containerd before 1.7 says nothing of writable layers, and of images that they
/// are where it would keep layers.
fn split(framed: &[u8], places: Places) -> Result<Bytes> {
    ensure!(framed.len() >= FRAME && framed[0] == 0, "no message, or a compressed one: {framed:?}");
    let said = ImageFsInfoResponse::decode(&framed[FRAME..]).context("no answer to ImageFsInfo")?;
    let at = |place: &str| {
        let fs_id = || Some(FilesystemIdentifier { mountpoint: place.to_owned() });
        said.image_filesystems.iter().map(|said| FilesystemUsage { fs_id: fs_id(), ..said.clone() }).collect()
    };
    let (image_filesystems, container_filesystems) = (at(places.images), at(places.layers));
    let message = ImageFsInfoResponse { image_filesystems, container_filesystems }.encode_to_vec();
    let length = u32::try_from(message.len())?.to_be_bytes();
    Ok([&[0][..], &length, &message].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(directory: &str, timestamp: i64) -> FilesystemUsage {
        FilesystemUsage {
            timestamp,
            fs_id: Some(FilesystemIdentifier { mountpoint: directory.to_owned() }),
            ..FilesystemUsage::default()
        }
    }

    fn framed(answer: &ImageFsInfoResponse) -> Vec<u8> {
        let message = answer.encode_to_vec();
        let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
        [&[0][..], &length, &message].concat()
    }

    #[test]
    fn images_and_layers_are_where_they_are_kept_whatever_is_said_of_them() {
        let places = Places { images: "/images", layers: "/layers" };
        let expected = ImageFsInfoResponse {
            image_filesystems: vec![of("/images", 7)],
            container_filesystems: vec![of("/layers", 7)],
        };
        for said in [&["/layers"][..], &[]] {
            let said = ImageFsInfoResponse {
                image_filesystems: vec![of("/layers", 7)],
                container_filesystems: said.iter().map(|place| of(place, 8)).collect(),
            };
            assert_eq!(split(&framed(&said), places).expect("a message"), framed(&expected));
        }
        for broken in [&[][..], &[0, 0, 0], &[1, 0, 0, 0, 0], &[0, 0, 0, 0, 1, 255]] {
            assert!(split(broken, places).is_err(), "{broken:?}");
        }
    }
}
