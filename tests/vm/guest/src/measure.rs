//! What the measurements share: what was available over time, what a growing process had taken when, and when the agent's
//! log has it awake.

use crate::machine::{Reread, now_ns};
use crate::record::Filled;
use anyhow::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// What was available when.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    pub(crate) bytes: u64,
}

/// How far apart samples are, and how far from the first one below the threshold on, for so long: what comes back sooner
/// than in that would be measured by the pace of the samples otherwise.
const PACE: Duration = Duration::from_millis(2);
const SOON_PACE: Duration = Duration::from_micros(500);
const SOON_NS: u64 = 16_000_000;

/// Samples while `work` runs.
pub(crate) fn sampled<T>(threshold_bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<(Vec<Sample>, T)> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let thread = scope.spawn(|| sample(threshold_bytes, &ended));
        let done = work();
        ended.store(true, Ordering::Relaxed);
        let samples = thread.join().map_err(|_| anyhow::anyhow!("the sampler panicked"))?;
        Ok((samples, done?))
    })
}

/// Samples at that pace until it has ended.
fn sample(threshold_bytes: u64, ended: &AtomicBool) -> Vec<Sample> {
    let (mut samples, mut below_ns) = (Vec::with_capacity(64 * 1024), None);
    let Ok(mut meminfo) = Reread::open("/proc/meminfo", 4096) else { return samples };
    while !ended.load(Ordering::Relaxed) && samples.len() < samples.capacity() {
        let at_ns = now_ns();
        if let Ok(kib) = meminfo.named("MemAvailable:") {
            samples.push(Sample { at_ns, bytes: kib * 1024 });
            below_ns = below_ns.or((kib * 1024 <= threshold_bytes).then_some(at_ns));
        }
        let is_soon = below_ns.is_some_and(|below_ns| at_ns - below_ns < SOON_NS);
        thread::sleep(if is_soon { SOON_PACE } else { PACE });
    }
    samples
}

/// The first sample in which memory was above the threshold again, once it had been below it after the crossing.
///
/// Where every sample missed the moment below, the first one after the crossing is the nearest.
pub(crate) fn back(samples: &[Sample], crossed_ns: u64, threshold_bytes: u64) -> Option<u64> {
    let later: Vec<&Sample> = samples.iter().filter(|sample| sample.at_ns > crossed_ns).collect();
    let (lowest, sample) = later.iter().enumerate().min_by_key(|(_, sample)| sample.bytes)?;
    let first = if sample.bytes > threshold_bytes { 0 } else { lowest };
    later[first..].iter().find(|sample| sample.bytes > threshold_bytes).map(|sample| sample.at_ns)
}

/// What had been filled at `at_ns`, between the entries before and after it.
pub(crate) fn filled_at(filled: &[Filled], at_ns: u64) -> Option<u64> {
    let next = filled.partition_point(|entry| entry.at_ns <= at_ns);
    let before = filled.get(next.checked_sub(1)?)?;
    let Some(after) = filled.get(next) else { return Some(before.bytes) };
    let (time, span) = (at_ns - before.at_ns, (after.at_ns - before.at_ns).max(1));
    let grown = u128::from(after.bytes.saturating_sub(before.bytes)) * u128::from(time) / u128::from(span);
    Some(before.bytes + u64::try_from(grown).ok()?)
}

/// What was filled after `at_ns`.
pub(crate) fn past(filled: &[Filled], at_ns: u64) -> Option<u64> {
    Some(filled.last()?.bytes.saturating_sub(filled_at(filled, at_ns)?))
}

/// Bytes a second over the tenth of a second before `at_ns`, or over what there is of it.
pub(crate) fn rate_before(filled: &[Filled], at_ns: u64) -> Option<u64> {
    let first = filled.iter().find(|entry| entry.at_ns + 100_000_000 >= at_ns && entry.at_ns < at_ns)?;
    let grown = filled_at(filled, at_ns)?.saturating_sub(first.bytes);
    u64::try_from(u128::from(grown) * 1_000_000_000 / u128::from(at_ns - first.at_ns)).ok()
}

/// The wake that led to the eviction, by the agent's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "they end with the unit")]
pub(crate) struct Woke {
    pub(crate) at_ns: u64,
    /// When the threshold was crossed, by the kernel's event; absent where a timer was due, because the threshold was
    /// near.
    pub(crate) event_ns: Option<u64>,
    /// When the decision was made.
    pub(crate) decided_ns: Option<u64>,
}

/// That of the first decision in `lines` that evicts.
pub(crate) fn woke(lines: &[serde_json::Value]) -> Option<Woke> {
    let number = |line, key| find(line, key).and_then(serde_json::Value::as_u64);
    let evicts = |line: &&serde_json::Value| find(line, "outcome").is_some_and(|outcome| outcome == "evict");
    let line = lines.iter().find(evicts)?;
    let (event_ns, decided_ns) = (number(line, "crossed_ns"), number(line, "made_ns"));
    Some(Woke { at_ns: number(line, "awake_ns")?, event_ns, decided_ns })
}

/// What all times count from. Where the agent stopped the process before the kernel saw the configured threshold crossed,
/// that is the agent's own threshold.
pub(crate) fn crossed_ns(seen_ns: Option<u64>, woke: Option<Woke>) -> Option<u64> {
    let early = woke.and_then(|woke| woke.event_ns);
    [seen_ns, early].into_iter().flatten().min().or(woke.map(|woke| woke.at_ns))
}

/// The value of `key`, at whatever depth.
pub(crate) fn find<'a>(value: &'a serde_json::Value, key: &str) -> Option<&'a serde_json::Value> {
    match value {
        serde_json::Value::Object(map) => map.get(key).or_else(|| map.values().find_map(|value| find(value, key))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &[Filled] =
        &[Filled { at_ns: 1000, bytes: 10 }, Filled { at_ns: 2000, bytes: 20 }, Filled { at_ns: 3000, bytes: 40 }];

    #[test]
    fn times_count_from_the_first_crossing_or_from_what_was_before_it() {
        let woke = |event_ns| Some(Woke { at_ns: 7, event_ns, decided_ns: Some(8) });
        for (seen, woke, expected) in [
            (Some(5), None, Some(5)),
            (Some(5), woke(Some(4)), Some(4)),
            (Some(5), woke(None), Some(5)),
            (None, woke(Some(4)), Some(4)),
            (None, woke(None), Some(7)),
            (None, None, None),
        ] {
            assert_eq!(crossed_ns(seen, woke), expected, "{seen:?} {woke:?}");
        }
    }

    #[test]
    fn a_record_is_read_between_its_entries() {
        for (at, bytes) in [(999, None), (1000, Some(10)), (1500, Some(15)), (2500, Some(30)), (9000, Some(40))] {
            assert_eq!(filled_at(RECORD, at), bytes, "{at}");
        }
        assert_eq!(past(RECORD, 2500), Some(10));
        assert_eq!(rate_before(RECORD, 2000), Some(10_000_000));
    }

    #[test]
    fn memory_is_back_after_its_lowest() {
        let sample = |at_ns, bytes| Sample { at_ns, bytes };
        let samples = [sample(1, 200), sample(5, 101), sample(7, 60), sample(9, 50), sample(11, 99), sample(13, 150)];
        assert_eq!(back(&samples, 4, 100), Some(13));
        assert_eq!(back(&samples[..5], 4, 100), None);
        assert_eq!(back(&samples, 12, 100), Some(13));
        // All samples missed the moment below: that memory is somewhat lower later is not of this crossing.
        let missed = [sample(12, 150), sample(14, 200), sample(60, 140)];
        assert_eq!(back(&missed, 10, 100), Some(12));
    }

    #[test]
    fn the_wake_is_the_one_that_led_to_the_eviction() {
        let lines = [
            serde_json::json!({"awake_ns": 5, "crossed_ns": 4, "outcome": "in-grace"}),
            serde_json::json!({"fields": {"awake_ns": 90, "crossed_ns": 70, "made_ns": 95, "outcome": "evict"}}),
            serde_json::json!({"awake_ns": 200, "crossed_ns": null, "outcome": "evict"}),
        ];
        assert_eq!(woke(&lines), Some(Woke { at_ns: 90, event_ns: Some(70), decided_ns: Some(95) }));
        assert_eq!(woke(&lines[2..]), Some(Woke { at_ns: 200, event_ns: None, decided_ns: None }));
        assert_eq!(woke(&lines[..1]), None);
    }
}
