//! Requests, each with what has to come of it.

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::{Answer, Api, Format};
use serde_json::Value;

/// What has to come of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// It is carried out.
    Done,
    /// The user has no such right.
    NoRight,
    /// A policy refuses it, with this message.
    Refused(&'static str),
    /// Two policies refuse it, and the API server gives the message of one of them.
    RefusedByBoth([&'static str; 2]),
}

/// A request, and what has to come of it.
pub(crate) struct Attempt<'a> {
    /// What is tried.
    pub(crate) what: &'a str,
    pub(crate) user: &'a Api,
    pub(crate) method: &'a str,
    pub(crate) path: String,
    pub(crate) format: Format,
    pub(crate) body: Value,
    pub(crate) outcome: Outcome,
}

impl Attempt<'_> {
    /// Sends it, and says what came where that is not what has to come.
    fn difference(&self) -> Result<Option<String>> {
        let Self { what, user, method, path, format, body, outcome } = self;
        let answer = user.request(method, path, *format, body).with_context(|| (*what).to_owned())?;
        let said = || format!("{what}: expected {outcome:?}, got {} {}", answer.status, answer.message());
        Ok((!outcome.is(&answer)).then(said))
    }
}

impl Outcome {
    fn is(self, answer: &Answer) -> bool {
        let (status, message) = (answer.status, answer.message());
        let is_refused = |why| status == 403 && message.ends_with(&format!("denied request: {why}"));
        match self {
            Self::Done => (200..300).contains(&status),
            // As the authorizer words it.
            Self::NoRight => status == 403 && message.contains("\" cannot "),
            Self::Refused(why) => is_refused(why),
            Self::RefusedByBoth(why) => why.into_iter().any(is_refused),
        }
    }
}

/// Sends all of them in their order; panics with all that came out otherwise.
pub(crate) fn expect_all(attempts: &[Attempt<'_>]) {
    let differences = attempts.iter().filter_map(|attempt| attempt.difference().expect("the API server answers"));
    let differences: Vec<String> = differences.collect();
    assert!(differences.is_empty(), "{} of {}: {differences:#?}", differences.len(), attempts.len());
}
