//! `services`: reads what Kubernetes writes about this node's pods, and what is left on its disks, and asks the container
//! runtime what pods are called; or follows them by a cluster's API server, and reports to it. It sends the core what it
//! decides by, numbers alone, and the reporter the names. It may be slow, hang or die: both go on with what they were sent
//! last, and the core without figures of disks. By order of the core alone it has the container runtime remove what is dead or
//! unused, stop pods that are evicted with a grace, and raise memory.high of containers that it throttles.

mod cluster;
mod disks;
mod eviction_message;
mod feed;
mod file_changes;
mod journal;
mod layers;
#[cfg(test)]
pub(crate) mod listed_samples;
mod names;
mod outbox;
mod pod_file;
mod pod_reader;
mod removal;
mod rest;
mod running;
mod runtime;
mod static_pods;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_config::Configuration;
use plimsoll_cri::FileSystems;
use plimsoll_inventory::{CoreMessage, DiskReading, Protected, Source, StopOrder, StopResult};
use plimsoll_node::{capabilities, priority, program, system_calls};
use plimsoll_policy::kubelet::Condition;
use plimsoll_state::handover::{self, ForServices};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;

use crate::child::{ChildArguments, SPARED_OOM_SCORE};
use crate::confine::{self, Files, SERVICES};
use crate::signals::Signals;
use cluster::{Cluster, ClusterEvent, Stopping};
pub(crate) use cluster::{Settings as ClusterSettings, node_name};
pub(crate) use disks::are_configured as disks_are_configured;
use disks::{Disks, Sources};
use feed::{Core, Feed};
use file_changes::{Changes, notices_of};
use journal::{Event, Journal, Known, Place, Restored, Works};
use names::NameFeed;
use outbox::Outbox;
pub(crate) use pod_file::{Listed, PodFile, at, facts_of, names_of};
pub(crate) use pod_reader::PodReader;
use removal::Removal;
use rest::Stir;
use running::{Running, RunningOrder};
use runtime::Answers;
pub(crate) use runtime::runtime_sockets;
pub(crate) use static_pods::{Found as StaticFound, find as find_static};
use static_pods::{Settings as StaticSettings, StaticPods};

/// For so long the last core's conditions are reported on where there is no other core: the supervisor pauses between two starts.
const ORPHANED: Duration = Duration::from_mins(2);
/// The same where there is one, which has named none: one that acts does so as soon as it is sent what they were, and where it does
/// not, another agent may act, and report others.
const UNNAMED: Duration = Duration::from_secs(15);
/// How long the end waits until the log is read; the supervisor waits a little longer.
const LAST_LINES: Duration = Duration::from_millis(500);

/// The exit code that says that there is nothing to do on this machine: it is not started again.
pub(crate) const NOTHING_TO_DO: u8 = 4;

/// Whether it has names to find or facts to read: by a list of pods, a cluster, or the socket of a container runtime. A
/// runtime that is merely found on a machine is not asked for names.
pub(crate) fn knows_pods(configuration: &Configuration) -> bool {
    configuration.machine.knows_pods() || configuration.runtime_endpoint().is_some()
}

/// Whether something is kept over a restart: of pods, or of the disks of a node. In a dry run the journal is left to an agent
/// that acts: one process at a time has it.
pub(crate) fn keeps_journal(configuration: &Configuration) -> bool {
    let machine = &configuration.machine;
    let is_node = || disks_are_configured(configuration) && disks::are_there(configuration);
    !machine.shadow && (machine.knows_pods() || is_node())
}

/// Runs until SIGTERM; ends with [`NOTHING_TO_DO`] where disks alone are to be read and this is no node.
pub(crate) fn main(arguments: &ChildArguments) -> anyhow::Result<u8> {
    // Before anything else, and before there is another thread: a capability belongs to a thread.
    capabilities::keep_only(&confine::CAPABILITIES)?;
    let (socket, manifests) = (arguments.socket()?, arguments.manifests()?);
    let own_cgroup = crate::core::own_cgroup(&Protected::read());
    let configuration = arguments.configuration(own_cgroup)?;
    let statics = StaticSettings::of(&configuration, manifests);
    let file = configuration.machine.pod_facts.as_deref();
    let file = file.map(|path| PodFile::open(path, PodReader::of(&configuration)));
    let notices = file.as_ref().and_then(PodFile::directory).map(notices_of).transpose();
    let sources = disks::are_configured(&configuration).then(|| Sources::open(&configuration)).transpose()?;
    let is_node = sources.is_some() && disks::are_there(&configuration);
    let account = arguments.service_account()?;
    let kept = keeps_journal(&configuration).then(|| Place::enter(&configuration.machine.journal_directory));
    // While the file is still its own to write: after it became another user it is root's.
    let mut troubles =
        Vec::from_iter(priority::set_oom_score_adj(SPARED_OOM_SCORE).err().map(|error| error.to_string()));
    let notices = notices.unwrap_or_else(|errno| {
        troubles.push(format!(
            "the kernel gives no notice of changes of podFacts, which is looked at each second: {errno}"
        ));
        None
    });
    #[cfg(feature = "fault-injection")]
    let hostile = crate::hostile::open(crate::hostile::SERVICES)?;
    #[cfg(feature = "fault-injection")]
    crate::hostile::forging::prepare()?;
    #[cfg(feature = "fault-injection")]
    crate::hostile::ordering::prepare()?;
    let kept = kept.transpose().unwrap_or_else(|error| {
        troubles.push(format!("the journal is not kept: {error:#}"));
        None
    });
    // Its files are root's to read, but those of a service account.
    let cluster = ClusterSettings::of(&configuration, account).unwrap_or_else(|error| {
        troubles
            .push(format!("the cluster is neither asked nor reported to until the agent is started again: {error:#}"));
        None
    });
    let files = Files {
        read: file.as_ref().and_then(PodFile::directory),
        read_too: cluster.as_ref().and_then(|cluster| cluster.access().directory()),
        kept: kept.as_ref().map(Place::directory),
        ..Files::default()
    };
    troubles.extend(SERVICES.confine(files)?);
    // The filter of system calls lets a journal's files be opened to be written wherever they are.
    let kept = kept.filter(|_| {
        let is_confined = confine::is_confined();
        troubles.extend((!is_confined).then(|| "the journal is not kept without Landlock".to_owned()));
        is_confined
    });
    // A process that becomes another user forgets what it asked for.
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // One that died before that sends no signal.
    arguments.ensure_supervised()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    // From here on it reads what others write.
    troubles.extend(SERVICES.filter(|| system_calls::filter_services(kept.is_some())).err());
    #[cfg(feature = "fault-injection")]
    crate::hostile::start(hostile)?;
    let (log, level) = arguments.start_log(configuration.machine.log_format, troubles)?;
    let is_configured = sources.is_some();
    let sources = sources.filter(|_| is_node);
    if is_configured && sources.is_none() {
        let directory = configuration.kubelet_root();
        tracing::info!("disks are not read: there is no {}, the kubelet's directory", directory.display());
    }
    if sources.is_none() && !knows_pods(&configuration) {
        log.finish(LAST_LINES);
        return Ok(NOTHING_TO_DO);
    }
    if sources.is_some() {
        tracing::info!(
            "where a disk is short, what is dead or unused is removed by order of the core; by these figures alone no \
             pod is evicted"
        );
    }
    program::let_go();
    runtime.block_on(async {
        // Threads that are started from here on are confined as this one is.
        let layers_stir = Stir::new();
        let disks = sources.map(|sources| Disks::start(sources, layers_stir.clone())).transpose()?;
        let journal = kept.map(Journal::start).transpose()?;
        let reads = Reads { file, notices, statics, journal, disks, layers_stir, cluster };
        tokio::select! {
            () = signals.end(&log, level) => Ok(()),
            served = serve(socket.into(), reads, &configuration) => served,
        }
    })?;
    log.finish(LAST_LINES);
    Ok(0)
}

/// What is read on this machine, as far as it is configured.
struct Reads {
    file: Option<PodFile>,
    /// Of what changes in its directory, where the kernel gives any.
    notices: Option<OwnedFd>,
    statics: StaticSettings,
    journal: Option<Journal>,
    disks: Option<Disks>,
    /// Writable layers may take another amount.
    layers_stir: Stir,
    cluster: Option<ClusterSettings>,
}

/// Reads the file whenever it changed, or follows the cluster, reads the disks, asks the runtime from time to time, and sends
/// the newest core and the newest reporter what is known. Ends where the next process can open a file that this one cannot.
async fn serve(
    socket: std::os::unix::net::UnixDatagram,
    reads: Reads,
    configuration: &Configuration,
) -> anyhow::Result<()> {
    let Reads { mut file, notices, statics, mut journal, mut disks, layers_stir, cluster } = reads;
    let names_stir = Stir::new();
    socket.set_nonblocking(true)?;
    let socket = Arc::new(UnixDatagram::from_std(socket)?);
    let sockets = runtime_sockets(configuration).unwrap_or_else(|error| {
        tracing::warn!("{error}; the container runtime is asked for nothing");
        Vec::new()
    });
    let (answered, mut answered_by_runtime) = mpsc::channel(1);
    let (dial, answers) = runtime::dial(Arc::clone(&socket), &sockets);
    #[cfg(feature = "fault-injection")]
    crate::hostile::ordering::attack(&sockets, &dial)?;
    let (dial_api_server, api_server_answers) = cluster::dial(Arc::clone(&socket));
    let mut cluster = cluster.map(|settings| Cluster::start(settings, dial_api_server, PodReader::of(configuration)));
    let mut at = Serving::of(configuration, journal.is_some());
    at.statics = StaticPods::new(statics)?;
    let (measured, mut layers) = mpsc::channel(1);
    if !sockets.is_empty() {
        if crate::scanner::is_needed(configuration) {
            // Without disks nothing says that one moves.
            let rest = disks.as_ref().map(|_| layers_stir.rest());
            tokio::spawn(layers::watch(sockets.clone(), dial.clone(), rest, measured));
        }
        if disks.is_some() {
            at.removal = Removal::start(configuration, sockets.clone(), dial.clone());
        }
        at.running = Running::start(sockets.clone(), dial.clone());
        tokio::spawn(runtime::watch(sockets, dial, disks.is_some(), names_stir.rest(), answered));
    }
    let mut images = at.removal.noted();
    let mut changes = file.is_some().then(|| Changes::by(notices)).transpose()?;
    loop {
        at.write_reports(journal.as_ref());
        at.report(cluster.as_mut());
        tokio::select! {
            received = socket.async_io(Interest::READABLE, || Ok(handover::receive_for_services(&*socket)?)) => {
                match received {
                    Ok(ForServices::Core(way)) => at.begin_core(way),
                    Ok(ForServices::Names(way)) => at.begin_names(way),
                    // Where there is no room, nothing waits for it.
                    Ok(ForServices::Runtime { number: handover::API_SERVER, connection }) => {
                        drop(api_server_answers.try_send(connection));
                    }
                    Ok(ForServices::Runtime { number, connection }) => drop(answers.try_send((number, connection))),
                    Err(error) => tracing::warn!("what the supervisor sends cannot be received: {error}"),
                }
            }
            () = next_change(&mut changes) => {
                let Some(file) = &mut file else { continue };
                if file.is_elsewhere() {
                    tracing::info!("the directory of podFacts is there now, or another one: services begins anew with it");
                    return Ok(());
                }
                at.read(file, journal.as_ref());
            }
            event = next_of_cluster(&mut cluster) => at.take_of_cluster(event, journal.as_ref()),
            event = next_event(&mut journal) => at.take_kept(event),
            Ok(()) = images.changed() => {
                if let Some(journal) = &journal {
                    journal.keep_images(images.borrow_and_update().clone());
                }
            }
            readings = next(&mut disks) => at.feed.measure(readings),
            Some(answers) = answered_by_runtime.recv() => {
                if let (Some(directories), Some(disks)) = (at.learn_of_runtime(answers), &mut disks) {
                    disks.locate(directories);
                }
            }
            Some(round) = layers.recv() => at.feed.measure_layers(round),
            () = at.statics.next() => at.feed.learn_of_manifests(at.statics.known().clone()),
            () = at.names.send_next() => {}
            () = until(at.orphaned) => at.leave(cluster.as_ref()),
            received = next_message(at.core.as_ref()) => match received {
                Ok(CoreMessage::CgroupsChanged) => [&names_stir, &layers_stir].into_iter().for_each(Stir::stir),
                Ok(message) => at.take_of_core(message, cluster.as_mut()),
                // It has ended; that is logged where it is sent something.
                Err(_) => at.end_core(),
            },
            removed = at.removal.next() => {
                if let Some(cluster) = &cluster {
                    cluster.removed(&removed);
                }
                at.feed.report(removed);
            }
            stopped = at.running.next() => at.feed.report_stop(stopped),
            sent = send_next(&mut at.feed, &mut at.outbox, at.core.as_ref()) => {
                // It has ended, and the next one is on its way; or it takes nothing more. Said once for each core.
                if let Err(error) = sent {
                    tracing::warn!("the core is not sent what is known, until it is started again: {error}");
                    at.end_core();
                }
            }
        }
    }
}

/// What goes to the other processes, and comes from the core.
struct Serving {
    feed: Feed,
    names: NameFeed,
    statics: StaticPods,
    outbox: Outbox,
    /// The version of it that the journal was given last.
    reported: u64,
    /// The version of it that the cluster was given last, with what pods were called then.
    offered: Option<u64>,
    /// Another agent has the journal.
    is_journal_held: bool,
    /// Nothing is to be kept.
    keeps_nothing: bool,
    /// A core of this agent has named something, which those that act do. Where none has, another agent reports.
    has_named: bool,
    /// When that ends, as the core that did is gone.
    orphaned: Option<Instant>,
    removal: Removal,
    running: Running,
    core: Option<Core>,
}

impl Serving {
    fn of(configuration: &Configuration, has_journal: bool) -> Self {
        let mut at = Self::new(configuration.machine.cluster.is_on(), has_journal);
        // That of memory follows from limits of slices, too.
        let of_thresholds = configuration.kubelet.thresholds.iter().map(|threshold| threshold.signal.condition());
        at.outbox.keep_only(of_thresholds.chain([Condition::MemoryPressure]));
        at.keeps_nothing = !keeps_journal(configuration);
        at
    }

    fn new(has_cluster: bool, has_journal: bool) -> Self {
        let mut feed = Feed::default();
        if has_cluster {
            // Until it is followed.
            feed.note(Source::ApiServer, false);
        }
        Self {
            feed,
            names: NameFeed::default(),
            statics: StaticPods::default(),
            outbox: Outbox::new(has_cluster, has_journal),
            reported: 0,
            offered: None,
            is_journal_held: false,
            keeps_nothing: false,
            has_named: false,
            orphaned: None,
            removal: Removal::default(),
            running: Running::default(),
            core: None,
        }
    }

    /// Gives the journal what is to be reported, where that has changed.
    fn write_reports(&mut self, journal: Option<&Journal>) {
        let version = self.outbox.version();
        if version > self.reported
            && let Some((journal, reports)) = journal.zip(self.outbox.reports())
        {
            journal.keep_reports(version, reports, self.outbox.presses(self.reported));
            self.reported = version;
        }
    }

    /// Gives the cluster what is to be reported, where that has changed.
    fn report(&mut self, mut cluster: Option<&mut Cluster>) {
        if let Some(cluster) = &mut cluster {
            // An agent that waits for another one's end, as in each upgrade, is not in trouble.
            let is_other = |source: Source| source == Source::Journal && self.is_journal_held;
            cluster.degrade(self.feed.failing().filter(|source| !is_other(*source)));
        }
        let is_due = self.has_named && self.offered != Some(self.outbox.version());
        if let Some(cluster) = cluster.filter(|_| is_due) {
            for (number, uid) in cluster.report(&self.outbox) {
                self.outbox.mark_reported(number);
                self.feed.report_recorded(uid);
            }
            self.offered = Some(self.outbox.version());
        }
    }

    /// Has a pod stopped: by its kubelet where the cluster can be asked for that, else by the container runtime.
    fn stop(&mut self, order: StopOrder, cluster: Option<&mut Cluster>) {
        match cluster.map_or(Stopping::ByRuntime, |cluster| cluster.stop(order)) {
            Stopping::ByKubelet => self.feed.report_stop(StopResult { uid: order.uid, is_begun: true }),
            Stopping::Held => {}
            Stopping::ByRuntime => self.running.order(RunningOrder::Stop(order)),
        }
    }

    /// Sends a reporter that was just started what pods are called.
    fn begin_names(&mut self, way: OwnedFd) {
        if let Err(error) = self.names.begin(way) {
            tracing::warn!("a reporter cannot be sent names of pods: {error}");
        }
    }

    /// Another core was started.
    fn begin_core(&mut self, way: OwnedFd) {
        #[cfg(feature = "fault-injection")]
        if let Err(error) = crate::hostile::forging::attack(std::os::fd::AsFd::as_fd(&way)) {
            tracing::warn!("nothing is forged: {error:#}");
        }
        match Core::new(way) {
            Ok(new) => {
                self.core = Some(new);
                self.wait_for_names(UNNAMED);
                self.feed.begin();
                self.outbox.begin();
                self.removal.stop();
            }
            Err(error) => tracing::warn!("a core cannot be sent what is known of pods and disks: {error}"),
        }
    }

    fn end_core(&mut self) {
        self.core = None;
        self.removal.stop();
        self.wait_for_names(ORPHANED);
    }

    /// The core that named something is gone: another one has to name something in this time, and no later than was said before.
    fn wait_for_names(&mut self, time: Duration) {
        if self.has_named {
            let by = Instant::now() + time;
            self.orphaned = Some(self.orphaned.map_or(by, |before| before.min(by)));
        }
    }

    /// The core has named something.
    const fn named(&mut self) {
        (self.has_named, self.orphaned) = (true, None);
    }

    /// No core goes on with what the last one has named.
    fn leave(&mut self, cluster: Option<&Cluster>) {
        (self.has_named, self.orphaned, self.offered) = (false, None, None);
        if let Some(cluster) = cluster {
            tracing::warn!(
                "no core of this agent acts any more: conditions of the node are not written until one does"
            );
            cluster.leave_conditions();
        }
    }

    /// Reads the file, where it has changed.
    fn read(&mut self, file: &mut PodFile, journal: Option<&Journal>) {
        if let Some(listed) = file.read_changed() {
            self.learn(listed, journal);
        }
        self.feed.note(Source::PodFacts, file.is_read());
        if journal.is_none() {
            self.lacks_journal();
        }
    }

    /// Notes that there is none, which is no trouble where none is kept on purpose.
    fn lacks_journal(&mut self) {
        if !self.keeps_nothing {
            self.feed.note(Source::Journal, false);
        }
    }

    /// These are all pods now.
    fn learn(&mut self, listed: Listed, journal: Option<&Journal>) {
        let no_others = listed.no_others();
        let known = Known { pods: listed.pods, limits: listed.limits };
        match journal {
            Some(journal) => journal.keep(known.clone()),
            None => self.lacks_journal(),
        }
        self.outbox.learn(|uid| known.pods.contains_key(&uid));
        self.feed.learn(known, no_others);
        self.names.learn_of_file(listed.names);
        self.removal.learn(listed.ended);
    }

    /// The container runtime says this. Gives where its disks are, or why it does not say; `None` where that was not asked.
    fn learn_of_runtime(&mut self, answers: Result<Answers, String>) -> Option<Result<FileSystems, String>> {
        self.feed.note(Source::Runtime, answers.is_ok());
        let Answers { names, static_pods, disks } = match answers {
            Ok(answers) => answers,
            Err(why) => return Some(Err(why)),
        };
        self.names.learn_of_runtime(names);
        let Self { feed, statics, .. } = self;
        if statics.learn(static_pods, |uid| feed.lists(uid), Instant::now()) {
            feed.learn_of_manifests(statics.known().clone());
        }
        disks
    }

    /// What comes from the core.
    fn take_of_core(&mut self, message: CoreMessage, cluster: Option<&mut Cluster>) {
        match message {
            CoreMessage::Remove(order) => self.removal.order(order),
            CoreMessage::Relax(order) => self.running.order(RunningOrder::Relax(order)),
            CoreMessage::Stop(order) => self.stop(order, cluster),
            CoreMessage::Eviction(eviction) => {
                self.named();
                self.outbox.receive(&eviction, self.names.of(eviction.uid));
            }
            CoreMessage::Condition(state) => {
                self.named();
                self.outbox.conclude(state);
            }
            CoreMessage::Incident(incident) => {
                if let Some(cluster) = cluster {
                    cluster.happened(&incident, |uid| self.names.of(uid));
                }
            }
            // For what asks the runtime, which is beside this.
            CoreMessage::CgroupsChanged => {}
        }
    }

    /// What comes from the cluster.
    fn take_of_cluster(&mut self, event: ClusterEvent, journal: Option<&Journal>) {
        match event {
            ClusterEvent::Pods(listed, is_node_followed) => {
                self.learn(listed, journal);
                self.feed.note(Source::ApiServer, is_node_followed);
                // What evicted pods are called may be known by now.
                self.offered = None;
            }
            ClusterEvent::KillSwitch(is_there) => self.feed.switch(is_there),
            ClusterEvent::Witnessed(witnessed, ended) => self.names.count(witnessed, ended),
            ClusterEvent::Followed(is_followed) => self.feed.note(Source::ApiServer, is_followed),
            ClusterEvent::Reported(number, uid) => {
                // A later eviction of the same pod was not given meanwhile.
                self.offered = None;
                self.outbox.mark_reported(number);
                self.feed.report_recorded(uid);
            }
            ClusterEvent::Ends { uid, is_ordered } => {
                if is_ordered {
                    self.feed.report_stop(StopResult { uid, is_begun: true });
                }
                self.feed.report_recorded(uid);
            }
            ClusterEvent::Unanswered(order) => self.running.order(RunningOrder::Stop(order)),
        }
    }

    /// What comes from the journal.
    fn take_kept(&mut self, event: Event) {
        match event {
            Event::Restored(restored) => {
                let Restored { known, reports, images } = *restored;
                self.feed.restore(known);
                self.outbox.restore(reports);
                self.removal.resume(images);
            }
            Event::Works(Works { all, reports, version, is_held }) => {
                self.is_journal_held = is_held;
                self.feed.note(Source::Journal, all);
                self.outbox.kept(reports, version);
            }
        }
    }
}

/// Waits until the file may have changed, if there is one.
async fn next_change(changes: &mut Option<Changes>) {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for this, if it is to come.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// What comes next from the cluster, if there is one.
async fn next_of_cluster(cluster: &mut Option<Cluster>) -> ClusterEvent {
    match cluster {
        Some(cluster) => cluster.event().await,
        None => std::future::pending().await,
    }
}

/// The core's next message.
async fn next_message(core: Option<&Core>) -> std::io::Result<CoreMessage> {
    match core {
        Some(core) => core.message().await,
        None => std::future::pending().await,
    }
}

/// Sends the core what is next: answers before what is read of the node.
///
/// # Errors
/// Where the core has ended.
async fn send_next(feed: &mut Feed, outbox: &mut Outbox, core: Option<&Core>) -> std::io::Result<()> {
    if let Some(core) = core
        && let Some(message) = outbox.next_message()
    {
        core.send(message).await?;
        outbox.sent();
        return Ok(());
    }
    feed.send_next(core).await
}

/// What comes next from the journal, if there is one.
async fn next_event(journal: &mut Option<Journal>) -> Event {
    match journal {
        Some(journal) => journal.event().await,
        None => std::future::pending().await,
    }
}

/// The next readings of disks, with what each cost, if they are observed.
async fn next(disks: &mut Option<Disks>) -> Vec<(DiskReading, Duration)> {
    match disks {
        Some(disks) => disks.next().await,
        None => std::future::pending().await,
    }
}
