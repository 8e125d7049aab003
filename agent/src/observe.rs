//! A sample of the machine from outside the core, for `explain`, `pods` and `check`. Reads files, changes nothing, and needs
//! no rights but to read.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use plimsoll_config::{Configuration, WatchedSlice};
use plimsoll_inventory::{
    Bounds, Containers, Found, Patterns, PodMessage, PodRoot, Pods, Protected, Rank, discover, is_monitor,
};
use plimsoll_node::cgroup::{Handle, PageCache, Purpose, Root};
use plimsoll_node::clock::monotonic;
use plimsoll_node::limits::TaskLimits;
use plimsoll_node::meminfo::{MemInfo, MemReading};
use plimsoll_node::namespaces;
use plimsoll_policy::{Protected as Why, Uid};
use plimsoll_replay::printable;
use plimsoll_report::trace::{self, Memory, Owner, Sample, Slice, Tasks, Workload};
use plimsoll_units::{Bytes, MonotonicNs};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::pods_command::runtime::sandboxes;
use crate::replay::PodList;
use crate::services::{Listed, PodReader, StaticFound, at, facts_of, find_static};
use crate::{cluster_client, node_services};

/// What [`Handle`] reads of a cgroup's memory. What is not there or cannot be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) usage: Option<Bytes>,
    pub(crate) peak: Option<Bytes>,
    pub(crate) swapped: Option<Bytes>,
    pub(crate) active_file: Option<Bytes>,
    cache: Option<PageCache>,
    /// The larger of `memory.low` and `memory.min`.
    pub(crate) reservation: Bytes,
    /// `memory.max`, if it is a limit.
    pub(crate) max: Option<Bytes>,
    /// No process is left in it.
    pub(crate) is_empty: bool,
}

impl Figures {
    fn of(cgroup: &Handle) -> Self {
        Self {
            usage: cgroup.usage().ok(),
            peak: cgroup.peak().ok(),
            swapped: cgroup.swapped().ok(),
            active_file: cgroup.active_file().ok(),
            cache: cgroup.page_cache().ok(),
            reservation: cgroup.protection(),
            max: cgroup.max().ok().flatten(),
            is_empty: cgroup.populated() == Ok(false),
        }
    }

    /// The working set: usage without inactive page cache.
    pub(crate) fn working_set(&self) -> Option<Bytes> {
        Some(self.usage?.saturating_sub(self.cache.unwrap_or_default().inactive_file))
    }

    /// What reclaim could not take without swap.
    fn held(&self) -> Option<Bytes> {
        Some(self.usage?.saturating_sub(self.cache?.reclaimable?))
    }
}

/// What it reads.
pub(crate) struct Observer {
    root: Option<Root>,
    patterns: Patterns,
    priorities: Vec<i32>,
    protected: Protected,
    known: Known,
    /// What each slice with thresholds of its own is called, and where it may be.
    slices: Vec<(String, Vec<Vec<u8>>)>,
    /// Where the cgroup of all pods may be.
    all_pods: Vec<Vec<u8>>,
    memory: Option<MemInfo>,
}

/// The first of these cgroups that is there, with its memory now.
pub(crate) fn first_of(root: &Root, paths: &[Vec<u8>]) -> Option<(String, Figures)> {
    paths.iter().find_map(|path| {
        let handle = Handle::open_to_read(root, path).ok()??;
        Some((String::from_utf8_lossy(path).into_owned(), Figures::of(&handle)))
    })
}

/// How many cgroups that `machine.workloads` selects may be evicted now, and how many never are. Pods are not among them.
pub(crate) fn selected(configuration: &Configuration, root: &Root, protected: &Protected) -> (usize, usize) {
    let workloads = configuration.machine.workloads.iter().map(|workload| workload.pattern.clone()).collect();
    let pods = crate::core::pod_root_of_known(configuration);
    let patterns = Patterns { workloads, never: configuration.machine.never.clone(), pods };
    let found = discover(root, &patterns, protected, Bounds::default()).unwrap_or_default();
    let is_pod = |path: &Vec<u8>| patterns.pods.as_ref().is_some_and(|pods| pods.pod_at(path).is_some());
    let evictable = found.workloads.iter().filter(|found| found.pod.is_none()).count();
    (evictable, found.refused.iter().filter(|path| !is_pod(path)).count())
}

/// What is of this process's own mounts, which may be a container's: the list of pods that an argument names, and the pod's
/// service account.
#[derive(Default)]
pub(crate) struct Own {
    pub(crate) list: Option<PodList>,
    pub(crate) account: Option<Result<OwnedFd, Errno>>,
}

impl Own {
    /// Reads it, and enters the machine's namespaces then, where a container runtime made others. Where that is not
    /// possible, that is printed, and what is seen is a part of the machine. For a process of one thread.
    ///
    /// # Errors
    /// Where the list cannot be read.
    pub(crate) fn read_and_enter(list: Option<&Path>, configuration: &Configuration) -> anyhow::Result<Self> {
        let list = PodList::read(list)?;
        let account = configuration.machine.cluster.in_cluster.then(crate::supervisor::service_account);
        let entered = namespaces::enter_cgroups().and_then(|mounts| mounts.map_or(Ok(()), namespaces::Mounts::enter));
        if let Err(error) = entered {
            crate::log::complain(&format!("only what this container shows is seen: {error}"));
        }
        Ok(Self { list, account })
    }
}

/// What is known of pods, and what they are called.
#[derive(Default)]
struct Known {
    pods: Pods,
    names: HashMap<Uid, String>,
    /// What said it; absent where nothing did, or where the caller has it.
    source: Option<String>,
}

impl Known {
    /// From a list of pods in a file.
    fn of_list(list: &PodList, configuration: &Configuration) -> anyhow::Result<Self> {
        Self::parsed(&list.bytes, list.path.display().to_string(), configuration)
    }

    /// From a list of pods, and from the manifests of static pods. Of one that cannot be read nothing is known, which is printed.
    fn parsed(bytes: &[u8], source: String, configuration: &Configuration) -> anyhow::Result<Self> {
        let listed = facts_of(bytes, &mut PodReader::default())
            .map_err(|error| anyhow::anyhow!(printable(&at(&source, &error))))?;
        if let Some(error) = &listed.first_error {
            let (unread, error) = (listed.unread, printable(&error.to_string()));
            crate::log::complain(&format!("nothing is known of {unread} pods: {source}: line {error}"));
        }
        let statics = find_static(configuration, || sandboxes(configuration));
        for trouble in statics.iter().flat_map(|found| &found.troubles) {
            crate::log::complain(&format!("manifests of static pods: {trouble}"));
        }
        Ok(Self { source: Some(source), ..Self::of(&listed, crate::services::names_of(bytes), statics.as_ref()) })
    }

    /// From a list that was read, and manifests.
    fn listed(listed: &Listed, statics: Option<&StaticFound>) -> Self {
        let names = listed.names.iter().map(|(uid, names)| (*uid, names.pod().to_owned())).collect();
        Self::of(listed, names, statics)
    }

    /// The list comes first.
    fn of(listed: &Listed, mut names: HashMap<Uid, String>, statics: Option<&StaticFound>) -> Self {
        let mut pods = Pods::default();
        let mut take = |message| pods.take(message, HashSet::new);
        for (facts, name) in statics.iter().flat_map(|found| &found.pods) {
            if !listed.pods.contains_key(&facts.uid) {
                names.insert(facts.uid, name.clone());
                take(PodMessage::Pod(*facts));
            }
        }
        let all = listed.pods.values().copied().map(PodMessage::Pod).chain([PodMessage::Complete]);
        all.for_each(|message| _ = take(message));
        Self { pods, names, source: None }
    }

    /// What `machine.podFacts` says, or the API server of `machine.cluster`, in the place of which a list may be. Where that
    /// cannot be read, that is printed.
    fn configured(configuration: &Configuration, own: &Own) -> Self {
        let machine = &configuration.machine;
        let read = match (machine.pod_facts.as_deref(), &own.list) {
            (None, _) if !machine.cluster.is_on() => return Self::default(),
            (Some(path), _) => crate::replay::content(path)
                .and_then(|bytes| Self::parsed(&bytes, path.display().to_string(), configuration)),
            (None, Some(list)) => Self::of_list(list, configuration),
            (None, None) => cluster_client::pods(configuration, own.account.as_ref())
                .and_then(|listed| Self::parsed(listed.as_bytes(), "the API server".to_owned(), configuration)),
        };
        let hint = if machine.pod_facts.is_none() { "; a list of them can be named with --pods" } else { "" };
        let complain = |error: &anyhow::Error| {
            crate::log::complain(&format!("nothing is known of pods: {}{hint}", printable(&format!("{error:#}"))));
        };
        read.inspect_err(complain).unwrap_or_default()
    }
}

impl Observer {
    /// For the cgroup tree at `root`, if there is one. A list of pods in `own` counts in place of the API server's.
    pub(crate) fn new(configuration: &Configuration, root: Option<&Path>, own: &Own) -> Self {
        let pods = crate::core::pod_root_of_known(configuration);
        Self::with(configuration, root, pods, Known::configured(configuration, own))
    }

    /// The same, with pods as workloads also where nothing says what is known of them: what the list in `own` says, or
    /// else `machine.podFacts` or the API server.
    ///
    /// # Errors
    /// Where that list cannot be parsed.
    pub(crate) fn of_pods(configuration: &Configuration, root: Option<&Path>, own: &Own) -> anyhow::Result<Self> {
        let read = |list| Known::of_list(list, configuration);
        let known = own.list.as_ref().map_or_else(|| Ok(Known::configured(configuration, own)), read)?;
        Ok(Self::with(configuration, root, Some(crate::core::pod_root(configuration)), known))
    }

    /// The same by a list that was read, and by manifests of static pods; absent where nothing is known of pods.
    pub(crate) fn of_listed(
        configuration: &Configuration,
        root: &Path,
        listed: Option<&Listed>,
        statics: Option<&StaticFound>,
    ) -> Self {
        let known = listed.map_or_else(Known::default, |listed| Known::listed(listed, statics));
        Self::with(configuration, Some(root), Some(crate::core::pod_root(configuration)), known)
    }

    fn with(configuration: &Configuration, root: Option<&Path>, pods: Option<PodRoot>, known: Known) -> Self {
        let workloads = configuration.machine.workloads.iter().map(|workload| workload.pattern.clone()).collect();
        let all_pods = crate::core::pod_root(configuration).all_pods();
        let paths = |slice| match slice {
            WatchedSlice::Listed(path) => vec![path.as_str().as_bytes().to_vec()],
            WatchedSlice::Pods => all_pods.clone(),
        };
        Self {
            root: root.and_then(|root| Root::open(root).ok()),
            patterns: Patterns { workloads, never: configuration.machine.never.clone(), pods },
            priorities: configuration.machine.workloads.iter().map(|workload| workload.priority).collect(),
            protected: Protected { node: node_services::cgroups(configuration), ..Protected::read() },
            known,
            slices: configuration.slices().map(|slice| (slice.name().to_owned(), paths(slice))).collect(),
            all_pods,
            memory: MemInfo::open().ok(),
        }
    }

    /// What the list of pods calls the pod that this workload is, `namespace/name`, as its author wrote it, or escaped by
    /// [`Self::of_listed`]. Absent where it is none, or the list does not name it.
    pub(crate) fn pod_name(&self, workload: &Workload) -> Option<&str> {
        let pod = workload.pod.as_ref()?;
        self.known.names.get(&Uid::of(&pod.uid)).map(String::as_str)
    }

    /// What said what is known of pods: a file, or the API server. Absent where nothing did, and by [`Self::of_listed`].
    pub(crate) fn source_of_pods(&self) -> Option<&str> {
        self.known.source.as_deref()
    }

    /// Where a cgroup is in the file system.
    pub(crate) fn folder(&self, cgroup: &[u8]) -> Option<PathBuf> {
        self.root.as_ref().map(|root| root.path().join(OsStr::from_bytes(cgroup)))
    }

    /// The cgroup of all pods by its path, with its memory now; absent where there is none.
    pub(crate) fn all_pods(&self) -> Option<(String, Figures)> {
        first_of(self.root.as_ref()?, &self.all_pods)
    }

    /// A cgroup's memory now; absent where there is no such cgroup, or it cannot be opened.
    pub(crate) fn figures(&self, cgroup: &[u8]) -> Option<Figures> {
        let handle = Handle::open_to_read(self.root.as_ref()?, cgroup).ok()??;
        Some(Figures::of(&handle))
    }

    /// Reads figures of all pods and their containers, and gives how many pods there are.
    pub(crate) fn read_pods(&self, containers: &mut Containers) -> usize {
        let Some((root, pods)) = self.root.as_ref().zip(self.patterns.pods.as_ref()) else { return 0 };
        let Ok(found) = discover(root, &self.patterns, &self.protected, Bounds::default()) else { return 0 };
        let paths = found.workloads.iter().map(|found| &found.path).chain(&found.refused);
        let is_pod = |path: &&Vec<u8>| pods.pod_at(path).is_some();
        let read = |path: &Vec<u8>| {
            let pod = Handle::open_to_read(root, path).ok().flatten();
            pod.map(|pod| containers.read(root, &pod, monotonic(), true, &mut |_| {}))
        };
        paths.filter(is_pod).filter_map(read).count()
    }

    /// The machine's memory now.
    pub(crate) fn memory(&self) -> Option<MemReading> {
        self.memory.as_ref()?.read().ok()
    }

    /// Everything now.
    pub(crate) fn sample(&self) -> Sample {
        let at_ns = monotonic();
        let reading = self.memory();
        let memory = reading.map(|reading| Memory {
            capacity_bytes: reading.total,
            kubelet_bytes: reading.kubelet_available(),
            mem_available_bytes: Some(reading.mem_available()),
        });
        // As in a trace, the eviction policy has to take it off.
        let huge_page_pool_bytes = reading.and_then(|reading| reading.hugetlb).unwrap_or(Bytes::ZERO);
        let tasks = TaskLimits::open().ok().and_then(|limits| limits.read().ok());
        let tasks = tasks.map(|tasks| Tasks { count: tasks.tasks, limit: tasks.limit() });
        let (slices, workloads) = (self.slices(), self.workloads(at_ns));
        Sample { at_ns, memory, huge_page_pool_bytes, tasks, slices, workloads, ..Sample::default() }
    }

    fn slices(&self) -> Vec<Slice> {
        let slice = |(name, paths): &(String, Vec<Vec<u8>>)| {
            let (_, figures) = first_of(self.root.as_ref()?, paths)?;
            let max = figures.max?;
            let available_bytes = max.saturating_sub(figures.working_set()?);
            let mem_available_bytes = figures.held().map(|held| max.saturating_sub(held));
            Some(Slice { path: name.clone(), capacity_bytes: max, available_bytes, mem_available_bytes })
        };
        self.slices.iter().filter_map(slice).collect()
    }

    /// The workloads that the core would find, and the cgroups that it would refuse although patterns match them.
    fn workloads(&self, now: MonotonicNs) -> Vec<Workload> {
        let Some(root) = &self.root else { return Vec::new() };
        let Ok(found) = discover(root, &self.patterns, &self.protected, Bounds::default()) else { return Vec::new() };
        let mut workloads = Vec::new();
        let refused = found.refused.iter().map(|path| (path, None));
        let root_of_pods = self.patterns.pods.as_ref();
        for (path, found) in found.workloads.iter().map(|found| (&found.path, Some(found))).chain(refused) {
            let identity = match found {
                Some(found) => found.pod,
                None => root_of_pods.and_then(|root| root.pod_at(path)),
            };
            let spares = identity.map(|_| is_monitor as _);
            let purpose = Purpose { is_written: false, counts_tasks: true, spares };
            let Ok(Some(handle)) = Handle::open_for(root, path, purpose) else { continue };
            let figures = Figures::of(&handle);
            let refused = found.is_none().then(|| self.why_never(path));
            let pod = identity.map(|identity| self.known.pods.of(identity));
            let promised = pod.map_or_else(
                || Workload { protected: refused, ..self.of_cgroup(found, now) },
                |(pod, Rank { priority, started })| Workload {
                    reservation_bytes: pod.memory_request,
                    priority,
                    started_ns: started.unwrap_or(now),
                    protected: refused.or(pod.protected),
                    pod: Some(trace::Pod::new(pod.uid, pod.qos, pod.grace_seconds.map(i64::from), pod.daemon_set)),
                    ..Workload::default()
                },
            );
            workloads.push(Workload {
                cgroup: String::from_utf8_lossy(path).into_owned(),
                id: handle.id(),
                usage_bytes: figures.working_set(),
                held_bytes: figures.held(),
                swapped_bytes: figures.swapped,
                tasks: handle.tasks().ok(),
                empty: figures.is_empty,
                ..promised
            });
        }
        workloads
    }

    /// What a cgroup is promised that is no pod's; `found` is absent where it is refused.
    fn of_cgroup(&self, found: Option<&Found>, now: MonotonicNs) -> Workload {
        Workload {
            owner: found
                .and_then(|found| found.owner)
                .map(|owner| Owner { id: owner.id, request_bytes: owner.request }),
            reservation_bytes: found.map_or(Bytes::ZERO, |found| found.reservation),
            priority: found.and_then(|found| self.priorities.get(found.pattern)).copied().unwrap_or(0),
            started_ns: now,
            ..Workload::default()
        }
    }

    fn why_never(&self, path: &[u8]) -> Why {
        self.protected.why(path).unwrap_or(Why::Listed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// A tree of cgroups: path, usage, active and inactive cache, `memory.low`, limit; zero for none.
    pub(crate) fn tree(cgroups: &[(&str, u64, u64, u64, u64, u64)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (path, usage, active, inactive, low, max) in cgroups {
            let folder = dir.path().join(path);
            fs::create_dir_all(&folder).expect("writable");
            let max = if *max == 0 { "max".to_owned() } else { max.to_string() };
            for (name, text) in [
                ("memory.current", usage.to_string()),
                (
                    "memory.stat",
                    format!("anon 1\ninactive_file {inactive}\nactive_file {active}\nslab_reclaimable 7\n"),
                ),
                ("memory.swap.current", "9\n".to_owned()),
                ("memory.low", low.to_string()),
                ("memory.min", "0\n".to_owned()),
                ("memory.max", max),
                ("cgroup.events", "populated 1\nfrozen 0\n".to_owned()),
                ("cgroup.procs", String::new()),
            ] {
                fs::write(folder.join(name), text).expect("writable");
            }
        }
        dir
    }

    #[test]
    fn a_sample_has_pods_by_what_is_known_of_them() {
        let pod = |last: char| format!("kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcde{last}.slice");
        let (known, unknown) = (pod('1'), pod('2'));
        let dir = tree(&[("kubepods.slice", 900, 0, 0, 0, 0), (&known, 500, 0, 0, 0, 0), (&unknown, 400, 0, 0, 0, 0)]);
        let facts = dir.path().join("pods.json");
        let text = r#"{"items": [{"metadata": {"name": "a", "uid": "01234567-89ab-cdef-0123-456789abcde1"}, "spec":
            {"priority": 7, "containers": [{"name": "c", "resources": {"requests": {"memory": "300"}}}]}}]}"#;
        fs::write(&facts, text).expect("writable");
        let configuration = format!("machine: {{podFacts: {}}}", facts.display());
        let configuration = plimsoll_config::parse(&configuration, "f").expect("it is in order");
        let sample = Observer::new(&configuration, Some(dir.path()), &Own::default()).sample();
        let reported: Vec<_> = sample
            .workloads
            .iter()
            .map(|it| (it.cgroup.as_str(), it.reservation_bytes, it.priority, it.protected, it.pod.is_some()))
            .collect();
        assert_eq!(
            reported,
            [(known.as_str(), Bytes(300), 7, None, true), (unknown.as_str(), Bytes(0), 0, Some(Why::Unknown), true),]
        );
    }

    #[test]
    fn a_sample_has_workloads_slices_and_what_is_never_evicted() {
        let dir = tree(&[
            ("a.slice", 900, 50, 100, 300, 1000),
            ("a.slice/x.service", 500, 50, 100, 300, 0),
            ("a.slice/db.service", 400, 0, 0, 0, 0),
        ]);
        let text = "machine: {workloads: [{match: 'a.slice/*', priority: 3}], never: ['a.slice/db*'], \
                    slices: [{path: a.slice, evictionHard: {memory.available: 10%}}]}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let observer = Observer::new(&configuration, Some(dir.path()), &Own::default());
        let first = observer.sample();
        assert_eq!(
            first.slices,
            [Slice {
                path: "a.slice".into(),
                capacity_bytes: Bytes(1000),
                available_bytes: Bytes(200),
                mem_available_bytes: Some(Bytes(257))
            }]
        );
        let reported: Vec<_> = first
            .workloads
            .iter()
            .map(|it| (it.cgroup.as_str(), it.usage_bytes, it.reservation_bytes, it.priority, it.protected))
            .collect();
        assert_eq!(
            reported,
            [
                ("a.slice/x.service", Some(Bytes(400)), Bytes(300), 3, None),
                ("a.slice/db.service", Some(Bytes(400)), Bytes(0), 0, Some(Why::Listed)),
            ]
        );
        let held: Vec<_> = first.workloads.iter().map(|it| it.held_bytes).collect();
        assert_eq!(held, [Some(Bytes(343)), Some(Bytes(393))]);
        assert!(first.workloads.iter().all(|it| it.swapped_bytes == Some(Bytes(9))));
        assert!(first.memory.is_some_and(|memory| memory.capacity_bytes > memory.kubelet_bytes));
    }
}
