//! From the agent's start to its readiness, beside a bare load of the same programs.

use super::{Machine, save, settings};
use crate::agent::Agent;
use crate::machine::{now_ns, wait_for};
use crate::measure::find;
use anyhow::{Context as _, Result};
use plimsoll_sense::cost::{self, BareLoad};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long after its readiness the agent's log may lack the parts of its start.
const LOGGED: Duration = Duration::from_secs(5);

/// All that was measured. Times are in nanoseconds.
#[derive(Serialize)]
struct Measured {
    cell: &'static str,
    #[serde(flatten)]
    machine: Machine,
    pairs: Vec<Pair>,
}

/// One start, and one load just before it.
#[derive(Serialize)]
struct Pair {
    bare: Bare,
    /// Until the agent reported that it was ready, which is after it was armed.
    ready_ns: u64,
    /// Until the core, whose first step is the first of these parts, was armed, with the parts of it as its log has them.
    start: Value,
}

/// A bare load.
#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "they end with the unit")]
struct Bare {
    layout_ns: u64,
    types_ns: u64,
    maps_ns: u64,
    verify_ns: u64,
    attach_ns: u64,
    /// All but what finds the layout.
    total_ns: u64,
}

impl Bare {
    fn of(load: BareLoad) -> Result<Self> {
        let ns = |time: Duration| u64::try_from(time.as_nanos());
        Ok(Self {
            layout_ns: ns(load.layout)?,
            types_ns: ns(load.types)?,
            maps_ns: ns(load.maps)?,
            verify_ns: ns(load.verify)?,
            attach_ns: ns(load.attach)?,
            total_ns: ns(load.total())?,
        })
    }
}

pub(super) fn measure(pairs: usize, out: &Path) -> Result<()> {
    let settings = settings()?;
    let mut measured = Measured { cell: "start", machine: Machine::here()?, pairs: Vec::new() };
    println!("PLAN {pairs}");
    // What is read for the first time takes longer.
    cost::bare_load()?;
    Agent::start(&settings)?.stop()?;
    for number in 1..=pairs {
        let bare = Bare::of(cost::bare_load()?)?;
        let begun = now_ns();
        let agent = Agent::start(&settings)?;
        let ready_ns = now_ns() - begun;
        let mut start = None;
        // The line may come after the answer that it is ready.
        wait_for("the agent's log has the parts of its start", LOGGED, || {
            start = agent.lines().iter().find_map(|line| find(line, "start").cloned());
            Ok(start.is_some())
        })?;
        let start = start.context("it was found")?;
        agent.stop()?;
        println!("ROUND {number} bare_ns={} ready_ns={ready_ns} start={start}", bare.total_ns);
        measured.pairs.push(Pair { bare, ready_ns, start });
        save(out, &measured)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_written_in_nanoseconds_with_its_sum() {
        let us = Duration::from_micros;
        let load = BareLoad { layout: us(9), types: us(1), maps: us(2), verify: us(3), attach: us(4) };
        let bare = serde_json::to_value(Bare::of(load).unwrap()).unwrap();
        assert_eq!(
            (&bare["layout_ns"], &bare["verify_ns"], &bare["total_ns"]),
            (&9000.into(), &3000.into(), &10_000.into())
        );
    }
}
