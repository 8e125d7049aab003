//! Options of the command line that name the sources of the configuration or override it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args as _, Command, FromArgMatches};
use plimsoll_config::{
    ConfigError, Configuration, FLAGS, Origin, Override, Overrides, Report, RunningKubelet, Snapshot, Sources,
    unknown_variables,
};
use plimsoll_report::LevelFilter;
use plimsoll_units::{Bytes, Quantity};

use crate::running_kubelet;

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

/// The options of `run`, passed on unchanged to the processes that it starts.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// The configuration, as YAML. Without it the thresholds are those of a kubelet, and nothing is evicted but pods, where
    /// `--pod-facts` or a cluster makes them known.
    #[arg(long, env = "PLIMSOLL_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    of_kubelet: OfKubelet,
    #[command(flatten)]
    of_machine: OfMachine,
    /// What the log of `run` has, `info` without this. SIGUSR1 changes it to `debug` while the agent runs, and SIGUSR2
    /// back.
    #[arg(long, env = "PLIMSOLL_LOG_LEVEL", value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// Write traces for `plimsoll replay` into this directory, which is made where it is missing; one that
    /// is there has to belong to user 65526. None are written without it.
    #[arg(long, env = "PLIMSOLL_TRACE", value_name = "DIRECTORY")]
    pub(crate) trace: Option<PathBuf>,
    /// The size of all files of the trace together, as in `64Mi`, which is the default; the oldest are removed first.
    #[arg(long, hide_short_help = true, env = "PLIMSOLL_TRACE_SIZE", value_name = "SIZE", value_parser = size)]
    pub(crate) trace_size: Option<Bytes>,
}

/// The heading in `--help`.
const OF_KUBELET: &str = "A kubelet's configuration, for what --config does not set";

/// The sources of a kubelet's configuration. They hold where Plimsoll's own file sets nothing.
#[derive(Clone, Debug, Default, clap::Args)]
struct OfKubelet {
    /// The kubelet's own file (KubeletConfiguration).
    #[arg(long, help_heading = OF_KUBELET, env = "PLIMSOLL_KUBELET_CONFIG", value_name = "FILE")]
    kubelet_config: Option<PathBuf>,
    /// The directory with its drop-ins.
    #[arg(
        long,
        hide_short_help = true,
        help_heading = OF_KUBELET,
        env = "PLIMSOLL_KUBELET_CONFIG_DIR",
        value_name = "DIRECTORY"
    )]
    kubelet_config_dir: Option<PathBuf>,
    /// The kubelet's answer to /configz.
    #[arg(long, hide_short_help = true, help_heading = OF_KUBELET, value_name = "FILE")]
    configz: Option<PathBuf>,
    /// OpenShift's node-config.yaml.
    #[arg(
        long,
        hide_short_help = true,
        help_heading = OF_KUBELET,
        env = "PLIMSOLL_NODE_CONFIG",
        value_name = "FILE"
    )]
    node_config: Option<PathBuf>,
    /// The kubelet's command line: /proc/PID/cmdline, a unit and its drop-ins, kubeadm-flags.env. Can be given several
    /// times. The files that it names are read too.
    #[arg(long, hide_short_help = true, help_heading = OF_KUBELET, value_name = "FILE")]
    kubelet_command_line: Vec<PathBuf>,
    /// The kubelet that runs on this machine: its command line and the files that it names, by the machine's paths. `run`
    /// goes on with what the next kubelet has, when that is started. Without a kubelet its defaults hold.
    #[arg(
        long,
        help_heading = OF_KUBELET,
        env = "PLIMSOLL_RUNNING_KUBELET",
        conflicts_with_all = ["kubelet_config", "kubelet_config_dir", "configz", "node_config", "kubelet_command_line"],
    )]
    running_kubelet: bool,
    /// What was found of it, for the processes that `run` starts: a number, or why there is none.
    #[arg(long, hide = true, value_parser = found)]
    found_kubelet: Option<RunningKubelet>,
}

/// Those of them that `-h` lists; `--help` lists all.
const SHORT: [&str; 8] = [
    "cluster-in-cluster",
    "cluster-kubeconfig",
    "kill-switch",
    "log-format",
    "metrics-address",
    "pod-facts",
    "shadow",
    "source",
];

/// The heading in `--help`.
const OF_MACHINE: &str = "The section `machine` of --config, which these override";

/// What overrides the scalars of `machine`: a flag and a variable of the environment for each.
#[derive(Clone, Debug, Default)]
struct OfMachine(Vec<Override>);

impl clap::Args for OfMachine {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().map(|flag| {
            let arg = Arg::new(flag.long.as_str())
                .long(flag.long.as_str())
                .env(flag.variable.as_str())
                .help(flag.help.as_str())
                .help_heading(OF_MACHINE)
                .hide_short_help(!SHORT.contains(&flag.long.as_str()))
                .value_name(flag.value_name);
            // A value behind a space would be the next argument as well.
            let switch = |arg: Arg| arg.num_args(0..=1).default_missing_value("true").require_equals(true);
            if flag.is_switch { switch(arg) } else { arg }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OfMachine {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = FLAGS.iter().filter_map(|flag| {
            let text = matches.get_one::<String>(&flag.long)?.clone();
            let origin = match matches.value_source(&flag.long)? {
                ValueSource::EnvVariable => Origin::Environment(flag.variable.clone()),
                _ => Origin::Flag(format!("--{}", flag.long)),
            };
            Some(Override { key: flag.key.clone(), text, origin })
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What of these options only `run` goes by.
const OF_RUN: [&str; 3] = ["log_level", "trace", "trace_size"];

/// What `check` does not go by, beside those.
const NOT_CHECKED: [&str; 15] = [
    "brake-deadline",
    "brake-mode",
    "cluster-standard-conditions",
    "cluster-taint",
    "evict-for-unattributed",
    "hold-down",
    "log-format",
    "metrics-address",
    "metrics-for-all",
    "poll-period",
    "reclaim-pause",
    "responsible-percent",
    "shadow",
    "stall-percent",
    "victims-per-minute",
];

/// The command line, on which the help of each command but `run` lists what that goes by alone. All of them take the same
/// options, as one file and one environment configure all.
pub(crate) fn listing_what_counts(command: Command) -> Command {
    let sparing = |command: Command, hides: fn(&str) -> bool| {
        let options = Options::augment_args(Command::new("options"));
        let is_option = |arg: &Arg| options.get_arguments().any(|option| option.get_id() == arg.get_id());
        let hide = |arg: Arg| if is_option(&arg) && hides(arg.get_id().as_str()) { arg.hide(true) } else { arg };
        let codes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let all = "All options of `plimsoll run` are taken as well; those that are not listed here change nothing.";
        command.mut_args(hide).after_help(format!("{all}\n\n{codes}"))
    };
    let is_of_run = |name: &str| OF_RUN.contains(&name);
    let mut command = command.mut_subcommand("config", |config| {
        ["show", "convert", "check"]
            .into_iter()
            .fold(config, |config, name| config.mut_subcommand(name, |command| sparing(command, is_of_run)))
    });
    for name in ["explain", "pods", "replay"] {
        command = command.mut_subcommand(name, |command| sparing(command, is_of_run));
    }
    command
        .mut_subcommand("check", |command| {
            sparing(command, |name| OF_RUN.contains(&name) || NOT_CHECKED.contains(&name))
        })
        .mut_subcommand("undo", |command| {
            sparing(command, |name| !["config", "state-directory", "journal-directory"].contains(&name))
        })
        .mut_subcommand("cluster-cleanup", |command| {
            const GOES_BY: [&str; 4] = ["config", "cluster-in-cluster", "cluster-kubeconfig", "cluster-node-name"];
            sparing(command, |name| !GOES_BY.contains(&name))
        })
}

/// Each level has the lines of those before it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogLevel {
    /// What calls for a person.
    Warn,
    /// What was decided and done.
    Info,
    /// Also when the core was awake after each crossing, and when what grew was stopped.
    Debug,
}

impl Options {
    /// Reads the files, which these options override. `own_cgroup` is the cgroup that is the agent's alone.
    pub(crate) fn load(&self, own_cgroup: Option<String>) -> Result<Configuration, ConfigError> {
        self.examine(own_cgroup).valid()
    }

    /// The same, with all that was read.
    pub(crate) fn load_and_keep(&self, own_cgroup: Option<String>) -> Result<(Configuration, Snapshot), ConfigError> {
        let (report, kept) = plimsoll_config::examine_and_keep(&self.sources(), &self.overrides(own_cgroup));
        Ok((with_environment(report).valid()?, kept))
    }

    /// Reads what is of a kubelet anew, and takes Plimsoll's own file as it was kept.
    pub(crate) fn load_anew(
        &self,
        kept: &Snapshot,
        own_cgroup: Option<String>,
    ) -> Result<(Configuration, Snapshot), ConfigError> {
        let (report, read) = plimsoll_config::examine_anew(kept, &self.sources(), &self.overrides(own_cgroup));
        Ok((report.valid()?, read))
    }

    /// The same options with the kubelet that runs, if that is asked for.
    pub(crate) fn with_running_kubelet(&self) -> Self {
        self.running_kubelet().map_or_else(|| self.clone(), |found| self.with_kubelet(found))
    }

    /// The same options with this kubelet as the one that runs.
    pub(crate) fn with_kubelet(&self, found: RunningKubelet) -> Self {
        Self { of_kubelet: OfKubelet { found_kubelet: Some(found), ..self.of_kubelet.clone() }, ..self.clone() }
    }

    /// Whether the kubelet that runs is to be followed.
    pub(crate) const fn follows_kubelet(&self) -> bool {
        self.of_kubelet.running_kubelet
    }

    /// The process of the kubelet that runs, where one was found.
    pub(crate) fn kubelet_process(&self) -> Option<u32> {
        self.of_kubelet.found_kubelet.as_ref().and_then(RunningKubelet::process)
    }

    /// The kubelet that runs, if that is asked for. It is looked for where Plimsoll's own file says that its directory is.
    fn running_kubelet(&self) -> Option<RunningKubelet> {
        let looked_for = self.of_kubelet.running_kubelet.then(|| {
            let own = Sources { own: self.config.clone(), ..Sources::default() };
            running_kubelet::find(&plimsoll_config::examine(&own, &self.overrides(None)).configuration.kubelet_root())
        });
        self.of_kubelet.found_kubelet.clone().or(looked_for)
    }

    /// Reads what was kept in place of the files.
    pub(crate) fn load_kept(&self, kept: &Snapshot, own_cgroup: Option<String>) -> Result<Configuration, ConfigError> {
        plimsoll_config::load_kept(kept, &self.sources(), &self.overrides(own_cgroup))
    }

    /// Reads the files, with every error and warning beside the configuration.
    pub(crate) fn examine(&self, own_cgroup: Option<String>) -> Report {
        with_environment(plimsoll_config::examine(&self.sources(), &self.overrides(own_cgroup)))
    }

    /// Whether a source of a kubelet's configuration is named.
    pub(crate) fn names_kubelet(&self) -> bool {
        let OfKubelet {
            kubelet_config,
            kubelet_config_dir,
            configz,
            node_config,
            kubelet_command_line,
            running_kubelet,
            found_kubelet: _,
        } = &self.of_kubelet;
        [kubelet_config, kubelet_config_dir, configz, node_config].into_iter().any(Option::is_some)
            || !kubelet_command_line.is_empty()
            || *running_kubelet
    }

    fn sources(&self) -> Sources {
        let of_kubelet = self.of_kubelet.clone();
        Sources {
            own: self.config.clone(),
            kubelet_config: of_kubelet.kubelet_config,
            kubelet_config_dir: of_kubelet.kubelet_config_dir,
            configz: of_kubelet.configz,
            node_config: of_kubelet.node_config,
            kubelet_command_line: of_kubelet.kubelet_command_line,
            running_kubelet: self.running_kubelet(),
        }
    }

    fn overrides(&self, own_cgroup: Option<String>) -> Overrides {
        Overrides { values: self.of_machine.0.clone(), own_cgroup }
    }

    /// Has state kept in this directory, whatever is configured.
    pub(crate) fn keep_state_in(&mut self, directory: &Path) {
        const KEY: &str = "machine.stateDirectory";
        let Self { of_machine: OfMachine(values), .. } = self;
        values.retain(|value| value.key != KEY);
        let text = directory.to_string_lossy().into_owned();
        values.push(Override { key: KEY.to_owned(), text, origin: Origin::Flag("--state-directory".to_owned()) });
    }

    /// The level at which the log begins.
    pub(crate) fn log_level(&self) -> LevelFilter {
        match self.log_level {
            Some(LogLevel::Warn) => LevelFilter::WARN,
            Some(LogLevel::Info) | None => LevelFilter::INFO,
            Some(LogLevel::Debug) => LevelFilter::DEBUG,
        }
    }

    /// The same options as arguments for another process, which inherits the environment.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut push = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                arguments.extend([OsString::from(name), value]);
            }
        };
        push("--config", self.config.clone().map(Into::into));
        let OfKubelet {
            kubelet_config,
            kubelet_config_dir,
            configz,
            node_config,
            kubelet_command_line,
            running_kubelet,
            found_kubelet,
        } = self.of_kubelet.clone();
        push("--kubelet-config", kubelet_config.map(Into::into));
        push("--kubelet-config-dir", kubelet_config_dir.map(Into::into));
        push("--configz", configz.map(Into::into));
        push("--node-config", node_config.map(Into::into));
        for file in kubelet_command_line {
            push("--kubelet-command-line", Some(file.into()));
        }
        push(
            "--found-kubelet",
            found_kubelet.map(|found| match found {
                RunningKubelet::Process(process) => process.to_string().into(),
                RunningKubelet::NotFound(why) => why.into(),
            }),
        );
        push("--log-level", self.log_level.as_ref().and_then(name_of));
        push("--trace", self.trace.clone().map(Into::into));
        push("--trace-size", self.trace_size.map(|size| size.0.to_string().into()));
        arguments.extend(running_kubelet.then(|| "--running-kubelet".into()));
        let flags = self.of_machine.0.iter().filter_map(|Override { text, origin, .. }| {
            let Origin::Flag(flag) = origin else { return None };
            Some(format!("{flag}={text}").into())
        });
        arguments.extend(flags);
        arguments
    }
}

/// Adds warnings of variables in this process's environment that are none of Plimsoll's.
fn with_environment(mut report: Report) -> Report {
    let command = Options::augment_args(Command::new("plimsoll"));
    let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let warnings = unknown_variables(names, &known);
    report.configuration.warnings.extend_from_slice(&warnings);
    report.warnings.extend(warnings);
    report
}

fn name_of(value: &impl clap::ValueEnum) -> Option<OsString> {
    value.to_possible_value().map(|value| value.get_name().into())
}

/// As [`Options::arguments`] has it.
#[expect(clippy::unnecessary_wraps, reason = "clap asks for a result")]
fn found(text: &str) -> Result<RunningKubelet, String> {
    Ok(text.parse().map_or_else(|_| RunningKubelet::NotFound(text.to_owned()), RunningKubelet::Process))
}

fn size(text: &str) -> Result<Bytes, String> {
    let size = Quantity::parse(text).ok().and_then(|quantity| quantity.bytes());
    size.filter(|size| *size >= Bytes::mib(1)).ok_or_else(|| "expected a size of at least 1Mi, such as 64Mi".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser};
    use plimsoll_policy::kubelet::{Amount, ThresholdAmount};
    use plimsoll_units::Percentage;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_short_help_has_what_is_usual_and_the_long_one_everything() {
        let options = |help: String| {
            // A switch has its value behind `[=`.
            let is_option = |word: &str| word.split('[').next()?.strip_prefix("--").map(str::to_owned);
            help.lines().filter_map(|line| line.split_whitespace().find_map(is_option)).collect::<Vec<_>>()
        };
        let mut command = Line::command();
        let [short, long] = [command.render_help(), command.render_long_help()].map(|help| options(help.to_string()));
        for flag in FLAGS.iter() {
            let is_usual = SHORT.contains(&flag.long.as_str());
            assert_eq!((short.contains(&flag.long), long.contains(&flag.long)), (is_usual, true), "{}", flag.long);
        }
        for usual in SHORT.into_iter().chain(["config", "kubelet-config", "running-kubelet", "log-level", "trace"]) {
            assert!(short.iter().any(|option| option == usual), "{usual}");
        }
        for rare in ["kubelet-config-dir", "configz", "node-config", "kubelet-command-line", "trace-size"] {
            assert_eq!([&short, &long].map(|of| of.iter().any(|option| option == rare)), [false, true], "{rare}");
        }
    }

    #[test]
    fn a_switch_needs_no_value() {
        let lines: [(&[&str], _); 4] = [
            (&["--shadow"], Some("true")),
            (&["--shadow", "--evict-for-unattributed", "--config", "file"], Some("true")),
            (&["--shadow=false"], Some("false")),
            (&["--config", "file"], None),
        ];
        for (words, expected) in lines {
            let Line { options } = Line::parse_from([&["run"], words].concat());
            let given = options.of_machine.0.iter().find(|given| given.key == "machine.shadow");
            assert_eq!(given.map(|given| given.text.as_str()), expected, "{words:?}");
        }
    }

    #[test]
    fn a_switch_leaves_what_follows_it() {
        #[derive(Parser)]
        struct Line {
            file: PathBuf,
            #[command(flatten)]
            options: Options,
        }
        let line = Line::try_parse_from(["replay", "--evict-for-unattributed", "trace.jsonl"]);
        let Line { file, options } = line.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((file, options.of_machine.0.len()), (PathBuf::from("trace.jsonl"), 1));
    }

    /// The core has what the supervisor read, also where the files are gone since.
    #[test]
    fn run_decides_by_the_thresholds_of_each_form_of_a_kubelets_configuration() {
        let resource = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let maps = "evictionHard: {memory.available: 7%, pid.available: '900'}\nevictionSoft: {memory.available: 1Gi}\n\
                    evictionSoftGracePeriod: {memory.available: 2m}\nevictionMinimumReclaim: {memory.available: 64Mi}\n\
                    evictionPressureTransitionPeriod: 3m\nevictionMaxPodGracePeriod: 45\n";
        let configz = "{\"kubeletconfig\": {\"evictionHard\": {\"memory.available\": \"7%\", \"pid.available\": \"900\"}, \
                       \"evictionSoft\": {\"memory.available\": \"1Gi\"}, \"evictionSoftGracePeriod\": \
                       {\"memory.available\": \"2m\"}, \"evictionMinimumReclaim\": {\"memory.available\": \"64Mi\"}, \
                       \"evictionPressureTransitionPeriod\": \"3m\", \"evictionMaxPodGracePeriod\": 45}}";
        let flags = [
            ("eviction-hard", "memory.available<7%,pid.available<900"),
            ("eviction-soft", "memory.available<1Gi"),
            ("eviction-soft-grace-period", "memory.available=2m"),
            ("eviction-minimum-reclaim", "memory.available=64Mi"),
            ("eviction-pressure-transition-period", "3m"),
            ("eviction-max-pod-grace-period", "45"),
        ];
        let node_config = flags.map(|(name, value)| format!("  {name}: ['{value}']\n")).concat();
        let command_line = flags.map(|(name, value)| format!("\0--{name}={value}")).concat();
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (option, text) in [
            ("--kubelet-config", format!("{resource}{maps}")),
            ("--configz", configz.to_owned()),
            ("--node-config", format!("kubeletArguments:\n{node_config}")),
            ("--kubelet-command-line", format!("/usr/bin/kubelet{command_line}\0")),
        ] {
            let file = directory.path().join("file");
            std::fs::write(&file, text).expect("writable");
            let words = [OsString::from("x"), option.into(), file.clone().into()];
            let options = Line::parse_from(words).options;
            let (_, kept) = options.load_and_keep(None).unwrap_or_else(|error| panic!("{option}: {error}"));
            std::fs::remove_file(file).expect("it is there");
            let again = Line::parse_from([OsString::from("x")].into_iter().chain(options.arguments())).options;
            let policy = again.load_kept(&kept, None).expect("as before").policy;
            let mut found: Vec<_> = policy
                .thresholds
                .iter()
                .map(|it| (it.signal.name(), it.grace.as_secs(), it.amount, it.min_reclaim))
                .collect();
            found.sort_by_key(|(signal, grace, ..)| (*signal, *grace));
            let mib = |mib| Some(ThresholdAmount::bytes(Bytes::mib(mib)));
            let share = ThresholdAmount::Share(Percentage::parse("7%").expect("a percentage"));
            let expected = [
                ("memory.available", 0, Some(share), mib(64)),
                ("memory.available", 120, mib(1024), mib(64)),
                ("pid.available", 0, Some(ThresholdAmount::At(Amount::whole(900))), None),
            ];
            assert_eq!(found, expected, "{option}");
            assert_eq!((policy.pressure_transition.as_secs(), policy.max_pod_grace_seconds), (180, 45), "{option}");
        }
    }

    /// A process that `run` starts does not look for a kubelet itself.
    #[test]
    fn another_process_has_the_kubelet_that_was_found() {
        let options = Line::parse_from(["x", "--running-kubelet"]).options;
        let why = "nothing listens".to_owned();
        for found in [RunningKubelet::Process(7), RunningKubelet::NotFound(why)] {
            let arguments = options.with_kubelet(found.clone()).arguments();
            let again = Line::parse_from([OsString::from("x")].into_iter().chain(arguments)).options;
            assert_eq!((again.kubelet_process(), again.follows_kubelet()), (found.process(), true));
            assert_eq!(again.sources().running_kubelet, Some(found));
        }
        let both = Line::try_parse_from(["x", "--running-kubelet", "--configz", "file"]);
        assert!(both.is_err_and(|error| error.to_string().contains("cannot be used with '--configz <FILE>'")));
    }

    #[test]
    fn another_process_gets_the_same_options() {
        let words = [
            "x",
            "--config",
            "/a b",
            "--kubelet-config",
            "/k",
            "--kubelet-config-dir",
            "/k.d",
            "--configz",
            "/z",
            "--node-config",
            "/n",
            "--kubelet-command-line",
            "/1",
            "--kubelet-command-line",
            "/2",
            "--source",
            "psi",
            "--poll-period",
            "1500ms",
            "--metrics-address",
            "[::1]:9",
            "--state-directory",
            "/run/x",
            "--log-format",
            "json",
            "--brake-mode",
            "none",
            "--log-level",
            "debug",
            "--trace",
            "/var/lib/x",
            "--trace-size",
            "32Mi",
            "--found-kubelet",
            "7",
        ];
        let first = Line::parse_from(words).options;
        let again = Line::parse_from([OsString::from("x")].into_iter().chain(first.arguments())).options;
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
        let keys: Vec<&str> = again.of_machine.0.iter().map(|value| value.key.as_str()).collect();
        assert!(keys.contains(&"machine.brake.mode") && keys.contains(&"machine.pollPeriod"), "{keys:?}");
        assert!(Options::default().arguments().is_empty());
    }
}
