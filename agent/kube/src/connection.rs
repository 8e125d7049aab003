//! The one connection to the API server, made when something is asked and made anew when it was lost.

use crate::access::Access;
use crate::budget::Pace;
use crate::dial::{self, Dial};
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
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// How long a connection may take until it can be used.
const CONNECT: Duration = Duration::from_secs(20);
/// How long the API server waits for a webhook at most (`timeoutSeconds`), which may be one that it goes on without.
const WEBHOOK: Duration = Duration::from_secs(30);
/// How long the head of an answer may take. That of a watch comes at its beginning.
pub(crate) const ANSWER: Duration = WEBHOOK.saturating_add(Duration::from_secs(5));
/// How often a connection that a watch waits on is tried: an API server that was stopped sends nothing, not even an end.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long the answer to that may take.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);

type Error = Box<dyn core::error::Error + Send + Sync>;

/// What is watched of pods, of all namespaces.
const PODS: &str = "/api/v1/pods";

/// A client of the API server, over connections that are made so. It connects when something is asked. The second one is
/// notified when a watch of pods was begun: one that is gone on with brings nothing by which that would be seen.
pub fn client(access: Access, dial: Dial) -> (Client, Arc<Notify>) {
    let watching = Arc::<Notify>::default();
    let paces = StdMutex::default();
    let shared = Shared { access, dial, sender: Mutex::new(None), watching: Arc::clone(&watching), paces };
    // Every object has its namespace with it.
    (Client::new(Connection(Arc::new(shared)), "default"), watching)
}

struct Shared {
    access: Access,
    dial: Dial,
    sender: Mutex<Option<SendRequest<Body>>>,
    watching: Arc<Notify>,
    /// Of watches, by the path of what is watched: that of pods, and that of nodes.
    paces: StdMutex<BTreeMap<String, Pace>>,
}

impl Shared {
    /// The connection, made anew where there is none that works.
    async fn sender(&self) -> Result<SendRequest<Body>, Error> {
        let mut sender = self.sender.lock().await;
        if let Some(open) = sender.as_ref().filter(|open| !open.is_closed()) {
            return Ok(open.clone());
        }
        let made = timeout(CONNECT, self.connect());
        let made = made.await.map_err(|_| {
            // Packets that a unit does not allow are dropped, and connect(2) does not fail by that.
            let why = "the API server did not answer a new connection in time; where the agent's unit has IPAddressDeny=, name \
                       the server's address in IPAddressAllow= of a drop-in";
            io::Error::new(io::ErrorKind::TimedOut, why)
        })??;
        Ok(sender.insert(made).clone())
    }

    async fn connect(&self) -> Result<SendRequest<Body>, Error> {
        let stream = dial::connect(&self.dial).await?;
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
        let watched = path.path().to_owned();
        let uri = Uri::builder().scheme(Scheme::HTTPS).authority(self.access.authority()?).path_and_query(path);
        *request.uri_mut() = uri.build()?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("plimsoll/", env!("CARGO_PKG_VERSION"))));
        if let Some(bearer) = self.access.bearer()? {
            headers.insert(AUTHORIZATION, bearer);
        }
        let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        if is_watch {
            let pause = self.paces().entry(watched.clone()).or_default().pause(Instant::now(), fastrand::f64());
            tokio::time::sleep(pause).await;
        }
        let mut sender = self.sender().await?;
        let answered = timeout(ANSWER, async {
            sender.ready().await?;
            sender.send_request(request).await
        });
        let response = answered.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if is_watch && response.status().is_success() {
            if watched == PODS {
                self.watching.notify_one();
            }
            self.paces().entry(watched).or_default().begin(Instant::now());
        }
        Ok(response)
    }

    fn paces(&self) -> MutexGuard<'_, BTreeMap<String, Pace>> {
        // Each change of one is one assignment.
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::OwnedFd;
    use tower_service::Service as _;

    /// Asks over this connection, or over another one, and expects that there is no answer within so long.
    async fn times_out(dial: Dial, sender: Option<SendRequest<Body>>, limit: Duration) -> String {
        let folder = tempfile::tempdir().expect("a temporary directory");
        fs::write(folder.path().join("token"), "t").expect("writable");
        let directory = OwnedFd::from(fs::File::open(folder.path()).expect("it is there"));
        let variable = |name: &str| Some(if name.ends_with("PORT") { "1" } else { "127.0.0.1" }.to_owned());
        let access = Access::in_cluster(directory, variable).expect("a service account");
        let (sender, paces) = (Mutex::new(sender), StdMutex::default());
        let shared = Shared { access, dial, sender, watching: Arc::default(), paces };
        let begun = Instant::now();
        let request = Request::get("/api/v1/pods").body(Body::empty()).expect("a request");
        let error = Connection(Arc::new(shared)).call(request).await.expect_err("there is no answer");
        assert!(error.downcast_ref::<io::Error>().is_some_and(|it| it.kind() == io::ErrorKind::TimedOut), "{error}");
        assert_eq!(begun.elapsed().as_secs(), limit.as_secs());
        error.to_string()
    }

    #[test]
    fn an_answer_that_does_not_begin_is_waited_for_a_bounded_time_as_is_a_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let error = times_out(Dial::by(|()| std::future::pending()), None, CONNECT).await;
            assert!(error.contains("IPAddressAllow="), "{error}");
            // It takes all that it is sent, and says nothing.
            let (near, far) = tokio::io::duplex(1 << 20);
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await.expect("nothing is waited for");
            tokio::spawn(connection);
            let dial = Dial::by(|()| async { Err(io::ErrorKind::ConnectionRefused.into()) });
            times_out(dial, Some(sender), ANSWER).await;
            drop(far);
        });
    }
}
