//! How the watching thread asks the inventory thread for something: a word, a few cgroup ids, and a descriptor. Nothing
//! here blocks or allocates after it was made.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use plimsoll_inventory::{RemovalOrder, RemovalWords, StopOrder};
use plimsoll_units::CgroupId;
use rustix::io::Errno;

use super::stops::Stops;

/// What the watching thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::core) enum Request {
    /// Find workloads that came or went.
    Discover = 1,
    /// Read the slow figures now.
    Refresh = 2,
    /// Name the processes that hold much memory outside all workloads.
    Suspects = 4,
    /// End.
    End = 8,
    /// Report that this agent acts from now on.
    TakeOver = 16,
    /// Open the cgroups of a crossing.
    Crossing = 32,
    /// Open or close the cgroups of events.
    Events = 64,
    /// Read the slow figures now, and send those that have not changed as well.
    RefreshAll = 128,
    /// Have the source's programs show that they run. Stays asked until they have.
    Source = 256,
    /// Memory has moved: do now what is done rarely while nothing happens.
    Moved = 512,
    /// Find workloads now, and report when that is done: a decision waits for it.
    Walk = 1024,
    /// Send the order to remove what is dead or unused.
    Remove = 2048,
    /// Send the orders to stop pods.
    Stop = 4096,
    /// Send what is said of evictions and conditions.
    Inform = 8192,
}

/// Ids on their way: no more than it has places for.
#[derive(Debug)]
struct Ids<const PLACES: usize>([AtomicU64; PLACES]);

impl<const PLACES: usize> Ids<PLACES> {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; PLACES])
    }

    /// False: there is no place left.
    fn put(&self, id: CgroupId) -> bool {
        // Only the watching thread puts, so that a place that is free stays so until it is taken here.
        let place =
            self.0.iter().find(|place| matches!(place.load(Ordering::Acquire), other if other == 0 || other == id.0));
        place.map(|place| place.store(id.0, Ordering::Release)).is_some()
    }

    fn take(&self) -> impl Iterator<Item = CgroupId> {
        self.0.iter().map(|place| place.swap(0, Ordering::AcqRel)).filter(|id| *id != 0).map(CgroupId)
    }
}

#[derive(Debug)]
struct Shared {
    asked: AtomicU32,
    /// How often the watching thread woke.
    turns: AtomicU32,
    /// How much memory is available, in percent of the threshold that it is nearest to.
    headroom: AtomicU32,
    /// How long the last sample took, in nanoseconds.
    sample_cost: AtomicU64,
    /// How many samples were delayed because they cost much.
    delayed_samples: AtomicU32,
    /// This agent acts.
    acts: AtomicBool,
    stops: Stops<16>,
    crossing: Ids<16>,
    events: Ids<128>,
    /// The order to send. One follows another only once that has ended, but for the one that stops it, which differs in a
    /// single word.
    removal: [AtomicU64; size_of::<RemovalWords>() / size_of::<u64>()],
    wake: OwnedFd,
}

/// The watching thread's end.
#[derive(Clone, Debug)]
pub(in crate::core) struct InventoryHandle(Arc<Shared>);

impl InventoryHandle {
    pub(in crate::core) fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(Shared {
            asked: AtomicU32::default(),
            turns: AtomicU32::default(),
            headroom: AtomicU32::default(),
            sample_cost: AtomicU64::default(),
            delayed_samples: AtomicU32::default(),
            acts: AtomicBool::default(),
            stops: Stops::new(),
            crossing: Ids::new(),
            events: Ids::new(),
            removal: Default::default(),
            wake: eventfd()?,
        })))
    }

    /// Asks; a second request before the first is taken changes nothing and wakes no thread.
    pub(in crate::core) fn request(&self, what: Request) {
        if self.0.asked.fetch_or(what as u32, Ordering::AcqRel) & what as u32 == 0 {
            wake(&self.0.wake);
        }
    }

    /// Asks for the workload of a cgroup that crossed a threshold and is not known.
    pub(in crate::core) fn sight_crossing(&self, id: CgroupId) {
        let what = if self.0.crossing.put(id) { Request::Crossing } else { Request::Discover };
        self.request(what);
    }

    /// Asks for the workload of a cgroup that came or went. Where more come than the thread gets on with, it walks.
    pub(in crate::core) fn sight_event(&self, id: CgroupId) {
        let what = if self.0.events.put(id) { Request::Events } else { Request::Discover };
        self.request(what);
    }

    /// Asks for an order to be sent.
    pub(in crate::core) fn order_removal(&self, order: &RemovalOrder) {
        for (place, word) in self.0.removal.iter().zip(order.words()) {
            place.store(word, Ordering::Relaxed);
        }
        self.request(Request::Remove);
    }

    /// The order to send.
    pub(super) fn removal(&self) -> Option<RemovalOrder> {
        RemovalOrder::of_words(core::array::from_fn(|word| self.0.removal[word].load(Ordering::Relaxed)))
    }

    /// The order to send, if one was asked for.
    #[cfg(test)]
    pub(in crate::core) fn take_removal(&self) -> Option<RemovalOrder> {
        (self.take(Request::Remove as u32) != 0).then(|| self.removal()).flatten()
    }

    /// Asks for an order to stop a pod to be sent. False: as many are on their way as there are places for.
    pub(in crate::core) fn order_stop(&self, order: &StopOrder) -> bool {
        let has_room = self.0.stops.put(order);
        if has_room {
            self.request(Request::Stop);
        }
        has_room
    }

    /// The orders to stop pods that are to be sent.
    pub(super) fn stops(&self) -> impl Iterator<Item = StopOrder> {
        self.0.stops.take()
    }

    /// The same where they were asked for.
    #[cfg(test)]
    pub(in crate::core) fn take_stops(&self) -> Vec<StopOrder> {
        self.take(Request::Stop as u32);
        self.stops().collect()
    }

    /// Whether this agent acts from now on.
    pub(in crate::core) fn set_acts(&self, acts: bool) {
        self.0.acts.store(acts, Ordering::Relaxed);
    }

    pub(super) fn acts(&self) -> bool {
        self.0.acts.load(Ordering::Relaxed)
    }

    /// The watching thread woke.
    pub(in crate::core) fn turn(&self) {
        self.0.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Says after a sample how much memory is available, in percent of the threshold that it is nearest to, how long
    /// the sample took, and how many so far were delayed because they cost much. The nearer, the more often the slow
    /// figures are read; at once where it came much nearer. Below a threshold the watching thread has those read that a
    /// decision needs.
    pub(in crate::core) fn sampled(&self, headroom: u32, cost: Duration, delayed: u32) {
        self.0.delayed_samples.store(delayed, Ordering::Relaxed);
        self.0.sample_cost.store(u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let before = self.0.headroom.swap(headroom, Ordering::Relaxed);
        if headroom >= 100 && headroom <= before / 2 {
            self.request(Request::Refresh);
        }
    }

    /// How often the watching thread woke.
    pub(super) fn turns(&self) -> u32 {
        self.0.turns.load(Ordering::Relaxed)
    }

    pub(super) fn headroom(&self) -> u32 {
        self.0.headroom.load(Ordering::Relaxed)
    }

    pub(super) fn delayed_samples(&self) -> u32 {
        self.0.delayed_samples.load(Ordering::Relaxed)
    }

    pub(super) fn sample_cost(&self) -> Duration {
        Duration::from_nanos(self.0.sample_cost.load(Ordering::Relaxed))
    }

    /// Takes what was asked of these, as the bits of [`Request`]. What is not due stays asked, so that asking for it again
    /// wakes no thread.
    pub(super) fn take(&self, due: u32) -> u32 {
        clear(&self.0.wake);
        self.0.asked.fetch_and(!due, Ordering::AcqRel) & due
    }

    /// What stays asked was done.
    pub(super) fn answer(&self, what: Request) {
        self.0.asked.fetch_and(!(what as u32), Ordering::AcqRel);
    }

    pub(in crate::core) fn is_asked(&self, what: Request) -> bool {
        self.0.asked.load(Ordering::Acquire) & what as u32 != 0
    }

    /// Cgroups that crossed a threshold.
    pub(super) fn crossing(&self) -> impl Iterator<Item = CgroupId> {
        self.0.crossing.take()
    }

    /// Cgroups that came or went.
    pub(super) fn events(&self) -> impl Iterator<Item = CgroupId> {
        self.0.events.take()
    }
}

impl AsFd for InventoryHandle {
    /// Readable when something was asked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

/// An eventfd for a wake between two threads or processes.
pub(in crate::core) fn eventfd() -> Result<OwnedFd, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Makes an eventfd readable.
pub(in crate::core) fn wake(fd: &OwnedFd) {
    // A full counter is readable already.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Makes an eventfd unreadable until it is written again.
pub(in crate::core) fn clear(fd: &OwnedFd) {
    let mut count = [0; 8];
    while let Err(Errno::INTR) = rustix::io::read(fd, &mut count) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the descriptor is readable; it is not any more then.
    fn wakes(handle: &InventoryHandle) -> bool {
        let mut count = [0; 8];
        rustix::io::read(handle.as_fd(), &mut count).is_ok()
    }

    #[test]
    fn what_is_asked_twice_before_it_is_taken_is_done_once() {
        let handle = InventoryHandle::new().expect("an eventfd");
        handle.request(Request::Discover);
        handle.request(Request::Discover);
        handle.request(Request::End);
        assert_eq!(handle.take(u32::MAX), Request::Discover as u32 | Request::End as u32);
        assert_eq!(handle.take(u32::MAX), 0);
    }

    #[test]
    fn a_flood_of_cgroup_events_wakes_once_and_becomes_a_walk() {
        let handle = InventoryHandle::new().expect("an eventfd");
        handle.sight_event(CgroupId(1));
        assert!(wakes(&handle));
        for id in 1..=128 {
            handle.sight_event(CgroupId(id));
            assert!(!wakes(&handle), "{id}");
        }
        handle.sight_event(CgroupId(129));
        assert!(wakes(&handle) && handle.is_asked(Request::Discover));
        // What is not due stays asked, and wakes no more.
        assert_eq!(handle.take(Request::Events as u32), Request::Events as u32);
        for id in 130..200 {
            handle.sight_event(CgroupId(id));
            assert!(!wakes(&handle), "all places are taken, and the walk is asked for");
        }
        assert_eq!(handle.events().count(), 128);
        // A crossing has places of its own.
        handle.sight_crossing(CgroupId(7));
        assert!(wakes(&handle));
        assert_eq!(handle.crossing().collect::<Vec<_>>(), [CgroupId(7)]);
    }

    #[test]
    fn what_stays_asked_wakes_once_until_it_is_answered() {
        let handle = InventoryHandle::new().expect("an eventfd");
        handle.request(Request::Source);
        assert!(wakes(&handle) && handle.take(!(Request::Source as u32)) == 0 && handle.is_asked(Request::Source));
        handle.request(Request::Source);
        assert!(!wakes(&handle));
        handle.answer(Request::Source);
        assert!(!handle.is_asked(Request::Source));
        handle.request(Request::Source);
        assert!(wakes(&handle));
    }

    #[test]
    fn memory_that_comes_much_nearer_to_a_threshold_has_the_slow_figures_read() {
        let handle = InventoryHandle::new().expect("an eventfd");
        for (headroom, reads) in [
            (1000, false),
            (900, false),
            (450, true),
            (300, false),
            (140, true),
            (99, false),
            (40, false),
            (900, false),
        ] {
            handle.sampled(headroom, Duration::ZERO, 0);
            assert_eq!(handle.take(u32::MAX) == Request::Refresh as u32, reads, "{headroom}");
        }
    }
}
