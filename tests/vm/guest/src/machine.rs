//! What /proc shows of this machine: memory, counters, clocks, processes.
//!
//! The agent reads the same files with code of its own; that these two do not share code is on purpose.

use crate::map::Mapping;
use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::fs::OFlags;
use rustix::mm::MapFlags;
use rustix::param::page_size;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Now, on the clock that cannot be stepped, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// A field of /proc/meminfo, in bytes.
pub(crate) fn meminfo(field: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let kib = named(&text, &format!("{field}:")).with_context(|| format!("/proc/meminfo has no {field}"))?;
    Ok(kib * 1024)
}

/// A counter of /proc/vmstat.
pub(crate) fn vmstat(field: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
    named(&text, field).with_context(|| format!("/proc/vmstat has no {field}"))
}

/// How often the kernel's own OOM killer has killed since boot.
pub(crate) fn oom_kills() -> Result<u64> {
    vmstat("oom_kill")
}

/// The number after `key` in the line of `text` that starts with it, as in meminfo, vmstat, memory.stat, cgroup.events.
pub(crate) fn named(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(key)).then(|| words.next()?.parse().ok()).flatten()
    })
}

/// What all zones keep back from users, and the sum of their low watermarks, in pages, from the text of /proc/zoneinfo.
///
/// A zone keeps its high watermark and the largest of what it protects for other zones, but no more than it has.
pub(crate) fn reserves(zoneinfo: &str) -> (u64, u64) {
    let (mut reserve, mut low, mut high, mut managed) = (0, 0, 0, 0);
    for line in zoneinfo.lines() {
        let mut words = line.split_ascii_whitespace();
        let key = words.next();
        let value = words.next().and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        match key {
            // Per-CPU sections have a line of the same name, with a colon.
            Some("low") => low += value,
            Some("high") => high = value,
            Some("managed") => managed = value,
            Some("protection:") => {
                let numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok());
                reserve += (numbers.max().unwrap_or(0) + high).min(managed);
            }
            _ => {}
        }
    }
    (reserve, low)
}

/// A file of the kernel that is read again and again: without opening it anew, and into a buffer made beforehand, so that
/// reading it takes no memory where there is none.
pub(crate) struct Reread {
    file: File,
    buffer: Vec<u8>,
}

impl Reread {
    /// Room for so many bytes of it.
    pub(crate) fn open(path: impl AsRef<Path>, room: usize) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut reread = Self { file, buffer: vec![0; room] };
        // What the kernel takes for the first reading it keeps.
        reread.text()?;
        Ok(reread)
    }

    /// Its text now, as far as there is room.
    pub(crate) fn text(&mut self) -> Result<&str> {
        let mut length = 0;
        loop {
            match self.file.read_at(&mut self.buffer[length..], length as u64)? {
                0 => return Ok(std::str::from_utf8(&self.buffer[..length])?),
                more => length += more,
            }
        }
    }

    /// The number after `key`, as in [`named`].
    pub(crate) fn named(&mut self, key: &str) -> Result<u64> {
        named(self.text()?, key).with_context(|| format!("no number {key}"))
    }
}

/// A small figure of randomness that the same seed gives again: xorshift.
pub(crate) struct Dice(u64);

impl Dice {
    /// Begins with `seed`.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    /// A number below `bound`.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The state letter of a process (`R`, `S`, `D`, `T`, `Z`, ...); nothing where there is no such process.
pub(crate) fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process exists and has not died: a zombie is dead.
pub(crate) fn alive(pid: u32) -> bool {
    !matches!(process_state(pid), None | Some('Z' | 'X'))
}

/// This process's value for the OOM killer's choice.
pub(crate) fn oom_score() -> Result<i32> {
    let text = fs::read_to_string("/proc/self/oom_score_adj").context("cannot read /proc/self/oom_score_adj")?;
    Ok(text.trim().parse()?)
}

/// Takes this process out of the OOM killer's choice (-1000), or puts it back (0).
pub(crate) fn oom_score_adjust(value: i32) -> Result<()> {
    set("/proc/self/oom_score_adj", &value.to_string())
}

/// Sets a value of a sysctl or other one-line kernel file.
pub(crate) fn set(path: impl AsRef<Path>, value: &str) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, value).with_context(|| format!("cannot write {value:?} to {}", path.display()))
}

/// A kernel setting that has another value while this lives.
pub(crate) struct KernelSetting {
    file: &'static str,
    before: String,
}

impl KernelSetting {
    pub(crate) fn begin(file: &'static str, value: &str) -> Result<Self> {
        let before = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        set(file, value)?;
        Ok(Self { file, before })
    }

    /// Has the kernel count run time and runs of BPF programs.
    pub(crate) fn program_statistics() -> Result<Self> {
        Self::begin("/proc/sys/kernel/bpf_stats_enabled", "1")
    }
}

impl Drop for KernelSetting {
    fn drop(&mut self) {
        if let Err(error) = set(self.file, self.before.trim()) {
            eprintln!("{error:#}");
        }
    }
}

/// Keeps the CPUs' own lists of free pages short: one part in so many of the memory, the fewest there can be. What was on
/// them is free from here on.
///
/// What lies on them counts neither as used nor as available. They hold as much as all low watermarks for good, and newer
/// kernels let them grow with what is taken and given back, to an eighth of the memory, so that what a process took and by
/// how much memory sank are far apart. A CPU that is idle keeps its list as it is.
pub(crate) fn short_lists() -> Result<KernelSetting> {
    let setting = KernelSetting::begin("/proc/sys/vm/percpu_pagelist_high_fraction", "1000")?;
    wait_for("the CPUs' own lists of free pages become short", Duration::from_secs(20), || {
        each_cpu(|| use_memory(LIST_BYTES))?;
        let zoneinfo = fs::read_to_string("/proc/zoneinfo").context("cannot read /proc/zoneinfo")?;
        Ok(on_lists(&zoneinfo) * page_size() as u64 <= LIST_BYTES as u64 * u64::from(cpus()?.count()))
    })?;
    Ok(setting)
}

/// More than a short list holds, with all zones.
const LIST_BYTES: usize = 4 << 20;

/// Takes so much memory in base pages and gives it back, by way of the list of the CPU that this runs on.
pub(crate) fn use_memory(bytes: usize) -> Result<()> {
    let memory = Mapping::anonymous(bytes, MapFlags::empty()).context("cannot map")?;
    memory.huge(false)?;
    memory.touch(0, bytes, page_size());
    Ok(())
}

/// Does the same on each CPU, one after another.
pub(crate) fn each_cpu(work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let all = cpus()?;
    let pinned = |cpu: usize| {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one).context("cannot move a thread to another CPU")?;
        work()
    };
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)) {
        let done = thread::scope(|scope| scope.spawn(|| pinned(cpu)).join());
        done.map_err(|_| anyhow!("a thread panicked"))??;
    }
    Ok(())
}

/// The CPUs that this process may run on.
fn cpus() -> Result<CpuSet> {
    sched_getaffinity(None).context("cannot read the CPUs of this process")
}

/// The pages on the CPUs' own lists, from the text of /proc/zoneinfo.
fn on_lists(zoneinfo: &str) -> u64 {
    zoneinfo.lines().filter_map(|line| line.trim_start().strip_prefix("count:")?.trim().parse::<u64>().ok()).sum()
}

/// Has the kernel keep active and inactive pages on two lists, where it could keep generations: with those
/// page cache that was read again and again is still inactive, and so is available by the kubelet's figure.
pub(crate) fn two_lists() -> Result<Option<KernelSetting>> {
    const GENERATIONS: &str = "/sys/kernel/mm/lru_gen/enabled";
    Path::new(GENERATIONS).exists().then(|| KernelSetting::begin(GENERATIONS, "n")).transpose()
}

/// Asks `ready` every few milliseconds until it is true; an error that names `what` after `limit`.
pub(crate) fn wait_for(what: &str, limit: Duration, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    loop {
        if ready()? {
            return Ok(());
        }
        ensure!(started.elapsed() < limit, "{what}: not within {} s", limit.as_secs_f32());
        thread::sleep(Duration::from_millis(5));
    }
}

/// What comes into the kernel's own log.
pub(crate) struct KernelLog(File);

impl KernelLog {
    /// From its end on.
    pub(crate) fn from_now() -> Result<Self> {
        let nonblock = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(nonblock).open("/dev/kmsg");
        let mut file = file.context("cannot open /dev/kmsg")?;
        file.seek(SeekFrom::End(0)).context("cannot go to the end of /dev/kmsg")?;
        Ok(Self(file))
    }

    /// The next record, without its numbers; nothing where there is none yet.
    fn next(&mut self) -> Result<Option<String>> {
        let mut record = [0; 8192];
        loop {
            match self.0.read(&mut record) {
                // Its numbers end with a semicolon.
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    return Ok(Some(text.split_once(';').map_or("", |(_, line)| line).trim_end().to_owned()));
                }
                // Some were overwritten before they were read.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("cannot read /dev/kmsg"),
            }
        }
    }

    /// An error unless a line that came since begins so.
    pub(crate) fn expect(&mut self, beginning: &str) -> Result<()> {
        ensure!(self.has(beginning)?, "no line of the kernel's log begins with {beginning:?}");
        Ok(())
    }

    /// Whether a line that came since, or since the last one that was found, begins so.
    pub(crate) fn has(&mut self, beginning: &str) -> Result<bool> {
        self.find(beginning).map(|line| line.is_some())
    }

    /// The same line.
    pub(crate) fn find(&mut self, beginning: &str) -> Result<Option<String>> {
        while let Some(line) = self.next()? {
            if line.starts_with(beginning) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    /// The processes that the OOM killer has killed since, in their order.
    pub(crate) fn oom_killed(&mut self) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        while let Some(line) = self.next()? {
            found.extend(oom_killed(&line));
        }
        Ok(found)
    }

    /// The records since of system calls that a filter barred: the kernel audits them.
    pub(crate) fn barred_calls(&mut self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        while let Some(line) = self.next()? {
            if line.contains("type=1326 ") {
                found.push(line);
            }
        }
        Ok(found)
    }
}

/// The process that a line of the kernel's log reports as killed by the OOM killer (`__oom_kill_process`).
fn oom_killed(line: &str) -> Option<u32> {
    line.split_once("ut of memory: Killed process ")?.1.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oom_killers_victim_is_named_in_the_kernels_log() {
        for (line, victim) in [
            ("Out of memory: Killed process 143 (plimsoll-guest) total-vm:1440kB", Some(143)),
            ("Memory cgroup out of memory: Killed process 7 (x) total-vm:1kB", Some(7)),
            ("oom_reaper: reaped process 143 (plimsoll-guest), now anon-rss:0kB", None),
        ] {
            assert_eq!(oom_killed(line), victim, "{line}");
        }
    }

    #[test]
    fn a_number_is_found_by_its_whole_key() {
        let text = "MemTotal:       2038436 kB\noom_kill_x 9\noom_kill 3\npopulated 0\n";
        for (key, value) in
            [("MemTotal:", Some(2_038_436)), ("oom_kill", Some(3)), ("populated", Some(0)), ("oom", None)]
        {
            assert_eq!(named(text, key), value, "{key}");
        }
    }

    #[test]
    fn a_file_is_read_again_from_its_beginning_as_far_as_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "populated 1\n").unwrap();
        let mut all = Reread::open(&path, 64).unwrap();
        let mut part = Reread::open(&path, 4).unwrap();
        assert_eq!((all.named("populated").unwrap(), part.text().unwrap()), (1, "popu"));
        fs::write(&path, "populated 0\n").unwrap();
        assert_eq!(all.named("populated").unwrap(), 0);
        assert!(all.named("frozen").is_err());
    }

    #[test]
    fn reserves_are_added_up_over_zones() {
        let text = "Node 0, zone      DMA\n        min      100\n        low      120\n        high     140\n        \
                    managed  3840\n        protection: (0, 900, 900)\n  pagesets\n              high:  7\nNode 0, zone \
                    DMA32\n        low      2000\n        high     3000\n        managed  2500\n        \
                    protection: (0, 0, 0)\n";
        assert_eq!(reserves(text), (140 + 900 + 2500, 2120));
    }

    #[test]
    fn pages_on_lists_are_added_up_over_cpus_and_zones() {
        let text = "Node 0, zone DMA32\n  pagesets\n    cpu: 0\n              count:    7\n              high:     9\n    \
                    cpu: 1\n              count: 30\n              high:     9\n";
        assert_eq!(on_lists(text), 37);
    }

    #[test]
    fn dice_fall_the_same_way_from_the_same_seed() {
        let throw = |seed| {
            let mut dice = Dice::new(seed);
            [dice.below(10_000), dice.below(10_000), dice.below(10_000)]
        };
        assert_eq!(throw(1), throw(1));
        assert_ne!(throw(1), throw(2));
        assert!(throw(3).iter().all(|number| *number < 10_000));
    }

    #[test]
    fn this_process_is_alive_and_process_zero_is_not_there() {
        assert!(alive(std::process::id()));
        assert!(!alive(0));
    }
}
