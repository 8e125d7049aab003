//! The broker: between `services` and the container runtime, whose socket is equivalent to root. What only reads passes. What
//! stops, removes or changes something passes where an order of the core covers it, which comes here from the core itself.
//! So code that an attacker runs in `services` can do with a runtime no more than what was decided.
//!
//! It reads no file and connects to nothing: the supervisor hands it both ends of each connection. Dead or slow, it costs
//! what a runtime costs that does not answer.

mod orders;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Stream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_config::Configuration;
use plimsoll_cri::{Change, Guard, Listed};
use plimsoll_inventory::{CORE_MESSAGE, CoreMessage};
use plimsoll_node::clock::monotonic;
use plimsoll_node::{capabilities, priority, program, system_calls};
use plimsoll_state::handover::{self, ForBroker};
use plimsoll_units::{MonotonicNs, Pattern};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::Interest;
use tokio::net::{UnixDatagram, UnixStream};
use tokio::task::JoinSet;

use crate::child::{ChildArguments, SPARED_OOM_SCORE};
use crate::confine::{self, BROKER, Files};
use crate::services;
use crate::signals::Signals;
use orders::Orders;

/// How long the end waits until the log is read.
const LAST_LINES: Duration = Duration::from_millis(500);
/// So many connections are open at a time. More are not passed on. `services` needs five, and one for each container of a pod that
/// is being stopped where the runtime is started again meanwhile.
const CONNECTIONS: usize = 64;
/// Refusals are logged once in this time.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Whether there is a runtime that `services` may ask.
pub(crate) fn is_needed(configuration: &Configuration) -> bool {
    services::runtime_sockets(configuration).is_ok_and(|sockets| !sockets.is_empty())
}

/// Runs until SIGTERM.
pub(crate) fn main(arguments: &ChildArguments) -> anyhow::Result<()> {
    // Before anything else, and before there is another thread: a capability belongs to a thread.
    capabilities::keep_only(&confine::CAPABILITIES)?;
    let socket = arguments.socket()?;
    let configuration = arguments.configuration(None)?;
    let mut troubles =
        Vec::from_iter(priority::set_oom_score_adj(SPARED_OOM_SCORE).err().map(|error| error.to_string()));
    #[cfg(feature = "fault-injection")]
    let hostile = crate::hostile::open(crate::hostile::BROKER)?;
    troubles.extend(BROKER.confine(Files::default())?);
    // A process that becomes another user forgets what it asked for.
    set_parent_process_death_signal(Some(Signal::TERM))?;
    arguments.ensure_supervised()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    troubles.extend(BROKER.filter(system_calls::filter_broker).err());
    #[cfg(feature = "fault-injection")]
    crate::hostile::start(hostile)?;
    let (log, level) = arguments.start_log(configuration.machine.log_format, troubles)?;
    program::let_go();
    runtime.block_on(async {
        tokio::select! {
            () = signals.end(&log, level) => Ok(()),
            served = serve(socket, configuration.machine.images_never_removed.clone()) => served,
        }
    })?;
    log.finish(LAST_LINES);
    Ok(())
}

/// Takes in what the supervisor hands over and the newest core orders, and passes calls on.
async fn serve(socket: OwnedFd, never: Vec<Pattern>) -> anyhow::Result<()> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    let keeper = Arc::new(Keeper { never, ..Keeper::default() });
    let mut connections = JoinSet::new();
    loop {
        let core = keeper.core();
        tokio::select! {
            received = socket.async_io(Interest::READABLE, || Ok(handover::receive_for_broker(&socket)?)) => {
                match received {
                    Ok(ForBroker::Core(way)) => keeper.begin(way),
                    // One that is not taken is closed, which `services` sees.
                    Ok(ForBroker::Connection { .. }) if connections.len() >= CONNECTIONS => {
                        tracing::warn!("services has {CONNECTIONS} connections to the container runtime, and gets no more");
                    }
                    Ok(ForBroker::Connection { runtime, services }) => {
                        let ends = [services, runtime].map(|end| UnixStream::from_std(Stream::from(end)));
                        let [Ok(services), Ok(runtime)] = ends else { continue };
                        connections.spawn(plimsoll_cri::pass(services, runtime, Arc::clone(&keeper)));
                    }
                    Err(error) => tracing::warn!("what the supervisor sends cannot be received: {error}"),
                }
            }
            () = readable(core.as_deref()) => keeper.take_in(),
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Waits until the core has sent something, if there is one.
async fn readable(core: Option<&UnixDatagram>) {
    match core {
        Some(core) => _ = core.readable().await,
        None => std::future::pending().await,
    }
}

/// The orders, and the way by which they come.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Kept>,
    /// Images that are never removed.
    never: Vec<Pattern>,
}

#[derive(Default)]
struct Kept {
    core: Option<Arc<UnixDatagram>>,
    orders: Orders,
    /// When a refusal was logged last, and how many there were since.
    said: Option<Instant>,
    refused: u64,
}

impl Keeper {
    fn with<R>(&self, with: impl FnOnce(&mut Kept) -> R) -> R {
        with(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The way from the newest core, as long as that runs.
    fn core(&self) -> Option<Arc<UnixDatagram>> {
        self.with(|kept| kept.core.clone())
    }

    /// Another core was started.
    fn begin(&self, way: OwnedFd) {
        match UnixDatagram::from_std(way.into()) {
            Ok(way) => self.with(|kept| {
                kept.core = Some(Arc::new(way));
                kept.orders.end();
            }),
            Err(error) => {
                tracing::warn!("a core's orders cannot be received, and nothing is removed or stopped: {error}");
            }
        }
    }

    /// What the orders say of this change.
    fn asked(
        &self,
        change: &Change,
        refusal: impl FnOnce(&Orders, MonotonicNs) -> Option<&'static str>,
    ) -> Option<&'static str> {
        self.with(|kept| {
            // What `services` acts on was sent here before it was sent there.
            kept.take_in();
            let refusal = refusal(&kept.orders, monotonic());
            if let Some(why) = refusal {
                kept.count(change, why);
            }
            refusal
        })
    }

    /// Takes in all that the core has sent.
    fn take_in(&self) {
        self.with(Kept::take_in);
    }
}

impl Kept {
    fn take_in(&mut self) {
        let mut buffer = [0; CORE_MESSAGE + 1];
        while let Some(core) = &self.core {
            match core.try_recv(&mut buffer) {
                Ok(length @ 1..) => {
                    if let Some(order) = CoreMessage::decode(&buffer[..length]) {
                        self.orders.take(order, monotonic());
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // It has ended, and the next one is on its way.
                Ok(_) | Err(_) => {
                    self.core = None;
                    self.orders.end();
                }
            }
        }
    }

    /// Logs a refusal, and how many there were: what asks may ask without end.
    fn count(&mut self, change: &Change, why: &str) {
        self.refused += 1;
        if self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            let times = self.refused;
            tracing::warn!(times, "services asks the container runtime for what is refused: {why}: {change:?}");
            (self.said, self.refused) = (Some(Instant::now()), 0);
        }
    }
}

impl Guard for Keeper {
    fn refusal_of_kind(&self, change: &Change) -> Option<&'static str> {
        self.asked(change, |orders, now| orders.refusal_of_kind(change, now))
    }

    fn refusal(&self, change: &Change, listed: &Listed) -> Option<&'static str> {
        self.asked(change, |orders, now| orders.refusal(change, listed, &self.never, now))
    }
}
