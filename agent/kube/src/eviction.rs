//! What is reported to the API server of a pod that was evicted, and in which order, so that the kubelet lets it stand.
//!
//! A status that another program writes is overwritten by the kubelet's own within ten seconds, and the pod's containers are
//! started again, unless one and the same request changes an annotation too: only then does the kubelet's worker for that
//! pod look at the status, find that the pod has failed and tear it down for good. Until that is over, the reason is taken
//! away for a time and comes back; what is written in between may be lost, too. And where both write at the same moment, as
//! after an outage of the API server, the kubelet's own status is written over the patch, and it does not look at the
//! annotation again; and a kubelet that is started in between takes over a pod that has no reason. So: one patch, and where the
//! watch has the pod without phase and reason although it shows that patch, another one at once. A kubelet that takes them away
//! each time is not answered each time: the next patch comes after as long as the last one did since the first, and after a
//! second at least. That ends when all containers have ended, 20 seconds after the last patch, where phase and reason are
//! there; and where the pod runs on a minute after the first patch, or that is refused, with its deletion. Every request names
//! the UID, since a pod of the same name may be another one by then, and nothing is judged by what the watch said before it has
//! come to the patch.

use crate::event::{self, Content, PodReference};
use core::time::Duration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Event, Pod, PodStatus};
use plimsoll_policy::message::{
    DISRUPTION_CONDITION, DISRUPTION_REASON, DISRUPTION_STATUS, EVENT_TYPE, EVICTED, PHASE,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How long a pod may run on after its patch: six of the kubelet's turns, in which it writes what it has.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// The shortest pause between two patches after the second one.
const PAUSE: Duration = Duration::from_secs(1);
/// How long after the last patch phase and reason have to be there: two of the kubelet's turns.
const SETTLED: Duration = Duration::from_secs(20);
/// How long a reason is written that does not stay.
const ENOUGH: Duration = Duration::from_mins(5);
/// The least grace period of a deletion, in seconds: none would be "at once", which frees the name while the pod's processes
/// still run.
pub const LEAST_GRACE_SECONDS: u32 = 1;
/// The phase of a pod that ended by itself, before the patch came.
const SUCCEEDED: &str = "Succeeded";
/// The annotation of a pod that was patched; its value is the time of the request, so that it is another one each time.
pub(crate) const REPORTED_AT: &str = "plimsoll.dev/eviction-reported-at";

/// A pod that was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Its UID as it is written.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why, in the kubelet's words.
    pub message: String,
    /// The annotations of the event.
    pub annotations: BTreeMap<String, String>,
    /// Seconds for an orderly end, from a soft threshold; zero where it was killed.
    pub grace_seconds: u32,
    /// When it was decided.
    pub at: Timestamp,
}

/// How far the API server knows of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not at all.
    Unreported,
    /// The status was patched.
    Patched {
        /// When the request was made that did it first.
        first: Timestamp,
        /// When the request was made that did it last.
        last: Timestamp,
    },
    /// The patch is refused, or the pod ran on: it has to be deleted.
    ToDelete,
    /// Nothing is left to do: the pod is deleted, gone, or another one of the same name.
    Over,
}

/// What has to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Patch the status.
    Patch,
    /// Delete the pod.
    Delete,
    /// Wait for the pod, until then at most; without an end where that can only be followed.
    Wait(Option<Timestamp>),
    /// Nothing any more.
    Done,
}

impl Progress {
    /// The same by a pod as the watch has it now: where an earlier process has patched it, as of then. No patch was later than
    /// now: the clock may have been set back since, and what a pod says of that its author may have written.
    #[must_use]
    pub fn as_of(self, pod: &Pod, now: Timestamp) -> Self {
        match self {
            Self::Unreported => before(pod).map_or(self, |at| Self::Patched { first: at.min(now), last: at.min(now) }),
            Self::Patched { first, last } => Self::Patched { first: first.min(now), last: last.min(now) },
            Self::ToDelete | Self::Over => self,
        }
    }
}

/// What has to be done next about a pod as the watch has it now, `None` where it is there no more.
///
/// A pod that was patched is judged once the watch shows the annotation of that patch. Until then the watch is behind, or
/// was lost: what it has is older than the patch, and says of the pod that it runs.
pub fn next(progress: Progress, pod: Option<&Pod>, now: Timestamp) -> Step {
    let Some(pod) = pod else { return if progress == Progress::Unreported { Step::Patch } else { Step::Done } };
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    match progress {
        // It ended by itself, and is not to be a failed one; that it was killed at the end, its event says.
        Progress::Unreported | Progress::Patched { .. } if phase == Some(SUCCEEDED) => Step::Done,
        Progress::Unreported => Step::Patch,
        Progress::ToDelete => Step::Delete,
        // What goes on is the kubelet's.
        Progress::Over => Step::Done,
        Progress::Patched { last, .. } if !shows(pod, last) => Step::Wait(None),
        Progress::Patched { first, last } => after_patch(first, last, pod, now),
    }
}

/// The same of a pod that the watch has as it was after its last patch.
fn after_patch(first: Timestamp, last: Timestamp, pod: &Pod, now: Timestamp) -> Step {
    let after = |since: Timestamp, time: Duration| since.saturating_add(time).unwrap_or(Timestamp::MAX);
    let (settled, late, enough) = (after(last, SETTLED), after(first, PATIENCE), after(first, ENOUGH));
    let since_first = Duration::try_from(last.duration_since(first)).unwrap_or_default();
    let again = if since_first.is_zero() { last } else { after(last, since_first.max(PAUSE)) };
    let failed = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some(PHASE));
    let has_ended = failed.is_some_and(|status| has_ended(status, now >= late));
    match failed.map(|status| status.reason.as_deref() == Some(EVICTED)) {
        Some(true) if has_ended && now >= settled => Step::Done,
        Some(true) if has_ended => Step::Wait(Some(settled)),
        // The kubelet has taken it over, however long it takes.
        Some(true) => Step::Wait((now < late).then_some(late)),
        Some(false) if now >= enough && has_ended => Step::Done,
        Some(false) if now >= enough => Step::Wait(None),
        None if pod.metadata.deletion_timestamp.is_some() => Step::Wait(None),
        None if now >= late => Step::Delete,
        Some(false) | None if now >= again => Step::Patch,
        Some(false) => Step::Wait(Some(again)),
        None => Step::Wait(Some(again.min(late))),
    }
}

/// Whether the kubelet evicted a pod that was not patched yet: its status and event are there, and a second event would
/// report a second eviction.
pub(crate) fn is_of_kubelet(progress: Progress, pod: &Pod) -> bool {
    let is_evicted =
        |status: &PodStatus| status.phase.as_deref() == Some(PHASE) && status.reason.as_deref() == Some(EVICTED);
    progress == Progress::Unreported && before(pod).is_none() && pod.status.as_ref().is_some_and(is_evicted)
}

/// When a pod that has failed was patched by an earlier process, if it was.
fn before(pod: &Pod) -> Option<Timestamp> {
    let has_failed = pod.status.as_ref()?.phase.as_deref() == Some(PHASE);
    let written = pod.metadata.annotations.as_ref()?.get(REPORTED_AT)?;
    written.parse().ok().filter(|_| has_failed)
}

/// Whether the pod is as it was after a patch of that time, or later. A value that is no time was written after a patch, by
/// another program.
fn shows(pod: &Pod, patched: Timestamp) -> bool {
    let written = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(REPORTED_AT));
    written.is_some_and(|at| at.parse::<Timestamp>().map_or(true, |at| at >= patched))
}

/// Whether none of a failed pod's containers runs or is about to. The kubelet writes the last state of each container that
/// was started, and leaves others `waiting` for good, as those of a pod that was not initialised; before it has written
/// anything there may be none. So a pod has ended as well where none runs and the kubelet has had its turns (`is_late`).
fn has_ended(status: &PodStatus, is_late: bool) -> bool {
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = || lists.into_iter().flatten().flatten().map(|it: &ContainerStatus| it.state.as_ref());
    let is_running = |state: Option<&ContainerState>| state.is_some_and(|state| state.running.is_some());
    let is_terminated = |state: Option<&ContainerState>| state.is_some_and(|state| state.terminated.is_some());
    if is_late { !found().any(is_running) } else { found().next().is_some() && found().all(is_terminated) }
}

/// The one patch of `pods/status`, a strategic merge, as a request of this time.
pub fn patch(eviction: &Eviction, now: Timestamp) -> Value {
    json!({
        "metadata": {
            "uid": eviction.uid,
            "annotations": { REPORTED_AT: now.to_string() },
        },
        "status": {
            "phase": PHASE,
            "reason": EVICTED,
            "message": eviction.message,
            "conditions": [{
                "type": DISRUPTION_CONDITION,
                "status": DISRUPTION_STATUS,
                "reason": DISRUPTION_REASON,
                "message": eviction.message,
                "lastTransitionTime": seconds(eviction.at),
            }],
        },
    })
}

/// Times of conditions have no fraction.
pub(crate) fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// The event of an eviction, with the kubelet's annotations (`AnnotatedEventf`, client-go's tools/record). Its name has the time
/// of the eviction, so that a second one is refused.
pub fn event(eviction: &Eviction, node: &str) -> Event {
    let Eviction { uid, namespace, name, message, annotations, at, grace_seconds: _ } = eviction;
    let pod = PodReference { uid: uid.clone(), namespace: namespace.clone(), name: name.clone() };
    let (pod, message) = (Some(&pod), message.clone());
    let content = Content { pod, reason: EVICTED, message, kind: EVENT_TYPE, first: *at, last: *at, count: 1 };
    let mut event = event::event(content, node);
    event.metadata.annotations = (!annotations.is_empty()).then(|| annotations.clone());
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// The states of a pod's containers.
    fn states(states: &str) -> Vec<ContainerStatus> {
        let state = |letter| match letter {
            'r' => ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() },
            't' => {
                ContainerState { terminated: Some(ContainerStateTerminated::default()), ..ContainerState::default() }
            }
            _ => ContainerState { waiting: Some(ContainerStateWaiting::default()), ..ContainerState::default() },
        };
        states
            .chars()
            .map(|letter| ContainerStatus { state: Some(state(letter)), ..ContainerStatus::default() })
            .collect()
    }

    /// A pod that was patched at this second, with a container in each of these states: running, terminated, waiting.
    fn patched(second: i64, phase: &str, reason: Option<&str>, containers: &str) -> Pod {
        let mut pod = pod(phase, reason, containers);
        pod.metadata.annotations = Some([(REPORTED_AT.to_owned(), at(second).to_string())].into());
        pod
    }

    fn pod(phase: &str, reason: Option<&str>, containers: &str) -> Pod {
        let status = PodStatus {
            phase: Some(phase.into()),
            reason: reason.map(Into::into),
            container_statuses: Some(states(containers)),
            ..PodStatus::default()
        };
        Pod { status: Some(status), ..Pod::default() }
    }

    #[test]
    fn the_order_is_the_one_that_the_kubelet_lets_stand() {
        let patches = |first, last| Progress::Patched { first: at(first), last: at(last) };
        let (after, again) = (patches(100, 100), patches(100, 130));
        let wait = |until| Step::Wait(Some(at(until)));
        let running = pod("Running", None, "r");
        let ran_on = patched(100, "Running", None, "r");
        let mut deleting = ran_on.clone();
        deleting.metadata.deletion_timestamp = Some(Time(at(1)));
        let failed = |reason, containers| patched(100, "Failed", reason, containers);
        for (progress, pod, now, expected, why) in [
            (Progress::Unreported, Some(&running), 100, Step::Patch, "it is not known"),
            (Progress::Unreported, None, 100, Step::Patch, "the watch may be behind; the API server says so itself"),
            (Progress::Unreported, Some(&pod("Succeeded", None, "t")), 100, Step::Done, "it is no failed one"),
            (Progress::Unreported, Some(&ran_on), 101, Step::Patch, "an annotation alone is its author's"),
            (Progress::Unreported, Some(&failed(Some("Evicted"), "t")), 101, wait(120), "reported before a restart"),
            (Progress::Unreported, Some(&failed(Some("Evicted"), "t")), 120, Step::Done, "and it has stayed so"),
            (Progress::Unreported, Some(&patched(999, "Failed", None, "t")), 101, Step::Patch, "that time is to come"),
            (after, Some(&running), 101, Step::Wait(None), "the watch is behind"),
            (after, Some(&running), 900, Step::Wait(None), "it was lost, and what it has is from before the patch"),
            (after, Some(&pod("Failed", None, "t")), 101, Step::Wait(None), "it failed before the patch"),
            (after, Some(&patched(99, "Running", None, "r")), 900, Step::Wait(None), "that was an earlier patch"),
            (after, Some(&ran_on), 100, Step::Patch, "the kubelet has written its own status over it"),
            (after, Some(&failed(None, "r")), 100, Step::Patch, "the reason is gone, and another kubelet may begin so"),
            (after, Some(&failed(Some("Error"), "r")), 100, Step::Patch, "it is another one"),
            (after, Some(&failed(None, "t")), 101, Step::Patch, "the same where all containers have ended"),
            (after, Some(&failed(Some("Evicted"), "r")), 101, wait(160), "it stands, and its containers are to end"),
            (again, Some(&patched(130, "Failed", None, "r")), 131, wait(160), "it is gone once more"),
            (again, Some(&patched(130, "Failed", None, "r")), 160, Step::Patch, "that is over"),
            (patches(100, 101), Some(&patched(101, "Failed", None, "r")), 101, wait(102), "a second at least"),
            (
                patches(100, 101),
                Some(&patched(101, "Running", None, "r")),
                102,
                Step::Patch,
                "the same of one that runs",
            ),
            (again, Some(&patched(130, "Failed", None, "r")), 400, Step::Wait(None), "it was written for long enough"),
            (
                after,
                Some(&patched(101, "Failed", Some("Evicted"), "t")),
                101,
                wait(120),
                "as it should be, and it may not stay so",
            ),
            (after, Some(&patched(101, "Failed", Some("Evicted"), "t")), 120, Step::Done, "it has stayed so"),
            (again, Some(&patched(130, "Failed", None, "t")), 159, wait(160), "the kubelet may write it yet"),
            (again, Some(&patched(130, "Failed", None, "t")), 160, Step::Patch, "it did not"),
            (again, Some(&patched(130, "Failed", Some("Evicted"), "t")), 150, Step::Done, "it did"),
            (
                again,
                Some(&patched(130, "Failed", None, "t")),
                400,
                Step::Done,
                "another program takes it away each time",
            ),
            (patches(100, 140), Some(&patched(140, "Running", None, "r")), 149, wait(160), "until it is deleted"),
            (again, Some(&patched(130, "Running", None, "r")), 160, Step::Delete, "it ran on for a minute in all"),
            (after, Some(&failed(Some("Evicted"), "tr")), 400, Step::Wait(None), "a grace that is long"),
            (
                after,
                Some(&failed(Some("Evicted"), "")),
                101,
                wait(160),
                "the kubelet has not written of any container yet",
            ),
            (after, Some(&failed(Some("Evicted"), "tw")), 101, wait(160), "nor of this one"),
            (after, Some(&failed(Some("Evicted"), "tw")), 160, Step::Done, "it was not initialised, and never will be"),
            (after, Some(&failed(None, "tw")), 160, Step::Patch, "the same, and the reason did not come back"),
            (after, Some(&ran_on), 160, Step::Delete, "it ran on"),
            (after, Some(&deleting), 160, Step::Wait(None), "it is deleted by another"),
            (after, Some(&patched(100, "Succeeded", None, "t")), 101, Step::Done, "it was through before"),
            (after, None, 101, Step::Done, "it was deleted"),
            (again, Some(&patched(130, "Failed", Some("Evicted"), "t")), 50, wait(70), "the clock was set back"),
            (again, Some(&patched(130, "Running", None, "r")), 50, Step::Patch, "the same of one that runs on"),
            (Progress::ToDelete, Some(&running), 101, Step::Delete, "the patch was refused"),
            (Progress::ToDelete, None, 101, Step::Done, "it was deleted"),
            (Progress::Over, Some(&running), 101, Step::Done, "it is under way"),
        ] {
            let progress = pod.map_or(progress, |pod| progress.as_of(pod, at(now)));
            assert_eq!(next(progress, pod, at(now)), expected, "{why}");
        }
        let mut overwritten = ran_on;
        overwritten.metadata.annotations = Some([(REPORTED_AT.to_owned(), "no time".to_owned())].into());
        assert_eq!(next(after, Some(&overwritten), at(160)), Step::Delete, "its author cannot keep it so");
    }

    fn eviction(name: &str) -> Eviction {
        Eviction {
            uid: "u".into(),
            namespace: "shop".into(),
            name: name.into(),
            message: "The node was low on resource: memory. ".into(),
            annotations: [("starved_resource".to_owned(), "memory".to_owned())].into(),
            grace_seconds: 0,
            at: Timestamp::from_nanosecond(1_700_000_000_123_456_789).expect("a time"),
        }
    }

    #[test]
    fn the_patch_has_the_uid_and_an_annotation_that_is_another_one_each_time() {
        let [first, second] = [1, 2].map(|second| patch(&eviction("web"), at(second)));
        assert_eq!((&first["metadata"]["uid"], &first["status"]["phase"]), (&json!("u"), &json!("Failed")));
        assert_eq!(first["status"], second["status"]);
        assert_ne!(first["metadata"]["annotations"], second["metadata"]["annotations"]);
        assert_eq!(first["status"]["conditions"][0]["lastTransitionTime"], "2023-11-14T22:13:20Z");
    }

    #[test]
    fn an_eviction_has_one_event() {
        let [event, again] = [event(&eviction("web"), "n1"), event(&eviction("web"), "n1")];
        assert_eq!(event, again);
        assert_eq!(event.metadata.name.as_deref(), Some("web.17979cfe3d85cd15"));
        assert_eq!(event.involved_object.uid.as_deref(), Some("u"));
    }
}
