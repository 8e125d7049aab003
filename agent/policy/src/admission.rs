//! Whether a new pod is let onto a node under pressure, as the kubelet (1.36) answers, and the taints that say the
//! same to the scheduler.

use crate::kubelet::Condition;
use crate::kubelet::QosClass;
use core::fmt;

/// The effect of every taint that follows from a condition.
pub const TAINT_EFFECT: Effect = Effect::NoSchedule;

/// The taint that the control plane puts on a node with this condition, without a value.
pub const fn taint_key(condition: Condition) -> &'static str {
    match condition {
        Condition::DiskPressure => "node.kubernetes.io/disk-pressure",
        Condition::MemoryPressure => "node.kubernetes.io/memory-pressure",
        Condition::PidPressure => "node.kubernetes.io/pid-pressure",
    }
}

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They are not put there.
    NoSchedule,
    /// They rather are not.
    PreferNoSchedule,
    /// They are taken away.
    NoExecute,
}

/// How a toleration compares a taint's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TolerationOperator {
    /// It has to be the toleration's own. What an empty operator means.
    Equal,
    /// It may be any.
    Exists,
    /// Anything else tolerates nothing: comparing numbers is behind a feature gate that is off.
    Other,
}

/// A toleration of a pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Toleration<'a> {
    /// The taint's key; empty for every key.
    pub key: &'a str,
    /// How its value is compared.
    pub operator: TolerationOperator,
    /// The value.
    pub value: &'a str,
    /// The effect; absent for every effect.
    pub effect: Option<Effect>,
}

impl Toleration<'_> {
    /// Whether it tolerates the taint of a condition.
    fn covers(&self, condition: Condition) -> bool {
        let Self { key, operator, value, effect } = *self;
        effect.is_none_or(|effect| effect == TAINT_EFFECT)
            && (key.is_empty() || key == taint_key(condition))
            && match operator {
                TolerationOperator::Equal => value.is_empty(),
                TolerationOperator::Exists => true,
                TolerationOperator::Other => false,
            }
    }
}

/// What is asked about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applicant<'a> {
    /// Its class. A pod with pod-level requests is not best-effort.
    pub class: QosClass,
    /// Whether it is static, a mirror of one, or has a priority of two billion or more.
    pub critical: bool,
    /// Its tolerations.
    pub tolerations: &'a [Toleration<'a>],
}

/// Why a pod is refused. The conditions are those that the node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub Vec<Condition>);

impl fmt::Display for Refused {
    /// With a space at its end, as the kubelet has it. The kubelet lists several conditions in any order; here they
    /// stand by name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("The node had condition: [")?;
        for (index, condition) in self.0.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { " " }, condition.name())?;
        }
        f.write_str("]. ")
    }
}

impl core::error::Error for Refused {}

/// Whether a pod may start on a node with these conditions. Memory pressure alone refuses best-effort pods only, and of
/// those none that tolerates its taint; any other condition refuses every pod, whatever it tolerates. Critical pods pass.
pub fn admit(applicant: &Applicant<'_>, conditions: &[Condition]) -> Result<(), Refused> {
    let Applicant { class, critical, tolerations } = *applicant;
    let has = |condition| conditions.contains(&condition);
    let present: Vec<Condition> = Condition::ALL.into_iter().filter(|condition| has(*condition)).collect();
    let is_admitted = match present.as_slice() {
        [] => true,
        _ if critical => true,
        [Condition::MemoryPressure] => {
            class != QosClass::BestEffort
                || tolerations.iter().any(|toleration| toleration.covers(Condition::MemoryPressure))
        }
        _ => false,
    };
    if is_admitted { Ok(()) } else { Err(Refused(present)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: &str = "node.kubernetes.io/memory-pressure";

    fn toleration(key: &str, effect: Option<Effect>) -> Toleration<'_> {
        Toleration { key, operator: TolerationOperator::Exists, value: "", effect }
    }

    #[test]
    fn conditions_have_taints() {
        for (condition, key) in [
            (Condition::MemoryPressure, MEMORY),
            (Condition::DiskPressure, "node.kubernetes.io/disk-pressure"),
            (Condition::PidPressure, "node.kubernetes.io/pid-pressure"),
        ] {
            assert_eq!(taint_key(condition), key);
        }
        assert_eq!(TAINT_EFFECT, Effect::NoSchedule);
    }

    #[test]
    fn which_pod_may_start_under_which_condition() {
        use Condition::{DiskPressure, MemoryPressure, PidPressure};
        let everything = [toleration("", None)];
        let memory = [toleration(MEMORY, Some(Effect::NoSchedule))];
        let memory_no_execute = [toleration(MEMORY, Some(Effect::NoExecute))];
        let disk = [toleration("node.kubernetes.io/disk-pressure", Some(Effect::NoSchedule))];
        let equal = [Toleration { operator: TolerationOperator::Equal, ..memory[0] }];
        let other_value = [Toleration { value: "yes", ..equal[0] }];
        let greater = [Toleration { operator: TolerationOperator::Other, ..memory[0] }];
        let best_effort = |tolerations| Applicant { class: QosClass::BestEffort, critical: false, tolerations };
        let of = |class| Applicant { class, critical: false, tolerations: &[] };
        // Under none, memory, disk, processes, memory and processes.
        for (name, applicant, admitted) in [
            ("best effort", best_effort(&[]), [true, false, false, false, false]),
            ("tolerates all", best_effort(&everything), [true, true, false, false, false]),
            ("tolerates memory", best_effort(&memory), [true, true, false, false, false]),
            ("tolerates memory, equal", best_effort(&equal), [true, true, false, false, false]),
            ("tolerates memory, other value", best_effort(&other_value), [true, false, false, false, false]),
            ("tolerates memory, compared", best_effort(&greater), [true, false, false, false, false]),
            ("tolerates no-execute", best_effort(&memory_no_execute), [true, false, false, false, false]),
            ("tolerates disk", best_effort(&disk), [true, false, false, false, false]),
            ("burstable", of(QosClass::Burstable), [true, true, false, false, false]),
            ("guaranteed", of(QosClass::Guaranteed), [true, true, false, false, false]),
            ("critical", Applicant { critical: true, ..best_effort(&[]) }, [true; 5]),
        ] {
            let conditions: [&[Condition]; 5] =
                [&[], &[MemoryPressure], &[DiskPressure], &[PidPressure], &[PidPressure, MemoryPressure]];
            assert_eq!(conditions.map(|conditions| admit(&applicant, conditions).is_ok()), admitted, "{name}");
        }
    }

    #[test]
    fn a_refusal_names_the_conditions() {
        let applicant = Applicant { class: QosClass::Guaranteed, critical: false, tolerations: &[] };
        let refused = admit(&applicant, &[Condition::PidPressure, Condition::DiskPressure]);
        let refused = refused.expect_err("the disk is low").to_string();
        assert_eq!(refused, "The node had condition: [DiskPressure PIDPressure]. ");
    }
}
