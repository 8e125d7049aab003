//! Whether the agent is ready, which is to act, and why not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_units::MonotonicNs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::lock;
use crate::record::{HealthRecord, Record, StartupRecord};
use crate::text::printable;

/// Without a beat for so long, the core does not count as ready: more than twice as long as between two where nothing
/// happens. One that ends is seen at once, and one with a watching thread that hangs is killed.
const SILENCE: Duration = Duration::from_secs(150);

/// What readiness is decided by.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The core that was armed last; none until one was.
    pub(crate) core: Option<Armed>,
    /// Better sources that were not taken, and why.
    pub(crate) source_errors: BTreeMap<String, String>,
    /// Hooks that are missing, and why.
    pub(crate) missing: BTreeMap<String, String>,
    /// The kill switches that are thrown.
    pub(crate) kill_switches: BTreeSet<String>,
    /// What does not work and costs a part, and how.
    pub(crate) troubles: Vec<(String, String)>,
}

/// A core with its thresholds armed.
#[derive(Debug)]
pub(crate) struct Armed {
    /// The source in use.
    pub(crate) source: String,
    /// Why this agent only watches.
    pub(crate) shadow: Option<String>,
    /// The last beat.
    pub(crate) beat: MonotonicNs,
    /// Its process, where that was handed over.
    pub(crate) process: Option<Arc<OwnedFd>>,
}

impl Armed {
    /// Whether it is known to have ended, as after a kill of which it could report nothing.
    fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        })
    }
}

impl Health {
    /// What came of `what`: how it does not work, or that it works again.
    fn meet(&mut self, what: &str, text: Option<&str>) {
        if what != HealthRecord::START || text.is_none() {
            self.troubles.retain(|(other, _)| other != what);
        }
        self.troubles.extend(text.map(|text| (what.into(), printable(text))));
    }

    /// Whether it is ready at `now`, and what there is to say.
    pub(crate) fn judge(&self, now: MonotonicNs) -> (bool, String) {
        let Some(core) = &self.core else {
            return (false, "not ready: the core has not armed its thresholds yet\n".into());
        };
        if core.has_ended() {
            return (false, "not ready: the core ended; the next one has not armed its thresholds yet\n".into());
        }
        let Armed { source, shadow, beat, .. } = core;
        let silence = now.since(*beat);
        let (ready, mut text) = if silence > SILENCE {
            let text = format!("not ready: no record of the core for {} s", silence.as_secs());
            (false, format!("{text}\nsource {source}\n"))
        } else if shadow.is_some() || !self.kill_switches.is_empty() {
            (false, format!("not ready: this agent does not act\nsource {source}\n"))
        } else {
            (true, format!("ready: source {source}\n"))
        };
        // Writing into a String does not fail.
        if let Some(why) = shadow {
            let _ = writeln!(text, "shadow: {why}");
        }
        for switch in &self.kill_switches {
            let _ = writeln!(text, "shadow: the kill switch {switch} is there");
        }
        for (name, why) in &self.source_errors {
            let _ = writeln!(text, "not {name}: {why}");
        }
        for (name, why) in &self.missing {
            let _ = writeln!(text, "without hook {name}: {why}");
        }
        for (what, how) in &self.troubles {
            let _ = writeln!(text, "trouble with {what}: {how}");
        }
        (ready, text)
    }
}

/// Records as health.
#[derive(Default)]
pub(crate) struct HealthSink {
    health: Arc<Mutex<Health>>,
    /// What a core reported of its start, which is its health once it is armed.
    starting: Health,
    /// The core whose records come.
    process: Option<Arc<OwnedFd>>,
}

impl HealthSink {
    pub(crate) fn health(&self) -> Arc<Mutex<Health>> {
        Arc::clone(&self.health)
    }

    /// The records of another core follow.
    pub(crate) fn follow(&mut self, process: OwnedFd) {
        self.process = Some(Arc::new(process));
        self.starting = Health::default();
        *lock(&self.health) = Health::default();
    }

    pub(crate) fn record(&mut self, record: &Record<'_>, clock: fn() -> MonotonicNs) {
        match record {
            Record::Startup(record) => self.startup(record, clock),
            Record::Health(HealthRecord::Beat { at, .. }) => {
                if let Some(core) = &mut lock(&self.health).core {
                    core.beat = *at;
                }
            }
            Record::Health(HealthRecord::KillSwitch { switch, is_thrown }) => {
                let mut health = lock(&self.health);
                for switches in [&mut self.starting.kill_switches, &mut health.kill_switches] {
                    if *is_thrown {
                        switches.insert(printable(switch));
                    } else {
                        switches.remove(&printable(switch));
                    }
                }
            }
            Record::Health(HealthRecord::Trouble { what, text, is_logged: _ }) => lock(&self.health).meet(what, *text),
            Record::Health(
                HealthRecord::Inventory { .. }
                | HealthRecord::Lost { .. }
                | HealthRecord::Program { .. }
                | HealthRecord::Tampered(_)
                | HealthRecord::Failed { .. },
            )
            | Record::Observation(_)
            | Record::Plan(_)
            | Record::Readings(_)
            | Record::Threshold(_)
            | Record::Disk(_)
            | Record::Enforcement(_)
            | Record::Machine(_)
            | Record::Container(_) => {}
        }
    }

    fn startup(&mut self, record: &StartupRecord<'_>, clock: fn() -> MonotonicNs) {
        match *record {
            StartupRecord::SourceFailed { source, why } => {
                self.starting.source_errors.insert(source.into(), why.into());
            }
            StartupRecord::Hook { name, attached: false, how } => {
                self.starting.missing.insert(name.into(), how.into());
            }
            StartupRecord::Armed { source, shadow, .. } => {
                let core = Armed {
                    source: source.into(),
                    shadow: shadow.map(Into::into),
                    beat: clock(),
                    process: self.process.clone(),
                };
                let mut health = lock(&self.health);
                // What it met before it was armed is there still.
                let troubles = std::mem::take(&mut health.troubles);
                *health = Health { core: Some(core), troubles, ..std::mem::take(&mut self.starting) };
            }
            StartupRecord::Hook { attached: true, .. } | StartupRecord::Undone { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(seconds: u64) -> MonotonicNs {
        MonotonicNs(seconds * 1_000_000_000)
    }

    fn armed(source: &str, shadow: Option<&str>) -> Armed {
        Armed { source: source.into(), shadow: shadow.map(Into::into), beat: second(1), process: None }
    }

    #[test]
    fn a_core_that_ended_is_not_ready_without_a_record_of_its_end_nor_is_the_next_one_before_it_is_armed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let open = |pid| plimsoll_node::process::open(pid).expect("it runs");
        let mut sink = HealthSink::default();
        let health = sink.health();
        let judge = || lock(&health).judge(second(1));
        sink.follow(open(rustix::process::Pid::from_child(&child)));
        let start = crate::record::StartParts::default();
        let armed = StartupRecord::Armed { pid: child.id(), source: "ebpf", shadow: None, workloads: 0, start }.into();
        assert!(!judge().0);
        sink.record(&armed, || second(1));
        assert!(judge().0);
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        let (ready, text) = judge();
        assert!(!ready && text.contains("the core ended"), "{text}");
        sink.follow(open(rustix::process::getpid()));
        let (ready, text) = judge();
        assert!(!ready && text.contains("has not armed"), "{text}");
        sink.record(&armed, || second(1));
        assert!(judge().0);
    }

    #[test]
    fn ready_is_an_armed_core_with_beats() {
        let mut health = Health::default();
        assert!(!health.judge(second(1)).0);
        health.core = Some(armed("psi", None));
        health.source_errors.insert("ebpf".into(), "no type information".into());
        health.missing.insert("fork".into(), "no such function".into());
        let reasons = "source psi\nnot ebpf: no type information\nwithout hook fork: no such function\n";
        for (now, ready, first) in [
            (1, true, "ready: "),
            (151, true, "ready: "),
            (152, false, "not ready: no record of the core for 151 s\n"),
            (200, false, "not ready: no record of the core for 199 s\n"),
        ] {
            assert_eq!(health.judge(second(now)), (ready, format!("{first}{reasons}")), "at {now}");
        }
        // It beats again.
        health.core.as_mut().expect("armed").beat = second(200);
        assert!(health.judge(second(201)).0);
    }

    #[test]
    fn an_agent_whose_kill_switch_is_thrown_is_not_ready_whether_it_is_just_armed_or_acted_before() {
        let mut sink = HealthSink::default();
        let health = sink.health();
        let (start, source) = (crate::record::StartParts::default(), "ebpf");
        let armed = StartupRecord::Armed { pid: 1, source, shadow: None, workloads: 0, start }.into();
        let switch = |is_thrown| Record::from(HealthRecord::KillSwitch { switch: "/etc/a\n", is_thrown });
        let not_ready = "not ready: this agent does not act\nsource ebpf\nshadow: the kill switch /etc/a\\n is there\n";
        for (what, record, ready) in [
            ("a core begins", switch(true), None),
            ("it is armed", armed, Some(false)),
            ("it acts", switch(false), Some(true)),
            ("it is thrown", switch(true), Some(false)),
            ("it takes over meanwhile", armed, Some(false)),
            ("it acts again", switch(false), Some(true)),
            ("it takes over", armed, Some(true)),
        ] {
            sink.record(&record, || second(1));
            let (is_ready, text) = lock(&health).judge(second(1));
            assert_eq!(is_ready, ready == Some(true), "{what}");
            assert_eq!(text == not_ready, ready == Some(false), "{what}: {text}");
        }
    }

    #[test]
    fn what_does_not_work_is_named_until_it_works_again_or_the_core_ends() {
        let mut sink = HealthSink::default();
        let health = sink.health();
        let start = crate::record::StartParts::default();
        let armed = StartupRecord::Armed { pid: 1, source: "psi", shadow: None, workloads: 0, start }.into();
        let met = |what, text| Record::from(HealthRecord::Trouble { what, text, is_logged: true });
        let mut after = |record, expected: &str| {
            sink.record(&record, || second(1));
            assert_eq!(lock(&health).judge(second(1)), (true, format!("ready: source psi\n{expected}")));
        };
        after(armed, "");
        after(met("start", Some("one")), "trouble with start: one\n");
        after(met("start", Some("two\n")), "trouble with start: one\ntrouble with start: two\\n\n");
        after(met("walk", Some("a")), "trouble with start: one\ntrouble with start: two\\n\ntrouble with walk: a\n");
        after(met("start", None), "trouble with walk: a\n");
        after(met("walk", Some("b")), "trouble with walk: b\n");
        after(armed, "trouble with walk: b\n");
        after(met("walk", None), "");
        after(met("walk", Some("c")), "trouble with walk: c\n");
        sink.follow(plimsoll_node::process::open(rustix::process::getpid()).expect("it runs"));
        sink.record(&armed, || second(1));
        assert_eq!(lock(&health).judge(second(1)).1, "ready: source psi\n");
    }

    #[test]
    fn an_agent_that_only_watches_is_not_ready_and_says_why() {
        let health = Health { core: Some(armed("ebpf", Some("another agent acts"))), ..Health::default() };
        for (now, first) in
            [(1, "not ready: this agent does not act"), (200, "not ready: no record of the core for 199 s")]
        {
            let text = format!("{first}\nsource ebpf\nshadow: another agent acts\n");
            assert_eq!(health.judge(second(now)), (false, text), "at {now}");
        }
    }
}
