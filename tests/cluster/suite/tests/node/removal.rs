//! Nothing is left of the agent when it was removed.

use anyhow::{Result, ensure};
use plimsoll_cluster_suite::{Answer, Format};
use serde_json::json;

use crate::turn::Turn;
use crate::view::{self, conditions_of_ours, pod_that_takes, taints_of_ours};
use crate::{NODE, PATIENCE, TAINT, overlay, service_manager};

/// Where the API would have something of it.
const PLACES: [&str; 5] = [
    "/api/v1/namespaces",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
];

#[test]
fn nothing_is_left_after_the_agent_is_removed() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    assert!(!conditions_of_ours(&turn).expect("a node").is_empty(), "what has to be removed is there");
    // The file of its lock is not there where the kernel has a better one (agent/src/acting.rs).
    assert_eq!(on_the_node(&turn, "before").expect("it is looked at"), ["/run", "/var/lib", "/sys/fs/bpf"]);
    turn.remove_agent().expect("it is removed");
    gone(&turn).expect("nothing is left");
    assert_eq!(on_the_node(&turn, "after").expect("it is looked at"), [""; 0]);
}

/// The agent is gone from the node, whose object it has left as it was: the job removes what is there once the newest heartbeat
/// is older than ten minutes, and nothing before.
#[test]
fn the_job_cleans_a_node_whose_agent_is_gone_once_its_heartbeat_is_old() {
    // The taint is there for longer than it takes to remove the agent.
    let turn = Turn::with_agent(&overlay::SENSITIVE.replace("45s", "10m")).expect("it is installed");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    turn.kubectl(&["--namespace", "plimsoll", "delete", "daemonset", "plimsoll", "--cascade=foreground"])
        .expect("it is removed");
    let left = || (conditions_of_ours(&turn).expect("a node"), taints_of_ours(&turn).expect("the same"));
    let before = left();
    assert!(!before.0.is_empty() && before.1 == [TAINT], "{before:?}");
    let uninstall = overlay::of_uninstall_where_stale(&turn).expect("it is written");
    turn.clean_up(&uninstall).expect("it completes");
    assert_eq!(left(), before, "the agent's heartbeat is a recent one");
    // As if it were some time later: written as the agent does.
    let mut node = view::node(&turn).expect("it is there");
    let conditions = node["status"]["conditions"].as_array_mut().expect("it has some");
    conditions.retain(|it| before.0.iter().any(|kind| it["type"] == **kind));
    for condition in &mut *conditions {
        condition["lastHeartbeatTime"] = "2000-01-01T00:00:00Z".into();
    }
    let status = json!({"conditions": conditions});
    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": status});
    let path = format!("{}/{NODE}/status?fieldManager=plimsoll&force=true", view::NODES);
    turn.api.request("PATCH", &path, Format::Apply, &body).and_then(Answer::object).expect("it is accepted");
    turn.clean_up(&uninstall).expect("it completes");
    assert_eq!(left(), (vec![], vec![]));
    turn.remove(&uninstall).expect("it is removed");
    turn.remove(&overlay::of_agents(&turn, overlay::SENSITIVE).expect("it is written")).expect("the same");
}

/// Which of these directories of the node have something of the agent's. The pod that looks has this name.
fn on_the_node(turn: &Turn, name: &str) -> Result<Vec<String>> {
    let mut console = turn.console(NODE)?;
    let script = format!(
        "for place in /run /dev/shm /var/lib /sys/fs/bpf; do
    [ ! -e $place/plimsoll ] || echo NODE {name} $place > /dev/console
done
echo NODE {name} looked > /dev/console"
    );
    service_manager::start(turn, name, &["/usr/bin/sh", "-c", &script])?;
    let looked = format!("NODE {name} ");
    console.wait(&[&looked, "looked"], PATIENCE)?;
    let places = console.lines.iter().filter_map(|line| Some(line.split_once(&looked)?.1.trim_end().to_owned()));
    Ok(places.filter(|place| place != "looked").collect())
}

fn gone(turn: &Turn) -> Result<()> {
    for place in PLACES {
        let list = turn.api.get(place)?.object()?;
        let items = list["items"].as_array().into_iter().flatten();
        let names: Vec<&str> = items.filter_map(|it| it["metadata"]["name"].as_str()).collect();
        ensure!(!names.is_empty() || place.contains("admissionregistration"), "{place} cannot be empty");
        ensure!(!names.iter().any(|name| name.contains("plimsoll")), "{place} has {names:?}");
    }
    Ok(())
}
