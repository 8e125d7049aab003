//! What pods and containers are called, by what the paths of their cgroups say.
//!
//! The core works on numbers and reports paths. Names come from another process, `services`, message by message. It is not
//! trusted: a message has limits in length and count, and is text that is safe to print, or is left out.

use std::collections::HashMap;
use std::fmt;

use plimsoll_inventory::{ContainerKind, Limited, PodRoot, name_number};
use plimsoll_policy::Uid;
use serde::{Deserialize, Serialize};

use crate::record::PATH;
use crate::text::escaped;
use crate::witnessed::{Ended, Witnessed};

/// No message is longer, in bytes. A test holds that the longest one fits.
pub const NAME_MESSAGE: usize = 4096;
/// The longest namespace and name of a pod, and name of a container, in bytes: those of Kubernetes (RFC 1123 labels and
/// subdomains).
const NAMESPACE: usize = 63;
const POD: usize = 253;
const CONTAINER: usize = 63;
/// The containers of a pod that have names.
const CONTAINERS: usize = 16;
/// All names together, in bytes. A node of 500 pods with three containers each has 200 KB.
const ALL: usize = 2 << 20;

/// What a pod is called, and each of its containers that run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNames {
    uid: Uid,
    /// `namespace/name`.
    pod: String,
    /// By the runtime's id.
    containers: Vec<(Id, String)>,
    /// Those of its volumes that have a limit.
    volumes: Vec<String>,
}

/// The 64 hexadecimal digits of a container's id, as a number.
type Id = [u8; 32];

fn id(digits: &[u8]) -> Option<Id> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// Printable ASCII, and no more than so many bytes of it.
fn bounded(text: &str, most: usize) -> String {
    const CUT: &str = "...";
    let mut text = escaped(text.as_bytes());
    if text.len() > most {
        text.truncate(most - CUT.len());
        text.push_str(CUT);
    }
    text
}

impl PodNames {
    /// Of the pod with this UID, as the path of its cgroup has it. Both may be anything.
    pub fn new(uid: Uid, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (bounded(namespace, NAMESPACE), bounded(name, POD));
        let pod = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
        Self { uid, pod, containers: Vec::new(), volumes: Vec::new() }
    }

    /// The pod.
    pub const fn uid(&self) -> Uid {
        self.uid
    }

    /// `namespace/name`, or the name where the namespace is not known; escaped, and cut where it is long.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Names a container by the runtime's id. One whose id no cgroup can have, that has a name, or that is one too many, is
    /// left out.
    pub fn add_container(&mut self, digits: &str, name: &str) {
        if let Some(id) = id(digits.as_bytes()) {
            self.add(id, bounded(name, CONTAINER));
        }
    }

    /// Names a volume. One too many is left out.
    pub fn add_volume(&mut self, name: &str) {
        if self.volumes.len() < CONTAINERS {
            self.volumes.push(bounded(name, CONTAINER));
        }
    }

    /// Adds the containers that another source names.
    pub fn add_containers_of(&mut self, other: &Self) {
        for (id, name) in &other.containers {
            self.add(*id, name.clone());
        }
    }

    fn add(&mut self, id: Id, name: String) {
        if self.containers.len() < CONTAINERS && self.containers.iter().all(|(other, _)| *other != id) {
            self.containers.push((id, name));
        }
    }

    /// Whether [`Self::new`] and [`Self::add`] can have made it.
    fn is_in_order(&self) -> bool {
        let is_printable = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let is_name = |name: &str| name.len() <= CONTAINER && is_printable(name);
        let is_pod = self.pod.len() <= NAMESPACE + 1 + POD && is_printable(&self.pod);
        let is_bounded = self.containers.len().max(self.volumes.len()) <= CONTAINERS;
        let mut names = self.containers.iter().map(|(_, name)| name).chain(&self.volumes);
        is_pod && is_bounded && names.all(|name| is_name(name))
    }

    fn size(&self) -> usize {
        size_of::<Self>()
            + self.pod.len()
            + self.containers.iter().map(|it| size_of_val(it) + it.1.len()).sum::<usize>()
            + self.volumes.iter().map(|it| size_of_val(it) + it.len()).sum::<usize>()
    }
}

/// A message to the reporter: first [`Self::Begin`], then each pod, then [`Self::Complete`], from which these are all names.
/// One that begins anew before that starts over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameMessage {
    /// All names follow.
    Begin,
    /// Those of a pod.
    Pod(PodNames),
    /// These were all.
    Complete,
    /// What was done to pods by others, since what sends this began: no name, and at any time.
    Witnessed(Witnessed),
    /// One of those pods, once: no name either.
    Ended(Ended),
}

/// A message that has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unnamed {
    Witnessed(Witnessed),
    Ended(Ended),
}

impl NameMessage {
    /// Writes it into a buffer, and gives what it takes of that.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; NAME_MESSAGE]) -> &'b [u8] {
        postcard::to_slice(self, buffer).map_or(&[], |bytes| bytes)
    }

    /// Reads one. `None` for what is no message, or has something after it.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
        let is_in_order = !matches!(&message, Self::Pod(names) if !names.is_in_order());
        (rest.is_empty() && is_in_order).then_some(message)
    }
}

/// All names that are known. They hold until others are complete.
#[derive(Debug, Default)]
pub(crate) struct Names {
    root: PodRoot,
    known: HashMap<Uid, PodNames>,
    /// What has come since [`NameMessage::Begin`], and its size.
    next: HashMap<Uid, PodNames>,
    size: usize,
}

impl Names {
    /// For pods that a kubelet keeps there.
    pub(crate) fn new(root: PodRoot) -> Self {
        Self { root, ..Self::default() }
    }

    /// Takes a message in, and gives what of it is no name.
    ///
    /// # Errors
    /// What was left out, as a sentence.
    pub(crate) fn take(&mut self, message: &[u8]) -> Result<Option<Unnamed>, &'static str> {
        match NameMessage::decode(message) {
            Some(NameMessage::Begin) => (self.next, self.size) = (HashMap::new(), 0),
            Some(NameMessage::Pod(names)) => {
                self.size += names.size();
                if self.size > ALL {
                    return Err("names of pods beyond 2 MiB are left out");
                }
                self.next.insert(names.uid, names);
            }
            Some(NameMessage::Witnessed(witnessed)) => return Ok(Some(Unnamed::Witnessed(witnessed))),
            Some(NameMessage::Ended(ended)) => return Ok(Some(Unnamed::Ended(ended))),
            Some(NameMessage::Complete) => self.known = std::mem::take(&mut self.next),
            None => return Err("names of pods that services sent and that cannot be read are left out"),
        }
        Ok(None)
    }

    /// A cgroup by its path below the root, as a record has it.
    pub(crate) fn cgroup(&self, path: &[u8]) -> Cgroup {
        // The beginning of one that is as long may be missing; what is left of it could look like that of a pod.
        let whole = Some(path).filter(|path| path.len() < PATH);
        let found = whole.and_then(|path| self.root.identify(path));
        let names = found.and_then(|found| self.known.get(&found.uid));
        let container = found.and_then(|found| found.container).filter(|it| it.kind == ContainerKind::Container);
        let container = container.and_then(|it| id(it.id)).zip(names).and_then(|(id, names)| {
            names.containers.iter().find(|(other, _)| *other == id).map(|(_, name)| name.clone())
        });
        Cgroup { path: escaped(path), pod: names.map(|names| names.pod.clone()), container }
    }
}

impl Names {
    /// The pod whose cgroup, or a part of it, is at this path.
    pub(crate) fn uid(&self, path: &[u8]) -> Option<Uid> {
        let whole = Some(path).filter(|path| path.len() < PATH);
        whole.and_then(|path| self.root.identify(path)).map(|found| found.uid)
    }

    /// What a pod is called, if that is known.
    pub(crate) fn pod(&self, uid: Uid) -> Option<&str> {
        self.known.get(&uid).map(PodNames::pod)
    }

    /// The container or volume of the pod at this path whose name has that number.
    pub(crate) fn part(&self, path: &[u8], limited: Limited) -> Option<&str> {
        let found = Some(path).filter(|path| path.len() < PATH).and_then(|path| self.root.identify(path))?;
        let PodNames { containers, volumes, .. } = self.known.get(&found.uid)?;
        let is = |name: &&String, number| name_number(name.as_bytes()) == number;
        match limited {
            Limited::Volume(number) => volumes.iter().find(|name| is(name, number)),
            Limited::Container(number) => containers.iter().map(|(_, name)| name).find(|name| is(name, number)),
        }
        .map(String::as_str)
    }
}

/// A cgroup as it is reported: all of it is printable ASCII.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cgroup {
    /// Its path below the root.
    pub(crate) path: String,
    /// `namespace/name` of the pod that it is or is in, if that is known.
    pub(crate) pod: Option<String>,
    /// The container that it is or is in, likewise.
    pub(crate) container: Option<String>,
}

impl Cgroup {
    /// `pod default/web, container main`, if that is known.
    pub(crate) fn name(&self) -> Option<String> {
        let pod = self.pod.as_ref()?;
        let container = self.container.as_ref().map_or_else(String::new, |name| format!(", container {name}"));
        Some(format!("pod {pod}{container}"))
    }
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        self.name().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const UID: &str = "01234567-89ab-cdef-0123-456789abcdee";

    pub(crate) fn send(names: &mut Names, messages: &[NameMessage]) -> Result<(), &'static str> {
        messages.iter().try_for_each(|message| names.take(message.encode(&mut [0; NAME_MESSAGE])).map(drop))
    }

    /// The path of a pod with this UID.
    pub(crate) fn path(uid: &str) -> String {
        format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice", uid.replace('-', "_"))
    }

    fn named(uid: &str, name: &str) -> NameMessage {
        NameMessage::Pod(PodNames::new(Uid::of(uid), "default", name))
    }

    fn text(names: &Names, path: &str) -> String {
        let all = names.cgroup(path.as_bytes()).to_string();
        all.strip_prefix(path).expect("the path comes first").trim_start().to_owned()
    }

    #[test]
    fn a_cgroup_is_called_by_its_pod_and_container_and_others_by_their_paths_alone() {
        let (mut names, digits) = (Names::default(), "ab".repeat(32));
        let mut web = PodNames::new(Uid::of(UID), "default", "web");
        web.add_container(&digits, "main");
        web.add_container(&digits, "another of the same id");
        web.add_container("no id", "other");
        send(&mut names, &[NameMessage::Begin, NameMessage::Pod(web), NameMessage::Complete]).expect("in order");
        let pod = path(UID);
        let other = path("01234567-89ab-cdef-0123-456789abcdef");
        for (path, name) in [
            (pod.clone(), "(pod default/web)"),
            (format!("{pod}/cri-containerd-{digits}.scope"), "(pod default/web, container main)"),
            (format!("{pod}/cri-containerd-{digits}.scope/below"), "(pod default/web, container main)"),
            (format!("{pod}/cri-containerd-{}.scope", "cd".repeat(32)), "(pod default/web)"),
            (format!("{pod}/crio-conmon-{digits}.scope"), "(pod default/web)"),
            (other, ""),
            ("system.slice/a.service".to_owned(), ""),
            (format!("user.slice/{pod}"), ""),
        ] {
            assert_eq!(text(&names, &path), name, "{path}");
        }
        // The end of a user's path may be the path of a pod.
        let below = format!("{pod}/{}", "x".repeat(PATH - pod.len() - 1));
        assert_eq!(
            (text(&names, &below), text(&names, &below[..PATH - 1])),
            (String::new(), "(pod default/web)".to_owned())
        );
    }

    #[test]
    fn names_hold_until_others_are_complete() {
        let mut names = Names::default();
        let (begin, complete) = (NameMessage::Begin, NameMessage::Complete);
        let (one, other) = (UID, "01234567-89ab-cdef-0123-456789abcdef");
        send(&mut names, &[begin.clone(), named(one, "a"), complete.clone()]).expect("in order");
        send(&mut names, &[begin.clone(), named(other, "b")]).expect("in order");
        assert_eq!((text(&names, &path(one)), text(&names, &path(other))), ("(pod default/a)".into(), String::new()));
        send(&mut names, &[begin, named(other, "c"), complete]).expect("in order");
        assert_eq!((text(&names, &path(one)), text(&names, &path(other))), (String::new(), "(pod default/c)".into()));
    }

    #[test]
    fn the_longest_message_fits_and_what_hurts_is_escaped_and_cut() {
        let mut names = PodNames::new(Uid(u128::MAX), &"\u{1b}[31m".repeat(99), &"\u{202e}\n".repeat(99));
        for index in 0..99_u8 {
            names.add_container(&format!("{index:064x}"), &"\r".repeat(99));
            names.add_volume(&"\r".repeat(99));
        }
        assert_eq!((names.pod.len(), names.containers.len()), (NAMESPACE + 1 + POD, CONTAINERS));
        assert_eq!(names.volumes.len(), CONTAINERS);
        assert!(names.pod.starts_with("\\x1b[31m") && names.is_in_order(), "{names:?}");
        let message = NameMessage::Pod(names);
        let mut buffer = [0; NAME_MESSAGE];
        assert_eq!(NameMessage::decode(message.encode(&mut buffer)), Some(message));
    }

    #[test]
    fn what_is_no_message_or_too_much_is_left_out() {
        let mut names = Names::default();
        let forged = |pod: &str, containers| {
            NameMessage::Pod(PodNames { uid: Uid::of(UID), pod: pod.to_owned(), containers, volumes: Vec::new() })
        };
        let mut buffer = [0; NAME_MESSAGE];
        for message in [
            forged("default/\u{1b}[31mred", Vec::new()),
            forged("default/a\nb", Vec::new()),
            forged(&"x".repeat(NAMESPACE + POD + 2), Vec::new()),
            forged("a", vec![([0; 32], "\n".to_owned())]),
            forged("a", vec![([0; 32], "x".repeat(CONTAINER + 1))]),
            forged("a", vec![([0; 32], String::new()); CONTAINERS + 1]),
            NameMessage::Pod(PodNames { volumes: vec!["\n".to_owned()], ..PodNames::default() }),
        ] {
            let bytes = message.encode(&mut buffer);
            assert!(!bytes.is_empty() && names.take(bytes).is_err(), "{message:?}");
        }
        assert!(names.take(&[]).is_err() && names.take(&[255; 64]).is_err());
        assert!(names.take(&[NameMessage::Begin.encode(&mut buffer), b"x"].concat()).is_err());
        let long = "x".repeat(POD);
        let fits = (0..u128::MAX).take_while(|number| {
            let pod = NameMessage::Pod(PodNames::new(Uid(*number), "default", &long));
            send(&mut names, &[pod]).is_ok()
        });
        assert!((1000..ALL / POD).contains(&fits.count()));
        send(&mut names, &[NameMessage::Begin, named(UID, "a")]).expect("there is room again");
    }
}
