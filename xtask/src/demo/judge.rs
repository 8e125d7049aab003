//! What a full run has to show, held against everything that it measured.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{Measured, Round, Wake};
use crate::claim::Claim;
use crate::picture::{MIB, float, signed};
use crate::qemu::NS_PER_INSTRUCTION;
use crate::statistics::{Ratio, Summary};

/// A wake may take this many times the barest one there is, by their p99s over so many of each.
const WAKE: f64 = 3.0;
const WAKES: usize = 3000;
/// What may be taken past the threshold on a machine like this, and for how long what grows may run on there after the
/// crossing: in a machine whose clock counts instructions, half a million of them, in which two MiB are filled at most.
const PAST_THRESHOLD: u64 = 16 << 20;
const RUNNING_ON_NS: u64 = 1_000_000;
/// The same for each runnable thread, where the kernel itself brakes.
const PAST_THRESHOLD_BRAKED: u64 = 2 << 20;
/// Rounds against the brake in the kernel, at least.
const BRAKED_ROUNDS: usize = 5;
/// What others take and give back while a process grows: its page tables, and the measuring itself, whose own thread
/// and buffers are locked in memory.
const OTHERS: u64 = 8 << 20;
/// The processors' own lists of free pages, which are not counted as available, hold at most this part of the memory
/// between them, and may be full at the start and empty at the crossing or the other way round.
const LISTS_PART: u64 = 8;
/// What they hold where the machine keeps them short, on all processors of one like this.
const SHORT_LISTS: u64 = 4 << 20;

/// What each process may hold at rest, in MiB, and how often it may wake in a second.
const AT_REST: [(&str, u64, f64); 3] = [("core", 12, 2.0), ("supervisor", 6, 1.5), ("reporter", 8, 1.0)];

/// All boots of a full run; what was not measured is absent, and then does not hold.
#[derive(Deserialize)]
pub(super) struct Full {
    #[serde(flatten)]
    races: Measured,
    rates: Option<Measured>,
    ext4: Option<Measured>,
    kernel_brake: Option<Measured>,
    wakes: Option<Measured>,
    wakes_of_two: Option<Measured>,
    wakes_of_two_preempted: Option<Measured>,
    processes: Option<Processes>,
}

/// The agent at rest, by process; absent where one was not there.
#[derive(Deserialize)]
struct Processes {
    core: Option<Resting>,
    supervisor: Option<Resting>,
    reporter: Option<Resting>,
}

#[derive(Deserialize)]
struct Resting {
    resident_bytes: Option<u64>,
    wakeups_per_s: f64,
}

impl Full {
    /// Every claim about what was measured, in the order in which it was. A machine that is measured `natively` has its
    /// own root and its own processors, of which nothing is claimed.
    pub(super) fn claims(&self, natively: bool) -> Vec<Claim> {
        let mut claims = vec![
            self.wake(natively),
            races(&self.races),
            self.past_threshold(natively),
            self.crossing(),
            measured("in-kernel brake", self.kernel_brake.as_ref(), braked),
            rest(self.processes.as_ref()),
        ];
        if !natively {
            claims.push(measured("from an ext4 root", self.ext4.as_ref(), faults));
        }
        claims
    }

    /// A wake beside the barest one. In a machine the instructions decide. A wall clock has the host and the kernel's model
    /// of preemption in it, and what it measured stands beside, with the same in the model in which the kernel gives way
    /// soonest.
    fn wake(&self, natively: bool) -> Claim {
        const WHAT: &str = "a wake";
        let (unit, of) = if natively { (1, "ns") } else { (NS_PER_INSTRUCTION, "instructions") };
        let Some(boot) = &self.wakes else { return absent(WHAT) };
        let Some((mut found, ratio)) = wake_of(boot).and_then(|wake| beside(wake, unit, of)) else {
            return absent(WHAT);
        };
        let by_wall_clock = [(&self.wakes_of_two, ""), (&self.wakes_of_two_preempted, ", with preempt=full")];
        for (boot, how) in by_wall_clock {
            let Some(boot) = boot.as_ref().filter(|boot| how.is_empty() || boot.chooses_preemption) else { continue };
            if let Some((text, _)) = wake_of(boot).and_then(|wake| beside(wake, 1000, "us")) {
                // Writing into a String does not fail.
                let _ =
                    write!(found, "; by wall clock on {} processors{how}, which decides nothing, {text}", boot.cpus);
            }
        }
        let is_enough = wake_of(boot).is_some_and(|wake| wake.times_ns.len() >= WAKES);
        Claim { what: WHAT, found, holds: if is_enough { ratio.is_at_most(WAKE) } else { Some(false) } }
    }

    /// Where the kernel saw the crossing, what the process's own record has as filled is what available memory had
    /// fallen by: closely where the processors' lists of free pages were kept short, and by their size where they were
    /// as they are.
    fn crossing(&self) -> Claim {
        const WHAT: &str = "the crossing by the process's own record";
        let Some(rates) = &self.rates else { return absent(WHAT) };
        let (mut found, mut holds) = ("filled less fallen is ".to_owned(), true);
        let lists = self.races.memory_bytes / LISTS_PART;
        for (boot, lists, but) in
            [(rates, SHORT_LISTS, " with short lists of free pages, "), (&self.races, lists, " with long ones")]
        {
            let rounds = || boot.watchers.values().flat_map(|watched| &watched.rounds);
            let seen = || rounds().filter_map(|round| round.filled_minus_fallen_bytes);
            let (Some(least), Some(most)) = (seen().min(), seen().max()) else { return absent(WHAT) };
            let bound = OTHERS + boot.drift_bytes + lists;
            // The kernel sees none where the agent, whose threshold is armed early by the drift, is first.
            let is_seen = |round: &Round| {
                let is_first = round.killed_by.as_deref() == Some("plimsoll") && round.crossed_to_stopped_ns.is_some();
                round.filled_minus_fallen_bytes.is_some() || is_first
            };
            holds &= rounds().all(is_seen) && seen().all(|bytes| bytes.unsigned_abs() <= bound);
            // Writing into a String does not fail.
            let _ = write!(
                found,
                "{:.1} to {:.1} MiB of a bound of {:.1} in {} of {} rounds{but}",
                signed_mib(least),
                signed_mib(most),
                mib(bound),
                seen().count(),
                rounds().count()
            );
        }
        Claim { what: WHAT, found, holds: Some(holds) }
    }

    /// The bound is the rate of growth, times the longest that any growing process ran on after the crossing, plus what
    /// the kernel's counters may be off by. That time has a bound of its own where a clock counts instructions; by wall
    /// clock the host is in it.
    fn past_threshold(&self, natively: bool) -> Claim {
        const WHAT: &str = "past the threshold";
        let slowest = stops(&self.races).chain(self.rates.iter().flat_map(stops)).max();
        let (Some(slowest), Some(_)) = (slowest, &self.rates) else { return absent(WHAT) };
        let rounds = || rounds(&self.races).chain(self.rates.iter().flat_map(rounds));
        let bound = |rate: u64| {
            u64::try_from(u128::from(rate) * u128::from(slowest) / 1_000_000_000).unwrap_or(u64::MAX)
                + self.races.drift_bytes
        };
        let mut rates: Vec<u64> = rounds().map(|round| round.wanted_rate_bytes_per_s).collect();
        rates.sort_unstable();
        rates.dedup();
        let limit = if natively { String::new() } else { format!(" of a bound of {:.1}", float(RUNNING_ON_NS) / 1e6) };
        let mut found = format!(
            "running on for at most {:.1} ms{limit}, drift {:.1} MiB, {} processors, pages of {} bytes: ",
            float(slowest) / 1e6,
            mib(self.races.drift_bytes),
            self.races.cpus,
            self.races.page_bytes
        );
        let mut holds = rounds().all(|round| round.past_threshold_bytes.is_some());
        holds &= natively || slowest <= RUNNING_ON_NS;
        for (index, wanted) in rates.iter().enumerate() {
            let of_rate = || rounds().filter(|round| round.wanted_rate_bytes_per_s == *wanted);
            let rate = of_rate().filter_map(|round| round.rate_bytes_per_s).max().unwrap_or(0);
            let past = of_rate().filter_map(|round| round.past_threshold_bytes).max().unwrap_or(0);
            holds &= past <= bound(rate) && past <= PAST_THRESHOLD;
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
        Claim { what: WHAT, found, holds: Some(holds) }
    }
}

/// The claim about a boot, which does not hold where there was none.
fn measured(what: &'static str, boot: Option<&Measured>, claim: fn(&'static str, &Measured) -> Claim) -> Claim {
    boot.map_or_else(|| absent(what), |boot| claim(what, boot))
}

fn absent(what: &'static str) -> Claim {
    Claim { what, found: "not measured".into(), holds: Some(false) }
}

fn rounds(measured: &Measured) -> impl Iterator<Item = &Round> {
    measured.watchers.get("ebpf").into_iter().flat_map(|watched| &watched.rounds)
}

fn stops(measured: &Measured) -> impl Iterator<Item = u64> {
    rounds(measured).filter_map(|round| round.crossed_to_stopped_ns)
}

fn wake_of(boot: &Measured) -> Option<&Wake> {
    boot.watchers.get("ebpf")?.wake.as_ref()
}

/// Wakes beside the barest ones, in units of so many nanoseconds, and how many times as much their p99 is.
fn beside(wake: &Wake, unit: u64, of: &str) -> Option<(String, Ratio)> {
    let (own, bare) = (Summary::of(wake.times_ns.iter().copied())?, Summary::of(wake.bare_times_ns.iter().copied())?);
    let ratio = Ratio::of_p99s(&own, &bare)?;
    let p99 = |summary: &Summary| {
        let interval = summary.p99_interval.map(|(low, high)| format!(" [{}, {}]", low / unit, high / unit));
        let (p50, p99) = (summary.median / unit, summary.p99.unwrap_or(summary.most) / unit);
        format!("p50 {p50} and p99 {p99}{}", interval.unwrap_or_default())
    };
    let interval = ratio.interval.map(|(low, high)| format!(" [{low:.2}, {high:.2}]")).unwrap_or_default();
    let found = format!(
        "{} crossings, {} {of}, beside a bare ring's {}: {:.2}{interval} times its p99",
        own.n,
        p99(&own),
        p99(&bare),
        ratio.value
    );
    Some((found, ratio))
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
    Claim { what: "races", found: format!("the OOM killer won {}", shares.join(", ")), holds: Some(holds) }
}

fn lost<'a>(rounds: impl Iterator<Item = &'a Round>) -> usize {
    rounds.filter(|round| round.oom_kills > 0).count()
}

fn faults(what: &'static str, measured: &Measured) -> Claim {
    let faults: Vec<Option<u64>> = rounds(measured).map(|round| round.core_major_faults).collect();
    let sum: u64 = faults.iter().flatten().sum();
    let lost = lost(rounds(measured));
    Claim {
        what,
        found: format!("{} rounds, {sum} major faults of the core in all, {lost} won by the OOM killer", faults.len()),
        holds: Some(!faults.is_empty() && faults.iter().all(|one| *one == Some(0)) && lost == 0),
    }
}

fn braked(what: &'static str, measured: &Measured) -> Claim {
    let past: Vec<Option<u64>> = rounds(measured).map(|round| round.past_threshold_bytes).collect();
    let most = past.iter().copied().flatten().max().unwrap_or(0);
    let found = format!("{:.2} MiB past the threshold at most, one thread, {} rounds", mib(most), past.len());
    let holds = past.len() >= BRAKED_ROUNDS && past.iter().all(Option::is_some) && most <= PAST_THRESHOLD_BRAKED;
    Claim { what, found, holds: Some(holds) }
}

fn rest(processes: Option<&Processes>) -> Claim {
    const WHAT: &str = "at rest";
    let Some(Processes { core, supervisor, reporter }) = processes else { return absent(WHAT) };
    let (mut found, mut holds) = (Vec::new(), true);
    for ((name, most, often), process) in AT_REST.into_iter().zip([core, supervisor, reporter]) {
        let Some(Resting { resident_bytes: Some(resident), wakeups_per_s }) = process else { return absent(WHAT) };
        found.push(format!("{name} {:.1} MiB resident, {wakeups_per_s:.1} wake-ups a second", mib(*resident)));
        holds &= *resident <= most << 20 && *wakeups_per_s <= often;
    }
    Claim { what: WHAT, found: found.join("; "), holds: Some(holds) }
}

fn mib(bytes: u64) -> f64 {
    float(bytes) / MIB
}

fn signed_mib(bytes: i64) -> f64 {
    signed(bytes) / MIB
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::broken;
    use serde_json::{Value, json};

    fn round(change: &dyn Fn(&mut Value)) -> Value {
        let mut round = json!({"threshold_bytes": 100 << 20, "past_threshold_bytes": 1 << 20, "crossed_to_awake_ns": 1_000_000,
            "crossed_to_stopped_ns": 1_000_000, "crossed_to_memory_back_ns": 40_000_000, "killed_by": "plimsoll",
            "oom_kills": 0, "wanted_rate_bytes_per_s": 0, "rate_bytes_per_s": 200 << 20, "core_major_faults": 0,
            "filled_minus_fallen_bytes": -(8 << 20)});
        change(&mut round);
        round
    }

    fn boot(n: usize, p99: u64, change: &dyn Fn(&mut Value)) -> Value {
        json!({"kernel": "6.12", "cpus": 2, "page_bytes": 4096, "memory_bytes": 1_u64 << 30, "drift_bytes": 1 << 20,
            "watchers": {"ebpf": {
                "wake": {"times_ns": vec![p99; 3000], "bare_times_ns": vec![200; 3000]},
                "rounds": (0..n).map(|_| round(change)).collect::<Vec<_>>()}}})
    }

    fn broken_of(value: Value) -> Vec<&'static str> {
        let full: Full = serde_json::from_value(value).expect("the shape of a full run");
        broken(&full.claims(false))
    }

    fn full(n: usize, p99: u64, change: &dyn Fn(&mut Value)) -> Value {
        let mut all = boot(n, p99, change);
        for name in ["rates", "ext4", "kernel_brake", "wakes", "wakes_of_two", "wakes_of_two_preempted"] {
            all[name] = boot(n, p99, change);
        }
        all["kernel_brake"] = boot(5, p99, &|round| round["past_threshold_bytes"] = json!(1 << 20));
        for (name, most, often) in AT_REST {
            all["processes"][name] = json!({"resident_bytes": most << 20, "wakeups_per_s": often});
        }
        all
    }

    #[test]
    fn each_claim_can_break_and_only_by_what_it_is_about() {
        assert_eq!(broken_of(full(20, 600, &|_| ())), [""; 0]);
        assert_eq!(broken_of(full(20, 602, &|_| ())), ["a wake"]);
        assert_eq!(broken_of(full(19, 600, &|_| ())), ["races"]);
        let lost = full(20, 600, &|round| round["oom_kills"] = json!(1));
        assert_eq!(broken_of(lost), ["races", "from an ext4 root"]);
        let faults = full(20, 600, &|round| round["core_major_faults"] = json!(1));
        assert_eq!(broken_of(faults), ["from an ext4 root"]);
        // 200 MiB/s for 1 ms, and 1 MiB of drift.
        let most = (200 << 20) / 1000 + (1 << 20);
        let past = |bytes: u64| broken_of(full(20, 600, &|round| round["past_threshold_bytes"] = json!(bytes)));
        assert_eq!((past(most), past(most + 1)), (vec![], vec!["past the threshold"]));
        let mut braked = full(20, 600, &|_| ());
        braked["kernel_brake"] = boot(5, 600, &|round| round["past_threshold_bytes"] = json!(3 << 20));
        assert_eq!(broken_of(braked.clone()), ["in-kernel brake"]);
        braked["kernel_brake"] = boot(4, 600, &|round| round["past_threshold_bytes"] = json!(1 << 20));
        assert_eq!(broken_of(braked), ["in-kernel brake"]);
        // An eighth of 1 GiB or 4 MiB of lists, 8 MiB, and 1 MiB of drift.
        for (short, long, expected) in [
            (-13, -137, true),
            (13, 137, true),
            (13, 138, false),
            (13, -138, false),
            (14, 137, false),
            (-14, -137, false),
        ] {
            let off = |mib: i64| move |round: &mut Value| round["filled_minus_fallen_bytes"] = json!(mib * (1 << 20));
            let mut all = full(20, 600, &off(long));
            all["rates"] = boot(9, 600, &off(short));
            let found = broken_of(all);
            assert_eq!(found.is_empty(), expected, "{short} {long}: {found:?}");
        }
    }

    #[test]
    fn no_process_may_be_larger_or_wake_more_often_at_rest() {
        for (name, most, often) in AT_REST {
            for (key, value) in [("resident_bytes", json!((most << 20) + 1)), ("wakeups_per_s", json!(often + 0.1))] {
                let mut all = full(20, 600, &|_| ());
                all["processes"][name][key] = value;
                assert_eq!(broken_of(all), ["at rest"], "{name} {key}");
            }
            let mut all = full(20, 600, &|_| ());
            all["processes"][name] = Value::Null;
            assert_eq!(broken_of(all), ["at rest"], "{name}");
        }
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        let without = |name: &str| {
            let mut all = full(20, 600, &|_| ());
            all[name] = Value::Null;
            broken_of(all)
        };
        assert_eq!(without("rates"), ["past the threshold", "the crossing by the process's own record"]);
        assert_eq!(without("ext4"), ["from an ext4 root"]);
        assert_eq!(without("kernel_brake"), ["in-kernel brake"]);
        assert_eq!(without("wakes"), ["a wake"]);
        let mut all = full(20, 600, &|_| ());
        all["wakes"]["watchers"]["ebpf"]["wake"] = Value::Null;
        assert_eq!(broken_of(all), ["a wake"]);
        let unseen = |round: &mut Value| round["filled_minus_fallen_bytes"] = Value::Null;
        assert_eq!(broken_of(full(20, 600, &unseen)), ["the crossing by the process's own record"]);
        // The agent may be before the crossing, and the OOM killer cannot.
        for (killed_by, expected) in
            [("plimsoll", &[][..]), ("oom-killer", &["the crossing by the process's own record"])]
        {
            let mut all = full(20, 600, &|_| ());
            let one = &mut all["rates"]["watchers"]["ebpf"]["rounds"][0];
            (one["filled_minus_fallen_bytes"], one["killed_by"]) = (Value::Null, killed_by.into());
            assert_eq!(broken_of(all), expected, "{killed_by}");
        }
        let unknown = |round: &mut Value| round["past_threshold_bytes"] = Value::Null;
        let mut all = full(20, 600, &|_| ());
        all["rates"] = boot(13, 600, &unknown);
        assert_eq!(broken_of(all), ["past the threshold"]);
        // What killed the process is never guessed.
        let mut all = full(20, 600, &|_| ());
        all["watchers"]["ebpf"]["rounds"][0].as_object_mut().expect("a round").remove("oom_kills");
        assert!(serde_json::from_value::<Full>(all).is_err());
    }

    #[test]
    fn nothing_is_claimed_of_a_machines_own_root_and_processors() {
        let full: Full = serde_json::from_value(full(20, 600, &|_| ())).expect("the shape of a full run");
        assert!(full.claims(true).iter().all(|claim| claim.what != "from an ext4 root"));
    }

    #[test]
    fn a_wake_is_judged_by_instructions_and_undecided_where_the_bound_is_within_the_interval() {
        let judged = |change: &dyn Fn(&mut Value)| {
            let mut all = full(20, 600, &|_| ());
            change(&mut all);
            let full: Full = serde_json::from_value(all).expect("the shape of a full run");
            full.wake(false)
        };
        let claim = judged(&|all| {
            all["wakes_of_two"]["watchers"]["ebpf"]["wake"]["times_ns"] = json!(vec![9_000_000; 3000]);
            all["wakes_of_two_preempted"]["chooses_preemption"] = json!(true);
        });
        assert_eq!(claim.holds, Some(true));
        assert_eq!(
            claim.found,
            "3000 crossings, p50 300 and p99 300 [300, 300] instructions, beside a bare ring's p50 100 and p99 100 \
             [100, 100]: 3.00 [3.00, 3.00] times its p99; by wall clock on 2 processors, which decides nothing, 3000 \
             crossings, p50 9000 and p99 9000 [9000, 9000] us, beside a bare ring's p50 0 and p99 0 [0, 0]: 45000.00 \
             [45000.00, 45000.00] times its p99; by wall clock on 2 processors, with preempt=full, which decides nothing, \
             3000 crossings, p50 0 and p99 0 [0, 0] us, beside a bare ring's p50 0 and p99 0 [0, 0]: 3.00 [3.00, 3.00] \
             times its p99"
        );
        // 25 of 3,000 are longer, of which the interval's upper end is one.
        let times: Vec<u64> = (0..3000).map(|index| if index < 25 { 700 } else { 500 }).collect();
        assert_eq!(judged(&|all| all["wakes"]["watchers"]["ebpf"]["wake"]["times_ns"] = json!(times)).holds, None);
        let few = judged(&|all| all["wakes"]["watchers"]["ebpf"]["wake"]["times_ns"] = json!(vec![200; 2999]));
        assert_eq!(few.holds, Some(false));
    }

    #[test]
    fn what_grows_may_not_run_on_for_longer_although_less_than_the_most_is_taken() {
        let long = |round: &mut Value| {
            round["past_threshold_bytes"] = json!(7 << 20);
            round["crossed_to_stopped_ns"] = json!(40_000_000);
        };
        assert_eq!(broken_of(full(20, 600, &long)), ["past the threshold"]);
        let full: Full = serde_json::from_value(full(20, 600, &long)).expect("the guest's form");
        assert!(!broken(&full.claims(true)).contains(&"past the threshold"), "by wall clock the host is in it");
    }

    #[test]
    fn no_bound_excuses_more_than_the_most_that_may_be_taken() {
        let much = |round: &mut Value| {
            round["past_threshold_bytes"] = json!(17 << 20);
            round["rate_bytes_per_s"] = json!(2000_u64 << 20);
        };
        assert_eq!(broken_of(full(20, 600, &much)), ["past the threshold"]);
    }
}
