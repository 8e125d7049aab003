//! Questions that may never be answered, in threads of their own.

use crate::error::StorageError;
use core::time::Duration;
use plimsoll_units::MonotonicNs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// What a worker's stack may take: nothing here recurses.
const STACK_BYTES: usize = 128 << 10;

/// How many workers there may be, those that hang without an owner included. A thread that waits for a dead disk cannot
/// be ended, by a signal neither, so that only a bound keeps them from piling up while disks come and go.
#[derive(Clone, Debug)]
pub struct Slots {
    taken: Arc<AtomicUsize>,
    limit: usize,
}

/// One of them, until it is dropped.
#[derive(Debug)]
struct Slot(Arc<AtomicUsize>);

impl Slots {
    /// As many as `limit`.
    pub fn new(limit: usize) -> Self {
        Self { taken: Arc::default(), limit }
    }

    /// How many are taken now.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    fn take(&self) -> Option<Slot> {
        let one_more = |taken: usize| (taken < self.limit).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Slot(Arc::clone(&self.taken)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that answers one question, one asking at a time. Nothing here waits for it; when the worker is dropped its
/// thread ends by itself, once it has answered.
#[derive(Debug)]
pub struct Worker<T> {
    state: Arc<Mutex<State<T>>>,
    asks: SyncSender<MonotonicNs>,
}

#[derive(Debug)]
struct State<T> {
    /// The last answer, and when it was asked for.
    answer: Option<(MonotonicNs, T)>,
    /// Since when one is outstanding.
    outstanding: Option<MonotonicNs>,
}

impl<T: Clone + Send + 'static> Worker<T> {
    /// Starts its thread, which takes one of `slots`. `name` names what is asked about, in the error alone.
    pub fn start(
        slots: &Slots,
        name: &str,
        mut answer: impl FnMut() -> T + Send + 'static,
    ) -> Result<Self, StorageError> {
        let named = || name.to_owned();
        let slot = slots.take().ok_or_else(|| StorageError::NoSlot { name: named(), limit: slots.limit })?;
        let state = Arc::new(Mutex::new(State { answer: None, outstanding: None }));
        let (asks, asked) = sync_channel(1);
        let its_state = Arc::clone(&state);
        let run = move || {
            let _slot = slot;
            while let Ok(at) = asked.recv() {
                let answered = answer();
                let mut state = lock(&its_state);
                state.answer = Some((at, answered));
                state.outstanding = None;
            }
        };
        Builder::new()
            .name("storage".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(run)
            .map_err(|source| StorageError::Thread { name: named(), source })?;
        Ok(Self { state, asks })
    }

    /// Asks, unless an answer is outstanding. Returns whether it did.
    pub fn ask(&self, now: MonotonicNs) -> bool {
        let mut state = lock(&self.state);
        if state.outstanding.is_some() {
            return false;
        }
        // A thread that has died leaves the question outstanding, as one that hangs does.
        state.outstanding = Some(now);
        // The thread that is woken takes it as well.
        drop(state);
        self.asks.try_send(now).is_ok()
    }

    /// The last answer and its time: that of the question, since it may have been seen at any moment from then on.
    /// Absent where that is longer ago than `max_age`.
    pub fn answer(&self, now: MonotonicNs, max_age: Duration) -> Option<(MonotonicNs, T)> {
        lock(&self.state).answer.clone().filter(|(at, _)| now.since(*at) <= max_age)
    }

    /// How long an answer has been outstanding.
    pub fn outstanding(&self, now: MonotonicNs) -> Option<Duration> {
        lock(&self.state).outstanding.map(|since| now.since(since))
    }
}

/// The thread holds it for as long as it takes to put an answer in.
fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::yield_now;

    const fn at(second: u64) -> MonotonicNs {
        MonotonicNs(second * 1_000_000_000)
    }

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn one_question_is_outstanding_at_most_and_no_thread_waits_for_it() {
        let slots = Slots::new(1);
        let (answers, answer) = channel::<u32>();
        let worker = Worker::start(&slots, "a disk", move || answer.recv().expect("an answer")).expect("a thread");
        assert_eq!(worker.outstanding(at(1)), None);
        assert!(worker.ask(at(1)));
        assert!(!worker.ask(at(5)), "it hangs, and is asked only once");
        assert_eq!((worker.outstanding(at(5)), worker.answer(at(5), MINUTE)), (Some(Duration::from_secs(4)), None));
        answers.send(7).expect("the worker listens");
        while worker.outstanding(at(5)).is_some() {
            yield_now();
        }
        assert_eq!(worker.answer(at(61), MINUTE), Some((at(1), 7)), "as old as the question");
        assert_eq!(worker.answer(at(62), MINUTE), None, "too old");
        assert!(worker.ask(at(70)) && !worker.ask(at(71)), "it can be asked again");
        answers.send(8).expect("the worker listens");
        while worker.outstanding(at(71)).is_some() {
            yield_now();
        }
        assert_eq!(worker.answer(at(71), MINUTE), Some((at(70), 8)));
    }

    #[test]
    fn threads_that_hang_count_until_they_end() {
        let slots = Slots::new(2);
        let (answers, answer) = channel::<u32>();
        let (begins, begun) = channel();
        let answer = move || {
            begins.send(()).expect("the test waits for it");
            answer.recv().unwrap_or(0)
        };
        let hangs = Worker::start(&slots, "a dead disk", answer).expect("a thread");
        assert!(hangs.ask(at(1)));
        begun.recv().expect("it begins");
        drop(hangs);
        assert_eq!(slots.taken(), 1, "the thread is still there");
        let other = Worker::start(&slots, "a disk", || 1).expect("a thread");
        let error = Worker::start(&slots, "one too many", || 1).expect_err("both are taken");
        assert!(error.to_string().contains("one too many") && error.to_string().contains('2'), "{error}");
        assert_eq!(slots.taken(), 2);
        drop((other, answers));
        while slots.taken() > 0 {
            yield_now();
        }
        drop(Worker::start(&slots, "a disk", || 1).expect("both are free"));
    }
}
