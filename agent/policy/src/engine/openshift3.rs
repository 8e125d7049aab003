//! The policy `openshift3`: the engine with the order for memory that the documentation of OpenShift 3 describes.
//!
//! Best effort is first, then burstable, and guaranteed only when no other class is left. Priority plays no part.
//! Within a class:
//! - best effort: the largest;
//! - burstable: the furthest over its request; if none is over it, the largest;
//! - guaranteed: the largest, then the youngest.
//!
//! Disks and processes are as in `plimsoll`.

use super::rank::order_of_equals;
use crate::kubelet::QosClass;
use crate::plan::Ranked;
use core::cmp::{Ordering, Reverse};

/// The first to be evicted is less. Of those that the documentation leaves equal the youngest is first, then the UID
/// decides.
pub(super) fn order(one: &Ranked, other: &Ranked) -> Ordering {
    let key = |r: &Ranked| {
        let is_over = r.qos == QosClass::Burstable && r.exceeds;
        // By what the owner uses: for a pod, its own usage.
        let by = if is_over { r.over } else { r.over + r.request.unwrap_or_default() };
        (r.qos, !r.is_measured, !is_over, Reverse(by))
    };
    key(one).cmp(&key(other)).then_with(|| order_of_equals(one, other))
}
