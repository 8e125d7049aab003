//! What fills memory in a round, or only seems to, in a cgroup of its own beside the survivor.

use super::SLICE;
use super::growth::Growth;
use crate::block::Slow;
use crate::cgroup::{self, Cgroup};
use crate::hog::{HUGE_BYTES, SOCKET_BYTES};
use crate::hog_tests::Hog;
use crate::machine::{KernelSetting, Reread, meminfo, set, wait_for};
use crate::record;
use crate::scene::MIB;
use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// One process: to the threshold as fast as it can, and past it at 20 MiB a second.
    #[value(name = "anon-20")]
    Anon20,
    #[value(name = "anon-100")]
    Anon100,
    #[value(name = "anon-200")]
    Anon200,
    /// As fast as it can all the way.
    Anon,
    /// One hundred small processes together.
    Hundred,
    /// A fork bomb.
    Fork,
    /// A file on tmpfs that nothing but its writer has open.
    Tmpfs,
    /// Slab that only the process's end gives back.
    Slab,
    PageTables,
    Sockets,
    Hugetlb,
    /// Reads from a slow disk more than its own limit lets it keep: it stalls, and there is memory free.
    DiskStall,
    /// Reads a disk that is larger than memory round and round.
    CacheChurn,
    /// Uses all of memory as page cache again and again, so that none of it counts as available for the kubelet.
    CacheReread,
}

/// The cgroup of what grows.
pub(super) fn cgroup() -> String {
    format!("{SLICE}/hog")
}

/// A tmpfs without a limit of its own.
pub(super) const TMPFS: &str = "/run/bench";
const OVERCOMMIT_HUGE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";
/// How long a hundred processes may take to start on a slow machine.
const START: Duration = Duration::from_mins(2);
/// What a process wants beyond all that there is.
const BEYOND_MIB: u64 = 512;
/// What a paced process takes at its rate before it is at the threshold.
const APPROACH_MIB: u64 = 48;
/// How often a process notes what it has filled, unless its kind has larger pieces.
const PIECE_KIB: usize = 64;
const SMALL_PROCESSES: u64 = 100;
/// What each process of a fork bomb takes, and what it costs with all that a process needs.
const FORKED_MIB: u64 = 4;
const FORKED_WHOLE_MIB: u64 = 5;
/// What stalls on a slow disk reads so much, and may keep so much of it.
const STALLING_MIB: u64 = 256;
const STALLING_LIMIT: &str = "64M";
const SLOW: Duration = Duration::from_millis(5);
const QUICK: Duration = Duration::from_micros(10);

impl Kind {
    /// Whether nothing may be killed for it.
    pub(super) const fn is_harmless(self) -> bool {
        matches!(self, Self::DiskStall | Self::CacheChurn | Self::CacheReread)
    }

    /// How long a round takes at most from the beginning of the growth. What is harmless runs for all of it: systemd-oomd acts on
    /// pressure that lasts for 20 s, once that is in its mean of 10 s.
    pub(super) const fn limit(self) -> Duration {
        match self {
            // Ends by itself, above what the OOM killer would act on.
            Self::Hugetlb => Duration::from_secs(20),
            _ if self.is_harmless() => Duration::from_secs(35),
            _ => Duration::from_secs(45),
        }
    }

    /// MiB a second from shortly above the threshold on; as fast as it can where absent.
    const fn rate(self) -> Option<u64> {
        match self {
            Self::Anon20 => Some(20),
            Self::Anon100 => Some(100),
            Self::Anon200 => Some(200),
            _ => None,
        }
    }
}

/// A workload whose processes wait to begin, or have begun.
pub(super) struct Workload {
    kind: Kind,
    cgroup: Cgroup,
    watched: Watched,
    hogs: Vec<Hog>,
    gate: Option<PipeWriter>,
    /// The most processes that it had.
    most: usize,
    /// Whether one of its processes was killed.
    pub(super) is_hurt: bool,
    setting: Option<KernelSetting>,
    device: Option<Slow>,
}

/// The files of its cgroup, open before memory is short.
struct Watched {
    events: Reread,
    current: Reread,
    processes: Reread,
    kill: File,
}

impl Watched {
    fn open(cgroup: &Cgroup) -> Result<Self> {
        let reread = |file, room| Reread::open(cgroup.path().join(file), room);
        Ok(Self {
            events: reread("cgroup.events", 256)?,
            current: reread("memory.current", 64)?,
            processes: reread("cgroup.procs", 64 << 10)?,
            kill: File::options().write(true).open(cgroup.path().join("cgroup.kill"))?,
        })
    }
}

impl Workload {
    /// Starts its processes, which wait in its cgroup.
    pub(super) fn prepare(kind: Kind, threshold_bytes: u64) -> Result<Self> {
        let (waiting, gate) = std::io::pipe()?;
        let cgroup = Cgroup::create(&cgroup())?;
        let mut workload = Self {
            kind,
            watched: Watched::open(&cgroup)?,
            cgroup,
            hogs: Vec::new(),
            gate: Some(gate),
            most: 0,
            is_hurt: false,
            setting: None,
            device: None,
        };
        workload.start(&waiting, threshold_bytes)?;
        // One that comes later would outlive a kill of the cgroup.
        wait_for("the workload's processes are in place", START, || Ok(workload.count()? >= workload.hogs.len()))?;
        Ok(workload)
    }

    fn start(&mut self, waiting: &PipeReader, threshold_bytes: u64) -> Result<()> {
        let available = meminfo("MemAvailable")?;
        let memory = available / MIB + BEYOND_MIB;
        let swap = meminfo("SwapFree")? / MIB;
        let everything = memory + swap;
        // What is swapped out compresses as memory of programs does.
        let contents: &[&str] = if swap > 0 { &["--noise"] } else { &[] };
        // As far as the threshold and half of what is left then.
        let past_threshold = available.saturating_sub(threshold_bytes / 2) / MIB;
        match self.kind {
            Kind::Anon20 | Kind::Anon100 | Kind::Anon200 | Kind::Anon => {
                let rate = self.kind.rate();
                let above = available.saturating_sub(threshold_bytes) / MIB;
                let rush = rate.map_or(0, |_| above.saturating_sub(APPROACH_MIB)).to_string();
                let rate = rate.unwrap_or(0).to_string();
                let pace = ["--rate", &rate, "--rush", &rush];
                self.add("anon", everything, PIECE_KIB, &[&pace, contents].concat(), waiting)
            }
            Kind::Hundred => (0..SMALL_PROCESSES)
                .try_for_each(|_| self.add("anon", everything / SMALL_PROCESSES, PIECE_KIB, contents, waiting)),
            Kind::Fork => {
                self.cgroup.write("pids.max", &(everything / FORKED_WHOLE_MIB).to_string())?;
                self.add("fork", FORKED_MIB, PIECE_KIB, &[], waiting)
            }
            Kind::Tmpfs => self.add("tmpfs", everything, PIECE_KIB, &[&["--path", TMPFS], contents].concat(), waiting),
            Kind::Slab => self.add("messages", memory, SOCKET_BYTES >> 10, &[], waiting),
            Kind::Sockets => self.add("sockets", memory, SOCKET_BYTES >> 10, &[], waiting),
            Kind::PageTables => self.add("tables", memory, PIECE_KIB, &[], waiting),
            Kind::Hugetlb => {
                // Free memory is in pieces after earlier rounds.
                set("/proc/sys/vm/compact_memory", "1")?;
                if cgroup::has_mount_option(cgroup::HUGETLB_ACCOUNTING) {
                    cgroup::charge_huge_pages(true)?;
                }
                self.setting = Some(KernelSetting::begin(OVERCOMMIT_HUGE, &(past_threshold / 2).to_string())?);
                self.add("hugetlb", past_threshold & !1, HUGE_BYTES >> 10, &[], waiting)
            }
            Kind::DiskStall => {
                self.cgroup.write("memory.max", STALLING_LIMIT)?;
                self.read(STALLING_MIB, SLOW, &["--mapped"], waiting)
            }
            Kind::CacheChurn => self.read(meminfo("MemTotal")? / MIB * 2, QUICK, &[], waiting),
            Kind::CacheReread => self.read(past_threshold, QUICK, &["--mapped"], waiting),
        }
    }

    /// Adds a process that takes memory in pieces of so many KiB.
    fn add(&mut self, kind: &str, mib: u64, piece_kib: usize, more: &[&str], waiting: &PipeReader) -> Result<()> {
        let piece = piece_kib.to_string();
        let words = [&["--held", "--chunk", &piece], more].concat();
        let input = Stdio::from(waiting.try_clone()?);
        self.hogs.push(Hog::spawn(kind, self.cgroup.path(), usize::try_from(mib)?, piece_kib, &words, input)?);
        Ok(())
    }

    /// Adds a process that reads a disk of this size round and round.
    fn read(&mut self, mib: u64, delay: Duration, more: &[&str], waiting: &PipeReader) -> Result<()> {
        // One that could not be removed yet has its name still.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let device = Slow::create(&format!("bench{}", NEXT.fetch_add(1, Ordering::Relaxed)), mib, delay)?;
        let path = device.device.to_str().context("a device has a name")?.to_owned();
        self.device = Some(device);
        self.add("churn", mib, PIECE_KIB, &[&["--path", &path], more].concat(), waiting)
    }

    /// Lets its processes begin.
    pub(super) fn begin(&mut self) {
        self.gate = None;
    }

    /// Takes note of what was killed since the last look. An error where a process ended by itself, which none does: there
    /// is nothing to measure in such a round.
    pub(super) fn look(&mut self) -> Result<()> {
        for hog in &mut self.hogs {
            let Some(status) = hog.child.try_wait()? else { continue };
            ensure!(was_killed(status), "a process of the workload failed: {status}");
            self.is_hurt = true;
        }
        if self.kind == Kind::Fork {
            // The first process has the others for children; what became of them is seen by their number.
            let now = self.count()?;
            self.most = self.most.max(now);
            self.is_hurt |= now < self.most;
        }
        Ok(())
    }

    /// What its processes noted; nothing where they note nothing.
    pub(super) fn growth(&self) -> Result<Growth> {
        let piece_kib = match self.kind {
            Kind::Fork | Kind::DiskStall | Kind::CacheChurn | Kind::CacheReread => return Ok(Growth::default()),
            Kind::Slab | Kind::Sockets => SOCKET_BYTES >> 10,
            Kind::Hugetlb => HUGE_BYTES >> 10,
            _ => PIECE_KIB,
        };
        let records = self.hogs.iter().map(|hog| record::read(&hog.record)).collect::<Result<Vec<_>>>()?;
        Ok(Growth::new(records, (piece_kib << 10) as u64))
    }

    /// How many of its processes live.
    fn count(&mut self) -> Result<usize> {
        Ok(self.watched.processes.text()?.lines().count())
    }

    /// Whether any of its processes lives.
    pub(super) fn lives(&mut self) -> Result<bool> {
        Ok(self.watched.events.named("populated")? == 1)
    }

    /// What is charged to it, in bytes.
    pub(super) fn current(&mut self) -> Result<u64> {
        Ok(self.watched.current.text()?.trim().parse()?)
    }

    /// Its cgroup.
    pub(super) fn name(&self) -> &str {
        self.cgroup.name()
    }

    /// Kills what is left of it.
    pub(super) fn kill(&self) -> Result<()> {
        (&self.watched.kill).write_all(b"1").context("cannot write to cgroup.kill")
    }

    /// Kills what is left of it, and takes back what was set for it.
    pub(super) fn end(self) -> Result<()> {
        self.kill()?;
        let Self { kind: _, cgroup, watched: _, hogs, gate, most: _, is_hurt: _, setting, device } = self;
        drop(gate);
        drop(hogs);
        cgroup.remove()?;
        drop((setting, device));
        Ok(())
    }
}

/// Whether a process that ended so was killed by another, or by the kernel for want of memory.
fn was_killed(status: ExitStatus) -> bool {
    status.signal().is_some_and(|it| [Signal::KILL, Signal::TERM].map(Signal::as_raw).contains(&it))
}

/// Removes what a round that failed has left.
pub(super) fn clear() -> Result<()> {
    let cgroup = cgroup();
    if Path::new(crate::cgroup::ROOT).join(&cgroup).exists() {
        Cgroup::existing(&cgroup)?.remove()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn workloads_are_called_as_readers_of_the_figures_expect() {
        let names: Vec<String> = Kind::value_variants()
            .iter()
            .filter_map(|kind| Some(kind.to_possible_value()?.get_name().to_owned()))
            .collect();
        assert_eq!(
            names.join(" "),
            "anon-20 anon-100 anon-200 anon hundred fork tmpfs slab page-tables sockets hugetlb \
            disk-stall cache-churn cache-reread"
        );
    }

    #[test]
    fn what_ends_by_itself_was_not_killed() {
        let after = |raw| was_killed(ExitStatus::from_raw(raw));
        // SIGKILL and SIGTERM; SIGBUS, an error and success, as wait(2) has them.
        assert_eq!([9, 15, 7, 1 << 8, 0].map(after), [true, true, false, false, false]);
    }

    #[test]
    fn a_harmless_workload_runs_longer_than_any_rival_waits_for_pressure() {
        for kind in Kind::value_variants() {
            assert!(!kind.is_harmless() || kind.limit() > Duration::from_secs(20 + 10), "{kind:?}");
        }
    }
}
