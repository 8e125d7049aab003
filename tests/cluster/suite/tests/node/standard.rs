//! What the kubelet makes of its own conditions where the agent writes them (`machine.cluster.standardConditions`).

use std::time::{Duration, Instant};
use std::{fmt, thread};

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::wait_for;
use serde_json::Value;

use crate::turn::Turn;
use crate::view::{condition, pod_that_takes, pressure};
use crate::{PATIENCE, overlay};

/// The standard condition, and what the agent and the kubelet give as reasons.
const STANDARD: &str = "MemoryPressure";
const OURS: &str = "PlimsollThresholdMet";
const TAKEN_BACK: &str = "PlimsollThresholdNotMet";
const THE_KUBELETS: &str = "KubeletHasSufficientMemory";
const POLL: Duration = Duration::from_millis(200);

/// The kubelet, which is short of nothing, takes it back while the agent's own condition holds.
#[test]
fn with_lead_the_standard_condition_comes_first_and_is_the_kubelets_again() {
    let turn = Turn::with_agent(&overlay::with_standard_conditions("lead")).expect("it is installed");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    let seen = states(&turn).expect("memory is short for a time");
    let was_set = seen.iter().filter(|it| it.is_set()).count();
    assert_eq!(was_set, 1, "{seen:?}");
    assert!(seen.iter().skip_while(|it| !it.is_set()).any(State::is_taken_back), "{seen:?}");
    ends(&turn).expect("it is not true any more");
}

#[test]
fn with_hold_the_standard_condition_is_set_again_until_ours_ends() {
    let turn = Turn::with_agent(&overlay::with_standard_conditions("hold")).expect("it is installed");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    let seen = states(&turn).expect("memory is short for a time");
    let was_set = seen.iter().filter(|it| it.is_set()).count();
    let was_taken_back = seen.iter().skip_while(|it| !it.is_set()).filter(|it| it.is_taken_back()).count();
    assert!(was_set > 1 && was_taken_back > 0, "{seen:?}");
    ends(&turn).expect("it is not true any more");
}

/// Status and reason.
#[derive(Clone, PartialEq, Eq)]
struct State(Value, Value);

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

impl State {
    fn is_set(&self) -> bool {
        self.0 == "True" && self.1 == OURS
    }

    fn is_taken_back(&self) -> bool {
        self.0 == "False" && self.1 == THE_KUBELETS
    }
}

/// Each state of the standard condition from before memory is short until the agent's own condition has ended.
fn states(turn: &Turn) -> Result<Vec<State>> {
    let (begun, mut seen, mut was_short) = (Instant::now(), Vec::new(), false);
    loop {
        let ours = pressure(turn)?.is_some_and(|it| it["status"] == "True");
        let standard = condition(turn, STANDARD)?.context("each kubelet has it")?;
        let state = State(standard["status"].clone(), standard["reason"].clone());
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        if was_short && !ours {
            return Ok(seen);
        }
        was_short |= ours;
        ensure!(begun.elapsed() < PATIENCE, "it lasts too long: {seen:?}");
        thread::sleep(POLL);
    }
}

/// Waits until it is not true any more, whichever of both took it back last: the kubelet leaves what is false as it is.
fn ends(turn: &Turn) -> Result<()> {
    turn.pressure_ends()?;
    let reason = wait_for("the condition is false", PATIENCE, || {
        let standard = condition(turn, STANDARD)?.context("each kubelet has it")?;
        Ok((standard["status"] == "False").then(|| standard["reason"].clone()))
    })?;
    ensure!(reason == TAKEN_BACK || reason == THE_KUBELETS, "{reason}");
    Ok(())
}
