//! The keys and flags of a kubelet (1.36), and what uses each in Plimsoll.

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Texts by name. On a command line `name<text` or `name=text`, by this separator.
    Map(char),
    /// Yes or no by name.
    Switches,
    /// A whole number.
    Number,
    /// A duration such as `1m30s`.
    Duration,
    /// Yes or no.
    Bool,
    /// Several texts.
    List,
    /// One text.
    Text,
    /// A structure of its own, which is kept as it is written.
    Any,
}

/// What uses a value in Plimsoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Decisions of all commands.
    Used,
    /// `replay` and `explain`; not `run`.
    Offline,
    /// No decision. It is shown, checked against others, and kept when one form is converted into another.
    Shown,
}

/// A setting of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name in KubeletConfiguration, with parents; where only a flag can set it, the flag's name.
    pub name: &'static str,
    /// Its flag, without dashes.
    pub flag: Option<&'static str>,
    /// How it is written.
    pub shape: Shape,
    /// What uses it.
    pub role: Role,
    /// The kubelet's default, as far as it matters here. A zero duration or number in a file counts as not set.
    pub default: Option<&'static str>,
    /// Why it should no longer be used.
    pub deprecated: Option<&'static str>,
    /// Whether a file can set it.
    pub in_file: bool,
}

impl Key {
    /// The key of this name in a file.
    pub fn named(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.in_file && key.name == name)
    }

    /// Whether Plimsoll's own file may have it: that has what decisions use.
    pub fn is_own(&self) -> bool {
        self.role != Role::Shown
    }

    /// The key of this flag. The kubelet accepts an underscore for a dash.
    pub fn of_flag(flag: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.flag == Some(flag))
    }

    const fn and(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn deprecated(self, reason: &'static str) -> Self {
        Self { deprecated: Some(reason), ..self }
    }
}

const fn key(name: &'static str, flag: &'static str, shape: Shape, role: Role) -> Key {
    let flag = if flag.is_empty() { None } else { Some(flag) };
    Key { name, flag, shape, role, default: None, deprecated: None, in_file: true }
}

/// A flag without a key in the file.
const fn flag(name: &'static str, shape: Shape) -> Key {
    Key { in_file: false, ..key(name, name, shape, Role::Shown) }
}

/// A flag for a part of a structure.
const fn part(name: &'static str, flag: &'static str, shape: Shape) -> Key {
    Key { in_file: false, ..key(name, flag, shape, Role::Shown) }
}

const DEAD_CONTAINERS: &str = "it lost its purpose once logs are kept outside of a container's context; thresholds in \
                               evictionHard or evictionSoft do its work";

const CADVISOR: &str = "it is one of cAdvisor's, which the kubelet took by mistake and is to lose";

use Role::{Shown, Used};
use Shape::{Any, Bool, Duration, List, Map, Number, Switches, Text};

/// An old flag, by which hard thresholds take nothing off what pods have together, and none follows for that.
pub(crate) const IGNORE_EVICTION: &str = "experimental-allocatable-ignore-eviction";

/// All of them. The first twelve are those that decisions use and that Plimsoll's own file may have.
pub const KEYS: &[Key] = &[
    key("evictionHard", "eviction-hard", Map('<'), Used),
    key("evictionSoft", "eviction-soft", Map('<'), Used),
    key("evictionSoftGracePeriod", "eviction-soft-grace-period", Map('='), Used),
    key("evictionMinimumReclaim", "eviction-minimum-reclaim", Map('='), Used),
    key("evictionPressureTransitionPeriod", "eviction-pressure-transition-period", Duration, Used).and("5m"),
    key("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Number, Used).and("0"),
    key("mergeDefaultEvictionSettings", "", Bool, Used).and("false"),
    key("enforceNodeAllocatable", "enforce-node-allocatable", List, Used).and("pods"),
    key("kubeReserved", "kube-reserved", Map('='), Used),
    key("systemReserved", "system-reserved", Map('='), Used),
    key("imageMinimumGCAge", "minimum-image-ttl-duration", Duration, Used).and("2m"),
    key("localStorageCapacityIsolation", "local-storage-capacity-isolation", Bool, Used).and("true"),
    // Checked against others.
    key("failSwapOn", "fail-swap-on", Bool, Shown).and("true"),
    key("kernelMemcgNotification", "kernel-memcg-notification", Bool, Shown).and("false"),
    key("memorySwap", "", Any, Shown),
    key("staticPodPath", "pod-manifest-path", Text, Shown),
    flag(IGNORE_EVICTION, Bool).deprecated("the kubelet is to lose it; reservations are the place to leave room"),
    // Shown because users expect it.
    key("imageGCHighThresholdPercent", "image-gc-high-threshold", Number, Shown).and("85"),
    key("imageGCLowThresholdPercent", "image-gc-low-threshold", Number, Shown).and("80"),
    key("imageMaximumGCAge", "", Duration, Shown),
    key("nodeStatusUpdateFrequency", "node-status-update-frequency", Duration, Shown).and("10s"),
    key("shutdownGracePeriod", "", Duration, Shown),
    key("shutdownGracePeriodCriticalPods", "", Duration, Shown),
    key("shutdownGracePeriodByPodPriority", "", Any, Shown),
    flag("minimum-container-ttl-duration", Duration).deprecated(DEAD_CONTAINERS),
    flag("maximum-dead-containers", Number).deprecated(DEAD_CONTAINERS),
    flag("maximum-dead-containers-per-container", Number).deprecated(DEAD_CONTAINERS),
    // The rest, by name, so that unknown ones can be reported.
    key("address", "address", Text, Shown),
    key("allowedUnsafeSysctls", "allowed-unsafe-sysctls", List, Shown),
    key("authentication", "", Any, Shown),
    part("authentication.anonymous.enabled", "anonymous-auth", Bool),
    part("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", Duration),
    part("authentication.webhook.enabled", "authentication-token-webhook", Bool),
    part("authentication.x509.clientCAFile", "client-ca-file", Text),
    key("authorization", "", Any, Shown),
    part("authorization.mode", "authorization-mode", Text),
    part("authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl", Duration),
    part("authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl", Duration),
    key("cgroupDriver", "cgroup-driver", Text, Shown),
    key("cgroupRoot", "cgroup-root", Text, Shown),
    key("cgroupsPerQOS", "cgroups-per-qos", Bool, Shown),
    key("clusterDNS", "cluster-dns", List, Shown),
    key("clusterDomain", "cluster-domain", Text, Shown),
    key("configMapAndSecretChangeDetectionStrategy", "", Text, Shown),
    key("containerLogMaxFiles", "container-log-max-files", Number, Shown),
    key("containerLogMaxSize", "container-log-max-size", Text, Shown),
    key("containerLogMaxWorkers", "", Number, Shown),
    key("containerLogMonitorInterval", "", Duration, Shown),
    key("containerRuntimeEndpoint", "container-runtime-endpoint", Text, Shown),
    key("contentType", "kube-api-content-type", Text, Shown),
    key("cpuCFSQuota", "cpu-cfs-quota", Bool, Shown),
    key("cpuCFSQuotaPeriod", "cpu-cfs-quota-period", Duration, Shown),
    key("cpuManagerPolicy", "cpu-manager-policy", Text, Shown),
    key("cpuManagerPolicyOptions", "cpu-manager-policy-options", Map('='), Shown),
    key("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", Duration, Shown),
    key("crashLoopBackOff", "", Any, Shown),
    key("enableContentionProfiling", "contention-profiling", Bool, Shown),
    key("enableControllerAttachDetach", "enable-controller-attach-detach", Bool, Shown),
    key("enableDebugFlagsHandler", "", Bool, Shown),
    key("enableDebuggingHandlers", "enable-debugging-handlers", Bool, Shown),
    key("enableProfilingHandler", "", Bool, Shown),
    key("enableServer", "enable-server", Bool, Shown),
    key("enableSystemLogHandler", "", Bool, Shown),
    key("enableSystemLogQuery", "", Bool, Shown),
    key("eventBurst", "event-burst", Number, Shown),
    key("eventRecordQPS", "event-qps", Number, Shown),
    key("failCgroupV1", "fail-cgroupv1", Bool, Shown),
    key("featureGates", "feature-gates", Switches, Shown),
    key("fileCheckFrequency", "file-check-frequency", Duration, Shown),
    key("hairpinMode", "hairpin-mode", Text, Shown),
    key("healthzBindAddress", "healthz-bind-address", Text, Shown),
    key("healthzPort", "healthz-port", Number, Shown),
    key("httpCheckFrequency", "http-check-frequency", Duration, Shown),
    key("imagePullCredentialsVerificationPolicy", "", Text, Shown),
    key("imageServiceEndpoint", "image-service-endpoint", Text, Shown),
    key("iptablesDropBit", "", Number, Shown),
    key("iptablesMasqueradeBit", "", Number, Shown),
    key("kubeAPIBurst", "kube-api-burst", Number, Shown),
    key("kubeAPIQPS", "kube-api-qps", Number, Shown),
    key("kubeReservedCgroup", "kube-reserved-cgroup", Text, Shown),
    key("kubeletCgroups", "kubelet-cgroups", Text, Shown),
    key("logging", "", Any, Shown),
    part("logging.format", "logging-format", Text),
    part("logging.verbosity", "v", Number),
    part("logging.vmodule", "vmodule", Text),
    part("logging.flushFrequency", "log-flush-frequency", Duration),
    part("logging.options.json.infoBufferSize", "log-json-info-buffer-size", Text),
    part("logging.options.json.splitStream", "log-json-split-stream", Bool),
    part("logging.options.text.infoBufferSize", "log-text-info-buffer-size", Text),
    part("logging.options.text.splitStream", "log-text-split-stream", Bool),
    key("makeIPTablesUtilChains", "make-iptables-util-chains", Bool, Shown),
    key("maxOpenFiles", "max-open-files", Number, Shown),
    key("maxParallelImagePulls", "", Number, Shown),
    key("maxPods", "max-pods", Number, Shown),
    key("memoryManagerPolicy", "memory-manager-policy", Text, Shown),
    key("memoryReservationPolicy", "", Text, Shown),
    key("memoryThrottlingFactor", "", Any, Shown),
    key("nodeLeaseDurationSeconds", "", Number, Shown),
    key("nodeStatusMaxImages", "node-status-max-images", Number, Shown),
    key("nodeStatusReportFrequency", "", Duration, Shown),
    key("oomScoreAdj", "oom-score-adj", Number, Shown),
    key("podCIDR", "pod-cidr", Text, Shown),
    key("podLogsDir", "", Text, Shown),
    key("podPidsLimit", "pod-max-pids", Number, Shown),
    key("podsPerCore", "pods-per-core", Number, Shown),
    key("port", "port", Number, Shown),
    key("preloadedImagesVerificationAllowlist", "", List, Shown),
    key("protectKernelDefaults", "protect-kernel-defaults", Bool, Shown),
    key("providerID", "provider-id", Text, Shown),
    key("qosReserved", "qos-reserved", Map('='), Shown),
    key("readOnlyPort", "read-only-port", Number, Shown),
    key("registerNode", "register-node", Bool, Shown),
    key("registerWithTaints", "", Any, Shown),
    flag("register-with-taints", List),
    key("registryBurst", "registry-burst", Number, Shown),
    key("registryPullQPS", "registry-qps", Number, Shown),
    key("reservedMemory", "", Any, Shown),
    flag("reserved-memory", List),
    key("reservedSystemCPUs", "reserved-cpus", Text, Shown),
    key("resolvConf", "resolv-conf", Text, Shown),
    key("rotateCertificates", "rotate-certificates", Bool, Shown),
    key("runOnce", "runonce", Bool, Shown),
    key("runtimeRequestTimeout", "runtime-request-timeout", Duration, Shown),
    key("seccompDefault", "seccomp-default", Bool, Shown),
    key("serializeImagePulls", "serialize-image-pulls", Bool, Shown),
    key("serverTLSBootstrap", "rotate-server-certificates", Bool, Shown),
    key("showHiddenMetricsForVersion", "", Text, Shown),
    key("singleProcessOOMKill", "", Bool, Shown),
    key("staticPodURL", "manifest-url", Text, Shown),
    key("staticPodURLHeader", "", Any, Shown),
    flag("manifest-url-header", List),
    key("streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", Duration, Shown),
    key("syncFrequency", "sync-frequency", Duration, Shown),
    key("systemCgroups", "system-cgroups", Text, Shown),
    key("systemReservedCgroup", "system-reserved-cgroup", Text, Shown),
    key("tlsCertFile", "tls-cert-file", Text, Shown),
    key("tlsCipherSuites", "tls-cipher-suites", List, Shown),
    key("tlsCurvePreferences", "", Any, Shown),
    key("tlsMinVersion", "tls-min-version", Text, Shown),
    key("tlsPrivateKeyFile", "tls-private-key-file", Text, Shown),
    key("topologyManagerPolicy", "topology-manager-policy", Text, Shown),
    key("topologyManagerPolicyOptions", "topology-manager-policy-options", Map('='), Shown),
    key("topologyManagerScope", "topology-manager-scope", Text, Shown),
    key("tracing", "", Any, Shown),
    key("userNamespaces", "", Any, Shown),
    key("volumePluginDir", "volume-plugin-dir", Text, Shown),
    key("volumeStatsAggPeriod", "volume-stats-agg-period", Duration, Shown),
    flag("bootstrap-kubeconfig", Text),
    flag("cert-dir", Text),
    flag("cloud-provider", Text),
    flag("config", Text),
    flag("config-dir", Text),
    flag("exit-on-lock-contention", Bool),
    flag("experimental-mounter-path", Text).deprecated("the kubelet is to lose it in favour of CSI"),
    flag("help", Bool),
    flag("hostname-override", Text),
    flag("housekeeping-interval", Duration),
    flag("image-credential-provider-bin-dir", Text),
    flag("image-credential-provider-config", Text),
    flag("kubeconfig", Text),
    flag("lock-file", Text),
    flag("node-ip", Text),
    flag("node-labels", List),
    flag("root-dir", Text),
    flag("runtime-cgroups", Text),
    flag("version", Bool),
    // Of the library that measures containers.
    flag("application-metrics-count-limit", Number).deprecated(CADVISOR),
    flag("boot-id-file", Text).deprecated(CADVISOR),
    flag("container-hints", Text).deprecated(CADVISOR),
    flag("containerd", Text).deprecated(CADVISOR),
    flag("containerd-namespace", Text).deprecated(CADVISOR),
    flag("enable-load-reader", Bool).deprecated(CADVISOR),
    flag("event-storage-age-limit", Text).deprecated(CADVISOR),
    flag("event-storage-event-limit", Text).deprecated(CADVISOR),
    flag("global-housekeeping-interval", Duration).deprecated(CADVISOR),
    flag("log-cadvisor-usage", Bool).deprecated(CADVISOR),
    flag("machine-id-file", Text).deprecated(CADVISOR),
    flag("storage-driver-buffer-duration", Duration).deprecated(CADVISOR),
    flag("storage-driver-db", Text).deprecated(CADVISOR),
    flag("storage-driver-host", Text).deprecated(CADVISOR),
    flag("storage-driver-password", Text).deprecated(CADVISOR),
    flag("storage-driver-secure", Bool).deprecated(CADVISOR),
    flag("storage-driver-table", Text).deprecated(CADVISOR),
    flag("storage-driver-user", Text).deprecated(CADVISOR),
];

/// The kubelet's default for `evictionHard`.
pub const DEFAULT_EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every flag of a kubelet of 1.36.3 on Linux: those of cmd/kubelet/app/options, of its cAdvisor, of its logging, and
    /// `help` and `version`.
    const FLAGS: &str = "address allowed-unsafe-sysctls anonymous-auth application-metrics-count-limit \
        authentication-token-webhook authentication-token-webhook-cache-ttl authorization-mode \
        authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl boot-id-file \
        bootstrap-kubeconfig cert-dir cgroup-driver cgroup-root cgroups-per-qos client-ca-file cloud-provider \
        cluster-dns cluster-domain config config-dir container-hints container-log-max-files \
        container-log-max-size container-runtime-endpoint containerd containerd-namespace contention-profiling \
        cpu-cfs-quota cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options \
        cpu-manager-reconcile-period enable-controller-attach-detach enable-debugging-handlers \
        enable-load-reader enable-server enforce-node-allocatable event-burst event-qps event-storage-age-limit \
        event-storage-event-limit eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim \
        eviction-pressure-transition-period eviction-soft eviction-soft-grace-period exit-on-lock-contention \
        experimental-allocatable-ignore-eviction experimental-mounter-path fail-cgroupv1 fail-swap-on \
        feature-gates file-check-frequency global-housekeeping-interval hairpin-mode healthz-bind-address \
        healthz-port help hostname-override housekeeping-interval http-check-frequency \
        image-credential-provider-bin-dir image-credential-provider-config image-gc-high-threshold \
        image-gc-low-threshold image-service-endpoint kernel-memcg-notification kube-api-burst \
        kube-api-content-type kube-api-qps kube-reserved kube-reserved-cgroup kubeconfig kubelet-cgroups \
        local-storage-capacity-isolation lock-file log-cadvisor-usage log-flush-frequency \
        log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream \
        logging-format machine-id-file make-iptables-util-chains manifest-url manifest-url-header max-open-files \
        max-pods maximum-dead-containers maximum-dead-containers-per-container memory-manager-policy \
        minimum-container-ttl-duration minimum-image-ttl-duration node-ip node-labels node-status-max-images \
        node-status-update-frequency oom-score-adj pod-cidr pod-manifest-path pod-max-pids pods-per-core port \
        protect-kernel-defaults provider-id qos-reserved read-only-port register-node register-with-taints \
        registry-burst registry-qps reserved-cpus reserved-memory resolv-conf root-dir rotate-certificates \
        rotate-server-certificates runonce runtime-cgroups runtime-request-timeout seccomp-default \
        serialize-image-pulls storage-driver-buffer-duration storage-driver-db storage-driver-host \
        storage-driver-password storage-driver-secure storage-driver-table storage-driver-user \
        streaming-connection-idle-timeout sync-frequency system-cgroups system-reserved system-reserved-cgroup \
        tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file topology-manager-policy \
        topology-manager-policy-options topology-manager-scope v version vmodule volume-plugin-dir \
        volume-stats-agg-period";

    #[test]
    fn every_flag_of_the_kubelets_is_known_and_no_other() {
        let mut known: Vec<&str> = KEYS.iter().filter_map(|key| key.flag).collect();
        known.sort_unstable();
        assert_eq!(known, FLAGS.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn names_and_flags_are_unique() {
        let mut names = BTreeSet::new();
        let mut flags = BTreeSet::new();
        for key in KEYS {
            assert!(names.insert(key.name), "{}", key.name);
            assert!(key.flag.is_none_or(|flag| flags.insert(flag)), "{:?}", key.flag);
            assert!(key.in_file || key.flag.is_some(), "{} can be set nowhere", key.name);
            assert!(key.in_file || key.role == Role::Shown, "{} could not be converted", key.name);
        }
        assert!(KEYS[..12].iter().all(|key| key.role == Role::Used));
        assert!(KEYS.iter().enumerate().all(|(at, key)| key.is_own() == (at < 12)));
    }
}
