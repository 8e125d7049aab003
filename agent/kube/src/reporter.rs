//! Writes what was done on the node, in order, each once, and as often as the API server can take.
//!
//! What could not be written stays in the outbox and is tried again after a pause that doubles. Each write has its own
//! pause, and its turn after those that have been due for longer, so that one that fails always holds up no other, also where
//! each try takes long; where the API server is not reached, or asks for that, all have one. What is refused for good, or
//! forbidden for minutes, is logged and left. Conditions are written when they change, when the node's object is made anew or
//! has other taints of ours, and again at each heartbeat; taints are looked at after them.

mod entry;
mod notes;
mod requests;
mod results;
mod retry;
mod standard;

use crate::budget::Budget;
use crate::connection::ANSWER;
use crate::error::Refusal;
use crate::eviction::{self, Progress, Step};
use crate::node::{Condition, TaintEffect};
use crate::own_node::NodeView;
use crate::pods::Pods;
use crate::standard::Standard;
use core::cmp::Ordering;
use core::time::Duration;
use entry::Open;
use jiff::Timestamp;
use kube::Client;
use notes::{Note, Notes};
use plimsoll_policy::Uid;
use retry::Retry;
use standard::StandardConditions;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

pub use entry::{Decision, Entry, Outcome};
pub use notes::{Degraded, Incident, IncidentReason};

/// How often conditions are written that did not change, less a random part of up to half: a reader may take a node whose
/// heartbeat is older than twice that for one without an agent ([`STALE`](crate::stale::STALE)). As often as a kubelet reports an
/// unchanged status (`nodeStatusReportFrequency`).
pub const HEARTBEAT: Duration = Duration::from_mins(5);
/// How long one write may take, with the read before it.
const REQUEST: Duration = ANSWER.saturating_mul(2);
/// How long another write is waited for that came before ours.
const CONFLICT: Duration = Duration::from_millis(100);
/// For so long the node's object has other taints of ours than it should until they are written again: what this reporter has
/// just written is seen later, and a program that removes them each time costs a write in this time.
const ASTRAY: Duration = Duration::from_secs(5);
/// An event goes behind what is due about pods, also where that became due up to so long after it.
const EVENT_YIELDS: Duration = Duration::from_mins(1);
/// Most evictions that are kept to be reported. The oldest go first: an agent evicts a hundred in a minute at most.
const MOST_ENTRIES: usize = 1024;

/// What is to be reported.
#[derive(Debug)]
pub struct Report {
    /// Evictions as they are decided, and given up.
    pub decisions: mpsc::UnboundedReceiver<Decision>,
    /// The conditions as they are now; `None` until they are known.
    pub conditions: watch::Receiver<Option<Vec<Condition>>>,
    /// The pods as they are now; `None` until they were listed.
    pub pods: watch::Receiver<Option<Pods>>,
    /// The node's object as it is now; `None` until it was read.
    pub node: watch::Receiver<Option<NodeView>>,
    /// The parts that do not work now.
    pub degraded: watch::Receiver<Vec<Degraded>>,
    /// What the agent did, or was too late for.
    pub incidents: mpsc::Receiver<Incident>,
}

/// Writes for one node.
pub struct Reporter {
    client: Client,
    node: String,
    effect: Option<TaintEffect>,
    /// The oldest first.
    outbox: Vec<Open>,
    /// What came of what is in it, or was.
    outcomes: Vec<Outcome>,
    pods: Option<Pods>,
    conditions: Option<Vec<Condition>>,
    /// As they were first, until they are compared with what the node has of an earlier process.
    first: Option<Vec<Condition>>,
    /// Which object the node has.
    object: Option<Uid>,
    /// What of the conditions has to be written before the next heartbeat.
    due: Due,
    /// When conditions and taints are written before the heartbeat, where the node's object was seen with other taints of ours.
    astray: Option<Instant>,
    heartbeat: Instant,
    budget: Budget,
    /// Of everything that is asked of the API server.
    of_server: Retry,
    of_conditions: Retry,
    of_taints: Retry,
    /// The last write was one of what the node has, and failed: another one goes before the next of these.
    node_yields: bool,
    standard: StandardConditions,
    /// Events beside those of evictions.
    notes: Notes,
    degraded: Vec<Degraded>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Taints,
    All,
}

/// One write, or what is asked before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    /// What the node has of conditions, before they are written first.
    Compare,
    Conditions,
    Taints,
    Standard,
    /// Of this entry.
    Patch(usize),
    /// Whether the pod is still the one that was evicted.
    Look(usize),
    Delete(usize),
    Event(usize),
    /// Beside those of evictions.
    Note(usize),
}

impl Reporter {
    /// Has nothing to write yet. `effect`: of the taint that is set while a condition holds.
    pub fn new(client: Client, node: String, effect: Option<TaintEffect>) -> Self {
        let now = Instant::now();
        Self {
            client,
            node,
            effect,
            outbox: Vec::new(),
            outcomes: Vec::new(),
            pods: None,
            conditions: None,
            first: None,
            object: None,
            due: Due::Nothing,
            astray: None,
            heartbeat: now,
            budget: Budget::new(now),
            of_server: Retry::new(now),
            of_conditions: Retry::new(now),
            of_taints: Retry::new(now),
            node_yields: false,
            standard: StandardConditions::new(None, now),
            notes: Notes::default(),
            degraded: Vec::new(),
        }
    }

    /// Writes the standard conditions so, too.
    #[must_use]
    pub fn with_standard(self, how: Option<Standard>) -> Self {
        Self { standard: StandardConditions::new(how, Instant::now()), ..self }
    }

    /// Writes until nothing more can be reported, and gives what came of it.
    pub async fn run(mut self, mut report: Report, outcomes: mpsc::UnboundedSender<Outcome>) {
        // What is there already is no change.
        report.conditions.mark_changed();
        report.pods.mark_changed();
        report.node.mark_changed();
        report.degraded.mark_changed();
        loop {
            // They go first, also where they come together with an eviction.
            if report.conditions.has_changed().unwrap_or(false) {
                self.take_conditions(&mut report.conditions);
            }
            // One that was given up is not written because another write is due.
            while let Ok(decision) = report.decisions.try_recv() {
                self.take(decision);
            }
            while let Ok(incident) = report.incidents.try_recv() {
                self.notes.add(Note::Incident(incident));
            }
            let wait = self.write_next().await;
            for outcome in self.outcomes.drain(..) {
                // Where nothing receives it, it ends with what sends reports.
                let _ = outcomes.send(outcome);
            }
            tokio::select! {
                decision = report.decisions.recv() => match decision {
                    Some(decision) => self.take(decision),
                    None => return,
                },
                Ok(()) = report.conditions.changed() => self.take_conditions(&mut report.conditions),
                Ok(()) = report.pods.changed() => self.pods.clone_from(&report.pods.borrow_and_update()),
                Ok(()) = report.node.changed() => {
                    if let Some(view) = &*report.node.borrow_and_update() {
                        self.see(view);
                    }
                }
                Ok(()) = report.degraded.changed() => {
                    let degraded = report.degraded.borrow_and_update().clone();
                    self.degrade(degraded);
                }
                Some(incident) = report.incidents.recv() => self.notes.add(Note::Incident(incident)),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn take(&mut self, decision: Decision) {
        match decision {
            Decision::Evicted(eviction) => self.add(eviction),
            // Of one that was patched the kubelet does the rest.
            Decision::GivenUp(uid) => self.outbox.retain(|Open { entry: Entry { eviction, progress, .. }, .. }| {
                !matches!(progress, Progress::Unreported | Progress::ToDelete) || Uid::of(&eviction.uid) != uid
            }),
        }
    }

    fn add(&mut self, entry: impl Into<Entry>) {
        let entry = entry.into();
        if self.outbox.iter().any(|open| open.entry.eviction.uid == entry.eviction.uid) {
            return;
        }
        if self.outbox.len() >= MOST_ENTRIES {
            let dropped = self.outbox.remove(0);
            tracing::warn!("the eviction of {} is not reported any more: too many came after it", dropped.pod());
            self.outcomes.push(Outcome::Over(dropped.entry));
        }
        self.outbox.push(Open::new(entry, Instant::now()));
    }

    fn take_conditions(&mut self, conditions: &mut watch::Receiver<Option<Vec<Condition>>>) {
        match conditions.borrow_and_update().clone() {
            Some(conditions) => self.set_conditions(conditions),
            None => self.forget_conditions(),
        }
    }

    /// Nothing is known of them any more: they stay as they are, without a heartbeat, and those that come later are compared with
    /// what the node has by then.
    fn forget_conditions(&mut self) {
        (self.conditions, self.first, self.astray) = (None, None, None);
        self.due = Due::Nothing;
        self.standard.end();
    }

    /// Those that go on keep their time, which may be the one that the node has.
    fn set_conditions(&mut self, mut conditions: Vec<Condition>) {
        if let Some(before) = self.conditions.take() {
            for condition in &mut conditions {
                condition.keep_time(&before);
            }
            self.standard.change(&before, &conditions);
            self.note_new(&before, &conditions);
        } else {
            self.first = Some(conditions.clone());
        }
        self.conditions = Some(conditions);
        self.due = Due::All;
    }

    fn note_new(&mut self, before: &[Condition], conditions: &[Condition]) {
        let held = |kind| before.iter().any(|it| it.kind == kind && it.holds);
        for condition in conditions.iter().filter(|it| it.holds && !held(it.kind)) {
            self.notes.add(Note::ThresholdMet(condition.kind));
        }
    }

    /// The node has these conditions of an earlier process. Those that are the same keep the time that it has, and are no news.
    fn compare(&mut self, written: &[Condition]) {
        let (Some(first), Some(conditions)) = (self.first.take(), self.conditions.as_mut()) else { return };
        let unchanged: Vec<Condition> = first.iter().filter(|it| conditions.contains(it)).copied().collect();
        for condition in conditions.iter_mut().filter(|it| unchanged.contains(it)) {
            condition.keep_time(written);
        }
        // What has changed since was taken in when it changed.
        self.standard.change(written, &unchanged);
        self.note_new(written, &first);
    }

    /// These parts do not work now.
    fn degrade(&mut self, degraded: Vec<Degraded>) {
        let before = core::mem::replace(&mut self.degraded, degraded);
        let begun = self.degraded.iter().filter(|it| !before.contains(it)).copied().map(Note::Degraded);
        let ended = before.iter().filter(|it| !self.degraded.contains(it)).copied().map(Note::Recovered);
        begun.chain(ended).for_each(|note| self.notes.add(note));
    }

    fn see(&mut self, view: &NodeView) {
        let before = self.object.replace(view.uid);
        // It has neither conditions nor taints of ours; or it was asked for when there was none.
        if before != Some(view.uid) && (before.is_some() || self.first.is_some()) {
            self.due = Due::All;
        }
        let Some(conditions) = &self.conditions else { return };
        self.standard.see(view, conditions);
        let is_astray = !view.has_taints_of(conditions, self.effect);
        self.astray = is_astray.then(|| self.astray.unwrap_or_else(|| Instant::now() + ASTRAY));
    }

    /// Makes the next write, if one is due, and gives how long nothing has to be done.
    async fn write_next(&mut self) -> Duration {
        let (time, now) = (Timestamp::now(), Instant::now());
        self.look_at_pods(time);
        if now < self.of_server.due() {
            return self.of_server.due() - now;
        }
        self.budget.fill(now);
        let write = match self.next(time, now) {
            Ok(write) => write,
            Err(wait) => return wait,
        };
        if let Err(wait) = self.budget.take(now) {
            return wait;
        }
        let sent = timeout(REQUEST, self.send(write, time)).await;
        let result = sent.unwrap_or_else(|_| Err(Refusal::Later("it did not answer in time".into(), None)));
        self.done(write, time, result);
        Duration::ZERO
    }

    /// What has to be done about each pod; those of which nothing is left leave the outbox.
    fn look_at_pods(&mut self, time: Timestamp) {
        let Self { pods, outbox, outcomes, .. } = self;
        let mut ends = Vec::new();
        let is_over = |open: &mut Open| {
            let Entry { eviction, progress, has_event } = &mut open.entry;
            let pod = pods.as_ref().map(|pods| pods.get(&eviction.uid).map(AsRef::as_ref));
            if let Some(Some(pod)) = pod {
                *progress = progress.as_of(pod, time);
                if eviction::is_of_kubelet(*progress, pod) {
                    (*progress, *has_event) = (Progress::Over, true);
                    ends.push(Outcome::Ends(eviction.uid.clone()));
                }
            }
            open.step = match (pod, *progress) {
                (Some(pod), progress) => eviction::next(progress, pod, time),
                // Which pods there are is not known yet.
                (None, Progress::Unreported) => Step::Patch,
                (None, Progress::ToDelete) => Step::Delete,
                (None, Progress::Over) => Step::Done,
                (None, Progress::Patched { .. }) => Step::Wait(None),
            };
            open.step == Step::Done && *has_event
        };
        let over: Vec<_> = outbox.extract_if(.., is_over).map(|open| Outcome::Over(open.entry)).collect();
        outcomes.extend(ends.into_iter().chain(over));
    }

    /// What is written next: what keeps pods away first, and then what has been due the longest, so that each write has its
    /// turn, however long those take that fail again and again. Of those that became due together it is what keeps the kubelet
    /// from starting what was killed first, and what is to be read by people last. Where nothing is due, how long that holds.
    fn next(&self, time: Timestamp, now: Instant) -> Result<Write, Duration> {
        let of_conditions = self.conditions.as_ref().map(|_| {
            let write = if self.first.is_some() { Write::Compare } else { Write::Conditions };
            // Without conditions taints would be those of an agent that is gone, so that both are written.
            let due = self.of_conditions.due();
            let heartbeat = self.astray.unwrap_or(self.heartbeat).min(self.heartbeat);
            (if self.due == Due::All { due } else { due.max(heartbeat) }, write)
        });
        let of_taints = (self.due == Due::Taints).then(|| (self.of_taints.due(), Write::Taints));
        let of_standard = self.standard.due().map(|due| (due, Write::Standard));
        // Before all others, or behind them.
        let place = if self.node_yields { Ordering::Greater } else { Ordering::Less };
        let of_node = [of_conditions, of_taints, of_standard].into_iter().flatten();
        let of_node = of_node.map(|(due, write)| (due, (place, due), Some(write)));
        let of_pod = |(at, open): (usize, &Open)| {
            let write = match open.step {
                Step::Patch if open.is_in_conflict => Write::Look(at),
                Step::Patch => Write::Patch(at),
                Step::Delete => Write::Delete(at),
                Step::Wait(Some(until)) => {
                    let left = Duration::try_from(until.duration_since(time)).unwrap_or_default();
                    return Some((now + left, (Ordering::Equal, now), None));
                }
                Step::Wait(None) | Step::Done => return None,
            };
            Some((open.of_pod.due(), (Ordering::Equal, open.of_pod.due()), Some(write)))
        };
        let of_event = |(at, open): (usize, &Open)| {
            let due = open.of_event.due();
            (!open.entry.has_event).then(|| (due, (Ordering::Equal, due + EVENT_YIELDS), Some(Write::Event(at))))
        };
        let open = || self.outbox.iter().enumerate();
        let spare = self.budget.spare(now);
        let as_note = |(due, at): (Instant, usize)| {
            (due.max(spare), (Ordering::Equal, due + EVENT_YIELDS), Some(Write::Note(at)))
        };
        let of_pods = open().filter_map(of_pod).chain(open().filter_map(of_event)).chain(self.notes.due().map(as_note));
        let (mut wait, mut first) = (HEARTBEAT, None);
        // Each with when it is due, and its turn among those that are.
        for (due, turn, write) in of_node.chain(of_pods) {
            match write {
                Some(write) if due <= now => {
                    if first.is_none_or(|(earliest, _)| turn < earliest) {
                        first = Some((turn, write));
                    }
                }
                _ => wait = wait.min(due.saturating_duration_since(now)),
            }
        }
        first.map(|(_, write)| write).ok_or(wait)
    }

    fn retry(&mut self, write: Write) -> &mut Retry {
        match write {
            Write::Compare | Write::Conditions => &mut self.of_conditions,
            Write::Taints => &mut self.of_taints,
            Write::Standard => &mut self.standard.retry,
            Write::Patch(at) | Write::Look(at) | Write::Delete(at) => &mut self.outbox[at].of_pod,
            Write::Event(at) => &mut self.outbox[at].of_event,
            Write::Note(at) => self.notes.retry(at),
        }
    }

    /// What is written, for the log.
    fn what(&self, write: Write) -> String {
        match write {
            Write::Compare => "the question for the node's conditions".into(),
            Write::Conditions => "the node's conditions".into(),
            Write::Taints => "the node's taint".into(),
            Write::Standard => "the node's standard conditions".into(),
            Write::Patch(at) | Write::Look(at) => format!("the status of {}", self.outbox[at].pod()),
            Write::Delete(at) => format!("the deletion of {}", self.outbox[at].pod()),
            Write::Note(_) => "an event".into(),
            Write::Event(at) => format!("the event of the eviction of {}", self.outbox[at].pod()),
        }
    }
}

#[cfg(test)]
mod storm;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::run as run_paused;
