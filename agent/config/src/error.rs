//! Errors and warnings of a configuration.

use core::fmt;
use serde::Serialize;

/// One problem: its place, the key, the value, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, as it was named.
    pub file: String,
    /// The line in it, from 1; absent for what is missing altogether.
    pub line: Option<u64>,
    /// The key with its parents: `machine.brake.mode`, `machine.workloads[2].match`. Empty for the file as a whole.
    pub key: String,
    /// The value.
    pub value: Option<String>,
    /// What was expected, or why the value is refused.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        if let Some(value) = &self.value {
            write!(f, "{value:?}: ")?;
        }
        f.write_str(&self.expected)
    }
}

/// A configuration that cannot be used; each problem is a line. The program ends with exit code 2 on it, before it opens
/// anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", Lines(.0))]
pub struct ConfigError(pub Vec<Problem>);

struct Lines<'a>(&'a [Problem]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}
