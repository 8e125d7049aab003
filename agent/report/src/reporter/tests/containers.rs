//! Figures of containers.

use super::*;
use crate::names::tests::path;
use crate::names::{NAME_MESSAGE, NameMessage, PodNames};
use crate::record::{ContainerRecord, REPORTED_CONTAINERS};
use plimsoll_inventory::{ContainerFigures, Ended, Stall};

const POD: &str = "01234567-89ab-cdef-0123-456789abcdee";

fn throttled(path: &[u8]) -> Record<'_> {
    let stall = Some(Stall { waited: Duration::from_millis(230), within: Duration::from_millis(250) });
    let figures = ContainerFigures {
        working_set: Some(Bytes::mib(8)),
        rate: Some(-5),
        stall,
        is_throttled: true,
        swapped: Some(Bytes(7)),
        swap_limit: Some(Bytes(9)),
        zswap: Some(Bytes(2)),
        tasks: Some(11),
        task_limit: Some(12),
        ..ContainerFigures::default()
    };
    ContainerRecord::Throttled { path, at: MonotonicNs(7), high: Some(Bytes::mib(8)), figures }.into()
}

fn ended(path: &[u8], is_gone: bool) -> Record<'_> {
    let ended = Ended { lasted: Duration::from_secs(2), stalled: Some(Duration::from_secs(1)) };
    ContainerRecord::Relieved { path, at: MonotonicNs(9), ended, is_gone }.into()
}

/// The series of containers.
fn series(reporter: &Reporter) -> Vec<String> {
    let text = reporter.answers().metrics();
    text.lines().filter(|line| line.starts_with("plimsoll_container")).map(str::to_owned).collect()
}

#[test]
fn a_throttled_container_is_named_with_its_stall_until_it_is_throttled_no_more() {
    let mut reporter = reporter("", None);
    let digits = "ab".repeat(32);
    let cgroup = format!("{}/cri-containerd-{digits}.scope", path(POD));
    let mut names = PodNames::new(Uid::of(POD), "shop", "front");
    names.add_container(&digits, "main");
    for message in [NameMessage::Begin, NameMessage::Pod(names), NameMessage::Complete] {
        reporter.take_names(message.encode(&mut [0; NAME_MESSAGE]));
    }
    assert_eq!(series(&reporter), ["plimsoll_containers_throttled 0"]);
    let shown = format!("{cgroup} (pod shop/front, container main)");
    let found = lines(&mut reporter, &[throttled(cgroup.as_bytes())]);
    assert_eq!(
        text_of(&found[0]),
        format!("{shown} is throttled by its memory.high of 8.0 MiB: its tasks waited 92 % of the last 250ms")
    );
    assert_eq!(
        (&found[0]["level"], &found[0]["pod"], &found[0]["container"], &found[0]["throttled"]),
        (&"warn".into(), &"shop/front".into(), &"main".into(), &"begins".into())
    );
    assert_eq!((&found[0]["stall_ns"], &found[0]["forecast_ns"]), (&230_000_000.into(), &Value::Null));
    let labels = format!("{{cgroup=\"{cgroup}\",pod=\"shop/front\",container=\"main\"}}");
    let expected = [
        "plimsoll_containers_throttled 1".to_owned(),
        format!("plimsoll_container_throttled{labels} 1"),
        format!("plimsoll_container_stall_ratio{labels} 0.92"),
        format!("plimsoll_container_working_set_bytes{labels} 8388608"),
        format!("plimsoll_container_charge_rate{labels} -5"),
        format!("plimsoll_container_swap_bytes{labels} 7"),
        format!("plimsoll_container_swap_limit_bytes{labels} 9"),
        format!("plimsoll_container_zswap_bytes{labels} 2"),
        format!("plimsoll_container_tasks{labels} 11"),
        format!("plimsoll_container_task_limit{labels} 12"),
    ];
    assert_eq!(series(&reporter), expected, "what is unknown has no series");
    let found = lines(&mut reporter, &[ended(cgroup.as_bytes(), false)]);
    assert_eq!(
        text_of(&found[0]),
        format!("{shown} is throttled no more by its memory.high for 2s; its tasks waited for 1s")
    );
    assert_eq!(series(&reporter), ["plimsoll_containers_throttled 0"]);
}

#[test]
fn what_is_done_about_a_throttled_container_is_reported_and_counted() {
    let mut reporter = reporter("", None);
    let (path, at) = (&b"a.scope"[..], MonotonicNs(9));
    let (from, to, lasted) = (Bytes::mib(8), Bytes::mib(60), Duration::from_secs(13));
    let raising = |shadow| ContainerRecord::Raising { path, from, to, shadow, at };
    let victim = |shadow| ContainerRecord::Victim { plan: 3, path, lasted, shadow, at };
    let expected = [
        (raising(true), "raising", "memory.high of a.scope would be raised from 8.0 MiB to 60.0 MiB"),
        (raising(false), "raising", "memory.high of a.scope is raised from 8.0 MiB to 60.0 MiB"),
        (
            ContainerRecord::Raised { path, high: to, took: Duration::from_secs(1), at },
            "raised",
            "memory.high of a.scope is 60.0 MiB, 1s after that was ordered",
        ),
        (
            ContainerRecord::NotRaised { path, at },
            "not-raised",
            "memory.high of a.scope was not raised in time: services or the container runtime did not carry the order out",
        ),
        (
            ContainerRecord::InVain { path, lasted, at },
            "in-vain",
            "a.scope is throttled for 13s, although its memory.high was raised",
        ),
        (
            victim(true),
            "evict",
            "a.scope would be evicted: memory.high throttles one of its containers for 13s, although that was raised",
        ),
        (
            victim(false),
            "evict",
            "a.scope is evicted: memory.high throttles one of its containers for 13s, although that was raised",
        ),
    ];
    for (record, what, text) in expected {
        let found = lines(&mut reporter, &[record.into()]);
        assert_eq!((text_of(&found[0]), &found[0]["throttled"]), (text, &what.into()));
    }
    let metrics = reporter.answers().metrics();
    for name in ["throttled_relaxed", "throttled_not_relaxed", "throttled_pods_evicted"] {
        assert!(metrics.contains(&format!("\nplimsoll_{name}_total 1\n")), "{name}: {metrics}");
    }
}

#[test]
fn no_series_outlives_its_container_or_its_core() {
    let mut reporter = reporter("", None);
    let figures = |forecast| ContainerFigures { forecast, ..ContainerFigures::default() };
    let (near, next) = (figures(Some(Duration::from_millis(1500))), figures(Some(Duration::from_secs(9))));
    let list = |path, figures| {
        let records =
            [ContainerRecord::Begin { throttled: 0 }, ContainerRecord::Figures { path, figures }, ContainerRecord::End];
        records.map(Record::from)
    };
    let report = |reporter: &mut Reporter, records: &[Record<'_>]| records.iter().for_each(|it| reporter.report(it));
    let forecast = |name: &str, seconds: &str| {
        format!("plimsoll_container_oom_forecast_seconds{{cgroup=\"{name}\",pod=\"\",container=\"\"}} {seconds}")
    };
    let none = "plimsoll_containers_throttled 0".to_owned();
    report(&mut reporter, &list(b"a", near));
    assert_eq!(series(&reporter), [none.clone(), forecast("a", "1.5")]);
    // What is not complete yet is not shown.
    report(&mut reporter, &list(b"b", next)[..2]);
    assert_eq!(series(&reporter), [none.clone(), forecast("a", "1.5")]);
    report(&mut reporter, &list(b"b\"\n", next));
    assert_eq!(series(&reporter), [none.clone(), forecast("b\\\\\\\"\\\\n", "9.0")]);
    report(&mut reporter, &[throttled(b"c"), ended(b"c", true), ended(b"c", true)]);
    assert_eq!(series(&reporter), [none.clone(), forecast("b\\\\\\\"\\\\n", "9.0")]);
    report(&mut reporter, &[throttled(b"c"), armed("psi", None)]);
    assert_eq!(series(&reporter), [none], "another core has begun");
}

#[test]
fn the_number_of_series_is_bounded() {
    let mut reporter = reporter("", None);
    let paths: Vec<Vec<u8>> = (0..40).map(|number| format!("a-{number}").into_bytes()).collect();
    let count = |reporter: &Reporter| series(reporter).iter().filter(|line| line.contains("_throttled{")).count();
    for path in &paths {
        reporter.report(&throttled(path));
    }
    assert_eq!(count(&reporter), REPORTED_CONTAINERS);
    assert!(series(&reporter).contains(&"plimsoll_containers_throttled 40".to_owned()));
    reporter.report(&ContainerRecord::Begin { throttled: 40 }.into());
    for path in &paths {
        let Record::Container(ContainerRecord::Throttled { path, figures, .. }) = throttled(path) else { continue };
        reporter.report(&ContainerRecord::Figures { path, figures }.into());
    }
    reporter.report(&ContainerRecord::End.into());
    assert_eq!(count(&reporter), REPORTED_CONTAINERS);
}
