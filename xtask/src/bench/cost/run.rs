//! One run of these cells: what was measured of them before, or a boot of a machine for each.

use super::{CELLS, CostCell, Kept, Known, claims, whole};
use crate::bench::{Bench, LEFT, TAKEN};
use crate::claim::Claim;
use crate::debian_root;
use crate::progress::Progress;

impl Bench {
    /// Measures these cells of costs and publishes all of which there are results. Gives what has to hold, and how many
    /// could not be measured.
    pub(in crate::bench) fn costs(
        &self,
        cells: &[&CostCell],
        progress: &Progress,
    ) -> anyhow::Result<(Vec<Claim>, usize)> {
        let (mut failed, mut skipped) = (Vec::new(), Vec::new());
        for cell in cells {
            match self.alone(cell.name, || self.cost(cell, progress)) {
                Ok(Some(())) => {}
                Ok(None) => {
                    progress.line(&format!("{}: {TAKEN}", cell.name));
                    skipped.push(cell.name);
                }
                Err(error) => {
                    progress.line(&format!("NOT RUN {}: {error:#}", cell.name));
                    failed.push((cell.name, format!("{error:#}")));
                }
            }
            progress.step();
        }
        let known = CELLS.iter().map(|cell| {
            let why = failed.iter().find(|(name, _)| *name == cell.name).map(|(_, why)| why.clone());
            let results = self.results.load(cell.name)?;
            let other = if skipped.contains(&cell.name) { TAKEN } else { "it was not asked for" };
            Ok(match results {
                Some(kept) => Known { cell, kept: Ok(kept), again: why },
                None => Known { cell, kept: Err(why.unwrap_or_else(|| other.into())), again: None },
            })
        });
        let known: Vec<Known> = known.collect::<anyhow::Result<_>>()?;
        let claims = claims(&known);
        let text = whole(self.kernel, &known, &claims);
        self.write(&format!("{}-cost", self.kernel), &text)?;
        println!("\n{text}");
        Ok((claims, failed.len()))
    }

    /// Has a cell of costs among the results.
    fn cost(&self, cell: &CostCell, progress: &Progress) -> anyhow::Result<()> {
        let before: Option<Kept> = if self.again { None } else { self.before.load(cell.name)? };
        let kept = if let Some(before) = before.filter(|before| before.is_of(cell, &self.revision)) {
            progress.line(&format!("{}: measured before of these sources", cell.name));
            before
        } else {
            self.measure_cost(cell, progress)?
        };
        self.before.save(cell.name, &kept)?;
        self.results.save(cell.name, &kept)
    }

    fn measure_cost(&self, cell: &CostCell, progress: &Progress) -> anyhow::Result<Kept> {
        progress.line(&format!("measuring {}: {}", cell.name, cell.what));
        let command = cell.command(&format!("/out/{LEFT}"));
        self.boot(cell.name, &command, |machine| {
            (machine.icount, machine.root) = (true, cell.root);
            machine.memory = cell.memory.into();
            machine.packages = debian_root::names(cell.packages);
        })?;
        cell.kept(&self.left(cell.name)?, &self.programs.join("plimsoll"), self.date.clone(), self.revision.clone())
    }
}
