//! Disks of a trace: the condition, and what would have been removed for a threshold, by other settings than those that were
//! recorded, too.

use plimsoll_config::Configuration;
use plimsoll_policy::EvictionPolicy;
use plimsoll_policy::kubelet::Condition;
use plimsoll_replay::{Settings, read, run};
use plimsoll_units::Bytes;
use serde_json::{Value, json};

const SHORT: &str = "evictionHard: {memory.available: 1Mi, imagefs.available: 100Mi}\n";

/// What was judged in a second, with so much left on imagefs.
fn disks(second: u64, left_mib: u64, more: &Value) -> Value {
    let at = second * 1_000_000_000;
    let left = json!({"read_ns": at, "available_bytes": left_mib << 20, "capacity_bytes": 1000 << 20});
    let mut sample = json!({"at_ns": at, "nodefs": left, "imagefs": left, "containerfs": left, "layout": "Single",
        "unused_images": 3, "outcome": "NoPressure", "disk_pressure": false});
    let fields = more.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    sample.as_object_mut().expect("an object").extend(fields);
    json!({"disks": sample})
}

fn memory(second: u64) -> Value {
    let memory = json!({"capacity_bytes": 1000 << 20, "kubelet_bytes": 800 << 20, "mem_available_bytes": 800 << 20});
    json!({"sample": {"at_ns": second * 1_000_000_000, "made_ns": second * 1_000_000_000, "memory": memory}})
}

/// The second of each turn about disks, whether the condition holds, and what would be removed: containers, images, and how
/// much of these.
type Judged = (u64, bool, Option<(bool, bool, Option<Bytes>)>);

fn replay(version: u32, entries: &[Value], text: &str, policy: EvictionPolicy) -> (Vec<Judged>, Vec<String>) {
    let header = json!({"plimsoll_trace": version, "agent": "x"});
    let lines: Vec<_> = [&header].into_iter().chain(entries).map(Value::to_string).collect();
    let recording = read((lines.join("\n") + "\n").as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let configuration: Configuration = plimsoll_config::parse(text, "f").unwrap_or_else(|error| panic!("{error}"));
    let settings = Settings { configuration: &configuration, eviction_policy: Some(policy), layout: None };
    let (mut judged, mut lines) = (Vec::new(), Vec::new());
    run(&recording, None, &settings, &mut |turn| {
        lines.push(turn.line());
        if turn.scope() == Some("disks") {
            let has_pressure = turn.plan.conditions.has(Condition::DiskPressure);
            let removal = turn.removal().map(|removal| (removal.what.containers, removal.what.images, removal.bytes));
            judged.push((turn.at.0 / 1_000_000_000, has_pressure, removal));
        }
    });
    (judged, lines)
}

#[test]
fn disks_that_were_recorded_are_decided_about_beside_memory() {
    let entries = [
        memory(1),
        disks(2, 400, &json!({})),
        disks(3, 60, &json!({})),
        // Turns about disks are written when they are over, so that one about memory may be of before.
        memory(2),
        disks(4, 60, &json!({"reclaimed": {"order": 1, "at_ns": 3_500_000_000_u64}})),
    ];
    let missing = Some(Bytes::mib(40));
    for (policy, expected) in [
        (EvictionPolicy::Plimsoll, [Some((true, false, None)), Some((false, true, missing))]),
        (EvictionPolicy::OpenShift3, [Some((true, false, None)), Some((false, true, missing))]),
        (EvictionPolicy::Kubelet, [Some((true, true, None)), None]),
    ] {
        let (judged, lines) = replay(4, &entries, SHORT, policy);
        let [first, second] = expected;
        assert_eq!(judged, [(2, false, None), (3, true, first), (4, true, second)], "{policy}");
        assert_eq!(lines.len(), 5, "{policy}: {lines:?}");
        let said = lines.iter().any(|line| line.contains("; remove dead containers"));
        assert!(said, "{policy}: {lines:?}");
        // By another threshold it is not short.
        let (judged, _) = replay(4, &entries, "evictionHard: {imagefs.available: 50Mi}", policy);
        assert!(
            judged.iter().all(|(_, has_pressure, removal)| !has_pressure && removal.is_none()),
            "{policy}: {judged:?}"
        );
    }
}

#[test]
fn a_condition_that_a_removal_was_reported_with_is_reported_once() {
    let held = |more: Value| {
        let mut more = more;
        more["disk_pressure"] = true.into();
        more
    };
    let entries = [
        disks(1, 400, &json!({})),
        disks(2, 60, &held(json!({"reclaim": 1}))),
        disks(3, 60, &held(json!({}))),
        disks(4, 400, &json!({})),
    ];
    let lines: Vec<_> =
        [&json!({"plimsoll_trace": 4, "agent": "x"})].into_iter().chain(&entries).map(Value::to_string).collect();
    let recording = read((lines.join("\n") + "\n").as_bytes()).expect("a trace");
    let configuration = plimsoll_config::parse(SHORT, "f").expect("it is in order");
    let settings = Settings { configuration: &configuration, eviction_policy: None, layout: None };
    let mut reported = Vec::new();
    run(&recording, None, &settings, &mut |turn| reported.push(turn.reported.is_some()));
    assert_eq!(reported, [true, true, false, true]);
}

#[test]
fn what_the_disks_do_not_allow_is_not_removed_and_without_images_there_is_nothing_but_containers() {
    for (more, expected) in [
        (json!({"layout": "SplitImageFs"}), Some((false, false, None))),
        (json!({"layout": null}), Some((false, false, None))),
        (json!({"unused_images": 0}), Some((true, false, None))),
    ] {
        let (judged, _) = replay(4, &[disks(1, 60, &more)], SHORT, EvictionPolicy::Plimsoll);
        assert_eq!(judged, [(1, true, expected)], "{more}");
    }
}

#[test]
fn a_trace_of_the_third_version_is_still_read_and_no_other_one() {
    let old = [memory(1), memory(2)];
    let (judged, lines) = replay(3, &old, SHORT, EvictionPolicy::Plimsoll);
    assert_eq!((judged, lines.len()), (Vec::new(), 2));
    for version in [2, 5] {
        let header = json!({"plimsoll_trace": version, "agent": "x"}).to_string() + "\n";
        let error = read(header.as_bytes()).expect_err("another version").to_string();
        assert!(error.contains("plimsoll_trace: expected 3 to 4"), "{error}");
    }
}

#[test]
fn times_of_disks_do_not_go_back_and_those_of_memory_do_not_either() {
    for (entries, is_read) in [
        ([disks(2, 400, &json!({})), memory(1)], true),
        ([disks(2, 400, &json!({})), disks(1, 400, &json!({}))], false),
        ([memory(2), memory(1)], false),
    ] {
        let header = json!({"plimsoll_trace": 4, "agent": "x"});
        let lines: Vec<_> = [&header].into_iter().chain(&entries).map(Value::to_string).collect();
        assert_eq!(read((lines.join("\n") + "\n").as_bytes()).is_ok(), is_read, "{entries:?}");
    }
}
