//! What is served: metrics, readiness, and the report of a dry run.

use std::sync::{Arc, Mutex};

use plimsoll_node::meminfo::MemInfo;
use plimsoll_units::MonotonicNs;

use crate::health::Health;
use crate::lock;
use crate::metrics::Metrics;

/// What the answers are made from. None of it is locked for as long as a record is reported.
pub struct Answers {
    pub(crate) metrics: Metrics,
    pub(crate) health: Arc<Mutex<Health>>,
    /// Absent where it could not be opened.
    pub(crate) memory: Option<Arc<MemInfo>>,
    pub(crate) clock: fn() -> MonotonicNs,
    /// Why this machine's memory as a whole is not watched, if so.
    pub(crate) unwatched: Option<&'static str>,
}

impl Answers {
    /// Readiness now, and its reasons, each on a line.
    pub fn readiness(&self) -> (bool, String) {
        let (ready, mut text) = lock(&self.health).judge((self.clock)());
        if let Some(why) = self.unwatched {
            text.push_str(why);
            text.push('\n');
        }
        (ready, text)
    }

    /// What a dry run would have evicted, beside what the kubelet and the OOM killer ended.
    pub fn comparison(&self) -> String {
        self.metrics.comparison.report((self.clock)())
    }

    /// All metrics in the text format of OpenMetrics, with the memory that is available now.
    pub fn metrics(&self) -> String {
        let begun = (self.clock)();
        // Ready is to act. It is asked now, because a core that was killed or hangs reports no end of that.
        let (acts, _) = lock(&self.health).judge(begun);
        self.metrics.acting.set(acts.into());
        // Of a pod that lives on no record comes.
        self.metrics.comparison.expire(begun);
        if let Some(reading) = self.memory.as_ref().and_then(|memory| memory.read().ok()) {
            self.metrics.set_available(&reading, begun, (self.clock)().since(begun));
        }
        self.metrics.text()
    }
}
