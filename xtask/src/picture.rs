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

/// What a picture is called and what it shows, for readers that do not see it.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a> {
    pub(crate) title: &'a str,
    pub(crate) description: &'a str,
}

/// Writes what `picture` draws, with this width and height in pixels and these words, into `file`.
pub(crate) fn write(
    file: &Path,
    size: (u32, u32),
    words: Words<'_>,
    picture: impl FnOnce(&Area<'_>) -> Drawn,
) -> anyhow::Result<()> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| picture(&area));
        drawn.and_then(|()| Ok(area.present()?)).map_err(|error| anyhow!("cannot draw: {error}"))?;
    }
    let text = with_words(&text, words).context("a picture does not begin with a tag")?;
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The picture with its words as the first elements, where a browser and a screen reader expect them. Nothing where it has
/// no tag to begin with.
fn with_words(svg: &str, words: Words<'_>) -> Option<String> {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let (title, description) = (escaped(words.title), escaped(words.description));
    let (tag, rest) = svg.split_once('>')?;
    Some(format!("{tag}>\n<title>{title}</title>\n<desc>{description}</desc>{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_begins_with_its_words() {
        let words = Words { title: "a & b", description: "x < y" };
        assert_eq!(
            with_words("<svg width=\"1\">\n<rect/>\n</svg>\n", words).as_deref(),
            Some("<svg width=\"1\">\n<title>a &amp; b</title>\n<desc>x &lt; y</desc>\n<rect/>\n</svg>\n")
        );
        assert_eq!(with_words("nothing", words), None);
    }
}
