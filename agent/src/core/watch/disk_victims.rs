//! Pods that are evicted for disks, and for limits of local storage.
//!
//! They have a turn of their own, by the same engine with another state, so that no decision on memory waits for it.
//! What is left on the disks is what this process itself reads; what other processes say of disks decides at most which
//! of those that it reads are the container runtime's ([`roles`]). What pods take comes from the scanner, and their
//! requests and limits from `services`: neither evicts a pod by itself that is not above a limit of its own, or a disk
//! that is not short.
//!
//! What is dead or unused is removed first: no pod is evicted for a threshold while an order to remove is under way, or by a
//! figure that may lack what one has freed.
//!
//! One pod is evicted at a time. A kill ends what grows and frees what was removed but open; volumes go with the pod, once
//! the kubelet removes it. So where a disk has not gained by the last victim, the next one waits for long. Where it has gained
//! at any time since, and is short again, another pod took that.

mod roles;

use core::time::Duration;

use plimsoll_inventory::{Counts, DiskReading, DiskRole, InUse, LayersOn, Limited, PodStorage, Table, Unobserved};
use plimsoll_policy::kubelet::{Amount, DiskLayout, FsStats, Limit, NodeStats, Readings};
use plimsoll_policy::room::bring_in;
use plimsoll_policy::{
    Action, Config as Policy, Keep, Kept, Key, Observation, Plan, Reclaimed, State, Why, Workload, decide,
};
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

use super::super::disk_reader::{DiskReaders, NodeDisks, Unread};
use super::Watch;
use super::enforcement::{KillOutcome, grace_of};
use super::evictions::{Decided, of_disk};
use super::reporting::is_quiet;
use super::sampling::stats_time;
use crate::record::{DiskCause, DiskRecord, HealthRecord, fitting};
pub(in crate::core) use roles::RuntimeRoots;
use roles::{Roles, in_use};

/// How often the disk is read and pods are held against their limits: the kubelet's interval.
const PACE: Duration = Duration::from_secs(10);
/// While a threshold is crossed.
const PACE_BELOW: Duration = Duration::from_secs(1);
/// The least time between two victims.
const TURN: Duration = Duration::from_secs(10);
/// From a crossing that is seen here, the turn of [`super::disks`] has so long to see it too, and to order what is removed
/// first: half as long again as the slowest pace of its figures.
const OTHERS_SEE: Duration = Duration::from_secs(15);
/// The least time between two victims where the disk has not gained by the first one: half of what that took, or a tenth and
/// so much that it was above its threshold, whatever others took meanwhile.
const IN_VAIN: Duration = Duration::from_mins(5);
/// So many pods are decided about at most.
const MOST_PODS: usize = 1024;

/// What was expected of the last victim.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Expected {
    /// The threshold that it was evicted for.
    why: Why,
    /// So much is to be left while that is crossed.
    below: Amount,
    /// So much is to be left while it is not.
    above: Amount,
    /// Until then no other pod is evicted for it.
    until: MonotonicNs,
}

/// When the next victim may be taken, and what is expected of the last one of each disk.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Pauses {
    next_victim: MonotonicNs,
    expected: [Option<Expected>; DiskRole::ALL.len()],
}

/// What is decided by, in storage made beforehand.
pub(in crate::core) struct DiskVictims {
    policy: Policy,
    state: State,
    plan: Plan,
    rows: Vec<Workload<'static>>,
    readers: DiskReaders,
    roots: RuntimeRoots,
    /// Which disks there were at the last turn. The policy asks for that once.
    layout: DiskLayout,
    /// The last reclaim that a plan asked for. Orders to remove are given by the turn of [`super::disks`], which victims
    /// wait for, so that each ends here at once.
    reclaimed: Option<Reclaimed>,
    due: MonotonicNs,
    /// No pod is evicted before; and by the role of the disk.
    pauses: Pauses,
    /// Since when a threshold, or a limit, is crossed.
    short_since: Option<MonotonicNs>,
    runtime_disks: RuntimeDisks,
    reported: Reported,
}

/// What was reported, once until it is different.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    /// The disk is not read.
    unread: bool,
    /// Figures are not believed.
    disbelieved: bool,
    /// There are more pods than there is room for.
    left_out: bool,
}

/// Whether all disks of the container runtime's were read at the last turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuntimeDisks {
    Read,
    Unread,
    /// The same, and that was reported.
    ReportedUnread,
}

/// What is known of the disks elsewhere.
#[derive(Clone, Copy, Debug)]
struct Known<'a> {
    /// What other processes say of them.
    said: &'a [Option<DiskReading>; DiskRole::ALL.len()],
    /// The own figure may lack what is removed by order.
    frees: bool,
}

impl Known<'_> {
    /// Whether all that is said was read since then.
    fn has_seen(&self, since: MonotonicNs) -> bool {
        self.said.iter().flatten().all(|said| said.at >= since)
    }
}

/// A pod to be evicted.
#[derive(Clone, Copy, Debug)]
struct Victim {
    key: Key,
    cause: DiskCause,
    /// A soft threshold asked for it.
    is_soft: bool,
    grace: Duration,
    used: Option<u64>,
    request: Amount,
}

/// The same storage again, for rows of another time. Rust collects into what it takes from, where both are of one size.
fn emptied(mut rows: Vec<Workload<'_>>) -> Vec<Workload<'static>> {
    rows.clear();
    rows.into_iter().map(|_| Workload::default()).collect()
}

/// When the oldest of the figures was read.
fn taken(disks: &NodeDisks, now: MonotonicNs) -> MonotonicNs {
    let of = |left: &FsStats| left.time.and_then(|time| u64::try_from(time.0).ok()).map(MonotonicNs);
    let all = disks.runtime.iter().flatten().chain([&disks.node]);
    all.filter_map(|disk| of(&disk.left)).min().unwrap_or(now)
}

impl DiskVictims {
    /// `policy`: of thresholds on disks alone, and of limits.
    pub(in crate::core) fn new(policy: Policy, slots: usize, readers: DiskReaders, roots: RuntimeRoots) -> Self {
        let rows = slots.min(MOST_PODS);
        Self {
            state: State::with_capacity(&policy, rows),
            plan: Plan::with_capacity(&policy, rows, 0),
            rows: Vec::with_capacity(rows),
            readers,
            roots,
            layout: DiskLayout::Single,
            reclaimed: None,
            due: MonotonicNs(0),
            pauses: Pauses { next_victim: MonotonicNs(0), expected: [None; DiskRole::ALL.len()] },
            short_since: None,
            runtime_disks: RuntimeDisks::Read,
            reported: Reported::default(),
            policy,
        }
    }

    /// What the next core goes on with, with what was evicted lately or without it.
    pub(super) fn keep(&self, has_taken: bool) -> (Keep<'_>, Pauses) {
        (self.state.keep(&self.policy, has_taken), self.pauses)
    }

    /// Goes on with what the core before this one has kept, if it is of the same thresholds: its graces, and the time until
    /// the next victim. No pause is longer than one that begins now.
    pub(super) fn resume(&mut self, kept: Kept, pauses: Pauses, now: MonotonicNs) {
        let Some(state) = State::resume(kept, &self.policy, self.rows.capacity(), now) else { return };
        let Pauses { next_victim, mut expected } = pauses;
        for one in expected.iter_mut().flatten() {
            one.until = one.until.min(now.after(IN_VAIN));
        }
        self.state = state;
        self.pauses = Pauses { next_victim: next_victim.min(now.after(TURN)), expected };
    }

    /// Brings in what it takes for slots below `slots`.
    pub(super) fn bring_in(&mut self, slots: usize) {
        bring_in(&mut self.rows, slots);
        self.state.bring_in(slots);
        self.plan.bring_in(slots);
    }

    /// Asks for a reading of the disks when that is due. Gives one that has come.
    fn read(&mut self, now: MonotonicNs) -> Result<Option<NodeDisks>, Unread> {
        let read = self.readers.answer(now);
        if !matches!(read, Ok(Some(_))) && self.due <= now {
            self.due = now.after(PACE);
            self.readers.ask(now);
        }
        read
    }

    /// Decides by what was read, and gives the pod that is to be evicted, and how many are not decided about.
    fn decide(
        &mut self,
        table: &Table,
        own: &NodeDisks,
        known: Known<'_>,
        now: MonotonicNs,
    ) -> (Option<Victim>, Unobserved) {
        let [node, ..] = known.said;
        let has_thresholds = self.policy.thresholds.iter().any(|threshold| threshold.amount.is_some());
        // Which disks there are is decided once.
        if has_thresholds && node.is_none() {
            return (None, Unobserved::default());
        }
        let roles = Roles::find(own, self.roots, known.said, self.layout);
        let Roles { layout, image: image_fs, container: container_fs, layers, is_unread } = roles;
        self.runtime_disks = match self.runtime_disks {
            _ if !is_unread => RuntimeDisks::Read,
            RuntimeDisks::Read => RuntimeDisks::Unread,
            unread => unread,
        };
        if core::mem::replace(&mut self.layout, layout) != layout {
            self.state.forget_layout();
        }
        let stats = NodeStats { node_fs: Some(own.node.left), image_fs, container_fs, ..NodeStats::default() };
        let in_use = InUse { node: in_use(&own.node.left), layers };
        let mut rows: Vec<Workload<'_>> = core::mem::take(&mut self.rows);
        // No pod is evicted for a threshold in the turn that first finds it met.
        let unobserved = table.observe_storage(in_use, layout, self.short_since.is_some(), now, &mut rows);
        let observation = Observation {
            taken: taken(own, now),
            layout: Some(layout),
            readings: Some(Readings::of(&stats)),
            dead_containers: Some(0),
            reclaimed: self.reclaimed,
            workloads: &rows,
            ..Observation::default()
        };
        decide(&self.policy, &mut self.state, &observation, now, &mut self.plan);
        self.forget_what_has_gained();
        if let Some(order) = self.plan.reclaim() {
            self.reclaimed = Some(Reclaimed { order: order.order, at: stats_time(now) });
        }
        self.short_since = (!is_quiet(self.plan.outcome)).then(|| self.short_since.unwrap_or(now));
        if self.short_since.is_some() {
            self.due = self.due.min(now.after(PACE_BELOW));
        }
        let is_seen = |since: MonotonicNs| known.has_seen(since) || now.since(since) >= OTHERS_SEE;
        let may_remove = known.frees || !self.short_since.is_some_and(is_seen);
        let counts = Counts { now, layers: layers != LayersOn::UnreadDisk };
        let victim = self.victim(table, &rows, may_remove, counts);
        self.rows = emptied(rows);
        (victim, unobserved)
    }

    /// The first one of the plan, if its time has come. `may_remove`: something else may make room for a threshold.
    fn victim(&mut self, table: &Table, rows: &[Workload<'_>], may_remove: bool, counts: Counts) -> Option<Victim> {
        let now = counts.now;
        if now < self.pauses.next_victim {
            return None;
        }
        let (index, why, grace) = self.plan.actions.iter().find_map(|action| match *action {
            Action::Evict { workload, why, grace_seconds } => Some((workload, why, grace_of(grace_seconds))),
            Action::EscalateToKill { workload, why } => Some((workload, why, Duration::ZERO)),
            Action::Reclaim(_) => None,
        })?;
        let row = rows.get(index as usize)?;
        let storage = table.get(row.key)?.storage.as_deref()?;
        let is_soft = match why {
            Why::Threshold(index) => !self.policy.thresholds.get(index as usize)?.is_hard(),
            Why::Swap | Why::Limit(_) => false,
        };
        let cause = match why {
            Why::Limit(limit) => limit_of(limit, storage)?,
            Why::Threshold(_) | Why::Swap if may_remove => return None,
            Why::Threshold(_) | Why::Swap => self.threshold(index, why, now)?,
        };
        let used = storage.whole(counts).bytes;
        Some(Victim { key: row.key, cause, is_soft, grace, used, request: row.facts.ephemeral_storage_request })
    }

    /// Expects nothing more of a victim by which its disk has gained.
    fn forget_what_has_gained(&mut self) {
        for expected in &mut self.pauses.expected {
            let Some(Expected { why, below, above, .. }) = *expected else { continue };
            // Of a disk that was not read there is none.
            let status = self.plan.thresholds.iter().find(|status| status.why == why);
            if status.is_some_and(|it| it.available >= if it.is_met { below } else { above }) {
                *expected = None;
            }
        }
    }

    /// Why a pod is evicted for a threshold; `None` while the last one was in vain. What is expected of it is remembered.
    fn threshold(&mut self, index: u32, why: Why, now: MonotonicNs) -> Option<DiskCause> {
        let status = self.plan.thresholds.iter().find(|status| status.why == why)?;
        let signal = self.policy.signal_of(self.plan.scope, why)?;
        let available = status.available;
        let expected = &mut self.pauses.expected[DiskRole::of(signal)? as usize];
        let waits = |expected: &Expected| expected.why == why && now < expected.until;
        if expected.as_ref().is_some_and(waits) {
            return None;
        }
        let ranked = self.plan.ranked.iter().find(|ranked| ranked.workload == index);
        let part = |of| available + Amount::nanos(ranked.map_or(0, |ranked| ranked.frees.as_nanos() / of));
        *expected = Some(Expected { why, below: part(2), above: part(10), until: now.after(IN_VAIN) });
        Some(DiskCause::Threshold { signal, available, threshold: status.at })
    }
}

/// The limit that a pod is over; absent where its parts have changed since.
pub(super) fn limit_of(limit: Limit, storage: &PodStorage) -> Option<DiskCause> {
    let on = match limit {
        Limit::Pod => None,
        Limit::EmptyDir(place) => Some(Limited::Volume(storage.volume(place)?)),
        Limit::Container(place) => Some(Limited::Container(storage.container(place)?)),
    };
    Some(DiskCause::Limit { on, limit: storage.limit_on(on)? })
}

impl Watch {
    /// Decides for disks and limits of local storage, if that is due, and evicts at most one pod.
    pub(super) fn evict_for_disks(&mut self, now: MonotonicNs) {
        let Some(victims) = &mut self.disk_victims else { return };
        let read = victims.read(now);
        let failed = |what| HealthRecord::Failed { what, errno: None };
        match read {
            Err(Unread) if !std::mem::replace(&mut victims.reported.unread, true) => {
                self.reporting.send(failed("read what is left on the disk of the kubelet's directory"));
            }
            Ok(Some(_)) => victims.reported.unread = false,
            Err(Unread) | Ok(None) => {}
        }
        let Ok(Some(own)) = read else { return };
        let known = Known { said: self.disks.said(), frees: self.disks.frees(taken(&own, now)) };
        let (victim, unobserved) = victims.decide(&self.workloads.table, &own, known, now);
        if victims.runtime_disks == RuntimeDisks::Unread {
            victims.runtime_disks = RuntimeDisks::ReportedUnread;
            let what = "read the disk of images or writable layers, for which no pod is evicted (machine.imageRoot)";
            self.reporting.send(failed(what));
        }
        if unobserved.disbelieved > 0 && !std::mem::replace(&mut victims.reported.disbelieved, true) {
            let what = "decide about a pod that is said to take more of a disk or of memory than is in use";
            self.reporting.send(failed(what));
        }
        let is_left_out = unobserved.without_room > 0;
        if is_left_out && !std::mem::replace(&mut victims.reported.left_out, is_left_out) {
            self.reporting.send(failed("decide for disks about the pods beyond the first 1,024 workloads"));
        }
        let Some(victim) = victim else { return self.keep() };
        victims.pauses.next_victim = now.after(TURN);
        self.engine.number += 1;
        let acts = self.enforcement.acts();
        if acts {
            self.end_victim(&victim, now);
        }
        self.report_victim(&victim, !acts, now);
        self.keep();
    }

    fn end_victim(&mut self, victim: &Victim, now: MonotonicNs) {
        let Victim { key, cause, is_soft, grace, used, .. } = *victim;
        let decided = Decided { key, cause: of_disk(cause), is_soft, grace, used: used.map(Bytes) };
        self.decide_eviction(&decided, now);
        if !victim.grace.is_zero() && self.terminate(victim.key, None, victim.grace, now) {
            return;
        }
        let number = self.engine.number;
        if self.kill(number, victim.key, None, now) == KillOutcome::Yes {
            self.figures.outdate(victim.key.id);
        }
    }

    fn report_victim(&mut self, victim: &Victim, shadow: bool, now: MonotonicNs) {
        let Some(workload) = self.workloads.table.get(victim.key) else { return };
        self.reporting.send(DiskRecord::Victim {
            plan: self.engine.number,
            path: fitting(workload.facts.handle.path()),
            cause: victim.cause,
            used: victim.used.map(Bytes),
            request: victim.request.to_bytes(),
            shadow,
            at: now,
        });
    }
}

#[cfg(test)]
mod tests;
