//! What is to be reported to the cluster: pods that the core evicts, and conditions of the node.
//!
//! The core sends each again until it has a [`Receipt`] that says that it is durable. What is received is kept here in the
//! order of the decisions, and in the journal, and is acknowledged once it is there. Where the disk is full or can only be
//! read, it is kept in memory, and acknowledged as not durable, so that the core goes on to name it; that the journal does
//! not work is reported as for everything in it ([`Source::Journal`](plimsoll_inventory::Source::Journal)).
//!
//! # For what reports to the cluster
//!
//! [`Outbox::pending`] gives what is to be reported, in order, with how far each has come; [`Outbox::mark_reported`] ends one.
//! Both are for the task that owns the outbox, which gets to know of changes by [`Outbox::version`]: it rises with each.
//! An eviction stays until it is reported, over a restart and over a reboot, as far as it can be true
//! ([decision 12](../../docs/decisions/0012-durable-state.md)). Reporting has to be such that it may happen twice: where the
//! process is killed between the acknowledgement of the API server and the sync of the journal, it does.
//!
//! Without a cluster an eviction ends when its processes have: it stays in the journal as one that is reported.
//!
//! # Bounds
//!
//! [`MOST`] evictions, one of each pod: a later one of the same pod replaces the earlier one. Reported ones go when the
//! list of pods does not have the pod any more. Where there is no room, the oldest goes that is reported; where none is, the
//! oldest that was given up; and then the oldest of all, which is logged, as it is not reported.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plimsoll_inventory::{
    ConditionState, Eviction, EvictionCause, EvictionNumber, EvictionStep, Limited, Message, Receipt, ReceiptOf,
};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::Condition;
use plimsoll_policy::message::Cause;
use plimsoll_state::durable::{self, Figures, Moment, PodName, Progress, Reason};
use plimsoll_units::{Bytes, MonotonicNs};

/// So many evictions are kept: as many as the journal has room for.
const MOST: usize = 512;
/// So many receipts wait for the disk; of more, the oldest is dropped: the core asks again.
const MOST_RECEIPTS: usize = 1024;

/// What is kept of both, as the journal has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reports {
    pub(super) evictions: Vec<durable::Eviction>,
    pub(super) conditions: Vec<durable::Condition>,
}

/// What is to be reported, and what the core is answered.
pub(super) struct Outbox {
    /// Without one, nothing has to be reported.
    has_cluster: bool,
    /// In the order of the decisions.
    evictions: VecDeque<durable::Eviction>,
    conditions: BTreeMap<Condition, durable::Condition>,
    /// What the core sent last of each.
    concluded: BTreeMap<Condition, ConditionState>,
    /// Those that a threshold can set.
    of_thresholds: BTreeSet<Condition>,
    /// What was in the journal is here, or there is none: before, nothing is given to it.
    is_restored: bool,
    /// Rises with each change.
    version: u64,
    /// The version of the last change that must be on the disk soon.
    pressing: u64,
    /// The version of the last change that is on the disk.
    durable: u64,
    /// The journal takes what it is given.
    works: bool,
    /// For what the core waits for an answer, and the version that has it.
    receipts: VecDeque<(u64, ReceiptOf)>,
    /// Conditions as they were before the core began, to be sent to it.
    before: VecDeque<Condition>,
}

/// The two clocks at one moment.
#[derive(Clone, Copy)]
struct Now {
    moment: Moment,
    monotonic: MonotonicNs,
}

impl Now {
    fn read() -> Self {
        Self { moment: Moment::now(), monotonic: monotonic() }
    }

    /// A point of this boot by the monotonic clock, and by that of the wall as it was read then.
    fn moment_of(self, at: MonotonicNs, wall_ms: u64) -> Moment {
        let ago = u64::try_from(self.monotonic.since(at).as_millis()).unwrap_or(u64::MAX);
        Moment { wall_ms, boot_ms: self.moment.boot_ms.map(|now| now.saturating_sub(ago)) }
    }

    /// What the clock of the wall shows now, less the time since then.
    fn wall_of(self, at: MonotonicNs) -> u64 {
        let ago = u64::try_from(self.monotonic.since(at).as_millis()).unwrap_or(u64::MAX);
        self.moment.wall_ms.saturating_sub(ago)
    }

    /// The same back; of an earlier boot no earlier than the clock's beginning.
    fn monotonic_of(self, moment: Moment) -> MonotonicNs {
        let ago = u64::try_from(moment.age(self.moment).as_nanos()).unwrap_or(u64::MAX);
        MonotonicNs(self.monotonic.0.saturating_sub(ago))
    }
}

impl Outbox {
    /// `has_journal`: its content comes by [`Self::restore`]. Without a journal nothing is ever durable.
    pub(super) fn new(has_cluster: bool, has_journal: bool) -> Self {
        Self {
            has_cluster,
            evictions: VecDeque::new(),
            conditions: BTreeMap::new(),
            concluded: BTreeMap::new(),
            of_thresholds: Condition::ALL.into(),
            is_restored: !has_journal,
            version: 0,
            pressing: 0,
            durable: 0,
            works: has_journal,
            receipts: VecDeque::new(),
            before: VecDeque::new(),
        }
    }

    /// Only these conditions can be set by thresholds: what the journal has of others, by another configuration, would never end,
    /// and is left.
    pub(super) fn keep_only(&mut self, conditions: impl Iterator<Item = Condition>) {
        self.of_thresholds = conditions.collect();
    }

    /// Rises with each change of what is here.
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Whether an eviction, that one was reported, or a transition of a condition is newer than this version. A threshold that
    /// is crossed and not crossed in turn, many times a second, changes none of these.
    pub(super) const fn presses(&self, version: u64) -> bool {
        self.pressing > version
    }

    /// It has changed, by something that must be on the disk soon.
    fn press(&mut self) {
        self.version += 1;
        self.pressing = self.version;
    }

    /// Evictions that the cluster does not know of, in the order of the decisions: those whose processes have ended
    /// ([`Progress::Verified`]), for the pod's status, and those that are still on their way, which may be given up. Those
    /// that were given up are not among them: the pod lives, and may be decided about again.
    pub(super) fn pending(&self) -> impl Iterator<Item = &durable::Eviction> {
        self.evictions.iter().filter(|eviction| !eviction.is_reported && !eviction.is_given_up)
    }

    /// Evictions that were given up before anything of their pods was killed.
    pub(super) fn given_up(&self) -> impl Iterator<Item = (EvictionNumber, Uid)> {
        let given_up = |it: &&durable::Eviction| it.is_given_up && it.progress == Progress::Decided;
        self.evictions.iter().filter(given_up).map(|it| (EvictionNumber(it.number), Uid::of(&it.pod.uid)))
    }

    /// The cluster has acknowledged this eviction, which has ended on the node. False: there is none of this number any more,
    /// as after a later eviction of the same pod.
    pub(super) fn mark_reported(&mut self, number: EvictionNumber) -> bool {
        let Some(eviction) = self.evictions.iter_mut().find(|eviction| eviction.number == number.0) else {
            return false;
        };
        if !std::mem::replace(&mut eviction.is_reported, true) {
            self.press();
        }
        true
    }

    /// Conditions of the node, as the core concluded last, with the times of their transitions.
    pub(super) fn conditions(&self) -> impl Iterator<Item = (Condition, &durable::Condition)> {
        self.conditions.iter().map(|(condition, kept)| (*condition, kept))
    }

    /// Why an eviction was decided; absent of one that another version has written.
    pub(super) fn cause_of(eviction: &durable::Eviction) -> Option<EvictionCause> {
        let durable::Eviction { reason, figures: Figures { threshold, available, limit, part, .. }, .. } = eviction;
        let of_limit = |on| Some(EvictionCause::Limit { on, limit: Bytes((*limit)?) });
        match reason {
            Reason::Cause(Cause::Signal(signal)) => {
                Some(EvictionCause::Threshold { signal: *signal, threshold: (*threshold)?, available: (*available)? })
            }
            Reason::Cause(Cause::EmptyDirLimit) => of_limit(Some(Limited::Volume((*part)?))),
            Reason::Cause(Cause::ContainerLimit) => of_limit(Some(Limited::Container((*part)?))),
            Reason::Cause(Cause::PodLimit) => of_limit(None),
            Reason::Swap => Some(EvictionCause::Swap),
            Reason::Throttled => Some(EvictionCause::Throttled),
            Reason::Unknown(_) => None,
        }
    }

    /// What was in the journal. What was received meanwhile is newer.
    pub(super) fn restore(&mut self, reports: Reports) {
        let Reports { mut evictions, conditions } = reports;
        // Those of an earlier boot first.
        evictions.sort_by_key(|eviction| (eviction.decided.boot_ms.is_some(), eviction.number));
        for received in std::mem::replace(&mut self.evictions, evictions.into()) {
            self.put(received);
        }
        for kept in conditions {
            if let Some(condition) = self.of_thresholds.iter().find(|condition| condition.name() == kept.name) {
                self.conditions.entry(*condition).or_insert(kept);
            }
        }
        self.is_restored = true;
        self.end_without_cluster();
        self.press();
    }

    /// What has to be in the journal, where that is to be given anything yet.
    pub(super) fn reports(&self) -> Option<Reports> {
        let Self { evictions, conditions, .. } = self;
        let all = || Reports {
            evictions: evictions.iter().cloned().collect(),
            conditions: conditions.values().cloned().collect(),
        };
        self.is_restored.then(all)
    }

    /// The journal works or not, and has what was here at this version.
    pub(super) fn kept(&mut self, works: bool, version: u64) {
        self.works = works;
        self.durable = self.durable.max(version);
    }

    /// A new core: what the one before waited for is not for this one. It is sent what conditions were.
    pub(super) fn begin(&mut self) {
        self.receipts.clear();
        self.before = Condition::ALL.into();
    }

    /// The next message to the core, until it is [`Self::sent`]: what conditions were before it began, and receipts.
    pub(super) fn next_message(&mut self) -> Option<Message> {
        self.next_before().map(Message::Condition).or_else(|| self.next_receipt().map(Message::Receipt))
    }

    /// The core was sent [`Self::next_message`].
    pub(super) fn sent(&mut self) {
        if self.next_before().is_some() {
            self.before.pop_front();
        } else {
            self.receipts.pop_front();
        }
    }

    /// What a condition was before the core began; of one that never was true, too. `None` until the journal was read or
    /// could not be, and where all were sent.
    fn next_before(&self) -> Option<ConditionState> {
        let condition = *self.before.front().filter(|_| self.is_restored || !self.works)?;
        let now = Now::read();
        let kept = self.conditions.get(&condition);
        Some(ConditionState {
            condition,
            is_true: kept.is_some_and(|kept| kept.is_true),
            since: kept.map_or(now.monotonic, |kept| now.monotonic_of(kept.since)),
            wall_ms: kept.map_or(now.moment.wall_ms, |kept| kept.since.wall_ms),
            observed: kept.and_then(|kept| observed_before(kept, now)),
        })
    }

    /// The next answer to the core: for what is on the disk, and where the journal does not work for what is here.
    fn next_receipt(&self) -> Option<Receipt> {
        let (version, of) = *self.receipts.front()?;
        let is_durable = self.works && self.durable >= version;
        (is_durable || !self.works).then_some(Receipt { of, is_durable })
    }

    /// An eviction that the core names, and what the pod is called, as far as that is known.
    pub(super) fn receive(&mut self, eviction: &Eviction, (namespace, name): (String, String)) {
        let Eviction { number, uid, cgroup: _, step, cause, is_soft, grace_seconds, used, decided, wall_ms } =
            *eviction;
        let (reason, figures) = figures_of(cause, used);
        let received = durable::Eviction {
            number: number.0,
            pod: PodName { uid: uid_text(uid), namespace, name },
            reason,
            grace_seconds,
            decided: Now::read().moment_of(decided, wall_ms),
            progress: match step {
                EvictionStep::Decided | EvictionStep::GivenUp => Progress::Decided,
                EvictionStep::Killed => Progress::Killed,
                EvictionStep::Verified => Progress::Verified,
            },
            is_reported: false,
            is_soft,
            is_given_up: step == EvictionStep::GivenUp,
            figures,
        };
        if self.put(received) {
            self.end_without_cluster();
            self.press();
        }
        self.answer(ReceiptOf::Eviction(number, step));
    }

    /// A condition as the core concludes. The time of its transition is the one that is known here, where it is the same.
    pub(super) fn conclude(&mut self, state: ConditionState) {
        let ConditionState { condition, is_true, since, wall_ms, observed } = state;
        if self.concluded.insert(condition, state) != Some(state) {
            let now = Now::read();
            let before = self.conditions.get(&condition).filter(|before| before.is_true == is_true);
            let is_crossed = is_true && observed.is_none();
            // One that is crossed is so until it is written again, which is later.
            let observed = observed.map(|at| now.moment_of(at, now.wall_of(at))).or(is_crossed.then_some(now.moment));
            let concluded = durable::Condition {
                name: condition.name().to_owned(),
                is_true,
                since: before.map_or_else(|| now.moment_of(since, wall_ms), |before| before.since),
                observed: observed.or_else(|| before?.observed),
                is_crossed,
            };
            let is_transition = before.is_none();
            self.conditions.insert(condition, concluded);
            if is_transition {
                self.press();
            } else {
                self.version += 1;
            }
        }
        self.answer(ReceiptOf::Condition(state));
    }

    /// All pods that there are: what was reported of others is over. Without a journal the core goes on to name it, and it stays, so
    /// as not to be reported again.
    pub(super) fn learn(&mut self, pods: impl Fn(Uid) -> bool) {
        if !self.works {
            return;
        }
        let before = self.evictions.len();
        self.evictions.retain(|eviction| !eviction.is_reported || pods(Uid::of(&eviction.pod.uid)));
        if self.evictions.len() != before {
            self.version += 1;
        }
    }

    fn answer(&mut self, of: ReceiptOf) {
        if self.receipts.len() == MOST_RECEIPTS {
            self.receipts.pop_front();
        }
        self.receipts.push_back((self.version, of));
    }

    /// Takes an eviction in. Whether that changed anything: one of the same number does not go back, and an earlier one of
    /// the same pod is over.
    fn put(&mut self, mut new: durable::Eviction) -> bool {
        let of_pod = self.evictions.iter_mut().find(|kept| kept.pod.uid == new.pod.uid);
        // A number is of a boot.
        let is_of_this_boot = |kept: &&mut durable::Eviction| kept.decided.boot_ms.is_some();
        match of_pod.filter(is_of_this_boot) {
            Some(kept) if kept.number > new.number => false,
            Some(kept) if kept.number == new.number => {
                let far = |it: &durable::Eviction| (it.progress == Progress::Verified, it.is_given_up, it.progress);
                if far(&new) <= far(kept) {
                    return false;
                }
                // A step that was seen before counts where it is given up.
                new.progress = new.progress.max(kept.progress);
                if new.pod.name.is_empty() {
                    new.pod = std::mem::take(&mut kept.pod);
                }
                // What follows from when it was received stays.
                *kept = durable::Eviction { decided: kept.decided, is_reported: kept.is_reported, ..new };
                true
            }
            Some(_) | None => {
                self.evictions.retain(|kept| kept.pod.uid != new.pod.uid);
                if self.evictions.len() == MOST {
                    self.make_room();
                }
                self.evictions.push_back(new);
                true
            }
        }
    }

    fn make_room(&mut self) {
        let goes_first: [fn(&durable::Eviction) -> bool; 3] = [|it| it.is_reported, |it| it.is_given_up, |_| true];
        let place = goes_first.into_iter().find_map(|goes| self.evictions.iter().position(goes));
        let gone = place.and_then(|place| self.evictions.remove(place));
        if let Some(gone) = gone.filter(|gone| !gone.is_reported && !gone.is_given_up) {
            tracing::warn!(uid = gone.pod.uid, "an eviction is not reported to the cluster: {MOST} others are kept");
        }
    }

    /// Where there is no cluster, what has ended on the node is over.
    fn end_without_cluster(&mut self) {
        if !self.has_cluster {
            let ended = self.evictions.iter_mut().filter(|eviction| eviction.progress == Progress::Verified);
            ended.for_each(|eviction| eviction.is_reported = true);
        }
    }
}

/// When a threshold behind a condition was last crossed, for a core that begins now. Absent where it was crossed when this
/// was written in the same boot: it counts as crossed until then. Of an earlier boot it was until that ended.
fn observed_before(kept: &durable::Condition, now: Now) -> Option<MonotonicNs> {
    match (kept.is_crossed, kept.since.boot_ms) {
        (true, Some(_)) => None,
        (true, None) => Some(MonotonicNs(0)),
        (false, _) => kept.observed.map(|observed| now.monotonic_of(observed)),
    }
}

fn figures_of(cause: EvictionCause, used: Option<Bytes>) -> (Reason, Figures) {
    let figures = Figures { used: used.map(|used| used.0), ..Figures::default() };
    match cause {
        EvictionCause::Threshold { signal, threshold, available } => {
            let figures = Figures { threshold: Some(threshold), available: Some(available), ..figures };
            (Reason::Cause(Cause::Signal(signal)), figures)
        }
        EvictionCause::Swap => (Reason::Swap, figures),
        EvictionCause::Throttled => (Reason::Throttled, figures),
        EvictionCause::Limit { on, limit } => {
            let (cause, part) = match on {
                None => (Cause::PodLimit, None),
                Some(Limited::Volume(part)) => (Cause::EmptyDirLimit, Some(part)),
                Some(Limited::Container(part)) => (Cause::ContainerLimit, Some(part)),
            };
            (Reason::Cause(cause), Figures { limit: Some(limit.0), part, ..figures })
        }
    }
}

/// As the API server writes it. Of a pod that has its UID in another form, which is none of the API server's own, these are
/// the bits that stand for it.
pub(super) fn uid_text(uid: Uid) -> String {
    let digits = format!("{:032x}", uid.0);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests;
