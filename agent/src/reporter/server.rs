//! `/metrics`, `/livez`, `/readyz` and `/shadow`, on loopback unless another address is configured.
//!
//! Clients are not trusted: one that connects and sends nothing delays no other one, and health waits for no record and
//! no other answer.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use plimsoll_report::Answers;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// What one client or all of them may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at a time.
    all: usize,
    /// Connections at a time from one address.
    peer: usize,
    /// How long a client may take for the head of its request.
    head: Duration,
    /// How long a connection may take in all.
    connection: Duration,
}

const LIMITS: Limits = Limits { all: 128, peer: 16, head: Duration::from_secs(2), connection: Duration::from_secs(10) };
/// How long until an address that was in use is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Serves for ever. Where its address is in use, it goes on trying.
pub(super) async fn serve(address: SocketAddr, answers: Answers) -> Infallible {
    let listener = listen(address).await;
    serve_on(listener, answers, LIMITS).await
}

async fn listen(address: SocketAddr) -> TcpListener {
    let mut reported = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                if !std::mem::replace(&mut reported, true) {
                    tracing::warn!(
                        %address,
                        "cannot serve metrics and health on {address}: {error}; it is tried again. Is another \
                         machine.metricsAddress needed?"
                    );
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Accepts every connection at once: where there are too many, another one is closed, so that a client that sends its
/// request never waits for those that do not.
async fn serve_on(listener: TcpListener, answers: Answers, limits: Limits) -> Infallible {
    let answers = Arc::new(answers);
    let mut tasks = JoinSet::new();
    let mut open: Vec<Open> = Vec::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let peer = network(address.ip());
                    let known = open.iter().map(|open| (open.peer, open.asked.load(Ordering::Relaxed)));
                    if let Some(index) = in_the_way(known, peer, limits) {
                        open.remove(index).task.abort();
                    }
                    let asked = Arc::new(AtomicBool::new(false));
                    let task = tasks.spawn(connection(stream, Arc::clone(&answers), Arc::clone(&asked), limits));
                    open.push(Open { peer, asked, task });
                }
                // Out of descriptors, as a rule: some must be closed first.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                open.retain(|open| open.task.id() != id);
            }
        }
    }
}

/// A connection that was accepted.
struct Open {
    peer: IpAddr,
    /// The head of its request is here.
    asked: Arc<AtomicBool>,
    task: AbortHandle,
}

/// The connection to close for another one from `peer`, by its place in the list of connections, oldest first, each
/// with its peer and whether the head of its request is here. It is one of the same peer if that has as many as it may,
/// and one of all if there are as many as there may be: the oldest without a request, or where all have one, the
/// oldest.
fn in_the_way(open: impl Iterator<Item = (IpAddr, bool)> + Clone, peer: IpAddr, limits: Limits) -> Option<usize> {
    let of_peer = open.clone().filter(|(other, _)| *other == peer).count();
    let own_only = of_peer >= limits.peer;
    if !own_only && open.clone().count() < limits.all {
        return None;
    }
    let mut candidates = open.enumerate().filter(|(_, (other, _))| !own_only || *other == peer);
    let oldest = candidates.clone().next();
    candidates.find(|(_, (_, asked))| !asked).or(oldest).map(|(index, _)| index)
}

/// The peer that an address counts for: with version 6 a whole network of 2⁶⁴ addresses, because one client may have
/// them all.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

async fn connection(stream: TcpStream, answers: Arc<Answers>, asked: Arc<AtomicBool>, limits: Limits) {
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        let response = answer(&request, &answers);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        // One request each: no client keeps a place that others could have.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(limits.connection, connection).await;
}

fn answer(request: &Request<Incoming>, answers: &Answers) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let with = |status: StatusCode, kind: &'static str, body: String| {
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
        response
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = with(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is served here\n".into());
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => with(StatusCode::OK, METRICS, answers.metrics()),
        "/livez" => with(StatusCode::OK, TEXT, "alive: the reporter answers\n".into()),
        "/readyz" => {
            let (ready, text) = answers.readiness();
            with(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, TEXT, text)
        }
        "/shadow" => with(StatusCode::OK, TEXT, answers.comparison()),
        _ => with(StatusCode::NOT_FOUND, TEXT, "served here: /metrics, /livez, /readyz, /shadow\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{StartParts, StartupRecord};
    use plimsoll_config::LogFormat;
    use plimsoll_report::{LevelFilter, Log, Metrics, Reporter, lock};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::io::Read as _;
    use std::sync::Mutex;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    const LONG: Duration = Duration::from_mins(5);

    fn reporter() -> Reporter {
        let configuration = plimsoll_config::parse("", "test.yaml").expect("it is in order");
        Reporter::new(configuration, Metrics::new(true), None, None)
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request = format!("{request} HTTP/1.1\r\nHost: here\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    #[test]
    fn paths_methods_and_readiness_are_answered() {
        let mut reporter = reporter();
        serving_from(reporter.answers(), LIMITS, async |address| {
            for (request, status) in [
                ("GET /livez", "200"),
                ("GET /readyz", "503"),
                ("GET /metrics", "200"),
                ("HEAD /metrics", "200"),
                ("GET /shadow", "200"),
                ("GET /else", "404"),
                ("POST /metrics", "405"),
            ] {
                let answer = ask(address, request).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
            }
            let (pid, start) = (std::process::id(), StartParts::default());
            reporter.report(&StartupRecord::Armed { pid, source: "ebpf", shadow: None, workloads: 0, start }.into());
            let answer = ask(address, "GET /readyz").await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ready: source ebpf\n"), "{answer}");
            let metrics = ask(address, "GET /metrics").await;
            assert!(metrics.contains("application/openmetrics-text") && metrics.contains("# EOF"), "{metrics}");
        });
    }

    /// A server for the time of a test, as in the reporter on one thread.
    fn serving(limits: Limits, test: impl AsyncFnOnce(SocketAddr)) {
        serving_from(reporter().answers(), limits, test);
    }

    fn serving_from(answers: Answers, limits: Limits, test: impl AsyncFnOnce(SocketAddr)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it has one");
            tokio::spawn(serve_on(listener, answers, limits));
            // Far more than it takes; only what never ends meets it.
            tokio::time::timeout(Duration::from_mins(1), test(address)).await.expect("in time");
        });
    }

    async fn connect(address: SocketAddr, own: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((own, 0).into()).expect("an address of loopback");
        socket.connect(address).await.expect("it listens")
    }

    /// How many of them the server has closed, once it is as many as `at_least`.
    async fn closed(streams: &mut [TcpStream], at_least: usize) -> usize {
        loop {
            let is_closed = |stream: &&mut TcpStream| match stream.try_read(&mut [0; 1024]) {
                Ok(length) => length == 0,
                Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            };
            let closed = streams.iter_mut().filter(is_closed).count();
            if closed >= at_least {
                return closed;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[test]
    fn no_answer_waits_for_a_record_that_is_reported() {
        let reporter = Arc::new(Mutex::new(reporter()));
        let answers = lock(&reporter).answers();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (held, is_held) = std::sync::mpsc::channel();
        let reporting = std::thread::spawn(move || {
            let _held = lock(&reporter);
            held.send(()).expect("the test waits");
            // Until the other end goes.
            let _ = released.recv();
        });
        is_held.recv().expect("it reports");
        serving_from(answers, LIMITS, async |address| {
            for (request, status) in [("GET /livez", "200"), ("GET /readyz", "503"), ("GET /metrics", "200")] {
                let answer = ask(address, request).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
            }
        });
        drop(release);
        reporting.join().expect("no panic");
    }

    #[test]
    fn a_thousand_idle_clients_delay_no_answer() {
        const CLIENTS: usize = 1000;
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("as many as this process may have");
        // None goes because of the time.
        serving(Limits { head: LONG, connection: LONG, ..LIMITS }, async |address| {
            let mut idle = Vec::new();
            for number in 0..CLIENTS {
                // Too few from each address to be too many from one.
                let own = [127, 1, 0, u8::try_from(number % 100).expect("small") + 1];
                let mut stream = connect(address, own).await;
                if number % 2 == 0 {
                    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h").await.expect("it is open");
                }
                idle.push(stream);
            }
            for (request, status) in [("GET /livez", "200"), ("GET /readyz", "503"), ("GET /metrics", "200")] {
                let answer = ask(address, request).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
            }
            let closed = closed(&mut idle, CLIENTS - LIMITS.all).await;
            assert!(closed <= CLIENTS - LIMITS.all + 3, "{closed} were closed for three requests");
        });
    }

    #[test]
    fn many_from_one_address_are_closed_before_those_from_others() {
        serving(Limits { head: LONG, connection: LONG, ..LIMITS }, async |address| {
            let mut other = connect(address, [127, 0, 0, 2]).await;
            let mut many = Vec::new();
            for _ in 0..LIMITS.all {
                many.push(connect(address, [127, 0, 0, 3]).await);
            }
            let closed = closed(&mut many, LIMITS.all - LIMITS.peer).await;
            assert_eq!(closed, LIMITS.all - LIMITS.peer);
            // It was the first of all.
            other.write_all(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n").await.expect("it is open");
            let mut answer = String::new();
            other.read_to_string(&mut answer).await.expect("it answers");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        });
    }

    #[test]
    fn a_request_whose_head_does_not_end_is_closed() {
        serving(Limits { head: Duration::from_millis(20), ..LIMITS }, async |address| {
            let mut streams = [connect(address, [127, 0, 0, 1]).await, connect(address, [127, 0, 0, 1]).await];
            streams[0].write_all(b"GET /livez HTTP/1.1\r\nHost: h").await.expect("it is open");
            assert_eq!(closed(&mut streams, 2).await, 2);
        });
    }

    #[test]
    fn the_oldest_without_a_request_is_closed_first() {
        let limits = Limits { all: 4, peer: 2, ..LIMITS };
        let peer = |last| IpAddr::from([10, 0, 0, last]);
        for (open, from, expected) in [
            (&[(1, true), (2, false), (3, false)][..], 4, None),
            (&[(1, true), (2, false), (3, false), (4, false)], 5, Some(1)),
            (&[(1, true), (2, true), (3, true), (4, true)], 5, Some(0)),
            (&[(1, false), (2, true), (2, false)], 2, Some(2)),
            (&[(1, false), (2, true), (2, true)], 2, Some(1)),
            (&[(1, false), (1, false), (2, false), (3, false)], 2, Some(0)),
            (&[], 1, None),
        ] {
            let known = open.iter().map(|(last, asked)| (peer(*last), *asked));
            assert_eq!(in_the_way(known, peer(from), limits), expected, "{open:?} and {from}");
        }
    }

    #[test]
    fn the_addresses_of_one_network_are_one_peer() {
        let one = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(one("2001:db8::1"), one("2001:db8::ffff:2:3:4"));
        assert_ne!(one("2001:db8::1"), one("2001:db8:0:1::1"));
        assert_eq!(one("::ffff:10.0.0.1"), one("10.0.0.1"));
        assert_ne!(one("10.0.0.1"), one("10.0.0.2"));
    }

    #[test]
    fn a_port_in_use_is_named_once_with_its_key() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = taken.local_addr().expect("it has one");
        let (mut text, writer) = std::io::pipe().expect("a pipe");
        let log = Log::start(LogFormat::Json, LevelFilter::INFO, writer, || {}).expect("a thread");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        log.within(|| {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = listen(address) => panic!("{address} is taken"),
                    () = std::future::ready(()) => {}
                }
            });
        });
        assert!(log.finish(Duration::from_mins(1)));
        let mut lines = String::new();
        text.read_to_string(&mut lines).expect("its thread has ended");
        let line: serde_json::Value = serde_json::from_str(&lines).expect("one line in JSON");
        assert_eq!((&line["level"], &line["address"]), (&"warn".into(), &address.to_string().into()));
        assert!(line["message"].as_str().is_some_and(|text| text.contains("machine.metricsAddress")), "{line}");
    }
}
