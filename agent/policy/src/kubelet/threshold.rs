//! Thresholds: at how much they are, what it takes to be below them, and how a list of them came to be.

use super::signals::{Readings, Signal};
use core::time::Duration;
use plimsoll_units::{Amount, Bytes, Percentage, Quantity};

/// At how much a threshold is. As it is configured, the amount is a [`Quantity`], whose text messages repeat; decisions,
/// which allocate nothing, take it as an [`Amount`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ThresholdAmount<Q = Amount> {
    /// At this amount.
    At(Q),
    /// At this share of the capacity.
    Share(Percentage),
}

impl ThresholdAmount<Quantity> {
    /// The same without its text.
    pub fn exact(&self) -> ThresholdAmount {
        match self {
            Self::At(quantity) => ThresholdAmount::At(quantity.amount()),
            Self::Share(share) => ThresholdAmount::Share(*share),
        }
    }
}

impl ThresholdAmount {
    /// At so many bytes.
    pub const fn bytes(bytes: Bytes) -> Self {
        Self::At(Amount::nanos(bytes.0 as i128 * 1_000_000_000))
    }

    /// How much that is of this capacity, in bytes and rounded up: what is below the one is below the other.
    pub fn of_bytes(self, capacity: Bytes) -> Bytes {
        self.of(capacity.0.cast_signed()).to_bytes()
    }

    /// How much that is of this capacity (`GetThresholdQuantity`).
    pub fn of(self, capacity: i64) -> Amount {
        match self {
            Self::At(amount) => amount,
            Self::Share(share) => share.amount_of(capacity),
        }
    }
}

/// Where a threshold comes from. Those of containerfs are derived when the layout of the disks becomes known, which is
/// too late for that first turn (`synchronize` goes on with the list it had before `UpdateContainerFsThresholds`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It was configured.
    #[default]
    Configured,
    /// It was derived, and counts from the second turn on, and to judge a reclaim.
    Derived,
    /// It was derived and took the place of a configured one in the same list, so that the first turn sees it.
    DerivedInPlace,
    /// It was configured and replaced in a copy of the list: only the first turn sees it.
    ReplacedInCopy,
}

impl Origin {
    /// Whether it counts in the turn that learns of the disks, and in others.
    pub(super) const fn is_seen(self, first_turn: bool) -> bool {
        match self {
            Self::Configured | Self::DerivedInPlace => true,
            Self::Derived => !first_turn,
            Self::ReplacedInCopy => first_turn,
        }
    }
}

/// A threshold, with its amounts as they are configured or without their texts ([`ThresholdAmount`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold<Q = Amount> {
    /// What is measured.
    pub signal: Signal,
    /// Met while less than this is available; none is never met (the kubelet derives such ones from nothing).
    pub amount: Option<ThresholdAmount<Q>>,
    /// How long it must be met before anything is done. Zero makes it a hard one, wherever it was configured.
    pub grace: Duration,
    /// How much above the threshold is wanted again once it was met.
    pub min_reclaim: Option<ThresholdAmount<Q>>,
    /// Where it comes from.
    pub origin: Origin,
}

impl<Q> Threshold<Q> {
    /// Whether it acts at once.
    pub const fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

impl Threshold<Quantity> {
    /// The same without the texts of its amounts.
    pub fn exact(&self) -> Threshold {
        let Self { signal, amount, grace, min_reclaim, origin } = self;
        let exact = |amount: &Option<ThresholdAmount<Quantity>>| amount.as_ref().map(ThresholdAmount::exact);
        let (amount, min_reclaim) = (exact(amount), exact(min_reclaim));
        Threshold { signal: *signal, amount, grace: *grace, min_reclaim, origin: *origin }
    }
}

impl Threshold {
    /// A hard threshold without minimum reclaim.
    pub const fn hard(signal: Signal, amount: ThresholdAmount) -> Self {
        Self { signal, amount: Some(amount), grace: Duration::ZERO, min_reclaim: None, origin: Origin::Configured }
    }

    /// How much it is of this capacity, in bytes; nothing where it is never met.
    pub fn bytes(&self, capacity: Bytes) -> Option<Bytes> {
        self.amount.map(|amount| amount.of_bytes(capacity))
    }

    /// Whether it is met (`thresholdsMet`): never without a reading.
    pub(super) fn is_met(&self, readings: &Readings, with_min_reclaim: bool) -> bool {
        let (Some(amount), Some(reading)) = (self.amount, readings.get(self.signal)) else { return false };
        let wanted =
            self.min_reclaim.filter(|_| with_min_reclaim).map_or(Amount::ZERO, |amount| amount.of(reading.capacity));
        Amount::whole(reading.available) < amount.of(reading.capacity) + wanted
    }

    /// `hasThreshold` does not compare minimum reclaims.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.signal, self.grace) == (other.signal, other.grace) && self.amount == other.amount
    }
}
