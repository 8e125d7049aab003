//! Nothing is left of the agent when it was removed.

use anyhow::{Result, ensure};

use crate::turn::Turn;
use crate::view::conditions_of_ours;
use crate::{NODE, PATIENCE, overlay, service_manager};

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
