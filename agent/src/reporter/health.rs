//! Whether the agent is ready, and why not.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_units::MonotonicNs;

/// Without a sign of life for so long, the core counts as gone.
const SILENCE: Duration = Duration::from_secs(15);

/// What readiness is judged by.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    /// The source in use; none until the core is armed.
    pub(super) source: Option<String>,
    /// Why this agent only watches.
    pub(super) shadow: Option<String>,
    /// Better sources that were not taken, and why.
    pub(super) fallen: Vec<(String, String)>,
    /// Hooks that are missing, and why.
    pub(super) missing: Vec<(String, String)>,
    /// The last sign of life.
    pub(super) beat: Option<MonotonicNs>,
}

impl Health {
    /// Whether it is ready at `now`, and what there is to say.
    pub(super) fn judge(&self, now: MonotonicNs) -> (bool, String) {
        let Some(source) = &self.source else {
            return (false, "not ready: the core has not armed its lines yet\n".into());
        };
        let silent = self.beat.is_none_or(|beat| now.since(beat) > SILENCE);
        if silent {
            return (false, format!("not ready: nothing was heard of the core for {} s\n", SILENCE.as_secs()));
        }
        let mut text = format!("ready: source {source}\n");
        if let Some(why) = &self.shadow {
            // Writing into a String does not fail.
            let _ = writeln!(text, "shadow: {why}");
        }
        for (name, why) in &self.fallen {
            let _ = writeln!(text, "not {name}: {why}");
        }
        for (name, why) in &self.missing {
            let _ = writeln!(text, "without hook {name}: {why}");
        }
        (true, text)
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
        health.source = Some("psi".into());
        health.fallen.push(("ebpf".into(), "no type information".into()));
        assert!(!health.judge(second(1)).0);
        health.beat = Some(second(1));
        let (ready, text) = health.judge(second(16));
        assert!(ready && text.contains("source psi") && text.contains("not ebpf: no type information"), "{text}");
        assert!(!health.judge(second(17)).0);
    }
}
