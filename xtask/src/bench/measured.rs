//! What the guest measured in one cell, as it writes it: nanoseconds and bytes, and null where there is no figure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::statistics::NEVER;

/// By so many bytes the memory of two boots of one machine differs at most: fewer than a thousandth of the smallest.
const SAME_MEMORY: u64 = 256 << 10;

/// All of one cell, of one boot or of several.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Measured {
    pub(super) kernel: String,
    pub(super) cpus: u32,
    pub(super) page_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) workload: String,
    pub(super) swap: String,
    /// What is left when the threshold is crossed.
    pub(super) room_bytes: u64,
    /// How long a round took at most. Absent in results from before it was noted, when it was this long where memory ran out.
    #[serde(default = "limit_ns")]
    pub(super) limit_ns: u64,
    pub(super) seed: u64,
    /// The version of each rival's package.
    pub(super) versions: BTreeMap<String, String>,
    pub(super) rounds: Vec<Round>,
    pub(super) bare_kills: Vec<BareKill>,
    /// The rounds that went wrong. Absent in results from before they were noted.
    #[serde(default)]
    pub(super) failed: Vec<Failed>,
}

const fn limit_ns() -> u64 {
    45_000_000_000
}

/// How the kernel names a process that its OOM killer has killed, and what is named where nothing was left to kill.
pub(super) const KILLED: &str = "Killed process ";
const EVERYTHING: &str = "all that could be killed";

/// A round, or a bare kill, of which nothing was measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Failed {
    /// Absent for a bare kill.
    pub(super) rival: Option<String>,
    pub(super) number: u32,
    /// Whether the workload may have begun to grow, so that something might have been seen.
    #[serde(default = "unknown")]
    pub(super) has_begun: bool,
    pub(super) why: String,
}

/// In results from before it was noted.
const fn unknown() -> bool {
    true
}

/// One workload that met one rival. Times are after the crossing of the threshold.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Round {
    pub(super) rival: String,
    pub(super) number: u32,
    pub(super) threshold_bytes: u64,
    pub(super) rate_bytes_per_s: Option<u64>,
    pub(super) crossed_to_awake_ns: Option<u64>,
    pub(super) crossed_to_decided_ns: Option<u64>,
    pub(super) crossed_to_stopped_ns: Option<u64>,
    pub(super) past_threshold_bytes: Option<u64>,
    /// By how much that may be too much. Absent where it is by samples, and in results from before it was noted.
    #[serde(default)]
    pub(super) past_resolution_bytes: Option<u64>,
    pub(super) crossed_to_memory_back_ns: Option<u64>,
    pub(super) lowest_available_bytes: Option<u64>,
    pub(super) killed_by: Option<KilledBy>,
    pub(super) oom_kills: u64,
    pub(super) victims: Vec<String>,
    pub(super) wrong_victims: Vec<String>,
    /// Those that lost a process to the OOM killer, by the kernel's log. Absent in results from before that was noted.
    #[serde(default)]
    pub(super) victims_of_oom_killer: Option<Vec<String>>,
    /// Whether the rival's own cgroup lost one, to whatever.
    #[serde(default)]
    pub(super) rival_died: bool,
    /// Whether `plimsoll explain` had named the cgroup of the OOM killer's first victim.
    pub(super) predicted: Option<bool>,
    pub(super) survivor_longest_stall_ns: Option<u64>,
    /// The last lines of the rival's log, where something went wrong.
    pub(super) log: Option<String>,
    /// The machine ended in it: the OOM killer had killed all that it may, and memory was not back.
    #[serde(default)]
    pub(super) panicked: bool,
}

/// What killed: the OOM killer where that killed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KilledBy {
    Rival,
    OomKiller,
}

/// `cgroup.kill` of a process of the same kind and size, in the same boot, where no rival runs: the limit of what any of
/// them can reach.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct BareKill {
    pub(super) bytes: Option<u64>,
    pub(super) emptied_ns: Option<u64>,
    pub(super) memory_back_ns: Option<u64>,
}

impl Measured {
    /// In what another boot's machine is another one, so that the rounds of both are not of one cell.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let text = |all: &BTreeMap<String, String>| {
            all.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ")
        };
        // What a kernel keeps for itself may be a page more in one boot than in another.
        let is_same = self.memory_bytes.abs_diff(other.memory_bytes) <= SAME_MEMORY;
        let of = |one: &Self| {
            let memory = if is_same { String::new() } else { format!("{} bytes of memory", one.memory_bytes) };
            [format!("Linux {}", one.kernel), memory, text(&one.versions)]
        };
        of(self)
            .into_iter()
            .zip(of(other))
            .find(|(one, other)| one != other)
            .map(|(one, other)| format!("{one} then, {other} now"))
    }

    /// The rounds against this rival.
    pub(super) fn of<'a>(&'a self, rival: &'a str) -> impl Iterator<Item = &'a Round> + Clone {
        self.rounds.iter().filter(move |round| round.rival == rival)
    }
}

impl Round {
    /// One in which the kernel gave up.
    pub(super) fn of_panic(rival: String, number: u32, threshold_bytes: u64, log: String) -> Self {
        Self {
            rival,
            number,
            threshold_bytes,
            rate_bytes_per_s: None,
            crossed_to_awake_ns: None,
            crossed_to_decided_ns: None,
            crossed_to_stopped_ns: None,
            past_threshold_bytes: None,
            past_resolution_bytes: None,
            crossed_to_memory_back_ns: None,
            lowest_available_bytes: None,
            killed_by: Some(KilledBy::OomKiller),
            // As many as there are lines of it.
            oom_kills: log.lines().filter(|line| line.contains(KILLED)).count().max(1) as u64,
            victims: Vec::new(),
            // All that could be killed was.
            wrong_victims: vec![EVERYTHING.into()],
            victims_of_oom_killer: Some(vec![EVERYTHING.into()]),
            rival_died: false,
            predicted: None,
            survivor_longest_stall_ns: None,
            log: Some(log),
            panicked: true,
        }
    }

    /// Whether the OOM killer was before the rival, or beside it.
    pub(super) const fn is_lost(&self) -> bool {
        self.oom_kills > 0
    }

    /// Whether what should have been kept was killed.
    pub(super) const fn has_wrong_victim(&self) -> bool {
        !self.wrong_victims.is_empty()
    }

    /// Whether the OOM killer killed some of that. Where it is not known what it killed, that was all.
    pub(super) fn has_wrong_victim_of_oom_killer(&self) -> bool {
        self.wrong_victims.iter().any(|victim| self.is_of_oom_killer(victim))
    }

    /// Whether something else did, as the rival.
    pub(super) fn has_wrong_victim_of_rival(&self) -> bool {
        self.wrong_victims.iter().any(|victim| !self.is_of_oom_killer(victim))
    }

    fn is_of_oom_killer(&self, victim: &String) -> bool {
        // The kernel's log may have lost that line, and a daemon does not kill itself.
        let is_rival = self.rival_died && victim.ends_with(&format!("/{}.service", self.rival));
        let noted = self.victims_of_oom_killer.as_ref().filter(|_| !is_rival);
        noted.map_or(self.oom_kills > 0, |victims| victims.contains(victim))
    }

    /// When memory was back; never where it was not by the end of the round. Absent where the threshold was not crossed.
    pub(super) fn memory_back_ns(&self) -> Option<u64> {
        self.crossed_to_memory_back_ns.or_else(|| self.never())
    }

    /// The same of the end of the growth, which is not known where memory was not back.
    pub(super) fn stopped_ns(&self) -> Option<u64> {
        self.crossed_to_stopped_ns.or_else(|| self.never())
    }

    fn never(&self) -> Option<u64> {
        let is_crossed = self.panicked || self.past_threshold_bytes.is_some();
        (is_crossed && self.crossed_to_memory_back_ns.is_none()).then_some(NEVER)
    }

    /// Whether anything was killed, by whatever.
    pub(super) const fn has_victim(&self) -> bool {
        self.killed_by.is_some() || self.oom_kills > 0 || !self.victims.is_empty()
    }

    /// Whether something was killed before the threshold was crossed, so that no time begins.
    pub(super) const fn is_before_crossing(&self) -> bool {
        self.killed_by.is_some()
            && !self.panicked
            && self.past_threshold_bytes.is_none()
            && self.crossed_to_memory_back_ns.is_none()
    }

    /// Whether the rival killed, and nothing else did; for the kernel as a rival that is the OOM killer.
    pub(super) fn has_acted(&self) -> bool {
        let own = if self.rival == super::rivals::KERNEL { KilledBy::OomKiller } else { KilledBy::Rival };
        self.killed_by == Some(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round() -> Round {
        let mut round = Round::of_panic("nohang".into(), 0, 1, String::new());
        (round.panicked, round.victims_of_oom_killer, round.wrong_victims) = (false, None, Vec::new());
        round
    }

    #[test]
    fn a_wrong_victim_is_of_what_killed_it() {
        let of = |wrong: &[&str], killed: Option<&[&str]>, oom_kills| {
            let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let victims_of_oom_killer = killed.map(names);
            let round = Round { wrong_victims: names(wrong), victims_of_oom_killer, oom_kills, ..round() };
            (round.has_wrong_victim_of_rival(), round.has_wrong_victim_of_oom_killer())
        };
        assert_eq!(of(&["a"], Some(&["a", "hog"]), 2), (false, true));
        assert_eq!(of(&["a", "b"], Some(&["b"]), 1), (true, true));
        assert_eq!(of(&["a"], Some(&["hog"]), 1), (true, false));
        assert_eq!(of(&[], Some(&["hog"]), 1), (false, false));
        // The rival itself, which the kernel's log does not have.
        let round = |rival_died| Round {
            wrong_victims: vec!["hostcritical.slice/nohang.service".into()],
            victims_of_oom_killer: Some(vec!["hog".into()]),
            oom_kills: 22,
            rival_died,
            ..round()
        };
        assert!(round(true).has_wrong_victim_of_oom_killer() && !round(true).has_wrong_victim_of_rival());
        assert!(!round(false).has_wrong_victim_of_oom_killer() && round(false).has_wrong_victim_of_rival());
        // It was not noted then.
        assert_eq!((of(&["a"], None, 1), of(&["a"], None, 0)), ((false, true), (true, false)));
        let panicked = Round::of_panic("nohang".into(), 0, 1, String::new());
        assert!(panicked.has_wrong_victim_of_oom_killer() && !panicked.has_wrong_victim_of_rival());
    }

    #[test]
    fn memory_that_was_not_back_by_the_end_of_a_round_never_was() {
        let of = |past_threshold_bytes, crossed_to_memory_back_ns, crossed_to_stopped_ns| {
            let round = Round { crossed_to_stopped_ns, past_threshold_bytes, crossed_to_memory_back_ns, ..round() };
            (round.memory_back_ns(), round.stopped_ns())
        };
        assert_eq!(of(Some(7), Some(9), Some(8)), (Some(9), Some(8)));
        assert_eq!(of(Some(7), None, None), (Some(NEVER), Some(NEVER)));
        assert_eq!(of(None, None, None), (None, None), "nothing was crossed");
        assert_eq!(Round::of_panic("nohang".into(), 0, 1, String::new()).memory_back_ns(), Some(NEVER));
    }
}
