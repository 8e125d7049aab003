//! A node of a cluster: containerd and a real kubelet, which reaches the API server of the host's loopback.
//!
//! `cargo xtask cluster up` brings what it needs: the program on a disk of its own, and from kubeadm its kubeconfig and
//! the certificate authority. It may save the machine as soon as the kubelet is ready, and restore it later beside another
//! build of this checkout: what is here then is what was saved. So all that can differ from build to build comes afterwards,
//! over the network, and is [`crate::node_console`].

use crate::agent::PROGRAM as AGENT;
use crate::containerd::{self, Driver};
use crate::systemd::{run, systemctl};
use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, Timespec, clock_settime};
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// The disk that holds the program, where that is mounted, and its name there.
const DISK: &str = "/dev/vdb";
const PLACE: &str = "/opt/kubernetes";
const PROGRAM: &str = "/opt/kubernetes/kube";
/// Where kubeadm puts what a kubelet needs, and the kubelet's own configuration.
const FOLDER: &str = "/etc/kubernetes";
const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
const CONFIGURATION: &str = "/etc/kubernetes/kubelet.yaml";
/// Where it looks for static pods, of which the node has none at first.
const MANIFESTS: &str = "/etc/kubernetes/manifests";
pub(crate) const UNIT: &str = "kubelet.service";
/// The machine's card, and its address in QEMU's network.
const CARD: &str = "eth0";
const ADDRESS: &str = "10.0.2.15";
/// Plugins of the container network are found here, by the package containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";
const NETWORK: &str = "/etc/cni/net.d/10-node.conflist";
/// The seconds of the machine's own clock, which goes on with the host's while the machine does not run.
const CLOCK: &str = "/sys/class/rtc/rtc0/since_epoch";
/// Where it waits for the programs that it goes on with (`xtask/src/tunnel.rs`).
const PROGRAMS: u16 = 10251;

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

/// Starts all of a node that is the same with every build, and becomes the program that it is given then.
pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    ensure!(containerd::is_here(), "no containerd: this is for a machine with systemd and the package containerd");
    network().context("no network")?;
    configure_network()?;
    containerd::launch(Driver::Systemd, None)?;
    // Before the node can be ready, and be saved.
    let listener = TcpListener::bind((ADDRESS, PROGRAMS)).context("cannot listen for programs")?;
    start(arguments)?;
    println!("the kubelet was started; this machine waits for the programs that it goes on with");
    let guest = std::env::current_exe().context("cannot find this program")?;
    loop {
        let (mut connection, _) = listener.accept().context("cannot wait for programs")?;
        // At once: the kubelet of a machine that is restored continues already.
        set_time()?;
        let received = receive(&mut connection, Path::new(AGENT)).and_then(|()| receive(&mut connection, &guest));
        let Err(error) = received else {
            let error = Command::new(guest).arg("node-console").stdin(OwnedFd::from(connection)).exec();
            return Err(error).context("cannot start the program that came");
        };
        // A connection can end before the machine has all of it, and be made anew.
        println!("a connection brought no programs: {error:#}");
    }
}

/// Puts a program in its place: its length, little-endian, and its content. The old one may run.
fn receive(connection: &mut TcpStream, place: &Path) -> Result<()> {
    let mut length = [0; 8];
    connection.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let unfinished = place.with_added_extension("new");
    let mut file = File::create(&unfinished).with_context(|| format!("cannot write {}", unfinished.display()))?;
    let copied = io::copy(&mut connection.take(length), &mut file)?;
    ensure!(copied == length, "{copied} of {length} bytes of {}", place.display());
    file.set_permissions(Permissions::from_mode(0o755))?;
    fs::rename(&unfinished, place).with_context(|| format!("cannot write {}", place.display()))
}

/// Sets the kernel's clock, which stands still in a machine that is saved.
fn set_time() -> Result<()> {
    let text = fs::read_to_string(CLOCK).with_context(|| format!("cannot read {CLOCK}"))?;
    let tv_sec = text.trim().parse().with_context(|| format!("{CLOCK} has {text:?}"))?;
    // As the kernel does when it boots: the middle of a second that has begun.
    clock_settime(ClockId::Realtime, Timespec { tv_sec, tv_nsec: 500_000_000 }).context("cannot set the clock")
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
    fs::create_dir_all(MANIFESTS).with_context(|| format!("cannot make {MANIFESTS}"))?;
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
         staticPodPath: {MANIFESTS}\n\
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
