//! What each process has measured of pods, kept until it names them no more.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;

use plimsoll_policy::Uid;

use super::{MOST_PARTS, Measurer, PartUsage, PodStorage, StorageLimit, StorageMessage, StoragePart};
use crate::PodFacts;

#[derive(Debug, Default)]
struct Parts {
    known: BTreeMap<StoragePart, (bool, PartUsage)>,
    /// It was named in this round.
    is_named: bool,
    /// A part was left out since it was measured last, and before that.
    is_cut: bool,
    was_cut: bool,
}

/// What one process has measured of all pods.
#[derive(Debug, Default)]
struct Figures {
    pods: HashMap<Uid, Parts>,
    count: usize,
    /// How many rounds over all pods have ended.
    rounds: u64,
    /// There was no room for something in this round, and in the one before.
    is_full: bool,
    was_full: bool,
}

/// What is known of all pods.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    /// Of each process, by its number.
    figures: [Figures; 2],
    /// Pods of which something has changed.
    changed: HashSet<Uid>,
}

impl Figures {
    /// Takes a message in. False: there is no room for it.
    fn take(&mut self, message: StorageMessage, changed: &mut HashSet<Uid>) -> bool {
        let is_taken = self.take_if_there_is_room(message, changed);
        self.is_full |= !is_taken;
        is_taken
    }

    fn take_if_there_is_room(&mut self, message: StorageMessage, changed: &mut HashSet<Uid>) -> bool {
        match message {
            StorageMessage::Part(usage) => {
                let is_new = self.pods.get(&usage.uid).is_none_or(|pod| !pod.known.contains_key(&usage.part));
                let is_full = is_new && self.count >= MOST_PARTS;
                // Those without parts would be bounded by nothing.
                if is_full && self.pods.len() >= MOST_PARTS && !self.pods.contains_key(&usage.uid) {
                    return false;
                }
                let pod = self.pods.entry(usage.uid).or_default();
                pod.is_named = true;
                pod.is_cut |= is_full;
                if is_full {
                    return false;
                }
                self.count += usize::from(is_new);
                pod.known.insert(usage.part, (true, usage));
            }
            StorageMessage::Measured(uid) => {
                if self.pods.len() >= MOST_PARTS && !self.pods.contains_key(&uid) {
                    return false;
                }
                let pod = self.pods.entry(uid).or_default();
                let before = pod.known.len();
                pod.known.retain(|_, (is_seen, _)| mem::take(is_seen));
                self.count -= before - pod.known.len();
                pod.was_cut = mem::take(&mut pod.is_cut);
                pod.is_named = true;
                changed.insert(uid);
            }
            StorageMessage::Round => {
                self.rounds += 1;
                self.was_full = mem::take(&mut self.is_full);
                let count = &mut self.count;
                self.pods.retain(|uid, pod| {
                    let is_named = mem::take(&mut pod.is_named);
                    if !is_named {
                        *count -= pod.known.len();
                        changed.insert(*uid);
                    }
                    is_named
                });
            }
        }
        true
    }

    /// What was measured of a pod; absent where nothing was, or where there was no room for a part: what is left would be too
    /// little.
    fn parts(&self, uid: Uid) -> Option<impl Iterator<Item = PartUsage>> {
        let pod = self.pods.get(&uid).filter(|pod| !pod.is_cut && !pod.was_cut)?;
        Some(pod.known.values().map(|(_, measured)| *measured))
    }
}

impl Storage {
    /// Takes a message in. False: there is no room for it, or it is not this process's to say.
    pub(crate) fn take(&mut self, message: StorageMessage, measurer: Measurer) -> bool {
        message.may_be_of(measurer) && self.figures[measurer as usize].take(message, &mut self.changed)
    }

    /// What is known of a pod has changed beside what was measured.
    pub(crate) fn touch(&mut self, uid: Uid) {
        self.changed.insert(uid);
    }

    /// The pods of which something has changed since this was last asked.
    pub(crate) fn changed(&mut self) -> HashSet<Uid> {
        mem::take(&mut self.changed)
    }

    /// How many rounds over all pods a process has ended.
    pub(crate) const fn rounds(&self, measurer: Measurer) -> u64 {
        self.figures[measurer as usize].rounds
    }

    /// Whether there was no room for something in this round or in the one before.
    pub(crate) const fn is_full(&self, measurer: Measurer) -> bool {
        let Figures { is_full, was_full, .. } = &self.figures[measurer as usize];
        *is_full || *was_full
    }

    /// The pods of which it has something.
    pub(crate) fn measured(&self, measurer: Measurer) -> impl Iterator<Item = Uid> {
        self.figures[measurer as usize].pods.keys().copied()
    }

    /// Whether it has something of this one.
    pub(crate) fn has(&self, uid: Uid, measurer: Measurer) -> bool {
        self.figures[measurer as usize].pods.contains_key(&uid)
    }

    /// What it has of this one.
    pub(crate) fn parts(&self, uid: Uid, measurer: Measurer) -> impl Iterator<Item = PartUsage> {
        self.figures[measurer as usize].parts(uid).into_iter().flatten()
    }

    /// A pod; absent where the scanner has measured nothing of it, or not all.
    pub(crate) fn of(&self, facts: &PodFacts, limits: &[StorageLimit]) -> Option<PodStorage> {
        let [scanned, layers] = &self.figures;
        let (scanned, layers) = (scanned.parts(facts.uid)?, layers.parts(facts.uid));
        let has_layers = layers.is_some();
        Some(PodStorage::of(facts, limits, scanned.chain(layers.into_iter().flatten()), has_layers))
    }
}

#[cfg(test)]
impl Storage {
    /// How many parts and pods are kept of what a process has measured.
    pub(super) fn kept(&self, measurer: Measurer) -> (usize, usize) {
        let figures = &self.figures[measurer as usize];
        (figures.count, figures.pods.len())
    }
}
