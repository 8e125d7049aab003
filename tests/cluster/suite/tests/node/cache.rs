//! Page cache in use, which the kubelet's figure has as used up: a pod that reads its files again and again.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use plimsoll_cluster_suite::wait_for;
use serde_json::{Value, json};

use crate::turn::Turn;
use crate::view::{self, pod};
use crate::{NODE, PATIENCE, kill_switch, overlay, service_manager};

/// The kubelet's threshold in MiB as the node has it, and one that is met when [`FILES`] are in use.
const USUAL: u64 = 101;
const HIGH: u64 = 1700;
/// MiB of files that a pod reads.
const FILES: &str = "1100";
/// How long the kubelet has to evict: it looks every ten seconds, and its figures are up to twenty seconds old.
const LOOKED_ON: Duration = Duration::from_mins(1);
/// What both count.
const BY_KUBELET: &str = "plimsoll_kubelet_evictions_total{resource=\"memory\"}";
/// What is available by the kernel's own estimate, which counts page cache as that.
const MEM_AVAILABLE: &str = "plimsoll_memory_available_bytes{reading=\"kernel\"}";

/// While the agent is switched off the kubelet acts alone, and the agent counts what that evicts.
#[test]
fn a_pod_that_reads_its_files_again_and_again_is_evicted_by_the_kubelet_alone_and_that_is_counted() {
    // A slow machine stalls by itself.
    let configuration = overlay::with_metrics(overlay::AS_THE_KUBELET, "  stallPercent: 100\n");
    let turn = Turn::with_agent(&configuration).expect("it is installed");
    let mut console = turn.console(NODE).expect("it is there");
    let _threshold = Threshold::raise(&turn).expect("the kubelet is started anew");
    console.wait(&["armed with source ebpf"], PATIENCE).expect("the agent goes on with the kubelet's threshold");
    wait_for("figures are served", PATIENCE, || Ok(view::metrics(&turn).ok())).expect("by the agent that goes on");
    read_again(&turn, "reclaimed", true).expect("page cache is reclaimed");
    kill_switch::annotate(&turn, &json!("")).expect("an administrator may");
    let alone = read_again(&turn, "not-reclaimed", false);
    // Before anything is asserted: a later test is to find the agent as it was.
    kill_switch::annotate(&turn, &Value::Null).expect("an administrator may");
    assert_eq!(alone.expect("page cache is not reclaimed"), 1, "without the agent it is evicted");
    turn.pressure_ends().expect("there is room");
}

/// How often the kubelet evicts such a pod.
fn read_again(turn: &Turn, name: &str, is_reclaimed: bool) -> Result<u64> {
    let before = by_kubelet(turn)?;
    let mut console = turn.console(NODE)?;
    let mut reader = pod(name, &["hog", "churn", "--mapped", "--mib", FILES, "--path", "/files"]);
    reader["spec"]["restartPolicy"] = "Never".into();
    view::mount(&mut reader["spec"], &json!({"name": "files", "emptyDir": {}}), "/files");
    turn.create(&reader)?;
    turn.runs(name)?;
    console.wait(&["reclaiming before anything is evicted", "\"action\":\"reclaim\""], PATIENCE)?;
    let begun = Instant::now();
    let (mut least, mut least_of_kernel) = (u64::MAX, u64::MAX);
    while begun.elapsed() < LOOKED_ON && view::stored(turn, name)?["status"]["phase"] != "Failed" {
        least = least.min(view::available(turn)?);
        least_of_kernel = least_of_kernel.min(view::read_metric(turn, MEM_AVAILABLE)?);
        thread::sleep(Duration::from_millis(500));
    }
    let took = begun.elapsed().as_secs();
    let found = view::stored(turn, name)?;
    let (has_failed, status) = (found["status"]["phase"] == "Failed", &found["status"]);
    ensure!(!has_failed || status["reason"] == "Evicted", "{status}");
    let events = wait_for("the event of an eviction is there", PATIENCE, || {
        Ok(Some(view::events(turn, &found, "Evicted")?).filter(|events| !has_failed || !events.is_empty()))
    })?;
    let of_kubelet = events.iter().filter(|event| event["source"]["component"] == "kubelet").count();
    ensure!(events.len() == of_kubelet, "{events:?}");
    let of_kubelet = of_kubelet as u64;
    wait_for("the agent has counted it", PATIENCE, || Ok((by_kubelet(turn)? - before == of_kubelet).then_some(())))?;
    let reclaims = console.read()?.iter().filter(|line| line.contains("\"asked_bytes\"")).count();
    print(&format!(
        "{name}: {reclaims} reclaims, evicted {of_kubelet} times by the kubelet and 0 times by the agent within {took} s of the \
         crossing, least available {} MiB by the kubelet's formula and {} MiB by the kernel's estimate",
        least >> 20,
        least_of_kernel >> 20
    ));
    ensure!((reclaims > 0) == is_reclaimed, "{reclaims} reclaims");
    let reported = if is_reclaimed {
        let what = "what was taken back is reported";
        wait_for(what, PATIENCE, || Ok(Some(reported(turn, &found)?).filter(|events| !events.is_empty())))?
    } else {
        reported(turn, &found)?
    };
    ensure!(reported.len() <= usize::from(is_reclaimed), "{reported:?}");
    ensure!(least_of_kernel > HIGH << 20, "the kernel's estimate is below the threshold, too");
    turn.kubectl(&["delete", "pod", name, "--grace-period=1"])?;
    Ok(of_kubelet)
}

/// The events of page cache that was taken back from it.
fn reported(turn: &Turn, pod: &Value) -> Result<Vec<Value>> {
    view::events(turn, pod, "PlimsollReclaimed")
}

/// Past the test harness, which keeps to itself what a test prints that passes.
fn print(figure: &str) {
    let _ = writeln!(std::io::stdout(), "FIGURE {figure}");
}

fn by_kubelet(turn: &Turn) -> Result<u64> {
    view::read_metric(turn, BY_KUBELET)
}

/// A higher threshold of the kubelet's on memory, until this is dropped.
struct Threshold<'a>(&'a Turn);

impl<'a> Threshold<'a> {
    fn raise(turn: &'a Turn) -> Result<Self> {
        let threshold = Self(turn);
        threshold.change(USUAL, HIGH)?;
        Ok(threshold)
    }

    /// Changes the kubelet's file and starts it anew, and waits until it has that.
    fn change(&self, from: u64, to: u64) -> Result<()> {
        let script = format!(
            "sed -i 's/memory.available: \"{from}Mi\"/memory.available: \"{to}Mi\"/' /etc/kubernetes/kubelet.yaml && \
             systemctl restart kubelet.service"
        );
        service_manager::start(self.0, &format!("threshold-{to}"), &["/usr/bin/sh", "-c", &script])?;
        wait_for("the kubelet has the threshold", PATIENCE, || {
            // It is not there for a moment.
            let answer = self.0.api.get(&format!("/api/v1/nodes/{NODE}/proxy/configz"))?;
            let of_memory = &answer.body["kubeletconfig"]["evictionHard"]["memory.available"];
            Ok((answer.status == 200 && *of_memory == format!("{to}Mi")).then_some(()))
        })
    }
}

impl Drop for Threshold<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.change(HIGH, USUAL) {
            eprintln!("the kubelet keeps the threshold {HIGH}Mi: {error:#}");
        }
    }
}
