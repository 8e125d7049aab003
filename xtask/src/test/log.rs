//! What the machines of a step print: in a file, and at hand for when it fails.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::report::Report;
use crate::vm;

/// All that was printed so far.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    /// What was printed since this was last taken.
    pub(super) last: Vec<String>,
    booted_again: u32,
}

impl Log {
    /// An empty one for the step with this name.
    pub(super) fn begin(report: &Report, name: &str) -> anyhow::Result<Self> {
        let path = report.log(name);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file, last: Vec::new(), booted_again: 0 })
    }

    /// Takes a line in. One that cannot be written is no reason to end a machine.
    pub(super) fn line(&mut self, line: &str) {
        let _ = writeln!(self.file, "{line}");
        self.last.push(line.to_owned());
        self.booted_again += u32::from(line.starts_with(vm::BOOTED_AGAIN));
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How often a machine was booted again.
    pub(super) const fn booted_again(&self) -> u32 {
        self.booted_again
    }
}
