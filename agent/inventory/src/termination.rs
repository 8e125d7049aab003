//! How a workload ends: asked, killed, stuck, or refused by the kernel.

use core::time::Duration;

use plimsoll_act::REGROWN;
use plimsoll_policy::Terminating;
use plimsoll_units::{Bytes, MonotonicNs};

use crate::Pod;

/// How long a pod that is deleted may take to be gone once its grace is over: its kubelet kills it then.
const DELETED_PATIENCE: Duration = Duration::from_secs(30);

/// What is done to end a workload, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// Nothing.
    Stays,
    /// It was asked to end by itself until then, by the plan of this number.
    Asked(MonotonicNs, u64),
    /// It is killed, and its processes were not sent the signal yet: what they take until then comes back as well.
    Killing,
    /// It was killed; the least that it has used since. No more than that comes back by this kill.
    Killed(Bytes),
    /// It was killed and does not end; the least that it has used since. Where it grows again a process was started in
    /// it, and it is as good as new.
    Stuck(Bytes),
    /// It could not be killed, and is left alone until then.
    Refused(MonotonicNs),
}

impl Termination {
    /// What becomes of it, with what it uses at `now`.
    pub(crate) fn seen(self, usage: Option<Bytes>, empty: bool, now: MonotonicNs) -> Self {
        match self {
            Self::Killed(least) => Self::Killed(usage.map_or(least, |usage| usage.min(least))),
            // It ended: what is started in it later was not asked.
            Self::Asked(..) | Self::Stuck(_) if empty => Self::Stays,
            Self::Stuck(least) => match usage {
                Some(usage) if usage > least.saturating_add(REGROWN) => Self::Stays,
                usage => Self::Stuck(usage.map_or(least, |usage| usage.min(least))),
            },
            Self::Refused(until) if until <= now => Self::Stays,
            other => other,
        }
    }

    pub(crate) fn terminating(self) -> Option<Terminating> {
        let (is_stuck, is_graceful, until) = match self {
            Self::Stays => return None,
            Self::Asked(until, _) => (false, true, Some(until)),
            Self::Killing | Self::Killed(_) => (false, false, None),
            Self::Stuck(_) | Self::Refused(_) => (true, false, None),
        };
        Some(Terminating { is_stuck, is_refused: matches!(self, Self::Refused(_)), is_graceful, until })
    }
}

/// How a pod ends that was deleted, by another than this process. What it holds comes back to a soft threshold; a hard one
/// does not wait for the word of others, but kills it, unless it is protected: what that holds comes back once its grace is
/// over. One that is not gone in time is a pod like any other, as nothing says that its kubelet ends it.
pub(crate) fn of_deletion(pod: Option<&Pod>, now: MonotonicNs) -> Option<Terminating> {
    let pod = pod?;
    let ends = pod.ends.filter(|ends| now <= ends.after(DELETED_PATIENCE))?;
    let is_graceful = pod.protected.is_none() || now < ends;
    Some(Terminating { is_graceful, until: Some(ends), ..Terminating::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::kubelet::QosClass;
    use plimsoll_policy::{Protected, Uid};

    const NOW: MonotonicNs = MonotonicNs(50);

    #[test]
    fn a_deleted_pod_ends_until_its_patience_is_over_and_a_hard_threshold_waits_for_a_protected_one_alone() {
        let pod = |protected, ends| Pod {
            uid: Uid(1),
            qos: QosClass::Burstable,
            protected,
            memory_request: Bytes::ZERO,
            grace_seconds: None,
            daemon_set: None,
            serves_others: false,
            ends,
        };
        let (ends, critical) = (MonotonicNs(100), Some(Protected::Critical));
        let late = ends.after(DELETED_PATIENCE);
        for (protected, now, is_graceful) in [
            (None, MonotonicNs(99), Some(true)),
            (None, ends, Some(true)),
            (None, late, Some(true)),
            (None, MonotonicNs(late.0 + 1), None),
            (critical, MonotonicNs(99), Some(true)),
            (critical, ends, Some(false)),
            (critical, MonotonicNs(late.0 + 1), None),
        ] {
            let expected = is_graceful.map(|is_graceful| Terminating {
                is_stuck: false,
                is_refused: false,
                is_graceful,
                until: Some(ends),
            });
            assert_eq!(of_deletion(Some(&pod(protected, Some(ends))), now), expected, "{protected:?} {now:?}");
        }
        assert_eq!(of_deletion(Some(&pod(None, None)), NOW), None);
        assert_eq!(of_deletion(None, NOW), None);
    }

    #[test]
    fn a_workload_that_could_not_be_ended_is_left_alone_until_that_changed() {
        let stuck = |mib| Termination::Stuck(Bytes::mib(mib));
        let killed = |mib| Termination::Killed(Bytes::mib(mib));
        let asked = Termination::Asked(NOW, 4);
        let later = Termination::Refused(MonotonicNs(NOW.0 + 1));
        for (before, usage, empty, after) in [
            (stuck(100), Some(110), false, stuck(100)),
            (stuck(100), Some(60), false, stuck(60)),
            (stuck(100), None, false, stuck(100)),
            (stuck(60), Some(76), false, stuck(60)),
            (stuck(60), Some(77), false, Termination::Stays),
            (stuck(60), Some(60), true, Termination::Stays),
            (asked, Some(60), false, asked),
            (asked, Some(60), true, Termination::Stays),
            (later, Some(1), false, later),
            (Termination::Refused(NOW), Some(1), false, Termination::Stays),
            (Termination::Killing, Some(1000), false, Termination::Killing),
            (killed(60), Some(1000), false, killed(60)),
            (killed(60), Some(50), false, killed(50)),
            (killed(60), None, true, killed(60)),
        ] {
            assert_eq!(before.seen(usage.map(Bytes::mib), empty, NOW), after, "{before:?} {usage:?} {empty}");
        }
    }
}
