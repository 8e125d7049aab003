//! Writes what was done on the node, in order, each once, and as often as the API server can take.
//!
//! What could not be written stays in the outbox and is tried again after a pause that doubles. What is refused for good is
//! logged and left. Conditions are written when they change, and again at each heartbeat, when taints are looked at too.

use crate::MANAGER;
use crate::budget::{Budget, pause_after, spread};
use crate::error::Refusal;
use crate::eviction::{self, Eviction, LEAST_GRACE_SECONDS, Progress, Step};
use crate::node::{self, Condition, TaintEffect};
use crate::pods::Pods;
use core::time::Duration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

/// How often conditions are written that did not change, less a random part of up to half: a reader may take a node whose
/// heartbeat is older than twice that for one without an agent. As often as a kubelet reports an unchanged status
/// (`nodeStatusReportFrequency`).
pub const HEARTBEAT: Duration = Duration::from_mins(5);
/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(20);
/// How long another write is waited for that came before ours.
const CONFLICT: Duration = Duration::from_millis(100);
/// Most evictions that are kept to be reported. The oldest go first: an agent evicts a hundred in a minute at most.
const MOST_ENTRIES: usize = 1024;

/// An eviction, and how far the API server knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The eviction.
    pub eviction: Eviction,
    /// What of its pod is done.
    pub progress: Progress,
    /// Whether its event was written.
    pub has_event: bool,
}

impl From<Eviction> for Entry {
    fn from(eviction: Eviction) -> Self {
        Self { eviction, progress: Progress::Unreported, has_event: false }
    }
}

/// What is still to be written, the oldest first.
pub type Outbox = Vec<Entry>;

/// What is to be reported.
#[derive(Debug)]
pub struct Report {
    /// Evictions as they are decided.
    pub evictions: mpsc::UnboundedReceiver<Eviction>,
    /// The conditions as they are now; `None` until they are known.
    pub conditions: watch::Receiver<Option<Vec<Condition>>>,
    /// The pods as they are now; `None` until they were listed.
    pub pods: watch::Receiver<Option<Pods>>,
}

/// Writes for one node.
pub struct Reporter {
    client: Client,
    node: String,
    effect: Option<TaintEffect>,
    outbox: Outbox,
    /// What left it.
    over: Vec<Entry>,
    pods: Option<Pods>,
    conditions: Option<Vec<Condition>>,
    /// What of the conditions has to be written.
    due: Due,
    heartbeat: Instant,
    budget: Budget,
    failures: u32,
    /// Until when nothing is written after a failure.
    paused: Instant,
    trouble: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Taints,
    All,
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Conditions,
    Taints,
    /// Of this entry.
    Patch(usize),
    Delete(usize),
    Event(usize),
}

impl Reporter {
    /// Goes on with an outbox. `effect`: of the taint that is set while a condition holds.
    pub fn new(client: Client, node: String, effect: Option<TaintEffect>, outbox: Outbox) -> Self {
        let now = Instant::now();
        Self {
            client,
            node,
            effect,
            outbox,
            over: Vec::new(),
            pods: None,
            conditions: None,
            due: Due::Nothing,
            heartbeat: now,
            budget: Budget::new(now),
            failures: 0,
            paused: now,
            trouble: None,
        }
    }

    /// Writes until nothing more can be reported; gives each eviction of which nothing is left to be written.
    pub async fn run(mut self, mut report: Report, over: mpsc::UnboundedSender<Entry>) {
        // What is there already is no change.
        report.conditions.mark_changed();
        report.pods.mark_changed();
        loop {
            let wait = self.write_next().await;
            for entry in self.over.drain(..) {
                // Where nothing receives it, it ends with what sends reports.
                let _ = over.send(entry);
            }
            tokio::select! {
                eviction = report.evictions.recv() => match eviction {
                    Some(eviction) => self.add(eviction),
                    None => return,
                },
                Ok(()) = report.conditions.changed() => {
                    let conditions = report.conditions.borrow_and_update().clone();
                    self.set_conditions(conditions).await;
                }
                Ok(()) = report.pods.changed() => self.pods.clone_from(&report.pods.borrow_and_update()),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn add(&mut self, eviction: Eviction) {
        if self.outbox.iter().any(|entry| entry.eviction.uid == eviction.uid) {
            return;
        }
        if self.outbox.len() >= MOST_ENTRIES {
            let dropped = self.outbox.remove(0);
            let Eviction { namespace, name, .. } = &dropped.eviction;
            tracing::warn!("the eviction of pod {namespace}/{name} is not reported any more: too many came after it");
            self.over.push(dropped);
        }
        self.outbox.push(eviction.into());
    }

    /// Conditions that are as the node's object has them already keep the time that it has.
    async fn set_conditions(&mut self, conditions: Option<Vec<Condition>>) {
        let Some(mut conditions) = conditions else { return };
        if self.conditions.is_none()
            && let Ok(Ok(written)) = timeout(REQUEST, node::read_conditions(&self.client, &self.node)).await
        {
            for condition in &mut conditions {
                let same = written.iter().find(|it| (it.kind, it.holds) == (condition.kind, condition.holds));
                condition.since = same.map_or(condition.since, |same| same.since);
            }
        }
        self.conditions = Some(conditions);
        self.due = Due::All;
    }

    /// Makes the next write, if one is due, and gives how long nothing has to be done.
    async fn write_next(&mut self) -> Duration {
        let now = Instant::now();
        if now < self.paused {
            return self.paused - now;
        }
        let Some(write) = self.next(Timestamp::now(), now) else { return self.idle(Timestamp::now(), now) };
        if let Err(wait) = self.budget.take(now) {
            return wait;
        }
        let time = Timestamp::now();
        let result = match timeout(REQUEST, self.send(write, time)).await {
            Ok(result) => result.map_err(|error| Refusal::of(&error)),
            Err(_) => Err(Refusal::Later("it did not answer in time".into(), None)),
        };
        self.done(write, time, result).await;
        Duration::ZERO
    }

    /// What is written next: what keeps pods away first, then what keeps the kubelet from starting what was killed, and
    /// what is to be read by people last.
    fn next(&mut self, time: Timestamp, now: Instant) -> Option<Write> {
        let pods = &self.pods;
        let mut steps = Vec::with_capacity(self.outbox.len());
        let is_over = |entry: &mut Entry| {
            let pod = pods.as_ref().map(|pods| pods.get(&entry.eviction.uid).map(AsRef::as_ref));
            let step = match (pod, entry.progress) {
                (Some(pod), progress) => eviction::next(progress, pod, time),
                // Which pods there are is not known yet.
                (None, Progress::Unreported) => Step::Patch,
                (None, Progress::ToDelete) => Step::Delete,
                (None, Progress::Over | Progress::PatchedAgain) => Step::Done,
                (None, Progress::Patched(_)) => Step::Wait(None),
            };
            let is_over = step == Step::Done && entry.has_event;
            if !is_over {
                steps.push(step);
            }
            is_over
        };
        self.over.extend(self.outbox.extract_if(.., is_over));
        if self.conditions.is_some() && now >= self.heartbeat {
            self.due = Due::All;
        }
        let first = match self.due {
            Due::All => Some(Write::Conditions),
            Due::Taints => Some(Write::Taints),
            Due::Nothing => None,
        };
        let step = |(at, step): (usize, &Step)| match step {
            Step::Patch => Some(Write::Patch(at)),
            Step::Delete => Some(Write::Delete(at)),
            Step::Wait(_) | Step::Done => None,
        };
        let event = || self.outbox.iter().position(|entry| !entry.has_event).map(Write::Event);
        first.or_else(|| steps.iter().enumerate().find_map(step)).or_else(event)
    }

    /// How long until something is due where nothing is now.
    fn idle(&self, time: Timestamp, now: Instant) -> Duration {
        let heartbeat = self.conditions.as_ref().map(|_| self.heartbeat.saturating_duration_since(now));
        let patience = self.outbox.iter().filter_map(|entry| match entry.progress {
            Progress::Patched(at) => {
                let passed = Duration::try_from(time.duration_since(at)).unwrap_or_default();
                Some(eviction::PATIENCE.saturating_sub(passed)).filter(|left| !left.is_zero())
            }
            _ => None,
        });
        heartbeat.into_iter().chain(patience).min().unwrap_or(HEARTBEAT)
    }

    async fn send(&self, write: Write, time: Timestamp) -> kube::Result<()> {
        let (client, node) = (&self.client, self.node.as_str());
        let of = |at: usize| {
            let eviction = &self.outbox[at].eviction;
            (Api::<Pod>::namespaced(client.clone(), &eviction.namespace), eviction)
        };
        let conditions = self.conditions.as_deref().unwrap_or_default();
        match write {
            Write::Conditions => node::write_conditions(client, node, conditions, time).await,
            Write::Taints => node::write_taints(client, node, &node::wanted(conditions, self.effect)).await,
            Write::Patch(at) => {
                let (pods, eviction) = of(at);
                let patch = Patch::Strategic(eviction::patch(eviction, time));
                let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
                pods.patch_status(&eviction.name, &parameters, &patch).await.map(drop)
            }
            Write::Delete(at) => {
                let (pods, eviction) = of(at);
                let preconditions = Preconditions { uid: Some(eviction.uid.clone()), resource_version: None };
                let parameters = DeleteParams {
                    grace_period_seconds: Some(eviction.grace_seconds.max(LEAST_GRACE_SECONDS)),
                    preconditions: Some(preconditions),
                    ..DeleteParams::default()
                };
                pods.delete(&eviction.name, &parameters).await.map(drop)
            }
            Write::Event(at) => {
                let eviction = &self.outbox[at].eviction;
                let api = Api::<Event>::namespaced(client.clone(), &eviction.namespace);
                let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
                api.create(&parameters, &eviction::event(eviction, node)).await.map(drop)
            }
        }
    }

    /// Takes in what came of a write of that time.
    async fn done(&mut self, write: Write, time: Timestamp, result: Result<(), Refusal>) {
        let Err(refusal) = result else {
            self.written(write, time);
            self.failures = 0;
            if self.trouble.take().is_some() {
                tracing::info!("the API server takes what is reported again");
            }
            return;
        };
        match (write, refusal) {
            (_, Refusal::Later(why, pause)) => self.pause(&why, pause),
            (Write::Conditions | Write::Taints, Refusal::Conflict) => {
                self.failures += 1;
                self.paused = Instant::now() + spread(CONFLICT, fastrand::f64()) * self.failures.min(10);
            }
            (Write::Conditions | Write::Taints, Refusal::Gone) => self.leave_conditions("there is no such node"),
            (Write::Conditions | Write::Taints, Refusal::Never(why)) => self.leave_conditions(&why),
            (Write::Patch(at), Refusal::Conflict) => self.look(at).await,
            (Write::Patch(at), Refusal::Never(why)) => {
                let Eviction { namespace, name, .. } = &self.outbox[at].eviction;
                tracing::warn!("the status of pod {namespace}/{name} cannot be set, and it is deleted: {why}");
                self.outbox[at].progress = Progress::ToDelete;
            }
            (Write::Delete(at), Refusal::Never(why)) => {
                let Eviction { namespace, name, .. } = &self.outbox[at].eviction;
                tracing::warn!("pod {namespace}/{name} was evicted and cannot be deleted: {why}");
                self.outbox[at].progress = Progress::Over;
            }
            // It is gone, or the UID is that of another one.
            (Write::Patch(at) | Write::Delete(at), Refusal::Gone) | (Write::Delete(at), Refusal::Conflict) => {
                self.outbox[at].progress = Progress::Over;
            }
            // It was written before: its answer was lost.
            (Write::Event(at), Refusal::Conflict) => self.outbox[at].has_event = true,
            (Write::Event(at), refusal @ (Refusal::Gone | Refusal::Never(_))) => {
                let Eviction { namespace, name, .. } = &self.outbox[at].eviction;
                tracing::warn!("the event of the eviction of pod {namespace}/{name} is refused: {refusal:?}");
                self.outbox[at].has_event = true;
            }
        }
    }

    fn written(&mut self, write: Write, time: Timestamp) {
        match write {
            Write::Conditions => {
                self.due = Due::Taints;
                self.heartbeat = Instant::now() + spread(HEARTBEAT, fastrand::f64());
            }
            Write::Taints => self.due = Due::Nothing,
            Write::Patch(at) => {
                let entry = &mut self.outbox[at];
                entry.progress = match entry.progress {
                    Progress::Patched(_) => Progress::PatchedAgain,
                    _ => Progress::Patched(time),
                };
            }
            Write::Delete(at) => self.outbox[at].progress = Progress::Over,
            Write::Event(at) => self.outbox[at].has_event = true,
        }
    }

    /// A patch that is in conflict is one of another UID, or came at the same time as another one.
    async fn look(&mut self, at: usize) {
        let eviction = &self.outbox[at].eviction;
        let api = Api::<Pod>::namespaced(self.client.clone(), &eviction.namespace);
        // With the rights that following pods takes.
        let named = ListParams::default().fields(&format!("metadata.name={}", eviction.name));
        match timeout(REQUEST, api.list_metadata(&named)).await {
            Ok(Ok(found)) => {
                if found.items.iter().all(|pod| pod.metadata.uid.as_ref() != Some(&eviction.uid)) {
                    self.outbox[at].progress = Progress::Over;
                } else {
                    self.paused = Instant::now() + spread(CONFLICT, fastrand::f64());
                }
            }
            Ok(Err(error)) => self.pause(&error.to_string(), None),
            Err(_) => self.pause("it did not answer in time", None),
        }
    }

    /// They are tried again with the next heartbeat.
    fn leave_conditions(&mut self, why: &str) {
        self.note(why);
        self.due = Due::Nothing;
        self.heartbeat = Instant::now() + spread(HEARTBEAT, fastrand::f64());
    }

    fn pause(&mut self, why: &str, least: Option<Duration>) {
        self.note(why);
        self.failures += 1;
        self.paused = Instant::now() + pause_after(self.failures, fastrand::f64()).max(least.unwrap_or_default());
    }

    /// Logs it once, until it is another or over.
    fn note(&mut self, why: &str) {
        if self.trouble.as_deref() != Some(why) {
            tracing::warn!("the API server does not take what is reported, and it is tried again: {why}");
            self.trouble = Some(why.to_owned());
        }
    }
}

#[cfg(test)]
mod tests;
