//! `plimsoll run`: starts the core, the reporter, `services`, the scanner and the broker, and starts them again when they die.
//!
//! Small and locked in memory, so that it can do its one duty however short memory is: when the core has ended, what it
//! froze is thawed and what it stopped is continued at once, before a new core is started.

mod api_server;
mod following;
mod linked;
mod runtime_sockets;

use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use plimsoll_config::{ConfigError, Configuration, Node, Plausible, Snapshot, implausible_thresholds};
use plimsoll_inventory::Protected;
use plimsoll_node::cgroup::Root;
use plimsoll_node::meminfo::MemInfo;
use plimsoll_node::os::{CGROUP_ROOT, CgroupMode};
use plimsoll_node::{NodeError, lock, namespaces, priority, program};
use plimsoll_report::Log;
use plimsoll_state::handover::{self, Handover};
use plimsoll_state::heartbeat;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::acting::Locks;
use crate::answering::Answering;
use crate::core;
use crate::inherited_config::InheritedConfig;
use crate::kill_switch::KillSwitch;
use crate::manifests;
use crate::node_services;
use crate::observe::selected;
use crate::options::{LogLevel, Options};
use crate::running_kubelet::{self, Changed};
use crate::scanner::quotas;
use crate::service_manager;
use crate::services::{self, ClusterSettings};
use crate::state_directory::StateDirectory;
use crate::undo::undo_all;
use crate::watchdog::Watchdog;
use api_server::ApiServer;
use linked::Linked;
use runtime_sockets::RuntimeSockets;

/// The first pause before a process is started again. Each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause before a process is started again.
const PAUSE_MOST: Duration = Duration::from_secs(10);
/// For a process that ran for so long the pause begins anew.
const LIVED: Duration = Duration::from_mins(1);
/// How long the core may take to finish what it began and to release everything; somewhat more than it allows itself.
const CORE_GRACE: Duration = core::END_MOST.saturating_add(Duration::from_secs(3));
/// How long the reporter may take for what is left to report.
const REPORTER_GRACE: Duration = Duration::from_secs(2);
/// How long the end waits until this process's own log is read.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How long `services` may take to end: it has nothing to finish.
const SERVICES_GRACE: Duration = Duration::from_secs(1);
/// How long the end of a process that was killed is waited for.
const KILLED_GRACE: Duration = Duration::from_secs(1);
/// The OOM killer's adjustment of the supervisor, the core and the reporter: after all others but those that it never kills.
const OOM_SCORE: i16 = -999;

/// Reads the configuration, with this process's own cgroup for its checks.
pub(crate) fn configuration(options: &Options) -> Result<Configuration, ConfigError> {
    options.load(core::own_cgroup(&Protected::read()))
}

/// The same, refused where this machine's memory makes no sense of its thresholds.
pub(crate) fn plausible_configuration(options: &Options) -> Result<Configuration, ConfigError> {
    plausible(configuration(options)?)
}

/// The configuration with warnings of thresholds that this machine's memory is near, or an error for one that is always met.
fn plausible(mut configuration: Configuration) -> Result<Configuration, ConfigError> {
    let memory = MemInfo::open().ok().and_then(|file| file.read().ok());
    let node = Node {
        memory: memory.map(|reading| reading.total),
        available: memory.map(|reading| reading.kubelet_available()),
        huge_pages: memory.and_then(|reading| reading.hugetlb).unwrap_or_default(),
        ..Node::default()
    };
    let Plausible { errors, warnings } = implausible_thresholds(&configuration, &node);
    configuration.warnings.extend(warnings);
    if errors.is_empty() { Ok(configuration) } else { Err(ConfigError(errors)) }
}

/// Runs until SIGTERM or SIGINT, and gives the exit code.
pub(crate) fn main(options: &Options) -> anyhow::Result<u8> {
    let options = &options.with_running_kubelet();
    // The files of the configuration may be a container's own, and those of its service account are.
    let loaded = in_the_machine(|| {
        let (configuration, read) = options.load_and_keep(core::own_cgroup(&Protected::read()))?;
        let configuration = plausible(configuration)?;
        let account = configuration.machine.cluster.in_cluster.then(service_account);
        Ok((configuration, read, account))
    })?;
    let Some((configuration, read, account)) = loaded else { return Ok(crate::NOT_HERE) };
    if let Some(sentence) = CgroupMode::detect().refusal() {
        eprintln!("plimsoll: {sentence}");
        return Ok(crate::NOT_HERE);
    }
    Supervisor::start(options, configuration, &read, account)?.serve()
}

/// The directory of the pod's service account, by which `services` reads the files that its kubelet replaces.
pub(crate) fn service_account() -> Result<OwnedFd, Errno> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, plimsoll_kube::SERVICE_ACCOUNT, how, Mode::empty())
}

/// Begins to look up the API server, where a cluster is configured.
fn api_server(configuration: &Configuration, account: Option<&OwnedFd>) -> Option<ApiServer> {
    let account = account.map(OwnedFd::try_clone).transpose().ok()?;
    let settings = ClusterSettings::of(configuration, account);
    let found = settings.and_then(|settings| settings.map(ApiServer::look_up).transpose());
    found.unwrap_or_else(|error| {
        tracing::warn!("the API server is not connected to until the agent is started again: {error:#}");
        None
    })
}

/// Enters the machine's namespaces, where a container runtime made others, and gives what `load` gives, which still sees
/// the container's files. `None` where that is not possible; why is printed.
pub(crate) fn in_the_machine<T>(load: impl FnOnce() -> Result<T, ConfigError>) -> Result<Option<T>, ConfigError> {
    let refused = |error: NodeError| crate::log::complain(&error.to_string());
    let Ok(mounts) = namespaces::enter_cgroups().map_err(refused) else { return Ok(None) };
    let loaded = load()?;
    let entered = mounts.map_or(Ok(()), namespaces::Mounts::enter).map_err(refused);
    Ok(entered.is_ok().then_some(loaded))
}

struct Supervisor {
    configuration: Configuration,
    /// Passed on to the processes that are started, with the level of the log as it is now.
    options: Options,
    configured_level: Option<LogLevel>,
    /// The configured state directory, where that can only be read.
    read_only_state: Option<PathBuf>,
    inherited_config: InheritedConfig,
    /// Those of the newest core: each new reporter gets them.
    queues: Option<Handover>,
    /// From which the queues of a core that was just started are received.
    from_core: Option<UnixDatagram>,
    /// By which the reporter gets them.
    to_reporter: Option<UnixDatagram>,
    reporter_restarted: OwnedFd,
    /// The way from `services` to the newest core.
    facts: Option<OwnedFd>,
    /// By which `services` gets that, and asks for connections to the container runtime.
    to_services: Option<UnixDatagram>,
    runtime_sockets: RuntimeSockets,
    /// For `services`.
    service_account: Option<OwnedFd>,
    /// From which a kubelet's configuration comes that is another one since. Absent where none is followed.
    followed: Option<Receiver<Changed>>,
    signals: UnixStream,
    asked: Asked,
    log: Log,
    watchdog: Watchdog,
    core: ChildProcess,
    reporter: ChildProcess,
    /// Absent where it has nothing to do.
    services: Option<ChildProcess>,
    /// The same of these.
    scanner: Option<Linked>,
    broker: Option<Linked>,
    /// Threads that have for the scanner what the kernel counts for projects.
    quotas: Answering,
    /// Threads that open manifests of static pods for `services`.
    manifests: Answering,
    observes_disks: bool,
    /// Processes that were killed and left, and have not ended yet.
    left: Vec<Child>,
    /// How many cores were started.
    cores: usize,
}

/// What signals ask this process for.
#[derive(Default)]
struct Asked {
    /// SIGTERM or SIGINT: to end.
    end: Arc<AtomicBool>,
    /// SIGUSR1: to log at the level `debug`.
    debug: Arc<AtomicBool>,
    /// SIGUSR2: to log at the configured level.
    configured: Arc<AtomicBool>,
    /// SIGHUP: by which many services read their files again.
    reread: Arc<AtomicBool>,
}

/// A process that is started again when it ends.
struct ChildProcess {
    name: &'static str,
    child: Option<Child>,
    started: Instant,
    pause: Duration,
    /// When to start it.
    due: Option<Instant>,
}

impl ChildProcess {
    fn new(name: &'static str) -> Self {
        let now = Instant::now();
        Self { name, child: None, started: now, pause: PAUSE, due: Some(now) }
    }

    /// Its exit status, if it has ended.
    fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait().with_context(|| format!("cannot wait for the {}", self.name))?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    /// Plans its next start.
    fn again(&mut self) {
        if self.started.elapsed() >= LIVED {
            self.pause = PAUSE;
        }
        self.due = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MOST);
    }

    /// Asks it to end, and kills it where it does not within `grace`. Gives its exit status, if it ran, however long that
    /// takes: there is never a second one.
    fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        ask_or_kill(&mut child, grace).or_else(|| child.wait().ok())
    }

    /// Likewise, where a second one may be started beside it. Gives it where it does not end although it was killed: it
    /// waits in the kernel, as for a disk that does not answer.
    fn stop_or_leave(&mut self, grace: Duration) -> Option<Child> {
        let mut child = self.child.take()?;
        let status = ask_or_kill(&mut child, grace).or_else(|| ended_within(&mut child, KILLED_GRACE));
        status.is_none().then_some(child)
    }
}

/// Asks a process to end, and kills it where it does not within `grace`. Gives its exit status where it does.
fn ask_or_kill(child: &mut Child, grace: Duration) -> Option<ExitStatus> {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    let status = ended_within(child, grace);
    if status.is_none() {
        let _ = child.kill();
    }
    status
}

/// The exit status of a process that ends within this time.
fn ended_within(child: &mut Child, most: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if begun.elapsed() < most => std::thread::sleep(Duration::from_millis(5)),
            status => return status.ok().flatten(),
        }
    }
}

/// Of what is valid in the configuration and yet probably a mistake.
fn log_warnings(configuration: &Configuration) {
    for warning in &configuration.warnings {
        tracing::warn!("configuration: {warning}");
    }
}

/// Where nothing can be evicted now, which looks like an agent that has nothing to do.
fn log_no_workloads(configuration: &Configuration, root: &Path) {
    let machine = &configuration.machine;
    let Ok(root) = Root::open(root) else { return };
    if machine.knows_pods() || selected(configuration, &root, &Protected::read()).0 > 0 {
        return;
    }
    if machine.workloads.is_empty() {
        tracing::warn!(
            "nothing can be evicted: machine.workloads is empty, and neither machine.podFacts nor machine.cluster is set"
        );
    } else {
        tracing::warn!("nothing can be evicted now: no pattern of machine.workloads matches a cgroup that may be");
    }
}

/// Where a kill switch that is thrown would be ignored, which would be seen too late.
fn log_untrusted_kill_switch(switch: &KillSwitch) {
    if let Some(why) = switch.distrust() {
        tracing::warn!("a kill switch at {} would stop nothing: {why}", switch.path().display());
    }
}

impl Supervisor {
    fn start(
        options: &Options,
        configuration: Configuration,
        read: &Snapshot,
        account: Option<Result<OwnedFd, Errno>>,
    ) -> anyhow::Result<Self> {
        // Before any thread has a stack.
        let small_pages = lock::small_pages();
        let (mut options, mut configuration) = (options.clone(), configuration);
        let state = StateDirectory::find(&configuration.machine.state_directory);
        if state.read_only.is_some() {
            state.make()?;
            options.keep_state_in(&state.path);
            configuration.machine.state_directory.clone_from(&state.path);
        }
        Locks::of(&configuration.machine.state_directory).make_places()?;
        let (signals, write) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        let asked = Asked::default();
        // Before the wake, so that this thread finds them set.
        for (signal, flag) in [
            (SIGTERM, &asked.end),
            (SIGINT, &asked.end),
            (SIGUSR1, &asked.debug),
            (SIGUSR2, &asked.configured),
            (SIGHUP, &asked.reread),
        ] {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
        }
        for signal in [SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        // A thread of its own writes it: where it is not read, the core is started all the same.
        let log = Log::start(configuration.machine.log_format, options.log_level(), std::io::stdout(), || {})?;
        log.install()?;
        // As it was loaded.
        let own_cgroup = core::own_cgroup(&Protected::read());
        let follow = |wake| running_kubelet::follow(&options, &configuration, read.clone(), own_cgroup, wake);
        let followed = options.follows_kubelet().then(|| write.try_clone().and_then(follow)).transpose();
        let followed = followed.context("cannot start the thread that follows the kubelet")?;
        let service_account = account.transpose().unwrap_or_else(|errno| {
            tracing::warn!("{} cannot be opened: {errno}", plimsoll_kube::SERVICE_ACCOUNT);
            None
        });
        let api_server = api_server(&configuration, service_account.as_ref());
        let observes_disks = services::disks_are_configured(&configuration);
        let needs_services = observes_disks || services::knows_pods(&configuration);
        let supervisor = Self {
            configured_level: options.log_level,
            options,
            read_only_state: state.read_only,
            inherited_config: InheritedConfig::new(read)
                .context("cannot keep the configuration for the processes to be started")?,
            queues: None,
            from_core: None,
            to_reporter: None,
            facts: None,
            to_services: None,
            runtime_sockets: RuntimeSockets::of(&configuration, api_server),
            service_account,
            reporter_restarted: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            followed,
            signals,
            asked,
            log,
            watchdog: Watchdog::start(configuration.machine.state_directory.clone())?,
            core: ChildProcess::new("core"),
            reporter: ChildProcess::new("reporter"),
            services: needs_services.then(|| ChildProcess::new("services")),
            scanner: Linked::scanner(&configuration),
            broker: Linked::broker(&configuration),
            quotas: Answering::default(),
            manifests: Answering::default(),
            observes_disks,
            left: Vec::new(),
            cores: 0,
            configuration,
        };
        // What it needs from here on it has when it starts the first core; that is what stays.
        program::let_go();
        let locked = [small_pages, lock::all_on_fault()].into_iter().filter_map(Result::err);
        let apart = priority::die_one_by_one(CGROUP_ROOT.as_ref(), &Protected::read().own);
        for trouble in locked.chain([priority::set_oom_score_adj(OOM_SCORE), apart].into_iter().filter_map(Result::err))
        {
            tracing::warn!("{trouble}");
        }
        log_warnings(&supervisor.configuration);
        if let Some(path) = &supervisor.configuration.machine.kill_switch {
            log_untrusted_kill_switch(&KillSwitch::new(path));
        }
        log_no_workloads(&supervisor.configuration, CgroupMode::detect().root().unwrap_or(CGROUP_ROOT.as_ref()));
        Ok(supervisor)
    }

    fn serve(mut self) -> anyhow::Result<u8> {
        let mut first = true;
        while !self.asked.end.load(Ordering::Relaxed) {
            self.start_due()?;
            self.wait()?;
            self.set_log_level();
            self.refuse_to_reread();
            if let Some(changed) = self.followed.as_ref().and_then(|followed| followed.try_recv().ok()) {
                self.go_on_with(changed);
            }
            if let Some(status) = self.core.ended()? {
                self.watchdog.forget();
                self.undo();
                // Where it died right after it had sent them, its last records are in there.
                self.take_queues();
                if first && status.code() == Some(i32::from(crate::NOT_HERE)) {
                    // What this machine lacks it will lack in a second, too. The core printed what it is.
                    self.stop_others();
                    return Ok(crate::NOT_HERE);
                }
                first = false;
                self.core.again();
                tracing::warn!(%status, "the core ended and is started again");
            }
            if let Some(status) = self.reporter.ended()? {
                self.to_reporter = None;
                tracing::warn!(%status, "the reporter ended and is started again");
                self.reporter.again();
            }
            if let Some(services) = &mut self.services
                && let Some(status) = services.ended()?
            {
                self.to_services = None;
                // It is not trusted: where pods are known there is something to do.
                let may_end = !services::knows_pods(&self.configuration);
                if may_end && status.code() == Some(services::NOTHING_TO_DO.into()) {
                    (self.services, self.observes_disks) = (None, false);
                } else {
                    tracing::warn!(%status, "services ended and is started again; what it sent holds");
                    services.again();
                }
            }
            for linked in [&mut self.scanner, &mut self.broker] {
                if linked.as_mut().map_or(Ok(false), Linked::follow)? {
                    *linked = None;
                }
            }
            self.left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        }
        // Its watching thread has ended before the core has: the grace bounds that time.
        self.watchdog.forget();
        if let Some(status) = self.core.stop(CORE_GRACE).filter(|status| !status.success()) {
            tracing::warn!(%status, "the core did not end in order");
        }
        self.undo();
        self.take_queues();
        self.stop_others();
        self.log.finish(LAST_LINES);
        Ok(0)
    }

    /// Ends all but the core. The reporter is the last one: it reports what others still send.
    fn stop_others(&mut self) {
        let scanner = self.scanner.as_mut().and_then(Linked::stop);
        let broker = self.broker.as_mut().and_then(Linked::stop);
        let services = self.services.as_mut().and_then(|services| services.stop_or_leave(SERVICES_GRACE));
        let reporter = self.reporter.stop_or_leave(REPORTER_GRACE);
        let left = [scanner, broker, services, reporter].into_iter().flatten();
        self.left.extend(left.inspect(|child| tracing::warn!("process {} is killed and does not end", child.id())));
    }

    /// Waits for a signal, for the queues of a new core, for a request of `services`, or for the next start.
    fn wait(&mut self) -> anyhow::Result<()> {
        let services = self.services.as_ref().and_then(|services| services.due);
        let linked = [&self.scanner, &self.broker].map(|linked| linked.as_ref().and_then(Linked::due));
        let due = [self.core.due, self.reporter.due, services].into_iter().chain(linked).flatten().min();
        let due = due.map(|due| due.saturating_duration_since(Instant::now()));
        // Until its pause is over, what `services` asks for wakes nothing.
        let pause = self.to_services.as_ref().map(|_| self.runtime_sockets.pause()).filter(|pause| !pause.is_zero());
        let due = [due, pause, self.watchdog.report()];
        let timeout = due.into_iter().flatten().min().map(Timespec::try_from).transpose()?;
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        fds.extend(self.from_core.as_ref().map(|core| PollFd::new(core, PollFlags::IN)));
        let services = self.to_services.as_ref().filter(|_| pause.is_none());
        fds.extend(services.map(|services| PollFd::new(services, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for signals"),
        }
        self.take_queues();
        if let Some(services) = &self.to_services {
            self.runtime_sockets.answer(services, self.broker.as_ref().and_then(Linked::socket));
        }
        let mut bytes = [0; 64];
        while self.signals.read(&mut bytes).is_ok_and(|length| length == bytes.len()) {}
        Ok(())
    }

    /// Takes the queues of a new core, if they are there, and has the reporter read them.
    fn take_queues(&mut self) {
        let Some(core) = &self.from_core else { return };
        let received = handover::receive(core);
        if matches!(received, Err(Errno::AGAIN)) {
            return;
        }
        // A core sends once.
        self.from_core = None;
        if let Ok(queues) = received {
            self.queues = Some(queues);
            self.hand_on();
        }
    }

    /// Has the reporter read the queues, if both are there.
    fn hand_on(&mut self) {
        let (Some(socket), Some(queues)) = (&self.to_reporter, &self.queues) else { return };
        if let Err(errno) = handover::send(socket, queues) {
            // It would go on with the queues of a core that has ended. Its successor gets the new ones at its start.
            self.to_reporter = None;
            if let Some(reporter) = &mut self.reporter.child {
                let _ = reporter.kill();
            }
            tracing::warn!("the reporter does not receive its queues and is killed: {errno}");
        }
    }

    /// Has `services` send to the newest core, if both are there.
    fn hand_facts_on(&mut self) {
        let (Some(socket), Some(facts)) = (&self.to_services, &self.facts) else { return };
        if let Err(errno) = handover::send_core(socket, facts) {
            // As with the reporter.
            self.to_services = None;
            if let Some(services) = self.services.as_mut().and_then(|services| services.child.as_mut()) {
                let _ = services.kill();
            }
            tracing::warn!("services does not receive its way to the core and is killed: {errno}");
        }
    }

    /// Gives `services` and the reporter the ends of a new way for names of pods, if both are there. Where that fails, pods
    /// are reported without names.
    fn hand_names_on(&self) {
        let (Some(services), Some(reporter)) = (&self.to_services, &self.to_reporter) else { return };
        let handed = handover::messages_pair().and_then(|(its, of_services)| {
            handover::send_names(reporter, &its)?;
            handover::send_names(services, &of_services)
        });
        if let Err(errno) = handed {
            tracing::warn!("names of pods do not reach the reporter until it or services is started again: {errno}");
        }
    }

    fn start_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.reporter.due.is_some_and(|due| due <= now) {
            let launched = self.start_reporter();
            launched_or_again(&mut self.reporter, launched);
            // The core sends again what a new reporter cannot know.
            let _ = rustix::io::write(&self.reporter_restarted, &1_u64.to_ne_bytes());
        }
        if self.services.as_ref().is_some_and(|services| services.due.is_some_and(|due| due <= now)) {
            let launched = self.start_services();
            if let Some(services) = &mut self.services {
                launched_or_again(services, launched);
            }
        }
        if self.scanner.as_ref().is_some_and(Linked::is_due) {
            self.start_scanner();
        }
        if self.broker.as_ref().is_some_and(Linked::is_due) {
            let command = self.command("broker");
            if let Some(broker) = &mut self.broker {
                broker.start(command);
            }
        }
        if self.core.due.is_some_and(|due| due <= now) {
            // The core's alone.
            fcntl_setfd(&self.reporter_restarted, FdFlags::empty())?;
            let launched = self.start_core();
            fcntl_setfd(&self.reporter_restarted, FdFlags::CLOEXEC)?;
            self.cores += usize::from(launched.is_ok());
            launched_or_again(&mut self.core, launched);
        }
        Ok(())
    }

    fn start_reporter(&mut self) -> std::io::Result<()> {
        let command = self.command("reporter");
        let to_reporter = launch(&mut self.reporter, command, |(send, receive)| (receive, send))?;
        self.to_reporter = Some(to_reporter);
        self.hand_on();
        self.hand_names_on();
        Ok(())
    }

    fn start_services(&mut self) -> std::io::Result<()> {
        let mut command = self.command("services");
        let Some(services) = &mut self.services else { return Ok(()) };
        let manifests = manifests(&mut self.manifests, &self.configuration);
        if let Some(way) = &manifests {
            command.arg("--manifests").arg(way.as_raw_fd().to_string());
        }
        if let Some(account) = &self.service_account {
            // Its alone.
            fcntl_setfd(account, FdFlags::empty())?;
            command.arg("--service-account").arg(account.as_raw_fd().to_string());
        }
        let launched = launch(services, command, |(send, receive)| (receive, send));
        if let Some(account) = &self.service_account {
            fcntl_setfd(account, FdFlags::CLOEXEC)?;
        }
        let to_services = launched?;
        self.to_services = Some(to_services);
        self.hand_facts_on();
        self.hand_names_on();
        Ok(())
    }

    fn start_scanner(&mut self) {
        let mut command = self.command("scanner");
        let quotas = quotas::serve(&mut self.quotas, self.configuration.kubelet_root()).and_then(inheritable);
        match &quotas {
            Ok(way) => _ = command.arg("--quotas").arg(way.as_raw_fd().to_string()),
            Err(error) => tracing::warn!(%error, "project quotas are not read until the scanner is started again"),
        }
        if let Some(scanner) = &mut self.scanner {
            scanner.start(command);
        }
    }

    fn start_core(&mut self) -> std::io::Result<()> {
        let mut command = self.command("core");
        command.arg("--reporter-restarted").arg(self.reporter_restarted.as_raw_fd().to_string());
        if let Some(directory) = &self.read_only_state {
            command.arg("--read-only-state").arg(directory);
        }
        let (pulse, heart) = heartbeat::create().map_err(std::io::Error::other)?;
        for (name, fd) in [("--heartbeat", &heart.memory), ("--alarm", &heart.alarm)] {
            fcntl_setfd(fd, FdFlags::empty())?;
            command.arg(name).arg(fd.as_raw_fd().to_string());
        }
        // Each core has a way of its own: nothing that was meant for another one is in it.
        let has_facts = self.observes_disks || self.configuration.machine.knows_pods();
        let facts = has_facts.then(handover::messages_pair).transpose()?;
        if let Some((core, _)) = &facts {
            fcntl_setfd(core, FdFlags::empty())?;
            command.arg("--pods").arg(core.as_raw_fd().to_string());
            command.args(self.runtime_sockets.has_runtime().then_some("--asks-runtime"));
        }
        let storage = self.scanner.as_ref().map(|_| handover::messages_pair()).transpose()?;
        if let Some((core, _)) = &storage {
            fcntl_setfd(core, FdFlags::empty())?;
            command.arg("--storage").arg(core.as_raw_fd().to_string());
        }
        let orders = self.broker.as_ref().filter(|_| has_facts).map(|_| handover::messages_pair()).transpose()?;
        if let Some((core, _)) = &orders {
            fcntl_setfd(core, FdFlags::empty())?;
            command.arg("--broker").arg(core.as_raw_fd().to_string());
        }
        let node_services = self.node_services();
        if let Some(way) = &node_services {
            fcntl_setfd(way, FdFlags::empty())?;
            command.arg("--node-services").arg(way.as_raw_fd().to_string());
        }
        let from_core = launch(&mut self.core, command, |ends| ends)?;
        if let Some((scanner, (_, way))) = self.scanner.as_mut().zip(storage) {
            scanner.set_core(way);
        }
        if let Some((broker, (_, way))) = self.broker.as_mut().zip(orders) {
            broker.set_core(way);
        }
        self.from_core = Some(from_core);
        self.facts = facts.map(|(_, services)| services);
        self.hand_facts_on();
        if let Some(core) = &self.core.child
            && let Err(errno) = self.watchdog.watch(Pid::from_child(core), pulse)
        {
            tracing::warn!("the core is not watched: {errno}");
        }
        Ok(())
    }

    /// The end for a new core of a way to a thread that finds the kubelet and container runtimes; absent where there can be
    /// none now: then the core knows none.
    fn node_services(&self) -> Option<OwnedFd> {
        let started = handover::messages_pair().map_err(std::io::Error::from).and_then(|(core, way)| {
            node_services::serve(way, node_services::sockets(&self.configuration))?;
            Ok(core)
        });
        started.inspect_err(|error| tracing::warn!(%error, "the kubelet and the container runtime are not found")).ok()
    }

    /// Changes the level of the log, if a signal asked for it: of this process, and of those that have one.
    fn set_log_level(&mut self) {
        for (asked, level, signal) in [
            (&self.asked.debug, Some(LogLevel::Debug), Signal::USR1),
            (&self.asked.configured, self.configured_level, Signal::USR2),
        ] {
            if asked.swap(false, Ordering::Relaxed) {
                // For a reporter that is started later.
                self.options.log_level = level;
                self.log.set_level(self.options.log_level());
                let services = self.services.as_ref().and_then(|services| services.child.as_ref());
                let broker = self.broker.as_ref().and_then(|broker| broker.process.child.as_ref());
                for child in self.reporter.child.iter().chain(services).chain(broker) {
                    let _ = kill_process(Pid::from_child(child), signal);
                }
            }
        }
    }

    /// Says so where SIGHUP asked for the configuration to be read again.
    fn refuse_to_reread(&self) {
        if self.asked.reread.swap(false, Ordering::Relaxed) {
            tracing::warn!("SIGHUP: the configuration is read at the start only; restart to apply it");
        }
    }

    fn command(&self, part: &str) -> Command {
        let mut command = Command::new(own_program());
        command.arg0("plimsoll");
        command.arg(part).args(self.options.arguments());
        command.arg("--supervisor").arg(std::process::id().to_string());
        command.arg("--inherited-config").arg(self.inherited_config.number().to_string());
        #[cfg(feature = "fault-injection")]
        crate::fault_injection::leave_kill_point(&mut command, self.cores);
        for variable in service_manager::VARIABLES {
            command.env_remove(variable);
        }
        command.stdin(std::process::Stdio::null());
        command
    }

    /// Undoes what the core held. In a dry run that is nothing, and what another agent left is not this one's to undo.
    fn undo(&self) {
        if self.configuration.machine.shadow {
            return;
        }
        match undo_all(&self.configuration) {
            Ok(summary) if summary.failed.is_empty() && summary.thawed.is_empty() && summary.continued == 0 => {}
            Ok(summary) => tracing::warn!("undone after the core: {summary}"),
            Err(error) => tracing::warn!("cannot undo what the core held: {error:#}"),
        }
    }
}

/// The end for a new `services` of a way to a thread that opens manifests of static pods; absent where none are read.
fn manifests(answering: &mut Answering, configuration: &Configuration) -> Option<OwnedFd> {
    let way = manifests::serve(answering, configuration.static_pods()?).and_then(inheritable);
    way.inspect_err(|error| {
        tracing::warn!(%error, "manifests of static pods are not read until services is started again");
    })
    .ok()
}

fn inheritable(way: OwnedFd) -> std::io::Result<OwnedFd> {
    fcntl_setfd(&way, FdFlags::empty())?;
    Ok(way)
}

/// This program's file; where an upgrade put another in its place, or that path is one of a container, this program as the
/// kernel still has it. The processes exchange records, so all of them have to be of the same build.
fn own_program() -> PathBuf {
    const RUNNING: &str = "/proc/self/exe";
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let running = identity(RUNNING.as_ref());
    let file = std::env::current_exe().ok().filter(|file| running.is_some() && identity(file) == running);
    file.unwrap_or_else(|| RUNNING.into())
}

/// Starts it with the one of two sockets that `ends` gives first, and gives the other.
fn launch(
    process: &mut ChildProcess,
    mut command: Command,
    ends: fn((UnixDatagram, UnixDatagram)) -> (UnixDatagram, UnixDatagram),
) -> std::io::Result<UnixDatagram> {
    let (its, own) = ends(handover::pair()?);
    fcntl_setfd(&its, FdFlags::empty())?;
    command.arg("--queues").arg(its.as_raw_fd().to_string());
    process.child = Some(command.spawn()?);
    (process.started, process.due) = (Instant::now(), None);
    Ok(own)
}

/// Plans the next try of what could not be started: there are too many processes or files, or there is no memory at present.
fn launched_or_again(process: &mut ChildProcess, launched: std::io::Result<()>) {
    if let Err(error) = launched {
        tracing::warn!(%error, "the process {} could not be started; it is tried again", process.name);
        // How long its predecessor ran makes no pause shorter.
        process.started = Instant::now();
        process.again();
    }
}

#[cfg(test)]
mod tests;
