//! Finding a runtime, and what is said where there is none.

use crate::fake::{Fake, serve_at};
use plimsoll_cri::{Error, Limits, Runtime, USUAL_SOCKETS};
use std::io;
use std::path::Path;

fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

#[tokio::test]
async fn the_one_that_answers_is_found_and_two_are_not_guessed_between() {
    let folder = tempfile::tempdir().expect("a folder");
    let [containerd, k3s, crio] = ["containerd", "k3s", "crio"].map(|name| folder.path().join(name));
    let sockets = [&containerd, &k3s, &crio];
    let limits = Limits::default();

    let error = Runtime::find_among(&sockets, limits).await.err().expect("there is none");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    for socket in sockets {
        assert!(error.to_string().contains(&quoted(socket)), "{error}");
    }

    // As Docker ships it: a containerd without its CRI plugin.
    let old = Fake::with(|node| node.has_no_v1 = true);
    let _old = serve_at(containerd.clone(), &old);
    let error = Runtime::find_among(&sockets, limits).await.err().expect("there is none of v1");
    assert!(error.to_string().contains("disabled_plugins"), "{error}");

    let _k3s = serve_at(k3s.clone(), &Fake::default());
    let found = Runtime::find_among(&sockets, limits).await.expect("there is one");
    assert_eq!(found.socket(), k3s);
    assert_eq!(found.version().map(|it| (it.runtime.as_str(), it.interface.as_str())), Some(("fake", "v1")));

    let _crio = serve_at(crio.clone(), &Fake::default());
    let error = Runtime::find_among(&sockets, limits).await.err().expect("there are two");
    let text = error.to_string();
    assert!(matches!(error, Error::Ambiguous { .. }), "{error}");
    assert!(text.contains(&format!("{}, {}", quoted(&k3s), quoted(&crio))), "{text}");
    assert!(!text.contains(&quoted(&containerd)), "{text}");
}

#[tokio::test]
async fn an_error_names_the_socket_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a\u{1b}file");
    std::fs::write(&file, "").expect("the folder is new");
    let nothing = folder.path().join("nothing.sock");
    for (socket, kind) in [(&nothing, io::ErrorKind::NotFound), (&file, io::ErrorKind::ConnectionRefused)] {
        let error = Runtime::connect(socket, Limits::default()).await.err().expect("nothing listens");
        let Error::Connect { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(text.contains(&quoted(socket)) && !text.contains('\u{1b}'), "{text}");
    }
    for (kind, advice) in [
        (io::ErrorKind::NotFound, "usual sockets"),
        (io::ErrorKind::PermissionDenied, "group"),
        (io::ErrorKind::ConnectionRefused, "running"),
        (io::ErrorKind::WouldBlock, "hanging"),
        (io::ErrorKind::Other, "usual sockets"),
    ] {
        let text = Error::Connect { socket: nothing.clone(), source: kind.into() }.to_string();
        assert!(text.contains(advice), "{text}");
        if advice == "usual sockets" {
            assert!(
                USUAL_SOCKETS.iter().all(|(runtime, path)| text.contains(runtime) && text.contains(path)),
                "{text}"
            );
        }
    }
}
