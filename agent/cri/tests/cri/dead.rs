//! Which containers and sandboxes are dead.

use core::time::Duration;
use plimsoll_cri::{Container, ContainerState, ImageUse, Sandbox, SandboxState, dead_containers, dead_sandboxes};
use std::collections::BTreeMap;
use std::time::SystemTime;

use ContainerState::{Created, Exited, Other, Running, Unknown};
use SandboxState::{NotReady, Ready};

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A container `id` of `pod/name`, its attempt, its state and the second it was made in.
fn container(id: &str, of: &str, attempt: u32, state: ContainerState, made: Option<u64>) -> Container {
    let (pod, name) = of.split_once('/').expect("pod/name");
    let label = ("io.kubernetes.pod.uid".to_owned(), pod.to_owned());
    Container {
        id: id.to_owned().try_into().expect("an id"),
        sandbox: format!("s-{pod}").try_into().expect("an id"),
        name: name.to_owned(),
        attempt,
        state,
        created: made.map(time),
        image: ImageUse::default(),
        labels: [label].into(),
        annotations: BTreeMap::new(),
    }
}

fn sandbox(id: &str, uid: &str, attempt: u32, state: SandboxState, made: u64) -> Sandbox {
    Sandbox {
        id: id.to_owned().try_into().expect("an id"),
        uid: uid.to_owned(),
        name: String::new(),
        namespace: String::new(),
        attempt,
        state,
        created: Some(time(made)),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

/// The pod named `over` is over; nothing is known of others.
fn is_over(pod: &str) -> bool {
    pod == "over"
}

fn dead(containers: &[Container], min_age: u64) -> Vec<(&str, bool)> {
    dead_containers(containers, &[], is_over, (Duration::from_secs(min_age), time(1000)))
        .into_iter()
        .map(|it| (it.container.id.as_str(), it.is_to_be_stopped))
        .collect()
}

#[test]
fn of_a_pod_that_is_over_all_goes_that_does_not_run() {
    let containers = [
        container("exited", "over/a", 0, Exited, Some(5)),
        container("created", "over/a", 1, Created, Some(4)),
        container("running", "over/a", 2, Running, Some(3)),
        container("lost", "over/b", 0, Unknown, Some(2)),
        container("other", "over/b", 1, Other(4), Some(1)),
        container("timeless", "over/c", 0, Exited, None),
    ];
    assert_eq!(dead(&containers, 0), [("timeless", false), ("lost", true), ("created", false), ("exited", false)]);
}

#[test]
fn of_another_pod_the_newest_of_each_name_stays() {
    let containers = [
        container("a1", "here/a", 1, Exited, Some(30)),
        container("a0", "here/a", 0, Exited, Some(20)),
        container("b0", "here/b", 0, Exited, Some(10)),
        // The clock was set back between these two.
        container("c0", "here/c", 0, Exited, Some(60)),
        container("c1", "here/c", 1, Exited, Some(40)),
        // Of the same attempt the one that was made first goes.
        container("d0", "here/d", 0, Exited, Some(70)),
        container("d1", "here/d", 0, Exited, Some(80)),
        // One that runs is not the newest dead one: the one before it stays for its log.
        container("e0", "here/e", 0, Exited, Some(1)),
        container("e1", "here/e", 1, Running, Some(2)),
        // The same name in another pod.
        container("a9", "there/a", 9, Exited, Some(1)),
    ];
    assert_eq!(dead(&containers, 0), [("a0", false), ("c0", false), ("d0", false)]);
}

#[test]
fn what_was_just_made_stays_and_so_does_what_is_from_the_future() {
    let at = |id, made| container(id, &format!("over/{id}"), 0, Exited, Some(made));
    let containers = [at("old", 940), at("new", 941), at("now", 1000), at("future", 1001)];
    assert_eq!(dead(&containers, 60), [("old", false)]);
    assert_eq!(dead(&containers, 0), [("old", false), ("new", false), ("now", false)]);
}

#[test]
fn a_container_without_a_label_is_its_sandbox_s_pod_s_and_one_without_a_pod_stays() {
    let mut unlabelled = container("x", "over/a", 0, Exited, Some(1));
    unlabelled.labels.clear();
    let containers = [unlabelled];
    assert!(dead(&containers, 0).is_empty());
    let at = (Duration::ZERO, time(1000));
    let of_over = [sandbox("s-over", "over", 0, NotReady, 1)];
    assert_eq!(dead_containers(&containers, &of_over, is_over, at).len(), 1);
    let of_none = [sandbox("s-over", "", 0, NotReady, 1)];
    assert!(dead_containers(&containers, &of_none, |_| true, at).is_empty());
}

#[test]
fn sandboxes_go_that_are_not_ready_and_empty_but_the_newest_of_a_pod_that_is_not_over() {
    let sandboxes = [
        sandbox("over-ready", "over", 2, Ready, 9),
        sandbox("over-1", "over", 1, NotReady, 8),
        sandbox("s-over", "over", 0, NotReady, 7),
        sandbox("here-2", "here", 2, NotReady, 3),
        sandbox("here-1", "here", 1, NotReady, 4),
        sandbox("here-0", "here", 0, SandboxState::Other(2), 1),
        sandbox("there-1", "there", 1, Ready, 6),
        sandbox("there-0", "there", 0, NotReady, 5),
        sandbox("ownerless", "", 0, NotReady, 1),
        sandbox("ownerless older", "", 0, NotReady, 0),
    ];
    let ids = |containers: &[Container]| -> Vec<&str> {
        dead_sandboxes(&sandboxes, containers, is_over).into_iter().map(|it| it.id.as_str()).collect()
    };
    assert_eq!(ids(&[]), ["here-1", "there-0", "s-over", "over-1"]);
    // What is in one keeps it, dead or not.
    assert_eq!(ids(&[container("c", "over/a", 0, Exited, None)]), ["here-1", "there-0", "over-1"]);
}
