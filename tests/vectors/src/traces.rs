//! Whole runs of the eviction manager.

use crate::api::Stats;
use core::time::Duration;
use k8s_openapi::api::core::v1 as api;
use plimsoll_config::kubelet::{self as configured, EvictionSettings, Kubelet, parse_thresholds};
use plimsoll_pods::{Observed, Pod};
use plimsoll_policy::admission::{self, Applicant, Effect, TolerationOperator};
use plimsoll_policy::kubelet::{
    Condition, DiskLayout, Limit, Origin, Readings, Resource, StatsTime, Threshold, ThresholdAmount,
};
use plimsoll_policy::message::{self, Attempting, Message, MessageContext, OverLimit, Victim};
use plimsoll_policy::{
    Action, Config, EvictionPolicy, Key, Observation, Outcome, Plan, Reclaimed, Stage, State, Uid, Why, Workload,
    decide,
};
use plimsoll_units::{CgroupId, MonotonicNs, Percentage};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The node that events are about.
const NODE: &str = "node-1";

#[derive(Deserialize)]
pub(crate) struct Case {
    admission_pods: BTreeMap<String, api::Pod>,
    config: Settings,
    thresholds: Option<Vec<Drawn>>,
    pods: Vec<Pod>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Settings {
    #[serde(default)]
    enforce_node_allocatable: Vec<String>,
    #[serde(default)]
    eviction_hard: BTreeMap<String, String>,
    #[serde(default)]
    eviction_soft: BTreeMap<String, String>,
    #[serde(default)]
    eviction_soft_grace_period: BTreeMap<String, String>,
    #[serde(default)]
    eviction_minimum_reclaim: BTreeMap<String, String>,
    dedicated_image_fs: bool,
    dedicated_container_fs: bool,
    local_storage_capacity_isolation: bool,
    max_pod_grace_period_seconds: i64,
    pressure_transition_period_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Drawn {
    signal: String,
    operator: String,
    value: Value,
    grace_period_ns: u64,
    min_reclaim: Option<Value>,
    #[serde(default)]
    replaced: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Quantity { quantity: String, value: String },
    Percentage { percentage_bits: String },
}

#[derive(Deserialize)]
struct Step {
    advance_ns: u64,
    stats: Option<Stats>,
    stats_after_reclaim: Option<Stats>,
    #[serde(default)]
    active: Vec<String>,
    #[serde(default)]
    fail: BTreeMap<String, String>,
    state: Known,
    outcomes: Option<Vec<Done>>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Known {
    observed: Vec<(u32, u64)>,
    met: Vec<u32>,
    conditions: Vec<String>,
    rejected: Vec<String>,
    reject_message: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(default)]
struct Done {
    events: Vec<Event>,
    reclaim: Vec<String>,
    kills: Vec<Kill>,
    returned: Vec<String>,
    stats_calls: u32,
}

impl Default for Done {
    fn default() -> Self {
        Self { events: Vec::new(), reclaim: Vec::new(), kills: Vec::new(), returned: Vec::new(), stats_calls: 1 }
    }
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Event {
    pod: Option<String>,
    node: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Kill {
    pod: String,
    grace_seconds: i64,
    phase: String,
    reason: String,
    message: String,
    condition: Option<PodCondition>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct PodCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: Option<String>,
}

impl Drawn {
    /// Whether it is this threshold of ours.
    fn is(&self, ours: &Threshold) -> bool {
        // Every value of them is equal to itself, one that is no number too.
        let text = |amount: Option<ThresholdAmount>| format!("{amount:?}");
        ours.signal.name() == self.signal
            && text(ours.amount) == text((self.operator == "LessThan").then(|| self.value.amount()))
            && ours.grace == Duration::from_nanos(self.grace_period_ns)
            && text(ours.min_reclaim) == text(self.min_reclaim.as_ref().map(Value::amount))
            && self.replaced == (ours.origin == Origin::ReplacedInCopy)
    }
}

/// The thresholds of a case.
struct Drawings<'a> {
    drawn: &'a [Drawn],
    /// The place of each threshold of ours among them.
    of: Vec<Option<usize>>,
}

impl Drawings<'_> {
    /// Our thresholds that are this one.
    fn ours(&self, drawn: u32) -> impl Iterator<Item = u32> {
        (0..).zip(&self.of).filter(move |(_, found)| **found == Some(drawn as usize)).map(|(ours, _)| ours)
    }
}

impl Value {
    fn amount(&self) -> ThresholdAmount {
        match self {
            Self::Quantity { value, .. } => ThresholdAmount::At(crate::api::decimal_amount(value)),
            Self::Percentage { percentage_bits } => ThresholdAmount::Share(share(percentage_bits)),
        }
    }

    fn reported(&self) -> message::ThresholdText {
        match self {
            Self::Quantity { quantity, .. } => message::ThresholdText::Written(quantity.clone()),
            Self::Percentage { percentage_bits } => message::ThresholdText::Fraction(share(percentage_bits)),
        }
    }
}

fn share(bits: &str) -> Percentage {
    Percentage::of_one(f32::from_bits(u32::from_str_radix(bits, 16).expect("the bits of a float")))
}

impl Step {
    fn fails(&self, what: &str) -> bool {
        self.fail.contains_key(what)
    }

    fn reports_disks(&self) -> bool {
        !self.fails("imageFs")
    }
}

impl Case {
    /// Whether containers are said to be apart in the step that asks.
    fn is_split(&self, step: Option<&Step>) -> bool {
        self.config.dedicated_container_fs && !step.is_some_and(|step| step.fails("containerFs"))
    }

    /// What our own configuration makes of the case's maps, or how that is not the case's list.
    fn config(&self) -> Result<(Config, Drawings<'_>), String> {
        let Settings { eviction_hard, eviction_soft, eviction_soft_grace_period, eviction_minimum_reclaim, .. } =
            &self.config;
        let eviction = EvictionSettings {
            hard: eviction_hard.clone(),
            soft: eviction_soft.clone(),
            soft_grace: eviction_soft_grace_period.clone(),
            min_reclaim: eviction_minimum_reclaim.clone(),
            enforce_node_allocatable: self.config.enforce_node_allocatable.clone(),
        };
        let thresholds = parse_thresholds(&eviction).map_err(|error| format!("its thresholds: {error}"))?;
        let disks = configured::DiskLayout {
            dedicated_image_fs: self.config.dedicated_image_fs,
            split_container_fs: self.is_split(self.steps.iter().find(|step| step.reports_disks())),
        };
        let ours = Kubelet { eviction, thresholds, ..Kubelet::default() }.thresholds_on(disks);
        let drawn = self.thresholds.as_deref().unwrap_or_default();
        let found = Drawings { drawn, of: ours.iter().map(|ours| drawn.iter().position(|it| it.is(ours))).collect() };
        // What is never met need not be in the list, and what was replaced at once need not be in ours.
        let lacks = |(ours, found): (&Threshold, &Option<usize>)| ours.amount.is_some() && found.is_none();
        let is_ours = |index: usize| drawn[index].replaced || found.of.contains(&Some(index));
        if ours.iter().zip(&found.of).any(lacks) || !(0..drawn.len()).all(is_ours) {
            return Err(format!("thresholds:\n{}", crate::both(&ours, &drawn)));
        }
        let config = Config {
            eviction_policy: EvictionPolicy::Kubelet,
            thresholds: ours,
            pressure_transition: Duration::from_nanos(self.config.pressure_transition_period_ns),
            max_pod_grace_seconds: self.config.max_pod_grace_period_seconds,
            local_storage_isolation: self.config.local_storage_capacity_isolation,
            ..Config::default()
        };
        Ok((config, found))
    }

    fn known(&self, drawings: &Drawings<'_>, state: &State, plan: &Plan, error: Option<String>) -> Known {
        let state = state.of_kubelet().expect("the policy is the kubelet's");
        let indices = 0..u32::try_from(drawings.drawn.len()).expect("few");
        let since = |drawn| drawings.ours(drawn).find_map(|ours| state.observed_since(ours));
        let conditions: Vec<Condition> = plan.conditions.iter().collect();
        let mut rejected = Vec::new();
        let mut reject_message = None;
        for (name, pod) in &self.admission_pods {
            if let Err(refused) = admit(pod, &conditions) {
                rejected.push(name.clone());
                reject_message = Some(refused.to_string());
            }
        }
        Known {
            observed: indices.clone().filter_map(|drawn| Some((drawn, since(drawn)?.0))).collect(),
            met: indices.filter(|drawn| drawings.ours(*drawn).any(|ours| state.is_met(ours))).collect(),
            conditions: conditions.iter().map(|condition| condition.name().to_owned()).collect(),
            rejected,
            reject_message,
            error,
        }
    }
}

impl Drawings<'_> {
    /// What a plan comes to, in the words of the API.
    fn reported(&self, step: &Step, active: &[Observed<'_>], config: &Config, plan: &Plan) -> Vec<(Event, Kill)> {
        let readings = read(step.stats.as_ref()).unwrap_or_default();
        plan.actions
            .iter()
            .filter_map(|action| {
                let Action::Evict { workload, grace_seconds, .. } = *action else { return None };
                let pod = &step.active[workload as usize];
                let reported = Message::of(config, &readings, plan, action, &Spoken { drawings: self, active })?;
                let condition = matches!(reported, Message::Low(_)).then(|| PodCondition {
                    kind: message::DISRUPTION_CONDITION.to_owned(),
                    status: message::DISRUPTION_STATUS.to_owned(),
                    reason: message::DISRUPTION_REASON.to_owned(),
                    message: None,
                });
                let annotations =
                    reported.annotations().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
                let message = reported.to_string();
                let event = Event {
                    pod: Some(pod.clone()),
                    node: None,
                    kind: message::EVENT_TYPE.to_owned(),
                    reason: message::EVICTED.to_owned(),
                    message: message.clone(),
                    annotations,
                };
                let kill = Kill {
                    pod: pod.clone(),
                    grace_seconds,
                    phase: message::PHASE.to_owned(),
                    reason: message::EVICTED.to_owned(),
                    message,
                    condition,
                };
                Some((event, kill))
            })
            .collect()
    }
}

/// What a case writes and messages repeat.
struct Spoken<'a> {
    drawings: &'a Drawings<'a>,
    active: &'a [Observed<'a>],
}

impl MessageContext for Spoken<'_> {
    fn threshold(&self, index: u32) -> message::ThresholdText {
        let drawn = self.drawings.of[index as usize].expect("one that acts is in the list");
        self.drawings.drawn[drawn].value.reported()
    }

    fn victim(&self, pod: u32, resource: Resource) -> Victim {
        self.active[pod as usize].victim(resource)
    }

    fn over(&self, pod: u32, limit: Limit) -> OverLimit {
        self.active[pod as usize].over(limit)
    }
}

fn read(stats: Option<&Stats>) -> Option<Readings> {
    stats.map(|Stats(summary)| Readings::of(&summary.node_stats()))
}

fn admit(pod: &api::Pod, conditions: &[Condition]) -> Result<(), admission::Refused> {
    let tolerations: Vec<_> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.tolerations.iter().flatten())
        .map(|toleration| admission::Toleration {
            key: toleration.key.as_deref().unwrap_or_default(),
            operator: match toleration.operator.as_deref().unwrap_or_default() {
                "" | "Equal" => TolerationOperator::Equal,
                "Exists" => TolerationOperator::Exists,
                _ => TolerationOperator::Other,
            },
            value: toleration.value.as_deref().unwrap_or_default(),
            effect: match toleration.effect.as_deref().unwrap_or_default() {
                "" => None,
                "NoSchedule" => Some(Effect::NoSchedule),
                "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
                _ => Some(Effect::NoExecute),
            },
        })
        .collect();
    let pod = Pod::try_from(pod.clone()).expect("a pod of the case");
    let applicant = Applicant { class: pod.qos, critical: pod.facts.critical.is_some(), tolerations: &tolerations };
    admission::admit(&applicant, conditions)
}

/// Where the kubelet leaves it to chance whether a hard or a soft threshold acts, it is the hard one here: whether a
/// soft one acts although a hard one of the same turn could. Only memory goes before the rest.
fn puts_soft_before_hard(
    config: &Config,
    state: &State,
    (readings, last): (&Readings, &Readings),
    acting: Option<u32>,
) -> bool {
    let state = state.of_kubelet().expect("the policy is the kubelet's");
    let Some(acting) = acting.map(|index| &config.thresholds[index as usize]) else { return false };
    let is_memory = |threshold: &Threshold| threshold.signal.resource() == Resource::Memory;
    let mut hard = (0..).zip(&config.thresholds).filter(|(_, threshold)| threshold.is_hard());
    !acting.is_hard()
        && hard.any(|(index, threshold)| {
            state.is_met(index)
                && is_memory(threshold) == is_memory(acting)
                && readings.is_fresh(threshold.signal, last)
        })
}

impl crate::Case for Case {
    fn difference(self) -> Option<String> {
        let (config, drawings) = match self.config() {
            Ok(config) => config,
            Err(difference) => return Some(difference),
        };
        let mut state = State::with_capacity(&config, self.pods.len());
        let mut plan = Plan::with_capacity(&config, self.pods.len(), 0);
        let mut elapsed = 0;
        let mut last = Readings::default();
        let mut reclaimed = None;
        for (index, step) in self.steps.iter().enumerate() {
            elapsed += step.advance_ns;
            let seen = step.stats.as_ref();
            let observed = |name: &String| {
                let pod = self.pods.iter().find(|pod| pod.name == *name).expect("a pod of the case");
                Observed::of(pod, seen.map(|Stats(summary)| summary))
            };
            let active: Vec<Observed<'_>> = step.active.iter().map(observed).collect();
            let workloads: Vec<Workload<'_>> = (0_u32..)
                .zip(&active)
                .map(|(slot, pod)| {
                    let id = u64::from(slot);
                    let key = Key { slot, id: CgroupId(id) };
                    Workload { key, uid: Uid(id.into()), facts: pod.facts(), ..Workload::default() }
                })
                .collect();
            let layout = || DiskLayout::of(self.config.dedicated_image_fs, self.is_split(Some(step)));
            let observation = Observation {
                layout: step.reports_disks().then(layout),
                readings: read(seen).filter(|_| !step.fails("statsError")),
                reclaimed,
                workloads: &workloads,
                ..Observation::default()
            };
            decide(&config, &mut state, &observation, MonotonicNs(elapsed), &mut plan);
            // Where nothing was read, what was read before stays the last.
            let is_idle = !config.local_storage_isolation
                && config.thresholds.iter().all(|threshold| threshold.origin == Origin::Derived);
            let is_read = !is_idle && !matches!(plan.outcome, Outcome::NoLayout | Outcome::NoStatistics);
            let readings = observation.readings.filter(|_| is_read).unwrap_or(last);
            let mut done =
                Done { stats_calls: u32::from(!is_idle && plan.outcome != Outcome::NoLayout), ..Done::default() };
            let acting = plan.acting().and_then(|status| match status.why {
                Why::Threshold(index) => Some(index),
                Why::Swap | Why::Limit(_) => None,
            });
            let error = (plan.outcome == Outcome::NoLayout).then(|| {
                let cause = step.fail.get("imageFs").map_or("", String::as_str);
                message::DisksUnknown(cause).to_string()
            });
            if let Some(order) = plan.reclaim() {
                let cleaned: &[&str] = match order.stage {
                    Stage::ContainersAndImages => &["containers", "images"],
                    Stage::Containers => &["containers"],
                    Stage::Images => &["images"],
                    Stage::Memory(_) => &[],
                };
                done.reclaim.extend(cleaned.iter().map(|what| (*what).to_owned()));
                done.stats_calls += 1;
                // The turn goes on when that has ended.
                reclaimed = Some(Reclaimed { order: order.order, at: StatsTime(0) });
                let after = read(step.stats_after_reclaim.as_ref().or(seen)).filter(|_| !step.fails("statsAfterError"));
                let observation = Observation { reclaimed, readings: after, ..observation };
                decide(&config, &mut state, &observation, MonotonicNs(elapsed), &mut plan);
            }
            if let Some(acting) = acting {
                done.events.push(Event {
                    pod: None,
                    node: Some(NODE.to_owned()),
                    kind: message::EVENT_TYPE.to_owned(),
                    reason: message::THRESHOLD_MET.to_owned(),
                    message: Attempting(config.thresholds[acting as usize].signal.resource()).to_string(),
                    annotations: BTreeMap::new(),
                });
            }
            for (event, kill) in drawings.reported(step, &active, &config, &plan) {
                done.returned.push(kill.pod.clone());
                done.events.push(event);
                done.kills.push(kill);
            }
            let known = self.known(&drawings, &state, &plan, error);
            if known != step.state {
                return Some(format!("step {index}:\n{}", crate::both(&known, &step.state)));
            }
            let nothing = [Done::default()];
            let outcomes = step.outcomes.as_deref().unwrap_or(&nothing);
            if puts_soft_before_hard(&config, &state, (&readings, &last), acting) || !outcomes.contains(&done) {
                return Some(format!("step {index}:\n{}", crate::both(&done, &outcomes)));
            }
            last = readings;
        }
        None
    }
}
