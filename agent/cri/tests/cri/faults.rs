//! Runtimes that hang, vanish, come back, or answer with garbage.

use crate::fake::{Fake, Manner, connected, container, image, proto, serve};
use core::future::ready;
use core::time::Duration;
use plimsoll_cri::{Call, Dial, Error, Limits, Runtime};
use plimsoll_units::Bytes;
use proptest::prelude::*;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

/// For what hangs. A machine that is busy may take longer for what does not.
const SHORT: Limits =
    Limits { read: Duration::from_millis(300), change: Duration::from_millis(300), list: Bytes::mib(16) };

/// Asks until there is an answer, for what may be too slow for a short limit.
async fn images_at_last(runtime: &mut Runtime) -> usize {
    for _ in 0..100 {
        match runtime.images().await {
            Ok(images) => return images.len(),
            Err(Error::TimedOut { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no answer in 100 tries");
}

#[tokio::test]
async fn a_runtime_that_hangs_times_out_and_answers_again_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let fake = Fake::with(|node| node.images = vec![image("sha256:a", 1)]);
    let served = serve(folder.path(), &fake);
    let mut runtime = Runtime::at(&served.socket, SHORT);
    assert_eq!(images_at_last(&mut runtime).await, 1);
    fake.change(|node| node.manner = Manner::Hang);
    let error = runtime.images().await.expect_err("it hangs");
    assert!(matches!(error, Error::TimedOut { limit, .. } if limit == SHORT.read), "{error}");
    let error = runtime.images_in_use().await.expect_err("it hangs");
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let id = "a".to_owned().try_into().expect("an id");
    let error = runtime.remove_image(&id).await.expect_err("it hangs");
    assert!(matches!(error, Error::TimedOut { limit, .. } if limit == SHORT.change), "{error}");
    fake.change(|node| node.manner = Manner::Well);
    assert_eq!(images_at_last(&mut runtime).await, 1);
}

/// Many containers that each answer in time may take too long together.
#[tokio::test]
async fn all_statuses_together_have_a_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let change = Duration::from_millis(1);
    let limits = Limits { change, ..Limits::default() };
    let fake = Fake::with(|node| node.containers = vec![container("a", |_| ())]);
    let served = serve(folder.path(), &fake);
    let mut runtime = Runtime::connect(&served.socket, limits).await.expect("it answers");
    fake.change(|node| node.manner = Manner::Slow(100 * change));
    let error = runtime.images_in_use().await.expect_err("there is no time");
    assert!(matches!(error, Error::TimedOut { limit, .. } if limit == change), "{error}");
}

/// Serves raw bytes: whatever is sent, this comes back, and then nothing. The end of what it was sent is reported.
fn serve_raw(folder: &Path, answer: &'static [u8]) -> (std::path::PathBuf, oneshot::Receiver<()>) {
    let socket = folder.join("raw.sock");
    let listener = UnixListener::bind(&socket).expect("the folder is new");
    let (ended, end) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a listener accepts");
        let _ = stream.write_all(answer).await;
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        let _ = ended.send(());
    });
    (socket, end)
}

#[tokio::test]
async fn what_never_says_a_word_times_out_and_is_left() {
    // Nothing at all, or the settings that HTTP/2 begins with.
    for answer in [&b""[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]] {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, end) = serve_raw(folder.path(), answer);
        let error = Runtime::connect(&socket, SHORT).await.err().expect("nothing comes");
        assert!(matches!(error, Error::TimedOut { call: Call::Version, .. }), "{error}");
        // The other side reads to the end: nothing of ours is left behind that holds the connection.
        tokio::time::timeout(Duration::from_mins(1), end)
            .await
            .expect("the connection is closed")
            .expect("it is reported");
    }
}

#[tokio::test]
async fn what_speaks_no_http2_is_no_runtime() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..],
        // A frame of data for no request.
        &[0; 9],
        b"SSH-2.0-OpenSSH_9.9\r\n",
        &[0xff; 4096],
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, _end) = serve_raw(folder.path(), answer);
        let error = Runtime::connect(&socket, Limits::default()).await.err().expect("it is no runtime");
        assert!(matches!(error, Error::NotCri { .. }), "{answer:?}: {error}");
        assert!(error.to_string().contains("raw.sock") && error.to_string().contains("/run/crio/crio.sock"), "{error}");
    }
}

#[tokio::test]
async fn a_restarted_runtime_is_not_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, served, mut runtime) = connected(folder.path(), |node| node.images = vec![image("a", 1)]).await;
    assert_eq!(runtime.images().await.expect("it answers").len(), 1);
    served.stop().await;
    let error = runtime.images().await.expect_err("it is gone");
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    let served = serve(folder.path(), &fake);
    assert_eq!(runtime.images().await.expect("it is back").len(), 1);
    served.stop().await;
    let _served = serve(folder.path(), &fake);
    assert_eq!(runtime.images().await.expect("it was gone in between").len(), 1);
    assert_eq!(fake.calls(), ["ListImages", "Version", "ListImages", "Version", "ListImages"]);
}

/// As in a process that may not connect: each connection is handed in, and a new one where one was lost.
#[tokio::test]
async fn connections_are_handed_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let fake = Fake::default();
    let served = serve(folder.path(), &fake);
    let (count, socket) = (Arc::new(AtomicUsize::new(0)), served.socket.clone());
    let counted = Arc::clone(&count);
    let dial = Dial::by(move |asked| {
        assert_eq!(asked, Path::new("/of/another/name"));
        counted.fetch_add(1, Ordering::Relaxed);
        UnixStream::connect(socket.clone())
    });
    let mut runtime = Runtime::at("/of/another/name", Limits::default()).through(dial.clone());
    assert_eq!(count.load(Ordering::Relaxed), 0, "nothing was asked yet");
    runtime.images().await.expect("it answers");
    fake.change(|node| node.manner = Manner::Drop { once: true });
    runtime.images().await.expect("the second connection holds");
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(fake.calls(), ["Version", "ListImages", "ListImages", "Version", "ListImages"]);
    let found = Runtime::find_through(&["/of/another/name"], Limits::default(), &dial).await.expect("it answers");
    assert_eq!(found.socket(), Path::new("/of/another/name"));
    let refused = Dial::by(|_| ready(Err(ErrorKind::ConnectionRefused.into())));
    let error = Runtime::at("/nowhere", Limits::default()).through(refused).images().await.expect_err("it is refused");
    assert!(
        matches!(&error, Error::Connect { source, .. } if source.kind() == ErrorKind::ConnectionRefused),
        "{error}"
    );
}

#[tokio::test]
async fn a_lost_connection_is_made_anew_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) = connected(folder.path(), |node| node.manner = Manner::Drop { once: true }).await;
    runtime.images().await.expect("the second connection holds");
    assert_eq!(fake.calls(), ["ListImages", "Version", "ListImages"]);

    fake.change(|node| node.manner = Manner::Drop { once: false });
    let error = runtime.images().await.expect_err("no connection holds");
    assert!(matches!(error, Error::Lost { call: Call::ListImages, .. }), "{error}");
    assert_eq!(fake.calls(), ["ListImages", "Version", "ListImages"]);
    fake.change(|node| node.manner = Manner::Well);
    runtime.images().await.expect("it answers again");
}

#[tokio::test]
async fn an_answer_beyond_the_limit_is_refused_and_the_next_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let fake = Fake::with(|node| {
        node.images = (0..1000).map(|number| image(&format!("sha256:{number}"), 1)).collect();
        node.containers = vec![container("a", |_| ())];
    });
    let served = serve(folder.path(), &fake);
    let limits = Limits { list: Bytes(4096), ..Limits::default() };
    let mut runtime = Runtime::connect(&served.socket, limits).await.expect("it answers");
    let error = runtime.images().await.expect_err("it is too large");
    assert!(matches!(error, Error::TooLarge { call: Call::ListImages, .. }), "{error}");
    assert!(error.to_string().contains("4096"), "{error}");
    assert_eq!(runtime.containers().await.expect("they are few").len(), 1);
}

#[tokio::test]
async fn as_many_are_listed_as_the_documents_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let padded = |text: String, to: usize| format!("{text}{}", "x".repeat(to - text.len()));
    let (_fake, _served, mut runtime) = connected(folder.path(), |node| {
        node.containers = (0..8000)
            .map(|number| {
                container(&padded(number.to_string(), 64), |it| {
                    it.annotations.insert("a".to_owned(), padded(String::new(), 1850));
                })
            })
            .collect();
        node.images = (0..20_000)
            .map(|number| {
                let mut image = image(&padded(format!("sha256:{number}"), 71), 1);
                image.repo_tags = vec![padded(String::new(), 720)];
                image
            })
            .collect();
        node.sandboxes = (0..110)
            .map(|number| proto::PodSandbox {
                id: number.to_string(),
                metadata: Some(proto::PodSandboxMetadata::default()),
                annotations: [("a".to_owned(), padded(String::new(), 140 << 10))].into(),
                ..proto::PodSandbox::default()
            })
            .collect();
    })
    .await;
    assert_eq!(runtime.containers().await.expect("they fit").len(), 8000);
    assert_eq!(runtime.images().await.expect("they fit").len(), 20_000);
    assert_eq!(runtime.sandboxes().await.expect("they fit").len(), 110);
}

#[tokio::test]
async fn an_old_runtime_and_a_nameless_one_are_distinguished() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, served, mut runtime) = connected(folder.path(), |_| ()).await;
    fake.change(|node| node.manner = Manner::Refuse(tonic::Code::Unimplemented, "unknown method \u{1b}[2J"));
    let error = runtime.file_systems().await.expect_err("it has no such call");
    assert!(matches!(error, Error::Failed { code: tonic::Code::Unimplemented, .. }), "{error}");
    assert!(error.to_string().contains("ImageFsInfo") && !error.to_string().contains('\u{1b}'), "{error}");
    fake.change(|node| node.has_no_v1 = true);
    let error = Runtime::connect(&served.socket, Limits::default()).await.err().expect("it is too old");
    assert!(matches!(error, Error::NoV1 { .. }), "{error}");
    fake.change(|node| (node.has_no_v1, node.is_nameless) = (false, true));
    let error = Runtime::connect(&served.socket, Limits::default()).await.err().expect("it is none");
    assert!(matches!(error, Error::NotCri { .. }), "{error}");
}

#[tokio::test]
async fn what_lacks_the_essential_is_refused_as_a_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) = connected(folder.path(), |_| ()).await;
    let good = container("a", |_| ());
    for bad in [
        proto::Container { id: String::new(), ..good.clone() },
        proto::Container { id: "x".repeat(257), ..good.clone() },
        proto::Container { pod_sandbox_id: String::new(), ..good.clone() },
        proto::Container { metadata: None, ..good.clone() },
    ] {
        fake.change(|node| node.containers = vec![good.clone(), bad]);
        let error = runtime.containers().await.expect_err("one is bad");
        assert!(matches!(error, Error::Malformed { call: Call::ListContainers, .. }), "{error}");
    }
    fake.change(|node| node.sandboxes = vec![proto::PodSandbox { id: "s".to_owned(), ..proto::PodSandbox::default() }]);
    let error = runtime.sandboxes().await.expect_err("it has no metadata");
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    fake.change(|node| node.images = vec![image("", 1)]);
    let error = runtime.images().await.expect_err("it has no id");
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    let error = runtime.file_systems().await.expect_err("there are none");
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    let relative = proto::FilesystemIdentifier { mountpoint: "images".to_owned() };
    let usage = proto::FilesystemUsage { fs_id: Some(relative), ..proto::FilesystemUsage::default() };
    fake.change(|node| node.file_systems.image_filesystems = vec![usage]);
    let error = runtime.file_systems().await.expect_err("it has no place");
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Bytes that begin as a list does, or do not.
    #[test]
    fn any_bytes_for_a_message_are_an_answer_or_an_error(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..64),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|mut bytes| {
                bytes.splice(0..0, [0x0a, u8::try_from(bytes.len()).expect("it is short")]);
                bytes
            }),
        ],
    ) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let folder = tempfile::tempdir().expect("a folder");
            let (_fake, _served, mut runtime) = connected(folder.path(), |node| node.manner = Manner::Raw(bytes)).await;
            let _ = runtime.containers().await;
            let _ = runtime.sandboxes().await;
            let _ = runtime.file_systems().await;
            let images = runtime.images().await;
            if let Err(error) = images {
                assert!(matches!(error, Error::Failed { .. } | Error::Malformed { .. }), "{error}");
            }
        });
    }
}

#[tokio::test]
async fn garbage_for_a_message_is_an_error_that_names_the_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fake, _served, mut runtime) =
        connected(folder.path(), |node| node.manner = Manner::Raw(vec![0x0a, 0xff, 0xff, 0xff])).await;
    let error = runtime.containers().await.expect_err("it is garbage");
    assert!(matches!(error, Error::Failed { call: Call::ListContainers, .. }), "{error}");
    fake.change(|node| node.manner = Manner::Well);
    runtime.containers().await.expect("it answers again");
}

/// A connection that the other side opened and left is no answer.
#[tokio::test]
async fn a_socket_that_closes_at_once_is_no_runtime() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("closes.sock");
    let listener = UnixListener::bind(&socket).expect("the folder is new");
    tokio::spawn(async move {
        loop {
            let accepted: std::io::Result<(UnixStream, _)> = listener.accept().await;
            drop(accepted);
        }
    });
    let error = Runtime::connect(&socket, Limits::default()).await.err().expect("it closes");
    assert!(matches!(error, Error::NotCri { .. }), "{error}");
}
