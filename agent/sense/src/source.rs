//! One way to be woken, whatever it is made of.

use std::{fmt, os::fd::BorrowedFd, sync::Arc};

use arrayvec::ArrayVec;
use plimsoll_units::{CgroupId, MonotonicNs};

use crate::{
    ebpf::Counts,
    error::SenseError,
    thresholds::{ArmedThresholds, BrakeMark, Generation},
    wake::WakeList,
};

/// The most descriptors that a source has.
pub const MAX_DESCRIPTORS: usize = 4;

/// What a source is made of, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Programs in the kernel ring as a threshold is crossed.
    Ebpf,
    /// The kernel's pressure trigger fires when tasks wait for memory.
    PsiTrigger,
    /// A timer; the owner looks each time.
    Polling,
}

impl Kind {
    /// The name used in configuration, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::PsiTrigger => "psi",
            Self::Polling => "poll",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What to ask epoll for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// `EPOLLIN`
    Readable,
    /// `EPOLLPRI`
    Priority,
}

/// A descriptor to put into epoll, level-triggered.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// The descriptor; it stays open as long as the source lives.
    pub fd: BorrowedFd<'a>,
    /// What to wait for.
    pub interest: Interest,
    /// What to hand to [`Source::drain`].
    pub token: u32,
}

/// A hook in the kernel and how it fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The hook family's name.
    pub name: &'static str,
    /// Where it is attached and how, or why it is not.
    pub state: HookState,
}

/// How a hook fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookState {
    /// Attached, and how: `fentry page_counter_try_charge`.
    Attached(String),
    /// Not attached, and why.
    Missing(String),
}

/// What the kernel counts for one program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// The program's name.
    pub name: &'static str,
    /// How often it ran. Absent where the kernel's statistics are off.
    pub runs: Option<u64>,
    /// For how long, over all CPUs, in nanoseconds. Absent likewise.
    pub run_time_ns: Option<u64>,
    /// How often it was left out because it was running already on that CPU.
    pub recursion_misses: Option<u64>,
}

/// How a source fares. Made on request, off the hot path: it allocates.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Records that found their ring full, by ring.
    pub lost: Vec<(&'static str, u64)>,
    /// Records that were none of those agreed on: the object and the agent do not belong together.
    pub malformed: u64,
    /// What the kernel counts for each program.
    pub programs: Vec<ProgramStats>,
    /// What is attached and what is not.
    pub hooks: Vec<Hook>,
    /// Processes that the in-kernel brake stopped.
    pub brakes_applied: u64,
    /// Brakes not applied because the record that undoes them could not be written.
    pub brakes_refused: u64,
}

/// A way to be woken.
///
/// After construction, [`drain`](Self::drain), [`arm`](Self::arm), [`disarm`](Self::disarm),
/// [`set_brakes`](Self::set_brakes) and [`first_stopped`](Self::first_stopped) do not allocate and open nothing.
pub trait Source: Send {
    /// What it is made of.
    fn kind(&self) -> Kind;

    /// What to wait on.
    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS>;

    /// Takes what the descriptor with this token has to say. A full list leaves the rest for the next call.
    fn drain(&mut self, token: u32, wakes: &mut WakeList) -> Result<(), SenseError>;

    /// Watches these lines: writes the levels, then the generation. Each line rings once and then stays quiet until the
    /// next arming. Memory may have passed a line before it was armed: the caller looks again afterwards.
    fn arm(&mut self, thresholds: &ArmedThresholds) -> Result<Generation, SenseError>;

    /// Rings no line until armed again.
    fn disarm(&mut self) -> Result<(), SenseError>;

    /// Marks the slices that the kernel itself brakes; an empty slice ends it. Only eBPF can hold any.
    fn set_brakes(&mut self, marks: &[BrakeMark]) -> Result<(), SenseError>;

    /// When the first of those was stopped whom the in-kernel brake holds. Tells also of those of whom no wake came.
    fn first_stopped(&self) -> Option<MonotonicNs> {
        None
    }

    /// How it fares, to be asked from another thread: reading it allocates and opens files.
    fn health_reader(&self) -> HealthReader {
        HealthReader::default()
    }

    /// How it fares now.
    fn health(&self) -> Health {
        self.health_reader().read()
    }
}

/// Reads how a source fares, on whatever thread, while its owner goes on. What has no programs has nothing to say.
#[derive(Clone, Debug, Default)]
pub struct HealthReader(pub(crate) Option<Arc<Counts>>);

impl HealthReader {
    /// How the source fares now.
    pub fn read(&self) -> Health {
        self.0.as_deref().map_or_else(Health::default, Counts::read)
    }

    /// How long each cgroup's tasks waited for memory since the programs were loaded, in nanoseconds. There may be
    /// thousands.
    pub fn stalls(&self) -> Vec<(CgroupId, u64)> {
        self.0.as_deref().map_or_else(Vec::new, Counts::stalls)
    }
}
