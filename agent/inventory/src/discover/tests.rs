//! Walks over trees of plain directories, with `memory.current` where the memory controller would put it.

use super::*;
use crate::PodRoot;

fn path_of(found: &Found) -> String {
    String::from_utf8_lossy(&found.path).into_owned()
}

fn tree(paths: &[&str]) -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for path in paths {
        let mut below = dir.path().to_owned();
        for name in path.split('/') {
            below.push(name);
            std::fs::create_dir_all(&below).expect("writable");
            std::fs::write(below.join("memory.current"), "0\n").expect("writable");
        }
    }
    let root = Root::open(dir.path()).expect("it is there");
    (dir, root)
}

fn paths(found: &Discovery) -> Vec<String> {
    found.workloads.iter().map(path_of).collect()
}

fn service() -> Protected {
    let (own, init) = (b"system.slice/plimsoll.service".to_vec(), b"init.scope".to_vec());
    Protected { own, init, node: Vec::new() }
}

const MACHINE: &[&str] = &[
    "init.scope",
    "system.slice/plimsoll.service",
    "system.slice/a.service/inner",
    "system.slice/b.service",
    "user.slice/user-1.slice/session-1.scope",
    "user.slice/user-1.slice/user@1.service/app.slice/app.scope",
];

#[test]
fn patterns_find_their_workloads() {
    let (_dir, root) = tree(MACHINE);
    for (workloads, never, expected) in [
        (&["system.slice/*"][..], &[][..], &["system.slice/a.service", "system.slice/b.service"][..]),
        (&["system.slice/*"], &["system.slice/a.service/inner"], &["system.slice/b.service"]),
        (&["system.slice/*"], &["system.slice/a*"], &["system.slice/b.service"]),
        (
            &["user.slice/**"],
            &[],
            &["user.slice/user-1.slice/session-1.scope", "user.slice/user-1.slice/user@1.service/app.slice/app.scope"],
        ),
        (&["user.slice/user-1.slice", "user.slice/**"], &[], &["user.slice/user-1.slice"]),
        (&["none/*"], &[], &[]),
    ] {
        let patterns = Patterns::of(workloads, never);
        let found = discover(&root, &patterns, &service(), Bounds::default()).expect("readable");
        assert_eq!(paths(&found), expected, "{workloads:?} {never:?}");
        assert_eq!(found.exceeding, 0);
    }
}

#[test]
fn the_agent_is_refused_not_taken() {
    let (_dir, root) = tree(MACHINE);
    let patterns = Patterns::of(&["system.slice/*"], &[]);
    let found = discover(&root, &patterns, &service(), Bounds::default()).expect("readable");
    assert_eq!(found.refused, [b"system.slice/plimsoll.service"]);
}

#[test]
fn what_pods_depend_on_is_refused_with_what_holds_it_and_by_its_path() {
    let (dir, root) =
        tree(&[MACHINE, &["system.slice/k3s.service", "user.slice/user-1.slice/lab.scope/kubelet"]].concat());
    let patterns = Patterns::of(&["system.slice/*", "user.slice/user-1.slice/*.scope"], &[]);
    let node =
        ["system.slice/k3s.service", "user.slice/user-1.slice/lab.scope/kubelet"].map(|path| path.as_bytes().to_vec());
    let protected = Protected { node: node.to_vec(), ..service() };
    let found = discover(&root, &patterns, &protected, Bounds::default()).expect("readable");
    let refused: Vec<_> = found.refused.iter().map(|path| String::from_utf8_lossy(path)).collect();
    assert_eq!(
        refused,
        ["system.slice/k3s.service", "system.slice/plimsoll.service", "user.slice/user-1.slice/lab.scope"]
    );
    let others = ["system.slice/a.service", "system.slice/b.service", "user.slice/user-1.slice/session-1.scope"];
    assert_eq!(paths(&found), others);
    // The service manager makes a cgroup of its own for each start.
    std::fs::rename(dir.path().join("system.slice/k3s.service"), dir.path().join("old")).expect("writable");
    std::fs::create_dir(dir.path().join("system.slice/k3s.service")).expect("writable");
    assert_eq!(workload_of(&root, &patterns, &protected, b"system.slice/k3s.service"), None);
    for (path, why) in [
        ("system.slice/k3s.service", Some(plimsoll_policy::Protected::Node)),
        ("user.slice", Some(plimsoll_policy::Protected::Node)),
        ("system.slice", Some(plimsoll_policy::Protected::Agent)),
        ("system.slice/k3s", None),
        ("system.slice/k3s.service/below", None),
    ] {
        assert_eq!(protected.why(path.as_bytes()), why, "{path}");
    }
}

#[test]
fn what_cannot_be_read_may_hold_anything_that_must_not_be_touched() {
    let (dir, _root) = tree(&["work/a"]);
    let patterns = Patterns::of(&["work/*"], &["work/a/never"]);
    let protected = Protected::default();
    let walk = Walk::new(&patterns, &protected, Bounds::default());
    // A file has no directories.
    for (place, is_readable) in [("", true), ("memory.current", false)] {
        let fd = std::fs::File::open(dir.path().join("work/a").join(place)).expect("readable");
        assert_eq!(walk.must_be_spared(fd.as_fd(), b"work/a"), !is_readable, "{place}");
        assert_eq!(walk.is_leaf(fd.as_fd(), 2), is_readable, "{place}");
    }
}

/// Lets the group write the directory: delegated, as far as this user can make it so.
fn delegate(dir: &tempfile::TempDir, path: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(dir.path().join(path), std::fs::Permissions::from_mode(0o775)).expect("it is ours");
}

#[test]
fn at_the_depth_limit_the_ancestor_is_the_workload() {
    let deep = format!("user.slice/{}", "d/".repeat(40));
    let (_dir, root) = tree(&[&deep, "user.slice/other"]);
    let patterns = Patterns::of(&["user.slice/**"], &[]);
    let found = discover(&root, &patterns, &service(), Bounds::default()).expect("readable");
    let ancestor = format!("user.slice/{}", ["d"; 31].join("/"));
    assert_eq!(paths(&found), [&*ancestor, "user.slice/other"]);
    let of_leaf = workload_of(&root, &patterns, &service(), deep.as_bytes());
    assert_eq!(of_leaf.as_ref().map(path_of), Some(ancestor));
}

#[test]
fn an_owner_with_too_many_workloads_is_one_and_displaces_no_other() {
    let many: Vec<String> = (0..9).map(|n| format!("user.slice/1.service/leaf-{n}/inner")).collect();
    let all =
        many.iter().map(String::as_str).chain(["user.slice/2.service/a", "user.slice/2.service/b", "user.slice/c"]);
    let (dir, root) = tree(&all.collect::<Vec<_>>());
    delegate(&dir, "user.slice/1.service");
    delegate(&dir, "user.slice/2.service");
    let patterns = Patterns::of(&["user.slice/**"], &[]);
    let own = ["user.slice/2.service/a", "user.slice/2.service/b"];
    for (of_owner, count, of_second) in [(8, 99, &own[..]), (99, 4, &own), (9, 3, &["user.slice/2.service"])] {
        let bounds = Bounds { of_owner, count, ..Bounds::default() };
        let found = discover(&root, &patterns, &service(), bounds).expect("readable");
        let expected = [&["user.slice/1.service"], of_second, &["user.slice/c"]].concat();
        assert_eq!(paths(&found), expected, "{bounds:?}");
        assert_eq!((found.workloads[0].owner, found.exceeding), (None, 0));
    }
    let found = discover(&root, &patterns, &service(), Bounds::default()).expect("readable");
    assert_eq!(found.workloads.len(), 12);
    let owners: Vec<_> = found.workloads.iter().map(|found| found.owner.map(|owner| owner.id)).collect();
    let id =
        |path: &str| Some(id_of(open_below(root.as_fd(), path.as_bytes()).expect("it is there").as_fd()).expect("so"));
    assert_eq!(owners[..9], [id("user.slice/1.service"); 9]);
    assert_eq!(owners[9..], [id("user.slice/2.service"), id("user.slice/2.service"), None]);
}

#[test]
fn an_owner_that_holds_what_is_never_touched_is_not_merged() {
    let (dir, root) = tree(&["user.slice/1/a", "user.slice/1/b", "user.slice/1/c", "user.slice/1/keep"]);
    delegate(&dir, "user.slice/1");
    let patterns = Patterns::of(&["user.slice/**"], &["user.slice/1/keep"]);
    let found = discover(&root, &patterns, &service(), Bounds { of_owner: 2, ..Bounds::default() }).expect("readable");
    assert_eq!((paths(&found), found.exceeding), (vec!["user.slice/1/a".into(), "user.slice/1/b".into()], 1));
}

#[test]
fn a_link_is_not_followed() {
    let (dir, root) = tree(MACHINE);
    std::os::unix::fs::symlink("b.service", dir.path().join("system.slice/c.service")).expect("writable");
    let patterns = Patterns::of(&["system.slice/*"], &[]);
    let found = discover(&root, &patterns, &service(), Bounds::default()).expect("readable");
    assert_eq!(paths(&found), ["system.slice/a.service", "system.slice/b.service"]);
}

#[test]
fn a_cgroup_inside_belongs_to_its_workload() {
    let (_dir, root) = tree(MACHINE);
    let patterns = Patterns::of(&["system.slice/*", "user.slice/**"], &[]);
    for (path, workload) in [
        ("system.slice/a.service/inner", Some("system.slice/a.service")),
        ("system.slice/b.service", Some("system.slice/b.service")),
        ("system.slice/plimsoll.service", None),
        ("system.slice", None),
        ("user.slice/user-1.slice", None),
        ("user.slice/user-1.slice/session-1.scope", Some("user.slice/user-1.slice/session-1.scope")),
        ("init.scope", None),
        ("system.slice/gone.service", None),
    ] {
        let found = workload_of(&root, &patterns, &service(), path.as_bytes());
        assert_eq!(found.as_ref().map(path_of).as_deref(), workload, "{path}");
    }
}

#[test]
fn a_pod_is_one_workload_whatever_patterns_say() {
    let pod = |class: &str, last: char| {
        let middle = if class.is_empty() { String::new() } else { format!("kubepods-{class}.slice/") };
        let dash = if class.is_empty() { "" } else { "-" };
        format!("kubepods.slice/{middle}kubepods-{class}{dash}pod01234567_89ab_cdef_0123_456789abcde{last}.slice")
    };
    let (guaranteed, burstable) = (pod("", '1'), pod("burstable", '2'));
    let (monitored, kept) = (pod("besteffort", '3'), pod("besteffort", '4'));
    let scopes = [
        format!("{guaranteed}/cri-containerd-a.scope"),
        format!("{burstable}/cri-containerd-b.scope"),
        format!("{monitored}/crio-{}.scope", "0".repeat(64)),
        format!("{kept}/cri-containerd-d.scope"),
        "system.slice/a.service".to_owned(),
    ];
    let (_dir, root) = tree(&scopes.each_ref().map(String::as_str));
    let found = |workloads: &[&str], pods: bool| {
        let patterns = Patterns { pods: pods.then(PodRoot::default), ..Patterns::of(workloads, &[&kept]) };
        let found = discover(&root, &patterns, &Protected::default(), Bounds::default()).expect("readable");
        for it in &found.workloads {
            let inside = [&it.path[..], b"/"].concat();
            for path in scopes.iter().filter(|path| path.as_bytes().starts_with(&inside)) {
                let by_event = workload_of(&root, &patterns, &Protected::default(), path.as_bytes());
                assert_eq!(by_event.as_ref(), Some(it), "{path}");
            }
        }
        found
    };
    for workloads in [&[][..], &["system.slice/*"], &["kubepods.slice/**", "system.slice/*"], &["kubepods.slice"]] {
        let pods = found(workloads, true);
        let mut paths = paths(&pods);
        paths.retain(|path| path != "system.slice/a.service");
        let mut expected = [guaranteed.clone(), burstable.clone(), monitored.clone()];
        expected.sort();
        paths.sort();
        assert_eq!(paths, expected, "{workloads:?}");
        assert_eq!(pods.refused, [kept.as_bytes()]);
    }
    assert_eq!(paths(&found(&[], false)), [""; 0]);
}

#[test]
fn a_users_cgroup_with_the_name_of_a_pod_is_none() {
    use std::os::unix::fs::PermissionsExt as _;
    let forged = "kubepods/pod01234567-89ab-cdef-0123-456789abcdef";
    let (dir, root) = tree(&[forged]);
    // Others than the tree's own user may make cgroups in it.
    let owned = dir.path().join("kubepods");
    let mode = std::fs::metadata(&owned).expect("it is there").permissions().mode();
    std::fs::set_permissions(&owned, std::fs::Permissions::from_mode(mode | 0o020)).expect("it is ours");
    let patterns = Patterns { pods: Some(PodRoot::default()), ..Patterns::of(&["kubepods/**"], &[]) };
    let found = discover(&root, &patterns, &Protected::default(), Bounds::default()).expect("readable");
    assert_eq!((paths(&found), found.workloads[0].pod), (vec![forged.to_owned()], None));
    let by_event = workload_of(&root, &patterns, &Protected::default(), forged.as_bytes()).expect("it is a workload");
    assert_eq!(by_event.pod, None);
}
