//! The picture: memory available over time, one panel a watcher.

use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::prelude::*;

use super::{Measured, WATCHERS};

/// A count as a number to draw.
#[expect(clippy::cast_precision_loss, reason = "a picture has fewer digits")]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}

/// A difference as a number to draw or print.
#[expect(clippy::cast_precision_loss, reason = "a picture has fewer digits")]
pub(super) fn signed(value: i64) -> f64 {
    value as f64
}

/// The place of a number that is not negative.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the caller keeps it in range")]
pub(super) fn index(value: f64) -> usize {
    value as usize
}

/// Draws the first round of each watcher into `file`.
pub(super) fn draw(file: &Path, measured: &Measured) -> anyhow::Result<()> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (960, 720)).into_drawing_area();
        panels(&area, measured).map_err(|error| anyhow!("cannot draw: {error}"))?;
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn panels(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    measured: &Measured,
) -> Result<(), Box<dyn std::error::Error>> {
    let shown: Vec<_> = WATCHERS
        .iter()
        .filter_map(|(name, what)| Some((name, what, measured.watchers.get(*name)?.rounds.first()?)))
        .collect();
    let backs = shown.iter().filter_map(|(.., round)| round.crossed_to_memory_back_ns);
    let end = backs.map(|ns| float(ns) / 1e9).fold(1.0, f64::max) + 0.5;
    area.fill(&WHITE)?;
    for ((name, what, round), panel) in shown.iter().zip(area.split_evenly((shown.len().max(1), 1))) {
        let line = float(round.line_bytes) / 1_048_576.0;
        let ended = match round.killed_by.as_deref() {
            Some("oom-killer") => "the OOM killer chose",
            Some(_) => "evicted",
            None => "nothing happened",
        };
        let mut chart = ChartBuilder::on(&panel)
            .caption(format!("{name}: {what}; {ended}"), ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(56)
            .build_cartesian_2d(-0.5..end, 0.0..line * 4.0)?;
        chart.configure_mesh().x_desc("seconds after the threshold was crossed").y_desc("MiB available").draw()?;
        chart.draw_series(LineSeries::new([(-0.5, line), (end, line)], RED.stroke_width(1)))?;
        let points = round.trace.iter().map(|(at, bytes)| (signed(*at) / 1e9, float(*bytes) / 1_048_576.0));
        let visible = points.filter(|(at, _)| (-0.5..end).contains(at)).map(|(at, mib)| (at, mib.min(line * 4.0)));
        chart.draw_series(LineSeries::new(visible, BLUE.stroke_width(2)))?;
    }
    area.present()?;
    Ok(())
}
