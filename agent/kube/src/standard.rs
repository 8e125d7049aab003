//! The kubelet's own conditions of pressure, where the owner of a cluster has them written before the kubelet does.
//!
//! The kubelet takes back what others write there, with its next status, which follows a change within ten seconds. So what
//! is written is marked by its reason, and no more is taken back than has that reason. The object is read first, and written
//! with the version that was read: a condition that the kubelet has set meanwhile is left as it is.

use crate::eviction::seconds;
use crate::node::{Condition, Kind};
use crate::{MANAGER, node};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// What becomes of the standard conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    /// Each is set once when a threshold is met, and is the kubelet's from then on.
    Lead,
    /// Each is set again when the kubelet has taken it back, for as long as the threshold is met.
    Hold,
}

/// The reason of one that was set here, by which it is found again after a restart.
const MET: &str = "PlimsollThresholdMet";
/// The reason of one that was taken back here.
const NOT_MET: &str = "PlimsollThresholdNotMet";

/// The conditions of this node that have to be changed: those that are wanted and are not true, and those that are not wanted
/// any more and are true by what was written here.
fn changed(current: &Node, wanted: &[(Kind, bool)], now: Timestamp) -> Vec<Value> {
    let is_to_change = |(kind, holds): &(Kind, bool)| {
        let found = node::conditions(current).iter().find(|it| it.type_ == kind.standard());
        let is_true = found.is_some_and(|it| it.status == "True");
        let is_ours = found.is_some_and(|it| it.reason.as_deref() == Some(MET));
        if *holds { !is_true } else { is_true && is_ours }
    };
    let written = |(kind, holds): &(Kind, bool)| {
        let condition = Condition { kind: *kind, holds: *holds, since: now };
        json!({
            "type": kind.standard(),
            "status": if *holds { "True" } else { "False" },
            "reason": if *holds { MET } else { NOT_MET },
            "message": condition.message(),
            "lastTransitionTime": seconds(now),
            "lastHeartbeatTime": seconds(now),
        })
    };
    wanted.iter().filter(|it| is_to_change(it)).map(written).collect()
}

/// Has these be true, or takes back what was written here. A write that another one came before is a conflict (409), and
/// changes nothing.
pub(crate) async fn write(client: &Client, node: &str, wanted: &[(Kind, bool)], now: Timestamp) -> kube::Result<()> {
    let api = Api::<Node>::all(client.clone());
    let read = api.get(node).await?;
    let conditions = changed(&read, wanted, now);
    if conditions.is_empty() {
        return Ok(());
    }
    let patch = json!({
        "metadata": { "resourceVersion": read.metadata.resource_version, "uid": read.metadata.uid },
        "status": { "conditions": conditions },
    });
    let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    api.patch_status(node, &parameters, &Patch::Strategic(patch)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kubelet_has_set_is_left_and_what_was_set_here_is_taken_back() {
        let memory = |status: &str, reason: &str| {
            let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady" });
            let memory = json!({ "type": "MemoryPressure", "status": status, "reason": reason });
            let node = json!({ "metadata": {}, "status": { "conditions": [ready, memory] } });
            serde_json::from_value::<Node>(node).expect("a node")
        };
        for (status, reason, holds, expected) in [
            ("False", "KubeletHasSufficientMemory", true, Some(("True", MET))),
            ("Unknown", "NodeStatusUnknown", true, Some(("True", MET))),
            ("True", "KubeletHasInsufficientMemory", true, None),
            ("True", MET, true, None),
            ("True", MET, false, Some(("False", NOT_MET))),
            ("True", "KubeletHasInsufficientMemory", false, None),
            ("False", "KubeletHasSufficientMemory", false, None),
        ] {
            let changed = changed(&memory(status, reason), &[(Kind::Memory, holds)], Timestamp::UNIX_EPOCH);
            let [written] = &changed[..] else {
                assert_eq!((changed.len(), expected), (0, None), "{status} {reason} {holds}");
                continue;
            };
            assert_eq!(written["type"], "MemoryPressure");
            let said = (written["status"].as_str().unwrap_or_default(), written["reason"].as_str().unwrap_or_default());
            assert_eq!(Some(said), expected, "{status} {reason} {holds}");
        }
    }

    #[test]
    fn a_node_without_the_condition_gets_it() {
        let changed = changed(&Node::default(), &[(Kind::Pid, true), (Kind::Disk, false)], Timestamp::UNIX_EPOCH);
        assert_eq!((changed.len(), &changed[0]["type"]), (1, &json!("PIDPressure")));
    }
}
