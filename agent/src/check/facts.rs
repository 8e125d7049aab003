//! What `check` reads of the machine.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use plimsoll_config::{Configuration, SourceChoice};
use plimsoll_node::capabilities::{self, Capability};
use plimsoll_node::meminfo::{MemInfo, page_bytes};
use plimsoll_node::os::{CGROUP_ROOT, CgroupMode};
use plimsoll_node::peers::{Peer, peers};
use plimsoll_node::process::{self, Released, hidden_processes};
use plimsoll_node::zoneinfo::{Drift, Zones};
use plimsoll_policy::Scope;
use plimsoll_policy::kubelet::Signal;
use plimsoll_sense::probe::KernelFacts;
use plimsoll_units::Bytes;
use procfs::LockType;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::cluster::{self, ClusterFacts};
use super::journal::{self, JournalFacts};
use super::node::NodeFacts;
use super::pod_facts::{self, PodFacts};
use super::pods::{self, Pods};
use super::slices::{self, SliceFacts};
use super::workloads::{self, Workloads};
use crate::acting::machine_lock;
use crate::kill_switch::{Found, Ignored, KillSwitch};
use crate::pods_command::runtime::sandboxes;
use crate::services::{StaticFound, find_static};
use crate::state_directory::StateDirectory;

/// Everything that rows are made from: gathered once, or made in a test.
pub(super) struct Facts {
    pub(super) kernel: KernelFacts,
    pub(super) mode: CgroupMode,
    /// `cgroup.kill` and `cgroup.freeze` in some cgroup; `None` where there is none.
    pub(super) files: Option<(bool, bool)>,
    /// Whether the memory of a dying process can be taken, or what the kernel says instead.
    pub(super) release: Result<(), String>,
    /// Those that this process holds, of those that the agent uses.
    pub(super) held: Vec<Capability>,
    /// This process is root's.
    pub(super) is_root: bool,
    /// How much memory may be locked; `None` for any amount.
    pub(super) lockable: Option<Bytes>,
    /// The highest real-time priority that may be taken without a capability.
    pub(super) real_time: Option<u64>,
    /// All swap, and how much of it is free; `None` where it cannot be read.
    pub(super) swap: Option<(Bytes, Bytes)>,
    /// What is swapped to compressed memory takes there, and uncompressed.
    pub(super) zswap: Option<(Bytes, Bytes)>,
    /// By how much the kernel's counters let available memory be off: by its own reading and by the kubelet's.
    pub(super) drift: Option<(Bytes, Bytes)>,
    /// The lowest threshold of the machine.
    pub(super) lowest_threshold: Option<Bytes>,
    pub(super) peers: Vec<Peer>,
    pub(super) other_acts: Option<bool>,
    /// Where what is frozen and killed is written down.
    pub(super) state: StateDirectory,
    /// The kill switch and what is there; absent where none is configured.
    pub(super) kill_switch: Option<(PathBuf, Found)>,
    /// Why what is put there would be ignored, where nothing is there.
    pub(super) kill_switch_distrust: Option<Ignored>,
    /// What the configuration asks for.
    pub(super) wish: SourceChoice,
    /// How many slices the kernel side may stop.
    pub(super) in_kernel: usize,
    /// Why processes that it stopped might not be found again.
    pub(super) hidden_processes: Option<String>,
    /// The cgroups that patterns match; absent where there is no tree of them.
    pub(super) workloads: Option<Workloads>,
    pub(super) node: NodeFacts,
    /// What the file of `podFacts` says; absent where none is configured.
    pub(super) known_pods: Option<PodFacts>,
    /// What manifests say of static pods; absent where none are read.
    pub(super) statics: Option<StaticFound>,
    /// What is kept over a restart; absent where nothing is.
    pub(super) journal: Option<JournalFacts>,
    /// What the API server answers; absent where none is configured.
    pub(super) cluster: Option<ClusterFacts>,
    /// The limits of slices with thresholds of their own, all pods among them.
    pub(super) slices: Vec<SliceFacts>,
    /// The pods that are here; absent where there are none and `run` would look for none.
    pub(super) pods: Option<Pods>,
}

/// Each capability with what the agent does with it.
pub(super) const CAPABILITIES: [(Capability, &str); 12] = [
    (capabilities::BPF, "load programs into the kernel"),
    (capabilities::PERFMON, "attach them"),
    (capabilities::SYSLOG, "see the addresses of the kernel's counters"),
    (
        capabilities::SYS_RESOURCE,
        "raise its limits, watch short windows of pressure, and be the OOM killer's last victim",
    ),
    (capabilities::KILL, "continue and kill processes of other users"),
    (capabilities::DAC_OVERRIDE, "freeze and kill cgroups that belong to users"),
    (capabilities::DAC_READ_SEARCH, "open a new cgroup by its id, before a walk finds it"),
    (capabilities::IPC_LOCK, "keep its memory from being paged out"),
    (capabilities::SYS_NICE, "run before others when everything waits"),
    (capabilities::SETUID, "give the reporter a user of its own"),
    (capabilities::SETGID, "give the reporter a group of its own"),
    (Capability::CAP_SETPCAP, "give up all the others"),
];

impl Facts {
    /// `names_kubelet`: a source of a kubelet's configuration is named. `account`: the directory of the service account, where
    /// that is configured.
    pub(super) fn gather(
        configuration: &Configuration,
        names_kubelet: bool,
        account: Option<Result<OwnedFd, Errno>>,
    ) -> Self {
        let held = capabilities::held().unwrap_or_default();
        let mode = CgroupMode::detect();
        let memory = MemInfo::open().ok().and_then(|file| file.read().ok());
        let slices = slices::find(configuration, mode.root());
        let known_pods = configuration.machine.pod_facts.as_deref().map(pod_facts::read);
        let cluster = cluster::ask(configuration, account);
        let of_cluster = || cluster.as_ref()?.as_ref().ok()?.listed();
        let listed = known_pods.as_ref().and_then(PodFacts::listed).or_else(of_cluster);
        let statics = find_static(configuration, || sandboxes(configuration));
        let pods = pods::find(configuration, mode.root(), listed, statics.as_ref());
        let workloads = workloads::find(configuration, mode.root());
        let cgroup = some_cgroup(mode.root().unwrap_or(CGROUP_ROOT.as_ref()));
        Self {
            kernel: KernelFacts::gather(),
            mode,
            files: cgroup.map(|path| (path.join("cgroup.kill").exists(), path.join("cgroup.freeze").exists())),
            release: release(),
            held: CAPABILITIES.iter().map(|(capability, _)| *capability).filter(|it| held.contains(it)).collect(),
            is_root: rustix::process::geteuid().is_root(),
            lockable: getrlimit(Resource::Memlock).current.map(Bytes),
            real_time: getrlimit(Resource::Rtprio).current,
            swap: memory.map(|reading| (reading.swap_total, reading.swap_free)),
            zswap: memory.and_then(|reading| reading.zswap.zip(reading.zswapped)),
            drift: Zones::read().ok().map(|zones| {
                let Drift { kubelet, mem_available } = zones.drift();
                (mem_available.to_bytes(page_bytes()), kubelet.to_bytes(page_bytes()))
            }),
            lowest_threshold: memory.and_then(|reading| {
                let thresholds = configuration.policy.thresholds_on(Scope::Node, Signal::MemoryAvailable);
                thresholds.filter_map(|threshold| threshold.bytes(reading.total)).filter(|at| *at > Bytes::ZERO).min()
            }),
            peers: peers(),
            other_acts: is_locked(machine_lock()),
            state: StateDirectory::find(&configuration.machine.state_directory),
            kill_switch: configuration.machine.kill_switch.clone().map(|path| {
                let found = KillSwitch::new(&path).check();
                (path, found)
            }),
            kill_switch_distrust: configuration
                .machine
                .kill_switch
                .as_deref()
                .and_then(|path| KillSwitch::new(path).distrust()),
            wish: configuration.machine.source,
            in_kernel: configuration.machine.brake.in_kernel.len(),
            hidden_processes: hidden_processes(),
            workloads,
            node: NodeFacts::gather(configuration, names_kubelet),
            known_pods,
            statics,
            journal: journal::find(configuration),
            cluster,
            slices,
            pods,
        }
    }

    pub(super) fn holds(&self, capability: Capability) -> bool {
        self.held.contains(&capability)
    }
}

/// Asks the kernel to take the memory of this process, which it refuses: this process is not dying. A kernel without
/// this call gives another error.
fn release() -> Result<(), String> {
    let own = process::open(rustix::process::getpid()).map_err(|errno| errno.to_string())?;
    match process::release(own) {
        Released::Refused(errno) => Err(errno.to_string()),
        Released::Yes | Released::Gone | Released::Busy | Released::NotDying => Ok(()),
    }
}

/// Whether a process holds the lock at `path`; `None` where that cannot be read. The lock is not tried: meanwhile an
/// agent that starts would find it taken.
pub(super) fn is_locked(path: &Path) -> Option<bool> {
    match std::fs::metadata(path) {
        Ok(file) => Some(procfs::locks().ok()?.iter().any(|lock| {
            let device = rustix::fs::makedev(lock.devmaj, lock.devmin);
            (&lock.lock_type, device, lock.inode) == (&LockType::FLock, file.dev(), file.ino())
        })),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

/// A cgroup below the root of version 2, to see which files this kernel gives one.
fn some_cgroup(root: &Path) -> Option<PathBuf> {
    let own = process::cgroup_path(None).filter(|path| !path.is_empty());
    let own = own.map(|path| root.join(OsStr::from_bytes(&path))).filter(|path| path.join("cgroup.procs").exists());
    own.or_else(|| {
        let entries = std::fs::read_dir(root).ok()?.flatten();
        entries.map(|entry| entry.path()).find(|path| path.join("cgroup.procs").exists())
    })
}
