//! From records to log lines, kernel log lines and metrics.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::time::Duration;

use plimsoll_config::{Configuration, LogFormat};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::{Plan, Scope, text};
use plimsoll_units::{Bytes, MonotonicNs};
use serde_json::{Map, Value, json};

use super::health::Health;
use super::metrics::{Metrics, count, store};
use crate::log::{self, Level, escaped};
use crate::record::{Braked, Killed, OomScope, Record, Refused, StartParts};

/// A plan of which not all parts have come.
struct Draft {
    plan: Plan,
    fields: Map<String, Value>,
    /// Candidates' paths, escaped.
    paths: BTreeMap<u32, String>,
}

/// Where lines of the log go.
type Out = Box<dyn FnMut(Level, &str, &Map<String, Value>) + Send>;

/// Tells records, and knows what was told.
pub(super) struct Teller {
    configuration: Configuration,
    /// Writes a line of the log; replaced in tests.
    out: Out,
    kernel_log: Option<File>,
    pub(super) metrics: Metrics,
    pub(super) health: Health,
    draft: Option<Draft>,
    /// Readings and line of the last plan, for what follows from it.
    last: Option<String>,
}

impl Teller {
    pub(super) fn new(configuration: Configuration) -> Self {
        let format = configuration.log_format;
        let out = Box::new(move |level, message: &str, fields: &Map<String, Value>| {
            log::write(format, level, message, fields);
        });
        let kernel_log = OpenOptions::new().write(true).open("/dev/kmsg");
        let mut teller = Self::with(configuration, out, None);
        match kernel_log {
            Ok(file) => teller.kernel_log = Some(file),
            Err(error) => {
                let message = format!("kills are not told in the kernel's log: cannot open /dev/kmsg: {error}");
                teller.say(Level::Warn, &message, json!({}));
            }
        }
        teller
    }

    fn with(configuration: Configuration, out: Out, kernel_log: Option<File>) -> Self {
        Self {
            configuration,
            out,
            kernel_log,
            metrics: Metrics::new(),
            health: Health::default(),
            draft: None,
            last: None,
        }
    }

    /// Readiness now, and its reasons.
    pub(super) fn readiness(&self) -> (bool, String) {
        self.health.judge(monotonic())
    }

    /// A record that was none.
    pub(super) fn malformed(&mut self) {
        count(&self.metrics.malformed_records, ("side", "agent"));
    }

    /// How a queue fares.
    pub(super) fn queue(&mut self, name: &str, dropped: u64, damaged: u64) {
        store(&self.metrics.lost_records, ("ring", name), dropped.saturating_add(damaged));
    }

    /// A line of the log; `fields` is an object.
    pub(super) fn say(&mut self, level: Level, message: &str, fields: Value) {
        let Value::Object(fields) = fields else { return };
        (self.out)(level, message, &fields);
    }

    /// Tells one record.
    pub(super) fn tell(&mut self, record: &Record<'_>) {
        match *record {
            Record::Plan { .. } | Record::PlanJudged { .. } | Record::PlanRanked { .. } | Record::PlanAction(_) => {
                self.draft(record);
            }
            Record::PlanEnd => self.plan(),
            Record::Crossed { crossed, awake } => {
                self.metrics.crossed_to_awake.observe(awake.since(crossed).as_secs_f64());
            }
            Record::Brake { path, at, what } => self.brake(path, at, what),
            Record::Kill { plan, path, usage, at, what } => self.kill(plan, path, usage, at, what),
            Record::Stopped { crossed, at, past_line } => {
                if let Some(crossed) = crossed {
                    self.metrics.crossed_to_stopped.observe(at.since(crossed).as_secs_f64());
                }
                self.metrics.past_line.observe(float(past_line.0));
            }
            Record::MemoryBack { crossed, at, past_line } => {
                let took = crossed.map(|crossed| at.since(crossed));
                if let Some(took) = took {
                    self.metrics.crossed_to_memory_back.observe(took.as_secs_f64());
                }
                let message = match took {
                    Some(took) => format!("memory is above the line again, {took:?} after it was crossed"),
                    None => "memory is above the line again".into(),
                };
                let fields =
                    json!({"at_ns": at.0, "crossed_ns": crossed.map(|at| at.0), "past_line_bytes": past_line.0});
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
            | Record::Fallen { .. }
            | Record::Hook { .. }
            | Record::Undone { .. }
            | Record::Beat { .. }
            | Record::Lost { .. }
            | Record::Program { .. }
            | Record::Suspect { .. }
            | Record::Trouble { .. } => self.slow(record),
        }
    }

    /// Records of the scout.
    fn slow(&mut self, record: &Record<'_>) {
        match *record {
            Record::Armed { pid, source, shadow, workloads, start } => {
                self.armed(pid, source, shadow, workloads, start);
            }
            Record::Fallen { source, why } => {
                self.health.fallen.push((source.into(), why.into()));
                let message = format!("source {source} was not taken: {why}");
                self.say(Level::Warn, &message, json!({"source": source}));
            }
            Record::Hook { name, attached, how } => {
                self.metrics.hook_attached.get_or_create(&[("hook", name.into())]).set(attached.into());
                if attached {
                    self.say(Level::Info, &format!("hook {name} is attached: {how}"), json!({"hook": name}));
                } else {
                    self.health.missing.push((name.into(), how.into()));
                    self.say(Level::Warn, &format!("hook {name} is missing: {how}"), json!({"hook": name}));
                }
            }
            Record::Undone { thawed, continued, failed, kills } => {
                let fields = json!({"thawed": thawed, "continued": continued, "failed": failed, "kills": kills});
                let level = if failed > 0 { Level::Warn } else { Level::Info };
                self.say(level, "undid what an earlier process left", fields);
            }
            Record::Beat { at, workloads, malformed, brakes_applied, brakes_refused } => {
                self.health.beat = Some(at);
                self.metrics.workloads.set(workloads.into());
                store(&self.metrics.malformed_records, ("side", "kernel"), malformed);
                store(&self.metrics.kernel_brakes, ("outcome", "applied"), brakes_applied);
                store(&self.metrics.kernel_brakes, ("outcome", "refused"), brakes_refused);
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
            Record::Suspect { pid, name, resident } => {
                let name = escaped(name);
                let message = format!("process {pid} ({name}), outside all workloads, holds {resident}");
                let fields = json!({"pid": pid, "name": name, "resident_bytes": resident.0});
                self.say(Level::Warn, &message, fields);
            }
            Record::Trouble { text } => self.say(Level::Warn, text, json!({})),
            _ => {}
        }
    }

    fn armed(&mut self, pid: u32, source: &str, shadow: Option<&str>, workloads: u32, start: StartParts) {
        if let Some(before) = self.health.source.replace(source.into()) {
            self.metrics.source.get_or_create(&[("source", before)]).set(0);
        }
        self.health = Health {
            source: self.health.source.take(),
            shadow: shadow.map(Into::into),
            beat: Some(monotonic()),
            ..Health::default()
        };
        self.metrics.source.get_or_create(&[("source", source.into())]).set(1);
        self.metrics.acting.set(shadow.is_none().into());
        self.metrics.workloads.set(workloads.into());
        for (part, took) in parts(&start) {
            self.metrics.core_start.get_or_create(&[("part", part.into())]).set(took.as_secs_f64());
        }
        let parts: Map<String, Value> =
            parts(&start).into_iter().map(|(part, took)| (format!("{part}_ns"), json!(took.as_nanos()))).collect();
        let does = shadow.map_or_else(|| "acts".to_owned(), |why| format!("shadows: {why}"));
        let message = format!("armed with source {source} over {workloads} workloads; {does}");
        self.say(Level::Info, &message, json!({"core_pid": pid, "source": source, "start": parts}));
    }

    fn draft(&mut self, record: &Record<'_>) {
        match *record {
            Record::Plan {
                number,
                cause,
                crossed,
                awake,
                shadow,
                scope,
                taken,
                made,
                outcome,
                readings,
                conditions,
                deficit,
                attribution,
                overlooked,
            } => {
                let mut plan = Plan::default();
                plan.scope = scope;
                plan.taken = taken;
                plan.made = made;
                plan.outcome = outcome;
                plan.readings = readings;
                plan.conditions = conditions;
                plan.deficit = deficit;
                plan.attribution = attribution;
                plan.overlooked = overlooked;
                let fields = json!({
                    "plan": number,
                    "cause": cause,
                    "crossed_ns": crossed.map(|at| at.0),
                    "awake_ns": awake.0,
                    "taken_ns": taken.0,
                    "shadow": shadow,
                    "outcome": outcome,
                    "scope": scope,
                    "readings": readings,
                    "conditions": conditions,
                    "deficit": deficit,
                    "attribution": attribution,
                });
                let Value::Object(fields) = fields else { return };
                self.draft = Some(Draft { plan, fields, paths: BTreeMap::new() });
            }
            Record::PlanJudged { judged, acting } => {
                let Some(draft) = &mut self.draft else { return };
                if acting {
                    draft.plan.acting = u32::try_from(draft.plan.judged.len()).ok();
                }
                draft.plan.judged.push(judged);
            }
            Record::PlanRanked { ranked, path } => {
                let Some(draft) = &mut self.draft else { return };
                draft.paths.insert(ranked.candidate, escaped(path));
                draft.plan.ranked.push(ranked);
            }
            Record::PlanAction(action) => {
                let Some(draft) = &mut self.draft else { return };
                draft.plan.actions.push(action);
            }
            _ => {}
        }
    }

    /// A plan is complete; one whose beginning was lost is not told.
    fn plan(&mut self) {
        let Some(Draft { plan, mut fields, paths }) = self.draft.take() else { return };
        let name = |candidate: u32| paths.get(&candidate).map_or("?", String::as_str).to_owned();
        let line = text::line(&self.configuration.policy, &plan, name).to_string();
        count(&self.metrics.decisions, ("outcome", &outcome_name(&plan)));
        if let (Some(readings), Scope::Node) = (plan.readings, plan.scope) {
            let set = |reading: &str, bytes: Bytes| {
                let gauge = self.metrics.available.get_or_create(&[("reading", reading.into())]);
                gauge.set(i64::try_from(bytes.0).unwrap_or(i64::MAX));
            };
            set("kubelet", readings.kubelet);
            readings.honest.into_iter().for_each(|honest| set("kernel", honest));
            self.metrics.memory_pressure.set(plan.conditions.memory_pressure.into());
        }
        self.last = Some(line.clone());
        let shadow = fields.get("shadow") == Some(&Value::Bool(true));
        let message = if shadow { format!("shadow, not done: {line}") } else { line };
        if self.configuration.log_format == LogFormat::Text {
            // The line has every number already.
            return self.say(Level::Info, &message, json!({}));
        }
        let mut candidates = Vec::new();
        for ranked in &plan.ranked {
            let Ok(Value::Object(mut one)) = serde_json::to_value(ranked) else { continue };
            one.insert("path".into(), name(ranked.candidate).into());
            candidates.push(Value::Object(one));
        }
        fields.insert("thresholds".into(), json!(plan.judged));
        fields.insert("acting".into(), json!(plan.acting));
        fields.insert("actions".into(), json!(plan.actions));
        fields.insert("candidates".into(), Value::Array(candidates));
        self.say(Level::Info, &message, Value::Object(fields));
    }

    fn brake(&mut self, path: &[u8], at: MonotonicNs, what: Braked) {
        let path = escaped(path);
        let (outcome, message) = match what {
            Braked::Frozen => ("frozen", format!("{path} stands still")),
            Braked::Thawed(held) => ("thawed", format!("{path} goes on after {held:?}")),
            Braked::StillGrows(grown) => ("still-grows", format!("{path} was told to stand still and grew {grown}")),
            Braked::Gone => ("gone", format!("{path} was removed while it stood still")),
            Braked::Refused(why) => ("refused", format!("{path} was not frozen: {}", refused(why))),
            Braked::ThawFailed => ("thaw-failed", format!("{path} could not be thawed; it is tried again")),
        };
        count(&self.metrics.brakes, ("outcome", outcome));
        let level = if matches!(what, Braked::ThawFailed | Braked::Refused(_)) { Level::Warn } else { Level::Info };
        self.say(level, &message, json!({"cgroup": path, "brake": outcome, "at_ns": at.0}));
    }

    fn kill(&mut self, plan: u64, path: &[u8], usage: Option<Bytes>, at: MonotonicNs, what: Killed) {
        let path = escaped(path);
        let (outcome, message) = match what {
            Killed::Begun => ("begun", format!("killed {path}")),
            Killed::Asked(grace) => ("asked", format!("{path} was asked to end within {grace:?}")),
            Killed::Gone => ("gone", format!("{path} was gone before it was killed")),
            Killed::Emptied(took, _) => ("emptied", format!("{path} is empty after {took:?}")),
            Killed::Stuck(_) => ("stuck", format!("{path} does not end; its memory is not counted on")),
            Killed::Refused(why) => ("refused", format!("{path} was not killed: {}", refused(why))),
        };
        count(&self.metrics.kills, ("outcome", outcome));
        if what == Killed::Begun {
            let usage = usage.map_or_else(|| "usage unknown".to_owned(), |usage| format!("usage {usage}"));
            let why = self.last.clone().unwrap_or_else(|| "it grew while it was told to stand still".into());
            self.kernel_line(&format!("killed {path} ({usage}): {why}"));
        }
        let left = match what {
            Killed::Emptied(_, left) | Killed::Stuck(left) => left,
            _ => None,
        };
        let level = if matches!(what, Killed::Stuck(_) | Killed::Refused(_)) { Level::Warn } else { Level::Info };
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

    /// One line in the kernel's own log, beside what the OOM killer writes there.
    fn kernel_line(&mut self, message: &str) {
        /// Longer ones are cut by the kernel.
        const MOST: usize = 900;
        let mut end = message.len().min(MOST);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        if let Some(file) = &mut self.kernel_log {
            // Priority 4 is a warning. One write is one line.
            let _ = file.write_all(format!("<4>plimsoll: {}\n", &message[..end]).as_bytes());
        }
    }
}

/// The outcome's name for a label, from a closed set.
fn outcome_name(plan: &Plan) -> String {
    let text = format!("{:?}", plan.outcome);
    text.split('(').next().unwrap_or_default().to_ascii_lowercase()
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
    use plimsoll_policy::{Action, Case, Conditions, Deficit, Fate, Judged, Key, Outcome, Ranked, Readings};
    use plimsoll_units::CgroupId;
    use std::sync::{Arc, Mutex};

    type Lines = Arc<Mutex<Vec<(Level, String, Map<String, Value>)>>>;

    /// A teller whose log lines are kept.
    pub(in crate::reporter) fn teller(yaml: &str, kernel_log: Option<File>) -> (Teller, Lines) {
        let configuration = plimsoll_config::parse(yaml, "test.yaml").expect("it is in order");
        let lines = Lines::default();
        let kept = Arc::clone(&lines);
        let out = Box::new(move |level, message: &str, fields: &Map<String, Value>| {
            kept.lock().expect("no panic").push((level, message.to_owned(), fields.clone()));
        });
        (Teller::with(configuration, out, kernel_log), lines)
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
            readings: Some(Readings {
                capacity: Bytes::mib(1000),
                kubelet: Bytes::mib(90),
                honest: Some(Bytes::mib(80)),
            }),
            conditions: Conditions { memory_pressure: true },
            deficit: Some(Deficit { missing: Bytes::mib(20), coming: Bytes::ZERO, taken: Bytes::mib(300) }),
            attribution: None,
            overlooked: 0,
        }
    }

    fn parts(shadow: bool) -> [Record<'static>; 5] {
        let judged = Judged {
            threshold: 0,
            line: Bytes::mib(100),
            target: Bytes::mib(100),
            case: Case::Both,
            below_for: Duration::ZERO,
            met: true,
        };
        let ranked = Ranked {
            candidate: 3,
            key: Key { slot: 3, id: CgroupId(42) },
            usage: Some(Bytes::mib(300)),
            reservation: Bytes::ZERO,
            exceeds: true,
            priority: -5,
            started: MonotonicNs(1),
            grew: None,
            fate: Fate::Evicted,
        };
        [
            plan(shadow),
            Record::PlanJudged { judged, acting: true },
            Record::PlanRanked { ranked, path: b"work.slice/a\nb" },
            Record::PlanAction(Action::Evict { candidate: 3, threshold: 0, grace: Duration::ZERO }),
            Record::PlanEnd,
        ]
    }

    #[test]
    fn a_plan_is_one_line_with_every_number() {
        let (mut teller, lines) = teller(JSON, None);
        for record in &parts(false) {
            teller.tell(record);
        }
        let lines = lines.lock().expect("no panic");
        let [(_, message, fields)] = &lines[..] else { panic!("{lines:?}") };
        assert!(message.contains("evict work.slice/a\\nb") && message.contains("hard line 100.0 MiB"), "{message}");
        assert_eq!(fields["awake_ns"], 100);
        assert_eq!(fields["crossed_ns"], 90);
        assert_eq!(fields["readings"]["honest"], 80 << 20);
        assert_eq!(fields["candidates"][0]["path"], "work.slice/a\\nb");
        assert_eq!(fields["candidates"][0]["usage"], 300 << 20);
        assert!(!message.contains("shadow"));
        let text = teller.metrics.text();
        assert!(text.contains("plimsoll_decisions_total{outcome=\"evict\"} 1"), "{text}");
        assert!(text.contains("plimsoll_memory_available_bytes{reading=\"kernel\"} 83886080"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn a_shadow_says_so() {
        let (mut teller, lines) = teller("machine: {logFormat: text}", None);
        for record in &parts(true) {
            teller.tell(record);
        }
        let lines = lines.lock().expect("no panic");
        assert!(lines[0].1.starts_with("shadow, not done: "), "{lines:?}");
        assert!(lines[0].2.is_empty(), "for people the line has every number already");
    }

    #[test]
    fn a_plan_of_which_the_beginning_was_lost_is_not_told() {
        let (mut teller, lines) = teller(JSON, None);
        for record in &parts(false)[1..] {
            teller.tell(record);
        }
        assert!(lines.lock().expect("no panic").is_empty());
    }

    #[test]
    fn a_kill_is_a_line_in_the_kernels_log_and_stays_one() {
        let file = tempfile::tempfile().expect("a temporary file");
        let (mut teller, _) = teller(JSON, Some(file.try_clone().expect("a second descriptor")));
        for record in &parts(false) {
            teller.tell(record);
        }
        let kill = |what| Record::Kill { plan: 7, path: b"work.slice/a\nb", usage: None, at: MonotonicNs(130), what };
        teller.tell(&kill(Killed::Begun));
        teller.tell(&kill(Killed::Emptied(Duration::from_millis(3), None)));
        let mut text = [0; 2048];
        let length = std::os::unix::fs::FileExt::read_at(&file, &mut text, 0).expect("readable");
        let text = std::str::from_utf8(&text[..length]).expect("text");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("<4>plimsoll: killed work.slice/a\\nb (usage unknown): "), "{text}");
        let metrics = teller.metrics.text();
        assert!(metrics.contains("plimsoll_kills_total{outcome=\"begun\"} 1"), "{metrics}");
        assert!(metrics.contains("plimsoll_kills_total{outcome=\"emptied\"} 1"), "{metrics}");
    }

    #[test]
    fn totals_that_somebody_else_keeps_are_taken_as_they_are() {
        let (mut teller, _) = teller(JSON, None);
        for count in [5, 7] {
            teller.tell(&Record::Lost { ring: "events", count });
        }
        teller.queue("watch-queue", 2, 1);
        let text = teller.metrics.text();
        assert!(text.contains("plimsoll_lost_records_total{ring=\"events\"} 7"), "{text}");
        assert!(text.contains("plimsoll_lost_records_total{ring=\"watch-queue\"} 3"), "{text}");
    }

    #[test]
    fn only_a_shortage_of_the_whole_machine_is_a_lost_race() {
        let (mut teller, _) = teller(JSON, None);
        for scope in [OomScope::Global, OomScope::Cgroup, OomScope::Cpuset, OomScope::NumaNode] {
            teller.tell(&Record::Oom { at: MonotonicNs(1), pid: 2, cgroup: None, resident: None, scope });
        }
        let text = teller.metrics.text();
        assert!(text.contains("plimsoll_races_lost_total 1\n"), "{text}");
        assert!(text.contains("plimsoll_oom_kills_total{scope=\"cgroup\"} 1"), "{text}");
    }

    #[test]
    fn an_armed_core_makes_it_ready_and_a_new_one_forgets_the_old_ones_reasons() {
        let (mut teller, lines) = teller(JSON, None);
        assert!(!teller.readiness().0);
        let armed = Record::Armed { pid: 3, source: "psi", shadow: None, workloads: 4, start: StartParts::default() };
        teller.tell(&armed);
        teller.tell(&Record::Fallen { source: "ebpf", why: "hidden symbols" });
        let (ready, text) = teller.readiness();
        assert!(ready && text.contains("not ebpf: hidden symbols"), "{text}");
        assert_eq!(lines.lock().expect("no panic")[0].2["start"]["armed_ns"], 0);
        teller.tell(&armed);
        assert!(!teller.readiness().1.contains("hidden symbols"));
    }
}
