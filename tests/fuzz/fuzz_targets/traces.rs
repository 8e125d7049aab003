//! Recordings of any bytes through every eviction policy: turns with words and numbers, or an error with its place.
//! What follows a zero byte is read as a list of pods.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use plimsoll_config::Configuration;
use plimsoll_pods::{ReadError, read_pods};
use plimsoll_policy::EvictionPolicy;
use plimsoll_replay::{Settings, read, run};

const LINES: &str = "evictionHard: {memory.available: 50%, nodefs.available: 10%, nodefs.inodesFree: 5%, imagefs.available: \
    1Gi, pid.available: 50%}
evictionSoft: {memory.available: 60%}
evictionSoftGracePeriod: {memory.available: 10s}
evictionMinimumReclaim: {memory.available: 1Gi}
machine: {slices: [{path: a, evictionHard: {memory.available: 10%}}], victimsPerMinute: 3}";

/// Read once: what is fuzzed are the recordings.
static CONFIGURATION: LazyLock<Configuration> =
    LazyLock::new(|| plimsoll_config::parse(LINES, "fuzz").expect("it is in order"));

fn reported(error: &ReadError) {
    assert!(error.line > 0 && !error.key.is_empty() && !error.why.is_empty(), "{error}");
}

fuzz_target!(|data: &[u8]| {
    let (recorded, pods) = match data.iter().position(|byte| *byte == 0) {
        Some(end) => (&data[..end], Some(read_pods(&data[end + 1..]))),
        None => (data, None),
    };
    let pods = pods.map(|pods| pods.map_err(|error| reported(&error))).and_then(Result::ok);
    let recording = match read(recorded) {
        Ok(recording) => recording,
        Err(error) => return reported(&error),
    };
    for eviction_policy in [None].into_iter().chain(EvictionPolicy::ALL.map(Some)) {
        let settings = Settings { configuration: &CONFIGURATION, eviction_policy, layout: None };
        run(&recording, pods.as_deref(), &settings, &mut |turn| {
            assert!(!turn.line().contains('\n') && !turn.time().is_empty());
            assert_eq!(turn.json()["candidates"].as_array().map(Vec::len), Some(turn.candidates().len()));
        });
    }
});
