use super::super::{State, text};
use super::*;
use crate::check::ROW_CHARACTERS;
use rustix::io::Errno;
use std::io::Write as _;
use std::os::unix::net::UnixListener;

/// For what hangs, and for what answers at once.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_mins(1);

fn images(images: &Path, containers: &Path) -> FileSystems {
    let fs = |directory: &Path| {
        vec![plimsoll_cri::FileSystem { directory: directory.to_owned(), used: None, inodes: None, counted: None }]
    };
    FileSystems { images: fs(images), containers: fs(containers) }
}

fn answers(file_systems: FileSystems) -> RuntimeFacts {
    RuntimeFacts {
        socket: "/run/c.sock".into(),
        origin: None,
        version: Some(Version { runtime: "containerd".into(), version: "1.7.24".into(), interface: "v1".into() }),
        sandboxes: Ok(1),
        containers: Ok(2),
        images: Ok(0),
        file_systems: Ok(file_systems),
    }
}

/// A node whose images and writable layers are in these directories.
fn node(root: &Path, file_systems: FileSystems) -> NodeFacts {
    let disks = asked_disks(root, Ok(file_systems.clone()));
    NodeFacts { is_configured: false, runtime: Ok(answers(file_systems)), disks }
}

fn asked_disks(root: &Path, images: Result<FileSystems, String>) -> DiskFacts {
    let asked = root.to_owned();
    // No list of projects.
    ask_disks(&root.display().to_string(), LONG, move || layout(&asked, &images, &asked.join("projects")))
}

/// Name, whether it is in order, and what was found.
fn found(facts: &NodeFacts) -> Vec<(String, bool, String)> {
    let rows = rows(facts);
    assert!(rows.iter().all(|row| (row.state == State::Ok) == row.advice.is_empty()), "{rows:?}");
    rows.into_iter().map(|row| (row.name, row.state == State::Ok, row.found)).collect()
}

fn why(asked: Result<RuntimeFacts, String>) -> String {
    asked.err().expect("it is no runtime")
}

#[test]
fn a_machine_that_is_no_node_needs_no_runtime() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("none.sock");
    let root = folder.path().join("kubelet");
    let gathered = |root: &Path, is_configured| NodeFacts {
        is_configured,
        runtime: ask_runtime(None, &[&socket], LONG),
        disks: asked_disks(root, Err("no runtime".to_owned())),
    };
    let rows = found(&gathered(&root, false));
    assert_eq!(rows, [("container runtime".to_owned(), true, "none, and no kubelet".to_owned())]);

    // Named in a configuration: the directory and the runtime are missing.
    let rows = found(&gathered(&root, true));
    assert!(rows.len() == 2 && rows.iter().all(|(_, is_good, _)| !is_good), "{rows:?}");
    assert!(rows[0].2.contains("none.sock"), "{rows:?}");
    assert!(rows[1].2.contains(root.to_str().expect("text")), "{rows:?}");

    // The directory alone says it, and nodefs is known without a runtime.
    std::fs::create_dir(&root).expect("a folder");
    let rows = found(&gathered(&root, false));
    let names: Vec<_> = rows.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["container runtime", "disk layout", "nodefs"]);
    assert!(!rows[0].1 && !rows[1].1 && rows[2].2.contains(" available, "), "{rows:?}");
    assert!(rows[1].2.contains("only nodefs") && rows[1].2.contains("no runtime"), "{rows:?}");
}

#[test]
fn what_listens_and_is_no_runtime_is_named_with_its_socket_and_its_origin() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("ssh.sock");
    let listener = UnixListener::bind(&socket).expect("the folder is new");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.expect("a listener accepts").write_all(b"SSH-2.0-OpenSSH_9.9\r\n");
        }
    });
    let flag = Origin::Flag("--runtime-socket".to_owned());
    let named = |endpoint: String| why(ask_runtime(Some((endpoint, &flag)), &[&socket], LONG));
    let (by_flag, found) = (named(format!("unix://{}", socket.display())), why(ask_runtime(None, &[&socket], LONG)));
    for why in [&by_flag, &found] {
        assert!(why.contains("ssh.sock") && why.contains("does not answer as a container runtime"), "{why}");
    }
    assert!(by_flag.ends_with("(named by --runtime-socket)") && !found.contains("named by"), "{by_flag} {found}");
    let no_socket = named("tcp://localhost:1".to_owned());
    assert!(no_socket.contains("tcp://localhost:1") && !no_socket.contains("ssh.sock"), "{no_socket}");
}

#[test]
fn what_hangs_costs_its_limit_and_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let sockets = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
    let _listeners = sockets.each_ref().map(|socket| UnixListener::bind(socket).expect("the folder is new"));
    let named = why(ask_runtime(Some((sockets[0].display().to_string(), &Origin::Default)), &[""; 0], SHORT));
    assert!(named.contains("a.sock") && named.contains("did not answer Version"), "{named}");
    let one = why(ask_runtime(None, &sockets[..1], SHORT));
    assert!(one.contains("a.sock") && one.contains("did not answer Version"), "{one}");
    // Both together are out of time before each was.
    let both = why(ask_runtime(None, &sockets, SHORT));
    assert!(both.starts_with("no container runtime answers within 300ms at ") && both.ends_with("b.sock"), "{both}");
}

#[test]
fn a_disk_that_hangs_costs_its_limit_and_is_named() {
    let (_never, hangs) = std::sync::mpsc::channel();
    let asked = ask_disks("/a/kubelet", SHORT, move || hangs.recv().unwrap_or(DiskFacts::NoKubelet(String::new())));
    let rows = found(&NodeFacts { is_configured: false, runtime: Err("none".to_owned()), disks: asked });
    assert!(rows.len() == 2 && !rows[0].1 && !rows[1].1, "{rows:?}");
    assert_eq!(rows[1].2, "/a/kubelet, or where images are, does not answer within 300ms");
}

#[test]
fn the_layout_is_named_and_each_role_has_its_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let [here, proc] = [folder.path(), Path::new("/proc")];
    for (file_systems, layout, is_good, on_proc) in [
        (images(here, here), "one file system", true, 0),
        (images(proc, proc), "dedicated imagefs", true, 2),
        (images(proc, here), "split", true, 1),
        (images(here, proc), "unsupported layout: images are on the kubelet's", false, 1),
        (images(proc, Path::new("/sys")), "unsupported layout: nodefs, imagefs and containerfs are three", false, 1),
    ] {
        let rows = found(&node(here, file_systems));
        let names: Vec<_> = rows.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["container runtime", "disk layout", "nodefs", "imagefs", "containerfs"]);
        assert_eq!(rows[0].2, "containerd 1.7.24 at /run/c.sock, found: 1 sandbox, 2 containers, 0 images");
        assert!(rows[1].1 == is_good && rows[1].2.starts_with(layout), "{rows:?}");
        assert!(rows[2].2.contains(" available, ") && rows[2].2.contains(" inodes"), "{rows:?}");
        // It counts nothing, and is of no type that a kubelet measures.
        let nothing = "proc) at /proc: bytes are not counted, inodes are not counted";
        let on: Vec<_> = rows.iter().filter(|(_, is_good, found)| !is_good && found.ends_with(nothing)).collect();
        assert_eq!(on.len(), on_proc, "{rows:?}");
    }
}

#[test]
fn what_is_not_known_is_named_and_nothing_else_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let mut facts = node(here, images(here, here));
    let DiskFacts::Known { left, .. } = &mut facts.disks else { panic!("it is known") };
    left[0].1 = Err("it does not answer".to_owned());
    facts.runtime.as_mut().expect("it answers").images = Err("no answer in time".to_owned());
    let rows = found(&facts);
    assert!(!rows[0].1 && rows[0].2.ends_with("1 sandbox, 2 containers, images: no answer in time"), "{rows:?}");
    assert!(
        rows[1].1 && rows[2..].iter().all(|(_, is_good, found)| !is_good && found.ends_with("not answer")),
        "{rows:?}"
    );

    let rows = found(&node(here, images(&here.join("gone"), here)));
    assert!(rows.len() == 3 && rows[1].2.contains("gone") && rows[2].2.contains(" available, "), "{rows:?}");
}

#[test]
fn project_quotas_have_a_row_where_there_are_some() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let mut facts = node(here, images(here, here));
    let mut last_row = |found_quotas| {
        let DiskFacts::Known { quotas, .. } = &mut facts.disks else { panic!("it is known") };
        *quotas = found_quotas;
        found(&facts).pop().expect("there are rows")
    };
    assert_eq!(last_row(Ok(Quotas::default())).0, "containerfs");
    let figure = quotas::Figure { pod: "a".into(), volume: "b".into(), bytes: 1, inodes: 1 };
    let read = Quotas { listed: 2, figures: vec![figure], refused: None };
    let refused = Quotas { listed: 1, figures: Vec::new(), refused: Some(Errno::NOSYS) };
    for (quotas, is_good, text) in [
        (Ok(read), true, "read of 1 of 2 volumes of pods in /etc/projects"),
        (
            Ok(refused),
            false,
            "1 volume of a pod in /etc/projects, and the kernel gives this process no figures: \
             Function not implemented (os error 38)",
        ),
        (Err("/etc/projects: file too large".to_owned()), false, "/etc/projects: file too large"),
    ] {
        assert_eq!(last_row(quotas), ("project quotas".to_owned(), is_good, text.to_owned()));
    }
    // As it is gathered: what is not there, as of a pod that has gone, is no trouble.
    std::fs::write(here.join("projects"), format!("5:{}/pods/a/volumes/kubernetes.io~empty-dir/b\n", here.display()))
        .expect("a file");
    let (name, is_good, found) = found(&node(here, images(here, here))).pop().expect("there are rows");
    assert!(name == "project quotas" && is_good && found.starts_with("read of 0 of 1 volume"), "{name}: {found}");
}

#[test]
fn names_made_to_hurt_are_one_short_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut facts = node(folder.path(), images(folder.path(), folder.path()));
    let runtime = facts.runtime.as_mut().expect("it answers");
    let version = runtime.version.as_mut().expect("it says one");
    (version.runtime, version.version) = ("\u{1b}[2J".repeat(1 << 18), "1\nok  nodefs".to_owned());
    runtime.images = Err("x".repeat(1 << 20));
    let rows = rows(&facts);
    assert!(rows[0].found.len() <= ROW_CHARACTERS && rows[0].found.contains("1 sandbox"), "{}", rows[0].found);
    let text = text(&rows);
    assert!(text.chars().all(|character| character == '\n' || !character.is_control()), "{text}");
    assert!(!text.contains("\nok  nodefs"), "{text}");
}
