//! The core: senses, decides, acts. One thread that watches, one for the inventory, five workers for what blocks, one that
//! holds the right to act, and with the in-kernel brake one that continues what it stopped; no async runtime.
//!
//! This file sets it up: undo what an earlier process left, start the source, find the workloads, lock memory, give up
//! privileges, and only then wait.

mod episode;
mod fault_injection;
mod inventory;
mod kernel_brake;
mod resume;
mod succession;
mod suspects;
mod thresholds;
mod watch;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use plimsoll_act::{Action, BrakeLimits, Brakes, Journal as _, KillLimits, Kills, Worker, Workers};
use plimsoll_config::{BrakeMode, Configuration, SourceChoice};
use plimsoll_inventory::{Inventory, Patterns, Protected, SLOTS};
use plimsoll_node::boot::BootId;
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_node::clock::monotonic;
use plimsoll_node::limits::TaskLimits;
use plimsoll_node::meminfo::{self, MemInfo, page_bytes};
use plimsoll_node::os::{CGROUP_ROOT, CgroupMode};
use plimsoll_node::pressure::MemoryPressure;
use plimsoll_node::zoneinfo::Zones;
use plimsoll_node::{NodeError, capabilities, lock, priority, system_calls};
use plimsoll_sense::stopped::{self, StoppedRecord};
use plimsoll_sense::{Kind, MAX_BRAKES, Source, SourceAttempt, ladder};
use plimsoll_state::heartbeat::Heart;
use plimsoll_state::queue::{self, Producer};
use plimsoll_state::{Found, PendingKill, Record as RunRecord, StoppedProcesses, handover, undo};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Pages, Pattern};
use rtrb::RingBuffer;
use rustix::event::{Timespec, poll};

use crate::acting::{Claim, Locks};
use crate::options::Options;
use crate::record::StartParts;
use crate::{inherit, inherited_config};
use inventory::{InventoryHandle, Outgoing, StartupReport};
use kernel_brake::KernelBrake;
use resume::Resumer;
use thresholds::Machine;
pub(crate) use watch::BRAKE_LEASE;
use watch::{Arming, Enforcement, Enforcer, Reporting, Sampler, Signals, Triggers, Watch};

/// How often the core samples although the kernel submits events: a lost one costs at most this.
const SLOW_SAMPLE: Duration = Duration::from_secs(1);
/// A watching thread that samples so often shows that it is alive.
const OFTEN: Duration = Duration::from_secs(10);
/// Descriptors that a workload's handle keeps open: its directory, usage, events, freeze and kill.
const FILES_A_WORKLOAD: u64 = 5;
/// Descriptors for everything else, of which each of the two workers that open processes may need 256.
const OTHER_FILES: u64 = 768;
/// Room for updates of the inventory thread, and for the handles that come back for them: twice for each workload.
const UPDATES: usize = 2 * SLOTS;
/// Frames in the watching thread's queue to the reporter: some hundred decisions.
const QUEUE: usize = 2048;
/// Frames in the inventory thread's.
const SLOW_QUEUE: usize = 512;
/// The file of processes that were stopped one by one, in the state directory.
pub(crate) const STOPPED: &str = "stopped";
/// Jobs that a worker may have waiting.
const JOBS: usize = 1024;
/// Brakes and kills at a time: as many as the run record has room for.
const MAX_ACTIONS: usize = 32;
/// The inventory thread's stack, locked like all memory of this process.
const INVENTORY_STACK: usize = 512 << 10;
/// How long the end waits for the other threads, twice.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the core may take from the signal that asks it to end.
pub(crate) const END_MOST: Duration = watch::END_MOST.saturating_add(LAST_WORDS.saturating_mul(2));

/// What the supervisor starts the core with.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The socket by which the queues to the reporter are handed over.
    #[arg(long)]
    queues: i32,
    /// The memory of the heartbeat.
    #[arg(long)]
    heartbeat: i32,
    /// Readable when the reporter is new.
    #[arg(long)]
    reporter_restarted: i32,
    /// The configuration as the supervisor read it.
    #[arg(long)]
    inherited_config: Option<i32>,
    /// The supervisor's process.
    #[arg(long)]
    supervisor: Option<i32>,
}

/// Runs until it is asked to end, and gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let begun = monotonic();
    #[cfg(feature = "fault-injection")]
    crate::fault_injection::arm_kill_point()?;
    let mut start = StartParts::default();
    let mut troubles = Vec::new();
    let parent = open_parent(arguments.supervisor)?;
    let [socket, reporter_restarted] = [inherit::take(arguments.queues)?, inherit::take(arguments.reporter_restarted)?];
    let heart = Heart::attach(inherit::take(arguments.heartbeat)?)?;
    let (queue, slow_queue) = queues(&socket)?;
    let term = term_descriptor()?;
    let protected = Protected::read();
    let configuration =
        inherited_config::configuration(&arguments.options, arguments.inherited_config, own_cgroup(&protected))?;
    start.configuration = lap(begun);
    #[cfg(feature = "log")]
    crate::log::print_kernel_side(configuration.machine.log_format)?;

    let mode = CgroupMode::detect();
    let root = Root::open(mode.unified().unwrap_or(CGROUP_ROOT.as_ref()))?;
    let unified = mode == CgroupMode::Unified;
    let locks = Locks::of(&configuration.machine.state_directory);
    let (claim, turn) = if unified { Some(Claim::start(locks, &mut troubles)?) } else { None }.unzip();
    let turn = turn.flatten();
    let acting = unified && turn.is_none();
    let shadow = shadow(acting, unified);

    let now = monotonic();
    let past = if acting { Some(Past::undo(&configuration, &root, &mut troubles)?) } else { None };
    start.undo = lap(now);

    let now = monotonic();
    raise_open_files(&mut troubles);
    let Some((source, attempts)) = stand(&configuration, unified) else { return Ok(crate::NOT_HERE) };
    start.source = lap(now);

    let now = monotonic();
    let brakes_in_kernel = unified && !configuration.machine.brake.in_kernel.is_empty();
    let ((give_means, means), (report_taken_over, taken_over)) = (RingBuffer::new(1), std::sync::mpsc::channel());
    let ((give, updates), (give_back, returned)) = (RingBuffer::new(UPDATES), RingBuffer::new(UPDATES));
    let machine = machine()?;
    let (handle, news) = (InventoryHandle::new()?, inventory::eventfd()?);
    let mut inventory = inventory::Thread {
        inventory: Inventory::new(inventory_config(&configuration, &root, protected, brakes_in_kernel)?),
        outgoing: Outgoing::new(give, returned, news.try_clone()?, slow_queue),
        health: source.health_reader(),
        packet_rings: source.packet_rings(),
        machine,
        handle: handle.clone(),
        reporter_restarted,
        taken_over,
        turns: slow_sample(source.kind(), &configuration).is_some_and(|slow| slow <= OFTEN),
        has_events: source.kind() == Kind::Ebpf,
    };
    inventory.first();
    start.workloads = lap(now);

    let now = monotonic();
    let writer = settle(&mut troubles)?;
    start.lock = lap(now);

    let undone = past.as_ref().and_then(|past| past.counts);
    // One that shadows hands it to the thread that takes over.
    let (writer, enforcer) = match past {
        Some(past) => (None, Some(enforcer(&configuration, past, &root, writer, &mut troubles)?)),
        None => (Some(writer), None),
    };
    let resumer = if acting && brakes_in_kernel { resumer()? } else { None };
    let slow = slow_sample(source.kind(), &configuration);
    let kernel_brake = KernelBrake::new(configuration.machine.brake.deadline, resumer);
    let parts = watch::Parts {
        heart,
        triggers: Triggers::new(source, Signals { inventory: news.try_clone()?, term, parent })?,
        workloads: watch::Workloads::new(updates, give_back, handle.clone()),
        sampler: Sampler::new(MemInfo::open()?, MemoryPressure::open().ok(), now),
        arming: Arming::new(machine, TaskLimits::open().ok()),
        enforcement: Enforcement::new(enforcer, kernel_brake, means),
        reporting: Reporting::new(queue, arguments.options.trace.is_some()),
    };
    let mut watch = Watch::new(parts, configuration.policy.clone(), slow);
    // Before it waits for what others write. Where it cannot be had, the core does without.
    if let Err(error) = system_calls::filter_core() {
        troubles.push(error.to_string());
    }
    watch.begin();
    start.armed = lap(begun);
    let source = attempts.last().map_or("none", |attempt| attempt.kind.name());
    let startup_report = StartupReport { source, shadow, attempts, start, undone, troubles };
    let inventory_thread = start_inventory(inventory, startup_report)?;
    if let Some((turn, writer)) = turn.zip(writer) {
        let ways = succession::Ways { means: give_means, writer, news, taken_over: report_taken_over };
        succession::start(turn, configuration, root, brakes_in_kernel, ways)?;
    }
    fault_injection::filter()?;
    let end = watch.run();
    let_go(&mut watch, &handle, claim.as_ref(), &inventory_thread);
    // Nothing is closed or freed one by one: this thread may not, and the kernel does it all. The runtime's own exit takes
    // locks that threads which are just ending may hold.
    signal_hook::low_level::exit(end.code().into())
}

fn start_inventory(inventory: inventory::Thread, startup_report: StartupReport) -> anyhow::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("inventory".into())
        .stack_size(INVENTORY_STACK)
        .spawn(move || inventory.serve(startup_report))
        .context("cannot start the inventory thread")
}

/// The watching thread's queue to the reporter and the inventory thread's, handed over by `socket`.
fn queues(socket: &OwnedFd) -> anyhow::Result<(Producer, Producer)> {
    let ((queue, watch), (slow_queue, inventory)) = (queue::create(QUEUE)?, queue::create(SLOW_QUEUE)?);
    if let Err(errno) = handover::send(socket, &[watch, inventory]) {
        // It acts all the same.
        crate::log::complain(&format!("nothing that this core does is reported: its queues go nowhere: {errno}"));
    }
    Ok((queue, slow_queue))
}

/// Releases everything, for the end.
fn let_go(watch: &mut Watch, handle: &InventoryHandle, claim: Option<&Claim>, inventory_thread: &JoinHandle<()>) {
    watch.release();
    handle.request(inventory::Request::End);
    // What this agent held goes on, then another one may act: it need not wait until this process is gone, whose kernel
    // programs are detached one by one. The inventory thread has records to send; a file system that does not answer must
    // not delay the end.
    wait_for(|| watch.has_released());
    if let Some(claim) = claim {
        claim.give_back();
    }
    wait_for(|| inventory_thread.is_finished() && claim.is_none_or(Claim::has_given_back));
}

/// Waits for another thread, but not for long.
fn wait_for(mut done: impl FnMut() -> bool) {
    let begun = monotonic();
    while !done() && monotonic().since(begun) < LAST_WORDS {
        let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
    }
}

/// What an earlier process left, undone.
struct Past {
    record: RunRecord,
    /// Processes that were stopped one by one.
    stopped: StoppedProcesses,
    /// Kills that are waited for.
    kills: Vec<PendingKill>,
    /// Thawed, continued, failed, kills; absent where there was nothing.
    counts: Option<(u32, u32, u32, u32)>,
}

impl Past {
    /// Before anything else is done: what is frozen since an earlier process died goes on.
    fn undo(configuration: &Configuration, root: &Root, troubles: &mut Vec<String>) -> anyhow::Result<Self> {
        let (directory, boot) = (&configuration.machine.state_directory, BootId::read()?);
        let (mut record, found) = RunRecord::open(&directory.join("record"), boot)?;
        let stopped = StoppedProcesses::open(&directory.join(STOPPED), boot)?;
        if let Found::Broken { aside, why } = found {
            troubles.push(format!("the run record could not be used ({why}); it is kept as {}", aside.display()));
        }
        if !record.is_locked() {
            troubles.push("the run record is not locked in memory: writing to it may have to wait for a disk".into());
        }
        let before = undo(&mut record, root);
        let one_by_one = stopped.continue_all();
        let continued = stopped::undo(&stopped_pin()).unwrap_or_else(|error| {
            troubles.push(format!("cannot continue what the in-kernel brake stopped: {error}"));
            stopped::Undone::default()
        });
        let failed = before.failed.len() + continued.failed + one_by_one.failed;
        let continued = continued.continued + one_by_one.continued;
        let [thawed, continued, failed, kills] = [before.thawed.len(), continued, failed, before.kills.len()]
            .map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let counts = (thawed, continued, failed, kills);
        Ok(Self { record, stopped, kills: before.kills, counts: (counts != (0, 0, 0, 0)).then_some(counts) })
    }
}

/// Where the kernel side writes down what it stops.
fn stopped_pin() -> std::path::PathBuf {
    plimsoll_sense::Config::default().stopped_pin
}

/// The patterns that are meant, without what is never touched.
fn patterns<'c>(meant: impl Iterator<Item = &'c Pattern>, configuration: &'c Configuration) -> Patterns {
    Patterns { workloads: meant.cloned().collect(), never: configuration.machine.never.clone() }
}

/// Which cgroups are workloads, slices and slices that the kernel brakes.
fn inventory_config(
    configuration: &Configuration,
    root: &Root,
    protected: Protected,
    brakes_in_kernel: bool,
) -> anyhow::Result<plimsoll_inventory::Config> {
    let machine = &configuration.machine;
    Ok(plimsoll_inventory::Config {
        root: Root::open(root.path())?,
        patterns: patterns(machine.workloads.iter().map(|workload| &workload.pattern), configuration),
        priorities: machine.workloads.iter().map(|workload| workload.priority).collect(),
        protected,
        slices: machine.slices.iter().map(|slice| slice.path.clone()).collect(),
        brakes: brakes_in_kernel.then(|| patterns(machine.brake.in_kernel.iter(), configuration)),
        max_brakes: MAX_BRAKES,
        max_workloads: most_workloads(),
    })
}

/// Continues what the kernel stops for this agent; absent where the kernel side could not be loaded.
fn resumer() -> anyhow::Result<Option<Resumer>> {
    let Some(record) = StoppedRecord::open(&stopped_pin())? else { return Ok(None) };
    Ok(Some(Resumer::start(record).context("cannot start the thread that continues what was stopped")?))
}

/// How often to sample where no event comes.
fn slow_sample(kind: Kind, configuration: &Configuration) -> Option<Duration> {
    match kind {
        Kind::Ebpf => Some(SLOW_SAMPLE),
        Kind::PsiTrigger => Some(configuration.machine.poll_period),
        Kind::Polling => None,
    }
}

/// Locks memory, raises this thread, and gives up what was needed for the start only. Gives the worker that writes to
/// cgroups' files, which has a higher priority than this thread, so that a freeze is written as soon as it is requested.
fn settle(troubles: &mut Vec<String>) -> anyhow::Result<Worker> {
    if let Err(error) = lock::all() {
        troubles.push(error.to_string());
    }
    lock::touch_stack();
    let prepare = || {
        // What is not granted to it is not granted to the watching thread, which reports that.
        let _ = priority::raise_this_thread(priority::Level::Writing);
        if let Err(error) = keep_capabilities() {
            crate::log::complain(&format!("the worker that writes keeps capabilities: {error}"));
        }
    };
    let writer = Worker::start_with("write", JOBS, prepare).context("cannot start a worker thread")?;
    if let priority::Priority::Unchanged(errno) = priority::raise_this_thread(priority::Level::Watching) {
        troubles.push(format!("neither real-time priority nor a better nice value was granted: {errno}"));
    }
    keep_capabilities()?;
    Ok(writer)
}

/// Drops what is not needed any more on the calling thread; threads that it starts inherit what is left: for files that
/// belong to users, signals to their processes, and cgroups by their ids.
fn keep_capabilities() -> Result<(), NodeError> {
    capabilities::keep_only(&[capabilities::KILL, capabilities::DAC_OVERRIDE, capabilities::DAC_READ_SEARCH]).map(drop)
}

/// The time since `from`.
fn lap(from: MonotonicNs) -> Duration {
    monotonic().since(from)
}

/// The agent's own cgroup, for the check that no workload holds it; absent in the root cgroup.
pub(crate) fn own_cgroup(protected: &Protected) -> Option<String> {
    (!protected.own.is_empty()).then(|| String::from_utf8_lossy(&protected.own).into_owned())
}

/// Why this agent only watches, if it does.
const fn shadow(acting: bool, unified: bool) -> Option<&'static str> {
    match (acting, unified) {
        (true, _) => None,
        (false, true) => Some("another agent acts on this machine; this one shadows it and takes over"),
        (false, false) => Some("version 1 holds the memory controller; this machine can only be watched (shadow)"),
    }
}

/// The best source that works here. `None` only where the configuration allows one and no other; the error is printed.
fn stand(configuration: &Configuration, unified: bool) -> Option<(Box<dyn Source>, Vec<SourceAttempt>)> {
    ladder(&source_config(configuration, unified)).inspect_err(|error| eprintln!("plimsoll: {error:#}")).ok()
}

/// A descriptor of the supervisor, which is readable when that is gone.
fn open_parent(supervisor: Option<i32>) -> anyhow::Result<OwnedFd> {
    let parent = rustix::process::getppid().context("the supervisor is gone")?;
    let fd = plimsoll_node::process::open(parent).context("cannot open the supervisor's process")?;
    ensure_child_of(supervisor.unwrap_or(parent.as_raw_pid()))?;
    Ok(fd)
}

/// Fails where the supervisor died already and this process was given to another parent: it would never be ended.
pub(crate) fn ensure_child_of(supervisor: i32) -> anyhow::Result<()> {
    let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_pid);
    anyhow::ensure!(parent == Some(supervisor), "the supervisor is gone");
    Ok(())
}

/// A descriptor that is readable when this process was asked to end.
fn term_descriptor() -> anyhow::Result<OwnedFd> {
    // No socket: the handler may run on the watching thread, which may write and not send.
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    // For the log of the other processes. A service manager may send them to all.
    for signal in [signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(read)
}

fn source_config(configuration: &Configuration, unified: bool) -> plimsoll_sense::Config {
    plimsoll_sense::Config {
        only: match configuration.machine.source {
            SourceChoice::Auto => None,
            SourceChoice::Ebpf => Some(Kind::Ebpf),
            SourceChoice::Psi => Some(Kind::PsiTrigger),
            SourceChoice::Poll => Some(Kind::Polling),
        },
        poll_period: configuration.machine.poll_period,
        // One that shadows loads it too, for its turn, and marks no slice until then.
        kernel_brake: unified && !configuration.machine.brake.in_kernel.is_empty(),
        ..plimsoll_sense::Config::default()
    }
}

fn machine() -> anyhow::Result<Machine> {
    let zones = Zones::read()?;
    let reading = MemInfo::open()?.read()?;
    let page_bytes = page_bytes();
    Ok(Machine {
        reserve: Pages::from_bytes(zones.total_reserve(&reading, page_bytes), page_bytes),
        low_watermark: zones.low_watermark,
        kept: zones.kept,
        drift: zones.drift(),
        page_bytes,
    })
}

/// Lets this process open as many files as it may ever.
fn raise_open_files(troubles: &mut Vec<String>) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(errno) = setrlimit(Resource::Nofile, raised) {
        troubles.push(format!("cannot raise the limit of open files: {errno}"));
    }
}

/// How many workloads the limit of open files leaves room for.
fn most_workloads() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = limit.saturating_sub(OTHER_FILES) / FILES_A_WORKLOAD;
    usize::try_from(room).unwrap_or(usize::MAX).min(SLOTS)
}

/// Brakes, kills and workers, with the kills of an earlier process taken over.
fn enforcer(
    configuration: &Configuration,
    mut past: Past,
    root: &Root,
    writer: Worker,
    troubles: &mut Vec<String>,
) -> anyhow::Result<Enforcer> {
    let of_machine = BrakeLimits::of(meminfo::cpus(), Bytes(page_bytes()), Bytes(meminfo::huge_page_bytes()));
    let limits = BrakeLimits { hold: configuration.machine.brake.deadline, ..of_machine };
    let mut kills = Kills::with_capacity(KillLimits::default(), MAX_ACTIONS);
    let doubtful = take_over(&past.kills, root, &mut kills, &mut past.record, troubles);
    Ok(Enforcer {
        record: past.record,
        brakes: Brakes::with_capacity(limits, MAX_ACTIONS, Arc::new(past.stopped)),
        kills,
        doubtful,
        workers: Workers::beside(writer, JOBS).context("cannot start the worker threads")?,
        reclaim: Worker::start("reclaim", JOBS).context("cannot start a worker thread")?,
        figures: Worker::start("figures", watch::FIGURES).context("cannot start a worker thread")?,
        fold: Worker::start("fold", 1).context("cannot start a worker thread")?,
        freeze: configuration.machine.brake.mode == BrakeMode::Freeze,
    })
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
        let taken = match Handle::open(root, &kill.path) {
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
            past.push(PendingKill { cgroup, path: name.into(), since: MonotonicNs(1), written });
        }
        past.push(PendingKill { cgroup: CgroupId(3), path: b"gone".into(), since: MonotonicNs(1), written: true });
        for kill in &past {
            let (step, since) = (if kill.written { Step::KillWritten } else { Step::Killing }, kill.since);
            record.write(Intent { step, cgroup: kill.cgroup, path: &kill.path, since }).expect("room");
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
}
