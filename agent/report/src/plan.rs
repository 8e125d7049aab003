//! A plan, put together from its parts: one line for people, and every number as a field for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_config::Configuration;
use plimsoll_policy::kubelet::{Conditions, Resource};
use plimsoll_policy::{Action, Config, MemoryReading, Plan, Ranked, Scope, ThresholdStatus, Uid, text};
use plimsoll_units::MonotonicNs;
use serde_json::{Map, Value, json};

use crate::fields::{nanoseconds as ns, plan_fields, variant};
use crate::kernel_log::Figures;
use crate::names::Cgroup;
use crate::record::{Cause, PlanRecord};
use crate::trace::Reported;

/// A plan of which parts are still to come.
pub(crate) struct Draft {
    number: u64,
    cause: Cause,
    crossed: Option<MonotonicNs>,
    awake: MonotonicNs,
    pub(crate) shadow: bool,
    pub(crate) plan: Plan,
    /// Conditions of the node after it.
    pub(crate) of_node: Conditions,
    /// The candidates.
    cgroups: BTreeMap<u32, Cgroup>,
    /// Those of them that are pods.
    pods: BTreeMap<u32, Uid>,
}

impl Draft {
    /// Begins with what `record` says of the plan as a whole; `None` for any other part.
    pub(crate) fn begin(record: &PlanRecord<'_>) -> Option<Self> {
        let PlanRecord::Begin {
            number,
            cause,
            crossed,
            awake,
            shadow,
            scope,
            taken,
            made,
            outcome,
            memory,
            conditions,
            of_node,
            deficit,
            is_futile,
            attribution,
            overlooked,
            recheck_at,
        } = *record
        else {
            return None;
        };
        let mut plan = Plan::default();
        plan.scope = scope;
        plan.taken = taken;
        plan.made = made;
        plan.outcome = outcome;
        plan.memory = memory;
        plan.conditions = conditions;
        plan.deficit = deficit;
        plan.is_futile = is_futile;
        plan.attribution = attribution;
        plan.overlooked = overlooked;
        plan.recheck_at = recheck_at;
        Some(Self {
            number,
            cause,
            crossed,
            awake,
            shadow,
            plan,
            of_node,
            cgroups: BTreeMap::new(),
            pods: BTreeMap::new(),
        })
    }

    pub(crate) fn threshold(&mut self, status: ThresholdStatus, acting: bool) {
        if acting {
            self.plan.acting = u32::try_from(self.plan.thresholds.len()).ok();
        }
        self.plan.thresholds.push(status);
    }

    pub(crate) fn ranked(&mut self, ranked: Ranked, cgroup: Cgroup, pod: Option<Uid>) {
        self.cgroups.insert(ranked.workload, cgroup);
        self.pods.extend(pod.map(|uid| (ranked.workload, uid)));
        self.plan.ranked.push(ranked);
    }

    pub(crate) fn action(&mut self, action: Action) {
        self.plan.actions.push(action);
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Every workload that is acted on is named: no part of that was lost.
    pub(crate) fn is_whole(&self) -> bool {
        self.plan.victims().all(|victim| self.cgroups.contains_key(&victim))
    }

    /// The pods that it evicts: their UIDs, and what they are called, or the paths of their cgroups.
    pub(crate) fn evicted_pods(&self) -> impl Iterator<Item = (Uid, &str)> {
        self.plan.evicted().filter_map(|victim| {
            let (uid, cgroup) = (self.pods.get(&victim)?, self.cgroups.get(&victim)?);
            Some((*uid, cgroup.pod.as_ref().unwrap_or(&cgroup.path).as_str()))
        })
    }

    /// The figures that its kills are reported with.
    pub(crate) fn figures(&self, config: &Config) -> Option<Figures> {
        let acting = self.plan.acting();
        let signal = acting.and_then(|status| config.signal_of(self.plan.scope, status.why));
        if let (Some(status), Some(signal)) = (acting, signal.filter(|signal| signal.resource() != Resource::Memory)) {
            return Some(Figures::Other { signal, available: status.available, threshold: status.at });
        }
        let MemoryReading { capacity: _, kubelet_available: kubelet, mem_available } = self.plan.memory?;
        Some(Figures::Memory { kubelet, mem_available, threshold: acting.map(|status| status.at.to_bytes()) })
    }

    fn path(&self, candidate: u32) -> String {
        self.cgroups.get(&candidate).map_or("?", |cgroup| &cgroup.path).to_owned()
    }

    /// One line, with every number that led to it, and with the names of pods.
    pub(crate) fn line(&self, configuration: &Configuration) -> String {
        let name = |candidate| self.cgroups.get(&candidate).map_or_else(|| "?".to_owned(), Cgroup::to_string);
        self.line_with(configuration, name)
    }

    fn line_with(&self, configuration: &Configuration, name: impl Fn(u32) -> String) -> String {
        let done = if self.shadow { "shadow, not done: " } else { "" };
        let line = text::line(&configuration.policy, &self.plan, self.slice(configuration), name);
        let why = match self.cause {
            Cause::Threshold => "a threshold was crossed",
            Cause::Reclaim => "reclaim began",
            Cause::Psi => "the pressure trigger fired",
            Cause::Poll => "a poll was due",
            Cause::Timer => "the slow timer fired",
            Cause::FollowUp => "a follow-up was due",
        };
        let woke = self.woke().map_or_else(String::new, |woke| format!(", awake {woke:?} after the crossing"));
        format!("{done}{line}; sampled because {why}{woke}, decided after {:?}", self.plan.made.since(self.awake))
    }

    /// The plan as a trace has it: without names, which no replay of the trace would have.
    pub(crate) fn reported(&self, configuration: &Configuration) -> Reported {
        Reported {
            at_ns: self.plan.taken,
            slice: self.slice(configuration).map(str::to_owned),
            line: self.line_with(configuration, |it| self.path(it)),
            plan: plan_fields(&configuration.policy, &self.plan, self.slice(configuration), |it| self.path(it)),
        }
    }

    /// The slice that it is about.
    fn slice<'a>(&self, configuration: &'a Configuration) -> Option<&'a str> {
        match self.plan.scope {
            Scope::Node => None,
            Scope::Slice(slice) => configuration.slice_name(slice),
        }
    }

    fn woke(&self) -> Option<Duration> {
        self.crossed.map(|crossed| self.awake.since(crossed))
    }

    /// Every number by its name and unit.
    pub(crate) fn fields(&self, configuration: &Configuration) -> Map<String, Value> {
        let Self { number, cause, crossed, awake, shadow, plan, of_node: _, cgroups, pods: _ } = self;
        let slice = self.slice(configuration);
        let mut fields = plan_fields(&configuration.policy, plan, slice, |workload| self.path(workload));
        for list in ["actions", "candidates"] {
            let entries = fields.get_mut(list).and_then(Value::as_array_mut);
            for entry in entries.into_iter().flatten().filter_map(Value::as_object_mut) {
                let cgroup = cgroups.values().find(|cgroup| entry.get("cgroup").is_some_and(|it| *it == cgroup.path));
                if let Some(Cgroup { pod: Some(pod), container, .. }) = cgroup {
                    entry.insert("pod".to_owned(), json!(pod));
                    entry.insert("container".to_owned(), json!(container));
                }
            }
        }
        let own = [
            ("plan", json!(number)),
            ("cause", json!(variant(cause).0)),
            ("crossed_ns", json!(crossed)),
            ("awake_ns", json!(awake)),
            ("crossed_to_awake_ns", json!(self.woke().map(ns))),
            ("shadow", json!(shadow)),
        ];
        fields.extend(own.map(|(name, value)| (name.to_owned(), value)));
        fields
    }
}
