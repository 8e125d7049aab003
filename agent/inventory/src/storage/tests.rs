//! What is known of pods' storage after messages.

use super::*;

const UID: Uid = Uid(7);
const DATA: StoragePart = StoragePart::Volume { name: 1, is_local: true };
const CACHE: StoragePart = StoragePart::Volume { name: 2, is_local: false };
const LOGS: StoragePart = StoragePart::Logs(3);

const fn second(seconds: u64) -> MonotonicNs {
    MonotonicNs(seconds * 1_000_000_000)
}

fn part(part: StoragePart, used: Option<u64>) -> StorageMessage {
    let used = used.map(|bytes| (bytes, 1));
    StorageMessage::Part(PartUsage { uid: UID, part, used, begun: second(9), ended: second(10) })
}

fn measured(messages: &[StorageMessage]) -> Storage {
    let mut storage = Storage::default();
    assert!(messages.iter().all(|message| storage.take(*message)));
    storage
}

fn facts() -> PodFacts {
    PodFacts { uid: UID, storage_request: Bytes(5), storage_limit: Some(Bytes(100)), ..PodFacts::default() }
}

fn whole(storage: &Storage, now: MonotonicNs) -> Option<u64> {
    storage.of(&facts(), &[]).expect("it was measured").whole(now).bytes
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
    let pod = known.facts(&Pod { priority: 3, ..Pod::default() }, second(11));
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
        storage.of(&huge, &[]).expect("measured").facts(&Pod::default(), second(11)).ephemeral_storage_request;
    assert!(request.is_positive(), "a request that is too large is the largest one");
}

#[test]
fn a_part_that_is_unknown_makes_the_sum_unknown() {
    let mut storage = measured(&[part(DATA, Some(40)), StorageMessage::Measured(UID)]);
    assert!(storage.take(part(DATA, Some(1))));
    assert_eq!(whole(&storage, second(11)), Some(1), "the newest counts");
    assert!(storage.take(part(LOGS, None)));
    assert_eq!(whole(&storage, second(11)), None);
}

#[test]
fn what_is_not_named_again_is_gone() {
    let mut storage = measured(&[part(DATA, Some(4)), part(LOGS, Some(2)), StorageMessage::Measured(UID)]);
    assert!(storage.changed().contains(&UID));
    for message in [StorageMessage::Round, part(LOGS, Some(3)), StorageMessage::Measured(UID)] {
        assert!(storage.take(message));
    }
    assert_eq!((whole(&storage, second(11)), storage.count), (Some(3), 1), "the volume is gone");
    assert!(storage.take(StorageMessage::Round) && storage.take(StorageMessage::Round));
    assert!(storage.of(&facts(), &[]).is_none(), "the pod is gone");
    assert_eq!(storage.count, 0);
    assert!(storage.changed().contains(&UID));
}

#[test]
fn a_figure_holds_for_a_while_and_longer_where_measuring_took_long() {
    let storage = measured(&[part(DATA, Some(4))]);
    // It took a second.
    assert_eq!([612, 613].map(|seconds| whole(&storage, second(seconds))), [Some(4), None]);
    let known = storage.of(&facts(), &[]).expect("it was measured");
    assert_eq!(known.facts(&Pod::default(), second(613)).stats, None, "nothing is decided by it");
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
    assert!((0..most).all(|name| storage.take(of(name))));
    assert!(!storage.take(of(most)), "there is no room");
    assert!(storage.take(of(0)), "for what is known there is");
    assert_eq!(storage.count, MOST_PARTS);
    let StorageMessage::Part(usage) = of(0) else { panic!("it is one") };
    assert!(!storage.take(StorageMessage::Part(PartUsage { uid: Uid(UID.0 ^ 1), ..usage })));
    assert_eq!(storage.pods.len(), 1, "a pod that is refused leaves nothing");
}
