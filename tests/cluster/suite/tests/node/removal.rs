//! Nothing is left of the agent when it was removed.

use anyhow::{Result, ensure};

use crate::overlay;
use crate::turn::Turn;
use crate::view::conditions_of_ours;

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
    turn.remove_agent().expect("it is removed");
    gone(&turn).expect("nothing is left");
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
