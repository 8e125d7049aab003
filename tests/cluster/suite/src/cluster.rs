//! Where the cluster is, and what is put into it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::api::{Api, Format};
use crate::host::{Console, Stopped};

/// The variable that names the kubeconfig. Not the one that kubectl reads: a cluster in use is never tested.
const KUBECONFIG: &str = "PLIMSOLL_TEST_KUBECONFIG";
/// The variable that names the program of Kubernetes (`tests/cluster/main.go`).
const KUBE: &str = "PLIMSOLL_TEST_KUBE";
/// The socket by which the API server reaches the node, beside the kubeconfig (`xtask/src/cluster/node.rs`).
const TUNNEL: &str = "node.socket";
/// How long a command of kubectl may last that waits until something is gone, and how long any request of one that does not
/// wait: without a limit a delete waits for a week.
const GONE: &str = "--timeout=4m";
const ANSWERED: &str = "--request-timeout=30s";
/// The commands of kubectl that wait for something other than an answer.
const WAITING: [&str; 4] = ["delete", "exec", "rollout", "wait"];
/// The agents' pods: others may be beside them.
const AGENTS: &str = "app.kubernetes.io/name=plimsoll";

/// A cluster that tests may do anything to.
pub struct Cluster {
    kubeconfig: PathBuf,
    /// What that has, as JSON.
    config: Value,
    kube: PathBuf,
    /// Its API server, with every right.
    pub api: Api,
}

impl Cluster {
    /// The one that the environment names, as `cargo xtask test cluster` starts it. An error where there is none, and where
    /// it is not on this machine's loopback.
    pub fn of_environment() -> Result<Self> {
        let path = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .with_context(|| format!("{name} is not set: `cargo xtask test cluster` sets it"))
        };
        let (kubeconfig, kube) = (path(KUBECONFIG)?, path(KUBE)?);
        let mut view = Command::new(&kube);
        view.arg("kubectl").arg("--kubeconfig").arg(&kubeconfig).args(["config", "view", "--raw", "--output", "json"]);
        let config: Value = serde_json::from_str(&output(&mut view)?).context("kubectl shows no kubeconfig")?;
        let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap_or_default();
        ensure!(server.starts_with("https://127.0.0.1:"), "{server} is not on the loopback: it may be in use");
        Ok(Self { api: Api::of_kubeconfig(&config)?, config, kubeconfig, kube })
    }

    /// The kubelet of its only node, with every right.
    pub fn kubelet(&self) -> Result<Api> {
        Api::of_kubelet(&self.config, self.folder().join(TUNNEL))
    }

    /// A kubeconfig of the same API server for the user of this token.
    pub fn kubeconfig_by(&self, token: &str) -> Result<String> {
        let mut config = self.config.clone();
        *config.pointer_mut("/users/0/user").context("the kubeconfig has no user")? = json!({"token": token});
        Ok(config.to_string())
    }

    /// Runs kubectl with every right, and gives what it prints. It ends within minutes, unless the arguments have another
    /// limit.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut kubectl = Command::new(&self.kube);
        output(kubectl.arg("kubectl").arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).args(limit(arguments)))
    }

    /// Stops a process of the control plane, until what this gives is dropped.
    pub fn stop(&self, name: &str) -> Result<Stopped> {
        Stopped::of(self.folder(), name)
    }

    /// What a node prints from now on.
    pub fn console(&self, node: &str) -> Result<Console> {
        Console::from_now(self.folder().join(format!("{node}.log")))
    }

    /// Where xtask keeps what it knows of the cluster (`xtask/src/cluster/control_plane.rs`).
    pub(crate) fn folder(&self) -> &Path {
        self.kubeconfig.parent().unwrap_or(Path::new("."))
    }

    /// A folder of manifests in the checkout.
    pub fn manifests(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../agent/deploy/kustomize").join(name)
    }

    /// Applies a folder of manifests of the checkout.
    pub fn install(&self, name: &str) -> Result<()> {
        self.apply(&Self::manifests(name))
    }

    /// Applies a folder of manifests.
    pub fn apply(&self, folder: &Path) -> Result<()> {
        self.kubectl(&["apply", "--server-side", "--kustomize", text(folder)?]).map(drop)
    }

    /// Removes what a folder of manifests has, and waits until it is gone.
    pub fn remove(&self, folder: &Path) -> Result<()> {
        self.kubectl(&["delete", "--ignore-not-found", "--kustomize", text(folder)?]).map(drop)
    }

    /// The port of its API server.
    pub fn port(&self) -> Result<u16> {
        self.api.port().context("the API server's address has no port")
    }

    /// Makes a node that is ready and has no kubelet.
    pub fn add_node(&self, name: &str) -> Result<()> {
        self.add_tainted_node(name, &json!([]))
    }

    /// The same with these taints.
    pub fn add_tainted_node(&self, name: &str, taints: &Value) -> Result<()> {
        let labels = json!({"kubernetes.io/os": "linux", "kubernetes.io/hostname": name});
        let (metadata, spec) = (json!({"name": name, "labels": labels}), json!({"taints": taints}));
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec});
        self.api.create("/api/v1/nodes", &node)?.object()?;
        let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""});
        let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [ready]}});
        let path = format!("/api/v1/nodes/{name}/status");
        self.api.request("PATCH", &path, Format::Strategic, &status)?.object().map(drop)
    }

    /// The agent's pod on a node, once the DaemonSet has one there.
    pub fn agent_on(&self, node: &str) -> Result<Value> {
        let path =
            format!("/api/v1/namespaces/plimsoll/pods?fieldSelector=spec.nodeName={node}&labelSelector={AGENTS}");
        wait_for(&format!("the DaemonSet has a pod on {node}"), Duration::from_mins(1), || {
            // Beside the one that it replaces, for a moment.
            let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
            Ok(self.api.get(&path)?.object()?["items"].as_array().and_then(|pods| pods.iter().find(stays).cloned()))
        })
    }

    /// A token as the kubelet of that node requests it for the agent's pod: bound to the pod, and so to its node.
    pub fn agent_token(&self, node: &str) -> Result<String> {
        let pod = self.agent_on(node)?;
        let bound =
            json!({"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
        self.token("plimsoll", &json!({"boundObjectRef": bound, "expirationSeconds": 3600}))
    }

    /// A token of a service account of the namespace `plimsoll`.
    pub fn token(&self, account: &str, spec: &Value) -> Result<String> {
        let path = format!("/api/v1/namespaces/plimsoll/serviceaccounts/{account}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let answer = self.api.create(&path, &request)?.object()?;
        Ok(answer["status"]["token"].as_str().context("the answer has no token")?.to_owned())
    }
}

/// The limit for a command of kubectl that has none.
fn limit(arguments: &[&str]) -> Option<&'static str> {
    let has = |word: &str| arguments.contains(&word);
    if arguments.iter().any(|argument| argument.starts_with("--timeout")) {
        None
    } else if has("delete") {
        Some(GONE)
    } else if has("--follow") || has("--raw") || WAITING.into_iter().any(has) {
        // To a raw path kubectl would append it.
        None
    } else {
        Some(ANSWERED)
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is no UTF-8", path.display()))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {}", output.status, error.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Asks until there is something, twice in a second; an error where that takes longer than `patience`.
pub fn wait_for<T>(until: &str, patience: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = ask()? {
            return Ok(found);
        }
        if begun.elapsed() > patience {
            bail!("after {} s it does not hold that {until}", patience.as_secs());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[cfg(test)]
mod tests {
    use super::limit;

    #[test]
    fn no_delete_waits_for_days_and_what_waits_has_no_limit_on_a_request() {
        for (arguments, expected) in [
            (&["--namespace", "plimsoll", "delete", "--ignore-not-found", "job/any"][..], Some("--timeout=4m")),
            (&["delete", "pods", "--all", "--timeout=10m"], None),
            (&["wait", "--for=condition=complete", "job/any"], None),
            (&["rollout", "restart", "daemonset/plimsoll"], None),
            (&["logs", "--follow", "any"], None),
            (&["get", "--raw", "/metrics"], None),
            (&["logs", "any"], Some("--request-timeout=30s")),
            (&["describe", "node", "any"], Some("--request-timeout=30s")),
        ] {
            assert_eq!(limit(arguments), expected, "{arguments:?}");
        }
    }
}
