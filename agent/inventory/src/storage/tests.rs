//! What is known of pods' storage after messages.

use super::*;

const UID: Uid = Uid(7);
const DATA: StoragePart = StoragePart::Volume { name: 1, is_local: true };
const CACHE: StoragePart = StoragePart::Volume { name: 2, is_local: false };
const LOGS: StoragePart = StoragePart::Logs(3);
/// Of the same container.
const LAYER: StoragePart = StoragePart::Layer(3);

const fn second(seconds: u64) -> MonotonicNs {
    MonotonicNs(seconds * 1_000_000_000)
}

fn part(part: StoragePart, used: Option<u64>) -> StorageMessage {
    let used = used.map(|bytes| (bytes, 1));
    StorageMessage::Part(PartUsage { uid: UID, part, used, begun: second(9), ended: second(10) })
}

fn measured(messages: &[StorageMessage]) -> Storage {
    let mut storage = Storage::default();
    assert!(messages.iter().all(|message| storage.take(*message, Measurer::Scanner)));
    // Of its writable layers the runtime has said that there are none.
    assert!(storage.take(StorageMessage::Measured(UID), Measurer::Services));
    storage
}

/// All of it counts.
const fn all(now: MonotonicNs) -> Counts {
    Counts { now, layers: true }
}

fn facts() -> PodFacts {
    PodFacts { uid: UID, storage_request: Bytes(5), storage_limit: Some(Bytes(100)), ..PodFacts::default() }
}

fn whole(storage: &Storage, now: MonotonicNs) -> Option<u64> {
    storage.of(&facts(), &[]).expect("it was measured").whole(all(now)).bytes
}

#[test]
fn a_message_fits_and_only_a_whole_one_is_read() {
    let most = PartUsage {
        uid: Uid(u128::MAX),
        part: StoragePart::Volume { name: u32::MAX, is_local: true },
        used: Some((u64::MAX, u64::MAX)),
        begun: MonotonicNs(u64::MAX),
        ended: MonotonicNs(u64::MAX),
    };
    for message in [StorageMessage::Part(most), StorageMessage::Measured(UID), StorageMessage::Round] {
        let mut buffer = [0; crate::MESSAGE];
        let bytes = message.encode(&mut buffer).to_vec();
        assert_eq!(StorageMessage::decode(&bytes), Some(message));
        assert_eq!(StorageMessage::decode(&[&bytes[..], &[0]].concat()), None);
    }
    assert_eq!(StorageMessage::decode(&[255; 9]), None);
}

#[test]
fn a_pod_has_what_was_measured_beside_what_it_may_take() {
    let storage = measured(&[part(DATA, Some(40)), part(CACHE, Some(30)), part(LOGS, Some(2))]);
    let limit = |on, bytes| StorageLimit { uid: UID, on, bytes: Bytes(bytes) };
    let limits = [limit(Limited::Volume(1), 50), limit(Limited::Volume(1), 20), limit(Limited::Container(3), 9)];
    let known = storage.of(&facts(), &limits).expect("it was measured");
    let pod = known.facts(&Pod { priority: 3, ..Pod::default() }, all(second(11)));
    assert_eq!(pod.priority, 3);
    assert_eq!(
        (pod.ephemeral_storage_request, pod.ephemeral_storage_limit),
        (Amount::whole(5), Some(Amount::whole(100)))
    );
    let stats = pod.stats.expect("it is new");
    assert_eq!((stats.ephemeral_storage, known.in_memory()), (Some(42), 30), "what is in memory takes no disk");
    assert_eq!((stats.containers[0].logs.bytes, stats.volumes.len()), (Some(2), 2));
    assert_eq!(pod.volumes[0].size_limit, Some(Amount::whole(20)), "of two names with one number each limit holds");
    assert_eq!((known.volume(1), known.container(0)), (Some(2), Some(3)));
    assert_eq!(known.limit_on(Some(Limited::Container(3))), Some(Amount::whole(9)));
    let huge = PodFacts { storage_request: Bytes(u64::MAX), ..facts() };
    let request =
        storage.of(&huge, &[]).expect("measured").facts(&Pod::default(), all(second(11))).ephemeral_storage_request;
    assert!(request.is_positive(), "a request that is too large is the largest one");
}

#[test]
fn a_part_that_is_unknown_makes_the_sum_unknown() {
    let mut storage = measured(&[part(DATA, Some(40)), StorageMessage::Measured(UID)]);
    assert!(storage.take(part(DATA, Some(1)), Measurer::Scanner));
    assert_eq!(whole(&storage, second(11)), Some(1), "the newest counts");
    assert!(storage.take(part(LOGS, None), Measurer::Scanner));
    assert_eq!(whole(&storage, second(11)), None);
}

#[test]
fn what_is_not_named_again_is_gone() {
    let mut storage = measured(&[part(DATA, Some(4)), part(LOGS, Some(2)), StorageMessage::Measured(UID)]);
    assert!(storage.changed().contains(&UID));
    for message in [StorageMessage::Round, part(LOGS, Some(3)), StorageMessage::Measured(UID)] {
        assert!(storage.take(message, Measurer::Scanner));
    }
    let count = |storage: &Storage| storage.kept(Measurer::Scanner).0;
    assert_eq!((whole(&storage, second(11)), count(&storage)), (Some(3), 1), "the volume is gone");
    for _ in 0..2 {
        assert!(storage.take(StorageMessage::Round, Measurer::Scanner));
    }
    assert!(storage.of(&facts(), &[]).is_none(), "the pod is gone");
    assert_eq!(count(&storage), 0);
    assert!(storage.changed().contains(&UID));
}

#[test]
fn a_figure_holds_for_a_while_and_longer_where_measuring_took_long() {
    let storage = measured(&[part(DATA, Some(4))]);
    // It took a second.
    assert_eq!([1812, 1813].map(|seconds| whole(&storage, second(seconds))), [Some(4), None]);
    let known = storage.of(&facts(), &[]).expect("it was measured");
    assert_eq!(known.facts(&Pod::default(), all(second(1813))).stats, None, "nothing is decided by it");
}

#[test]
fn what_is_said_of_later_holds_no_longer_than_what_was_measured_now() {
    let said = part(LOGS, Some(1));
    assert_eq!(said.by(second(10)), said);
    let StorageMessage::Part(believed) = said.by(second(5)) else { panic!("a part stays one") };
    assert_eq!((believed.begun, believed.ended), (second(5), second(5)));
}

#[test]
fn no_more_is_kept_than_there_is_room_for() {
    let mut storage = Storage::default();
    let of = |name| part(StoragePart::Logs(name), Some(1));
    let most = u32::try_from(MOST_PARTS).expect("few");
    let mut take = |message| storage.take(message, Measurer::Scanner);
    assert!((0..most).all(|name| take(of(name))));
    assert!(!take(of(most)), "there is no room");
    assert!(take(of(0)), "for what is known there is");
    let StorageMessage::Part(usage) = of(0) else { panic!("it is one") };
    let other = Uid(UID.0 ^ 1);
    for pod in [UID, other] {
        assert!(!take(StorageMessage::Part(PartUsage { uid: pod, part: StoragePart::Logs(most), ..usage })));
        assert!(take(StorageMessage::Measured(pod)));
    }
    for uid in [UID, other] {
        let facts = PodFacts { uid, ..facts() };
        assert_eq!(storage.of(&facts, &[]), None, "what is left of it would be too little");
    }
    assert_eq!(storage.kept(Measurer::Scanner), (MOST_PARTS, 2));
    assert!(storage.is_full(Measurer::Scanner) && !storage.is_full(Measurer::Services));
    for is_full in [true, false] {
        assert!(storage.take(StorageMessage::Round, Measurer::Scanner));
        assert_eq!(storage.is_full(Measurer::Scanner), is_full);
    }
    let mut take = |message| storage.take(message, Measurer::Scanner);
    assert!(take(of(most)) && take(StorageMessage::Measured(UID)));
    assert!(storage.of(&facts(), &[]).is_some(), "there is room again");
    assert!(storage.take(part(LAYER, Some(1)), Measurer::Services), "of writable layers there is as much room again");
}

#[test]
fn a_writable_layer_counts_for_its_container_and_its_pod() {
    let mut storage = measured(&[part(DATA, Some(40)), part(LOGS, Some(2))]);
    let other = StoragePart::Layer(4);
    for message in [part(LAYER, Some(7)), part(other, Some(1)), StorageMessage::Measured(UID)] {
        assert!(storage.take(message, Measurer::Services));
    }
    assert!(storage.changed().contains(&UID));
    let known = storage.of(&facts(), &[]).expect("it was measured");
    let of = |counts| {
        let stats = known.facts(&Pod::default(), counts).stats.expect("it is new");
        let containers: Vec<_> =
            stats.containers.iter().map(|it| (it.number.0, it.logs.bytes, it.rootfs.bytes)).collect();
        (stats.ephemeral_storage, containers)
    };
    assert_eq!(of(all(second(11))), (Some(50), vec![(3, Some(2), Some(7)), (4, None, Some(1))]));
    let without = Counts { layers: false, ..all(second(11)) };
    assert_eq!(of(without), (None, vec![(3, Some(2), None), (4, None, None)]), "they do not count");
    assert_eq!(known.whole(all(second(11))), Usage { bytes: Some(50), inodes: Some(4) });
    // A container that is gone takes nothing any more.
    assert!(storage.take(part(LAYER, Some(8)), Measurer::Services));
    assert!(storage.take(StorageMessage::Measured(UID), Measurer::Services));
    assert_eq!(whole(&storage, second(11)), Some(50));
}

#[test]
fn without_a_figure_of_each_writable_layer_the_sum_is_unknown_and_limits_of_volumes_hold() {
    let limit = StorageLimit { uid: UID, on: Limited::Volume(1), bytes: Bytes(20) };
    let scanned = [part(DATA, Some(40)), StorageMessage::Measured(UID)];
    let never = {
        let mut storage = Storage::default();
        assert!(scanned.iter().all(|message| storage.take(*message, Measurer::Scanner)));
        storage
    };
    let mut uncounted = measured(&scanned);
    assert!(uncounted.take(part(LAYER, None), Measurer::Services));
    for storage in [never, uncounted] {
        let known = storage.of(&facts(), &[limit]).expect("it was measured");
        let pod = known.facts(&Pod::default(), all(second(11)));
        assert_eq!(known.whole(all(second(11))), Usage::default());
        let stats = pod.stats.expect("volumes are known");
        assert_eq!((stats.ephemeral_storage, stats.volumes[0].usage.bytes), (None, Some(40)));
        assert_eq!(pod.volumes[0].size_limit, Some(Amount::whole(20)));
    }
}

#[test]
fn old_writable_layers_make_the_sum_unknown_and_leave_the_rest_as_it_is() {
    let mut storage = Storage::default();
    let at = |part, seconds| {
        let (begun, ended) = (second(seconds), second(seconds));
        StorageMessage::Part(PartUsage { uid: UID, part, used: Some((5, 1)), begun, ended })
    };
    assert!(storage.take(at(DATA, 100), Measurer::Scanner) && storage.take(at(LAYER, 10), Measurer::Services));
    let known = storage.of(&facts(), &[]).expect("it was measured");
    for (now, sum, layer) in [(1810, Some(10), Some(5)), (1811, None, None)] {
        let stats = known.facts(&Pod::default(), all(second(now))).stats.expect("volumes are new");
        assert_eq!((stats.ephemeral_storage, stats.containers[0].rootfs.bytes), (sum, layer), "{now}");
    }
}

#[test]
fn each_process_says_what_it_measures_and_nothing_else() {
    let mut storage = Storage::default();
    for (message, measurer, is_taken) in [
        (part(LAYER, Some(1)), Measurer::Scanner, false),
        (part(LAYER, Some(1)), Measurer::Services, true),
        (part(DATA, Some(1)), Measurer::Services, false),
        (part(LOGS, Some(1)), Measurer::Services, false),
        (part(StoragePart::Rest, Some(1)), Measurer::Services, false),
        (part(StoragePart::Rest, Some(1)), Measurer::Scanner, true),
        // The other process's parts stay.
        (StorageMessage::Measured(UID), Measurer::Services, true),
        (StorageMessage::Round, Measurer::Services, true),
        (StorageMessage::Round, Measurer::Services, true),
    ] {
        assert_eq!(message.may_be_of(measurer), is_taken, "{message:?} {measurer:?}");
        assert_eq!(storage.take(message, measurer), is_taken, "{message:?} {measurer:?}");
    }
    assert!(storage.of(&facts(), &[]).is_some(), "the scanner has measured it");
    assert_eq!(whole(&storage, second(11)), None, "the runtime knows of no such pod any more");
}

#[test]
fn no_pod_takes_more_than_is_in_use_on_the_disks() {
    let mut storage = measured(&[part(DATA, Some(40)), part(CACHE, Some(90))]);
    assert!(storage.take(part(LAYER, Some(30)), Measurer::Services));
    let known = storage.of(&facts(), &[]).expect("it was measured");
    let counts = |layers| Some(Counts { layers, ..all(second(11)) });
    for (node, layers, expected) in [
        (70, LayersOn::NodeDisk, counts(true)),
        (69, LayersOn::NodeDisk, None),
        (40, LayersOn::OwnDisk(30), counts(true)),
        (39, LayersOn::OwnDisk(30), None),
        (40, LayersOn::OwnDisk(29), None),
        (40, LayersOn::UnreadDisk, counts(false)),
        (39, LayersOn::UnreadDisk, None),
    ] {
        assert_eq!(known.believed(InUse { node, layers }, second(11)), expected, "{node} {layers:?}");
    }
}
