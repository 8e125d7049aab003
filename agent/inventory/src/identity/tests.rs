use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A layout with a tree of its own in tests/data/cgroups. All have the same pods and containers.
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    /// The kubelet's `--cgroup-root`, where it is configured.
    pub(crate) cgroup_root: Option<&'static str>,
    pub(crate) monitor: Monitor,
}

/// Where the runtime keeps its monitors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Monitor {
    /// Not in a pod's cgroup.
    Elsewhere,
    /// In the pod's cgroup, one for each container.
    InPod,
}

const fn layout(name: &'static str, cgroup_root: Option<&'static str>, monitor: Monitor) -> Layout {
    Layout { name, cgroup_root, monitor }
}

pub(crate) const LAYOUTS: [Layout; 15] = [
    layout("cgroup-root-cgroupfs", Some("/batch/node-a"), Monitor::Elsewhere),
    layout("cgroup-root-systemd", Some("/batch/node-a"), Monitor::Elsewhere),
    layout("containerd-cgroupfs-1.6", None, Monitor::Elsewhere),
    layout("containerd-cgroupfs-1.7", None, Monitor::Elsewhere),
    layout("containerd-systemd-1.6", None, Monitor::Elsewhere),
    layout("containerd-systemd-1.7", None, Monitor::Elsewhere),
    layout("crio-cgroupfs", None, Monitor::InPod),
    layout("crio-systemd", None, Monitor::Elsewhere),
    layout("crio-systemd-monitor-in-pod", None, Monitor::InPod),
    layout("docker-cgroupfs", None, Monitor::Elsewhere),
    layout("docker-systemd", None, Monitor::Elsewhere),
    layout("k3s-in-container", None, Monitor::Elsewhere),
    layout("k3s-systemd", None, Monitor::Elsewhere),
    layout("kind-cgroupfs", None, Monitor::Elsewhere),
    layout("kind-systemd", None, Monitor::Elsewhere),
];

/// Every pod of every tree: its UID as the API has it, and its class. The last is a static pod.
const PODS: [(&str, QosClass); 4] = [
    ("0a000000-0000-4000-8000-000000000001", QosClass::Guaranteed),
    ("0a000000-0000-4000-8000-000000000002", QosClass::Burstable),
    ("0a000000-0000-4000-8000-000000000003", QosClass::BestEffort),
    ("5bd0c1f2a3e49687b5a4c3d2e1f00f1e", QosClass::Burstable),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/cgroups")
}

pub(crate) fn tree(layout: &str) -> Vec<String> {
    let text = fs::read_to_string(folder().join(layout).join("tree.txt")).expect("each layout has a tree");
    assert!(text.starts_with("# "), "{layout} says where it is from");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// A container of a pod, by what is known of it: id, whether it is a monitor.
type Known = (String, bool);

fn known(container: &ContainerCgroup<'_>) -> Known {
    let id = String::from_utf8_lossy(container.id).into_owned();
    (id, container.kind == ContainerKind::Monitor)
}

/// The sandbox and the container of each pod, and their monitors where those are in the pod's cgroup.
fn expected(monitor: Monitor) -> BTreeMap<Uid, (QosClass, BTreeSet<Known>)> {
    let of_pod = |(index, (uid, qos)): (usize, &(&str, QosClass))| {
        let ids = ["5a", "c0"].map(|kind| format!("{kind}0{}", index + 1).repeat(16));
        let containers = ids.iter().map(|id| (id.clone(), false));
        let monitors = ids.iter().filter(|_| monitor == Monitor::InPod).map(|id| (id.clone(), true));
        (Uid::of(uid), (*qos, containers.chain(monitors).collect()))
    };
    PODS.iter().enumerate().map(of_pod).collect()
}

#[test]
fn every_pod_and_container_of_every_saved_tree_is_known() {
    for Layout { name, cgroup_root, monitor } in LAYOUTS {
        let tree = tree(name);
        let mut found: BTreeMap<Uid, (QosClass, BTreeSet<Known>)> = BTreeMap::new();
        for path in &tree {
            let is_listed = |length: usize| tree.iter().any(|other| other.as_str() == &path[..length]);
            let pod = match cgroup_root {
                Some(root) => identify_in(root.as_bytes(), path.as_bytes()),
                None => identify(path.as_bytes()),
            };
            let Some(PodCgroup { uid, qos, length, container }) = pod else {
                assert!(!path.contains("kubepods") || !path.contains("pod0a"), "{name}: {path}");
                continue;
            };
            assert!(is_listed(length), "{name}: {path}");
            let pod = found.entry(uid).or_insert((qos, BTreeSet::new()));
            assert_eq!(pod.0, qos, "{name}: {path}");
            assert_eq!(container.is_none(), length == path.len(), "{name}: {path}");
            if let Some(container) = container {
                assert!(is_listed(container.length), "{name}: {path}");
                pod.1.insert(known(&container));
            }
        }
        assert_eq!(found, expected(monitor), "{name}");
    }
}

#[test]
fn what_only_looks_like_a_pod_is_none() {
    for path in tree("no-pods") {
        assert_eq!(identify(path.as_bytes()), None, "{path}");
        assert_eq!(identify(format!("/{path}").as_bytes()), None, "/{path}");
    }
    for path in tree("containerd-cgroupfs-1.7").iter().filter(|path| path.contains("pod0a")) {
        for spoilt in [format!("/{path}"), path.replacen('/', "//", 1), format!("./{path}"), path.to_uppercase()] {
            assert_eq!(identify(spoilt.as_bytes()), None, "{spoilt}");
        }
        assert_eq!(identify_in(b"/batch/node-a", path.as_bytes()), None, "only the configured root counts: {path}");
    }
}

#[test]
fn every_saved_tree_has_its_row_here_and_in_the_document() {
    let folders = fs::read_dir(folder()).expect("it is there").map(|entry| entry.expect("readable"));
    let folders: BTreeSet<_> = folders
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("a name"))
        .collect();
    let rows: BTreeSet<_> = LAYOUTS.iter().map(|layout| layout.name).chain(["no-pods"]).map(str::to_owned).collect();
    assert_eq!(folders, rows);
    let document = fs::read_to_string(folder().join("README.md")).expect("it is there");
    for name in &rows {
        assert_eq!(document.lines().filter(|line| line.starts_with(&format!("| {name} |"))).count(), 1, "{name}");
    }
}

#[test]
fn a_cgroup_that_no_runtime_names_so_is_no_container() {
    let pod = format!("kubepods/burstable/pod{}", PODS[1].0);
    let id = "0123456789abcdef".repeat(4);
    let of = |name: &str| {
        let path = format!("{pod}/{name}");
        let found = identify(path.as_bytes()).expect("it is in a pod");
        assert_eq!(found.length, pod.len());
        found.container.map(|container| (known(&container), container.length == path.len()))
    };
    assert_eq!(of(&id), Some(((id.clone(), false), true)));
    assert_eq!(of(&format!("{id}/")), Some(((id.clone(), false), false)));
    for name in [
        String::new(),
        "container".to_owned(),
        id[1..].to_owned(),
        format!("{id}0"),
        id.to_uppercase(),
        format!("{id}.scope"),
        format!("crio-{id}.mount"),
        format!("crio-crio-{id}"),
        format!("cri-containerd-{id}"),
        format!("cri-containerd-{id}.slice"),
        format!("libpod-{id}.scope"),
        format!("{}g", &id[1..]),
    ] {
        assert_eq!(of(&name), None, "{name}");
    }
}

#[test]
fn a_monitor_is_what_its_runtime_names_so() {
    let id = "0123456789abcdef".repeat(4);
    for (name, expected) in [
        (format!("crio-conmon-{id}.scope"), true),
        (format!("crio-conmon-{id}"), true),
        (format!("crio-{id}.scope"), false),
        (id.clone(), false),
        (format!("crio-conmon-{id}.slice"), false),
        (format!("crio-conmon-{}.scope", &id[1..]), false),
        ("crio-conmon-.scope".to_owned(), false),
    ] {
        assert_eq!(is_monitor(name.as_bytes()), expected, "{name}");
    }
}

#[test]
fn a_root_is_taken_as_the_kubelet_takes_it() {
    let uid = PODS[1].0;
    let path = format!("a/b-c/kubepods/pod{uid}");
    for root in ["a/b-c", "/a/b-c", "/a/b-c/", "a//b-c"] {
        assert!(identify_in(root.as_bytes(), path.as_bytes()).is_some(), "{root}");
    }
    for root in ["", "/", "a", "a/b", "a/b_c", "a/b-c/d", "b-c"] {
        assert!(identify_in(root.as_bytes(), path.as_bytes()).is_none(), "{root}");
    }
    let slice = format!("kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_"));
    assert!(identify_in(b"/", slice.as_bytes()).is_some());
    assert!(identify_in(b"kubelet", slice.as_bytes()).is_none());
}

#[test]
fn nothing_is_allocated() {
    let paths: Vec<String> = LAYOUTS.iter().flat_map(|layout| tree(layout.name)).collect();
    let mut pods = 0;
    let counted = allocation_counter::measure(|| {
        for path in &paths {
            pods += usize::from(identify(path.as_bytes()).is_some());
            pods += usize::from(identify_in(b"/batch/node-a", path.as_bytes()).is_some());
        }
    });
    assert!(pods > 100);
    assert_eq!(counted.count_total, 0);
}

/// The path of a pod, as a driver of the kubelet's writes it.
fn pod_path(is_systemd: bool, above: &[String], qos: QosClass, uid: &str) -> String {
    let class = match qos {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable"),
        QosClass::BestEffort => Some("besteffort"),
    };
    let pod = format!("pod{uid}");
    let names: Vec<&str> =
        above.iter().map(String::as_str).chain(["kubepods"]).chain(class).chain([pod.as_str()]).collect();
    if !is_systemd {
        return names.join("/");
    }
    let escaped: Vec<String> = names.iter().map(|name| name.replace('-', "_")).collect();
    let slices: Vec<String> = (1..=escaped.len()).map(|count| escaped[..count].join("-") + ".slice").collect();
    slices.join("/")
}

fn any_qos() -> impl Strategy<Value = QosClass> {
    prop::sample::select(vec![QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort])
}

/// Pieces of paths, so that many are right almost to the end.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    let pieces = [
        "/",
        "-",
        "_",
        ".slice",
        ".scope",
        "kubelet",
        "kubepods",
        "kubepods.slice/kubepods-",
        "kubepods/",
        "burstable",
        "besteffort",
        "pod",
        "kubepods/burstable/pod",
        "0a000000-0000-4000-8000-000000000002",
        "5bd0c1f2a3e49687b5a4c3d2e1f00f1e",
        "0a000000_0000_4000_8000_000000000002",
        "cri-containerd-",
        "crio-conmon-",
        "c002c002c002c002c002c002c002c002c002c002c002c002c002c002c002c002",
    ];
    prop_oneof![
        4 => prop::sample::select(pieces.map(|piece| piece.as_bytes().to_vec()).to_vec()),
        1 => vec(any::<u8>(), 0..4),
    ]
}

/// Every length is the end of a name, and a pod's own cgroup alone is the same pod.
fn assert_lengths(path: &[u8], identify: impl Fn(&[u8]) -> Option<PodCgroup<'_>>) {
    let Some(found) = identify(path) else { return };
    let is_end = |length: usize| length == path.len() || path[length] == b'/';
    assert!(is_end(found.length));
    if let Some(container) = found.container {
        assert!(container.length > found.length && is_end(container.length));
    }
    assert_eq!(identify(&path[..found.length]), Some(PodCgroup { container: None, ..found }));
}

proptest! {
    #[test]
    fn a_path_as_the_kubelet_writes_it_gives_its_pod(
        is_systemd in any::<bool>(),
        above in vec("[a-z][a-z0-9-]{0,6}", 0..4),
        qos in any_qos(),
        uid in "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}",
        below in "(/[a-z.]{0,5}){0,3}",
    ) {
        let pod = pod_path(is_systemd, &above, qos, &uid);
        let path = format!("{pod}{below}");
        let expected = PodCgroup { uid: Uid::of(&uid), qos, length: pod.len(), container: None };
        let root = above.join("/");
        prop_assert_eq!(identify_in(root.as_bytes(), path.as_bytes()), Some(expected));
        let is_known = root.is_empty() || root == "kubelet";
        prop_assert_eq!(identify(path.as_bytes()), is_known.then_some(expected));
    }

    #[test]
    fn any_bytes_are_answered(root in vec(any_piece(), 0..3), pieces in vec(any_piece(), 0..12)) {
        let (root, path) = (root.concat(), pieces.concat());
        assert_lengths(&path, identify);
        assert_lengths(&path, |path| identify_in(&root, path));
    }

    #[test]
    fn any_bytes_in_a_pod_are_answered(pieces in vec(any_piece(), 0..6)) {
        let path = [format!("kubepods/pod{}/", PODS[0].0).into_bytes(), pieces.concat()].concat();
        assert_lengths(&path, identify);
        prop_assert!(identify(&path).is_some());
    }
}
