//! How far something long has come: bars where the output is a terminal, lines alone where it is not.

use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// All bars, so that a line of one does not cut through another.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// A bar on the terminal; without one, only what is printed through it.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar that is full after `total` steps.
    pub(crate) fn new(what: &str, total: u64) -> Self {
        let bar = BARS.add(ProgressBar::new(total).with_message(what.to_owned()));
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}, {elapsed}, about {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    /// Sets the number of steps, once it is known.
    pub(crate) fn expect(&self, total: u64) {
        self.0.set_length(total);
    }

    /// One more is done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// Prints a line above all bars.
    pub(crate) fn line(&self, text: &str) {
        self.above(|| println!("{text}"));
    }

    /// Has what `print` prints appear above all bars.
    pub(crate) fn above(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
        BARS.remove(&self.0);
    }
}
