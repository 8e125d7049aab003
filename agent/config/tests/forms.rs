//! Every form of a kubelet's configuration: what it becomes, and the messages for it.

use core::time::Duration;
use plimsoll_config::{Overrides, Report, Sources, Text, Texts, examine, examine_texts};
use plimsoll_policy::kubelet::{Signal, Threshold, ThresholdAmount};
use plimsoll_units::{Bytes, Quantity};
use proptest::prelude::*;
use std::path::Path;

/// Kubernetes' own head of a file.
const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn text(file: &str, text: &str) -> Text {
    Text { file: file.to_owned(), text: text.to_owned() }
}

fn report(texts: &Texts) -> Report {
    examine_texts(texts, &Overrides::default())
}

fn kubelet_file(body: &str) -> Texts {
    Texts { kubelet_config: Some(text("kubelet.yaml", &format!("{HEAD}{body}"))), ..Texts::default() }
}

fn drop_ins(body: &str, patches: &[&str]) -> Texts {
    let patches = (1..).zip(patches).map(|(number, body)| text(&format!("{number}.conf"), &format!("{HEAD}{body}")));
    Texts { drop_ins: Some(patches.collect()), ..kubelet_file(body) }
}

fn command_line(line: &str) -> Texts {
    Texts { kubelet_command_line: vec![text("cmdline", line)], ..Texts::default() }
}

fn node_config(body: &str) -> Texts {
    let body = format!("apiVersion: v1\nkind: NodeConfig\nkubeletArguments:\n{body}");
    Texts { node_config: Some(text("node-config.yaml", &body)), ..Texts::default() }
}

fn configz(body: &str) -> Texts {
    Texts { configz: Some(text("configz.json", body)), ..Texts::default() }
}

fn own(body: &str) -> Texts {
    Texts { own: Some(text("plimsoll.yaml", body)), ..Texts::default() }
}

/// The hard thresholds and where they came from, as `memory.available<100Mi default`.
fn hard(report: &Report) -> Vec<String> {
    let settings = &report.configuration.kubelet.settings;
    settings.map("evictionHard").map(|(signal, entry)| format!("{signal}<{} {}", entry.text, entry.origin)).collect()
}

fn lines(problems: &[plimsoll_config::Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

const DEFAULTS: [&str; 5] = [
    "imagefs.available<15% default",
    "imagefs.inodesFree<5% default",
    "memory.available<100Mi default",
    "nodefs.available<10% default",
    "nodefs.inodesFree<5% default",
];

#[test]
fn defaults_are_those_of_the_kubelet_in_each_form() {
    let one = |origin: &str| vec![format!("memory.available<1Gi {origin}")];
    let merged = |origin: &str| {
        let mut lines: Vec<String> = DEFAULTS.map(str::to_owned).to_vec();
        lines[2] = format!("memory.available<1Gi {origin}");
        lines
    };
    let defaults = || DEFAULTS.map(str::to_owned).to_vec();
    let line = "evictionHard: {memory.available: 1Gi}\n";
    let json = format!(
        "{{\n\t\"apiVersion\": \"kubelet.config.k8s.io/v1beta1\",\n\t\"kind\": \"KubeletConfiguration\",\n{}}}",
        "\t\"evictionHard\": {\"memory.available\": \"1Gi\"}\n"
    );
    for (name, texts, expected) in [
        ("nothing", Texts::default(), defaults()),
        ("own: nothing", own(""), defaults()),
        ("own: one", own(line), one("plimsoll.yaml:1")),
        ("own: merged", own(&format!("{line}mergeDefaultEvictionSettings: true")), merged("plimsoll.yaml:1")),
        ("own: none", own("evictionHard: {}"), vec![]),
        ("own: null is nothing said", own("evictionHard:\n"), defaults()),
        ("file: nothing", kubelet_file(""), defaults()),
        ("file: one", kubelet_file(line), one("kubelet.yaml:3")),
        ("file: merged", kubelet_file(&format!("{line}mergeDefaultEvictionSettings: true")), merged("kubelet.yaml:3")),
        ("file: none", kubelet_file("evictionHard: {}"), vec![]),
        (
            "file as JSON with tabs",
            Texts { kubelet_config: Some(text("k.json", &json)), ..Texts::default() },
            one("k.json:4"),
        ),
        // The file's defaults are there before drop-ins are laid over it.
        ("drop-in: one beside the defaults", drop_ins("", &[line]), merged("drop-in 1.conf:3")),
        ("drop-in: null takes back", drop_ins(line, &["evictionHard:\n  memory.available:\n"]), vec![]),
        ("drop-in: null takes all back", drop_ins(line, &["evictionHard:\n"]), vec![]),
        (
            "drop-ins in their order",
            drop_ins("evictionHard: {}", &["evictionHard: {memory.available: 2Gi}", line]),
            one("drop-in 2.conf:3"),
        ),
        (
            "drop-in: merging does nothing",
            drop_ins(line, &["mergeDefaultEvictionSettings: true"]),
            one("kubelet.yaml:3"),
        ),
        // Flags replace the whole map, merged defaults too.
        (
            "flags over a file",
            Texts {
                kubelet_command_line: vec![text("cmdline", "kubelet\0--eviction-hard=memory.available<1Gi\0")],
                ..kubelet_file("evictionHard: {pid.available: 5%}\nmergeDefaultEvictionSettings: true")
            },
            one("--eviction-hard in cmdline"),
        ),
        (
            "an empty flag over a file",
            Texts { kubelet_command_line: vec![text("cmdline", "kubelet\0--eviction-hard=\0")], ..kubelet_file(line) },
            vec![],
        ),
        // Without a file the kubelet has no lines of its own.
        ("flags alone", command_line("kubelet\0--v=2\0"), vec![]),
        (
            "flags alone: one",
            command_line("kubelet --eviction-hard memory.available<1Gi"),
            one("--eviction-hard in cmdline:1"),
        ),
        ("the rest of a command line", command_line("KUBELET_EXTRA_ARGS=--v=2\n"), defaults()),
        ("node-config: nothing", node_config("  v: ['2']\n"), defaults()),
        (
            "node-config: one",
            node_config("  eviction-hard:\n  - memory.available<1Gi\n"),
            one("kubeletArguments.eviction-hard in node-config.yaml:5"),
        ),
        (
            "configz",
            configz(r#"{"kubeletconfig": {"evictionHard": {"memory.available": "1Gi"}}}"#),
            one("configz.json:1"),
        ),
        ("configz without lines has none", configz(r#"{"kubeletconfig":{"failSwapOn":true}}"#), vec![]),
        (
            "our own over the kubelet's",
            Texts { own: Some(text("plimsoll.yaml", line)), ..kubelet_file("evictionHard: {pid.available: 5%}") },
            one("plimsoll.yaml:1"),
        ),
        (
            "the kubelet's where ours says nothing",
            Texts { own: Some(text("plimsoll.yaml", "machine: {}")), ..kubelet_file(line) },
            one("kubelet.yaml:3"),
        ),
    ] {
        let report = report(&texts);
        assert_eq!(hard(&report), expected, "{name}");
        assert_eq!(report.errors, [], "{name}");
    }
}

fn threshold(report: &Report, signal: Signal) -> &Threshold<Quantity> {
    let thresholds = &report.configuration.kubelet.thresholds;
    thresholds.iter().find(|threshold| threshold.signal == signal).expect("it is there")
}

#[test]
fn the_minimum_reclaim_of_the_documentation() {
    let report = report(&kubelet_file(
        "evictionHard: {memory.available: \"500Mi\", nodefs.available: \"1Gi\", imagefs.available: \"100Gi\"}\n\
         evictionMinimumReclaim: {memory.available: \"0Mi\", nodefs.available: \"500Mi\", imagefs.available: \"2Gi\"}\n",
    ));
    assert_eq!(report.errors, []);
    for (signal, until) in [
        (Signal::MemoryAvailable, 500 << 20),
        // 1.5 GiB, as the documentation calls 1Gi and 500Mi.
        (Signal::NodeFsAvailable, (1 << 30) + (500 << 20)),
        (Signal::ImageFsAvailable, 102 << 30),
    ] {
        let threshold = threshold(&report, signal);
        let bytes = |amount: &Option<ThresholdAmount<Quantity>>| {
            amount.as_ref().expect("it is there").exact().of_bytes(Bytes::ZERO).0
        };
        assert_eq!(bytes(&threshold.amount) + bytes(&threshold.min_reclaim), until, "{signal}");
    }
}

#[test]
fn repetitions_are_reported_and_resolved_as_the_kubelet_resolves_them() {
    let twice = "evictionHard:\n  memory.available: 1Gi\n  memory.available: 10%\n";
    for (texts, value, errors, warnings) in [
        (
            own(twice),
            "10%",
            vec!["plimsoll.yaml:3: evictionHard.memory.available: the same key is in line 2 already"],
            vec![],
        ),
        (
            kubelet_file(twice),
            "10%",
            vec![],
            vec![
                "kubelet.yaml:5: evictionHard.memory.available: the same key is in line 4 already; the kubelet takes \
                 the last",
            ],
        ),
        (
            drop_ins("", &[twice]),
            "10%",
            vec![
                "1.conf:5: evictionHard.memory.available: the same key is in line 4 already, and the kubelet refuses \
                 a drop-in for that",
            ],
            vec![],
        ),
        (
            command_line("kubelet\0--eviction-hard=memory.available<1Gi,memory.available<10%\0"),
            "10%",
            vec![],
            vec![
                "cmdline: --eviction-hard: \"memory.available<10%\": memory.available was given before, as 1Gi; the last counts",
            ],
        ),
        (
            node_config("  eviction-hard:\n  - memory.available<1Gi\n  - memory.available<10%\n"),
            "10%",
            vec![],
            vec![
                "node-config.yaml:6: kubeletArguments.eviction-hard: \"memory.available<10%\": memory.available was given \
                 before, as 1Gi; the last counts",
            ],
        ),
        (
            command_line("kubelet --eviction-hard=memory.available<10% --max-pods=3 --max-pods 4"),
            "10%",
            vec![],
            vec!["cmdline:1: --max-pods: \"4\": given before at --max-pods in cmdline:1; the last counts"],
        ),
    ] {
        let report = report(&texts);
        assert_eq!(report.configuration.kubelet.eviction.hard["memory.available"], value);
        assert_eq!(lines(&report.errors), errors);
        assert_eq!(lines(&report.warnings), warnings);
    }
}

#[test]
fn a_node_config_is_read_key_by_key() {
    let report = report(&node_config(
        "  eviction-hard: ['memory.available<500Mi']
  eviction-soft: ['memory.available<1Gi']
  eviction-soft-grace-period: ['memory.available=1m30s']
  eviction-minimum-reclaim: ['memory.available=100Mi']
  eviction-pressure-transition-period: ['30s']
  eviction-max-pod-grace-period: ['60']
  system-reserved: ['1.5Gi']
  kube-reserved: ['cpu=200m,memory=512M']
  minimum-container-ttl-duration: ['10s']
  maximum-dead-containers: ['240']
  maximum-dead-containers-per-container: ['2']
  image-gc-high-threshold: ['90']
  image-gc-low-threshold: ['80']
  node-status-update-frequency: ['10s']
  read_only-port: ['0']
  colour: ['red']
",
    ));
    assert_eq!(report.errors, []);
    let kubelet = &report.configuration.kubelet;
    let bytes = |quantity: &str| Quantity::parse(quantity).expect("a quantity");
    assert_eq!(threshold(&report, Signal::MemoryAvailable).amount, Some(ThresholdAmount::At(bytes("500Mi"))));
    let grace: Vec<Duration> = kubelet.thresholds.iter().map(|threshold| threshold.grace).collect();
    assert_eq!(grace, [Duration::ZERO, Duration::from_secs(90), Duration::ZERO]);
    assert_eq!(kubelet.pressure_transition, Duration::from_secs(30));
    assert_eq!(kubelet.max_pod_grace_seconds, 60);
    assert_eq!(kubelet.system_reserved, [("memory".to_owned(), bytes("1536Mi"))].into());
    assert_eq!(kubelet.kube_reserved["memory"], bytes("512M"));
    for (key, value) in [
        ("minimum-container-ttl-duration", "10s"),
        ("maximum-dead-containers", "240"),
        ("imageGCHighThresholdPercent", "90"),
        ("nodeStatusUpdateFrequency", "10s"),
        ("readOnlyPort", "0"),
    ] {
        assert_eq!(kubelet.settings.scalar(key).map(|(text, _)| text), Some(value), "{key}");
    }
    let reported = lines(&report.warnings);
    for (reported, begin) in reported.iter().zip([
        "node-config.yaml:10: kubeletArguments.system-reserved: \"1.5Gi\": a resource is missing",
        "node-config.yaml:12: kubeletArguments.minimum-container-ttl-duration: \"10s\": deprecated: it lost its purpose",
        "node-config.yaml:13: kubeletArguments.maximum-dead-containers: \"240\": deprecated: ",
        "node-config.yaml:14: kubeletArguments.maximum-dead-containers-per-container: \"2\": deprecated: ",
        "node-config.yaml:19: kubeletArguments.colour: \"red\": unknown flag",
    ]) {
        assert!(reported.starts_with(begin), "{reported}\n{begin}");
    }
    assert_eq!(reported.len(), 5, "{reported:?}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table, a row a case")]
fn a_file_is_read_as_the_kubelet_reads_it() {
    for (texts, errors, warnings) in [
        // It passes over what it does not know.
        (
            kubelet_file("colour: red\n"),
            vec![],
            vec!["kubelet.yaml:3: colour: unknown key; a kubelet of 1.36 ignores it"],
        ),
        // It takes no number for a text.
        (
            kubelet_file("evictionHard: {memory.available: 100}\n"),
            vec![
                "kubelet.yaml:3: evictionHard.memory.available: \"100\": expected a quantity such as 100Mi or a percentage \
                 such as 5%, between quotes: the kubelet takes no bare number here",
            ],
            vec![],
        ),
        (
            kubelet_file("evictionMaxPodGracePeriod: '60'\n"),
            vec!["kubelet.yaml:3: evictionMaxPodGracePeriod: \"60\": expected a whole number, without quotes"],
            vec![],
        ),
        (
            kubelet_file(
                "evictionHard: {memory.available: 10 Mi, memory.free: '1'}\nkubeReserved: {gold: '1', memory: '-1'}\n",
            ),
            vec![
                "kubelet.yaml:3: evictionHard.memory.available: \"10 Mi\": expected a quantity such as 100Mi or a \
                 percentage such as 5%; the kubelet says: quantities must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                "kubelet.yaml:3: evictionHard.memory.free: unknown key; expected memory.available, \
                 allocatableMemory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree, \
                 containerfs.available, containerfs.inodesFree or pid.available",
                "kubelet.yaml:4: kubeReserved.gold: \"1\": it cannot be reserved; expected cpu, ephemeral-storage, memory \
                 or pid",
                "kubelet.yaml:4: kubeReserved.memory: \"-1\": expected a quantity that is not negative",
            ],
            vec![],
        ),
        (
            kubelet_file("enforceNodeAllocatable: [pods, pods, kube-reserved, all]\nimageGCLowThresholdPercent: 90\n"),
            vec![
                "kubelet.yaml:3: enforceNodeAllocatable: \"pods\": it is in the list twice",
                "kubelet.yaml:3: enforceNodeAllocatable: \"kube-reserved\": kubeReservedCgroup is missing, which it needs",
                "kubelet.yaml:3: enforceNodeAllocatable: \"all\": expected pods, system-reserved, \
                 system-reserved-compressible, kube-reserved, kube-reserved-compressible or none",
                "kubelet.yaml:4: imageGCLowThresholdPercent: \"90\": expected less than imageGCHighThresholdPercent, \
                 which is 85",
            ],
            vec![],
        ),
        (
            kubelet_file("shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 30s\nsyncFrequency: soon\n"),
            vec![
                "kubelet.yaml:4: shutdownGracePeriodCriticalPods: \"30s\": the kubelet says: invalid configuration: \
                 shutdownGracePeriodCriticalPods {30s} must be <= shutdownGracePeriod {10s}",
                "kubelet.yaml:5: syncFrequency: \"soon\": expected a duration such as 30s, 1m30s or 500ms; the kubelet \
                 says: time: invalid duration \"soon\"",
            ],
            vec![],
        ),
        (
            kubelet_file("evictionMaxPodGracePeriod: -1\nevictionSoftGracePeriod: {memory.available: 1m}\n"),
            vec![],
            vec![
                "kubelet.yaml:3: evictionMaxPodGracePeriod: \"-1\": reads as the pod's own grace period in the documents; \
                 the kubelet's code makes it one second",
                "kubelet.yaml:4: evictionSoftGracePeriod.memory.available: \"1m\": there is no soft threshold for \
                 it",
            ],
        ),
        (
            command_line("kubelet --config=/none"),
            vec![
                "cmdline:1: --config: \"/none\": it cannot be read (entity not found), so that its content is not known; \
                 expected it under --kubelet-config",
            ],
            vec![],
        ),
        // As an old document has it; the kubelet refuses it.
        (
            kubelet_file("systemReserved: 1.5Gi\n"),
            vec![],
            vec![
                "kubelet.yaml:3: systemReserved: \"1.5Gi\": a resource is missing, and the kubelet refuses it; taken for \
                 memory, as `plimsoll config convert` writes it",
            ],
        ),
        (
            own("systemReserved: 1.5Gi\n"),
            vec!["plimsoll.yaml:1: systemReserved: \"1.5Gi\": expected a mapping, such as {memory: 1.5Gi}"],
            vec![],
        ),
        (
            Texts { kubelet_config: Some(text("k", "kind: Pod\n")), ..Texts::default() },
            vec![
                "k:1: apiVersion: missing; expected kubelet.config.k8s.io/v1beta1",
                "k:1: kind: \"Pod\": expected KubeletConfiguration",
            ],
            vec![],
        ),
        (
            Texts { kubelet_config: Some(text("k", "\n")), ..Texts::default() },
            vec!["k: it is empty, and the kubelet refuses an empty file"],
            vec![],
        ),
        (
            configz("{}"),
            vec!["configz.json:1: kubeletconfig: missing; expected the kubelet's answer to /configz"],
            vec![],
        ),
        (
            Texts { configz: Some(text("c", r#"{"kubeletconfig":{}}"#)), ..kubelet_file("") },
            vec![
                "c: kubeletconfig: it is the result of the kubelet's file, drop-ins and flags; expected it alone, or them",
            ],
            vec![],
        ),
        (
            command_line(
                "kubelet --eviction-hard=memory.available=1Gi --system-reserved=memory --fail-swap-on=maybe stray \
                          --config-dir",
            ),
            vec![
                "cmdline:1: --eviction-hard: \"memory.available=1Gi\": expected SIGNAL<QUANTITY such as \
                 memory.available<1Gi",
                "cmdline:1: --system-reserved: \"memory\": expected RESOURCE=QUANTITY such as memory=1.5Gi",
                "cmdline:1: --fail-swap-on: \"maybe\": expected true or false",
                "cmdline:1: --config-dir: expected a value",
            ],
            vec!["cmdline:1: stray: not a flag, and the kubelet refuses it; expected --NAME=VALUE"],
        ),
    ] {
        let report = report(&texts);
        assert_eq!(lines(&report.errors), errors, "{texts:?}");
        assert_eq!(lines(&report.warnings), warnings, "{texts:?}");
    }
}

#[test]
fn a_zero_duration_is_not_set_in_a_file_and_zero_on_a_command_line() {
    let zero = "evictionPressureTransitionPeriod: 0s\n";
    for (texts, seconds) in [
        (kubelet_file(zero), 300),
        (drop_ins("evictionPressureTransitionPeriod: 1m\n", &[zero]), 300),
        (command_line("kubelet\0--eviction-pressure-transition-period=0\0--eviction-hard=\0"), 0),
        (own(zero), 0),
    ] {
        let report = report(&texts);
        assert_eq!(report.configuration.kubelet.pressure_transition, Duration::from_secs(seconds));
        assert_eq!(report.configuration.policy.pressure_transition, Duration::from_secs(seconds));
    }
}

#[test]
fn the_path_of_static_pods_is_that_of_the_kubelet() {
    for (texts, path) in [
        (
            Texts {
                kubelet_config: Some(text("/etc/k/a.yaml", &format!("{HEAD}staticPodPath: pods"))),
                ..Texts::default()
            },
            "/etc/k/pods",
        ),
        (kubelet_file("staticPodPath: /etc/pods"), "/etc/pods"),
        (kubelet_file("staticPodPath: ''"), ""),
        (kubelet_file(""), ""),
        (command_line("kubelet --pod-manifest-path=pods"), "pods"),
        (
            Texts {
                node_config: Some(text("n", "podManifestConfig: {path: /etc/origin/pods}\nkubeletArguments: {}")),
                ..Texts::default()
            },
            "/etc/origin/pods",
        ),
    ] {
        assert_eq!(report(&texts).configuration.kubelet.static_pod_path, path);
    }
}

#[test]
fn manifests_are_read_where_pods_are_known_from_our_path_or_from_the_kubelets_where_that_is_absolute() {
    let with = |ours: &str, path: &str| Texts {
        kubelet_config: Some(text("/etc/k/a.yaml", &format!("{HEAD}staticPodPath: {path}"))),
        ..own(&format!("machine: {{{ours}}}"))
    };
    let facts = "podFacts: /run/pods/pods.json";
    for (texts, expected) in [
        (with(facts, "pods"), Some("/etc/k/pods")),
        (with(facts, "''"), None),
        (with(&format!("{facts}, staticPods: /m"), "/etc/pods"), Some("/m")),
        (with("cluster: {kubeconfig: /c, nodeName: n}", "/etc/pods"), Some("/etc/pods")),
        (with("staticPods: /m", "/etc/pods"), None),
        (
            Texts {
                kubelet_command_line: command_line("kubelet --pod-manifest-path=pods").kubelet_command_line,
                ..own(&format!("machine: {{{facts}}}"))
            },
            None,
        ),
    ] {
        assert_eq!(report(&texts).configuration.static_pods(), expected.map(Into::into), "{texts:?}");
    }
    let named = report(&command_line("kubelet --hostname-override=One")).configuration;
    assert_eq!(named.hostname_override(), Some("One"));
}

#[test]
fn logs_of_pods_are_where_the_kubelet_is_configured_to_keep_them() {
    for (texts, logs) in [
        (Texts::default(), "/var/log/pods"),
        (kubelet_file("podLogsDir: /data/logs"), "/data/logs"),
        (kubelet_file("podLogsDir: ''"), "/var/log/pods"),
        (kubelet_file("podLogsDir: logs"), "/var/log/pods"),
    ] {
        assert_eq!(report(&texts).configuration.pod_logs(), Path::new(logs));
    }
}

#[test]
fn where_the_kubelet_and_the_runtime_are_is_taken_from_ours_then_from_the_kubelet() {
    let both = "kubelet --root-dir=/data/kubelet --container-runtime-endpoint=unix:///run/crio/crio.sock";
    let ours = "machine: {kubeletRoot: /k, runtimeSocket: /r.sock}";
    for (texts, root, endpoint) in [
        (Texts::default(), "/var/lib/kubelet", None),
        (command_line("kubelet --root-dir= --v=2"), "/var/lib/kubelet", None),
        (kubelet_file("containerRuntimeEndpoint: ''"), "/var/lib/kubelet", None),
        (
            kubelet_file("containerRuntimeEndpoint: unix:///run/c.sock"),
            "/var/lib/kubelet",
            Some("unix:///run/c.sock from kubelet.yaml:3"),
        ),
        (
            command_line(both),
            "/data/kubelet",
            Some("unix:///run/crio/crio.sock from --container-runtime-endpoint in cmdline:1"),
        ),
        (Texts { own: own(ours).own, ..command_line(both) }, "/k", Some("/r.sock from plimsoll.yaml:1")),
        (own("machine: {kubeletRoot: '', runtimeSocket: ''}"), "/var/lib/kubelet", None),
    ] {
        let configuration = report(&texts).configuration;
        let found = configuration.runtime_endpoint().map(|(text, origin)| format!("{text} from {origin}"));
        assert_eq!((configuration.kubelet_root(), found.as_deref()), (root.into(), endpoint), "{texts:?}");
    }
}

#[test]
fn with_the_flag_that_has_evictions_left_out_of_allocatable_no_threshold_on_it_is_derived() {
    use plimsoll_policy::kubelet::Signal;
    for (flag, expected) in [("", 1), (" --experimental-allocatable-ignore-eviction", 0)] {
        let report = report(&command_line(&format!("kubelet --eviction-hard=memory.available<1Gi{flag}")));
        let thresholds = report.configuration.kubelet.thresholds.iter();
        let derived = thresholds.filter(|threshold| threshold.signal == Signal::AllocatableMemoryAvailable);
        assert_eq!(derived.count(), expected, "{flag}");
    }
}

#[test]
fn files_that_a_command_line_names_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(path(name), text).expect("written");
    write("kubelet.yaml", &format!("{HEAD}evictionHard: {{memory.available: 1Gi, pid.available: 5%}}\n"));
    std::fs::create_dir_all(path("conf.d/20-more")).expect("made");
    write("conf.d/10-a.conf", &format!("{HEAD}evictionHard: {{memory.available: 2Gi}}\n"));
    write("conf.d/20-more/b.conf", &format!("{HEAD}evictionHard: {{memory.available: 3Gi}}\n"));
    write("conf.d/30-c.yaml", "this is not read");
    write("flags.env", "KUBELET_KUBEADM_ARGS=\"--max-pods=7\"\n");
    let shown = directory.path().display();
    write(
        "kubelet.service",
        &format!(
            "[Service]\nEnvironmentFile={shown}/flags.env\nExecStart=/usr/bin/kubelet --config={shown}/kubelet.yaml \\\n \
             --config-dir={shown}/conf.d $KUBELET_KUBEADM_ARGS\n"
        ),
    );
    let sources = Sources { kubelet_command_line: vec![path("kubelet.service")], ..Sources::default() };
    let report = examine(&sources, &Overrides::default());
    assert_eq!(report.errors, []);
    assert_eq!(
        hard(&report),
        [
            format!("memory.available<3Gi drop-in {shown}/conf.d/20-more/b.conf:3"),
            format!("pid.available<5% {shown}/kubelet.yaml:3"),
        ]
    );
    let (pods, origin) = report.configuration.kubelet.settings.scalar("maxPods").expect("it is there");
    assert_eq!((pods, origin.to_string()), ("7", format!("--max-pods in {shown}/flags.env:1")));

    // A kubelet merges nothing of a directory that is named by a symbolic link.
    std::os::unix::fs::symlink(path("conf.d"), path("link.d")).expect("made");
    let linked = Sources {
        kubelet_config: Some(path("kubelet.yaml")),
        kubelet_config_dir: Some(path("link.d")),
        ..Sources::default()
    };
    let report = examine(&linked, &Overrides::default());
    assert_eq!((report.errors.len(), &hard(&report)[0]), (0, &format!("memory.available<1Gi {shown}/kubelet.yaml:3")));

    let missing = Sources { node_config: Some(path("none")), configz: Some(path("neither")), ..Sources::default() };
    let report = examine(&missing, &Overrides::default());
    assert_eq!(report.errors.len(), 2, "{:?}", report.errors);
}

proptest! {
    /// Any text gets an answer, and no panic.
    #[test]
    fn any_text_is_answered_in_every_form(
        form in 0..6_usize,
        body in "\\PC{0,60}|([a-zA-Z.:<=,%\\[\\]{}'\"&*!|> \\n\\\\$0-9-]|evictionHard|memory.available|--eviction-hard=|kubeletArguments:|ExecStart=|\\[Service\\]|\0){0,40}",
    ) {
        let body = text("f", &body);
        let mut texts = Texts::default();
        match form {
            0 => texts.own = Some(body),
            1 => texts.kubelet_config = Some(body),
            2 => texts.drop_ins = Some(vec![body]),
            3 => texts.configz = Some(body),
            4 => texts.node_config = Some(body),
            _ => texts.kubelet_command_line = vec![body],
        }
        let _ = report(&texts);
    }
}

#[test]
fn a_kubelet_without_a_file_lacks_thresholds_only_where_no_source_sets_them() {
    let without_file =
        |patch: &str| Texts { drop_ins: Some(vec![text("1.conf", &format!("{HEAD}{patch}"))]), ..Texts::default() };
    let missing = "default: evictionHard: no source sets it, and a kubelet without --config has no default hard thresholds; \
                   expected a file, or --eviction-hard";
    let unwatched = |place: &str| {
        format!(
            "{place}: evictionHard: no threshold on memory.available is configured: `run` never evicts for this machine's \
             memory; expected memory.available in evictionHard or evictionSoft"
        )
    };
    for (texts, reported) in [
        (without_file("evictionHard: {memory.available: 1Gi}"), vec![]),
        (without_file("evictionHard: {nodefs.available: 5%}"), vec![unwatched("1.conf:3")]),
        (without_file("maxPods: 9"), vec![missing.to_owned(), unwatched("default")]),
        (command_line("kubelet --eviction-hard=memory.available<1Gi"), vec![]),
        // As k3s starts its kubelet.
        (
            command_line("kubelet --eviction-hard=imagefs.available<5%,nodefs.available<5%"),
            vec![unwatched("cmdline:1")],
        ),
        (
            own(
                "evictionHard: {}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}",
            ),
            vec![],
        ),
    ] {
        let report = report(&texts);
        assert_eq!(report.errors, [], "{texts:?}");
        assert_eq!(lines(&report.warnings), reported, "{texts:?}");
        assert_eq!(report.configuration.unwatched_memory().is_some(), !reported.is_empty(), "{texts:?}");
    }
}

#[test]
fn a_missing_threshold_is_reported_unless_a_threshold_itself_is_odd() {
    let reclaim = "evictionMinimumReclaim.memory.available";
    for (body, reported) in [
        ("evictionHard: {memory.available: NaN%}", vec!["evictionHard.memory.available"]),
        (
            "evictionHard: {nodefs.available: 5%}\nevictionMinimumReclaim: {memory.available: 500%}",
            vec!["evictionHard", reclaim, reclaim],
        ),
    ] {
        let report = report(&kubelet_file(body));
        assert_eq!(report.errors, [], "{body}");
        let keys: Vec<&str> = report.warnings.iter().map(|warning| warning.key.as_str()).collect();
        assert_eq!(keys, reported, "{body}");
    }
}

#[test]
fn a_command_line_without_a_word_gets_a_hint() {
    let why = "cmdline: it has no word of a kubelet's command line; expected /proc/PID/cmdline or the unit \
               (`systemctl cat kubelet`) beside it, or --kubelet-config";
    for line in ["", "# of Debian's package\n; and no more\n", "KUBELET_EXTRA_ARGS=\n"] {
        assert_eq!(lines(&report(&command_line(line)).warnings), [why], "{line:?}");
    }
}

#[test]
fn a_file_under_another_option_than_its_own_gets_one_hint() {
    let openshift =
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: KubeletConfig\nspec:\n  kubeletConfig: {}\n";
    let node_config_file = "kubeletArguments:\n  v: ['2']\n";
    let listed = format!("apiVersion: v1\nkind: List\nitems:\n- {}", openshift.replace('\n', "\n  "));
    let k3s = "write-kubeconfig-mode: '0644'\nkubelet-arg:\n- \"eviction-hard=memory.available<1Gi\"\n";
    let kubelet = |body: &str| Texts { kubelet_config: Some(text("f", body)), ..Texts::default() };
    let node = |body: &str| Texts { node_config: Some(text("f", body)), ..Texts::default() };
    let line = |body: &str| Texts { kubelet_command_line: vec![text("f", body)], ..Texts::default() };
    let ours = |body: &str| Texts { own: Some(text("f", body)), ..Texts::default() };
    for (texts, place, hint) in [
        (kubelet(openshift), "f:2: ", "/etc/kubernetes/kubelet.conf"),
        (kubelet(node_config_file), "f:1: ", "--node-config"),
        (kubelet("kubeletconfig: {}"), "f:1: ", "--configz"),
        (kubelet(&listed), "f:5: ", "/etc/kubernetes/kubelet.conf"),
        (kubelet(k3s), "f:2: ", "kubelet-arg"),
        (line("kubelet-arg+: [v=2]\n"), "f:1: ", "k3s"),
        (line("write-kubeconfig-mode: '0644'\ntls-san: [a]\n"), "f:1: ", "k3s"),
        (line("node-label:\n- a=b\n"), "f:1: ", "k3s"),
        (line("node-name: a\nserver: https://b:6443\ntoken: c\n"), "f:1: ", "k3s"),
        (line("cluster-init: true\n"), "f:1: ", "k3s"),
        (line("disable: [traefik]\n"), "f:1: ", "k3s"),
        (node(&format!("{HEAD}maxPods: 9")), "f:2: ", "--kubelet-config"),
        (ours(&format!("{HEAD}maxPods: 9")), "f:2: ", "--kubelet-config"),
        (ours(node_config_file), "f:1: ", "--node-config"),
        (line(k3s), "f:2: ", "kubelet-arg"),
        (line(openshift), "f:2: ", "/etc/kubernetes/kubelet.conf"),
        (line(&listed), "f:5: ", "/etc/kubernetes/kubelet.conf"),
        (line(node_config_file), "f:1: ", "--node-config"),
        (line(&format!("{HEAD}maxPods: 9")), "f:2: ", "--kubelet-config"),
    ] {
        let report = report(&texts);
        let reported = lines(&report.errors);
        assert!(reported.len() == 1 && reported[0].starts_with(place) && reported[0].contains(hint), "{reported:#?}");
    }
}

#[test]
fn a_quotation_without_an_end_is_an_error_at_its_beginning() {
    let unit = "[Service]\nEnvironment=\"A=--v=2\nExecStart=/usr/bin/kubelet $A\n";
    for (line, error) in [
        (
            "kubelet --v=2 \\\n --node-labels='a=b --eviction-hard=memory.available<1Gi",
            "cmdline:2: command line: \"'a=b --eviction-hard=memory.available<1Gi\": the quotation that begins here has no \
             end; expected a closing '",
        ),
        (
            "KUBELET_EXTRA_ARGS=\"--v=2\n",
            "cmdline:1: command line: \"\\\"--v=2\": the quotation that begins here has no end; expected a closing \"",
        ),
        (
            unit,
            "cmdline:2: command line: \"\\\"A=--v=2\": the quotation that begins here has no end; expected a closing \"",
        ),
    ] {
        assert_eq!(lines(&report(&command_line(line)).errors), [error], "{line}");
    }
}

#[test]
fn an_environment_file_alone_gets_a_hint_for_the_rest_of_the_command_line() {
    let file = || text("/etc/default/kubelet", "# of the package\nKUBELET_EXTRA_ARGS=--node-ip=10.0.0.1\n");
    let alone = Texts { kubelet_command_line: vec![file()], ..Texts::default() };
    let warnings = lines(&report(&alone).warnings);
    let hint = "/etc/default/kubelet: an environment file has only a part of a kubelet's command line; expected ";
    assert!(matches!(&warnings[..], [only] if only.starts_with(hint)), "{warnings:#?}");
    let unit = text("u", "[Service]\nExecStart=/usr/bin/kubelet --eviction-hard=memory.available<1Gi\n");
    for texts in [
        Texts { kubelet_command_line: vec![file()], ..kubelet_file("") },
        Texts { kubelet_command_line: vec![file(), unit], ..Texts::default() },
    ] {
        assert_eq!(lines(&report(&texts).warnings), [""; 0]);
    }
}

#[test]
fn a_misspelt_name_is_reported_once_with_the_one_that_was_meant() {
    let kubelet = |body: &str| Texts { kubelet_config: Some(text("f", &format!("{HEAD}{body}"))), ..Texts::default() };
    let drop_in = |body: &str| Texts { drop_ins: Some(vec![text("f", &format!("{HEAD}{body}"))]), ..Texts::default() };
    let soft = "evictionSoft: {memory.available: 1Gi}\n";
    let grace = "evictionSoftGracePeriod: {memory.available: 1m}\n";
    for (texts, key, meant) in [
        (own("evictionhard: {memory.available: 1Gi}"), "evictionhard", "evictionHard"),
        (own("evictionPolciy: kubelet"), "evictionPolciy", "evictionPolicy"),
        (own("machine: {victimsPerMinut: 3}"), "machine.victimsPerMinut", "victimsPerMinute"),
        (own("evictionHard: {memory.avialable: 1Gi}"), "evictionHard.memory.avialable", "memory.available"),
        (
            own(&format!("{soft}evictionSoftGracePerod: {{memory.available: 1m}}")),
            "evictionSoftGracePerod",
            "evictionSoftGracePeriod",
        ),
        (
            own(&format!("{soft}evictionSoftGracePeriod: {{memory.availble: 1m}}")),
            "evictionSoftGracePeriod.memory.availble",
            "memory.available",
        ),
        (own(&format!("{grace}evictionSfot: {{memory.available: 1Gi}}")), "evictionSfot", "evictionSoft"),
        (
            own(&format!("{grace}evictionSoft: {{memory.availble: 1Gi}}")),
            "evictionSoft.memory.availble",
            "memory.available",
        ),
        (
            kubelet(
                "evictionMinimumReclaim: {pid.available: '5'}\nevictionHard: {memory.available: 1Gi, pid.availble: 5%}",
            ),
            "evictionHard.pid.availble",
            "pid.available",
        ),
        (kubelet("evictionHrd: {memory.available: 1Gi}"), "evictionHrd", "evictionHard"),
        (drop_in("evictionHrd: {memory.available: 1Gi}"), "evictionHrd", "evictionHard"),
        (command_line("kubelet --eviction-hrad=memory.available<1Gi"), "--eviction-hrad", "eviction-hard"),
    ] {
        let report = report(&texts);
        let reported: Vec<_> = report.errors.iter().chain(&report.warnings).collect();
        assert!(
            matches!(&reported[..], [only] if only.key == key && only.expected.ends_with(&format!("did you mean {meant}?"))),
            "{key}: {reported:#?}"
        );
    }
    // What resembles nothing gets no suggestion.
    let report = report(&own("colour: red"));
    assert!(!report.errors[0].expected.contains("did you mean"), "{:?}", report.errors);
}

#[test]
fn metrics_that_other_machines_may_read_are_warned_of() {
    for (address, is_warned) in [("127.0.0.1:1", false), ("'[::1]:1'", false), ("0.0.0.0:1", true), ("'[::]:1'", true)]
    {
        let own = Some(Text { file: "f".into(), text: format!("machine: {{metricsAddress: {address}}}\n") });
        let report = examine_texts(&Texts { own, ..Texts::default() }, &Overrides::default());
        let is_about = report.warnings.iter().any(|it| it.key == "machine.metricsAddress" && it.line == Some(1));
        assert_eq!((report.errors.len(), is_about), (0, is_warned), "{address}: {:?}", report.warnings);
    }
}

#[test]
fn with_a_cluster_metrics_are_on_the_loopback_unless_that_is_said_to_be_meant() {
    for (address, more, is_refused) in [
        ("127.0.0.1:1", "", false),
        ("0.0.0.0:1", "", true),
        ("'[::]:1'", ", metricsForAll: false", true),
        ("192.0.2.1:1", ", metricsForAll: true", false),
    ] {
        let text = format!("machine: {{cluster: {{inCluster: true}}, metricsAddress: {address}{more}}}\n");
        let own = Some(Text { file: "f".into(), text });
        let report = examine_texts(&Texts { own, ..Texts::default() }, &Overrides::default());
        let keys: Vec<_> = report.errors.iter().map(|it| it.key.as_str()).collect();
        assert_eq!(keys, ["machine.metricsAddress"][..usize::from(is_refused)], "{address}{more}: {:?}", report.errors);
    }
}
