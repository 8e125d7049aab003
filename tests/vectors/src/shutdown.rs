//! Graceful shutdown: pods grouped, and the login manager's delay raised.

use plimsoll_policy::shutdown::{
    InhibitStep, MESSAGE, Period, ShutdownConfig, ShutdownPod, group, inhibit, requested_delay_ns,
};
use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct Case {
    shutdown_grace_period_ns: i64,
    enabled: bool,
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Kind {
    Groups {
        #[serde(default)]
        shutdown_grace_period_critical_pods_ns: i64,
        #[serde(default)]
        by_pod_priority: Vec<Seconds>,
        #[serde(default)]
        pods: Vec<Pod>,
        #[serde(default)]
        validation_errors: Vec<String>,
        #[serde(default)]
        periods: Vec<Seconds>,
        #[serde(default)]
        requested_ns: i64,
        #[serde(default)]
        groups: Vec<Group>,
        #[serde(default)]
        kills: Vec<Kill>,
        status: Option<Status>,
    },
    Inhibit {
        delays_ns: Vec<i64>,
        overrides_ns: Vec<i64>,
        reloads: u32,
        reads: u32,
        locks: u32,
        error: Option<String>,
    },
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Seconds {
    priority: i32,
    seconds: i64,
}

#[derive(Deserialize)]
struct Pod {
    name: String,
    priority: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Group {
    #[serde(default)]
    pods: Vec<String>,
    priority: i32,
    seconds: i64,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Kill {
    pod: String,
    grace_seconds: i64,
}

#[derive(Debug, Deserialize)]
struct Status {
    message: String,
}

fn period(seconds: &Seconds) -> Period {
    Period { priority: seconds.priority, seconds: seconds.seconds }
}

fn seconds(period: &Period) -> Seconds {
    Seconds { priority: period.priority, seconds: period.seconds }
}

impl crate::Case for Case {
    fn difference(self) -> Option<String> {
        let case = self;
        match case.kind {
            Kind::Groups {
                shutdown_grace_period_critical_pods_ns: critical_ns,
                by_pod_priority,
                pods,
                validation_errors,
                periods,
                requested_ns,
                groups,
                kills,
                status,
            } => {
                let config = ShutdownConfig {
                    grace_ns: case.shutdown_grace_period_ns,
                    critical_ns,
                    by_priority: by_pod_priority.iter().map(period).collect(),
                };
                let errors: Vec<String> = config.problems().iter().map(ToString::to_string).collect();
                let our_periods = config.periods();
                let ours = if our_periods.is_empty() {
                    Vec::new()
                } else {
                    let of = |pod: &Pod| ShutdownPod {
                        priority: pod.priority,
                        grace_seconds: pod.termination_grace_period_seconds,
                    };
                    group(&our_periods, &pods.iter().map(of).collect::<Vec<_>>())
                };
                let our_groups: Vec<Group> = ours
                    .iter()
                    .map(|group| Group {
                        pods: group.pods.iter().map(|(index, _)| pods[*index].name.clone()).collect(),
                        priority: group.period.priority,
                        seconds: group.period.seconds,
                    })
                    .collect();
                let our_kills: Vec<Kill> = ours
                    .iter()
                    .flat_map(|group| &group.pods)
                    .map(|(index, seconds)| Kill { pod: pods[*index].name.clone(), grace_seconds: *seconds })
                    .collect();
                let our_delay = requested_delay_ns(&our_periods);
                let message_differs = status.is_some_and(|status| status.message != MESSAGE);
                let ours = (errors, our_periods.iter().map(seconds).collect(), our_delay, our_groups, our_kills);
                let theirs: (Vec<String>, Vec<Seconds>, i64, Vec<Group>, Vec<Kill>) =
                    (validation_errors, periods, requested_ns, groups, kills);
                let is_equal = ours == theirs && case.enabled != our_periods.is_empty() && !message_differs;
                (!is_equal).then(|| crate::both(&ours, &theirs))
            }
            Kind::Inhibit { delays_ns, overrides_ns, reloads, reads, locks, error } => {
                let config = ShutdownConfig { grace_ns: case.shutdown_grace_period_ns, ..ShutdownConfig::default() };
                let requested = requested_delay_ns(&config.periods());
                let mut ours = (Vec::new(), 0_u32, 0_u32, 0_u32, None);
                let mut is_over = !case.enabled;
                while !is_over {
                    let current = delays_ns[(ours.2 as usize).min(delays_ns.len() - 1)];
                    ours.2 += 1;
                    let step = inhibit(requested, ours.2, current);
                    is_over = matches!(step, InhibitStep::Lock | InhibitStep::GiveUp { .. });
                    match step {
                        InhibitStep::RaiseAndRead { delay_ns, .. } => {
                            ours.0.push(delay_ns);
                            ours.1 += 1;
                        }
                        InhibitStep::Read { .. } => {}
                        InhibitStep::Lock => ours.3 += 1,
                        InhibitStep::GiveUp { .. } => ours.4 = step.error(),
                    }
                }
                let theirs = (overrides_ns, reloads, reads, locks, error);
                (ours != theirs).then(|| crate::both(&ours, &theirs))
            }
        }
    }
}
