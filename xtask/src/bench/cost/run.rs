//! One run of these cells: what was measured of them before, or a boot of a machine for each.

use super::{CELLS, CostCell, Kept, Known, claims, whole};
use crate::bench::{Bench, LEFT, NOT_YET, TAKEN};
use crate::claim::Claim;
use crate::debian_root;
use crate::progress::Progress;

impl Bench {
    /// Measures these cells of costs and publishes all of which there are results. Gives what has to hold, and which cells
    /// could not be measured.
    pub(in crate::bench) fn costs(
        &self,
        cells: &[&CostCell],
        progress: &Progress,
    ) -> anyhow::Result<(Vec<Claim>, Vec<String>)> {
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
            let other = if skipped.contains(&cell.name) { TAKEN } else { NOT_YET };
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
        Ok((claims, failed.into_iter().map(|(name, _)| name.to_owned()).collect()))
    }

    /// Has a cell of costs among the results.
    fn cost(&self, cell: &CostCell, progress: &Progress) -> anyhow::Result<()> {
        let kept = if let Some(before) = self.cost_before(cell)? {
            progress.line(&format!("{}: measured before of these sources", cell.name));
            before
        } else {
            self.measure_cost(cell, progress)?
        };
        self.before.save(cell.name, &kept)?;
        self.results.save(cell.name, &kept)
    }

    /// What was measured of it before in the same sources.
    fn cost_before(&self, cell: &CostCell) -> anyhow::Result<Option<Kept>> {
        if self.again {
            return Ok(None);
        }
        let is_same = |kept: &Kept| kept.is_of(cell, &self.revision);
        let found: Option<Kept> = self.before.load(cell.name)?.filter(is_same);
        // A checkout that was made anew has what was published alone.
        Ok(found.map_or_else(|| self.results.load(cell.name), |it| Ok(Some(it)))?.filter(is_same))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cost::sample;
    use crate::bench::tests::bench_in;

    #[test]
    fn what_is_published_of_the_same_sources_is_not_measured_again() {
        let place = tempfile::tempdir().expect("a directory");
        let mut bench = bench_in(place.path());
        let cell = CELLS.iter().find(|cell| cell.name == "cost-start").expect("a cell");
        bench.results.save(cell.name, &sample(6)).expect("written");
        assert!(bench.cost_before(cell).expect("its form").is_some());
        bench.revision = "abd".into();
        assert!(bench.cost_before(cell).expect("its form").is_none(), "it is of other sources");
        (bench.revision, bench.again) = ("abc".into(), true);
        assert!(bench.cost_before(cell).expect("its form").is_none(), "it is wanted again");
    }
}
