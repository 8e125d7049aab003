//! When the standard conditions are written, where that is configured.

use super::retry::Retry;
use crate::node::{Condition, Kind};
use crate::own_node::NodeView;
use crate::standard::Standard;
use core::time::Duration;
use tokio::time::Instant;

/// A condition that the kubelet took back is set again no sooner than this after the last write.
pub(super) const HOLD_PAUSE: Duration = Duration::from_secs(5);

/// What has to be written of them.
#[derive(Debug)]
pub(super) struct StandardConditions {
    how: Option<Standard>,
    /// Each as it has to be made, in the order of [`Kind::ALL`]; absent where nothing has to be done.
    wanted: [Option<bool>; Kind::ALL.len()],
    /// Not before this one is set again.
    rests: Instant,
    pub(super) retry: Retry,
}

impl StandardConditions {
    pub(super) const fn new(how: Option<Standard>, now: Instant) -> Self {
        Self { how, wanted: [None; Kind::ALL.len()], rests: now, retry: Retry::new(now) }
    }

    /// These are the conditions now, and were those before, by an earlier process if by none of this one. What is true by that
    /// is taken back where it ended meanwhile.
    pub(super) fn change(&mut self, before: &[Condition], conditions: &[Condition]) {
        if self.how.is_none() {
            return;
        }
        for condition in conditions {
            let same = before.iter().find(|it| it.kind == condition.kind);
            if same.is_none_or(|same| same.holds != condition.holds) {
                self.wanted[condition.kind as usize] = Some(condition.holds);
                self.rests = Instant::now();
            }
        }
    }

    /// The node's object is this one now, and these conditions are ours.
    pub(super) fn see(&mut self, view: &NodeView, conditions: &[Condition]) {
        if self.how != Some(Standard::Hold) {
            return;
        }
        for condition in conditions.iter().filter(|it| it.holds && !view.standard(it.kind)) {
            self.wanted[condition.kind as usize] = Some(true);
        }
    }

    /// When the next write is due, if there is one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.wanted.iter().any(Option::is_some).then(|| self.retry.due().max(self.rests))
    }

    /// What it has.
    pub(super) fn wanted(&self) -> Vec<(Kind, bool)> {
        Kind::ALL.into_iter().zip(self.wanted).filter_map(|(kind, wanted)| Some((kind, wanted?))).collect()
    }

    /// It was written, or is given up until something changes.
    pub(super) fn end(&mut self) {
        self.wanted = [None; Kind::ALL.len()];
        self.rests = Instant::now() + HOLD_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reporter;
    use super::super::tests::{run, until};
    use super::*;
    use crate::own_node::NodeView;
    use crate::testing::server;
    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};
    use std::sync::{Arc, Mutex};

    /// The standard condition for memory, as the API server has it.
    type Stored = Arc<Mutex<(String, String)>>;

    /// A reporter, what is stored, and the statuses that were written.
    fn scene(how: Standard) -> (Reporter, Stored, Arc<Mutex<Vec<String>>>) {
        let stored = Stored::new(Mutex::new(("False".into(), "KubeletHasSufficientMemory".into())));
        let written = Arc::<Mutex<Vec<String>>>::default();
        let (of_server, log) = (Arc::clone(&stored), Arc::clone(&written));
        let (client, _) = server(move |asked| {
            let mut stored = of_server.lock().expect("no test failed with it");
            for condition in asked.body["status"]["conditions"].as_array().into_iter().flatten() {
                if condition["type"] == "MemoryPressure" {
                    assert_eq!(asked.body["metadata"]["resourceVersion"], "7", "what was read is written");
                    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
                    *stored = (text("status"), text("reason"));
                    log.lock().expect("no test failed with it").push(text("status"));
                }
            }
            (200, node(&stored))
        });
        let reporter = Reporter::new(client, "n1".into(), None).with_standard(Some(how));
        (reporter, stored, written)
    }

    fn node((status, reason): &(String, String)) -> Value {
        let condition = json!({ "type": "MemoryPressure", "status": status, "reason": reason });
        json!({ "metadata": { "resourceVersion": "7" }, "status": { "conditions": [condition] } })
    }

    async fn report(reporter: &mut Reporter, holds: bool) {
        let condition = Condition { kind: Kind::Memory, holds, since: Timestamp::UNIX_EPOCH };
        reporter.set_conditions(vec![condition]);
        until(reporter, |it| it.first.is_none() && it.standard.due().is_none()).await;
    }

    /// The kubelet writes its own, and the watch of the node has it.
    async fn kubelet_writes(reporter: &mut Reporter, stored: &Stored, status: &str) {
        let written = (status.to_owned(), "Kubelet".to_owned());
        *stored.lock().expect("no test failed with it") = written.clone();
        let node: Node = serde_json::from_value(node(&written)).expect("a node");
        reporter.see(&NodeView::of(&node));
        until(reporter, |it| it.standard.due().is_none()).await;
    }

    #[test]
    fn one_that_leads_is_set_once_and_is_the_kubelets_then() {
        run(async {
            let (mut reporter, stored, written) = scene(Standard::Lead);
            report(&mut reporter, false).await;
            report(&mut reporter, true).await;
            kubelet_writes(&mut reporter, &stored, "False").await;
            report(&mut reporter, false).await;
            assert_eq!(*written.lock().expect("no test failed with it"), ["True"]);
            report(&mut reporter, true).await;
            report(&mut reporter, false).await;
            assert_eq!(*written.lock().expect("no test failed with it"), ["True", "True", "False"], "it is taken back");
        });
    }

    #[test]
    fn one_that_is_held_is_set_again_no_sooner_than_after_a_pause_and_not_once_ours_has_ended() {
        run(async {
            let (mut reporter, stored, written) = scene(Standard::Hold);
            report(&mut reporter, true).await;
            for round in 1..=3 {
                let begun = Instant::now();
                kubelet_writes(&mut reporter, &stored, "False").await;
                assert_eq!(written.lock().expect("no test failed with it").len(), 1 + round);
                assert!(begun.elapsed() >= HOLD_PAUSE, "{:?}", begun.elapsed());
            }
            // The kubelet's own, which it ends itself.
            kubelet_writes(&mut reporter, &stored, "True").await;
            report(&mut reporter, false).await;
            kubelet_writes(&mut reporter, &stored, "False").await;
            assert_eq!(*written.lock().expect("no test failed with it"), ["True"; 4]);
        });
    }

    #[test]
    fn what_an_earlier_process_set_is_taken_back_and_off_writes_nothing() {
        run(async {
            let (mut reporter, stored, written) = scene(Standard::Lead);
            *stored.lock().expect("no test failed with it") = ("True".into(), "PlimsollThresholdMet".into());
            report(&mut reporter, false).await;
            assert_eq!(*written.lock().expect("no test failed with it"), ["False"]);
            let (mut off, _, written) = scene(Standard::Lead);
            off = off.with_standard(None);
            report(&mut off, true).await;
            assert!(written.lock().expect("no test failed with it").is_empty());
        });
    }
}
