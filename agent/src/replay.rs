//! `plimsoll replay`: what a configuration would have decided on what was recorded. Changes nothing.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use plimsoll_config::{ConfigError, Problem, unreadable};
use plimsoll_pods::{ReadError, read_pods};
use plimsoll_policy::EvictionPolicy;
use plimsoll_policy::kubelet::DiskLayout;
use plimsoll_replay::{Recording, Settings, Turn, printable, read, run};
use serde_json::json;

use crate::log::{complain, print};
use crate::options::{Options, Output};

const CODES: &str = "Exit codes: 0 done; 1 the recording cannot be read; 2 wrong arguments or configuration.";
/// A recording is held in memory as a whole; larger ones are refused.
const MOST_BYTES: u64 = 512 << 20;
/// How many candidates of a turn are printed as text.
const MOST_CANDIDATES: usize = 20;

/// What to replay, and by which policy.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// A trace that `run` wrote, or a kubelet's answer to /stats/summary; several of these may follow one another.
    file: PathBuf,
    #[command(flatten)]
    options: Options,
    /// The eviction policy, in place of the configured one.
    #[arg(long)]
    eviction_policy: Option<Policy>,
    /// For statistics of a kubelet: the pods, as `kubectl get pods -A -o json` prints them. Without them there are no
    /// requests and no priorities, and no pod is protected.
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// For statistics of a kubelet: which disks there are. Without it, two file systems of the same size are taken for
    /// one.
    #[arg(long)]
    disks: Option<Disks>,
    /// Print every decision, not only the first of the machine and of each slice, and those that act, differ from the one
    /// before, or were reported by the recorded agent.
    #[arg(long)]
    all: bool,
    /// Text, or one JSON object.
    #[arg(long, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Policy {
    Kubelet,
    Plimsoll,
    #[value(name = "openshift3")]
    OpenShift3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Disks {
    /// One for everything.
    One,
    /// Images and writable layers on their own.
    Images,
    /// Images on their own, writable layers on the node's.
    Split,
}

/// Replays, prints, and gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let configuration = crate::supervisor::configuration(&arguments.options)?;
    ensure_opens(arguments.pods.as_deref())?;
    let recording = parsed(&arguments.file, read)?;
    let pods = arguments.pods.as_deref().map(|file| parsed(file, read_pods)).transpose()?;
    let chosen = arguments.eviction_policy.map(|policy| match policy {
        Policy::Kubelet => EvictionPolicy::Kubelet,
        Policy::Plimsoll => EvictionPolicy::Plimsoll,
        Policy::OpenShift3 => EvictionPolicy::OpenShift3,
    });
    let settings = Settings {
        configuration: &configuration,
        eviction_policy: chosen,
        layout: arguments.disks.map(|disks| match disks {
            Disks::One => DiskLayout::Single,
            Disks::Images => DiskLayout::DedicatedImageFs,
            Disks::Split => DiskLayout::SplitImageFs,
        }),
    };
    for note in notes(&recording, pods.is_some(), arguments.disks.is_some()) {
        complain(note);
    }
    let mut news = News::default();
    let mut turns = Vec::new();
    run(&recording, pods.as_deref(), &settings, &mut |turn| {
        if !news.is_any(turn) && !arguments.all {
            return;
        }
        match arguments.output {
            Output::Text => print(&text(turn)),
            Output::Json => turns.push(turn.json()),
        }
    });
    let News { decisions, acted, .. } = news;
    match arguments.output {
        Output::Text => {
            let noun = if decisions == 1 { "decision" } else { "decisions" };
            print(&format!("{decisions} {noun}, {acted} with an action\n"));
        }
        Output::Json => print(&format!("{}\n", json!({ "decisions": decisions, "acted": acted, "turns": turns }))),
    }
    Ok(0)
}

/// Reads a file and parses it.
fn parsed<T>(path: &Path, parse: fn(&[u8]) -> Result<T, ReadError>) -> anyhow::Result<T> {
    parsed_of(path, &content(path)?, parse)
}

fn parsed_of<T>(path: &Path, bytes: &[u8], parse: fn(&[u8]) -> Result<T, ReadError>) -> anyhow::Result<T> {
    parse(bytes).map_err(|error| anyhow::anyhow!("{}:{}", path.display(), printable(&error.to_string())))
}

/// A list of pods in a file, as it is read.
pub(crate) struct PodList {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl PodList {
    /// Reads the one that is named, if one is, once: it may be a pipe.
    ///
    /// # Errors
    /// [`ConfigError`] where it cannot be opened, as for any other wrong argument.
    pub(crate) fn read(path: Option<&Path>) -> anyhow::Result<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        let file = File::open(path).map_err(|error| cannot_open(path, &error))?;
        Ok(Some(Self { path: path.to_owned(), bytes: content_of(file, path)? }))
    }

    /// Parses it.
    pub(crate) fn parsed<T>(&self, parse: fn(&[u8]) -> Result<T, ReadError>) -> anyhow::Result<T> {
        parsed_of(&self.path, &self.bytes, parse)
    }
}

/// Refuses a list of pods that cannot be opened, as any other wrong argument.
fn ensure_opens(list: Option<&Path>) -> Result<(), ConfigError> {
    let Some((path, error)) = list.and_then(|path| Some((path, File::open(path).err()?))) else { return Ok(()) };
    Err(cannot_open(path, &error))
}

fn cannot_open(path: &Path, error: &std::io::Error) -> ConfigError {
    let (file, key) = (path.display().to_string(), String::new());
    ConfigError(vec![Problem { file, line: None, key, value: None, expected: unreadable(error) }])
}

/// All of a file, of bounded size.
pub(crate) fn content(path: &Path) -> anyhow::Result<Vec<u8>> {
    content_of(File::open(path).with_context(|| format!("cannot open {}", path.display()))?, path)
}

fn content_of(file: File, path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(bytes.len() as u64 <= MOST_BYTES, "{} is longer than {} MiB", path.display(), MOST_BYTES >> 20);
    Ok(bytes)
}

/// What to know when reading the answer.
fn notes(recording: &Recording, has_pods: bool, has_disks: bool) -> Vec<&'static str> {
    let mut notes = Vec::new();
    match recording {
        Recording::Trace(trace) => {
            notes.extend(trace.is_cut_off.then_some("the last line of the trace has no end; it is left out"));
            notes.extend(has_pods.then_some("--pods has no effect on a trace, which has what was known of pods"));
            notes.extend(has_disks.then_some("--disks has no effect on a trace, which has what was known of disks"));
        }
        Recording::Summaries(_) if !has_pods => {
            notes.push("without --pods there are no requests and no priorities, and no pod is protected");
        }
        Recording::Summaries(_) => {}
    }
    notes
}

/// Which turns are printed: the first, those that act, those of which the recorded agent reported something, and those whose
/// outcome or conditions differ from the one before.
#[derive(Default)]
struct News {
    decisions: usize,
    acted: usize,
    /// By scope.
    last: std::collections::BTreeMap<Option<String>, String>,
}

impl News {
    fn is_any(&mut self, turn: &Turn<'_>) -> bool {
        self.decisions += 1;
        self.acted += usize::from(turn.acts());
        let state = turn.state();
        let before = self.last.insert(turn.scope().map(str::to_owned), state.clone());
        turn.acts() || turn.reported.is_some() || before.is_none_or(|before| before != state)
    }
}

fn text(turn: &Turn<'_>) -> String {
    use std::fmt::Write as _;
    // Writing into a String does not fail.
    let mut text = format!("{}  {}\n", turn.time(), turn.line());
    if let Some(reported) = turn.reported {
        let _ = writeln!(text, "    then: {}", printable(reported));
    }
    for [name, message] in turn.messages() {
        let _ = writeln!(text, "    message of {name}: {message}");
    }
    let candidates = turn.candidates();
    for [name, verdict, keys] in candidates.iter().take(MOST_CANDIDATES) {
        let _ = writeln!(text, "    {name}: {verdict}; {keys}");
    }
    if candidates.len() > MOST_CANDIDATES {
        let _ = writeln!(text, "    and {} more; --output json has them all", candidates.len() - MOST_CANDIDATES);
    }
    text
}
