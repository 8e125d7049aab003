//! The core: senses, decides, acts. One thread that watches, one for the inventory, six workers for what blocks, two that
//! read disks, one that holds the right to act and one that waits for it, and with the in-kernel brake one that continues
//! what it stopped; no async runtime.
//!
//! This file sets it up: undo what an earlier process left, start the source, find the workloads, lock memory, give up
//! privileges, and only then wait.

mod disk_reader;
mod episode;
mod fault_injection;
mod inventory;
mod kernel_brake;
mod past;
mod pause;
mod resume;
mod succession;
mod suspects;
mod thresholds;
mod watch;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use plimsoll_act::Worker;
use plimsoll_config::{Configuration, SourceChoice, Throttled, WatchedSlice};
use plimsoll_inventory::{Patterns, PodRoot, Protected, ReliefMode, SLOTS, SlicePlace, Table};
use plimsoll_node::cgroup::Root;
use plimsoll_node::clock::monotonic;
use plimsoll_node::limits::TaskLimits;
use plimsoll_node::lock::Locked;
use plimsoll_node::meminfo::{MemInfo, page_bytes};
use plimsoll_node::os::{CGROUP_ROOT, CgroupMode};
use plimsoll_node::pressure::MemoryPressure;
use plimsoll_node::zoneinfo::Zones;
use plimsoll_node::{NodeError, capabilities, lock, priority, process, system_calls};
use plimsoll_policy::Scope;
use plimsoll_policy::kubelet::Signal;
use plimsoll_sense::{HookState, Kind, MAX_BRAKES, Source, SourceAttempt, hooks, ladder};
use plimsoll_state::handover::{self, Handover};
use plimsoll_state::heartbeat::Heart;
use plimsoll_state::queue::{self, Producer};
use plimsoll_units::{MonotonicNs, Pages, Pattern};
use rtrb::RingBuffer;
use rustix::event::{Timespec, poll};

use crate::acting::{Claim, Locks, Turn};
use crate::child::{ChildArguments, ensure_child_of};
use crate::inherit;
use crate::kill_switch::KillSwitch;
use crate::record::StartParts;
use crate::state_directory::StateDirectory;
use disk_reader::{DiskReader, DiskReaders};
use inventory::{Annotation, InventoryHandle, Outgoing, StartupReport, Switches};
use kernel_brake::KernelBrake;
use past::{Past, enforcer, resumer};
use thresholds::Machine;
pub(crate) use watch::BRAKE_LEASE;
use watch::{
    Arming, DiskVictims, Disks, Enforcement, Engine, Evictions, Reporting, RuntimeRoots, Sampler, Signals, Stopping,
    Triggers, Walking, Watch,
};

/// How often the core samples although the kernel submits events: a lost one costs at most this, and at rest a beat.
const SLOW_SAMPLE: Duration = Duration::from_secs(1);
/// A watching thread that samples so often shows that it is alive.
const OFTEN: Duration = Duration::from_secs(10);
/// Descriptors that a workload's handle keeps open: its directory, usage, events, freeze and kill; and one more where tasks
/// are counted.
const FILES_A_WORKLOAD: u64 = 5;
/// Descriptors for everything else, of which each of the two workers that open processes may need 256 for these, and as many for
/// the directories on the way down to them.
const OTHER_FILES: u64 = 1280;
/// Room for updates of the inventory thread, which waits where there is none: those of the pods of a dense node. Handles come
/// back from the table and from updates, as many as both have.
const UPDATES: usize = 1024;
/// Frames in the watching thread's queue to the reporter, locked like all memory of this process: some fifty decisions.
const QUEUE: usize = 1024;
/// Frames in the inventory thread's: those of a minute.
const SLOW_QUEUE: usize = 256;
/// The file of processes that were stopped one by one, in the state directory.
pub(crate) const STOPPED: &str = "stopped";
/// Jobs that a worker may have waiting: several for each of the brakes and kills at a time.
const JOBS: usize = 8 * past::MAX_ACTIONS;
/// The inventory thread's stack, locked like all memory of this process. A test does what goes deepest on half of it.
const INVENTORY_STACK: usize = 192 << 10;
/// How long the end waits for the other threads, twice.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the core may take from the signal that asks it to end.
pub(crate) const END_MOST: Duration = watch::END_MOST.saturating_add(LAST_WORDS.saturating_mul(2));

/// What the supervisor starts the core with.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    child: ChildArguments,
    /// The memory of the heartbeat.
    #[arg(long)]
    heartbeat: i32,
    /// The alarm that each heartbeat sets anew.
    #[arg(long)]
    alarm: i32,
    /// Readable when the reporter is new.
    #[arg(long)]
    reporter_restarted: i32,
    /// The socket by which the core is sent what is known of pods and disks.
    #[arg(long)]
    pods: Option<i32>,
    /// There is a container runtime that `services` may ask: pods that have time to end are stopped by it.
    #[arg(long, requires = "pods")]
    asks_runtime: bool,
    /// The socket by which the scanner sends what pods take of disks.
    #[arg(long)]
    storage: Option<i32>,
    /// The socket by which the broker is sent what services is ordered to have done.
    #[arg(long, requires = "pods")]
    broker: Option<i32>,
    /// The configured state directory, which can only be read; state is kept in another one.
    #[arg(long)]
    read_only_state: Option<PathBuf>,
    /// The socket by which the supervisor is asked where the kubelet and container runtimes are.
    #[arg(long)]
    node_services: Option<i32>,
}

/// Runs until it is asked to end, and gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let begun = monotonic();
    #[cfg(feature = "fault-injection")]
    crate::fault_injection::arm_kill_point()?;
    let mut start = StartParts::default();
    let parent = open_parent(arguments.child.supervisor)?;
    let [socket, reporter_restarted] = [arguments.child.socket()?, reporter_restarts(arguments.reporter_restarted)?];
    let [pods, storage, broker, node_services] = ways(arguments)?;
    let heart = Heart::attach(inherit::take(arguments.heartbeat)?, inherit::take(arguments.alarm)?)?;
    let (queue, slow_queue) = queues(&socket)?;
    let term = term_descriptor()?;
    let protected = Protected::read();
    let configuration = arguments.child.configuration(own_cgroup(&protected))?;
    let mut troubles = Vec::from_iter(state_directory(arguments, &configuration).trouble());
    start.configuration = lap(begun);
    #[cfg(feature = "log")]
    crate::log::print_kernel_side(configuration.machine.log_format)?;

    let (root, unified) = cgroups()?;
    let (claim, turn) = claim(&configuration, unified, &mut troubles)?;
    let acting = claim.is_some() && turn.is_none();
    let shadow = shadow(acting, unified, configuration.machine.shadow);

    let now = monotonic();
    let mut past = if acting { Some(Past::undo(&configuration, &root, &mut troubles)?) } else { None };
    start.undo = lap(now);

    let now = monotonic();
    raise_open_files(&mut troubles);
    let brakes_in_kernel = unified && brakes_in_kernel(&configuration, &mut troubles);
    let Some((source, attempts)) = stand(&configuration, brakes_in_kernel) else { return Ok(crate::NOT_HERE) };
    start.source = lap(now);

    let now = monotonic();
    let ((give_means, means), (report_taken_over, taken_over)) = (RingBuffer::new(1), std::sync::mpsc::channel());
    let most = most_workloads(counts_tasks(&configuration));
    let ((give, updates), (give_back, returned)) = (RingBuffer::new(UPDATES), RingBuffer::new(most + UPDATES));
    let (machine, has_events, slow) = (machine()?, names_cgroups(&*source), slow_sample(source.kind(), &configuration));
    let (inform, messages) = RingBuffer::new(watch::MESSAGES);
    let (handle, news) = (InventoryHandle::new()?, inventory::eventfd()?);
    let config = inventory_config(&configuration, &root, protected, brakes_in_kernel, most)?;
    let (inventory, protections) = past::inventory(config, &configuration, &mut troubles)?;
    let mut inventory = inventory::Thread {
        inventory,
        outgoing: Outgoing::new(give, handle.clone(), returned, news.try_clone()?, slow_queue, protections),
        health: source.health_reader(),
        packet_rings: source.packet_rings(),
        machine,
        handle: handle.clone(),
        left: past.as_mut().map(|past| std::mem::take(&mut past.left)).unwrap_or_default(),
        reporter_restarted,
        switches: switches(&configuration),
        node_services: inventory::NodeServices::new(node_services),
        following: inventory::Following::new(relief_mode(&configuration)),
        pods: pods.map(inventory::PodSocket::new),
        broker: broker.map(inventory::PodSocket::new),
        messages,
        storage: storage.map(inventory::PodSocket::new),
        taken_over,
        turns: slow.is_some_and(|slow| slow <= OFTEN),
        has_events,
    };
    let found = inventory.first();
    start.workloads = lap(now);

    let now = monotonic();
    let (writer, locked) = settle(&mut troubles)?;
    start.lock = lap(now);

    let undone = past.as_ref().and_then(|past| past.counts);
    // One that shadows hands it to the thread that takes over.
    let (writer, enforcer) = match past {
        Some(past) => (None, Some(enforcer(&configuration, past, &root, writer, &news, &mut troubles)?)),
        None => (Some(writer), None),
    };
    let (table, engine) = locked.reserve(|| tables(&configuration, most));
    let parts = watch::Parts {
        heart,
        triggers: Triggers::new(source, Signals { inventory: news.try_clone()?, term, parent })?,
        workloads: watch::Workloads::new(table, updates, give_back, handle.clone()),
        engine,
        sampler: sampler(&configuration, &mut troubles)?,
        arming: Arming::new(machine),
        enforcement: Enforcement::new(enforcer, kernel_brake(&configuration, acting && brakes_in_kernel)?, means),
        reporting: Reporting::new(queue, arguments.child.options.trace.is_some()),
        walking: Walking::new(has_events),
        evictions: Evictions::new(arguments.pods.is_some().then_some(inform), monotonic()),
        disks: Disks::new(configuration.disk_policy()),
        disk_victims: disk_victims(arguments, &configuration, most, &locked)?,
        stopping: Stopping::new(arguments.asks_runtime),
    };
    let mut watch = Watch::new(parts, slow, &locked);
    filter(&mut troubles);
    watch.begin(found);
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

/// The tree of cgroups, and whether the machine has version 2 alone.
fn cgroups() -> anyhow::Result<(Root, bool)> {
    let mode = CgroupMode::detect();
    Ok((Root::open(mode.root().unwrap_or(CGROUP_ROOT.as_ref()))?, mode == CgroupMode::Unified))
}

/// The ways from `services`, from the scanner, to the broker, and to what finds the kubelet and container runtimes.
fn ways(arguments: &Arguments) -> anyhow::Result<[Option<OwnedFd>; 4]> {
    let Arguments { pods, storage, broker, node_services, .. } = *arguments;
    let take = |number: Option<i32>| number.map(inherit::take).transpose();
    Ok([take(pods)?, take(storage)?, take(broker)?, take(node_services)?])
}

/// What is readable when the reporter is new. The one that runs already was sent nothing yet and reads all of the queues:
/// what is in them would be reported twice.
fn reporter_restarts(number: i32) -> anyhow::Result<OwnedFd> {
    let restarted = inherit::take(number)?;
    inventory::clear(&restarted);
    Ok(restarted)
}

/// Where state is kept, as the supervisor has found.
fn state_directory(arguments: &Arguments, configuration: &Configuration) -> StateDirectory {
    StateDirectory { path: configuration.machine.state_directory.clone(), read_only: arguments.read_only_state.clone() }
}

/// Claims the right to act, unless this machine can only be watched. A dry run claims nothing, so that an agent beside it acts.
fn claim(
    configuration: &Configuration,
    unified: bool,
    troubles: &mut Vec<String>,
) -> anyhow::Result<(Option<Claim>, Option<Turn>)> {
    let locks = Locks::of(&configuration.machine.state_directory);
    let claims = unified && !configuration.machine.shadow;
    let (claim, turn) = claims.then(|| Claim::start(locks, troubles)).transpose()?.unzip();
    Ok((claim, turn.flatten()))
}

/// The brake in the kernel; `acts`: what that stopped is continued by this process.
fn kernel_brake(configuration: &Configuration, acts: bool) -> anyhow::Result<KernelBrake> {
    let resumer = if acts { resumer()? } else { None };
    Ok(KernelBrake::new(configuration.machine.brake.deadline, resumer))
}

/// Before this process waits for what others write. Where the filter cannot be had, the core does without.
fn filter(troubles: &mut Vec<String>) {
    if let Err(error) = system_calls::filter_core() {
        troubles.push(error.to_string());
    }
}

/// What reads the machine's own figures.
fn sampler(configuration: &Configuration, troubles: &mut Vec<String>) -> anyhow::Result<Sampler> {
    Ok(Sampler::new(MemInfo::open()?, MemoryPressure::open().ok(), task_limits(configuration, troubles)))
}

/// The workloads and the decisions about them, for so many.
fn tables(configuration: &Configuration, most: usize) -> (Table, Engine) {
    (Table::with_slots(most), Engine::new(configuration.policy.clone(), most))
}

/// What decides about pods for what they take of disks: the scanner is there where that may be.
fn disk_victims(
    arguments: &Arguments,
    configuration: &Configuration,
    most: usize,
    locked: &Locked,
) -> anyhow::Result<Option<DiskVictims>> {
    let start = |_| {
        let (directories, roots) = RuntimeRoots::of(configuration);
        let node = DiskReader::start("disk", vec![configuration.kubelet_root()])?;
        let readers = DiskReaders::new(node, DiskReader::start("runtime-disks", directories)?);
        Ok(locked.reserve(|| DiskVictims::new(configuration.disk_policy(), most, readers, roots)))
    };
    arguments.storage.map(start).transpose()
}

/// The file, and with a cluster the annotation on the node's object.
fn switches(configuration: &Configuration) -> Switches {
    let machine = &configuration.machine;
    let annotation = machine.cluster.is_on().then(|| Annotation::resume(&machine.state_directory));
    Switches::new(machine.kill_switch.as_deref().map(KillSwitch::new), annotation)
}

/// What is done at most about containers that memory.high throttles.
fn relief_mode(configuration: &Configuration) -> ReliefMode {
    match configuration.machine.throttled {
        Throttled::Report => ReliefMode::Report,
        Throttled::Relax => ReliefMode::Relax,
        Throttled::Evict => ReliefMode::Evict,
    }
}

fn start_inventory(inventory: inventory::Thread, startup_report: StartupReport) -> anyhow::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("inventory".into())
        .stack_size(INVENTORY_STACK)
        .spawn(move || {
            // A decision waits for its walks.
            let _ = priority::prefer_this_thread();
            inventory.serve(startup_report);
        })
        .context("cannot start the inventory thread")
}

/// The watching thread's queue to the reporter and the inventory thread's, handed over by `socket`.
fn queues(socket: &OwnedFd) -> anyhow::Result<(Producer, Producer)> {
    let ((queue, watch), (slow_queue, inventory)) = (queue::create(QUEUE)?, queue::create(SLOW_QUEUE)?);
    let process = process::open(rustix::process::getpid()).context("cannot open the core's own process")?;
    if let Err(errno) = handover::send(socket, &Handover { queues: [watch, inventory], process }) {
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

/// The patterns that are meant, without what is never touched.
fn patterns<'c>(meant: impl Iterator<Item = &'c Pattern>, configuration: &'c Configuration) -> Patterns {
    Patterns { workloads: meant.cloned().collect(), never: configuration.machine.never.clone(), pods: None }
}

/// Where pods are; absent where nothing of them is known, so that they are no workloads.
pub(crate) fn pod_root_of_known(configuration: &Configuration) -> Option<PodRoot> {
    configuration.machine.knows_pods().then(|| pod_root(configuration))
}

/// Where pods are.
pub(crate) fn pod_root(configuration: &Configuration) -> PodRoot {
    PodRoot(configuration.cgroup_root().as_bytes().to_vec())
}

/// Which cgroups are workloads, slices and slices that the kernel brakes.
fn inventory_config(
    configuration: &Configuration,
    root: &Root,
    protected: Protected,
    brakes_in_kernel: bool,
    max_workloads: usize,
) -> anyhow::Result<plimsoll_inventory::Config> {
    let machine = &configuration.machine;
    let workloads = patterns(machine.workloads.iter().map(|workload| &workload.pattern), configuration);
    Ok(plimsoll_inventory::Config {
        root: Root::open(root.path())?,
        patterns: Patterns { pods: pod_root_of_known(configuration), ..workloads },
        priorities: machine.workloads.iter().map(|workload| workload.priority).collect(),
        protected,
        slices: configuration.slices().map(place_of).collect(),
        brakes: brakes_in_kernel.then(|| patterns(machine.brake.in_kernel.iter(), configuration)),
        max_brakes: MAX_BRAKES,
        max_workloads,
        counts_tasks: counts_tasks(configuration),
    })
}

fn place_of(slice: WatchedSlice<'_>) -> SlicePlace {
    match slice {
        WatchedSlice::Listed(path) => SlicePlace::Path(path.clone()),
        WatchedSlice::Pods => SlicePlace::Pods,
    }
}

/// Whether the source submits events for cgroups that come and go.
fn names_cgroups(source: &dyn Source) -> bool {
    let hooks = source.health_reader().read().hooks;
    hooks.iter().any(|hook| hook.name == hooks::CGROUPS && matches!(hook.state, HookState::Attached(_)))
}

/// Whether decisions need the number of tasks.
fn counts_tasks(configuration: &Configuration) -> bool {
    configuration.policy.thresholds_on(Scope::Node, Signal::PidAvailable).next().is_some()
}

/// The figures of the machine's tasks. Where they cannot be opened and decisions need them, that is reported.
fn task_limits(configuration: &Configuration, troubles: &mut Vec<String>) -> Option<TaskLimits> {
    let failed = |error: &NodeError| {
        if counts_tasks(configuration) {
            troubles.push(format!("pid.available is not observed: {error}"));
        }
    };
    TaskLimits::open().inspect_err(failed).ok()
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
fn settle(troubles: &mut Vec<String>) -> anyhow::Result<(Worker, Locked)> {
    let locked = lock::all(&crate::apart::parts()).unwrap_or_else(|error| {
        troubles.push(error.to_string());
        Locked::default()
    });
    lock::touch_stack();
    let (prepared, is_prepared) = std::sync::mpsc::channel();
    let prepare = move || {
        // What is not granted to it is not granted to the watching thread, which reports that.
        let _ = priority::raise_this_thread(priority::Level::Writing);
        let _ = prepared.send(keep_capabilities());
    };
    let writer = Worker::start_with("write", JOBS, prepare).context("cannot start a worker thread")?;
    is_prepared.recv().context("the worker that writes ended")??;
    if let priority::Priority::Unchanged(errno) = priority::raise_this_thread(priority::Level::Watching) {
        troubles.push(format!("neither real-time priority nor a better nice value was granted: {errno}"));
    }
    // For the inventory thread and the workers that a decision waits for, which have no capability for that. Refused, they
    // have to wait for a CPU like others.
    let _ = priority::permit_preference();
    keep_capabilities()?;
    Ok((writer, locked))
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
const fn shadow(acting: bool, unified: bool, is_asked: bool) -> Option<&'static str> {
    match (acting, unified) {
        (true, _) => None,
        (false, true) if is_asked => {
            Some("dry run (machine.shadow): what it would do is reported, and nothing is done")
        }
        (false, true) => Some("another agent acts on this machine; this one shadows it and takes over"),
        (false, false) => Some("version 1 holds the memory controller; this machine can only be watched (shadow)"),
    }
}

/// The best source that works here. `None` only where the configuration allows one and no other; the error is printed.
fn stand(configuration: &Configuration, kernel_brake: bool) -> Option<(Box<dyn Source>, Vec<SourceAttempt>)> {
    ladder(&source_config(configuration, kernel_brake)).inspect_err(|error| eprintln!("plimsoll: {error:#}")).ok()
}

/// A descriptor of the supervisor, which is readable when that is gone.
fn open_parent(supervisor: Option<i32>) -> anyhow::Result<OwnedFd> {
    let parent = rustix::process::getppid().context("the supervisor is gone")?;
    let fd = plimsoll_node::process::open(parent).context("cannot open the supervisor's process")?;
    ensure_child_of(supervisor.unwrap_or(parent.as_raw_pid()))?;
    Ok(fd)
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

/// Whether the kernel may stop processes: where a slice is configured for that, and the agent would find them again.
fn brakes_in_kernel(configuration: &Configuration, troubles: &mut Vec<String>) -> bool {
    let is_asked = !configuration.machine.brake.in_kernel.is_empty();
    let hidden = process::hidden_processes().filter(|_| is_asked);
    troubles.extend(hidden.iter().map(|why| {
        format!("the in-kernel brake is off: {why}, so that the agent could not continue what the kernel stopped")
    }));
    is_asked && hidden.is_none()
}

fn source_config(configuration: &Configuration, kernel_brake: bool) -> plimsoll_sense::Config {
    plimsoll_sense::Config {
        only: match configuration.machine.source {
            SourceChoice::Auto => None,
            SourceChoice::Ebpf => Some(Kind::Ebpf),
            SourceChoice::Psi => Some(Kind::PsiTrigger),
            SourceChoice::Poll => Some(Kind::Polling),
        },
        poll_period: configuration.machine.poll_period,
        // One that shadows loads it too, for its turn, and marks no slice until then.
        kernel_brake,
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
fn most_workloads(counts_tasks: bool) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = limit.saturating_sub(OTHER_FILES) / (FILES_A_WORKLOAD + u64::from(counts_tasks));
    usize::try_from(room).unwrap_or(usize::MAX).min(SLOTS)
}
