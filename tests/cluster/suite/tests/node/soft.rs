//! A soft threshold on memory: in its grace, and after it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::wait_for;
use serde_json::{Value, json};

use crate::eviction::{SETTLED, killed, recorded_for};
use crate::shapes::sidecar;
use crate::turn::Turn;
use crate::view::{self, pod, pressure};
use crate::{NODE, PATIENCE, overlay};

/// How often the pod fills what crosses the threshold, for how many seconds, and for how many it gives that back. Each is
/// shorter than evictionPressureTransitionPeriod, and all together last much longer.
const TIMES: u32 = 4;
const SECONDS: u32 = 12;
/// How many of these have to be seen as crossings.
const CROSSINGS: usize = 3;
/// How long the condition stays at least after the threshold was seen as met for the last time: the period, less the
/// time from one look to the next.
const STAYS: Duration = Duration::from_secs(38);
const POLL: Duration = Duration::from_millis(500);
/// The program of the tests' image.
const PROGRAM: &str = "/plimsoll-guest";
/// Seconds that a pod has after its eviction, and how much of that is seen at least between the record and its end.
const GRACE: u64 = 15;
const GRACE_SEEN: Duration = Duration::from_secs(GRACE - 7);
/// How long a preStop hook takes, and how much of that is seen at least between the record and the container's end.
const HOOK: u64 = 10;
const HOOK_SEEN: Duration = Duration::from_secs(HOOK - 3);

#[test]
fn a_soft_threshold_in_its_grace_that_is_crossed_again_and_again_sets_the_condition_once_and_evicts_none() {
    let turn = Turn::with_agent(&overlay::with_metrics(overlay::SOFT, "")).expect("it is installed");
    let steps = ["--times", &TIMES.to_string(), "--every", &SECONDS.to_string()];
    let arguments = ["breathe", "--mib", "1800"].iter().chain(&steps).copied().collect::<Vec<_>>();
    turn.create(&pod("breather", &arguments)).expect("it is accepted");
    turn.pressure_begins().expect("memory is reported as short in the grace");
    let Looked { states, crossings, stayed } = until_it_ends(&turn).expect("it ends");
    let [(first, since), (last, until)] = &states[..] else { panic!("it changed more than once: {states:?}") };
    assert!(first == "True" && last == "False" && since != until, "{states:?}");
    assert!(crossings >= CROSSINGS, "memory was short {crossings} times");
    assert!(stayed >= STAYS, "it ended {stayed:?} after memory was short");
    turn.pressure_ends().expect("the taint ends with it");
    turn.runs("breather").expect("it runs on");
    let breather = view::stored(&turn, "breather").expect("it is there");
    assert_eq!(view::events(&turn, &breather, "Evicted").expect("a list"), [Value::Null; 0]);
}

/// Its kubelet ends the pod as a deletion would: the preStop hook first, then the container by SIGTERM, and the sidecar not
/// before that. The agent kills nothing in it.
#[test]
fn a_pod_that_is_evicted_after_its_grace_has_its_hook_and_its_sidecar_ends_last() {
    let soft = overlay::SOFT.replace("memory.available: 1h", "memory.available: 5s");
    let turn = Turn::with_agent(&format!("evictionMaxPodGracePeriod: 60{soft}")).expect("it is installed");
    turn.create(&pod("bystander", &view::IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let mut console = turn.console(NODE).expect("it is there");
    turn.create(&with_hook("graceful", &["hog", "anon", "--mib", "1800", "--hold", "600"])).expect("it is accepted");
    let recorded = wait_for("its eviction is recorded", PATIENCE, || {
        let pod = view::stored(&turn, "graceful")?;
        Ok((pod["status"]["reason"] == "Evicted").then_some(Instant::now()))
    });
    let recorded = recorded.expect("after the grace of the threshold");
    turn.is_evicted("graceful").expect("its container has ended");
    assert!(recorded.elapsed() >= HOOK_SEEN, "its container ended after {:?}", recorded.elapsed());
    wait_for("its sidecar has ended", PATIENCE, || {
        let sidecar = ended(&view::stored(&turn, "graceful")?, "initContainerStatuses");
        Ok(sidecar.is_object().then_some(()))
    })
    .expect("it is one of the pod's");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded_for(&turn, "graceful", "memory", "1200Mi").expect("as the kubelet does, once");
    let graceful = view::stored(&turn, "graceful").expect("it is there");
    let [main, sidecar] = ["containerStatuses", "initContainerStatuses"].map(|key| ended(&graceful, key));
    // 128 and the signal.
    assert!(main["exitCode"] == 143 && sidecar["exitCode"] == 143, "{main} {sidecar}");
    let at = |state: &Value| state["finishedAt"].as_str().unwrap_or_default().to_owned();
    assert!(at(&main) <= at(&sidecar), "{main} {sidecar}");
    assert_eq!(killed(&mut console).expect("it is read"), [""; 0]);
    turn.runs("bystander").expect("it runs on");
}

/// A pod has ten minutes to end by its own specification, and outlives SIGTERM: its kubelet waits for it, and the agent kills it once
/// evictionMaxPodGracePeriod is over.
#[test]
fn a_pod_that_outlives_the_grace_of_its_eviction_is_killed_then_and_recorded_once() {
    let soft = overlay::SOFT.replace("memory.available: 1h", "memory.available: 5s");
    let turn = Turn::with_agent(&format!("evictionMaxPodGracePeriod: {GRACE}{soft}")).expect("it is installed");
    turn.create(&pod("bystander", &view::IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let mut console = turn.console(NODE).expect("it is there");
    let mut stubborn = pod("stubborn", &["hog", "anon", "--mib", "1800", "--hold", "600", "--outlive", "/outlived"]);
    stubborn["spec"]["terminationGracePeriodSeconds"] = 600.into();
    turn.create(&stubborn).expect("it is accepted");
    wait_for("its eviction is recorded", PATIENCE, || {
        Ok((view::stored(&turn, "stubborn")?["status"]["reason"] == "Evicted").then_some(()))
    })
    .expect("after the grace of the threshold");
    let recorded = Instant::now();
    turn.is_evicted("stubborn").expect("its container has ended");
    // Where it is killed at once, that is seen within a second or two.
    assert!(recorded.elapsed() >= GRACE_SEEN, "its container ended after {:?}", recorded.elapsed());
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded_for(&turn, "stubborn", "memory", "1200Mi").expect("as the kubelet does, once");
    assert_eq!(killed(&mut console).expect("it is read"), ["stubborn"]);
    turn.runs("bystander").expect("it runs on");
}

/// A pod with a preStop hook that takes a while, and a sidecar. The first process of the sandbox is PID 1 of them all, so that SIGTERM
/// ends the others.
fn with_hook(name: &str, arguments: &[&str]) -> Value {
    let mut pod = pod(name, arguments);
    let spec = &mut pod["spec"];
    spec["initContainers"] = json!([sidecar(spec)]);
    let hook = [PROGRAM, "hog", "anon", "--mib", "1", "--hold", &HOOK.to_string()];
    spec["containers"][0]["lifecycle"] = json!({"preStop": {"exec": {"command": hook}}});
    spec["shareProcessNamespace"] = true.into();
    spec["terminationGracePeriodSeconds"] = 40.into();
    pod
}

/// How the only container of a kind has ended; null where it has not.
fn ended(pod: &Value, kind: &str) -> Value {
    pod["status"][kind][0]["state"]["terminated"].clone()
}

/// What was seen of the condition.
struct Looked {
    /// Each status with its lastTransitionTime.
    states: Vec<(Value, Value)>,
    /// How often memory was above the threshold and then below.
    crossings: usize,
    /// From the last time that it was below until the condition ended.
    stayed: Duration,
}

/// Looks at the condition, which is true, and at memory until it is not.
fn until_it_ends(turn: &Turn) -> Result<Looked> {
    let (begun, mut states, mut crossings) = (Instant::now(), Vec::new(), 0);
    let (mut was_short, mut last_short) = (false, begun);
    loop {
        let condition = pressure(turn)?.context("it is there")?;
        let state = (condition["status"].clone(), condition["lastTransitionTime"].clone());
        if states.last() != Some(&state) {
            states.push(state);
        }
        if condition["status"] == "False" {
            return Ok(Looked { states, crossings, stayed: last_short.elapsed() });
        }
        let is_short = view::available(turn)? < overlay::FAR_MIB << 20;
        crossings += usize::from(is_short && !was_short);
        if is_short {
            last_short = Instant::now();
        }
        was_short = is_short;
        ensure!(begun.elapsed() < PATIENCE, "it lasts too long: {states:?}, {crossings} crossings");
        thread::sleep(POLL);
    }
}
