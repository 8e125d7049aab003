//! From records to log lines, kernel log lines and metrics.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_config::{Configuration, LogFormat};
use plimsoll_node::clock::monotonic;
use plimsoll_node::meminfo::MemInfo;
use plimsoll_node::process;
use plimsoll_policy::Scope;
use plimsoll_policy::kubelet::Condition;
use plimsoll_replay::trace::Entry;
use plimsoll_state::queue::Losses;
use plimsoll_units::{Bytes, MonotonicNs};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use super::health::{self, Health};
use super::kernel_log::KernelLog;
use super::lock;
use super::metrics::{Metrics, count, count_candidates, store};
use super::observed::Observed;
use super::plan::{Draft, ns, variant};
use super::server::Answers;
use super::trace::Entries;
use crate::log::{Level, escaped};
use crate::record::{Braked, Killed, OomScope, Record, Refused, StartParts};

/// Where lines of the log go. False: the line is lost.
pub(super) type Out = Box<dyn FnMut(Level, &str, &Map<String, Value>) -> bool + Send>;

/// Tells records, and knows what was told.
pub(super) struct Sink {
    configuration: Configuration,
    out: Out,
    /// Lines that were lost since one was written.
    unsaid: u64,
    kernel_log: KernelLog,
    clock: fn() -> MonotonicNs,
    memory: Option<Arc<MemInfo>>,
    metrics: Metrics,
    health: Arc<Mutex<Health>>,
    /// What a core reported of its start, which is its health once it is armed.
    starting: Health,
    /// Its hooks, and whether they are attached.
    starting_hooks: BTreeMap<String, bool>,
    draft: Option<Draft>,
    trace: Option<Entries>,
    observed: Observed,
    /// Who grew although it was frozen, escaped, and by how much: it is killed next.
    unheld: Option<(String, Bytes)>,
}

impl Sink {
    pub(super) fn new(
        configuration: Configuration,
        metrics: Metrics,
        out: Out,
        kernel_log: Option<File>,
        memory: Option<MemInfo>,
    ) -> Self {
        Self {
            configuration,
            out,
            unsaid: 0,
            kernel_log: KernelLog::new(kernel_log),
            clock: monotonic,
            memory: memory.map(Arc::new),
            metrics,
            health: Arc::default(),
            starting: Health::default(),
            starting_hooks: BTreeMap::new(),
            draft: None,
            trace: None,
            observed: Observed::default(),
            unheld: None,
        }
    }

    /// Has observations and plans written into a trace too.
    pub(super) fn record(&mut self, trace: Entries) {
        self.trace = Some(trace);
    }

    /// What is served of what it knows.
    pub(super) fn answers(&self) -> Answers {
        let Self { configuration, metrics, health, memory, clock, .. } = self;
        let (metrics, health, memory) = (metrics.clone(), Arc::clone(health), memory.clone());
        Answers { metrics, health, memory, clock: *clock, unwatched: configuration.unwatched_memory() }
    }

    /// A record that was none.
    pub(super) fn malformed(&mut self) {
        count(&self.metrics.malformed_records, ("side", "agent"));
    }

    /// What did not come out of a queue since this was called last.
    pub(super) fn queue(&mut self, name: &str, Losses { lost, damaged }: Losses) {
        self.metrics.lost_records.get_or_create(&[("ring", name.to_owned())]).inc_by(lost);
        self.metrics.malformed_records.get_or_create(&[("side", "agent".to_owned())]).inc_by(damaged);
    }

    /// Nothing comes any more: tells what waits, and lets go of the log.
    pub(super) fn close(&mut self) {
        self.kernel_log.flush();
        self.out = Box::new(|_, _, _| false);
    }

    /// A line of the log; `fields` is an object.
    pub(super) fn say(&mut self, level: Level, message: &str, fields: Value) {
        let Value::Object(fields) = fields else { return };
        if self.unsaid > 0 {
            let lost = Map::from_iter([("lines".to_owned(), self.unsaid.into())]);
            if (self.out)(Level::Warn, "lines of the log are missing here: nobody read them in time", &lost) {
                self.unsaid = 0;
            }
        }
        if !(self.out)(level, message, &fields) {
            self.unsaid += 1;
            self.metrics.lost_log_lines.inc();
        }
    }

    /// Tells one record.
    pub(super) fn report(&mut self, record: &Record<'_>) {
        match *record {
            Record::Plan { .. } => {
                if self.draft.take().is_some() {
                    // Its end was lost.
                    self.metrics.broken_plans.inc();
                }
                self.draft = Draft::begin(record);
            }
            Record::PlanThreshold { status, acting } => {
                if let Some(draft) = &mut self.draft {
                    draft.threshold(status, acting);
                }
            }
            Record::PlanRanked { ranked, path } => {
                if let Some(draft) = &mut self.draft {
                    draft.ranked(ranked, path);
                }
            }
            Record::PlanAction(action) => {
                if let Some(draft) = &mut self.draft {
                    draft.action(action);
                }
            }
            Record::PlanEnd => self.plan(),
            Record::Observed { .. }
            | Record::ObservedSlice { .. }
            | Record::ObservedReclaim { .. }
            | Record::ObservedWorkload { .. }
            | Record::ObservedEnd { .. } => self.observed(record),
            Record::Crossed { crossed, awake } => {
                self.metrics.crossed_to_awake.observe(awake.since(crossed).as_secs_f64());
            }
            Record::Brake { path, at, what } => self.brake(path, at, what),
            Record::Kill { plan, path, usage, at, what } => self.kill(plan, path, usage, at, what),
            Record::Stopped { crossed, at, past_threshold } => {
                if let Some(crossed) = crossed {
                    self.metrics.crossed_to_stopped.observe(at.since(crossed).as_secs_f64());
                }
                self.metrics.past_threshold.observe(float(past_threshold.0));
            }
            Record::StoppedInKernel { pid, slice, at } => {
                let message = format!("the kernel stopped process {pid} at the line");
                let fields = json!({"pid": pid, "kernel_brake": "stopped", "slice_id": slice.0, "at_ns": at.0});
                self.say(Level::Info, &message, fields);
            }
            Record::MemoryBack { crossed, at, past_threshold } => {
                let took = crossed.map(|crossed| at.since(crossed));
                if let Some(took) = took {
                    self.metrics.crossed_to_memory_back.observe(took.as_secs_f64());
                }
                let message = match took {
                    Some(took) => format!("memory is above the threshold again, {took:?} after it was crossed"),
                    None => "memory is above the threshold again".into(),
                };
                let fields = json!({"at_ns": at.0, "crossed_ns": crossed.map(|at| at.0), "past_threshold_bytes": past_threshold.0});
                self.say(Level::Info, &message, fields);
            }
            Record::Oom { at, pid, cgroup, resident, scope } => {
                self.oom(at, pid, cgroup.map(|id| id.0), resident, scope);
            }
            Record::Reclaimed { cgroup, asked, all } => {
                let outcome = if all { "reclaimed" } else { "reclaimed less than was asked" };
                self.say(Level::Info, outcome, json!({"cgroup_id": cgroup.0, "asked_bytes": asked.0}));
            }
            Record::Released { cgroup, released, gone, kept } => {
                let fields = json!({"cgroup_id": cgroup.0, "released": released, "gone": gone, "kept": kept});
                self.say(Level::Info, "took the memory of dying processes", fields);
            }
            Record::Tasks { count, at, pid } => {
                let message = format!("{count} tasks exist, close to the most that there can be");
                self.say(Level::Warn, &message, json!({"tasks": count, "at_ns": at.0, "pid": pid}));
            }
            Record::Failed { what, errno } => {
                count(&self.metrics.failures, ("what", what));
                let why = errno.map(|errno| std::io::Error::from_raw_os_error(errno).to_string());
                let message = format!("failed to {what}: {}", why.as_deref().unwrap_or("no reason given"));
                self.say(Level::Warn, &message, json!({"errno": errno}));
            }
            Record::Armed { .. }
            | Record::SourceFailed { .. }
            | Record::Hook { .. }
            | Record::Undone { .. }
            | Record::Beat { .. }
            | Record::Inventory { .. }
            | Record::Lost { .. }
            | Record::Program { .. }
            | Record::Suspect { .. }
            | Record::Trouble { .. } => self.slow(record),
        }
    }

    /// A part of an observation.
    fn observed(&mut self, record: &Record<'_>) {
        let Some(trace) = &self.trace else { return };
        if let Some(look) = self.observed.take(record, &self.configuration)
            && let Err(TrySendError::Full(Entry::Sample(look)) | TrySendError::Disconnected(Entry::Sample(look))) =
                trace.try_send(Entry::Sample(look))
        {
            self.observed.lost(&look);
        }
    }

    /// Records of the inventory thread.
    fn slow(&mut self, record: &Record<'_>) {
        match *record {
            Record::Armed { pid, source, shadow, workloads, start } => {
                self.armed(pid, source, shadow, workloads, start);
            }
            Record::SourceFailed { source, why } => {
                self.starting.source_errors.insert(source.into(), why.into());
                let message = format!("source {source} was not taken: {why}");
                self.say(Level::Warn, &message, json!({"source": source}));
            }
            Record::Hook { name, attached, how } => {
                self.starting_hooks.insert(name.into(), attached);
                if attached {
                    self.say(Level::Info, &format!("hook {name} is attached: {how}"), json!({"hook": name}));
                } else {
                    self.starting.missing.insert(name.into(), how.into());
                    self.say(Level::Warn, &format!("hook {name} is missing: {how}"), json!({"hook": name}));
                }
            }
            Record::Undone { thawed, continued, failed, kills } => {
                let fields = json!({"thawed": thawed, "continued": continued, "failed": failed, "kills": kills});
                let level = if failed > 0 { Level::Warn } else { Level::Info };
                self.say(level, "undid what an earlier process left", fields);
            }
            Record::Beat { at, workloads, malformed, brakes_applied, brakes_refused } => {
                self.kernel_log.look(at);
                if let Some(core) = &mut lock(&self.health).core {
                    core.heard = at;
                }
                self.metrics.workloads.set(workloads.into());
                store(&self.metrics.malformed_records, ("side", "kernel"), malformed);
                store(&self.metrics.kernel_brakes, ("outcome", "applied"), brakes_applied);
                store(&self.metrics.kernel_brakes, ("outcome", "refused"), brakes_refused);
            }
            Record::Inventory { without_row, outside, descriptors, kernel_memory, sample_cost } => {
                let signed = |bytes: Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
                let metrics = &self.metrics.inventory;
                metrics.without_row.set(without_row.into());
                metrics.outside.set(signed(outside));
                metrics.descriptors.set(descriptors.into());
                kernel_memory.inspect(|bytes| _ = metrics.kernel_memory.set(signed(*bytes)));
                metrics.sample_cost.set(sample_cost.as_secs_f64());
            }
            Record::Lost { ring, count } => store(&self.metrics.lost_records, ("ring", ring), count),
            Record::Program { name, runs, run_time_ns, recursion_misses } => {
                let label = ("program", name);
                if let Some(runs) = runs {
                    store(&self.metrics.program_runs, label, runs);
                }
                if let Some(nanoseconds) = run_time_ns {
                    let seconds = float(nanoseconds) / 1e9;
                    let counter = self.metrics.program_run_time.get_or_create(&[(label.0, name.to_owned())]);
                    counter.inner().store(seconds.to_bits(), std::sync::atomic::Ordering::Relaxed);
                }
                if let Some(misses) = recursion_misses {
                    store(&self.metrics.program_recursion_misses, label, misses);
                }
            }
            Record::Suspect { pid, name, resident, huge_pages } => {
                let name = escaped(name);
                let message = if huge_pages == Bytes::ZERO {
                    format!("process {pid} ({name}), outside all workloads, holds {resident}")
                } else {
                    format!("process {pid} ({name}) holds {huge_pages} in huge pages, and {resident} beside them")
                };
                let fields = json!({
                    "pid": pid,
                    "name": name,
                    "resident_bytes": resident.0,
                    "huge_pages_bytes": huge_pages.0,
                });
                self.say(Level::Warn, &message, fields);
            }
            Record::Trouble { text } => self.say(Level::Warn, text, json!({})),
            _ => {}
        }
    }

    fn armed(&mut self, pid: u32, source: &str, shadow: Option<&str>, workloads: u32, start: StartParts) {
        let pid_of_core = i32::try_from(pid).ok().and_then(process::Pid::from_raw);
        let core = health::Armed {
            source: source.into(),
            shadow: shadow.map(Into::into),
            heard: (self.clock)(),
            process: pid_of_core.ok_or(Errno::SRCH).and_then(process::open),
        };
        *lock(&self.health) = Health { core: Some(core), ..std::mem::take(&mut self.starting) };
        // What another core had is not there any more.
        self.metrics.source.clear();
        self.metrics.hook_attached.clear();
        for (name, attached) in std::mem::take(&mut self.starting_hooks) {
            self.metrics.hook_attached.get_or_create(&[("hook", name)]).set(attached.into());
        }
        self.metrics.source.get_or_create(&[("source", source.into())]).set(1);
        self.metrics.acting.set(shadow.is_none().into());
        self.metrics.workloads.set(workloads.into());
        for (part, took) in parts(&start) {
            self.metrics.core_start.get_or_create(&[("part", part.into())]).set(took.as_secs_f64());
        }
        let parts: Map<String, Value> =
            parts(&start).into_iter().map(|(part, took)| (format!("{part}_ns"), json!(ns(took)))).collect();
        let does = shadow.map_or_else(|| "acts".to_owned(), |why| format!("shadows: {why}"));
        let message = format!("armed with source {source} over {workloads} workloads; {does}");
        let fields = json!({
            "core_pid": pid,
            "source": source,
            "shadow": shadow,
            "workloads": workloads,
            "start": parts,
        });
        self.say(Level::Info, &message, fields);
    }

    /// A plan is complete; one whose beginning was lost is not told.
    fn plan(&mut self) {
        let Some(draft) = self.draft.take() else {
            self.metrics.broken_plans.inc();
            return;
        };
        if !draft.is_whole() {
            self.metrics.broken_plans.inc();
        }
        self.kernel_log.plan(draft.number(), draft.figures().as_ref());
        count(&self.metrics.decisions, ("outcome", &variant(&draft.plan.outcome).0));
        count_candidates(&self.metrics, &draft.plan);
        if draft.plan.scope == Scope::Node {
            self.metrics.memory_pressure.set(draft.plan.conditions.has(Condition::MemoryPressure).into());
        }
        if let Some(trace) = &self.trace {
            // Nobody waits for a trace; what it has no room for is in the log.
            let _ = trace.try_send(Entry::Reported(draft.reported(&self.configuration)));
        }
        let fields = match self.configuration.machine.log_format {
            // The line has every number already.
            LogFormat::Text => Map::new(),
            LogFormat::Json => draft.fields(&self.configuration),
        };
        self.say(Level::Info, &draft.line(&self.configuration), Value::Object(fields));
    }

    fn brake(&mut self, path: &[u8], at: MonotonicNs, what: Braked) {
        let path = escaped(path);
        let (outcome, message) = match what {
            Braked::Frozen => ("frozen", format!("{path} is frozen")),
            Braked::Thawed(held) => ("thawed", format!("{path} goes on after {held:?}")),
            Braked::StillGrows(grown) => ("still-grows", format!("{path} was frozen and grew {grown}")),
            Braked::Gone => ("gone", format!("{path} was removed while it was frozen")),
            Braked::Refused(why) => ("refused", format!("{path} was not frozen: {}", refused(why))),
            Braked::ThawFailed => ("thaw-failed", format!("{path} could not be thawed; it is tried again")),
        };
        count(&self.metrics.brakes, ("outcome", outcome));
        self.unheld = match what {
            Braked::StillGrows(grown) => Some((path.clone(), grown)),
            _ => self.unheld.take(),
        };
        let level = if matches!(what, Braked::ThawFailed | Braked::Refused(_)) { Level::Warn } else { Level::Info };
        self.say(level, &message, json!({"cgroup": path, "brake": outcome, "at_ns": at.0}));
    }

    fn kill(&mut self, plan: u64, path: &[u8], usage: Option<Bytes>, at: MonotonicNs, what: Killed) {
        let path = escaped(path);
        let (outcome, message) = match what {
            Killed::Begun => ("begun", format!("killed {path}")),
            Killed::Asked(grace) => ("asked", format!("{path} was asked to end within {grace:?}")),
            Killed::Gone => ("gone", format!("{path} was gone before it was killed")),
            Killed::Again(grown) => {
                ("again", format!("{path} grew by {grown} after it was killed, and was killed again"))
            }
            Killed::Emptied(took, _) => ("emptied", format!("{path} is empty after {took:?}")),
            Killed::Stuck(_) => ("stuck", format!("{path} does not end; its memory is not counted on")),
            Killed::Refused(why) => ("refused", format!("{path} was not killed: {}", refused(why))),
        };
        match what {
            Killed::Begun => {
                self.metrics.kills.inc();
                match self.unheld.take().filter(|(unheld, _)| *unheld == path) {
                    Some((_, grown)) => self.kernel_log.kill_unheld(&path, grown),
                    None => self.kernel_log.kill(plan, &path, usage, at),
                }
            }
            Killed::Asked(_) => {
                self.metrics.asked_to_end.inc();
            }
            Killed::Stuck(_) => {
                self.metrics.stuck_victims.inc();
            }
            Killed::Refused(_) => {
                self.metrics.kills_refused.inc();
            }
            Killed::Again(_) | Killed::Gone | Killed::Emptied(..) => {}
        }
        let left = match what {
            Killed::Emptied(_, left) | Killed::Stuck(left) => left,
            _ => None,
        };
        let level = if matches!(what, Killed::Again(_) | Killed::Stuck(_) | Killed::Refused(_)) {
            Level::Warn
        } else {
            Level::Info
        };
        let fields = json!({
            "cgroup": path,
            "kill": outcome,
            "plan": plan,
            "usage_bytes": usage.map(|bytes| bytes.0),
            "left_bytes": left.map(|bytes| bytes.0),
            "at_ns": at.0,
        });
        self.say(level, &message, fields);
    }

    fn oom(&mut self, at: MonotonicNs, pid: u32, cgroup: Option<u64>, resident: Option<Bytes>, scope: OomScope) {
        let name = match scope {
            OomScope::Global => "global",
            OomScope::Cgroup => "cgroup",
            OomScope::Cpuset => "cpuset",
            OomScope::NumaNode => "numa-node",
        };
        count(&self.metrics.oom_kills, ("scope", name));
        if scope == OomScope::Global {
            self.metrics.races_lost.inc();
        }
        let fields = json!({
            "at_ns": at.0,
            "pid": pid,
            "cgroup_id": cgroup,
            "resident_bytes": resident.map(|bytes| bytes.0),
            "scope": name,
        });
        self.say(Level::Warn, &format!("the OOM killer chose process {pid} (scope {name})"), fields);
    }
}

fn parts(start: &StartParts) -> [(&'static str, Duration); 6] {
    [
        ("configuration", start.configuration),
        ("undo", start.undo),
        ("source", start.source),
        ("workloads", start.workloads),
        ("lock", start.lock),
        ("armed", start.armed),
    ]
}

fn refused(why: Refused) -> String {
    match why {
        Refused::Already => "that is under way already".into(),
        Refused::ByOther => "somebody else froze it".into(),
        Refused::Bounded => "the bound of victims a minute is used up".into(),
        Refused::Full => "there is no room for another".into(),
        Refused::Kernel(None) => "the kernel refused".into(),
        Refused::Kernel(Some(errno)) => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float; above 2^53 the last digits do not matter")]
fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::record::Cause;
    use plimsoll_policy::kubelet::{Amount, Conditions, QosClass};
    use plimsoll_policy::{
        Action, Case, Deficit, Growth, Key, MemoryReading, Outcome, Ranked, ThresholdStatus, Uid, Verdict, Why,
    };
    use plimsoll_units::CgroupId;
    use proptest::collection::vec;
    use proptest::prelude::*;

    type Lines = Arc<Mutex<Vec<(Level, String, Map<String, Value>)>>>;

    /// A teller whose log lines are kept.
    pub(in crate::reporter) fn sink(yaml: &str, kernel_log: Option<File>) -> (Sink, Lines) {
        let configuration = plimsoll_config::parse(yaml, "test.yaml").expect("it is in order");
        let lines = Lines::default();
        let kept = Arc::clone(&lines);
        let out = Box::new(move |level, message: &str, fields: &Map<String, Value>| {
            kept.lock().expect("no panic").push((level, message.to_owned(), fields.clone()));
            true
        });
        (Sink::new(configuration, Metrics::new(), out, kernel_log, MemInfo::open().ok()), lines)
    }

    const JSON: &str = "machine: {logFormat: json}";

    fn plan(shadow: bool) -> Record<'static> {
        Record::Plan {
            number: 7,
            cause: Cause::Line,
            crossed: Some(MonotonicNs(90)),
            awake: MonotonicNs(100),
            shadow,
            scope: Scope::Node,
            taken: MonotonicNs(110),
            made: MonotonicNs(120),
            outcome: Outcome::Evict,
            memory: Some(MemoryReading {
                capacity: Bytes::mib(1000),
                kubelet_available: Bytes::mib(90),
                mem_available: Some(Bytes::mib(80)),
            }),
            conditions: Conditions::of(|condition| condition == Condition::MemoryPressure),
            deficit: Some(Deficit { missing: mib(20), taken: mib(300), ..Deficit::default() }),
            is_futile: false,
            attribution: None,
            overlooked: 0,
            recheck_at: None,
        }
    }

    fn mib(mib: i64) -> Amount {
        Amount::whole(mib << 20)
    }

    fn ranked() -> Ranked {
        Ranked {
            workload: 3,
            key: Key { slot: 3, id: CgroupId(42) },
            owner: None,
            uid: Uid(42),
            qos: QosClass::BestEffort,
            is_measured: true,
            request: Some(Amount::ZERO),
            exceeds: true,
            priority: -5,
            usage: mib(300),
            over: mib(300),
            frees: mib(300),
            started: MonotonicNs(1),
            growth: Growth::default(),
            grew: false,
            returns: 0,
            verdict: Verdict::Evicted,
        }
    }

    fn parts(shadow: bool) -> [Record<'static>; 5] {
        let status = ThresholdStatus {
            line: Why::Threshold(0),
            at: mib(100),
            target: mib(100),
            available: mib(80),
            case: Case::Both,
            since: Some(MonotonicNs(110)),
            is_met: true,
        };
        let ranked = ranked();
        [
            plan(shadow),
            Record::PlanThreshold { status, acting: true },
            Record::PlanRanked { ranked, path: b"work.slice/a\nb" },
            Record::PlanAction(Action::Evict { workload: 3, why: Why::Threshold(0), grace_seconds: 1 }),
            Record::PlanEnd,
        ]
    }

    #[test]
    fn a_plan_is_one_line_with_every_number() {
        let (mut sink, lines) = sink(JSON, None);
        for record in &parts(false) {
            sink.report(record);
        }
        let lines = lines.lock().expect("no panic");
        let [(_, message, fields)] = &lines[..] else { panic!("{lines:?}") };
        assert!(
            message.contains("evict work.slice/a\\nb") && message.contains("hard threshold 100.0 MiB"),
            "{message}"
        );
        assert_eq!(fields["awake_ns"], 100);
        assert_eq!(fields["crossed_ns"], 90);
        assert_eq!(fields["crossed_to_awake_ns"], 10);
        assert_eq!((&fields["cause"], &fields["outcome"]), (&"line".into(), &"evict".into()));
        assert_eq!(fields["shadow"], false);
        assert_eq!(fields["readings"]["mem_available_bytes"], 80 << 20);
        assert_eq!(fields["line_bytes"], 100 << 20);
        assert_eq!(fields["deficit"]["missing"], 20 << 20);
        assert_eq!(fields["thresholds"][0]["case"], "both");
        assert_eq!(fields["actions"][0]["cgroup"], "work.slice/a\\nb");
        let candidate = &fields["candidates"][0];
        assert_eq!(candidate["cgroup"], "work.slice/a\\nb");
        assert_eq!(candidate["usage"], 300 << 20);
        assert_eq!((&candidate["priority"], &candidate["fate"]), (&(-5).into(), &"evicted".into()));
        assert!(!message.contains("shadow"));
        let text = sink.answers().metrics();
        assert!(text.contains("plimsoll_decisions_total{outcome=\"evict\"} 1"), "{text}");
        assert!(text.contains("plimsoll_candidates_total{fate=\"evicted\"} 1"), "{text}");
        assert!(text.contains("plimsoll_memory_pressure 1\n"), "{text}");
        for reading in ["kubelet", "kernel"] {
            assert!(text.contains(&format!("plimsoll_memory_available_bytes{{reading=\"{reading}\"}} ")), "{text}");
        }
    }

    #[test]
    fn a_shadow_says_so() {
        let (mut sink, lines) = sink("machine: {logFormat: text}", None);
        for record in &parts(true) {
            sink.report(record);
        }
        let lines = lines.lock().expect("no panic");
        assert!(lines[0].1.starts_with("shadow, not done: "), "{lines:?}");
        assert!(lines[0].2.is_empty(), "for people the line has every number already");
    }

    #[test]
    fn a_broken_plan_is_counted_and_only_a_whole_one_is_told() {
        let all = parts(false);
        for (left, reported) in [(&all[1..], 0), (&all[..1], 0), (&all[4..], 0)] {
            let (mut sink, lines) = sink(JSON, None);
            for record in left.iter().chain(&all) {
                sink.report(record);
            }
            assert_eq!(lines.lock().expect("no panic").len(), reported + 1);
            assert_eq!(sink.metrics.broken_plans.get(), 1);
        }
        // Who is evicted was lost: it is told as far as it is known.
        let (mut sink, lines) = sink(JSON, None);
        for record in all.iter().filter(|record| !matches!(record, Record::PlanRanked { .. })) {
            sink.report(record);
        }
        assert!(lines.lock().expect("no panic")[0].1.contains("evict ?"));
        assert_eq!(sink.metrics.broken_plans.get(), 1);
    }

    #[test]
    fn a_kill_is_a_line_in_the_kernels_log_with_the_figures_of_its_plan() {
        let file = tempfile::tempfile().expect("a temporary file");
        let (mut sink, _) = sink(JSON, Some(file.try_clone().expect("a second descriptor")));
        let path = b"work.slice/a\nb";
        let kill = |what| Record::Kill { plan: 7, path, usage: Some(Bytes::mib(3)), at: MonotonicNs(130), what };
        sink.report(&kill(Killed::Begun));
        for record in &parts(false) {
            sink.report(record);
        }
        sink.report(&kill(Killed::Emptied(Duration::from_millis(3), None)));
        let what = Braked::StillGrows(Bytes::mib(2));
        sink.report(&Record::Brake { path, at: MonotonicNs(140), what });
        sink.report(&kill(Killed::Begun));
        sink.report(&kill(Killed::Stuck(None)));
        let mut text = [0; 2048];
        let length = std::os::unix::fs::FileExt::read_at(&file, &mut text, 0).expect("readable");
        assert_eq!(
            std::str::from_utf8(&text[..length]).expect("text"),
            "<4>plimsoll: killed work.slice/a\\nb: usage 3.0 MiB, available 90.0 MiB as the kubelet reckons and \
             80.0 MiB as the kernel does, threshold 100.0 MiB\n\
             <4>plimsoll: killed work.slice/a\\nb: it grew 2.0 MiB while it was frozen\n"
        );
        let metrics = &sink.metrics;
        assert_eq!((metrics.kills.get(), metrics.stuck_victims.get(), metrics.kills_refused.get()), (2, 1, 0));
    }

    #[test]
    fn lost_lines_are_counted_and_said() {
        let (mut sink, lines) = sink(JSON, None);
        let out = std::mem::replace(&mut sink.out, Box::new(|_, _, _| false));
        for _ in 0..3 {
            sink.report(&Record::Trouble { text: "nobody reads this" });
        }
        sink.out = out;
        sink.report(&Record::Trouble { text: "this is read" });
        let lines = lines.lock().expect("no panic");
        assert_eq!(lines.iter().map(|line| line.2.get("lines").cloned()).collect::<Vec<_>>(), [Some(3.into()), None]);
        assert!(sink.metrics.text().contains("plimsoll_lost_log_lines_total 3\n"));
    }

    #[test]
    fn totals_that_somebody_else_keeps_are_taken_as_they_are() {
        let (mut sink, _) = sink(JSON, None);
        for count in [5, 7] {
            sink.report(&Record::Lost { ring: "events", count });
        }
        sink.queue("watch-queue", Losses { lost: 2, damaged: 0 });
        sink.queue("watch-queue", Losses { lost: 1, damaged: 4 });
        let text = sink.metrics.text();
        assert!(text.contains("plimsoll_lost_records_total{ring=\"events\"} 7"), "{text}");
        assert!(text.contains("plimsoll_lost_records_total{ring=\"watch-queue\"} 3"), "{text}");
        assert!(text.contains("plimsoll_malformed_records_total{side=\"agent\"} 4"), "{text}");
    }

    #[test]
    fn only_a_shortage_of_the_whole_machine_is_a_lost_race() {
        let (mut sink, _) = sink(JSON, None);
        for scope in [OomScope::Global, OomScope::Cgroup, OomScope::Cpuset, OomScope::NumaNode] {
            sink.report(&Record::Oom { at: MonotonicNs(1), pid: 2, cgroup: None, resident: None, scope });
        }
        let text = sink.metrics.text();
        assert!(text.contains("plimsoll_races_lost_total 1\n"), "{text}");
        assert!(text.contains("plimsoll_oom_kills_total{scope=\"cgroup\"} 1"), "{text}");
    }

    #[test]
    fn an_armed_core_makes_it_ready_and_a_new_one_forgets_the_old_ones_reasons() {
        let (mut sink, lines) = sink(JSON, None);
        assert!(!sink.answers().readiness().0);
        let start = StartParts::default();
        let armed = Record::Armed { pid: std::process::id(), source: "psi", shadow: None, workloads: 4, start };
        sink.report(&Record::SourceFailed { source: "ebpf", why: "hidden symbols" });
        sink.report(&Record::Hook { name: "fork", attached: false, how: "no such function" });
        assert!(!sink.answers().readiness().0);
        sink.report(&armed);
        let (ready, text) = sink.answers().readiness();
        assert!(ready && text.contains("not ebpf: hidden symbols"), "{text}");
        assert!(text.contains("without hook fork: no such function"), "{text}");
        assert!(sink.metrics.text().contains("plimsoll_hook_attached{hook=\"fork\"} 0\n"));
        assert_eq!(lines.lock().expect("no panic")[2].2["start"]["armed_ns"], 0);
        sink.report(&Record::Armed {
            pid: std::process::id(),
            source: "poll",
            shadow: Some("it was told to"),
            workloads: 4,
            start,
        });
        let text = "not ready: this agent does not act\nsource poll\nshadow: it was told to\n";
        assert_eq!(sink.answers().readiness(), (false, text.into()));
        let text = sink.metrics.text();
        assert!(text.contains("plimsoll_source{source=\"poll\"} 1\n") && !text.contains("psi"), "{text}");
        assert!(text.contains("plimsoll_acting 0\n") && !text.contains("fork"), "{text}");
        assert!(lines.lock().expect("no panic").last().expect("a line").1.contains("shadow"));
    }

    #[test]
    fn readiness_names_memory_that_nothing_watches() {
        let (mut sink, _) = sink("evictionHard: {nodefs.available: 5%}\n", None);
        let start = StartParts::default();
        sink.report(&Record::Armed { pid: 3, source: "psi", shadow: None, workloads: 4, start });
        let (ready, text) = sink.answers().readiness();
        let why = "no threshold on memory.available is configured: `run` never evicts for this machine's memory\n";
        assert!(ready && text.ends_with(why), "{text}");
    }

    #[test]
    fn readiness_ends_with_the_signs_of_life() {
        fn at_first() -> MonotonicNs {
            MonotonicNs(1)
        }
        fn later() -> MonotonicNs {
            at_first().after(Duration::from_secs(20))
        }
        let (mut sink, _) = sink(JSON, None);
        sink.clock = at_first;
        let start = StartParts::default();
        sink.report(&Record::Armed { pid: std::process::id(), source: "psi", shadow: None, workloads: 4, start });
        assert!(sink.answers().readiness().0);
        sink.clock = later;
        assert!(!sink.answers().readiness().0);
        let beat = Record::Beat { at: later(), workloads: 5, malformed: 6, brakes_applied: 7, brakes_refused: 8 };
        sink.report(&beat);
        assert!(sink.answers().readiness().0);
        sink.report(&Record::Inventory {
            without_row: 3,
            outside: Bytes(1000),
            descriptors: 25,
            kernel_memory: Some(Bytes(2000)),
            sample_cost: Duration::from_millis(250),
        });
        let text = sink.metrics.text();
        for line in [
            "plimsoll_workloads 5\n",
            "plimsoll_workloads_without_row 3\n",
            "plimsoll_memory_outside_workloads_bytes 1000\n",
            "plimsoll_workload_descriptors 25\n",
            "plimsoll_kernel_memory_bytes 2000\n",
            "plimsoll_sample_cost_seconds 0.25\n",
            "plimsoll_malformed_records_total{side=\"kernel\"} 6\n",
            "plimsoll_kernel_brakes_total{outcome=\"applied\"} 7\n",
            "plimsoll_kernel_brakes_total{outcome=\"refused\"} 8\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    proptest! {
        /// Whatever is lost, doubled or out of order, and whatever names it brings: nothing panics, and a line stays
        /// one.
        #[test]
        fn any_order_of_records_is_told(
            order in vec(0_usize..16, 0..40),
            name in vec(any::<u8>(), 0..40),
            format in prop_oneof![Just(LogFormat::Text), Just(LogFormat::Json)],
        ) {
            let (mut sink, lines) = sink("", None);
            sink.configuration.machine.log_format = format;
            let (at, path, start) = (MonotonicNs(5), &name[..], StartParts::default());
            for index in order {
                let kill = |what| Record::Kill { plan: 7, path, usage: None, at, what };
                let record = match index {
                    part @ 0..=4 => parts(false)[part],
                    5 => Record::PlanRanked { ranked: ranked(), path },
                    6 => kill(Killed::Begun),
                    7 => kill(Killed::Refused(Refused::Kernel(Some(-1)))),
                    8 => Record::Brake { path, at, what: Braked::StillGrows(Bytes(1)) },
                    9 => Record::Suspect { pid: 1, name: path, resident: Bytes(u64::MAX), huge_pages: Bytes(1) },
                    10 => Record::Armed { pid: 1, source: "psi", shadow: None, workloads: 0, start },
                    11 => Record::MemoryBack { crossed: Some(MonotonicNs(9)), at, past_threshold: Bytes(u64::MAX) },
                    12 => Record::Failed { what: "arm the lines", errno: Some(i32::MIN) },
                    13 => Record::Lost { ring: "events", count: u64::MAX },
                    14 => Record::Undone { thawed: 1, continued: 2, failed: 3, kills: 4 },
                    _ => Record::Trouble { text: "a\nb" },
                };
                sink.report(&record);
            }
            for (level, message, fields) in lines.lock().expect("no panic").iter() {
                let line = crate::log::line(format, std::time::SystemTime::UNIX_EPOCH, *level, message, fields);
                prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
            }
            prop_assert!(sink.answers().metrics().ends_with("# EOF\n"));
        }
    }
}
