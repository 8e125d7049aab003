//! The cluster: what its API server says of this node's pods, and what is reported to it. Nothing waits for it: what it said
//! last holds, and what is to be reported is kept in the outbox.

mod incidents;
mod stops;
mod witness;

use std::collections::{BTreeMap, HashMap};
use std::net::TcpStream as StdTcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use plimsoll_config::{Configuration, StandardConditions, Taint};
use plimsoll_inventory::{EvictionNumber, Incident, IncidentOf, MOST_PODS, RemovalResult, Source, StopOrder};
use plimsoll_kube::{
    Access, Change, Condition, Decision, Degraded, Dial, Eviction, Kind, NodeView, Outcome, Pod as Object,
    PodReference, Pods, Report, Reporter, SERVICE_ACCOUNT, Standard, TaintEffect, Timestamp,
};
use plimsoll_pods::{FieldError, Pod, ReadError};
use plimsoll_policy::{Uid, kubelet};
use plimsoll_report::text::printable;
use plimsoll_report::{Ended, Witnessed};
use plimsoll_state::durable::{self, Progress};
use plimsoll_state::handover;
use rustix::io::Errno;
use tokio::net::{TcpStream, UnixDatagram};
use tokio::sync::{Mutex, mpsc, watch};

use super::eviction_message;
use super::outbox::{Outbox, uid_text};
use super::pod_file::{Listed, listed};
use super::pod_reader::PodReader;
use stops::Stops;
use witness::Witness;

const _: () = assert!(plimsoll_kube::MOST_PODS == MOST_PODS, "as many as the core has room for");

/// The supervisor's answer.
type Answer = Result<OwnedFd, Errno>;

/// The variable that has the node's name where the configuration does not.
const NODE_NAME: &str = "NODE_NAME";

/// So many incidents wait for the task that reports. More are left out: they come in bursts, and are aggregated there.
const MOST_INCIDENTS: usize = 256;

/// What comes from it.
pub(super) enum ClusterEvent {
    /// These are the node's pods, and whether the node's object is followed, too.
    Pods(Listed, bool),
    /// Pods and the node's object are followed, or one of them is not.
    Followed(bool),
    /// The node's object has the annotation that switches the agent off, or has it not.
    KillSwitch(bool),
    /// This was done to pods by others until now, and to these since it was last said.
    Witnessed(Witnessed, Vec<Ended>),
    /// It knows of this eviction, of this pod.
    Reported(EvictionNumber, Uid),
    /// The kubelet ends this pod.
    Ends {
        /// The pod.
        uid: Uid,
        /// An order waited for that.
        is_ordered: bool,
    },
    /// It has not taken that a pod is ended, as was ordered: the container runtime is to stop it.
    Unanswered(StopOrder),
}

/// What comes of an order to stop a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopping {
    /// The pod's kubelet ends it.
    ByKubelet,
    /// The API server is asked to have it ended; an event says what came of that.
    Held,
    /// The API server is not asked.
    ByRuntime,
}

/// What is known before anything is asked, from files that are read by root.
pub(crate) struct Settings {
    access: Access,
    node: String,
    effect: Option<TaintEffect>,
    standard: Option<Standard>,
}

impl Settings {
    /// Those of the configuration; absent where it names no cluster. `account`: the directory of the service account.
    ///
    /// # Errors
    /// Where it is not known where the API server is, what it is shown or what this node is called there.
    pub(crate) fn of(configuration: &Configuration, account: Option<OwnedFd>) -> anyhow::Result<Option<Self>> {
        let Some(access) = Self::access_of(configuration, account)? else { return Ok(None) };
        let effect = match configuration.machine.cluster.taint {
            Taint::None => None,
            Taint::PreferNoSchedule => Some(TaintEffect::PreferNoSchedule),
            Taint::NoSchedule => Some(TaintEffect::NoSchedule),
        };
        let standard = match configuration.machine.cluster.standard_conditions {
            StandardConditions::Off => None,
            StandardConditions::Lead => Some(Standard::Lead),
            StandardConditions::Hold => Some(Standard::Hold),
        };
        Ok(Some(Self { access, node: node_name(configuration)?, effect, standard }))
    }

    /// Where the API server is, alone.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn access_of(configuration: &Configuration, account: Option<OwnedFd>) -> anyhow::Result<Option<Access>> {
        let cluster = &configuration.machine.cluster;
        Ok(match (&cluster.kubeconfig, account) {
            (Some(path), _) => Some(Access::of_kubeconfig(path)?),
            (None, Some(directory)) => Some(Access::in_cluster(directory, |name| std::env::var(name).ok())?),
            (None, None) if cluster.in_cluster => anyhow::bail!("there is no directory {SERVICE_ACCOUNT}"),
            (None, None) => None,
        })
    }

    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }
}

/// What this node is called.
///
/// # Errors
/// Where that is not said.
pub(crate) fn node_name(configuration: &Configuration) -> anyhow::Result<String> {
    let name = &configuration.machine.cluster.node_name;
    if !name.is_empty() {
        return Ok(name.clone());
    }
    let name = std::env::var(NODE_NAME).unwrap_or_default();
    anyhow::ensure!(
        plimsoll_config::is_node_name(&name),
        "{name:?} is no name of a node: set machine.cluster.nodeName, or the variable {NODE_NAME} (fieldRef: spec.nodeName)"
    );
    Ok(name)
}

/// How the supervisor is asked for a connection to the API server, and where its answers go.
pub(super) fn dial(supervisor: Arc<UnixDatagram>) -> (Dial, mpsc::Sender<Answer>) {
    let (answers, received) = mpsc::channel(1);
    let received = Arc::new(Mutex::new(received));
    let dial = Dial::by(move |()| {
        let (supervisor, received) = (Arc::clone(&supervisor), Arc::clone(&received));
        async move {
            let mut received = received.lock().await;
            // An answer that came too late for what asked for it.
            while received.try_recv().is_ok() {}
            supervisor.send(&[handover::API_SERVER]).await?;
            let answer = received.recv().await.unwrap_or(Err(Errno::PIPE));
            let stream = StdTcpStream::from(answer?);
            TcpStream::from_std(stream)
        }
    });
    (dial, answers)
}

/// The ways to the two tasks.
pub(super) struct Cluster {
    changes: mpsc::Receiver<Change>,
    pods: watch::Sender<Option<Pods>>,
    node: watch::Receiver<Option<NodeView>>,
    is_node_followed: watch::Receiver<bool>,
    conditions: watch::Sender<Option<Vec<Condition>>>,
    degraded: watch::Sender<Vec<Degraded>>,
    incidents: mpsc::Sender<plimsoll_kube::Incident>,
    decisions: mpsc::UnboundedSender<Decision>,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    /// Objects as they were read.
    known: BTreeMap<Uid, (Arc<Object>, Result<Pod, FieldError>)>,
    reader: PodReader,
    /// What the reporter was given.
    given: HashMap<Uid, EvictionNumber>,
    stops: Stops,
    witness: Witness,
    /// What it has counted, where that is new.
    witnessed: Option<(Witnessed, Vec<Ended>)>,
    /// It answers.
    is_followed: bool,
    /// It was lost, which is logged once.
    is_lost: bool,
}

impl Cluster {
    /// Follows the pods, and reports; within a runtime.
    pub(super) fn start(settings: Settings, dial: Dial, reader: PodReader) -> Self {
        let Settings { access, node, effect, standard } = settings;
        let following = plimsoll_kube::client(access, dial);
        let (send_changes, changes) = mpsc::channel(1);
        let ((pods, of_pods), (conditions, of_conditions)) = (watch::channel(None), watch::channel(None));
        let (seen, node_seen) = watch::channel(None);
        // Until that fails.
        let (followed, is_node_followed) = watch::channel(true);
        let (degraded, of_degraded) = watch::channel(Vec::new());
        let (decisions, of_decisions) = mpsc::unbounded_channel();
        let (send_outcomes, outcomes) = mpsc::unbounded_channel();
        let (incidents, of_incidents) = mpsc::channel(MOST_INCIDENTS);
        let reporter = Reporter::new(following.0.clone(), node.clone(), effect).with_standard(standard);
        let report = Report {
            decisions: of_decisions,
            conditions: of_conditions,
            pods: of_pods,
            node: node_seen.clone(),
            degraded: of_degraded,
            incidents: of_incidents,
        };
        tokio::spawn(reporter.run(report, send_outcomes));
        let (client, name) = (following.0.clone(), node.clone());
        tokio::spawn(async move { plimsoll_kube::watch_node(client, &name, seen, followed).await });
        tokio::spawn(async move { plimsoll_kube::watch(following, &node, send_changes).await });
        Self {
            changes,
            pods,
            node: node_seen,
            is_node_followed,
            conditions,
            degraded,
            incidents,
            decisions,
            outcomes,
            known: BTreeMap::new(),
            reader,
            given: HashMap::new(),
            stops: Stops::default(),
            witness: Witness::default(),
            witnessed: None,
            is_followed: false,
            is_lost: false,
        }
    }

    /// What comes next.
    pub(super) async fn event(&mut self) -> ClusterEvent {
        loop {
            if let Some((witnessed, ended)) = self.witnessed.take() {
                return ClusterEvent::Witnessed(witnessed, ended);
            }
            tokio::select! {
                Some(change) = self.changes.recv() => match change {
                    Change::Pods(pods) => {
                        self.is_followed = true;
                        if std::mem::take(&mut self.is_lost) {
                            tracing::info!("the API server is followed again");
                        }
                        if let Some(listed) = self.learn(pods) {
                            return ClusterEvent::Pods(listed, *self.is_node_followed.borrow());
                        }
                    }
                    Change::Lost(why) => {
                        self.is_followed = false;
                        if std::mem::replace(&mut self.is_lost, true) {
                            tracing::debug!("the API server is still not followed: {why}");
                        } else {
                            tracing::warn!("the API server is not followed, and what it said last holds: {why}");
                        }
                        return ClusterEvent::Followed(false);
                    }
                },
                Ok(()) = self.is_node_followed.changed() => {
                    let is_node_followed = *self.is_node_followed.borrow_and_update();
                    return ClusterEvent::Followed(self.is_followed && is_node_followed);
                }
                Ok(()) = self.node.changed() => {
                    if let Some(view) = &*self.node.borrow_and_update() {
                        return ClusterEvent::KillSwitch(view.is_switched_off);
                    }
                }
                Some(outcome) = self.outcomes.recv() => match outcome {
                    Outcome::Ends(uid) => {
                        let uid = Uid::of(&uid);
                        return ClusterEvent::Ends { uid, is_ordered: self.stops.end(uid) };
                    }
                    Outcome::Over(entry) => {
                        let uid = Uid::of(&entry.eviction.uid);
                        self.stops.give_up(uid);
                        if let Some(number) = self.given.remove(&uid) {
                            return ClusterEvent::Reported(number, uid);
                        }
                    }
                },
                order = self.stops.overdue() => return ClusterEvent::Unanswered(order),
                else => std::future::pending().await,
            }
        }
    }

    /// Takes in all pods that there are.
    fn learn(&mut self, pods: Pods) -> Option<Listed> {
        let mut before = std::mem::take(&mut self.known);
        for object in pods.values() {
            let uid = Uid::of(object.metadata.uid.as_deref().unwrap_or_default());
            let pod = match before.remove(&uid) {
                Some((known, pod)) if Arc::ptr_eq(&known, object) => pod,
                changed => {
                    let pod = read(object);
                    match &pod {
                        Err(error) if !matches!(changed, Some((_, Err(_)))) => log_unread(object, error),
                        _ => {}
                    }
                    pod
                }
            };
            self.known.insert(uid, (Arc::clone(object), pod));
        }
        let read = self.known.values().map(|(_, read)| {
            let error =
                |FieldError { path, why }: &FieldError| ReadError { line: 0, key: path.clone(), why: why.clone() };
            read.as_ref().map_err(error)
        });
        let listed = listed(read, &mut self.reader);
        // By the UIDs that their facts have: that of a static pod is another one than its mirror's.
        if let Ok(listed) = &listed {
            self.reader.retain(|uid| listed.pods.contains_key(uid));
        }
        self.stops.learn(|uid| self.known.contains_key(&uid));
        let given = &self.given;
        // What was seen before this list has been taken.
        self.witnessed = self.witness.look(&pods, |uid| given.contains_key(&uid));
        self.pods.send_replace(Some(pods));
        let refused = |error| tracing::warn!("the API server's list of this node's pods is not taken: {error:#}");
        listed.map_err(refused).ok()
    }

    /// Has reported which sources do not work. Of the API server nothing can be, while it is one.
    pub(super) fn degrade(&self, failing: impl Iterator<Item = Source>) {
        let others = failing.filter(|source| *source != Source::ApiServer);
        let degraded: Vec<_> = others.map(|it| Degraded { what: it.name(), lost: it.lost() }).collect();
        self.degraded.send_if_modified(|known| {
            let is_other = *known != degraded;
            known.clone_from(&degraded);
            is_other
        });
    }

    /// Has an incident reported: of its pod where it is known what that is called, else of the node. `named`: the namespace and
    /// the name of a pod as other sources have them, empty where none has.
    pub(super) fn happened(&self, incident: &Incident, named: impl FnOnce(Uid) -> (String, String)) {
        let pod = match incident.of {
            IncidentOf::Pod(uid) => self.reference(uid, named),
            IncidentOf::Cgroup { .. } => None,
        };
        // One that finds no room is in the log and in metrics.
        let _ = self.incidents.try_send(incidents::of(incident, pod));
    }

    /// Has reported what was removed from the node's disks.
    pub(super) fn removed(&self, removed: &RemovalResult) {
        if let Some(incident) = incidents::of_removal(removed) {
            let _ = self.incidents.try_send(incident);
        }
    }

    fn reference(&self, uid: Uid, named: impl FnOnce(Uid) -> (String, String)) -> Option<PodReference> {
        if let Some((_, Ok(Pod { uid, namespace, name, .. }))) = self.known.get(&uid) {
            return Some(PodReference { uid: uid.clone(), namespace: namespace.clone(), name: name.clone() });
        }
        let (namespace, name) = named(uid);
        let is_known = !namespace.is_empty() && !name.is_empty();
        is_known.then(|| PodReference { uid: uid_text(uid), namespace, name })
    }

    /// Has reported what the outbox has for the cluster and was not given yet, and not what was given up since. Gives the
    /// evictions of which nothing can be reported, as it is not known what the pod is called.
    pub(super) fn report(&mut self, outbox: &Outbox) -> Vec<(EvictionNumber, Uid)> {
        let conditions: Vec<_> = outbox.conditions().filter_map(|(kind, kept)| condition(kind, kept)).collect();
        self.conditions.send_if_modified(|known| {
            let is_other = known.as_ref() != Some(&conditions) && !conditions.is_empty();
            if is_other {
                *known = Some(conditions.clone());
            }
            is_other
        });
        for (number, uid) in outbox.given_up() {
            // An earlier one of the same pod may have been carried out, and is still to be reported.
            if self.given.get(&uid) == Some(&number) {
                self.given.remove(&uid);
                // The task runs for as long as this process.
                let _ = self.decisions.send(Decision::GivenUp(uid));
            }
        }
        let mut unknown = Vec::new();
        for pending in outbox.pending().filter(|pending| is_for_cluster(pending)) {
            let number = EvictionNumber(pending.number);
            match self.eviction(pending) {
                // It was given, or an earlier one of the same pod was, which is reported first.
                Some(eviction) if self.given.contains_key(&Uid::of(&eviction.uid)) => {}
                Some(eviction) => {
                    self.given.insert(Uid::of(&eviction.uid), number);
                    let _ = self.decisions.send(Decision::Evicted(eviction));
                }
                // It may be known later.
                None if self.pods.borrow().is_none() => {}
                None => unknown.push((number, Uid::of(&pending.pod.uid))),
            }
        }
        unknown
    }

    /// Nothing is known of conditions any more: what was reported of them gets old.
    pub(super) fn leave_conditions(&self) {
        self.conditions.send_if_modified(|known| known.take().is_some());
    }

    /// An order to stop a pod. Its kubelet is to end it where the API server can be asked for that.
    pub(super) fn stop(&mut self, order: StopOrder) -> Stopping {
        if self.stops.ends(order.uid) {
            Stopping::ByKubelet
        } else if self.is_followed && self.given.contains_key(&order.uid) {
            self.stops.hold(order);
            Stopping::Held
        } else {
            Stopping::ByRuntime
        }
    }

    fn eviction(&self, pending: &durable::Eviction) -> Option<Eviction> {
        let durable::PodName { uid, namespace, name } = &pending.pod;
        let known = self.known.get(&Uid::of(uid)).and_then(|(_, read)| read.as_ref().ok());
        let (message, annotations) = eviction_message::of(pending, known);
        let [uid, namespace, name] =
            known.map_or([uid, namespace, name], |pod| [&pod.uid, &pod.namespace, &pod.name]).map(String::clone);
        let at = i64::try_from(pending.decided.wall_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let is_known = !namespace.is_empty() && !name.is_empty();
        let grace_seconds = pending.grace_seconds;
        is_known.then(|| Eviction {
            uid,
            namespace,
            name,
            message,
            annotations,
            grace_seconds,
            at: at.unwrap_or_default(),
        })
    }
}

/// A pod with a grace period of a soft threshold is ended by its kubelet once the status says that it has failed: in its own
/// order, before the core kills it. Any other is reported once it was killed.
fn is_for_cluster(pending: &durable::Eviction) -> bool {
    pending.progress >= Progress::Killed || pending.is_soft && pending.grace_seconds > 0
}

/// Logs that nothing is known of this pod, which cannot be read.
fn log_unread(object: &Object, FieldError { path, why }: &FieldError) {
    let of = |text: &Option<String>| printable(text.as_deref().unwrap_or_default());
    let (namespace, name) = (of(&object.metadata.namespace), of(&object.metadata.name));
    let error = printable(&format!("{path}: {why}"));
    tracing::warn!("pod {namespace}/{name} cannot be read and is never evicted: {error}");
}

/// A pod that is reported as evicted has failed, and its containers run until its kubelet has ended them: it is known of
/// until then.
fn read(object: &Object) -> Result<Pod, FieldError> {
    let containers = |of: &Object| {
        let of_pod = of.status.as_ref()?;
        let regular = of_pod.container_statuses.iter().chain(&of_pod.init_container_statuses);
        let all = regular.chain(&of_pod.ephemeral_container_statuses).flatten();
        Some(all.filter_map(|it| it.state.as_ref()).any(|state| state.running.is_some()))
    };
    let runs = containers(object) == Some(true);
    let mut pod = Pod::try_from(Object::clone(object))?;
    pod.has_ended &= !runs;
    Ok(pod)
}

fn condition(condition: kubelet::Condition, kept: &durable::Condition) -> Option<Condition> {
    let kind = match condition {
        kubelet::Condition::MemoryPressure => Kind::Memory,
        kubelet::Condition::DiskPressure => Kind::Disk,
        kubelet::Condition::PidPressure => Kind::Pid,
    };
    let since = Timestamp::from_millisecond(i64::try_from(kept.since.wall_ms).ok()?).ok()?;
    Some(Condition { kind, holds: kept.is_true, since })
}

#[cfg(test)]
mod tests;
