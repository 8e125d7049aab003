//! A core that does not run any more: what it froze goes on, and another one acts.

use crate::agent::{NO_WATCHDOG, tail};
use crate::block::Slow;
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::{self, wait_for};
use crate::scenarios_of_death::{KILL_POINT, TRIES, grown, has_reached};
use crate::scene::{MIB, PATIENCE, Scene};
use crate::suite::figure;
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a freeze may outlast the core that holds it: the watchdog waits 5 s, for the death 1 s, and undoing takes a
/// moment.
const BOUND: Duration = Duration::from_secs(10);

/// What the kill point is called at which a workload is frozen and that is recorded.
const FROZEN: &str = "freeze-recorded";

/// A scene in which the core hangs, as `how` says, with a workload frozen.
fn hang(how: &str, environment: Vec<(&'static str, String)>) -> Result<(Scene, Cgroup, Hog)> {
    let scene = Scene::set_with(96, |settings| {
        settings.environment.retain(|(name, _)| *name != NO_WATCHDOG);
        settings.environment.push((KILL_POINT, format!("{FROZEN}:{how}")));
        settings.environment.extend(environment);
    })?;
    let victim = Cgroup::create("work.slice/hog")?;
    // A hog that alone is responsible is killed at once: there is not always something to freeze.
    for _ in 0..TRIES {
        wait_for("memory is above the threshold", PATIENCE, || {
            Ok(machine::meminfo("MemAvailable")? > scene.settings.threshold_bytes + 64 * MIB)
        })?;
        let mut hog = Hog::start("anon", victim.path(), grown()?, &["--hold", "120"])?;
        let is_over = || Ok(has_reached(&scene, FROZEN) || hog.child.try_wait()?.is_some());
        wait_for("a freeze is recorded, or the hog is dead", PATIENCE, is_over)?;
        if has_reached(&scene, FROZEN) {
            return Ok((scene, victim, hog));
        }
    }
    bail!("nothing was frozen; the log ends with: {}", tail(&scene.agent.text()))
}

/// What the watchdog is expected to do with a core that hangs: another one is ready, and kills the hog.
fn is_replaced(mut scene: Scene, victim: &Cgroup, hog: &mut Hog, core: u32) -> Result<()> {
    wait_for("another core is started", PATIENCE, || Ok(scene.agent.part("core").is_ok_and(|pid| pid != core)))?;
    ensure!(scene.agent.text().contains("the core does not run although"), "{}", tail(&scene.agent.text()));
    scene.agent.wait_ready(PATIENCE)?;
    scene.expect_dead(&mut hog.child, victim)?;
    scene.end()
}

/// The core is stopped by a signal. It is reported to the service manager that the agent began, and that it goes on.
pub(crate) fn stopped() -> Result<()> {
    // May be there from a run that was repeated.
    let _ = fs::remove_file("/run/notify");
    let socket = UnixDatagram::bind("/run/notify")?;
    socket.set_nonblocking(true)?;
    let mut said = Vec::new();
    let manager = vec![("NOTIFY_SOCKET", "/run/notify".to_owned()), ("WATCHDOG_USEC", "2000000".to_owned())];
    let (scene, victim, mut hog) = hang("pause", manager)?;
    let (core, begun) = (scene.agent.part("core")?, Instant::now());
    wait_for("the freeze is undone", BOUND, || Ok(!victim.is_frozen()?))
        .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    figure("core-stopped", &[("undone_ms", &begun.elapsed().as_millis())]);
    receive(&socket, &mut said);
    // Until the agent is asked to end it reports on. The queue holds some reports only: a core that began late is reported
    // when there is room again.
    let more = said.len();
    wait_for("the agent reports that it began, and goes on", PATIENCE, || {
        receive(&socket, &mut said);
        Ok(said.iter().any(|it| it == "READY=1") && said.len() > more + 2)
    })?;
    is_replaced(scene, &victim, &mut hog, core)?;
    let count = |what: &str| said.iter().filter(|it| *it == what).count();
    ensure!(count("READY=1") == 1 && count("WATCHDOG=1") > 3, "the service manager received {said:?}");
    Ok(())
}

/// Takes what the agent reported so far.
fn receive(socket: &UnixDatagram, said: &mut Vec<String>) {
    let mut bytes = [0; 256];
    while let Ok(length) = socket.recv(&mut bytes) {
        said.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
    }
}

/// The core waits in a system call that no signal ends: a read in four parts, each of which takes 3 s. What it froze goes
/// on while it still waits.
pub(crate) fn uninterruptible() -> Result<()> {
    let device = Slow::one_by_one("stuck")?;
    let path = device.device.to_string_lossy().into_owned();
    let name = device.device.file_name().context("a device has a name")?;
    machine::set(Path::new("/sys/block").join(name).join("queue/max_sectors_kb"), "64")?;
    let (scene, victim, mut hog) = hang("device", vec![("PLIMSOLL_KILL_DEVICE", path)])?;
    let core = scene.agent.part("core")?;
    wait_for("the freeze is undone", BOUND, || Ok(!victim.is_frozen()?))
        .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    ensure!(machine::process_state(core) == Some('D'), "the core could die: {:?}", machine::process_state(core));
    is_replaced(scene, &victim, &mut hog, core)
}
