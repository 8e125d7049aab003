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
/// It answers nothing for so long.
const OUTAGE: Duration = Duration::from_mins(1);

/// What the API server is sent in a tenth of a second.
#[derive(Default)]
struct Load {
    tenth: u128,
    sent: usize,
    accepted: usize,
    /// The most that was sent in one, after the outage.
    most: usize,
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
        let (is_up, has_room) = (passed >= OUTAGE, self.accepted < MOST_IN_A_SECOND / 10);
        self.sent += 1;
        self.most = self.most.max(if is_up { self.sent } else { 0 });
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
    run(async {
        fastrand::seed(7);
        let (start, load) = (Instant::now(), Arc::<Mutex<Load>>::default());
        let of_server = Arc::clone(&load);
        let (client, log) = server(move |asked| {
            let (passed, mut load) = (start.elapsed(), of_server.lock().expect("no test failed with it"));
            if load.take(passed) {
                load.note(asked, passed);
                accepts(asked)
            } else if passed < OUTAGE {
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
        let passed = start.elapsed();
        // All writes take 160 s at the rate that it accepts.
        let least = Duration::from_secs((WRITES / MOST_IN_A_SECOND) as u64);
        assert!(passed >= OUTAGE + least && passed < OUTAGE + 3 * least, "{passed:?}");
        let load = load.lock().expect("no test failed with it");
        let Load { most, half, .. } = *load;
        assert!(most < NODES / 4, "{most} were sent in a tenth of a second");
        // What keeps pods away goes first, once a node finds that the API server is back, for which it asks once in a minute.
        assert!(half < OUTAGE + least, "half of the nodes have their taint after {half:?}");
        assert_eq!(load.tainted.len(), NODES, "what is refused is tried again");
        let sent = log.lock().expect("no test failed with it").len();
        assert!(sent < 3 * WRITES, "{sent} requests for {WRITES} writes");
    });
}
