//! What the core orders another process to remove from the node, and what came of that: numbers alone. Neither side
//! trusts what it receives.

use plimsoll_policy::kubelet::Reclaim;
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

/// An order as words.
pub type RemovalWords = [u64; 4];

const CONTAINERS: u64 = 1;
const IMAGES: u64 = 2;

/// An order to remove what is dead or unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalOrder {
    /// Higher than all before from the same core, but for an order to stop, which has the number of what it stops.
    pub number: u64,
    /// What is removed. Nothing is an order to stop.
    pub what: Reclaim,
    /// Images are removed until they made up for so much, by the runtime's account.
    pub bytes: Bytes,
    /// No removal is begun from then on, on the monotonic clock: the order may have waited for a process that died.
    pub until: MonotonicNs,
}

impl RemovalOrder {
    /// The same that stops it.
    #[must_use]
    pub const fn stopping(self) -> Self {
        Self { what: Reclaim { containers: false, images: false }, ..self }
    }

    /// As words.
    pub fn words(&self) -> RemovalWords {
        let Self { number, what: Reclaim { containers, images }, bytes, until } = *self;
        let what = if containers { CONTAINERS } else { 0 } | if images { IMAGES } else { 0 };
        [number, what, bytes.0, until.0]
    }

    /// From words; `None` where they ask for what there is not.
    pub fn of_words([number, what, bytes, until]: RemovalWords) -> Option<Self> {
        let is_known = what & !(CONTAINERS | IMAGES) == 0;
        let what = Reclaim { containers: what & CONTAINERS != 0, images: what & IMAGES != 0 };
        is_known.then_some(Self { number, what, bytes: Bytes(bytes), until: MonotonicNs(until) })
    }
}

/// What came of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalResult {
    /// The order's number.
    pub number: u64,
    /// How many containers were removed.
    pub containers: u32,
    /// How many sandboxes.
    pub sandboxes: u32,
    /// How many images, each with all its tags.
    pub images: u32,
    /// What these images took by the runtime's account, layers that others share included.
    pub freed: Bytes,
    /// How many images are left that may be removed; absent where they were not listed.
    pub unused: Option<u32>,
    /// Why it is not more; absent where all was done.
    pub error: Option<RemovalError>,
}

impl RemovalResult {
    /// Nothing was removed, as far as is known.
    pub fn failed(number: u64, error: RemovalError) -> Self {
        Self { number, error: Some(error), ..Self::default() }
    }

    /// Whether nothing was removed.
    pub const fn is_nothing(&self) -> bool {
        self.containers == 0 && self.sandboxes == 0 && self.images == 0
    }
}

/// Why an order was not carried out, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RemovalError {
    /// It could not be sent.
    NotSent,
    /// It was sent, and no result came in time. What was removed is not known.
    Unanswered,
    /// No container runtime is named.
    NoRuntime,
    /// The runtime does not answer, or refused a removal. The log of `services` has its words.
    Runtime,
    /// It was stopped, or its time was over.
    Stopped,
}

impl RemovalError {
    /// Its name, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotSent => "not-sent",
            Self::Unanswered => "unanswered",
            Self::NoRuntime => "no-runtime",
            Self::Runtime => "runtime",
            Self::Stopped => "stopped",
        }
    }

    /// What it means, for the log.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotSent => "services cannot be sent an order",
            Self::Unanswered => "services did not report what it removed",
            Self::NoRuntime => "no container runtime is named (machine.runtimeSocket)",
            Self::Runtime => "the container runtime did not remove everything; services logs why",
            Self::Stopped => "it was stopped before everything was removed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_comes_back_from_its_words_and_one_that_asks_for_what_there_is_not_is_none() {
        for (containers, images) in [(false, false), (true, false), (false, true), (true, true)] {
            let order = RemovalOrder {
                number: u64::MAX,
                what: Reclaim { containers, images },
                bytes: Bytes(1 << 40),
                until: MonotonicNs(7),
            };
            assert_eq!(RemovalOrder::of_words(order.words()), Some(order));
            assert_eq!(order.stopping().what, Reclaim { containers: false, images: false });
        }
        assert_eq!(RemovalOrder::of_words([u64::MAX; 4]), None);
    }
}
