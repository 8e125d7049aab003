//! A fixed amount of work of one kind, in a process of its own, and how long that took.

use crate::block::Slow;
use crate::cgroup::Cgroup;
use crate::hog::join;
use crate::hog_tests::guest;
use crate::machine::{named, now_ns, set};
use crate::map::Mapping;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::mm::MapFlags;
use rustix::param::page_size;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Private memory is taken page by page, and given back.
    Allocation,
    /// A process starts, becomes another program, and ends.
    Fork,
    /// A device is read that is larger than the memory, so that page cache is taken and reclaimed.
    PageCache,
    /// A device is read that is larger than what its cgroup may have, so that the cgroup is at its limit all the time.
    PageCacheAtLimit,
    /// A cgroup is made, entered, left and removed.
    Cgroups,
}

impl Kind {
    /// The name on the command line.
    const fn name(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::Fork => "fork",
            Self::PageCache => "page-cache",
            Self::PageCacheAtLimit => "page-cache-at-limit",
            Self::Cgroups => "cgroups",
        }
    }

    /// How often it is done in one measurement: some 200 to 1,000 million instructions in all.
    pub(super) const fn times(self) -> u32 {
        match self {
            Self::Allocation => 24,
            Self::Fork => 300,
            Self::PageCache => 1,
            Self::PageCacheAtLimit => 4,
            Self::Cgroups => 200,
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    kind: Kind,
    /// How often; 0 is until it is killed.
    #[arg(long)]
    times: u32,
    /// The cgroup to join first: its directory.
    #[arg(long)]
    cgroup: PathBuf,
    /// The device that is read.
    #[arg(long)]
    device: Option<PathBuf>,
}

/// What one time takes in private memory.
const MAPPED_BYTES: usize = 32 << 20;
/// How much is read in one call.
const READ_BYTES: usize = 1 << 20;
/// The program that a forked process becomes.
const PROGRAM: &str = "/bin/busybox";

/// How long it took, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "they end with the unit")]
pub(super) struct Took {
    /// From its first step to its last, whatever ran.
    pub(super) elapsed_ns: u64,
    /// What its own cgroup ran, the kernel's work for it and what interrupted it included.
    pub(super) own_ns: u64,
    /// In which nothing ran, which the kernel counts in hundredths of a second.
    pub(super) idle_ns: u64,
}

pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    join(&arguments.cgroup)?;
    let mut storm = Storm::new(arguments)?;
    // What is done for the first time takes longer.
    storm.step()?;
    if arguments.times == 0 {
        loop {
            storm.step()?;
        }
    }
    let own = || {
        let text = fs::read_to_string(arguments.cgroup.join("cpu.stat"))?;
        anyhow::Ok(named(&text, "usage_usec").context("cpu.stat has no usage_usec")? * 1000)
    };
    let before = (idle_ns()?, own()?, now_ns());
    for _ in 0..arguments.times {
        storm.step()?;
    }
    let elapsed_ns = now_ns() - before.2;
    let took = Took { elapsed_ns, own_ns: own()? - before.1, idle_ns: idle_ns()? - before.0 };
    println!("{}", serde_json::to_string(&took)?);
    Ok(())
}

/// What it works on.
enum Storm {
    Allocation(Mapping),
    Fork,
    PageCache(File, Vec<u8>),
    Cgroups(PathBuf),
}

impl Storm {
    fn new(arguments: &Arguments) -> Result<Self> {
        Ok(match arguments.kind {
            Kind::Allocation => {
                let memory = Mapping::anonymous(MAPPED_BYTES, MapFlags::empty()).context("cannot map")?;
                memory.huge(false)?;
                Self::Allocation(memory)
            }
            Kind::Fork => Self::Fork,
            Kind::PageCache | Kind::PageCacheAtLimit => {
                let device = arguments.device.as_ref().context("--device is needed")?;
                let file = File::open(device).with_context(|| format!("cannot open {}", device.display()))?;
                Self::PageCache(file, vec![0; READ_BYTES])
            }
            Kind::Cgroups => Self::Cgroups(arguments.cgroup.clone()),
        })
    }

    fn step(&mut self) -> Result<()> {
        match self {
            Self::Allocation(memory) => {
                memory.touch(0, MAPPED_BYTES, page_size());
                Ok(memory.give_back()?)
            }
            Self::Fork => {
                let ended = Command::new(PROGRAM).arg("true").status().context("cannot start a process")?;
                ensure!(ended.success(), "{PROGRAM} true ended with {ended}");
                Ok(())
            }
            Self::PageCache(file, buffer) => {
                let mut at = 0;
                loop {
                    match file.read_at(buffer, at)? {
                        0 => return Ok(()),
                        more => at += more as u64,
                    }
                }
            }
            Self::Cgroups(own) => {
                let made = own.with_file_name("made");
                fs::create_dir(&made).context("cannot make a cgroup")?;
                set(made.join("cgroup.procs"), "0")?;
                set(own.join("cgroup.procs"), "0")?;
                fs::remove_dir(&made).context("cannot remove a cgroup")
            }
        }
    }
}

/// For how long no processor had work.
fn idle_ns() -> Result<u64> {
    idle(&fs::read_to_string("/proc/stat")?).context("/proc/stat has no line of all processors")
}

/// The sum of `idle` and `iowait` in the line of all processors (proc_stat(5)), of which each unit is 10 ms.
fn idle(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let mut fields = line.split_ascii_whitespace().skip(3).map(str::parse::<u64>);
    Some((fields.next()?.ok()? + fields.next()?.ok()?) * 10_000_000)
}

/// The devices that are read, in MiB: more than the machine has, and twice what a cgroup with a limit may have.
const DEVICE_MIB: u64 = 1280;
const DEVICE_AT_LIMIT_MIB: u64 = 128;

/// What storms read.
pub(super) struct Devices {
    large: Slow,
    small: Slow,
}

impl Devices {
    pub(super) fn create() -> Result<Self> {
        let [large, small] =
            [("large", DEVICE_MIB), ("small", DEVICE_AT_LIMIT_MIB)].map(|(name, mib)| Slow::at_once(name, mib));
        Ok(Self { large: large?, small: small? })
    }

    /// What a storm of this kind reads, if it does.
    fn of(&self, kind: Kind) -> Option<&Path> {
        match kind {
            Kind::PageCache => Some(&self.large.device),
            Kind::PageCacheAtLimit => Some(&self.small.device),
            Kind::Allocation | Kind::Fork | Kind::Cgroups => None,
        }
    }

    /// The one that is larger than the memory.
    pub(super) fn large(&self) -> &Path {
        &self.large.device
    }
}

/// A cgroup for storms, one of the agent's workloads.
pub(super) fn cgroup(kind: Kind) -> Result<Cgroup> {
    let cgroup = Cgroup::create(&format!("work.slice/{}", kind.name()))?;
    if kind == Kind::PageCacheAtLimit {
        cgroup.write("memory.max", "64M")?;
    }
    Ok(cgroup)
}

/// Has a process of that kind do it so often, and gives how long it took.
pub(super) fn run(kind: Kind, times: u32, devices: &Devices) -> Result<Took> {
    let output =
        command(kind, times, devices.of(kind))?.stderr(Stdio::inherit()).output().context("cannot start a storm")?;
    if !output.status.success() {
        bail!("the storm {} ended with {}", kind.name(), output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The command of such a process.
pub(super) fn command(kind: Kind, times: u32, device: Option<&Path>) -> Result<Command> {
    let mut command = guest();
    command.args(["storm", kind.name(), "--times", &times.to_string(), "--cgroup"]).arg(cgroup(kind)?.path());
    command.args(device.iter().flat_map(|device| ["--device".as_ref(), device.as_os_str()]));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn time_without_work_is_that_of_all_processors() {
        let stat = "cpu  1 2 3 40 5 6 7 8 9 10\ncpu0 1 2 3 99 99 6 7 8 9 10\nintr 4\n";
        assert_eq!(idle(stat), Some(450_000_000));
        assert_eq!(idle("cpu0 1 2 3 4 5\n"), None);
    }

    #[test]
    fn kinds_are_started_by_the_names_that_they_are_known_by() {
        for kind in Kind::value_variants() {
            assert_eq!(Kind::from_str(kind.name(), false).as_ref(), Ok(kind));
            assert_eq!(serde_json::to_string(kind).unwrap(), format!("{:?}", kind.name()));
        }
    }
}
