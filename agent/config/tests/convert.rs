//! One form converted into another means the same.

use plimsoll_config::kubelet::{Kubelet, Settings};
use plimsoll_config::{Configuration, Form, Overrides, Text, Texts, convert, examine_texts, rows};
use proptest::prelude::*;

fn read(texts: &Texts) -> Configuration {
    let report = examine_texts(texts, &Overrides::default());
    assert_eq!(report.errors, [], "{texts:?}");
    report.configuration
}

fn texts(form: Form, text: &str) -> Texts {
    let text = Text { file: "f".to_owned(), text: text.to_owned() };
    match form {
        Form::Plimsoll => Texts { own: Some(text), ..Texts::default() },
        Form::Kubelet => Texts { kubelet_config: Some(text), ..Texts::default() },
        Form::Flags => Texts { kubelet_command_line: vec![text], ..Texts::default() },
    }
}

/// What decisions use, without how it was written.
fn meaning(configuration: &Configuration) -> Kubelet {
    let Configuration { kubelet, .. } = configuration;
    Kubelet {
        settings: Settings::default(),
        merge_default_eviction_settings: false,
        // Zero and below zero are the same in the kubelet's code.
        max_pod_grace_seconds: kubelet.max_pod_grace_seconds.max(0),
        ..kubelet.clone()
    }
}

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

#[test]
fn each_form_converted_into_each_other_means_the_same() {
    let node_config = |text: &str| Texts {
        node_config: Some(Text { file: "n".to_owned(), text: text.to_owned() }),
        ..Texts::default()
    };
    for (name, source) in [
        ("nothing", Texts::default()),
        ("no lines", texts(Form::Kubelet, &format!("{HEAD}evictionHard: {{}}"))),
        ("flags without lines", texts(Form::Flags, "kubelet --v=2")),
        (
            "lines",
            texts(
                Form::Kubelet,
                &format!(
                    "{HEAD}evictionHard: {{memory.available: '100', nodefs.available: '010%', pid.available: '1e3'}}\n\
                     evictionSoft: {{memory.available: 1.5Gi}}\nevictionSoftGracePeriod: {{memory.available: 1m30s}}\n\
                     evictionMinimumReclaim: {{memory.available: '0'}}\nevictionMaxPodGracePeriod: 60\n\
                     evictionPressureTransitionPeriod: 30s\nmergeDefaultEvictionSettings: true\n\
                     enforceNodeAllocatable: [none]\nkubeReserved: {{memory: 1Gi, cpu: 200m}}\nsystemReserved: {{pid: '1000'}}\n"
                ),
            ),
        ),
        ("flags", texts(Form::Flags, "kubelet --eviction-max-pod-grace-period=-1 --eviction-hard=memory.available<5%")),
        (
            "limits of local storage that are not enforced",
            texts(Form::Kubelet, &format!("{HEAD}localStorageCapacityIsolation: false")),
        ),
        ("a reservation without its resource", node_config("kubeletArguments: {system-reserved: ['1.5Gi']}")),
        (
            "our own",
            texts(
                Form::Plimsoll,
                "evictionHard: {memory.available: 5%}\nevictionPolicy: openshift3\nswap: {free: 1Gi, grace: 1m}\nmachine: {workloads: [{match: 'a/*', priority: -1}], never: [a/b], \
                 brake: {deadline: 500ms}, slices: [{path: a, evictionHard: {memory.available: 64Mi}, evictionSoft: \
                 {memory.available: 10%}, evictionSoftGracePeriod: {memory.available: 90s}}], source: psi, logFormat: json}",
            ),
        ),
    ] {
        let first = read(&source);
        for form in [Form::Plimsoll, Form::Kubelet, Form::Flags] {
            let converted = convert(&first, form);
            let again = read(&texts(form, &converted.text));
            assert_eq!(meaning(&again), meaning(&first), "{name} to {form:?}:\n{}", converted.text);
            let is_lost = converted.lost.iter().any(|lost| lost.key == "localStorageCapacityIsolation");
            assert!(!is_lost, "{name} to {form:?}: every form can say it");
            if form == Form::Plimsoll {
                assert_eq!(again.policy, first.policy, "{name}:\n{}", converted.text);
                let machine = |configuration: &Configuration| {
                    rows(configuration)
                        .into_iter()
                        .filter(|row| {
                            row.key.starts_with("machine.") || row.key == "evictionPolicy" || row.key == "swap"
                        })
                        .map(|row| (row.key, row.value))
                        .collect::<Vec<_>>()
                };
                assert_eq!(machine(&again), machine(&first), "{name}:\n{}", converted.text);
            }
        }
    }
}

#[test]
fn a_kubelets_file_is_converted_without_loss_and_losses_of_flags_are_reported() {
    let body = format!(
        "{HEAD}evictionHard:\n  memory.available: 500Mi\nfailSwapOn: false\nimageGCHighThresholdPercent: 90\nmemorySwap:\n  \
         swapBehavior: LimitedSwap\nstaticPodPath: /etc/my pods\nauthentication:\n  anonymous:\n    enabled: false\n\
         clusterDNS:\n- 10.96.0.10\nfeatureGates:\n  NodeSwap: true\nmaxPods: 50\nshutdownGracePeriod: 30s\n"
    );
    let first = read(&texts(Form::Kubelet, &body));
    let converted = convert(&first, Form::Kubelet);
    assert_eq!(converted.lost, []);
    let again = read(&texts(Form::Kubelet, &converted.text));
    let values = |configuration: &Configuration| -> Vec<_> {
        rows(configuration).into_iter().map(|row| (row.key, row.value)).collect()
    };
    assert_eq!(values(&again), values(&first), "{}", converted.text);

    let converted = convert(&first, Form::Flags);
    assert_eq!(
        converted.text,
        "--eviction-hard=memory.available<500Mi\n--fail-swap-on=false\n--pod-manifest-path=\"/etc/my pods\"\n\
         --image-gc-high-threshold=90\n--cluster-dns=10.96.0.10\n--feature-gates=NodeSwap=true\n--max-pods=50\n"
    );
    let lost: Vec<&str> = converted.lost.iter().map(|lost| lost.key.as_str()).collect();
    assert_eq!(lost, ["memorySwap", "shutdownGracePeriod", "authentication"]);
    let again = read(&texts(Form::Flags, &converted.text));
    assert_eq!(again.kubelet.static_pod_path, "/etc/my pods");

    let flags = "kubelet --anonymous-auth=false --v=4 --node-ip=10.0.0.1 --eviction-pressure-transition-period=0 \
                 --eviction-hard=memory.available<1Gi";
    let converted = convert(&read(&texts(Form::Flags, flags)), Form::Kubelet);
    assert_eq!(
        converted.text,
        "apiVersion: 'kubelet.config.k8s.io/v1beta1'\nkind: 'KubeletConfiguration'\nevictionHard:\n  memory.available: \
         '1Gi'\nauthentication:\n  anonymous:\n    enabled: false\nlogging:\n  verbosity: 4\n"
    );
    let lost: Vec<&str> = converted.lost.iter().map(|lost| lost.key.as_str()).collect();
    assert_eq!(lost, ["evictionPressureTransitionPeriod", "node-ip"]);
}

#[test]
fn where_a_flag_ignores_thresholds_for_what_pods_have_none_follows_in_our_own_file() {
    let flags = "kubelet --experimental-allocatable-ignore-eviction --enforce-node-allocatable=pods \
                 --eviction-hard=memory.available<1Gi";
    let first = read(&texts(Form::Flags, flags));
    let converted = convert(&first, Form::Plimsoll);
    let lost: Vec<&str> = converted.lost.iter().map(|lost| lost.key.as_str()).collect();
    assert_eq!(lost, ["experimental-allocatable-ignore-eviction"], "what pods can request is another amount");
    let again = read(&texts(Form::Plimsoll, &converted.text));
    assert_eq!(again.kubelet.thresholds, first.kubelet.thresholds, "{}", converted.text);
    assert_eq!(again.kubelet.thresholds.len(), 1, "{}", converted.text);
}

#[test]
fn rows_have_each_value_with_its_origin() {
    let configuration = read(&texts(Form::Plimsoll, "evictionHard: {memory.available: 5%}\nmachine: {source: psi}"));
    let row = |key: &str| {
        let row = rows(&configuration).into_iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no {key}"));
        (row.value.to_string(), row.origin.to_string())
    };
    for (key, value, origin) in [
        ("evictionHard.memory.available", "\"5%\"", "f:1"),
        ("evictionSoft", "null", "default"),
        ("evictionMaxPodGracePeriod", "0", "default"),
        ("enforceNodeAllocatable", "[\"pods\"]", "default"),
        ("failSwapOn", "true", "default"),
        ("machine.source", "\"psi\"", "f:2"),
        ("machine.brake.mode", "\"freeze\"", "default"),
        ("machine.workloads", "[]", "default"),
    ] {
        assert_eq!(row(key), (value.to_owned(), origin.to_owned()), "{key}");
    }
}

proptest! {
    /// Whatever the texts in a kubelet's file are, they come back from every form as they were.
    #[test]
    fn texts_come_back(path in "[ -~]{1,12}", memory in 1..10_000_000_u64, percent in 0..100_u8) {
        let quoted = path.replace('\'', "''");
        let body = format!(
            "{HEAD}evictionHard: {{memory.available: '{memory}', nodefs.available: '{percent}%'}}\nstaticPodPath: '{quoted}'\n"
        );
        let first = read(&texts(Form::Kubelet, &body));
        for form in [Form::Kubelet, Form::Flags] {
            let converted = convert(&first, form);
            let again = read(&texts(form, &converted.text));
            prop_assert_eq!(&again.kubelet.eviction, &first.kubelet.eviction);
            prop_assert_eq!(&again.kubelet.static_pod_path, &path, "{}", converted.text);
        }
    }
}
