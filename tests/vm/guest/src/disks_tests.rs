//! Disks of a node: a file system of its own as the kubelet's directory, filled and freed, by pods and by others.

use crate::agent::tail;
use crate::machine::wait_for;
use crate::pods_tests::{FACTS, Pod, write_facts};
use crate::scene::{MIB, PATIENCE, Scene, was_killed};
use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

/// The kubelet's directory.
const ROOT: &str = "/run/kubelet";
/// Where it is unless it is named.
const USUAL_ROOT: &str = "/var/lib/kubelet";
/// Its hard threshold, in MiB.
const THRESHOLD: u64 = 16;
/// How far below what is available the threshold on memory is, in MiB: nothing comes near to it.
const ROOM: u64 = 128;

/// A file system at the kubelet's directory, over what is mounted there already.
struct Mounted;

impl Mounted {
    fn of(size: &CStr) -> Result<Self> {
        mount("tmpfs", ROOT, "tmpfs", MountFlags::empty(), size).with_context(|| format!("cannot mount {ROOT}"))?;
        Ok(Self)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(ROOT, UnmountFlags::DETACH);
    }
}

/// What the log says of the threshold and the condition, in order.
fn said(scene: &Scene) -> Vec<&'static str> {
    let lines = scene.agent.lines();
    let of = |line: &serde_json::Value| match (
        line["signal"].as_str(),
        line["is_met"].as_bool(),
        line["status"].as_bool(),
    ) {
        (Some("nodefs.available"), Some(true), _) => Some("below"),
        (Some("nodefs.available"), Some(false), _) => Some("above"),
        (_, _, Some(true)) if line["condition"] == "DiskPressure" => Some("pressure"),
        (_, _, Some(false)) if line["condition"] == "DiskPressure" => Some("none"),
        _ => None,
    };
    lines.iter().filter_map(of).collect()
}

/// Waits until the log ends with that, each of it once or again.
fn await_said(scene: &Scene, end: &[&str]) -> Result<()> {
    let ends = || {
        let mut order = said(scene);
        order.dedup();
        order.ends_with(end)
    };
    wait_for("the log has what the metrics have", PATIENCE, || Ok(ends()))
        .with_context(|| format!("expected {end:?}; the log ends with: {}", tail(&scene.agent.text())))
}

/// Where the configuration does not name the kubelet's directory, disks are read if it is where it usually is. Else no
/// process is left to read them.
fn unnamed() -> Result<()> {
    for is_there in [false, true] {
        if is_there {
            fs::create_dir_all(USUAL_ROOT)?;
        }
        let scene = Scene::set_with(ROOM, |settings| settings.node_disk = Some((None, MIB)))?;
        let said = if is_there { "disks are read: nodefs" } else { "disks are not read: there is no /var/lib/kubelet" };
        wait_for(said, PATIENCE, || Ok(scene.agent.text().contains(said)))
            .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
        if !is_there {
            wait_for("services has ended", PATIENCE, || Ok(scene.agent.process("services").is_err()))?;
        }
        // It would be started again within a second.
        std::thread::sleep(Duration::from_secs(2));
        let runs = scene.agent.process("services").is_ok();
        ensure!(runs == is_there, "services runs: {runs}, {}", scene.agent.text());
        ensure!(!scene.agent.text().contains("started again"), "{}", scene.agent.text());
        scene.end()?;
    }
    fs::remove_dir(USUAL_ROOT)?;
    Ok(())
}

/// A disk that is filled beyond its threshold is reported until its transition period is over, also where services is
/// killed meanwhile, and nothing is evicted for it. What is mounted over it later is seen.
pub(crate) fn pressure() -> Result<()> {
    unnamed()?;
    fs::create_dir_all(ROOT)?;
    let disk = Mounted::of(c"size=64M")?;
    let mut scene = Scene::set_with(ROOM, |settings| settings.node_disk = Some((Some(ROOT.into()), THRESHOLD * MIB)))?;
    scene.agent.await_metric("plimsoll_disk_read{disk=\"nodefs\"} 1", PATIENCE)?;
    scene.agent.await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    await_said(&scene, &["none"])?;
    let file = Path::new(ROOT).join("full");
    fs::write(&file, vec![1; usize::try_from(56 * MIB)?])?;
    scene.agent.await_metric("plimsoll_disk_pressure 1", PATIENCE)?;
    await_said(&scene, &["none", "below", "pressure"])?;
    kill_process(scene.agent.process("services")?, Signal::KILL)?;
    wait_for("services reads the disk again", PATIENCE, || {
        Ok(scene.agent.text().matches("disks are read: nodefs").count() == 2)
    })?;
    scene.check()?;
    fs::remove_file(&file)?;
    scene.agent.await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    await_said(&scene, &["above", "pressure", "none"]).context("it lasts for a transition period")?;
    // Less than the threshold in all.
    let over = Mounted::of(c"size=8M")?;
    scene
        .agent
        .await_metric("plimsoll_disk_pressure 1", PATIENCE)
        .context("a file system that is mounted over the directory")?;
    drop(over);
    scene.agent.await_metric("plimsoll_disk_pressure 0", PATIENCE).context("it is gone again")?;
    let killed = scene.agent.killed();
    ensure!(killed == 0, "{killed} workloads were evicted: {}", scene.agent.text());
    ensure!(
        scene
            .agent
            .text()
            .contains("what is dead or unused is removed by order of the core; by these figures alone no pod"),
        "the log does not say so"
    );
    let services = scene.agent.part("services")?;
    let status = fs::read_to_string(format!("/proc/{services}/status"))?;
    for expected in ["Uid:\t65525\t65525\t65525\t65525", "CapPrm:\t0000000000000000", "Seccomp:\t2", "NoNewPrivs:\t1"] {
        ensure!(status.contains(expected), "services has no {expected:?}: {status}");
    }
    scene.end()?;
    drop(disk);
    Ok(())
}

/// A time of the log, in nanoseconds of the monotonic clock.
type Nanoseconds = u64;

/// A soft threshold and the condition, as the log has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// Crossed since then, and whether its grace is over.
    Crossed(Nanoseconds, bool),
    Above,
    /// Whether there is pressure, and when.
    Pressure(bool, Nanoseconds),
}

fn said_of_soft(scene: &Scene) -> Vec<Said> {
    let of = |line: &serde_json::Value| {
        if line["condition"] == "DiskPressure" {
            return Some(Said::Pressure(line["status"].as_bool()?, line["at_ns"].as_u64()?));
        }
        if line["signal"] != "nodefs.available" || line["threshold"] != SOFT * MIB {
            return None;
        }
        Some(line["since_ns"].as_u64().map_or(Said::Above, |since| Said::Crossed(since, line["is_met"] == true)))
    };
    scene.agent.lines().iter().filter_map(of).collect()
}

/// What the log says first for which `find` gives anything, once it does, and when the next report of the condition was.
fn await_soft<T>(scene: &Scene, what: &str, find: impl Fn(Said) -> Option<T>) -> Result<(T, Nanoseconds)> {
    let mut found = None;
    wait_for(what, LONG, || {
        let said = said_of_soft(scene);
        let place = said.iter().position(|it| find(*it).is_some());
        found = place.and_then(|place| {
            let at = said[place..].iter().find_map(|it| if let Said::Pressure(_, at) = it { Some(*at) } else { None });
            Some((find(said[place])?, at?))
        });
        Ok(found.is_some())
    })
    .with_context(|| format!("{:?}; the log ends with: {}", said_of_soft(scene), tail(&scene.agent.text())))?;
    found.context(what.to_owned())
}

fn kill_core(scene: &mut Scene) -> Result<()> {
    let before = scene.agent.text().matches("armed with source").count();
    kill_process(scene.agent.process("core")?, Signal::KILL)?;
    wait_for("the core is started again", PATIENCE, || {
        Ok(scene.agent.text().matches("armed with source").count() > before)
    })
}

/// The soft threshold, in MiB, and its grace period as well as the transition period.
const SOFT: u64 = 32;
const PERIOD: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(90);

/// The core is killed in the middle of a grace period, and of a transition period: both end when they had to.
pub(crate) fn periods_outlive_the_core() -> Result<()> {
    fs::create_dir_all(ROOT)?;
    let disk = Mounted::of(c"size=64M")?;
    let mut scene = Scene::set_with(ROOM, |settings| {
        settings.node_disk = Some((Some(ROOT.into()), THRESHOLD * MIB));
        settings.soft_node_disk = Some((SOFT * MIB, "30s"));
        settings.pressure_transition = "30s";
    })?;
    scene.agent.await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    let period = u64::try_from(PERIOD.as_nanos())?;
    let file = Path::new(ROOT).join("full");
    fs::write(&file, vec![1; usize::try_from(40 * MIB)?])?;
    let crossed = |it| if let Said::Crossed(since, false) = it { Some(since) } else { None };
    let (since, _) = await_soft(&scene, "the soft threshold is crossed", crossed)?;
    std::thread::sleep(PERIOD / 2);
    scene.agent.empty_log()?;
    kill_core(&mut scene)?;
    let met = |it| if let Said::Crossed(since, true) = it { Some(since) } else { None };
    let (again, at) = await_soft(&scene, "the grace is over", met)?;
    let said = said_of_soft(&scene);
    ensure!(again == since, "the grace began anew: at {again}, not at {since}: {said:?}");
    let took = at - since;
    ensure!((period..period * 3 / 2).contains(&took), "the grace lasted for {took} ns: {said:?}");
    let is_over = |it: &Said| matches!(it, Said::Pressure(false, _));
    ensure!(!said.iter().any(is_over), "the condition was over for a while: {said:?}");
    scene.agent.empty_log()?;
    fs::remove_file(&file)?;
    let above = |it| (it == Said::Above).then_some(());
    let ((), above) = await_soft(&scene, "the disk is above its thresholds", above)?;
    kill_core(&mut scene)?;
    let over = |it| if let Said::Pressure(false, at) = it { Some(at) } else { None };
    let (over, _) = await_soft(&scene, "the condition is over", over)?;
    let said = said_of_soft(&scene);
    // It counts from the last figure below the threshold: disks that are short are read each second.
    let slack = 5_000_000_000;
    let took = over - above;
    ensure!((period - slack..period + 2 * slack).contains(&took), "the condition lasted for {took} ns: {said:?}");
    ensure!(scene.agent.killed() == 0, "workloads were evicted: {}", scene.agent.text());
    scene.end()?;
    drop(disk);
    Ok(())
}

/// A pod with a volume that only root may enter, and a process in it.
struct WithVolume {
    pod: Pod,
    child: Child,
}

impl WithVolume {
    /// `limit`: that of the volume, if it has one.
    fn create(number: u16, priority: i32, limit: Option<&str>) -> Result<Self> {
        let mut pod = Pod::create("besteffort", number, priority, &json!({}))?;
        let empty_dir = limit.map_or_else(|| json!({}), |limit| json!({"sizeLimit": limit}));
        pod.facts["spec"]["volumes"] = json!([{"name": "data", "emptyDir": empty_dir}]);
        let child = pod.holds(1)?;
        let with_volume = Self { pod, child };
        let volume = with_volume.volume()?;
        fs::create_dir_all(&volume)?;
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o700))?;
        Ok(with_volume)
    }

    fn volume(&self) -> Result<std::path::PathBuf> {
        let uid = self.pod.facts["metadata"]["uid"].as_str().context("it has a UID")?;
        Ok(Path::new(ROOT).join("pods").join(uid).join("volumes/kubernetes.io~empty-dir/data"))
    }

    fn fill(&self, mib: u64) -> Result<()> {
        Ok(fs::write(self.volume()?.join("file"), vec![1; usize::try_from(mib * MIB)?])?)
    }

    fn take_inodes(&self, count: u64) -> Result<()> {
        let volume = self.volume()?;
        (0..count).try_for_each(|number| Ok(fs::write(volume.join(number.to_string()), b"")?))
    }

    /// Waits until its process is killed, with this message.
    fn await_eviction(&mut self, scene: &Scene, message: &str) -> Result<()> {
        let mut ended = None;
        wait_for("the pod is evicted", 2 * PATIENCE, || {
            ended = self.child.try_wait()?;
            Ok(ended.is_some())
        })
        .with_context(|| format!("expected {message}; the log ends with: {}", tail(&scene.agent.text())))?;
        ensure!(ended.is_some_and(was_killed), "it ended by itself: {ended:?}");
        wait_for(message, PATIENCE, || Ok(scene.agent.text().contains(message)))
            .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))
    }

    fn lives(&mut self, scene: &Scene) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "a bystander ended: {ended:?}: {}", tail(&scene.agent.text()));
        Ok(())
    }
}

/// A pod that fills its volume beyond its limit is evicted with the kubelet's message, and so is the one that fills the
/// disk; nothing happens to others, and to one that is critical.
pub(crate) fn local_storage() -> Result<()> {
    fs::create_dir_all(ROOT)?;
    let disk = Mounted::of(c"size=48M")?;
    let mut over = WithVolume::create(31, 0, Some("8Mi"))?;
    let mut large = WithVolume::create(32, 0, None)?;
    let mut bystander = WithVolume::create(33, 0, Some("8Mi"))?;
    let mut critical = WithVolume::create(34, 2_000_001_000, Some("1Mi"))?;
    let all: Vec<_> = [&over, &large, &bystander, &critical].iter().map(|it| it.pod.facts.clone()).collect();
    write_facts(FACTS, &json!({"items": all}).to_string())?;
    let mut scene = Scene::set_with(ROOM, |settings| {
        settings.node_disk = Some((Some(ROOT.into()), THRESHOLD * MIB));
        settings.pod_facts = Some(FACTS.into());
    })?;
    bystander.fill(7)?;
    critical.fill(2)?;
    over.fill(9)?;
    over.await_eviction(&scene, "Usage of EmptyDir volume \\\"data\\\" exceeds the limit \\\"8Mi\\\".")?;
    bystander.lives(&scene)?;
    large.fill(20)?;
    let low = "The node was low on resource: ephemeral-storage. Threshold quantity: 16Mi, available: ";
    large.await_eviction(&scene, low)?;
    scene.agent.await_metric("plimsoll_disk_evictions_total{eviction_signal=\"emptydirfs.limit\"} 1", PATIENCE)?;
    bystander.lives(&scene)?;
    critical.lives(&scene)?;
    scene.check()?;
    let status = fs::read_to_string(format!("/proc/{}/status", scene.agent.part("scanner")?))?;
    for expected in ["Uid:\t65524\t65524\t65524\t65524", "CapPrm:\t0000000000000004", "Seccomp:\t2", "Threads:\t1"] {
        ensure!(status.contains(expected), "the scanner has no {expected:?}: {status}");
    }
    // It is started again, and measures again.
    kill_process(scene.agent.process("scanner")?, Signal::KILL)?;
    wait_for("the scanner runs again", PATIENCE, || Ok(scene.agent.process("scanner").is_ok()))?;
    bystander.fill(9)?;
    bystander.await_eviction(&scene, "(pod test/pod-33)")?;
    scene.end()?;
    critical.child.kill()?;
    critical.child.wait()?;
    drop(disk);
    Ok(())
}

/// The inodes of the disk, and the hard threshold on those that are free.
const INODES: u64 = 2000;
const FREE_INODES: u64 = 500;

/// Where inodes run short, the pod that takes most of them is evicted with the kubelet's message, and not the one that takes
/// more bytes, or one that is critical.
pub(crate) fn inodes() -> Result<()> {
    fs::create_dir_all(ROOT)?;
    let disk = Mounted::of(c"size=64M,nr_inodes=2000")?;
    let mut many = WithVolume::create(41, 0, None)?;
    let mut large = WithVolume::create(42, 0, None)?;
    let mut critical = WithVolume::create(43, 2_000_001_000, None)?;
    let all: Vec<_> = [&many, &large, &critical].iter().map(|it| it.pod.facts.clone()).collect();
    write_facts(FACTS, &json!({"items": all}).to_string())?;
    let mut scene = Scene::set_with(ROOM, |settings| {
        settings.node_disk = Some((Some(ROOT.into()), THRESHOLD * MIB));
        settings.node_inodes = Some(FREE_INODES);
        settings.pod_facts = Some(FACTS.into());
    })?;
    scene.agent.await_metric(
        &format!("plimsoll_signal_capacity{{eviction_signal=\"nodefs.inodesFree\"}} {INODES}"),
        PATIENCE,
    )?;
    large.fill(20)?;
    critical.take_inodes(700)?;
    many.take_inodes(900)?;
    many.await_eviction(&scene, "The node was low on resource: inodes. Threshold quantity: 500, available: ")?;
    scene.agent.await_metric("plimsoll_disk_evictions_total{eviction_signal=\"nodefs.inodesFree\"} 1", PATIENCE)?;
    scene.agent.await_metric("plimsoll_disk_pressure 1", PATIENCE)?;
    large.lives(&scene)?;
    critical.lives(&scene)?;
    // As the kubelet does once the pod is deleted.
    fs::remove_dir_all(many.volume()?)?;
    scene.agent.await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    scene.check()?;
    large.lives(&scene)?;
    ensure!(scene.agent.killed() == 1, "others were evicted: {}", scene.agent.text());
    scene.end()?;
    for mut pod in [large, critical] {
        pod.child.kill()?;
        pod.child.wait()?;
    }
    drop(disk);
    Ok(())
}
