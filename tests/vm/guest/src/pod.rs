//! Pods as the kubelet (1.36.3) makes them, without a kubelet: its slices, its directories, and a sandbox and containers
//! through CRI with its labels, annotations and values.

use crate::cgroup::{Cgroup, ROOT};
use crate::containerd::{Driver, IMAGE};
use crate::cri::{Client, api};
use crate::machine::{meminfo, wait_for};
use crate::scene::{MIB, PATIENCE};
use crate::systemd::{run, systemctl};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directories of pods' volumes and logs.
const PODS: &str = "/var/lib/kubelet/pods";
const LOGS: &str = "/var/log/pods";
/// Where a container finds its emptyDir, and the pipe in it that it waits for.
pub(crate) const VOLUME: &str = "/volume";
pub(crate) const PIPE: &str = "begin";
/// What a container that grows makes there when it was sent SIGTERM, on which it lives on.
pub(crate) const SIGTERM_SENT: &str = "sigterm-sent";
/// What each container of a burstable pod asks for, and what each of a guaranteed one asks for and may take.
const REQUEST_BYTES: u64 = 64 * MIB;
const GUARANTEED_BYTES: u64 = 128 * MIB;

/// The QoS class, by which the kubelet chooses the parent of a pod's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Class {
    /// As cgroups name it; a guaranteed pod has no such cgroup above it.
    const fn name(self) -> Option<&'static str> {
        match self {
            Self::Guaranteed => None,
            Self::Burstable => Some("burstable"),
            Self::BestEffort => Some("besteffort"),
        }
    }

    /// The oom_score_adj of a container (`GetContainerOOMScoreAdjust` in pkg/kubelet/qos/policy.go).
    fn oom_score_adj(self) -> Result<i64> {
        Ok(match self {
            Self::Guaranteed => -997,
            Self::BestEffort => 1000,
            Self::Burstable => 1000 - i64::try_from(1000 * REQUEST_BYTES / meminfo("MemTotal")?)?.clamp(1, 997),
        })
    }

    /// What a container requests and may take, as the API has it.
    pub(crate) fn resources(self) -> Value {
        match self {
            Self::Guaranteed => {
                let all = json!({"cpu": "10m", "memory": GUARANTEED_BYTES.to_string()});
                json!({"requests": all, "limits": all})
            }
            Self::Burstable => json!({"requests": {"memory": REQUEST_BYTES.to_string()}}),
            Self::BestEffort => json!({}),
        }
    }

    /// The memory that a container may take, in bytes.
    const fn limit(self) -> Option<u64> {
        match self {
            Self::Guaranteed => Some(GUARANTEED_BYTES),
            Self::Burstable | Self::BestEffort => None,
        }
    }
}

/// A pod with its sandbox, and the containers that were made so far.
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) class: Class,
    driver: Driver,
    /// memory.high of its containers, as Memory QoS sets it.
    high: Option<u64>,
    /// The id of its sandbox.
    pub(crate) sandbox: String,
    config: api::PodSandboxConfig,
}

impl Pod {
    /// Makes the pod's cgroup and directories, and its sandbox, in the network of the machine.
    pub(crate) fn make(client: &Client, driver: Driver, name: &str, class: Class) -> Result<Self> {
        Self::with_uid(client, driver, name, &uid(name), class)
    }

    /// The same with this UID: one without dashes is a static pod's.
    pub(crate) fn with_uid(client: &Client, driver: Driver, name: &str, uid: &str, class: Class) -> Result<Self> {
        let source = if uid.contains('-') { "api" } else { "file" };
        let config = api::PodSandboxConfig {
            metadata: Some(api::PodSandboxMetadata {
                name: name.to_owned(),
                uid: uid.to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: format!("{LOGS}/default_{name}_{uid}"),
            // With those of the pod itself.
            labels: labels(name, uid).into_iter().chain([("app".to_owned(), name.to_owned())]).collect(),
            annotations: HashMap::from([("kubernetes.io/config.source".to_owned(), source.to_owned())]),
            linux: Some(api::LinuxPodSandboxConfig {
                cgroup_parent: match driver {
                    Driver::Systemd => slice(class, uid),
                    Driver::Cgroupfs => format!("/{}", directory(class, uid)),
                },
                security_context: Some(api::LinuxSandboxSecurityContext { namespace_options: Some(namespaces()) }),
            }),
        };
        let (name, uid) = (name.to_owned(), uid.to_owned());
        let mut pod = Self { name, uid, class, driver, high: None, sandbox: String::new(), config };
        pod.make_cgroup()?;
        pod.sandbox = client.run_sandbox(pod.config.clone())?;
        Ok(pod)
    }

    /// A sandbox as its kubelet makes it when the first one has ended.
    pub(crate) fn sandbox_again(&self) -> api::PodSandboxConfig {
        let mut again = self.config.clone();
        again.metadata = again.metadata.map(|first| api::PodSandboxMetadata { attempt: first.attempt + 1, ..first });
        again
    }

    /// The same whose containers have this memory.high, in bytes.
    pub(crate) fn throttled_at(self, high: u64) -> Self {
        Self { high: Some(high), ..self }
    }

    /// Makes and starts a container that runs this program with these arguments, and gives its id.
    pub(crate) fn start(&self, client: &Client, container: &str, words: &[&str]) -> Result<String> {
        let id = self.create(client, (container, 0), IMAGE, words)?;
        client.start_container(&id)?;
        Ok(id)
    }

    /// Makes a container of this image, with its attempt, and gives its id.
    pub(crate) fn create(
        &self,
        client: &Client,
        (container, attempt): (&str, u32),
        image: &str,
        words: &[&str],
    ) -> Result<String> {
        let volume = self.volume();
        fs::create_dir_all(&volume).with_context(|| format!("cannot make {}", volume.display()))?;
        let logs = Path::new(&self.config.log_directory).join(container);
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let mut labels = labels(&self.name, &self.uid);
        labels.insert("io.kubernetes.container.name".to_owned(), container.to_owned());
        let limit = self.class.limit().map_or(Ok(0), i64::try_from)?;
        // newContainerAnnotations in pkg/kubelet/kuberuntime/labels.go.
        let annotations = [
            ("io.kubernetes.container.hash", "5bb20ba9"),
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.pod.terminationGracePeriod", "30"),
        ];
        let config = api::ContainerConfig {
            metadata: Some(api::ContainerMetadata { name: container.to_owned(), attempt }),
            image: Some(api::ImageSpec { image: image.to_owned() }),
            args: words.iter().map(|&word| word.to_owned()).collect(),
            mounts: vec![api::Mount { container_path: VOLUME.to_owned(), host_path: volume.display().to_string() }],
            labels,
            annotations: annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            log_path: format!("{container}/{attempt}.log"),
            linux: Some(api::LinuxContainerConfig {
                resources: Some(api::LinuxContainerResources {
                    // The least, as for a container that asks for no processor.
                    cpu_shares: 2,
                    memory_limit_in_bytes: limit,
                    memory_swap_limit_in_bytes: limit,
                    oom_score_adj: self.class.oom_score_adj()?,
                    unified: [("memory.oom.group", Some(1)), ("memory.high", self.high)]
                        .into_iter()
                        .filter_map(|(file, value)| Some((file.to_owned(), value?.to_string())))
                        .collect(),
                }),
                security_context: Some(api::LinuxContainerSecurityContext { namespace_options: Some(namespaces()) }),
            }),
        };
        client.create_container(&self.sandbox, config, self.config.clone())
    }

    /// Does the same with a process that fills all memory as fast as it can once it is let go ([`Self::let_go`]), and
    /// takes no notice of SIGTERM but to make a file.
    pub(crate) fn start_growing(&self, client: &Client, container: &str) -> Result<String> {
        let mib = (meminfo("MemTotal")? / MIB).to_string();
        self.start_held(client, container, &["anon", "--mib", &mib])
    }

    /// The same with a process that grows in another way, or by less.
    pub(crate) fn start_held(&self, client: &Client, container: &str, hog: &[&str]) -> Result<String> {
        self.start_held_until(client, container, hog, &[])
    }

    /// The same with a process that ends when it was sent SIGTERM, once it has made the file.
    pub(crate) fn start_orderly(&self, client: &Client, container: &str, hog: &[&str]) -> Result<String> {
        self.start_held_until(client, container, hog, &["--ends"])
    }

    fn start_held_until(&self, client: &Client, container: &str, hog: &[&str], more: &[&str]) -> Result<String> {
        fs::create_dir_all(self.volume())?;
        let pipe = self.volume().join(PIPE);
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("cannot make a named pipe")?;
        let (begin, outlive) = (format!("{VOLUME}/{PIPE}"), format!("{VOLUME}/{SIGTERM_SENT}"));
        let rest = ["--hold", "300", "--begin", &begin, "--outlive", &outlive];
        self.start(client, container, &[&["hog"], hog, &rest, more].concat())
    }

    /// Lets its process grow, which waits for that.
    pub(crate) fn let_go(&self) -> Result<()> {
        self.open_pipe().map(drop)
    }

    /// Opens the pipe of its volume for writing, once its process reads from it.
    pub(crate) fn open_pipe(&self) -> Result<File> {
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let (pipe, mut opened) = (self.volume().join(PIPE), None);
        wait_for("the container reads from its pipe", PATIENCE, || {
            match File::options().write(true).custom_flags(nonblock).open(&pipe) {
                Ok(file) => opened = Some(file),
                // There is no reader yet.
                Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot open {}", pipe.display())),
            }
            Ok(opened.is_some())
        })?;
        opened.context("the pipe is open")
    }

    /// Reserves this much memory for it, in its slice and those above, which systemd has to have made.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<()> {
        for slice in self.path().split('/') {
            systemctl(&["set-property", "--runtime", slice, &format!("MemoryLow={bytes}")])?;
        }
        Ok(())
    }

    /// What it is called.
    pub(crate) fn full_name(&self) -> String {
        format!("default/{}", self.name)
    }

    /// The pod's cgroup.
    pub(crate) fn cgroup(&self) -> Result<Cgroup> {
        Cgroup::existing(&self.path())
    }

    /// Its path below the root of the hierarchy.
    pub(crate) fn path(&self) -> String {
        match self.driver {
            Driver::Systemd => {
                let above = self.class.name().map_or_else(String::new, |class| format!("kubepods-{class}.slice/"));
                format!("kubepods.slice/{above}{}", slice(self.class, &self.uid))
            }
            Driver::Cgroupfs => directory(self.class, &self.uid),
        }
    }

    /// The processes of its containers and its sandbox.
    pub(crate) fn processes(&self) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(Path::new(ROOT).join(self.path()))?.flatten() {
            let text = fs::read_to_string(entry.path().join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        Ok(found)
    }

    /// The directory of its emptyDir.
    pub(crate) fn volume(&self) -> PathBuf {
        Path::new(PODS).join(&self.uid).join("volumes/kubernetes.io~empty-dir/volume")
    }

    /// The directory of its logs.
    pub(crate) fn logs(&self) -> PathBuf {
        Path::new(&self.config.log_directory).to_owned()
    }

    /// Makes its cgroup and those above it (pkg/kubelet/cm: `nodeContainerManager`, `qosContainerManager`,
    /// `podContainerManager`).
    fn make_cgroup(&self) -> Result<()> {
        match self.driver {
            Driver::Systemd => {
                make_slice("kubepods.slice", "-.slice", Some(meminfo("MemTotal")?))?;
                let mut parent = "kubepods.slice".to_owned();
                if let Some(class) = self.class.name() {
                    let slice = format!("kubepods-{class}.slice");
                    make_slice(&slice, &parent, None)?;
                    parent = slice;
                }
                make_slice(&slice(self.class, &self.uid), &parent, self.class.limit())?;
                wait_for("the pod's slice is there", PATIENCE, || Ok(self.cgroup().is_ok()))
            }
            Driver::Cgroupfs => {
                let cgroup = Cgroup::create(&self.path())?;
                self.class.limit().map_or(Ok(()), |bytes| cgroup.write("memory.max", &bytes.to_string()))
            }
        }
    }
}

/// The cgroup of a pod's container, by systemd.
pub(crate) fn container_cgroup(pod: &Pod, container: &str) -> Result<Cgroup> {
    Cgroup::existing(&format!("{}/cri-containerd-{container}.scope", pod.path()))
}

/// A number in the form of a UID, the same for the same name.
fn uid(name: &str) -> String {
    let number = name.bytes().fold(0_u64, |number, byte| number.wrapping_mul(257).wrapping_add(byte.into()));
    format!("0b7e2d5c-6a41-4f3e-9c08-{:012x}", number & 0xFFFF_FFFF_FFFF)
}

/// What a pod and each of its containers are labelled with (`newPodLabels`, `newContainerLabels` in
/// pkg/kubelet/kuberuntime/labels.go).
fn labels(name: &str, uid: &str) -> HashMap<String, String> {
    let labels =
        [("io.kubernetes.pod.name", name), ("io.kubernetes.pod.namespace", "default"), ("io.kubernetes.pod.uid", uid)];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Those of a pod with `hostNetwork`.
fn namespaces() -> api::NamespaceOption {
    api::NamespaceOption {
        network: api::NamespaceMode::Node.into(),
        pid: api::NamespaceMode::Container.into(),
        ipc: api::NamespaceMode::Pod.into(),
    }
}

/// The slice of a pod (`CgroupName.ToSystemd` in pkg/kubelet/cm).
fn slice(class: Class, uid: &str) -> String {
    let class = class.name().map_or_else(String::new, |class| format!("{class}-"));
    format!("kubepods-{class}pod{}.slice", uid.replace('-', "_"))
}

/// The same with the cgroupfs driver.
fn directory(class: Class, uid: &str) -> String {
    let class = class.name().map_or_else(String::new, |class| format!("{class}/"));
    format!("kubepods/{class}pod{uid}")
}

/// Has systemd make a slice, as the kubelet does through runc's library (libcontainer/cgroups/systemd/v2.go).
fn make_slice(name: &str, parent: &str, limit_bytes: Option<u64>) -> Result<()> {
    if systemctl(&["show", "--value", "--property", "ActiveState", name])? == "active" {
        return Ok(());
    }
    let limit = limit_bytes.map(|bytes| bytes.to_string());
    let mut properties = vec![
        vec!["Description", "s", "plimsoll-guest"],
        vec!["Wants", "as", "1", parent],
        vec!["DefaultDependencies", "b", "false"],
        vec!["MemoryAccounting", "b", "true"],
        vec!["CPUAccounting", "b", "true"],
        vec!["IOAccounting", "b", "true"],
        vec!["TasksAccounting", "b", "true"],
    ];
    properties.extend(limit.iter().map(|bytes| vec!["MemoryMax", "t", bytes]));
    let count = properties.len().to_string();
    let manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
    let mut call = Command::new("busctl");
    // The name of the root slice begins as an option does.
    call.args(["--", "call"]).args(manager).args(["StartTransientUnit", "ssa(sv)a(sa(sv))", name, "replace", &count]);
    call.args(properties.concat()).arg("0");
    run(&mut call).map(drop)
}

/// Removes the cgroups and directories of all pods.
pub(crate) fn clean() -> Result<()> {
    if let Err(error) = systemctl(&["stop", "kubepods.slice"]) {
        // systemd forgets a slice once nothing is in it.
        ensure!(error.to_string().contains("not loaded"), error);
    }
    if let Ok(cgroup) = Cgroup::existing("kubepods") {
        cgroup.remove()?;
    }
    for folder in [PODS, LOGS] {
        let removed = fs::remove_dir_all(folder);
        let is_gone = removed.is_ok() || !Path::new(folder).exists();
        ensure!(is_gone, "cannot remove {folder}: {removed:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_have_the_kubelets_names() {
        let uid = "d038831b-e85d-4e5e-9b8f-a2c7e8d0f1b2";
        for (class, systemd, cgroupfs) in [
            (Class::Guaranteed, "kubepods-podd038831b_e85d_4e5e_9b8f_a2c7e8d0f1b2.slice", "kubepods/podd038831b-"),
            (Class::Burstable, "kubepods-burstable-podd038831b_e85d_", "kubepods/burstable/podd038831b-e85d-"),
            (Class::BestEffort, "kubepods-besteffort-podd038831b_e85d_", "kubepods/besteffort/podd038831b-e85d-"),
        ] {
            assert!(slice(class, uid).starts_with(systemd), "{class:?}");
            assert!(directory(class, uid).starts_with(cgroupfs), "{class:?}");
        }
        let uids = [super::uid("growing"), super::uid("bystander")];
        assert!(uids[0] != uids[1] && uids.iter().all(|text| text.len() == uid.len()), "{uids:?}");
    }
}
