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

use super::tell::Teller;
use crate::log::Level;

/// Connections at a time; more wait.
const CONNECTIONS: usize = 32;
/// How long a client may take for its request, and in all.
const REQUEST: Duration = Duration::from_secs(5);
const CONNECTION: Duration = Duration::from_secs(30);
/// How long until an address that could not be had is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Serves for ever. Without its address it goes on trying: the log goes on meanwhile.
pub(super) async fn serve(address: SocketAddr, teller: Arc<Mutex<Teller>>) -> Infallible {
    let mut told = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    let message = format!(
                        "cannot serve metrics and health on {address}: {error}; it is tried again. Is another \
                         machine.metricsAddress needed?"
                    );
                    lock(&teller).say(Level::Warn, &message, json!({}));
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never closed, so there is always a permit in the end.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { continue };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, as a rule: let some go first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let teller = Arc::clone(&teller);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&request, &teller);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION, connection).await;
            drop(permit);
        });
    }
}

fn lock(teller: &Mutex<Teller>) -> std::sync::MutexGuard<'_, Teller> {
    teller.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(request: &Request<Incoming>, teller: &Mutex<Teller>) -> Response<Full<Bytes>> {
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
        "/metrics" => with(StatusCode::OK, METRICS, lock(teller).metrics.text()),
        "/livez" => with(StatusCode::OK, TEXT, "alive: the reporter answers\n".into()),
        "/readyz" => {
            let (ready, text) = lock(teller).readiness();
            with(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, TEXT, text)
        }
        _ => with(StatusCode::NOT_FOUND, TEXT, "served here: /metrics, /livez, /readyz\n".into()),
    }
}
