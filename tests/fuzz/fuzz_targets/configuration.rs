//! A configuration file of any text: a configuration or errors, each with what was expected.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = plimsoll_config::parse(text, "fuzz.yaml") {
        assert!(!error.to_string().is_empty());
    }
});
