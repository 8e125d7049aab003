//! One interface to all sources of wakes.

use std::{fmt, os::fd::BorrowedFd, sync::Arc};

use arrayvec::ArrayVec;
use plimsoll_units::MonotonicNs;

use crate::{
    error::SenseError,
    kind::Kind,
    packet_rings::PacketRings,
    thresholds::{ArmedThresholds, BrakeMark, Generation},
    wake::WakeList,
};

/// The most descriptors that a source has.
pub const MAX_DESCRIPTORS: usize = 4;

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

/// A hook in the kernel and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The hook family's name.
    pub name: &'static str,
    /// Where it is attached and how, or why it is not.
    pub state: HookState,
}

/// The state of a hook.
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

/// The health of a source. Made on request, off the hot path: it allocates.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Records that found their ring buffer full, by ring buffer.
    pub lost: Vec<(&'static str, u64)>,
    /// Records that could not be decoded: the object and the agent do not belong together.
    pub malformed: u64,
    /// What the kernel counts for each program.
    pub programs: Vec<ProgramStats>,
    /// What is attached and what is not.
    pub hooks: Vec<Hook>,
    /// Processes that the in-kernel brake stopped.
    pub brakes_applied: u64,
    /// Brakes not applied because the record that undoes them could not be written.
    pub brakes_refused: u64,
    /// Signals to processes that went on although the brake had stopped them.
    pub brakes_repeated: u64,
}

/// A source of wakes.
///
/// After construction, [`drain`](Self::drain), [`arm`](Self::arm), [`disarm`](Self::disarm),
/// [`set_brakes`](Self::set_brakes), [`lease_brakes`](Self::lease_brakes), [`restore`](Self::restore),
/// [`ran`](Self::ran), [`sees_forks`](Self::sees_forks) and [`first_stopped`](Self::first_stopped) do not allocate and
/// open nothing.
pub trait Source: Send {
    /// What it is made of.
    fn kind(&self) -> Kind;

    /// What to wait on.
    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS>;

    /// Takes the events of the descriptor with this token. A full list leaves the rest for the next call.
    fn drain(&mut self, token: u32, wakes: &mut WakeList) -> Result<(), SenseError>;

    /// Arms these thresholds: writes the levels, then the generation. Each submits one event and then none until the next
    /// arming. Memory may have passed a threshold before it was armed: the caller takes another sample afterwards. Only
    /// eBPF has any; the others submit their events regardless.
    fn arm(&mut self, _thresholds: &ArmedThresholds) -> Result<Generation, SenseError> {
        Ok(Generation(0))
    }

    /// Submits no event of a threshold until armed again.
    fn disarm(&mut self) -> Result<(), SenseError> {
        Ok(())
    }

    /// Marks the slices that the kernel itself brakes, for as long as [`Self::lease_brakes`] allows; an empty slice ends
    /// it. Only eBPF can hold any.
    fn set_brakes(&mut self, marks: &[BrakeMark]) -> Result<(), SenseError> {
        if marks.is_empty() { Ok(()) } else { Err(SenseError::NoKernelBrake(self.kind())) }
    }

    /// Lets the marks hold until then. Afterwards the kernel stops nothing more by itself, so that no process is stopped
    /// for an agent that does not run.
    fn lease_brakes(&mut self, _until: MonotonicNs) {}

    /// Writes the thresholds and marks anew where another program changed them in the kernel, and gives whether any was.
    fn restore(&mut self) -> bool {
        false
    }

    /// Whether the program that compares with the thresholds ran since this was last asked; true of a source without one.
    /// Where no memory is charged it does not run: [`HealthReader::runs`] distinguishes the two.
    fn ran(&mut self) -> bool {
        true
    }

    /// Whether the threshold of tasks that is armed submits an event.
    fn sees_forks(&self) -> bool {
        false
    }

    /// When the first of the processes that the in-kernel brake holds was stopped, also of those whose event was lost.
    fn first_stopped(&self) -> Option<MonotonicNs> {
        None
    }

    /// Its health, read on another thread: reading it allocates and opens files.
    fn health_reader(&self) -> HealthReader {
        HealthReader::default()
    }

    /// Finds ring buffers of packet sockets, likewise on another thread. Only eBPF can.
    fn packet_rings(&self) -> PacketRings {
        PacketRings::default()
    }

    /// Its health now.
    fn health(&self) -> Health {
        self.health_reader().read()
    }
}

/// What a source with programs in the kernel has to report of them; read on another thread than the source's.
pub(crate) trait ReadHealth: fmt::Debug + Send + Sync {
    /// Losses, programs and hooks now.
    fn health(&self) -> Health;

    /// Whether the program runs that compares with the thresholds.
    fn runs(&self) -> bool;
}

/// Reads a source's health on any thread while its owner goes on. A source without programs has nothing to report.
#[derive(Clone, Debug, Default)]
pub struct HealthReader(pub(crate) Option<Arc<dyn ReadHealth>>);

impl HealthReader {
    /// The source's health now.
    pub fn read(&self) -> Health {
        self.0.as_deref().map_or_else(Health::default, ReadHealth::health)
    }

    /// Whether the source's programs in the kernel run: memory is charged to the calling thread's cgroup, at which one has
    /// to. Asked where none was seen to run ([`Source::ran`]), which is not asked meanwhile.
    pub fn runs(&self) -> bool {
        self.0.as_deref().is_none_or(ReadHealth::runs)
    }
}
