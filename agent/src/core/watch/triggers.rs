//! What woke the thread, and the source's events.

use std::os::fd::{AsFd as _, OwnedFd};

use arrayvec::ArrayVec;
use plimsoll_act::{KillPoint, reached};
use plimsoll_inventory::IncidentKind;
use plimsoll_sense::{CGROUP_PACE, Interest, Kind, LINEAGE, MAX_DESCRIPTORS, SenseError, Source, Wake, WakeList};
use plimsoll_units::{CgroupId, MonotonicNs};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::super::fault_injection;
use super::super::inventory::clear;
use super::Watch;
use crate::record::{Cause, EnforcementRecord, HealthRecord, MachineRecord, OomScope, ThresholdRecord};

/// How many growing cgroups one wake names.
const GROWERS: usize = 4;
/// How often a ring is drained at most in a slow turn. So many drains are more than there is room for in one.
const DRAINS: usize = 64;

/// A cgroup whose charge crossed a threshold, and those above it, one of which is the workload, known already or not yet.
type Lineage = [Option<CgroupId>; LINEAGE];

/// Tokens beyond those of the source.
const TOKEN_INVENTORY: u64 = 1 << 32;
const TOKEN_TERM: u64 = TOKEN_INVENTORY + 1;
const TOKEN_PARENT: u64 = TOKEN_INVENTORY + 2;

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// This process was asked to end.
    Term,
    /// The supervisor is gone.
    Parent,
    /// The inventory thread has updates.
    Inventory,
    /// The source has events; the token is its own.
    Source(u32),
}

impl Ready {
    pub(super) fn of(token: u64) -> Self {
        match token {
            TOKEN_TERM => Self::Term,
            TOKEN_PARENT => Self::Parent,
            TOKEN_INVENTORY => Self::Inventory,
            token => Self::Source(u32::try_from(token).unwrap_or(u32::MAX)),
        }
    }

    pub(super) fn token(self) -> u64 {
        match self {
            Self::Term => TOKEN_TERM,
            Self::Parent => TOKEN_PARENT,
            Self::Inventory => TOKEN_INVENTORY,
            Self::Source(token) => token.into(),
        }
    }
}

/// Why a sample is due, added up over one turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trigger {
    /// When the thread woke.
    pub(super) awake: MonotonicNs,
    /// When the kernel saw a threshold crossed, at the earliest.
    pub(super) crossed: Option<MonotonicNs>,
    cause: Option<Cause>,
    /// There is another cause than the slow timer.
    has_event: bool,
    /// There is another cause than that tasks reclaim or stall.
    has_other: bool,
    growers: [Option<Lineage>; GROWERS],
}

impl Trigger {
    /// Nothing yet.
    pub(super) const fn new(awake: MonotonicNs) -> Self {
        Self { awake, crossed: None, cause: None, has_event: false, has_other: false, growers: [None; GROWERS] }
    }

    pub(super) fn of(cause: Cause, awake: MonotonicNs) -> Self {
        let mut trigger = Self::new(awake);
        trigger.because(cause);
        trigger
    }

    /// Added to an earlier one, whose decision was not taken yet.
    pub(super) fn after(&self, earlier: Option<&Self>) -> Self {
        let Some(mut first) = earlier.copied() else { return *self };
        self.cause.into_iter().for_each(|cause| first.because(cause));
        first.has_event |= self.has_event;
        first.has_other |= self.has_other;
        if let Some(at) = self.crossed {
            first.crossed(at, None);
            self.growers().for_each(|grower| first.crossed(at, Some(grower)));
        }
        first
    }

    /// Adds a cause. A threshold goes before whatever else woke the thread at the same time.
    pub(super) fn because(&mut self, cause: Cause) {
        self.has_event |= cause != Cause::Timer;
        self.has_other |= !matches!(cause, Cause::Reclaim | Cause::Psi);
        if self.cause.is_none() || cause == Cause::Threshold {
            self.cause = Some(cause);
        }
    }

    pub(super) const fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Whether the slow timer alone woke the thread.
    pub(super) const fn is_timer_alone(&self) -> bool {
        self.cause.is_some() && !self.has_event
    }

    /// Whether tasks that reclaim or stall alone woke the thread.
    pub(super) const fn is_reclaim_alone(&self) -> bool {
        self.cause.is_some() && !self.has_other
    }

    /// Adds a crossing, with the cgroup whose charge it was.
    fn crossed(&mut self, at: MonotonicNs, grower: Option<Lineage>) {
        self.because(Cause::Threshold);
        self.crossed = Some(self.crossed.map_or(at, |earlier| earlier.min(at)));
        if grower.is_some()
            && !self.growers.contains(&grower)
            && let Some(place) = self.growers.iter_mut().find(|place| place.is_none())
        {
            *place = grower;
        }
    }

    /// The cgroups whose charges crossed a threshold.
    pub(super) fn growers(&self) -> impl Iterator<Item = Lineage> + use<> {
        self.growers.into_iter().flatten()
    }
}

/// Descriptors that other threads and processes make readable.
pub(in crate::core) struct Signals {
    /// The inventory thread has updates.
    pub(in crate::core) inventory: OwnedFd,
    /// This process was asked to end.
    pub(in crate::core) term: OwnedFd,
    /// The supervisor is gone.
    pub(in crate::core) parent: OwnedFd,
}

/// Everything that wakes the thread.
pub(in crate::core) struct Triggers {
    epoll: OwnedFd,
    source: Box<dyn Source>,
    signals: Signals,
    /// Storage for one drain.
    wakes: WakeList,
    /// Drains in a row that found nothing although the source was readable.
    empty_drains: u32,
}

impl Triggers {
    pub(in crate::core) fn new(source: Box<dyn Source>, signals: Signals) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: rustix::fd::BorrowedFd<'_>, token: u64, flags| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), flags)
        };
        for descriptor in source.descriptors() {
            let flags = match descriptor.interest {
                Interest::Readable => epoll::EventFlags::IN,
                Interest::Priority => epoll::EventFlags::PRI,
            };
            add(descriptor.fd, u64::from(descriptor.token), flags)?;
        }
        for (fd, ready) in
            [(&signals.inventory, Ready::Inventory), (&signals.term, Ready::Term), (&signals.parent, Ready::Parent)]
        {
            add(fd.as_fd(), ready.token(), epoll::EventFlags::IN)?;
        }
        Ok(Self { epoll, source, signals, wakes: WakeList::new(), empty_drains: 0 })
    }

    /// Waits for at most `timeout`. Gives how many of `events` are filled.
    pub(super) fn wait(&self, events: &mut [epoll::Event], timeout: Option<&Timespec>) -> Result<usize, Errno> {
        epoll::wait(&self.epoll, events, timeout)
    }

    pub(super) fn source(&self) -> &dyn Source {
        &*self.source
    }

    pub(super) fn source_mut(&mut self) -> &mut dyn Source {
        &mut *self.source
    }

    pub(super) fn clear_term(&self) {
        clear(&self.signals.term);
    }

    pub(super) fn clear_inventory(&self) {
        clear(&self.signals.inventory);
    }

    /// Drains in a row that found nothing.
    pub(super) const fn empty_drains(&self) -> u32 {
        self.empty_drains
    }

    /// A turn is over that began with so many empty drains: without another one, none of its descriptors was readable
    /// with nothing to read.
    pub(super) fn turned(&mut self, before: u32) {
        if self.empty_drains == before {
            self.empty_drains = 0;
        }
    }

    /// Reads the source's events into [`Self::wakes`].
    fn drain(&mut self, token: u32) -> Result<(), SenseError> {
        self.wakes.clear();
        let drained = self.source.drain(token, &mut self.wakes);
        self.empty_drains = if self.wakes.is_empty() { self.empty_drains.saturating_add(1) } else { 0 };
        drained
    }

    /// The event at `index` of the last drain.
    fn wake(&self, index: usize) -> Option<Wake> {
        self.wakes.get(index).copied()
    }

    #[cfg(test)]
    pub(super) const fn signals(&self) -> &Signals {
        &self.signals
    }
}

impl Watch {
    /// Reads events that were submitted without waking this thread.
    pub(super) fn drain_all(&mut self, trigger: &mut Trigger) {
        if self.triggers.source().kind() != Kind::Ebpf {
            return;
        }
        let empty_drains = self.triggers.empty_drains;
        let tokens: ArrayVec<u32, MAX_DESCRIPTORS> =
            self.triggers.source().descriptors().iter().map(|it| it.token).collect();
        for token in tokens {
            // Without another wake, what is left is not read before the next slow turn. A ring may be filled meanwhile.
            for _ in 0..DRAINS {
                self.take_wakes(token, trigger);
                if !self.triggers.wakes.is_full() {
                    break;
                }
            }
        }
        // Nothing said that there was something to read.
        self.triggers.empty_drains = empty_drains;
    }

    /// Reads the events of a descriptor that is readable.
    pub(super) fn drain(&mut self, token: u32, trigger: &mut Trigger) {
        self.take_wakes(token, trigger);
        if self.triggers.empty_drains() == 1 {
            // What cannot be read yet may be a crossing.
            trigger.because(Cause::FollowUp);
        }
    }

    fn take_wakes(&mut self, token: u32, trigger: &mut Trigger) {
        if self.triggers.drain(token).is_err() {
            self.reporting.send(HealthRecord::Failed { what: "read the source", errno: None });
        }
        for index in 0.. {
            let Some(wake) = self.triggers.wake(index) else { break };
            if !fault_injection::loses(&wake) {
                self.notice(&wake, trigger);
            }
        }
    }

    pub(super) fn notice(&mut self, wake: &Wake, trigger: &mut Trigger) {
        match *wake {
            Wake::ThresholdCrossed { crossed, lineage, .. } => {
                // New workloads cross thresholds, too.
                if self.workloads.table.of(&lineage).is_none()
                    && let Some(charged) = lineage[0]
                {
                    self.workloads.handle.sight_crossing(charged);
                }
                trigger.crossed(crossed, Some(lineage));
                self.reporting.send(ThresholdRecord::Crossed { crossed, awake: trigger.awake });
            }
            // Below a threshold it is armed with each sample, and many tasks reclaim then.
            Wake::ReclaimStarted { .. } => {
                if self.schedule.stalls(trigger.awake) {
                    trigger.because(Cause::Reclaim);
                }
            }
            Wake::StallBurst { .. } | Wake::Psi { .. } => {
                if self.schedule.stalls(trigger.awake) {
                    trigger.because(Cause::Psi);
                }
            }
            Wake::Tick { .. } => trigger.because(Cause::Poll),
            Wake::Oom { scope, .. } => {
                self.report_oom(wake);
                // Those at limits of their own can be caused without end by the owner of a cgroup, as stalls can.
                if scope == plimsoll_sense::OomScope::Global || self.schedule.stalls(trigger.awake) {
                    trigger.because(Cause::FollowUp);
                }
            }
            Wake::Tasks { at, .. } if self.watches_tasks() => {
                trigger.because(Cause::Threshold);
                self.reporting.send(ThresholdRecord::Crossed { crossed: at, awake: trigger.awake });
            }
            Wake::Tasks { count, at, tgid, .. } => {
                self.arming.silence_tasks(trigger.awake);
                self.reporting.send(MachineRecord::Tasks { count, at, pid: tgid });
            }
            Wake::Cgroup { id, .. } => {
                self.workloads.handle.sight_event(id);
                // A container's cgroup follows that of its monitor within milliseconds.
                self.schedule.drain_by(trigger.awake.after(CGROUP_PACE));
            }
            Wake::Stopped { tgid, slice, at } => {
                self.enforcement.kernel_brake.stopped(at);
                reached(KillPoint::KernelStopSeen);
                self.reporting.send(EnforcementRecord::StoppedInKernel { pid: tgid, slice, at });
                self.happened(IncidentKind::Stopped, &[Some(slice)]);
                trigger.because(Cause::Threshold);
            }
        }
    }

    fn report_oom(&mut self, wake: &Wake) {
        let Wake::Oom { at, victim, ref name, victim_cgroup, resident, scope, .. } = *wake else { return };
        let scope = match scope {
            plimsoll_sense::OomScope::Global => OomScope::Global,
            plimsoll_sense::OomScope::Cgroup => OomScope::Cgroup,
            plimsoll_sense::OomScope::Cpuset => OomScope::Cpuset,
            plimsoll_sense::OomScope::NumaNode => OomScope::NumaNode,
        };
        let resident = resident.map(|pages| pages.to_bytes(self.arming.machine().page_bytes));
        self.reporting.send(MachineRecord::Oom { at, pid: victim, name, cgroup: victim_cgroup, resident, scope });
        self.oom_killed(wake, resident);
    }
}

#[cfg(test)]
mod tests;
