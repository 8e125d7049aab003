//! Why a pod is evicted for a disk or for a limit of its own, in the kubelet's words.

use plimsoll_inventory::Limited;
use plimsoll_policy::kubelet::{Amount, Reading};
use plimsoll_policy::message::{Cause, Met, NodeLow, OverLimit, ThresholdText, Victim};
use plimsoll_units::Quantity;

use crate::names::Names;
use crate::record::DiskCause;

/// The value of the kubelet's label (`eviction_signal`).
pub(crate) const fn label(cause: DiskCause) -> &'static str {
    match cause {
        DiskCause::Threshold { signal, .. } => Cause::Signal(signal).label(),
        DiskCause::Limit { on: Some(Limited::Volume(_)), .. } => Cause::EmptyDirLimit.label(),
        DiskCause::Limit { on: Some(Limited::Container(_)), .. } => Cause::ContainerLimit.label(),
        DiskCause::Limit { on: None, .. } => Cause::PodLimit.label(),
    }
}

/// The kubelet's message, with a space at its end. Without the containers that use more than they request: what each uses is
/// not reported. A volume or container without a name that is known is called by its number.
pub(crate) fn message(cause: DiskCause, path: &[u8], names: &Names) -> String {
    match cause {
        DiskCause::Threshold { signal, available, threshold } => {
            let whole = |amount: Amount| i64::try_from(amount.rounded_up()).unwrap_or(i64::MAX);
            let reading = Reading { available: whole(available), capacity: 0, time: None };
            let quantity = if signal.is_bytes() { Quantity::binary } else { Quantity::decimal };
            let threshold = ThresholdText::Written(quantity(threshold.rounded_up()).to_string());
            NodeLow::of(signal.resource(), Some(Met { signal, threshold, reading }), &Victim::default()).to_string()
        }
        DiskCause::Limit { on, limit } => {
            let limit = Quantity::binary(limit.rounded_up()).to_string();
            let name = |on, number: u32| names.part(path, on).map_or_else(|| format!("#{number:x}"), str::to_owned);
            let over = match on {
                None => OverLimit::Pod { limit },
                Some(on @ Limited::Volume(number)) => OverLimit::EmptyDir { name: name(on, number), limit },
                Some(on @ Limited::Container(number)) => OverLimit::Container { name: name(on, number), limit },
            };
            over.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::NameMessage;
    use crate::names::PodNames;
    use crate::names::tests::send;
    use plimsoll_inventory::{PodRoot, name_number};
    use plimsoll_policy::Uid;
    use plimsoll_policy::kubelet::Signal;

    const POD: &[u8] = b"kubepods/besteffort/pod01234567-89ab-cdef-0123-456789abcdee";

    #[test]
    fn messages_are_the_kubelets_and_what_has_no_name_has_its_number() {
        let mut pod = PodNames::new(Uid::of("01234567-89ab-cdef-0123-456789abcdee"), "default", "web");
        pod.add_volume("cache");
        pod.add_container(&"a".repeat(64), "app");
        let mut names = Names::new(PodRoot::default());
        send(&mut names, &[NameMessage::Begin, NameMessage::Pod(pod), NameMessage::Complete]).expect("in order");
        let limit = |on| DiskCause::Limit { on, limit: Amount::whole(8 << 20) };
        let number = |name: &str| name_number(name.as_bytes());
        let low = |signal| DiskCause::Threshold {
            signal,
            available: Amount::whole(3 << 20),
            threshold: Amount::whole(16 << 20),
        };
        for (cause, label_of_it, expected) in [
            (
                limit(Some(Limited::Volume(number("cache")))),
                "emptydirfs.limit",
                "Usage of EmptyDir volume \"cache\" exceeds the limit \"8Mi\". ",
            ),
            (
                limit(Some(Limited::Container(number("app")))),
                "ephemeralcontainerfs.limit",
                "Container app exceeded its local ephemeral storage limit \"8Mi\". ",
            ),
            (
                limit(Some(Limited::Volume(0xab))),
                "emptydirfs.limit",
                "Usage of EmptyDir volume \"#ab\" exceeds the limit \"8Mi\". ",
            ),
            (
                limit(None),
                "ephemeralpodfs.limit",
                "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ",
            ),
            (
                low(Signal::NodeFsAvailable),
                "nodefs.available",
                "The node was low on resource: ephemeral-storage. Threshold quantity: 16Mi, available: 3Mi. ",
            ),
        ] {
            assert_eq!((label(cause), message(cause, POD, &names).as_str()), (label_of_it, expected));
        }
    }
}
