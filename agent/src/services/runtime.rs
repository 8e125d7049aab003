//! What the container runtime calls pods and containers, which pods are static, and where it keeps images and writable layers,
//! asked from time to time. A runtime that is missing, hangs or answers with garbage costs that alone; what it said before holds.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_config::Configuration;
use plimsoll_cri::{
    Container, ContainerState, Dial, Error, FileSystems, Limits, Runtime, Sandbox, USUAL_SOCKETS, socket_path,
};
use plimsoll_inventory::MOST_PODS;
use plimsoll_policy::Uid;
use plimsoll_report::PodNames;
use plimsoll_units::counted;
use rustix::io::Errno;
use tokio::net::UnixDatagram;
use tokio::sync::{Mutex, mpsc};

use super::rest::Rest;
use super::static_pods::StaticPod;

/// Names by pod.
pub(super) type Named = BTreeMap<Uid, PodNames>;

/// What the runtime said in one round.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) names: Named,
    pub(super) static_pods: Vec<StaticPod>,
    /// Where images and writable layers are, or why it does not say; absent where that was not asked.
    pub(super) disks: Option<Result<FileSystems, String>>,
}

/// The supervisor's answer: the number of the socket, and a connection to it or why there is none.
pub(super) type Answer = (u8, Result<OwnedFd, Errno>);

/// The least pause between two lists. A pod without a name yet is reported by its cgroup, which has its UID.
const PAUSE: Duration = Duration::from_secs(10);
/// The longest one while the runtime answers, nothing has happened and lists are cheap: where no event says which cgroups come
/// and go, a container has its name by then.
const PAUSE_AT_REST: Duration = Duration::from_mins(1);
/// The pause is so many times as long as the lists took: the runtime has other work.
const SHARE: u32 = 20;
/// The longest pause. After a failure it doubles up to this one.
const PAUSE_MOST: Duration = Duration::from_mins(5);

/// Where a runtime may listen that is to be asked: at the socket that the configuration names, else at the usual ones with a
/// list of pods or a cluster alone. What merely runs on a machine that was not said to be a node is asked nothing, as a
/// connection to it is equivalent to root.
///
/// # Errors
/// Where the configuration names what is no socket.
pub(crate) fn runtime_sockets(configuration: &Configuration) -> Result<Vec<PathBuf>, Error> {
    match configuration.runtime_endpoint() {
        Some((endpoint, _)) => socket_path(&endpoint).map(|socket| vec![socket]),
        None if !configuration.machine.knows_pods() => Ok(Vec::new()),
        None => Ok(USUAL_SOCKETS.map(|(_, path)| path.into()).into()),
    }
}

/// How the supervisor is asked for connections to one of these sockets by the socket's place in the list, and where its
/// answers go.
pub(super) fn dial(supervisor: Arc<UnixDatagram>, sockets: &[PathBuf]) -> (Dial, mpsc::Sender<Answer>) {
    // One is asked for at a time.
    let (answers, received) = mpsc::channel(2);
    let (sockets, received) = (sockets.to_vec(), Arc::new(Mutex::new(received)));
    let dial = Dial::by(move |socket: &Path| {
        let number = sockets.iter().position(|other| other == socket).and_then(|place| u8::try_from(place).ok());
        let (supervisor, received) = (Arc::clone(&supervisor), Arc::clone(&received));
        async move {
            let number = number.ok_or(ErrorKind::InvalidInput)?;
            let mut received = received.lock().await;
            // What came too late for an earlier request.
            while received.try_recv().is_ok() {}
            supervisor.send(&[number]).await?;
            loop {
                let (of, connection) = received.recv().await.ok_or(ErrorKind::BrokenPipe)?;
                if of == number {
                    let stream = std::os::unix::net::UnixStream::from(connection?);
                    return tokio::net::UnixStream::from_std(stream);
                }
            }
        }
    });
    (dial, answers)
}

/// Lists pods and containers, and asks for the directories of disks where those are read, for as long as that is received;
/// the error is sent in place of lists that fail. With the pauses of `rest` between them.
pub(super) async fn watch(
    sockets: Vec<PathBuf>,
    dial: Dial,
    reads_disks: bool,
    mut rest: Rest,
    answers: mpsc::Sender<Result<Answers, String>>,
) {
    let (mut runtime, mut failures, mut was_read) = (None, 0, false);
    loop {
        let begun = Instant::now();
        let asked = ask(&mut runtime, &sockets, &dial, reads_disks).await;
        let (answered, pause) = match asked {
            Ok(answered) => {
                let pods = counted(answered.names.len(), "pod", "pods");
                if failures > 0 || !was_read {
                    tracing::info!(pods = answered.names.len(), "the container runtime names {pods}");
                }
                (failures, was_read) = (0, true);
                (Ok(answered), pause_after(begun.elapsed(), 0))
            }
            Err(error) => {
                failures += 1;
                let what = if was_read { "the names that are known hold" } else { "pods are reported without names" };
                if failures == 1 {
                    tracing::warn!("{error}; {what}, and it is tried again");
                } else {
                    tracing::debug!(failures, "{error}; {what}");
                }
                (Err(error.to_string()), pause_after(Duration::ZERO, failures))
            }
        };
        if answers.send(answered).await.is_err() {
            return;
        }
        rest.pause(pause, if failures > 0 { pause } else { PAUSE_AT_REST }).await;
    }
}

/// After lists that took so long, or so many failures in a row.
pub(super) fn pause_after(took: Duration, failures: u32) -> Duration {
    let doubled = PAUSE.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    doubled.max(took.saturating_mul(SHARE)).min(PAUSE_MOST)
}

/// The runtime. Which one it is stays, once one answered.
pub(super) async fn known<'r>(
    runtime: &'r mut Option<Runtime>,
    sockets: &[PathBuf],
    dial: &Dial,
) -> Result<&'r mut Runtime, Error> {
    let limits = Limits::default();
    let known = match (runtime.take(), sockets) {
        (Some(known), _) => known,
        (None, [socket]) => Runtime::at(socket, limits).through(dial.clone()),
        (None, _) => Runtime::find_through(sockets, limits, dial).await?,
    };
    Ok(runtime.insert(known))
}

/// All that is there now.
async fn ask(
    runtime: &mut Option<Runtime>,
    sockets: &[PathBuf],
    dial: &Dial,
    reads_disks: bool,
) -> Result<Answers, Error> {
    let runtime = known(runtime, sockets, dial).await?;
    let sandboxes = runtime.sandboxes().await?;
    let static_pods = StaticPod::of(&sandboxes);
    let names = named(sandboxes, &runtime.containers().await?);
    // One that does not say this says names.
    let disks = if reads_disks { Some(runtime.file_systems().await.map_err(|error| error.to_string())) } else { None };
    Ok(Answers { names, static_pods, disks })
}

fn named(sandboxes: Vec<Sandbox>, containers: &[Container]) -> Named {
    let (mut pods, mut uids) = (Named::new(), HashMap::new());
    for Sandbox { id, uid, namespace, name, .. } in sandboxes {
        let uid = Uid::of(&uid);
        if pods.len() < MOST_PODS || pods.contains_key(&uid) {
            pods.entry(uid).or_insert_with(|| PodNames::new(uid, &namespace, &name));
            uids.insert(id, uid);
        }
    }
    // What has ended has no cgroup.
    for container in containers.iter().filter(|container| container.state != ContainerState::Exited) {
        if let Some(pod) = uids.get(&container.sandbox).and_then(|uid| pods.get_mut(uid)) {
            pod.add_container(container.id.as_str(), &container.name);
        }
    }
    pods
}

#[cfg(test)]
mod tests {
    use super::super::listed_samples::{self, sandbox};
    use super::*;
    use plimsoll_state::handover;
    use std::io::Read as _;
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::timeout;

    fn container(digit: &str, sandbox: &str, state: ContainerState) -> Container {
        listed_samples::container(&digit.repeat(64), sandbox, &format!("container-{digit}"), state)
    }

    #[test]
    fn a_pod_has_its_own_name_and_those_of_the_containers_in_all_its_sandboxes() {
        let web = "01234567-89ab-cdef-0123-456789abcdee";
        // A sandbox that was made anew after the first one ended.
        let sandboxes = vec![sandbox("1", web, "web"), sandbox("2", "7", "other"), sandbox("3", web, "web")];
        let containers = vec![
            container("a", "3", ContainerState::Running),
            container("b", "1", ContainerState::Exited),
            container("c", "1", ContainerState::Unknown),
            container("d", "of no sandbox", ContainerState::Running),
        ];
        let mut expected =
            [PodNames::new(Uid::of(web), "default", "web"), PodNames::new(Uid::of("7"), "default", "other")];
        expected[0].add_container(&"a".repeat(64), "container-a");
        expected[0].add_container(&"c".repeat(64), "container-c");
        let expected: Named = expected.into_iter().map(|names| (names.uid(), names)).collect();
        assert_eq!(named(sandboxes, &containers), expected);
        let many = (0..=MOST_PODS).map(|number| sandbox(&number.to_string(), &number.to_string(), "a")).collect();
        assert_eq!(named(many, &[]).len(), MOST_PODS);
    }

    #[test]
    fn pauses_grow_with_what_lists_cost_and_double_after_failures_up_to_the_longest() {
        let of = |took: u64, failures| pause_after(Duration::from_secs(took), failures).as_secs();
        assert_eq!([of(0, 0), of(1, 0), of(3600, 0)], [10, 20, 300]);
        assert_eq!([1, 2, 3, 6, 40, u32::MAX].map(|failures| of(0, failures)), [10, 20, 40, 300, 300, 300]);
    }

    #[test]
    fn a_connection_is_the_one_that_was_asked_for_and_a_refusal_is_the_error() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let (supervisor, ours) = handover::pair().expect("sockets");
            ours.set_nonblocking(true).expect("it is ours");
            let sockets = ["/a", "/b"].map(PathBuf::from);
            let (dial, answers) = dial(Arc::new(UnixDatagram::from_std(ours).expect("a runtime")), &sockets);
            let limits = Limits { read: Duration::from_mins(1), ..Limits::default() };
            let connect = |socket: &'static str| Runtime::at(socket, limits).through(dial.clone());
            // Too late for the call that asked for it.
            answers.send((1, Err(Errno::ACCESS))).await.expect("there is room");
            let (mut first, mut second) = (connect("/b"), connect("/c"));
            let call = tokio::spawn(async move { first.sandboxes().await });
            let asked = timeout(Duration::from_mins(1), async {
                loop {
                    match handover::receive_request(&supervisor) {
                        Err(Errno::AGAIN) => tokio::task::yield_now().await,
                        asked => return asked,
                    }
                }
            });
            assert_eq!(asked.await.expect("it asks"), Ok(1));
            answers.send((0, Err(Errno::ACCESS))).await.expect("there is room");
            let (mut peer, stream) = std::os::unix::net::UnixStream::pair().expect("sockets");
            stream.set_nonblocking(true).expect("it is ours");
            answers.send((1, Ok(stream.into()))).await.expect("there is room");
            let mut begin = [0; 3];
            let reading = tokio::task::spawn_blocking(move || peer.read_exact(&mut begin).map(|()| (peer, begin)));
            let (peer, begin) = reading.await.expect("it ends").expect("something is sent");
            assert_eq!(&begin, b"PRI", "HTTP/2 begins");
            peer.set_nonblocking(true).expect("it is ours");
            let mut peer = tokio::net::UnixStream::from_std(peer).expect("a runtime");
            peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("it reads");
            let error = call.await.expect("it ends").expect_err("it is no runtime");
            assert!(matches!(error, Error::NotCri { .. }), "{error}");
            let error = second.sandboxes().await.expect_err("it is none of them");
            assert!(
                matches!(&error, Error::Connect { source, .. } if source.kind() == ErrorKind::InvalidInput),
                "{error}"
            );
            let (mut third, refuse) = (connect("/a"), async {
                while handover::receive_request(&supervisor) != Ok(0) {
                    tokio::task::yield_now().await;
                }
                answers.send((0, Err(Errno::CONNREFUSED))).await.expect("there is room");
            });
            let (refused, ()) = tokio::join!(third.sandboxes(), refuse);
            let error = refused.expect_err("it is refused");
            assert!(error.to_string().contains("nothing listens there"), "{error}");
        });
    }

    #[test]
    fn a_named_socket_is_the_only_one_and_the_usual_ones_are_tried_with_a_list_of_pods_alone() {
        let of = |yaml| runtime_sockets(&plimsoll_config::parse(yaml, "f").expect("it is in order"));
        assert_eq!(of("machine: {runtimeSocket: /run/a.sock}").expect("a socket"), [PathBuf::from("/run/a.sock")]);
        assert_eq!(of("machine: {podFacts: /etc/pods.json}").expect("sockets").len(), USUAL_SOCKETS.len());
        for asks_nothing in ["", "machine: {kubeletRoot: /var/lib/kubelet}\nevictionHard: {nodefs.available: 10%}"] {
            assert_eq!(of(asks_nothing).expect("none"), Vec::<PathBuf>::new(), "{asks_nothing}");
        }
    }
}
