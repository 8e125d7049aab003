//! Conditions and taints of Plimsoll's own on the node's object.
//!
//! The kubelet writes its own conditions anew every ten seconds and leaves others alone. So ours have types of their own,
//! written by server-side apply: what is not in the next one is removed. Taints are one list that is replaced as a whole:
//! it is read, changed, and written with the version that was read, so that what others wrote meanwhile is never lost.

use crate::eviction::seconds;
use crate::{DOMAIN, MANAGER};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// What a node is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory.
    Memory,
    /// Bytes or inodes of a disk.
    Disk,
    /// Process ids.
    Pid,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// The type of the condition.
    pub const fn condition(self) -> &'static str {
        match self {
            Self::Memory => "PlimsollMemoryPressure",
            Self::Disk => "PlimsollDiskPressure",
            Self::Pid => "PlimsollPIDPressure",
        }
    }

    /// The type of the kubelet's own condition.
    pub(crate) const fn standard(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }

    /// The key of the taint.
    pub fn taint(self) -> String {
        let name = match self {
            Self::Memory => "memory-pressure",
            Self::Disk => "disk-pressure",
            Self::Pid => "pid-pressure",
        };
        format!("{DOMAIN}/{name}")
    }

    pub(crate) const fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "a disk",
            Self::Pid => "process ids",
        }
    }
}

/// Whether pods are kept away from a node that is short, and how strictly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    /// Others are preferred.
    PreferNoSchedule,
    /// No pod that does not tolerate it is scheduled there.
    NoSchedule,
}

impl TaintEffect {
    const fn name(self) -> &'static str {
        match self {
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoSchedule => "NoSchedule",
        }
    }
}

/// A condition of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it is about.
    pub kind: Kind,
    /// Whether it is true.
    pub holds: bool,
    /// Since when it is what it is.
    pub since: Timestamp,
}

impl Condition {
    /// For people.
    pub(crate) fn message(&self) -> String {
        let resource = self.kind.resource();
        if self.holds {
            format!("an eviction threshold on {resource} is met, or was until a short time ago")
        } else {
            format!("no eviction threshold on {resource} is met")
        }
    }

    /// Has the time of the one that it was before, where it is the same.
    pub(crate) fn keep_time(&mut self, before: &[Self]) {
        if let Some(same) = before.iter().find(|it| (it.kind, it.holds) == (self.kind, self.holds)) {
            self.since = same.since;
        }
    }

    fn written(&self, now: Timestamp) -> Value {
        let Self { kind, holds, since } = *self;
        let (status, reason) = if holds { ("True", "ThresholdMet") } else { ("False", "ThresholdNotMet") };
        json!({
            "type": kind.condition(),
            "status": status,
            "reason": reason,
            "message": self.message(),
            "lastTransitionTime": seconds(since),
            "lastHeartbeatTime": seconds(now),
        })
    }
}

pub(crate) fn apply(node: &str, conditions: &[Condition], now: Timestamp) -> Value {
    let conditions: Vec<_> = conditions.iter().map(|condition| condition.written(now)).collect();
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": node }, "status": { "conditions": conditions },
    })
}

/// Writes these conditions, and removes those of ours that are not among them.
pub async fn write_conditions(
    client: &Client,
    node: &str,
    conditions: &[Condition],
    now: Timestamp,
) -> kube::Result<()> {
    let api = Api::<Node>::all(client.clone());
    apply_conditions(&api, node, &apply(node, conditions, now)).await.map(drop)
}

/// Sends what [`apply`] gives. Gives the node as it is then.
pub(crate) async fn apply_conditions(api: &Api<Node>, node: &str, applied: &Value) -> kube::Result<Node> {
    api.patch_status(node, &PatchParams::apply(MANAGER).force(), &Patch::Apply(applied)).await
}

/// The taints that conditions which hold stand for.
pub fn wanted(conditions: &[Condition], effect: Option<TaintEffect>) -> Vec<Taint> {
    let held = conditions.iter().filter(|condition| condition.holds);
    let taint = |condition: &Condition| {
        effect.map(|effect| Taint { key: condition.kind.taint(), effect: effect.name().into(), ..Taint::default() })
    };
    held.filter_map(taint).collect()
}

/// All taints as they have to be: those of others as they are, and ours. `None` where nothing has to be changed.
pub(crate) fn changed(current: &[Taint], wanted: &[Taint]) -> Option<Vec<Taint>> {
    let (own, others): (Vec<_>, Vec<_>) = current.iter().cloned().partition(is_own);
    let is_same = own.len() == wanted.len()
        && wanted.iter().all(|it| own.iter().any(|taint| (&taint.key, &taint.effect) == (&it.key, &it.effect)));
    (!is_same).then(|| others.into_iter().chain(wanted.iter().cloned()).collect())
}

/// Whether the taint has a key of ours.
pub(crate) fn is_own(taint: &Taint) -> bool {
    Kind::ALL.iter().any(|kind| kind.taint() == taint.key)
}

/// All taints that a node has.
pub(crate) fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

/// Makes ours these. A write that another one came before is a conflict (409), and changes nothing.
pub async fn write_taints(client: &Client, node: &str, wanted: &[Taint]) -> kube::Result<()> {
    let api = Api::<Node>::all(client.clone());
    let read = api.get(node).await?;
    replace_taints(&api, node, read, wanted).await
}

/// The same for a node that was read.
pub(crate) async fn replace_taints(api: &Api<Node>, node: &str, read: Node, wanted: &[Taint]) -> kube::Result<()> {
    let Some(taints) = changed(taints(&read), wanted) else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": read.metadata.resource_version, "uid": read.metadata.uid },
        "spec": { "taints": taints },
    });
    let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    api.patch(node, &parameters, &Patch::Merge(patch)).await.map(drop)
}

/// Removes all that is ours from the node, and tries again where another write came before.
pub async fn clean(client: &Client, node: &str) -> kube::Result<()> {
    const TRIES: u32 = 5;
    write_conditions(client, node, &[], Timestamp::now()).await?;
    let mut tries = 0;
    loop {
        tries += 1;
        match write_taints(client, node, &[]).await {
            Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => {}
            result => return result,
        }
    }
}

/// The names of all nodes.
pub async fn names(client: &Client) -> kube::Result<Vec<String>> {
    let listed = Api::<Node>::all(client.clone()).list_metadata(&ListParams::default()).await?;
    Ok(listed.items.into_iter().filter_map(|node| node.metadata.name).collect())
}

/// All conditions that a node has.
pub(crate) fn conditions(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

/// The conditions as the node has them, so that one that did not change keeps its time.
pub async fn read_conditions(client: &Client, node: &str) -> kube::Result<Vec<Condition>> {
    let read = Api::<Node>::all(client.clone()).get(node).await?;
    let of = |kind: Kind| {
        let condition = conditions(&read).iter().find(|it| it.type_ == kind.condition())?;
        let since = condition.last_transition_time.as_ref()?.0;
        Some(Condition { kind, holds: condition.status == "True", since })
    };
    Ok(Kind::ALL.into_iter().filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.into(), effect: effect.into(), ..Taint::default() }
    }

    #[test]
    fn taints_of_others_stay_and_ours_are_as_the_conditions_are() {
        let since = Timestamp::UNIX_EPOCH;
        let conditions =
            [(Kind::Memory, true), (Kind::Disk, false)].map(|(kind, holds)| Condition { kind, holds, since });
        let ours = wanted(&conditions, Some(TaintEffect::NoSchedule));
        assert_eq!(ours, [taint("plimsoll.dev/memory-pressure", "NoSchedule")]);
        assert_eq!(wanted(&conditions, None), []);
        let other = taint("node.kubernetes.io/memory-pressure", "NoSchedule");
        let preferred = taint("plimsoll.dev/memory-pressure", "PreferNoSchedule");
        let both = vec![other.clone(), ours[0].clone()];
        for (current, wanted, expected) in [
            (vec![], &ours[..], Some(ours.clone())),
            (vec![other.clone()], &ours, Some(both.clone())),
            (both.clone(), &ours, None),
            (vec![preferred, other.clone()], &ours, Some(both.clone())),
            (both, &[], Some(vec![other.clone()])),
            (vec![other], &[], None),
        ] {
            assert_eq!(changed(&current, wanted), expected, "{current:?}");
        }
    }

    #[test]
    fn what_is_applied_has_ours_alone() {
        let condition = Condition { kind: Kind::Disk, holds: true, since: Timestamp::UNIX_EPOCH };
        let applied = apply("n1", &[condition], Timestamp::from_second(60).expect("a time"));
        let written = &applied["status"]["conditions"];
        assert_eq!(written.as_array().map(Vec::len), Some(1));
        assert_eq!((&written[0]["type"], &written[0]["status"]), (&json!("PlimsollDiskPressure"), &json!("True")));
        assert_eq!(written[0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(written[0]["lastHeartbeatTime"], "1970-01-01T00:01:00Z");
        assert_eq!(apply("n1", &[], Timestamp::UNIX_EPOCH)["status"]["conditions"], json!([]));
    }
}
