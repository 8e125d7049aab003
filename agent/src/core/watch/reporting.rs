//! The records to the reporter, and which plan is reported.

use core::time::Duration;

use plimsoll_inventory::{Observed, Table};
use plimsoll_policy::kubelet::Conditions;
use plimsoll_policy::{Key, Outcome, Plan};
use plimsoll_state::queue::Producer;
use plimsoll_units::MonotonicNs;

use super::sampling::Sample;
use super::scopes::Scopes;
use super::triggers::Trigger;
use crate::record::{Cause, ObservationRecord, ObservedPod, ObservedTasks, PlanRecord, Record, fitting};

/// A plan that stays the same is reported again after this long.
const REPORT_AGAIN: Duration = Duration::from_secs(30);
/// How many candidates are reported beside those that are acted on.
const CANDIDATES: usize = 8;

/// What was reported last of a scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported {
    outcome: Outcome,
    conditions: Conditions,
    at: MonotonicNs,
    /// Something has changed since of what was reported.
    pub(super) is_outdated: bool,
}

impl Reported {
    fn of(plan: &Plan, at: MonotonicNs) -> Self {
        Self { outcome: plan.outcome, conditions: plan.conditions, at, is_outdated: false }
    }

    /// Whether this has to be reported after `last`. `acts`: its actions are carried out.
    fn is_news(&self, last: Option<Self>, acts: bool) -> bool {
        let is_quiet = is_quiet(self.outcome);
        let Some(last) = last else { return acts || !is_quiet || self.conditions != Conditions::default() };
        let is_same = (last.outcome, last.conditions) == (self.outcome, self.conditions);
        let is_stale = last.is_outdated || self.at.since(last.at) >= REPORT_AGAIN;
        acts || !is_same || is_stale && !is_quiet
    }

    #[cfg(test)]
    pub(super) const fn outcome_and_time(&self) -> (Outcome, MonotonicNs) {
        (self.outcome, self.at)
    }
}

/// Whether nothing is wrong, as far as can be read.
pub(super) const fn is_quiet(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::NoPressure | Outcome::NotObserved)
}

/// The plan that is reported, and how it came about.
#[derive(Clone, Copy)]
pub(super) struct Made<'a> {
    pub(super) plan: &'a Plan,
    /// Of the node, after it.
    pub(super) conditions: Conditions,
    pub(super) number: u64,
    pub(super) trigger: &'a Trigger,
    /// It is reported only, not carried out.
    pub(super) is_shadow: bool,
}

/// The way to the reporter.
pub(in crate::core) struct Reporting {
    queue: Producer,
    /// What is observed is reported as well.
    is_traced: bool,
}

impl Reporting {
    pub(in crate::core) const fn new(queue: Producer, is_traced: bool) -> Self {
        Self { queue, is_traced }
    }

    /// Whether what is observed is reported as well.
    pub(super) const fn is_traced(&self) -> bool {
        self.is_traced
    }

    #[cfg(test)]
    pub(super) const fn set_traced(&mut self, is_traced: bool) {
        self.is_traced = is_traced;
    }

    pub(super) fn send<'a>(&mut self, record: impl Into<Record<'a>>) {
        record.into().send(&mut self.queue);
    }

    /// Wakes the reporter for what was sent.
    pub(super) fn publish(&mut self) {
        self.queue.wake();
    }

    /// Reports what is decided on, where it is traced.
    pub(super) fn observed(&mut self, sample: &Sample, scopes: &Scopes, table: &Table) {
        if !self.is_traced {
            return;
        }
        let Sample { taken, completed: made, machine, tasks, stall, .. } = *sample;
        self.send(ObservationRecord::Begin {
            taken,
            made,
            memory: machine.reading,
            withheld: Some(machine.withheld),
            huge_page_pool: machine.huge_page_pool,
            tasks: tasks.map(|tasks| ObservedTasks { count: tasks.tasks, limit: tasks.limit() }),
            stall,
        });
        for (scope, memory) in scopes.readings() {
            if let plimsoll_policy::Scope::Slice(slice) = scope {
                self.send(ObservationRecord::Slice { index: slice.0, memory });
            }
        }
        for scope in scopes.all() {
            if let Some(reclaimed) = scopes.get(scope).reclaimed {
                self.send(ObservationRecord::Reclaim { scope, reclaimed });
            }
        }
        for observed in table.observed() {
            self.send(ObservationRecord::Workload {
                id: observed.key.id,
                owner: observed.owner,
                usage: observed.working_set(),
                settled: observed.settled,
                tasks: observed.facts.stats.and_then(|stats| stats.processes),
                reservation: observed.facts.memory_request.to_bytes(),
                priority: observed.facts.priority,
                started: observed.started,
                terminating: observed.terminating,
                returns_at_most: observed.returns_at_most,
                empty: observed.is_empty,
                grows_while_frozen: observed.grows_while_frozen,
                pod: pod_of(table, observed),
                path: path_of(table, observed.key),
            });
        }
        let workloads = u32::try_from(table.observed().len()).unwrap_or(u32::MAX);
        self.send(ObservationRecord::End { workloads });
    }

    /// Reports a plan if it differs from the last one, is carried out, or was not reported for long.
    pub(super) fn plan(&mut self, made: Made<'_>, table: &Table, last: &mut Option<Reported>, now: MonotonicNs) {
        let Made { plan, is_shadow, .. } = made;
        let new = Reported::of(plan, now);
        if !new.is_news(*last, !plan.actions.is_empty() && !is_shadow) {
            return;
        }
        *last = Some(new);
        self.send(head(made));
        for (index, status) in (0..).zip(&plan.thresholds) {
            self.send(PlanRecord::Threshold { status: *status, acting: plan.acting == Some(index) });
        }
        let mut others = 0;
        for ranked in &plan.ranked {
            let is_acted_on = plan.victims().any(|victim| victim == ranked.workload);
            others += usize::from(!is_acted_on);
            if is_acted_on || others <= CANDIDATES || self.is_traced {
                self.send(PlanRecord::Ranked { ranked: *ranked, path: path_of(table, ranked.key) });
            }
        }
        for action in &plan.actions {
            self.send(PlanRecord::Action(*action));
        }
        self.send(PlanRecord::End);
    }
}

/// The first record of a plan.
fn head(made: Made<'_>) -> PlanRecord<'static> {
    let Made { plan, conditions, number, trigger, is_shadow } = made;
    PlanRecord::Begin {
        number,
        cause: trigger.cause().unwrap_or(Cause::FollowUp),
        crossed: trigger.crossed,
        awake: trigger.awake,
        shadow: is_shadow,
        scope: plan.scope,
        taken: plan.taken,
        made: plan.made,
        outcome: plan.outcome,
        memory: plan.memory,
        conditions: plan.conditions,
        of_node: conditions,
        deficit: plan.deficit,
        is_futile: plan.is_futile,
        attribution: plan.attribution,
        overlooked: plan.overlooked,
        recheck_at: plan.recheck_at,
    }
}

/// What is decided by of a pod; absent of a cgroup that is none.
fn pod_of(table: &Table, observed: &Observed) -> Option<ObservedPod> {
    table.get(observed.key)?.facts.pod.map(|_| ObservedPod {
        uid: observed.uid,
        qos: observed.qos,
        protected: observed.protected,
        grace_seconds: observed.facts.grace_seconds,
        daemon_set: observed.daemon_set,
    })
}

fn path_of(table: &Table, key: Key) -> &[u8] {
    table.get(key).map_or(&b""[..], |workload| fitting(workload.facts.handle.path()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, SLICE_SCOPE, Scene, THRESHOLD};
    use super::super::triggers::Trigger;
    use crate::record::Record;
    use plimsoll_inventory::{Facts, Pod, Update};
    use plimsoll_node::clock::monotonic;
    use plimsoll_node::limits::TaskLimits;
    use plimsoll_policy::kubelet::QosClass;
    use plimsoll_policy::{EvictionPolicy, OwnerUid, Protected, Uid};
    use plimsoll_report::{Metrics, Reporter};
    use plimsoll_units::Bytes;

    #[test]
    fn a_plan_is_reported_again_when_a_victim_has_ended() {
        let mut scene = Scene::new(10);
        for (name, mib) in [("batch", 90), ("left", 1)] {
            scene.cgroup(name, mib);
        }
        // So that the outcome is the same before and after: no workload has anything to give back.
        scene.write("left", "cgroup.events", "populated 0\n");
        scene.joins(0, "batch");
        scene.joins(1, "left");
        scene.uses("slice", SLICE - 1);
        scene.sample();
        scene.end_patience();
        scene.sample();
        let reported = |scene: &Scene| {
            scene.watch.scopes.get(SLICE_SCOPE).reported.map(|last| last.outcome_and_time()).expect("it was reported")
        };
        let stuck = reported(&scene);
        scene.sample();
        assert_eq!(reported(&scene), stuck, "nothing has changed");
        // It ends after all, but memory does not come back by it.
        scene.write("batch", "cgroup.events", "populated 0\n");
        scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
        scene.sample();
        let ended = reported(&scene);
        assert_eq!(ended.0, stuck.0);
        assert!(ended.1 > stuck.1, "the last report still says that it does not end");
    }

    /// The node is always below its threshold here, and the slice becomes so.
    #[test]
    fn what_is_traced_gives_the_same_plans_when_it_is_replayed() {
        let tasks = TaskLimits::open().expect("this is Linux").read().expect("readable").available() + 1000;
        let short = ["memory.available: 16Ei".to_owned(), format!("pid.available: {tasks}")];
        for (policy, short) in
            EvictionPolicy::ALL.into_iter().flat_map(|policy| short.iter().map(move |it| (policy, it)))
        {
            let text = format!(
                "evictionHard: {{{short}}}\nevictionPolicy: {policy}\nmachine: {{victimsPerMinute: 2, \
                 evictForUnattributed: true, slices: [{{path: slice, evictionHard: {{memory.available: {THRESHOLD}Mi}}}}]}}"
            );
            let configuration = plimsoll_config::parse(&text, "f").expect("it is in order");
            let mut scene = Scene::with(configuration.policy.clone());
            for (slot, name, mib) in [(0, "slice/a", 40), (1, "slice/b", 30), (2, "slice/c", 20)] {
                scene.cgroup(name, mib);
                scene.write(name, "pids.current", &format!("{}\n", 100 * mib));
                scene.joins(slot, name);
            }
            for (slot, name, protected) in [(3, "slice/pod", None), (4, "slice/critical", Some(Protected::Critical))] {
                scene.cgroup(name, 25);
                let facts = scene.facts(name);
                let pod = Pod {
                    uid: Uid(u128::from(slot) << 100),
                    qos: QosClass::Guaranteed,
                    protected,
                    memory_request: Bytes::mib(24),
                    grace_seconds: Some(3),
                    daemon_set: Some(OwnerUid(9)),
                    serves_others: false,
                    ends: None,
                };
                scene.update(Update::Workload(slot, Facts { priority: 5, pod: Some(pod), ..facts }));
            }
            for (slice, emptied) in [(50, None), (SLICE - 1, None), (SLICE - 1, Some("slice/a")), (60, Some("slice/b"))]
            {
                scene.uses("slice", slice);
                if let Some(name) = emptied {
                    scene.write(name, "cgroup.events", "populated 0\n");
                }
                scene.sample();
                scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
                scene.sample();
            }
            let (entries, traced) = std::sync::mpsc::channel();
            let mut sinks = Reporter::new(configuration.clone(), Metrics::new(true), None, None);
            sinks.trace(move |entry| entries.send(entry).is_ok());
            for frame in scene.frames() {
                sinks.report(&Record::read(&frame).expect("a record"));
            }
            drop(sinks);
            let entries: Vec<_> = traced.iter().collect();
            let plans: Vec<_> = entries
                .iter()
                .filter_map(|entry| match entry {
                    plimsoll_replay::trace::Entry::Reported(reported) => Some(reported.plan.clone()),
                    _ => None,
                })
                .collect();
            assert!(
                plans.len() > 2 && plans.iter().any(|plan| plan["outcome"] == "evict"),
                "{policy}: {}",
                plans.len()
            );
            let evicts_for_node = plans.iter().any(|plan| plan["outcome"] == "evict" && plan["scope"] == "node");
            assert!(evicts_for_node, "{policy} {short}: nothing is evicted for the node");
            assert_eq!(entries.len() - plans.len(), 8, "{policy}: every sample is in it");
            let header = plimsoll_replay::trace::Header {
                version: plimsoll_replay::trace::VERSION,
                agent: "x".to_owned(),
                epoch_ns: None,
            };
            let armed = [serde_json::to_string(&header)].into_iter().chain(entries.iter().map(serde_json::to_string));
            let text: String = armed.map(|line| line.expect("JSON") + "\n").collect();
            let recording = plimsoll_replay::read(text.as_bytes()).expect("a trace");
            let settings =
                plimsoll_replay::Settings { configuration: &configuration, eviction_policy: None, layout: None };
            let mut turns = Vec::new();
            plimsoll_replay::run(&recording, None, &settings, &mut |turn| turns.push(turn.json()));
            for plan in plans {
                let same = |turn: &&serde_json::Value| ["taken_ns", "slice"].iter().all(|key| turn[*key] == plan[*key]);
                let turn = turns.iter().find(same).expect("a turn of that sample");
                for (field, value) in &plan {
                    assert_eq!(turn[field], *value, "{policy}: {field}");
                }
            }
        }
    }
}
