//! What an earlier process of the agent left behind: undone, and its kills taken over by the enforcer of this one.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use plimsoll_act::{Action, BrakeLimits, Brakes, Journal as _, KillLimits, Kills, StopJournal, Worker, Workers};
use plimsoll_config::{BrakeMode, Configuration};
use plimsoll_inventory::{EvictionStep, Inventory, is_monitor};
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::{Handle, Purpose, Root};
use plimsoll_node::clock::monotonic;
use plimsoll_node::meminfo::{self, page_bytes};
use plimsoll_node::{priority, process};
use plimsoll_sense::stopped::{self, StoppedRecord};
use plimsoll_state::{Entry, Found, Kept, PendingKill, Protections, Record as RunRecord, StoppedProcesses, thaw, undo};
use plimsoll_units::{Bytes, CgroupId};

use super::resume::Resumer;
use super::watch::{Enforcer, Evictions, FIGURES, Holding, MOST_HELD, PastEvictions};
use super::{JOBS, STOPPED, pod_root_of_known};

/// Brakes and kills at a time: of each as many as the run record has room for beside pods that are held down.
pub(super) const MAX_ACTIONS: usize = (RunRecord::ROOM - MOST_HELD) / 2;

const NO_WORKER: &str = "cannot start a worker thread";

/// What an earlier process left, undone.
pub(super) struct Past {
    record: RunRecord,
    /// What it kept for the next one.
    kept: Kept,
    /// Evictions and conditions that services did not have on a disk.
    evictions: Kept,
    /// Processes that were stopped one by one.
    stopped: StoppedProcesses,
    /// Kills that are waited for.
    kills: Vec<PendingKill>,
    /// Cgroups that could not be thawed.
    pub(super) left: Vec<Entry>,
    /// Thawed, continued, failed, kills; absent where there was nothing.
    pub(super) counts: Option<(u32, u32, u32, u32)>,
}

impl Past {
    /// Before anything else is done: what is frozen since an earlier process died goes on.
    pub(super) fn undo(configuration: &Configuration, root: &Root, troubles: &mut Vec<String>) -> anyhow::Result<Self> {
        let (directory, boot) = (&configuration.machine.state_directory, BootId::read()?);
        let (mut record, found) = RunRecord::open(&directory.join("record"), boot)?;
        report_broken("the run record", &found, troubles);
        let (kept, found) = Kept::open(&directory.join("kept"), boot)?;
        report_broken("what an earlier process kept of conditions and grace periods", &found, troubles);
        let (evictions, found) = Kept::open_evictions(&directory.join("evictions"), boot)?;
        report_broken("what an earlier process wrote of evictions", &found, troubles);
        let stopped = StoppedProcesses::open(&directory.join(STOPPED), boot)?;
        if !record.is_locked() {
            troubles.push("the run record is not locked in memory: writing to it may have to wait for a disk".into());
        }
        let before = undo(&mut record, root);
        let one_by_one = stopped.continue_all();
        let continued = stopped::undo(&stopped_pin(), process::resume).unwrap_or_else(|error| {
            troubles.push(format!("cannot continue what the in-kernel brake stopped: {error}"));
            stopped::Undone::default()
        });
        let left = frozen_still(&record, &before.failed);
        let failed = before.failed.len() + continued.failed + one_by_one.failed;
        let continued = continued.continued + one_by_one.continued;
        let [thawed, continued, failed, kills] = [before.thawed.len(), continued, failed, before.kills.len()]
            .map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let counts = (thawed, continued, failed, kills);
        Ok(Self {
            record,
            kept,
            evictions,
            stopped,
            left,
            kills: before.kills,
            counts: (counts != (0, 0, 0, 0)).then_some(counts),
        })
    }
}

/// An inventory that goes on with the protections of an earlier process, before anything is sent of pods, and where
/// they are written from now on; where pods are not known, without.
pub(super) fn inventory(
    config: plimsoll_inventory::Config,
    configuration: &Configuration,
    troubles: &mut Vec<String>,
) -> anyhow::Result<(Inventory, Option<Protections>)> {
    let mut inventory = Inventory::new(config);
    if pod_root_of_known(configuration).is_none() {
        return Ok((inventory, None));
    }
    let protections = Protections::new(&configuration.machine.state_directory, BootId::read()?);
    match protections.read() {
        Ok((protected, found)) => {
            report_broken("what an earlier process wrote of pods that are protected", &found, troubles);
            inventory.take_over(protected);
        }
        Err(error) => troubles.push(format!("the pods that an earlier process protected are not known: {error}")),
    }
    Ok((inventory, Some(protections)))
}

fn report_broken(what: &str, found: &Found, troubles: &mut Vec<String>) {
    if let Found::Broken { aside, why } = found {
        troubles.push(format!("{what} could not be used ({why}); it is in {}", aside.display()));
    }
}

/// The brakes in the record that could not be undone.
fn frozen_still(record: &RunRecord, failed: &[(CgroupId, String)]) -> Vec<Entry> {
    let is_meant = |entry: &Entry| failed.iter().any(|(cgroup, _)| *cgroup == entry.cgroup);
    let brakes = record.entries().into_iter().filter(|entry| entry.step.action() == Action::Brake);
    brakes.filter(is_meant).collect()
}

/// Tries again to thaw what an earlier process froze, and gives what is thawed now, or gone. Opens files, and waits for
/// the lock of all cgroups: for the inventory thread.
pub(super) fn thaw_again(left: &mut Vec<Entry>, root: &Root) -> Vec<CgroupId> {
    if left.is_empty() {
        return Vec::new();
    }
    let (_, failed) = thaw(left, root);
    let is_over = |entry: &mut Entry| !failed.iter().any(|(cgroup, _)| *cgroup == entry.cgroup);
    left.extract_if(.., is_over).map(|entry| entry.cgroup).collect()
}

/// Where the kernel side writes down what it stops.
fn stopped_pin() -> PathBuf {
    plimsoll_sense::Config::default().stopped_pin
}

/// Continues what the kernel stops for this agent; absent where the kernel side could not be loaded.
pub(super) fn resumer() -> anyhow::Result<Option<Resumer>> {
    let Some(record) = StoppedRecord::open(&stopped_pin())? else { return Ok(None) };
    Ok(Some(Resumer::start(record).context("cannot start the thread that continues what was stopped")?))
}

/// Brakes, kills and workers, with the kills of an earlier process taken over. `news` wakes the watching thread for what
/// its decisions wait for.
pub(super) fn enforcer(
    configuration: &Configuration,
    mut past: Past,
    root: &Root,
    writer: Worker,
    news: &OwnedFd,
    troubles: &mut Vec<String>,
) -> anyhow::Result<Enforcer> {
    let of_machine = BrakeLimits::of(meminfo::cpus(), Bytes(page_bytes()), Bytes(meminfo::huge_page_bytes()));
    let limits = BrakeLimits { hold: configuration.machine.brake.deadline, ..of_machine };
    let mut kills = Kills::with_capacity(KillLimits::default(), MAX_ACTIONS);
    let doubtful = take_over(&past.kills, root, &mut kills, &mut past.record, troubles);
    let evicted = evicted(&past.evictions, root, troubles);
    let stopped: Arc<dyn StopJournal> = Arc::new(past.stopped);
    // A decision waits for them, however busy the machine is.
    let prefer = || _ = priority::prefer_this_thread();
    let awaited = |name: &str, capacity: usize| {
        let news = news.try_clone()?;
        Worker::start_with_news(name, capacity, prefer, news).context(NO_WORKER)
    };
    let most = configuration.machine.hold_down();
    let held = Brakes::with_capacity(BrakeLimits::of_empty(most), MOST_HELD, Arc::clone(&stopped));
    Ok(Enforcer {
        record: past.record,
        kept: past.kept,
        evictions: past.evictions,
        evicted,
        brakes: Brakes::with_capacity(limits, MAX_ACTIONS, stopped),
        held: Holding::new(most, held),
        kills,
        doubtful,
        workers: Workers::beside(writer, JOBS).context(NO_WORKER)?,
        reclaim: Worker::start("reclaim", JOBS).context(NO_WORKER)?,
        figures: awaited("figures", FIGURES)?,
        fold: awaited("fold", 1)?,
        freeze: configuration.machine.brake.mode == BrakeMode::Freeze,
    })
}

/// The evictions that an earlier process left. One whose cgroup is gone has ended; of the others the kernel says so later.
fn evicted(kept: &Kept, root: &Root, troubles: &mut Vec<String>) -> PastEvictions {
    let Some((mut evictions, conditions)) = Evictions::read(kept) else {
        troubles.push("what an earlier process wrote of evictions cannot be read: services may miss one".to_owned());
        return PastEvictions::default();
    };
    for eviction in evictions.iter_mut().filter(|eviction| eviction.step < EvictionStep::Verified) {
        if matches!(root.path_of(eviction.cgroup), Ok(None)) {
            eviction.step = EvictionStep::Verified;
        }
    }
    (evictions, conditions)
}

/// Waits for the victims of an earlier process, and returns those that it had perhaps not killed. One that cannot be
/// waited for is forgotten, and decided about again where it still matters.
fn take_over(
    past: &[PendingKill],
    root: &Root,
    kills: &mut Kills,
    record: &mut RunRecord,
    troubles: &mut Vec<String>,
) -> Vec<CgroupId> {
    let mut doubtful = Vec::with_capacity(MAX_ACTIONS);
    let now = monotonic();
    for kill in past {
        let spares = kill.by_parts.then_some(is_monitor as _);
        let purpose = Purpose { is_written: true, counts_tasks: false, spares };
        let taken = match Handle::open_for(root, &kill.path, purpose) {
            Ok(Some(handle)) if handle.id() == kill.cgroup => kills.adopt(&Arc::new(handle), kill.since, now),
            Ok(_) => false,
            Err(error) => {
                troubles.push(format!("cannot wait for the end of a victim: {error}"));
                false
            }
        };
        if !taken {
            record.clear(kill.cgroup, Action::Kill);
        } else if !kill.written {
            doubtful.push(kill.cgroup);
        }
    }
    doubtful
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_act::{Intent, Step};
    use plimsoll_units::MonotonicNs;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn victims_of_an_earlier_process_are_waited_for_or_forgotten() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let (mut record, _) = RunRecord::open(&tree.path().join("record"), BootId([1; 16])).expect("writable");
        let mut kills = Kills::with_capacity(KillLimits::default(), 2);
        let mut past = Vec::new();
        for (name, whole, written) in
            [("dying", true, true), ("broken", false, true), ("perhaps", true, false), ("too-many", true, true)]
        {
            let folder = tree.path().join(name);
            fs::create_dir(&folder).expect("writable");
            // A link to itself cannot be opened.
            let freeze = folder.join("cgroup.freeze");
            if whole { fs::write(freeze, "0\n") } else { std::os::unix::fs::symlink(&freeze, &freeze) }
                .expect("writable");
            fs::write(folder.join("cgroup.events"), "populated 1\n").expect("writable");
            let cgroup = CgroupId(fs::metadata(&folder).expect("it is there").ino());
            past.push(PendingKill { cgroup, path: name.into(), since: MonotonicNs(1), written, by_parts: false });
        }
        past.push(PendingKill {
            cgroup: CgroupId(3),
            path: b"gone".into(),
            since: MonotonicNs(1),
            written: true,
            by_parts: false,
        });
        for kill in &past {
            let (step, since) = (if kill.written { Step::KillWritten } else { Step::Killing }, kill.since);
            record.write(Intent { step, cgroup: kill.cgroup, path: &kill.path, since, by_parts: false }).expect("room");
        }
        let root = Root::open(tree.path()).expect("it is there");
        let mut troubles = Vec::new();
        let doubtful = take_over(&past, &root, &mut kills, &mut record, &mut troubles);
        assert_eq!(doubtful, [past[2].cgroup]);
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        let left: Vec<CgroupId> = record.entries().iter().map(|entry| entry.cgroup).collect();
        assert_eq!(left, [past[0].cgroup, past[2].cgroup]);
        assert!(kills.waits_for(past[0].cgroup) && kills.waits_for(past[2].cgroup));
    }

    #[test]
    fn what_could_not_be_thawed_is_tried_again() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let (mut record, _) = RunRecord::open(&tree.path().join("record"), BootId([1; 16])).expect("writable");
        let root = Root::open(tree.path()).expect("it is there");
        let mut make = |name: &str| {
            let folder = tree.path().join(name);
            fs::create_dir(&folder).expect("writable");
            fs::write(folder.join("cgroup.events"), "populated 1\n").expect("writable");
            // A link to itself cannot be opened.
            std::os::unix::fs::symlink(folder.join("cgroup.freeze"), folder.join("cgroup.freeze")).expect("writable");
            let cgroup = CgroupId(fs::metadata(&folder).expect("it is there").ino());
            let since = MonotonicNs(1);
            record
                .write(Intent { step: Step::Frozen, cgroup, path: name.as_bytes(), since, by_parts: false })
                .expect("room");
            cgroup
        };
        let [frozen, kept] = ["frozen", "kept"].map(&mut make);
        let undone = undo(&mut record, &root);
        let mut left = frozen_still(&record, &undone.failed);
        assert_eq!(left.len(), 2);
        assert!(thaw_again(&mut left, &root).is_empty());
        let file = tree.path().join("frozen/cgroup.freeze");
        fs::remove_file(&file).expect("it is there");
        fs::write(&file, "1\n").expect("writable");
        assert_eq!(thaw_again(&mut left, &root), [frozen]);
        assert_eq!(fs::read_to_string(&file).expect("readable"), "0\n");
        assert!(left.iter().map(|entry| entry.cgroup).eq([kept]));
    }
}
