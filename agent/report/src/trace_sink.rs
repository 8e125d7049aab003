//! Observations and plans as entries of a trace.

use plimsoll_config::Configuration;

use crate::observed::Observed;
use crate::plan::Draft;
use crate::record::ObservationRecord;
use crate::trace::Entry;

/// Where entries go. False: there was no room for one.
pub(crate) type Entries = Box<dyn FnMut(Entry) -> bool + Send>;

/// Has observations and plans written, if a trace is.
#[derive(Default)]
pub(crate) struct TraceSink {
    pub(crate) entries: Option<Entries>,
    observed: Observed,
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

    pub(crate) fn plan(&mut self, draft: &Draft, configuration: &Configuration) {
        if let Some(entries) = &mut self.entries {
            // What there is no room for is in the log.
            let _ = entries(Entry::Reported(draft.reported(configuration)));
        }
    }
}
