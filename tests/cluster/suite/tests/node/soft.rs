//! A soft threshold on memory whose grace is not over.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::turn::Turn;
use crate::view::{self, pod, pressure};
use crate::{PATIENCE, overlay};

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
