//! Events beside those of evictions: what is to be read by people of the node's agent and of what it did to pods, aggregated.
//!
//! The first of a kind is written at once. Those of the next [`PERIOD`] are one event after it, with how many they were, the
//! time of the first one and that of the last one. A kubelet patches the event that is there; that takes a right which the
//! agent does not have. They wait while less than half of the budget's burst is left, which is for evictions and conditions.

use super::retry::Retry;
use crate::event::{self, Content, PodReference};
use crate::node::Kind;
use core::time::Duration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use plimsoll_policy::message::THRESHOLD_MET;
use tokio::time::Instant;

/// How long after one was written the next one of its kind is, as a client's recorder aggregates events of ten minutes
/// (client-go's `defaultAggregateIntervalInSeconds`).
pub(super) const PERIOD: Duration = Duration::from_mins(10);
/// Of so many pods, for each reason, events wait or rest at most. Of what happens to more no event is written.
const MOST: usize = 64;
/// How far apart the times of a kind are at least, in which [`Note::at`] has a nanosecond for each reason.
const APART: Duration = Duration::from_nanos(4);

/// A part of the agent that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// What.
    pub what: &'static str,
    /// What is lost without it.
    pub lost: &'static str,
}

/// Something that the agent did, or was too late for. Of the same reason and pod all are of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// What.
    pub reason: IncidentReason,
    /// To which pod; absent where it is none's and is reported of the node.
    pub pod: Option<PodReference>,
    /// What happened, in full.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

/// The reasons of such events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncidentReason {
    /// Processes were frozen or stopped for a moment.
    Braked,
    /// Something was taken back before anything was evicted.
    Reclaimed,
    /// The OOM killer was first.
    LostRace,
    /// It was called where NUMA nodes that a process is bound to were out of memory.
    NumaExhausted,
}

/// Of what kind an event is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A threshold is met.
    ThresholdMet(Kind),
    /// A part does not work.
    Degraded(Degraded),
    /// It works again.
    Recovered(Degraded),
    /// Something happened.
    Incident(Incident),
}

impl Note {
    const fn reason(&self) -> &'static str {
        match self {
            Self::ThresholdMet(_) => THRESHOLD_MET,
            Self::Degraded(_) => "PlimsollDegraded",
            Self::Recovered(_) => "PlimsollRecovered",
            Self::Incident(Incident { reason: IncidentReason::Braked, .. }) => "PlimsollBraked",
            Self::Incident(Incident { reason: IncidentReason::Reclaimed, .. }) => "PlimsollReclaimed",
            Self::Incident(Incident { reason: IncidentReason::LostRace, .. }) => "PlimsollLostRace",
            Self::Incident(Incident { reason: IncidentReason::NumaExhausted, .. }) => "PlimsollNumaExhausted",
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::ThresholdMet(_)
            | Self::Degraded(_)
            | Self::Incident(Incident { reason: IncidentReason::LostRace | IncidentReason::NumaExhausted, .. }) => {
                "Warning"
            }
            Self::Recovered(_) | Self::Incident(_) => "Normal",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::ThresholdMet(kind) => format!("An eviction threshold on {} is met", kind.resource()),
            Self::Degraded(Degraded { what, lost }) => format!("Trouble with {what}: {lost}"),
            Self::Recovered(Degraded { what, lost: _ }) => format!("No trouble with {what} any more"),
            Self::Incident(incident) => incident.message.clone(),
        }
    }

    const fn pod(&self) -> Option<&PodReference> {
        if let Self::Incident(incident) = self { incident.pod.as_ref() } else { None }
    }

    /// When it happened. The time of the first is in the name of the event, which another reason, or an eviction, of the same
    /// millisecond must not have.
    fn at(&self) -> Timestamp {
        let Self::Incident(Incident { at, reason, .. }) = self else { return Timestamp::now() };
        at.saturating_add(Duration::from_nanos(1 + *reason as u64)).unwrap_or(*at)
    }

    fn is_of_kind(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Incident(one), Self::Incident(other)) => (one.reason, &one.pod) == (other.reason, &other.pod),
            (one, other) => one == other,
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
    /// The last one.
    note: Note,
    series: Option<Series>,
    /// The time of the last one, also of those that are written.
    latest: Timestamp,
    /// Not before this the next one is written.
    rests: Instant,
    retry: Retry,
}

/// Events that are to be written: no more than there are kinds.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<Open>);

impl Notes {
    /// It happened.
    pub(super) fn add(&mut self, note: Note) {
        let (at, now) = (note.at(), Instant::now());
        self.0.retain(|open| open.series.is_some() || open.rests > now);
        let place = match self.0.iter().position(|open| open.note.is_of_kind(&note)) {
            Some(place) => place,
            None if note.pod().is_some() && self.pods_with(note.reason()) >= MOST => return,
            None => {
                let (latest, retry) = (Timestamp::MIN, Retry::new(now));
                self.0.push(Open { note: note.clone(), series: None, latest, rests: now, retry });
                self.0.len() - 1
            }
        };
        let open = &mut self.0[place];
        // Several may be of one millisecond, or the clock was set back: no two events have the same name.
        let at = at.max(open.latest.saturating_add(APART).unwrap_or(at));
        open.latest = at;
        let series = open.series.get_or_insert(Series { first: at, last: at, count: 0 });
        (series.last, series.count) = (at, series.count.saturating_add(1));
        open.note = note;
    }

    fn pods_with(&self, reason: &str) -> usize {
        self.0.iter().filter(|open| open.note.pod().is_some() && open.note.reason() == reason).count()
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

    /// In which namespace it is written.
    pub(super) fn namespace(&self, at: usize) -> &str {
        event::namespace(self.0[at].note.pod())
    }

    pub(super) fn event(&self, at: usize, node: &str) -> Event {
        let Open { note, series, .. } = &self.0[at];
        let Series { first, last, count } =
            series.unwrap_or(Series { first: Timestamp::UNIX_EPOCH, last: Timestamp::UNIX_EPOCH, count: 0 });
        let (pod, reason, message, kind) = (note.pod(), note.reason(), note.message(), note.kind());
        event::event(Content { pod, reason, message, kind, first, last, count }, node)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reporter;
    use super::super::tests::{accepts, eviction, run, until};
    use super::*;
    use crate::node::Condition;
    use crate::testing::{Asked, Log, refused, server};
    use serde_json::Value;

    const RUNTIME: Degraded = Degraded { what: "container runtime", lost: "nothing is removed" };

    /// The events that were written: reason, message, type and count.
    fn events(log: &Log) -> Vec<[String; 4]> {
        let log = log.lock().expect("no test failed with it");
        let written = log.iter().filter(|asked| asked.method == "POST" && asked.path.ends_with("/events"));
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let of = |body: &Value| ["reason", "message", "type", "count"].map(|key| text(&body[key]));
        written.map(|asked| of(&asked.body)).collect()
    }

    fn report(reporter: &mut Reporter, kind: Kind, holds: bool) {
        reporter.set_conditions(vec![Condition { kind, holds, since: Timestamp::UNIX_EPOCH }]);
    }

    #[test]
    fn the_first_is_written_at_once_and_those_of_the_next_ten_minutes_are_one() {
        run(async {
            let (client, log) = server(accepts);
            let mut reporter = Reporter::new(client, "n1".into(), None);
            let begun = Instant::now();
            report(&mut reporter, Kind::Memory, true);
            until(&mut reporter, |_| !events(&log).is_empty()).await;
            assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
            for _ in 0..3 {
                report(&mut reporter, Kind::Memory, false);
                report(&mut reporter, Kind::Memory, true);
            }
            report(&mut reporter, Kind::Pid, true);
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

    fn incident(reason: IncidentReason, pod: Option<&str>, message: &str) -> Note {
        let pod =
            pod.map(|name| PodReference { uid: format!("of-{name}"), namespace: "shop".into(), name: name.into() });
        let at = Timestamp::from_millisecond(1_700_000_000_123).expect("a time");
        Note::Incident(Incident { reason, pod, message: message.into(), at })
    }

    #[test]
    fn what_happened_in_one_millisecond_is_counted_once_whenever_it_is_written_and_however_often() {
        run(async {
            let answers = std::sync::atomic::AtomicU32::default();
            // The first answer of each object is lost: the object is there.
            let (client, log) =
                server(move |asked| match answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 {
                    0 => refused(504, "Timeout", "lost"),
                    _ => refused(409, "AlreadyExists", &asked.path),
                });
            let mut reporter = Reporter::new(client, "n1".into(), None);
            for _ in 0..2 {
                reporter.notes.add(incident(IncidentReason::LostRace, Some("web"), ""));
                until(&mut reporter, |_| log.lock().expect("no test failed with it").len() % 2 == 1).await;
                reporter.notes.add(incident(IncidentReason::LostRace, Some("web"), ""));
                until(&mut reporter, |it| it.notes.due().next().is_none()).await;
            }
            let log = log.lock().expect("no test failed with it");
            let names: Vec<_> = log.iter().map(|asked| &asked.body["metadata"]["name"]).collect();
            assert_eq!((names.len(), names[0], names[2]), (4, names[1], names[3]));
            assert_ne!(names[0], names[2]);
        });
    }

    #[test]
    fn what_happens_to_a_pod_is_one_event_of_the_pod_for_each_reason_with_the_words_of_the_last() {
        run(async {
            let (client, log) = server(accepts);
            let mut reporter = Reporter::new(client, "n1".into(), None);
            let [braked, lost] = [IncidentReason::Braked, IncidentReason::LostRace];
            for (reason, pod, message) in [
                (braked, Some("web"), "first"),
                (braked, Some("web"), "second"),
                (lost, Some("web"), "lost"),
                (IncidentReason::NumaExhausted, Some("web"), "exhausted"),
                (braked, Some("db"), "another"),
                (IncidentReason::Reclaimed, None, "of the node"),
            ] {
                reporter.notes.add(incident(reason, pod, message));
            }
            until(&mut reporter, |it| it.notes.due().next().is_none()).await;
            let expected = [
                ["PlimsollBraked", "second", "Normal", "2"],
                ["PlimsollLostRace", "lost", "Warning", "1"],
                ["PlimsollNumaExhausted", "exhausted", "Warning", "1"],
                ["PlimsollBraked", "another", "Normal", "1"],
                ["PlimsollReclaimed", "of the node", "Normal", "1"],
            ];
            assert_eq!(events(&log), expected.map(|event| event.map(str::to_owned)));
            let log = log.lock().expect("no test failed with it");
            let about = |asked: &Asked| {
                let [kind, name, uid] = ["kind", "name", "uid"].map(|key| asked.body["involvedObject"][key].clone());
                (asked.path.clone(), kind, name, uid)
            };
            let (of_pod, of_node) =
                ("/api/v1/namespaces/shop/events".into(), "/api/v1/namespaces/default/events".into());
            assert_eq!(about(&log[0]), (of_pod, "Pod".into(), "web".into(), "of-web".into()));
            assert_eq!(about(&log[4]), (of_node, "Node".into(), "n1".into(), "n1".into()));
            assert_ne!(log[0].body["metadata"]["name"], log[1].body["metadata"]["name"], "of the same millisecond");
        });
    }

    #[test]
    fn those_of_too_many_pods_are_left_out_and_those_of_other_reasons_are_not() {
        run(async {
            let (client, log) = server(accepts);
            let mut reporter = Reporter::new(client, "n1".into(), None);
            for pod in 0..2 * MOST {
                reporter.notes.add(incident(IncidentReason::Braked, Some(&pod.to_string()), ""));
            }
            reporter.notes.add(incident(IncidentReason::LostRace, Some("0"), ""));
            reporter.notes.add(incident(IncidentReason::Braked, None, ""));
            reporter.degrade(vec![RUNTIME]);
            until(&mut reporter, |it| it.notes.due().next().is_none()).await;
            assert_eq!(events(&log).len(), MOST + 3);
            reporter.notes.add(incident(IncidentReason::Braked, Some("another"), ""));
            assert_eq!(reporter.notes.due().count(), 0, "they rest");
            tokio::time::advance(PERIOD).await;
            reporter.notes.add(incident(IncidentReason::Braked, Some("another"), ""));
            assert_eq!((reporter.notes.due().count(), reporter.notes.0.len()), (1, 1), "those before are forgotten");
        });
    }

    #[test]
    fn half_of_the_burst_is_left_for_evictions() {
        run(async {
            let (client, log) = server(accepts);
            let mut reporter = Reporter::new(client, "n1".into(), None);
            let begun = Instant::now();
            for pod in 0..20 {
                reporter.notes.add(incident(IncidentReason::Braked, Some(&pod.to_string()), ""));
            }
            while reporter.write_next().await.is_zero() {}
            assert_eq!((events(&log).len(), begun.elapsed()), (10, Duration::ZERO), "the others wait");
            let evicted = ["web", "db", "cache", "queue", "mail"].map(eviction);
            for eviction in evicted {
                reporter.add(eviction);
            }
            until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
            assert_eq!(begun.elapsed(), Duration::ZERO, "evictions do not wait for them");
            until(&mut reporter, |it| it.notes.due().next().is_none()).await;
            assert!(
                begun.elapsed() >= Duration::from_secs(10),
                "ten of them, and ten writes before: {:?}",
                begun.elapsed()
            );
        });
    }
}
