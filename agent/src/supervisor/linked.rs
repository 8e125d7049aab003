//! Processes that have a way of their own to the newest core: the scanner, started where pods may be evicted for what they take
//! of disks, and the broker, started where there is a container runtime that `services` may ask.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use plimsoll_config::Configuration;
use plimsoll_state::handover;

use super::{ChildProcess, launch, launched_or_again};
use crate::{broker, scanner, services};

/// How long such a process may take to end: it has nothing to finish.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// The process, and the ways to it and from it.
pub(super) struct Linked {
    pub(super) process: ChildProcess,
    /// What its end costs, for the log.
    lost: &'static str,
    /// The way between it and the newest core.
    core: Option<OwnedFd>,
    /// By which it gets that.
    socket: Option<UnixDatagram>,
}

impl Linked {
    fn new(name: &'static str, lost: &'static str) -> Self {
        Self { process: ChildProcess::new(name), lost, core: None, socket: None }
    }

    /// The scanner; absent where it has nothing to do.
    pub(super) fn scanner(configuration: &Configuration) -> Option<Self> {
        let new = || Self::new("scanner", "what it measured holds for a while");
        scanner::is_needed(configuration).then(new)
    }

    /// The broker; absent where it has nothing to do.
    pub(super) fn broker(configuration: &Configuration) -> Option<Self> {
        let new = || Self::new("broker", "services connects to the container runtime anew");
        broker::is_needed(configuration).then(new)
    }

    /// When it is started.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.process.due
    }

    /// Whether its time to be started has come.
    pub(super) fn is_due(&self) -> bool {
        self.process.due.is_some_and(|due| due <= Instant::now())
    }

    /// By which what it needs is handed to it, while it runs.
    pub(super) const fn socket(&self) -> Option<&UnixDatagram> {
        self.socket.as_ref()
    }

    /// Starts it by a command.
    pub(super) fn start(&mut self, command: Command) {
        let launched = launch(&mut self.process, command, |(send, receive)| (receive, send));
        let launched = launched.map(|socket| self.socket = Some(socket));
        launched_or_again(&mut self.process, launched);
        self.hand_on();
    }

    /// Gives it the way to a new core from now on.
    pub(super) fn set_core(&mut self, core: OwnedFd) {
        self.core = Some(core);
        self.hand_on();
    }

    /// Hands it the way to the newest core, if both are there.
    fn hand_on(&mut self) {
        let (Some(socket), Some(core)) = (&self.socket, &self.core) else { return };
        if let Err(errno) = handover::send_core(socket, core) {
            // It would go on with the way to a core that has ended. Its successor gets the new one at its start.
            self.socket = None;
            let _ = self.process.child.as_mut().map(Child::kill);
            tracing::warn!("the {} does not receive its way to the core and is killed: {errno}", self.process.name);
        }
    }

    /// Plans its next start where it has ended. Gives whether it has nothing to do here, and is not started again.
    pub(super) fn follow(&mut self) -> anyhow::Result<bool> {
        let Some(status) = self.process.ended()? else { return Ok(false) };
        self.socket = None;
        if status.code() == Some(services::NOTHING_TO_DO.into()) {
            return Ok(true);
        }
        tracing::warn!(%status, "the {} ended and is started again; {}", self.process.name, self.lost);
        self.process.again();
        Ok(false)
    }

    /// Ends it. Gives it where it does not end although it was killed.
    pub(super) fn stop(&mut self) -> Option<Child> {
        self.process.stop_or_leave(GRACE)
    }
}
