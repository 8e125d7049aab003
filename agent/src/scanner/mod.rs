//! The scanner: measures what pods take of disks, one directory entry after another at a bounded pace, and sends the core
//! numbers. It may be slow, hang or die: the core decides without figures then.
//!
//! One thread without tokio. It has a user of its own and one capability, to enter directories of any user; Landlock lets
//! it list what is below the directories of the kubelet and of logs, and open no file. Of volumes that have a project of
//! their own the supervisor has what the kernel counts.

mod left;
mod once;
pub(crate) mod quotas;
mod round;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_config::Configuration;
use plimsoll_inventory::{MESSAGE, Protected, StorageMessage};
use plimsoll_node::clock::monotonic;
use plimsoll_node::{capabilities, priority, system_calls};
use plimsoll_replay::printable;
use plimsoll_state::handover::{self, ForServices};
use plimsoll_storage::StorageError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::child::{ChildArguments, SPARED_OOM_SCORE};
use crate::confine::{self, Files, SCANNER};
use crate::log::complain;
use crate::services;
pub(crate) use once::{LocalStorage, local_storage};
use quotas::Asking;
use round::Rounds;

/// From the begin of one round to that of the next one, while what is left on the disks moves; longer where a round took
/// long. The kubelet's interval of decisions.
const PAUSE: Duration = Duration::from_secs(10);
/// The same while it does not: the kubelet's interval of volumes (`volumeStatsAggPeriod`), and later a third of the time for
/// which nothing has moved.
const STILL_PAUSE: Duration = Duration::from_mins(1);
/// The longest pause while it does not, which is half as long as a figure holds.
const LONGEST_PAUSE: Duration = Duration::from_mins(15);
/// While no core is there, how often the supervisor's way is looked at.
const NO_CORE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Whether pods may be evicted, and something may depend on what they take of disks.
pub(crate) fn is_needed(configuration: &Configuration) -> bool {
    let limits = configuration.policy.local_storage_isolation;
    configuration.machine.knows_pods() && (limits || services::disks_are_configured(configuration))
}

/// Runs until it is ended; ends with [`services::NOTHING_TO_DO`] where there is no kubelet.
pub(crate) fn main(arguments: &ChildArguments) -> anyhow::Result<u8> {
    let needed = [&confine::CAPABILITIES[..], &[capabilities::DAC_READ_SEARCH]].concat();
    capabilities::keep_only(&needed)?;
    let (socket, quotas) = (arguments.socket()?, arguments.quotas()?.map(Asking::new));
    let configuration = arguments.configuration(crate::core::own_cgroup(&Protected::read()))?;
    let (kubelet, logs) = (configuration.kubelet_root(), configuration.pod_logs());
    let mut troubles =
        Vec::from_iter(priority::set_oom_score_adj(SPARED_OOM_SCORE).err().map(|error| error.to_string()));
    if let Err(errno) = priority::lower_this_thread() {
        troubles.push(format!("the scanner has not the lowest priority: {errno}"));
    }
    // Before a directory is looked at, which may hang: the supervisor's death ends it in any case.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    arguments.ensure_supervised()?;
    let Some(opened) = open_nearest(&kubelet, configuration.machine.kubelet_root.is_some()) else {
        return Ok(services::NOTHING_TO_DO);
    };
    let directories = [Some(opened), open_nearest(&logs, true)];
    let directories: Vec<OwnedFd> = directories.into_iter().flatten().collect();
    troubles.extend(SCANNER.confine(Files { listed: &directories, ..Files::default() })?);
    drop(directories);
    // A process that becomes another user forgets what it asked for.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    arguments.ensure_supervised()?;
    troubles.extend(SCANNER.filter(system_calls::filter_scanner).err());
    for trouble in troubles {
        complain(&trouble);
    }
    serve(&socket, Rounds::new(kubelet, logs), quotas)
}

/// The directory, or, where it `may_come`, the one above, if that is there: it may be made later.
fn open_nearest(path: &Path, may_come: bool) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut ancestors = path.ancestors().take(if may_come { 2 } else { 1 });
    ancestors.find_map(|path| open(path, flags, Mode::empty()).ok())
}

fn serve(socket: &OwnedFd, mut rounds: Rounds, mut quotas: Option<Asking>) -> anyhow::Result<u8> {
    let mut way = Way { socket, core: None, is_new: false };
    let mut moved = Instant::now();
    loop {
        let begun = Instant::now();
        if way.take_new() {
            moved = begun;
        }
        // What is written while it measures is for the next round.
        let (left, pods) = (rounds.left(), rounds.directories());
        if way.core.is_some() {
            let asked = monotonic();
            rounds.set_counted(asked, quotas.as_mut().map_or_else(Vec::new, Asking::ask));
            rounds.go(&mut way);
        }
        let mut due = begun + PAUSE.max(begun.elapsed() * 2);
        while way.core.is_some() {
            let now = Instant::now();
            if way.take_new() {
                moved = now;
                break;
            }
            if now >= due {
                let has_moved = rounds.left().has_moved_since(&left);
                // What is in memory moves no disk.
                if has_moved || rounds.has_memory() || rounds.directories() != pods {
                    moved = now;
                }
                if has_moved || now >= begun + pause(now.duration_since(moved)) {
                    break;
                }
                due = now + PAUSE;
            }
            // With nothing to go on with it sleeps until then.
            let rest = if rounds.rest() { Duration::ZERO } else { due.saturating_duration_since(Instant::now()) };
            way.wait(rest)?;
        }
        if way.core.is_none() {
            way.wait(Duration::MAX)?;
        }
    }
}

/// From the begin of one round to that of the next one, where nothing has moved for so long.
fn pause(still: Duration) -> Duration {
    (still / 3).clamp(STILL_PAUSE, LONGEST_PAUSE)
}

/// The supervisor's end, by which the ways to cores come, and the way to the newest one.
struct Way<'s> {
    socket: &'s OwnedFd,
    core: Option<OwnedFd>,
    /// It was not asked yet whether there is a new core.
    is_new: bool,
}

impl Way<'_> {
    /// Takes the way to a new core, if there is one. Gives whether there was.
    fn receive(&mut self) -> bool {
        let mut is_new = false;
        while let Ok(ForServices::Core(core)) = handover::receive_for_services(self.socket) {
            self.core = Some(core);
            is_new = true;
        }
        self.is_new |= is_new;
        is_new
    }

    /// Whether there is a new core since this was asked last.
    fn take_new(&mut self) -> bool {
        self.receive();
        std::mem::take(&mut self.is_new)
    }

    /// Waits for so long, or until there is a new core.
    fn wait(&mut self, most: Duration) -> anyhow::Result<()> {
        let most = Timespec::try_from(most).unwrap_or(NO_CORE);
        match poll(&mut [PollFd::new(self.socket, PollFlags::IN)], Some(&most)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a message, once there is room for it: this process has nothing else to do. Where the core has ended, nothing
    /// is sent until the next one is there.
    fn send(&mut self, message: StorageMessage) {
        let mut buffer = [0; MESSAGE];
        let bytes = message.encode(&mut buffer);
        while let Some(core) = &self.core {
            match send(core, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => return,
                Err(Errno::AGAIN | Errno::INTR) => {
                    let ways = &mut [
                        PollFd::from_borrowed_fd(core.as_fd(), PollFlags::OUT),
                        PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
                    ];
                    let _ = poll(ways, Some(&NO_CORE));
                    self.receive();
                }
                Err(_) => self.core = None,
            }
        }
    }
}

impl round::Sink for Way<'_> {
    fn send(&mut self, message: StorageMessage) {
        Way::send(self, message);
    }

    fn complain(&mut self, error: &StorageError) {
        let error = printable(&error.to_string());
        complain(&format!(
            "{error}; what such a pod takes is not known, and nothing more is said of it until all work again"
        ));
    }

    fn goes_on(&mut self) -> bool {
        // A new core was sent nothing yet: a round begins anew for it.
        !self.receive() && self.core.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_the_rarer_the_longer_nothing_has_moved() {
        let (mut now, mut begun) = (0, vec![0]);
        while now < 4800 {
            // As it is looked at.
            now += PAUSE.as_secs();
            if now - begun[begun.len() - 1] >= pause(Duration::from_secs(now)).as_secs() {
                begun.push(now);
            }
        }
        assert_eq!(begun, [0, 60, 120, 180, 270, 410, 620, 930, 1400, 2100, 3000, 3900, 4800]);
    }
}
