//! Which pod and which container a cgroup is, by its path alone. Nothing is opened, allocated or killed here.
//!
//! # Where pods are
//!
//! The kubelet keeps all pods below one cgroup, `kubepods`, in the cgroup that its `--cgroup-root` names (`cgroupRoot` in
//! its configuration; the root unless set). Burstable and best-effort pods are one further down, in a cgroup of their
//! class. A driver writes these names as a path ([kubelet][cm], `CgroupName.ToSystemd` and `ToCgroupfs`):
//!
//! - systemd: each name has those above it in front, a `-` within a name becomes `_`, and `.slice` follows:
//!   `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice`, with `--cgroup-root=/a`
//!   `a.slice/a-kubepods.slice/...`;
//! - cgroupfs: the names as they are: `kubepods/burstable/podUID`.
//!
//! Whatever a cgroup is delegated to can make cgroups of any name below it: a user below
//! `user.slice/user-1000.slice/user@1000.service`, a container below its own. So a name proves nothing, only a place that
//! root alone can write does. [`identify`] knows two of them: `kubepods` at the root, and in `kubelet`, which [kind] sets
//! as `--cgroup-root`. A node with another root needs it configured ([`identify_in`]); the owner of the machine must not
//! put it below a delegated cgroup. The outermost pod counts: what a container has below its own cgroup, a kubelet's tree
//! included, is that container.
//!
//! Paths are relative to the root of the node. Where a node is a container (kind, k3d, minikube), that is the root of its
//! cgroup namespace, seen from inside. Seen from the machine, as `system.slice/docker-ID.scope/kubelet.slice/...`, such
//! pods belong to a kubelet of another node, and are none of this one's.
//!
//! A UID is a UUID, or the 32 hexadecimal digits that the kubelet hashes from the file of a static pod
//! (`pkg/kubelet/config/common.go`, `applyDefaults`). A static pod whose manifest has a UID of its own in another form is
//! not known, and its cgroup is no pod's.
//!
//! # What ends a pod
//!
//! The processes of a pod are in the cgroups of its containers, one of them its sandbox, directly below the pod's. To kill
//! the pod's cgroup ends them all at once, and nothing else, with containerd, k3s and Docker: their shims are in the
//! runtime's own unit. CRI-O's monitor `conmon`, which records how a container ended, is in `system.slice` by default, but
//! inside of the pod's cgroup with `monitor_cgroup = "pod"`, which OpenShift sets, and always with cgroupfs. A pod with a
//! monitor in it ([`is_monitor`]) ends by its other cgroups, which are killed one by one. The runtime moves a monitor there
//! before it makes the cgroup of the container, so that none of a pod's containers is without its monitor.
//!
//! [cm]: https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/cm/cgroup_manager_linux.go
//! [kind]: https://github.com/kubernetes-sigs/kind/blob/main/pkg/cluster/internal/kubeadm/config.go

use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::QosClass;
use std::iter::once;

/// What a path names: a pod's cgroup, or something in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodCgroup<'a> {
    /// The pod. That of a static pod is the hash of its file; its mirror in the API has another, and notes this one.
    pub uid: Uid,
    /// Its class, by the cgroup that it is in.
    pub qos: QosClass,
    /// Bytes of the path up to and with the pod's own cgroup.
    pub length: usize,
    /// The cgroup directly in the pod's. Absent where the path ends before it, or no runtime names a cgroup so.
    pub container: Option<ContainerCgroup<'a>>,
}

/// A cgroup directly in a pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerCgroup<'a> {
    /// The runtime's id, 64 hexadecimal digits: of the container or the sandbox, or of the one that a monitor is for.
    pub id: &'a [u8],
    /// What is in it.
    pub kind: ContainerKind,
    /// Bytes of the path up to and with this cgroup. What is further down is the container's own.
    pub length: usize,
}

/// What a cgroup in a pod's holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// A container, or the pod's sandbox, which is named alike: CRI's `ListPodSandbox` has its id.
    Container,
    /// The runtime's monitor of a container.
    Monitor,
}

/// How a runtime names a cgroup in a pod's, around the id.
#[derive(Clone, Copy)]
struct Naming {
    prefix: &'static [u8],
    suffix: &'static [u8],
    kind: ContainerKind,
}

impl Naming {
    const fn container(prefix: &'static [u8], suffix: &'static [u8]) -> Self {
        Self { prefix, suffix, kind: ContainerKind::Container }
    }

    const fn monitor(prefix: &'static [u8], suffix: &'static [u8]) -> Self {
        Self { prefix, suffix, kind: ContainerKind::Monitor }
    }

    /// The id in a name that this runtime gives.
    fn id(self, name: &[u8]) -> Option<&[u8]> {
        let id = name.strip_prefix(self.prefix)?.strip_suffix(self.suffix)?;
        let is_id = id.len() == 64 && id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_id.then_some(id)
    }
}

/// Every name that a runtime gives. The driver is not asked for: CRI-O makes the cgroup of a sandbox without a process
/// itself, without `.scope` under systemd too.
const NAMINGS: [Naming; 7] = [
    // containerd, and k3s, which has it built in (internal/cri/server/podsandbox/helpers_linux.go, getCgroupsPath).
    Naming::container(b"cri-containerd-", b".scope"),
    // containerd and Docker with cgroupfs.
    Naming::container(b"", b""),
    // Docker, through cri-dockerd (moby, daemon/oci_linux.go, WithCgroups).
    Naming::container(b"docker-", b".scope"),
    // CRI-O (internal/config/cgmgr).
    Naming::container(b"crio-", b".scope"),
    Naming::container(b"crio-", b""),
    Naming::monitor(b"crio-conmon-", b".scope"),
    Naming::monitor(b"crio-conmon-", b""),
];

/// Whether a cgroup directly in a pod's holds a monitor of the container runtime, by its name.
pub fn is_monitor(name: &[u8]) -> bool {
    NAMINGS.iter().any(|naming| naming.kind == ContainerKind::Monitor && naming.id(name).is_some())
}

/// Values of the kubelet's `--cgroup-root` whose cgroup root alone can write: the default, and that of kind.
const KNOWN_ROOTS: [&[u8]; 2] = [b"", b"kubelet"];

/// The pod and the container that a path belongs to, where the kubelet keeps pods unless it is configured otherwise.
///
/// The path is relative to the cgroup root of the node, without a slash in front. Takes time linear in its length.
pub fn identify(path: &[u8]) -> Option<PodCgroup<'_>> {
    KNOWN_ROOTS.iter().find_map(|root| identify_in(root, path))
}

/// The same for a kubelet with this `--cgroup-root`, as it is configured there, and no other place. It must not be below a
/// cgroup that is delegated: a user that may write there can make pods up.
pub fn identify_in<'a>(cgroup_root: &[u8], path: &'a [u8]) -> Option<PodCgroup<'a>> {
    [Driver::Systemd, Driver::Cgroupfs].into_iter().find_map(|driver| Walk::new(path, driver).pod(cgroup_root))
}

/// How the kubelet writes its names of cgroups as a path.
#[derive(Clone, Copy, Debug)]
enum Driver {
    Systemd,
    Cgroupfs,
}

impl Driver {
    /// What this driver writes for a `-` within a name.
    const fn dash(self) -> u8 {
        match self {
            Self::Systemd => b'_',
            Self::Cgroupfs => b'-',
        }
    }

    /// Whether this driver writes `name` so.
    fn writes(self, name: &[u8], written: &[u8]) -> bool {
        let write = |byte: &u8| if *byte == b'-' { self.dash() } else { *byte };
        name.iter().map(write).eq(written.iter().copied())
    }

    fn uid(self, written: &[u8]) -> Option<Uid> {
        let is_in_uuid = |(index, byte): (usize, &u8)| match index {
            8 | 13 | 18 | 23 => *byte == self.dash(),
            _ => byte.is_ascii_hexdigit(),
        };
        let is_uid = match written.len() {
            32 => written.iter().all(u8::is_ascii_hexdigit),
            36 => written.iter().enumerate().all(is_in_uuid),
            _ => false,
        };
        is_uid.then(|| Uid::of(written))
    }
}

/// A walk down a path.
struct Walk<'a> {
    path: &'a [u8],
    driver: Driver,
    /// Bytes of the path up to and with the current cgroup.
    length: usize,
    /// The name of the current slice, without its suffix; empty at the root.
    slice: &'a [u8],
}

impl<'a> Walk<'a> {
    const fn new(path: &'a [u8], driver: Driver) -> Self {
        Self { path, driver, length: 0, slice: b"" }
    }

    /// One cgroup down: its name.
    fn down(&mut self) -> Option<&'a [u8]> {
        let start = if self.length == 0 { 0 } else { self.length + 1 };
        let name = self.path.get(start..)?.split(|byte| *byte == b'/').next()?;
        self.length = start + name.len();
        Some(name)
    }

    /// One of the kubelet's own cgroups down: its name, without what the driver adds to it.
    fn down_own(&mut self) -> Option<&'a [u8]> {
        let name = self.down()?;
        match self.driver {
            Driver::Cgroupfs => Some(name),
            Driver::Systemd => {
                let slice = name.strip_suffix(b".slice")?;
                let above = std::mem::replace(&mut self.slice, slice);
                if above.is_empty() { Some(slice) } else { slice.strip_prefix(above)?.strip_prefix(b"-") }
            }
        }
    }

    fn pod(mut self, cgroup_root: &[u8]) -> Option<PodCgroup<'a>> {
        let above = cgroup_root.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        for name in above.chain(once(&b"kubepods"[..])) {
            let written = self.down_own()?;
            self.driver.writes(name, written).then_some(())?;
        }
        let (qos, pod) = match self.down_own()? {
            b"burstable" => (QosClass::Burstable, self.down_own()?),
            b"besteffort" => (QosClass::BestEffort, self.down_own()?),
            pod => (QosClass::Guaranteed, pod),
        };
        let uid = self.driver.uid(pod.strip_prefix(b"pod")?)?;
        Some(PodCgroup { uid, qos, length: self.length, container: self.container() })
    }

    fn container(&mut self) -> Option<ContainerCgroup<'a>> {
        let name = self.down()?;
        let known =
            |naming: &Naming| Some(ContainerCgroup { id: naming.id(name)?, kind: naming.kind, length: self.length });
        NAMINGS.iter().find_map(known)
    }
}

#[cfg(test)]
pub(crate) mod tests;
