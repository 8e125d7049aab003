//! All sources of the configuration, read and merged.
//!
//! A kubelet's file, then its drop-ins, then its flags, as the kubelet does it; or its answer to configz, which is the
//! result of all that. Plimsoll's own file goes before them, key by key.

use crate::error::{ConfigError, Problem};
use crate::files::{Disk, Files, Machine, Nowhere};
use crate::flags::Overrides;
use crate::kubelet::arguments::{Flag, apply, flags, node_config};
use crate::kubelet::read::{Dialect, document};
use crate::kubelet::settings::Settings;
use crate::kubelet::words::command_line;
use crate::load::own as read_own;
use crate::model::{Configuration, Text};
use crate::snapshot::{Anew, Keeping, Snapshot};
use crate::tree::{Problems, any_of};
use std::io;
use std::path::{Path, PathBuf};

/// The files to read. None of them has to be there: then everything is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Plimsoll's own file.
    pub own: Option<PathBuf>,
    /// A file with KubeletConfiguration.
    pub kubelet_config: Option<PathBuf>,
    /// The directory with its drop-ins: `*.conf`, at any depth, in the order of their paths.
    pub kubelet_config_dir: Option<PathBuf>,
    /// A kubelet's answer to `/configz`.
    pub configz: Option<PathBuf>,
    /// OpenShift's `node-config.yaml`.
    pub node_config: Option<PathBuf>,
    /// A kubelet's command line: `/proc/PID/cmdline`, a unit with its drop-ins, `kubeadm-flags.env`. The files that it
    /// names are read too, unless they are given here.
    pub kubelet_command_line: Vec<PathBuf>,
    /// The kubelet that runs on this machine, alone beside Plimsoll's own file.
    pub running_kubelet: Option<RunningKubelet>,
}

/// A kubelet whose command line is read from the process, and the files that this names from the machine's own: one in a
/// container of its own would have others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunningKubelet {
    /// The number of its process.
    Process(u32),
    /// None is found, and why. A kubelet's defaults hold.
    NotFound(String),
}

impl RunningKubelet {
    /// Its process, where one is found.
    #[must_use]
    pub const fn process(&self) -> Option<u32> {
        match self {
            Self::Process(process) => Some(*process),
            Self::NotFound(_) => None,
        }
    }
}

/// The same as [`Sources`], read already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// Plimsoll's own file.
    pub own: Option<Text>,
    /// A file with KubeletConfiguration.
    pub kubelet_config: Option<Text>,
    /// Its drop-ins in their order; absent where there is no directory of them.
    pub drop_ins: Option<Vec<Text>>,
    /// A kubelet's answer to `/configz`.
    pub configz: Option<Text>,
    /// OpenShift's `node-config.yaml`.
    pub node_config: Option<Text>,
    /// A kubelet's command line.
    pub kubelet_command_line: Vec<Text>,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Report {
    /// The configuration; where there are errors, what is left without the values that are wrong.
    pub configuration: Configuration,
    /// Every error.
    pub errors: Vec<Problem>,
    /// What is valid and yet probably a mistake.
    pub warnings: Vec<Problem>,
}

impl Report {
    /// The configuration, if it has no errors.
    pub fn valid(self) -> Result<Configuration, ConfigError> {
        if self.errors.is_empty() { Ok(self.configuration) } else { Err(ConfigError(self.errors)) }
    }
}

/// Reads Plimsoll's own file alone, from a text; `file` is how errors and origins call it.
pub fn parse(text: &str, file: &str) -> Result<Configuration, ConfigError> {
    let own = Some(Text { file: file.to_owned(), text: text.to_owned() });
    examine_texts(&Texts { own, ..Texts::default() }, &Overrides::default()).valid()
}

/// Reads the files, with every error and warning beside the configuration.
pub fn examine(sources: &Sources, overrides: &Overrides) -> Report {
    examine_and_keep(sources, overrides).0
}

/// The same, and keeps all that was read.
pub fn examine_and_keep(sources: &Sources, overrides: &Overrides) -> (Report, Snapshot) {
    if sources.running_kubelet.is_some() { keep(sources, overrides, Machine) } else { keep(sources, overrides, Disk) }
}

/// Reads what is of a kubelet anew, and takes Plimsoll's own file as it was kept. Keeps all of it.
pub fn examine_anew(kept: &Snapshot, sources: &Sources, overrides: &Overrides) -> (Report, Snapshot) {
    keep(sources, overrides, Anew { own: sources.own.as_deref(), kept })
}

fn keep(sources: &Sources, overrides: &Overrides, from: impl Files) -> (Report, Snapshot) {
    let keeping = Keeping::new(from);
    let report = examine_in(sources, overrides, &keeping);
    (report, keeping.into_kept())
}

/// Reads what was kept instead of the files.
pub fn load_kept(kept: &Snapshot, sources: &Sources, overrides: &Overrides) -> Result<Configuration, ConfigError> {
    examine_in(sources, overrides, kept).valid()
}

fn examine_in(sources: &Sources, overrides: &Overrides, files: &dyn Files) -> Report {
    let mut problems = Problems::new("default");
    let mut text = |path: &Option<PathBuf>| {
        let path = path.as_ref()?;
        files.text(path, &mut problems)
    };
    let mut texts = Texts {
        own: text(&sources.own),
        kubelet_config: text(&sources.kubelet_config),
        drop_ins: None,
        configz: text(&sources.configz),
        node_config: text(&sources.node_config),
        kubelet_command_line: Vec::new(),
    };
    texts.drop_ins = sources.kubelet_config_dir.as_ref().map(|path| files.drop_ins(path, &mut problems));
    texts.kubelet_command_line =
        sources.kubelet_command_line.iter().filter_map(|path| files.text(path, &mut problems)).collect();
    for text in &texts.kubelet_command_line {
        refuse_other_program(text, &mut problems);
    }
    match &sources.running_kubelet {
        Some(RunningKubelet::Process(process)) => {
            let text = files.text(Path::new(&format!("/proc/{process}/cmdline")), &mut problems);
            // Paths on it are the machine's: those of a process are refused to most.
            let named = text.map(|Text { text, .. }| Text { file: format!("the kubelet ({process})"), text });
            texts.kubelet_command_line.extend(named);
        }
        Some(RunningKubelet::NotFound(why)) => {
            problems.turn_to("the kubelet that runs");
            problems.warn(
                None,
                "--running-kubelet",
                None,
                &format!("{why}; a kubelet's defaults hold until one is found"),
            );
        }
        None => {}
    }
    assemble(&texts, overrides, files, problems)
}

/// Programs that are a kubelet, or have one in them, by the names of their files.
const KUBELETS: [&str; 6] = ["kubelet", "hyperkube", "k3s", "k3s-server", "rke2", "kubelite"];

/// Refuses the command line of a process that is none: its words would be taken for a kubelet's without any threshold.
fn refuse_other_program(Text { file, text }: &Text, problems: &mut Problems) {
    let process = file.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/cmdline"));
    let Some(process) = process.filter(|process| !process.contains('/')) else { return };
    let program = text.split('\0').next().unwrap_or_default();
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    if KUBELETS.contains(&name.as_ref()) {
        return;
    }
    let runs = if name.is_empty() { "has no command line" } else { &format!("runs {name}") };
    problems.turn_to(file);
    let why = format!(
        "process {process} {runs}, not a kubelet; expected the process of {}, or --running-kubelet, which finds it",
        any_of(&KUBELETS)
    );
    problems.add(None, "", None, &why);
}

/// The same with texts that were read already. Files that they name are not read.
pub fn examine_texts(texts: &Texts, overrides: &Overrides) -> Report {
    assemble(texts, overrides, &Nowhere, Problems::new("default"))
}

fn assemble(texts: &Texts, overrides: &Overrides, files: &dyn Files, mut problems: Problems) -> Report {
    let mut settings = Settings::default();
    let has_kubelet = reported(texts, &mut settings, files, &mut problems);
    let configuration = read_own(texts.own.as_ref(), overrides, has_kubelet, settings, &mut problems);
    let (errors, warnings) = problems.in_order();
    Report { configuration: Configuration { warnings: warnings.clone(), ..configuration }, errors, warnings }
}

/// The settings of a kubelet, and whether any source of them was named.
fn reported(texts: &Texts, settings: &mut Settings, files: &dyn Files, problems: &mut Problems) -> bool {
    let Texts { own: _, kubelet_config, drop_ins, configz, node_config: openshift, kubelet_command_line } = texts;
    let line = command_line(kubelet_command_line, &|path| files.read(Path::new(path)), problems);
    let mut given = flags(&line.words, problems);
    if let Some(Text { file, text }) = openshift {
        problems.turn_to(file);
        given.splice(0..0, node_config(text, problems));
    }
    let is_reported =
        kubelet_config.is_some() || drop_ins.is_some() || openshift.is_some() || !kubelet_command_line.is_empty();
    if let Some(Text { file, text }) = configz {
        problems.turn_to(file);
        if is_reported {
            let why = "it is the result of the kubelet's file, drop-ins and flags; expected it alone, or them";
            problems.add(None, "kubeletconfig", None, why);
        }
        settings.merge(document(text, Dialect::Configz, problems));
        return true;
    }
    let (named, named_directory) = (path_of(&given, "config"), path_of(&given, "config-dir"));
    let found = match (kubelet_config, &named) {
        (Some(text), _) => Some(text.clone()),
        (None, Some((path, flag))) => {
            referred(path, flag, files.read(path), problems).map(|text| Text { file: path.display().to_string(), text })
        }
        (None, None) => None,
    };
    if let Some(Text { file, text }) = &found {
        problems.turn_to(file);
        settings.merge(document(text, Dialect::File, problems));
        settings.drop_zeros();
    }
    if let (Some(file), None, None) = (&line.part, &found, &openshift) {
        problems.turn_to(file);
        let what = if line.words.is_empty() {
            "it has no word of a kubelet's command line"
        } else {
            "an environment file has only a part of a kubelet's command line"
        };
        let why = format!(
            "{what}; expected /proc/PID/cmdline or the unit (`systemctl cat kubelet`) beside it, or --kubelet-config"
        );
        problems.warn(None, "", None, &why);
    }
    // A kubelet takes its default thresholds when it has read its file: without a file there are none.
    let is_alone = found.is_none()
        && named.is_none()
        && (line.whole || openshift.is_none() && kubelet_command_line.is_empty() && drop_ins.is_some());
    if is_reported && !is_alone {
        settings.default_eviction_hard();
    }
    let found = match (drop_ins, &named_directory) {
        (Some(texts), _) => Some(texts.clone()),
        (None, Some((path, flag))) => referred(path, flag, files.list(path), problems)
            .map(|list| list.iter().filter_map(|path| files.text(path, problems)).collect()),
        (None, None) => None,
    };
    if let Some(texts) = found {
        settings.drop_empty_lists();
        for Text { file, text } in &texts {
            problems.turn_to(file);
            let layer = document(text, Dialect::DropIn, problems);
            if layer.contains_key("mergeDefaultEvictionSettings") {
                let why = "no effect in a drop-in: the kubelet merges defaults when it has read its file";
                problems.warn(None, "mergeDefaultEvictionSettings", None, why);
            }
            settings.merge(layer);
        }
        settings.drop_zeros();
    }
    apply(&given, settings, problems);
    // Drop-ins and flags may have set it.
    if is_alone && settings.get("evictionHard").is_none() && !problems.is_meant("evictionHard") {
        problems.turn_to("default");
        let why = "no source sets it, and a kubelet without --config has no default hard thresholds; expected a file, or \
                   --eviction-hard";
        problems.warn(None, "evictionHard", None, why);
    }
    is_reported
}

/// The last of these flags, as a path. A path from `/proc/PID/cmdline` is taken as that process would open it.
fn path_of(flags: &[Flag], name: &str) -> Option<(PathBuf, Flag)> {
    let flag = flags.iter().rfind(|flag| flag.name == name)?;
    let path = PathBuf::from(flag.value.as_deref()?);
    let process = Path::new(flag.origin.place().0)
        .parent()
        .filter(|parent| parent.parent() == Some(Path::new("/proc")) && flag.origin.place().0.ends_with("/cmdline"));
    let found = match (process, path.strip_prefix("/")) {
        (Some(process), Ok(absolute)) => process.join("root").join(absolute),
        (Some(process), Err(_)) => process.join("cwd").join(&path),
        (None, _) => path,
    };
    Some((found, flag.clone()))
}

/// The content of what a flag names. Without it the kubelet's configuration is not known, and nothing is guessed.
fn referred<T>(path: &Path, flag: &Flag, read: io::Result<T>, problems: &mut Problems) -> Option<T> {
    read.map_err(|error| {
        let (file, line) = flag.origin.place();
        problems.turn_to(file);
        let why = format!(
            "it cannot be read ({error}), so that its content is not known; expected it under --kubelet-{}",
            flag.name
        );
        problems.add(line, &format!("--{}", flag.name), Some(&path.display().to_string()), &why);
    })
    .ok()
}
