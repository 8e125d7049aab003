//! Recordings through configurations: what would have been evicted, and errors of what cannot be read.

use plimsoll_config::Configuration;
use plimsoll_pods::read_pods;
use plimsoll_policy::EvictionPolicy;
use plimsoll_policy::kubelet::DiskLayout;
use plimsoll_replay::{Recording, Settings, Turn, read, run};
use proptest::prelude::*;

const MACHINE: &[u8] = include_bytes!("data/machine.jsonl");
const SUMMARY: &[u8] = include_bytes!("data/summary.json");
const PODS: &[u8] = include_bytes!("data/pods.json");

fn configuration(text: &str) -> Configuration {
    plimsoll_config::parse(text, "f").unwrap_or_else(|error| panic!("{error}"))
}

/// Each turn as time, line, and candidates with their verdicts.
fn turns(
    recording: &Recording,
    text: &str,
    eviction_policy: Option<EvictionPolicy>,
) -> Vec<(String, String, Vec<String>)> {
    turns_with(recording, PODS, text, eviction_policy)
}

/// The same with another list of pods.
fn turns_with(
    recording: &Recording,
    pods: &[u8],
    text: &str,
    eviction_policy: Option<EvictionPolicy>,
) -> Vec<(String, String, Vec<String>)> {
    let configuration = configuration(text);
    let settings = Settings { configuration: &configuration, eviction_policy, layout: None };
    let pods = read_pods(pods).expect("a list of pods");
    let mut turns = Vec::new();
    run(recording, Some(&pods), &settings, &mut |turn: &Turn<'_>| {
        let candidates =
            turn.candidates().into_iter().map(|[name, verdict, keys]| format!("{name}: {verdict}; {keys}"));
        turns.push((turn.time(), turn.line(), candidates.collect()));
    });
    turns
}

fn evicted(turns: &[(String, String, Vec<String>)]) -> Vec<(usize, String)> {
    let of_turn = |(index, (_, _, candidates)): (usize, &(String, String, Vec<String>))| {
        let gone = candidates.iter().filter_map(|line| line.split_once(": evicted;"));
        gone.map(|(name, _)| (index, name.to_owned())).collect::<Vec<_>>()
    };
    turns.iter().enumerate().flat_map(of_turn).collect()
}

#[test]
fn a_trace_shows_when_each_threshold_would_have_been_acted_on() {
    let trace = read(MACHINE).expect("a trace");
    for (text, expected) in [
        // The plan that was reported has a sample of its own.
        ("evictionHard: {memory.available: 50Mi}", &[(2, "b/batch")][..]),
        ("evictionHard: {memory.available: 100Mi}", &[(1, "b/batch")]),
        // Its grace begins with the second sample.
        (
            "evictionHard: {memory.available: 1Mi}\nevictionSoft: {memory.available: 100Mi}\n\
             evictionSoftGracePeriod: {memory.available: 5s}",
            &[(3, "b/batch")],
        ),
        ("evictionHard: {memory.available: 10Mi}", &[]),
        (
            "evictionHard: {memory.available: 100Mi}\nmachine: {never: ['b/*'], evictForUnattributed: true}",
            &[(1, "a/db")],
        ),
    ] {
        let turns = turns(&trace, text, None);
        let expected: Vec<_> = expected.iter().map(|(turn, name)| (*turn, (*name).to_owned())).collect();
        assert_eq!((turns.len(), evicted(&turns)), (4, expected), "{text}: {turns:?}");
    }
}

#[test]
fn what_was_evicted_is_absent_from_what_follows_and_its_memory_counts_as_available() {
    let turns = turns(&read(MACHINE).expect("a trace"), "evictionHard: {memory.available: 100Mi}", None);
    assert_eq!(turns[0].0, "2026-01-01T00:00:01.000Z");
    assert!(turns[1].1.starts_with("evicting: 130.0 MiB memory.available by the kubelet's formula"), "{turns:?}");
    // 20 MiB and what `b/batch` has by then.
    assert!(
        turns[3].1.starts_with("no pressure: 820.0 MiB memory.available by the kubelet's formula, 790.0 MiB"),
        "{turns:?}"
    );
}

#[test]
fn a_trace_goes_through_every_eviction_policy() {
    let trace = read(MACHINE).expect("a trace");
    for (policy, expected) in [
        // It does not see that memory runs out before its own figure says so.
        (EvictionPolicy::Kubelet, vec![(2, "b/batch".to_owned())]),
        (EvictionPolicy::Plimsoll, vec![(1, "b/batch".to_owned())]),
        (EvictionPolicy::OpenShift3, vec![(1, "b/batch".to_owned())]),
    ] {
        let turns = turns(&trace, "evictionHard: {memory.available: 100Mi}", Some(policy));
        assert_eq!(evicted(&turns), expected, "{policy}: {turns:?}");
    }
}

#[test]
fn a_workload_without_a_process_is_not_evicted() {
    let (head, memory) = (
        r#"{"plimsoll_trace":4,"agent":"x"}"#,
        r#""memory":{"capacity_bytes":1048576000,"kubelet_bytes":52428800,"mem_available_bytes":52428800}"#,
    );
    let workload = |cgroup: &str, id: u32, more: &str| {
        format!(r#"{{"cgroup":"b/{cgroup}","id":{id},"usage_bytes":{id}00000000,"started_ns":6{more}}}"#)
    };
    let left = workload("left", 9, r#","empty":true"#);
    let trace = |left: &str| {
        let sample = |kind: &str, at: u32, more: &str| {
            let workloads = format!("{left},{}", workload("runs", 6, ""));
            format!(r#"{{"{kind}":{{"at_ns":{at}000000000,{more}{memory},"workloads":[{workloads}]}}}}"#)
        };
        format!("{head}\n{}\n{}\n", sample("sample", 1, ""), sample("sample", 2, ""))
    };
    for policy in
        [None, Some(EvictionPolicy::Plimsoll), Some(EvictionPolicy::OpenShift3), Some(EvictionPolicy::Kubelet)]
    {
        for (left, expected) in [(&left, "b/runs"), (&workload("left", 9, ""), "b/left")] {
            let trace = read(trace(left).as_bytes()).expect("a trace");
            let turns = turns(&trace, "evictionHard: {memory.available: 100Mi}", policy);
            let gone = evicted(&turns);
            assert_eq!(gone.first(), Some(&(0, expected.to_owned())), "{policy:?}: {turns:?}");
            let is_left = |(_, name): &(usize, String)| name == "b/left";
            assert_eq!(gone.iter().any(is_left), expected == "b/left", "{policy:?}: {turns:?}");
        }
    }
}

#[test]
fn a_reclaim_has_ended_by_the_next_sample() {
    let line = |text: &str| format!("{text}\n");
    let sample = |at: u64| {
        line(&format!(
            "{{\"sample\":{{\"at_ns\":{at}000000000,\"memory\":{{\"capacity_bytes\":1048576000,\"kubelet_bytes\":52428800,\
             \"mem_available_bytes\":524288000}},\"stall\":{{\"full_ns\":900000000,\"window_ns\":1000000000}},\"workloads\":\
             [{{\"cgroup\":\"b/batch\",\"id\":12,\"usage_bytes\":720371712,\"started_ns\":6}}]}}}}"
        ))
    };
    let trace = line("{\"plimsoll_trace\":4,\"agent\":\"x\"}") + &sample(1) + &sample(2) + &sample(3);
    let trace = read(trace.as_bytes()).expect("a trace");
    for policy in [None, Some(EvictionPolicy::Plimsoll), Some(EvictionPolicy::OpenShift3)] {
        let turns = turns(&trace, "evictionHard: {memory.available: 100Mi}", policy);
        // Cache is in the way and tasks stall: it is reclaimed first, which brings nothing.
        assert_eq!(evicted(&turns), [(1, "b/batch".to_owned())], "{policy:?}: {turns:?}");
        assert!(policy.is_none() || turns[0].1.ends_with("conditions MemoryPressure (by the kubelet's reading only)"));
    }
}

#[test]
fn swap_is_pressure_in_a_trace_that_recorded_it() {
    // Memory is plentiful.
    let trace = |free: u64, a_sample: u64, stalled: u64| {
        let memory =
            "\"memory\":{\"capacity_bytes\":1048576000,\"kubelet_bytes\":524288000,\"mem_available_bytes\":524288000}";
        let workload = |name: &str, id: u64, usage: u64, swapped: &str| {
            format!("{{\"cgroup\":\"{name}\",\"id\":{id},\"usage_bytes\":{usage}{swapped},\"started_ns\":{id}}}")
        };
        let large = workload("b/large", 11, 300 << 20, "");
        // In memory it is the smaller one.
        let swapped = |usage: u64, swapped: &str| workload("b/swapped", 12, usage << 20, swapped);
        let sample = |at: u64| {
            let refaults = 1000 + at * a_sample;
            let both = format!("{large},{}", swapped(290, ",\"swapped_bytes\":52428800"));
            format!(
                "{{\"sample\":{{\"at_ns\":{at}000000000,{memory},\"stall\":{{\"full_ns\":{stalled},\
                 \"window_ns\":1000000000}},\"swap\":{{\"total_bytes\":104857600,\"free_bytes\":{free},\
                 \"refaults\":{refaults}}},\"workloads\":[{both}]}}}}\n"
            )
        };
        let samples = [sample(1), sample(2), sample(3), sample(4), sample(5), sample(6)].concat();
        format!("{{\"plimsoll_trace\":4,\"agent\":\"x\"}}\n{samples}")
    };
    let (short, plenty) = (5 << 20, 50 << 20);
    let victim = |turn: usize| vec![(turn, "b/swapped".to_owned())];
    for (grace, (free, a_sample, stalled), expected) in [
        // From the second sample on it is known whether pages come back. The victim gave back what it had in swap.
        ("0s", (short, 7, 900_000_000), victim(1)),
        ("1500ms", (short, 7, 900_000_000), victim(3)),
        ("2s", (short, 7, 900_000_000), victim(3)),
        ("0s", (plenty, 7, 900_000_000), vec![]),
        ("0s", (short, 0, 900_000_000), vec![]),
        ("0s", (short, 7, 10_000_000), vec![]),
    ] {
        let recording = read(trace(free, a_sample, stalled).as_bytes()).expect("a trace");
        let text = format!("swap: {{free: 10%, grace: {grace}}}");
        for policy in [None, Some(EvictionPolicy::Plimsoll), Some(EvictionPolicy::OpenShift3)] {
            let turns = turns(&recording, &text, policy);
            assert_eq!(evicted(&turns), expected, "{policy:?}, {grace}, {free}, {a_sample}, {stalled}: {turns:#?}");
        }
        // The kubelet does not observe swap.
        assert_eq!(evicted(&turns(&recording, &text, Some(EvictionPolicy::Kubelet))), []);
    }
}

#[test]
fn cache_of_an_evicted_workload_was_available_before_by_the_kernels_estimate() {
    let sample = |at: u64, mem_available: u64, cached: &str| {
        format!(
            "{{\"sample\":{{\"at_ns\":{at}000000000,\"memory\":{{\"capacity_bytes\":1048576000,\"kubelet_bytes\":20971520,\
             \"mem_available_bytes\":{mem_available}}},\"slices\":[{{\"path\":\"b\",\"capacity_bytes\":1048576000,\
             \"available_bytes\":1048576000,\"mem_available_bytes\":{mem_available}}}],\"workloads\":[\
             {{\"cgroup\":\"b/cached\",\"id\":11,\"usage_bytes\":524288000{cached},\"started_ns\":5}},\
             {{\"cgroup\":\"b/next\",\"id\":12,\"usage_bytes\":314572800,\"started_ns\":6}}]}}}}\n"
        )
    };
    let text = "evictionHard: {memory.available: 100Mi}\nmachine: {evictForUnattributed: true}";
    let of_slice = "evictionHard: {memory.available: 0%}\n\
                    machine: {slices: [{path: b, evictionHard: {memory.available: 100Mi}}], evictForUnattributed: true}";
    // 20 MiB are left, and then what came back: 30 MiB, 90 MiB, or all of it.
    for (cached, is_enough) in [(",\"held_bytes\":31457280", false), (",\"held_bytes\":94371840", true), ("", true)] {
        let samples = [sample(20, 20 << 20, cached), sample(40, 20 << 20, cached)].concat();
        let recording = format!("{{\"plimsoll_trace\":4,\"agent\":\"x\"}}\n{samples}");
        let recording = read(recording.as_bytes()).expect("a trace");
        for (policy, text) in [
            (None, text),
            (Some(EvictionPolicy::Plimsoll), text),
            (Some(EvictionPolicy::OpenShift3), text),
            (None, of_slice),
        ] {
            let turns = turns(&recording, text, policy);
            // A slice has a turn of its own.
            let a_sample = if text == of_slice { 2 } else { 1 };
            let gone: Vec<_> = evicted(&turns).into_iter().map(|(turn, name)| (turn / a_sample, name)).collect();
            let mut expected = vec![(0, "b/cached".to_owned()), (1, "b/next".to_owned())];
            expected.truncate(if is_enough { 1 } else { 2 });
            assert_eq!(gone, expected, "{cached} {policy:?}: {turns:#?}");
        }
    }
}

#[test]
fn a_slice_of_the_configuration_is_decided_about() {
    let text = "machine: {slices: [{path: a, evictionHard: {memory.available: 300Mi}}], evictForUnattributed: true}";
    let turns = turns(&read(MACHINE).expect("a trace"), text, None);
    assert_eq!(evicted(&turns)[0], (1, "a/db".to_owned()), "{turns:?}");
    assert!(turns[1].1.contains(" in slice a: "), "{turns:?}");
}

#[test]
fn another_policy_than_the_configured_one_decides_about_the_slices_that_it_would_be_configured_with() {
    let text = "machine: {podFacts: /run/pods/pods.json}";
    let recording = read(MACHINE).expect("a trace");
    for (configured, policy) in [("kubelet", EvictionPolicy::Plimsoll), ("plimsoll", EvictionPolicy::Kubelet)] {
        let replaced = turns(&recording, &format!("evictionPolicy: {configured}\n{text}"), Some(policy));
        assert_eq!(replaced, turns(&recording, &format!("evictionPolicy: {policy}\n{text}"), None));
    }
}

#[test]
fn cache_of_pods_is_not_counted_as_held_where_statistics_have_it() {
    // Of 1000 MiB that pods may have 80 are left by the kubelet's figure.
    let of = |web: &str, db: &str| {
        let pod = |name: &str, uid: char, memory: &str| {
            format!(
                "{{\"podRef\":{{\"name\":\"{name}\",\"namespace\":\"shop\",\
                 \"uid\":\"0b5f3d0e-5d39-4a43-9d3c-1b1e3f5a000{uid}\"}},\
                 \"memory\":{{\"workingSetBytes\":482344960{memory}}}}}"
            )
        };
        format!(
            "{{\"node\":{{\"nodeName\":\"node-1\",\
             \"memory\":{{\"time\":\"2026-01-02T03:04:05Z\",\"availableBytes\":4294967296,\"workingSetBytes\":964689920}},\
             \"systemContainers\":[{{\"name\":\"pods\",\"memory\":{{\"time\":\"2026-01-02T03:04:05Z\",\
             \"availableBytes\":83886080,\"workingSetBytes\":964689920}}}}]}},\"pods\":[{},{}]}}",
            pod("web", '1', web),
            pod("db", '2', db)
        )
    };
    let rss = |mib: u64| format!(",\"rssBytes\":{}", mib << 20);
    let configuration = configuration("evictionHard: {memory.available: 100Mi}");
    for (web, db, case, is_evicted) in [
        (rss(100), rss(300), "kubelet-only", false),
        (rss(450), rss(460), "both", true),
        // Of one it is not known.
        (rss(100), String::new(), "both", true),
    ] {
        let recording = read(of(&web, &db).as_bytes()).expect("a summary");
        let settings =
            Settings { configuration: &configuration, eviction_policy: Some(EvictionPolicy::Plimsoll), layout: None };
        let mut turns = Vec::new();
        run(&recording, None, &settings, &mut |turn: &Turn<'_>| turns.push((turn.json(), turn.line())));
        let (json, line) = &turns[0];
        assert_eq!(json["condition_cases"]["MemoryPressure"], case, "{web} {db}: {line}");
        assert_eq!(line.contains("evict shop/"), is_evicted, "{web} {db}: {line}");
    }
}

#[test]
fn cache_of_a_slice_is_reclaimed_and_evicts_nothing() {
    let text = "evictionHard: {memory.available: 0%}\n\
                machine: {slices: [{path: a, evictionHard: {memory.available: 300Mi}}]}";
    let sample = |mem_available: &str| {
        format!(
            "{{\"plimsoll_trace\":4,\"agent\":\"x\"}}\n{{\"sample\":{{\"at_ns\":1,\"slices\":[{{\"path\":\"a\",\
             \"capacity_bytes\":1048576000,\"available_bytes\":209715200{mem_available}}}],\"workloads\":[{{\"cgroup\":\"a/db\",\
             \"id\":12,\"usage_bytes\":838860800,\"started_ns\":0}}]}}}}\n"
        )
    };
    for (mem_available, gone) in [
        ("", vec![(1, "a/db".to_owned())]),
        (",\"mem_available_bytes\":209715200", vec![(1, "a/db".to_owned())]),
        (",\"mem_available_bytes\":734003200", vec![]),
    ] {
        let turns = turns(&read(sample(mem_available).as_bytes()).expect("a trace"), text, None);
        assert_eq!(evicted(&turns), gone, "{mem_available}: {turns:?}");
        assert_eq!(turns.iter().any(|(_, line, _)| line.starts_with("reclaiming")), gone.is_empty(), "{turns:?}");
    }
}

#[test]
fn statistics_of_a_kubelet_give_the_order_of_eviction_and_what_is_never_evicted() {
    let recording = read(SUMMARY).expect("a summary");
    let table = [
        (
            EvictionPolicy::Kubelet,
            "evicting: 80.0 MiB memory.available by the kubelet's formula of 4.0 GiB; memory.available 80.0 MiB, below its \
             hard threshold 100.0 MiB; missing 20.0 MiB; evict shop/web within 1 s (uses 600.0 MiB, 472.0 MiB over its \
             request, priority 0, Burstable); conditions MemoryPressure",
            [
                "shop/web: evicted; uses 600.0 MiB, 472.0 MiB over its request, priority 0, Burstable",
                "kube-system/etcd-node-1: never evicted: a static pod; uses 300.0 MiB, 200.0 MiB over its request, \
                 priority 2000001000, Burstable",
                "shop/db: not needed, those before it are enough; uses 2.0 GiB, within its request, priority 1000, \
                 Guaranteed",
            ],
        ),
        (
            EvictionPolicy::Plimsoll,
            "evicting: 80.0 MiB memory.available by the kubelet's formula of 4.0 GiB; memory.available 80.0 MiB, below its \
             hard threshold 100.0 MiB; missing 20.0 MiB; coming back 0 B, taken 600.0 MiB; since memory was plentiful it \
             fell by 3.9 GiB, workloads that may be evicted grew by 2.5 GiB and protected ones by 300.0 MiB; evict shop/web \
             within 1 s (uses 601.0 MiB, 473.0 MiB over its request, priority 0, Burstable, grew 600.0 MiB); conditions \
             MemoryPressure",
            [
                "shop/web: evicted; uses 601.0 MiB, 473.0 MiB over its request, priority 0, Burstable, grew 600.0 MiB",
                "kube-system/etcd-node-1: never evicted: a static pod; uses 300.0 MiB, 200.0 MiB over its request, \
                 priority 2000001000, Burstable, grew 300.0 MiB",
                "shop/db: not needed, those before it are enough; uses 2.0 GiB, within its request, priority 1000, \
                 Guaranteed, grew 2.0 GiB",
            ],
        ),
    ];
    for (policy, line, candidates) in table {
        let turns = turns(&recording, "", Some(policy));
        assert_eq!(
            turns,
            [("2026-01-02T03:04:05.000Z".to_owned(), line.to_owned(), candidates.map(str::to_owned).to_vec())]
        );
    }
}

#[test]
fn a_kill_counts_for_no_more_than_what_the_trace_says_that_it_gives_back() {
    for (gives_back, expected) in [
        (r#","returns_at_most_bytes":10485760"#, vec![(1, "c/grown".to_owned())]),
        (r#","returns_at_most_bytes":41943040"#, vec![]),
        // All that it uses.
        ("", vec![]),
    ] {
        let sample = |at: u64, available: u64, grown: u64, killed: &str| {
            format!(
                r#"{{"sample":{{"at_ns":{at},"made_ns":{at},"memory":{{"capacity_bytes":1048576000,
                "kubelet_bytes":{available},"mem_available_bytes":{available}}},"workloads":[
                {{"cgroup":"b/killed","id":12,"usage_bytes":62914560,"started_ns":6{killed}}},
                {{"cgroup":"c/grown","id":13,"usage_bytes":{grown},"started_ns":7}}]}}}}"#
            )
            .replace('\n', " ")
        };
        let trace = [
            r#"{"plimsoll_trace":4,"agent":"0.1.0","epoch_ns":1767225600000000000}"#.to_owned(),
            sample(1_000_000_000, 838_860_800, 1 << 20, ""),
            sample(1_000_000_000_000, 73_400_320, 720_371_712, &format!(r#","terminating":"killed"{gives_back}"#)),
        ];
        let trace = read((trace.join("\n") + "\n").as_bytes()).expect("a trace");
        let turns = turns(&trace, "evictionHard: {memory.available: 100Mi}", None);
        assert_eq!(evicted(&turns), expected, "{gives_back}: {turns:?}");
    }
}

#[test]
fn a_pod_that_was_killed_long_ago_and_is_still_there_is_not_counted_on() {
    let recording = read(SUMMARY).expect("a summary, of 03:04:05");
    for (deleted, verdict, gone) in [
        // Its grace is not over, which a hard threshold does not wait for.
        ("03:04:20", "was terminating in its grace, is killed now", vec![]),
        ("03:04:00", "terminating already, counted as coming back", vec![]),
        ("03:03:35", "terminating already, counted as coming back", vec![]),
        ("03:03:34", "terminating already, but stuck", vec![(0, "shop/db".to_owned())]),
        ("00:00:00", "terminating already, but stuck", vec![(0, "shop/db".to_owned())]),
    ] {
        let pods = String::from_utf8_lossy(PODS).replace(
            r#""creationTimestamp": "2026-01-01T10:00:00Z""#,
            &format!(r#""deletionTimestamp": "2026-01-02T{deleted}Z""#),
        );
        for policy in [EvictionPolicy::Plimsoll, EvictionPolicy::OpenShift3] {
            let turns = turns_with(&recording, pods.as_bytes(), "", Some(policy));
            let (_, line, candidates) = &turns[0];
            assert_eq!(evicted(&turns), gone, "{deleted} {policy}: {line}");
            let reported = candidates.iter().any(|reported| reported.starts_with(&format!("shop/web: {verdict};")));
            assert!(reported, "{deleted} {policy}: {candidates:?}");
        }
    }
}

#[test]
fn images_are_in_no_recording_so_their_own_disk_evicts_nothing() {
    let recording = read(SUMMARY).expect("a summary");
    let configuration = configuration("evictionHard: {imagefs.available: 95%}");
    let pods = read_pods(PODS).expect("a list of pods");
    let nothing = "nothing to evict: nothing says which eviction would help: ";
    let too_little = "nothing to evict: no eviction would free a hundredth of what is missing: ";
    for (layout, expected) in [(DiskLayout::SplitImageFs, nothing), (DiskLayout::DedicatedImageFs, too_little)] {
        for policy in [EvictionPolicy::Plimsoll, EvictionPolicy::OpenShift3] {
            let settings =
                Settings { configuration: &configuration, eviction_policy: Some(policy), layout: Some(layout) };
            let mut lines = Vec::new();
            run(&recording, Some(&pods), &settings, &mut |turn: &Turn<'_>| lines.push(turn.line()));
            assert!(lines[0].starts_with(expected) && !lines[0].contains("images;"), "{policy} {layout:?}: {lines:?}");
        }
    }
}

/// The message of each evicted pod, with annotations and the metrics' label, by an eviction policy.
fn said(
    recording: &Recording,
    pods: Option<&str>,
    text: &str,
    eviction_policy: EvictionPolicy,
) -> Vec<serde_json::Value> {
    let configuration = configuration(text);
    let settings = Settings { configuration: &configuration, eviction_policy: Some(eviction_policy), layout: None };
    let pods = pods.map(|pods| read_pods(pods.as_bytes()).expect("a list of pods"));
    let mut evictions = Vec::new();
    run(recording, pods.as_deref(), &settings, &mut |turn: &Turn<'_>| {
        let json = turn.json();
        let reported = json["evictions"].as_array().cloned().unwrap_or_default();
        let of_json =
            reported.iter().map(|reported| reported["message"].as_str().expect("a message").trim_end().to_owned());
        let of_text = turn.messages().into_iter().map(|[_, message]| message);
        assert_eq!(of_text.collect::<Vec<_>>(), of_json.collect::<Vec<_>>());
        evictions.extend(reported);
    });
    evictions
}

#[test]
fn every_eviction_policy_writes_the_kubelets_message() {
    let summary = read(SUMMARY).expect("a summary");
    let pods = String::from_utf8_lossy(PODS);
    let low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. ";
    let offending = "Container nginx was using 600Mi, request is 128Mi, has larger consumption of memory. ";
    let whole =
        pods.replacen(r#""priority": 0,"#, r#""priority": 0, "resources": {"requests": {"memory": "128Mi"}},"#, 1);
    let volume = pods.replacen(r#""sizeLimit": "1Gi""#, r#""sizeLimit": "0.5Ki""#, 1);
    let layer = |limit: &str| {
        let limits = format!(r#""limits": {{"ephemeral-storage": "{limit}"}}, "requests": {{"memory": "128Mi"}}"#);
        pods.replacen(r#""requests": {"memory": "128Mi"}"#, &limits, 1)
    };
    let (of_pod, of_container) = (layer("100k"), layer("121000"));
    let sidecar = r#""initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"limits": {"ephemeral-storage": "50k"}}}], "volumes""#;
    let of_container = of_container.replacen(r#""volumes""#, sidecar, 1);
    for (pods, message, label, annotation) in [
        (Some(&*pods), format!("{low}{offending}"), "memory.available", "nginx"),
        (
            Some(&*whole),
            format!("{low}Pod web was using 600Mi, request is 128Mi, has larger consumption of memory. {offending}"),
            "memory.available",
            "nginx",
        ),
        // No requests are known.
        (None, low.to_owned(), "memory.available", ""),
        (
            Some(&*volume),
            "Usage of EmptyDir volume \"cache\" exceeds the limit \"512\". ".to_owned(),
            "emptydirfs.limit",
            "",
        ),
        (
            Some(&*of_pod),
            "Pod ephemeral local storage usage exceeds the total limit of containers 100k. ".to_owned(),
            "ephemeralpodfs.limit",
            "",
        ),
        (
            Some(&*of_container),
            "Container nginx exceeded its local ephemeral storage limit \"121k\". ".to_owned(),
            "ephemeralcontainerfs.limit",
            "",
        ),
    ] {
        let kubelet = said(&summary, pods, "", EvictionPolicy::Kubelet);
        let web =
            kubelet.iter().find(|reported| reported["pod"] == "shop/web" || pods.is_none()).expect("it is evicted");
        assert_eq!((&web["message"], &web["eviction_signal"]), (&message.into(), &label.into()), "{kubelet:?}");
        assert_eq!(web["annotations"]["offending_containers"].as_str().unwrap_or_default(), annotation);
        for policy in [EvictionPolicy::Plimsoll, EvictionPolicy::OpenShift3] {
            let ours = said(&summary, pods, "", policy);
            let same = ours.iter().any(|reported| {
                ["message", "annotations", "eviction_signal"].iter().all(|field| reported[*field] == web[*field])
            });
            assert!(same, "{policy}: {ours:?}, not {web}");
        }
    }
    // A percentage prints as what it comes to, in a trace too.
    let trace = read(MACHINE).expect("a trace");
    let text = "evictionHard: {memory.available: 9.765625%}";
    let expected = "The node was low on resource: memory. Threshold quantity: 100000Ki, available: 60Mi. ";
    assert_eq!(said(&trace, None, text, EvictionPolicy::Kubelet)[0]["message"], expected);
}

#[test]
fn json_has_names_verdicts_and_cases() {
    let trace = read(MACHINE).expect("a trace");
    let configuration = configuration("evictionHard: {memory.available: 100Mi}");
    for (policy, turn, cases) in [
        (EvictionPolicy::Kubelet, 2, Some("both")),
        (EvictionPolicy::Plimsoll, 1, Some("mem-available-only")),
        (EvictionPolicy::OpenShift3, 1, Some("mem-available-only")),
    ] {
        let settings = Settings { configuration: &configuration, eviction_policy: Some(policy), layout: None };
        let mut turns = Vec::new();
        run(&trace, None, &settings, &mut |turn: &Turn<'_>| turns.push(turn.json()));
        let plan = &turns[turn];
        assert_eq!(
            (&plan["eviction_policy"], &plan["conditions"][0]),
            (&policy.name().into(), &"MemoryPressure".into())
        );
        assert_eq!(plan["condition_cases"]["MemoryPressure"].as_str(), cases, "{policy}");
        let victim = &plan["candidates"][0];
        assert_eq!(
            (&victim["cgroup"], &victim["verdict"], &victim["measured"]),
            (&"b/batch".into(), &"evicted".into(), &true.into())
        );
        assert!(victim["reason"].as_str().is_some_and(|reason| reason.contains("over its request")), "{victim}");
        assert_eq!(plan["candidates"].as_array().map(Vec::len), Some(3));
        let eviction = &plan["evictions"][0];
        assert_eq!((&eviction["pod"], &eviction["grace_seconds"]), (&"b/batch".into(), &1.into()));
    }
}

#[test]
fn processes_are_reported_where_statistics_have_them() {
    let mut reported = Vec::new();
    let configuration = configuration("evictionHard: {pid.available: 99%}");
    let settings =
        Settings { configuration: &configuration, eviction_policy: Some(EvictionPolicy::Kubelet), layout: None };
    let pods = read_pods(PODS).expect("a list of pods");
    run(&read(SUMMARY).expect("a summary"), Some(&pods), &settings, &mut |turn: &Turn<'_>| {
        for candidate in turn.json()["candidates"].as_array().into_iter().flatten() {
            reported.push((candidate["cgroup"].to_string(), candidate["usage"].as_u64()));
        }
    });
    reported.sort();
    let expected = [("kube-system/etcd-node-1", None), ("shop/db", Some(40)), ("shop/web", Some(5))];
    assert_eq!(reported, expected.map(|(pod, processes)| (format!("{pod:?}"), processes)));
}

#[test]
fn summaries_may_follow_one_another() {
    let later = String::from_utf8_lossy(SUMMARY).replace("03:04:05Z", "03:04:25Z");
    let both = [SUMMARY, later.as_bytes()].concat();
    for policy in EvictionPolicy::ALL {
        let turns = turns(&read(&both).expect("two summaries"), "", Some(policy));
        // What the first evicted gave back enough for the second.
        assert_eq!((turns.len(), evicted(&turns)), (2, vec![(0, "shop/web".to_owned())]), "{policy}: {turns:?}");
    }
}

#[test]
fn what_cannot_be_read_is_an_error_with_its_place() {
    let header = "{\"plimsoll_trace\":4,\"agent\":\"x\"}\n";
    let after = |line: &str| format!("{header}{line}\n").into_bytes();
    let table: [(Vec<u8>, &str); 17] = [
        (Vec::new(), "1: it is empty; expected a trace of plimsoll, or a kubelet's answer to /stats/summary"),
        (b"{".to_vec(), "1: EOF while parsing an object at line 1 column 1"),
        (b"{}".to_vec(), "1: missing field `node`"),
        (b"{\"node\":\n{\"memory\": 7}}".to_vec(), "2: node.memory: invalid type: integer `7`, expected struct Memory"),
        (
            b"{\"node\":{\"memory\":\n{\"time\": \"noon\"}}}".to_vec(),
            "2: node.memory.time: expected a time such as 2026-01-31T12:00:00Z",
        ),
        (b"{\"node\":{}}\n{\"node\":[],\n\"pods\":{}}".to_vec(), "3: pods: invalid type: map, expected a sequence"),
        (
            b"{\"plimsoll_trace\":1,\"agent\":\"x\"}\n".to_vec(),
            "1: plimsoll_trace: expected 3 to 4; this program knows no other version of traces",
        ),
        (
            b"{\"plimsoll_trace\":4,\"agent\":\"x\"}".to_vec(),
            "1: the first line has no end; expected a trace of plimsoll",
        ),
        (
            b"{\"plimsoll_trace\":4,\"\":2}\n".to_vec(),
            "1: \"\": unknown field ``, expected one of `plimsoll_trace`, `agent`, `epoch_ns`",
        ),
        (after("{\"sample\":{\"at_ns\":-1}}"), "2: sample.at_ns: invalid value: integer `-1`, expected u64"),
        (
            after("{\"sample\":{\"at_ns\":1,\"memry\":{}}}"),
            "2: sample.memry: unknown field `memry`, expected one of `at_ns`, `made_ns`, `missing`, `memory`, `withheld_bytes`, `huge_page_pool_bytes`, `tasks`, `stall`, `swap`, `slices`, `reclaimed`, `workloads`",
        ),
        (after("{\"sample\":{\"at_ns\":2}}\n{\"sample\":{\"at_ns\":1}}"), "3: at_ns: earlier than the line before"),
        (after("{\"sample\":{\"at_ns\":2}} 1"), "2: something follows the value"),
        (
            after(
                "{\"sample\":{\"at_ns\":2,\"memory\":{\"capacity_bytes\":9,\"kubelet_bytes\":18446744073709551615,\
                 \"mem_available_bytes\":1}}}",
            ),
            "2: sample.memory.kubelet_bytes: expected at most 9223372036854775807, which is more than any machine has",
        ),
        (
            b"\n{\"kind\": \"List\", \"items\": []}".to_vec(),
            "1: it is a list of pods, which belongs under --pods; expected a trace of plimsoll, or a kubelet's answer to \
             /stats/summary",
        ),
        (b"\x1f\x8b\x08".to_vec(), "1: it is no JSON, and looks compressed (gzip); expand it first"),
        (b"\x28\xb5\x2f\xfd\x00".to_vec(), "1: it is no JSON, and looks compressed (zstd); expand it first"),
    ];
    for (bytes, expected) in table {
        let error = read(&bytes).map(drop).expect_err("it cannot be read").to_string();
        assert_eq!(error, expected, "{}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_trace_that_ends_in_the_middle_of_a_line_is_read_up_to_there() {
    let cut = &MACHINE[..MACHINE.len() - 10];
    let Ok(Recording::Trace(trace)) = read(cut) else { panic!("a trace") };
    assert_eq!((trace.entries.len(), trace.is_cut_off), (4, true));
}

#[test]
fn what_is_written_reads_back() {
    let Ok(Recording::Trace(trace)) = read(MACHINE) else { panic!("a trace") };
    let mut text = serde_json::to_string(&trace.header).expect("JSON") + "\n";
    for entry in &trace.entries {
        text += &(serde_json::to_string(entry).expect("JSON") + "\n");
    }
    let Ok(Recording::Trace(again)) = read(text.as_bytes()) else { panic!("a trace") };
    assert_eq!((again.header, again.entries), (trace.header, trace.entries));
}

/// `text` with some of its numbers replaced.
fn with_numbers(text: &str, replaced: &[(prop::sample::Index, &str)]) -> String {
    let mut numbers: Vec<(usize, usize)> = Vec::new();
    for (at, character) in text.char_indices().filter(|(_, character)| character.is_ascii_digit()) {
        match numbers.last_mut() {
            Some((_, end)) if *end == at => *end = at + character.len_utf8(),
            _ => numbers.push((at, at + character.len_utf8())),
        }
    }
    let mut chosen: Vec<_> = replaced.iter().map(|(index, number)| (*index.get(&numbers), number)).collect();
    chosen.sort_unstable();
    chosen.dedup_by_key(|(place, _)| *place);
    let mut text = text.to_owned();
    for ((begin, end), number) in chosen.into_iter().rev() {
        text.replace_range(begin..end, number);
    }
    text
}

const NUMBERS: [&str; 9] =
    ["0", "1", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551615", "1e400", "null", "{"];

const LINES: &str =
    "evictionHard: {memory.available: 50%, nodefs.available: 95%, nodefs.inodesFree: 99%, pid.available: 99%}
evictionSoft: {memory.available: 60%}
evictionSoftGracePeriod: {memory.available: 1s}
evictionMinimumReclaim: {memory.available: 16Ei}
machine: {slices: [{path: a, evictionHard: {memory.available: 90%}}], victimsPerMinute: 3, evictForUnattributed: true}";

proptest! {
    #[test]
    fn any_numbers_in_a_recording_are_decided_on_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(&NUMBERS[..])), 1..6),
        which in 0..2_usize,
    ) {
        let text = String::from_utf8_lossy([MACHINE, SUMMARY][which]);
        let bytes = with_numbers(&text, &changes).into_bytes();
        let twice = [bytes.as_slice(), SUMMARY].concat();
        for bytes in [&bytes, &twice] {
            match read(bytes) {
                Err(error) => prop_assert!(error.line > 0 && !error.why.is_empty()),
                Ok(recording) => {
                    for policy in [None].into_iter().chain(EvictionPolicy::ALL.map(Some)) {
                        for (_, line, _) in turns(&recording, LINES, policy) {
                            prop_assert!(!line.is_empty());
                        }
                    }
                }
            }
        }
    }
}
