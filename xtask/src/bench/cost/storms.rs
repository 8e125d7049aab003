//! How much longer storms take with the agent than without.

use super::measured::{StormRun, Storms};
use super::table::{head, row};
use crate::bench::figures::digits;
use crate::claim::{self, Claim};
use crate::picture::{float, signed};
use crate::qemu::NS_PER_INSTRUCTION;
use crate::statistics::Summary;

/// What has to hold.
pub(super) const GOAL: &str = "storms slowed down by 1 % at most";
/// How many parts in a million longer it may take.
const SLOWDOWN: u64 = 10_000;
/// As long as without.
const EQUAL: u64 = 1_000_000;

/// One storm with and without the agent, in pairs.
struct Compared<'s> {
    storm: &'s str,
    /// Instructions without the agent.
    without: Summary,
    /// With the agent as parts in a million of without, whatever ran on the machine.
    whole: Summary,
    /// The same of what the storm's own cgroup ran: its hooks are in it, and the agent's processes are not.
    own: Summary,
    /// What the agent's processes ran, as parts in a million of without.
    agent: Summary,
}

fn ratio(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * u128::from(EQUAL) / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

fn compared(storms: &Storms) -> Vec<Compared<'_>> {
    let mut names: Vec<&str> = Vec::new();
    for run in &storms.runs {
        if !names.contains(&&run.storm[..]) {
            names.push(&run.storm);
        }
    }
    let compare = |storm| {
        let runs = |agent: bool| storms.runs.iter().filter(move |run| run.storm == storm && run.agent == agent);
        let pairs: Vec<(&StormRun, &StormRun)> =
            runs(true).filter_map(|with| Some((with, runs(false).find(|one| one.pair == with.pair)?))).collect();
        let of = |figure: fn(&StormRun, &StormRun) -> u64| {
            Summary::of(pairs.iter().map(|(with, without)| figure(with, without)))
        };
        Some(Compared {
            storm,
            without: Summary::of(runs(false).map(|run| run.elapsed_ns / NS_PER_INSTRUCTION))?,
            whole: of(|with, without| ratio(with.elapsed_ns, without.elapsed_ns))?,
            own: of(|with, without| ratio(with.own_ns, without.own_ns))?,
            agent: of(|with, without| ratio(with.agent_ns, without.elapsed_ns))?,
        })
    };
    names.into_iter().filter_map(compare).collect()
}

/// How many instructions more a storm's own cgroup ran with the agent, the median of pairs.
pub(super) fn added(storms: &Storms, storm: &str) -> Option<f64> {
    let runs = |agent: bool| storms.runs.iter().filter(move |run| run.storm == storm && run.agent == agent);
    let added = |with: &StormRun| {
        let without = runs(false).find(|one| one.pair == with.pair)?;
        Some(signed(with.own_ns.cast_signed() - without.own_ns.cast_signed()) / float(NS_PER_INSTRUCTION))
    };
    let mut all: Vec<f64> = runs(true).filter_map(added).collect();
    all.sort_by(f64::total_cmp);
    let middle = all.get(all.len() / 2)?;
    Some(middle.midpoint(all[(all.len() - 1) / 2]))
}

/// Parts in a million as percent more than without.
fn percent(ratio: u64) -> String {
    format!("{:+.2} %", signed(ratio.cast_signed() - EQUAL.cast_signed()) / 1e4)
}

fn slowdown(summary: &Summary) -> String {
    summary.text(percent)
}

/// That each storm is slowed down by so much at most, with its interval.
pub(super) fn claims(storms: &Storms) -> Vec<Claim> {
    let all = compared(storms);
    let found: Vec<String> =
        all.iter().map(|one| format!("{} {} in {} pairs", one.storm, slowdown(&one.whole), one.whole.n)).collect();
    let holds = claim::together(all.iter().map(|one| one.whole.is_at_most(EQUAL + SLOWDOWN)));
    let claim = Claim { what: GOAL, found: found.join(", "), holds };
    if all.is_empty() { Vec::new() } else { vec![claim] }
}

/// Its table.
pub(super) fn table(storms: &Storms) -> String {
    let heads = [
        "storm",
        "pairs",
        "million instructions without the agent",
        "with it, all that ran",
        "with it, the storm's own",
        "what the agent's processes ran",
        "without work",
    ];
    let mut text = head(&heads.map(str::to_owned));
    for one in compared(storms) {
        let idle =
            storms.runs.iter().filter(|run| run.storm == one.storm).map(|run| ratio(run.idle_ns, run.elapsed_ns));
        text.push_str(&row(&[
            one.storm.to_owned(),
            one.whole.n.to_string(),
            digits(float(one.without.median) / 1e6),
            slowdown(&one.whole),
            slowdown(&one.own),
            format!("{:.2} %", float(one.agent.median) / 1e4),
            format!("{:.2} % at most", float(idle.max().unwrap_or(0)) / 1e4),
        ]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn storms(with: impl Fn(u64) -> u64, pairs: u64) -> Storms {
        let run = |pair: u64, agent: bool, elapsed_ns: u64| {
            json!({"storm": "fork", "pair": pair, "agent": agent, "elapsed_ns": elapsed_ns, "own_ns": 900_000_000,
                "idle_ns": 0, "agent_ns": if agent { 2_000_000 } else { 0 }})
        };
        let runs = (0..pairs).flat_map(|pair| [run(pair, false, 1_000_000_000), run(pair, true, with(pair))]);
        let storms = json!({"kernel": "6.12", "cpus": 1, "page_bytes": 4096, "memory_bytes": 1, "runs": runs.collect::<Vec<_>>()});
        serde_json::from_value(storms).expect("the guest's form")
    }

    #[test]
    fn the_whole_interval_is_within_the_bound() {
        let holds = |with: fn(u64) -> u64, pairs| claims(&storms(with, pairs))[0].holds;
        assert_eq!(holds(|_| 1_010_000_000, 6), Some(true));
        assert_eq!(holds(|_| 1_010_001_000, 6), Some(false));
        // The median is within it, and one end of the interval is not.
        assert_eq!(holds(|pair| if pair == 0 { 1_020_000_000 } else { 1_000_000_000 }, 6), None);
        // Too few for an interval.
        assert_eq!(holds(|_| 1_000_000_000, 5), None);
        assert!(claims(&storms(|_| 1, 0)).is_empty());
    }

    #[test]
    fn what_is_added_is_of_the_storms_own_cgroup() {
        let mut all = storms(|_| 1_900_000_000, 3);
        for (run, more) in all.runs.iter_mut().filter(|run| run.agent).zip([40_000_000, 2_000_000, 6_000_000]) {
            run.own_ns += more;
        }
        assert_eq!((added(&all, "fork"), added(&all, "allocation")), (Some(3e6), None));
        all.runs.truncate(4);
        assert_eq!(added(&all, "fork"), Some(10.5e6));
    }

    #[test]
    fn a_slowdown_is_of_pairs_and_in_percent() {
        let text = table(&storms(|pair| 1_000_000_000 + pair * 1_000_000, 7));
        let expected =
            "| fork | 7 | 500 | +0.30 % [+0.00 %, +0.60 %] | +0.00 % [+0.00 %, +0.00 %] | 0.20 % | 0.00 % at most |";
        assert!(text.lines().any(|line| line == expected), "{text}");
        assert_eq!(percent(990_000), "-1.00 %");
    }
}
