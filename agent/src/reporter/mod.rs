//! The reporter: reads the records of the core, has them reported, and serves metrics and health. It may be slow, be
//! paged out, or die: the core goes on.

mod names;
mod server;

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use plimsoll_inventory::Protected;
use plimsoll_node::meminfo::MemInfo;
use plimsoll_node::{capabilities, program, system_calls};
use plimsoll_report::{Log, Metrics, Reporter, TraceFiles, lock};
use plimsoll_state::handover::{self, ForReporter, Handover};
use plimsoll_state::queue::{Consumer, Descriptors, FRAME};
use plimsoll_units::Bytes;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::child::ChildArguments;
use crate::confine::{self, Files, REPORTER};
use crate::record::Record;
use crate::signals::Signals;
use names::Taken;

/// So many records are reported before another thread gets its turn.
const BATCH: usize = 64;
/// So many batches, before a thread checks whether its queue is still to be read.
const BATCHES: usize = 64;
/// A thread that waits for records checks at least so often whether there will be no more.
const RECHECK: Duration = Duration::from_mins(2);
/// Without a trace, so long after the core wakes it the watching thread's records are reported: a victim may need the only CPU
/// on which it can die. So much later are some hundred records at most, of many more that the queue has room for.
const BATCHED: Duration = Duration::from_millis(20);
/// A thread that was woken gives back what it has used of the program, unless it did so less than this ago: the most of what
/// stands in memory at rest would be what was reported last.
const GIVEN_BACK: Duration = Duration::from_secs(30);
/// How long the end waits until the log is read; the supervisor waits a little longer.
const LAST_LINES: Duration = Duration::from_secs(1);

/// All files of a trace together are at most so large, where the options have no size.
const TRACE_SIZE: Bytes = Bytes::mib(64);

/// Runs until SIGTERM.
pub(crate) fn main(arguments: &ChildArguments) -> anyhow::Result<()> {
    // Before anything else, and before there is another thread: a capability belongs to a thread.
    capabilities::keep_only(&confine::CAPABILITIES)?;
    let socket = arguments.socket()?;
    let own_cgroup = crate::core::own_cgroup(&Protected::read());
    let configuration = arguments.configuration(own_cgroup)?;
    let address = configuration.machine.metrics_address;
    let format = configuration.machine.log_format;
    let (kernel_log, trouble) = match OpenOptions::new().write(true).open("/dev/kmsg") {
        Ok(file) => (Some(file), None),
        Err(error) => {
            (None, Some(format!("kills are not reported in the kernel's log: cannot open /dev/kmsg: {error}")))
        }
    };
    // Without it the gauges are absent.
    let memory = MemInfo::open().ok();
    let entered = arguments.options.trace.as_deref().map(confine::enter_directory).transpose();
    let trace = entered.as_ref().ok().copied().flatten();
    let size = arguments.options.trace_size.unwrap_or(TRACE_SIZE);
    #[cfg(feature = "fault-injection")]
    let hostile = crate::hostile::open(crate::hostile::REPORTER)?;
    let mut unconfined = REPORTER.confine(Files { written: trace, ..Files::default() })?;
    // A process that becomes another user forgets what it asked for.
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // One that died before that sends no signal.
    arguments.ensure_supervised()?;
    let files = entered.and_then(|folder| folder.map(|folder| TraceFiles::open(folder, size)).transpose());
    let bars_files = confine::is_confined();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    // From here on it reads what comes from outside.
    unconfined.extend(REPORTER.filter(|| system_calls::filter_reporter(trace.is_some())).err());
    #[cfg(feature = "fault-injection")]
    crate::hostile::start(hostile)?;
    let entries = files.and_then(|files| files.map(TraceFiles::start).transpose());
    let metrics = Metrics::new(bars_files && unconfined.is_empty());
    let level = arguments.options.log_level();
    let log = Log::start(format, level, std::io::stdout(), metrics.count_lost_log_lines())?;
    log.install()?;
    let mut reporter = Reporter::new(configuration, metrics, kernel_log, memory);
    let untraced = match entries {
        Ok(Some(entries)) => {
            reporter.trace(entries);
            None
        }
        Ok(None) => None,
        Err(error) => {
            let id = REPORTER.id;
            Some(format!("no trace is written: {error}; give the directory to user {id} (chown {id}), see --trace"))
        }
    };
    for trouble in trouble.into_iter().chain(unconfined).chain(untraced) {
        tracing::warn!("{trouble}");
    }
    program::let_go();
    runtime.block_on(async {
        run(socket.into(), Arc::new(Mutex::new(reporter)), address, signals.end(&log, level)).await
    })?;
    // The log may still not be read: then its last lines are lost.
    log.finish(LAST_LINES);
    Ok(())
}

/// Reports the records of the queues that are received from `socket`, and serves, until `end`; then reports what is left.
async fn run(
    socket: std::os::unix::net::UnixDatagram,
    reporter: Arc<Mutex<Reporter>>,
    address: SocketAddr,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    let (mut readers, mut names) = (Vec::new(), None::<Taken>);
    let server = server::serve(address, lock(&reporter).answers());
    tokio::pin!(server, end);
    loop {
        let received = tokio::select! {
            biased;
            never = &mut server => match never {},
            () = &mut end => break,
            received = socket.async_io(Interest::READABLE, || Ok(handover::receive_for_reporter(&socket)?)) => received,
        };
        match received {
            Ok(ForReporter::Core(handover)) => replace(&mut readers, handover, &reporter)?,
            Ok(ForReporter::Names(way)) => {
                // The earlier one is closed.
                drop(names.take());
                names = Some(Taken::from(way, &reporter)?);
            }
            Err(error) => tracing::warn!("the queues of the core cannot be received: {error}"),
        }
    }
    // Those of a core that was just started may not have been received yet.
    while let Ok(received) = handover::receive_for_reporter(&socket) {
        if let ForReporter::Core(handover) = received {
            replace(&mut readers, handover, &reporter)?;
        }
    }
    readers.drain(..).for_each(Reader::end);
    lock(&reporter).close();
    Ok(())
}

/// Reads the queues of a new core, after the last records of the one before it.
fn replace(readers: &mut Vec<Reader>, handover: Handover, reporter: &Arc<Mutex<Reporter>>) -> anyhow::Result<()> {
    readers.drain(..).for_each(Reader::end);
    lock(reporter).follow(handover.process);
    let pause = if lock(reporter).traces() { Duration::ZERO } else { BATCHED };
    let names = [("watch-queue", pause), ("inventory-queue", Duration::ZERO)];
    for ((name, pause), queue) in names.into_iter().zip(&handover.queues) {
        readers.push(Reader::start(name, pause, queue, Arc::clone(reporter))?);
    }
    Ok(())
}

/// A queue, and the thread that reports its records.
struct Reader(Arc<Queue>);

struct Queue {
    name: &'static str,
    consumer: Mutex<Consumer>,
    reporter: Arc<Mutex<Reporter>>,
    over: AtomicBool,
}

impl Reader {
    /// Reports its records a `pause` after each wake.
    fn start(
        name: &'static str,
        pause: Duration,
        descriptors: &Descriptors,
        reporter: Arc<Mutex<Reporter>>,
    ) -> anyhow::Result<Self> {
        let consumer = Consumer::attach(descriptors)?;
        let waiter = consumer.waiter();
        let queue = Arc::new(Queue { name, consumer: Mutex::new(consumer), reporter, over: AtomicBool::new(false) });
        let own = Arc::clone(&queue);
        // The thread logs where the one that starts it does.
        let log = tracing::dispatcher::get_default(Clone::clone);
        let report = move || {
            let _log = tracing::dispatcher::set_default(&log);
            let mut given_back = Instant::now();
            while !own.over.load(Ordering::Relaxed) {
                let seen = waiter.wakes();
                own.drain();
                if given_back.elapsed() >= GIVEN_BACK {
                    program::let_go();
                    given_back = Instant::now();
                }
                waiter.wait(seen, RECHECK);
                std::thread::sleep(pause);
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(report).context("cannot start a thread for a queue")?;
        Ok(Self(queue))
    }

    /// Reports what is left. The core has ended, or this process is about to.
    fn end(self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.drain();
    }
}

impl Queue {
    /// Reports all records that are there; of a core that goes on writing, more than its queue has room for.
    fn drain(&self) {
        let mut consumer = lock(&self.consumer);
        for _ in 0..BATCHES {
            if take(self.name, &mut consumer, &mut lock(&self.reporter)) < BATCH {
                return;
            }
        }
    }
}

/// Reports the next records, and gives how many there were: fewer than [`BATCH`] where there are no more.
fn take(name: &str, consumer: &mut Consumer, reporter: &mut Reporter) -> usize {
    let mut frame = [0; FRAME];
    for count in 0..BATCH {
        let Some(bytes) = consumer.pop(&mut frame) else {
            reporter.queue(name, consumer.take_losses());
            return count;
        };
        match Record::read(bytes) {
            Some(record) => reporter.report(&record),
            None => reporter.malformed(),
        }
    }
    BATCH
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{HealthRecord, StartParts, StartupRecord};
    use plimsoll_config::LogFormat;
    use plimsoll_report::LevelFilter;
    use plimsoll_state::queue::{self, Producer};
    use std::io::Read as _;
    use std::os::unix::net::UnixDatagram;
    use tokio::sync::oneshot;

    pub(super) fn reporter() -> Arc<Mutex<Reporter>> {
        let configuration = plimsoll_config::parse("", "test.yaml").expect("it is in order");
        Arc::new(Mutex::new(Reporter::new(configuration, Metrics::new(true), None, None)))
    }

    /// Runs the reporter while `feed` sends to its socket, and gives what it logged.
    pub(super) fn logged(
        format: LogFormat,
        reporter: &Arc<Mutex<Reporter>>,
        feed: impl AsyncFnOnce(UnixDatagram),
    ) -> String {
        let (mut text, writer) = std::io::pipe().expect("a pipe");
        let log = Log::start(format, LevelFilter::INFO, writer, || {}).expect("a thread");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        log.within(|| {
            runtime.block_on(async {
                let (send, receive) = handover::pair().expect("sockets");
                let (end, ended) = oneshot::channel::<()>();
                let all = run(receive, Arc::clone(reporter), ([127, 0, 0, 1], 0).into(), async {
                    drop(ended.await);
                });
                let feed = async {
                    feed(send).await;
                    end.send(()).expect("it runs");
                };
                let (result, ()) = tokio::join!(all, feed);
                result.expect("it ends well");
            });
        });
        assert!(log.finish(Duration::from_mins(1)));
        let mut lines = String::new();
        text.read_to_string(&mut lines).expect("its thread has ended");
        lines
    }

    /// A core's own ends of its queues, the other ones handed over.
    fn core(socket: &UnixDatagram, watch: usize, inventory: usize) -> (Producer, Producer) {
        let ((watch, first), (inventory, second)) =
            (queue::create(watch).expect("memory"), queue::create(inventory).expect("memory"));
        let process = plimsoll_node::process::open(rustix::process::getpid()).expect("it runs");
        handover::send(socket, &Handover { queues: [first, second], process }).expect("room");
        (watch, inventory)
    }

    fn trouble(text: &str) -> HealthRecord<'_> {
        HealthRecord::Trouble { what: "test", text: Some(text), is_logged: false }
    }

    #[test]
    fn records_of_each_core_are_reported_in_order_and_none_is_left_at_the_end() {
        let reporter = reporter();
        let metrics = || lock(&reporter).answers().metrics();
        let lines = logged(LogFormat::Json, &reporter, async |send| {
            let (pid, start) = (std::process::id(), StartParts::default());
            let (mut watch, mut inventory) = core(&send, 2, 200);
            assert!(trouble("from the core that died").send(&mut watch));
            let armed = StartupRecord::Armed { pid, source: "psi", shadow: None, workloads: 4, start };
            assert!(armed.send(&mut inventory));
            drop((watch, inventory));
            let (mut watch, mut inventory) = core(&send, 2, 200);
            // Nothing is read before this is awaited, so the third record overwrites the first.
            assert!(trouble("without room").send(&mut watch));
            assert!(watch.push(&[255; 16]));
            assert!(trouble("from the watch").send(&mut watch));
            for _ in 0..2 * BATCH {
                assert!(trouble("from the inventory thread").send(&mut inventory));
            }
            while !metrics().contains("side=\"agent\"} 1") {
                tokio::task::yield_now().await;
            }
            assert!(trouble("the last record").send(&mut watch));
            let (mut watch, _inventory) = core(&send, 2, 200);
            assert!(trouble("of a core that just started").send(&mut watch));
        });
        let count = |text: &str| lines.matches(&format!("\"message\":\"{text}\"")).count();
        for (message, times) in [
            ("from the watch", 1),
            ("without room", 0),
            ("from the inventory thread", 2 * BATCH),
            ("the last record", 1),
            ("of a core that just started", 1),
        ] {
            assert_eq!(count(message), times, "{message} in {lines}");
        }
        let place = |text: &str| lines.find(text);
        assert!(place("armed with source psi") < place("from the inventory thread"), "{lines}");
        assert!(place("from the core that died").is_some_and(|at| Some(at) < place("from the watch")), "{lines}");
        let metrics = metrics();
        for line in [
            "plimsoll_lost_records_total{ring=\"watch-queue\"} 1\n",
            "plimsoll_lost_records_total{ring=\"inventory-queue\"} 0\n",
            "plimsoll_malformed_records_total{side=\"agent\"} 1\n",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
    }
}
