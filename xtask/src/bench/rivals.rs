//! What watches memory in a round.

use plotters::style::RGBColor;

use crate::picture::{BLUE, GREEN, GREY, ORANGE};

/// The kernel alone. It is no daemon, and acts by its own choice.
pub(super) const KERNEL: &str = "oom-killer";
/// Plimsoll as it is shipped.
pub(super) const EBPF: &str = "plimsoll-ebpf";
/// The same, where the kernel itself stops what grows past the threshold.
pub(super) const BRAKE: &str = "plimsoll-ebpf-brake";
/// What must lose no race and kill nothing needlessly.
pub(super) const JUDGED: [&str; 2] = [EBPF, BRAKE];

/// What a rival is, which is its colour in plots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Nothing runs.
    Kernel,
    /// Another daemon, from Debian's package.
    Daemon,
    /// Plimsoll without programs in the kernel.
    Fallback,
    /// Plimsoll with them.
    Ebpf,
}

impl Family {
    pub(super) const ALL: [Self; 4] = [Self::Kernel, Self::Daemon, Self::Fallback, Self::Ebpf];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel alone",
            Self::Daemon => "other daemons",
            Self::Fallback => "Plimsoll without eBPF",
            Self::Ebpf => "Plimsoll with eBPF",
        }
    }

    pub(super) const fn colour(self) -> RGBColor {
        match self {
            Self::Kernel => GREY,
            Self::Daemon => ORANGE,
            Self::Fallback => BLUE,
            Self::Ebpf => GREEN,
        }
    }
}

/// Every rival by the name that the guest knows it by, in the order of tables and plots.
pub(super) const RIVALS: [(&str, Family); 10] = [
    (KERNEL, Family::Kernel),
    ("earlyoom", Family::Daemon),
    ("nohang", Family::Daemon),
    ("systemd-oomd", Family::Daemon),
    ("plimsoll-poll-10s", Family::Fallback),
    ("plimsoll-poll-1s", Family::Fallback),
    ("plimsoll-poll-100ms", Family::Fallback),
    ("plimsoll-psi", Family::Fallback),
    (EBPF, Family::Ebpf),
    (BRAKE, Family::Ebpf),
];

/// The packages of Debian that bring the other daemons.
pub(super) const PACKAGES: [&str; 3] = ["earlyoom", "nohang", "systemd-oomd"];

/// All their names.
pub(super) fn names() -> [&'static str; RIVALS.len()] {
    RIVALS.map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_judged_and_what_is_installed_are_rivals() {
        let of = |name: &str| RIVALS.iter().find(|(rival, _)| *rival == name).map(|(_, family)| *family);
        assert!(JUDGED.iter().all(|name| of(name) == Some(Family::Ebpf)));
        assert!(PACKAGES.iter().all(|name| of(name) == Some(Family::Daemon)));
        assert_eq!(of(KERNEL), Some(Family::Kernel));
        let colours: std::collections::BTreeSet<_> =
            Family::ALL.map(|family| (family.colour().0, family.colour().1, family.colour().2)).into();
        assert_eq!(colours.len(), Family::ALL.len());
    }
}
