//! Thresholds from the maps of strings that a kubelet is configured with.

use core::time::Duration;
use plimsoll_policy::kubelet::{Origin, Signal, Threshold, ThresholdAmount};
use plimsoll_units::{DurationError, FloatError, Percentage, Quantity, QuantityError, parse_duration};
use std::collections::BTreeMap;

/// The kubelet's settings, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionSettings {
    /// `evictionHard`.
    pub hard: BTreeMap<String, String>,
    /// `evictionSoft`.
    pub soft: BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`.
    pub soft_grace: BTreeMap<String, String>,
    /// `evictionMinimumReclaim`.
    pub min_reclaim: BTreeMap<String, String>,
    /// `enforceNodeAllocatable`.
    pub enforce_node_allocatable: Vec<String>,
}

impl EvictionSettings {
    /// Whether pods together may have no more than is allocatable, so that a threshold is derived for that.
    pub(super) fn enforces_pods(&self) -> bool {
        self.enforce_node_allocatable.iter().any(|key| key == "pods")
    }

    /// Where a threshold is written: the map, the name in that, and the text. A soft one without a grace period acts at once like
    /// a hard one, and one on allocatable memory may follow from that on memory, so that the text of the same amount counts.
    pub fn written(&self, threshold: &Threshold<Quantity>) -> Option<(&'static str, &'static str, &str)> {
        let follows = threshold.signal == Signal::AllocatableMemoryAvailable;
        let names = [Some(threshold.signal), follows.then_some(Signal::MemoryAvailable)].into_iter().flatten();
        let hard = threshold.is_hard().then_some(("evictionHard", &self.hard));
        let maps = [hard, Some(("evictionSoft", &self.soft))];
        let texts = names.map(Signal::name).flat_map(|name| {
            maps.iter().flatten().filter_map(move |(map, texts)| Some((*map, name, texts.get(name)?.as_str())))
        });
        let is_its = |text| statement(threshold.signal, text).is_ok_and(|amount| amount == threshold.amount);
        texts.min_by_key(|(_, _, text)| !is_its(text))
    }
}

/// What is wrong with the settings, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    /// There is no such signal.
    #[error("unsupported eviction signal {0}")]
    UnknownSignal(String),
    /// A percentage is no number.
    #[error(transparent)]
    Percentage(#[from] FloatError),
    /// A quantity is none.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// A grace period is no duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// A percentage is below zero.
    #[error("eviction percentage threshold {signal} must be >= 0%: {value}")]
    PercentageNegative {
        /// Of what.
        signal: Signal,
        /// As it is written.
        value: String,
    },
    /// A percentage is above a hundred.
    #[error("eviction percentage threshold {signal} must be <= 100%: {value}")]
    PercentageAboveAll {
        /// Of what.
        signal: Signal,
        /// As it is written.
        value: String,
    },
    /// A quantity is zero or below.
    #[error("eviction threshold {signal} must be positive: {value}")]
    QuantityNotPositive {
        /// Of what.
        signal: Signal,
        /// As Kubernetes prints it.
        value: String,
    },
    /// A grace period is below zero.
    #[error("invalid eviction grace period specified: {0}, must be a positive value")]
    GraceNegative(String),
    /// A minimum reclaim in percent is zero or below.
    #[error("eviction percentage minimum reclaim {signal} must be positive: {value}")]
    ReclaimNotPositive {
        /// Of what.
        signal: Signal,
        /// As it is written.
        value: String,
    },
    /// A minimum reclaim is below zero.
    #[error("negative eviction minimum reclaim specified for {0}")]
    ReclaimNegative(Signal),
    /// A soft threshold has no grace period.
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    GraceMissing(Signal),
}

impl ThresholdError {
    /// What was expected in place of this text; absent where the text is not what is wrong.
    pub(crate) fn expected(&self, text: &str) -> Option<&'static str> {
        Some(match self {
            Self::UnknownSignal(_) | Self::GraceMissing(_) => return None,
            Self::Percentage(_) | Self::Quantity(_) => "expected a quantity such as 100Mi or a percentage such as 5%",
            Self::Duration(_) => "expected a duration such as 1m30s",
            Self::PercentageNegative { .. } | Self::PercentageAboveAll { .. } => {
                "expected a percentage from 0% to 100%"
            }
            Self::QuantityNotPositive { .. } if !text.starts_with('-') => "expected a quantity above zero",
            Self::QuantityNotPositive { .. } | Self::ReclaimNegative(_) => "expected a quantity that is not negative",
            Self::GraceNegative(_) => "expected a duration that is not negative",
            Self::ReclaimNotPositive { .. } => "expected a percentage above zero, or 0",
        })
    }
}

/// One error in the settings, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// The map: `evictionHard`, `evictionSoft`, `evictionSoftGracePeriod`, `evictionMinimumReclaim`.
    pub map: &'static str,
    /// The key in it.
    pub name: String,
    /// What is wrong.
    pub error: ThresholdError,
}

/// Parses the settings. Of several errors the first is returned, in the order hard, soft, grace, minimum reclaim, missing
/// grace, and by name within each; the kubelet's own order within each is random.
pub fn parse_thresholds(settings: &EvictionSettings) -> Result<Vec<Threshold<Quantity>>, ThresholdError> {
    let (thresholds, errors) = parse_all_thresholds(settings);
    errors.into_iter().next().map_or(Ok(thresholds), |first| Err(first.error))
}

/// Parses the settings, with every error in that order. The thresholds are those without an error.
pub fn parse_all_thresholds(settings: &EvictionSettings) -> (Vec<Threshold<Quantity>>, Vec<SettingError>) {
    let mut errors = Vec::new();
    let mut thresholds = statements("evictionHard", &settings.hard, &mut errors);
    let soft = statements("evictionSoft", &settings.soft, &mut errors);
    let grace: BTreeMap<_, _> =
        each("evictionSoftGracePeriod", &settings.soft_grace, &mut errors, grace_period).into_iter().collect();
    let min_reclaim: BTreeMap<_, _> =
        each("evictionMinimumReclaim", &settings.min_reclaim, &mut errors, min_reclaim).into_iter().collect();
    for threshold in soft {
        match grace.get(&threshold.signal) {
            Some(grace) => thresholds.push(Threshold { grace: *grace, ..threshold }),
            // One that is there and is wrong is an error already.
            None if settings.soft_grace.contains_key(threshold.signal.name()) => {}
            None => errors.push(SettingError {
                map: "evictionSoftGracePeriod",
                name: threshold.signal.name().to_owned(),
                error: ThresholdError::GraceMissing(threshold.signal),
            }),
        }
    }
    for threshold in &mut thresholds {
        threshold.min_reclaim = min_reclaim.get(&threshold.signal).cloned();
    }
    if settings.enforces_pods() {
        // The copy keeps the minimum reclaim of memory; one that is given for allocatable memory is ignored.
        let derived: Vec<_> = thresholds
            .iter()
            .filter(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.is_hard())
            .map(|threshold| Threshold { signal: Signal::AllocatableMemoryAvailable, ..threshold.clone() })
            .collect();
        thresholds.extend(derived);
    }
    (thresholds, errors)
}

fn signal(name: &str) -> Result<Signal, ThresholdError> {
    Signal::parse(name).ok_or_else(|| ThresholdError::UnknownSignal(name.to_owned()))
}

/// Parses the values of a map by signal; those that fail are errors.
fn each<T>(
    map: &'static str,
    values: &BTreeMap<String, String>,
    errors: &mut Vec<SettingError>,
    parse: impl Fn(Signal, &str) -> Result<T, ThresholdError>,
) -> Vec<(Signal, T)> {
    let mut parsed = Vec::with_capacity(values.len());
    for (name, written) in values {
        match signal(name).and_then(|signal| Ok((signal, parse(signal, written)?))) {
            Ok(value) => parsed.push(value),
            Err(error) => errors.push(SettingError { map, name: name.clone(), error }),
        }
    }
    parsed
}

fn statements(
    map: &'static str,
    values: &BTreeMap<String, String>,
    errors: &mut Vec<SettingError>,
) -> Vec<Threshold<Quantity>> {
    let parsed = each(map, values, errors, statement);
    parsed
        .into_iter()
        .filter_map(|(signal, value)| {
            let (amount, origin) = (Some(value?), Origin::Configured);
            Some(Threshold { signal, amount, grace: Duration::ZERO, min_reclaim: None, origin })
        })
        .collect()
}

pub(crate) fn statement(signal: Signal, written: &str) -> Result<Option<ThresholdAmount<Quantity>>, ThresholdError> {
    let value = || written.to_owned();
    if is_dropped(written) {
        return Ok(None);
    }
    if written.ends_with('%') {
        let share = Percentage::parse(written)?;
        if share.fraction() < 0.0 {
            return Err(ThresholdError::PercentageNegative { signal, value: value() });
        }
        if share.fraction() > 1.0 {
            return Err(ThresholdError::PercentageAboveAll { signal, value: value() });
        }
        return Ok(Some(ThresholdAmount::Share(share)));
    }
    let quantity = Quantity::parse(written)?;
    if quantity.is_negative() || quantity.is_zero() {
        return Err(ThresholdError::QuantityNotPositive { signal, value: quantity.to_string() });
    }
    Ok(Some(ThresholdAmount::At(quantity)))
}

/// Whether the kubelet makes no threshold of it. It compares the text: `0.0%` and `100.0%` are thresholds.
pub(super) fn is_dropped(written: &str) -> bool {
    matches!(written, "0%" | "100%")
}

fn grace_period(_: Signal, written: &str) -> Result<Duration, ThresholdError> {
    let grace = u64::try_from(parse_duration(written)?);
    grace.map(Duration::from_nanos).map_err(|_| ThresholdError::GraceNegative(written.to_owned()))
}

pub(crate) fn min_reclaim(signal: Signal, written: &str) -> Result<ThresholdAmount<Quantity>, ThresholdError> {
    if written.ends_with('%') {
        let share = Percentage::parse(written)?;
        return if share.fraction() <= 0.0 {
            Err(ThresholdError::ReclaimNotPositive { signal, value: written.to_owned() })
        } else {
            Ok(ThresholdAmount::Share(share))
        };
    }
    let quantity = Quantity::parse(written)?;
    if quantity.is_negative() {
        Err(ThresholdError::ReclaimNegative(signal))
    } else {
        Ok(ThresholdAmount::At(quantity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_found_in_the_map_and_under_the_name_that_it_is_written() {
        let map = |entries: &[(&str, &str)]| {
            entries.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let settings = EvictionSettings {
            hard: map(&[("memory.available", "100Mi"), ("nodefs.available", "NaN%")]),
            soft: map(&[
                ("allocatableMemory.available", "2Gi"),
                ("memory.available", "1Gi"),
                ("nodefs.available", "10%"),
            ]),
            soft_grace: map(&[
                ("allocatableMemory.available", "1m"),
                ("memory.available", "0s"),
                ("nodefs.available", "1m"),
            ]),
            min_reclaim: BTreeMap::new(),
            enforce_node_allocatable: vec!["pods".to_owned()],
        };
        let thresholds = parse_thresholds(&settings).expect("they are in order");
        let written: Vec<_> = thresholds.iter().map(|threshold| settings.written(threshold)).collect();
        let memory = [("evictionHard", "memory.available", "100Mi"), ("evictionSoft", "memory.available", "1Gi")];
        let [hard, soft] = memory.map(Some);
        let nodefs = [("evictionHard", "nodefs.available", "NaN%"), ("evictionSoft", "nodefs.available", "10%")];
        let [nodefs_hard, nodefs_soft] = nodefs.map(Some);
        let own = Some(("evictionSoft", "allocatableMemory.available", "2Gi"));
        assert_eq!(written, [hard, nodefs_hard, own, soft, nodefs_soft, hard, soft]);
        assert_eq!(EvictionSettings::default().written(&thresholds[0]), None);
    }
}
