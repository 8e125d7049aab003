//! What the command line says beside the configuration file; it goes before the file.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_config::{
    ConfigError, Configuration, LogFormat, Overrides, Report, Snapshot, SourceChoice, Sources, parse_duration,
};
use plimsoll_units::{Bytes, Quantity};

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

/// The options of `run`, handed on unchanged to the processes that it starts.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// The configuration, as YAML. Without one: the defaults, which watch and stop nobody.
    #[arg(long, env = "PLIMSOLL_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    reported: Reported,
    /// How to watch: the best that the kernel can do, or only this.
    #[arg(long, env = "PLIMSOLL_SOURCE")]
    pub(crate) source: Option<Source>,
    /// How often polling looks, as in `500ms` or `10s`.
    #[arg(long, env = "PLIMSOLL_POLL_PERIOD", value_name = "DURATION", value_parser = duration)]
    pub(crate) poll_period: Option<Duration>,
    /// Where metrics and health are served.
    #[arg(long, env = "PLIMSOLL_METRICS_ADDRESS", value_name = "ADDRESS:PORT")]
    pub(crate) metrics_address: Option<SocketAddr>,
    /// Where the run record is.
    #[arg(long, env = "PLIMSOLL_STATE_DIRECTORY", value_name = "DIRECTORY")]
    pub(crate) state_directory: Option<PathBuf>,
    /// How the log is written: for people, or one JSON object a line.
    #[arg(long, env = "PLIMSOLL_LOG_FORMAT")]
    pub(crate) log_format: Option<Format>,
    /// For `run`: write traces for `plimsoll replay` into this directory. None are written without it.
    #[arg(long, env = "PLIMSOLL_TRACE", value_name = "DIRECTORY")]
    pub(crate) trace: Option<PathBuf>,
    /// All files of the trace together are at most so large, as in `64Mi`, which is the default; the oldest go first.
    #[arg(long, env = "PLIMSOLL_TRACE_SIZE", value_name = "SIZE", value_parser = size)]
    pub(crate) trace_size: Option<Bytes>,
}

/// What `--help` says above these.
const REPORTED: &str = "A kubelet's configuration, which holds where --config says nothing";

/// Where a kubelet's configuration is. Its lines hold where Plimsoll's own file says nothing.
#[derive(Clone, Debug, Default, clap::Args)]
struct Reported {
    /// The kubelet's own file (KubeletConfiguration).
    #[arg(long, help_heading = REPORTED, env = "PLIMSOLL_KUBELET_CONFIG", value_name = "FILE")]
    kubelet_config: Option<PathBuf>,
    /// The directory with its drop-ins.
    #[arg(long, help_heading = REPORTED, env = "PLIMSOLL_KUBELET_CONFIG_DIR", value_name = "DIRECTORY")]
    kubelet_config_dir: Option<PathBuf>,
    /// The kubelet's answer to /configz.
    #[arg(long, help_heading = REPORTED, value_name = "FILE")]
    configz: Option<PathBuf>,
    /// OpenShift's node-config.yaml.
    #[arg(long, help_heading = REPORTED, env = "PLIMSOLL_NODE_CONFIG", value_name = "FILE")]
    node_config: Option<PathBuf>,
    /// The kubelet's command line: /proc/PID/cmdline, a unit and its drop-ins, kubeadm-flags.env. May be given several
    /// times. The files that it names are read too.
    #[arg(long, help_heading = REPORTED, value_name = "FILE")]
    kubelet_command_line: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Source {
    Auto,
    Ebpf,
    Psi,
    Poll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

impl Options {
    /// Reads the files and puts these options before them. `own_cgroup` is the cgroup that is the agent's alone.
    pub(crate) fn load(&self, own_cgroup: Option<String>) -> Result<Configuration, ConfigError> {
        plimsoll_config::load(&self.sources(), &self.overrides(own_cgroup))
    }

    /// The same, with all that was read.
    pub(crate) fn load_and_keep(&self, own_cgroup: Option<String>) -> Result<(Configuration, Snapshot), ConfigError> {
        let (report, kept) = plimsoll_config::examine_and_keep(&self.sources(), &self.overrides(own_cgroup));
        if report.errors.is_empty() { Ok((report.configuration, kept)) } else { Err(ConfigError(report.errors)) }
    }

    /// Takes what was kept for the files.
    pub(crate) fn load_kept(&self, kept: &Snapshot, own_cgroup: Option<String>) -> Result<Configuration, ConfigError> {
        plimsoll_config::load_kept(kept, &self.sources(), &self.overrides(own_cgroup))
    }

    /// The same, with all that is wrong beside what is not.
    pub(crate) fn examine(&self, own_cgroup: Option<String>) -> Report {
        plimsoll_config::examine(&self.sources(), &self.overrides(own_cgroup))
    }

    /// Whether something is named that tells what a kubelet goes by.
    pub(crate) fn tells_of_kubelet(&self) -> bool {
        let Sources { own: _, kubelet_config, kubelet_config_dir, configz, node_config, kubelet_command_line } =
            self.sources();
        [kubelet_config, kubelet_config_dir, configz, node_config].iter().any(Option::is_some)
            || !kubelet_command_line.is_empty()
    }

    fn sources(&self) -> Sources {
        let Reported { kubelet_config, kubelet_config_dir, configz, node_config, kubelet_command_line } =
            self.reported.clone();
        Sources {
            own: self.config.clone(),
            kubelet_config,
            kubelet_config_dir,
            configz,
            node_config,
            kubelet_command_line,
        }
    }

    fn overrides(&self, own_cgroup: Option<String>) -> Overrides {
        Overrides {
            source: self.source.map(|source| match source {
                Source::Auto => SourceChoice::Auto,
                Source::Ebpf => SourceChoice::Ebpf,
                Source::Psi => SourceChoice::Psi,
                Source::Poll => SourceChoice::Poll,
            }),
            poll_period: self.poll_period,
            metrics_address: self.metrics_address,
            state_directory: self.state_directory.clone(),
            log_format: self.log_format.map(|format| match format {
                Format::Text => LogFormat::Text,
                Format::Json => LogFormat::Json,
            }),
            own_cgroup,
        }
    }

    /// The same options as arguments for another process.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut push = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                arguments.extend([OsString::from(name), value]);
            }
        };
        let named = |value: &dyn ToString| Some(OsString::from(value.to_string()));
        push("--config", self.config.clone().map(Into::into));
        let Reported { kubelet_config, kubelet_config_dir, configz, node_config, kubelet_command_line } =
            self.reported.clone();
        push("--kubelet-config", kubelet_config.map(Into::into));
        push("--kubelet-config-dir", kubelet_config_dir.map(Into::into));
        push("--configz", configz.map(Into::into));
        push("--node-config", node_config.map(Into::into));
        for file in kubelet_command_line {
            push("--kubelet-command-line", Some(file.into()));
        }
        push("--source", self.source.as_ref().and_then(name_of));
        push("--poll-period", self.poll_period.and_then(|period| named(&format!("{}ms", period.as_millis()))));
        push("--metrics-address", self.metrics_address.and_then(|address| named(&address)));
        push("--state-directory", self.state_directory.clone().map(Into::into));
        push("--log-format", self.log_format.as_ref().and_then(name_of));
        push("--trace", self.trace.clone().map(Into::into));
        push("--trace-size", self.trace_size.and_then(|size| named(&size.0)));
        arguments
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "a duration is expected, as in 500ms, 10s or 1m30s".into())
}

fn size(text: &str) -> Result<Bytes, String> {
    let size = Quantity::parse(text).ok().and_then(|quantity| quantity.bytes());
    size.filter(|size| *size >= Bytes::mib(1)).ok_or_else(|| "a size of at least 1Mi is expected, as in 64Mi".into())
}

fn name_of(value: &impl clap::ValueEnum) -> Option<OsString> {
    value.to_possible_value().map(|value| value.get_name().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn what_is_handed_on_says_the_same() {
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
            "--trace",
            "/var/lib/x",
            "--trace-size",
            "32Mi",
        ];
        let first = Line::parse_from(words).options;
        let again = Line::parse_from([OsString::from("x")].into_iter().chain(first.arguments())).options;
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
        assert_eq!(again.poll_period, Some(Duration::from_millis(1500)));
        assert!(Options::default().arguments().is_empty());
    }
}
