//! The kinds of source there are.

use std::fmt;

/// What a source is made of, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// eBPF programs submit an event as a threshold is crossed.
    Ebpf,
    /// The kernel's PSI trigger fires when tasks wait for memory.
    PsiTrigger,
    /// A timer; the owner takes a sample each time.
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
