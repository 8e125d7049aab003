//! An API server in this process, which answers by what it is sent.

use core::time::Duration;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

impl Asked {
    /// The method and the path.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// All that was asked, in order.
pub(crate) type Log = Arc<Mutex<Vec<Asked>>>;

/// A refusal as an API server writes it.
pub(crate) fn refused(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message });
    (code, status)
}

/// An event of a watch as an API server writes it: its type first, by which the object is read as it comes.
pub(crate) fn line(event: &Value) -> String {
    format!(r#"{{"type":{},"object":{}}}"#, event["type"], event["object"])
}

/// Values in one another, so many. `serde_json` follows 127.
pub(crate) fn deep(depth: usize) -> Value {
    (0..depth).fold(Value::Null, |inner, number| match number % 2 {
        0 => Value::Array(vec![inner]),
        _ => Value::Object([("f:a".to_owned(), inner)].into_iter().collect()),
    })
}

/// A client of an API server that answers so.
pub(crate) fn server(answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) -> (Client, Log) {
    slow_server(|_| Duration::ZERO, answer)
}

/// The same of one whose answers take so long.
pub(crate) fn slow_server(
    takes: impl Fn(&Asked) -> Duration + Send + Sync + 'static,
    answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static,
) -> (Client, Log) {
    let (log, answer) = (Log::default(), Arc::new((takes, answer)));
    let kept = Arc::clone(&log);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (log, answer) = (Arc::clone(&kept), Arc::clone(&answer));
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await?.to_bytes();
            let asked = Asked {
                method: parts.method,
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            };
            let (takes, answer) = &*answer;
            let takes = takes(&asked);
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            let (code, text) = answer(&asked);
            log.lock().expect("no test failed with it").push(asked);
            let response = Response::builder().status(StatusCode::from_u16(code).expect("a code"));
            let text = if let Value::Array(lines) = &text {
                lines.iter().map(|event| line(event) + "\n").collect()
            } else {
                text.to_string()
            };
            Ok::<_, Box<dyn core::error::Error + Send + Sync>>(response.body(Body::from(text.into_bytes()))?)
        }
    });
    (Client::new(service, "default"), log)
}
