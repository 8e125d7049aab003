//! What an agent may do at the API server, and what it has done there.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cluster::Cluster;

/// A group, a resource of it, and verbs.
pub type Right = (&'static str, &'static str, &'static [&'static str]);

/// All that the agent may do (`agent/deploy/kustomize/base/rights.yaml`).
pub const RIGHTS: [Right; 5] = [
    ("", "pods", &["list", "watch", "delete"]),
    ("", "pods/status", &["patch"]),
    ("", "nodes", &["get", "watch", "patch"]),
    ("", "nodes/status", &["patch"]),
    ("", "events", &["create"]),
];

/// What the API server writes down of agents, beside the kubeconfig (`xtask/src/cluster/control_plane.rs`).
const AUDIT: &str = "audit.log";

impl Cluster {
    /// What agents have asked of objects so far and the API server has carried out, as `verb group/resource`. Tests that have an
    /// agent's token do not name the program.
    pub fn carried_out(&self) -> Result<BTreeSet<String>> {
        let path = self.folder().join(AUDIT);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // The last line may be written just now.
        let requests = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_done = |it: &Value| {
            let is_agent = it["userAgent"].as_str().is_some_and(|program| program.starts_with("plimsoll/"));
            is_agent && it["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
        };
        let of_objects = requests.filter(|it| is_done(it) && it["objectRef"]["resource"].is_string());
        let line = |it: Value| {
            let (text, object) = (|value: &Value| value.as_str().unwrap_or_default().to_owned(), &it["objectRef"]);
            let sub = object["subresource"].as_str().map_or_else(String::new, |sub| format!("/{sub}"));
            format!("{} {}/{}{sub}", text(&it["verb"]), text(&object["apiGroup"]), text(&object["resource"]))
        };
        Ok(of_objects.map(line).collect())
    }
}
