//! A process within its reservation, which must survive: it uses its memory every millisecond, and notes the longest time
//! that it could not.

use super::SLICE;
use crate::cgroup::Cgroup;
use crate::machine::{now_ns, wait_for};
use crate::map::Mapping;
use crate::record;
use crate::scene::{MIB, PATIENCE};
use crate::systemd::{start_guest_in, systemctl, unit_of};
use anyhow::{Context as _, Result};
use rustix::mm::MapFlags;
use rustix::param::page_size;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// What is reserved for it, as systemd reads it; its slice has the same, without which the reservation counts for nothing.
pub(super) const RESERVED: &str = "MemoryLow=32M";
/// What says to each rival that it is to be kept, as their documents have it: its reservation to Plimsoll, its adjustment
/// to the OOM killer, earlyoom and nohang, and its preference to systemd-oomd.
const KEPT: [&str; 3] = [RESERVED, "OOMScoreAdjust=-500", "ManagedOOMPreference=avoid"];
/// What it holds, beside what every process needs: less than is reserved.
const HELD_MIB: usize = 24;
/// What it uses each millisecond: all of it in a fifth of a second.
const STEP_BYTES: usize = 128 << 10;
const NAME: &str = "survivor";
const NOTES: &str = "/run/survivor";

/// The words of its notes: the longest time in nanoseconds, and how often it used its memory.
const LONGEST: usize = 0;
const TIMES: usize = 1;
const NOTES_BYTES: usize = 16;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How much to hold.
    #[arg(long)]
    mib: usize,
    /// A prepared file for its notes.
    #[arg(long)]
    notes: PathBuf,
}

pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    let notes = notes(&arguments.notes)?;
    let word = |index| notes.word(index).context("the notes are too short");
    let (longest, times) = (word(LONGEST)?, word(TIMES)?);
    let bytes = arguments.mib << 20;
    let memory = Mapping::anonymous(bytes, MapFlags::empty()).context("cannot map")?;
    memory.huge(false)?;
    memory.touch(0, bytes, page_size());
    let (mut at, mut last) = (0, now_ns());
    loop {
        thread::sleep(Duration::from_millis(1));
        memory.touch(at, at + STEP_BYTES, page_size());
        at = (at + STEP_BYTES) % bytes;
        let now = now_ns();
        longest.fetch_max(now - last, Ordering::Relaxed);
        times.fetch_add(1, Ordering::Release);
        last = now;
    }
}

fn notes(path: &Path) -> Result<Mapping> {
    let file = File::options().read(true).write(true).open(path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    Mapping::shared(&file, NOTES_BYTES).context("cannot map the notes")
}

/// That process, as a service of the slice that the workloads are in.
pub(super) struct Survivor {
    cgroup: Cgroup,
    notes: Mapping,
}

impl Survivor {
    /// Starts it and waits until it has all of its memory.
    pub(super) fn start() -> Result<Self> {
        record::prepare(Path::new(NOTES), 1)?;
        let notes = notes(Path::new(NOTES))?;
        let mib = HELD_MIB.to_string();
        let properties = [&KEPT[..], &["CollectMode=inactive-or-failed"]].concat();
        let cgroup = start_guest_in(SLICE, NAME, &properties, &["survivor", "--mib", &mib, "--notes", NOTES])?;
        wait_for("the survivor is in place", PATIENCE, || {
            Ok(notes.word(TIMES).is_some_and(|times| times.load(Ordering::Acquire) > 0))
        })?;
        Ok(Self { cgroup, notes })
    }

    /// From here on its longest stall counts, and none before.
    pub(super) fn begin(&self) {
        self.notes.publish(LONGEST, 0);
    }

    /// The longest that it went without its memory, a millisecond of sleep included; absent where it did not survive.
    pub(super) fn longest_stall_ns(&self) -> Option<u64> {
        let lives = self.cgroup.populated().unwrap_or(false);
        self.notes.word(LONGEST).map(|longest| longest.load(Ordering::Relaxed)).filter(|_| lives)
    }
}

/// Ends it. A pattern, so that it is no error where there is none.
pub(super) fn clear() -> Result<()> {
    systemctl(&["stop", &unit_of(&format!("{NAME}*"))])?;
    systemctl(&["reset-failed"]).map(drop)
}

const _: () = assert!(HELD_MIB as u64 * MIB > STEP_BYTES as u64, "a step is a part of what is held");
