//! Many nodes that are short of memory at the same time, and have one API server.

use super::tests::{accepts, eviction, run};
use super::*;
use crate::event::PodReference;
use crate::node::Kind;
use crate::testing::{Asked, refused, server};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// A twenty-fifth of a cluster of 5,000, as of what the API server takes.
const NODES: usize = 200;
const EVICTIONS: usize = 30;
/// A patch and an event for each eviction, before all other events; and of each node what it has of conditions, these, what it has
/// of taints, and that.
const WRITES: usize = NODES * (EVICTIONS * 2 + 4);
const MOST_IN_A_SECOND: usize = 80;
/// All writes take so long at that rate: 160 s.
const LEAST: Duration = Duration::from_secs((WRITES / MOST_IN_A_SECOND) as u64);

/// What the API server is sent in a tenth of a second.
#[derive(Default)]
struct Load {
    /// It answers nothing for so long.
    outage: Duration,
    tenth: u128,
    sent: usize,
    accepted: usize,
    /// The most that was sent in one, after the outage.
    most: usize,
    /// The same after the first second.
    most_later: usize,
    /// Which nodes have their taint, by the paths of their objects, and since when half of them have.
    tainted: BTreeSet<String>,
    half: Duration,
}

impl Load {
    /// One more request. Whether it is accepted.
    fn take(&mut self, passed: Duration) -> bool {
        let tenth = passed.as_millis() / 100;
        if tenth != self.tenth {
            (self.tenth, self.sent, self.accepted) = (tenth, 0, 0);
        }
        let (is_up, has_room) = (passed >= self.outage, self.accepted < MOST_IN_A_SECOND / 10);
        self.sent += 1;
        if is_up {
            self.most = self.most.max(self.sent);
        }
        if is_up && tenth >= 10 {
            self.most_later = self.most_later.max(self.sent);
        }
        self.accepted += usize::from(is_up && has_room);
        is_up && has_room
    }

    /// This was accepted.
    fn note(&mut self, asked: &Asked, passed: Duration) {
        let taints = &asked.body["spec"]["taints"];
        let is_new = taints[0]["key"] == Kind::Memory.taint() && self.tainted.insert(asked.path.clone());
        if is_new && self.tainted.len() == NODES / 2 {
            self.half = passed;
        }
    }
}

#[test]
fn nodes_that_come_back_together_are_spread_over_time() {
    let outage = Duration::from_mins(1);
    let Storm { load, took, sent } = storm(outage);
    assert!(took >= LEAST && took < 3 * LEAST, "{took:?}");
    assert!(load.most < NODES / 4, "{} were sent in a tenth of a second", load.most);
    // What keeps pods away goes first, once a node finds that the API server is back, for which it asks once in a minute.
    assert!(load.half < outage + LEAST, "half of the nodes have their taint after {:?}", load.half);
    assert!(sent < 3 * WRITES, "{sent} requests for {WRITES} writes");
}

#[test]
fn nodes_that_become_short_together_are_spread_once_the_api_server_asks_for_it() {
    let Storm { load, took, sent } = storm(Duration::ZERO);
    assert!(took >= LEAST && took < 3 * LEAST, "{took:?}");
    // Each has sent what it has to say first, and those that were accepted a little more.
    assert!(load.most <= NODES + MOST_IN_A_SECOND, "{} were sent in a tenth of a second", load.most);
    assert!(load.most_later < NODES / 4, "{} were sent in a tenth of a second", load.most_later);
    assert!(load.half < LEAST, "half of the nodes have their taint after {:?}", load.half);
    assert!(sent < 3 * WRITES, "{sent} requests for {WRITES} writes");
}

/// What came of one.
struct Storm {
    load: Load,
    /// From the end of the outage until all evictions were written.
    took: Duration,
    sent: usize,
}

/// All become short, and have evicted, at the beginning of an outage.
fn storm(outage: Duration) -> Storm {
    let mut storm = None;
    run(async {
        fastrand::seed(7);
        let start = Instant::now();
        let load = Arc::new(Mutex::new(Load { outage, ..Load::default() }));
        let of_server = Arc::clone(&load);
        let (client, log) = server(move |asked| {
            let (passed, mut load) = (start.elapsed(), of_server.lock().expect("no test failed with it"));
            if load.take(passed) {
                load.note(asked, passed);
                accepts(asked)
            } else if passed < outage {
                refused(503, "ServiceUnavailable", "")
            } else {
                refused(429, "TooManyRequests", "")
            }
        });
        let (outcomes, mut came) = mpsc::unbounded_channel();
        let short = Condition { kind: Kind::Memory, holds: true, since: Timestamp::now() };
        let (_conditions, conditions) = watch::channel(Some(vec![short]));
        // They are gone once they were patched.
        let (_pods, pods) = watch::channel(Some(Pods::new()));
        let ((_node, node), (_degraded, degraded)) = (watch::channel(None), watch::channel(Vec::new()));
        let mut ways = Vec::new();
        for number in 0..NODES {
            let (way, decisions) = mpsc::unbounded_channel();
            for pod in 0..EVICTIONS {
                let eviction = eviction(&format!("pod-{pod}-of-{number}"));
                way.send(Decision::Evicted(eviction)).expect("it is received");
            }
            ways.push(way);
            // Each pod was frozen before, and the OOM killer was first once.
            let (happened, incidents) = mpsc::channel(EVICTIONS + 1);
            for pod in 0..=EVICTIONS {
                let pod = (pod < EVICTIONS).then(|| PodReference {
                    uid: format!("{pod}-of-{number}"),
                    namespace: "shop".into(),
                    name: pod.to_string(),
                });
                let reason = if pod.is_some() { IncidentReason::Braked } else { IncidentReason::LostRace };
                let incident = Incident { reason, pod, message: "memory was short".into(), at: Timestamp::now() };
                happened.try_send(incident).expect("it is received");
            }
            let report = Report {
                decisions,
                conditions: conditions.clone(),
                pods: pods.clone(),
                node: node.clone(),
                degraded: degraded.clone(),
                incidents,
            };
            let reporter = Reporter::new(client.clone(), number.to_string(), Some(TaintEffect::NoSchedule));
            tokio::spawn(reporter.run(report, outcomes.clone()));
        }
        let mut over = 0;
        while over < NODES * EVICTIONS {
            let outcome = came.recv().await.expect("they run");
            over += usize::from(matches!(outcome, Outcome::Over(_)));
        }
        let took = start.elapsed().saturating_sub(outage);
        let load = core::mem::take(&mut *load.lock().expect("no test failed with it"));
        assert_eq!(load.tainted.len(), NODES, "what is refused is tried again");
        let sent = log.lock().expect("no test failed with it").len();
        println!(
            "after an outage of {outage:?}: {took:?} until all was written, half of the nodes have their taint after {:?}, at most {} \
             and later {} requests in a tenth of a second, {sent} for {WRITES} writes",
            load.half, load.most, load.most_later
        );
        storm = Some(Storm { load, took, sent });
    });
    storm.expect("it is over")
}
