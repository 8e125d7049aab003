//! By what a list of pods is read: where the kubelet's directory is, and the times that were found before. The API has times
//! by the wall clock; here they are on this boot's monotonic one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use plimsoll_config::Configuration;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_units::MonotonicNs;

/// What one list of pods is read with, and the next ones of the same source.
#[derive(Debug)]
pub(crate) struct PodReader {
    kubelet_root: PathBuf,
    /// Each time as it was found first: a clock that is set does not change it, so that what is known of a pod stays the same.
    times: HashMap<(Uid, MonotonicNs), MonotonicNs>,
}

/// Both clocks at one time.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    monotonic: MonotonicNs,
    since_epoch: Duration,
}

impl Clocks {
    pub(super) fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { monotonic: monotonic(), since_epoch }
    }

    /// A time on a clock that begins in 1970, before this boot as zero.
    fn convert(self, MonotonicNs(written): MonotonicNs) -> MonotonicNs {
        let now = u64::try_from(self.since_epoch.as_nanos()).unwrap_or(u64::MAX);
        let (ago, ahead) = (now.saturating_sub(written), written.saturating_sub(now));
        MonotonicNs(self.monotonic.0.saturating_sub(ago).saturating_add(ahead))
    }
}

impl Default for PodReader {
    fn default() -> Self {
        Self::of(&Configuration::default())
    }
}

impl PodReader {
    pub(crate) fn of(configuration: &Configuration) -> Self {
        Self { kubelet_root: configuration.kubelet_root(), times: HashMap::new() }
    }

    /// The kubelet's own directory, where volume plugins have their sockets.
    pub(super) fn kubelet_root(&self) -> &Path {
        &self.kubelet_root
    }

    /// A pod's time, written on a clock that begins in 1970.
    pub(super) fn time(&mut self, uid: Uid, written: MonotonicNs, clocks: Clocks) -> MonotonicNs {
        *self.times.entry((uid, written)).or_insert_with(|| clocks.convert(written))
    }

    /// Forgets the pods that are not known any more.
    pub(super) fn retain(&mut self, is_known: impl Fn(&Uid) -> bool) {
        self.times.retain(|(uid, _), _| is_known(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Clocks = Clocks { monotonic: MonotonicNs(1000), since_epoch: Duration::from_micros(500) };

    #[test]
    fn a_time_is_converted_once_whatever_the_clock_is_set_to() {
        let (mut reader, uid) = (PodReader::default(), Uid(7));
        let later = Clocks { monotonic: MonotonicNs(2000), since_epoch: Duration::ZERO };
        for (written, expected) in [(499_900, 900), (500_000, 1000), (500_030, 1030), (400_000, 0)] {
            for clocks in [NOW, later] {
                assert_eq!(reader.time(uid, MonotonicNs(written), clocks), MonotonicNs(expected), "{written}");
            }
        }
        reader.retain(|known| *known != uid);
        assert_eq!(reader.time(uid, MonotonicNs(500_000), later), MonotonicNs(502_000), "it was forgotten");
    }
}
