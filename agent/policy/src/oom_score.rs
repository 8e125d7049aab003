//! What the kubelet (1.36.3) writes into `oom_score_adj`, so that it is known which process the OOM killer would take.
//! The file in `/proc` comes before: this is for what cannot be read there.
//!
//! Older documents print -998 for guaranteed containers and a floor of 2 for burstable ones. The code has -997, and with
//! it a floor of 3, which is how far a guaranteed container is from -1000.

use crate::kubelet::QosClass;
use plimsoll_units::Bytes;

/// For guaranteed containers, and for those of node-critical pods whatever their class.
pub const GUARANTEED: i32 = -997;
/// For containers of pods without requests and limits.
pub const BEST_EFFORT: i32 = 1000;
/// No burstable container is better off than this, lest one that asks for the whole machine be as safe as a guaranteed
/// one.
pub const BURSTABLE_LEAST: i32 = BEST_EFFORT + GUARANTEED;
/// Nor worse off than this, lest it be as unsafe as a best-effort one.
pub const BURSTABLE_MOST: i32 = BEST_EFFORT - 1;

/// What decides about a container of a burstable pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The container's own request; zero without one.
    pub own: Bytes,
    /// Its part of what the pod as a whole asks for beyond its containers ([`part_of_pod_request`]).
    pub of_pod: Bytes,
    /// For a sidecar: the least request of the pod's regular containers. A sidecar is never worse off than they are.
    pub least_regular: Option<Bytes>,
}

/// What each container gets of a pod-level request: what its containers do not ask for, in equal parts over all regular
/// and init containers. Nothing without containers, or where they ask for as much themselves.
pub fn part_of_pod_request(pod: Bytes, of_containers: Bytes, containers: u64) -> Bytes {
    Bytes(pod.0.saturating_sub(of_containers.0).checked_div(containers).unwrap_or(0))
}

/// The value for a container. `node_critical`: a critical pod of the class `system-node-critical`.
pub fn oom_score_adj(class: QosClass, node_critical: bool, requests: Requests, machine: Bytes) -> i32 {
    match class {
        _ if node_critical => GUARANTEED,
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => {
            let Requests { own, of_pod, least_regular } = requests;
            let own = burstable(own, of_pod, machine);
            let score = least_regular.map_or(own, |least| own.min(burstable(least, of_pod, machine)));
            score.clamp(BURSTABLE_LEAST, BURSTABLE_MOST)
        }
    }
}

/// A tenth of the machine asked for is a hundred points less. On a machine of unknown size nothing is taken off.
fn burstable(request: Bytes, of_pod: Bytes, machine: Bytes) -> i32 {
    let thousandths =
        (1000 * (u128::from(request.0) + u128::from(of_pod.0))).checked_div(machine.0.into()).unwrap_or(0);
    BEST_EFFORT.saturating_sub(i32::try_from(thousandths).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Bytes = Bytes(4_000_000_000);

    fn asks(own: u64) -> Requests {
        Requests { own: Bytes(own), ..Requests::default() }
    }

    #[test]
    fn by_class() {
        for (class, node_critical, requests, expected) in [
            (QosClass::Guaranteed, false, asks(1), -997),
            (QosClass::BestEffort, false, asks(0), 1000),
            (QosClass::BestEffort, true, asks(0), -997),
            (QosClass::Burstable, true, asks(0), -997),
            (QosClass::Burstable, false, asks(0), 999),
            (QosClass::Burstable, false, asks(4_000_000), 999),
            (QosClass::Burstable, false, asks(7_999_999), 999),
            (QosClass::Burstable, false, asks(8_000_000), 998),
            (QosClass::Burstable, false, asks(MACHINE.0 / 10), 900),
            (QosClass::Burstable, false, asks(MACHINE.0 / 1000 * 997), 3),
            (QosClass::Burstable, false, asks(MACHINE.0), 3),
            (QosClass::Burstable, false, asks(2 * MACHINE.0), 3),
            (QosClass::Burstable, false, asks(u64::MAX), 3),
        ] {
            assert_eq!(oom_score_adj(class, node_critical, requests, MACHINE), expected, "{class:?} {requests:?}");
        }
        assert_eq!(oom_score_adj(QosClass::Burstable, false, asks(1), Bytes(0)), 999);
    }

    #[test]
    fn a_sidecar_is_never_worse_off_than_its_regular_containers() {
        for (own, least, expected) in [(0, 400_000_000, 900), (800_000_000, 400_000_000, 800), (0, 0, 999)] {
            let requests = Requests { own: Bytes(own), of_pod: Bytes(0), least_regular: Some(Bytes(least)) };
            assert_eq!(oom_score_adj(QosClass::Burstable, false, requests, MACHINE), expected);
        }
    }

    #[test]
    fn a_pod_level_request_is_shared_out() {
        for (pod, of_containers, containers, part) in
            [(1_000_000_000, 200_000_000, 2, 400_000_000), (100, 0, 3, 33), (100, 200, 1, 0), (100, 0, 0, 0)]
        {
            assert_eq!(part_of_pod_request(Bytes(pod), Bytes(of_containers), containers), Bytes(part));
        }
        let requests = Requests { of_pod: Bytes(400_000_000), ..asks(400_000_000) };
        assert_eq!(oom_score_adj(QosClass::Burstable, false, requests, MACHINE), 800);
    }
}
