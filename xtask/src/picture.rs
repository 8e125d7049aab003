//! What pictures have in common: numbers to draw, colours, and how they are written.

use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Bytes in one MiB.
pub(crate) const MIB: f64 = 1_048_576.0;
/// Colours that differ for the colour-blind, too.
pub(crate) const GREY: RGBColor = RGBColor(0x55, 0x55, 0x55);
pub(crate) const BLUE: RGBColor = RGBColor(0x44, 0x77, 0xAA);
pub(crate) const ORANGE: RGBColor = RGBColor(0xEE, 0x77, 0x33);
pub(crate) const GREEN: RGBColor = RGBColor(0x00, 0x88, 0x66);
/// The colour of thresholds.
pub(crate) const THRESHOLD: RGBColor = RGBColor(0xCC, 0x33, 0x33);

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A count as a number to draw or print.
#[expect(clippy::cast_precision_loss, reason = "a picture has fewer digits")]
pub(crate) fn float(value: u64) -> f64 {
    value as f64
}

/// A difference as a number to draw or print.
#[expect(clippy::cast_precision_loss, reason = "a picture has fewer digits")]
pub(crate) fn signed(value: i64) -> f64 {
    value as f64
}

/// The place of a number that is not negative.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the caller keeps it in range")]
pub(crate) fn index(value: f64) -> usize {
    value as usize
}

/// Writes what `picture` draws, with this width and height in pixels, into `file`.
pub(crate) fn write(file: &Path, size: (u32, u32), picture: impl FnOnce(&Area<'_>) -> Drawn) -> anyhow::Result<()> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| picture(&area));
        drawn.and_then(|()| Ok(area.present()?)).map_err(|error| anyhow!("cannot draw: {error}"))?;
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
