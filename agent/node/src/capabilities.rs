//! Least privilege: every capability with the action that needs it, everything else dropped.
//!
//! A capability belongs to a thread. Drop before other threads are made: they inherit what is left. What is needed only
//! while the agent attaches is dropped by a second call afterwards.

use crate::NodeError;
use caps::{CapSet, CapsHashSet};

pub use caps::Capability;

/// Loading and attaching the kernel's programs, their maps and ring buffers.
pub const BPF: Capability = Capability::CAP_BPF;
/// Attaching them to tracing hooks.
pub const PERFMON: Capability = Capability::CAP_PERFMON;
/// Addresses in /proc/kallsyms, which the kernel's programs read counters by; only while attaching.
pub const SYSLOG: Capability = Capability::CAP_SYSLOG;
/// PSI triggers with a window that is no multiple of two seconds, a lower `oom_score_adj`, and higher limits: of locked
/// memory, open files and nice values.
pub const SYS_RESOURCE: Capability = Capability::CAP_SYS_RESOURCE;
/// Continuing (SIGCONT) and killing processes of other users.
pub const KILL: Capability = Capability::CAP_KILL;
/// Writing freeze and kill files in subtrees that are delegated to a user.
pub const DAC_OVERRIDE: Capability = Capability::CAP_DAC_OVERRIDE;
/// Opening a cgroup by its id (`open_by_handle_at`), and reading directories that only their owner may read.
pub const DAC_READ_SEARCH: Capability = Capability::CAP_DAC_READ_SEARCH;
/// Locking memory beyond the limit of locked memory; only at the start, for what comes later is then locked too.
pub const IPC_LOCK: Capability = Capability::CAP_IPC_LOCK;
/// Real-time priority; only at the start.
pub const SYS_NICE: Capability = Capability::CAP_SYS_NICE;
/// Becoming another user and group, which the reporter does at its start.
pub const SETUID: Capability = Capability::CAP_SETUID;
/// As [`SETUID`].
pub const SETGID: Capability = Capability::CAP_SETGID;
/// Giving that user the directory of a trace; where it is missing, the owner of the machine does so.
pub const CHOWN: Capability = Capability::CAP_CHOWN;
/// Shrinking the bounding set, which this module does; always dropped last.
const SETPCAP: Capability = Capability::CAP_SETPCAP;

/// The capability of this name, as `CAP_KILL`.
pub fn named(name: &str) -> Option<Capability> {
    name.parse().ok()
}

/// Those that the calling thread holds.
pub fn held() -> Result<CapsHashSet, NodeError> {
    Ok(caps::read(None, CapSet::Permitted)?)
}

/// Drops, on the calling thread, every capability but `keep` from every set, for good: nothing that this thread starts
/// gets them back, even as root. Gives those of `keep` that the thread did not have in the first place.
pub fn keep_only(keep: &[Capability]) -> Result<Vec<Capability>, NodeError> {
    let held = caps::read(None, CapSet::Permitted)?;
    let wanted: CapsHashSet = keep.iter().copied().collect();
    let kept: CapsHashSet = held.intersection(&wanted).copied().collect();
    caps::clear(None, CapSet::Ambient)?;
    if held.contains(&SETPCAP) {
        caps::raise(None, CapSet::Effective, SETPCAP)?;
        for capability in caps::read(None, CapSet::Bounding)?.difference(&wanted) {
            caps::drop(None, CapSet::Bounding, *capability)?;
        }
    }
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    rustix::thread::set_no_new_privs(true).map_err(|source| NodeError::Refused {
        what: "bar this thread from new privileges",
        source,
        advice: "This needs Linux 3.5 or later",
    })?;
    let mut missing: Vec<Capability> = wanted.difference(&kept).copied().collect();
    missing.sort_unstable_by_key(Capability::index);
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_what_it_named_and_nothing_else() {
        // On a thread of its own: the sets belong to the thread.
        std::thread::spawn(|| {
            let held = caps::read(None, CapSet::Permitted).expect("readable");
            let missing = keep_only(&[KILL]).expect("less is always allowed");
            let left = caps::read(None, CapSet::Permitted).expect("readable");
            if held.contains(&KILL) {
                assert_eq!(left, CapsHashSet::from([KILL]));
                assert_eq!(missing, []);
            } else {
                assert_eq!(left, CapsHashSet::new());
                assert_eq!(missing, [KILL]);
            }
            assert_eq!(caps::read(None, CapSet::Effective).expect("readable"), left);
            assert_eq!(caps::read(None, CapSet::Inheritable).expect("readable"), CapsHashSet::new());
            // Dropping all of them then works too, although the right to change the bounding set is gone.
            assert_eq!(keep_only(&[]).expect("less is always allowed"), []);
            assert_eq!(caps::read(None, CapSet::Permitted).expect("readable"), CapsHashSet::new());
        })
        .join()
        .expect("the thread ends well");
    }
}
