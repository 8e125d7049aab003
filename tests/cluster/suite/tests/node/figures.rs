//! What the agent reads of each signal is what the kubelet reads of it, at rest and beside pods that hold memory and have
//! written to the disk.
//!
//! The kubelet's figures are up to half a minute old, and the two are read at different moments: each figure has to lie
//! within what the agent read from before the kubelet took it until after, give or take a tolerance.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::{Api, wait_for};

use crate::disks::in_volume;
use crate::turn::Turn;
use crate::view::{self, pod};
use crate::{NODE, PATIENCE, overlay};

/// How the kubelet is asked.
struct Way {
    name: &'static str,
    api: Api,
    path: String,
}

/// Through the API server, and by its own port with a client's certificate.
fn ways(turn: &Turn) -> Result<[Way; 2]> {
    let path = "/stats/summary";
    let proxied = format!("/api/v1/nodes/{NODE}/proxy{path}");
    Ok([
        Way { name: "through the API server", api: turn.api.clone(), path: proxied },
        Way { name: "directly", api: turn.kubelet()?, path: path.into() },
    ])
}

/// The tolerance is this part of what there is: a metric of the agent does not show a lesser change at once
/// (CONFIGURATION.md).
const TOLERANCE: u64 = 500;
/// MiB that a pod holds, and how many of these have to be seen; and the same of what one writes to the disk.
const HELD: [u64; 2] = [400, 360];
const WRITTEN: [u64; 2] = [200, 190];
/// The signals that are compared.
const SIGNALS: [&str; 9] = [
    "allocatableMemory.available",
    "containerfs.available",
    "containerfs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "pid.available",
];

#[test]
fn the_agent_reads_what_the_kubelet_reads() {
    let turn = Turn::with_agent(overlay::ALL_SIGNALS).expect("it is installed");
    let ways = ways(&turn).expect("it has a kubelet");
    let compared = |when| ways.each_ref().map(|way| compared(&turn, way, when).expect("the figures are equal"));
    let idle = compared("at rest");
    let [held, seen] = HELD;
    turn.create(&pod("holder", &["idle", "--mib", &held.to_string()])).expect("it is accepted");
    turn.runs("holder").expect("it runs");
    let [on_disk, seen_on_disk] = WRITTEN;
    let writes = ["tmpfs", "--keep", "--mib", &on_disk.to_string()];
    turn.create(&in_volume("writer", &writes)).expect("it is accepted");
    turn.runs("writer").expect("it runs");
    thread::sleep(Duration::from_secs(10));
    let under_load = compared("under load");
    for (idle, under_load) in idle.iter().zip(&under_load) {
        for (signal, seen, held) in [
            ("memory.available", seen, held),
            ("allocatableMemory.available", seen, held),
            ("nodefs.available", seen_on_disk, on_disk),
            ("imagefs.available", seen_on_disk, on_disk),
        ] {
            let taken = idle[signal].saturating_sub(under_load[signal]) >> 20;
            assert!((seen..held + 100).contains(&taken), "{signal}: {taken} MiB of {held} are seen");
        }
    }
}

/// What one of both says of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Figure {
    available: u64,
    capacity: u64,
    /// When the kubelet took it.
    time: String,
}

/// What the kubelet has available by signal, after it is compared with what the agent read meanwhile.
fn compared(turn: &Turn, way: &Way, when: &str) -> Result<BTreeMap<&'static str, u64>> {
    let before = of_the_kubelet(way)?;
    let mut read: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut note = || -> Result<BTreeMap<&'static str, Figure>> {
        let figures = of_the_agent(turn)?;
        for (signal, figure) in &figures {
            read.entry(signal).or_default().push(figure.available);
        }
        Ok(figures)
    };
    let after = wait_for("the kubelet has read each signal anew", PATIENCE, || {
        note()?;
        let after = of_the_kubelet(way)?;
        Ok(after.iter().all(|(signal, figure)| figure.time != before[signal].time).then_some(after))
    })?;
    let figures = note()?;
    for (signal, Figure { available, capacity, .. }) in &after {
        ensure!(figures[signal].capacity == *capacity, "{signal}: {capacity} of the kubelet, {:?}", figures[signal]);
        let (low, high) = read[signal].iter().fold((u64::MAX, 0), |(low, high), it| (low.min(*it), high.max(*it)));
        let tolerance = capacity / TOLERANCE;
        let figure = format!(
            "{when}, {signal}: the kubelet, {}, {available}, the agent {low} to {high}, {} samples, of {capacity}",
            way.name,
            read[signal].len()
        );
        // Past the test harness, which keeps to itself what a test prints that passes.
        let _ = writeln!(std::io::stdout(), "FIGURE {figure}");
        ensure!((low.saturating_sub(tolerance)..=high + tolerance).contains(available), "{figure}");
    }
    Ok(after.into_iter().map(|(signal, figure)| (signal, figure.available)).collect())
}

/// What the kubelet decides by.
fn of_the_kubelet(way: &Way) -> Result<BTreeMap<&'static str, Figure>> {
    let summary = way.api.get(&way.path)?.object()?;
    let node = &summary["node"];
    let mut containers = node["systemContainers"].as_array().into_iter().flatten();
    let pods = containers.find(|it| it["name"] == "pods").context("it has figures of all pods")?;
    let figure = |signal: &'static str| -> Result<(&'static str, Figure)> {
        let (stats, available, all) = match signal {
            "memory.available" => (&node["memory"], "availableBytes", None),
            "allocatableMemory.available" => (&pods["memory"], "availableBytes", None),
            "pid.available" => (&node["rlimit"], "maxpid", None),
            _ => {
                let stats = match signal.split('.').next() {
                    Some("nodefs") => &node["fs"],
                    Some("imagefs") => &node["runtime"]["imageFs"],
                    _ => &node["runtime"]["containerFs"],
                };
                let inodes = signal.ends_with("inodesFree");
                let [available, all] =
                    if inodes { ["inodesFree", "inodes"] } else { ["availableBytes", "capacityBytes"] };
                (stats, available, Some(all))
            }
        };
        let number = |key: &str| stats[key].as_u64().with_context(|| format!("{signal}: no {key} in {stats}"));
        let available = number(available)?;
        let (available, capacity) = match (signal, all) {
            ("pid.available", _) => (available.saturating_sub(number("curproc")?), available),
            (_, Some(all)) => (available, number(all)?),
            (_, None) => (available, available + number("workingSetBytes")?),
        };
        let time = stats["time"].as_str().with_context(|| format!("{signal}: no time in {stats}"))?;
        Ok((signal, Figure { available, capacity, time: time.into() }))
    };
    SIGNALS.into_iter().map(figure).collect()
}

fn of_the_agent(turn: &Turn) -> Result<BTreeMap<&'static str, Figure>> {
    let metrics = view::metrics(turn)?;
    let figure = |signal: &'static str| -> Result<(&'static str, Figure)> {
        let number = |what: &str| {
            let series = format!("plimsoll_signal_{what}{{eviction_signal=\"{signal}\"}}");
            view::metric(&metrics, &series).with_context(|| format!("no {series} in {metrics}"))
        };
        Ok((signal, Figure { available: number("available")?, capacity: number("capacity")?, time: String::new() }))
    };
    SIGNALS.into_iter().map(figure).collect()
}
