//! Disks: what another process says is left on them, held against their thresholds.
//!
//! The figures are not trusted further than for the condition. So they have a turn of their own, by the same engine: with
//! a state of its own, and over no workload. Whatever is sent, no decision on memory follows from it or waits for it, and
//! nothing is evicted.

use core::time::Duration;

use plimsoll_inventory::{DiskReading, DiskRole};
use plimsoll_policy::kubelet::{Condition, DiskLayout, FsStats, NodeStats, Readings};
use plimsoll_policy::{Config as Policy, Keep, Kept, Observation, Plan, Reclaimed, State, Why, decide};
use plimsoll_units::MonotonicNs;

use super::Watch;
use super::reporting::Reporting;
use super::sampling::stats_time;
use crate::record::DiskRecord;

/// Older figures are absent: three times the slowest pace at which they are read (`Pace` in agent/storage).
const MAX_AGE: Duration = Duration::from_secs(30);
/// Without new figures, they are held against the thresholds this often, so that grace and transition periods end.
const PACE: Duration = Duration::from_millis(500);
/// No two reports are nearer, whatever is sent.
const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// What stays the same while a threshold is crossed or the condition holds is reported again after this long.
const REPORT_AGAIN: Duration = Duration::from_secs(30);

/// What is known of the disks, and what follows.
pub(in crate::core) struct Disks {
    policy: Policy,
    state: State,
    plan: Plan,
    /// The last of each, by its role.
    readings: [Option<DiskReading>; DiskRole::ALL.len()],
    /// The last reclaim that a plan asked for. None is done here yet, so that each ends at once.
    reclaimed: Option<Reclaimed>,
    /// Of which disks there were figures at the last turn.
    read: [bool; DiskRole::ALL.len()],
    /// Of which ones the core before this one had figures, and until when they are awaited: until then nothing is judged,
    /// so that none counts as absent that was not sent to this core yet.
    awaited: Option<([bool; DiskRole::ALL.len()], MonotonicNs)>,
    /// When the thresholds are judged next; absent until there was a figure.
    due: Option<MonotonicNs>,
    /// What was reported last, and when.
    reported: Option<(Reported, MonotonicNs)>,
}

/// What is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reported {
    has_pressure: bool,
    /// Of which disks there are figures, by the number of the role.
    read: [bool; DiskRole::ALL.len()],
    /// Bits: the thresholds that are crossed, and those of them whose grace is over, by their places in the policy.
    crossed: u32,
    met: u32,
}

impl Reported {
    /// What a plan says.
    fn of(plan: &Plan, read: [bool; DiskRole::ALL.len()]) -> Self {
        let (mut crossed, mut met) = (0, 0);
        for status in &plan.thresholds {
            crossed |= if status.since.is_some() { bit(status.why) } else { 0 };
            met |= if status.is_met { bit(status.why) } else { 0 };
        }
        Self { has_pressure: plan.conditions.has(Condition::DiskPressure), read, crossed, met }
    }
}

/// The bit of a threshold on disks: six signals, hard and soft, and what the kubelet derives for two of them.
const fn bit(why: Why) -> u32 {
    match why {
        Why::Threshold(index) if index < u32::BITS => 1 << index,
        Why::Threshold(_) | Why::Swap | Why::Limit(_) => 0,
    }
}

impl Disks {
    /// `policy`: of thresholds on disks alone.
    pub(in crate::core) fn new(policy: Policy) -> Self {
        Self {
            state: State::with_capacity(&policy, 0),
            plan: Plan::with_capacity(&policy, 0, 0),
            policy,
            readings: [None; DiskRole::ALL.len()],
            read: [false; DiskRole::ALL.len()],
            awaited: None,
            reclaimed: None,
            due: None,
            reported: None,
        }
    }

    /// What the next core goes on with.
    pub(super) fn keep(&self) -> (Keep<'_>, [bool; DiskRole::ALL.len()]) {
        (self.state.keep(&self.policy, false), self.awaited.map_or(self.read, |(awaited, _)| awaited))
    }

    /// Goes on with what the core before this one has kept, if it is of the same thresholds.
    pub(super) fn resume(&mut self, kept: Kept, read: [bool; DiskRole::ALL.len()], now: MonotonicNs) {
        let Some(state) = State::resume(kept, &self.policy, 0, now) else { return };
        self.state = state;
        if read.contains(&true) || self.has_pressure() {
            (self.awaited, self.due) = (Some((read, now.after(MAX_AGE))), Some(now));
        }
    }

    /// As of the last turn.
    fn has_pressure(&self) -> bool {
        self.state.conditions().has(Condition::DiskPressure)
    }

    /// Whether figures are still to come that the core before this one had.
    fn awaits(&mut self, now: MonotonicNs) -> bool {
        let fresh = DiskRole::ALL.map(|role| self.fresh(role, now).is_some());
        let is_due = |(awaited, until): &mut ([bool; DiskRole::ALL.len()], MonotonicNs)| {
            now > *until || awaited.iter().zip(fresh).all(|(is_awaited, is_fresh)| !is_awaited || is_fresh)
        };
        self.awaited.take_if(is_due);
        self.awaited.is_some()
    }

    /// What was reported last, if anything was.
    #[cfg(test)]
    pub(super) fn reported_pressure(&self) -> Option<bool> {
        self.reported.map(|(reported, _)| reported.has_pressure)
    }

    /// Takes a figure in. One from the future is of now.
    pub(super) fn learn(&mut self, reading: DiskReading, now: MonotonicNs) {
        if self.policy.thresholds.is_empty() {
            return;
        }
        self.readings[reading.role as usize] = Some(DiskReading { at: reading.at.min(now), ..reading });
        self.due = Some(now);
    }

    /// A figure that is not too old.
    fn fresh(&self, role: DiskRole, now: MonotonicNs) -> Option<FsStats> {
        let reading = self.readings[role as usize].filter(|reading| now.since(reading.at) <= MAX_AGE)?;
        Some(reading.stats())
    }

    /// Holds the figures against the thresholds, if that is due, and reports what came of it. Gives whether it was due.
    fn judge(&mut self, now: MonotonicNs, reporting: &mut Reporting) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        self.due = Some(now.after(PACE));
        if self.awaits(now) {
            let nothing = Reported::of(&self.plan, [false; DiskRole::ALL.len()]);
            self.report(Reported { has_pressure: self.has_pressure(), ..nothing }, now, reporting);
            return true;
        }
        let fresh = DiskRole::ALL.map(|role| self.fresh(role, now));
        let [node_fs, image_fs, container_fs] = fresh;
        let readings = Readings::of(&NodeStats { node_fs, image_fs, container_fs, ..NodeStats::default() });
        let observation = Observation {
            taken: now,
            // Nothing is removed and nothing ranked, for which the layout would count.
            layout: Some(DiskLayout::Single),
            readings: Some(readings),
            reclaimed: self.reclaimed,
            ..Observation::default()
        };
        decide(&self.policy, &mut self.state, &observation, now, &mut self.plan);
        if let Some(order) = self.plan.reclaim() {
            self.reclaimed = Some(Reclaimed { order: order.order, at: stats_time(now) });
        }
        self.read = fresh.map(|fs| fs.is_some());
        self.report(Reported::of(&self.plan, self.read), now, reporting);
        true
    }

    /// Reports what has changed, or was not reported for long: the thresholds first, then the condition.
    fn report(&mut self, new: Reported, now: MonotonicNs, reporting: &mut Reporting) {
        if self.reported.is_some_and(|(_, at)| now.since(at) < REPORT_PAUSE) {
            return;
        }
        let (last, is_stale) = match self.reported {
            Some((last, at)) => (last, now.since(at) >= REPORT_AGAIN && (new.has_pressure || new.crossed != 0)),
            None => (Reported { crossed: 0, met: 0, ..new }, true),
        };
        if new == last && !is_stale {
            return;
        }
        self.reported = Some((new, now));
        let named = (new.crossed ^ last.crossed) | (new.met ^ last.met) | if is_stale { new.crossed } else { 0 };
        for status in self.plan.thresholds.iter().filter(|status| named & bit(status.why) != 0) {
            let Why::Threshold(index) = status.why else { continue };
            let Some(threshold) = self.policy.thresholds.get(index as usize) else { continue };
            let (signal, grace) = (threshold.signal, threshold.grace);
            reporting.send(DiskRecord::Threshold { signal, grace, status: *status });
        }
        reporting.send(DiskRecord::Pressure { holds: new.has_pressure, read: new.read, at: now });
    }
}

impl Watch {
    /// Judges the disks where that is due.
    pub(super) fn judge_disks(&mut self, now: MonotonicNs) {
        if self.disks.judge(now, &mut self.reporting) {
            self.keep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scene;
    use super::*;
    use crate::core::inventory::News;
    use crate::record::Record;
    use plimsoll_inventory::Room;
    use plimsoll_node::clock::monotonic;
    use plimsoll_policy::EvictionPolicy;

    const SECOND: Duration = Duration::from_secs(1);

    /// What is reported of thresholds and the condition: the names and states, in order.
    struct Judge {
        disks: Disks,
        scene: Scene,
        now: MonotonicNs,
    }

    impl Judge {
        fn new(text: &str) -> Self {
            let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
            Self { disks: Disks::new(configuration.disk_policy()), scene: Scene::new(1), now: monotonic() }
        }

        fn reads(&mut self, role: DiskRole, left: u64) {
            let room = Some(Room { left, all: 1000 });
            self.disks.learn(DiskReading { role, bytes: room, inodes: room, at: self.now }, self.now);
        }

        /// What is reported so much later. Judged twice: by the kubelet's policy every other turn ends a reclaim.
        fn after(&mut self, time: Duration) -> Vec<String> {
            self.now = self.now.after(time);
            for _ in 0..2 {
                self.disks.due = self.disks.due.map(|_| self.now);
                self.disks.judge(self.now, &mut self.scene.watch.reporting);
            }
            let frames = self.scene.frames();
            let records = frames.iter().filter_map(|frame| match Record::read(frame) {
                Some(Record::Disk(DiskRecord::Threshold { signal, status, .. })) => Some(format!(
                    "{signal} {}",
                    if status.is_met {
                        "met"
                    } else if status.since.is_some() {
                        "crossed"
                    } else {
                        "above"
                    }
                )),
                Some(Record::Disk(DiskRecord::Pressure { holds, read, .. })) => Some(format!("{holds} {read:?}")),
                _ => None,
            });
            records.collect()
        }
    }

    #[test]
    fn a_condition_lasts_from_the_threshold_to_the_minimum_reclaim_and_its_transition_period() {
        for policy in EvictionPolicy::ALL {
            let mut judge = Judge::new(&format!(
                "evictionPolicy: {policy}\nevictionHard: {{nodefs.available: \"100\"}}\n\
                 evictionMinimumReclaim: {{nodefs.available: \"50\"}}\nevictionPressureTransitionPeriod: 20s\n"
            ));
            assert_eq!(judge.after(SECOND), [""; 0], "{policy}: nothing was read");
            let read = "[true, false, false]";
            for (seconds, left, expected) in [
                (0, 100, vec![format!("false {read}")]),
                (1, 99, vec!["nodefs.available met".to_owned(), format!("true {read}")]),
                (1, 120, vec![]),
                (1, 150, vec!["nodefs.available above".to_owned(), format!("true {read}")]),
                (18, 150, vec![]),
                (3, 150, vec![format!("false {read}")]),
            ] {
                judge.reads(DiskRole::Node, left);
                assert_eq!(judge.after(SECOND * seconds), expected, "{policy}: {left}");
                assert!(judge.disks.plan.victims().next().is_none(), "{policy}");
            }
        }
    }

    #[test]
    fn a_soft_threshold_holds_once_its_grace_is_over_and_what_is_not_read_is_absent() {
        let mut judge = Judge::new(
            "evictionHard: {imagefs.inodesFree: 1%}\nevictionSoft: {imagefs.inodesFree: 50%}\n\
             evictionSoftGracePeriod: {imagefs.inodesFree: 5s}\nevictionPressureTransitionPeriod: 10s\n",
        );
        let (absent, read) = ("[false, false, false]", "[false, true, false]");
        judge.reads(DiskRole::Image, 499);
        assert_eq!(judge.after(SECOND), ["imagefs.inodesFree crossed".to_owned(), format!("true {read}")]);
        assert_eq!(judge.after(SECOND * 4), [""; 0]);
        assert_eq!(judge.after(SECOND), ["imagefs.inodesFree met".to_owned(), format!("true {read}")]);
        assert_eq!(judge.after(SECOND * 24), [""; 0], "the figure is 30 s old");
        assert_eq!(
            judge.after(SECOND),
            [format!("true {absent}")],
            "it is too old, and the condition lasts for a while"
        );
        assert_eq!(judge.after(SECOND * 10), [format!("false {absent}")]);
        judge.reads(DiskRole::Image, 499);
        assert_eq!(judge.after(SECOND), ["imagefs.inodesFree crossed".to_owned(), format!("true {read}")], "anew");
        let future =
            DiskReading { at: judge.now.after(SECOND * 1000), ..judge.disks.readings[1].expect("it was read") };
        judge.disks.learn(future, judge.now);
        assert_eq!(judge.after(SECOND * 30).last(), Some(&format!("true {read}")));
        assert_eq!(judge.after(SECOND), [format!("true {absent}")], "a time to come is now");
    }

    impl Judge {
        /// The core is killed, and another one begins so much later, to which no figure was sent yet.
        fn restarts(&mut self, after: Duration) {
            let (kept, read) = self.disks.keep();
            let mut room = [0; 4096];
            let kept = postcard::to_slice(&kept, &mut room).expect("there is room");
            let kept = postcard::from_bytes(kept).expect("it can be read");
            let mut next = Disks::new(self.disks.policy.clone());
            self.now = self.now.after(after);
            next.resume(kept, read, self.now);
            self.disks = next;
        }
    }

    #[test]
    fn pressure_lasts_over_a_restart_until_its_transition_period_is_over() {
        for policy in EvictionPolicy::ALL {
            let mut judge = Judge::new(&format!(
                "evictionPolicy: {policy}\nevictionHard: {{nodefs.available: \"100\"}}\n\
                 evictionPressureTransitionPeriod: 40s\n"
            ));
            judge.reads(DiskRole::Node, 99);
            judge.after(SECOND);
            judge.reads(DiskRole::Node, 500);
            judge.after(SECOND * 2);
            judge.restarts(SECOND * 10);
            assert_eq!(judge.after(Duration::ZERO), ["true [false, false, false]"], "{policy}: no figure is there yet");
            assert_eq!(judge.after(SECOND * 2), [""; 0], "{policy}");
            judge.reads(DiskRole::Node, 500);
            assert_eq!(judge.after(SECOND), ["true [true, false, false]"], "{policy}");
            // It was crossed last 15 s before.
            assert_eq!(judge.after(SECOND * 24), [""; 0], "{policy}");
            assert_eq!(judge.after(SECOND), ["false [true, false, false]"], "{policy}");
        }
    }

    #[test]
    fn a_grace_goes_on_over_a_restart_and_what_is_not_sent_again_is_absent_after_a_while() {
        let mut judge = Judge::new(
            "evictionHard: {nodefs.available: \"1\"}\n\
             evictionSoft: {imagefs.available: \"100\", nodefs.available: \"100\"}\n\
             evictionSoftGracePeriod: {imagefs.available: 20s, nodefs.available: 20s}\n",
        );
        judge.reads(DiskRole::Image, 99);
        judge.reads(DiskRole::Node, 99);
        assert_eq!(judge.after(SECOND).len(), 3);
        judge.restarts(SECOND * 12);
        judge.reads(DiskRole::Node, 99);
        assert_eq!(judge.after(SECOND), ["true [false, false, false]"], "imagefs is still to be read");
        judge.restarts(SECOND);
        judge.reads(DiskRole::Node, 99);
        judge.reads(DiskRole::Image, 99);
        let expected = ["imagefs.available crossed", "nodefs.available crossed", "true [true, true, false]"];
        assert_eq!(sorted(judge.after(SECOND)), expected);
        assert_eq!(judge.after(SECOND * 4), [""; 0]);
        let expected = ["imagefs.available met", "nodefs.available met", "true [true, true, false]"];
        assert_eq!(sorted(judge.after(SECOND)), expected, "20 s after they were crossed");
        judge.restarts(SECOND);
        judge.reads(DiskRole::Node, 99);
        assert_eq!(judge.after(SECOND * 29), ["true [false, false, false]"]);
        judge.reads(DiskRole::Node, 99);
        let expected = ["nodefs.available met", "true [true, false, false]"];
        assert_eq!(judge.after(SECOND * 2), expected, "there was no figure of imagefs for 30 s");
    }

    fn sorted(mut lines: Vec<String>) -> Vec<String> {
        lines.sort_unstable();
        lines
    }

    #[test]
    fn other_thresholds_on_disks_begin_anew() {
        let mut judge = Judge::new("evictionHard: {nodefs.available: \"100\"}\n");
        judge.reads(DiskRole::Node, 99);
        judge.after(SECOND);
        judge.disks.policy = Judge::new("evictionHard: {nodefs.available: \"101\"}\n").disks.policy;
        judge.restarts(SECOND);
        assert_eq!(judge.after(SECOND), [""; 0]);
        assert!(judge.disks.due.is_none());
    }

    #[test]
    fn what_lasts_is_reported_again() {
        let mut judge = Judge::new("evictionHard: {nodefs.available: \"100\"}\n");
        judge.reads(DiskRole::Node, 1);
        assert_eq!(judge.after(SECOND).len(), 2);
        judge.reads(DiskRole::Node, 1);
        assert_eq!(judge.after(SECOND * 29), [""; 0]);
        assert_eq!(judge.after(SECOND), ["nodefs.available met", "true [true, false, false]"]);
    }

    /// By the engine, a disk that is full would be a reason to evict before a soft threshold on memory is.
    #[test]
    fn whatever_is_sent_nothing_is_evicted_and_memory_is_decided_as_without() {
        let configuration = plimsoll_config::parse("evictionHard: {nodefs.available: 1Gi}\n", "f").expect("in order");
        let mut scene = Scene::new(10);
        scene.watch.disks = Disks::new(configuration.disk_policy());
        scene.cgroup("batch", 90);
        scene.joins(0, "batch");
        scene.sample();
        let number = scene.watch.engine.number;
        let room = Some(Room { left: 0, all: 1 << 40 });
        for role in DiskRole::ALL {
            scene.receive(News::Disk(DiskReading { role, bytes: room, inodes: room, at: monotonic() }));
        }
        scene.watch.turn(&[], monotonic());
        assert!(scene.watch.disks.reported.is_some_and(|(reported, _)| reported.has_pressure));
        assert_eq!(scene.watch.engine.number, number, "no decision on memory follows");
        assert_eq!(scene.text("batch", "cgroup.kill"), "");
    }
}
