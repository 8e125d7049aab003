//! What the manifests of static pods say of those that no list of pods has.
//!
//! A kubelet computes the UID of such a pod over its own structures, so that it cannot be had from the manifest. The container
//! runtime lists it, with the pod's name, which is the manifest's and the node's, and with the kubelet's word that it is from a
//! file; so a manifest is joined to a pod by namespace and name. Another content makes another UID: what was joined once holds
//! for as long as the runtime lists that UID, and manifests are asked for where a pod is there of which nothing is known. At
//! rest none are.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_config::Configuration;
use plimsoll_cri::{Sandbox, SandboxState};
use plimsoll_inventory::{PodFacts, StorageLimit};
use plimsoll_pods::Pod;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::Critical;
use plimsoll_report::text::printable;
use plimsoll_state::handover;
use plimsoll_units::counted;
use rustix::io::Errno;
use tokio::sync::mpsc;

use super::cluster::node_name;
use super::journal::Known;
use super::pod_file::{facts, storage_limits};
use crate::answering::is_closed;
use crate::manifests::{self, MOST_FILES};

/// By which a kubelet says where a pod comes from; it overwrites what an author wrote (`kubernetes.io/config.source`,
/// pkg/kubelet/config/config.go).
const SOURCE: &str = "kubernetes.io/config.source";
const FILE: &str = "file";
/// While a pod is there that no manifest is of, the time between two questions doubles up to this.
const SELDOM: Duration = Duration::from_hours(1);

/// A static pod from a file, as the container runtime lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StaticPod {
    pub(super) uid: Uid,
    namespace: String,
    /// The manifest's, `-` and the node's.
    name: String,
}

impl StaticPod {
    /// Those that run, as many as there are manifests at most.
    pub(super) fn of(sandboxes: &[Sandbox]) -> Vec<Self> {
        let is_static = |it: &&Sandbox| it.annotations.get(SOURCE).is_some_and(|source| source == FILE);
        let ready = sandboxes.iter().filter(|it| it.state == SandboxState::Ready).filter(is_static);
        let pod = |it: &Sandbox| Self { uid: Uid::of(&it.uid), namespace: it.namespace.clone(), name: it.name.clone() };
        ready.map(pod).take(MOST_FILES).collect()
    }

    /// Of several manifests of one name the last one counts, as for the kubelet.
    fn manifest<'m>(&self, manifests: &'m [Pod], node: &str) -> Option<&'m Pod> {
        let name = self.name.strip_suffix(node)?.strip_suffix('-')?;
        manifests.iter().rfind(|manifest| manifest.name == name && manifest.namespace == self.namespace)
    }

    /// What a manifest says of it.
    fn facts(&self, manifest: &Pod, kubelet_root: &Path) -> (PodFacts, Vec<StorageLimit>) {
        let facts = PodFacts { uid: self.uid, critical: Some(Critical::Static), ..facts(manifest, kubelet_root) };
        (facts, storage_limits(self.uid, manifest))
    }
}

/// What the kubelet calls this node, in the names of static pods (`generatePodName`, pkg/kubelet/config/common.go): the name that
/// is configured for the cluster, else that on the kubelet's command line, else the machine's.
fn node(configuration: &Configuration) -> String {
    let of_kubelet = || configuration.hostname_override().map(str::to_owned);
    let of_machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = node_name(configuration).ok().or_else(of_kubelet).unwrap_or_else(of_machine);
    name.trim().to_lowercase()
}

/// A pod that the runtime lists.
#[derive(Debug)]
struct Here {
    pod: StaticPod,
    /// When it was listed first.
    since: Instant,
}

/// The way to the supervisor's thread.
struct Way {
    questions: Arc<OwnedFd>,
    /// What a thread of this process reads of each answer.
    answers: mpsc::Receiver<Result<Vec<Pod>, Errno>>,
}

/// What is known of static pods, and the way by which manifests come.
#[derive(Default)]
pub(super) struct StaticPods {
    /// Absent where none are read, or the supervisor's thread has ended.
    way: Option<Way>,
    node: String,
    kubelet_root: PathBuf,
    here: BTreeMap<Uid, Here>,
    known: Known,
    asked: Option<Instant>,
}

/// What it is made from, before this process is confined.
pub(super) struct Settings {
    way: Option<OwnedFd>,
    node: String,
    kubelet_root: PathBuf,
}

impl Settings {
    /// `way`: that to the supervisor's thread; absent where no manifests are read.
    pub(super) fn of(configuration: &Configuration, way: Option<OwnedFd>) -> Self {
        Self { way, node: node(configuration), kubelet_root: configuration.kubelet_root() }
    }
}

impl StaticPods {
    /// Starts the thread that reads, which is confined as the calling one is.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub(super) fn new(Settings { way, node, kubelet_root }: Settings) -> std::io::Result<Self> {
        let start = |way| {
            let questions = Arc::new(way);
            Ok::<_, std::io::Error>(Way { answers: manifests::receive(Arc::clone(&questions))?, questions })
        };
        let way = way.map(start).transpose()?;
        Ok(Self { way, node, kubelet_root, ..Self::default() })
    }

    /// What manifests say of pods that are here.
    pub(super) const fn known(&self) -> &Known {
        &self.known
    }

    /// The runtime lists these now. Asks for manifests where they may be of a pod of which nothing is known; `is_listed`: whether
    /// a list has it. Gives whether less is known than before.
    pub(super) fn learn(&mut self, listed: Vec<StaticPod>, is_listed: impl Fn(&Uid) -> bool, now: Instant) -> bool {
        let mut before = std::mem::take(&mut self.here);
        self.here = listed
            .into_iter()
            .map(|pod| {
                let since = before.remove(&pod.uid).map_or(now, |known| known.since);
                (pod.uid, Here { pod, since })
            })
            .collect();
        let Self { here, known: Known { pods, limits }, asked, .. } = self;
        let count = pods.len();
        pods.retain(|uid, _| here.contains_key(uid));
        limits.retain(|uid, _| here.contains_key(uid));
        let is_less = pods.len() < count;
        let is_due = |since: Instant| {
            asked.is_none_or(|asked| now >= asked + asked.saturating_duration_since(since).min(SELDOM))
        };
        let is_missing = |uid: &Uid| !pods.contains_key(uid) && !is_listed(uid);
        if here.iter().any(|(uid, Here { since, .. })| is_missing(uid) && is_due(*since)) {
            self.ask(now);
        }
        is_less
    }

    /// Not by the runtime of tasks, which sends nothing before it has seen that there is room.
    fn ask(&mut self, now: Instant) {
        let Some(way) = &self.way else { return };
        match handover::ask_for_manifests(&way.questions) {
            Ok(()) => self.asked = Some(now),
            Err(errno) if is_closed(errno) => self.end(errno),
            // As many questions wait as there is room for, or what passes: it is asked again with the runtime's next list.
            Err(_) => {}
        }
    }

    fn end(&mut self, why: Errno) {
        tracing::warn!("manifests of static pods are not read until services is started again: {why}");
        self.way = None;
    }

    /// Takes answers in, until there is one that something follows from.
    pub(super) async fn next(&mut self) {
        loop {
            let Some(way) = &mut self.way else { return std::future::pending().await };
            match way.answers.recv().await.unwrap_or(Err(Errno::PIPE)) {
                Ok(manifests) if self.join(&manifests) => return,
                Ok(_) => {}
                Err(errno) => self.end(errno),
            }
        }
    }

    /// Joins what was read to the pods of which nothing is known yet. Gives whether it is of any.
    fn join(&mut self, manifests: &[Pod]) -> bool {
        let Self { here, known: Known { pods, limits }, node, kubelet_root, .. } = self;
        let count = pods.len();
        for (uid, Here { pod, .. }) in here {
            if let (false, Some(manifest)) = (pods.contains_key(uid), pod.manifest(manifests, node)) {
                let (facts, of_storage) = pod.facts(manifest, kubelet_root);
                pods.insert(*uid, facts);
                limits.insert(*uid, of_storage);
            }
        }
        if pods.len() > count {
            let known = counted(pods.len(), "static pod is", "static pods are");
            tracing::info!(pods = pods.len(), "{known} known by manifests");
        }
        pods.len() > count
    }
}

/// What the manifests on this machine say, for a command.
#[derive(Debug)]
pub(crate) struct Found {
    /// Where they are.
    pub(crate) path: PathBuf,
    /// How many can be read.
    pub(crate) manifests: usize,
    /// What they say of each pod that runs, with what the runtime calls it, `namespace/name`.
    pub(crate) pods: Vec<(PodFacts, String)>,
    /// What cannot be read, each in one printable line.
    pub(crate) troubles: Vec<String>,
}

/// Reads them as this process may, and joins them to what `sandboxes` gives, which is called where there are any. Absent where
/// none are read.
pub(crate) fn find(
    configuration: &Configuration,
    sandboxes: impl FnOnce() -> Result<Vec<Sandbox>, String>,
) -> Option<Found> {
    let path = configuration.static_pods()?;
    let (manifests, mut troubles) = manifests::read(&path);
    let listed = if manifests.is_empty() { Ok(Vec::new()) } else { sandboxes() };
    let listed = listed.unwrap_or_else(|why| {
        troubles.push(printable(&format!("which pods they are of is not known: {why}")));
        Vec::new()
    });
    let (node, root) = (node(configuration), configuration.kubelet_root());
    let facts = |pod: StaticPod| {
        let (facts, _) = pod.facts(pod.manifest(&manifests, &node)?, &root);
        Some((facts, format!("{}/{}", pod.namespace, pod.name)))
    };
    let pods = StaticPod::of(&listed).into_iter().filter_map(facts).collect();
    Some(Found { path, manifests: manifests.len(), pods, troubles })
}

#[cfg(test)]
mod tests {
    use super::super::listed_samples::sandbox;
    use super::*;
    use plimsoll_state::handover::{messages_pair, receive_request, send_manifest, send_manifests_end};
    use plimsoll_units::Bytes;
    use rustix::net::{Shutdown, shutdown};
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::io::{Seek as _, Write as _};
    use tokio::time::timeout;

    const HASH: [&str; 2] = ["0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"];

    fn from_file(uid: &str, name: &str) -> Sandbox {
        let source = (SOURCE.to_owned(), FILE.to_owned());
        Sandbox { annotations: BTreeMap::from([source]), ..sandbox(uid, uid, name) }
    }

    fn here(pods: &[(&str, &str)]) -> Vec<StaticPod> {
        StaticPod::of(&pods.iter().map(|(uid, name)| from_file(uid, name)).collect::<Vec<_>>())
    }

    fn manifest(name: &str, mib: u64) -> String {
        let resources = format!("{{requests: {{memory: {mib}Mi}}, limits: {{ephemeral-storage: 1Gi}}}}");
        format!(
            "kind: Pod\nmetadata: {{name: {name}}}\nspec:\n  priority: 7\n  containers: [{{name: c, resources: {resources}}}]\n"
        )
    }

    fn file(text: &str) -> std::fs::File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(text.as_bytes()).and_then(|()| file.rewind()).expect("writable");
        file
    }

    /// On a node named `node`, with the supervisor's end.
    fn statics() -> (StaticPods, OwnedFd) {
        let (way, supervisor) = messages_pair().expect("sockets");
        let settings = Settings { way: Some(way), node: "node".to_owned(), kubelet_root: "/var/lib/kubelet".into() };
        (StaticPods::new(settings).expect("a runtime"), supervisor)
    }

    fn answer(supervisor: &OwnedFd, manifests: &[&str]) {
        for (number, text) in manifests.iter().enumerate() {
            send_manifest(supervisor, number.to_string().as_bytes(), file(text)).expect("room");
        }
        send_manifests_end(supervisor).expect("room");
    }

    async fn next(statics: &mut StaticPods) {
        timeout(Duration::from_mins(1), statics.next()).await.expect("something follows from it");
    }

    fn requests(statics: &StaticPods) -> Vec<(Uid, Bytes)> {
        statics.known().pods.iter().map(|(uid, facts)| (*uid, facts.memory_request)).collect()
    }

    #[test]
    fn a_manifest_is_joined_by_namespace_and_name_to_a_pod_from_a_file_that_runs() {
        let pods: Vec<_> = ["a", "a-b"].map(|name| plimsoll_pods::read_manifest(manifest(name, 1).as_bytes())).into();
        let pods: Vec<Pod> = pods.into_iter().collect::<Result<_, _>>().expect("in order");
        let of = |sandbox: &Sandbox| {
            let found = StaticPod::of(std::slice::from_ref(sandbox));
            found.first().and_then(|pod| pod.manifest(&pods, "node")).map(|pod| pod.name.clone())
        };
        for (name, expected) in [
            ("a-node", Some("a")),
            ("a-b-node", Some("a-b")),
            ("b-node", None),
            ("a-other", None),
            ("anode", None),
            ("node", None),
            ("a", None),
        ] {
            assert_eq!(of(&from_file("1", name)).as_deref(), expected, "{name}");
        }
        let good = from_file("1", "a-node");
        for other in [
            Sandbox { namespace: "kube-system".to_owned(), ..good.clone() },
            Sandbox { state: SandboxState::NotReady, ..good.clone() },
            Sandbox { annotations: BTreeMap::from([(SOURCE.to_owned(), "api".to_owned())]), ..good.clone() },
            Sandbox { annotations: BTreeMap::new(), ..good },
        ] {
            assert_eq!(of(&other), None, "{other:?}");
        }
    }

    #[tokio::test]
    async fn what_a_manifest_says_is_known_under_the_uid_that_the_runtime_lists_for_as_long_as_it_does() {
        let (mut statics, supervisor) = statics();
        let now = Instant::now();
        assert!(!statics.learn(here(&[(HASH[0], "a-node")]), |_| false, now));
        answer(&supervisor, &["[", &manifest("a", 64), &manifest("b", 32)]);
        next(&mut statics).await;
        let uid = Uid::of(HASH[0]);
        let facts = statics.known().pods[&uid];
        assert_eq!((facts.uid, facts.memory_request, facts.priority), (uid, Bytes::mib(64), 7));
        assert_eq!((facts.critical, facts.grace_seconds), (Some(Critical::Static), Some(30)));
        assert_eq!((facts.storage_limit, statics.known().limits[&uid].len()), (Some(Bytes::mib(1024)), 1));
        // The file was changed, which makes another pod; the one before may still run.
        statics.learn(here(&[(HASH[0], "a-node"), (HASH[1], "a-node")]), |_| false, now);
        answer(&supervisor, &[&manifest("a", 128)]);
        next(&mut statics).await;
        assert_eq!(requests(&statics), [(uid, Bytes::mib(64)), (Uid::of(HASH[1]), Bytes::mib(128))]);
        assert!(statics.learn(here(&[(HASH[1], "a-node")]), |_| false, now), "less is known");
        assert_eq!(requests(&statics), [(Uid::of(HASH[1]), Bytes::mib(128))]);
        assert_eq!(statics.known().limits.len(), 1);
    }

    #[tokio::test]
    async fn a_question_is_sent_at_once_where_something_is_missing_and_ever_more_rarely_without_an_answer() {
        let (mut statics, supervisor) = statics();
        let asks = |statics: &mut StaticPods, pods: &[(&str, &str)], is_listed: bool, now: Instant| {
            statics.learn(here(pods), |_| is_listed, now);
            // Nothing was waited for: no task ran in between.
            receive_request(&supervisor).is_ok()
        };
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let (one, both) = (&[(HASH[0], "a-node")], &[(HASH[0], "a-node"), (HASH[1], "b-node")]);
        assert!(!asks(&mut statics, &[], false, at(0)), "no static pod");
        assert!(!asks(&mut statics, one, true, at(0)), "a list has it");
        assert!(asks(&mut statics, one, false, at(1)));
        let asked: Vec<u64> = (2..100).filter(|it| asks(&mut statics, one, false, at(*it))).collect();
        assert_eq!(asked, [2, 4, 8, 16, 32, 64]);
        assert!(asks(&mut statics, both, false, at(100)), "one that is new");
        for hours in [10, 11, 12] {
            assert!(asks(&mut statics, one, false, at(hours * 3600)), "each hour");
        }
        answer(&supervisor, &[&manifest("a", 64)]);
        next(&mut statics).await;
        assert!(!asks(&mut statics, one, false, at(100 * 3600)), "it is known");
        // Its descriptor may be open for a moment longer, in a child that another test has just forked.
        shutdown(&supervisor, Shutdown::Both).expect("it is open");
        let begun = Instant::now();
        while statics.way.is_some() && begun.elapsed() < Duration::from_mins(1) {
            assert!(timeout(Duration::from_millis(50), statics.next()).await.is_err());
        }
        assert!(statics.way.is_none(), "it has ended");
        assert!(!statics.learn(here(one), |_| false, at(101 * 3600)) && statics.known().pods.len() == 1);
        assert!(statics.learn(Vec::new(), |_| false, at(102 * 3600)), "what is gone is known no more");
    }

    #[tokio::test]
    async fn a_file_whose_disk_does_not_answer_keeps_nothing_else_from_going_on() {
        let (mut statics, supervisor) = statics();
        statics.learn(here(&[(HASH[0], "a-node")]), |_| false, Instant::now());
        let (pipe, disk) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        send_manifest(&supervisor, b"a", pipe).expect("room");
        send_manifests_end(&supervisor).expect("room");
        assert!(timeout(Duration::from_millis(50), statics.next()).await.is_err(), "it waits elsewhere");
        std::fs::File::from(disk).write_all(manifest("a", 64).as_bytes()).expect("room");
        next(&mut statics).await;
        assert_eq!(requests(&statics), [(Uid::of(HASH[0]), Bytes::mib(64))]);
    }

    #[test]
    fn a_command_has_what_this_process_can_read_and_asks_for_pods_where_there_is_a_manifest() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let text = format!(
            "machine: {{podFacts: /run/pods/pods.json, staticPods: {}, cluster: {{nodeName: node}}}}",
            folder.path().display()
        );
        let configuration = plimsoll_config::parse(&text, "f").expect("in order");
        let found = |sandboxes: Result<Vec<Sandbox>, String>| {
            let found = find(&configuration, || sandboxes).expect("they are read");
            let pods: Vec<_> = found.pods.into_iter().map(|(facts, name)| (facts.memory_request, name)).collect();
            (found.manifests, pods, found.troubles)
        };
        let silent = || Err("no answer\u{1b}".to_owned());
        assert_eq!(found(silent()), (0, Vec::new(), Vec::new()), "it was not asked");
        std::fs::write(folder.path().join("a"), manifest("a", 64)).expect("writable");
        let pods = vec![(Bytes::mib(64), "default/a-node".to_owned())];
        assert_eq!(found(Ok(vec![from_file(HASH[0], "a-node")])), (1, pods, Vec::new()));
        let (manifests, pods, troubles) = found(silent());
        assert_eq!((manifests, pods), (1, Vec::new()));
        assert_eq!(troubles, ["which pods they are of is not known: no answer\\u{1b}"]);
        assert!(find(&Configuration::default(), silent).is_none(), "none are read");
    }

    #[test]
    fn the_node_is_called_as_it_is_configured_or_as_the_machine() {
        let named = plimsoll_config::parse("machine: {cluster: {kubeconfig: /k, nodeName: worker-1}}", "f");
        assert_eq!(node(&named.expect("in order")), "worker-1");
        let of_machine = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        assert_eq!(node(&Configuration::default()), of_machine);
    }
}
