//! Statistics and amounts as the cases write them.

use plimsoll_pods::Summary;
use plimsoll_policy::kubelet::Amount;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Map;

/// A summary. A kubelet's always has a node, that of a case may not.
pub(crate) struct Stats(pub(crate) Summary);

impl<'de> Deserialize<'de> for Stats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut summary = Map::deserialize(deserializer)?;
        summary.entry("node").or_insert_with(|| Map::new().into());
        serde_json::from_value(summary.into()).map(Self).map_err(D::Error::custom)
    }
}

/// A plain decimal number, with up to nine places.
pub(crate) fn decimal_amount(decimal: &str) -> Amount {
    let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, ""));
    Amount::nanos(format!("{whole}{fraction:0<9}").parse().expect("a number of nine places at most"))
}
