//! What is to be done, and why: typed, copied without allocating, rendered by [`text`](crate::text).

use crate::config::Config;
use crate::observation::{Key, Protected};
use crate::scope::Scope;
use core::time::Duration;
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Which of the two readings of available memory are below a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Case {
    /// None is: nothing is done.
    Neither,
    /// Both are, or the only one that there is: evict.
    Both,
    /// Only the kubelet's is. Cache that could be dropped is in the way: reclaim first, and evict only if that did not
    /// help and tasks stall.
    KubeletOnly,
    /// Only the honest one is. The kubelet's figure rises while memory runs out, because reclaim turns active file
    /// pages inactive, and this is where the OOM killer is first: evict.
    MemAvailableOnly,
}

impl Case {
    /// The case of two readings, where the honest one may be missing.
    pub const fn of(kubelet_below: bool, mem_available_below: Option<bool>) -> Self {
        match (kubelet_below, mem_available_below) {
            (true, Some(true) | None) => Self::Both,
            (true, Some(false)) => Self::KubeletOnly,
            (false, Some(true)) => Self::MemAvailableOnly,
            (false, Some(false) | None) => Self::Neither,
        }
    }
}

/// One threshold, held against the observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Its index in the scope's thresholds.
    pub threshold: u32,
    /// The line in bytes on this capacity.
    pub line: Bytes,
    /// The line and its minimum reclaim: what should be available once it was met.
    pub target: Bytes,
    /// Which readings are below the threshold, or below the target if the threshold was met before and not yet
    /// resolved.
    pub case: Case,
    /// For how long without a break.
    pub below_for: Duration,
    /// It is below and its grace period is over.
    pub met: bool,
}

/// The two readings a plan was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings {
    /// Machine memory or slice limit.
    pub capacity: Bytes,
    /// Available by the kubelet's formula.
    pub kubelet: Bytes,
    /// Available by the kernel's own estimate.
    pub mem_available: Option<Bytes>,
}

/// How much memory is missing, and how much of it the plan gets back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deficit {
    /// Missing to the acting threshold's target, by the lowest reading that is below.
    pub missing: Bytes,
    /// Held by those who are going and not stuck; comes back without doing more.
    pub coming: Bytes,
    /// Held by the victims of this plan, those hastened included.
    pub taken: Bytes,
}

impl Deficit {
    /// What is still missing when all of that is back.
    pub const fn uncovered(&self) -> Bytes {
        self.missing.saturating_sub(self.coming).saturating_sub(self.taken)
    }
}

/// Who took the memory since it was last plentiful.
///
/// The rule: if those who may be evicted together grew by less than half of what available memory fell by, most of the
/// trouble is elsewhere (tasks in the root cgroup, the kernel, a protected service). Evicting by rank would then make
/// innocents pay and help for a moment only, so nobody is evicted and the plan says so, unless
/// [`Config::evict_for_unattributed`](crate::Config::evict_for_unattributed) is set.
///
/// "Last plentiful" is the latest observation with [`Config::plentiful`](crate::Config::plentiful) more available than
/// the highest line asks for; for a hard threshold, than the highest hard threshold does, whatever soft thresholds
/// there are above it. Where there was none since the start, it is the first observation above all thresholds; where
/// there was none of that either, everything in use counts as grown. Who has no reading counts as not grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// By how much available memory fell, in the reading that is below, less what is left behind by those of whom no
    /// process lives.
    pub fallen: Bytes,
    /// By how much those who may be evicted, or are going already, grew together.
    pub evictable_grew: Bytes,
    /// By how much protected ones grew together.
    pub protected_grew: Bytes,
    /// Memory in use outside all candidates, as the observation told it.
    pub outside: Option<Bytes>,
}

impl Attribution {
    /// Whether at least half of the fall is growth of somebody who may be evicted.
    pub const fn is_evictable(&self) -> bool {
        self.evictable_grew.0.saturating_mul(2) >= self.fallen.0
    }
}

/// Why nobody could be chosen although somebody was needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NoVictim {
    /// There is nobody in this scope.
    NoCandidates,
    /// All are protected or stuck.
    AllProtected,
    /// Nobody who may be chosen could be read.
    NoStatistics,
    /// Those who may be chosen hold nothing.
    NothingToFree,
}

/// The whole plan in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// No line is crossed.
    #[default]
    Calm,
    /// The scope has no lines, or memory could not be read.
    NotObserved,
    /// The observation is not newer than the one acted on before: conditions and grace go on, actions wait.
    Stale,
    /// Only soft thresholds are crossed, and their grace is not over.
    InGrace,
    /// Only the kubelet's reading is below: reclaim was asked for now, or is under way.
    Reclaiming,
    /// Only the kubelet's reading is below, reclaim did not help, and nobody stalls: cache in use is no reason to kill.
    CacheInUse,
    /// Enough is coming back from those who are going.
    ComingBack,
    /// Somebody is evicted or hastened.
    Evict,
    /// The bound of victims a minute is used up.
    Bounded,
    /// Most of the growth is in nothing that may be evicted; it is named and nobody pays for it.
    Unattributed,
    /// Somebody is needed and nobody can be chosen.
    NoVictim(NoVictim),
}

/// One thing to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Reclaim this much in the plan's scope, from who is over its reservation, without killing.
    Reclaim {
        /// How much.
        amount: Bytes,
    },
    /// Kill at once who is terminating in its grace period: a hard threshold is met.
    Hasten {
        /// Index into the observation's candidates.
        candidate: u32,
        /// Index of the threshold that asks for it.
        threshold: u32,
    },
    /// Evict.
    Evict {
        /// Index into the observation's candidates.
        candidate: u32,
        /// Index of the threshold that asks for it.
        threshold: u32,
        /// Time for an orderly end; zero: at once.
        grace: Duration,
    },
}

/// What becomes of a candidate, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// It is evicted.
    Evicted,
    /// It was terminating in its grace period and is killed at once.
    Hastened,
    /// Those before it are enough, or nothing had to be evicted.
    NotNeeded,
    /// It is never chosen.
    Protected(Protected),
    /// It is going already and its memory counts as coming back.
    Going,
    /// It was killed and does not end, or could not be killed: its memory is not counted on.
    Stuck,
    /// It could not be read, and nobody is chosen blindly.
    NoStatistics,
    /// It holds nothing.
    NothingToFree,
    /// It is not in the slice that the plan is about.
    OutsideScope,
    /// It would have been next but for the bound of victims a minute.
    Bounded,
    /// It is spared because most of the growth is in nothing that may be evicted.
    Innocent,
}

/// A candidate with the keys that ranked it. Sorted: who would go first is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranked {
    /// Index into the observation's candidates.
    pub candidate: u32,
    /// Who.
    pub key: Key,
    /// Its working set.
    pub usage: Option<Bytes>,
    /// What it was promised.
    pub reservation: Bytes,
    /// It uses more than it was promised.
    pub exceeds: bool,
    /// Its priority.
    pub priority: i32,
    /// When it was started.
    pub started: MonotonicNs,
    /// By how much it grew since memory was last plentiful.
    pub grew: Option<Bytes>,
    /// What becomes of it.
    pub fate: Fate,
}

impl Ranked {
    /// Usage over reservation; negative within it, absent if it could not be read.
    pub fn over(&self) -> Option<i128> {
        self.usage.map(|usage| i128::from(usage.0) - i128::from(self.reservation.0))
    }
}

/// Conditions to report for the plan's scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// A memory threshold is met, or was within the transition period.
    pub memory_pressure: bool,
}

/// What is to be done, in storage that is used again and again.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(crate) capacity: usize,
    /// What it is about.
    pub scope: Scope,
    /// When its observation was taken.
    pub taken: MonotonicNs,
    /// When it was made.
    pub made: MonotonicNs,
    /// In one word.
    pub outcome: Outcome,
    /// What is to be done, in order.
    pub actions: Vec<Action>,
    /// Conditions to report.
    pub conditions: Conditions,
    /// What memory was read.
    pub readings: Option<Readings>,
    /// Every threshold of the scope, in its order.
    pub judged: Vec<Judged>,
    /// The threshold (an index into [`Self::judged`]) that the outcome is about.
    pub acting: Option<u32>,
    /// What is missing; set when somebody had to be looked for.
    pub deficit: Option<Deficit>,
    /// Who took the memory; set when somebody had to be looked for.
    pub attribution: Option<Attribution>,
    /// All candidates, ranked; filled when a threshold is met.
    pub ranked: Vec<Ranked>,
    /// Candidates that found no room in the plan and were not looked at.
    pub overlooked: u32,
    /// The highest line that no reading is below: where to ring next. None while all are crossed.
    pub next_line: Option<Bytes>,
    /// Look again at this time even if nothing rings: a grace period or a bound ends then.
    pub recheck_at: Option<MonotonicNs>,
}

impl Plan {
    /// A plan for the scopes of `config` and up to `candidates` candidates. Nothing allocates later.
    pub fn with_capacity(config: &Config, candidates: usize) -> Self {
        let thresholds =
            config.slices.iter().map(|slice| slice.thresholds.len()).fold(config.thresholds.len(), usize::max);
        Self {
            capacity: candidates,
            // One reclaim beside everybody.
            actions: Vec::with_capacity(candidates + 1),
            judged: Vec::with_capacity(thresholds),
            ranked: Vec::with_capacity(candidates),
            ..Self::default()
        }
    }

    /// The threshold the outcome is about.
    pub fn acting(&self) -> Option<&Judged> {
        self.acting.and_then(|index| self.judged.get(index as usize))
    }

    /// Indices into the observation's candidates of all who are killed by this plan.
    pub fn victims(&self) -> impl Iterator<Item = u32> + '_ {
        self.actions.iter().filter_map(|action| match *action {
            Action::Evict { candidate, .. } | Action::Hasten { candidate, .. } => Some(candidate),
            Action::Reclaim { .. } => None,
        })
    }

    pub(crate) fn clear(&mut self, scope: Scope, taken: MonotonicNs, made: MonotonicNs) {
        self.actions.clear();
        self.judged.clear();
        self.ranked.clear();
        self.scope = scope;
        self.taken = taken;
        self.made = made;
        self.outcome = Outcome::default();
        self.conditions = Conditions::default();
        self.readings = None;
        self.acting = None;
        self.deficit = None;
        self.attribution = None;
        self.overlooked = 0;
        self.next_line = None;
        self.recheck_at = None;
    }

    pub(crate) fn recheck_by(&mut self, at: MonotonicNs) {
        self.recheck_at = Some(self.recheck_at.map_or(at, |earlier| earlier.min(at)));
    }
}
