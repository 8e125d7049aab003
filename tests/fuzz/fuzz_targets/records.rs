//! Ring records of any bytes: a record or an error, and what is read back has the length that it claims.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_abi::{BareRecord, Event, ThresholdRecord};

fuzz_target!(|data: &[u8]| {
    if ThresholdRecord::decode(data).is_ok() {
        assert_eq!(data.len(), size_of::<ThresholdRecord>());
    }
    let _ = BareRecord::decode(data);
    let _ = Event::decode(data);
});
