//! Observations and plans as entries of a trace.

use plimsoll_config::Configuration;
use plimsoll_units::MonotonicNs;

use crate::observed::Observed;
use crate::plan::Draft;
use crate::record::{Judged, ObservationRecord};
use crate::trace::{DiskSample, Entry};

/// Where entries go. False: there was no room for one.
pub(crate) type Entries = Box<dyn FnMut(Entry) -> bool + Send>;

/// Has observations and plans written, if a trace is.
#[derive(Default)]
pub(crate) struct TraceSink {
    pub(crate) entries: Option<Entries>,
    observed: Observed,
    /// Samples of disks that were not written since one was.
    missing_of_disks: u32,
}

impl TraceSink {
    pub(crate) fn observation(&mut self, record: &ObservationRecord<'_>, configuration: &Configuration) {
        let Some(entries) = &mut self.entries else { return };
        if let Some(sample) = self.observed.take(record, configuration) {
            let missing = sample.missing;
            if !entries(Entry::Sample(sample)) {
                self.observed.lost(missing);
            }
        }
    }

    pub(crate) fn disks(&mut self, judged: &Judged, at: MonotonicNs) {
        let Some(entries) = &mut self.entries else { return };
        let sample = DiskSample { missing: self.missing_of_disks, ..DiskSample::of(judged, at) };
        let is_written = entries(Entry::Disks(sample));
        self.missing_of_disks = if is_written { 0 } else { self.missing_of_disks.saturating_add(1) };
    }

    pub(crate) fn plan(&mut self, draft: &Draft, configuration: &Configuration) {
        if let Some(entries) = &mut self.entries {
            // What there is no room for is in the log.
            let _ = entries(Entry::Reported(draft.reported(configuration)));
        }
    }
}
