//! The policy `openshift3`: the engine with the order for memory that the documentation of OpenShift 3 describes.
//!
//! Best effort goes first, then burstable, and guaranteed only when no other class is left. Priority plays no part.
//! Within a class:
//! - best effort: the largest;
//! - burstable: the furthest over its request; if none is over it, the largest;
//! - guaranteed: the largest, then the youngest.
//!
//! Disks and processes are as in `plimsoll`.

use crate::kubelet::QosClass;
use crate::plan::Ranked;
use core::cmp::{Ordering, Reverse};

/// First to go is less. No two are ever equal: of those that the documentation leaves equal the youngest goes first, then
/// the UID decides.
pub(super) fn order(one: &Ranked, other: &Ranked) -> Ordering {
    let key = |r: &Ranked| {
        let is_over = r.qos == QosClass::Burstable && r.exceeds;
        let by = if is_over { r.over } else { r.usage };
        (r.qos, !r.is_measured, !is_over, Reverse(by), Reverse(r.started), r.uid, r.key, r.workload)
    };
    key(one).cmp(&key(other))
}
