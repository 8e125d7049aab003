//! The pod of the races beside the kubelet alone, which is configured in other ways than by default.

use anyhow::Result;

use crate::race::{ROUNDS, Side, fought, variable};
use crate::service_manager::reconfigure_kubelet;
use crate::turn::Turn;

/// What is added to its configuration, the field by which that is seen, and what that has then. Where the kubelet comes to report
/// memory as short, a short period has the next round begin sooner.
const WAYS: [(Side, &str, &str, &str); 2] = [
    (
        Side::Notified,
        "kernelMemcgNotification: true\nevictionPressureTransitionPeriod: 30s",
        "/kernelMemcgNotification",
        "true",
    ),
    (
        Side::Reserving,
        "systemReserved: {memory: 400Mi}\nevictionPressureTransitionPeriod: 30s",
        "/systemReserved/memory",
        "\"400Mi\"",
    ),
];

/// Which of both frees memory is a figure, and not what has to hold.
#[test]
fn a_kubelet_that_is_notified_or_has_reservations_frees_memory_or_the_oom_killer_does() {
    let (mut freed, mut oom_kills) = (Vec::new(), 0);
    let all = WAYS.iter().try_for_each(|(side, line, field, expected)| -> Result<()> {
        reconfigure_kubelet(&Turn::without_agent()?, line, field, Some(*expected))?;
        for _ in 0..variable(ROUNDS, 5) {
            freed.push(fought(&Turn::without_agent()?, *side, &mut oom_kills)?.freed_by);
        }
        Ok(())
    });
    let restored = Turn::without_agent().and_then(|turn| reconfigure_kubelet(&turn, "", WAYS[1].2, None));
    all.expect("it fills memory");
    restored.expect("the kubelet is as before");
    assert!(!freed.contains(&"nothing"), "{freed:?}");
}
