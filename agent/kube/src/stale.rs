//! What an agent that is gone has left on its node's object: found by the age of its heartbeat, on all nodes, and removed
//! while agents of other nodes go on.

use crate::node::{Kind, apply, apply_conditions, conditions, is_own, replace_taints, taints};
use crate::reporter::HEARTBEAT;
use core::time::Duration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};

/// A heartbeat that is older than this is one of an agent that is gone: one may fail and be late.
pub const STALE: Duration = HEARTBEAT.saturating_mul(2);
/// So many nodes are listed at a time.
const PAGE: u32 = 500;
/// So often a node is looked at again that another program wrote to in between.
const TRIES: u32 = 5;

/// Whether a node has conditions or taints of ours, and no agent whose heartbeat is recent by this clock. An agent writes its
/// conditions before its taints: taints without conditions are of none.
fn is_stale(node: &Node, now: Timestamp) -> bool {
    let is_ours = |type_: &str| Kind::ALL.iter().any(|kind| kind.condition() == type_);
    let mut ours = conditions(node).iter().filter(|it| is_ours(&it.type_)).peekable();
    if ours.peek().is_none() {
        return taints(node).iter().any(is_own);
    }
    let newest = ours.filter_map(|it| it.last_heartbeat_time.as_ref()).map(|time| time.0).max();
    // One that is to come is of a clock that is ahead.
    newest.is_none_or(|at| Duration::try_from(now.duration_since(at)).is_ok_and(|age| age > STALE))
}

/// The names of nodes that have conditions or taints of an agent that is gone.
///
/// # Errors
/// Where nodes cannot be listed.
pub async fn names(client: &Client) -> kube::Result<Vec<String>> {
    let (api, now) = (Api::<Node>::all(client.clone()), Timestamp::now());
    let (mut names, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let listed = api.list(&page).await?;
        names.extend(listed.items.into_iter().filter(|node| is_stale(node, now)).filter_map(|node| node.metadata.name));
        match listed.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = ListParams::default().limit(PAGE).continue_token(&next),
            None => return Ok(names),
        }
    }
}

/// Removes what is ours from a node whose agent is gone: by the version of the object that shows that, so that what an agent
/// writes meanwhile stays. Whether it was removed; an agent may have come back since the node was listed.
///
/// # Errors
/// Where it cannot be written, or another program came before each time (409).
pub async fn clean(client: &Client, name: &str) -> kube::Result<bool> {
    let api = Api::<Node>::all(client.clone());
    let mut tries = 0;
    loop {
        tries += 1;
        let now = Timestamp::now();
        // One that was removed since it was listed has nothing left.
        let Some(read) = api.get_opt(name).await? else { return Ok(true) };
        if !is_stale(&read, now) {
            return Ok(false);
        }
        let mut none = apply(name, &[], now);
        none["metadata"]["resourceVersion"] = read.metadata.resource_version.into();
        let cleaned = match apply_conditions(&api, name, &none).await {
            Ok(written) => replace_taints(&api, name, written, &[]).await,
            Err(error) => Err(error),
        };
        match cleaned {
            Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => {}
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(true),
            result => return result.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::run_paused as run;
    use crate::testing::{Asked, refused, server};
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A node with heartbeats of ours of these ages in seconds, and with a taint.
    fn node(name: &str, ages: &[i64], taint: Option<&str>) -> Value {
        let at = |age: i64| Timestamp::from_second(Timestamp::now().as_second() - age).expect("a time").to_string();
        let ours = Kind::ALL
            .iter()
            .zip(ages)
            .map(|(kind, age)| json!({ "type": kind.condition(), "status": "False", "lastHeartbeatTime": at(*age) }));
        let of_kubelet = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": at(100_000) });
        let taints: Vec<_> = taint.iter().map(|key| json!({ "key": key, "effect": "NoSchedule" })).collect();
        json!({ "metadata": { "name": name, "resourceVersion": "7" }, "spec": { "taints": taints },
            "status": { "conditions": ours.chain([of_kubelet]).collect::<Vec<_>>() } })
    }

    const TAINT: Option<&str> = Some("plimsoll.dev/memory-pressure");
    const OLD: i64 = 601;

    #[test]
    fn a_node_is_stale_whose_newest_heartbeat_is_older_than_two_periods_and_one_that_has_a_taint_alone() {
        for (ages, taint, expected) in [
            (&[][..], None, false),
            (&[], Some("node.kubernetes.io/memory-pressure"), false),
            (&[], TAINT, true),
            (&[OLD, OLD, OLD], None, true),
            (&[OLD, 590, OLD], TAINT, false),
            (&[-90], TAINT, false),
        ] {
            let read: Node = serde_json::from_value(node("n1", ages, taint)).expect("a node");
            assert_eq!(is_stale(&read, Timestamp::now()), expected, "{ages:?} {taint:?}");
        }
        let mut without = node("n1", &[OLD], None);
        without["status"]["conditions"][0].as_object_mut().expect("one").remove("lastHeartbeatTime");
        assert!(is_stale(&serde_json::from_value(without).expect("a node"), Timestamp::now()), "it never had one");
    }

    #[test]
    fn all_pages_are_looked_at_and_nodes_with_a_live_agent_are_left_out() {
        run(async {
            let (client, log) = server(|asked| {
                let (next, nodes) = if asked.query.contains("continue=second") {
                    ("", vec![node("left", &[], TAINT), node("none", &[], None)])
                } else {
                    ("second", vec![node("dead", &[OLD], None), node("live", &[10], TAINT)])
                };
                (200, json!({ "metadata": { "continue": next }, "items": nodes }))
            });
            assert_eq!(names(&client).await.expect("listed"), ["dead", "left"]);
            assert!(log.lock().expect("no test failed with it").iter().all(|asked| asked.query.contains("limit=500")));
        });
    }

    #[test]
    fn of_a_node_that_is_gone_nothing_is_left() {
        run(async {
            for gone_at in 0..3 {
                let asked_before = AtomicU32::new(0);
                let (client, _) = server(move |asked| match asked_before.fetch_add(1, Ordering::Relaxed) {
                    number if number >= gone_at => refused(404, "NotFound", "there is no such node"),
                    _ if asked.method == "GET" => (200, node("n1", &[OLD], TAINT)),
                    _ => (200, node("n1", &[], TAINT)),
                });
                assert!(clean(&client, "n1").await.expect("it is clean"), "{gone_at}");
            }
        });
    }

    #[test]
    fn what_an_agent_writes_that_comes_back_meanwhile_stays() {
        run(async {
            for (comes_back, expected) in [(true, false), (false, true)] {
                let reads = AtomicU32::new(0);
                let (client, log) = server(move |asked: &Asked| match asked.line().as_str() {
                    "GET /api/v1/nodes/n1" => {
                        let is_first = reads.fetch_add(1, Ordering::Relaxed) == 0;
                        (200, node("n1", &[if is_first || !comes_back { OLD } else { 1 }], TAINT))
                    }
                    "PATCH /api/v1/nodes/n1/status" if reads.load(Ordering::Relaxed) == 1 => {
                        refused(409, "Conflict", "the object has been modified")
                    }
                    _ => (200, node("n1", &[], TAINT)),
                });
                assert_eq!(clean(&client, "n1").await.expect("it is judged"), expected);
                let log = log.lock().expect("no test failed with it");
                let written: Vec<_> = log.iter().filter(|asked| asked.method == "PATCH").collect();
                assert!(written.iter().all(|asked| asked.body["metadata"]["resourceVersion"] == "7"), "{written:?}");
                let taints: Vec<_> = written.iter().filter(|it| it.path.ends_with("/n1")).collect();
                assert_eq!(taints.len(), usize::from(expected), "{written:?}");
                assert!(taints.iter().all(|asked| asked.body["spec"]["taints"] == json!([])));
            }
        });
    }
}
