//! `/metrics`, `/livez` and `/readyz`, on loopback unless told otherwise.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::sink::Sink;
use crate::log::Level;

/// Connections at a time; more wait.
const CONNECTIONS: usize = 32;
/// How long a client may take for its request, and in all.
const REQUEST: Duration = Duration::from_secs(5);
const CONNECTION: Duration = Duration::from_secs(30);
/// How long until an address that could not be had is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Serves for ever. Without its address it goes on trying: the log goes on meanwhile.
pub(super) async fn serve(address: SocketAddr, sink: Arc<Mutex<Sink>>) -> Infallible {
    let listener = listen(address, &sink).await;
    serve_on(listener, sink).await
}

async fn listen(address: SocketAddr, sink: &Mutex<Sink>) -> TcpListener {
    let mut reported = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                if !std::mem::replace(&mut reported, true) {
                    let message = format!(
                        "cannot serve metrics and health on {address}: {error}; it is tried again. Is another \
                         machine.metricsAddress needed?"
                    );
                    lock(sink).say(Level::Warn, &message, json!({"address": address.to_string()}));
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

async fn serve_on(listener: TcpListener, sink: Arc<Mutex<Sink>>) -> Infallible {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never closed, so there is always a permit in the end.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { continue };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, as a rule: let some go first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let sink = Arc::clone(&sink);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&request, &sink);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST)
                // One request each: nobody holds a place that others wait for.
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION, connection).await;
            drop(permit);
        });
    }
}

fn lock(sink: &Mutex<Sink>) -> std::sync::MutexGuard<'_, Sink> {
    sink.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(request: &Request<Incoming>, sink: &Mutex<Sink>) -> Response<Full<Bytes>> {
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
        "/metrics" => with(StatusCode::OK, METRICS, lock(sink).metrics()),
        "/livez" => with(StatusCode::OK, TEXT, "alive: the reporter answers\n".into()),
        "/readyz" => {
            let (ready, text) = lock(sink).readiness();
            with(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, TEXT, text)
        }
        _ => with(StatusCode::NOT_FOUND, TEXT, "served here: /metrics, /livez, /readyz\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Record, StartParts};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

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
        let (sink, _) = super::super::sink::tests::sink("", None);
        let sink = Arc::new(Mutex::new(sink));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = listen(([127, 0, 0, 1], 0).into(), &sink).await;
            let address = listener.local_addr().expect("it has one");
            tokio::spawn(serve_on(listener, Arc::clone(&sink)));
            for (request, status) in [
                ("GET /livez", "200"),
                ("GET /readyz", "503"),
                ("GET /metrics", "200"),
                ("HEAD /metrics", "200"),
                ("GET /else", "404"),
                ("POST /metrics", "405"),
            ] {
                let answer = ask(address, request).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
            }
            lock(&sink).report(&Record::Armed {
                pid: 1,
                source: "ebpf",
                shadow: None,
                workloads: 0,
                start: StartParts::default(),
            });
            let answer = ask(address, "GET /readyz").await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ready: source ebpf\n"), "{answer}");
            let metrics = ask(address, "GET /metrics").await;
            assert!(metrics.contains("application/openmetrics-text") && metrics.contains("# EOF"), "{metrics}");
        });
    }

    #[test]
    fn a_port_in_use_is_named_once_with_its_key() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = taken.local_addr().expect("it has one");
        let (sink, lines) = super::super::sink::tests::sink("", None);
        let sink = Mutex::new(sink);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = listen(address, &sink) => panic!("{address} is taken"),
                () = std::future::ready(()) => {}
            }
        });
        let lines = lines.lock().expect("no panic");
        let [(Level::Warn, message, _)] = &lines[..] else { panic!("{lines:?}") };
        assert!(message.contains(&address.to_string()) && message.contains("machine.metricsAddress"), "{message}");
    }
}
