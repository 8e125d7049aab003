//! What a source is to be like.

use std::{path::PathBuf, time::Duration};

use crate::{kind::Kind, psi::TriggerSpec};

/// What to start, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Only this kind, no ladder. `None`: the best that starts.
    pub only: Option<Kind>,
    /// The poll's period, where it comes to polling.
    pub poll_period: Duration,
    /// When the first tick comes; zero: after one period.
    pub poll_phase: Duration,
    /// The PSI trigger, where it comes to that.
    pub trigger: TriggerSpec,
    /// Where the record of what the in-kernel brake stopped is pinned, under bpffs.
    pub stopped_pin: PathBuf,
    /// Load the in-kernel brake at all. Off: the verifier removes the code that could stop a task.
    pub kernel_brake: bool,
    /// Do without trampolines, as a kernel must that has none: kprobes and tracepoints carry what they can.
    pub no_trampolines: bool,
    /// A cgroup's stall that submits an event: this long, summed over its tasks, within one second.
    pub stall_burst: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            only: None,
            poll_period: Duration::from_secs(10),
            poll_phase: Duration::ZERO,
            trigger: TriggerSpec::default(),
            stopped_pin: PathBuf::from("/sys/fs/bpf/plimsoll/stopped"),
            kernel_brake: false,
            no_trampolines: false,
            stall_burst: Duration::from_millis(100),
        }
    }
}
