//! The node's own object, followed through any gap.
//!
//! It is read once, and watched from there, by its name: with the rights to get and watch nodes, and without that to list
//! them. A kubelet writes it when its status changes, and every five minutes where it does not.

use crate::budget::Failures;
use crate::error::chain;
use crate::node::{self, Condition, Kind, TaintEffect};
use core::pin::pin;
use core::time::Duration;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client};
use plimsoll_policy::Uid;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// How long the object may take to be read.
const READ: Duration = Duration::from_secs(20);
/// How long one watch lasts, in seconds: the most that the kube client takes is 295.
const WATCH_SECONDS: u32 = 290;

/// What is read of a node's object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// Of the object: another one where it was deleted and made anew.
    pub(crate) uid: Uid,
    /// The annotation [`KILL_SWITCH`] is there, whatever its value is.
    pub is_switched_off: bool,
    /// Which of the standard conditions are true, in the order of [`Kind::ALL`].
    standard: [bool; Kind::ALL.len()],
    /// Those of ours.
    taints: Vec<Taint>,
}

/// The annotation on a node's object by which its agent is switched off.
pub const KILL_SWITCH: &str = "plimsoll.dev/kill-switch";

impl NodeView {
    pub(crate) fn of(node: &Node) -> Self {
        let annotations = node.metadata.annotations.as_ref();
        let is_true =
            |kind: Kind| node::conditions(node).iter().any(|it| it.type_ == kind.standard() && it.status == "True");
        Self {
            uid: Uid::of(node.metadata.uid.as_deref().unwrap_or_default()),
            is_switched_off: annotations.is_some_and(|all| all.contains_key(KILL_SWITCH)),
            standard: Kind::ALL.map(is_true),
            taints: node::taints(node).iter().filter(|it| node::is_own(it)).cloned().collect(),
        }
    }

    /// Whether the standard condition is true.
    pub(crate) const fn standard(&self, kind: Kind) -> bool {
        self.standard[kind as usize]
    }

    /// Whether its taints of ours are those that these conditions stand for.
    pub(crate) fn has_taints_of(&self, conditions: &[Condition], effect: Option<TaintEffect>) -> bool {
        node::changed(&self.taints, &node::wanted(conditions, effect)).is_none()
    }
}

/// Follows the object of this name until nothing receives what is seen of it, and gives whether it is followed. What was seen
/// last holds through a gap, and where the object is deleted, until there is another one. After an error there is a pause that
/// doubles, with a random part.
pub async fn watch_node(
    client: Client,
    name: &str,
    seen: watch::Sender<Option<NodeView>>,
    is_followed: watch::Sender<bool>,
) {
    let (api, mut failures, mut trouble) = (Api::<Node>::all(client), Failures::default(), None);
    loop {
        let begins = |trouble: &mut Option<String>| {
            if trouble.take().is_some() {
                tracing::info!("the object of node {name} is followed again");
            }
            is_followed.send_if_modified(|before| !core::mem::replace(before, true));
        };
        let followed = tokio::select! {
            followed = follow(&api, name, &seen, &mut failures, || begins(&mut trouble)) => followed,
            () = seen.closed() => return,
        };
        let Err(error) = followed else { continue };
        is_followed.send_if_modified(|before| core::mem::replace(before, false));
        let why = chain(&error);
        if trouble.as_ref() != Some(&why) {
            tracing::warn!("the object of node {name} is not followed, and what it said last holds: {why}");
            trouble = Some(why);
        }
        tokio::time::sleep(failures.add(Instant::now(), fastrand::f64())).await;
    }
}

/// Reads it and follows it from there, until an error: the version that a watch begins with may be too old. `begins`: a watch has.
async fn follow(
    api: &Api<Node>,
    name: &str,
    seen: &watch::Sender<Option<NodeView>>,
    failures: &mut Failures,
    mut begins: impl FnMut(),
) -> kube::Result<()> {
    let see = |node: &Node| {
        let view = Some(NodeView::of(node));
        seen.send_if_modified(|known| {
            let is_new = *known != view;
            *known = view;
            is_new
        });
    };
    let read = timeout(READ, api.get(name)).await;
    let read = read.map_err(|_| kube::Error::Service("it did not answer in time".into()))??;
    see(&read);
    let mut version = read.metadata.resource_version.unwrap_or_default();
    let parameters = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    loop {
        let mut events = pin!(api.watch(&parameters, &version).await?);
        begins();
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                    see(&node);
                    failures.end();
                    version = node.metadata.resource_version.unwrap_or_default();
                }
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Deleted(_) => {}
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Asked, refused, server};
    use core::sync::atomic::{AtomicUsize, Ordering};
    use serde_json::{Value, json};

    fn object(version: u32, annotations: &Value, memory: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n1", "resourceVersion": version.to_string(), "annotations": annotations },
            "status": { "conditions": [{ "type": "MemoryPressure", "status": memory }] },
        })
    }

    #[test]
    fn it_is_read_and_watched_from_there_and_read_again_where_the_version_is_too_old() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let asked = AtomicUsize::new(0);
            let (off, none) = (json!({ "plimsoll.dev/kill-switch": "" }), json!({ "other": "1" }));
            let (send_followed, mut followed) = watch::channel(false);
            let is_followed = followed.clone();
            let answer = move |it: &Asked| {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                // A watch had begun before the second one, and after an error none has until the node was read again.
                assert_eq!(*is_followed.borrow(), [2, 5].contains(&number), "{number}");
                let event = |kind: &str, object: Value| json!([{ "type": kind, "object": object }]);
                let is_read = it.line() == "GET /api/v1/nodes/n1";
                let from = |version: u32| {
                    assert_eq!(it.line(), "GET /api/v1/nodes");
                    assert!(it.query.contains("fieldSelector=metadata.name%3Dn1"), "{}", it.query);
                    assert!(it.query.contains(&format!("resourceVersion={version}")), "{number}: {}", it.query);
                };
                let read = |version, annotations, memory| {
                    assert!(is_read, "{number}: {}", it.line());
                    (200, object(version, annotations, memory))
                };
                let watched = |version, answer| {
                    from(version);
                    answer
                };
                // After an error there is a pause, in which what was seen until then is looked at.
                match number {
                    0 => read(5, &none, "False"),
                    1 => watched(5, (200, event("MODIFIED", object(6, &off, "False")))),
                    2 => watched(6, refused(503, "ServiceUnavailable", "")),
                    3 => read(7, &off, "True"),
                    4 => watched(7, (200, event("DELETED", object(8, &none, "False")))),
                    5 => watched(7, (200, event("ERROR", refused(410, "Expired", "").1))),
                    6 => read(9, &none, "True"),
                    _ => refused(503, "ServiceUnavailable", ""),
                }
            };
            let (client, _) = server(answer);
            let (send, mut seen) = watch::channel(None);
            let task = tokio::spawn(async move { watch_node(client, "n1", send, send_followed).await });
            for expected in [(true, false), (true, true), (false, true)] {
                seen.changed().await.expect("it goes on");
                let view = seen.borrow_and_update().clone().expect("it is read");
                assert_eq!((view.is_switched_off, view.standard(Kind::Memory)), expected);
            }
            followed.wait_for(|it| !it).await.expect("it goes on");
            drop(seen);
            task.await.expect("it ends where nothing receives");
        });
    }
}
