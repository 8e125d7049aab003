//! All places that say something of the configuration, read and laid over each other.
//!
//! A kubelet's file, then its drop-ins, then its flags, as the kubelet does it; or its answer to configz, which is the
//! result of all that. Plimsoll's own file goes before them, key by key.

use crate::error::{ConfigError, Problem};
use crate::files::{Disk, Files, Nowhere};
use crate::flags::Overrides;
use crate::kubelet::arguments::{Flag, apply, flags, node_config};
use crate::kubelet::read::{Dialect, document};
use crate::kubelet::settings::Settings;
use crate::kubelet::words::command_line;
use crate::load::own as read_own;
use crate::model::{Configuration, Text};
use crate::snapshot::{Keeping, Snapshot};
use crate::tree::Problems;
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

/// What came of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// The configuration; where there are errors, what is left without the values that are wrong.
    pub configuration: Configuration,
    /// Everything that is wrong.
    pub errors: Vec<Problem>,
    /// What is in order and yet hardly what was meant.
    pub warnings: Vec<Problem>,
}

/// Reads the files, or takes the defaults where there is none to read.
pub fn load(sources: &Sources, overrides: &Overrides) -> Result<Configuration, ConfigError> {
    let Report { configuration, errors, .. } = examine(sources, overrides);
    if errors.is_empty() { Ok(configuration) } else { Err(ConfigError(errors)) }
}

/// Reads Plimsoll's own file alone, from a text; `file` is how errors and origins call it.
pub fn parse(text: &str, file: &str) -> Result<Configuration, ConfigError> {
    let own = Some(Text { file: file.to_owned(), text: text.to_owned() });
    let Report { configuration, errors, .. } = examine_texts(&Texts { own, ..Texts::default() }, &Overrides::default());
    if errors.is_empty() { Ok(configuration) } else { Err(ConfigError(errors)) }
}

/// Reads the files, and tells all that is wrong beside what is not.
pub fn examine(sources: &Sources, overrides: &Overrides) -> Report {
    examine_in(sources, overrides, &Disk)
}

/// The same, and keeps all that was read.
pub fn examine_and_keep(sources: &Sources, overrides: &Overrides) -> (Report, Snapshot) {
    let keeping = Keeping::default();
    let report = examine_in(sources, overrides, &keeping);
    (report, keeping.0.into_inner())
}

/// Reads what was kept instead of the files.
pub fn load_kept(kept: &Snapshot, sources: &Sources, overrides: &Overrides) -> Result<Configuration, ConfigError> {
    let Report { configuration, errors, .. } = examine_in(sources, overrides, kept);
    if errors.is_empty() { Ok(configuration) } else { Err(ConfigError(errors)) }
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
    assemble(&texts, overrides, files, problems)
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

/// What a kubelet is told, and whether anything was looked at that could tell.
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
        let why = "an environment file has only a part of a kubelet's command line; expected /proc/PID/cmdline or the unit \
                   (`systemctl cat kubelet`) beside it, or --kubelet-config";
        problems.warn(None, "the file", None, why);
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
                let why = "it does nothing in a drop-in: the kubelet merges defaults when it has read its file";
                problems.warn(None, "mergeDefaultEvictionSettings", None, why);
            }
            settings.merge(layer);
        }
        settings.drop_zeros();
    }
    apply(&given, settings, problems);
    // Drop-ins and flags may have said it.
    if is_alone && settings.get("evictionHard").is_none() && !problems.is_meant("evictionHard") {
        problems.turn_to("default");
        let why = "nothing says it, and a kubelet without --config has no hard thresholds of its own; expected a file, or \
                   --eviction-hard";
        problems.warn(None, "evictionHard", None, why);
    }
    is_reported
}

/// The last of these flags, as a path. What a running process names is looked for where that process would find it.
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

/// What a flag names. Without it nobody knows what that kubelet goes by, and nothing is guessed.
fn referred<T>(path: &Path, flag: &Flag, read: io::Result<T>, problems: &mut Problems) -> Option<T> {
    read.map_err(|error| {
        let (file, line) = flag.origin.place();
        problems.turn_to(file);
        let why = format!(
            "it cannot be read ({error}), so that what it says is not known; expected --kubelet-{} for it",
            flag.name
        );
        problems.add(line, &format!("--{}", flag.name), Some(&path.display().to_string()), &why);
    })
    .ok()
}
