//! Runs saved decisions of the kubelet against the project's own code.
//!
//! One runner a file, in [`RUNNERS`]; tests and `cargo xtask vectors` use the same ones. A runner reads a case, asks the
//! project's code, and reports what is different. It decides nothing by itself: what is not in the project's code cannot
//! pass here. A case whose shape is not understood is a case that fails.

#![forbid(unsafe_code)]

mod api;
mod message;
mod parse;
mod ranking;
mod selector;
mod shutdown;
mod signals;
mod traces;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// What the cases of one file are run with.
#[derive(Clone, Copy, Debug)]
pub struct Runner {
    /// The file's name, without what compression adds to it.
    pub file: &'static str,
    check: fn(serde_json::Value) -> Result<Option<String>, serde_json::Error>,
}

/// Every file that is known. A new one is a module of its own and a row here.
pub const RUNNERS: &[Runner] = &[
    Runner { file: "message.json", check: check::<message::Case> },
    Runner { file: "parse.json", check: check::<parse::Case> },
    Runner { file: "ranking.json", check: check::<ranking::Case> },
    Runner { file: "selector.json", check: check::<selector::Case> },
    Runner { file: "shutdown.json", check: check::<shutdown::Case> },
    Runner { file: "signals.json", check: check::<signals::Case> },
    Runner { file: "traces.json", check: check::<traces::Case> },
];

/// A case of a file.
trait Case: DeserializeOwned {
    /// What is different, if anything is: ours and theirs.
    fn difference(self) -> Option<String>;
}

fn check<C: Case>(case: serde_json::Value) -> Result<Option<String>, serde_json::Error> {
    Ok(C::deserialize(case)?.difference())
}

/// What differs in a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The case's name, with its kind before it if it has one.
    pub case: String,
    /// What is different.
    pub text: String,
}

/// The result of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How many cases it has.
    pub cases: usize,
    /// Those that differ, in the file's order.
    pub differences: Vec<Difference>,
}

impl Report {
    /// Cases without a difference.
    pub fn passed(&self) -> usize {
        self.cases - self.differences.len()
    }
}

/// Why a file could not be run.
#[derive(Debug, thiserror::Error)]
pub enum VectorsError {
    /// It or its directory cannot be read.
    #[error("cannot read {path}: {source}; give a directory of saved decisions")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not what such files are.
    #[error("{path} is no JSON object with a list named cases: {source}")]
    Shape {
        /// Which.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// It would pass whatever the code does.
    #[error("{0} has no cases")]
    Empty(PathBuf),
}

#[derive(Deserialize)]
struct File {
    cases: Vec<serde_json::Value>,
    /// What the file says of all its cases.
    #[serde(flatten)]
    shared: serde_json::Map<String, serde_json::Value>,
}

/// A file of a directory: `name.json` or `name.json.gz`.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// Its runner, if there is one.
    pub runner: Option<Runner>,
}

/// The files of a directory, and of directories in it, that may hold cases, by path. If one is there twice, plain and
/// compressed, both are named.
pub fn find(directory: &Path) -> Result<Vec<Found>, VectorsError> {
    let failed = |source| VectorsError::Read { path: directory.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        // A link to a directory is none: this ends.
        if entry.file_type().map_err(failed)?.is_dir() {
            found.extend(find(&path)?);
            continue;
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = name.strip_suffix(".gz").unwrap_or(name);
        if Path::new(name).extension().is_some_and(|extension| extension == "json") {
            let runner = RUNNERS.iter().find(|runner| runner.file == name).copied();
            found.push(Found { path, runner });
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

impl Runner {
    /// Runs every case of a file.
    pub fn run(&self, path: &Path) -> Result<Report, VectorsError> {
        let File { cases, shared } = serde_json::from_str(&read(path)?)
            .map_err(|source| VectorsError::Shape { path: path.to_owned(), source })?;
        if cases.is_empty() {
            return Err(VectorsError::Empty(path.to_owned()));
        }
        let mut report = Report { cases: cases.len(), differences: Vec::new() };
        for mut value in cases {
            if let Some(members) = value.as_object_mut() {
                for (key, shared) in &shared {
                    members.entry(key).or_insert_with(|| shared.clone());
                }
            }
            let part = |key: &str| value.get(key).and_then(serde_json::Value::as_str);
            let case = [part("kind"), Some(part("name").unwrap_or("(no name)"))];
            let case = case.into_iter().flatten().collect::<Vec<_>>().join(": ");
            // A case of an unexpected shape may panic: that is its own failure, and the others are still run.
            let text = match std::panic::catch_unwind(|| (self.check)(value)) {
                Ok(checked) => checked.unwrap_or_else(|error| Some(format!("not understood: {error}"))),
                Err(panic) => Some(format!("not understood: {}", message_of(panic.as_ref()))),
            };
            report.differences.extend(text.map(|text| Difference { case, text }));
        }
        Ok(report)
    }
}

/// The message of a panic.
fn message_of(panic: &(dyn core::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

fn read(path: &Path) -> Result<String, VectorsError> {
    let failed = |source| VectorsError::Read { path: path.to_owned(), source };
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    if path.extension().is_some_and(|extension| extension == "gz") {
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).map_err(failed)?;
    } else {
        file.read_to_string(&mut text).map_err(failed)?;
    }
    Ok(text)
}

/// Ours and theirs, one below the other.
fn both(ours: &impl core::fmt::Debug, theirs: &impl core::fmt::Debug) -> String {
    format!("ours   {ours:?}\ntheirs {theirs:?}")
}
