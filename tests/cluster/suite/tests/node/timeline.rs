//! What becomes of the node and its pods, as the API has it, moment by moment: what `cargo xtask demo --cluster` shows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::Cluster;
use serde_json::{Value, json};

use crate::NODE;
use crate::view::{self, condition};

/// The variable with the file to which a line of JSON is added for each race. None is kept without.
const FILE: &str = "PLIMSOLL_TEST_TIMELINE";

/// Changes, from its begin on.
pub(crate) struct Timeline {
    begun: Instant,
    states: BTreeMap<String, String>,
    moments: Vec<Value>,
}

impl Timeline {
    pub(crate) fn begin() -> Self {
        Self { begun: Instant::now(), states: BTreeMap::new(), moments: Vec::new() }
    }

    /// Notes a state, if it is another one than before.
    pub(crate) fn note(&mut self, lane: &str, state: String) {
        if self.states.get(lane) != Some(&state) {
            let after = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.moments.push(json!({"ms": after, "lane": lane, "state": state}));
            self.states.insert(lane.to_owned(), state);
        }
    }

    /// Looks at a condition of the node and at these pods.
    pub(crate) fn look<'a>(
        &mut self,
        cluster: &Cluster,
        kind: &str,
        pods: impl IntoIterator<Item = &'a str>,
    ) -> Result<()> {
        let found = condition(cluster, kind)?;
        let state = found.map_or("absent".to_owned(), |it| text_of(&it["status"]));
        self.note(kind, state);
        for name in pods {
            self.note(name, state_of(&view::stored(cluster, name)?));
        }
        Ok(())
    }

    /// Keeps it, with what came of the race and how kubectl describes the node and a pod.
    pub(crate) fn keep(&self, cluster: &Cluster, name: &str, outcome: &str, pod: &str) -> Result<()> {
        let Some(path) = std::env::var_os(FILE) else { return Ok(()) };
        let line = json!({
            "name": name,
            "outcome": outcome,
            "moments": self.moments,
            "node": cluster.kubectl(&["describe", "node", NODE])?,
            "pod": cluster.kubectl(&["describe", "pod", pod])?,
        });
        let file = File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{line}")).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The phase of a pod, with the reason where it has one, and how often its container was started again.
fn state_of(pod: &Value) -> String {
    let container = &pod["status"]["containerStatuses"][0];
    let reasons = [&pod["status"]["reason"], &container["state"]["terminated"]["reason"]];
    let reason = reasons.into_iter().find_map(Value::as_str);
    let again = container["restartCount"].as_u64().filter(|count| *count > 0);
    let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
    let again = again.map_or(String::new(), |count| format!(", started again {count} times"));
    format!("{}{reason}{again}", text_of(&pod["status"]["phase"]))
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or("unknown").to_owned()
}
