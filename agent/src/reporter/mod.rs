//! The reporter: logs, metrics, health. May be slow, may be paged out, may die: the core goes on.

mod health;
mod kernel_log;
mod metrics;
mod plan;
mod server;
mod sink;
mod trace;

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus,
    Scope, path_beneath_rules,
};
use plimsoll_node::capabilities;
use plimsoll_node::discover::Protected;
use plimsoll_node::meminfo::MemInfo;
use plimsoll_node::os::CgroupMode;
use plimsoll_state::queue::{Consumer, FRAME};
use plimsoll_units::Bytes;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Map, Value, json};
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{SignalKind, signal};

use crate::QueueNumbers;
use crate::inherited_config;
use crate::log::{self, Level};
use crate::log_writer;
use crate::observe::Observer;
use crate::options::Options;
use crate::record::Record;
use metrics::Metrics;
use sink::Sink;
use trace::Trace;

/// Between two batches of records the servers get their turn.
const BATCH: usize = 64;
/// How long the end waits for whoever reads the log; the supervisor waits a little longer.
const LAST_LINES: Duration = Duration::from_secs(1);

/// All files of a trace together are at most so large,
const TRACE_SIZE: Bytes = Bytes::mib(64);
/// and the machine is looked at so often for it, where nothing else is said.
const TRACE_PERIOD: Duration = Duration::from_secs(5);

/// What the supervisor starts the reporter with.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The watching thread's queue.
    #[arg(long)]
    queue: QueueNumbers,
    /// The inventory thread thread's queue.
    #[arg(long)]
    slow: QueueNumbers,
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
    let queue = Consumer::attach(arguments.queue.take()?)?;
    let slow = Consumer::attach(arguments.slow.take()?)?;
    let own_cgroup = crate::core::own_cgroup(&Protected::read());
    let configuration = inherited_config::configuration(&arguments.options, arguments.inherited_config, own_cgroup)?;
    let address = configuration.metrics_address;
    let format = configuration.log_format;
    let (kernel_log, trouble) = match OpenOptions::new().write(true).open("/dev/kmsg") {
        Ok(file) => (Some(file), None),
        Err(error) => (None, Some(format!("kills are not told in the kernel's log: cannot open /dev/kmsg: {error}"))),
    };
    // Without it the gauges are absent.
    let memory = MemInfo::open().ok();
    let mode = CgroupMode::detect();
    let tracing = arguments.options.trace.as_ref().map(|folder| {
        let observer = Observer::new(&configuration, mode.unified());
        let Options { trace_size, trace_period, .. } = arguments.options;
        Trace::open(folder, trace_size.unwrap_or(TRACE_SIZE), trace_period.unwrap_or(TRACE_PERIOD), observer)
    });
    let confined = confine(arguments.options.trace.as_deref(), mode.unified());
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
        let queues = [Queue::new("watch-queue", queue)?, Queue::new("scout-queue", slow)?];
        let end = async {
            term.recv().await;
        };
        run(queues, Arc::new(Mutex::new(sink)), address, end).await
    })?;
    // Whoever reads the log may still not read it: then its last lines are lost.
    written.wait(LAST_LINES);
    Ok(())
}

/// Bars this thread, and those that it starts, from every file that is not open yet: who breaks in through the network
/// finds a process of root that can write no cgroup's `cgroup.kill`. Where a trace is written, files of cgroups can be
/// read and those of the trace written.
fn confine(trace: Option<&Path>, cgroups: Option<&Path>) -> Result<(), String> {
    let read = path_beneath_rules(cgroups.filter(|_| trace.is_some()), AccessFs::ReadFile | AccessFs::ReadDir);
    let write = AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate;
    let barred = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        // From Linux 6.12 on it cannot signal the core or the supervisor either.
        .and_then(|rules| rules.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rules(read))
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

/// Tells what comes through the queues and serves, until `end`; then tells what is left.
async fn run(
    mut queues: [Queue; 2],
    sink: Arc<Mutex<Sink>>,
    address: SocketAddr,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let server = server::serve(address, Arc::clone(&sink));
    tokio::pin!(server, end);
    loop {
        let [watch, inventory] = &mut queues;
        let ended = tokio::select! {
            // However many records come, the first two are looked at.
            biased;
            never = &mut server => match never {},
            () = &mut end => true,
            result = watch.readable() => result.map(|()| false)?,
            result = inventory.readable() => result.map(|()| false)?,
        };
        for queue in &mut queues {
            while queue.take(&sink) == BATCH {
                tokio::task::yield_now().await;
            }
        }
        if ended {
            sink.lock().unwrap_or_else(PoisonError::into_inner).close();
            return Ok(());
        }
    }
}

/// A queue and its descriptor, as the runtime waits for it.
struct Queue {
    name: &'static str,
    consumer: Consumer,
    /// An eventfd, which is read as a pipe is.
    ready: Receiver,
}

impl Queue {
    fn new(name: &'static str, consumer: Consumer) -> anyhow::Result<Self> {
        let ready = Receiver::from_owned_fd_unchecked(consumer.wake_fd().try_clone_to_owned()?)?;
        Ok(Self { name, consumer, ready })
    }

    async fn readable(&self) -> anyhow::Result<()> {
        loop {
            self.ready.readable().await?;
            match self.ready.try_read(&mut [0; 8]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                result => return result.map(drop).context("cannot wait for the core's records"),
            }
        }
    }

    /// Tells the next records, and gives how many there were: fewer than [`BATCH`] where there are no more.
    fn take(&mut self, sink: &Mutex<Sink>) -> usize {
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        let mut frame = [0; FRAME];
        for count in 0..BATCH {
            let Some(bytes) = self.consumer.pop(&mut frame) else {
                sink.queue(self.name, self.consumer.dropped(), self.consumer.damaged());
                return count;
            };
            match Record::read(bytes) {
                Some(record) => sink.report(&record),
                None => sink.malformed(),
            }
        }
        BATCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StartParts;
    use plimsoll_state::queue::{Descriptors, Producer};
    use tokio::sync::oneshot;

    fn queue(name: &'static str, slots: usize) -> (Producer, Queue) {
        let made = Descriptors::create(slots).expect("memory");
        let again = Descriptors {
            memory: made.memory.try_clone().expect("a descriptor more"),
            wake: made.wake.try_clone().expect("a descriptor more"),
        };
        let consumer = Consumer::attach(made).expect("a queue");
        (Producer::attach(again).expect("a queue"), Queue::new(name, consumer).expect("it can be waited for"))
    }

    #[test]
    fn records_become_lines_and_metrics_and_the_end_tells_the_rest() {
        let (sink, lines) = sink::tests::sink("", None);
        let sink = Arc::new(Mutex::new(sink));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let metrics = runtime.block_on(async {
            let ((mut watch, first), (mut inventory, second)) = (queue("watch-queue", 2), queue("scout-queue", 200));
            let (end, ended) = oneshot::channel::<()>();
            let all = run([first, second], Arc::clone(&sink), ([127, 0, 0, 1], 0).into(), async {
                drop(ended.await);
            });
            let feed = async {
                let start = StartParts::default();
                Record::Armed { pid: 3, source: "psi", shadow: None, workloads: 4, start }.send(&mut inventory);
                while !sink.lock().expect("no panic").readiness().0 {
                    tokio::task::yield_now().await;
                }
                // Two fit, of which one is none; then one is dropped, and more than a batch comes elsewhere.
                assert!(watch.push(&[255; 16]));
                assert!(Record::Trouble { text: "from the watch" }.send(&mut watch));
                assert!(!Record::Trouble { text: "without room" }.send(&mut watch));
                for _ in 0..2 * BATCH {
                    assert!(Record::Trouble { text: "from the inventory thread" }.send(&mut inventory));
                }
                end.send(()).expect("it runs");
            };
            let (result, ()) = tokio::join!(all, feed);
            result.expect("it ends well");
            sink.lock().expect("no panic").metrics()
        });
        let lines = lines.lock().expect("no panic");
        assert!(lines[0].1.starts_with("armed with source psi"), "{lines:?}");
        let count = |text: &str| lines.iter().filter(|line| line.1 == text).count();
        assert_eq!(
            (count("from the watch"), count("without room"), count("from the inventory thread")),
            (1, 0, 2 * BATCH)
        );
        for line in [
            "plimsoll_lost_records_total{ring=\"watch-queue\"} 1\n",
            "plimsoll_lost_records_total{ring=\"scout-queue\"} 0\n",
            "plimsoll_malformed_records_total{side=\"agent\"} 1\n",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
    }
}
