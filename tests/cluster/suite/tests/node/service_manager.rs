//! What a test has the service manager of the node start, as a login on the node would; and a pipe by which pods begin when
//! it says so.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::wait_for;
use serde_json::{Value, json};

use crate::turn::Turn;
use crate::view::{self, add, mount_run, pod};
use crate::{NODE, PATIENCE};

/// What the node's own programs need of it, by where they look for it.
const NEEDED: [(&str, &str, &str); 4] = [
    ("programs", "/usr", "/usr"),
    ("libraries", "/usr/lib", "/lib"),
    ("loader", "/usr/lib64", "/lib64"),
    ("run", "/run", "/run"),
];

/// Seconds from the start of a service until it does what it is for: what starts it has ended before.
const AFTER: u32 = 30;

/// Starts a service of system.slice with this name, which runs these words, by a pod that ends with that. No pod of the test
/// may have the name. The program has to be below /usr, since systemd-run looks for it in the container first.
pub(crate) fn start(turn: &Turn, name: &str, words: &[&str]) -> Result<()> {
    let mut starter = pod(name, &[]);
    let spec = &mut starter["spec"];
    let command = ["/usr/bin/systemd-run", "--quiet", "--collect", "--expand-environment=no"];
    let unit = ["--slice", "system.slice", "--unit", name];
    spec["restartPolicy"] = "Never".into();
    // It checks the process id of the manager, which its socket gives as 0 to another PID namespace.
    spec["hostPID"] = true.into();
    spec["containers"][0]["command"] = json!([&command[..], &unit, words].concat());
    spec["volumes"] = NEEDED.map(|(name, path, _)| json!({"name": name, "hostPath": {"path": path}})).into();
    spec["containers"][0]["volumeMounts"] = NEEDED.map(|(name, _, at)| json!({"name": name, "mountPath": at})).into();
    turn.create(&starter)?;
    wait_for(&format!("{name}.service is started"), PATIENCE, || {
        let status = &view::stored(turn, name)?["status"];
        ensure!(status["phase"] != "Failed", "{status}: {:?}", turn.kubectl(&["logs", name]));
        Ok((status["phase"] == "Succeeded").then_some(()))
    })
    .context("by systemd-run")
}

/// Where the node's kubelet has its configuration (`tests/vm/guest/src/kubelet.rs`).
const CONFIGURATION: &str = "/etc/kubernetes/kubelet.yaml";

/// Restarts the kubelet, and waits until another one answers.
pub(crate) fn restart_kubelet(turn: &Turn) -> Result<()> {
    restart_kubelet_after(turn, ":")
}

/// Restarts the kubelet with its configuration as it was first and these lines, of which there may be none, and waits until it says
/// that it has this, as JSON, in this field.
pub(crate) fn reconfigure_kubelet(turn: &Turn, lines: &str, field: &str, expected: Option<&str>) -> Result<()> {
    let (as_it_was, new) = (format!("{CONFIGURATION}.as-it-was"), format!("{CONFIGURATION}.new"));
    let change = format!(
        "test -e {as_it_was} || cp {CONFIGURATION} {as_it_was}; cat {as_it_was} > {new}; echo '{lines}' >> {new}; \
         mv {new} {CONFIGURATION}"
    );
    restart_kubelet_after(turn, &change)?;
    let configuration = turn.api.get(&format!("/api/v1/nodes/{NODE}/proxy/configz"))?.object()?;
    let found = configuration["kubeletconfig"].pointer(field).map(Value::to_string);
    ensure!(found.as_deref() == expected, "the kubelet has {found:?} in {field}");
    Ok(())
}

/// Restarts the kubelet once the node's shell has done this.
fn restart_kubelet_after(turn: &Turn, command: &str) -> Result<()> {
    let begun = || -> Option<String> {
        let metrics = turn.kubelet().ok()?.get("/metrics").ok()?.object().ok()?;
        let mut lines = metrics.as_str()?.lines();
        lines.find(|line| line.starts_with("process_start_time_seconds ")).map(str::to_owned)
    };
    let before = begun().context("the kubelet does not say since when it runs")?;
    let script = format!("PATH=/usr/bin; sleep {AFTER}; {command}; systemctl restart kubelet.service");
    start(turn, "restarts", &["/usr/bin/sh", "-c", &script])?;
    wait_for("another kubelet answers", PATIENCE, || Ok(begun().filter(|begun| *begun != before).map(drop)))
}

/// A named pipe of the node: what pods wait for until it is opened.
pub(crate) struct Pipe(String);

impl Pipe {
    pub(crate) fn make(turn: &Turn) -> Result<Self> {
        /// Another one for each test.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let pipe = Self(format!("/run/plimsoll-test-pipe-{}-{number}", std::process::id()));
        start(turn, "pipe", &["/usr/bin/busybox", "mkfifo", &pipe.0])?;
        Ok(pipe)
    }

    /// The same pod, whose program begins when the pipe is opened.
    pub(crate) fn held(&self, mut pod: Value) -> Value {
        let spec = &mut pod["spec"];
        mount_run(spec);
        for argument in ["--begin", &self.0] {
            add(&mut spec["containers"][0]["args"], argument.into());
        }
        pod
    }

    /// What a shell does to open it.
    pub(crate) fn opening(&self) -> String {
        format!(": > {}", self.0)
    }

    /// Opens it some seconds later.
    pub(crate) fn open(&self, turn: &Turn) -> Result<()> {
        start(turn, "opens", &["/usr/bin/sh", "-c", &format!("sleep {AFTER}; {}", self.opening())])
    }
}
