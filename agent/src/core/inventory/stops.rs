//! Orders to stop pods, on their way from the watching thread to the inventory thread, which sends them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use plimsoll_inventory::StopOrder;
use plimsoll_policy::Uid;
use plimsoll_units::MonotonicNs;

/// Orders to stop pods on their way: no more than there are places for. The watching thread alone puts, and the other one
/// alone takes.
#[derive(Debug)]
pub(super) struct Stops<const PLACES: usize>([StopPlace; PLACES]);

#[derive(Debug)]
struct StopPlace {
    is_taken: AtomicBool,
    /// The lower half first.
    uid: [AtomicU64; 2],
    grace_seconds: AtomicU32,
    until: AtomicU64,
}

impl StopPlace {
    const fn free() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            uid: [const { AtomicU64::new(0) }; 2],
            grace_seconds: AtomicU32::new(0),
            until: AtomicU64::new(0),
        }
    }
}

impl<const PLACES: usize> Stops<PLACES> {
    pub(super) const fn new() -> Self {
        Self([const { StopPlace::free() }; PLACES])
    }

    /// False: there is no place left.
    pub(super) fn put(&self, StopOrder { uid, grace_seconds, until }: &StopOrder) -> bool {
        let Some(place) = self.0.iter().find(|place| !place.is_taken.load(Ordering::Acquire)) else { return false };
        let bytes = uid.0.to_le_bytes();
        let (halves, _) = bytes.as_chunks::<8>();
        for (word, half) in place.uid.iter().zip(halves) {
            word.store(u64::from_le_bytes(*half), Ordering::Relaxed);
        }
        place.grace_seconds.store(*grace_seconds, Ordering::Relaxed);
        place.until.store(until.0, Ordering::Relaxed);
        place.is_taken.store(true, Ordering::Release);
        true
    }

    pub(super) fn take(&self) -> impl Iterator<Item = StopOrder> {
        self.0.iter().filter(|place| place.is_taken.load(Ordering::Acquire)).map(|place| {
            let [low, high] = [0, 1].map(|half: usize| u128::from(place.uid[half].load(Ordering::Relaxed)));
            let order = StopOrder {
                uid: Uid(high << 64 | low),
                grace_seconds: place.grace_seconds.load(Ordering::Relaxed),
                until: MonotonicNs(place.until.load(Ordering::Relaxed)),
            };
            place.is_taken.store(false, Ordering::Release);
            order
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_on_their_way_as_there_are_places_for_and_each_is_taken_once() {
        let stops = Stops::<2>::new();
        let order = |number: u64| StopOrder {
            uid: Uid(u128::from(number) << 64 | 5),
            grace_seconds: 7,
            until: MonotonicNs(number),
        };
        assert_eq!([1, 2, 3].map(|number| stops.put(&order(number))), [true, true, false]);
        assert_eq!(stops.take().collect::<Vec<_>>(), [order(1), order(2)]);
        assert_eq!(stops.take().next(), None);
        assert!(stops.put(&order(4)));
        assert_eq!(stops.take().collect::<Vec<_>>(), [order(4)]);
    }
}
