//! Cells of a second kind: not what comes of a race, but what the agent costs. Each is one boot of one machine on one
//! processor whose clock follows the instructions that it runs, so that a time is a number of instructions.

mod binary;
mod idle;
mod measured;
mod programs;
mod run;
mod start;
mod storms;
mod table;

use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::rivals;
use crate::claim::Claim;
use crate::revision;
use crate::vm::Root;
use binary::Binary;
use measured::Measured;
use table::whole;

/// One cell.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CostCell {
    /// Its name, which begins with `cost-`.
    pub(super) name: &'static str,
    /// What is measured in it, without the sentence's end.
    pub(super) what: &'static str,
    /// What the guest knows it by.
    guest: &'static str,
    rounds: u32,
    /// How many workloads there are, one number after the other.
    workloads: &'static str,
    /// How much memory the machine has, as QEMU reads it.
    memory: &'static str,
    /// What the machine runs from: with systemd where there are other daemons.
    pub(super) root: Root,
    /// The packages of Debian in that.
    pub(super) packages: &'static [&'static str],
}

pub(super) static CELLS: [CostCell; 6] = [
    CostCell {
        name: "cost-hooks",
        what: "how many instructions each hook takes of a fixed load, and what its program is like",
        guest: "hooks",
        rounds: 3,
        workloads: "0",
        memory: "1G",
        root: Root::Initramfs,
        packages: &[],
    },
    CostCell {
        name: "cost-storms",
        what: "how much longer storms take with the agent than without",
        guest: "storms",
        rounds: 10,
        workloads: "0",
        memory: "1G",
        root: Root::Initramfs,
        packages: &[],
    },
    CostCell {
        name: "cost-idle",
        what: "what the agent and other daemons take while nothing happens, and in a storm",
        guest: "idle",
        rounds: 6,
        workloads: "0,100,500,4000",
        memory: "1G",
        root: Root::Systemd,
        packages: &rivals::PACKAGES,
    },
    CostCell {
        name: "cost-large",
        what: "what the agent and earlyoom take while nothing happens on a machine with more memory, where earlyoom sleeps as \
            long as it ever does",
        guest: "large",
        rounds: 6,
        workloads: "0,500",
        memory: "8G",
        root: Root::Systemd,
        packages: &["earlyoom"],
    },
    CostCell {
        name: "cost-pods",
        what: "what the agent, with all of its processes, and earlyoom take while nothing happens beside pods and a \
            containerd",
        guest: "pods",
        rounds: 6,
        workloads: "500",
        memory: "1G",
        root: Root::Systemd,
        packages: &["containerd", "e2fsprogs", "earlyoom"],
    },
    CostCell {
        name: "cost-start",
        what: "how long the agent takes to start, beside a bare load of its programs",
        guest: "start",
        rounds: 6,
        workloads: "0",
        memory: "1G",
        root: Root::Initramfs,
        packages: &[],
    },
];

impl CostCell {
    /// The guest's command; it leaves its measurements at `out`.
    pub(super) fn command(&self, out: &str) -> Vec<String> {
        let rounds = self.rounds.to_string();
        ["/bin/plimsoll-guest", "cost", self.guest, "--rounds", &rounds, "--workloads", self.workloads, "--out", out]
            .map(str::to_owned)
            .into()
    }

    /// What the guest left of it, and the agent that it measured.
    pub(super) fn kept(&self, text: &str, agent: &Path, date: String, revision: String) -> anyhow::Result<Kept> {
        let measured: Measured = serde_json::from_str(text).context("the guest measured something else")?;
        let kept = Kept { date, revision, rounds: self.rounds, binary: Binary::of(agent)?, measured };
        kept.check(self)?;
        Ok(kept)
    }
}

/// What was measured of a cell, when, and of which sources.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Kept {
    date: String,
    revision: String,
    rounds: u32,
    /// The agent that was measured.
    binary: Binary,
    measured: Measured,
}

impl Kept {
    /// Whether it need not be measured again at this revision.
    pub(super) fn is_of(&self, cell: &CostCell, revision: &str) -> bool {
        revision::is_same(&self.revision, revision) && self.rounds == cell.rounds
    }

    /// An error where it is of another cell, or rounds or surroundings are missing.
    fn check(&self, cell: &CostCell) -> anyhow::Result<()> {
        let (name, rounds) = (self.measured.cell(), self.measured.rounds());
        ensure!(name == cell.guest, "the guest measured {name}");
        let missing = self.measured.missing(cell.workloads);
        ensure!(missing.is_empty(), "the guest measured nothing of {}", missing.join(", "));
        ensure!(rounds == self.rounds as usize, "the guest measured {rounds} of {} rounds", self.rounds);
        Ok(())
    }
}

/// A cell, and what is known of it: what was measured, or why nothing was.
pub(super) struct Known {
    pub(super) cell: &'static CostCell,
    pub(super) kept: Result<Kept, String>,
    /// Why measuring it again failed, where it did.
    pub(super) again: Option<String>,
}

/// What has to hold and is in none of these claims.
pub(super) fn not_run(claims: &[Claim]) -> Vec<&'static str> {
    let of_idle = [&idle::ALONE, &idle::LARGE, &idle::ON_A_NODE].into_iter().flat_map(idle::Goals::all);
    let all = [storms::GOAL].into_iter().chain(of_idle).chain([start::GOAL]);
    all.filter(|what| claims.iter().all(|claim| claim.what != *what)).collect()
}

/// What has to hold, as far as it was measured.
pub(super) fn claims(known: &[Known]) -> Vec<Claim> {
    let measured = known.iter().filter_map(|known| known.kept.as_ref().ok()).map(|kept| &kept.measured);
    measured
        .flat_map(|measured| match measured {
            Measured::Hooks(_) => Vec::new(),
            Measured::Storms(storms) => storms::claims(storms),
            Measured::Idle(idle) => idle::claims(idle, &idle::ALONE),
            Measured::Large(idle) => idle::claims(idle, &idle::LARGE),
            Measured::Pods(idle) => idle::claims(idle, &idle::ON_A_NODE),
            Measured::Start(start) => start::claims(start).into_iter().collect(),
        })
        .collect()
}

/// So many rounds of `cost-start` as the guest would have measured them. They are made up: nothing was measured.
#[cfg(test)]
fn sample(rounds: usize) -> Kept {
    let pair = serde_json::json!({"bare": {"layout_ns": 1, "types_ns": 1, "maps_ns": 1, "verify_ns": 1,
        "attach_ns": 1, "total_ns": 4}, "ready_ns": 5, "start": {"armed_ns": 4}});
    let measured = serde_json::json!({"cell": "start", "kernel": "6.12", "cpus": 1, "page_bytes": 4096,
        "memory_bytes": 1, "pairs": vec![pair; rounds]});
    let measured = serde_json::from_value(measured).expect("the guest's form");
    Kept { date: "2026-01-02".into(), revision: "abc".into(), rounds: 6, binary: Binary::default(), measured }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_is_asked_for_the_cell() {
        assert_eq!(
            CELLS[2].command("/out/x.json").join(" "),
            "/bin/plimsoll-guest cost idle --rounds 6 --workloads 0,100,500,4000 --out /out/x.json"
        );
        assert!(CELLS.iter().all(|cell| cell.name == format!("cost-{}", cell.guest)));
    }

    #[test]
    fn what_is_of_another_cell_or_too_little_is_refused() {
        let cell = |name: &str| CELLS.iter().find(|cell| cell.name == name).expect("a cell");
        sample(6).check(cell("cost-start")).expect("all of it");
        let error = |n, name| sample(n).check(cell(name)).expect_err("less or another").to_string();
        assert_eq!(error(5, "cost-start"), "the guest measured 5 of 6 rounds");
        assert_eq!(error(6, "cost-storms"), "the guest measured start");
        let storms = serde_json::json!({"cell": "storms", "kernel": "6.12", "cpus": 1, "page_bytes": 4096,
            "memory_bytes": 1, "runs": []});
        let storms = Kept { measured: serde_json::from_value(storms).expect("the guest's form"), ..sample(6) };
        let error = storms.check(cell("cost-storms")).expect_err("none of it").to_string();
        assert!(error.starts_with("the guest measured nothing of allocation with agent=false, "), "{error}");
        assert!(sample(6).is_of(cell("cost-start"), "abc") && !sample(6).is_of(cell("cost-start"), "abd"));
        assert!(!sample(6).is_of(cell("cost-hooks"), "abc"));
    }
}
