//! Pods as a table.

use super::Row;
use super::runtime::OfRuntime;

/// A line for each row, below a head.
pub(super) fn table(rows: &[Row], is_wide: bool) -> String {
    let mut lines = vec![cells(is_wide, HEAD.map(str::to_owned))];
    lines.extend(rows.iter().map(|row| cells(is_wide, row.cells())));
    let columns = lines[0].len();
    let widths: Vec<usize> =
        (0..columns).map(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let padded: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// What the cells of a row are called.
pub(super) const HEAD: [&str; 20] = [
    "RANK",
    "POD",
    "QOS",
    "PRIORITY",
    "REQUEST",
    "USAGE",
    "RATE",
    "FORECAST",
    "THROTTLED",
    "DISK",
    "DISTANCE",
    "SWAP",
    "SWAPMAX",
    "ZSWAP",
    "TASKS",
    "TASKMAX",
    "RESTARTS",
    "UID",
    "CGROUP",
    "VERDICT",
];
/// Those that only a wide table has.
pub(super) const WIDE: core::ops::Range<usize> = 10..19;

fn cells(is_wide: bool, cells: [String; HEAD.len()]) -> Vec<String> {
    let shown = |(index, cell): (usize, String)| (is_wide || !WIDE.contains(&index)).then_some(cell);
    cells.into_iter().enumerate().filter_map(shown).collect()
}

impl Row {
    fn cells(&self) -> [String; HEAD.len()] {
        fn text(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "-".to_owned(), |value| value.to_string())
        }
        [
            text(self.rank),
            self.pod.as_ref().unwrap_or(&self.uid).clone(),
            self.qos.to_owned(),
            text(self.priority),
            text(self.request_bytes),
            text(self.usage_bytes),
            text(self.growth.rate()),
            text(self.growth.forecast()),
            text(self.growth.throttled()),
            text(self.disk_bytes),
            text(self.growth.distance_bytes),
            text(self.swap.used),
            text(self.swap.limit),
            text(self.swap.compressed),
            text(self.tasks.count),
            text(self.tasks.limit),
            text(self.runtime.as_ref().map(OfRuntime::restarts).filter(|text| !text.is_empty())),
            self.uid.clone(),
            self.cgroup.clone(),
            self.verdict.clone(),
        ]
    }
}
