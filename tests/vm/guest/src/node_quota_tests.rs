//! Volumes with projects of their own, as a kubelet gives them to pods with a user namespace, on an ext4 that counts for
//! projects.

use crate::machine::wait_for;
use crate::node::Node;
use crate::node_storage_tests::{FAR, Filled, KUBELET};
use crate::node_tests::{is_whole, logged};
use crate::scene::{MIB, PATIENCE};
use crate::systemd::{UNIT, drop_in, journal, run, systemctl};
use anyhow::{Context as _, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Where a kubelet writes which project it has given to which volume.
const LIST: &str = "/etc/projects";
/// The file that the disk is in.
const IMAGE: &str = "/var/lib/quota.img";
/// What local-storage.md has an owner add to the unit.
const DROP_IN: &str = "CapabilityBoundingSet=CAP_SYS_ADMIN\nSystemCallFilter=quotactl_fd";
/// The limit of each volume, in MiB, what is over it, and what is below it.
const LIMIT: &str = "8Mi";
const OVER: u64 = 12;
const BELOW: u64 = 2;
/// The kubelet's first project (`FirstQuota`), and one of a container's own.
const FIRST: u32 = 1_048_577;
const OWN: u32 = 7;

/// The kubelet's directory on a disk of its own, and the list of projects.
struct Disk;

impl Disk {
    fn make() -> Result<Self> {
        for module in ["loop", "quota_v2"] {
            run(Command::new("modprobe").arg(module))?;
        }
        fs::create_dir_all(KUBELET)?;
        File::create(IMAGE).and_then(|image| image.set_len(96 * MIB)).context("cannot make a disk")?;
        let features = ["-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota", IMAGE];
        run(Command::new("mkfs.ext4").args(features))?;
        run(Command::new("mount").args(["-o", "loop", IMAGE, KUBELET]))?;
        Ok(Self)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_file(LIST);
        // Containers have volumes in it until they are removed.
        let _ = unmount(KUBELET, UnmountFlags::DETACH);
        let _ = fs::remove_file(IMAGE);
    }
}

/// Gives a directory, which is empty, a project that is inherited.
fn assign(directory: &Path, project: u32) -> Result<()> {
    run(Command::new("chattr").args(["+P", "-p", &project.to_string()]).arg(directory)).map(drop)
}

fn list(directory: &Path, project: u32) -> Result<()> {
    let mut list = File::options().create(true).append(true).open(LIST).context("cannot open the list")?;
    writeln!(list, "{project}:{}", directory.display()).context("cannot write the list")
}

/// Has the pod be one with a user namespace of its own, as far as the kubelet's files go.
fn in_a_user_namespace(filled: &Filled) -> Result<()> {
    let volume = filled.pod.volume();
    let pod = volume.ancestors().nth(3).context("the directory of the pod")?;
    let mapping = r#"[{"hostId":65536,"containerId":0,"length":65536}]"#;
    fs::write(pod.join("userns"), format!(r#"{{"uidMappings":{mapping},"gidMappings":{mapping}}}"#))
        .context("cannot write the mapping")
}

/// A pod with a limit of its volume, which has a project and nothing in it.
fn make(node: &mut Node, name: &str, project: u32) -> Result<Filled> {
    let filled = Filled::make(node, name, [0, 0])?;
    node.limit_storage(&filled.pod, None, Some(LIMIT))?;
    assign(&filled.pod.volume(), project)?;
    Ok(filled)
}

/// A pod is over the limit of its volume by a file that is removed and still open, which the kernel counts for the project
/// that the volume was given, and a walk does not see: it is evicted where the agent may ask the kernel, and else that it may
/// not is said and the volume is walked. A pod without a user namespace is walked, too, whatever projects its container gave
/// to its volume and files: one that is over its limit and hides that is evicted, and one below its limit whose project counts
/// files of others is not. Nor is one below it by the kernel's count.
pub(crate) fn project_quotas() -> Result<()> {
    let disk = Disk::make()?;
    let mut node = Node::new()?;
    let over = make(&mut node, "over", FIRST)?;
    let below = make(&mut node, "below", FIRST + 1)?;
    for (filled, project) in [(&over, FIRST), (&below, FIRST + 1)] {
        in_a_user_namespace(filled)?;
        list(&filled.pod.volume(), project)?;
    }
    let removed = over.pod.volume().join("removed");
    let mut open = File::create(&removed)?;
    open.write_all(&vec![1; usize::try_from(OVER * MIB)?])?;
    fs::remove_file(&removed)?;
    below.fill_volume(BELOW)?;
    let hides = make(&mut node, "hides", FIRST + 2)?;
    list(&hides.pod.volume(), FIRST + 2)?;
    hides.fill_volume(OVER)?;
    run(Command::new("chattr").args(["-p", "0"]).arg(hides.pod.volume().join("file")))?;
    let spared = make(&mut node, "spared", OWN)?;
    list(&spared.pod.volume(), OWN)?;
    spared.fill_volume(BELOW)?;
    let others = Path::new(KUBELET).join("others");
    fs::create_dir(&others)?;
    assign(&others, OWN)?;
    fs::write(others.join("file"), vec![1; usize::try_from(OVER * MIB)?])?;
    let configuration = format!("evictionHard: {{memory.available: \"{FAR}\"}}\n");
    let over_limit = format!("Usage of EmptyDir volume \"volume\" exceeds the limit \"{LIMIT}\".");

    node.start_agent(&configuration)?;
    hides.await_eviction(&over_limit)?;
    hides.lose_volume()?;
    let is_said = |line: &str| wait_for(line, PATIENCE, || Ok(journal()?.contains(line))).with_context(logged);
    is_said("project quotas are not read: the kernel gives what it counts to CAP_SYS_ADMIN alone")?;
    is_whole(&over.pod).context("without the kernel's count nothing is known of what was removed")?;
    systemctl(&["stop", UNIT])?;

    drop_in(DROP_IN)?;
    node.start_agent(&configuration)?;
    is_said("project quotas are read: volumes that have one are not scanned")?;
    over.await_eviction(&over_limit)?;
    let said = journal()?.matches("project quotas are ").count();
    ensure!(said == 2, "it is said {said} times; {}", logged());
    drop(open);
    over.lose_volume()?;
    node.expect_room()?;
    let ended = node.end(&[&hides.pod, &over.pod], &[&below.pod, &spared.pod]);
    drop(disk);
    ended
}
