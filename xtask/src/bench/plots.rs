//! A plot for each cell: how long after the crossing memory was back, and how far past the threshold it came, a row for
//! each rival with its rounds, their median and its interval.

use std::path::Path;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figures::{self, AWAKE, Figure, MEMORY_BACK, PAST, STOPPED};
use super::measured::Measured;
use super::rivals::{Family, RIVALS};
use super::store::Done;
use crate::picture::{self, Area, Drawn, GREY, MIB, THRESHOLD, Words, float};
use crate::statistics::NEVER;

/// Pixels: of the whole, of what is above the panels, of the times' panel, of a row, and of what is below the rows.
///
/// Text of 15 pixels in so many is 7.5 points where the plot is 170 mm wide, as on a page of A4.
const WIDTH: u32 = 960;
const HEADER: u32 = 130;
const TIMES: u32 = 600;
const ROW: u32 = 40;
const FOOTER: u32 = 100;
/// Pixels for the names of rivals, and above the rows for the names of lines.
const NAMES: u32 = 170;
const LINES: u32 = 26;
/// Pixels that a letter of 15 pixels takes in a sentence, rounded up, and where the text above the panels begins.
const LETTER: i32 = 8;
const LEFT: i32 = 16;
/// The radius of what stands for a round, in pixels.
const ROUND: i32 = 3;
/// Where in a row of height 1 the rounds are, over how much they are spread, and where the moments before are.
const ROUNDS_AT: f64 = 0.1;
const SPREAD: f64 = 0.4;
const MOMENTS_AT: f64 = -0.34;
/// The shortest time that is drawn, in ms: a logarithmic axis has no zero.
const SHORTEST: f64 = 0.01;

type Chart<'a, 'b, X> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, RangedCoordf64>>;

/// Whether there is anything to draw: memory was back in some round.
pub(super) fn is_drawn(measured: &Measured) -> bool {
    measured.rounds.iter().any(|round| (MEMORY_BACK.of)(round).is_some())
}

/// Draws a cell, where there is anything to draw.
pub(super) fn save(file: &Path, done: &Done) -> anyhow::Result<()> {
    if is_drawn(&done.kept.measured) { draw(file, done) } else { Ok(()) }
}

fn draw(file: &Path, done: &Done) -> anyhow::Result<()> {
    let rows = u32::try_from(RIVALS.len())?;
    let Done { cell, kept, .. } = done;
    let words = Words {
        title: &format!("{}: {}", cell.name(), cell.what()),
        description: &format!(
            "A row for each rival with its rounds, their median and its interval: milliseconds from the crossing of the \
             threshold until memory was back, and MiB past the threshold. The tables beside have the same figures. \
             {}, revision {}.",
            kept.date, kept.revision
        ),
    };
    picture::write(file, (WIDTH, HEADER + ROW * rows + FOOTER), words, |area| {
        let (above, panels) = area.split_vertically(HEADER);
        header(&above, done)?;
        let (left, right) = panels.split_horizontally(TIMES);
        times(&left, &done.kept.measured)?;
        sizes(&right, &done.kept.measured)
    })
}

/// What is drawn, where it is from, and what colours and marks stand for.
fn header(area: &Area<'_>, Done { cell, kept, .. }: &Done) -> Drawn {
    let measured = &kept.measured;
    area.draw_text(&cell.name(), &text(18, HPos::Left), (LEFT, 18))?;
    area.draw_text(&cell.what(), &text(15, HPos::Left), (LEFT, 42))?;
    let from = format!(
        "Linux {}, {} MiB, emulated at 2 ns an instruction; {}, revision {}",
        measured.kernel,
        measured.memory_bytes >> 20,
        kept.date,
        kept.revision
    );
    area.draw_text(&from, &text(14, HPos::Left), (LEFT, 66))?;
    let label = |what: &str, x: &mut i32, y: i32| {
        let mark = *x + 9;
        area.draw_text(what, &text(15, HPos::Left), (*x + 24, y))?;
        *x += 48 + LETTER * i32::try_from(what.len()).unwrap_or(0);
        Ok::<_, Box<dyn std::error::Error>>((mark, y))
    };
    let mut x = LEFT;
    for family in Family::ALL {
        let place = label(family.name(), &mut x, 92)?;
        area.draw(&Circle::new(place, 5, family.colour().filled()))?;
    }
    let mut x = LEFT;
    let place = label("a round", &mut x, 116)?;
    area.draw(&Circle::new(place, ROUND, GREY.mix(0.35).filled()))?;
    let (at, y) = label("median", &mut x, 116)?;
    area.draw(&PathElement::new([(at, y - 7), (at, y + 7)], BLACK.stroke_width(2)))?;
    let (at, y) = label("its 95 % interval", &mut x, 116)?;
    area.draw(&PathElement::new([(at - 8, y), (at + 8, y)], GREY.stroke_width(4)))?;
    let place = label("awake, median", &mut x, 116)?;
    area.draw(&TriangleMarker::new(place, 6, GREY.filled()))?;
    let (at, y) = label("growth stopped, median", &mut x, 116)?;
    area.draw(&Rectangle::new([(at - 4, y - 4), (at + 4, y + 4)], GREY.stroke_width(2)))?;
    Ok(())
}

/// From the crossing until memory was back.
fn times(panel: &Area<'_>, measured: &Measured) -> Drawn {
    let bare = figures::bare(measured).map(|bare| in_ms(bare.median));
    let moment = |figure: &Figure, rival: &str| figure.summary(measured, rival).map(|found| in_ms(found.median));
    let moments = RIVALS.iter().flat_map(|(name, _)| [moment(&AWAKE, name), moment(&STOPPED, name)]).flatten();
    let backs = || measured.rounds.iter().filter_map(MEMORY_BACK.of);
    let seen = backs().filter(|ns| *ns != NEVER).map(in_ms);
    let (low, high) = decades(moments.filter(|ms| *ms < in_ms(NEVER)).chain(seen).chain(bare));
    // What never happened is behind all that did.
    let has_never = backs().any(|ns| ns == NEVER);
    let (never, end) = if has_never { (high * 1.6, high * 2.0) } else { (high, high * 1.1) };
    let place = |ns| in_ms(ns).min(never);
    let mut chart = builder(panel, NAMES).build_cartesian_2d((low * 0.9..end).log_scale(), rows())?;
    frame(&mut chart, "ms from the crossing until memory was back", &|ms| {
        // A power of ten.
        if *ms < 0.9 { format!("{ms:.2}").trim_end_matches('0').to_owned() } else { format!("{ms:.0}") }
    })?;
    names(panel, &chart, low * 0.9)?;
    if let Some(bare) = bare {
        line(panel, &mut chart, bare, ("a bare kill", HPos::Center), BLACK)?;
    }
    if has_never {
        let name = format!("not within {} s", measured.limit_ns / 1_000_000_000);
        line(panel, &mut chart, never, (&name, HPos::Right), THRESHOLD)?;
    }
    let mut has_early = false;
    for (row, (name, family)) in RIVALS.into_iter().enumerate() {
        spread(&mut chart, row, family.colour(), &MEMORY_BACK, measured, name, &place)?;
        let early = measured.of(name).filter(|round| round.has_acted() && round.is_before_crossing());
        for number in 0..early.count() {
            let at = (low, middle(row) + ROUNDS_AT + SPREAD * scatter(number));
            chart.draw_series([Circle::new(at, ROUND, family.colour().stroke_width(1))])?;
            has_early = true;
        }
        let moments_at = middle(row) + MOMENTS_AT;
        if let Some(awake) = moment(&AWAKE, name).map(|ms| ms.min(never)) {
            chart.draw_series([TriangleMarker::new((awake, moments_at), 6, family.colour().filled())])?;
        }
        if let Some(stopped) = moment(&STOPPED, name).map(|ms| ms.min(never)) {
            let square = Rectangle::new([(-4, -4), (4, 4)], family.colour().stroke_width(2));
            chart.draw_series([EmptyElement::at((stopped, moments_at)) + square])?;
        }
    }
    if has_early {
        line(panel, &mut chart, low, ("○ before the crossing", HPos::Center), THRESHOLD)?;
    }
    Ok(())
}

/// How far past the threshold it came.
fn sizes(panel: &Area<'_>, measured: &Measured) -> Drawn {
    let in_mib = |bytes: u64| float(bytes) / MIB;
    let room = in_mib(measured.room_bytes);
    let most = measured.rounds.iter().filter_map(PAST.of).map(in_mib).fold(room, f64::max);
    let mut chart = builder(panel, 44).build_cartesian_2d(-0.04 * most..1.25 * most, rows())?;
    frame(&mut chart, "MiB past the threshold", &|mib| format!("{mib:.0}"))?;
    // To different sides, because one may be close to the other.
    line(panel, &mut chart, 0.0, ("threshold", HPos::Right), THRESHOLD)?;
    line(panel, &mut chart, room, ("MemAvailable is 0", HPos::Left), THRESHOLD)?;
    for (row, (name, family)) in RIVALS.into_iter().enumerate() {
        spread(&mut chart, row, family.colour(), &PAST, measured, name, &in_mib)?;
    }
    Ok(())
}

/// The powers of ten around all of these.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values.fold((f64::MAX, SHORTEST), |(least, most), one| (one.min(least), one.max(most)));
    (10_f64.powf(least.min(most).log10().floor()), 10_f64.powf(most.log10().ceil()))
}

fn in_ms(ns: u64) -> f64 {
    (float(ns) / 1e6).max(SHORTEST)
}

fn rows() -> std::ops::Range<f64> {
    0.0..float(RIVALS.len() as u64)
}

/// The middle of a row; the first is above the others.
fn middle(row: usize) -> f64 {
    rows().end - float(row as u64) - 0.5
}

/// Letters of so many pixels: the library writes sizes divided by 1.24 into an SVG.
fn font(pixels: u32) -> (&'static str, f64) {
    ("sans-serif", f64::from(pixels) * 1.24)
}

fn text(pixels: u32, side: HPos) -> TextStyle<'static> {
    TextStyle::from(font(pixels).into_font()).pos(Pos::new(side, VPos::Center))
}

fn builder<'a, 'b>(panel: &'a Area<'b>, names: u32) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(panel);
    builder
        .margin_left(12)
        .margin_right(20)
        .margin_top(LINES)
        .margin_bottom(8)
        .x_label_area_size(48)
        .y_label_area_size(names);
    builder
}

/// The axis with its name, and a line below each row.
fn frame<X: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    chart: &mut Chart<'_, '_, X>,
    what: &str,
    format: &dyn Fn(&f64) -> String,
) -> Drawn {
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_max_light_lines(0)
        .x_labels(8)
        .x_label_style(font(14))
        .x_label_formatter(format)
        .axis_desc_style(font(15))
        .x_desc(what)
        .draw()?;
    let ends = chart.x_range();
    let lines = (0..RIVALS.len()).map(|row| {
        let below = middle(row) - 0.5;
        PathElement::new([(ends.start, below), (ends.end, below)], BLACK.mix(0.15))
    });
    chart.draw_series(lines)?;
    Ok(())
}

/// The rivals' names, left of the axis, which begins at `start`.
fn names<X: Ranged<ValueType = f64>>(panel: &Area<'_>, chart: &Chart<'_, '_, X>, start: f64) -> Drawn {
    for (row, (name, family)) in RIVALS.into_iter().enumerate() {
        let (x, y) = in_panel(panel, chart, (start, middle(row)));
        panel.draw_text(name, &text(15, HPos::Right).color(&family.colour()), (x - 10, y))?;
    }
    Ok(())
}

/// A dashed line through all rows, with its name above it.
fn line<X: Ranged<ValueType = f64>>(
    panel: &Area<'_>,
    chart: &mut Chart<'_, '_, X>,
    at: f64,
    (name, side): (&str, HPos),
    colour: RGBColor,
) -> Drawn {
    let ends = [(at, rows().start), (at, rows().end)];
    chart.draw_series(DashedLineSeries::new(ends, 6, 4, colour.stroke_width(1)))?;
    let (x, y) = in_panel(panel, chart, (at, rows().end));
    panel.draw_text(name, &text(14, side).color(&colour), (x, y - 11))?;
    Ok(())
}

/// Where a place of the chart is in its panel, in pixels.
fn in_panel<X: Ranged<ValueType = f64>>(panel: &Area<'_>, chart: &Chart<'_, '_, X>, place: (f64, f64)) -> (i32, i32) {
    let ((x, y), (left, top)) = (chart.backend_coord(&place), panel.get_base_pixel());
    (x - left, y - top)
}

/// One figure of one rival: each round, the median and its interval, or why there is none.
fn spread<X: Ranged<ValueType = f64>>(
    chart: &mut Chart<'_, '_, X>,
    row: usize,
    colour: RGBColor,
    figure: &Figure,
    measured: &Measured,
    rival: &str,
    scale: &dyn Fn(u64) -> f64,
) -> Drawn {
    let at = middle(row) + ROUNDS_AT;
    let Some(summary) = figure.summary(measured, rival) else {
        let why = if measured.of(rival).next().is_some() { "not seen" } else { "NOT RUN" };
        // Right of a line near the start.
        let label = Text::new(why, (24, 0), text(14, HPos::Left).color(&GREY));
        chart.draw_series([EmptyElement::at((chart.x_range().start, middle(row))) + label])?;
        return Ok(());
    };
    let rounds = measured.of(rival).filter_map(figure.of).enumerate();
    let rounds = rounds.map(|(number, value)| {
        Circle::new((scale(value), at + SPREAD * scatter(number)), ROUND, colour.mix(0.35).filled())
    });
    chart.draw_series(rounds)?;
    if let Some((low, high)) = summary.interval {
        chart.draw_series([PathElement::new([(scale(low), at), (scale(high), at)], colour.stroke_width(4))])?;
    }
    let median = scale(summary.median);
    chart.draw_series([PathElement::new([(median, at - 0.26), (median, at + 0.26)], BLACK.stroke_width(2))])?;
    Ok(())
}

/// Between -0.5 and 0.5, so that rounds with the same value are seen beside each other.
fn scatter(number: usize) -> f64 {
    (float(number as u64) * 0.618_034).fract() - 0.5
}

#[cfg(test)]
mod tests {
    use super::super::cells;
    use super::super::measured::KilledBy;
    use super::super::sample;
    use super::*;

    #[test]
    fn each_rival_has_a_row_in_both_panels() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("anon.svg");
        let done = sample();
        draw(&file, &done).expect("it can be drawn");
        let svg = std::fs::read_to_string(file).expect("it was written");
        assert!(
            svg.contains("<title>anon: one process fills") && svg.contains("2026-01-02, revision abc.</desc>"),
            "{svg}"
        );
        let texts = |what: &str| svg.lines().filter(|line| line.trim() == what).count();
        for (name, _) in RIVALS {
            assert_eq!(texts(name), 1, "{name}");
        }
        for (what, times) in
            [("a bare kill", 1), ("threshold", 1), ("MemAvailable is 0", 1), ("NOT RUN", 12), ("median", 1)]
        {
            assert_eq!(texts(what), times, "{what}");
        }
        // A circle for each round in each panel, and those of the legend.
        let circles = svg.split("<circle cx=\"").skip(1 + Family::ALL.len() + 1);
        let circles: Vec<i32> = circles.filter_map(|rest| rest.split('"').next()?.parse().ok()).collect();
        let rounds = done.kept.measured.rounds.len();
        assert_eq!(circles.len(), 2 * rounds);
        // The sample begins with the kernel alone, which takes longer and more from round to round, and than with eBPF.
        for panel in circles.chunks(rounds) {
            assert!(panel[..6].is_sorted() && panel[0] < panel[5] && panel[12] < panel[0], "{panel:?}");
        }
    }

    #[test]
    fn what_each_cell_measures_fits_above_the_panels() {
        for cell in cells::all() {
            let pixels = LEFT + LETTER * i32::try_from(cell.what().len()).expect("a line");
            assert!(pixels < i32::try_from(WIDTH).expect("pixels"), "{}", cell.what());
        }
    }

    #[test]
    fn what_never_happened_is_at_the_right_edge() {
        let place = tempfile::tempdir().expect("a directory");
        let drawn = |done: &Done| {
            let file = place.path().join("anon.svg");
            draw(&file, done).expect("it can be drawn");
            std::fs::read_to_string(file).expect("it was written")
        };
        let mut done = sample();
        assert!(!drawn(&done).contains("not within"));
        let last = done.kept.measured.rounds.iter_mut().rev().find(|round| round.rival == "earlyoom").expect("a round");
        last.crossed_to_memory_back_ns = None;
        let svg = drawn(&done);
        assert!(svg.lines().any(|line| line.trim() == "not within 45 s"), "{svg}");
        let circles = svg.split("<circle cx=\"").skip(1 + Family::ALL.len() + 1);
        let circles: Vec<i32> = circles.filter_map(|rest| rest.split('"').next()?.parse().ok()).collect();
        let (times, _) = circles.split_at(done.kept.measured.rounds.len());
        let most = *times.iter().max().expect("rounds");
        assert_eq!(times.iter().filter(|x| **x == most).count(), 1);
        assert!((530..=580).contains(&most), "{most} of a panel of {TIMES}");
    }

    #[test]
    fn a_round_of_a_rival_that_killed_before_the_crossing_is_at_the_left_edge() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("anon.svg");
        let mut done = sample();
        let first = done.kept.measured.rounds.iter_mut().find(|round| round.rival == "earlyoom").expect("a round");
        (first.killed_by, first.oom_kills) = (Some(KilledBy::Rival), 0);
        (first.crossed_to_memory_back_ns, first.past_threshold_bytes) = (None, None);
        draw(&file, &done).expect("it can be drawn");
        let svg = std::fs::read_to_string(file).expect("it was written");
        assert!(svg.lines().any(|line| line.trim() == "○ before the crossing"), "{svg}");
        let is_hollow = |line: &&str| line.starts_with("<circle ") && line.contains("fill=\"none\"");
        assert_eq!(svg.lines().filter(is_hollow).count(), 1, "{svg}");
    }

    #[test]
    fn an_axis_ends_with_powers_of_ten() {
        assert_eq!(decades([0.4, 250.0].into_iter()), (0.1, 1000.0));
        assert_eq!(decades([in_ms(0)].into_iter()), (0.01, 0.01));
        assert_eq!(decades(std::iter::empty()), (0.01, 0.01));
    }
}
