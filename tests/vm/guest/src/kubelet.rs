//! A node of a cluster: containerd and a real kubelet, which reaches the API server of the host's loopback.
//!
//! `cargo xtask cluster up` brings what it needs: the program on a disk of its own, and from kubeadm its kubeconfig and
//! the certificate authority.

use crate::containerd::{self, Driver};
use crate::node_watch;
use crate::pod_logs::PodLogs;
use crate::systemd::{run, systemctl};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The disk that holds the program, where that is mounted, and its name there.
const DISK: &str = "/dev/vdb";
const PLACE: &str = "/opt/kubernetes";
const PROGRAM: &str = "/opt/kubernetes/kube";
/// Where kubeadm puts what a kubelet needs, and the kubelet's own configuration.
const FOLDER: &str = "/etc/kubernetes";
const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
const CONFIGURATION: &str = "/etc/kubernetes/kubelet.yaml";
const UNIT: &str = "kubelet.service";
/// The machine's card, and its address in QEMU's network.
const CARD: &str = "eth0";
const ADDRESS: &str = "10.0.2.15";
/// Plugins of the container network are found here, by the package containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// The namespace of the agents.
const AGENTS: &str = "plimsoll";
const NETWORK: &str = "/etc/cni/net.d/10-node.conflist";
/// A test makes this file to have the kubelet restarted as soon as the agent has begun to kill, and what its log has of that.
const RESTART: &str = "/run/restart-the-kubelet-with-the-next-kill";
const KILL: &str = "\"kill\":\"begun\"";

/// What becomes of the node.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Its name, as its certificate has it.
    #[arg(long)]
    name: String,
    /// evictionHard of the kubelet for memory.available. It is not what a kubelet has by default, so that it is seen whether
    /// an agent goes by it.
    #[arg(long, default_value = "101Mi")]
    memory_available: String,
}

/// Starts all of a node, and stays until the machine is ended, with the agent's log, and what becomes of memory, on the console.
pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    ensure!(containerd::is_here(), "no containerd: this is for a machine with systemd and the package containerd");
    network().context("no network")?;
    configure_network()?;
    let client = containerd::start(Driver::Systemd)?;
    // No registry has it.
    containerd::import_agent(&client)?;
    node_watch::start()?;
    start(arguments)?;
    println!("the kubelet was started; this machine runs until it is ended");
    let mut logs = PodLogs::of(AGENTS);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let has_killed = logs.print_new(KILL);
        if has_killed && fs::remove_file(RESTART).is_ok() {
            systemctl(&["restart", UNIT])?;
            println!("NODE kubelet restarted");
        }
    }
}

/// Gives the card its address. Names are not resolved: the API server is reached by its address.
fn network() -> Result<()> {
    for words in [
        &["ip", "link", "set", "lo", "up"][..],
        &["ip", "address", "add", &format!("{ADDRESS}/24"), "dev", CARD],
        &["ip", "link", "set", CARD, "up"],
        &["ip", "route", "add", "default", "via", "10.0.2.2"],
    ] {
        run(Command::new("/bin/busybox").args(words))?;
    }
    Ok(())
}

/// A bridge for the pods of this node. Without a network of its own the runtime reports that it is not ready.
fn configure_network() -> Result<()> {
    for module in ["bridge", "veth", "br_netfilter"] {
        // Part of some kernels.
        let _ = run(Command::new("modprobe").arg(module));
    }
    put("/proc/sys/net/ipv4/ip_forward", "1")?;
    put(
        NETWORK,
        r#"{"cniVersion": "1.0.0", "name": "node", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
"#,
    )?;
    // Where containerd looks unless it is configured.
    let usual = Path::new("/opt/cni");
    fs::create_dir_all(usual).with_context(|| format!("cannot make {}", usual.display()))?;
    let link = usual.join("bin");
    if !link.exists() {
        std::os::unix::fs::symlink(PLUGINS, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    ensure!(link.join("bridge").exists(), "no {PLUGINS}/bridge: the package containernetworking-plugins is missing");
    Ok(())
}

fn start(arguments: &Arguments) -> Result<()> {
    for needed in [KUBECONFIG, &format!("{FOLDER}/pki/ca.crt")] {
        ensure!(Path::new(needed).exists(), "{needed} is missing: `cargo xtask cluster up` brings it");
    }
    fs::create_dir_all(PLACE).with_context(|| format!("cannot make {PLACE}"))?;
    run(Command::new("mount").args(["-o", "ro", DISK, PLACE]))?;
    put(CONFIGURATION, &configuration(&arguments.memory_available))?;
    let unit = format!(
        "[Unit]\nDescription=kubelet\nAfter=containerd.service\n\n[Service]\n\
         ExecStart={PROGRAM} kubelet --config={CONFIGURATION} --kubeconfig={KUBECONFIG} --hostname-override={} \
         --node-ip={ADDRESS}\nRestart=always\nRestartSec=2\nOOMScoreAdjust=-999\n",
        arguments.name
    );
    put(&format!("/run/systemd/system/{UNIT}"), &unit)?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["start", UNIT]).map(drop)
}

/// All that is not named is as the kubelet has it.
fn configuration(memory_available: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\n\
         kind: KubeletConfiguration\n\
         authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, \
         x509: {{clientCAFile: {FOLDER}/pki/ca.crt}}}}\n\
         authorization: {{mode: Webhook}}\n\
         cgroupDriver: systemd\n\
         containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n\
         evictionHard: {{memory.available: {memory_available:?}, nodefs.available: \"1%\", nodefs.inodesFree: \"1%\", \
         imagefs.available: \"1%\"}}\n"
    )
}

fn put(path: &str, text: &str) -> Result<()> {
    if let Some(folder) = Path::new(path).parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {path}"))
}
