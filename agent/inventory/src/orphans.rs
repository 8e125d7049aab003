//! Pods that are gone for good and whose directories are still there: reported, and removed by nothing
//! (decision 20).

use core::time::Duration;
use std::collections::{HashMap, HashSet};

use plimsoll_policy::Uid;
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

use crate::storage::Storage;
use crate::{Measurer, PartUsage, Pods, StoragePart};

/// A pod has to have been gone for so long: twice as long as the kubelet takes, which removes directories of pods every two
/// seconds (`housekeepingPeriod`) and those of logs every minute (`ContainerGCPeriod`, pkg/kubelet/kubelet.go).
const GONE_FOR: Duration = Duration::from_mins(2);

/// What there is of such pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanedPods {
    /// How many pods of which it is known what their directories take.
    pub measured: u32,
    /// How many pods of which that is not known.
    pub unmeasured: u32,
    /// What the logs of those that are measured take, with the files beside them.
    pub logs: Bytes,
    /// What their volumes on disks take; those in memory take nothing of one.
    pub volumes: Bytes,
    /// The first of all of them by its UID; absent where there are none.
    pub first: Option<Uid>,
}

/// Since when pods have been gone.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    since: HashMap<Uid, Gone>,
    /// How many there were at the last time, and which was the first.
    last: (u32, Option<Uid>),
    /// How many rounds had ended at the last time.
    rounds: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Gone {
    at: MonotonicNs,
    /// How many rounds the scanner and `services` had ended then.
    rounds: [u64; 2],
}

/// How many rounds the scanner and `services` have ended.
fn rounds(storage: &Storage) -> [u64; 2] {
    [Measurer::Scanner, Measurer::Services].map(|measurer| storage.rounds(measurer))
}

impl Orphans {
    /// Whether a round has ended since they were found, which is often enough: a directory is found by rounds alone.
    pub(crate) fn may_differ(&self, storage: &Storage) -> bool {
        self.rounds != rounds(storage)
    }

    /// Those of now; `None` where it is not known which pods are gone. That is a pod of which the scanner has found
    /// directories, and of which neither the source of pods nor the container runtime has said anything, nor has it a cgroup,
    /// for [`GONE_FOR`] and over a whole round of both.
    pub(crate) fn find(
        &mut self,
        storage: &Storage,
        pods: &Pods,
        cgroups: &HashSet<Uid>,
        now: MonotonicNs,
    ) -> Option<OrphanedPods> {
        let rounds = rounds(storage);
        if rounds.contains(&0) {
            return None;
        }
        let mut gone = HashSet::new();
        for uid in storage.measured(Measurer::Scanner) {
            if !pods.is_named(uid)? && !storage.has(uid, Measurer::Services) && !cgroups.contains(&uid) {
                gone.insert(uid);
            }
        }
        self.since.retain(|uid, _| gone.contains(uid));
        let mut found = OrphanedPods::default();
        for uid in gone {
            let since = self.since.entry(uid).or_insert(Gone { at: now, rounds });
            // Of a round that was under way the beginning is from before.
            let is_said_since = rounds.iter().zip(since.rounds).all(|(ended, before)| *ended >= before + 2);
            if is_said_since && now.since(since.at) >= GONE_FOR {
                found.add(uid, storage.parts(uid, Measurer::Scanner));
            }
        }
        self.rounds = rounds;
        Some(found)
    }

    /// Whether their number or the first of them is another than at the last time: what they take may change all the time.
    pub(crate) fn is_new(&mut self, found: OrphanedPods) -> bool {
        let found = (found.measured.saturating_add(found.unmeasured), found.first);
        std::mem::replace(&mut self.last, found) != found
    }
}

impl OrphanedPods {
    fn add(&mut self, uid: Uid, parts: impl Iterator<Item = PartUsage>) {
        self.first = Some(self.first.map_or(uid, |first| first.min(uid)));
        let (mut logs, mut volumes) = (Some(0_u64), Some(0_u64));
        for PartUsage { part, used, .. } in parts {
            let sum = match part {
                // What is in memory takes nothing of a disk.
                StoragePart::Volume { is_local: false, .. } => continue,
                StoragePart::Volume { is_local: true, .. } => &mut volumes,
                StoragePart::Logs(_) | StoragePart::Rest | StoragePart::Layer(_) => &mut logs,
            };
            *sum = sum.zip(used).map(|(sum, (bytes, _))| sum.saturating_add(bytes));
        }
        match logs.zip(volumes) {
            Some((logs, volumes)) => {
                self.measured += 1;
                self.logs = self.logs.saturating_add(Bytes(logs));
                self.volumes = self.volumes.saturating_add(Bytes(volumes));
            }
            None => self.unmeasured += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PodFacts, PodMessage, StorageMessage};

    const NOW: MonotonicNs = MonotonicNs(1_000_000_000_000);

    struct Node {
        storage: Storage,
        pods: Pods,
        cgroups: HashSet<Uid>,
        orphans: Orphans,
    }

    impl Node {
        fn new() -> Self {
            let mut node = Self {
                storage: Storage::default(),
                pods: Pods::default(),
                cgroups: HashSet::new(),
                orphans: Orphans::default(),
            };
            node.say(PodMessage::Begin);
            node
        }

        fn say(&mut self, message: PodMessage) {
            assert!(self.pods.take(message, HashSet::new), "there is room");
        }

        fn complete(&mut self) {
            self.say(PodMessage::NoOthers);
            self.say(PodMessage::Complete);
        }

        fn measure(&mut self, uid: u128, parts: &[(StoragePart, Option<(u64, u64)>)]) {
            for (part, used) in parts {
                let (part, used, uid) = (*part, *used, Uid(uid));
                let usage = PartUsage { uid, part, used, begun: NOW, ended: NOW };
                assert!(self.storage.take(StorageMessage::Part(usage), Measurer::Scanner), "there is room");
            }
            assert!(self.storage.take(StorageMessage::Measured(Uid(uid)), Measurer::Scanner), "there is room");
        }

        /// A round of both: the scanner finds what it did before, and the runtime has these.
        fn round(&mut self, of_runtime: &[u128]) {
            let found: Vec<Uid> = self.storage.measured(Measurer::Scanner).collect();
            let of_runtime: Vec<Uid> = of_runtime.iter().map(|uid| Uid(*uid)).collect();
            for (measurer, uids) in [(Measurer::Scanner, found), (Measurer::Services, of_runtime)] {
                for uid in uids {
                    let kept: Vec<_> = self.storage.parts(uid, measurer).collect();
                    for part in kept {
                        self.storage.take(StorageMessage::Part(part), measurer);
                    }
                    self.storage.take(StorageMessage::Measured(uid), measurer);
                }
                self.storage.take(StorageMessage::Round, measurer);
            }
        }

        fn find(&mut self, after: Duration) -> Option<OrphanedPods> {
            let Self { storage, pods, cgroups, orphans } = self;
            orphans.find(storage, pods, cgroups, NOW.after(after))
        }
    }

    const LOGS: StoragePart = StoragePart::Logs(1);
    const VOLUME: StoragePart = StoragePart::Volume { name: 1, is_local: true };
    const IN_MEMORY: StoragePart = StoragePart::Volume { name: 2, is_local: false };

    #[test]
    fn which_pods_are_gone_is_not_known_until_all_have_said_so() {
        let mut node = Node::new();
        node.measure(1, &[]);
        node.say(PodMessage::Complete);
        for measurer in [Measurer::Scanner, Measurer::Services] {
            node.storage.take(StorageMessage::Measured(Uid(1)), measurer);
            node.storage.take(StorageMessage::Round, measurer);
        }
        assert_eq!(node.find(Duration::ZERO), None, "the source may name others");
        let mut node = Node::new();
        node.complete();
        assert_eq!(node.find(Duration::ZERO), None, "neither the scanner nor the runtime has");
        node.storage.take(StorageMessage::Round, Measurer::Scanner);
        assert_eq!(node.find(Duration::ZERO), None, "the runtime has not");
        node.storage.take(StorageMessage::Round, Measurer::Services);
        assert_eq!(node.find(Duration::ZERO), Some(OrphanedPods::default()));
    }

    #[test]
    fn one_that_the_source_the_runtime_or_the_kernel_knows_is_not_gone() {
        let mut node = Node::new();
        for uid in 1..=5 {
            node.measure(uid, &[(LOGS, Some((100, 1)))]);
        }
        node.say(PodMessage::Pod(PodFacts { uid: Uid(1), ..PodFacts::default() }));
        node.say(PodMessage::Ended(Uid(5)));
        node.complete();
        node.cgroups.insert(Uid(3));
        node.round(&[2]);
        assert_eq!(node.find(Duration::ZERO), Some(OrphanedPods::default()), "the fourth has not been so for long");
        node.round(&[2]);
        assert_eq!(node.find(GONE_FOR), Some(OrphanedPods::default()), "the last round may have begun before");
        node.round(&[2]);
        let only = OrphanedPods { measured: 1, logs: Bytes(100), first: Some(Uid(4)), ..OrphanedPods::default() };
        let short = GONE_FOR.checked_sub(Duration::from_secs(1)).expect("it is longer");
        assert_eq!(node.find(short), Some(OrphanedPods::default()));
        assert_eq!(node.find(GONE_FOR), Some(only));
        // Its container is started again: its time begins anew after that.
        node.round(&[2, 4]);
        assert_eq!(node.find(GONE_FOR), Some(OrphanedPods::default()));
        node.round(&[2]);
        assert_eq!(node.find(GONE_FOR), Some(OrphanedPods::default()));
    }

    #[test]
    fn they_are_looked_for_after_each_round_and_until_it_is_known_which_pods_there_are() {
        let mut node = Node::new();
        let may_differ = |node: &Node| node.orphans.may_differ(&node.storage);
        assert!(!may_differ(&node), "nothing was measured");
        node.measure(1, &[]);
        node.round(&[]);
        assert_eq!((node.find(Duration::ZERO), may_differ(&node)), (None, true), "the source has not said all");
        node.complete();
        assert_eq!((node.find(Duration::ZERO), may_differ(&node)), (Some(OrphanedPods::default()), false));
        node.measure(1, &[]);
        assert!(!may_differ(&node), "the round is under way");
        for measurer in [Measurer::Scanner, Measurer::Services] {
            node.storage.take(StorageMessage::Round, measurer);
            assert!(may_differ(&node), "{measurer:?}");
            node.find(Duration::ZERO);
            assert!(!may_differ(&node), "{measurer:?}");
        }
    }

    #[test]
    fn another_number_or_another_first_one_is_new_and_another_size_is_not() {
        let none = OrphanedPods::default();
        let one = OrphanedPods { measured: 1, first: Some(Uid(1)), ..none };
        let mut orphans = Orphans::default();
        for (found, expected) in [
            (none, false),
            (one, true),
            (OrphanedPods { logs: Bytes(9), ..one }, false),
            (OrphanedPods { measured: 0, unmeasured: 1, ..one }, false),
            (OrphanedPods { unmeasured: 1, ..one }, true),
            (OrphanedPods { unmeasured: 1, first: Some(Uid(2)), ..one }, true),
            (none, true),
            (none, false),
        ] {
            assert_eq!(orphans.is_new(found), expected, "{found:?}");
        }
    }

    #[test]
    fn what_they_take_is_added_up_and_one_that_is_not_measured_is_counted_apart() {
        let mut node = Node::new();
        node.complete();
        node.measure(7, &[(LOGS, Some((100, 1))), (VOLUME, Some((1000, 9))), (IN_MEMORY, Some((7, 1)))]);
        node.measure(8, &[(StoragePart::Rest, Some((10, 1))), (VOLUME, Some((u64::MAX, 1)))]);
        node.measure(6, &[(LOGS, Some((5, 1))), (VOLUME, None)]);
        node.round(&[]);
        node.find(Duration::ZERO);
        node.round(&[]);
        node.round(&[]);
        let expected = OrphanedPods {
            measured: 2,
            unmeasured: 1,
            logs: Bytes(110),
            volumes: Bytes(u64::MAX),
            first: Some(Uid(6)),
        };
        assert_eq!(node.find(GONE_FOR), Some(expected));
    }
}
