//! Traces of `run`: what came of a workload that the recorded agent evicted is in the recording.

use plimsoll_config::Configuration;
use plimsoll_policy::EvictionPolicy;
use plimsoll_replay::{Settings, Turn, read, run};
use plimsoll_units::Bytes;
use serde_json::{Value, json};

const CAPACITY: u64 = 1000 << 20;
const SLICE: &str = "machine: {slices: [{path: b, evictionHard: {memory.available: 100Mi}}]}";

fn sample(second: u64, available_mib: u64, hog: &Value) -> Value {
    let (at, available) = (second * 1_000_000_000, available_mib << 20);
    let slice = json!({"path": "b", "capacity_bytes": CAPACITY, "available_bytes": available, "mem_available_bytes": available});
    let memory = json!({"capacity_bytes": CAPACITY, "kubelet_bytes": available, "mem_available_bytes": available});
    let calm = json!({"cgroup": "b/calm", "id": 13, "usage_bytes": 1 << 20, "started_ns": 7});
    json!({"sample": {"at_ns": at, "made_ns": at, "memory": memory, "slices": [slice], "workloads": [hog, calm]}})
}

/// A workload that grew, with these fields beside.
fn hog(usage_mib: u64, more: &Value) -> Value {
    let mut hog = json!({"cgroup": "b/hog", "id": 12, "usage_bytes": usage_mib << 20, "started_ns": 6});
    let fields = more.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    hog.as_object_mut().expect("an object").extend(fields);
    hog
}

/// A plan of that second that the agent reported, with its verdict on the workload that grew.
fn reported(second: u64, slice: Option<&str>, verdict: &str) -> Value {
    let plan = json!({"candidates": [{"cgroup": "b/hog", "cgroup_id": 12, "verdict": verdict}]});
    let mut reported = json!({"at_ns": second * 1_000_000_000, "line": "x", "plan": plan});
    if let Some(slice) = slice {
        reported["slice"] = slice.into();
    }
    json!({"reported": reported})
}

/// Runs a trace and gives each turn to `each`.
fn replay(entries: &[Value], text: &str, policy: EvictionPolicy, each: &mut dyn FnMut(&Turn<'_>)) {
    let header = json!({"plimsoll_trace": 4, "agent": "x"});
    let lines: Vec<_> = [&header].into_iter().chain(entries).map(Value::to_string).collect();
    let trace = lines.join("\n") + "\n";
    let recording = read(trace.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let configuration: Configuration = plimsoll_config::parse(text, "f").unwrap_or_else(|error| panic!("{error}"));
    let settings = Settings { configuration: &configuration, eviction_policy: Some(policy), layout: None };
    run(&recording, None, &settings, each);
}

/// The second of each plan that evicts the workload that grew, and whether it is that of the slice.
fn evictions(entries: &[Value], text: &str, policy: EvictionPolicy) -> Vec<(u64, bool)> {
    let mut seconds = Vec::new();
    replay(entries, text, policy, &mut |turn| {
        let is_evicted = turn.candidates().iter().any(|[name, verdict, _]| name == "b/hog" && verdict == "evicted");
        if is_evicted {
            seconds.push((turn.at.0 / 1_000_000_000, turn.scope().is_some()));
        }
    });
    seconds
}

/// Memory is short for three seconds, with what `run` reported of the first two and what came of the victim then.
fn short(first: &[Value], then: &Value, second: &[Value]) -> Vec<Value> {
    let none = json!({});
    let mut entries = vec![sample(1, 800, &hog(1, &none)), sample(2, 50, &hog(700, &none))];
    entries.extend_from_slice(first);
    entries.push(sample(3, 40, &hog(710, then)));
    entries.extend_from_slice(second);
    entries.push(sample(4, 30, &hog(720, then)));
    entries
}

#[test]
fn a_victim_that_the_recorded_agent_left_running_is_evicted_again() {
    let (none, killed) = (json!({}), json!({"terminating": "killed"}));
    let evicted = |second| reported(second, None, "evicted");
    for policy in EvictionPolicy::ALL {
        for (what, entries, expected) in [
            ("it was not evicted then", short(&[], &none, &[]), &[2][..]),
            ("another plan was reported", short(&[reported(2, None, "not-needed")], &none, &[]), &[2]),
            ("it was not killed", short(&[evicted(2)], &none, &[evicted(3)]), &[2, 3, 4]),
            // An agent that shadows does not report the same plan again at once.
            ("it was not to be killed", short(&[evicted(2)], &none, &[]), &[2, 3, 4]),
            (
                "only the first plan was not carried out",
                short(&[evicted(2)], &none, &[reported(3, None, "x")]),
                &[2, 3],
            ),
            ("it was killed", short(&[evicted(2)], &killed, &[]), &[2]),
        ] {
            let expected: Vec<_> = expected.iter().map(|second| (*second, false)).collect();
            assert_eq!(evictions(&entries, "", policy), expected, "{policy}: {what}");
        }
    }
}

#[test]
fn what_a_plan_of_the_node_did_not_kill_is_not_coming_back_for_a_slice() {
    let (none, killed) = (json!({}), json!({"terminating": "killed"}));
    let plans = [reported(2, None, "evicted"), reported(2, Some("b"), "evicted")];
    for policy in [EvictionPolicy::Plimsoll, EvictionPolicy::OpenShift3] {
        let of = |then| evictions(&short(&plans, then, &[]), SLICE, policy);
        assert_eq!(of(&killed), [(2, false)], "{policy}");
        // What came of the last one is not in the trace.
        let expected = [(2, false), (2, true), (3, false), (3, true), (4, false)];
        assert_eq!(of(&none), expected, "{policy}");
    }
}

#[test]
fn all_pods_together_are_a_slice_of_which_pods_alone_are_evicted() {
    let text = "machine: {podFacts: /run/pods/pods.json, evictForUnattributed: true}";
    let at = |second: u64, available_mib: u64, used_mib: u64| {
        let pod = json!({"pod": {"uid": "0123456789abcdef0123456789abcdef", "qos": "Burstable"}});
        let mut entry = sample(second, 800, &hog(used_mib, &pod));
        let available = available_mib << 20;
        let of_pods = json!({"path": "pods", "capacity_bytes": CAPACITY / 2, "available_bytes": available});
        entry["sample"]["slices"] = json!([of_pods]);
        // Larger than the pod, and outside.
        entry["sample"]["workloads"][1]["usage_bytes"] = CAPACITY.into();
        entry
    };
    let entries = [at(1, 400, 100), at(2, 101, 399), at(3, 99, 401)];
    for policy in [EvictionPolicy::Plimsoll, EvictionPolicy::OpenShift3] {
        assert_eq!(evictions(&entries, text, policy), [(3, true)], "{policy}");
        let mut victims = Vec::new();
        replay(&entries, text, policy, &mut |turn| {
            let evicted = turn.candidates().into_iter().filter(|[_, verdict, _]| verdict == "evicted");
            victims.extend(evicted.map(|[name, ..]| (name, turn.scope().map(str::to_owned))));
        });
        assert_eq!(victims, [("b/hog".to_owned(), Some("pods".to_owned()))], "{policy}");
    }
    assert_eq!(evictions(&entries, text, EvictionPolicy::Kubelet), [], "it decides about no slice");
}

#[test]
fn growth_is_remembered_however_many_cgroups_have_come_and_gone() {
    let cgroup =
        |id: u64, mib: u64| json!({"cgroup": format!("b/{id}"), "id": id, "usage_bytes": mib << 20, "started_ns": 1});
    let of = |second: u64, available_mib: u64, workloads: Vec<Value>| {
        let mut sample = sample(second, available_mib, &json!(null));
        sample["sample"]["workloads"] = workloads.into();
        sample
    };
    // More at all than growth is remembered of at one time.
    let mut entries: Vec<_> =
        (1..=5).map(|second| of(second, 800, (0..1000).map(|id| cgroup(second * 1000 + id, 1)).collect())).collect();
    entries.push(of(6, 800, vec![cgroup(7, 150), cgroup(8, 1)]));
    entries.push(of(7, 50, vec![cgroup(7, 150), cgroup(8, 700)]));
    let mut growth = Vec::new();
    replay(&entries, "", EvictionPolicy::Plimsoll, &mut |turn| {
        growth.extend(turn.plan.ranked.iter().map(|ranked| (ranked.key.id.0, ranked.growth.own)));
    });
    growth.sort_unstable();
    assert_eq!(growth, [(7, Some(Bytes::ZERO)), (8, Some(Bytes::mib(699)))]);
}
