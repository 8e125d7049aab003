//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler on this machine's loopback, with certificates of
//! their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::monitor::Monitor;
use super::ports::{self, Ports};
use super::processes::{self, Guard, Process};
use super::saved::{self, Saved};
use super::{kube, node};
use crate::run;

/// This machine's loopback as a virtual machine with QEMU's user network reaches it.
pub(super) const HOST_FROM_NODE: &str = "10.0.2.2";
/// The cluster's only node.
pub(super) const NODE: &str = "node-1";
/// How long the control plane may take until it is ready; some ten seconds on two idle processors.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long the node may take until it is ready; a minute or two on two idle processors.
const NODE_PATIENCE: Duration = Duration::from_mins(8);
/// How long one that was saved may take.
const RESTORE_PATIENCE: Duration = Duration::from_mins(2);

/// A control plane, whether or not it runs.
pub(super) struct ControlPlane {
    folder: PathBuf,
    ports: Ports,
    /// Where it ends with this process: what sees to that.
    guard: Option<Guard>,
}

impl ControlPlane {
    /// That of this checkout, which outlives the command that starts it.
    pub(super) fn here() -> Self {
        Self { folder: run::root().join("target/cluster"), ports: Ports::USUAL, guard: None }
    }

    /// One in this folder, on ports that are free, which ends with this process at the latest.
    pub(super) fn guarded(folder: PathBuf) -> anyhow::Result<Self> {
        Ok(Self { folder, ports: Ports::free()?, guard: Some(Guard::start()?) })
    }

    fn list(&self) -> PathBuf {
        self.folder.join("processes.json")
    }

    /// A kubeconfig with every right, for this machine.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("super-admin.conf")
    }

    fn pki(&self, name: &str) -> PathBuf {
        self.folder.join("pki").join(name)
    }

    /// `kubectl` with every right.
    pub(super) fn kubectl(&self) -> anyhow::Result<Command> {
        let mut kubectl = Command::new(kube::program()?);
        kubectl.arg("kubectl").arg("--kubeconfig").arg(self.kubeconfig());
        Ok(kubectl)
    }

    /// Its processes that run.
    pub(super) fn running(&self) -> anyhow::Result<Vec<Process>> {
        let mut all = processes::read(&self.list())?;
        all.retain(Process::runs);
        Ok(all)
    }

    /// Starts it, and a node with this kernel where that is asked for, and waits until it is ready. Where it does not become
    /// ready, all that was started is ended again.
    pub(super) fn up(&mut self, node: Option<&str>) -> anyhow::Result<()> {
        let running = self.running()?;
        if !running.is_empty() {
            let names: Vec<&str> = running.iter().map(|process| &process.name[..]).collect();
            bail!("{} still run: end them with `cargo xtask cluster down`", names.join(", "));
        }
        let started = match node {
            None => self.boot(None),
            Some(node::KERNEL) => self.up_with_node(),
            // One of another kernel is used too rarely to be kept.
            Some(kernel) => node::build().and_then(|()| self.boot_node(kernel)),
        };
        if started.is_err() {
            self.down()?;
        }
        started
    }

    /// With the node that was saved, which is made first unless there is one. Where that fails, with one that is booted anew.
    fn up_with_node(&mut self) -> anyhow::Result<()> {
        node::build()?;
        let others = Ports { api: ports::OF_A_SAVED_NODE, ..self.ports };
        let own = std::mem::replace(&mut self.ports, others);
        let Err(error) = self.up_with_saved_node() else { return Ok(()) };
        println!("no saved node is used, and one is booted: {error:#}");
        self.down()?;
        self.ports = own;
        self.boot_node(node::KERNEL)
    }

    /// With a node that is booted.
    fn boot_node(&self, kernel: &str) -> anyhow::Result<()> {
        self.boot(Some(kernel))?;
        node::hand_over(&self.folder)
    }

    fn up_with_saved_node(&self) -> anyhow::Result<()> {
        let saved = Saved::current()?;
        // Whichever command has restored one meanwhile has the port by now.
        ensure!(self.ports.api_is_free(), "port {}, which it has in its kubeconfig, is in use", self.ports.api);
        saved.ensure(|folder| self.make(folder))?;
        let restored = self.restore(&saved);
        if restored.is_err() {
            saved.remove();
        }
        restored
    }

    /// Boots a node, and saves it into this directory with what is here of the control plane.
    fn make(&self, folder: &Path) -> anyhow::Result<()> {
        let plane = Self { folder: self.folder.clone(), ports: self.ports, guard: Some(Guard::start()?) };
        let made = plane.boot(Some(node::KERNEL)).and_then(|()| plane.save(folder));
        plane.end()?;
        made
    }

    /// Ends the control plane, too.
    fn save(&self, folder: &Path) -> anyhow::Result<()> {
        let mut monitor = Monitor::connect(&node::monitor(&self.folder))?;
        monitor.stop()?;
        // At once, so that etcd has what the node has seen, and does not learn that it is silent.
        for process in self.running()?.iter().rev().filter(|process| process.name != NODE) {
            process.end()?;
        }
        monitor.save(folder)?;
        saved::copy(&self.folder, folder)
    }

    /// Starts the control plane with what is saved of it, and has the node continue.
    fn restore(&self, saved: &Saved) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.clear()?;
        saved.bring(&self.folder)?;
        let mut running = Vec::new();
        // It reads its memory while the control plane starts.
        self.start_node(node::KERNEL, Some(&saved.place()), &mut running)?;
        self.start(true, &mut running)?;
        let before = self.lease()?;
        let resume = || Monitor::connect(&node::monitor(&self.folder))?.resume();
        self.wait(&running, RESTORE_PATIENCE, "the machine is restored", resume)?;
        node::hand_over(&self.folder)?;
        self.wait_for_node(&running, RESTORE_PATIENCE, &before)?;
        println!("the saved node is ready after {} s", begun.elapsed().as_secs());
        Ok(())
    }

    /// Ends what runs of it, the last one first; how many those were.
    pub(super) fn down(&self) -> anyhow::Result<usize> {
        let running = self.running()?;
        for process in running.iter().rev() {
            process.end()?;
        }
        Ok(running.len())
    }

    /// Ends one that was started by this process.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.down()?;
        self.guard.map_or(Ok(()), Guard::done)
    }

    /// Removes what is left of an earlier cluster; its certificates may be for another release.
    fn clear(&self) -> anyhow::Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot clear {}", self.folder.display()))
            }
            _ => fs::create_dir_all(&self.folder).with_context(|| format!("cannot make {}", self.folder.display())),
        }
    }

    /// Certificates and kubeconfigs, as kubeadm makes them for every cluster.
    fn certificates(&self) -> anyhow::Result<()> {
        let configuration = self.folder.join("kubeadm.yaml");
        fs::write(&configuration, kubeadm(&kube::release()?, self.ports.api, &self.folder))
            .with_context(|| format!("cannot write {}", configuration.display()))?;
        for phase in [&["certs", "all"][..], &["kubeconfig", "all", "--kubeconfig-dir"]] {
            let mut kubeadm = Command::new(kube::program()?);
            kubeadm.args(["kubeadm", "init", "phase"]).args(phase);
            if phase.len() > 2 {
                kubeadm.arg(&self.folder);
            }
            run::text(kubeadm.arg("--config").arg(&configuration)).context("kubeadm makes no certificates")?;
        }
        // A certificate for each name; the address is the one of this machine for those that are used on it.
        for name in ["super-admin", "controller-manager", "scheduler"] {
            let path = self.folder.join(name).with_added_extension("conf");
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            fs::write(&path, text.replace(HOST_FROM_NODE, "127.0.0.1"))?;
        }
        Ok(())
    }

    /// Starts all of it with certificates of its own and nothing stored; `node`: the node's kernel.
    fn boot(&self, node: Option<&str>) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.clear()?;
        self.certificates()?;
        let mut running = Vec::new();
        self.start(node.is_some(), &mut running)?;
        // As kubeadm grants it: a kubelet asks whether the API server may have what it proxies.
        let role = ["--clusterrole=system:kubelet-api-admin", "--user=kube-apiserver-kubelet-client"];
        run::text(
            self.kubectl()?.args(["create", "clusterrolebinding", "kubeadm:apiserver-kubelet-client"]).args(role),
        )?;
        // The controllers make it: pods cannot be made before.
        let account = || self.ask(&["--namespace", "default", "get", "serviceaccount", "default"]);
        self.wait(&running, PATIENCE, "the controllers run", account)?;
        if let Some(kernel) = node {
            println!("the control plane is ready; the node boots");
            self.start_node(kernel, None, &mut running)?;
            self.wait_for_node(&running, NODE_PATIENCE, "")?;
            println!("the node is ready after {} s", begun.elapsed().as_secs());
        }
        Ok(())
    }

    /// Starts the servers.
    fn start(&self, with_node: bool, running: &mut Vec<Process>) -> anyhow::Result<()> {
        let mut api_server = self.api_server();
        api_server.extend(self.audit()?);
        if with_node {
            api_server.push(self.egress()?);
        }
        for (name, arguments) in [("etcd", self.etcd()), ("kube-apiserver", api_server)] {
            self.start_one(name, &arguments, running)?;
        }
        self.wait(running, PATIENCE, "the API server is ready", || self.ask(&["get", "--raw", "/readyz"]))?;
        for name in ["kube-controller-manager", "kube-scheduler"] {
            self.start_one(name, &self.client(name), running)?;
        }
        Ok(())
    }

    fn start_node(&self, kernel: &str, saved: Option<&Path>, running: &mut Vec<Process>) -> anyhow::Result<()> {
        self.add(Process::start(NODE, &self.folder, &mut node::command(&self.folder, kernel, saved)?)?, running)
    }

    /// Waits until the node is ready, and has renewed its lease: that is not `before`. etcd has an older word of both.
    fn wait_for_node(&self, running: &[Process], patience: Duration, before: &str) -> anyhow::Result<()> {
        self.wait(running, patience, "the node is ready", || {
            self.ask(&["wait", "--for=condition=Ready", "--timeout=5s", &format!("node/{NODE}")])?;
            ensure!(self.lease()? != before, "it has not renewed its lease");
            Ok(())
        })
    }

    /// When the node has renewed its lease.
    fn lease(&self) -> anyhow::Result<String> {
        self.ask(&["--namespace", "kube-node-lease", "get", "lease", NODE, "--output", "jsonpath={.spec.renewTime}"])
    }

    /// What kubectl prints.
    fn ask(&self, call: &[&str]) -> anyhow::Result<String> {
        run::text(self.kubectl()?.args(["--request-timeout", "5s"]).args(call))
    }

    fn start_one(&self, name: &str, arguments: &[String], running: &mut Vec<Process>) -> anyhow::Result<()> {
        let process = Process::start(name, &self.folder, Command::new(kube::program()?).arg(name).args(arguments))?;
        self.add(process, running)
    }

    /// Writes down that it runs.
    fn add(&self, process: Process, running: &mut Vec<Process>) -> anyhow::Result<()> {
        if let Some(guard) = &self.guard {
            guard.watch(&process)?;
        }
        running.push(process);
        processes::write(&self.list(), running)
    }

    /// Waits until this succeeds. An error where a process ends before, or it takes too long.
    fn wait<T>(
        &self,
        running: &[Process],
        patience: Duration,
        until: &str,
        attempt: impl Fn() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            let error = match attempt() {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            for process in running {
                process.ensure_runs()?;
            }
            ensure!(
                begun.elapsed() < patience,
                "after {} s it does not hold that {until}: {error:#}; logs are in {}",
                patience.as_secs(),
                self.folder.display()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn etcd(&self) -> Vec<String> {
        let [clients, peers] = self.ports.etcd.map(|port| format!("https://127.0.0.1:{port}"));
        let pki = |name: &str| self.pki(&format!("etcd/{name}")).display().to_string();
        flags(&[
            ("name", "here"),
            ("data-dir", &self.folder.join("etcd").display().to_string()),
            // What it holds is worth nothing after a power failure.
            ("unsafe-no-fsync", "true"),
            ("listen-client-urls", &clients),
            ("advertise-client-urls", &clients),
            ("listen-peer-urls", &peers),
            ("initial-advertise-peer-urls", &peers),
            ("initial-cluster", &format!("here={peers}")),
            ("client-cert-auth", "true"),
            ("cert-file", &pki("server.crt")),
            ("key-file", &pki("server.key")),
            ("trusted-ca-file", &pki("ca.crt")),
            ("peer-client-cert-auth", "true"),
            ("peer-cert-file", &pki("peer.crt")),
            ("peer-key-file", &pki("peer.key")),
            ("peer-trusted-ca-file", &pki("ca.crt")),
        ])
    }

    fn api_server(&self) -> Vec<String> {
        let pki = |name: &str| self.pki(name).display().to_string();
        flags(&[
            ("bind-address", "127.0.0.1"),
            ("secure-port", &self.ports.api.to_string()),
            ("advertise-address", HOST_FROM_NODE),
            // The service `kubernetes` has no endpoint: the loopback is none.
            ("endpoint-reconciler-type", "none"),
            ("service-cluster-ip-range", "10.96.0.0/16"),
            // As kubeadm has it; what may be privileged in which namespace is admission's.
            ("allow-privileged", "true"),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction"),
            ("etcd-servers", &format!("https://127.0.0.1:{}", self.ports.etcd[0])),
            ("etcd-cafile", &pki("etcd/ca.crt")),
            ("etcd-certfile", &pki("apiserver-etcd-client.crt")),
            ("etcd-keyfile", &pki("apiserver-etcd-client.key")),
            ("client-ca-file", &pki("ca.crt")),
            ("tls-cert-file", &pki("apiserver.crt")),
            ("tls-private-key-file", &pki("apiserver.key")),
            ("kubelet-client-certificate", &pki("apiserver-kubelet-client.crt")),
            ("kubelet-client-key", &pki("apiserver-kubelet-client.key")),
            // Its name means nothing on this machine.
            ("kubelet-preferred-address-types", "InternalIP"),
            ("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            ("service-account-key-file", &pki("sa.pub")),
            ("service-account-signing-key-file", &pki("sa.key")),
            ("requestheader-client-ca-file", &pki("front-proxy-ca.crt")),
            ("requestheader-allowed-names", "front-proxy-client"),
            ("requestheader-username-headers", "X-Remote-User"),
            ("requestheader-group-headers", "X-Remote-Group"),
            ("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
            ("proxy-client-cert-file", &pki("front-proxy-client.crt")),
            ("proxy-client-key-file", &pki("front-proxy-client.key")),
        ])
    }

    /// The flags that have the API server write down each request of an agent, for tests.
    fn audit(&self) -> anyhow::Result<[String; 2]> {
        let file = self.folder.join("audit.json");
        let policy = serde_json::json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "users": ["system:serviceaccount:plimsoll:plimsoll"]}],
        });
        fs::write(&file, policy.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
        let log = self.folder.join("audit.log");
        Ok([format!("--audit-policy-file={}", file.display()), format!("--audit-log-path={}", log.display())])
    }

    /// The flag that has the API server reach nodes by the tunnel of the only one.
    fn egress(&self) -> anyhow::Result<String> {
        let file = self.folder.join("egress.json");
        let uds = serde_json::json!({"udsName": node::socket(&self.folder)});
        let connection = serde_json::json!({"proxyProtocol": "HTTPConnect", "transport": {"uds": uds}});
        let selection = serde_json::json!({
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": connection}],
        });
        fs::write(&file, selection.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(format!("--egress-selector-config-file={}", file.display()))
    }

    /// The flags of kube-controller-manager or kube-scheduler.
    fn client(&self, name: &str) -> Vec<String> {
        let short = name.trim_start_matches("kube-");
        let kubeconfig = self.folder.join(short).with_added_extension("conf").display().to_string();
        let port = if short == "scheduler" { self.ports.scheduler } else { self.ports.controller_manager };
        let mut all = flags(&[
            ("bind-address", "127.0.0.1"),
            ("secure-port", &port.to_string()),
            ("kubeconfig", &kubeconfig),
            ("authentication-kubeconfig", &kubeconfig),
            ("authorization-kubeconfig", &kubeconfig),
            // There is one of each.
            ("leader-elect", "false"),
        ]);
        if short == "controller-manager" {
            let pki = |name: &str| self.pki(name).display().to_string();
            all.extend(flags(&[
                ("use-service-account-credentials", "true"),
                ("root-ca-file", &pki("ca.crt")),
                ("service-account-private-key-file", &pki("sa.key")),
            ]));
        }
        all
    }
}

fn flags(all: &[(&str, &str)]) -> Vec<String> {
    all.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

/// What kubeadm makes certificates and kubeconfigs for.
fn kubeadm(release: &str, port: u16, folder: &Path) -> String {
    // As YAML has it between quotation marks.
    let pki = serde_json::Value::from(folder.join("pki").display().to_string());
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\n\
         kind: InitConfiguration\n\
         localAPIEndpoint: {{advertiseAddress: {HOST_FROM_NODE}, bindPort: {port}}}\n\
         nodeRegistration: {{name: {NODE}, criSocket: \"unix:///run/containerd/containerd.sock\"}}\n\
         ---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\n\
         kind: ClusterConfiguration\n\
         kubernetesVersion: {release}\n\
         certificatesDir: {pki}\n\
         networking: {{serviceSubnet: 10.96.0.0/16}}\n\
         apiServer: {{certSANs: [localhost, 127.0.0.1, {HOST_FROM_NODE}]}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::{ControlPlane, Ports, kubeadm};

    #[test]
    fn every_server_listens_on_the_loopback_alone() {
        let plane = ControlPlane { folder: "/cluster".into(), ports: Ports::USUAL, guard: None };
        for flags in
            [plane.etcd(), plane.api_server(), plane.client("kube-scheduler"), plane.client("kube-controller-manager")]
        {
            let bound: Vec<&String> = flags
                .iter()
                .filter(|flag| flag.starts_with("--bind-address=") || flag.starts_with("--listen-"))
                .collect();
            assert!(!bound.is_empty() && bound.iter().all(|flag| flag.contains("127.0.0.1")), "{flags:?}");
        }
    }

    #[test]
    fn certificates_are_for_this_release_and_both_addresses() {
        let text = kubeadm("v1.36.3", 6444, "/a b/cluster".as_ref());
        assert!(text.contains("kubernetesVersion: v1.36.3\n") && text.contains("\"/a b/cluster/pki\""), "{text}");
        assert!(text.contains("bindPort: 6444}"), "{text}");
        assert!(text.contains("127.0.0.1, 10.0.2.2]"), "{text}");
    }
}
