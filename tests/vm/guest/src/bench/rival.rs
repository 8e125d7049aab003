//! What watches memory in a round: each rival set up as its own documents recommend and, where it has a threshold on
//! available memory, with the same one.

use super::SLICE;
use crate::agent::{Agent, Settings, tail};
use crate::cgroup::Cgroup;
use crate::machine::{meminfo, set, wait_for};
use crate::scene::{MIB, PATIENCE};
use crate::systemd::{property, run, systemctl};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Rival {
    /// The kernel alone.
    OomKiller,
    Earlyoom,
    Nohang,
    SystemdOomd,
    /// As the kubelet samples.
    #[value(name = "plimsoll-poll-10s")]
    PlimsollPoll10s,
    #[value(name = "plimsoll-poll-1s")]
    PlimsollPoll1s,
    #[value(name = "plimsoll-poll-100ms")]
    PlimsollPoll100ms,
    PlimsollPsi,
    PlimsollEbpf,
    /// The kernel itself stops what grows.
    PlimsollEbpfBrake,
}

/// Its configuration, as Debian installs it. A file of environment variables, read by its unit.
const EARLYOOM: &str = "/etc/default/earlyoom";
const NOHANG: &str = "/etc/nohang/nohang.conf";
const OOMD: &str = "systemd-oomd.service";
/// Debian's packages of them, whose versions are noted.
pub(super) const PACKAGES: [&str; 4] = ["earlyoom", "nohang", "systemd", "systemd-oomd"];

impl Rival {
    /// The longest that it may sleep, in milliseconds: the workload begins at a random moment within.
    pub(super) const fn period_ms(self) -> u64 {
        match self {
            Self::PlimsollPoll10s => 10_000,
            // `max_sleep` of that configuration.
            Self::Nohang => 3000,
            // earlyoom's longest sleep (`sleep_time_ms`), and systemd-oomd's interval for pressure.
            Self::Earlyoom | Self::SystemdOomd | Self::PlimsollPoll1s => 1000,
            Self::PlimsollPoll100ms => 100,
            Self::OomKiller | Self::PlimsollPsi | Self::PlimsollEbpf | Self::PlimsollEbpfBrake => 0,
        }
    }

    /// The source of samples and, for polling, its period; nothing for what is not Plimsoll.
    const fn source(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::OomKiller | Self::Earlyoom | Self::Nohang | Self::SystemdOomd => None,
            Self::PlimsollPoll10s => Some(("poll", "10s")),
            Self::PlimsollPoll1s => Some(("poll", "1s")),
            Self::PlimsollPoll100ms => Some(("poll", "100ms")),
            Self::PlimsollPsi => Some(("psi", "10s")),
            Self::PlimsollEbpf | Self::PlimsollEbpfBrake => Some(("ebpf", "10s")),
        }
    }

    /// Starts it and waits until it watches. `anonymous_bytes` is how much anonymous memory there is at the threshold.
    pub(crate) fn start(self, threshold_bytes: u64, anonymous_bytes: u64) -> Result<Running> {
        match self {
            Self::Earlyoom => earlyoom(threshold_bytes, anonymous_bytes),
            Self::Nohang => nohang(threshold_bytes),
            Self::SystemdOomd => systemd_oomd(),
            _ => self.plimsoll(threshold_bytes),
        }
    }

    fn plimsoll(self, threshold_bytes: u64) -> Result<Running> {
        let Some((source, poll_period)) = self.source() else { return Ok(Running::Nothing) };
        let kernel_brake = self == Self::PlimsollEbpfBrake;
        let settings = Settings { source, poll_period, kernel_brake, ..Settings::as_shipped(threshold_bytes)? };
        Ok(Running::Agent(Agent::start(&settings)?, settings.cgroup()?))
    }
}

/// A rival that watches.
pub(crate) enum Running {
    Nothing,
    Unit(Unit),
    Agent(Agent, Cgroup),
}

/// A unit of systemd, since its last start.
pub(crate) struct Unit {
    name: &'static str,
    invocation: String,
}

impl Unit {
    /// Starts it and waits until it has logged this.
    fn start(name: &'static str, ready: &str) -> Result<Self> {
        systemctl(&["start", name])?;
        let unit = Self { name, invocation: property(name, "InvocationID")? };
        wait_for(&format!("{name} is ready"), PATIENCE, || Ok(unit.log()?.contains(ready))).with_context(|| {
            format!("its journal ends with: {}", unit.log().map_or_else(|it| it.to_string(), |it| tail(&it)))
        })?;
        Ok(unit)
    }

    fn log(&self) -> Result<String> {
        run(Command::new("journalctl").arg("--sync"))?;
        let of = format!("_SYSTEMD_INVOCATION_ID={}", self.invocation);
        run(Command::new("journalctl").args([&of, "--output", "cat", "--no-pager", "--quiet"]))
    }
}

impl Running {
    /// The lines of an agent's log that are JSON.
    pub(super) fn lines(&self) -> Vec<Value> {
        match self {
            Self::Nothing | Self::Unit(_) => Vec::new(),
            Self::Agent(agent, _) => agent.lines(),
        }
    }

    /// The end of its log.
    pub(super) fn tail(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Unit(unit) => unit.log().ok().map(|log| tail(&log)),
            Self::Agent(agent, _) => Some(tail(&agent.text())),
        }
    }

    /// The cgroup of all its processes.
    pub(crate) fn cgroup(&self) -> Result<Option<Cgroup>> {
        Ok(match self {
            Self::Nothing => None,
            Self::Unit(unit) => Some(Cgroup::existing(property(unit.name, "ControlGroup")?.trim_start_matches('/'))?),
            Self::Agent(_, cgroup) => Some(cgroup.clone()),
        })
    }

    /// Stops it. One that the OOM killer took is part of what is measured, not an error of the measurement.
    pub(crate) fn stop(self) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Unit(unit) => {
                if unit.name == OOMD {
                    monitor("auto")?;
                }
                clear()
            }
            Self::Agent(agent, cgroup) => {
                let _ = agent.stop();
                cgroup.remove()
            }
        }
    }
}

/// Stops every rival that is a unit, those that systemd started by itself as well: Debian has systemd-oomd act on swap on
/// the whole machine, with which systemd starts it. Patterns, so that it is no error where there is none; and with its
/// socket, through which systemd would start it again.
pub(crate) fn clear() -> Result<()> {
    systemctl(&["stop", "earlyoom.*", "nohang*.service", "systemd-oomd.*"]).map(drop)
}

/// Ends what a round that failed has left: an agent, and what systemd-oomd is asked for.
pub(super) fn recover() -> Result<()> {
    Settings::with_threshold(0).cgroup()?.remove()?;
    monitor("auto")?;
    clear()
}

/// earlyoom(1): SIGTERM below PERCENT of what user space can have (MemAvailable and AnonPages), SIGKILL below the half of
/// it, from 1.8 on; `-M` would be a part of all memory, and so act later than at the size that it names. `-s 100,100` has both
/// act on available memory whatever swap is free: with `-s 100`, SIGKILL would wait until half of swap is in use. `--prefer` and
/// `--avoid` are empty in Debian's configuration.
fn earlyoom(threshold_bytes: u64, anonymous_bytes: u64) -> Result<Running> {
    let is_of_user_memory = is_of_user_memory(&package_version("earlyoom")?)?;
    let whole = if is_of_user_memory { threshold_bytes + anonymous_bytes } else { meminfo("MemTotal")? };
    set(EARLYOOM, &earlyoom_arguments(&percent(threshold_bytes, whole)))?;
    Unit::start("earlyoom.service", "sending SIGTERM when mem").map(Running::Unit)
}

fn earlyoom_arguments(percent: &str) -> String {
    format!("EARLYOOM_ARGS=\"-r 3600 -m {percent} -s 100,100\"\n")
}

/// Whether an earlyoom of this version has a percentage of what user space can have; before 1.8 it is of all memory.
fn is_of_user_memory(version: &str) -> Result<bool> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor) >= (1, 8)),
        _ => bail!("earlyoom has the version {version:?}"),
    }
}

/// The version of a package of Debian that is installed.
pub(super) fn package_version(package: &str) -> Result<String> {
    run(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", package]))
}

fn percent(part: u64, whole: u64) -> String {
    let thousandths = u128::from(part) * 100_000 / u128::from(whole.max(1));
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

/// nohang(8), in the configuration that it ships for machines without a desktop. It acts where both available memory and
/// free swap are below their thresholds: 100 % of swap has it act on available memory alone, as `-s 100,100` has earlyoom.
fn nohang(threshold_bytes: u64) -> Result<Running> {
    let text = fs::read_to_string(NOHANG).with_context(|| format!("cannot read {NOHANG}"))?;
    set(NOHANG, &nohang_configuration(&text, threshold_bytes)?)?;
    Unit::start("nohang.service", "Monitoring has started!").map(Running::Unit)
}

/// The configuration with the soft threshold, below which it sends SIGTERM, at this one, and the hard one, below which it sends
/// SIGKILL, at the same part of it as where it is installed: 2 % to 5 %.
fn nohang_configuration(text: &str, threshold_bytes: u64) -> Result<String> {
    let [soft, hard] = [threshold_bytes, threshold_bytes * 2 / 5].map(|bytes| format!("{} M", bytes / MIB));
    with_values(
        text,
        &[
            ("soft_threshold_min_mem", &soft),
            ("hard_threshold_min_mem", &hard),
            ("soft_threshold_min_swap", "100 %"),
            ("hard_threshold_min_swap", "100 %"),
        ],
    )
}

/// The configuration with other values for these keys, each of which has to be there once.
fn with_values(text: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (key, value) in values {
        let is_it = |line: &&mut String| line.split_once('=').is_some_and(|(name, _)| name.trim_end() == *key);
        let mut found = lines.iter_mut().filter(is_it);
        let line = found.next().with_context(|| format!("there is no {key} in {NOHANG}"))?;
        ensure!(found.next().is_none(), "{key} is twice in {NOHANG}");
        *line = format!("{key} = {value}");
    }
    Ok(lines.join("\n") + "\n")
}

/// systemd-oomd(8) kills leaf cgroups below the units whose properties ask for it, by pressure and, where there is swap,
/// by swap in use (systemd.resource-control(5)). It has no threshold on available memory; its limits are those of
/// oomd.conf(5) as Debian installs them: 60 % of pressure for 20 s, and 90 % of memory and swap in use.
fn systemd_oomd() -> Result<Running> {
    monitor("kill")?;
    let unit = Unit::start(OOMD, "")?;
    wait_for("systemd-oomd monitors the slice", PATIENCE, || {
        Ok(run(&mut Command::new("oomctl"))?.contains(&format!("/{SLICE}")))
    })?;
    Ok(Running::Unit(unit))
}

/// Has systemd-oomd act on the slice (`kill`) or not (`auto`). With `kill`, starting a unit of it would start systemd-oomd
/// as well, so that it is not set in other rounds.
fn monitor(action: &str) -> Result<()> {
    let properties = ["ManagedOOMSwap", "ManagedOOMMemoryPressure"].map(|property| format!("{property}={action}"));
    systemctl(&["set-property", "--runtime", SLICE, &properties[0], &properties[1]]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_has_three_digits() {
        for (part, whole, expected) in
            [(100, 1000, "10.000"), (1, 3, "33.333"), (100, 929, "10.764"), (1, 99_999, "0.001")]
        {
            assert_eq!(percent(part, whole), expected);
        }
    }

    #[test]
    fn a_percentage_is_of_user_memory_from_1_8_on() {
        for (version, expected) in [("1.7-1", false), ("1.8.2-1", true), ("1.10-1", true), ("2.0", true)] {
            assert_eq!(is_of_user_memory(version).unwrap(), expected, "{version}");
        }
        assert!(is_of_user_memory("").is_err());
    }

    #[test]
    fn only_the_values_asked_for_are_changed_in_a_configuration() {
        let text = "    Key: soft\nsoft = 5 %\nhard  = 2 %\nwarn = 20 %\n@RE 200 /// ^(a|b)$\n";
        let changed = with_values(text, &[("soft", "100 M"), ("hard", "100 M")]).unwrap();
        assert_eq!(changed, "    Key: soft\nsoft = 100 M\nhard = 100 M\nwarn = 20 %\n@RE 200 /// ^(a|b)$\n");
        assert!(with_values(text, &[("missing", "1")]).is_err());
        assert!(with_values("a = 1\na = 2\n", &[("a", "3")]).is_err());
    }

    #[test]
    fn earlyoom_acts_on_available_memory_alone_with_either_signal() {
        assert_eq!(earlyoom_arguments("10.764"), "EARLYOOM_ARGS=\"-r 3600 -m 10.764 -s 100,100\"\n");
    }

    #[test]
    fn nohang_asks_at_the_threshold_and_kills_at_two_fifths_of_it() {
        let installed = "soft_threshold_min_mem = 5 %\nsoft_threshold_min_swap = 10 %\nhard_threshold_min_mem = 2 %\n\
                         hard_threshold_min_swap = 4 %\nmax_soft_exit_time = 10\n";
        let changed = "soft_threshold_min_mem = 50 M\nsoft_threshold_min_swap = 100 %\nhard_threshold_min_mem = 20 M\n\
                       hard_threshold_min_swap = 100 %\nmax_soft_exit_time = 10\n";
        assert_eq!(nohang_configuration(installed, 50 * MIB).unwrap(), changed);
    }

    #[test]
    fn each_agent_of_ours_samples_in_its_own_way() {
        use clap::ValueEnum as _;
        let ours: Vec<_> = Rival::value_variants().iter().filter_map(|rival| rival.source()).collect();
        assert_eq!(
            ours,
            [("poll", "10s"), ("poll", "1s"), ("poll", "100ms"), ("psi", "10s"), ("ebpf", "10s"), ("ebpf", "10s")]
        );
    }
}
