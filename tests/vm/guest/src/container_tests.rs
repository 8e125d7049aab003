//! Agents in namespaces as container runtimes make them.

use crate::agent::{Agent, PROGRAM, Settings, tail};
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::scene::{PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

/// Each sees all workloads of the machine, knows its own cgroup, and one of the two acts; the other one takes over.
pub(crate) fn agents_in_containers() -> Result<()> {
    let mut scene = Scene::set_with(192, |settings| {
        settings.container = true;
        settings.kernel_brake = true;
    })?;
    let other = Settings { port: scene.settings.port + 1, ..scene.settings.clone() };
    // As the kubelet does for a container.
    let own = other.cgroup()?;
    own.write("memory.oom.group", "1")?;
    let mut second = Agent::launch(&other)?;
    second.wait_shadowing(PATIENCE)?;
    ensure!(own.read("memory.oom.group")?.trim() == "0", "the OOM killer would end all of the agent for one process");
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 512, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    ensure!(second.killed() == 0 && second.running()?, "the second agent acted, or ended: {}", tail(&second.text()));
    // What outlives the container is the machine's.
    for path in ["/run/plimsoll/record", "/sys/fs/bpf/plimsoll/stopped"] {
        ensure!(Path::new(path).exists(), "{path} is the container's own");
    }
    kill_process(scene.agent.supervisor(), Signal::TERM)?;
    second.wait_ready(PATIENCE)?;
    scene.agent.wait_end(PATIENCE)?;
    std::mem::swap(&mut scene.agent, &mut second);
    let victim = Cgroup::create("work.slice/next")?;
    let mut hog = Hog::start("anon", victim.path(), 512, &["--rate", "80"])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()
}

/// `explain` and `pods` show the machine from within a container, and read there what they are given.
pub(crate) fn commands_see_the_machine() -> Result<()> {
    const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    let settings = Settings::with_threshold(64 << 20);
    let own = settings.cgroup()?;
    let service = Cgroup::create("work.slice/seen")?;
    let pod = Cgroup::create(&format!("kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_")))?;
    let _held = [&service, &pod].map(|cgroup| Hog::start("anon", cgroup.path(), 8, &["--hold", "60"]));
    let configuration = "/tmp/commands.yaml";
    fs::write(
        configuration,
        "evictionHard: {memory.available: 16Mi}\nmachine: {workloads: [{match: 'work.slice/*'}]}\n",
    )?;
    let list = json!({"items": [{"metadata": {"name": "listed", "namespace": "n", "uid": UID},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "1Mi"}}}]}}]});
    // The container has a directory of its own there.
    let script = format!(
        "cat > /run/plimsoll/pods.json; {PROGRAM} explain --config {configuration} || exit; exec {PROGRAM} pods --config \
         {configuration} --pods /run/plimsoll/pods.json"
    );
    let mut command = guest();
    command.args(["within", "--container", "--cgroup"]).arg(own.path()).args([
        "--",
        "/bin/busybox",
        "sh",
        "-c",
        &script,
    ]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("a pipe")?.write_all(list.to_string().as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{}: {said}", output.status);
    for expected in [service.name(), "n/listed"] {
        ensure!(said.contains(expected), "{expected} is not in {said}");
    }
    Ok(())
}

/// Where the machine cannot be seen, the agent ends and names what to set.
pub(crate) fn refused() -> Result<()> {
    let settings = Settings::with_threshold(64 << 20);
    let cgroup = settings.cgroup()?;
    for (arguments, expected) in [
        (&["--container", "--own-pids"][..], "hostPID: true"),
        (&["--container", "--capabilities", "CAP_BPF,CAP_KILL,CAP_DAC_OVERRIDE"], "privileged: true"),
    ] {
        let mut command = guest();
        command.arg("within").args(arguments).arg("--cgroup").arg(cgroup.path()).args(["--", PROGRAM, "run"]);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.code() == Some(3) && said.contains(expected), "{}: {said}", output.status);
    }
    Ok(())
}
