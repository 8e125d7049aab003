//! Static pods, which the kubelet makes of files on the node, whatever the API has.

use anyhow::{Result, ensure};
use plimsoll_cluster_suite::wait_for;
use serde_json::{Value, json};

use crate::eviction::recorded;
use crate::turn::Turn;
use crate::view::{self, pod, pod_that_takes, pressure, spec};
use crate::{NODE, PATIENCE, overlay, service_manager};

/// Where the node's kubelet looks for them (`tests/vm/guest/src/kubelet.rs`).
const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// MiB of a static pod that takes more than what grows can until memory is short.
const MUCH: &str = "1000";
/// MiB with which the threshold of [`overlay::SOFT`] is crossed, and the kubelet's far away.
const SHORT: &str = "1800";

/// By the kubelet's ranking, which goes by what pods take now: it would be the first otherwise.
#[test]
fn a_static_pod_that_takes_most_is_spared() {
    let turn = Turn::with_agent(&format!("evictionPolicy: kubelet\n{}", overlay::SENSITIVE)).expect("it is installed");
    let much = Static::make(&turn, "much", &spec(&["idle", "--mib", MUCH])).expect("it is written");
    turn.runs(&much.pod()).expect("it runs");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    turn.is_evicted("grower").expect("it is evicted");
    recorded(&turn, "grower").expect("as the kubelet does");
    turn.pressure_ends().expect("there is room");
    turn.runs(&much.pod()).expect("it runs on");
}

/// Memory is short for as long as it takes, by a soft threshold whose grace is longer than the test. The pod's program ends again
/// and again, and is started again by its kubelet.
#[test]
fn a_critical_static_pod_that_restarts_under_pressure_runs_in_the_end() {
    let turn = Turn::with_agent(overlay::SOFT).expect("it is installed");
    turn.create(&pod("holder", &["idle", "--mib", SHORT])).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    let mut critical = spec(&["hog", "anon", "--mib", "64", "--hold", "20"]);
    critical["priorityClassName"] = "system-node-critical".into();
    critical["priority"] = json!(2_000_001_000);
    let critical = Static::make(&turn, "critical", &critical).expect("it is written");
    let restarted = wait_for("it was restarted and runs", PATIENCE, || {
        // Its object may not be there yet.
        let Ok(pod) = view::stored(&turn, &critical.pod()) else { return Ok(None) };
        ensure!(pod["status"]["reason"] != "Evicted", "{pod}");
        let containers = view::containers(&pod);
        let runs = |it: &Value| it["state"]["running"].is_object() && it["restartCount"].as_u64() >= Some(2);
        Ok((!containers.is_empty() && containers.iter().all(runs)).then_some(pod))
    })
    .expect("it runs in the end");
    assert_eq!(view::events(&turn, &restarted, "Evicted").expect("a list"), [Value::Null; 0]);
    let condition = pressure(&turn).expect("a node").expect("it is there");
    assert_eq!(condition["status"], "True", "memory is not short any more: {condition}");
    turn.runs("holder").expect("it runs on");
}

/// A static pod, until this is dropped.
struct Static<'a> {
    turn: &'a Turn,
    name: &'static str,
}

impl<'a> Static<'a> {
    /// Writes its manifest, which has to be there as a whole at once.
    fn make(turn: &'a Turn, name: &'static str, spec: &Value) -> Result<Self> {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec,
        });
        let (unfinished, place) = (format!("/etc/kubernetes/{name}.json"), format!("{MANIFESTS}/{name}.json"));
        let write = format!("printf %s '{manifest}' > {unfinished} && mv {unfinished} {place}");
        service_manager::start(turn, &format!("write-{name}"), &["/usr/bin/sh", "-c", &write])?;
        let made = Self { turn, name };
        wait_for("its object is there", PATIENCE, || Ok((made.status()? == 200).then_some(())))?;
        Ok(made)
    }

    /// What the API server answers when it is asked for its object.
    fn status(&self) -> Result<u16> {
        Ok(self.turn.api.get(&format!("{}/{}", view::PODS, self.pod()))?.status)
    }

    /// The name of its object at the API.
    fn pod(&self) -> String {
        format!("{}-{NODE}", self.name)
    }

    fn remove(&self) -> Result<()> {
        let place = format!("{MANIFESTS}/{}.json", self.name);
        service_manager::start(self.turn, &format!("remove-{}", self.name), &["/usr/bin/rm", "--force", &place])?;
        wait_for("its object is gone", PATIENCE, || Ok((self.status()? == 404).then_some(())))
    }
}

impl Drop for Static<'_> {
    fn drop(&mut self) {
        let removed = self.remove();
        // Of two panics the first one is the test's own.
        if !std::thread::panicking() {
            removed.expect("it is removed");
        }
    }
}
