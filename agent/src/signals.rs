//! The signals that a process with a runtime waits for.

use anyhow::Context as _;
use plimsoll_report::{LevelFilter, Log};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, and those that change the level of the log.
pub(crate) struct Signals {
    term: Signal,
    debug: Signal,
    configured: Signal,
}

impl Signals {
    /// From now on. Within a runtime.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let [term, debug, configured] =
            [SignalKind::terminate(), SignalKind::user_defined1(), SignalKind::user_defined2()].map(signal);
        Ok(Self { term: term.context("cannot wait for SIGTERM")?, debug: debug?, configured: configured? })
    }

    /// Waits for SIGTERM, and sets the level of the log meanwhile: to `debug`, or back to `level`.
    pub(crate) async fn end(&mut self, log: &Log, level: LevelFilter) {
        loop {
            tokio::select! {
                // Of both signals the last one here holds.
                biased;
                _ = self.term.recv() => break,
                _ = self.debug.recv() => log.set_level(LevelFilter::DEBUG),
                _ = self.configured.recv() => log.set_level(level),
            }
        }
    }
}
