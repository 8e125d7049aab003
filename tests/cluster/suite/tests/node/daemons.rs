//! What becomes of the pods of DaemonSets, which their controller makes anew on the same node.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use plimsoll_cluster_suite::{Answer, wait_for};
use serde_json::{Value, json};

use crate::race::figures;
use crate::turn::Turn;
use crate::view::{PODS, spec};
use crate::{NODE, PATIENCE, overlay};

const DAEMONS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
/// How long the evictions of the DaemonSet that grows are counted.
const COUNTED: Duration = Duration::from_mins(2);
/// What they are at most: the first pod's successor may be made before the taint is there, and is left alone until less than
/// half of the threshold is available; each next one is kept away by the taint for `evictionPressureTransitionPeriod`, 45 s,
/// which begins anew with each.
const AT_MOST: usize = 4;

/// Both use more than they request, and the one of high priority uses much.
#[test]
fn a_daemon_set_of_high_priority_is_spared_and_one_of_low_priority_is_evicted_without_a_loop() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.make_class().expect("it is accepted");
    // Of an earlier run.
    let before = ["low", "high"].map(|name| evictions(&turn, name).expect("a list"));
    let high = daemon_set("high", &["idle", "--mib", "700"], Some("high"));
    turn.api.create(DAEMONS, &high).and_then(Answer::object).expect("it is accepted");
    let [spared] = &running(&turn, "high").expect("it runs")[..] else { panic!("it has one pod") };
    let low = daemon_set("low", &["hog", "anon", "--mib", "2600"], None);
    turn.api.create(DAEMONS, &low).and_then(Answer::object).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    let begun = Instant::now();
    let mut console = turn.console(NODE).expect("it is there");
    wait_for("one is evicted", PATIENCE, || Ok((evictions(&turn, "low")? > before[0]).then_some(())))
        .expect("it is evicted");
    while begun.elapsed() < COUNTED {
        let count = evictions(&turn, "low").expect("a list") - before[0];
        assert!(count <= AT_MOST, "it is evicted in a loop: {count} times");
        thread::sleep(Duration::from_secs(2));
    }
    let count = evictions(&turn, "low").expect("a list") - before[0];
    // Past the test harness, which keeps to itself what a test prints that passes.
    let _ = writeln!(std::io::stdout(), "FIGURE {count} evictions in {} s", COUNTED.as_secs());
    assert_eq!(evictions(&turn, "high").expect("a list"), before[1]);
    console.read().expect("it is read");
    assert_eq!(figures(&console.lines, "oom-kills", "count"), [0; 0], "the OOM killer was first");
    turn.runs(spared).expect("it runs on");
}

fn daemon_set(name: &str, arguments: &[&str], class: Option<&str>) -> Value {
    let mut pod = spec(arguments);
    if let Some(class) = class {
        pod["priorityClassName"] = class.into();
    }
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": spec})
}

/// The names of a DaemonSet's pods that run, once there are any.
fn running(turn: &Turn, name: &str) -> Result<Vec<String>> {
    wait_for("its pod runs", PATIENCE, || {
        let list = turn.api.get(&format!("{PODS}?labelSelector=app={name}"))?.object()?;
        let pods = list["items"].as_array().into_iter().flatten().filter(|pod| pod["status"]["phase"] == "Running");
        let names: Vec<String> = pods.filter_map(|pod| pod["metadata"]["name"].as_str()).map(str::to_owned).collect();
        Ok(Some(names).filter(|names| !names.is_empty()))
    })
}

/// How often pods of this DaemonSet were evicted, those that are gone too.
fn evictions(turn: &Turn, name: &str) -> Result<usize> {
    let path = "/api/v1/namespaces/default/events?fieldSelector=reason=Evicted";
    let list = turn.api.get(path)?.object()?;
    let events = list["items"].as_array().into_iter().flatten();
    let names = events.filter_map(|it| it["involvedObject"]["name"].as_str());
    let count = names.filter(|pod| pod.starts_with(&format!("{name}-"))).count();
    ensure!(list["items"].is_array(), "{list}");
    Ok(count)
}
