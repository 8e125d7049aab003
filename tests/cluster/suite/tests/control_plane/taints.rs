//! Which pods a node gets that has the agent's taint, by a real scheduler and the controller of DaemonSets: the table in
//! agent/docs/cluster.md.

use std::time::Duration;

use anyhow::{Result, ensure};
use plimsoll_cluster_suite::{Answer, Format, wait_for};
use serde_json::{Value, json};

use crate::cluster;

const TAINT: &str = "plimsoll.dev/memory-pressure";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// What the scheduler writes of a node with such a taint.
const REFUSED: &str = "had untolerated taint(s)";
const DAEMONS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
/// A node without a kubelet has taints of its controller after most of a minute.
const PATIENCE: Duration = Duration::from_secs(40);

/// The nodes, each with what is short in another way.
const NODES: [Short; 4] = [Short::Nothing, Short::OfTheKubelet, Short::Preferred, Short::Kept];
/// Pods, and whether they are scheduled to each of [`NODES`] where that is the only one that they select.
const ROWS: [(&str, Pods, [bool; 4]); 6] = [
    ("best-effort", Pods { memory: [None, None], ..Pods::PLAIN }, [true, false, true, false]),
    ("burstable", Pods::PLAIN, [true, false, true, false]),
    ("guaranteed", Pods { memory: [Some("64Mi"); 2], ..Pods::PLAIN }, [true, false, true, false]),
    ("tolerates", Pods { tolerates: true, ..Pods::PLAIN }, [true, false, true, true]),
    ("daemons", Pods { memory: [None, None], of_daemon_set: true, ..Pods::PLAIN }, [true, true, true, false]),
    ("daemons-tolerate", Pods { memory: [None, None], of_daemon_set: true, tolerates: true }, [true; 4]),
];

#[derive(Clone, Copy, Debug)]
enum Short {
    Nothing,
    /// MemoryPressure, for which the cluster has a taint of its own.
    OfTheKubelet,
    /// The agent's taint, with the effect that is shipped.
    Preferred,
    /// The same, with the other one.
    Kept,
}

struct Pods {
    /// The request, and the limit.
    memory: [Option<&'static str>; 2],
    /// The agent's taint.
    tolerates: bool,
    of_daemon_set: bool,
}

impl Pods {
    const PLAIN: Self = Self { memory: [Some("64Mi"), None], tolerates: false, of_daemon_set: false };

    fn spec(&self, node: &str) -> Value {
        let [requests, limits] = self.memory.map(|memory| memory.map(|memory| json!({"memory": memory, "cpu": "10m"})));
        let resources = json!({"requests": requests.unwrap_or_default(), "limits": limits.unwrap_or_default()});
        let container = json!({"name": "main", "image": "any.test/none:1", "resources": resources});
        let tolerations = if self.tolerates { json!([{"key": TAINT, "operator": "Exists"}]) } else { json!([]) };
        json!({"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container], "tolerations": tolerations})
    }
}

#[test]
fn the_taint_keeps_away_all_pods_that_do_not_tolerate_it_and_with_the_shipped_effect_none_that_has_no_other_node() {
    let cluster = cluster();
    for short in NODES {
        add(short).expect("a new name");
    }
    for (name, pods, _) in &ROWS {
        for short in NODES {
            let (name, spec) = (format!("{name}-{}", short.name()), pods.spec(&short.node()));
            let (path, object) =
                if pods.of_daemon_set { (DAEMONS, daemon_set(&name, &spec)) } else { (PODS, pod(&name, &spec)) };
            cluster.api.create(path, &object).and_then(Answer::object).expect("it is accepted");
        }
    }
    for (name, pods, expected) in &ROWS {
        for (short, expected) in NODES.into_iter().zip(expected) {
            let name = format!("{name}-{}", short.name());
            let decided = if pods.of_daemon_set { has_pod(&name, *expected) } else { is_scheduled(&name, *expected) };
            decided.expect("it is decided in time");
            // And no other taint was why.
            has_its_taint(short).expect("it is still as it was made");
        }
    }
}

impl Short {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::OfTheKubelet => "standard",
            Self::Preferred => "preferred",
            Self::Kept => "kept",
        }
    }

    fn node(self) -> String {
        format!("node-short-of-{}", self.name())
    }
}

/// Makes the node.
fn add(short: Short) -> Result<()> {
    let (cluster, node) = (cluster(), short.node());
    let tainted = |effect: &str| cluster.add_tainted_node(&node, &json!([{"key": TAINT, "effect": effect}]));
    match short {
        Short::Nothing => cluster.add_node(&node)?,
        Short::OfTheKubelet => {
            cluster.add_node(&node)?;
            let condition = json!({"type": "MemoryPressure", "status": "True", "reason": "Any", "message": ""});
            let status = json!({"status": {"conditions": [condition]}});
            let path = format!("/api/v1/nodes/{node}/status");
            cluster.api.request("PATCH", &path, Format::Strategic, &status)?.object()?;
        }
        Short::Preferred => tainted("PreferNoSchedule")?,
        Short::Kept => tainted("NoSchedule")?,
    }
    has_its_taint(short)
}

/// The node has the taint that it is for and no other one: the one of each new node is gone after a moment.
fn has_its_taint(short: Short) -> Result<()> {
    let expected = match short {
        Short::Nothing => None,
        Short::OfTheKubelet => Some("node.kubernetes.io/memory-pressure"),
        Short::Preferred | Short::Kept => Some(TAINT),
    };
    wait_for(&format!("{} has {expected:?} alone", short.node()), PATIENCE, || {
        let node = cluster().api.get(&format!("/api/v1/nodes/{}", short.node()))?.object()?;
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let keys: Vec<&str> = taints.filter_map(|it| it["key"].as_str()).collect();
        Ok((keys == Vec::from_iter(expected)).then_some(()))
    })
}

fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn daemon_set(name: &str, spec: &Value) -> Value {
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": spec})
}

/// The scheduler puts the pod onto its node, or refuses it for a taint. It may see the node, or that it is ready, after the pod.
fn is_scheduled(name: &str, expected: bool) -> Result<()> {
    wait_for(&format!("{name} is scheduled: {expected}"), PATIENCE, || {
        let pod = cluster().api.get(&format!("{PODS}/{name}"))?.object()?;
        let is_scheduled = pod["spec"]["nodeName"].is_string();
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let refused = conditions.find(|it| it["type"] == "PodScheduled" && it["status"] == "False");
        let is_refused = refused.and_then(|it| it["message"].as_str()).is_some_and(|why| why.contains(REFUSED));
        ensure!(!is_scheduled || expected, "{name} is scheduled");
        Ok((if expected { is_scheduled } else { is_refused }).then_some(()))
    })
}

/// The controller has a pod for the DaemonSet's only node, or makes none as they do not tolerate a taint. It may see the taint
/// after the DaemonSet.
fn has_pod(name: &str, expected: bool) -> Result<()> {
    wait_for(&format!("{name} has a pod: {expected}"), PATIENCE, || {
        let status = cluster().api.get(&format!("{DAEMONS}/{name}"))?.object()?["status"].take();
        let is_seen = status["observedGeneration"].as_u64().is_some_and(|generation| generation >= 1);
        Ok((is_seen && (status["desiredNumberScheduled"] == 1) == expected).then_some(()))
    })
}
