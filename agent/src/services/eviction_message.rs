//! The message of an eviction at the API server, in the kubelet's words. The core sends numbers, and what the pod requests comes
//! from the API server.

use std::collections::BTreeMap;

use plimsoll_inventory::{EvictionCause, Limited, name_number};
use plimsoll_pods::{Observed, Pod};
use plimsoll_policy::kubelet::{Limit, Reading, Resource, Signal};
use plimsoll_policy::message::{
    MemoryUsage, Message, Met, NodeLow, OverLimit, ThresholdText, Used, Victim, VictimUsage,
};
use plimsoll_state::durable;
use plimsoll_units::Quantity;

use super::outbox::Outbox;

/// The message of a pod that memory.high throttled.
const THROTTLED: &str = "A container of the pod was throttled by memory.high, and raising that did not help. ";

/// The message, and the annotations of the event. Of a cause that another version has written, that it was evicted alone.
pub(super) fn of(eviction: &durable::Eviction, pod: Option<&Pod>) -> (String, BTreeMap<String, String>) {
    let used = eviction.figures.used;
    let message = match Outbox::cause_of(eviction) {
        Some(EvictionCause::Threshold { signal, threshold, available }) => {
            let threshold = ThresholdText::Written(written(signal, threshold).to_string());
            let met = Met { signal, threshold, reading: Reading { available, capacity: 0, time: None } };
            let resource = signal.resource();
            Message::Low(NodeLow::of(resource, Some(met), &victim(pod, resource, used)))
        }
        Some(EvictionCause::Swap) => {
            Message::Low(NodeLow::of(Resource::Memory, None, &victim(pod, Resource::Memory, used)))
        }
        Some(EvictionCause::Limit { on, limit }) => {
            let limit = Quantity::binary(limit.0.into()).to_string();
            Message::Over(over(on, pod).unwrap_or(OverLimit::Pod { limit }))
        }
        // The kubelet evicts for no such thing, and has no words for it.
        Some(EvictionCause::Throttled) => return (THROTTLED.to_owned(), BTreeMap::new()),
        None => return (String::new(), BTreeMap::new()),
    };
    let annotations = message.annotations().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    (message.to_string(), annotations)
}

fn written(signal: Signal, amount: i64) -> Quantity {
    if signal.is_bytes() { Quantity::binary(amount.into()) } else { Quantity::decimal(amount.into()) }
}

/// The core knows what a pod takes and not what each of its containers does: of several none is named, and of a pod that is not
/// known any more, as after a restart of this process, none either.
fn victim(pod: Option<&Pod>, resource: Resource, used: Option<u64>) -> Victim {
    let is_of = |of: Resource| used.filter(|_| resource == of);
    let memory = is_of(Resource::Memory).map(|used| MemoryUsage { working_set: Some(used) });
    let mut running = pod.into_iter().flat_map(|pod| pod.spec.running());
    let only = running.next().filter(|_| running.next().is_none());
    let of_container = only.map(|container| Used {
        name: container.name.clone(),
        working_set: is_of(Resource::Memory),
        root_fs: is_of(Resource::EphemeralStorage),
        logs: is_of(Resource::EphemeralStorage).map(|_| 0),
    });
    // The kubelet has statistics of each pod that runs, also where it has none of what a container takes: it names no container
    // then, and its event has the annotations all the same.
    let used = Some(VictimUsage { memory, containers: of_container.into_iter().collect() });
    Victim { used, ..pod.map(|pod| Observed::of(pod, None).victim(resource)).unwrap_or_default() }
}

/// The limit by its name and as it was written, where the pod is known and still has it.
fn over(on: Option<Limited>, pod: Option<&Pod>) -> Option<OverLimit> {
    let spec = &pod?.spec;
    let is_named = |name: &str, number| name_number(name.as_bytes()) == number;
    match on {
        None => Some(Observed::of(pod?, None).over(Limit::Pod)),
        Some(Limited::Volume(number)) => {
            let volume = spec.volumes.iter().find(|volume| is_named(&volume.name, number))?;
            Some(OverLimit::EmptyDir { name: volume.name.clone(), limit: volume.size_limit.as_ref()?.to_string() })
        }
        Some(Limited::Container(number)) => {
            let container = spec.containers.iter().find(|container| is_named(&container.name, number))?;
            let limit = container.resources.limits.get(Resource::EphemeralStorage.name())?;
            Some(OverLimit::Container { name: container.name.clone(), limit: limit.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::message::Cause;
    use plimsoll_state::durable::{Figures, Moment, PodName, Progress, Reason};

    fn eviction(reason: Reason, figures: Figures) -> durable::Eviction {
        durable::Eviction {
            number: 1,
            pod: PodName::default(),
            reason,
            grace_seconds: 0,
            decided: Moment { wall_ms: 0, boot_ms: None },
            progress: Progress::Killed,
            is_reported: false,
            is_soft: false,
            is_given_up: false,
            figures,
        }
    }

    fn pod(containers: &str) -> Pod {
        let text = format!(
            r#"{{"metadata": {{"name": "web", "uid": "1"}}, "spec": {{"containers": [{containers}], "volumes":
            [{{"name": "cache", "emptyDir": {{"sizeLimit": "1000Ki"}}}}]}}}}"#
        );
        plimsoll_pods::parse(text.as_bytes(), 1).expect("a pod")
    }

    const ONE: &str =
        r#"{"name": "app", "resources": {"requests": {"memory": "100Mi"}, "limits": {"ephemeral-storage": "2Gi"}}}"#;

    #[test]
    fn the_words_are_the_kubelets_as_far_as_the_figures_go() {
        let memory = || Reason::Cause(Cause::Signal(Signal::MemoryAvailable));
        let met = Figures { threshold: Some(300 << 20), available: Some(100 << 20), ..Figures::default() };
        let figures = Figures { used: Some(700 << 20), ..met };
        let low = "The node was low on resource: memory. Threshold quantity: 300Mi, available: 100Mi. ";
        let (text, annotations) = of(&eviction(memory(), figures), Some(&pod(ONE)));
        let uses = "Container app was using 700Mi, request is 100Mi, has larger consumption of memory. ";
        assert_eq!(text, format!("{low}{uses}"));
        let annotation = |key: &str| annotations.get(key).map(String::as_str);
        assert_eq!(annotation("offending_containers"), Some("app"));
        assert_eq!(annotation("offending_containers_usage"), Some("700Mi"));
        assert_eq!(annotation("starved_resource"), Some("memory"));
        let two = format!(r#"{ONE}, {{"name": "other"}}"#);
        let (text, annotations) = of(&eviction(memory(), figures), Some(&pod(&two)));
        assert_eq!((text.as_str(), annotations["offending_containers"].as_str()), (low, ""), "which one is not known");
        let (text, annotations) = of(&eviction(memory(), figures), None);
        let annotations: Vec<_> = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let expected =
            [("offending_containers", ""), ("offending_containers_usage", ""), ("starved_resource", "memory")];
        assert_eq!((text.as_str(), &annotations[..]), (low, &expected[..]), "of a pod that is not known");
        let pids = Figures { threshold: Some(1000), available: Some(7), ..Figures::default() };
        let (text, annotations) =
            of(&eviction(Reason::Cause(Cause::Signal(Signal::PidAvailable)), pids), Some(&pod(ONE)));
        assert_eq!(text, "The node was low on resource: pids. Threshold quantity: 1k, available: 7. ");
        assert_eq!(
            (annotations["starved_resource"].as_str(), annotations["offending_containers"].as_str()),
            ("pids", "")
        );
        let disk = Reason::Cause(Cause::Signal(Signal::NodeFsAvailable));
        let (text, annotations) = of(&eviction(disk, met), Some(&pod(ONE)));
        let low = "The node was low on resource: ephemeral-storage. Threshold quantity: 300Mi, available: 100Mi. ";
        assert_eq!(
            (text.as_str(), annotations["starved_resource"].as_str()),
            (low, "ephemeral-storage"),
            "not yet known"
        );
        assert_eq!(of(&eviction(Reason::Unknown("new".into()), met), None).0, "");
        assert_eq!(of(&eviction(Reason::Throttled, met), None), (THROTTLED.to_owned(), BTreeMap::new()));
    }

    #[test]
    fn a_limit_is_named_and_printed_as_it_was_written() {
        let over = |cause, part: Option<&str>| {
            let part = part.map(|name| name_number(name.as_bytes()));
            let figures = Figures { limit: Some(1 << 30), part, ..Figures::default() };
            of(&eviction(Reason::Cause(cause), figures), Some(&pod(ONE))).0
        };
        assert_eq!(
            over(Cause::EmptyDirLimit, Some("cache")),
            "Usage of EmptyDir volume \"cache\" exceeds the limit \"1000Ki\". "
        );
        assert_eq!(
            over(Cause::ContainerLimit, Some("app")),
            "Container app exceeded its local ephemeral storage limit \"2Gi\". "
        );
        let of_pod = "Pod ephemeral local storage usage exceeds the total limit of containers ";
        assert_eq!(over(Cause::PodLimit, None), format!("{of_pod}2Gi. "));
        assert_eq!(over(Cause::EmptyDirLimit, Some("gone")), format!("{of_pod}1Gi. "));
    }
}
