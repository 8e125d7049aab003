//! Whether the agent is ready, and why not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_units::MonotonicNs;

/// Without a sign of life for so long, the core counts as gone.
const SILENCE: Duration = Duration::from_secs(15);

/// What readiness is judged by.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    /// The core that was armed last; none until one was.
    pub(super) core: Option<Armed>,
    /// Better sources that were not taken, and why.
    pub(super) source_errors: BTreeMap<String, String>,
    /// Hooks that are missing, and why.
    pub(super) missing: BTreeMap<String, String>,
}

/// A core whose thresholds are armed.
#[derive(Clone, Debug)]
pub(super) struct Armed {
    /// The source in use.
    pub(super) source: String,
    /// Why this agent only watches.
    pub(super) shadow: Option<String>,
    /// The last sign of life.
    pub(super) heard: MonotonicNs,
}

impl Health {
    /// Whether it is ready at `now`, and what there is to say.
    pub(super) fn judge(&self, now: MonotonicNs) -> (bool, String) {
        let Some(Armed { source, shadow, heard }) = &self.core else {
            return (false, "not ready: the core has not armed its lines yet\n".into());
        };
        let silence = now.since(*heard);
        let ready = silence <= SILENCE;
        let mut text = if ready {
            format!("ready: source {source}\n")
        } else {
            format!("not ready: nothing was heard of the core for {} s\nsource {source}\n", silence.as_secs())
        };
        // Writing into a String does not fail.
        if let Some(why) = shadow {
            let _ = writeln!(text, "shadow: {why}");
        }
        for (name, why) in &self.source_errors {
            let _ = writeln!(text, "not {name}: {why}");
        }
        for (name, why) in &self.missing {
            let _ = writeln!(text, "without hook {name}: {why}");
        }
        (ready, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_armed_and_heard_of() {
        let second = |seconds: u64| MonotonicNs(seconds * 1_000_000_000);
        let mut health = Health::default();
        assert!(!health.judge(second(1)).0);
        let shadow = Some("another agent acts".into());
        health.core = Some(Armed { source: "psi".into(), shadow, heard: second(1) });
        health.source_errors.insert("ebpf".into(), "no type information".into());
        health.missing.insert("fork".into(), "no such function".into());
        let reasons = "source psi\nshadow: another agent acts\nnot ebpf: no type information\n\
            without hook fork: no such function\n";
        for (now, ready, first) in [
            (1, true, "ready: "),
            (16, true, "ready: "),
            (17, false, "not ready: nothing was heard of the core for 16 s\n"),
            (99, false, "not ready: nothing was heard of the core for 98 s\n"),
        ] {
            assert_eq!(health.judge(second(now)), (ready, format!("{first}{reasons}")), "at {now}");
        }
        // It is heard of again.
        health.core.as_mut().expect("armed").heard = second(99);
        assert!(health.judge(second(100)).0);
    }
}
