//! The reporter: logs, metrics, health. May be slow, may be paged out, may die: the core goes on.

mod health;
mod metrics;
mod server;
mod tell;

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use plimsoll_node::capabilities;
use plimsoll_state::queue::{Consumer, FRAME};
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{SignalKind, signal};

use crate::QueueNumbers;
use crate::options::Options;
use crate::record::Record;
use tell::Teller;

/// Between two batches of records the servers get their turn.
const BATCH: usize = 64;

/// What the supervisor starts the reporter with.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The watching thread's queue.
    #[arg(long)]
    queue: QueueNumbers,
    /// The scout thread's queue.
    #[arg(long)]
    slow: QueueNumbers,
}

/// Runs until SIGTERM.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    let queue = Consumer::attach(arguments.queue.take()?)?;
    let slow = Consumer::attach(arguments.slow.take()?)?;
    let configuration = crate::supervisor::configuration(&arguments.options)?;
    capabilities::keep_only(&[])?;
    let address = configuration.metrics_address;
    let teller = Arc::new(Mutex::new(Teller::new(configuration)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let mut queues = [Queue::new("watch-queue", queue)?, Queue::new("scout-queue", slow)?];
        let server = server::serve(address, Arc::clone(&teller));
        tokio::pin!(server);
        loop {
            let [watch, scout] = &mut queues;
            tokio::select! {
                never = &mut server => match never {},
                result = watch.readable() => result?,
                result = scout.readable() => result?,
                _ = term.recv() => {
                    for queue in &mut queues {
                        while queue.take(&teller) == BATCH {}
                    }
                    return Ok(());
                }
            }
            for queue in &mut queues {
                while queue.take(&teller) == BATCH {
                    tokio::task::yield_now().await;
                }
            }
        }
    })
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
    fn take(&mut self, teller: &Mutex<Teller>) -> usize {
        let mut teller = teller.lock().unwrap_or_else(PoisonError::into_inner);
        let mut frame = [0; FRAME];
        for count in 0..BATCH {
            let Some(bytes) = self.consumer.pop(&mut frame) else {
                teller.queue(self.name, self.consumer.dropped(), self.consumer.damaged());
                return count;
            };
            match Record::read(bytes) {
                Some(record) => teller.tell(&record),
                None => teller.malformed(),
            }
        }
        BATCH
    }
}
