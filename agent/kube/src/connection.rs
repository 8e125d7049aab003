//! The one connection to the API server, made when something is asked and made anew when it was lost.

use crate::access::Access;
use crate::dial::Dial;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::Client;
use kube::client::Body;
use std::io;
use std::sync::Arc;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// How long a connection may take until it can be used.
const CONNECT: Duration = Duration::from_secs(20);
/// How often a connection that a watch waits on is tried: an API server that was stopped sends nothing, not even an end.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long the answer to that may take.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);

type Error = Box<dyn core::error::Error + Send + Sync>;

/// A client of the API server, over connections that are made so. It connects when something is asked. The second one is
/// notified when a watch was begun: one that is gone on with brings nothing by which that would be seen.
pub fn client(access: Access, dial: Dial) -> (Client, Arc<Notify>) {
    let watching = Arc::<Notify>::default();
    let shared = Shared { access, dial, sender: Mutex::new(None), watching: Arc::clone(&watching) };
    // Every object has its namespace with it.
    (Client::new(Connection(Arc::new(shared)), "default"), watching)
}

struct Shared {
    access: Access,
    dial: Dial,
    sender: Mutex<Option<SendRequest<Body>>>,
    watching: Arc<Notify>,
}

impl Shared {
    /// The connection, made anew where there is none that works.
    async fn sender(&self) -> Result<SendRequest<Body>, Error> {
        let mut sender = self.sender.lock().await;
        if let Some(open) = sender.as_ref().filter(|open| !open.is_closed()) {
            return Ok(open.clone());
        }
        let made = timeout(CONNECT, self.connect());
        let made = made.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(sender.insert(made).clone())
    }

    async fn connect(&self) -> Result<SendRequest<Body>, Error> {
        let stream = self.dial.connect().await?;
        let tls = TlsConnector::from(self.access.tls()?).connect(self.access.server(), stream).await?;
        if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err("what answers at the API server's address does not speak HTTP/2".into());
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_ANSWER)
            .handshake(TokioIo::new(tls))
            .await?;
        // Its errors are also those of what is asked on it.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Error> {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let uri = Uri::builder().scheme(Scheme::HTTPS).authority(self.access.authority()?).path_and_query(path);
        *request.uri_mut() = uri.build()?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("plimsoll/", env!("CARGO_PKG_VERSION"))));
        if let Some(bearer) = self.access.bearer()? {
            headers.insert(AUTHORIZATION, bearer);
        }
        let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        let mut sender = self.sender().await?;
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        if is_watch && response.status().is_success() {
            self.watching.notify_one();
        }
        Ok(response)
    }
}

/// What the kube client sends requests with.
#[derive(Clone)]
struct Connection(Arc<Shared>);

impl tower_service::Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { shared.send(request).await })
    }
}
