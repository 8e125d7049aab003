//! What a full run has to show, held against everything that it measured.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::chart::float;
use super::{Measured, Round};

/// A wake may take this many times the barest one there is.
const WAKE: f64 = 3.0;
/// What may be taken past the line on a machine like this.
const PAST_LINE: u64 = 16 << 20;
/// The same for each runnable thread, where the kernel itself brakes.
const PAST_LINE_BRAKED: u64 = 2 << 20;
/// The instruction counter is the clock there, two nanoseconds an instruction (`-icount shift=1`).
const NS_PER_INSTRUCTION: u64 = 2;

/// All boots of a full run; what was not measured is absent.
#[derive(Deserialize)]
pub(super) struct Full {
    #[serde(flatten)]
    races: Measured,
    rates: Option<Measured>,
    ext4: Option<Measured>,
    kernel_brake: Option<Measured>,
    one_cpu_icount: Option<Measured>,
}

/// One thing that has to hold.
#[derive(Debug, Serialize, PartialEq)]
pub(super) struct Claim {
    what: &'static str,
    found: String,
    holds: bool,
}

impl Full {
    /// Every claim about what was measured, in the order in which it was.
    pub(super) fn claims(&self) -> Vec<Claim> {
        let mut claims = Vec::new();
        claims.extend(wake("a wake on several processors", &self.races, 1, "ns"));
        claims.push(races(&self.races));
        claims.extend(self.past_line());
        claims.extend(self.ext4.as_ref().map(faults));
        claims.extend(self.kernel_brake.as_ref().map(braked));
        let icount = self.one_cpu_icount.as_ref();
        claims.extend(icount.and_then(|one| wake("a wake on one", one, NS_PER_INSTRUCTION, "instructions")));
        claims
    }

    /// The bound is the rate of growth, times the longest that any growing process ran on after the crossing, plus what
    /// the kernel's counters may be off by.
    fn past_line(&self) -> Option<Claim> {
        let slowest = stops(&self.races).chain(self.rates.iter().flat_map(stops)).max()?;
        let rounds = || rounds(&self.races).chain(self.rates.iter().flat_map(rounds));
        let bound = |rate: u64| {
            u64::try_from(u128::from(rate) * u128::from(slowest) / 1_000_000_000).unwrap_or(u64::MAX)
                + self.races.drift_bytes
        };
        let mut rates: Vec<u64> = rounds().map(|round| round.wanted_rate_bytes_per_s).collect();
        rates.sort_unstable();
        rates.dedup();
        let mut found = format!(
            "running on for at most {:.1} ms, drift {:.1} MiB, {} processors, pages of {} bytes: ",
            float(slowest) / 1e6,
            mib(self.races.drift_bytes),
            self.races.cpus,
            self.races.page_bytes
        );
        let mut holds = true;
        for (index, wanted) in rates.iter().enumerate() {
            let of_rate = || rounds().filter(|round| round.wanted_rate_bytes_per_s == *wanted);
            let rate = of_rate().filter_map(|round| round.rate_bytes_per_s).max().unwrap_or(0);
            let past = of_rate().filter_map(|round| round.past_line_bytes).max().unwrap_or(0);
            holds &= past <= bound(rate) && past <= PAST_LINE;
            let comma = if index == 0 { "" } else { "; " };
            // Writing into a String does not fail.
            let _ = write!(
                found,
                "{comma}{:.1} MiB of a bound of {:.1} at {:.0} MiB/s",
                mib(past),
                mib(bound(rate)),
                mib(rate)
            );
        }
        Some(Claim { what: "past the line", found, holds })
    }
}

/// Claims for people, a line each.
pub(super) fn text(claims: &[Claim]) -> String {
    let lines = claims.iter().map(|Claim { what, found, holds }| {
        format!("{} {what}: {found}\n", if *holds { "holds         " } else { "DOES NOT HOLD " })
    });
    lines.collect()
}

/// The claims that do not hold.
pub(super) fn broken(claims: &[Claim]) -> Vec<&'static str> {
    claims.iter().filter(|claim| !claim.holds).map(|claim| claim.what).collect()
}

fn rounds(measured: &Measured) -> impl Iterator<Item = &Round> {
    measured.watchers.get("ebpf").into_iter().flat_map(|watched| &watched.rounds)
}

fn stops(measured: &Measured) -> impl Iterator<Item = u64> {
    rounds(measured).filter_map(|round| round.crossed_to_stopped_ns)
}

fn wake(what: &'static str, measured: &Measured, unit: u64, of: &str) -> Option<Claim> {
    let wake = measured.watchers.get("ebpf")?.wake.as_ref()?;
    let ratio = float(wake.p99_ns) / float(wake.bare_p99_ns.max(1));
    let found = format!(
        "{} crossings, p50 {} and p99 {} {of}, beside a bare ring's {} and {}: {ratio:.2} times its p99",
        wake.n,
        wake.p50_ns / unit,
        wake.p99_ns / unit,
        wake.bare_p50_ns / unit,
        wake.bare_p99_ns / unit,
    );
    Some(Claim { what, found, holds: wake.n >= 500 && ratio <= WAKE })
}

fn races(measured: &Measured) -> Claim {
    let shares: Vec<String> = super::WATCHERS
        .iter()
        .filter_map(|(name, _)| {
            let rounds = &measured.watchers.get(*name)?.rounds;
            Some(format!("{} of {} against {name}", lost(rounds.iter()), rounds.len()))
        })
        .collect();
    let all = rounds(measured).count();
    let won = rounds(measured).filter(|round| round.killed_by.as_deref() == Some("plimsoll")).count();
    let holds = all >= 20 && won == all && lost(rounds(measured)) == 0;
    Claim { what: "races", found: format!("the OOM killer won {}", shares.join(", ")), holds }
}

fn lost<'a>(rounds: impl Iterator<Item = &'a Round>) -> usize {
    rounds.filter(|round| round.oom_kills > 0).count()
}

fn faults(measured: &Measured) -> Claim {
    let faults: Vec<Option<u64>> = rounds(measured).map(|round| round.core_major_faults).collect();
    let sum: u64 = faults.iter().flatten().sum();
    let lost = lost(rounds(measured));
    Claim {
        what: "from an ext4 root",
        found: format!("{} rounds, {sum} major faults of the core in all, {lost} won by the OOM killer", faults.len()),
        holds: !faults.is_empty() && faults.iter().all(|one| *one == Some(0)) && lost == 0,
    }
}

fn braked(measured: &Measured) -> Claim {
    let most = rounds(measured).filter_map(|round| round.past_line_bytes).max();
    let count = rounds(measured).count();
    let found = format!("{:.2} MiB past the line at most, one thread, {count} rounds", mib(most.unwrap_or(0)));
    Claim { what: "in-kernel brake", found, holds: most.is_some_and(|most| most <= PAST_LINE_BRAKED) }
}

fn mib(bytes: u64) -> f64 {
    float(bytes) / 1_048_576.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn round(change: &dyn Fn(&mut Value)) -> Value {
        let mut round = json!({"line_bytes": 100 << 20, "past_line_bytes": 3 << 20, "crossed_to_awake_ns": 1_000_000,
            "crossed_to_stopped_ns": 20_000_000, "crossed_to_memory_back_ns": 40_000_000, "killed_by": "plimsoll",
            "oom_kills": 0, "wanted_rate_bytes_per_s": 0, "rate_bytes_per_s": 200 << 20, "core_major_faults": 0});
        change(&mut round);
        round
    }

    fn boot(n: usize, p99: u64, change: &dyn Fn(&mut Value)) -> Value {
        json!({"kernel": "6.12", "cpus": 2, "page_bytes": 4096, "memory_bytes": 1_u64 << 30, "drift_bytes": 1 << 20,
            "watchers": {"ebpf": {
                "wake": {"n": 500, "p50_ns": 10, "p99_ns": p99, "bare_p50_ns": 10, "bare_p99_ns": 100},
                "rounds": (0..n).map(|_| round(change)).collect::<Vec<_>>()}}})
    }

    fn broken_of(value: Value) -> Vec<&'static str> {
        let full: Full = serde_json::from_value(value).expect("the shape of a full run");
        broken(&full.claims())
    }

    fn full(n: usize, p99: u64, change: &dyn Fn(&mut Value)) -> Value {
        let mut all = boot(n, p99, change);
        for name in ["rates", "ext4", "kernel_brake", "one_cpu_icount"] {
            all[name] = boot(n, p99, change);
        }
        all["kernel_brake"] = boot(3, p99, &|round| round["past_line_bytes"] = json!(1 << 20));
        all
    }

    #[test]
    fn each_claim_can_break_and_only_by_what_it_is_about() {
        assert_eq!(broken_of(full(20, 300, &|_| ())), [""; 0]);
        assert_eq!(broken_of(full(20, 301, &|_| ())), ["a wake on several processors", "a wake on one"]);
        assert_eq!(broken_of(full(19, 300, &|_| ())), ["races"]);
        let lost = full(20, 300, &|round| round["oom_kills"] = json!(1));
        assert_eq!(broken_of(lost), ["races", "from an ext4 root"]);
        let faults = full(20, 300, &|round| round["core_major_faults"] = json!(1));
        assert_eq!(broken_of(faults), ["from an ext4 root"]);
        // 200 MiB/s for 20 ms, and 1 MiB of drift.
        assert_eq!(broken_of(full(20, 300, &|round| round["past_line_bytes"] = json!(5 << 20))), [""; 0]);
        assert_eq!(
            broken_of(full(20, 300, &|round| round["past_line_bytes"] = json!((5 << 20) + 1))),
            ["past the line"]
        );
        let mut braked = full(20, 300, &|_| ());
        braked["kernel_brake"] = boot(3, 300, &|round| round["past_line_bytes"] = json!(3 << 20));
        assert_eq!(broken_of(braked), ["in-kernel brake"]);
    }

    #[test]
    fn no_bound_excuses_more_than_the_most_that_may_be_taken() {
        let much = |round: &mut Value| {
            round["past_line_bytes"] = json!(17 << 20);
            round["rate_bytes_per_s"] = json!(2000_u64 << 20);
        };
        assert_eq!(broken_of(full(20, 300, &much)), ["past the line"]);
    }
}
