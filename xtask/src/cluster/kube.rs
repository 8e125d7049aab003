//! Kubernetes itself: one program with every component; and the proxy that may stand before the agent's metrics.

use std::path::PathBuf;

use crate::go::Program;

/// Every component, by its first argument.
pub(crate) const KUBERNETES: Program = Program {
    project: "Kubernetes",
    module: "tests/cluster",
    sources: &["go.mod", "go.sum", "main.go"],
    requirement: "k8s.io/kubernetes ",
    package: ".",
    takes: "ten minutes",
    folder: "kubernetes",
    file: "kube",
};
/// What `agent/deploy/kustomize/metrics` has on each node, in the same version.
pub(crate) const RBAC_PROXY: Program = Program {
    project: "kube-rbac-proxy",
    module: "tests/cluster/rbac-proxy",
    sources: &["go.mod", "go.sum"],
    requirement: "github.com/brancz/kube-rbac-proxy ",
    package: "github.com/brancz/kube-rbac-proxy/cmd/kube-rbac-proxy",
    takes: "three minutes",
    folder: "kube-rbac-proxy",
    file: "kube-rbac-proxy",
};

/// The program; what it does is decided by its first argument.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    KUBERNETES.get()
}

/// The release that is built, such as `v1.36.3`.
pub(crate) fn release() -> anyhow::Result<String> {
    KUBERNETES.release()
}

#[cfg(test)]
mod tests {
    use super::RBAC_PROXY;
    use crate::run;

    #[test]
    fn the_proxy_that_is_tested_is_the_one_that_is_installed() {
        let manifest = run::root().join("agent/deploy/kustomize/metrics/daemonset.yaml");
        let manifest = std::fs::read_to_string(manifest).expect("it is there");
        let image = format!("kube-rbac-proxy:{}\n", RBAC_PROXY.release().expect("go.mod has it"));
        assert!(manifest.contains(&image), "{image}");
    }
}
