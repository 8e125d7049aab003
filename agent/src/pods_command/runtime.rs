//! What the container runtime says of pods beside their cgroups: labels, annotations, images, and how often containers were
//! started. Asked once, for a wide or whole answer alone, and bounded: the author of a pod writes it. And which sandboxes there
//! are, where manifests of static pods are to be joined to them.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_config::Configuration;
use plimsoll_cri::{Container, Limits, Runtime, Sandbox};
use plimsoll_policy::Uid;
use plimsoll_report::text::printable;
use serde::Serialize;
use tokio::time::timeout;

use crate::services::runtime_sockets;

/// All calls together. On an emulated machine containerd took 2 s for these.
const LIMIT: Duration = Duration::from_secs(5);
/// So many labels, and as many annotations, of a pod or a container.
const MOST: usize = 64;
/// So many containers of a pod.
const MOST_CONTAINERS: usize = 64;
/// Bytes of a key or a value. A label's value has 63 at most, an annotation 256 KiB.
const TEXT: usize = 256;

/// A pod, as the runtime has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct OfRuntime {
    /// How many sandboxes it had before its newest one.
    pub(super) attempt: u32,
    /// Its labels and annotations, with the kubelet's.
    #[serde(flatten)]
    pub(super) texts: Texts,
    pub(super) containers: Vec<OfContainer>,
    /// The ids of all of them.
    #[serde(skip)]
    pub(super) sandboxes: Vec<String>,
}

/// The newest container of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct OfContainer {
    name: String,
    /// How many of its name the pod had before it: the kubelet's restart count.
    restarts: u32,
    /// As the pod asks for its image, where the runtime keeps that, else as the kubelet did: mostly by its id.
    image: Option<String>,
    #[serde(flatten)]
    texts: Texts,
}

/// Labels and annotations, printable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Texts {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// There are more, or longer ones.
    is_cut_short: bool,
}

impl OfRuntime {
    /// How often each container was started again, by name: `app=3,side=0`.
    pub(super) fn restarts(&self) -> String {
        let of = |it: &OfContainer| format!("{}={}", it.name, it.restarts);
        self.containers.iter().map(of).collect::<Vec<_>>().join(",")
    }
}

/// What the runtime says of pods; nothing where none is to be asked.
///
/// # Errors
/// Why it does not answer.
pub(super) fn ask(configuration: &Configuration) -> Result<BTreeMap<Uid, OfRuntime>, String> {
    let lists = async |runtime: &mut Runtime| Ok((runtime.sandboxes().await?, runtime.containers().await?));
    let (sandboxes, containers) = asked(configuration, lists)?;
    Ok(pods(&sandboxes, &containers))
}

/// The sandboxes of pods; none where no runtime is to be asked.
///
/// # Errors
/// Why it does not answer.
pub(crate) fn sandboxes(configuration: &Configuration) -> Result<Vec<Sandbox>, String> {
    asked(configuration, async |runtime: &mut Runtime| runtime.sandboxes().await)
}

/// Asks the runtime that is configured, or, where pods are known, the one of the usual sockets that answers. Nothing where
/// none is to be asked.
fn asked<T: Default>(
    configuration: &Configuration,
    lists: impl AsyncFnOnce(&mut Runtime) -> Result<T, plimsoll_cri::Error>,
) -> Result<T, String> {
    let sockets = runtime_sockets(configuration).map_err(|error| error.to_string())?;
    if sockets.is_empty() {
        return Ok(T::default());
    }
    let tokio =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let lists = async {
        // One of several sockets that hangs leaves time for the others.
        let mut runtime = Runtime::find_among(&sockets, Limits { read: LIMIT / 2, ..Limits::default() }).await?;
        lists(&mut runtime).await
    };
    let answered = tokio.block_on(async { timeout(LIMIT, lists).await });
    answered.map_err(|_| format!("no answer within {LIMIT:?}"))?.map_err(|error| error.to_string())
}

/// By pod. Of several sandboxes the newest one says what the pod is like.
fn pods(sandboxes: &[Sandbox], containers: &[Container]) -> BTreeMap<Uid, OfRuntime> {
    let mut pods: BTreeMap<Uid, OfRuntime> = BTreeMap::new();
    let uids: BTreeMap<_, _> = sandboxes.iter().map(|it| (it.id.as_str(), Uid::of(&it.uid))).collect();
    let mut by_age: Vec<&Sandbox> = sandboxes.iter().collect();
    by_age.sort_by_key(|it| it.attempt);
    for Sandbox { id, uid, attempt, labels, annotations, .. } in by_age {
        let pod = pods.entry(Uid::of(uid)).or_default();
        (pod.attempt, pod.texts) = (*attempt, Texts::of(labels, annotations));
        pod.sandboxes.push(id.as_str().to_owned());
    }
    let mut by_name: Vec<&Container> = containers.iter().collect();
    by_name.sort_by(|one, other| (&one.name, other.attempt).cmp(&(&other.name, one.attempt)));
    for Container { sandbox, name, attempt, image, labels, annotations, .. } in by_name {
        let Some(pod) = uids.get(sandbox.as_str()).and_then(|uid| pods.get_mut(uid)) else { continue };
        let name = text(name).0;
        let is_known = pod.containers.iter().any(|known| known.name == name);
        if is_known {
            continue;
        }
        if pod.containers.len() < MOST_CONTAINERS {
            let texts = Texts::of(labels, annotations);
            let image = image.names().next().map(|image| text(image).0);
            pod.containers.push(OfContainer { name, restarts: *attempt, image, texts });
        } else {
            pod.texts.is_cut_short = true;
        }
    }
    pods
}

impl Texts {
    fn of(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Self {
        let mut is_cut_short = false;
        let mut shown = |all: &BTreeMap<String, String>| {
            is_cut_short |= all.len() > MOST;
            let each = all.iter().take(MOST).map(|(key, value)| {
                let ((key, is_key_cut), (value, is_value_cut)) = (text(key), text(value));
                is_cut_short |= is_key_cut || is_value_cut;
                (key, value)
            });
            each.collect()
        };
        let (labels, annotations) = (shown(labels), shown(annotations));
        Self { labels, annotations, is_cut_short }
    }
}

/// A text as it is printed, and whether it is cut: before it is escaped, which makes ten bytes of one at most.
fn text(text: &str) -> (String, bool) {
    let kept = &text[..text.floor_char_boundary(TEXT)];
    (printable(kept), kept.len() < text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::listed_samples::{container, sandbox};
    use plimsoll_cri::ContainerState;
    use serde_json::json;

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_pod_is_as_its_newest_sandbox_says_and_a_container_as_its_newest_attempt() {
        let mut old = sandbox("a", "1", "pod");
        old.labels = texts(&[("app", "old")]);
        let mut new = sandbox("b", "1", "pod");
        (new.attempt, new.labels, new.annotations) = (2, texts(&[("app", "new")]), texts(&[("note", "x")]));
        let other = sandbox("c", "2", "pod");
        let of = |id: &str, sandbox: &str, name: &str, attempt| Container {
            attempt,
            ..container(id, sandbox, name, ContainerState::Exited)
        };
        let mut newest = of("e", "b", "app", 7);
        newest.image.requested = Some("shop/app:1\u{1b}".to_owned());
        newest.image.id = Some("sha256:0".to_owned());
        let containers = [of("d", "a", "app", 1), newest, of("f", "b", "app", 6), of("g", "b", "a", 0)];
        for sandboxes in [[old.clone(), new.clone(), other.clone()], [new, other, old]] {
            let pods = pods(&sandboxes, &containers);
            let pod = &pods[&Uid::of("1")];
            assert_eq!(pod.restarts(), "a=0,app=7");
            let empty = json!({});
            let of = |name, restarts, image: Option<&str>| {
                json!({"name": name, "restarts": restarts, "image": image, "labels": empty, "annotations": empty,
                    "is_cut_short": false})
            };
            assert_eq!(
                json!(pod),
                json!({"attempt": 2, "labels": {"app": "new"}, "annotations": {"note": "x"}, "is_cut_short": false,
                    "containers": [of("a", 0, None), of("app", 7, Some("shop/app:1\\u{1b}"))]})
            );
            assert_eq!(pod.sandboxes, ["a", "b"]);
            assert_eq!(pods[&Uid::of("2")], OfRuntime { sandboxes: vec!["c".to_owned()], ..OfRuntime::default() });
        }
    }

    #[test]
    fn what_is_too_much_or_hurts_a_terminal_is_cut_and_escaped_and_that_is_said() {
        let mut plain = sandbox("a", "1", "pod");
        plain.annotations = texts(&[("k\u{1b}[2J", "line\nend é")]);
        let shown = &pods(&[plain], &[])[&Uid::of("1")];
        assert_eq!(shown.texts.annotations, texts(&[("k\\u{1b}[2J", "line\\nend \\u{e9}")]));
        assert!(!shown.texts.is_cut_short);
        let mut long = sandbox("a", "1", "pod");
        long.labels = texts(&[("key", &"é".repeat(200))]);
        let mut many = sandbox("a", "1", "pod");
        many.labels = (0..100).map(|number| (number.to_string(), String::new())).collect();
        let containers: Vec<Container> = (0..100)
            .map(|number| container(&number.to_string(), "a", &number.to_string(), ContainerState::Running))
            .collect();
        let full = sandbox("a", "1", "pod");
        for (sandbox, containers) in [(long, &[][..]), (many, &[]), (full, &containers)] {
            let shown = &pods(&[sandbox], containers)[&Uid::of("1")];
            assert!(
                shown.texts.is_cut_short
                    && shown.texts.labels.len() <= MOST
                    && shown.containers.len() <= MOST_CONTAINERS
            );
            assert!(json!(shown).to_string().is_ascii());
            assert!(shown.texts.labels.values().all(|value| value.len() <= TEXT / 2 * "\\u{e9}".len()));
        }
    }

    #[test]
    fn a_runtime_that_is_not_named_is_not_asked_and_one_that_is_not_there_is_an_error() {
        assert_eq!(ask(&Configuration::default()), Ok(BTreeMap::new()));
        let configuration = plimsoll_config::parse("machine: {runtimeSocket: /none/here.sock}", "f").expect("in order");
        let error = ask(&configuration).expect_err("there is none");
        assert!(error.contains("/none/here.sock"), "{error}");
    }
}
