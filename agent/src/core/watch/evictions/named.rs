//! What has to be named to `services`, how often it was, and what came of that.

use core::time::Duration;

use arrayvec::ArrayVec;
use plimsoll_inventory::{ConditionState, CoreMessage, Eviction, EvictionNumber, EvictionStep, Receipt, ReceiptOf};
use plimsoll_node::clock::wall_ms;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::Condition;
use plimsoll_state::Kept;
use plimsoll_units::{CgroupId, MonotonicNs};
use rtrb::Producer;

use super::super::super::inventory::{InventoryHandle, Request};
use super::asked_until;

/// So many evictions are named at most; more than the run record has room for victims. Of one more the oldest goes that is
/// over, or else the oldest, which is reported.
pub(in crate::core) const MOST_EVICTIONS: usize = 56;
/// So many messages fit the way to the inventory thread.
pub(in crate::core) const MESSAGES: usize = 128;
/// What is not acknowledged is named again after so long, and then after twice as long each time.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest time after which it is named again, which is also the pause for what is acknowledged and not durable.
const AGAIN_MOST: Duration = Duration::from_mins(1);
/// Until services says what conditions were, or for so long, none is named: it would be taken for a transition.
const BEFORE: Duration = Duration::from_secs(10);

/// What an earlier core left, to go on with.
pub(in crate::core) type Past = (Vec<Eviction>, [Option<ConditionState>; Condition::ALL.len()]);

/// When something was handed over, and what came of that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Named {
    at: Option<MonotonicNs>,
    /// The pause after that.
    pause: Duration,
    /// Whether it is durable; absent until it is acknowledged.
    pub(super) is_durable: Option<bool>,
}

impl Named {
    fn is_due(&self, now: MonotonicNs) -> bool {
        let pause = match self.is_durable {
            Some(true) => return false,
            Some(false) => AGAIN_MOST,
            None => self.pause,
        };
        self.at.is_none_or(|at| now.since(at) >= pause)
    }

    /// It was handed over once more.
    fn handed_over(&mut self, now: MonotonicNs) {
        let pause = (self.pause * 2).clamp(AGAIN, AGAIN_MOST);
        *self = Self { at: Some(now), pause, is_durable: None };
    }
}

/// An eviction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) eviction: Eviction,
    /// As it is now.
    pub(super) named: Named,
    /// When its step was reached, or it was decided about again.
    pub(super) since: MonotonicNs,
    /// The API server has the pod's status, or has it no more.
    pub(super) is_recorded: bool,
}

impl Row {
    fn new(eviction: Eviction, now: MonotonicNs) -> Self {
        Self { eviction, named: Named::default(), since: now, is_recorded: false }
    }
}

/// What has to be named.
pub(in crate::core) struct Evictions {
    pub(super) rows: ArrayVec<Row, MOST_EVICTIONS>,
    last: EvictionNumber,
    pub(super) conditions: [Option<(ConditionState, Named)>; Condition::ALL.len()],
    /// What conditions were before this core, as far as services has said it.
    pub(super) before: [Option<ConditionState>; Condition::ALL.len()],
    pub(super) begun: MonotonicNs,
    way: Option<Producer<CoreMessage>>,
    /// What the file has is older.
    is_changed: bool,
    /// One was left out, and that was not reported yet.
    pub(super) has_left_out: bool,
}

impl Evictions {
    /// `way` leads to the inventory thread; absent where there is no services, to which anything could be named.
    pub(in crate::core) fn new(way: Option<Producer<CoreMessage>>, now: MonotonicNs) -> Self {
        Self {
            rows: ArrayVec::new(),
            last: EvictionNumber::default(),
            conditions: [None; Condition::ALL.len()],
            before: [None; Condition::ALL.len()],
            begun: now,
            way,
            is_changed: false,
            has_left_out: false,
        }
    }

    /// Reads what [`Self::write`] wrote. Allocates. Nothing where nothing can be read.
    pub(in crate::core) fn read(kept: &Kept) -> Option<Past> {
        let bytes = kept.bytes();
        if bytes.is_empty() { Some(Past::default()) } else { postcard::from_bytes(&bytes).ok() }
    }

    /// Goes on with what an earlier core left. What became of a pod that was asked to end is waited for from the end of its
    /// grace, also where cores follow each other faster than one is given up. Conditions as far as they can be true, and so can end.
    pub(super) fn resume(&mut self, past: &Past, can_hold: impl Fn(Condition) -> bool, now: MonotonicNs) {
        let (evictions, conditions) = past;
        for eviction in evictions.iter().take(MOST_EVICTIONS) {
            self.last = self.last.max(eviction.number);
            if self.rows.iter().all(|row| row.eviction.number != eviction.number) && !self.rows.is_full() {
                let since = asked_until(eviction).map_or(now, |(_, until)| until.min(now));
                self.rows.push(Row::new(*eviction, since));
            }
        }
        for (place, state) in self.conditions.iter_mut().zip(conditions) {
            let state = state.filter(|state| can_hold(state.condition));
            *place = place.or(state.map(|state| (state, Named::default())));
        }
        self.is_changed = true;
    }

    pub(super) fn write(&mut self, kept: &mut Kept) {
        if core::mem::take(&mut self.is_changed) {
            let evictions: ArrayVec<Eviction, MOST_EVICTIONS> = self.rows.iter().map(|row| row.eviction).collect();
            let conditions = self.conditions.map(|condition| condition.map(|(state, _)| state));
            kept.write(|room| postcard::to_slice(&(evictions.as_slice(), conditions), room).ok().map(|it| it.len()));
        }
    }

    /// Forgets the evictions of which this is false.
    pub(super) fn retain(&mut self, is_kept: impl FnMut(&mut Row) -> bool) {
        let count = self.rows.len();
        self.rows.retain(is_kept);
        self.is_changed |= self.rows.len() < count;
    }

    /// An eviction is decided. One of the same pod that is not over is the same one.
    pub(super) fn decide(&mut self, new: Eviction, now: MonotonicNs) {
        let is_same = |row: &&mut Row| row.eviction.uid == new.uid && !row.eviction.step.is_over();
        if let Some(row) = self.rows.iter_mut().find(is_same) {
            row.since = now;
            return;
        }
        self.rows.retain(|row| row.eviction.uid != new.uid || row.eviction.step != EvictionStep::GivenUp);
        if self.rows.is_full() {
            let over = self.rows.iter().position(|row| row.eviction.step.is_over());
            self.rows.remove(over.unwrap_or(0));
            self.has_left_out = true;
        }
        self.last = self.last.next(now);
        self.rows.push(Row::new(Eviction { number: self.last, ..new }, now));
        self.is_changed = true;
    }

    /// An eviction has come so far. None goes back. Gives that which has.
    pub(super) fn reach(&mut self, cgroup: CgroupId, step: EvictionStep, now: MonotonicNs) -> Option<&Row> {
        let is_meant = |row: &&mut Row| row.eviction.cgroup == cgroup && row.eviction.step < step;
        // The newest: of two of one cgroup the earlier is over.
        let row = self.rows.iter_mut().rev().find(is_meant)?;
        (row.eviction.step, row.named, row.since) = (step, Named::default(), now);
        self.is_changed = true;
        Some(row)
    }

    /// The API server has the status of this pod, or has it no more.
    pub(in crate::core::watch) fn recorded(&mut self, uid: Uid) {
        self.rows.iter_mut().filter(|row| row.eviction.uid == uid).for_each(|row| row.is_recorded = true);
    }

    /// Whether an eviction is followed.
    pub(super) fn is_any(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Another services has what is on the disk, and nothing of what its predecessor was named and had not written.
    /// Conditions it is named in any case: that it is named anything is how it knows that this agent acts.
    pub(super) fn name_again(&mut self) {
        let rows = self.rows.iter_mut().map(|row| &mut row.named).filter(|named| named.is_durable != Some(true));
        let conditions = self.conditions.iter_mut().flatten().map(|(_, named)| named);
        rows.chain(conditions).for_each(|named| *named = Named::default());
    }

    /// What services answered.
    pub(super) fn acknowledge(&mut self, Receipt { of, is_durable }: Receipt) {
        match of {
            ReceiptOf::Eviction(number, step) => {
                let is_meant = |row: &&mut Row| row.eviction.number == number && row.eviction.step == step;
                if let Some(row) = self.rows.iter_mut().find(is_meant) {
                    row.named.is_durable = Some(is_durable);
                }
            }
            ReceiptOf::Condition(state) => {
                let place = &mut self.conditions[state.condition as usize];
                if let Some((_, named)) = place.as_mut().filter(|(known, _)| *known == state) {
                    named.is_durable = Some(is_durable);
                }
            }
        }
    }

    /// Whether a condition is true, as it was concluded last, by this core or one before it.
    pub(super) fn holds(&self, condition: Condition) -> bool {
        let concluded = self.conditions[condition as usize].map(|(state, _)| state);
        concluded.or(self.before[condition as usize]).is_some_and(|state| state.is_true)
    }

    /// What a condition is now, and whether a threshold behind it is crossed.
    pub(super) fn conclude(&mut self, condition: Condition, is_true: bool, is_crossed: bool, now: MonotonicNs) {
        let place = &mut self.conditions[condition as usize];
        let before = self.before[condition as usize];
        if place.is_none() && before.is_none() && now.since(self.begun) < BEFORE {
            return;
        }
        let known = place.map(|(state, _)| state).or(before).filter(|state| state.is_true == is_true);
        let state = known.unwrap_or_else(|| ConditionState {
            condition,
            is_true,
            since: now,
            wall_ms: wall_ms(),
            observed: None,
        });
        let observed = match (is_crossed, is_true) {
            (true, _) => None,
            (false, true) => state.observed.or(Some(now)),
            (false, false) => state.observed,
        };
        let state = ConditionState { observed, ..state };
        if place.is_none_or(|(known, _)| known != state) {
            *place = Some((state, Named::default()));
            self.is_changed = true;
        }
    }

    /// Hands over a message that is not named again, where half of the way is left for those that are.
    pub(in crate::core::watch) fn hand_over_beside(&mut self, message: CoreMessage, handle: &InventoryHandle) {
        if self.has_room_beside()
            && let Some(way) = &mut self.way
            && way.push(message).is_ok()
        {
            handle.request(Request::Inform);
        }
    }

    /// Whether there is room for such a message.
    pub(in crate::core::watch) fn has_room_beside(&self) -> bool {
        self.way.as_ref().is_some_and(|way| way.slots() > MESSAGES / 2)
    }

    /// Hands over what is due, as far as there is room, conditions first, as they keep pods away; and forgets what is over and
    /// durable.
    pub(super) fn hand_over(&mut self, handle: &InventoryHandle, now: MonotonicNs) {
        let Some(way) = &mut self.way else { return };
        let mut is_any = false;
        for (state, named) in self.conditions.iter_mut().flatten().filter(|(_, named)| named.is_due(now)) {
            if way.push(CoreMessage::Condition(*state)).is_ok() {
                named.handed_over(now);
                is_any = true;
            }
        }
        for row in self.rows.iter_mut().filter(|row| row.named.is_due(now)) {
            if way.push(CoreMessage::Eviction(row.eviction)).is_ok() {
                row.named.handed_over(now);
                is_any = true;
            }
        }
        if is_any {
            handle.request(Request::Inform);
        }
        let before = self.rows.len();
        // A pod that was given up may still end.
        self.rows.retain(|row| row.named.is_durable != Some(true) || row.eviction.step != EvictionStep::Verified);
        self.is_changed |= self.rows.len() != before;
    }
}
