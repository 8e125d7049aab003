//! What is known of pods after messages, and what paths say.

use super::*;
use plimsoll_policy::kubelet::Amount;

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
        ("/a", "a.slice", true),
        ("/a", "data.slice", false),
        ("/a", "b-a.slice", false),
        ("/b/a", "b.slice/b-a.slice", true),
        ("/b/a", "b.slice/b-data.slice", false),
    ] {
        let expected = if above { PodPath::Above } else { PodPath::Not };
        let root = PodRoot(root.as_bytes().to_vec());
        assert_eq!(root.path(path.as_bytes()), expected, "{path}");
    }
    let inside = [POD, b"/cri-containerd-0.scope"].concat();
    assert_eq!(PodRoot::default().path(&inside), PodPath::Not);
}

#[test]
fn all_pods_are_where_either_driver_keeps_them() {
    for (root, expected) in [
        ("", &["kubepods.slice", "kubepods", "kubelet.slice/kubelet-kubepods.slice", "kubelet/kubepods"][..]),
        ("/a-b/c", &["a_b.slice/a_b-c.slice/a_b-c-kubepods.slice", "a-b/c/kubepods"]),
    ] {
        let root = PodRoot(root.as_bytes().to_vec());
        let found: Vec<_> =
            root.all_pods().into_iter().map(|path| String::from_utf8_lossy(&path).into_owned()).collect();
        assert_eq!(found, expected);
        assert!(root.all_pods().iter().all(|path| root.path(path) == PodPath::Above), "{found:?}");
    }
}

#[test]
fn a_pod_is_protected_until_all_was_sent_and_while_nothing_is_known_of_it() {
    let mut pods = Pods::default();
    let unnamed = HashSet::new;
    assert_eq!(pods.of(identity()).0.protected, Some(Protected::Unknown));
    assert!(pods.take(known(UID.0), unnamed));
    assert_eq!(pods.of(identity()).0.protected, Some(Protected::Unknown), "others may be missing");
    assert!(pods.take(PodMessage::Complete, unnamed));
    let (pod, rank) = pods.of(identity());
    assert_eq!((pod.protected, rank.priority), (None, 7));
    assert!(pod.may_freeze());
    assert!(pods.take(PodMessage::Gone(UID), unnamed));
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
fn what_a_process_that_ended_in_the_middle_of_a_round_said_of_ended_pods_is_not_the_next_ones() {
    let none = HashSet::new;
    let mut pods = Pods::default();
    for message in [PodMessage::Begin, PodMessage::Ended(Uid(1)), PodMessage::NoOthers, PodMessage::Complete] {
        pods.take(message, none);
    }
    assert_eq!([1, 2].map(|uid| pods.is_named(Uid(uid))), [Some(true), Some(false)]);
    for message in [PodMessage::Ended(Uid(2)), PodMessage::NoOthers, PodMessage::Begin, PodMessage::Complete] {
        pods.take(message, none);
    }
    assert_eq!(pods.is_named(Uid(1)), None, "the next one may know others");
}

#[test]
fn a_request_that_is_too_large_is_the_largest_one_and_not_below_zero() {
    let mut pods = Pods::default();
    for (sent, taken) in [(1 << 63, i64::MAX.cast_unsigned()), (u64::MAX, i64::MAX.cast_unsigned()), (9, 9)] {
        pods.take(
            PodMessage::Pod(PodFacts { uid: UID, memory_request: Bytes(sent), ..PodFacts::default() }),
            HashSet::new,
        );
        pods.take(PodMessage::Complete, HashSet::new);
        let (Pod { memory_request, .. }, _) = pods.of(identity());
        assert_eq!(memory_request, Bytes(taken));
        assert!(Amount::counted(memory_request.0).is_positive());
    }
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
    let critical = |uid| PodMessage::Pod(PodFacts { uid, critical: Some(Critical::Priority), ..PodFacts::default() });
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
fn the_path_alone_protects_static_pods() {
    let mut pods = Pods::default();
    pods.take(known(UID.0), HashSet::new);
    pods.take(PodMessage::Complete, HashSet::new);
    let of_file = b"kubepods.slice/kubepods-pod0123456789abcdef0123456789abcdef.slice";
    let of_file = identity_of(of_file);
    assert_eq!(of_file.uid, UID);
    assert_eq!(pods.of(of_file).0.protected, Some(Protected::Static));
    assert_eq!(pods.of(identity()).0.protected, None);
}

#[test]
fn a_deletion_is_not_taken_back_and_its_grace_only_shortened() {
    let mut pods = Pods::default();
    for (said, kept) in
        [(None, None), (Some(50), Some(50)), (Some(90), Some(50)), (Some(20), Some(20)), (None, Some(20))]
    {
        let facts = PodFacts { uid: UID, ends: said.map(MonotonicNs), ..PodFacts::default() };
        pods.take(PodMessage::Pod(facts), HashSet::new);
        pods.take(PodMessage::Complete, HashSet::new);
        assert_eq!(pods.of(identity()).0.ends, kept.map(MonotonicNs), "{said:?}");
    }
}

/// As they stand in a journal, which another version wrote.
#[test]
fn what_an_older_version_kept_of_a_pod_is_read() {
    let facts = PodFacts { uid: UID, ends: Some(MonotonicNs(5)), ..PodFacts::default() };
    let text = serde_json::to_string(&facts).expect("it has a text form");
    let older = text.replace(r#","ends":5"#, "");
    assert_ne!(older, text);
    assert_eq!(serde_json::from_str::<PodFacts>(&older).ok(), Some(PodFacts { ends: None, ..facts }));
}
