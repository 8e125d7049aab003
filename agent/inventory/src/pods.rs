//! What is known of pods, by UID.
//!
//! It comes from a process that reads what Kubernetes writes, message by message, and none of it is trusted further
//! than that a pod is ranked by it: the UID and the class of service are those of the cgroup's path, a pod of which
//! nothing is known is protected, and so is one for good that was protected once.

use std::collections::{HashMap, HashSet};

use plimsoll_policy::kubelet::{Critical, QosClass};
use plimsoll_policy::{OwnerUid, Protected, Uid};
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

use crate::identity::{PodCgroup, identify, identify_in};
use crate::storage::{MOST_PARTS, StorageLimit};

/// The most pods of which something is known.
pub const MOST_PODS: usize = 4096;
/// Quantities of Kubernetes are signed (`Amount::counted`): more than this would be below zero.
const MOST_BYTES: Bytes = Bytes(i64::MAX.cast_unsigned());

/// What is known of a pod: numbers alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// As in its cgroup's path: of a static pod, not that of its mirror.
    pub uid: Uid,
    /// Its priority.
    pub priority: i32,
    /// Why it is never evicted, if so.
    pub critical: Option<Critical>,
    /// The memory that it requests now.
    pub memory_request: Bytes,
    /// The local storage that it requests.
    pub storage_request: Bytes,
    /// The local storage that it may use, if that is limited.
    pub storage_limit: Option<Bytes>,
    /// The time that it wants for an orderly end, in seconds.
    pub grace_seconds: Option<u32>,
    /// The DaemonSet that it belongs to.
    pub daemon_set: Option<OwnerUid>,
    /// When it was started, on the monotonic clock.
    pub started: Option<MonotonicNs>,
    /// Others wait for it while it is frozen: it serves file systems, or is in the machine's PID namespace. It is
    /// never frozen.
    pub serves_others: bool,
    /// Its deletion was asked for, and the grace that it has for that is over then, on the monotonic clock.
    #[serde(default)]
    pub ends: Option<MonotonicNs>,
}

/// What is new of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodMessage {
    /// A process that has sent nothing yet begins. What [`Self::Pod`] does not name again by the next
    /// [`Self::Complete`] is known no more; until then it holds.
    Begin,
    /// A pod that is new or changed. Its limits of local storage follow.
    Pod(PodFacts),
    /// A limit of the pod that was named last.
    Limit(StorageLimit),
    /// The sources do not name this pod any more.
    Gone(Uid),
    /// Every pod that the sources name has been sent.
    Complete,
    /// The sources name this pod, which has succeeded or failed: nothing of it runs. Named again before each
    /// [`Self::Complete`].
    Ended(Uid),
    /// Before [`Self::Complete`]: the sources name no other pods than those that were sent. Absent where one could not be
    /// read, and where what was known before is sent because no source can be read.
    NoOthers,
}

/// What the path of a pod's cgroup says, and the names in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// The pod.
    pub uid: Uid,
    /// Its class of service.
    pub qos: QosClass,
    /// Its UID is a hash without dashes, as the kubelet gives it to static pods alone (`applyDefaults`,
    /// pkg/kubelet/config/common.go); an API server gives UUIDs.
    pub(crate) is_static: bool,
}

/// How a path stands to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodPath {
    /// It is a pod's own cgroup.
    Pod(PodIdentity),
    /// Pods may be below it.
    Above,
    /// Neither.
    Not,
}

/// Where a kubelet keeps its pods: its `--cgroup-root`, or nothing for the places that are known ([`identify`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRoot(pub Vec<u8>);

/// A value of `--cgroup-root` that [`identify`] knows beside the root.
const KIND: &[u8] = b"kubelet";

impl PodRoot {
    /// The pod and the container that a path below the cgroup root belongs to.
    pub fn identify<'p>(&self, path: &'p [u8]) -> Option<PodCgroup<'p>> {
        if self.0.is_empty() { identify(path) } else { identify_in(&self.0, path) }
    }

    /// Where the cgroup of all pods may be, by the names of either driver: `kubepods.slice`, `kubepods`.
    pub fn all_pods(&self) -> Vec<Vec<u8>> {
        let roots = if self.0.is_empty() { vec![&b""[..], KIND] } else { vec![self.0.as_slice()] };
        roots.into_iter().flat_map(|root| [systemd_path(root), cgroupfs_path(root)]).collect()
    }

    /// The pod whose own cgroup is at this path below the cgroup root.
    pub fn pod_at(&self, path: &[u8]) -> Option<PodIdentity> {
        match self.path(path) {
            PodPath::Pod(pod) => Some(pod),
            PodPath::Above | PodPath::Not => None,
        }
    }

    /// Of a path below the cgroup root.
    pub(crate) fn path(&self, path: &[u8]) -> PodPath {
        match self.identify(path) {
            Some(pod) if pod.length == path.len() => {
                let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                let name = name.strip_suffix(b".slice").unwrap_or(name);
                let is_static = name.last_chunk::<32>().is_some_and(|hash| hash.iter().all(u8::is_ascii_hexdigit));
                PodPath::Pod(PodIdentity { uid: pod.uid, qos: pod.qos, is_static })
            }
            None if is_above_pods(&self.0, path) || self.0.is_empty() && is_above_pods(KIND, path) => PodPath::Above,
            Some(_) | None => PodPath::Not,
        }
    }

    /// Whether the cgroup at `path` is around pods, is one, or is in one.
    pub(crate) fn concerns(&self, path: &[u8]) -> bool {
        self.path(path) != PodPath::Not || self.identify(path).is_some()
    }
}

/// The names of the cgroups from the root to that of all pods.
fn names_to_pods(root: &[u8]) -> impl Iterator<Item = &[u8]> {
    root.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).chain([&b"kubepods"[..]])
}

fn cgroupfs_path(root: &[u8]) -> Vec<u8> {
    names_to_pods(root).collect::<Vec<_>>().join(&b'/')
}

/// Each slice has the names of those above it in front, and no other dash (`CgroupName.ToSystemd` in pkg/kubelet/cm).
fn systemd_path(root: &[u8]) -> Vec<u8> {
    let (mut path, mut slice) = (Vec::new(), Vec::new());
    for name in names_to_pods(root) {
        if !slice.is_empty() {
            slice.push(b'-');
            path.push(b'/');
        }
        slice.extend(name.iter().map(|byte| if *byte == b'-' { b'_' } else { *byte }));
        path.extend_from_slice(&slice);
        path.extend_from_slice(b".slice");
    }
    path
}

/// Whether a path leads to where a kubelet with this `--cgroup-root` keeps pods, in either driver's names.
fn is_above_pods(root: &[u8], path: &[u8]) -> bool {
    let own = |written: &[u8]| written.strip_suffix(b".slice").unwrap_or(written).to_vec();
    let same = |(one, other): (&u8, &u8)| one == other || *one == b'_' && *other == b'-';
    // Below the first name, systemd's driver has those above it in front.
    let is_name = |written: &[u8], name: &[u8], is_first: bool| {
        let Some(above) = written.len().checked_sub(name.len()) else { return false };
        let (above, own) = written.split_at(above);
        own.iter().zip(name).all(same) && (above.is_empty() || !is_first && above.ends_with(b"-"))
    };
    let mut written = path.split(|byte| *byte == b'/').map(own);
    let above = root.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let (mut is_at_root, mut is_below) = (true, true);
    for name in above {
        match written.next() {
            Some(written) => is_below &= is_name(&written, name, is_at_root),
            None => return is_below,
        }
        is_at_root = false;
    }
    let is_kubepods = |written: Vec<u8>| written == b"kubepods" || !is_at_root && written.ends_with(b"-kubepods");
    is_below && written.next().is_none_or(is_kubepods)
}

/// A pod as it is decided about. Small: each row of the table has room for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its UID.
    pub uid: Uid,
    /// Its class of service.
    pub qos: QosClass,
    /// Why it is never evicted, if so.
    pub protected: Option<Protected>,
    /// The memory that it requests; of one that is protected because nothing is known of it, zero.
    pub memory_request: Bytes,
    /// The time that it wants for an orderly end, in seconds.
    pub grace_seconds: Option<u32>,
    /// The DaemonSet that it belongs to.
    pub daemon_set: Option<OwnerUid>,
    /// [`PodFacts::serves_others`].
    pub serves_others: bool,
    /// [`PodFacts::ends`].
    pub ends: Option<MonotonicNs>,
}

impl Pod {
    /// Whether it may be frozen while others are decided about.
    pub fn may_freeze(&self) -> bool {
        self.protected.is_none() && !self.serves_others
    }
}

/// What is said of a pod beside [`Pod`], which of a cgroup follows from the pattern, or from when it was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// Its priority.
    pub priority: i32,
    /// When it was started; absent if that is not known.
    pub started: Option<MonotonicNs>,
}

/// All that is known, of [`MOST_PODS`] at most.
#[derive(Debug, Default)]
pub struct Pods {
    /// Each with the `begun` at which it was sent last.
    facts: HashMap<Uid, (u64, PodFacts)>,
    /// Limits of local storage, [`MOST_PARTS`] at most.
    limits: HashMap<Uid, Vec<StorageLimit>>,
    limit_count: usize,
    /// How often [`PodMessage::Begin`] came.
    begun: u64,
    /// Pods that were protected once, and why.
    protected: HashMap<Uid, Critical>,
    /// Those of them that have gone since it was last written what is protected, of which the oldest may be missing.
    gone: Vec<Uid>,
    /// What is protected is not written yet.
    is_unwritten: bool,
    /// All that the sources name was sent once: from then on pods may be evicted.
    is_complete: bool,
    /// Pods that have ended; absent where the sources may name others.
    ended: Option<HashSet<Uid>>,
    /// The same for the next [`PodMessage::Complete`], and whether it will be absent.
    next_ended: (HashSet<Uid>, bool),
}

impl Pods {
    /// Takes a message in. False: there is no room for the pod. `present` gives the pods that have a cgroup; others are
    /// forgotten where there is no room.
    pub fn take(&mut self, message: PodMessage, present: impl Fn() -> HashSet<Uid>) -> bool {
        match message {
            PodMessage::Begin => {
                self.begun += 1;
                // What began before it may have ended in the middle of a round.
                self.next_ended = <(HashSet<Uid>, bool)>::default();
            }
            PodMessage::Complete => {
                self.is_complete = true;
                self.facts.retain(|_, (begun, _)| *begun == self.begun);
                self.limits.retain(|uid, _| self.facts.contains_key(uid));
                self.limit_count = self.limits.values().map(Vec::len).sum();
                let (ended, has_all) = std::mem::take(&mut self.next_ended);
                self.ended = has_all.then_some(ended);
            }
            PodMessage::Ended(uid) => {
                if self.next_ended.0.len() >= MOST_PODS {
                    return false;
                }
                self.next_ended.0.insert(uid);
            }
            PodMessage::NoOthers => self.next_ended.1 = true,
            PodMessage::Gone(uid) => {
                self.facts.remove(&uid);
                self.forget_limits(uid);
            }
            PodMessage::Limit(limit) => {
                if self.limit_count >= MOST_PARTS || !self.facts.contains_key(&limit.uid) {
                    return false;
                }
                self.limit_count += 1;
                self.limits.entry(limit.uid).or_default().push(limit);
            }
            PodMessage::Pod(mut facts) => {
                self.forget_limits(facts.uid);
                facts.memory_request = facts.memory_request.min(MOST_BYTES);
                let known_end = self.facts.get(&facts.uid).and_then(|(_, known)| known.ends);
                // A deletion is never taken back, and its grace can only be shortened.
                facts.ends = [facts.ends, known_end].into_iter().flatten().min();
                let protects = facts.critical.is_some();
                if let (None, Some(critical)) = (self.protected.get(&facts.uid), facts.critical) {
                    make_room(&mut self.protected, &present);
                    self.protected.insert(facts.uid, critical);
                    self.gone.retain(|gone| *gone != facts.uid);
                    self.is_unwritten = true;
                }
                if !self.facts.contains_key(&facts.uid) && !make_room(&mut self.facts, &present) {
                    // A protection is kept all the same.
                    return protects;
                }
                self.facts.insert(facts.uid, (self.begun, facts));
            }
        }
        true
    }

    /// Goes on with the protections of an earlier process, whatever is said of these pods from now on.
    pub fn take_over(&mut self, protected: HashMap<Uid, Critical>) {
        self.protected.extend(protected);
    }

    /// A pod's cgroup is gone, and the pod with it.
    pub(crate) fn forget(&mut self, uid: Uid) {
        if self.protected.remove(&uid).is_some() {
            if self.gone.len() >= MOST_PODS {
                self.gone.clear();
            }
            self.gone.push(uid);
            self.is_unwritten = true;
        }
    }

    /// What is protected, and which pods are no more, where that is not written yet.
    pub(crate) fn unwritten(&self) -> Option<(&HashMap<Uid, Critical>, &[Uid])> {
        self.is_unwritten.then_some((&self.protected, &self.gone))
    }

    /// That is written.
    pub(crate) fn wrote(&mut self) {
        self.gone.clear();
        self.is_unwritten = false;
    }

    fn forget_limits(&mut self, uid: Uid) {
        self.limit_count -= self.limits.remove(&uid).map_or(0, |limits| limits.len());
    }

    /// Whether the sources name this pod; `None` where that is not known of any.
    pub(crate) fn is_named(&self, uid: Uid) -> Option<bool> {
        let ended = self.ended.as_ref()?;
        Some(self.facts.contains_key(&uid) || ended.contains(&uid))
    }

    /// What is said of a pod's local storage; absent where nothing is known of the pod.
    pub(crate) fn storage_of(&self, uid: Uid) -> Option<(&PodFacts, &[StorageLimit])> {
        let (_, facts) = self.facts.get(&uid).filter(|_| self.is_complete)?;
        Some((facts, self.limits.get(&uid).map_or(&[][..], Vec::as_slice)))
    }

    /// A pod by its cgroup, as it is decided about now.
    pub fn of(&self, identity: PodIdentity) -> (Pod, Rank) {
        let PodIdentity { uid, qos, is_static } = identity;
        let facts = self.facts.get(&uid).map(|(_, facts)| *facts).filter(|_| self.is_complete);
        let of_file = is_static.then_some(Protected::Static);
        // What is said now counts too: of a pod that had no cgroup for a while, what was said may be forgotten.
        let critical = self.protected.get(&uid).copied().or(facts.and_then(|facts| facts.critical));
        let reported = critical.map(Protected::from);
        let unknown = facts.is_none().then_some(Protected::Unknown);
        let protected = of_file.or(reported).or(unknown);
        let PodFacts { priority, memory_request, grace_seconds, daemon_set, started, serves_others, ends, .. } =
            facts.unwrap_or_default();
        let pod = Pod { uid, qos, protected, memory_request, grace_seconds, daemon_set, serves_others, ends };
        (pod, Rank { priority, started })
    }
}

/// Whether there is room for one more; where there is none, those without a cgroup are forgotten first.
fn make_room<T>(known: &mut HashMap<Uid, T>, present: impl Fn() -> HashSet<Uid>) -> bool {
    if known.len() >= MOST_PODS {
        let present = present();
        known.retain(|uid, _| present.contains(uid));
    }
    known.len() < MOST_PODS
}

#[cfg(test)]
mod tests;
