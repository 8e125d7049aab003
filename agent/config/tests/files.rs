//! Whole files: what they become, and the messages for bad ones.

use core::time::Duration;
use plimsoll_config::kubelet::Kubelet;
use plimsoll_config::{
    BrakeMode, ConfigError, Configuration, LogFormat, Machine, Origin, Override, Overrides, SourceChoice, Sources,
    StandardConditions, Throttled, examine, parse,
};
use plimsoll_policy::kubelet::{Signal, Threshold, ThresholdAmount};
use plimsoll_policy::{Config as Policy, SliceThresholds};
use plimsoll_units::{Bytes, Pattern, Percentage};
use std::path::{Path, PathBuf};

/// From this package's folder, in which cargo runs its tests.
const EXAMPLE: &str = "../deploy/plimsoll.yaml";

fn of(text: &str) -> Configuration {
    parse(text, "test.yaml").unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Configuration, ConfigError> {
    examine(&Sources { own: path.map(Path::to_owned), ..Sources::default() }, overrides).valid()
}

fn error_of(text: &str) -> String {
    match parse(text, "test.yaml") {
        Ok(configuration) => panic!("accepted:\n{text}\n{configuration:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn nothing_set_is_the_kubelets_default() {
    for text in ["", "# nothing\n\n", "{}", "machine:\n", "evictionMinimumReclaim: {}"] {
        let configuration = of(text);
        assert_eq!(configuration.policy, Policy::default(), "{text}");
        assert_eq!(configuration.policy.thresholds[0].amount, Some(ThresholdAmount::bytes(Bytes::mib(100))));
        assert_eq!(configuration.machine.metrics_address.to_string(), "127.0.0.1:9464");
        assert_eq!(configuration.machine.workloads, []);
    }
    assert_eq!(load(None, &Overrides::default()).expect("defaults"), of(""));
}

#[test]
fn the_shipped_example_is_valid_and_shows_the_defaults() {
    let shipped = load(Some(Path::new(EXAMPLE)), &Overrides::default()).expect("the shipped example");
    let default = of("");
    let with_its_lists = Machine {
        workloads: shipped.machine.workloads.clone(),
        never: shipped.machine.never.clone(),
        ..default.machine.clone()
    };
    assert_eq!(shipped.machine, with_its_lists);
    assert_eq!((shipped.policy, shipped.swap), (default.policy, default.swap));
    // The values are the same, their origins are not.
    let settings = shipped.kubelet.settings.clone();
    assert_eq!(shipped.kubelet, Kubelet { settings, ..default.kubelet });
}

#[test]
fn the_shipped_example_selects_what_runs_on_a_machine_and_spares_what_it_depends_on() {
    let Machine { workloads, never, .. } =
        load(Some(Path::new(EXAMPLE)), &Overrides::default()).expect("the shipped example").machine;
    let is_selected = |path: &str| workloads.iter().any(|workload| workload.pattern.matches(path));
    let is_spared = |path: &str| never.iter().any(|pattern| pattern.covers(path));
    for path in [
        "system.slice/nginx.service",
        "system.slice/system-postgresql.slice/postgresql@16-main.service",
        "system.slice/docker-8b5c0f6f0a4c.scope",
        "system.slice/nerdctl-8b5c0f6f0a4c.scope",
        "user.slice/user-1000.slice/session-2.scope",
        "user.slice/user-1000.slice/user@1000.service/app.slice/app-browser.scope",
        r"machine.slice/machine-qemu\x2d1\x2dvm.scope",
        "machine.slice/systemd-nspawn@box.service",
        "machine.slice/libpod-8b5c0f6f0a4c.scope",
        "machine.slice/libpod_pod_8b5c0f6f0a4c.slice",
    ] {
        assert!(is_selected(path) && !is_spared(path), "{path}");
    }
    for name in [
        "dbus",
        "dbus-broker",
        "systemd-journald",
        "systemd-logind",
        "ssh",
        "sshd",
        "system-ssh.slice/ssh@3-192.0.2.1:22-192.0.2.2:4711",
        "system-sshd.slice/sshd@3-192.0.2.1:22-192.0.2.2:4711",
        "system-getty.slice/getty@tty1",
        r"system-serial\x2dgetty.slice/serial-getty@ttyS0",
        r"system-systemd\x2dcryptsetup.slice/systemd-cryptsetup@swap",
        "gdm",
        "gdm3",
        "lightdm",
        "sddm",
        "polkit",
        "auditd",
        "qemu-guest-agent",
        "NetworkManager",
        "wpa_supplicant",
        "iscsid",
        "multipathd",
        "kubelet",
        "containerd",
        "crio",
        "docker",
        "cri-docker",
        "k3s",
        "k3s-agent",
        "rke2-server",
    ] {
        let path = format!("system.slice/{name}.service");
        // One that is not selected needs no protection.
        assert!(is_selected(&path) && is_spared(&path), "{path}");
    }
}

#[test]
fn the_keys_that_the_example_comments_out_are_valid() {
    let text = std::fs::read_to_string(EXAMPLE).expect("the shipped example");
    let text = text
        .replace("  slices: []\n", "")
        .replace("\n#evict", "\nevict")
        .replace("\n#swap", "\nswap")
        .replace("\n#  mem", "\n  mem");
    let text = text.replace("\n  #slices", "\n  slices").replace("\n  #  ", "\n    ");
    let configuration = of(&text);
    assert_eq!(configuration.policy.thresholds.len(), 2);
    assert_eq!(configuration.machine.slices[0].path.as_str(), "user.slice");
}

#[test]
fn every_key_can_be_set() {
    let configuration = of("
evictionHard: {memory.available: 5%}
evictionSoft: {memory.available: 1.5Gi}
evictionSoftGracePeriod: {memory.available: 1m30s}
evictionMinimumReclaim: {memory.available: 0}
evictionPressureTransitionPeriod: 0s
evictionMaxPodGracePeriod: 20
imageMinimumGCAge: 1m
machine:
  workloads: [{match: /system.slice/*, priority: -5}, {match: user.slice/**}]
  never: [system.slice/db.service]
  podFacts: /var/lib/pods.json
  staticPods: /data/manifests
  brake: {mode: none, inKernel: [user.slice], deadline: 500ms}
  evictForUnattributed: true
  victimsPerMinute: 3
  stallPercent: 50
  responsiblePercent: 20
  reclaimPause: 1m
  source: psi
  pollPeriod: 250ms
  slices: [{path: user.slice, evictionHard: {memory.available: 64Mi}}]
  metricsAddress: '[::1]:1'
  metricsForAll: true
  stateDirectory: /run/other
  logFormat: json
  throttled: report
  imagesNeverRemoved: [registry.local/base/*]
  killSwitch: ''
  shadow: true
  kubeletRoot: /data/kubelet
  runtimeSocket: /run/other.sock
  imageRoot: /data/images
  containerRoot: /data/layers
");
    let hard = Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::Share(Percentage::of_one(0.05)));
    let soft = Threshold {
        grace: Duration::from_secs(90),
        ..Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes::mib(1536)))
    };
    assert_eq!(
        configuration.policy,
        Policy {
            thresholds: vec![hard, soft],
            slices: vec![
                SliceThresholds {
                    thresholds: vec![Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes::mib(64)))]
                },
                SliceThresholds { thresholds: vec![Threshold { signal: Signal::AllocatableMemoryAvailable, ..hard }] },
            ],
            pressure_transition: Duration::ZERO,
            max_pod_grace_seconds: 20,
            hard_victims_per_minute: 3,
            soft_victims_per_minute: 3,
            evict_for_unattributed: true,
            stall_percent: 50,
            responsible_percent: 20,
            reclaim_pause: Duration::from_mins(1),
            ..Policy::default()
        }
    );
    let workloads: Vec<(&str, i32)> =
        configuration.machine.workloads.iter().map(|workload| (workload.pattern.as_str(), workload.priority)).collect();
    assert_eq!(workloads, [("system.slice/*", -5), ("user.slice/**", 0)]);
    let kept: Vec<&str> = configuration.machine.images_never_removed.iter().map(Pattern::as_str).collect();
    assert_eq!((kept, configuration.kubelet.image_min_age), (vec!["registry.local/base/*"], Duration::from_mins(1)));
    assert_eq!(configuration.machine.pod_facts, Some(PathBuf::from("/var/lib/pods.json")));
    assert_eq!(configuration.machine.static_pods, Some(PathBuf::from("/data/manifests")));
    assert_eq!(configuration.machine.brake.mode, BrakeMode::None);
    assert_eq!(configuration.machine.brake.in_kernel[0].as_str(), "user.slice");
    assert_eq!(configuration.machine.brake.deadline, Duration::from_millis(500));
    assert_eq!(configuration.machine.source, SourceChoice::Psi);
    assert_eq!(configuration.machine.poll_period, Duration::from_millis(250));
    assert_eq!(configuration.machine.metrics_address.to_string(), "[::1]:1");
    assert!(configuration.machine.metrics_for_all);
    assert_eq!(configuration.machine.state_directory, PathBuf::from("/run/other"));
    assert_eq!(configuration.machine.log_format, LogFormat::Json);
    assert_eq!((configuration.machine.kill_switch, configuration.machine.shadow), (None, true));
    assert_eq!(configuration.machine.kubelet_root, Some(PathBuf::from("/data/kubelet")));
    assert_eq!(configuration.machine.runtime_socket, Some(PathBuf::from("/run/other.sock")));
    assert_eq!(configuration.machine.image_root, Some(PathBuf::from("/data/images")));
    assert_eq!(configuration.machine.container_root, Some(PathBuf::from("/data/layers")));
}

#[test]
fn each_value_has_its_origin() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("own.yaml");
    std::fs::write(&path, "evictionHard:\n  memory.available: 1Gi\nmachine:\n  source: psi\n  logFormat: json\n")
        .expect("a file");
    let value = |key: &str, text: &str, origin| Override { key: key.to_owned(), text: text.to_owned(), origin };
    let values = vec![
        value("machine.source", "poll", Origin::Flag("--source".to_owned())),
        value("machine.brake.deadline", "1s", Origin::Environment("PLIMSOLL_BRAKE_DEADLINE".to_owned())),
        value("machine.evictForUnattributed", "true", Origin::Flag("--evict-for-unattributed".to_owned())),
    ];
    let configuration = load(Some(&path), &Overrides { values, ..Overrides::default() }).expect("it is valid");
    assert_eq!(configuration.machine.source, SourceChoice::Poll);
    assert_eq!(configuration.machine.log_format, LogFormat::Json);
    assert_eq!(configuration.machine.brake.deadline, Duration::from_secs(1));
    assert!(configuration.policy.evict_for_unattributed);
    for (key, origin) in [
        ("machine.source", "--source".to_owned()),
        ("machine.brake.deadline", "PLIMSOLL_BRAKE_DEADLINE in the environment".to_owned()),
        ("machine.logFormat", format!("{}:5", path.display())),
        ("evictionHard", format!("{}:2", path.display())),
        ("machine.pollPeriod", "default".to_owned()),
        ("machine.brake.mode", "default".to_owned()),
        ("evictionSoft", "default".to_owned()),
    ] {
        assert_eq!(configuration.origin(key).to_string(), origin, "{key}");
    }
}

#[test]
fn a_wrong_value_of_a_flag_is_reported_with_those_of_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("own.yaml");
    std::fs::write(&path, "machine:\n  source: xdp\n  stallPercent: 101\n").expect("a file");
    let flag = |key: &str, text: &str, name: &str| Override {
        key: key.to_owned(),
        text: text.to_owned(),
        origin: Origin::Flag(name.to_owned()),
    };
    let values =
        vec![flag("machine.pollPeriod", "1ms", "--poll-period"), flag("machine.stallPercent", "5", "--stall-percent")];
    let error = load(Some(&path), &Overrides { values, ..Overrides::default() }).expect_err("two are wrong");
    let mut lines: Vec<String> = error.0.iter().map(ToString::to_string).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "--poll-period: machine.pollPeriod: \"1ms\": expected a duration from 10ms to 1h".to_owned(),
            format!("{}:2: machine.source: \"xdp\": expected auto, ebpf, psi or poll", path.display()),
        ]
    );
}

#[test]
fn a_percentage_of_nothing_or_all_switches_a_threshold_off() {
    for text in ["0%", "100%"] {
        assert_eq!(of(&format!("evictionHard: {{memory.available: {text}}}")).policy.thresholds, []);
    }
    assert_eq!(of("evictionHard: {}").policy.thresholds, []);
}

#[test]
fn each_refused_value_is_reported_with_its_key_and_what_was_expected() {
    let cases = [
        (
            "colour: {}",
            "test.yaml:1: colour: unknown key; expected enforceNodeAllocatable, evictionHard, \
             evictionMaxPodGracePeriod, evictionMinimumReclaim, evictionPolicy, evictionPressureTransitionPeriod, evictionSoft, \
             evictionSoftGracePeriod, imageMinimumGCAge, kubeReserved, localStorageCapacityIsolation, machine, mergeDefaultEvictionSettings, swap or systemReserved",
        ),
        (
            "evictionHard: {memory.free: 1Gi}",
            "test.yaml:1: evictionHard.memory.free: unknown key; expected memory.available, allocatableMemory.available, \
             nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree, containerfs.available, \
             containerfs.inodesFree or pid.available",
        ),
        (
            "evictionHard:\n  memory.available: 10 Mi",
            "test.yaml:2: evictionHard.memory.available: \"10 Mi\": expected a quantity such as 100Mi or a percentage \
             such as 5%",
        ),
        (
            "evictionHard: {memory.available: 10MB}",
            "test.yaml:1: evictionHard.memory.available: \"10MB\": expected a quantity such as 100Mi or a percentage \
             such as 5%",
        ),
        (
            "evictionHard: {memory.available: -1Gi}",
            "test.yaml:1: evictionHard.memory.available: \"-1Gi\": expected a quantity that is not negative",
        ),
        (
            "evictionHard: {memory.available: 0}",
            "test.yaml:1: evictionHard.memory.available: \"0\": expected a quantity above zero",
        ),
        (
            "evictionHard: {memory.available: 101%}",
            "test.yaml:1: evictionHard.memory.available: \"101%\": expected a percentage from 0% to 100%",
        ),
        (
            "evictionHard: {memory.available: -5%}",
            "test.yaml:1: evictionHard.memory.available: \"-5%\": expected a percentage from 0% to 100%",
        ),
        (
            "evictionHard: {memory.available: some%}",
            "test.yaml:1: evictionHard.memory.available: \"some%\": expected a quantity such as 100Mi or a percentage \
             such as 5%",
        ),
        (
            "evictionHard: {memory.available: [1]}",
            "test.yaml:1: evictionHard.memory.available: \"a list\": expected a quantity such as 100Mi or a percentage \
             such as 5%",
        ),
        ("evictionHard: 100Mi", "test.yaml:1: evictionHard: \"100Mi\": expected a mapping"),
        ("- a\n- b", "test.yaml:1: \"a list\": expected a mapping"),
        (
            "evictionSoft:\n  memory.available: 1Gi",
            "test.yaml:2: evictionSoftGracePeriod.memory.available: missing; evictionSoft.memory.available needs a \
             grace period",
        ),
        (
            "evictionSoftGracePeriod:\n  memory.available: 1m",
            "test.yaml:2: evictionSoftGracePeriod.memory.available: \"1m\": there is no soft threshold for it",
        ),
        (
            "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 90}",
            "test.yaml:2: evictionSoftGracePeriod.memory.available: \"90\": expected a duration such as 1m30s",
        ),
        (
            "evictionPressureTransitionPeriod: -5m",
            "test.yaml:1: evictionPressureTransitionPeriod: \"-5m\": expected a duration such as 30s, 1m30s or 500ms",
        ),
        (
            "evictionMaxPodGracePeriod: -1",
            "test.yaml:1: evictionMaxPodGracePeriod: \"-1\": expected a whole number from 0 to 2147483647",
        ),
        (
            "machine: {workloads: [{match: '*'}]}",
            "test.yaml:1: machine.workloads[0].match: \"*\": it would include init (init.scope); expected a pattern \
             such as system.slice/*",
        ),
        (
            "machine: {workloads: [{match: '**'}]}",
            "test.yaml:1: machine.workloads[0].match: \"**\": it would include init (init.scope); expected a pattern \
             such as system.slice/*",
        ),
        (
            "machine: {workloads: [{match: /}]}",
            "test.yaml:1: machine.workloads[0].match: \"/\": character 2: expected a path below the cgroup root such as \
             system.slice/*; this is the whole machine",
        ),
        (
            "machine: {workloads: [{match: init.scope}]}",
            "test.yaml:1: machine.workloads[0].match: \"init.scope\": it would include init (init.scope); expected a \
             pattern such as system.slice/*",
        ),
        (
            "machine: {workloads: [{match: '*.slice'}]}",
            "test.yaml:1: machine.workloads[0].match: \"*.slice\": it would include this agent \
             (plimsoll.slice/plimsoll.service); expected a pattern such as system.slice/*",
        ),
        (
            "machine: {workloads: [{match: plimsoll.slice/plimsoll.service}]}",
            "test.yaml:1: machine.workloads[0].match: \"plimsoll.slice/plimsoll.service\": it would include this agent \
             (plimsoll.slice/plimsoll.service); expected a pattern such as system.slice/*",
        ),
        (
            "machine: {workloads: [{priority: 1}]}",
            "test.yaml:1: machine.workloads[0].match: missing; expected a mapping such as {match: system.slice/*}",
        ),
        (
            "machine: {workloads: [{match: a/*, priority: high}]}",
            "test.yaml:1: machine.workloads[0].priority: \"high\": expected a whole number",
        ),
        ("machine: {workloads: system.slice/*}", "test.yaml:1: machine.workloads: \"system.slice/*\": expected a list"),
        (
            "machine: {never: [a/../b]}",
            "test.yaml:1: machine.never[0]: \"a/../b\": character 3: expected a name; it is empty, `.` or `..`",
        ),
        // A kubelet may run with these, but no kubelet accepts the threshold of a slice.
        (
            "machine: {slices: [{path: a, evictionHard: {memory.available: 1000E}}]}",
            "test.yaml:1: machine.slices[0].evictionHard.memory.available: \"1000E\": expected a quantity of at most \
             18446744073709551615",
        ),
        (
            "machine: {slices: [{path: a, evictionHard: {memory.available: 1Gi}, \
             evictionMinimumReclaim: {memory.available: 150%}}]}",
            "test.yaml:1: machine.slices[0].evictionMinimumReclaim.memory.available: \"150%\": expected a percentage \
             from 0% to 100%",
        ),
        ("swap: {free: NaN%}", "test.yaml:1: swap.free: \"NaN%\": expected a percentage from 0% to 100%"),
        ("machine: {brake: {mode: on}}", "test.yaml:1: machine.brake.mode: \"on\": expected freeze or none"),
        (
            "machine:\n  cluster: {standardConditions: yes}",
            "test.yaml:2: machine.cluster.standardConditions: \"yes\": expected off, lead or hold",
        ),
        ("machine: {throttled: Off}", "test.yaml:1: machine.throttled: \"Off\": expected report, relax or evict"),
        ("machine: {brake: {mode: stop}}", "test.yaml:1: machine.brake.mode: \"stop\": expected freeze or none"),
        (
            "machine: {brake: {deadline: 3s}}",
            "test.yaml:1: machine.brake.deadline: \"3s\": expected a duration from 1ms to 2s",
        ),
        (
            "machine: {brake: {inKernel: [user.slice/*]}}",
            "test.yaml:1: machine.brake.inKernel[0]: \"user.slice/*\": expected the path of one cgroup, without `*`",
        ),
        (
            "machine: {brake: {inKernel: [init.scope]}}",
            "test.yaml:1: machine.brake.inKernel[0]: \"init.scope\": it would include init (init.scope); expected a pattern \
             such as system.slice/*",
        ),
        (
            "machine: {workloads: [{match: 'a.slice/b-?.service'}]}",
            "test.yaml:1: machine.workloads[0].match: \"a.slice/b-?.service\": character 11: expected `*` for any part of a \
             name; there is no other wildcard",
        ),
        (
            "machine: {evictForUnattributed: maybe}",
            "test.yaml:1: machine.evictForUnattributed: \"maybe\": expected true or false",
        ),
        (
            "machine: {victimsPerMinute: many}",
            "test.yaml:1: machine.victimsPerMinute: \"many\": expected a whole number from 1 to 10000; machine.shadow: true is \
             a dry run, which evicts nothing",
        ),
        (
            "machine: {victimsPerMinute: 0}",
            "test.yaml:1: machine.victimsPerMinute: \"0\": expected a whole number from 1 to 10000; machine.shadow: true is a \
             dry run, which evicts nothing",
        ),
        (
            "machine: {stallPercent: 101}",
            "test.yaml:1: machine.stallPercent: \"101\": expected a whole number from 0 to 100",
        ),
        ("machine: {source: xdp}", "test.yaml:1: machine.source: \"xdp\": expected auto, ebpf, psi or poll"),
        ("machine: {pollPeriod: 1ms}", "test.yaml:1: machine.pollPeriod: \"1ms\": expected a duration from 10ms to 1h"),
        // Without a pause the watching thread would never sleep.
        ("machine: {reclaimPause: 0}", "test.yaml:1: machine.reclaimPause: \"0\": expected a duration from 1s to 1h"),
        (
            "machine: {metricsAddress: localhost}",
            "test.yaml:1: machine.metricsAddress: \"localhost\": expected an address with a port, such as \
             127.0.0.1:9464 or [::1]:9464",
        ),
        (
            "machine: {podFacts: pods.json}",
            "test.yaml:1: machine.podFacts: \"pods.json\": expected an absolute path of a file that is not in /, \
             without ..",
        ),
        (
            "machine: {podFacts: /pods.json}",
            "test.yaml:1: machine.podFacts: \"/pods.json\": expected an absolute path of a file that is not in /, \
             without ..",
        ),
        (
            "machine: {podFacts: //./pods.json}",
            "test.yaml:1: machine.podFacts: \"//./pods.json\": expected an absolute path of a file that is not in /, \
             without ..",
        ),
        (
            "machine: {podFacts: /run/../pods.json}",
            "test.yaml:1: machine.podFacts: \"/run/../pods.json\": expected an absolute path of a file that is not in /, \
             without ..",
        ),
        (
            "machine: {stateDirectory: run}",
            "test.yaml:1: machine.stateDirectory: \"run\": expected an absolute path of a directory",
        ),
        (
            "machine: {killSwitch: /kill-switch}",
            "test.yaml:1: machine.killSwitch: \"/kill-switch\": expected an absolute path of a file that is not in /, \
             without ..",
        ),
        (
            "machine: {cluster: {standardConditions: lead}}",
            "test.yaml:1: machine.cluster.standardConditions: \"lead\": there is no API server to write them to; expected \
             inCluster or kubeconfig beside it",
        ),
        (
            "machine: {cluster: {inCluster: true, standardConditions: always}}",
            "test.yaml:1: machine.cluster.standardConditions: \"always\": expected off, lead or hold",
        ),
        (
            "machine: {cluster: {inCluster: true, kubeconfig: /k}}",
            "test.yaml:1: machine.cluster.kubeconfig: \"/k\": inCluster is set too; expected one of both",
        ),
        (
            "machine: {podFacts: /a/b, cluster: {inCluster: true}}",
            "test.yaml:1: machine.podFacts: \"/a/b\": the API server says what is known of pods (machine.cluster); expected \
             one of both",
        ),
        (
            "machine: {cluster: {taint: NoSchedule}}",
            "test.yaml:1: machine.cluster.taint: \"NoSchedule\": there is no API server to set it; expected inCluster or \
             kubeconfig beside it",
        ),
        (
            "machine: {cluster: {taint: NoExecute}}",
            "test.yaml:1: machine.cluster.taint: \"NoExecute\": expected none, PreferNoSchedule or NoSchedule",
        ),
        (
            "machine: {cluster: {nodeName: 'a,b=c'}}",
            "test.yaml:1: machine.cluster.nodeName: \"a,b=c\": expected the name of a node, such as worker-1.example",
        ),
        (
            "machine: {throttled: relax}",
            "test.yaml:1: machine.throttled: \"relax\": needs machine.podFacts or machine.cluster: without one of them \
             pods are not known",
        ),
        (
            "machine: {throttled: kill, podFacts: /run/facts/pods.json}",
            "test.yaml:1: machine.throttled: \"kill\": expected report, relax or evict",
        ),
        ("machine: {kubeletRoot: kubelet}", "test.yaml:1: machine.kubeletRoot: \"kubelet\": expected an absolute path"),
        (
            "machine: {runtimeSocket: 'unix:///run/a.sock'}",
            "test.yaml:1: machine.runtimeSocket: \"unix:///run/a.sock\": expected an absolute path",
        ),
        (
            "machine: {containerRoot: /data}",
            "test.yaml:1: machine.imageRoot: missing; machine.containerRoot counts beside it alone",
        ),
        ("machine: {logFormat: xml}", "test.yaml:1: machine.logFormat: \"xml\": expected text or json"),
        ("evictionPolicy: docker", "test.yaml:1: evictionPolicy: \"docker\": expected kubelet, plimsoll or openshift3"),
        ("swap: {grace: 1m}", "test.yaml:1: swap.free: missing; expected a mapping such as {free: 10%, grace: 30s}"),
        (
            "swap: {free: lots}",
            "test.yaml:1: swap.free: \"lots\": expected a quantity such as 100Mi or a percentage such as 5%",
        ),
        (
            "machine: {slices: [{path: a.slice}]}",
            "test.yaml:1: machine.slices[0].evictionHard: missing; expected evictionHard or evictionSoft for each \
             slice in the list",
        ),
        (
            "machine: {slices: [{evictionHard: {memory.available: 1Mi}}]}",
            "test.yaml:1: machine.slices[0].path: missing; expected a mapping such as {path: user.slice, \
             evictionHard: {memory.available: 64Mi}}",
        ),
        (
            "machine:\n  slices:\n  - {path: a, evictionHard: {memory.available: 1Mi}}\n  - {path: a, evictionHard: \
             {memory.available: 1Mi}}",
            "test.yaml:4: machine.slices[1].path: \"a\": this slice is in the list before",
        ),
    ];
    let wrong = cases.into_iter().map(|(text, expected)| (text, error_of(text), expected));
    let wrong: Vec<_> = wrong.filter(|(_, error, expected)| error != expected).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_evicted_pod_is_held_down_with_a_cluster_and_without_one_where_that_is_configured() {
    let (minute, five) = (Duration::from_mins(1), Duration::from_mins(5));
    let cluster = "cluster: {inCluster: true, nodeName: node-1}";
    for (text, time) in [
        ("machine: {}".to_owned(), Duration::ZERO),
        (format!("machine: {{{cluster}}}"), five),
        (format!("machine: {{holdDown: '', {cluster}}}"), five),
        (format!("machine: {{holdDown: 0, {cluster}}}"), Duration::ZERO),
        ("machine: {holdDown: 1m}".to_owned(), minute),
    ] {
        assert_eq!(of(&text).machine.hold_down(), time, "{text}");
    }
    for refused in ["61m", "long"] {
        let error = error_of(&format!("machine: {{holdDown: {refused}}}"));
        assert!(error.contains("expected a duration from 0s to 1h") && error.contains("or nothing"), "{error}");
    }
}

#[test]
fn throttled_containers_are_acted_on_where_a_file_or_a_cluster_says_what_pods_there_are() {
    for source in ["podFacts: /run/facts/pods.json", "cluster: {inCluster: true}", "cluster: {kubeconfig: /etc/k}"] {
        for (word, mode) in [("relax", Throttled::Relax), ("evict", Throttled::Evict)] {
            assert_eq!(of(&format!("machine: {{throttled: {word}, {source}}}")).machine.throttled, mode, "{source}");
        }
    }
    assert!(error_of("machine: {throttled: evict, cluster: {nodeName: n}}").contains("needs machine.podFacts or"));
}

#[test]
fn there_are_at_most_as_many_slices_as_the_kernel_side_has_entries() {
    let slices = |count: usize| {
        let slices: Vec<String> = (0..count)
            .map(|index| format!("{{path: s{index}.slice, evictionHard: {{memory.available: 1Mi}}}}"))
            .collect();
        plimsoll_config::parse(&format!("machine: {{slices: [{}]}}", slices.join(", ")), "test.yaml")
    };
    assert_eq!(slices(15).expect("as many as there is room for").policy.slices.len(), 15);
    let error = slices(16).expect_err("one more").to_string();
    assert_eq!(error, "test.yaml:1: machine.slices: expected at most 15 slices with thresholds");
}

#[test]
fn every_error_is_reported_in_the_order_of_the_file() {
    let error = error_of("machine:\n  source: xdp\n  colour: red\nevictionHard:\n  memory.available: lots\n");
    assert_eq!(
        error.lines().collect::<Vec<_>>(),
        [
            "test.yaml:2: machine.source: \"xdp\": expected auto, ebpf, psi or poll",
            "test.yaml:3: machine.colour: unknown key; expected brake, cluster, containerRoot, evictForUnattributed, holdDown, imageRoot, imagesNeverRemoved, journalDirectory, killSwitch, kubeletRoot, logFormat, metricsAddress, metricsForAll, \
             never, podFacts, pollPeriod, reclaimPause, responsiblePercent, runtimeSocket, shadow, slices, source, stallPercent, stateDirectory, staticPods, throttled, victimsPerMinute or workloads",
            "test.yaml:5: evictionHard.memory.available: \"lots\": expected a quantity such as 100Mi or a percentage \
             such as 5%",
        ]
    );
}

#[test]
fn every_error_in_lists_is_reported_once_with_its_place() {
    let error = error_of(
        "machine:
  workloads:
  - {match: '*', priority: high}
  - {match: a/*, color: 1}
  - {priority: 2}
  - 5
  - {match: a//b, priority: 1.5}
  brake:
    deadline: 3s
    inKernel: ['a/*', b, '/']
  slices:
  - path: 'a*'
    evictionHard: {memory.available: lots}
    evictionSoft: {memory.available: 1Mi}
  - path: b
    evictionSoftGracePeriod: {memory.available: never}
",
    );
    let found: Vec<&str> = error.lines().map(|line| line.split(": ").nth(1).expect("a key")).collect();
    assert_eq!(
        found,
        [
            "machine.workloads[0].priority",
            "machine.workloads[0].match",
            "machine.workloads[1].color",
            "machine.workloads[2].match",
            "machine.workloads[3]",
            "machine.workloads[4].match",
            "machine.workloads[4].priority",
            "machine.brake.deadline",
            "machine.brake.inKernel[2]",
            "machine.brake.inKernel[0]",
            "machine.slices[0].path",
            "machine.slices[0].evictionHard.memory.available",
            "machine.slices[0].evictionSoftGracePeriod.memory.available",
            "machine.slices[1].evictionHard",
            "machine.slices[1].evictionSoftGracePeriod.memory.available",
        ],
        "{error}"
    );
}

#[test]
fn the_agents_own_cgroup_can_be_elsewhere() {
    let overrides = Overrides { own_cgroup: Some("opt.slice/a/b".to_owned()), ..Overrides::default() };
    let directory = std::env::temp_dir().join(format!("plimsoll-config-own-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("own.yaml");
    for (pattern, accepted) in
        [("opt.slice/*", false), ("opt.slice/**", true), ("system.slice", true), ("opt.slice/a/b", false)]
    {
        std::fs::write(&path, format!("machine: {{workloads: [{{match: '{pattern}'}}]}}")).expect("a file");
        assert_eq!(load(Some(&path), &overrides).is_ok(), accepted, "{pattern}");
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn an_unquoted_off_is_no_boolean_where_something_can_be_off() {
    let machine = of("machine: {cluster: {standardConditions: off}, brake: {mode: off}}").machine;
    assert_eq!((machine.cluster.standard_conditions, machine.brake.mode), (StandardConditions::Off, BrakeMode::None));
    assert_eq!(of("machine: {brake: {mode: false}}").machine.brake.mode, BrakeMode::None);
}

#[test]
fn a_named_pipe_is_refused_and_one_without_a_name_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    let error = load(Some(&pipe), &Overrides::default()).expect_err("its writer may never come").to_string();
    assert!(error.contains("it is a named pipe"), "{error}");
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    std::io::Write::write_all(&mut writer, b"machine: {stallPercent: 7}").expect("there is room");
    drop(writer);
    let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    let read = load(Some(Path::new(&path)), &Overrides::default()).expect("it is read");
    assert_eq!(read.machine.stall_percent, 7);
}

#[test]
fn the_command_line_of_another_program_is_refused() {
    let own = PathBuf::from(format!("/proc/{}/cmdline", std::process::id()));
    let sources = Sources { kubelet_command_line: vec![own], ..Sources::default() };
    let error = examine(&sources, &Overrides::default()).valid().expect_err("it is a test").to_string();
    let expected = format!("/proc/{0}/cmdline: process {0} runs files-", std::process::id());
    assert!(error.starts_with(&expected) && error.contains(", not a kubelet; expected "), "{error}");
}

#[test]
fn a_file_that_is_not_yaml_or_missing_is_an_error() {
    let error = error_of("machine: {}\n---\nmachine: {}\n");
    assert_eq!(error, "test.yaml:3: more than one YAML document (a line `---`); expected one alone");
    let error = error_of(&format!("machine: {{never: [{}]}}", "a,".repeat(300_000)));
    assert_eq!(error, "test.yaml:1: too large, or too deeply nested, for a configuration; expected less");
    let binary = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(binary.path(), b"machine: \xff").expect("writable");
    let error = load(Some(binary.path()), &Overrides::default()).expect_err("it is no text").to_string();
    assert!(error.ends_with(": it is no text in UTF-8; name a text file"), "{error}");
    for (text, line) in [("a: [1, 2", 1), ("a: 'b", 1)] {
        let error = error_of(text);
        let begin = format!("test.yaml:{line}: not valid YAML: ");
        assert!(error.starts_with(&begin), "{text}: {error}");
    }
    assert_eq!(
        error_of("machine: {source: auto}\nmachine: {source: psi}"),
        "test.yaml:2: machine: the same key is in line 1 already"
    );
    assert_eq!(
        error_of("evictionHard:\n  memory.available: 1Gi\n  memory.available: 2Gi"),
        "test.yaml:3: evictionHard.memory.available: the same key is in line 2 already"
    );
    let missing = load(Some(Path::new("/nonexistent/plimsoll.yaml")), &Overrides::default());
    let error = missing.expect_err("there is no such file").to_string();
    assert_eq!(
        error,
        "/nonexistent/plimsoll.yaml: it cannot be read: No such file or directory (os error 2); name a file \
         that exists and may be read"
    );
}

#[test]
fn an_amount_that_no_machine_has_is_warned_of_on_every_signal() {
    let facts = "machine: {podFacts: /run/pods/pods.json}";
    for signal in ["memory.available", "allocatableMemory.available", "nodefs.available", "imagefs.inodesFree"] {
        for (text, key) in [
            (format!("evictionHard: {{memory.available: 1Gi, {signal}: NaN%}}"), "evictionHard"),
            (
                format!(
                    "evictionHard: {{memory.available: 1Gi, {signal}: 1%}}\nevictionMinimumReclaim: {{{signal}: Inf%}}"
                ),
                "evictionMinimumReclaim",
            ),
        ] {
            let text = text.replace("memory.available: 1Gi, memory.available", "memory.available");
            let configuration = parse(&format!("{text}\n{facts}"), "f").expect("it is accepted");
            let warned = configuration.warnings.iter().any(|it| it.key == format!("{key}.{signal}"));
            assert!(warned, "{text}: {:?}", configuration.warnings);
        }
    }
}

/// A kubelet runs with such thresholds; its configuration is not refused for them.
#[test]
fn amounts_that_no_machine_has_and_the_kubelet_accepts_are_accepted_with_a_warning() {
    let all = ThresholdAmount::Share(Percentage::of_one(1.0));
    let (plain, most) = (ThresholdAmount::bytes(Bytes::mib(100)), ThresholdAmount::bytes(Bytes(u64::MAX)));
    for (hard, reclaim, expected, warned) in [
        ("100Mi", "0", Some((plain, None)), 0),
        ("100Mi", "150%", Some((plain, Some(all))), 1),
        ("100Mi", "+Inf%", Some((plain, Some(all))), 1),
        ("100Mi", "NaN%", Some((plain, None)), 1),
        ("100Mi", "1000E", Some((plain, Some(most))), 1),
        ("1000E", "0", Some((most, None)), 1),
        ("18446744073709551616", "0", Some((most, None)), 1),
        ("NaN%", "0", None, 1),
    ] {
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             evictionHard: {{memory.available: '{hard}'}}\nevictionMinimumReclaim: {{memory.available: '{reclaim}'}}\n"
        );
        let kubelet_config = Some(plimsoll_config::Text { file: "kubelet.yaml".to_owned(), text });
        let texts = plimsoll_config::Texts { kubelet_config, ..Default::default() };
        let report = plimsoll_config::examine_texts(&texts, &plimsoll_config::Overrides::default());
        assert_eq!(report.errors, [], "{hard} {reclaim}");
        assert_eq!(report.warnings.len(), warned, "{hard} {reclaim}: {:?}", report.warnings);
        let thresholds = &report.configuration.policy.thresholds;
        assert_eq!(
            thresholds.first().and_then(|found| Some((found.amount?, found.min_reclaim))),
            expected,
            "{hard} {reclaim}"
        );
    }
}
