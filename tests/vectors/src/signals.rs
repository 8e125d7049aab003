//! What is seen of a summary.

use crate::api::Stats;
use jiff::Timestamp;
use plimsoll_policy::kubelet::{Readings, Signal, StatsTime};
use plimsoll_units::Quantity;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
pub(crate) struct Case {
    summary: Stats,
    observations: BTreeMap<String, Observed>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Observed {
    available: String,
    available_value: i64,
    capacity: String,
    capacity_value: i64,
    time: Option<Timestamp>,
}

fn timestamp(time: StatsTime) -> Timestamp {
    Timestamp::from_nanosecond(time.0.into()).expect("from a timestamp")
}

impl crate::Case for Case {
    fn difference(self) -> Option<String> {
        let readings = Readings::of(&self.summary.0.node_stats());
        let mut ours = BTreeMap::new();
        for signal in Signal::ALL {
            let Some(reading) = readings.get(signal) else { continue };
            let print = |amount: i64| {
                if signal.is_bytes() { Quantity::binary(amount.into()) } else { Quantity::decimal(amount.into()) }
                    .to_string()
            };
            let observed = Observed {
                available: print(reading.available),
                available_value: reading.available,
                capacity: print(reading.capacity),
                capacity_value: reading.capacity,
                time: reading.time.map(timestamp),
            };
            ours.insert(signal.to_string(), observed);
        }
        (ours != self.observations).then(|| crate::both(&ours, &self.observations))
    }
}
