//! The steps of brake and kill, and of the brake in the kernel, by name, so that a test can let the agent die at each.

/// A step that was just taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KillPoint {
    /// The journal says that a cgroup is about to be frozen.
    BrakeIntentWritten,
    /// The freeze was written.
    FreezeWritten,
    /// The journal says so.
    FreezeRecorded,
    /// The journal says that a cgroup is about to be killed.
    KillIntentWritten,
    /// It was killed.
    KillWritten,
    /// The journal says so.
    KillRecorded,
    /// A frozen cgroup was thawed.
    ThawWritten,
    /// The journal no longer has it.
    ThawRecorded,
    /// The worker begins to take the victim's memory.
    ReleaseStarted,
    /// It has done so.
    ReleaseFinished,
    /// The victim was seen to be empty.
    VictimEmptied,
    /// The journal no longer has it.
    KillCleared,
    /// Slices are marked for the brake in the kernel.
    KernelMarked,
    /// The kernel stopped a process, and that was reported.
    KernelStopSeen,
    /// The processes that the kernel stopped were continued.
    KernelContinued,
}

impl KillPoint {
    /// All of them, in the order of a usual brake and kill.
    pub const ALL: [Self; 15] = [
        Self::BrakeIntentWritten,
        Self::FreezeWritten,
        Self::FreezeRecorded,
        Self::KillIntentWritten,
        Self::KillWritten,
        Self::KillRecorded,
        Self::ThawWritten,
        Self::ThawRecorded,
        Self::ReleaseStarted,
        Self::ReleaseFinished,
        Self::VictimEmptied,
        Self::KillCleared,
        Self::KernelMarked,
        Self::KernelStopSeen,
        Self::KernelContinued,
    ];

    /// Its name, as the command line and the environment have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BrakeIntentWritten => "brake-intent-written",
            Self::FreezeWritten => "freeze-written",
            Self::FreezeRecorded => "freeze-recorded",
            Self::KillIntentWritten => "kill-intent-written",
            Self::KillWritten => "kill-written",
            Self::KillRecorded => "kill-recorded",
            Self::ThawWritten => "thaw-written",
            Self::ThawRecorded => "thaw-recorded",
            Self::ReleaseStarted => "release-started",
            Self::ReleaseFinished => "release-finished",
            Self::VictimEmptied => "victim-emptied",
            Self::KillCleared => "kill-cleared",
            Self::KernelMarked => "kernel-marked",
            Self::KernelStopSeen => "kernel-stop-seen",
            Self::KernelContinued => "kernel-continued",
        }
    }

    /// The point of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|point| point.name() == name)
    }
}

#[cfg(feature = "kill-points")]
mod hook {
    use super::KillPoint;
    use std::sync::OnceLock;

    static HOOK: OnceLock<fn(KillPoint)> = OnceLock::new();

    /// Has `hook` called at every step from now on, on whichever thread takes it. The first call counts.
    pub fn on_reached(hook: fn(KillPoint)) {
        // A second hook would make the first one miss steps.
        let _ = HOOK.set(hook);
    }

    /// Says that a step was taken.
    pub fn reached(point: KillPoint) {
        if let Some(hook) = HOOK.get() {
            hook(point);
        }
    }
}

#[cfg(feature = "kill-points")]
pub use hook::{on_reached, reached};

/// Nothing: this build has no hook.
#[cfg(not(feature = "kill-points"))]
#[inline]
pub fn reached(_: KillPoint) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_name_of_its_own() {
        for (index, point) in KillPoint::ALL.into_iter().enumerate() {
            assert_eq!(KillPoint::from_name(point.name()), Some(point));
            assert_eq!(KillPoint::ALL.iter().position(|other| *other == point), Some(index));
        }
        assert_eq!(KillPoint::from_name("kill"), None);
    }
}
