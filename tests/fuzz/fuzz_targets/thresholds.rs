//! Thresholds of any text, in the form of the kubelet's flags.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_config::kubelet::{EvictionSettings, parse_map_flag, parse_thresholds};
use plimsoll_units::Bytes;

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let mut map = |separator| parse_map_flag(lines.next(), separator).unwrap_or_default();
    let settings = EvictionSettings {
        hard: map('<'),
        soft: map('<'),
        soft_grace: map('='),
        min_reclaim: map('='),
        ..EvictionSettings::default()
    };
    match parse_thresholds(&settings) {
        Ok(thresholds) => {
            for threshold in thresholds {
                let _ = threshold.exact().bytes(Bytes(u64::MAX));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
