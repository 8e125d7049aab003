//! What the kubelet and the OOM killer did to pods of this node beside the agent, as the API server has it: counted,
//! logged, and reported with its time, each once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_kube::{Pod as Object, Pods, evicted_by_kubelet, oom_killed};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_report::text::printable;
use plimsoll_report::{Ended, EndedBy, Witnessed};

/// What was seen of a pod.
#[derive(Debug, Default)]
struct Seen {
    is_evicted: bool,
    /// The runtime's ids of containers that an OOM kill ended.
    killed: BTreeSet<String>,
}

/// What was seen, and how often.
#[derive(Debug, Default)]
pub(super) struct Witness {
    pods: BTreeMap<Uid, Seen>,
    /// What is there first may have been counted by an earlier process, and is not counted.
    has_begun: bool,
    counted: Witnessed,
}

impl Witness {
    /// Looks at all pods that there are. `is_ours`: the agent evicts that one. Gives the counts where they have changed, and
    /// the pods that changed them.
    pub(super) fn look(&mut self, pods: &Pods, is_ours: impl Fn(Uid) -> bool) -> Option<(Witnessed, Vec<Ended>)> {
        let mut ended = Vec::new();
        let mut known = std::mem::take(&mut self.pods);
        for (text, pod) in pods {
            let uid = Uid::of(text);
            let mut seen = known.remove(&uid).unwrap_or_default();
            if !is_ours(uid) {
                let at = monotonic();
                ended.extend(self.look_at(pod, &mut seen).map(|by| Ended { uid, by, at }));
            }
            self.pods.insert(uid, seen);
        }
        self.has_begun = true;
        (!ended.is_empty()).then_some((self.counted, ended))
    }

    /// Gives what ended it, where that is new.
    fn look_at(&mut self, pod: &Arc<Object>, seen: &mut Seen) -> Option<EndedBy> {
        let mut by = None;
        let name = || {
            let of = |text: &Option<String>| printable(text.as_deref().unwrap_or_default());
            format!("{}/{}", of(&pod.metadata.namespace), of(&pod.metadata.name))
        };
        if let Some(cause) = evicted_by_kubelet(pod)
            && !std::mem::replace(&mut seen.is_evicted, true)
            && self.has_begun
        {
            by = Some(EndedBy::Kubelet);
            self.counted.evictions[cause.place()] += 1;
            let resource = cause.name();
            tracing::info!(pod = name(), resource, "the kubelet evicted pod {} ({resource})", name());
        }
        let killed: BTreeSet<String> = oom_killed(pod).map(|(_, id)| id.to_owned()).collect();
        for (container, id) in oom_killed(pod).filter(|(_, id)| self.has_begun && !seen.killed.contains(*id)) {
            // The kubelet ends the pod, and what came before that is of the same shortage.
            by = by.or(Some(EndedBy::OomKiller));
            self.counted.oom_killed_containers += 1;
            let (container, id) = (printable(container), printable(id));
            tracing::info!(
                pod = name(),
                container,
                id,
                "container {container} of pod {} was ended by the OOM killer",
                name()
            );
        }
        seen.killed = killed;
        by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::kubelet::Resource;
    use plimsoll_policy::message::EvictedFor;
    use serde_json::{Value, json};

    fn pods(all: &[(&str, Value)]) -> Pods {
        let pod = |(uid, status): &(&str, Value)| {
            let object = json!({ "metadata": { "uid": uid, "name": "web", "namespace": "shop" }, "status": status });
            ((*uid).to_owned(), Arc::new(serde_json::from_value(object).expect("a pod")))
        };
        all.iter().map(pod).collect()
    }

    fn evicted(resource: &str) -> Value {
        let message = format!("The node was low on resource: {resource}. ");
        json!({ "phase": "Failed", "reason": "Evicted", "message": message })
    }

    fn killed(ids: [&str; 2]) -> Value {
        let end = |id: &str| json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled", "containerID": id } });
        let [last, now] = ids.map(end);
        let container = json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 1, "state": now,
            "lastState": last });
        json!({ "phase": "Running", "containerStatuses": [container] })
    }

    #[test]
    fn each_eviction_of_the_kubelets_is_counted_once_and_none_that_was_there_first_or_is_ours() {
        const MEMORY: usize = EvictedFor::Resource(Resource::Memory).place();
        const PIDS: usize = EvictedFor::Resource(Resource::Pids).place();
        let running = || json!({ "phase": "Running" });
        let mut witness = Witness::default();
        let first = pods(&[("1", evicted("memory")), ("2", running()), ("3", running())]);
        assert_eq!(witness.look(&first, |_| false), None, "they were there before");
        let then = pods(&[("1", evicted("memory")), ("2", evicted("memory")), ("3", evicted("memory"))]);
        let ours = |uid: Uid| uid == Uid::of("3");
        let (counted, ended) = witness.look(&then, ours).expect("one more");
        assert_eq!((counted.evictions[MEMORY], counted.evictions.iter().sum::<u64>()), (1, 1));
        let ended: Vec<_> = ended.iter().map(|it| (it.uid, it.by)).collect();
        assert_eq!(ended, [(Uid::of("2"), EndedBy::Kubelet)]);
        assert_eq!(witness.look(&then, ours), None, "it was counted");
        let more = pods(&[("4", evicted("pids"))]);
        let (counted, _) = witness.look(&more, ours).expect("one more");
        assert_eq!((counted.evictions[MEMORY], counted.evictions[PIDS]), (1, 1));
        assert_eq!(witness.pods.len(), 1, "those that are gone are forgotten");
    }

    #[test]
    fn each_container_that_an_oom_kill_ended_is_counted_once_also_while_it_is_the_last_one() {
        let mut witness = Witness::default();
        assert_eq!(witness.look(&pods(&[("1", killed(["a", "b"]))]), |_| false), None, "they were there before");
        for (ids, total) in [(["b", "c"], 1), (["b", "c"], 1), (["c", "d"], 2)] {
            let ended = witness.look(&pods(&[("1", killed(ids))]), |_| false).map_or_else(Vec::new, |(_, ended)| ended);
            assert_eq!(witness.counted.oom_killed_containers, total, "{ids:?}");
            assert!(ended.iter().all(|it| (it.uid, it.by) == (Uid::of("1"), EndedBy::OomKiller)), "{ended:?}");
        }
    }
}
