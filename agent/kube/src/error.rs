//! What can go wrong, and what follows from it.

use core::time::Duration;
use std::io;
use std::path::PathBuf;

/// Why it is not known where the API server is, or by what it is trusted.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The kubeconfig is none, or lacks a part.
    #[error("the kubeconfig {path}: {why}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The environment does not say where the API server is.
    #[error("the variable {variable} {why}: a pod has it from its kubelet; set machine.cluster.kubeconfig elsewhere")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Its address cannot be found.
    #[error(
        "the API server's name {host:?} has no address: {source}; where the agent's unit has IPAddressDeny=, name the resolver \
         in IPAddressAllow= of a drop-in"
    )]
    Name {
        /// The name.
        host: String,
        /// Why not.
        source: io::Error,
    },
    /// What it is trusted by, or what it trusts, is no certificate or key.
    #[error("{what} cannot be used: {why}")]
    Certificate {
        /// Which one.
        what: &'static str,
        /// Why not.
        why: String,
    },
}

/// What an answer of the API server means for what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such object.
    Gone,
    /// The object is another one, or another version of it.
    Conflict,
    /// It never will: the request is not valid.
    Never(String),
    /// It is not allowed: for good, or until an API server that has just started has read the roles.
    Forbidden(String),
    /// The request cannot be made here, or its answer is none of an API server.
    Unusable(String),
    /// This request failed; another one may not. Not before this pause, if it named one.
    Failed(String, Option<Duration>),
    /// Nothing that is asked is answered now; not before this pause, if it named one.
    Later(String, Option<Duration>),
}

impl Refusal {
    /// By the status codes of HTTP as the API server uses them (api-conventions.md, HTTP status codes).
    pub(crate) fn of(error: &kube::Error) -> Self {
        let status = match error {
            kube::Error::Api(status) => status,
            // The way there.
            kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => {
                return Self::Later(chain(error), None);
            }
            _ => return Self::Unusable(chain(error)),
        };
        let text = format!("{} {}: {}", status.code, status.reason, status.message);
        let pause = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|pause| *pause > 0);
        let pause = pause.map(|seconds| Duration::from_secs(seconds.into()));
        match status.code {
            404 | 410 => Self::Gone,
            409 => Self::Conflict,
            400 | 405 | 406 | 413 | 415 | 422 => Self::Never(text),
            403 => Self::Forbidden(text),
            // The token is that of every request.
            401 | 429 | 503 => Self::Later(text, pause),
            _ => Self::Failed(text, pause),
        }
    }
}

/// Whether the object that was asked for is not there.
pub fn is_gone(error: &kube::Error) -> bool {
    Refusal::of(error) == Refusal::Gone
}

/// An error with what it follows from.
pub(crate) fn chain(error: &dyn core::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(code: u16, retry_after_seconds: u32) -> Refusal {
        let status = json!({ "code": code, "details": { "retryAfterSeconds": retry_after_seconds } });
        let status: kube::core::Status = serde_json::from_value(status).expect("a status");
        Refusal::of(&kube::Error::Api(status.boxed()))
    }

    #[test]
    fn what_will_never_be_accepted_is_distinguished_from_what_may_be_later() {
        for (code, expected) in [(404, Refusal::Gone), (410, Refusal::Gone), (409, Refusal::Conflict)] {
            assert_eq!(refused(code, 0), expected);
        }
        for code in [400, 422] {
            assert!(matches!(refused(code, 0), Refusal::Never(_)), "{code}");
        }
        assert!(matches!(refused(403, 0), Refusal::Forbidden(_)));
        for code in [401, 429, 503] {
            assert!(matches!(refused(code, 0), Refusal::Later(_, None)), "{code}");
        }
        for code in [500, 504] {
            assert!(matches!(refused(code, 0), Refusal::Failed(_, None)), "{code}");
        }
        assert!(matches!(refused(429, 7), Refusal::Later(_, Some(pause)) if pause.as_secs() == 7));
        let unreachable = kube::Error::Service(Box::new(io::Error::from(io::ErrorKind::ConnectionRefused)));
        assert!(matches!(Refusal::of(&unreachable), Refusal::Later(why, None) if why.contains("refused")));
        let no_json = serde_json::from_str::<bool>("<html>").expect_err("it is none");
        assert!(matches!(Refusal::of(&kube::Error::SerdeError(no_json)), Refusal::Unusable(_)));
    }
}
