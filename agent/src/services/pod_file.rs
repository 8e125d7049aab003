//! The file that says what is known of pods, read again whenever it changed.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use plimsoll_inventory::{Limited, MOST_PODS, PodFacts, StorageLimit, name_number};
use plimsoll_pods::{Pod, ReadError, Spec, pods_of};
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::{Critical, PodSpec};
use plimsoll_report::PodNames;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::pod_reader::{Clocks, PodReader};
use super::runtime::Named;
use crate::confine::SERVICES;

/// The longest file, in bytes: that of 4,096 pods with several containers each.
const MOST_BYTES: u64 = 64 << 20;

/// Which content a file has, as far as that is seen without reading it.
type Content = (u64, u64, i64, [i64; 2], [i64; 2]);

fn content(stat: &Stat) -> Content {
    let time = |seconds: i64, nanoseconds: u64| [seconds, i64::try_from(nanoseconds).unwrap_or(0)];
    let (modified, changed) = (time(stat.st_mtime, stat.st_mtime_nsec), time(stat.st_ctime, stat.st_ctime_nsec));
    (stat.st_dev, stat.st_ino, stat.st_size, modified, changed)
}

/// The file, by the directory that it is in: it may be replaced.
pub(crate) struct PodFile {
    path: PathBuf,
    directory: Result<OwnedFd, Errno>,
    name: OsString,
    seen: Option<Content>,
    was_read: bool,
    trouble: Option<String>,
    /// How many pods of it could not be read.
    unread: usize,
    reader: PodReader,
}

impl PodFile {
    /// Opens its directory; the file itself need not be there yet.
    pub(crate) fn open(path: &Path, reader: PodReader) -> Self {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = path.parent().ok_or(Errno::INVAL);
        let directory = folder.and_then(|folder| openat(CWD, folder, how, Mode::empty()));
        let (path, name) = (path.to_owned(), path.file_name().unwrap_or_default().to_owned());
        Self { path, directory, name, seen: None, was_read: false, trouble: None, unread: 0, reader }
    }

    /// Its directory, where it could be opened.
    pub(crate) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().ok().map(OwnedFd::as_fd)
    }

    /// Whether its directory is another one by now than the one that was opened, or is there by now. Landlock bars this
    /// process from it.
    pub(super) fn is_elsewhere(&self) -> bool {
        let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
        let opened = match &self.directory {
            Ok(directory) => fstat(directory).ok().map(identity),
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            // What could not be opened although it was there would not be by another process either.
            Err(_) => return false,
        };
        let there = self.path.parent().and_then(|folder| statat(CWD, folder, AtFlags::empty()).ok());
        let there = there.filter(|it| FileType::from_raw_mode(it.st_mode) == FileType::Directory).map(identity);
        there.is_some() && there != opened
    }

    /// What it says, where it changed and can be read. Where it cannot, that is logged once, and what it said before
    /// holds.
    pub(super) fn read_changed(&mut self) -> Option<Listed> {
        match self.read() {
            Ok(None) => None,
            Ok(Some(listed)) => {
                self.report_unread(&listed);
                let (count, path) = (listed.pods.len(), self.path.display());
                if self.trouble.take().is_some() || !self.was_read {
                    tracing::info!(pods = count, "{count} pods are known from {path}");
                } else {
                    tracing::debug!(pods = count, "{count} pods are known from {path}, which changed");
                }
                self.was_read = true;
                Some(listed)
            }
            Err(error) => {
                let trouble = at(&self.path.display().to_string(), &error);
                if self.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(
                        "what is known of pods is not renewed: podFacts {trouble}; what was read before holds"
                    );
                    self.trouble = Some(trouble);
                }
                None
            }
        }
    }

    /// Whether all of it was read when it changed last.
    pub(super) const fn is_read(&self) -> bool {
        self.was_read && self.trouble.is_none() && self.unread == 0
    }

    /// Once for so many: what is wrong stands in another line after each change.
    fn report_unread(&mut self, listed: &Listed) {
        let (unread, path) = (listed.unread, self.path.display());
        if let Some(error) = listed.first_error.as_ref().filter(|_| unread != self.unread) {
            tracing::warn!(unread, "podFacts {path}: {unread} pods cannot be read and are never evicted; line {error}");
        }
        self.unread = unread;
    }

    /// What it says, where it changed.
    ///
    /// # Errors
    /// Where it is not there, or is no list of pods that can be read.
    pub(crate) fn read(&mut self) -> anyhow::Result<Option<Listed>> {
        let opened = self.directory.as_ref();
        let directory = opened.map_err(|errno| anyhow!("its directory cannot be opened: {errno}"))?;
        let user = SERVICES.id;
        let before = self.seen.take();
        let found = match statat(directory, &self.name, AtFlags::empty()) {
            Err(Errno::NOENT) => bail!("it is not there"),
            found => found.with_context(|| format!("it cannot be found; let user {user} enter its directory"))?,
        };
        if before == Some(content(&found)) {
            self.seen = before;
            return Ok(None);
        }
        // A FIFO must not keep it waiting.
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = openat(directory, &self.name, how, Mode::empty())
            .with_context(|| format!("it cannot be opened; let user {user} read it"))?;
        let opened = fstat(&file)?;
        ensure!(FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile, "it is no regular file");
        let mut bytes = Vec::new();
        File::from(file).take(MOST_BYTES + 1).read_to_end(&mut bytes).context("it cannot be read")?;
        // A file that is wrong is not read again before it changes.
        self.seen = Some(content(&opened));
        ensure!(bytes.len() as u64 <= MOST_BYTES, "it is longer than {MOST_BYTES} bytes");
        let listed = facts_of(&bytes, &mut self.reader)?;
        self.reader.retain(|uid| listed.pods.contains_key(uid));
        Ok(Some(listed))
    }
}

/// What is wrong with a file, behind the file and, where that is known, the line.
pub(crate) fn at(file: &str, error: &anyhow::Error) -> String {
    let blank = if error.is::<ReadError>() { "" } else { " " };
    format!("{file}:{blank}{error:#}")
}

/// What a list of pods says.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// Of each that has not ended, by the UID of its cgroup.
    pub(crate) pods: BTreeMap<Uid, PodFacts>,
    /// Their limits of local storage.
    pub(crate) limits: BTreeMap<Uid, Vec<StorageLimit>>,
    /// What each of these is called.
    pub(crate) names: Named,
    /// How many cannot be read. They are left out, so that nothing is known of them and they are protected: the author of
    /// one must not keep what is known of all others from being renewed.
    pub(crate) unread: usize,
    /// Why the first of those cannot be.
    pub(crate) first_error: Option<ReadError>,
    /// Those that have succeeded or failed: none of their containers starts again.
    pub(crate) ended: BTreeSet<Uid>,
    /// The same by the UID of their cgroups and directories, with mirrors, if there is room for all.
    pub(crate) over: BTreeSet<Uid>,
}

impl Listed {
    /// All pods that the list names and that have ended; `None` where it may name others: one could not be read, or there
    /// are too many.
    pub(crate) fn no_others(&self) -> Option<BTreeSet<Uid>> {
        (self.unread == 0 && self.over.len() < MOST_PODS).then(|| self.over.clone())
    }
}

/// Reads a list of pods.
///
/// # Errors
/// Where it is no such list, or has more than [`MOST_PODS`] that have not ended.
pub(crate) fn facts_of(bytes: &[u8], reader: &mut PodReader) -> anyhow::Result<Listed> {
    listed(pods_of(bytes)?, reader)
}

/// The same of pods that were read.
///
/// # Errors
/// Where more than [`MOST_PODS`] of them have not ended.
pub(super) fn listed<P: Borrow<Pod>>(
    pods: impl Iterator<Item = Result<P, ReadError>>,
    reader: &mut PodReader,
) -> anyhow::Result<Listed> {
    let clocks = Clocks::now();
    let mut listed = Listed::default();
    for read in pods {
        let Listed { pods, limits, names, unread, first_error, ended, over } = &mut listed;
        let pod = match read.as_ref().map(Borrow::borrow) {
            Ok(pod) if pod.has_ended => {
                if over.len() < MOST_PODS {
                    over.insert(cgroup_uid(pod));
                }
                // A mirror names a pod that it is not.
                if static_uid(pod).is_none() && ended.len() < MOST_PODS {
                    ended.insert(Uid::of(&pod.uid));
                }
                continue;
            }
            Ok(pod) => pod,
            Err(error) => {
                first_error.get_or_insert_with(|| error.clone());
                *unread += 1;
                ensure_room(pods.len() + *unread)?;
                continue;
            }
        };
        let mut facts = facts(pod, reader.kubelet_root());
        facts.started = pod.started.map(|at| reader.time(facts.uid, at, clocks));
        // A mirror that is deleted ends nothing: its kubelet makes it anew.
        let ends = pod.ends.filter(|_| static_uid(pod).is_none());
        facts.ends = ends.map(|at| reader.time(facts.uid, at, clocks));
        // Of two with one UID the protected one counts; a mirror only where none has the UID as its own. A UUID without
        // its dashes is no other UID, so the author of a pod could have a mirror say that it is static.
        let weight = |facts: &PodFacts| match facts.critical {
            Some(Critical::Static | Critical::Mirror) => 0,
            None => 1,
            Some(Critical::Priority) => 2,
        };
        let known = pods.get(&facts.uid);
        if known.is_none_or(|known| weight(&facts) > weight(known)) {
            names.insert(facts.uid, pod_names(facts.uid, pod));
            limits.insert(facts.uid, storage_limits(facts.uid, pod));
            pods.insert(facts.uid, facts);
        }
        ensure_room(pods.len() + *unread)?;
    }
    let Listed { pods, ended, .. } = &mut listed;
    ended.retain(|uid| !pods.contains_key(uid));
    Ok(listed)
}

fn ensure_room(count: usize) -> anyhow::Result<()> {
    let most = MOST_PODS;
    ensure!(count <= most, "it has more than {most} pods: list those of this node alone");
    Ok(())
}

/// The limits of a pod's volumes and containers.
pub(super) fn storage_limits(uid: Uid, pod: &Pod) -> Vec<StorageLimit> {
    let number = |name: &str| name_number(name.as_bytes());
    let volumes = pod.volume_limits().map(|(name, bytes)| (Limited::Volume(number(name)), bytes));
    let containers = pod.container_limits().map(|(name, bytes)| (Limited::Container(number(name)), bytes));
    volumes.chain(containers).map(|(on, bytes)| StorageLimit { uid, on, bytes }).collect()
}

/// What makes a pod writes its annotations, and what a kubelet corrects of them in its own memory
/// (`kubernetes.io/config.source`; `applyDefaults`, pkg/kubelet/config/common.go) an API server still prints as it was
/// written. So they make no pod critical by themselves. A mirror is believed as far as it names what has the UID of a
/// static pod, a hash without dashes: it does not run, and can protect only that.
pub(super) fn facts(pod: &Pod, kubelet_root: &Path) -> PodFacts {
    let static_uid = static_uid(pod);
    let (storage_request, storage_limit) = pod.storage();
    let by_priority = PodSpec { priority: Some(pod.facts.priority), ..PodSpec::default() }.critical();
    PodFacts {
        uid: cgroup_uid(pod),
        priority: pod.facts.priority,
        critical: static_uid.map(|_| Critical::Mirror).or(by_priority),
        memory_request: pod.memory_request(),
        storage_request,
        storage_limit,
        grace_seconds: pod.facts.grace_seconds.map(|seconds| u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)),
        daemon_set: pod.daemon_set.as_ref().map(|owner| owner.uid),
        started: None,
        serves_others: pod.serves_others(kubelet_root),
        ends: None,
    }
}

/// Of a mirror, the UID of the static pod that it stands for.
fn static_uid(pod: &Pod) -> Option<&str> {
    let is_hash = |uid: &&str| uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit());
    pod.static_uid.as_deref().filter(is_hash)
}

/// The UID in the path of its cgroup.
fn cgroup_uid(pod: &Pod) -> Uid {
    Uid::of(static_uid(pod).unwrap_or(&pod.uid))
}

/// The names of the same pods, `namespace/name`, as their authors wrote them. Of a list that cannot be read, none.
pub(crate) fn names_of(bytes: &[u8]) -> HashMap<Uid, String> {
    let mut names = HashMap::new();
    for pod in pods_of(bytes).into_iter().flatten().flatten().filter(|pod| !pod.has_ended) {
        let (uid, name) = (cgroup_uid(&pod), pod.full_name());
        // That of a pod goes before that of a mirror, whose author may name any UID.
        if static_uid(&pod).is_none() {
            names.insert(uid, name);
        } else {
            names.entry(uid).or_insert(name);
        }
    }
    names
}

/// What one pod and its containers are called.
fn pod_names(uid: Uid, pod: &Pod) -> PodNames {
    let mut names = PodNames::new(uid, &pod.namespace, &pod.name);
    pod.volume_limits().for_each(|(volume, _)| names.add_volume(volume));
    let Spec { containers, init_containers, ephemeral_containers, .. } = &pod.spec;
    for container in containers.iter().chain(init_containers).chain(ephemeral_containers) {
        container.id.iter().for_each(|id| names.add_container(id, &container.name));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::OwnerUid;
    use plimsoll_units::{Bytes, MonotonicNs};
    use std::fs;

    fn pod(uid: &str, annotations: &str, memory: &str, status: &str) -> String {
        format!(
            r#"{{"metadata": {{"name": "a", "uid": "{uid}", "annotations": {annotations},
            "ownerReferences": [{{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "9", "controller": true}}]}},
            "spec": {{"priority": 7, "terminationGracePeriodSeconds": 5, "containers":
            [{{"name": "c", "resources": {{"requests": {{"memory": "{memory}"}}}}}}]}}, "status": {status}}}"#
        )
    }

    fn list(pods: &[String]) -> String {
        format!("{{\"items\": [{}]}}", pods.join(","))
    }

    #[test]
    fn the_file_is_read_when_it_changed_and_what_it_said_holds_where_it_is_wrong() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("pods.json");
        let mut file = PodFile::open(&path, PodReader::default());
        let mut read =
            || file.read_changed().map(|listed| listed.pods.values().map(|pod| pod.memory_request).collect::<Vec<_>>());
        assert_eq!(read(), None, "it is not there");
        let write = |memory: &str| fs::write(&path, list(&[pod("1", "{}", memory, "{}")])).expect("writable");
        write("5Mi");
        assert_eq!(read(), Some(vec![Bytes::mib(5)]));
        assert_eq!(read(), None, "it is the same");
        fs::write(&path, "{\"items\": [").expect("writable");
        assert_eq!(read(), None, "it is cut off");
        write("17Mi");
        assert_eq!(read(), Some(vec![Bytes::mib(17)]), "it was resized");
        let other = folder.path().join("other");
        fs::write(&other, list(&[])).expect("writable");
        fs::rename(&other, &path).expect("writable");
        assert_eq!(read(), Some(vec![]));
        fs::remove_file(&path).expect("writable");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
        assert_eq!(read(), None, "it is no file");
        fs::remove_file(&path).expect("writable");
        assert_eq!(read(), None, "it is gone");
        assert_eq!(file.trouble, Some(format!("{}: it is not there", path.display())));
    }

    #[test]
    fn a_directory_that_comes_or_is_replaced_is_seen() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (directory, before) = (folder.path().join("pods"), folder.path().join("before"));
        let open = || PodFile::open(&directory.join("pods.json"), PodReader::default());
        let mut file = open();
        assert!(!file.is_elsewhere() && file.read_changed().is_none(), "it is not there");
        assert!(
            file.trouble.is_some_and(|why| why.contains("pods.json: its directory cannot be opened: No such file"))
        );
        let file = open();
        fs::write(&directory, "").expect("writable");
        assert!(!file.is_elsewhere() && !open().is_elsewhere(), "it is no directory");
        fs::remove_file(&directory).expect("writable");
        fs::create_dir(&directory).expect("writable");
        assert!(file.is_elsewhere() && !open().is_elsewhere());
        let file = open();
        fs::rename(&directory, before).expect("writable");
        assert!(!file.is_elsewhere(), "there is no other one");
        fs::create_dir(&directory).expect("writable");
        assert!(file.is_elsewhere());
    }

    #[test]
    fn a_pod_that_is_wrong_is_named_with_its_place_and_left_out_alone() {
        let wrong = list(&[pod("1", "{}", "1Q", "{}"), pod("2", "{}", "2Mi", "{}"), "7".to_owned()]);
        let listed = facts_of(wrong.as_bytes(), &mut PodReader::default()).expect("it is a list");
        let error = listed.first_error.expect("it is wrong").to_string();
        let begin = "1: items[0].spec.containers[0].resources.requests.memory: pod a: expected a quantity";
        assert!(error.starts_with(begin), "{error}");
        assert_eq!((listed.pods.into_keys().collect(), listed.unread), (vec![Uid::of("2")], 2));
    }

    #[test]
    fn a_pod_has_its_requests_and_limits_of_local_storage() {
        let text = r#"{"items": [{"metadata": {"name": "a", "uid": "1"}, "spec": {"containers": [{"name": "c", "resources":
            {"requests": {"ephemeral-storage": "3Mi"}, "limits": {"ephemeral-storage": "5Mi"}}}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "7Mi"}}, {"name": "w", "emptyDir": {}}]}}]}"#;
        let listed = facts_of(text.as_bytes(), &mut PodReader::default()).expect("it is in order");
        let uid = Uid::of("1");
        let PodFacts { storage_request, storage_limit, .. } = listed.pods[&uid];
        assert_eq!((storage_request, storage_limit), (Bytes::mib(3), Some(Bytes::mib(5))));
        let limit = |on, mib| StorageLimit { uid, on, bytes: Bytes::mib(mib) };
        let expected = [limit(Limited::Volume(name_number(b"v")), 7), limit(Limited::Container(name_number(b"c")), 5)];
        assert_eq!(listed.limits[&uid], expected);
        let mut names = PodNames::new(uid, "", "a");
        names.add_volume("v");
        assert_eq!(listed.names[&uid], names, "those with limits are named");
    }

    #[test]
    fn containers_are_named_by_the_ids_of_their_status() {
        let (id, status) = ("ab".repeat(32), |of: &str, id: &str| {
            format!(
                r#"{{"{of}": [{{"name": "c", "containerID": "containerd://{id}", "image": "", "imageID": "",
            "ready": true, "restartCount": 0}}]}}"#
            )
        });
        for (of, written, is_id) in [
            ("containerStatuses", &*id, true),
            ("containerStatuses", "short", false),
            ("ephemeralContainerStatuses", &*id, true),
        ] {
            let pod = pod("1", "{}", "1Mi", &status(of, written));
            let is_regular = of == "containerStatuses";
            let pod = if is_regular { pod } else { pod.replace("\"containers\":", "\"ephemeralContainers\":") };
            let text = list(&[pod]);
            let listed = facts_of(text.as_bytes(), &mut PodReader::default()).expect("it is in order");
            let mut names = PodNames::new(Uid::of("1"), "", "a");
            assert_eq!(listed.names[&Uid::of("1")] == names, !is_id, "{text}");
            names.add_container(&id, "c");
            assert_eq!(listed.names[&Uid::of("1")] == names, is_id, "{text}");
        }
    }

    #[test]
    fn a_list_is_refused_where_it_is_none_or_too_long() {
        let error = facts_of(b"{}", &mut PodReader::default()).expect_err("it is wrong").to_string();
        assert!(error.starts_with("1: it has no list named items"), "{error}");
        let read = |count: usize, written: &dyn Fn(usize) -> String| {
            let many: Vec<_> = (0..count).map(written).collect();
            facts_of(list(&many).as_bytes(), &mut PodReader::default()).map(|listed| listed.pods.len() + listed.unread)
        };
        let known = |uid| format!(r#"{{"metadata": {{"name": "a", "uid": "{uid}"}}}}"#);
        let unread = |_| "{}".to_owned();
        for written in [&known as &dyn Fn(usize) -> String, &unread] {
            assert_eq!(read(MOST_PODS, written).expect("it is not too long"), MOST_PODS);
            let error = read(MOST_PODS + 1, written).expect_err("it is too long").to_string();
            assert_eq!(error, "it has more than 4096 pods: list those of this node alone");
        }
    }

    #[test]
    fn annotations_alone_protect_no_pod_of_their_author() {
        let uid = "01234567-89ab-cdef-0123-456789abcdee";
        let undashed = uid.replace('-', "");
        let mirror = |uid: &str| {
            format!(
                r#"{{"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "{uid}",
                "kubernetes.io/config.hash": "{uid}"}}"#
            )
        };
        let own = pod(uid, "{}", "2Mi", "{}");
        let urgent = own.replace("\"priority\": 7", "\"priority\": 2000000000");
        for (pods, critical) in [
            (&[pod(uid, r#"{"kubernetes.io/config.source": "file"}"#, "2Mi", "{}")][..], None),
            (&[pod(uid, r#"{"kubernetes.io/config.mirror": "x"}"#, "2Mi", "{}")], None),
            (&[pod(uid, &mirror(uid), "2Mi", "{}")], None),
            (&[own.clone(), pod("1", &mirror(uid), "1Mi", "{}")], None),
            (&[own.clone(), pod("1", &mirror(&undashed), "1Mi", "{}")], None),
            (&[pod("1", &mirror(&undashed), "1Mi", "{}"), own], None),
            (&[urgent], Some(Critical::Priority)),
        ] {
            let text = list(pods);
            let known = facts_of(text.as_bytes(), &mut PodReader::default()).expect("it is in order");
            let facts = known.pods[&Uid::of(uid)];
            assert_eq!((facts.critical, facts.memory_request), (critical, Bytes::mib(2)), "{text}");
        }
        let mirror_alone = list(&[pod("1", &mirror(uid), "1Mi", "{}")]);
        let known = facts_of(mirror_alone.as_bytes(), &mut PodReader::default()).expect("it is in order");
        assert_eq!(known.pods.into_keys().collect::<Vec<_>>(), [Uid::of("1")]);
    }

    #[test]
    fn that_a_list_names_no_other_pods_is_said_with_those_that_have_ended_and_where_each_could_be_read() {
        let hash = "0123456789abcdef0123456789abcdef";
        let mirror = format!(r#"{{"kubernetes.io/config.mirror": "{hash}", "kubernetes.io/config.hash": "{hash}"}}"#);
        let ended = r#"{"phase": "Failed"}"#;
        let mut pods = vec![pod("1", "{}", "1Mi", "{}"), pod("2", "{}", "1Mi", ended), pod("3", &mirror, "1Mi", ended)];
        let listed = facts_of(list(&pods).as_bytes(), &mut PodReader::default()).expect("it is in order");
        assert_eq!(listed.no_others(), Some(BTreeSet::from([Uid::of("2"), Uid::of(hash)])));
        pods.push(pod("4", "{}", "many", "{}"));
        let listed = facts_of(list(&pods).as_bytes(), &mut PodReader::default()).expect("one is left out");
        assert_eq!((listed.unread, listed.no_others()), (1, None));
    }

    #[test]
    fn a_pod_is_known_by_the_uid_of_its_cgroup() {
        let hash = "0123456789abcdef0123456789abcdef";
        let uid = "01234567-89ab-cdef-0123-456789abcdee";
        let mirror = format!(r#"{{"kubernetes.io/config.mirror": "{hash}", "kubernetes.io/config.hash": "{hash}"}}"#);
        // A pod of a user that would have another's ranked by its own facts.
        let forged = format!(r#"{{"kubernetes.io/config.hash": "{uid}"}}"#);
        let start = r#"{"startTime": "2020-01-01T00:00:00Z"}"#;
        let text = list(&[
            pod("1", &mirror, "1Mi", "{}"),
            pod(uid, "{}", "2Mi", start),
            pod("2", &forged, "3Mi", "{}"),
            pod("3", "{}", "4Mi", r#"{"phase": "Succeeded"}"#),
        ]);
        let mut reader = PodReader::default();
        let pods = facts_of(text.as_bytes(), &mut reader).expect("it is in order").pods;
        let known = PodFacts {
            uid: Uid::of(uid),
            priority: 7,
            memory_request: Bytes::mib(2),
            grace_seconds: Some(5),
            daemon_set: Some(OwnerUid(Uid::of("9").0)),
            started: Some(MonotonicNs(0)),
            ..PodFacts::default()
        };
        let of_forger = PodFacts { uid: Uid::of("2"), memory_request: Bytes::mib(3), started: None, ..known };
        let of_mirror = PodFacts {
            uid: Uid::of(hash),
            critical: Some(Critical::Mirror),
            memory_request: Bytes::mib(1),
            ..of_forger
        };
        for facts in [known, of_forger, of_mirror] {
            assert_eq!(pods.get(&facts.uid), Some(&facts));
        }
        assert_eq!(pods.len(), 3);
        let called = |uid| names_of(text.as_bytes()).get(&Uid::of(uid)).cloned();
        assert_eq!([called(hash), called(uid), called("3")], [Some("a".to_owned()), Some("a".to_owned()), None]);
        let again = facts_of(text.as_bytes(), &mut reader).expect("it is in order");
        let names = [hash, uid, "2"].map(|uid| (Uid::of(uid), PodNames::new(Uid::of(uid), "", "a")));
        assert_eq!(again.names, names.into());
        assert_eq!(again.pods, pods);
    }

    #[test]
    fn a_pod_that_is_deleted_ends_and_a_static_one_does_not_with_its_mirror() {
        let hash = "0123456789abcdef0123456789abcdef";
        let mirror = format!(r#"{{"kubernetes.io/config.mirror": "{hash}", "kubernetes.io/config.hash": "{hash}"}}"#);
        let deleted = |pod: String| {
            pod.replace(r#""name": "a","#, r#""name": "a", "deletionTimestamp": "2100-01-01T00:00:00Z","#)
        };
        let text = list(&[
            deleted(pod("1", "{}", "1Mi", "{}")),
            pod("2", "{}", "1Mi", "{}"),
            deleted(pod("3", &mirror, "1Mi", "{}")),
        ]);
        let mut reader = PodReader::default();
        let mut ends = || {
            let pods = facts_of(text.as_bytes(), &mut reader).expect("it is in order").pods;
            ["1", "2", hash].map(|uid| pods[&Uid::of(uid)].ends)
        };
        let first = ends();
        assert!(matches!(first, [Some(ends), None, None] if ends > plimsoll_node::clock::monotonic()), "{first:?}");
        assert_eq!(ends(), first, "as it was found first");
    }
}
