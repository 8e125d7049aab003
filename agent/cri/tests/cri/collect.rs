//! What is removed by order, of a runtime in the same process.

use crate::fake::{Fake, Manner, Node, Served, connected, container, image, proto, spec};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use plimsoll_cri::{Collect, Collected, Collector, Error, Limits, Rules, Runtime};
use plimsoll_policy::kubelet::Reclaim;
use plimsoll_units::{Bytes, MonotonicNs, Pattern};
use tokio::time::timeout;

const ALL: Reclaim = Reclaim { containers: true, images: true };
const CONTAINERS: Reclaim = Reclaim { images: false, ..ALL };
const IMAGES: Reclaim = Reclaim { containers: false, ..ALL };
/// More than there is.
const EVERY: Bytes = Bytes(u64::MAX);

/// Pods are `over` or not.
fn is_over(uid: &str) -> bool {
    uid == "over"
}

fn collect(what: Reclaim, bytes: Bytes) -> Collect<'static> {
    Collect { what, bytes, is_over: &is_over, goes_on: &|| true }
}

/// So that images are old enough when they are first seen.
fn collector(never: &[&str]) -> Collector {
    let never = never.iter().map(|pattern| Pattern::parse(pattern).expect("a pattern")).collect();
    Collector::new(Duration::ZERO, never, || MonotonicNs(7))
}

fn sandbox(id: &str, uid: &str, state: proto::PodSandboxState) -> proto::PodSandbox {
    let metadata = Some(proto::PodSandboxMetadata { uid: uid.to_owned(), ..proto::PodSandboxMetadata::default() });
    proto::PodSandbox { id: id.to_owned(), metadata, state: state.into(), ..proto::PodSandbox::default() }
}

/// One that was made from an image, in a sandbox.
fn of(id: &str, sandbox: &str, image: &str, state: proto::ContainerState) -> proto::Container {
    container(id, |made| {
        sandbox.clone_into(&mut made.pod_sandbox_id);
        made.image = Some(spec(image));
        made.state = state.into();
    })
}

/// A pod that runs, one that is over, and images of each kind.
fn fill(node: &mut Node) {
    use proto::ContainerState::{ContainerExited, ContainerRunning, ContainerUnknown};
    use proto::PodSandboxState::{SandboxNotready, SandboxReady};
    node.sandboxes = vec![sandbox("s-runs", "runs", SandboxReady), sandbox("s-over", "over", SandboxNotready)];
    node.containers = vec![
        of("runs", "s-runs", "used", ContainerRunning),
        of("ended", "s-over", "dead", ContainerExited),
        of("lost", "s-over", "dead", ContainerUnknown),
    ];
    let mut pinned = image("pinned", 10);
    pinned.pinned = true;
    let mut kept = image("kept", 10);
    kept.repo_tags = vec!["registry.local/base/kept:1".to_owned()];
    node.images = vec![image("used", 10), image("dead", 20), pinned, kept, image("a", 1), image("b", 2), image("c", 4)];
}

async fn filled(folder: &tempfile::TempDir) -> (Fake, Served, Runtime) {
    connected(folder.path(), fill).await
}

/// The calls that change something.
fn removals(fake: &Fake) -> Vec<String> {
    fake.calls().into_iter().filter(|call| call.starts_with("Remove") || call.starts_with("Stop")).collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[tokio::test]
async fn containers_go_before_their_sandboxes_and_these_before_the_images_that_they_used() {
    let folder = folder();
    let (fake, _served, mut runtime) = filled(&folder).await;
    let (collected, ended) = collector(&["registry.local/base/*"]).collect(&mut runtime, &collect(ALL, EVERY)).await;
    ended.expect("nothing is refused");
    assert_eq!(
        removals(&fake),
        [
            "RemoveContainer ended",
            "StopContainer lost 0",
            "RemoveContainer lost",
            "StopPodSandbox s-over",
            "RemovePodSandbox s-over",
            "RemoveImage a",
            "RemoveImage b",
            "RemoveImage c",
            "RemoveImage dead",
        ]
    );
    let expected = Collected { containers: 2, sandboxes: 1, images: 4, freed: Bytes(27), unused: Some(0) };
    assert_eq!(collected, expected);
    let left = fake.change(|node| node.images.iter().map(|image| image.id.clone()).collect::<Vec<_>>());
    assert_eq!(left, ["used", "pinned", "kept"]);
}

#[tokio::test]
async fn the_image_of_a_dead_container_stays_as_long_as_that_does() {
    let folder = folder();
    let (fake, _served, mut runtime) = filled(&folder).await;
    let mut collector = collector(&["registry.local/base/*"]);
    let (collected, _) = collector.collect(&mut runtime, &collect(IMAGES, EVERY)).await;
    assert_eq!((collected.images, collected.containers, collected.unused), (3, 0, Some(0)));
    assert!(!removals(&fake).contains(&"RemoveImage dead".to_owned()));
    let (collected, _) = collector.collect(&mut runtime, &collect(CONTAINERS, EVERY)).await;
    assert_eq!((collected.containers, collected.images, collected.unused), (2, 0, None));
    fake.calls();
    collector.collect(&mut runtime, &collect(IMAGES, EVERY)).await.1.expect("nothing is refused");
    assert_eq!(removals(&fake), ["RemoveImage dead"]);
}

#[tokio::test]
async fn images_are_removed_until_they_make_up_for_what_is_asked_and_oldest_use_goes_first() {
    static NOW: AtomicU64 = AtomicU64::new(1);
    let folder = folder();
    let (fake, _served, mut runtime) = filled(&folder).await;
    let mut collector = Collector::new(Duration::ZERO, Vec::new(), || MonotonicNs(NOW.load(Ordering::Relaxed)));
    // `a` is in use at first, so that it was used last.
    let uses = of("user", "s-runs", "a", proto::ContainerState::ContainerRunning);
    fake.change(|node| node.containers.push(uses));
    collector.note(&mut runtime).await.expect("it answers");
    NOW.store(2, Ordering::Relaxed);
    collector.note(&mut runtime).await.expect("it answers");
    fake.change(|node| node.containers.retain(|it| it.id != "user"));
    let mut left = 4;
    for (bytes, removed) in [(2, &["b"][..]), (5, &["c", "kept"]), (1, &["a"])] {
        fake.calls();
        let (collected, ended) = collector.collect(&mut runtime, &collect(IMAGES, Bytes(bytes))).await;
        ended.expect("nothing is refused");
        left -= u32::try_from(removed.len()).expect("few");
        let removed: Vec<String> = removed.iter().map(|id| format!("RemoveImage {id}")).collect();
        assert_eq!((removals(&fake), collected.unused), (removed, Some(left)), "{bytes}");
    }
    // One of unknown size makes up for all: the disk is read again.
    fake.change(|node| node.images.extend([image("unknown", 0), image("x", 1)]));
    collector.collect(&mut runtime, &collect(IMAGES, Bytes(100))).await.1.expect("nothing is refused");
    assert_eq!(removals(&fake), ["RemoveImage unknown"]);
}

#[tokio::test]
async fn one_that_was_just_pulled_stays() {
    static NOW: AtomicU64 = AtomicU64::new(1);
    let folder = folder();
    let (fake, _served, mut runtime) = filled(&folder).await;
    let mut collector = Collector::new(Rules::MIN_AGE, Vec::new(), || MonotonicNs(NOW.load(Ordering::Relaxed)));
    let (collected, _) = collector.collect(&mut runtime, &collect(IMAGES, EVERY)).await;
    assert_eq!((removals(&fake).len(), collected.unused), (0, Some(0)));
    NOW.store(1 + u64::try_from(Rules::MIN_AGE.as_nanos()).expect("it fits"), Ordering::Relaxed);
    fake.change(|node| node.images.push(image("new", 1)));
    let (collected, _) = collector.collect(&mut runtime, &collect(IMAGES, EVERY)).await;
    assert_eq!((collected.images, collected.freed), (4, Bytes(17)));
    assert!(!removals(&fake).contains(&"RemoveImage new".to_owned()));
}

#[tokio::test]
async fn what_is_refused_is_passed_over_and_reported_and_without_an_answer_it_ends() {
    let folder = folder();
    let (fake, _served, mut runtime) = filled(&folder).await;
    fake.change(|node| node.stuck = vec!["ended".to_owned(), "b".to_owned()]);
    let mut collector = collector(&["registry.local/base/*"]);
    let (collected, ended) = collector.collect(&mut runtime, &collect(ALL, EVERY)).await;
    let error = ended.expect_err("two were refused").to_string();
    assert!(error.contains("RemoveImage") && error.contains("busy"), "{error}");
    // The sandbox is not empty, and the image of the container that is left is used.
    assert_eq!(collected, Collected { containers: 1, sandboxes: 0, images: 2, freed: Bytes(5), unused: Some(0) });
    fake.change(|node| node.manner = Manner::Hang);
    let limits = Limits { read: Duration::from_millis(50), ..Limits::default() };
    let mut runtime = Runtime::at(runtime.socket(), limits);
    let (collected, ended) = collector.collect(&mut runtime, &collect(ALL, EVERY)).await;
    assert!(matches!(ended, Err(Error::TimedOut { .. })), "{ended:?}");
    assert_eq!(collected, Collected::default());
}

#[tokio::test]
async fn refusals_need_no_new_connection_and_what_was_refused_goes_last_in_the_next_order() {
    let folder = folder();
    let (fake, _served, mut runtime) = filled(&folder).await;
    let stuck = ["stuck-1", "stuck-2", "stuck-3"];
    fake.change(|node| {
        let ended = stuck.map(|id| of(id, "s-over", "dead", proto::ContainerState::ContainerExited));
        node.containers.splice(0..0, ended);
        node.stuck = stuck.map(str::to_owned).into();
    });
    let mut collector = collector(&[]);
    let (collected, ended) = collector.collect(&mut runtime, &collect(CONTAINERS, EVERY)).await;
    assert!(ended.is_err() && collected.containers == 2, "{collected:?} {ended:?}");
    assert!(!fake.calls().contains(&"Version".to_owned()), "one connection for all");
    // No time is left after one that was not tried before.
    fake.change(|node| node.containers.push(of("new", "s-over", "dead", proto::ContainerState::ContainerExited)));
    let left = AtomicUsize::new(1);
    let goes_on = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    let asked = Collect { goes_on: &goes_on, ..collect(CONTAINERS, EVERY) };
    let (collected, _) = collector.collect(&mut runtime, &asked).await;
    assert_eq!((removals(&fake), collected.containers), (vec!["RemoveContainer new".to_owned()], 1));
}

#[tokio::test]
async fn images_are_listed_again_after_a_while_and_what_was_refused_is_not_tried_again() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let folder = folder();
    let (fake, _served, mut runtime) = filled(&folder).await;
    fake.change(|node| node.stuck = vec!["b".to_owned()]);
    // Each removal takes a minute.
    let clock = || MonotonicNs(NOW.fetch_add(60_000_000_000, Ordering::Relaxed));
    let mut collector = Collector::new(Duration::ZERO, Vec::new(), clock);
    let asked = collect(IMAGES, EVERY);
    let (collected, ended) =
        timeout(Duration::from_mins(1), collector.collect(&mut runtime, &asked)).await.expect("it ends");
    assert!(ended.is_err() && (collected.images, collected.unused) == (3, Some(0)), "{collected:?} {ended:?}");
    let calls = fake.calls();
    let count = |beginning: &str| calls.iter().filter(|call| call.starts_with(beginning)).count();
    assert_eq!((count("RemoveImage b"), count("RemoveImage"), count("ListImages")), (1, 4, 5));
}

#[tokio::test]
async fn nothing_more_is_removed_once_it_is_stopped() {
    let folder = folder();
    let (fake, _served, mut runtime) = filled(&folder).await;
    // The third container is stopped before it is removed.
    for (changes_left, removed) in [(0, 0), (1, 1), (2, 1)] {
        let left = AtomicUsize::new(changes_left);
        let goes_on = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        let asked = Collect { goes_on: &goes_on, ..collect(ALL, EVERY) };
        let (collected, ended) = collector(&[]).collect(&mut runtime, &asked).await;
        ended.expect("nothing is refused");
        assert_eq!(collected.containers + collected.sandboxes + collected.images, removed);
        assert_eq!(removals(&fake).iter().filter(|call| call.starts_with("Remove")).count(), removed as usize);
    }
}
