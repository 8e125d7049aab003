//! `plimsoll run`: starts the core and the reporter, and starts them again when they die.
//!
//! Small and locked in memory, so that it can do its one duty however bad things are: when the core is gone, whatever
//! it held goes on at once, before a new core is started.

use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use plimsoll_config::{ConfigError, Configuration, Snapshot};
use plimsoll_inventory::Protected;
use plimsoll_node::os::CgroupMode;
use plimsoll_node::{lock, priority};
use plimsoll_state::handover::{self, Queues};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value};

use crate::acting::Locks;
use crate::core;
use crate::inherited_config::InheritedConfig;
use crate::log::{self, Level};
use crate::log_writer::{self, LogWriter, Written};
use crate::options::Options;
use crate::undo::undo_all;

/// The pause before a process is started again; it doubles
const PAUSE: Duration = Duration::from_millis(100);
/// up to this,
const PAUSE_MOST: Duration = Duration::from_secs(10);
/// and begins anew for one that lived so long.
const LIVED: Duration = Duration::from_mins(1);
/// How long the core may take to finish what it began and to let go of everything; somewhat more than it takes itself.
const CORE_GRACE: Duration = core::END_MOST.saturating_add(Duration::from_secs(3));
/// How long the reporter may take to tell the rest.
const REPORTER_GRACE: Duration = Duration::from_secs(2);
/// How long the end waits for whoever reads this process's own log.
const LAST_LINES: Duration = Duration::from_secs(1);
/// The OOM killer's view of the three processes: last of all but what must never die.
const OOM_SCORE: i16 = -999;

/// Reads the configuration with what the machine says of this process's own place.
pub(crate) fn configuration(options: &Options) -> Result<Configuration, ConfigError> {
    options.load(core::own_cgroup(&Protected::read()))
}

/// Runs until SIGTERM or SIGINT, and gives the exit code.
pub(crate) fn main(options: &Options) -> anyhow::Result<u8> {
    let (configuration, read) = options.load_and_keep(core::own_cgroup(&Protected::read()))?;
    if let Some(sentence) = CgroupMode::detect().refusal() {
        eprintln!("plimsoll: {sentence}");
        return Ok(crate::NOT_HERE);
    }
    Supervisor::start(options, configuration, &read)?.serve()
}

struct Supervisor {
    configuration: Configuration,
    arguments: Vec<std::ffi::OsString>,
    inherited_config: InheritedConfig,
    /// Of the core that handed them over last: each new reporter gets them.
    queues: Option<Queues>,
    /// Where a core that was just started hands over its own.
    from_core: Option<UnixDatagram>,
    /// Where the reporter gets them.
    to_reporter: Option<UnixDatagram>,
    reporter_restarted: OwnedFd,
    signals: UnixStream,
    /// It was asked to end.
    term: Arc<AtomicBool>,
    /// Where its log goes without anybody waiting: with a log that nobody reads, the core is started all the same.
    log_writer: LogWriter,
    written: Written,
    core: ChildProcess,
    reporter: ChildProcess,
    /// How many cores were started.
    cores: usize,
}

/// A process that is kept alive.
struct ChildProcess {
    name: &'static str,
    child: Option<Child>,
    started: Instant,
    pause: Duration,
    /// When to start it again.
    due: Option<Instant>,
}

impl ChildProcess {
    fn new(name: &'static str) -> Self {
        let now = Instant::now();
        Self { name, child: None, started: now, pause: PAUSE, due: Some(now) }
    }

    /// How it ended, if it has.
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

    /// Asks it to end, and ends it where it does not. Gives how it ended, if it was there.
    fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < grace {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
        let _ = child.kill();
        child.wait().ok()
    }
}

impl Supervisor {
    fn start(options: &Options, configuration: Configuration, read: &Snapshot) -> anyhow::Result<Self> {
        Locks::of(&configuration.machine.state_directory).make_places()?;
        let (signals, write) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        let term = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            // Before the wake, so that whoever is woken sees it.
            signal_hook::flag::register(signal, Arc::clone(&term))?;
        }
        for signal in [signal_hook::consts::SIGCHLD, signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        let (log_writer, written) = log_writer::start(std::io::stdout(), || {})?;
        let supervisor = Self {
            arguments: options.arguments(),
            inherited_config: InheritedConfig::new(read)
                .context("cannot keep the configuration for the processes to be started")?,
            queues: None,
            from_core: None,
            to_reporter: None,
            reporter_restarted: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            signals,
            term,
            log_writer,
            written,
            core: ChildProcess::new("core"),
            reporter: ChildProcess::new("reporter"),
            cores: 0,
            configuration,
        };
        let mut troubles = Vec::new();
        troubles.extend(lock::all_on_fault().err());
        troubles.extend(priority::set_oom_score_adj(OOM_SCORE).err());
        for trouble in troubles {
            supervisor.say(Level::Warn, &trouble.to_string(), &[]);
        }
        for warning in &supervisor.configuration.warnings {
            supervisor.say(Level::Warn, &format!("configuration: {warning}"), &[]);
        }
        Ok(supervisor)
    }

    fn say(&self, level: Level, message: &str, fields: &[(&str, Value)]) {
        let fields: Map<String, Value> = fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let line = log::line(self.configuration.machine.log_format, SystemTime::now(), level, message, &fields) + "\n";
        // Without room for it, it is lost: nothing here may wait for whoever reads the log.
        let _ = self.log_writer.offer(line);
    }

    fn serve(mut self) -> anyhow::Result<u8> {
        let mut first = true;
        while !self.term.load(Ordering::Relaxed) {
            self.start_due()?;
            self.wait()?;
            if let Some(status) = self.core.ended()? {
                self.undo();
                // Where it died right after it had sent them, its last records are in there.
                self.take_queues();
                if first && status.code() == Some(i32::from(crate::NOT_HERE)) {
                    // What this machine lacks it will lack in a second, too. The core said what it is.
                    self.reporter.stop(REPORTER_GRACE);
                    return Ok(crate::NOT_HERE);
                }
                first = false;
                self.core.again();
                let status = [("status", status.to_string().into())];
                self.say(Level::Warn, "the core ended and is started again", &status);
            }
            if let Some(status) = self.reporter.ended()? {
                self.to_reporter = None;
                let status = [("status", status.to_string().into())];
                self.say(Level::Warn, "the reporter ended and is started again", &status);
                self.reporter.again();
            }
        }
        if let Some(status) = self.core.stop(CORE_GRACE).filter(|status| !status.success()) {
            let status = [("status", status.to_string().into())];
            self.say(Level::Warn, "the core did not end in order", &status);
        }
        self.undo();
        self.take_queues();
        self.reporter.stop(REPORTER_GRACE);
        drop(self.log_writer);
        self.written.wait(LAST_LINES);
        Ok(0)
    }

    /// Waits for a signal, for the queues of a new core, or for the next start.
    fn wait(&mut self) -> anyhow::Result<()> {
        let due = [self.core.due, self.reporter.due].into_iter().flatten().min();
        let timeout = due.map(|due| Timespec::try_from(due.saturating_duration_since(Instant::now()))).transpose()?;
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        fds.extend(self.from_core.as_ref().map(|core| PollFd::new(core, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for signals"),
        }
        self.take_queues();
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
        // A core hands over once.
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
            // It would read a dead core's for ever. Its successor gets the new ones at its start.
            self.to_reporter = None;
            if let Some(reporter) = &mut self.reporter.child {
                let _ = reporter.kill();
            }
            self.say(Level::Warn, &format!("the reporter does not take its queues and is killed: {errno}"), &[]);
        }
    }

    fn start_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.reporter.due.is_some_and(|due| due <= now) {
            let launched = self.start_reporter();
            self.report_launch("reporter", launched);
            // The core says again what a new reporter cannot know.
            let _ = rustix::io::write(&self.reporter_restarted, &1_u64.to_ne_bytes());
        }
        if self.core.due.is_some_and(|due| due <= now) {
            // The core's alone.
            fcntl_setfd(&self.reporter_restarted, FdFlags::empty())?;
            let launched = self.start_core();
            fcntl_setfd(&self.reporter_restarted, FdFlags::CLOEXEC)?;
            self.cores += usize::from(launched.is_ok());
            self.report_launch("core", launched);
        }
        Ok(())
    }

    fn start_reporter(&mut self) -> std::io::Result<()> {
        let command = self.command("reporter");
        let to_reporter = launch(&mut self.reporter, command, |(send, receive)| (receive, send))?;
        self.to_reporter = Some(to_reporter);
        self.hand_on();
        Ok(())
    }

    fn start_core(&mut self) -> std::io::Result<()> {
        let mut command = self.command("core");
        command.arg("--reporter-restarted").arg(self.reporter_restarted.as_raw_fd().to_string());
        let from_core = launch(&mut self.core, command, |ends| ends)?;
        self.from_core = Some(from_core);
        Ok(())
    }

    fn report_launch(&self, part: &str, launched: std::io::Result<()>) {
        if let Err(error) = launched {
            let fields = [("error", error.to_string().into())];
            self.say(Level::Warn, &format!("the {part} could not be started; it is tried again"), &fields);
        }
    }

    fn command(&self, part: &str) -> Command {
        let mut command = Command::new(own_program());
        command.arg0("plimsoll");
        command.arg(part).args(&self.arguments);
        command.arg("--supervisor").arg(std::process::id().to_string());
        command.arg("--inherited-config").arg(self.inherited_config.number().to_string());
        #[cfg(feature = "fault-injection")]
        crate::fault_injection::leave_kill_point(&mut command, self.cores);
        command.stdin(std::process::Stdio::null());
        command
    }

    /// Undoes what the core held.
    fn undo(&self) {
        match undo_all(&self.configuration) {
            Ok(summary) if summary.failed.is_empty() && summary.thawed.is_empty() && summary.continued == 0 => {}
            Ok(summary) => self.say(Level::Warn, &format!("undone after the core: {summary}"), &[]),
            Err(error) => self.say(Level::Warn, &format!("cannot undo what the core held: {error:#}"), &[]),
        }
    }
}

/// This program's file; where an upgrade put another in its place, this program as the kernel still has it. The
/// processes speak with each other, so all of them have to be of the same build.
fn own_program() -> PathBuf {
    let file = std::env::current_exe().ok().filter(|file| file.exists());
    file.unwrap_or_else(|| "/proc/self/exe".into())
}

/// Starts it with the one of two sockets that `ends` gives first, and gives the other.
fn launch(
    process: &mut ChildProcess,
    mut command: Command,
    ends: fn((UnixDatagram, UnixDatagram)) -> (UnixDatagram, UnixDatagram),
) -> std::io::Result<UnixDatagram> {
    process.due = None;
    let launched = (|| {
        let (its, own) = ends(handover::pair()?);
        fcntl_setfd(&its, FdFlags::empty())?;
        command.arg("--queues").arg(its.as_raw_fd().to_string());
        Ok((command.spawn()?, own))
    })();
    match launched {
        Ok((child, own)) => {
            process.child = Some(child);
            process.started = Instant::now();
            Ok(own)
        }
        // Too many processes or files, or no memory just now: later.
        Err(error) => {
            process.again();
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit that is shipped.
    const UNIT: &str = include_str!("../deploy/plimsoll.service");

    /// The values of a key of the unit, in the order in which they stand there.
    fn values(key: &str) -> Vec<&'static str> {
        UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
    }

    #[test]
    fn the_unit_never_gives_up_and_waits_longer_each_time() {
        assert_eq!(values("StartLimitIntervalSec"), ["0"], "five starts in ten seconds would be the last ones");
        let unit = UNIT.split("\n[Service]").next().expect("a first part");
        assert!(unit.contains("\nStartLimitIntervalSec=0"), "it belongs to [Unit]; elsewhere it is ignored");
        assert_eq!((values("Restart"), values("RestartSec")), (vec!["always"], vec!["1s"]));
        assert_eq!((values("RestartSteps"), values("RestartMaxDelaySec")), (vec!["5"], vec!["30s"]));
    }

    #[test]
    fn the_unit_gives_the_end_the_time_that_it_may_take() {
        let [time] = values("TimeoutStopSec")[..] else { panic!("one time to stop") };
        let seconds = time.strip_suffix('s').and_then(|seconds| seconds.parse().ok()).expect("in seconds");
        let most = CORE_GRACE + REPORTER_GRACE + LAST_LINES;
        assert!(most < Duration::from_secs(seconds), "systemd kills it after {seconds} s, and it may take {most:?}");
    }

    #[test]
    fn pauses_between_starts_double_up_to_the_longest_and_begin_anew() {
        let mut process = ChildProcess::new("child");
        let mut next = || {
            let before = Instant::now();
            process.again();
            let pause = process.due.expect("it is planned") - before;
            (Duration::from_millis(pause.as_millis().try_into().expect("short")), process.pause)
        };
        let mut pauses = vec![PAUSE];
        while pauses.len() < 9 {
            let (pause, following) = next();
            assert!(pause >= pauses[pauses.len() - 1] && pause < following.max(PAUSE_MOST + PAUSE), "{pause:?}");
            pauses.push(following);
        }
        assert_eq!(pauses[..3], [PAUSE, PAUSE * 2, PAUSE * 4]);
        assert_eq!(pauses[8], PAUSE_MOST);
        process.started = Instant::now().checked_sub(LIVED).expect("the machine runs for a minute");
        process.again();
        assert_eq!(process.pause, PAUSE * 2, "it lived long enough");
    }
}
