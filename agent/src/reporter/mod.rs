//! The reporter: logs, metrics, health. May be slow, may be paged out, may die: the core goes on.

mod health;
mod kernel_log;
mod metrics;
mod observed;
mod plan;
mod server;
mod sink;
mod trace;

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus,
    Scope, path_beneath_rules,
};
use plimsoll_inventory::Protected;
use plimsoll_node::capabilities;
use plimsoll_node::meminfo::MemInfo;
use plimsoll_state::handover::{self, Queues};
use plimsoll_state::queue::{Consumer, Descriptors, FRAME};
use plimsoll_units::Bytes;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Map, Value, json};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::signal::unix::{SignalKind, signal};

use crate::inherit;
use crate::inherited_config;
use crate::log::{self, Level};
use crate::log_writer;
use crate::options::Options;
use crate::record::Record;
use metrics::Metrics;
use sink::Sink;
use trace::Trace;

/// So many records are told before another thread gets its turn.
const BATCH: usize = 64;
/// So many batches, before it is looked whether that is still to be done.
const BATCHES: usize = 64;
/// A thread that waits for records looks at least so often whether there will be no more.
const LOOK: Duration = Duration::from_secs(10);
/// How long the end waits for whoever reads the log; the supervisor waits a little longer.
const LAST_LINES: Duration = Duration::from_secs(1);

/// All files of a trace together are at most so large, where nothing else is said.
const TRACE_SIZE: Bytes = Bytes::mib(64);

/// What the supervisor starts the reporter with.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The socket by which the queues of each core come.
    #[arg(long)]
    queues: i32,
    /// The configuration as the supervisor read it.
    #[arg(long)]
    inherited_config: Option<i32>,
    /// The supervisor's process.
    #[arg(long)]
    supervisor: Option<i32>,
}

/// Runs until SIGTERM.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<()> {
    // Before anything else, and before there is another thread: a capability belongs to a thread.
    capabilities::keep_only(&[])?;
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // One that died before that sends no signal.
    arguments.supervisor.map(crate::core::ensure_child_of).transpose()?;
    let socket = inherit::take(arguments.queues)?;
    let own_cgroup = crate::core::own_cgroup(&Protected::read());
    let configuration = inherited_config::configuration(&arguments.options, arguments.inherited_config, own_cgroup)?;
    let address = configuration.machine.metrics_address;
    let format = configuration.machine.log_format;
    let (kernel_log, trouble) = match OpenOptions::new().write(true).open("/dev/kmsg") {
        Ok(file) => (Some(file), None),
        Err(error) => (None, Some(format!("kills are not told in the kernel's log: cannot open /dev/kmsg: {error}"))),
    };
    // Without it the gauges are absent.
    let memory = MemInfo::open().ok();
    let tracing = arguments
        .options
        .trace
        .as_ref()
        .map(|folder| Trace::open(folder, arguments.options.trace_size.unwrap_or(TRACE_SIZE)));
    let confined = confine(arguments.options.trace.as_deref());
    let tracing = tracing.map(|opened| opened.and_then(Trace::start)).transpose();
    let metrics = Metrics::new();
    metrics.reporter_confined.set(is_confined().into());
    let lost = metrics.lost_log_lines.clone();
    let (log_writer, written) = log_writer::start(std::io::stdout(), move || _ = lost.inc())?;
    let out = Box::new(move |level, message: &str, fields: &Map<String, Value>| {
        log_writer.offer(log::line(format, SystemTime::now(), level, message, fields) + "\n")
    });
    let mut sink = Sink::new(configuration, metrics, out, kernel_log, memory);
    let untraced = match tracing {
        Ok(plans) => {
            if let Some(plans) = plans {
                sink.record(plans);
            }
            None
        }
        Err(error) => Some(format!("no trace is written: {error}; see --trace")),
    };
    for trouble in trouble.into_iter().chain(confined.err()).chain(untraced) {
        sink.say(Level::Warn, &trouble, json!({}));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let end = async {
            term.recv().await;
        };
        run(socket.into(), Arc::new(Mutex::new(sink)), address, end).await
    })?;
    // Whoever reads the log may still not read it: then its last lines are lost.
    written.wait(LAST_LINES);
    Ok(())
}

/// Bars this thread, and those that it starts, from every file that is not open yet: who breaks in through the network
/// finds a process of root that can write no cgroup's `cgroup.kill`. Where a trace is written, its files can be.
fn confine(trace: Option<&Path>) -> Result<(), String> {
    let write = AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate;
    let barred = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        // From Linux 6.12 on it cannot signal the core or the supervisor either.
        .and_then(|rules| rules.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rules(path_beneath_rules(trace, write)))
        .and_then(RulesetCreated::restrict_self);
    match barred {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
            Err("the reporter is not barred from files: this kernel has no Landlock, or it is off (lsm=)".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the reporter is not barred from files: {error}")),
    }
}

/// Whether this thread is refused a file that is nobody's secret, and not by its mode.
fn is_confined() -> bool {
    File::open("/proc/self/status").is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Tells what comes through the queues that `socket` brings, and serves, until `end`; then tells what is left.
async fn run(
    socket: std::os::unix::net::UnixDatagram,
    sink: Arc<Mutex<Sink>>,
    address: SocketAddr,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    let mut readers = Vec::new();
    let server = server::serve(address, Arc::clone(&sink));
    tokio::pin!(server, end);
    loop {
        let received = tokio::select! {
            biased;
            never = &mut server => match never {},
            () = &mut end => break,
            received = socket.async_io(Interest::READABLE, || Ok(handover::receive(&socket)?)) => received,
        };
        match received {
            Ok(queues) => replace(&mut readers, &queues, &sink)?,
            Err(error) => {
                let message = format!("what came as queues of the core cannot be read: {error}");
                lock(&sink).say(Level::Warn, &message, json!({}));
            }
        }
    }
    // Those of a core that was just started may not have been seen yet.
    while let Ok(queues) = handover::receive(&socket) {
        replace(&mut readers, &queues, &sink)?;
    }
    readers.drain(..).for_each(Reader::end);
    lock(&sink).close();
    Ok(())
}

/// Reads the queues of a new core. What the one before it said last is told first.
fn replace(readers: &mut Vec<Reader>, queues: &Queues, sink: &Arc<Mutex<Sink>>) -> anyhow::Result<()> {
    readers.drain(..).for_each(Reader::end);
    for (name, queue) in ["watch-queue", "scout-queue"].into_iter().zip(queues) {
        readers.push(Reader::start(name, queue, Arc::clone(sink))?);
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue, and the thread that tells what comes through it.
struct Reader(Arc<Queue>);

struct Queue {
    name: &'static str,
    consumer: Mutex<Consumer>,
    sink: Arc<Mutex<Sink>>,
    over: AtomicBool,
}

impl Reader {
    fn start(name: &'static str, descriptors: &Descriptors, sink: Arc<Mutex<Sink>>) -> anyhow::Result<Self> {
        let consumer = Consumer::attach(descriptors)?;
        let handle = consumer.handle();
        let queue = Arc::new(Queue { name, consumer: Mutex::new(consumer), sink, over: AtomicBool::new(false) });
        let own = Arc::clone(&queue);
        let report = move || {
            while !own.over.load(Ordering::Relaxed) {
                let seen = handle.attempt();
                own.drain();
                handle.wait(seen, LOOK);
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(report).context("cannot start a thread for a queue")?;
        Ok(Self(queue))
    }

    /// Tells what is left. Nobody writes any more, or nobody is asked to read it.
    fn end(self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.drain();
    }
}

impl Queue {
    /// Tells all records that are there; of a core that goes on and on, more than its queue has room for.
    fn drain(&self) {
        let mut consumer = lock(&self.consumer);
        for _ in 0..BATCHES {
            if take(self.name, &mut consumer, &mut lock(&self.sink)) < BATCH {
                return;
            }
        }
    }
}

/// Tells the next records, and gives how many there were: fewer than [`BATCH`] where there are no more.
fn take(name: &str, consumer: &mut Consumer, sink: &mut Sink) -> usize {
    let mut frame = [0; FRAME];
    for count in 0..BATCH {
        let Some(bytes) = consumer.pop(&mut frame) else {
            sink.queue(name, consumer.take_losses());
            return count;
        };
        match Record::read(bytes) {
            Some(record) => sink.report(&record),
            None => sink.malformed(),
        }
    }
    BATCH
}

/// What a trace would have of these frames of the watching thread.
#[cfg(test)]
pub(crate) fn traced(
    frames: &[Vec<u8>],
    configuration: &plimsoll_config::Configuration,
) -> Vec<plimsoll_replay::trace::Entry> {
    use plimsoll_replay::trace::Entry;
    let mut observed = observed::Observed::default();
    let mut draft = None;
    let mut entries = Vec::new();
    for frame in frames {
        let record = Record::read(frame).expect("a record");
        entries.extend(observed.take(&record, configuration).map(Entry::Sample));
        draft = plan::Draft::begin(&record).or(draft);
        let Some(open) = &mut draft else { continue };
        match record {
            Record::PlanThreshold { status, acting } => open.threshold(status, acting),
            Record::PlanRanked { ranked, path } => open.ranked(ranked, path),
            Record::PlanAction(action) => open.action(action),
            Record::PlanEnd => entries.extend(draft.take().map(|draft| Entry::Reported(draft.reported(configuration)))),
            _ => {}
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StartParts;
    use plimsoll_state::queue::{self, Producer};
    use tokio::sync::oneshot;

    /// A core's own ends of its queues, the other ones handed over.
    fn core(socket: &std::os::unix::net::UnixDatagram, watch: usize, inventory: usize) -> (Producer, Producer) {
        let ((watch, first), (inventory, second)) =
            (queue::create(watch).expect("memory"), queue::create(inventory).expect("memory"));
        handover::send(socket, &[first, second]).expect("room");
        (watch, inventory)
    }

    #[test]
    fn records_become_lines_and_metrics_and_the_end_tells_the_rest() {
        let (sink, lines) = sink::tests::sink("", None);
        let sink = Arc::new(Mutex::new(sink));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let metrics = runtime.block_on(async {
            let (send, receive) = handover::pair().expect("sockets");
            let (end, ended) = oneshot::channel::<()>();
            let all = run(receive, Arc::clone(&sink), ([127, 0, 0, 1], 0).into(), async {
                drop(ended.await);
            });
            let feed = async {
                let start = StartParts::default();
                let (mut watch, mut inventory) = core(&send, 2, 200);
                assert!(Record::Trouble { text: "from the core that died" }.send(&mut watch));
                assert!(
                    Record::Armed { pid: std::process::id(), source: "psi", shadow: None, workloads: 4, start }
                        .send(&mut inventory)
                );
                drop((watch, inventory));
                let (mut watch, mut inventory) = core(&send, 2, 200);
                // Nobody reads before this is awaited, so the third record overwrites the first.
                assert!(Record::Trouble { text: "without room" }.send(&mut watch));
                assert!(watch.push(&[255; 16]));
                assert!(Record::Trouble { text: "from the watch" }.send(&mut watch));
                for _ in 0..2 * BATCH {
                    assert!(Record::Trouble { text: "from the inventory thread" }.send(&mut inventory));
                }
                while !sink.lock().expect("no panic").answers().metrics().contains("side=\"agent\"} 1") {
                    tokio::task::yield_now().await;
                }
                assert!(Record::Trouble { text: "the last word" }.send(&mut watch));
                let (mut watch, _scout) = core(&send, 2, 200);
                assert!(Record::Trouble { text: "of a core that just started" }.send(&mut watch));
                end.send(()).expect("it runs");
            };
            let (result, ()) = tokio::join!(all, feed);
            result.expect("it ends well");
            sink.lock().expect("no panic").answers().metrics()
        });
        let lines = lines.lock().expect("no panic");
        let count = |text: &str| lines.iter().filter(|line| line.1 == text).count();
        assert_eq!(
            (count("from the watch"), count("without room"), count("from the inventory thread")),
            (1, 0, 2 * BATCH)
        );
        let place = |text: &str| lines.iter().position(|line| line.1.starts_with(text));
        assert!(place("armed with source psi") < place("from the inventory thread"), "{lines:?}");
        assert!(place("from the core that died").is_some_and(|at| Some(at) < place("from the watch")), "{lines:?}");
        assert_eq!((count("the last word"), count("of a core that just started")), (1, 1));
        for line in [
            "plimsoll_lost_records_total{ring=\"watch-queue\"} 1\n",
            "plimsoll_lost_records_total{ring=\"scout-queue\"} 0\n",
            "plimsoll_malformed_records_total{side=\"agent\"} 1\n",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
    }
}
