mod containers;
mod names;
mod orphaned;

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::fields::variant;
use crate::log::tests::logged;
use crate::names::{NAME_MESSAGE, NameMessage};
use crate::record::{
    Braked, Cause, DiskRecord, EnforcementRecord, HealthRecord, Held, HoldEnd, Killed, MachineRecord, OomScope,
    Refused, StartParts, StartupRecord, ThresholdRecord,
};
use crate::witnessed::{Ended, EndedBy, Witnessed};
use plimsoll_config::LogFormat;
use plimsoll_inventory::{RemovalError, RemovalResult};
use plimsoll_policy::kubelet::{Amount, Condition, Conditions, QosClass, Reclaim, Signal};
use plimsoll_policy::{
    Action, Attribution, Case, Deficit, Growth, Key, MemoryReading, NoVictim, Outcome, Ranked, ReclaimOrder, Scope,
    Stage, ThresholdStatus, Uid, Verdict, Why,
};
use plimsoll_units::{Bytes, CgroupId};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use tracing::level_filters::LevelFilter;

fn reporter(yaml: &str, kernel_log: Option<File>) -> Reporter {
    let configuration = plimsoll_config::parse(yaml, "test.yaml").expect("it is in order");
    Reporter::new(configuration, Metrics::new(true), kernel_log, MemInfo::open().ok())
}

/// The lines that these records give, in JSON.
fn lines(reporter: &mut Reporter, records: &[Record<'_>]) -> Vec<Value> {
    let lines = logged(LogFormat::Json, LevelFilter::INFO, |_| {
        for record in records {
            reporter.report(record);
        }
    });
    lines.iter().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

fn text_of(line: &Value) -> &str {
    line["message"].as_str().expect("each line has a message")
}

fn mib(mib: i64) -> Amount {
    Amount::whole(mib << 20)
}

fn begin(shadow: bool) -> PlanRecord<'static> {
    PlanRecord::Begin {
        number: 7,
        cause: Cause::Threshold,
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
        of_node: Conditions::of(|condition| condition == Condition::MemoryPressure),
        deficit: Some(Deficit { missing: mib(20), taken: mib(300), ..Deficit::default() }),
        is_futile: false,
        attribution: None,
        overlooked: 0,
        recheck_at: None,
    }
}

fn ranked() -> Ranked {
    Ranked {
        workload: 3,
        key: Key { slot: 3, id: CgroupId(42) },
        uid: Uid(42),
        owner: None,
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

/// A plan in parts.
fn plan(shadow: bool) -> [Record<'static>; 5] {
    let status = ThresholdStatus {
        why: Why::Threshold(0),
        at: mib(100),
        target: mib(100),
        available: mib(80),
        case: Case::Both,
        since: Some(MonotonicNs(110)),
        is_met: true,
    };
    [
        begin(shadow),
        PlanRecord::Threshold { status, acting: true },
        PlanRecord::Ranked { ranked: ranked(), path: b"work.slice/a\nb" },
        PlanRecord::Action(Action::Evict { workload: 3, why: Why::Threshold(0), grace_seconds: 1 }),
        PlanRecord::End,
    ]
    .map(Record::from)
}

fn armed(source: &'static str, shadow: Option<&'static str>) -> Record<'static> {
    let (pid, start) = (std::process::id(), StartParts::default());
    StartupRecord::Armed { pid, source, shadow, workloads: 4, start }.into()
}

#[test]
fn a_plan_is_one_line_with_every_number() {
    let mut reporter = reporter("", None);
    let lines = lines(&mut reporter, &plan(false));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let message = text_of(line);
    assert!(message.contains("evict work.slice/a\\nb") && message.contains("hard threshold 100.0 MiB"), "{message}");
    assert!(!message.contains("shadow"), "{message}");
    for (pointer, expected) in [
        ("/level", Value::from("info")),
        ("/awake_ns", 100.into()),
        ("/crossed_ns", 90.into()),
        ("/crossed_to_awake_ns", 10.into()),
        ("/cause", "threshold".into()),
        ("/outcome", "evict".into()),
        ("/shadow", false.into()),
        ("/readings/mem_available_bytes", (80 << 20).into()),
        ("/threshold_bytes", (100 << 20).into()),
        ("/deficit/missing", (20 << 20).into()),
        ("/thresholds/0/case", "both".into()),
        ("/actions/0/cgroup", "work.slice/a\\nb".into()),
        ("/candidates/0/cgroup", "work.slice/a\\nb".into()),
        ("/candidates/0/usage", (300 << 20).into()),
        ("/candidates/0/priority", (-5).into()),
        ("/candidates/0/verdict", "evicted".into()),
    ] {
        assert_eq!(line.pointer(pointer), Some(&expected), "{pointer} of {line}");
    }
    let text = reporter.answers().metrics();
    for line in [
        "plimsoll_decisions_total{outcome=\"evict\"} 1\n",
        "plimsoll_candidates_total{verdict=\"evicted\"} 1\n",
        "plimsoll_memory_pressure 1\n",
        "plimsoll_memory_available_bytes{reading=\"kubelet\"} ",
        "plimsoll_memory_available_bytes{reading=\"kernel\"} ",
        "plimsoll_signal_read_timestamp_seconds{eviction_signal=\"memory.available\"} ",
        "plimsoll_signal_read_cost_seconds{eviction_signal=\"memory.available\"} ",
        "plimsoll_swap_bytes{what=\"total\"} ",
        "plimsoll_swap_bytes{what=\"free\"} ",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

/// The names of all members of a value.
fn members(of: &Value, names: &mut Vec<String>) {
    match of {
        Value::Object(object) => object.iter().for_each(|(name, value)| {
            names.push(name.clone());
            members(value, names);
        }),
        Value::Array(values) => values.iter().for_each(|value| members(value, names)),
        _ => {}
    }
}

/// All of an enumeration, which no variant can be added to without one here.
macro_rules! all {
    ($of:ident: $($variant:ident),* $(; $other:pat)?) => {{
        let _ = |it: $of| match it { $($of::$variant => (),)* $($other => (),)? };
        [$($of::$variant),*]
    }};
}

#[test]
fn fields_and_outcomes_of_the_log_are_documented() {
    let documented = include_str!("../../../docs/log.md");
    let mut names: Vec<String> = Vec::new();
    let mut records = plan(false).to_vec();
    let Record::Plan(PlanRecord::Begin { attribution, .. }) = &mut records[0] else { panic!("a plan begins") };
    *attribution = Some(Attribution::default());
    let order = ReclaimOrder { order: 1, stage: Stage::Memory(mib(1)), why: Why::Threshold(0) };
    records.insert(3, PlanRecord::Action(Action::Reclaim(order)).into());
    let lines = lines(&mut reporter("", None), &records);
    members(&lines[0], &mut names);
    // Those of conditions are keys there.
    names.retain(|name| !name.starts_with(|first: char| first.is_ascii_uppercase()));
    assert!(names.len() > 60, "{names:?}");
    let outcomes = all!(Outcome: NoPressure, NotObserved, NoLayout, NoStatistics, OverLimits, InGrace, Stale, Reclaiming,
        Relieved, CacheInUse, ComingBack, Evict, RateLimited, Unattributed; Outcome::NoVictim(_));
    let reasons = all!(NoVictim: NoCandidates, AllProtected, NoStatistics, NothingToFree, TooLittle, NoUsableRanking,
        OnlyLoops);
    let causes = all!(Cause: Threshold, Reclaim, Psi, Poll, Timer, FollowUp);
    let holds = all!(HoldEnd: Recorded, Over, Gone, NotActing);
    names.extend(outcomes.iter().map(|outcome| variant(outcome).0).chain(["no-victim".to_owned()]));
    names.extend(reasons.iter().map(|reason| variant(reason).0));
    names.extend(causes.iter().map(|cause| variant(cause).0));
    names.extend(holds.map(|end| end.name().to_owned()));
    let (bytes, refused) = (Bytes(1), Refused::Full);
    let brakes = [
        Braked::Frozen,
        Braked::Stopped(1),
        Braked::Thawed(Duration::ZERO),
        Braked::StillGrows(bytes),
        Braked::Gone,
        Braked::Refused(refused),
        Braked::ThawFailed,
    ];
    let kills = [
        Killed::Begun,
        Killed::Asked(Duration::ZERO),
        Killed::Gone,
        Killed::Again(bytes),
        Killed::Emptied(Duration::ZERO, None),
        Killed::Stuck(None),
        Killed::Refused(refused),
    ];
    let held = [Held::Begun(Duration::ZERO), Held::Ended(HoldEnd::Over, Duration::ZERO), Held::Refused(refused)];
    let done = brakes.map(Braked::name).into_iter().chain(kills.map(Killed::name)).chain(held.map(Held::name));
    names.extend(done.map(str::to_owned));
    for name in names {
        let is_documented = ["", "[]"].iter().any(|list| documented.contains(&format!("`{name}{list}`")));
        assert!(is_documented, "{name} is not in agent/docs/log.md");
    }
}

#[test]
fn a_plan_for_people_is_its_message_and_says_that_it_is_not_carried_out() {
    let mut reporter = reporter("", None);
    let lines = logged(LogFormat::Text, LevelFilter::INFO, |_| {
        for record in &plan(true) {
            reporter.report(record);
        }
    });
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("info: shadow, not done: ") && !lines[0].contains("awake_ns"), "{lines:?}");
}

#[test]
fn a_broken_plan_is_counted_and_only_a_whole_one_is_reported() {
    let all = plan(false);
    for left in [&all[1..], &all[..1], &all[4..]] {
        let mut reporter = reporter("", None);
        assert_eq!(lines(&mut reporter, &[left, &all].concat()).len(), 1);
        assert_eq!(reporter.metrics.metrics.broken_plans.get(), 1);
    }
    // The name of the workload that is evicted was lost: the plan is reported as far as it is known.
    let mut reporter = reporter("", None);
    let is_ranked = |record: &Record<'_>| matches!(record, Record::Plan(PlanRecord::Ranked { .. }));
    let left: Vec<Record<'_>> = all.into_iter().filter(|record| !is_ranked(record)).collect();
    assert!(text_of(&lines(&mut reporter, &left)[0]).contains("evict ?"));
    assert_eq!(reporter.metrics.metrics.broken_plans.get(), 1);
}

#[test]
fn a_kill_is_a_line_in_the_kernels_log_with_the_figures_of_its_plan() {
    let file = tempfile::tempfile().expect("a temporary file");
    let mut reporter = reporter("", Some(file.try_clone().expect("a second descriptor")));
    let path = b"work.slice/a\nb";
    let usage = Some(Bytes::mib(3));
    let kill = |what| EnforcementRecord::Kill { plan: 7, path, usage, at: MonotonicNs(130), what }.into();
    reporter.report(&kill(Killed::Begun));
    for record in &plan(false) {
        reporter.report(record);
    }
    reporter.report(&kill(Killed::Emptied(Duration::from_millis(3), None)));
    // What grows while it is frozen is killed for the figures of a plan, as any other.
    let what = Braked::StillGrows(Bytes::mib(2));
    reporter.report(&EnforcementRecord::Brake { path, at: MonotonicNs(140), what }.into());
    reporter.report(&kill(Killed::Begun));
    for record in &plan(false) {
        reporter.report(record);
    }
    reporter.report(&kill(Killed::Stuck(None)));
    let mut text = [0; 2048];
    let length = std::os::unix::fs::FileExt::read_at(&file, &mut text, 0).expect("readable");
    let line = "<4>plimsoll: killed work.slice/a\\nb: usage 3.0 MiB, available 90.0 MiB by the kubelet's formula \
                and 80.0 MiB by the kernel's estimate, threshold 100.0 MiB\n";
    assert_eq!(std::str::from_utf8(&text[..length]).expect("text"), line.repeat(2));
    let metrics = &reporter.metrics.metrics;
    assert_eq!((metrics.kills.get(), metrics.stuck_victims.get(), metrics.kills_refused.get()), (2, 1, 0));
}

#[test]
fn a_pod_that_is_held_down_is_reported_with_why_that_ends_and_counted_until_another_core_begins() {
    let mut reporter = reporter("", None);
    let (path, at, long) = (&b"kubepods.slice/a"[..], MonotonicNs(5), Duration::from_mins(5));
    let hold = |what| EnforcementRecord::Hold { path, at, what }.into();
    let number = |count| EnforcementRecord::HeldDown { count }.into();
    let records = [
        hold(Held::Begun(long)),
        number(2),
        hold(Held::Ended(HoldEnd::Recorded, Duration::from_secs(31))),
        number(1),
        hold(Held::Refused(Refused::ByOther)),
    ];
    let lines = lines(&mut reporter, &records);
    let fields: Vec<_> = lines.iter().map(|line| [&line["hold"], &line["reason"], &line["level"]]).collect();
    let none = &Value::Null;
    let [begun, ended, refused, recorded] = ["begun", "ended", "refused", "recorded"].map(Value::from);
    let [info, warn] = ["info", "warn"].map(Value::from);
    assert_eq!(fields, [[&begun, none, &info], [&ended, &recorded, &info], [&refused, none, &warn]]);
    assert!(text_of(&lines[0]).contains("is held down for 300s at most"), "{}", lines[0]);
    assert!(reporter.answers().metrics().contains("plimsoll_pods_held_down 1\n"));
    reporter.report(&armed("psi", None));
    assert!(reporter.answers().metrics().contains("plimsoll_pods_held_down 0\n"), "its core has undone that");
}

#[test]
fn totals_of_the_kernel_are_set_and_losses_of_a_queue_are_added() {
    let mut reporter = reporter("", None);
    for count in [5, 7] {
        reporter.report(&HealthRecord::Lost { ring: "events", count }.into());
    }
    reporter.queue("watch-queue", Losses { lost: 2, damaged: 0 });
    reporter.queue("watch-queue", Losses { lost: 1, damaged: 4 });
    let text = reporter.answers().metrics();
    for line in [
        "plimsoll_lost_records_total{ring=\"events\"} 7\n",
        "plimsoll_lost_records_total{ring=\"watch-queue\"} 3\n",
        "plimsoll_malformed_records_total{side=\"agent\"} 4\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn what_holds_memory_that_is_charged_to_no_cgroup_is_named_with_its_cgroup() {
    let suspect = |huge_pages, packet_rings| {
        let (resident, cgroup) = (Bytes::mib(3), &b"work.slice/\xff"[..]);
        MachineRecord::Suspect { pid: 7, name: b"sniff", cgroup, resident, huge_pages, packet_rings }.into()
    };
    let records = [suspect(Bytes::ZERO, Bytes::ZERO), suspect(Bytes::mib(2), Bytes::mib(64))];
    let lines = lines(&mut reporter("", None), &records);
    assert_eq!(text_of(&lines[0]), "process 7 (sniff), outside all workloads, holds 3.0 MiB");
    let text = "process 7 (sniff) in /work.slice/\\xff holds 2.0 MiB in huge pages, 64.0 MiB in rings of packet sockets, \
                charged to no cgroup, and 3.0 MiB beside that";
    assert_eq!(text_of(&lines[1]), text);
    assert_eq!((&lines[1]["pid"], &lines[1]["packet_rings_bytes"]), (&Value::from(7), &Value::from(64 << 20)));
}

#[test]
fn only_a_shortage_of_the_whole_machine_is_a_lost_race() {
    let mut reporter = reporter("", None);
    for scope in [OomScope::Global, OomScope::Cgroup, OomScope::Cpuset, OomScope::NumaNode] {
        let oom =
            MachineRecord::Oom { at: MonotonicNs(1), pid: 2, name: b"hog\0", cgroup: None, resident: None, scope };
        reporter.report(&oom.into());
    }
    let text = reporter.answers().metrics();
    assert!(text.contains("plimsoll_races_lost_total 1\n"), "{text}");
    for scope in ["global", "cgroup", "cpuset", "numa-node"] {
        assert!(text.contains(&format!("plimsoll_oom_kills_total{{scope=\"{scope}\"}} 1\n")), "{scope} in {text}");
    }
}

#[test]
fn an_armed_core_makes_it_ready_and_replaces_the_reasons_of_an_earlier_one() {
    let mut reporter = reporter("", None);
    assert!(!reporter.answers().readiness().0);
    let missing = StartupRecord::Hook { name: "fork", attached: false, how: "no such function" };
    let starting = [StartupRecord::SourceFailed { source: "ebpf", why: "hidden symbols" }.into(), missing.into()];
    assert_eq!(lines(&mut reporter, &starting).len(), 2);
    assert!(!reporter.answers().readiness().0);
    let line = &lines(&mut reporter, &[armed("psi", None)])[0];
    assert_eq!((&line["start"]["armed_ns"], &line["shadow"]), (&0.into(), &Value::Null));
    let (ready, text) = reporter.answers().readiness();
    assert!(ready && text.contains("not ebpf: hidden symbols"), "{text}");
    assert!(text.contains("without hook fork: no such function"), "{text}");
    assert!(reporter.answers().metrics().contains("plimsoll_hook_attached{hook=\"fork\"} 0\n"));

    let line = &lines(&mut reporter, &[armed("poll", Some("another agent acts"))])[0];
    assert!(text_of(line).ends_with("shadows: another agent acts"), "{line}");
    let text = "not ready: this agent does not act\nsource poll\nshadow: another agent acts\n";
    assert_eq!(reporter.answers().readiness(), (false, text.into()));
    let text = reporter.answers().metrics();
    assert!(text.contains("plimsoll_source{source=\"poll\"} 1\n") && !text.contains("psi"), "{text}");
    assert!(text.contains("plimsoll_acting 0\n") && !text.contains("fork"), "{text}");
}

#[test]
fn a_core_that_ended_or_is_silent_does_not_act_and_the_next_one_has_no_source_before_it_is_armed() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
    let open = |pid| plimsoll_node::process::open(pid).expect("it runs");
    let mut reporter = reporter("", None);
    reporter.clock = || MonotonicNs(NOW.load(Ordering::Relaxed));
    let answers = reporter.answers();
    let shown = |what, acting, sources| {
        let text = answers.metrics();
        assert!(text.contains(&format!("plimsoll_acting {acting}\n")), "{what}: {text}");
        assert_eq!(text.matches("plimsoll_source{").count(), sources, "{what}");
    };
    reporter.follow(open(rustix::process::Pid::from_child(&child)));
    reporter.report(&armed("psi", None));
    shown("it is armed", 1, 1);
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    shown("it ended", 0, 1);
    reporter.follow(open(rustix::process::getpid()));
    shown("the next one begins", 0, 0);
    reporter.report(&armed("psi", None));
    shown("that is armed", 1, 1);
    let later = MonotonicNs(0).after(Duration::from_mins(3));
    NOW.store(later.0, Ordering::Relaxed);
    shown("it is silent", 0, 1);
    let beat = HealthRecord::Beat {
        at: later,
        workloads: 4,
        malformed: 0,
        brakes_applied: 0,
        brakes_refused: 0,
        brakes_repeated: 0,
    };
    reporter.report(&beat.into());
    shown("it is heard again", 1, 1);
}

#[test]
fn a_kill_switch_is_in_the_log_and_in_metrics_and_an_agent_without_the_right_to_act_stays_without() {
    let mut reporter = reporter("", None);
    let switch = |is_thrown| Record::from(HealthRecord::KillSwitch { switch: "/etc/p/kill\u{1b}switch", is_thrown });
    for (what, record, acting, thrown) in [
        ("a core begins", switch(false), 0, 0),
        ("it is armed", armed("psi", None), 1, 0),
        ("it is thrown", switch(true), 0, 1),
        ("the next core is armed", armed("psi", None), 0, 1),
        ("it is taken back", switch(false), 1, 0),
        ("another agent acts", armed("psi", Some("another agent acts")), 0, 0),
        ("it is thrown", switch(true), 0, 1),
        ("it is taken back", switch(false), 0, 0),
    ] {
        let lines = lines(&mut reporter, &[record]);
        let text = reporter.answers().metrics();
        for line in [format!("plimsoll_acting {acting}\n"), format!("plimsoll_kill_switch {thrown}\n")] {
            assert!(text.contains(&line), "{what}: {line}");
        }
        if let Record::Health(_) = record {
            let level = if thrown == 1 { "warn" } else { "info" };
            assert_eq!((&lines[0]["level"], &lines[0]["is_thrown"]), (&level.into(), &(thrown == 1).into()), "{what}");
            assert_eq!(lines[0]["kill_switch"], "/etc/p/kill\\u{1b}switch", "{what}");
        }
    }
}

#[test]
fn what_others_did_to_pods_is_counted_as_it_is_sent_also_by_a_process_that_begins_anew() {
    let mut reporter = reporter("", None);
    for (evictions, oom_killed_containers) in [([3, 0, 0, 1, 0, 2], 7), ([1, 0, 0, 0, 0, 0], 0)] {
        let witnessed = NameMessage::Witnessed(Witnessed { evictions, oom_killed_containers });
        reporter.take_names(witnessed.encode(&mut [0; NAME_MESSAGE]));
        let text = reporter.answers().metrics();
        for line in [
            format!("plimsoll_kubelet_evictions_total{{resource=\"memory\"}} {}\n", evictions[0]),
            format!("plimsoll_kubelet_evictions_total{{resource=\"pids\"}} {}\n", evictions[3]),
            format!("plimsoll_kubelet_evictions_total{{resource=\"unknown\"}} {}\n", evictions[5]),
            format!("plimsoll_oom_killed_containers_total {oom_killed_containers}\n"),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
}

#[test]
fn what_a_dry_run_would_evict_is_compared_with_what_others_end() {
    const UID: &str = "01234567-89ab-cdef-0123-456789abcdee";
    let path = format!("kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
    let mut reporter = reporter("machine: {shadow: true}", None);
    let ended = Ended { uid: Uid::of(UID), by: EndedBy::Kubelet, at: MonotonicNs(3_000_000_120) };
    let end = |reporter: &mut Reporter| {
        reporter.take_names(NameMessage::Ended(ended).encode(&mut [0; NAME_MESSAGE]));
        let metrics = reporter.answers().metrics();
        let count = |name: &str| metrics.contains(&format!("plimsoll_shadow_{name}_total{{ended_by=\"kubelet\"}} 1\n"));
        (count("evictions"), count("missed"))
    };
    // One that waits for the end of an agent that acts shadows, too.
    let mut standby = self::reporter("", None);
    for (reporter, expected) in [(&mut standby, (false, false)), (&mut reporter, (true, false))] {
        let [begin, threshold, _, action, over] = plan(true);
        let ranked = PlanRecord::Ranked { ranked: ranked(), path: path.as_bytes() }.into();
        for record in [begin, threshold, ranked, action, over] {
            reporter.report(&record);
        }
        assert_eq!(end(reporter), expected);
    }
    assert!(reporter.answers().comparison().ends_with("  kubelet     3.0 s\n"), "{}", reporter.answers().comparison());
    assert_eq!(end(&mut reporter), (true, true), "it has ended, and would not have been evicted again");
}

#[test]
fn a_pod_that_lives_on_counts_in_time_without_another_event() {
    static NOW: AtomicU64 = AtomicU64::new(1);
    let mut reporter = reporter("machine: {shadow: true}", None);
    reporter.clock = || MonotonicNs(0).after(Duration::from_secs(NOW.load(Ordering::Relaxed)));
    let answers = reporter.answers();
    reporter.metrics.metrics.comparison.decide(Uid(1), "shop/web", (reporter.clock)());
    for (at, count) in [(301, 0), (302, 1), (303, 1)] {
        NOW.store(at, Ordering::Relaxed);
        let line = format!("plimsoll_shadow_evictions_total{{ended_by=\"nothing\"}} {count}\n");
        assert!(answers.metrics().contains(&line), "{line} at {at} s");
    }
}

#[test]
fn one_of_two_kill_switches_that_is_taken_back_lets_nothing_act_while_the_other_one_is_there() {
    let mut reporter = reporter("", None);
    reporter.report(&armed("psi", None));
    for (switch, is_thrown, thrown) in [("/a", true, 1), ("b", true, 1), ("/a", false, 1), ("b", false, 0)] {
        reporter.report(&HealthRecord::KillSwitch { switch, is_thrown }.into());
        let text = reporter.answers().metrics();
        for line in [format!("plimsoll_acting {}\n", 1 - thrown), format!("plimsoll_kill_switch {thrown}\n")] {
            assert!(text.contains(&line), "{switch} {is_thrown}: {line}");
        }
        let (is_ready, text) = reporter.answers().readiness();
        assert_eq!(is_ready, thrown == 0, "{switch} {is_thrown}: {text}");
        let is_named = text.contains(&format!("shadow: the kill switch {switch} is there"));
        assert_eq!(is_named, is_thrown, "{switch} {is_thrown}: {text}");
    }
}

#[test]
fn readiness_names_memory_that_is_not_watched() {
    let mut reporter = reporter("evictionHard: {nodefs.available: 5%}\n", None);
    reporter.report(&armed("psi", None));
    let (ready, text) = reporter.answers().readiness();
    let why = "no threshold on memory.available is configured: `run` never evicts for this machine's memory\n";
    assert!(ready && text.ends_with(why), "{text}");
}

#[test]
fn readiness_ends_with_the_beats() {
    fn at_first() -> MonotonicNs {
        MonotonicNs(1)
    }
    fn later() -> MonotonicNs {
        at_first().after(Duration::from_secs(200))
    }
    let mut reporter = reporter("", None);
    reporter.clock = at_first;
    reporter.report(&armed("psi", None));
    assert!(reporter.answers().readiness().0);
    reporter.clock = later;
    assert!(!reporter.answers().readiness().0);
    let beat = HealthRecord::Beat {
        at: later(),
        workloads: 5,
        malformed: 6,
        brakes_applied: 7,
        brakes_refused: 8,
        brakes_repeated: 9,
    };
    reporter.report(&beat.into());
    assert!(reporter.answers().readiness().0);
    let inventory = HealthRecord::Inventory {
        without_row: 3,
        outside: Bytes(1000),
        descriptors: 25,
        kernel_memory: Some(Bytes(2000)),
        sample_cost: Duration::from_millis(250),
        delayed_samples: 12,
    };
    reporter.report(&inventory.into());
    let text = reporter.answers().metrics();
    for line in [
        "plimsoll_workloads 5\n",
        "plimsoll_workloads_without_row 3\n",
        "plimsoll_memory_outside_workloads_bytes 1000\n",
        "plimsoll_workload_descriptors 25\n",
        "plimsoll_kernel_memory_bytes 2000\n",
        "plimsoll_sample_cost_seconds 0.25\n",
        "plimsoll_samples_delayed_total 12\n",
        "plimsoll_malformed_records_total{side=\"kernel\"} 6\n",
        "plimsoll_kernel_brakes_total{outcome=\"applied\"} 7\n",
        "plimsoll_kernel_brakes_total{outcome=\"refused\"} 8\n",
        "plimsoll_kernel_brakes_total{outcome=\"repeated\"} 9\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

proptest! {
    /// Whatever is lost, doubled or out of order, and whatever names it has: nothing panics, and a line stays one.
    #[test]
    fn records_in_any_order_are_reported(
        order in vec(0_usize..17, 0..40),
        name in vec(any::<u8>(), 0..40),
        format in prop_oneof![Just(LogFormat::Text), Just(LogFormat::Json)],
    ) {
        let mut reporter = reporter("", None);
        let written = Arc::new(Mutex::new(0));
        let count = Arc::clone(&written);
        reporter.trace(move |_| {
            *count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            false
        });
        let (at, path) = (MonotonicNs(5), &name[..]);
        let lines = logged(format, LevelFilter::DEBUG, |_| for index in &order {
            let kill = |what| EnforcementRecord::Kill { plan: 7, path, usage: None, at, what }.into();
            let record = match *index {
                part @ 0..=4 => plan(false)[part],
                5 => PlanRecord::Ranked { ranked: ranked(), path }.into(),
                6 => kill(Killed::Begun),
                7 => kill(Killed::Refused(Refused::Kernel(Some(-1)))),
                8 => EnforcementRecord::Brake { path, at, what: Braked::StillGrows(Bytes(1)) }.into(),
                9 => {
                    let (resident, held) = (Bytes(u64::MAX), Bytes(1));
                    let cgroup = path;
                    MachineRecord::Suspect { pid: 1, name: path, cgroup, resident, huge_pages: held, packet_rings: held }.into()
                }
                10 => armed("psi", None),
                11 => {
                    let past_threshold = Bytes(u64::MAX);
                    ThresholdRecord::MemoryBack { crossed: Some(MonotonicNs(9)), at, past_threshold }.into()
                }
                12 => HealthRecord::Failed { what: "arm the thresholds", errno: Some(i32::MIN) }.into(),
                13 => HealthRecord::Lost { ring: "events", count: u64::MAX }.into(),
                14 => StartupRecord::Undone { thawed: 1, continued: 2, failed: 3, kills: 4 }.into(),
                15 => HealthRecord::KillSwitch { switch: "/a\nb", is_thrown: true }.into(),
                _ => HealthRecord::Trouble { what: "a\nb", text: Some("a\nb"), is_logged: false }.into(),
            };
            reporter.report(&record);
        });
        for line in lines {
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
            prop_assert!(format == LogFormat::Text || serde_json::from_str::<Value>(&line).is_ok(), "{line}");
        }
        let metrics = reporter.answers().metrics();
        let plans: u64 = metrics.lines().find_map(|line| line.strip_prefix("plimsoll_decisions_total{outcome=\"evict\"} ")?.parse().ok()).unwrap_or(0);
        prop_assert_eq!(plans, *written.lock().unwrap_or_else(PoisonError::into_inner));
        prop_assert!(metrics.ends_with("# EOF\n"));
    }
}

#[test]
fn disk_pressure_is_logged_with_its_thresholds_and_is_a_metric() {
    let mut reporter = reporter("", None);
    let threshold = |since, is_met, grace, signal, at: u64| {
        let at = Amount::counted(at);
        let available = Amount::counted(9);
        let status =
            ThresholdStatus { why: Why::Threshold(0), at, target: at, available, case: Case::Both, since, is_met };
        Record::from(DiskRecord::Threshold { signal, grace, status })
    };
    let since = Some(MonotonicNs(7));
    let soft = Duration::from_secs(5);
    let pressure = |holds, read| Record::from(DiskRecord::Pressure { holds, read, at: MonotonicNs(8) });
    let records = [
        threshold(since, true, Duration::ZERO, Signal::NodeFsAvailable, 10 << 20),
        threshold(since, false, soft, Signal::ImageFsInodesFree, 20),
        pressure(true, [true, true, false]),
        threshold(None, false, soft, Signal::ImageFsInodesFree, 5),
        pressure(false, [false; 3]),
    ];
    let (held, over) = records.split_at(3);
    let held = lines(&mut reporter, held);
    for (line, message) in held.iter().zip([
        "nodefs.available 9 B, below its hard threshold 10.0 MiB",
        "imagefs.inodesFree 9, below its soft threshold 20, within its grace period of 5s",
        "DiskPressure is true: by nodefs, imagefs",
    ]) {
        assert_eq!((text_of(line), &line["level"]), (message, &Value::from("warn")));
    }
    assert_eq!((&held[0]["available"], &held[2]["status"]), (&Value::from(9), &Value::from(true)));
    let metrics = |reporter: &Reporter| reporter.answers().metrics();
    for line in ["plimsoll_disk_pressure 1\n", "plimsoll_disk_read{disk=\"imagefs\"} 1\n"] {
        assert!(metrics(&reporter).contains(line), "{line} in {}", metrics(&reporter));
    }
    let over = lines(&mut reporter, over);
    let messages = ["imagefs.inodesFree 9, above its soft threshold 5 again", "DiskPressure is false: no disk is read"];
    assert_eq!(over.iter().map(text_of).collect::<Vec<_>>(), messages);
    for line in ["plimsoll_disk_pressure 0\n", "plimsoll_disk_read{disk=\"imagefs\"} 0\n"] {
        assert!(metrics(&reporter).contains(line), "{line} in {}", metrics(&reporter));
    }
}

#[test]
fn what_is_removed_for_a_disk_is_logged_and_counted_and_an_order_that_removes_nothing_again_is_for_debugging() {
    let mut reporter = reporter("", None);
    let what = |containers, images| Reclaim { containers, images };
    let order = |number, what, bytes: Option<u64>, is_repeated| {
        let (bytes, at) = (bytes.map(Bytes), MonotonicNs(8));
        Record::from(DiskRecord::Order { number, signal: Signal::ImageFsAvailable, what, bytes, is_repeated, at })
    };
    let removed = |result, is_repeated| {
        Record::from(DiskRecord::Removed { result, took: Duration::from_millis(1500), is_repeated })
    };
    let some = RemovalResult {
        number: 1,
        containers: 2,
        sandboxes: 1,
        images: 3,
        freed: Bytes::mib(12),
        unused: Some(1),
        error: None,
    };
    let nothing = RemovalResult { number: 2, unused: Some(0), ..RemovalResult::default() };
    let lines = lines(
        &mut reporter,
        &[
            order(Some(1), what(true, true), None, false),
            removed(some, false),
            order(Some(2), what(false, true), Some(2 << 20), false),
            removed(nothing, false),
            order(Some(3), what(true, false), None, true),
            removed(nothing, true),
            removed(RemovalResult::failed(4, RemovalError::Unanswered), false),
            order(None, what(true, false), None, false),
            order(None, what(false, true), Some(1), false),
        ],
    );
    let expected = [
        "removes dead containers and sandboxes, and all unused images for imagefs.available",
        "removed 2 containers, 1 sandbox and 3 images of 12.0 MiB in 1.5s; 1 unused image left",
        "removes unused images of 2.0 MiB for imagefs.available",
        "nothing was removed; 0 unused images left",
        "nothing was removed; services did not report what it removed",
        "would remove dead containers and sandboxes for imagefs.available",
        "would remove one unused image for imagefs.available",
    ];
    assert_eq!(lines.iter().map(text_of).collect::<Vec<_>>(), expected);
    assert_eq!((&lines[4]["level"], &lines[4]["error"]), (&Value::from("warn"), &Value::from("unanswered")));
    let metrics = reporter.answers().metrics();
    for line in [
        "plimsoll_disk_removal_orders_total{outcome=\"removed\"} 1\n",
        "plimsoll_disk_removal_orders_total{outcome=\"nothing\"} 2\n",
        "plimsoll_disk_removal_orders_total{outcome=\"unanswered\"} 1\n",
        "plimsoll_disk_removal_orders_total{outcome=\"shadow\"} 2\n",
        "plimsoll_disk_removed_total{what=\"image\"} 3\n",
        "plimsoll_disk_removed_images_bytes_total 12582912\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}
