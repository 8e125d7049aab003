//! Events of the node: what is to be read by people of its agent, aggregated.
//!
//! The first of a kind is written at once. Those of the next [`PERIOD`] are one event after it, with how many they were, the
//! time of the first one and that of the last one. A kubelet patches the event that is there; that takes a right which the
//! agent does not have.

use super::retry::Retry;
use crate::MANAGER;
use crate::node::Kind;
use core::time::Duration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use plimsoll_policy::message::THRESHOLD_MET;
use tokio::time::Instant;

/// How long after one was written the next one of its kind is, as a client's recorder aggregates events of ten minutes
/// (client-go's `defaultAggregateIntervalInSeconds`).
pub(super) const PERIOD: Duration = Duration::from_mins(10);
/// Where events of objects without a namespace are.
pub(super) const NAMESPACE: &str = "default";

/// A part of the agent that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// What.
    pub what: &'static str,
    /// What is lost without it.
    pub lost: &'static str,
}

/// Of what kind an event of the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A threshold is met.
    ThresholdMet(Kind),
    /// A part does not work.
    Degraded(Degraded),
    /// It works again.
    Recovered(Degraded),
}

impl Note {
    const fn reason(self) -> &'static str {
        match self {
            Self::ThresholdMet(_) => THRESHOLD_MET,
            Self::Degraded(_) => "PlimsollDegraded",
            Self::Recovered(_) => "PlimsollRecovered",
        }
    }

    const fn kind(self) -> &'static str {
        if matches!(self, Self::Recovered(_)) { "Normal" } else { "Warning" }
    }

    fn message(self) -> String {
        match self {
            Self::ThresholdMet(kind) => format!("An eviction threshold on {} is met", kind.resource()),
            Self::Degraded(Degraded { what, lost }) => format!("Trouble with {what}: {lost}"),
            Self::Recovered(Degraded { what, lost: _ }) => format!("No trouble with {what} any more"),
        }
    }
}

/// One that is to be written: how many there were.
#[derive(Clone, Copy, Debug)]
struct Series {
    first: Timestamp,
    last: Timestamp,
    count: i32,
}

/// All of a kind.
#[derive(Debug)]
struct Open {
    note: Note,
    series: Option<Series>,
    /// Not before this the next one is written.
    rests: Instant,
    retry: Retry,
}

/// Events of the node that are to be written: no more than there are kinds.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<Open>);

impl Notes {
    /// It happened now.
    pub(super) fn add(&mut self, note: Note) {
        let (at, now) = (Timestamp::now(), Instant::now());
        let found = self.0.iter().position(|open| open.note == note);
        let place = found.unwrap_or_else(|| {
            self.0.push(Open { note, series: None, rests: now, retry: Retry::new(now) });
            self.0.len() - 1
        });
        let series = self.0[place].series.get_or_insert(Series { first: at, last: at, count: 0 });
        (series.last, series.count) = (at, series.count.saturating_add(1));
    }

    /// What is to be written, and when.
    pub(super) fn due(&self) -> impl Iterator<Item = (Instant, usize)> {
        let open = self.0.iter().enumerate().filter(|(_, open)| open.series.is_some());
        open.map(|(at, open)| (open.rests.max(open.retry.due()), at))
    }

    pub(super) fn retry(&mut self, at: usize) -> &mut Retry {
        &mut self.0[at].retry
    }

    /// It was written, or is refused.
    pub(super) fn end(&mut self, at: usize) {
        (self.0[at].series, self.0[at].rests) = (None, Instant::now() + PERIOD);
    }

    /// As a kubelet writes events of its node: the UID in it is the node's name.
    pub(super) fn event(&self, at: usize, node: &str) -> Event {
        let Open { note, series, .. } = &self.0[at];
        let Series { first, last, count } =
            series.unwrap_or(Series { first: Timestamp::UNIX_EPOCH, last: Timestamp::UNIX_EPOCH, count: 0 });
        Event {
            metadata: ObjectMeta {
                name: Some(crate::eviction::event_name(node, last)),
                namespace: Some(NAMESPACE.into()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(node.into()),
                uid: Some(node.into()),
                ..ObjectReference::default()
            },
            reason: Some(note.reason().into()),
            message: Some(note.message()),
            type_: Some(note.kind().into()),
            source: Some(EventSource { component: Some(MANAGER.into()), host: Some(node.into()) }),
            first_timestamp: Some(Time(first)),
            last_timestamp: Some(Time(last)),
            count: Some(count),
            reporting_component: Some(MANAGER.into()),
            reporting_instance: Some(node.into()),
            ..Event::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reporter;
    use super::super::tests::{accepts, run, until};
    use super::*;
    use crate::node::Condition;
    use crate::testing::{Log, refused, server};
    use serde_json::Value;

    const RUNTIME: Degraded = Degraded { what: "container runtime", lost: "nothing is removed" };

    /// The events that were written: reason, message, type and count.
    fn events(log: &Log) -> Vec<[String; 4]> {
        let log = log.lock().expect("no test failed with it");
        let written = log.iter().filter(|asked| asked.line() == "POST /api/v1/namespaces/default/events");
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let of = |body: &Value| ["reason", "message", "type", "count"].map(|key| text(&body[key]));
        written.map(|asked| of(&asked.body)).collect()
    }

    async fn report(reporter: &mut Reporter, kind: Kind, holds: bool) {
        reporter.set_conditions(Some(vec![Condition { kind, holds, since: Timestamp::UNIX_EPOCH }])).await;
    }

    #[test]
    fn the_first_is_written_at_once_and_those_of_the_next_ten_minutes_are_one() {
        run(async {
            let (client, log) = server(accepts);
            let mut reporter = Reporter::new(client, "n1".into(), None);
            let begun = Instant::now();
            report(&mut reporter, Kind::Memory, true).await;
            until(&mut reporter, |_| !events(&log).is_empty()).await;
            assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
            for _ in 0..3 {
                report(&mut reporter, Kind::Memory, false).await;
                report(&mut reporter, Kind::Memory, true).await;
            }
            report(&mut reporter, Kind::Pid, true).await;
            until(&mut reporter, |_| events(&log).len() == 3).await;
            assert!(begun.elapsed() >= PERIOD, "{:?}", begun.elapsed());
            let met = |what: &str, count: &str| {
                ["EvictionThresholdMet", &format!("An eviction threshold on {what} is met"), "Warning", count]
                    .map(str::to_owned)
            };
            assert_eq!(events(&log), [met("memory", "1"), met("process ids", "1"), met("memory", "3")]);
        });
    }

    #[test]
    fn what_does_not_work_and_works_again_is_written_and_one_that_is_refused_is_left() {
        run(async {
            let (client, log) = server(|asked| {
                let is_degraded = asked.body["reason"] == "PlimsollDegraded";
                if is_degraded { refused(422, "Invalid", "a policy") } else { accepts(asked) }
            });
            let mut reporter = Reporter::new(client, "n1".into(), None);
            reporter.degrade(vec![RUNTIME]);
            reporter.degrade(vec![RUNTIME]);
            until(&mut reporter, |it| it.notes.due().next().is_none()).await;
            reporter.degrade(Vec::new());
            until(&mut reporter, |it| it.notes.due().next().is_none()).await;
            let expected = [
                ["PlimsollDegraded", "Trouble with container runtime: nothing is removed", "Warning", "1"],
                ["PlimsollRecovered", "No trouble with container runtime any more", "Normal", "1"],
            ];
            assert_eq!(events(&log), expected.map(|event| event.map(str::to_owned)));
        });
    }
}
