//! The picture: memory available over time, a panel for each watcher, and beside them all curves over the same axes. What
//! the agent and the OOM killer did is marked on the curves.

use std::path::Path;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::{Measured, Round, WATCHERS};
use crate::picture::{self, Area, BLUE, Drawn, GREEN, MIB, ORANGE, THRESHOLD, Words, float, signed};

/// Width and height in pixels.
const SIZE: (u32, u32) = (1440, 780);
/// The width of the panels of one watcher each.
const SINGLE: u32 = 640;
/// Seconds shown before the crossing.
const BEFORE: f64 = 0.5;
/// The curves' colours.
const COLOURS: [RGBColor; 3] = [BLUE, ORANGE, GREEN];

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws the first round of each watcher into `file`.
pub(super) fn draw(file: &Path, measured: &Measured) -> anyhow::Result<()> {
    let words = Words {
        title: "The same process beside each watcher",
        description: "Available memory over the seconds around the crossing of the threshold: a curve for each watcher's \
                      first round, with marks for what happened.",
    };
    picture::write(file, SIZE, words, |area| panels(area, measured))
}

/// One watcher's round, as it is drawn.
struct Curve<'a> {
    name: &'static str,
    what: &'static str,
    round: &'a Round,
    colour: RGBColor,
}

/// The axes, which all panels share.
struct Axes {
    /// Seconds after the crossing at which they end.
    end: f64,
    /// MiB: the threshold, and the highest that is shown.
    threshold: f64,
    top: f64,
}

fn panels(area: &Area<'_>, measured: &Measured) -> Drawn {
    let curves: Vec<Curve<'_>> = WATCHERS
        .iter()
        .zip(COLOURS)
        .filter_map(|((name, what), colour)| {
            Some(Curve { name, what, round: measured.watchers.get(*name)?.rounds.first()?, colour })
        })
        .collect();
    let backs = curves.iter().filter_map(|curve| curve.round.crossed_to_memory_back_ns).map(seconds);
    let threshold = curves.iter().map(|curve| float(curve.round.threshold_bytes) / MIB).fold(1.0, f64::max);
    let axes = Axes { end: backs.fold(1.0, f64::max) + 0.5, threshold, top: threshold * 4.0 };
    let (single, together) = area.split_horizontally(SINGLE);
    for (curve, panel) in curves.iter().zip(single.split_evenly((curves.len().max(1), 1))) {
        let Curve { name, what, round, .. } = curve;
        let mut chart = panel_chart(&panel, &format!("{name}: {what}; {}", ended(round)), 15, &axes)?;
        curve.line(&axes, &mut chart)?;
        curve.marks(&axes, &mut chart)?;
        legend(&mut chart)?;
    }
    let mut chart = panel_chart(&together, "The same process beside each watcher", 18, &axes)?;
    for curve in &curves {
        curve.line(&axes, &mut chart)?;
    }
    // Above all lines.
    for curve in &curves {
        curve.marks(&axes, &mut chart)?;
    }
    legend(&mut chart)
}

fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

/// How a round ended.
pub(super) fn ended(round: &Round) -> &'static str {
    match round.killed_by.as_deref() {
        Some("oom-killer") => "the OOM killer chose",
        Some(_) => "evicted",
        None => "nothing happened",
    }
}

fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> Drawn {
    let position = SeriesLabelPosition::UpperRight;
    chart.configure_series_labels().position(position).background_style(WHITE).border_style(BLACK.mix(0.4)).draw()?;
    Ok(())
}

/// Axes with the threshold in them.
fn panel_chart<'a, 'b>(
    panel: &'a Area<'b>,
    caption: &str,
    size: u32,
    axes: &Axes,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, ("sans-serif", size))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(-BEFORE..axes.end, 0.0..axes.top)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_label_formatter(&|at| format!("{:.1}", at + 0.0))
        .y_label_formatter(&|mib| format!("{mib:.0}"))
        .x_desc("seconds after the threshold was crossed")
        .y_desc("MiB available")
        .draw()?;
    let ends = [(-BEFORE, axes.threshold), (axes.end, axes.threshold)];
    chart.draw_series(DashedLineSeries::new(ends, 6, 4, THRESHOLD.stroke_width(1)))?;
    Ok(chart)
}

impl Curve<'_> {
    fn line(&self, axes: &Axes, chart: &mut Chart<'_, '_>) -> Drawn {
        let points = self.round.trace.iter().map(|(at, bytes)| (signed(*at) / 1e9, float(*bytes) / MIB));
        let visible = points.filter(|(at, _)| (-BEFORE..axes.end).contains(at));
        let visible = visible.map(|(at, mib)| (at, mib.min(axes.top)));
        let colour = self.colour;
        chart
            .draw_series(LineSeries::new(visible, colour.stroke_width(2)))?
            .label(format!("{}: {}", self.name, ended(self.round)))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        Ok(())
    }

    /// What was done to the process and when, on the curve and in the legend.
    fn marks(&self, axes: &Axes, chart: &mut Chart<'_, '_>) -> Drawn {
        for (at_ns, what) in self.events() {
            let place = (seconds(at_ns), self.available(at_ns).min(axes.top));
            let label = format!("{}: {what} after {:.1} ms", self.name, seconds(at_ns) * 1e3);
            let colour = self.colour;
            match what {
                FROZEN => chart
                    .draw_series([TriangleMarker::new(place, 9, colour.filled())])?
                    .label(label)
                    .legend(move |(x, y)| TriangleMarker::new((x + 9, y), 6, colour.filled())),
                KILLED => chart
                    .draw_series([Cross::new(place, 6, BLACK.stroke_width(2))])?
                    .label(label)
                    .legend(|(x, y)| Cross::new((x + 9, y), 5, BLACK.stroke_width(2))),
                _ => chart
                    .draw_series([Circle::new(place, 6, THRESHOLD.filled())])?
                    .label(label)
                    .legend(|(x, y)| Circle::new((x + 9, y), 5, THRESHOLD.filled())),
            };
        }
        Ok(())
    }

    /// What was done to the process and how long after the crossing, in this order.
    fn events(&self) -> Vec<(u64, &'static str)> {
        let round = self.round;
        let mut events: Vec<(u64, &'static str)> = [
            (round.crossed_to_frozen_ns, FROZEN),
            (round.crossed_to_killed_ns, KILLED),
            (round.crossed_to_oom_kill_ns, OOM_KILL),
        ]
        .into_iter()
        .filter_map(|(at, what)| Some((at?, what)))
        .collect();
        events.sort_unstable();
        events
    }

    /// MiB available by the last sample before then.
    fn available(&self, at_ns: u64) -> f64 {
        let until = i64::try_from(at_ns).unwrap_or(i64::MAX);
        let before = self.round.trace.partition_point(|(at, _)| *at <= until);
        let sample = self.round.trace.get(before.saturating_sub(1));
        sample.map_or(0.0, |(_, bytes)| float(*bytes) / MIB)
    }
}

const FROZEN: &str = "frozen";
const KILLED: &str = "killed";
const OOM_KILL: &str = "OOM kill";
