//! The kubelet that runs: the agent goes by its configuration, and by the next one's once that was started. What listens as
//! the kubelet does stands for it here; the one that is installed into a cluster reads the real one's.

use crate::agent::tail;
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::wait_for;
use crate::scenarios::starts;
use crate::scene::{MIB, PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

/// Its directory, and its file.
const ROOT: &str = "/run/kubelet";
const FILE: &str = "/run/kubelet/config.yaml";
/// What lists devices of pods is asked here.
const SOCKET: &str = "pod-resources/kubelet.sock";
/// How far below what is available the threshold is, in MiB, and what the process takes that crosses it.
const ROOM: u64 = 96;
const HOG: usize = 256;
/// How long what changed in the file alone has to have no effect.
const WITHOUT_EFFECT: Duration = Duration::from_secs(3);

/// A process that listens where a kubelet does, and does nothing else. Its command line is read by the agent.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    root_dir: PathBuf,
    #[arg(long)]
    config: PathBuf,
}

pub(crate) fn listen(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.config.exists(), "{} is not there", arguments.config.display());
    let socket = arguments.root_dir.join(SOCKET);
    let _ = fs::remove_file(&socket);
    fs::create_dir_all(socket.parent().context("a path with a directory")?)?;
    let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
    for connection in listener.incoming() {
        drop(connection);
    }
    Ok(())
}

/// That process; it ends with the test.
struct Kubelet(Child);

impl Kubelet {
    fn start() -> Result<Self> {
        let socket = Path::new(ROOT).join(SOCKET);
        let _ = fs::remove_file(&socket);
        let child = guest().args(["listen-as-kubelet", "--root-dir", ROOT, "--config", FILE]).spawn()?;
        let kubelet = Self(child);
        wait_for("the kubelet's socket is there", PATIENCE, || Ok(socket.exists()))?;
        Ok(kubelet)
    }

    fn write(threshold_bytes: u64) -> Result<()> {
        fs::create_dir_all(ROOT)?;
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             evictionHard: {{memory.available: \"{threshold_bytes}\"}}\n"
        );
        fs::write(FILE, text).with_context(|| format!("cannot write {FILE}"))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn times_followed(scene: &Scene) -> usize {
    scene.agent.text().matches("the kubelet was started with another configuration").count()
}

/// A threshold far away holds at first. A nearer one in the kubelet's file has no effect on a process that is past it until a
/// kubelet is started with it; then the next process is evicted. A kubelet that has the same changes nothing. A core that is
/// started while memory is short does not know what took it, and may evict nothing, so that each process has its own turn.
pub(crate) fn followed() -> Result<()> {
    Kubelet::write(MIB)?;
    let kubelet = Kubelet::start()?;
    let mut scene = Scene::launch_with(ROOM, |settings| {
        settings.running_kubelet = true;
        settings.environment.push(("PLIMSOLL_KUBELET_ROOT", ROOT.into()));
    })?;
    scene.agent.wait_ready(PATIENCE)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--hold", "300"])?;
    hog.wait_taken(HOG, PATIENCE)?;
    Kubelet::write(scene.settings.threshold_bytes)?;
    thread::sleep(WITHOUT_EFFECT);
    ensure!(hog.child.try_wait()?.is_none(), "evicted by: {}", tail(&scene.agent.text()));
    drop(hog);
    drop(kubelet);
    let kubelet = Kubelet::start()?;
    wait_for("the next kubelet is followed", PATIENCE, || Ok(times_followed(&scene) == 1))?;
    wait_for("the next core is ready", PATIENCE, || Ok(starts(&scene).len() == 2))?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "100", "--hold", "300"])?;
    wait_for("the process is evicted by the next kubelet's threshold", PATIENCE, || {
        Ok(hog.child.try_wait()?.is_some())
    })
    .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    ensure!(times_followed(&scene) == 1, "followed {} times", times_followed(&scene));
    drop(kubelet);
    thread::sleep(WITHOUT_EFFECT);
    let _kubelet = Kubelet::start()?;
    thread::sleep(WITHOUT_EFFECT);
    ensure!(times_followed(&scene) == 1, "what has the same configuration changes something");
    fs::remove_dir_all(ROOT)?;
    scene.end()
}
