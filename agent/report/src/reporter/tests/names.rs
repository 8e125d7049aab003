use super::*;
use crate::names::tests::path;
use crate::names::{NAME_MESSAGE, NameMessage, PodNames};

#[test]
fn pods_are_named_beside_their_cgroups() {
    let file = tempfile::tempfile().expect("a temporary file");
    let mut reporter = reporter("", Some(file.try_clone().expect("a second descriptor")));
    let traced = Arc::new(Mutex::new(Vec::new()));
    let entries = Arc::clone(&traced);
    reporter.trace(move |entry| {
        entries.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{entry:?}"));
        true
    });
    let uid = "01234567-89ab-cdef-0123-456789abcdee";
    let mut names = PodNames::new(Uid::of(uid), "default", "web");
    names.add_container(&"ab".repeat(32), "main");
    for message in [NameMessage::Begin, NameMessage::Pod(names), NameMessage::Complete] {
        reporter.take_names(message.encode(&mut [0; NAME_MESSAGE]));
    }
    let pod = path(uid);
    let container = format!("{pod}/cri-containerd-{}.scope", "ab".repeat(32));
    let kill = |path: &'static str| EnforcementRecord::Kill {
        plan: 7,
        path: path.as_bytes(),
        usage: None,
        at: MonotonicNs(130),
        what: Killed::Begun,
    };
    let (pod, container): (&'static str, &'static str) = (pod.leak(), container.leak());
    let mut parts = plan(false);
    parts[2] = PlanRecord::Ranked { ranked: ranked(), path: pod.as_bytes() }.into();
    let (brake, cgroup) = (Braked::Frozen, container.as_bytes());
    let freeze = EnforcementRecord::Brake { path: container.as_bytes(), at: MonotonicNs(120), what: brake };
    let suspect = MachineRecord::Suspect {
        pid: 1,
        name: b"a",
        cgroup,
        resident: Bytes(1),
        huge_pages: Bytes(1),
        packet_rings: Bytes(0),
    };
    let mut records = vec![freeze.into(), kill(pod).into()];
    records.extend(parts);
    records.push(suspect.into());
    records.push(kill("system.slice/a").into());
    let lines = lines(&mut reporter, &records);
    let [freeze, kill, plan, suspect, other] = &lines[..] else { panic!("{lines:?}") };
    let in_container = format!("{container} (pod default/web, container main)");
    for (line, text) in [
        (freeze, format!("{in_container} is frozen")),
        (kill, format!("killed {pod} (pod default/web)")),
        (plan, format!("evict {pod} (pod default/web)")),
        (suspect, format!("in /{in_container} holds")),
        (other, "killed system.slice/a".to_owned()),
    ] {
        assert!(text_of(line).contains(&text), "{text}: {line}");
    }
    for (line, pointer, expected) in [
        (freeze, "/pod", "default/web".into()),
        (freeze, "/container", "main".into()),
        (kill, "/pod", "default/web".into()),
        (kill, "/cgroup", pod.into()),
        (kill, "/container", Value::Null),
        (plan, "/actions/0/pod", "default/web".into()),
        (plan, "/candidates/0/pod", "default/web".into()),
        (plan, "/candidates/0/cgroup", pod.into()),
        (suspect, "/container", "main".into()),
        (other, "/pod", Value::Null),
    ] {
        assert_eq!(line.pointer(pointer), Some(&expected), "{pointer} of {line}");
    }
    // A replay of a trace knows no names, and compares the plans field by field.
    let traced = traced.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
    assert!(traced.contains(pod) && !traced.contains("default/web"), "{traced}");
    reporter.close();
    let mut text = [0; 2048];
    let length = std::os::unix::fs::FileExt::read_at(&file, &mut text, 0).expect("readable");
    let text = std::str::from_utf8(&text[..length]).expect("text");
    let begin = format!("<4>plimsoll: killed {pod}: usage unknown, available 90.0 MiB");
    let [first, second] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(first.starts_with(&begin) && first.ends_with(", threshold 100.0 MiB, pod default/web"), "{text}");
    assert_eq!(second, "<4>plimsoll: killed system.slice/a: usage unknown");
}

#[test]
fn names_that_cannot_be_read_are_reported_once() {
    let mut reporter = reporter("", None);
    let lines = logged(LogFormat::Text, LevelFilter::INFO, |_| {
        for _ in 0..2 {
            reporter.take_names(b"garbage");
        }
    });
    assert_eq!(lines, ["warn: names of pods that services sent and that cannot be read are left out"]);
}
