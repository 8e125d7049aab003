//! Tests of the hogs themselves: what a scenario relies on must be seen to be so on each kernel.

use crate::block::Slow;
use crate::cgroup::Cgroup;
use crate::machine::wait_for;
use crate::scene::PATIENCE;
use crate::{hog, machine, record};
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// This program, as a process to start others from it.
pub(crate) fn guest() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.stdin(Stdio::null());
    command
}

/// A hog that is running.
pub(crate) struct Hog {
    /// The process.
    pub(crate) child: Child,
    /// Where it records.
    pub(crate) record: PathBuf,
}

/// Starts a process with so many threads in a cgroup, all of which read from this device, and waits until its first one waits
/// uninterruptibly and goes on to.
pub(crate) fn waiting_for(device: &Slow, cgroup: &Cgroup, threads: u32) -> Result<Child> {
    let waiting = guest()
        .args(["hog", "stuck", "--threads", &threads.to_string(), "--hold", "60", "--cgroup"])
        .arg(cgroup.path())
        .arg("--path")
        .arg(&device.device)
        .spawn()?;
    let mut samples = 0;
    wait_for("a task waits uninterruptibly", PATIENCE, || {
        samples = if machine::process_state(waiting.id()) == Some('D') { samples + 1 } else { 0 };
        Ok(samples == 40)
    })?;
    Ok(waiting)
}

impl Hog {
    /// Starts a hog of `kind` and size in `cgroup`, with a record, and with the rest of its arguments as given.
    pub(crate) fn start(kind: &str, cgroup: &Path, mib: usize, more: &[&str]) -> Result<Self> {
        Self::spawn(kind, cgroup, mib, 64, more, Stdio::null())
    }

    /// The same with another standard input, and a record with an entry for each `chunk_kib` KiB at least.
    pub(crate) fn spawn(
        kind: &str,
        cgroup: &Path,
        mib: usize,
        chunk_kib: usize,
        more: &[&str],
        input: Stdio,
    ) -> Result<Self> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = PathBuf::from(format!("/run/record-{}-{number}", std::process::id()));
        record::prepare(&path, hog::entries(mib, chunk_kib, 16))?;
        let child = guest()
            .args(["hog", kind, "--mib", &mib.to_string(), "--cgroup"])
            .arg(cgroup)
            .arg("--record")
            .arg(&path)
            .args(more)
            .stdin(input)
            .spawn()
            .with_context(|| format!("cannot start a hog of kind {kind}"))?;
        Ok(Self { child, record: path })
    }

    /// How many bytes it has taken, by its record.
    pub(crate) fn taken(&self) -> Result<u64> {
        Ok(record::read(&self.record)?.last().map_or(0, |entry| entry.bytes))
    }

    /// Waits until it has taken `mib` MiB; its early end is an error.
    pub(crate) fn wait_taken(&mut self, mib: usize, limit: Duration) -> Result<()> {
        machine::wait_for(&format!("the hog has taken {mib} MiB"), limit, || {
            if self.taken()? >= (mib as u64) << 20 {
                return Ok(true);
            }
            let ended = self.child.try_wait()?;
            ensure!(ended.is_none(), "the hog ended early: {ended:?}");
            Ok(false)
        })
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // It may be dead already, which is what most tests are about.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.record);
    }
}

const MIB: u64 = 1 << 20;

pub(crate) fn charged() -> Result<()> {
    for kind in
        ["anon", "thp", "populate", "mlock", "tmpfs", "fallocate", "dirs", "pipes", "sockets", "messages", "tables"]
    {
        let cgroup = Cgroup::create(&format!("work.slice/{kind}"))?;
        let mut hog = Hog::start(kind, cgroup.path(), 24, &[])?;
        hog.wait_taken(24, Duration::from_secs(30))?;
        let current = cgroup.current()?;
        // Batches of charges, the process's own pages and an estimate of slab lie between the two numbers.
        ensure!(current >= 12 * MIB, "{kind}: {current} bytes charged for 24 MiB taken");
        crate::suite::figure("charged", &[("kind", &kind), ("taken_mib", &24), ("charged_bytes", &current)]);
        drop(hog);
        cgroup.remove()?;
        remove_leftovers()?;
    }
    Ok(())
}

/// Directories on tmpfs outlive the hog that made them.
pub(crate) fn remove_leftovers() -> Result<()> {
    for entry in std::fs::read_dir("/dev/shm")?.flatten() {
        let path = entry.path();
        if path.is_dir() { std::fs::remove_dir_all(&path)? } else { std::fs::remove_file(&path)? }
    }
    Ok(())
}

pub(crate) fn surplus_huge_pages() -> Result<()> {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    machine::set(format!("{pool}/nr_overcommit_hugepages"), "32")?;
    let cgroup = Cgroup::create("work.slice/hugetlb")?;
    let _lists = machine::short_lists()?;
    let mut hog = Hog::start("hugetlb", cgroup.path(), 64, &[])?;
    hog.wait_taken(64, Duration::from_secs(30))?;
    let surplus: u64 = std::fs::read_to_string(format!("{pool}/surplus_hugepages"))?.trim().parse()?;
    ensure!(surplus == 32, "{surplus} surplus pages for 32 taken");
    ensure!(cgroup.current()? < 16 * MIB, "huge pages are charged to memory.current: {} bytes", cgroup.current()?);
    // While they are made, what lay on the CPUs' own lists becomes free as well; what they took shows when they go.
    let held = machine::meminfo("MemFree")?;
    drop(hog);
    machine::wait_for("48 MiB are free again of 64 MiB of huge pages", Duration::from_secs(30), || {
        Ok(machine::meminfo("MemFree")? >= held + 48 * MIB)
    })?;
    machine::set(format!("{pool}/nr_overcommit_hugepages"), "0")
}

pub(crate) fn names_are_reclaimable() -> Result<()> {
    let cgroup = Cgroup::create("work.slice/names")?;
    let mut hog = Hog::start("dentries", cgroup.path(), 24, &[])?;
    hog.wait_taken(24, Duration::from_secs(40))?;
    let charged = slab(&cgroup)?;
    ensure!(charged >= 12 * MIB, "{charged} bytes of reclaimable slab for 24 MiB of names");
    // The kernel may reclaim less than asked, which is an error, and some of it is free only when no processor can use it
    // any more; what counts is what is left after some asking.
    let mut left = charged;
    let mut asked = 0;
    let result = machine::wait_for("more than half of the names are given back", Duration::from_secs(20), || {
        let _ = cgroup.write("memory.reclaim", "24M");
        asked += 1;
        left = slab(&cgroup)?;
        Ok(left * 2 < charged)
    });
    crate::suite::figure("names", &[("charged_bytes", &charged), ("left_bytes", &left), ("asked", &asked)]);
    result
}

fn slab(cgroup: &Cgroup) -> Result<u64> {
    machine::named(&cgroup.read("memory.stat")?, "slab_reclaimable").context("memory.stat has no slab_reclaimable")
}

pub(crate) fn bounded_fork_bomb() -> Result<()> {
    let cgroup = Cgroup::create("work.slice/bomb")?;
    cgroup.write("pids.max", "24")?;
    let mut bomb = guest().args(["hog", "fork", "--mib", "1", "--cgroup"]).arg(cgroup.path()).spawn()?;
    machine::wait_for("the bomb fills its cgroup", Duration::from_mins(1), || {
        Ok(cgroup.read("pids.current")?.trim().parse::<u32>()? == 24)
    })?;
    cgroup.write("cgroup.kill", "1")?;
    machine::wait_for("one write ends all of them", Duration::from_secs(30), || Ok(!cgroup.populated()?))?;
    bomb.wait()?;
    Ok(())
}
