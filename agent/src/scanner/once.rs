//! What pods take of disks, measured once and for no longer than that is waited for: for commands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use plimsoll_inventory::{PartUsage, StorageMessage, StoragePart};
use plimsoll_policy::Uid;
use plimsoll_storage::StorageError;

use super::round::{Rounds, Sink};

/// What was measured.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalStorage {
    /// Bytes by pod: its volumes that are no others' and on a disk, and its logs. Writable layers, which the container runtime
    /// has, are not among them. Of a pod that could not be measured as a whole there is nothing.
    pub(crate) bytes: BTreeMap<Uid, u64>,
    /// There was no time for some.
    pub(crate) is_cut_short: bool,
}

/// Measures the pods in the kubelet's directory and in that of logs, with the agent's own scanner, at its gentle pace.
pub(crate) fn local_storage(kubelet: PathBuf, logs: PathBuf, within: Duration) -> LocalStorage {
    measured(&mut Rounds::new(kubelet, logs), within)
}

fn measured(rounds: &mut Rounds, within: Duration) -> LocalStorage {
    let mut gathered = Gathered { until: Instant::now() + within, ..Gathered::new() };
    rounds.go(&mut gathered);
    LocalStorage { bytes: gathered.whole, is_cut_short: gathered.is_cut_short }
}

struct Gathered {
    until: Instant,
    whole: BTreeMap<Uid, u64>,
    /// Of the pod that is being measured: the sum of its parts, until one of them is not known.
    sum: Option<u64>,
    is_cut_short: bool,
}

impl Gathered {
    fn new() -> Self {
        Self { until: Instant::now(), whole: BTreeMap::new(), sum: Some(0), is_cut_short: false }
    }
}

impl Sink for Gathered {
    fn complain(&mut self, _: &StorageError) {
        // What is not known is left out of the answer.
    }

    fn send(&mut self, message: StorageMessage) {
        match message {
            // It takes nothing of a disk.
            StorageMessage::Part(PartUsage { part: StoragePart::Volume { is_local: false, .. }, .. })
            | StorageMessage::Round => {}
            StorageMessage::Part(PartUsage { used, .. }) => {
                self.sum = self.sum.zip(used).map(|(sum, (bytes, _))| sum.saturating_add(bytes));
            }
            StorageMessage::Measured(uid) => {
                if let Some(sum) = self.sum.replace(0) {
                    self.whole.insert(uid, sum);
                }
            }
        }
    }

    fn goes_on(&mut self) -> bool {
        self.is_cut_short = Instant::now() >= self.until;
        !self.is_cut_short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_pod_takes_what_its_volumes_and_logs_do_and_one_without_any_takes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let [kubelet, logs] = ["kubelet", "logs"].map(|name| directory.path().join(name));
        let volume = kubelet.join("pods/1/volumes/kubernetes.io~empty-dir/data");
        let log = logs.join("default_web_1/app");
        for place in [&volume, &log, &kubelet.join("pods/2")] {
            fs::create_dir_all(place).expect("writable");
        }
        fs::write(volume.join("file"), vec![1; 70_000]).expect("writable");
        fs::write(log.join("0.log"), [1; 5000]).expect("writable");
        let taken = |path: PathBuf| fs::metadata(path).expect("it is there").blocks() * 512;
        let sum = taken(volume.join("file")) + taken(log.join("0.log")) + taken(volume);
        let mut rounds = Rounds::new(kubelet, logs);
        let expected = BTreeMap::from([(Uid::of("1"), sum), (Uid::of("2"), 0)]);
        assert_eq!(
            measured(&mut rounds, Duration::from_mins(1)),
            LocalStorage { bytes: expected, is_cut_short: false }
        );
        let nothing = LocalStorage { bytes: BTreeMap::new(), is_cut_short: true };
        assert_eq!(measured(&mut rounds, Duration::ZERO), nothing);
    }

    #[test]
    fn a_pod_with_a_part_that_is_not_known_is_absent_and_memory_is_no_disk() {
        let mut gathered = Gathered::new();
        let now = plimsoll_units::MonotonicNs(0);
        let mut send = |number: u128, part, used| {
            let uid = Uid(number);
            gathered.send(StorageMessage::Part(PartUsage { uid, part, used, begun: now, ended: now }));
        };
        send(1, StoragePart::Rest, Some((5, 1)));
        send(1, StoragePart::Volume { name: 1, is_local: false }, Some((1000, 1)));
        gathered.send(StorageMessage::Measured(Uid(1)));
        let mut send = |part, used| {
            gathered.send(StorageMessage::Part(PartUsage { uid: Uid(2), part, used, begun: now, ended: now }));
        };
        send(StoragePart::Logs(1), None);
        send(StoragePart::Rest, Some((5, 1)));
        gathered.send(StorageMessage::Measured(Uid(2)));
        gathered.send(StorageMessage::Measured(Uid(3)));
        assert_eq!(gathered.whole, BTreeMap::from([(Uid(1), 5), (Uid(3), 0)]));
    }
}
