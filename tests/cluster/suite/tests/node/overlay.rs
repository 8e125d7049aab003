//! What is installed, as an owner would change it: a kustomization of its own over the shipped one.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::Cluster;

/// This machine's loopback as the node reaches it (QEMU's user network). There are no services on the node, so that the
/// address which a kubelet gives its pods leads nowhere, and the pods' own network does not leave the node.
const HOST_FROM_NODE: &str = "10.0.2.2";
/// A configuration whose threshold is far above the kubelet's own (101Mi), so that the kubelet never acts; the period is a
/// short one, so that the condition is seen to end, and long enough for another agent to begin in it.
pub(crate) const SENSITIVE: &str = "
evictionHard: {memory.available: 1200Mi}
evictionPressureTransitionPeriod: 45s
machine:
  logFormat: json
  cluster: {inCluster: true, taint: NoSchedule}
";
/// One with the threshold that the kubelet has for memory, which the agent reads there, as the shipped one.
pub(crate) const AS_THE_KUBELET: &str = "
evictionPressureTransitionPeriod: 45s
machine:
  logFormat: json
  cluster: {inCluster: true, taint: NoSchedule}
";

/// One with a threshold on each signal, so that each is read and none is met, and metrics where the API server reaches them: on
/// the node's address in QEMU's network, which nothing but this machine's loopback is on.
pub(crate) const ALL_SIGNALS: &str = "
evictionHard:
  memory.available: 101Mi
  nodefs.available: 1%
  nodefs.inodesFree: 1%
  imagefs.available: 1%
  imagefs.inodesFree: 1%
  pid.available: 1%
evictionPressureTransitionPeriod: 45s
machine:
  logFormat: json
  metricsAddress: 10.0.2.15:9464
  metricsForAll: true
  cluster: {inCluster: true, taint: NoSchedule}
";
/// The threshold of [`SENSITIVE`] and the soft one of [`SOFT`], in MiB.
pub(crate) const FAR_MIB: u64 = 1200;
/// One with the kubelet's threshold and a soft one far above it, whose grace is longer than any test.
pub(crate) const SOFT: &str = "
evictionHard: {memory.available: 101Mi}
evictionSoft: {memory.available: 1200Mi}
evictionSoftGracePeriod: {memory.available: 1h}
evictionPressureTransitionPeriod: 45s
machine:
  logFormat: json
  cluster: {inCluster: true, taint: NoSchedule}
";
/// What has the agent write standard conditions.
const STANDARD_CONDITIONS: &str = "standardConditions";

/// [`SENSITIVE`] with this value of `standardConditions`.
pub(crate) fn with_standard_conditions(value: &str) -> String {
    SENSITIVE.replace("inCluster: true", &format!("inCluster: true, {STANDARD_CONDITIONS}: {value}"))
}

/// A configuration with metrics where the API server reaches them, as in [`ALL_SIGNALS`], and more lines under `machine`.
pub(crate) fn with_metrics(configuration: &str, more: &str) -> String {
    configuration
        .replace("machine:\n", &format!("machine:\n  metricsAddress: 10.0.2.15:9464\n  metricsForAll: true\n{more}"))
}

/// The same in a dry run.
pub(crate) const DRY_RUN: &str = "
machine:
  shadow: true
  cluster: {inCluster: true, taint: NoSchedule}
";

/// Over `base`, with this configuration: the folder.
pub(crate) fn of_agents(cluster: &Cluster, configuration: &str) -> Result<PathBuf> {
    of_agents_over(cluster, "base", configuration)
}

/// Over this shipped kustomization of agents.
pub(crate) fn of_agents_over(cluster: &Cluster, shipped: &str, configuration: &str) -> Result<PathBuf> {
    let generator = "configMapGenerator:
  - {name: plimsoll, namespace: plimsoll, behavior: replace, files: [plimsoll.yaml]}
";
    // The policy of `base` refuses what this key asks for.
    let component = configuration.contains(STANDARD_CONDITIONS).then_some("standard-conditions");
    let folder = write(cluster, shipped, ["apps/v1", "DaemonSet", "plimsoll", "plimsoll"], generator, component, "")?;
    fs::write(folder.join("plimsoll.yaml"), configuration)?;
    Ok(folder)
}

/// Over what removes what is left of it: the folder.
pub(crate) fn of_uninstall(cluster: &Cluster) -> Result<PathBuf> {
    of_uninstall_with(cluster, "")
}

/// The same of nodes alone whose agent is gone, as cluster.md says.
pub(crate) fn of_uninstall_where_stale(cluster: &Cluster) -> Result<PathBuf> {
    let patch = "  - target: {kind: Job, name: plimsoll-uninstall}
    patch: |
      - {op: replace, path: /spec/template/spec/containers/0/args, value: [cluster-cleanup, --stale]}
";
    of_uninstall_with(cluster, patch)
}

fn of_uninstall_with(cluster: &Cluster, patches: &str) -> Result<PathBuf> {
    write(cluster, "uninstall", ["batch/v1", "Job", "plimsoll-uninstall", "uninstall"], "", None, patches)
}

/// Writes a kustomization over a shipped one that has one object with this version, kind, name and container reach the API
/// server where it is; `more`, a shipped component and more `patches` are added to it.
fn write(
    cluster: &Cluster,
    shipped: &str,
    object: [&str; 4],
    more: &str,
    component: Option<&str>,
    patches: &str,
) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(shipped);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let place = |name: &str| -> Result<String> {
        let place = relative(&folder.canonicalize()?, &Cluster::manifests(name).canonicalize()?);
        Ok(place.display().to_string())
    };
    let (shipped, component) = (place(shipped)?, component.map(place).transpose()?);
    let components = component.map_or_else(String::new, |it| format!("components: [{it}]\n"));
    let [version, kind, name, container] = object;
    let text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{shipped}]
{components}{more}patches:
  - patch: |
      apiVersion: {version}
      kind: {kind}
      metadata: {{name: {name}, namespace: plimsoll}}
      spec:
        template:
          spec:
            hostNetwork: true
            containers:
              - name: {container}
                env:
                  - {{name: KUBERNETES_SERVICE_HOST, value: {HOST_FROM_NODE}}}
                  - {{name: KUBERNETES_SERVICE_PORT, value: \"{}\"}}
{patches}",
        cluster.port()?
    );
    fs::write(folder.join("kustomization.yaml"), text)?;
    Ok(folder)
}

/// From a directory to another one; kustomize takes no absolute path.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let shared = from.components().zip(to.components()).take_while(|(one, other)| one == other).count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(to.components().skip(shared)).collect()
}
