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

/// The most pods of which something is known.
pub const MOST_PODS: usize = 4096;
/// No message is longer, in bytes.
pub const MESSAGE: usize = 128;

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
    /// The time that it wants for an orderly end, in seconds.
    pub grace_seconds: Option<u32>,
    /// The DaemonSet that it belongs to.
    pub daemon_set: Option<OwnerUid>,
    /// When it was started, on the monotonic clock.
    pub started: Option<MonotonicNs>,
    /// Others wait for it where it stands still: it serves file systems, or is in the machine's PID namespace. It is
    /// never frozen.
    pub serves_others: bool,
}

/// A message to the process that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodMessage {
    /// A process that has sent nothing yet begins. What [`Self::Pod`] does not name again by the next
    /// [`Self::Complete`] is known no more; until then it holds.
    Begin,
    /// A pod that is new or changed.
    Pod(PodFacts),
    /// The sources do not name this pod any more.
    Gone(Uid),
    /// Every pod that the sources name has been sent.
    Complete,
}

impl PodMessage {
    /// Writes it into a buffer, and gives what it takes of that.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; MESSAGE]) -> &'b [u8] {
        // A test holds that the longest one fits.
        postcard::to_slice(self, buffer).map_or(&[], |bytes| bytes)
    }

    /// Reads one. `None` for what is no message, or has something after it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(message, _)| message)
    }
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
    /// A process of the runtime that watches the pod's containers is in it.
    pub(crate) is_monitored: bool,
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
    fn identify<'p>(&self, path: &'p [u8]) -> Option<PodCgroup<'p>> {
        if self.0.is_empty() { identify(path) } else { identify_in(&self.0, path) }
    }

    /// Of a path below the cgroup root.
    pub(crate) fn path(&self, path: &[u8]) -> PodPath {
        match self.identify(path) {
            Some(pod) if pod.length == path.len() => {
                let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                let name = name.strip_suffix(b".slice").unwrap_or(name);
                let is_static = name.last_chunk::<32>().is_some_and(|hash| hash.iter().all(u8::is_ascii_hexdigit));
                PodPath::Pod(PodIdentity { uid: pod.uid, qos: pod.qos, is_static, is_monitored: false })
            }
            None if is_above_pods(&self.0, path) || self.0.is_empty() && is_above_pods(KIND, path) => PodPath::Above,
            Some(_) | None => PodPath::Not,
        }
    }

    /// Whether the runtime that names a cgroup in a pod's so may keep its monitor beside it.
    pub(crate) fn may_have_monitor(&self, path: &[u8]) -> bool {
        self.identify(path).and_then(|pod| pod.container).is_some_and(|container| container.may_have_monitor_beside)
    }
}

/// Whether a path leads to where a kubelet with this `--cgroup-root` keeps pods, in either driver's names.
fn is_above_pods(root: &[u8], path: &[u8]) -> bool {
    let own = |written: &[u8]| written.strip_suffix(b".slice").unwrap_or(written).to_vec();
    let ends = |written: &[u8], name: &[u8]| {
        let same = |(one, other): (&u8, &u8)| one == other || *one == b'_' && *other == b'-';
        written.len() >= name.len() && written.iter().rev().zip(name.iter().rev()).all(same)
    };
    let mut written = path.split(|byte| *byte == b'/').map(own);
    let above = root.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let (mut is_at_root, mut is_below) = (true, true);
    for name in above {
        is_at_root = false;
        match written.next() {
            Some(written) => is_below &= ends(&written, name),
            None => return is_below,
        }
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
    /// How often [`PodMessage::Begin`] came.
    begun: u64,
    /// Pods that were protected once, and why.
    protected: HashMap<Uid, Critical>,
    /// All that the sources name was sent once: from then on pods may be evicted.
    is_complete: bool,
}

impl Pods {
    /// Takes a message in. False: there is no room for the pod. `present` gives the pods that have a cgroup; others are
    /// forgotten where there is no room.
    pub fn take(&mut self, message: PodMessage, present: impl Fn() -> HashSet<Uid>) -> bool {
        match message {
            PodMessage::Begin => self.begun += 1,
            PodMessage::Complete => {
                self.is_complete = true;
                self.facts.retain(|_, (begun, _)| *begun == self.begun);
            }
            PodMessage::Gone(uid) => drop(self.facts.remove(&uid)),
            PodMessage::Pod(facts) => {
                let protects = facts.critical.is_some();
                if let (None, Some(critical)) = (self.protected.get(&facts.uid), facts.critical) {
                    make_room(&mut self.protected, &present);
                    self.protected.insert(facts.uid, critical);
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

    /// A pod by its cgroup, as it is decided about now.
    pub fn of(&self, identity: PodIdentity) -> (Pod, Rank) {
        let PodIdentity { uid, qos, is_static, is_monitored } = identity;
        let facts = self.facts.get(&uid).map(|(_, facts)| *facts).filter(|_| self.is_complete);
        let of_file = is_static.then_some(Protected::Static);
        // What is said now counts too: of a pod that had no cgroup for a while, what was said may be forgotten.
        let critical = self.protected.get(&uid).copied().or(facts.and_then(|facts| facts.critical));
        let reported = critical.map(Protected::from);
        let monitored = is_monitored.then_some(Protected::Monitored);
        let unknown = facts.is_none().then_some(Protected::Unknown);
        let protected = of_file.or(reported).or(monitored).or(unknown);
        let PodFacts { priority, memory_request, grace_seconds, daemon_set, started, serves_others, .. } =
            facts.unwrap_or_default();
        let pod = Pod { uid, qos, protected, memory_request, grace_seconds, daemon_set, serves_others };
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
mod tests {
    use super::*;

    const UID: Uid = Uid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    const POD: &[u8] =
        b"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice";

    fn identity_of(path: &[u8]) -> PodIdentity {
        match PodRoot::default().path(path) {
            PodPath::Pod(identity) => identity,
            other => panic!("it is {other:?}"),
        }
    }

    fn identity() -> PodIdentity {
        identity_of(POD)
    }

    fn known(uid: u128) -> PodMessage {
        PodMessage::Pod(PodFacts { uid: Uid(uid), priority: 7, ..PodFacts::default() })
    }

    #[test]
    fn the_longest_message_fits_and_only_a_whole_one_is_read() {
        let facts = PodFacts {
            uid: Uid(u128::MAX),
            priority: i32::MIN,
            critical: Some(Critical::Priority),
            memory_request: Bytes(u64::MAX),
            grace_seconds: Some(u32::MAX),
            daemon_set: Some(OwnerUid(u128::MAX)),
            started: Some(MonotonicNs(u64::MAX)),
            serves_others: true,
        };
        let others = [PodMessage::Begin, PodMessage::Gone(Uid(u128::MAX)), PodMessage::Complete];
        for message in [PodMessage::Pod(facts)].into_iter().chain(others) {
            let mut buffer = [0; MESSAGE];
            let bytes = message.encode(&mut buffer).to_vec();
            assert_eq!(PodMessage::decode(&bytes), Some(message));
            assert_eq!(PodMessage::decode(&bytes[..bytes.len() - 1]), None, "a part of {message:?}");
            assert_eq!(PodMessage::decode(&[&bytes[..], &[0]].concat()), None, "more than {message:?}");
        }
        assert_eq!(PodMessage::decode(&[255; MESSAGE]), None);
    }

    #[test]
    fn a_pod_is_its_own_cgroup_and_pods_are_below_kubepods_alone() {
        assert_eq!((identity().uid, identity().qos), (UID, QosClass::Burstable));
        for (root, path, above) in [
            ("", "kubepods.slice", true),
            ("", "kubepods", true),
            ("", "kubelet.slice", true),
            ("", "kubelet", true),
            ("", "kubelet.slice/kubelet-kubepods.slice", true),
            ("", "kubepods.slice/kubepods-besteffort.slice", true),
            ("", "system.slice", false),
            ("", "system.slice/kubepods", false),
            ("", "my-kubepods.slice", false),
            ("/a-b/c", "a_b.slice", true),
            ("/a-b/c", "a_b.slice/a_b-c.slice/a_b-c-kubepods.slice", true),
            ("/a-b/c", "a-b/c/kubepods/burstable", true),
            ("/a-b/c", "a-b/d/kubepods", false),
            ("/a-b/c", "kubepods.slice", false),
        ] {
            let expected = if above { PodPath::Above } else { PodPath::Not };
            let root = PodRoot(root.as_bytes().to_vec());
            assert_eq!(root.path(path.as_bytes()), expected, "{path}");
        }
        let inside = [POD, b"/cri-containerd-0.scope"].concat();
        assert_eq!(PodRoot::default().path(&inside), PodPath::Not);
    }

    #[test]
    fn a_pod_is_protected_until_all_was_sent_and_while_nothing_is_known_of_it() {
        let mut pods = Pods::default();
        let nobody = HashSet::new;
        assert_eq!(pods.of(identity()).0.protected, Some(Protected::Unknown));
        assert!(pods.take(known(UID.0), nobody));
        assert_eq!(pods.of(identity()).0.protected, Some(Protected::Unknown), "others may be missing");
        assert!(pods.take(PodMessage::Complete, nobody));
        let (pod, rank) = pods.of(identity());
        assert_eq!((pod.protected, rank.priority), (None, 7));
        assert!(pod.may_freeze());
        assert!(pods.take(PodMessage::Gone(UID), nobody));
        assert_eq!(pods.of(identity()).0.protected, Some(Protected::Unknown));
        assert!(!pods.of(identity()).0.may_freeze());
    }

    #[test]
    fn what_a_process_that_began_again_does_not_name_is_known_no_more_once_all_was_sent() {
        let mut pods = Pods::default();
        let (critical, both) = (Uid(5), || HashSet::from([UID, Uid(5)]));
        let facts = PodFacts { uid: critical, critical: Some(Critical::Priority), ..PodFacts::default() };
        let protected = |pods: &Pods| [UID, critical].map(|uid| pods.of(PodIdentity { uid, ..identity() }).0.protected);
        for (message, expected) in [
            (PodMessage::Begin, [Some(Protected::Unknown); 2]),
            (known(UID.0), [Some(Protected::Unknown); 2]),
            (PodMessage::Pod(facts), [Some(Protected::Unknown), Some(Protected::Critical)]),
            (PodMessage::Complete, [None, Some(Protected::Critical)]),
            // Changes alone follow.
            (PodMessage::Complete, [None, Some(Protected::Critical)]),
            (PodMessage::Begin, [None, Some(Protected::Critical)]),
            (known(7), [None, Some(Protected::Critical)]),
            (PodMessage::Complete, [Some(Protected::Unknown), Some(Protected::Critical)]),
        ] {
            assert!(pods.take(message, both));
            assert_eq!(protected(&pods), expected, "{message:?}");
        }
        assert_eq!(pods.facts.keys().collect::<Vec<_>>(), [&Uid(7)], "a protection is all that is kept of the others");
    }

    #[test]
    fn a_protection_is_never_withdrawn() {
        let mut pods = Pods::default();
        let present = || HashSet::from([UID]);
        for message in [
            PodMessage::Pod(PodFacts { uid: UID, critical: Some(Critical::Priority), ..PodFacts::default() }),
            PodMessage::Complete,
            known(UID.0),
        ] {
            pods.take(message, present);
        }
        // As many forged ones as there is room for, and more.
        for forged in 0..2 * MOST_PODS as u128 {
            let critical = Some(Critical::Mirror);
            pods.take(PodMessage::Pod(PodFacts { uid: Uid(forged), critical, ..PodFacts::default() }), present);
        }
        assert_eq!(pods.of(identity()).0.protected, Some(Protected::Critical));
        assert!(pods.facts.len() <= MOST_PODS && pods.protected.len() <= MOST_PODS);
    }

    #[test]
    fn a_pod_that_is_critical_by_what_is_said_now_is_protected_though_protections_were_forgotten() {
        let mut pods = Pods::default();
        let critical =
            |uid| PodMessage::Pod(PodFacts { uid, critical: Some(Critical::Priority), ..PodFacts::default() });
        pods.take(critical(UID), HashSet::new);
        pods.take(PodMessage::Complete, HashSet::new);
        // It has no cgroup meanwhile, and what is said of each of the others is taken back.
        for forged in (0..=MOST_PODS as u128).map(Uid) {
            pods.take(critical(forged), HashSet::new);
            pods.take(PodMessage::Gone(forged), HashSet::new);
        }
        assert!(!pods.protected.contains_key(&UID), "there are more protections than there is room for");
        assert_eq!(pods.of(identity()).0.protected, Some(Protected::Critical));
    }

    #[test]
    fn what_is_known_is_bounded_and_pods_without_a_cgroup_are_forgotten_first() {
        let mut pods = Pods::default();
        let everyone = || (0..MOST_PODS as u128).map(Uid).collect();
        assert!((0..MOST_PODS as u128).all(|uid| pods.take(known(uid), everyone)));
        assert!(!pods.take(known(UID.0), everyone), "each of the others has a cgroup");
        assert!(pods.take(known(5), everyone), "it is known");
        assert!(pods.take(known(UID.0), || HashSet::from([Uid(5)])));
        assert_eq!(pods.facts.len(), 2);
    }

    #[test]
    fn the_path_alone_protects_static_pods_and_monitors() {
        let mut pods = Pods::default();
        pods.take(known(UID.0), HashSet::new);
        pods.take(PodMessage::Complete, HashSet::new);
        let of_file = b"kubepods.slice/kubepods-pod0123456789abcdef0123456789abcdef.slice";
        let of_file = identity_of(of_file);
        assert_eq!(of_file.uid, UID);
        assert_eq!(pods.of(of_file).0.protected, Some(Protected::Static));
        let monitored = PodIdentity { is_monitored: true, ..identity() };
        assert_eq!(pods.of(monitored).0.protected, Some(Protected::Monitored));
        assert_eq!(pods.of(identity()).0.protected, None);
    }
}
