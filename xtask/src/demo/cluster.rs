//! `cargo xtask demo --cluster`: the same pod fills a node's memory beside the kubelet alone and beside the kubelet and the
//! agent, as the API has it. It is a test that is shown: [`cluster::RACE`].

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use plotters::prelude::*;
use serde::Deserialize;

use crate::cluster::{self, kube};
use crate::picture::{self, Area, Drawn, GREEN, GREY, ORANGE, THRESHOLD, Words, float};
use crate::run;

/// The variable in which the test finds where to leave what is shown (`tests/cluster/suite/tests/node/timeline.rs`).
const TIMELINE: &str = "PLIMSOLL_TEST_TIMELINE";
/// Logs, the timelines, and what kubectl says.
const PLACE: &str = "target/demo-cluster";
/// Width and height of the picture in pixels.
const SIZE: (u32, u32) = (1440, 640);
/// How wide a character is, as a part of the axis.
const CHARACTER: f64 = 0.006;

/// One race.
#[derive(Debug, Deserialize)]
struct Side {
    name: String,
    outcome: String,
    moments: Vec<Moment>,
    /// As kubectl describes the node and the pod that grew.
    node: String,
    pod: String,
}

/// Something has another state.
#[derive(Debug, Deserialize)]
struct Moment {
    /// Milliseconds since memory was short.
    ms: u64,
    lane: String,
    state: String,
}

/// Runs both, and shows them.
pub(super) fn run(svg: Option<&Path>) -> anyhow::Result<()> {
    let place = run::root().join(PLACE);
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let timelines = place.join("timelines.json");
    // Of an earlier run.
    let _ = fs::remove_file(&timelines);
    let program = kube::program()?;
    println!("a cluster with a node is started, and both races are run in it: ten minutes, emulated");
    cluster::beside(place.join("cluster"), Some(cluster::NODE_KERNEL), |kubeconfig| {
        let mut test = cluster::tests("plimsoll-cluster-suite", "node", kubeconfig, &program);
        run::shown(test.env(TIMELINE, &timelines).args(["--", "--exact", cluster::RACE]))
    })?;
    let text = fs::read_to_string(&timelines).with_context(|| format!("the test left no {}", timelines.display()))?;
    let sides = text.lines().map(serde_json::from_str).collect::<Result<Vec<Side>, _>>()?;
    ensure!(sides.len() == 2, "expected two races in {}, and there are {}", timelines.display(), sides.len());
    print!("\n{}", side_by_side(&sides));
    for side in &sides {
        for (what, described) in [("node", &side.node), ("pod", &side.pod)] {
            let file = place.join(format!("{what}, {}.txt", side.name));
            fs::write(&file, described).with_context(|| format!("cannot write {}", file.display()))?;
            println!("kubectl describe {what}, {}: {}", side.name, file.display());
        }
    }
    let file = svg.map_or_else(|| run::root().join("target/demo-cluster.svg"), Path::to_owned);
    draw(&file, &sides)?;
    println!("picture: {}", file.display());
    Ok(())
}

/// A line for each change, with a column for each race.
fn side_by_side(sides: &[Side]) -> String {
    const WIDTH: usize = 56;
    let mut text = format!("{:>9}", "");
    for side in sides {
        let _ = write!(text, "  {:<WIDTH$}", side.name);
    }
    let mut rows: Vec<(u64, usize, String)> = Vec::new();
    for (column, side) in sides.iter().enumerate() {
        rows.extend(side.moments.iter().map(|it| (it.ms, column, format!("{}: {}", it.lane, it.state))));
    }
    rows.sort();
    for (ms, column, what) in rows {
        let indent = column * (WIDTH + 2);
        let _ = write!(text, "\n{:>7.1} s  {:indent$}{what}", float(ms) / 1e3, "");
    }
    text.push_str("\n\n");
    for side in sides {
        let _ = writeln!(text, "{}: {}", side.name, side.outcome);
    }
    text
}

fn draw(file: &Path, sides: &[Side]) -> anyhow::Result<()> {
    let latest = sides.iter().flat_map(|side| &side.moments).map(|it| float(it.ms) / 1e3).fold(1.0, f64::max);
    let end = latest * 1.15;
    let words = Words {
        title: &sides.iter().map(|side| &side.name[..]).collect::<Vec<_>>().join("; "),
        description: "Two races side by side: what changed how many seconds after memory was short.",
    };
    picture::write(file, SIZE, words, |area| {
        for (side, panel) in sides.iter().zip(area.split_evenly((sides.len().max(1), 1))) {
            lanes(&panel, side, end)?;
        }
        Ok(())
    })
}

/// A bar for each thing that has states, from one change to the next.
fn lanes(panel: &Area<'_>, side: &Side, end: f64) -> Drawn {
    let mut seen = BTreeSet::new();
    let names: Vec<&str> = side.moments.iter().map(|it| it.lane.as_str()).filter(|lane| seen.insert(*lane)).collect();
    let height = float(names.len() as u64);
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("{}: {}", side.name, side.outcome), ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(190)
        .build_cartesian_2d(0.0..end, 0.0..height)?;
    chart.configure_mesh().disable_y_mesh().disable_y_axis().x_desc("seconds after memory was short").draw()?;
    for (row, lane) in names.iter().enumerate() {
        let top = height - float(row as u64);
        let of_lane: Vec<&Moment> = side.moments.iter().filter(|it| it.lane == *lane).collect();
        let middle = top - 0.55;
        chart.draw_series([
            EmptyElement::at((0.0, middle)) + Text::new((*lane).to_owned(), (-182, 0), ("sans-serif", 13))
        ])?;
        for (at, moment) in of_lane.iter().enumerate() {
            let from = float(moment.ms) / 1e3;
            let to = of_lane.get(at + 1).map_or(end, |next| float(next.ms) / 1e3);
            let bar = Rectangle::new([(from, top - 0.85), (to, top - 0.15)], colour(&moment.state).mix(0.75).filled());
            chart.draw_series([bar])?;
            // One that is too short for its name is read from its colour.
            if to - from > end * CHARACTER * float(moment.state.len() as u64) {
                let label = Text::new(moment.state.clone(), (4, 0), ("sans-serif", 12));
                chart.draw_series([EmptyElement::at((from, middle)) + label])?;
            }
        }
    }
    Ok(())
}

/// What calls for a person is red, what is well green, and what is reported orange.
fn colour(state: &str) -> RGBColor {
    match state {
        "Running" | "available" => GREEN,
        "short" | "True" => ORANGE,
        failed if failed.starts_with("Failed") || failed.ends_with("kills") || failed.contains("again") => THRESHOLD,
        _ => GREY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(name: &str, moments: &[(u64, &str, &str)]) -> Side {
        let moments =
            moments.iter().map(|(ms, lane, state)| Moment { ms: *ms, lane: (*lane).into(), state: (*state).into() });
        let (node, pod) = (String::new(), String::new());
        Side { name: name.into(), outcome: "ended".into(), moments: moments.collect(), node, pod }
    }

    #[test]
    fn changes_of_both_are_in_the_order_of_time_each_in_its_column() {
        let alone = side("alone", &[(0, "memory", "short"), (31_000, "OOM killer", "1 kills")]);
        let beside = side("beside", &[(0, "memory", "short"), (400, "memory", "available")]);
        let text = side_by_side(&[alone, beside]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "    0.0 s  memory: short");
        assert!(lines[3].starts_with("    0.4 s  ") && lines[3].find("memory: available") == Some(11 + 58), "{text}");
        assert!(lines[4].starts_with("   31.0 s  OOM killer: 1 kills"), "{text}");
        assert!(text.ends_with("alone: ended\nbeside: ended\n"), "{text}");
    }

    #[test]
    fn a_picture_has_both_with_their_states() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("picture.svg");
        let sides = [side("alone", &[(0, "memory", "short")]), side("beside", &[(9, "grower", "Failed: Evicted")])];
        draw(&file, &sides).expect("it is drawn");
        let text = fs::read_to_string(file).expect("it is written");
        for part in ["alone: ended", "beside: ended", "short", "Failed: Evicted", "seconds after memory was short"] {
            assert!(text.contains(part), "{part}");
        }
    }
}
