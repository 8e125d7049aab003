//! What was measured of each cell, kept in a folder, so that a run that was stopped goes on where it was.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cells::{Cell, Plan};
use super::measured::Measured;
use crate::{lock, revision};

/// What was measured of a cell, when, and of which sources.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Kept {
    pub(super) date: String,
    pub(super) revision: String,
    pub(super) seed: u64,
    pub(super) plan: Plan,
    /// The error that its machine ended with, where it did.
    #[serde(default)]
    pub(super) ended: Option<String>,
    pub(super) measured: Measured,
}

impl Kept {
    /// Whether it is what a run with this plan and seed at this revision measures, or a part of that.
    pub(super) fn is_of(&self, revision: &str, seed: u64, plan: &Plan) -> bool {
        revision::is_same(&self.revision, revision) && self.seed == seed && self.plan == *plan
    }

    /// The rounds that are still to be played.
    pub(super) fn rest(&self) -> Plan {
        let left = |(rival, rounds): (&String, &u32)| {
            let found = self.measured.of(rival).count();
            let left = rounds.saturating_sub(u32::try_from(found).unwrap_or(u32::MAX));
            (left > 0).then(|| (rival.clone(), left))
        };
        self.plan.iter().filter_map(left).collect()
    }

    /// Whether the kernel gave up in the last of its rounds.
    pub(super) fn has_panicked(&self) -> bool {
        self.measured.rounds.last().is_some_and(|round| round.panicked)
    }

    /// Takes what another boot measured of the rest, whose numbers go on behind its own. Where its machine was another one,
    /// only what that measured is kept; gives why.
    pub(super) fn go_on(&mut self, more: Self) -> Option<String> {
        (self.date, self.ended) = (more.date, more.ended);
        let difference = self.measured.difference(&more.measured);
        if difference.is_some() {
            self.measured = more.measured;
            return difference;
        }
        let found = self.plan.keys().map(|rival| (rival.clone(), self.measured.of(rival).count()));
        let found: BTreeMap<String, usize> = found.collect();
        let behind = |rival: &str, number: u32| {
            number + found.get(rival).map_or(0, |count| u32::try_from(*count).unwrap_or(u32::MAX))
        };
        let Measured { mut rounds, bare_kills, mut failed, .. } = more.measured;
        for round in &mut rounds {
            round.number = behind(&round.rival, round.number);
        }
        for one in &mut failed {
            one.number = one.rival.as_ref().map_or(one.number, |rival| behind(rival, one.number));
        }
        self.measured.rounds.extend(rounds);
        self.measured.bare_kills.extend(bare_kills);
        self.measured.failed.extend(failed);
        None
    }

    /// An error where it is of another cell, or has no rounds, or more than were planned.
    pub(super) fn check(&self, cell: &Cell) -> anyhow::Result<()> {
        let Measured { workload, swap, rounds, .. } = &self.measured;
        ensure!(workload == cell.workload.name && swap == cell.swap, "the guest measured {workload} with swap {swap}");
        ensure!(!rounds.is_empty(), "the guest measured no round: {}", self.ended.as_deref().unwrap_or("no error"));
        for (rival, rounds) in &self.plan {
            let found = self.measured.of(rival).count();
            ensure!(found <= *rounds as usize, "the guest measured {found} of {rounds} rounds against {rival}");
        }
        Ok(())
    }

    /// How much of the plan it has, where that is not all, and why: the error that ended it, rounds that failed, or that the
    /// time was over.
    pub(super) fn part(&self) -> Option<String> {
        let planned: usize = self.plan.values().map(|rounds| *rounds as usize).sum();
        let found = self.measured.rounds.len();
        let failed = self.measured.failed.iter().filter(|one| one.rival.is_some()).count();
        let ended = self.ended.clone().or_else(|| (found + failed < planned).then(|| "time was over".to_owned()));
        let failed = (failed > 0).then(|| format!("{failed} failed"));
        let why = ended.into_iter().chain(failed).collect::<Vec<_>>().join(", and ");
        (found < planned).then(|| format!("{found} of {planned} rounds: {why}"))
    }
}

/// A cell that was measured.
pub(super) struct Done {
    pub(super) cell: Cell,
    pub(super) kept: Kept,
    /// Why measuring it again failed, where it did.
    pub(super) again: Option<String>,
}

/// A folder with a file for each cell that was measured on one kernel.
pub(super) struct Store(PathBuf);

impl Store {
    /// The folder is made when something is kept in it.
    pub(super) fn of(folder: &Path, kernel: &str) -> Self {
        Self(folder.join(kernel))
    }

    /// Where something about the cell with this name is kept.
    pub(super) fn path(&self, name: &str, extension: &str) -> PathBuf {
        self.0.join(name).with_added_extension(extension)
    }

    /// The lock of the cell with this name; nothing where another command has it.
    pub(super) fn try_lock(&self, name: &str) -> anyhow::Result<Option<File>> {
        lock::try_now(&self.0.join(name))
    }

    /// Removes what is kept about the cell with this name.
    pub(super) fn remove(&self, name: &str, extension: &str) -> anyhow::Result<()> {
        let file = self.path(name, extension);
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
    }

    /// What was kept of the cell with this name.
    pub(super) fn load<K: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Option<K>> {
        let file = self.path(name, "json");
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", file.display()))?,
        };
        let kept = serde_json::from_str(&text);
        kept.map(Some).with_context(|| format!("{} has another form: remove it", file.display()))
    }

    pub(super) fn save(&self, name: &str, kept: &impl Serialize) -> anyhow::Result<()> {
        self.save_as(&self.path(name, "json"), kept)
    }

    /// Keeps it in this file of the folder.
    pub(super) fn save_as(&self, file: &Path, kept: &impl Serialize) -> anyhow::Result<()> {
        let new = file.with_added_extension("new");
        fs::create_dir_all(&self.0)?;
        fs::write(&new, serde_json::to_string_pretty(kept)? + "\n")
            .and_then(|()| fs::rename(&new, file))
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{cells, sample};
    use super::*;
    use crate::bench::measured::Failed;

    #[test]
    fn a_cell_is_kept_for_the_same_sources_and_plan() {
        let place = tempfile::tempdir().expect("a directory");
        let store = Store::of(place.path(), "6.12");
        let Done { cell, kept, .. } = sample();
        assert!(store.load::<Kept>(&cell.name()).expect("no file").is_none());
        store.save(&cell.name(), &kept).expect("written");
        assert!(place.path().join("6.12/anon.json").is_file());
        let again: Kept = store.load(&cell.name()).expect("its form").expect("it is kept");
        assert!(again.is_of("abc", 1, &kept.plan) && !again.is_of("abd", 1, &kept.plan));
        assert!(!again.is_of("abc", 2, &kept.plan) && !again.is_of("abc", 1, &cell.plan()));
        assert_eq!(serde_json::to_value(&again).expect("values"), serde_json::to_value(&kept).expect("values"));
        fs::write(store.path(&cell.name(), "json"), "{}").expect("written");
        assert!(store.load::<Kept>(&cell.name()).expect_err("no form").to_string().contains("remove it"));
    }

    #[test]
    fn what_is_of_another_cell_or_of_no_round_is_refused() {
        let Done { cell, mut kept, .. } = sample();
        kept.check(&cell).expect("all of it");
        let other = cells::all().into_iter().find(|cell| cell.name() == "anon-zram").expect("a cell");
        let error = |kept: &Kept, cell| kept.check(cell).expect_err("refused").to_string();
        assert_eq!(error(&kept, &other), "the guest measured anon with swap none");
        kept.plan.insert("earlyoom".into(), 5);
        assert_eq!(error(&kept, &cell), "the guest measured 6 of 5 rounds against earlyoom");
        kept.measured.rounds.clear();
        kept.ended = Some("the guest ended with 1".into());
        assert_eq!(error(&kept, &cell), "the guest measured no round: the guest ended with 1");
    }

    #[test]
    fn what_another_boot_measured_of_the_rest_goes_on_behind() {
        let all = sample().kept;
        let mut kept = all.clone();
        kept.measured.rounds.retain(|round| round.rival != "earlyoom" || round.number < 4);
        kept.ended = Some("the guest ended with 1".into());
        let mut more = all.clone();
        more.measured.rounds.retain(|round| round.rival == "earlyoom" && round.number < 2);
        more.measured.bare_kills.truncate(1);
        more.measured.failed = vec![
            Failed { rival: Some("earlyoom".into()), number: 0, has_begun: true, why: "it broke".into() },
            Failed { rival: None, number: 0, has_begun: false, why: "it broke".into() },
        ];
        assert_eq!(kept.go_on(more), None);
        assert_eq!((kept.part(), kept.rest().len()), (None, 0));
        let numbers: Vec<u32> = kept.measured.of("earlyoom").map(|round| round.number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        assert_eq!(kept.measured.bare_kills.len(), all.measured.bare_kills.len() + 1);
        assert_eq!(kept.measured.failed.iter().map(|one| one.number).collect::<Vec<_>>(), [4, 0]);
    }

    #[test]
    fn rounds_of_another_kernel_machine_or_version_begin_the_cell_anew() {
        let all = sample().kept;
        for (change, expected) in [
            (
                (|it| it.kernel.push_str(".9")) as fn(&mut Measured),
                "Linux 6.12.0-made-up then, Linux 6.12.0-made-up.9 now",
            ),
            (|it| it.memory_bytes = 7, "1014075392 bytes of memory then, 7 bytes of memory now"),
            (
                |it| drop(it.versions.insert("nohang".into(), "9".into())),
                "nohang 9, plimsoll 0.1.0, systemd-oomd 257.8-1 now",
            ),
        ] {
            let (mut kept, mut more) = (all.clone(), all.clone());
            more.measured.rounds.truncate(2);
            change(&mut more.measured);
            let why = kept.go_on(more.clone()).expect("it differs");
            assert!(why.ends_with(expected), "{why}");
            assert_eq!((kept.measured.rounds.len(), &kept.plan), (2, &all.plan));
            assert_eq!(kept.measured.versions, more.measured.versions);
        }
    }

    #[test]
    fn a_boot_in_which_the_kernel_keeps_a_page_more_is_of_the_same_machine() {
        let (mut kept, mut more) = (sample().kept, sample().kept);
        let all = kept.measured.rounds.len();
        kept.measured.rounds.truncate(2);
        more.measured.rounds.drain(..2);
        more.measured.memory_bytes -= 4096;
        assert_eq!((kept.go_on(more), kept.measured.rounds.len()), (None, all));
    }

    #[test]
    fn what_has_fewer_rounds_is_a_part_that_goes_on() {
        let Done { cell, mut kept, .. } = sample();
        assert_eq!(kept.part(), None);
        kept.measured.rounds.retain(|round| round.rival != "earlyoom" || round.number != 0);
        kept.check(&cell).expect("a part");
        let all = kept.plan.values().sum::<u32>();
        assert_eq!(kept.part(), Some(format!("{} of {all} rounds: time was over", all - 1)));
        let rival = Some("earlyoom".to_owned());
        kept.measured.failed.push(Failed { rival, number: 0, has_begun: true, why: "it broke".into() });
        assert_eq!(kept.part(), Some(format!("{} of {all} rounds: 1 failed", all - 1)));
        kept.measured.failed.clear();
        assert_eq!(kept.rest(), BTreeMap::from([("earlyoom".into(), 1)]));
        kept.ended = Some("the guest ended with 1".into());
        assert_eq!(kept.part(), Some(format!("{} of {all} rounds: the guest ended with 1", all - 1)));
    }
}
