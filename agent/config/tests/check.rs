//! Common mistakes, and the messages for them.

use plimsoll_config::{Findings, Headroom, Node, Overrides, Pod, Text, Texts, check, examine_texts, parse_static_pod};
use plimsoll_units::{Bytes, Quantity};

fn text(file: &str, text: &str) -> Text {
    Text { file: file.to_owned(), text: text.to_owned() }
}

fn own(body: &str) -> Texts {
    Texts { own: Some(text("f", body)), ..Texts::default() }
}

fn node_config(body: &str) -> Texts {
    Texts { node_config: Some(text("node-config.yaml", &format!("kubeletArguments:\n{body}"))), ..Texts::default() }
}

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn bytes(quantity: &str) -> Bytes {
    Quantity::parse(quantity).expect("a quantity").bytes().expect("bytes")
}

fn warnings(texts: &Texts, node: &Node) -> Vec<String> {
    let report = examine_texts(texts, &Overrides::default());
    assert_eq!(report.errors, []);
    check(&report.configuration, node).warnings.iter().map(ToString::to_string).collect()
}

/// The documentation's scenarios: 10 GiB, of which the system uses 10 %.
#[test]
fn the_scenarios_of_the_documentation() {
    let system_uses = Some(bytes("1Gi"));
    for (name, body, line, by_documents, allocatable, may_use, missing) in [
        (
            "evict at 95 % use: 500Mi, and 1.5Gi reserved",
            "  eviction-hard: ['memory.available<500Mi']\n  system-reserved: ['1.5Gi']\n",
            "500Mi",
            "8.5Gi",
            "8204Mi",
            "1536Mi",
            None,
        ),
        (
            "10 % for half a minute or 5 % at once: pods may have 8 GiB",
            "  eviction-soft: ['memory.available<10%']\n  eviction-soft-grace-period: ['memory.available=30s']\n  \
             eviction-hard: ['memory.available<5%']\n  system-reserved: ['memory=2Gi']\n",
            // The kubelet's ten percent of 10 GiB are 16 bytes more than 1 GiB.
            "1073741840",
            "8Gi",
            "8053063672",
            "1610612728",
            None,
        ),
        (
            "5 % at once: pods may have 8.5 GiB",
            "  eviction-hard: ['memory.available<5%']\n  system-reserved: ['memory=1.5Gi']\n",
            "536870920",
            "8.5Gi",
            "8589934584",
            "1536Mi",
            None,
        ),
        // Without following it.
        (
            "10 % for half a minute, and the system's own use reserved alone",
            "  eviction-soft: ['memory.available<10%']\n  eviction-soft-grace-period: ['memory.available=30s']\n  \
             eviction-hard: ['memory.available<5%']\n  system-reserved: ['memory=1Gi']\n",
            "1073741840",
            "9Gi",
            "9126805496",
            "536870904",
            Some("536870920"),
        ),
        (
            "nothing reserved",
            "  eviction-hard: ['memory.available<500Mi']\n",
            "500Mi",
            "10Gi",
            "9740Mi",
            "0",
            Some("1Gi"),
        ),
    ] {
        let report = examine_texts(&node_config(body), &Overrides::default());
        assert_eq!(report.errors, [], "{name}");
        let node = Node { memory: Some(bytes("10Gi")), system_uses, has_kubelet: true, ..Node::default() };
        let findings = check(&report.configuration, &node);
        let headroom = findings.headroom.expect("the capacity is known");
        assert_eq!(headroom.threshold(), bytes(line), "{name}");
        assert_eq!(headroom.less_reservations, bytes(by_documents), "{name}");
        assert_eq!(headroom.allocatable, bytes(allocatable), "{name}");
        assert_eq!(headroom.system_may_use(), bytes(may_use), "{name}");
        assert_eq!(headroom.missing(), missing.map(bytes), "{name}");
        assert_eq!(findings.warnings.is_empty(), missing.is_none(), "{name}: {:?}", findings.warnings);
    }
}

#[test]
fn pods_within_their_requests_that_reach_a_threshold_are_reported() {
    let node = |uses: Option<&str>| Node {
        has_kubelet: true,
        memory: Some(bytes("10Gi")),
        system_uses: uses.map(bytes),
        ..Node::default()
    };
    for (body, uses, reported) in [
        (
            "evictionHard: {memory.available: 500Mi}",
            None,
            Some(
                "default: systemReserved.memory: \"0\": pods within their requests (9740Mi in all) can reach the threshold of \
                 500Mi, as soon as the system uses anything itself; expected kubeReserved and systemReserved to cover what \
                 the system itself uses",
            ),
        ),
        (
            "evictionHard: {memory.available: 500Mi}\nsystemReserved: {memory: 1Gi}",
            Some("1536Mi"),
            Some(
                "f:2: systemReserved.memory: \"1Gi\": pods within their requests (8716Mi in all) can reach the threshold of \
                 500Mi, for the system uses 1536Mi; expected kubeReserved and systemReserved to cover 512Mi more",
            ),
        ),
        (
            "evictionHard: {}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}\n\
             systemReserved: {memory: 512Mi}",
            None,
            Some(
                "f:4: systemReserved.memory: \"512Mi\": pods within their requests (9728Mi in all) can reach the threshold of \
                 1Gi, as soon as the system uses anything itself; expected kubeReserved and systemReserved to cover 512Mi \
                 more, and what the system itself uses",
            ),
        ),
        ("evictionHard: {memory.available: 500Mi}\nsystemReserved: {memory: 1Gi}", Some("1Gi"), None),
        ("evictionHard: {memory.available: 500Mi}\nkubeReserved: {memory: 1Gi}", None, None),
    ] {
        assert_eq!(
            warnings(&own(body), &node(uses)),
            reported.map(str::to_owned).into_iter().collect::<Vec<_>>(),
            "{body}"
        );
    }
    let too_much = examine_texts(&own("systemReserved: {memory: 10Gi}"), &Overrides::default());
    let findings = check(&too_much.configuration, &node(None));
    let errors: Vec<String> = findings.errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "f:1: systemReserved.memory: \"10Gi\": with the hard threshold of 100Mi it is more than there is, 10Gi, and the \
             kubelet does not start"
        ]
    );
    assert!(Headroom::of(&too_much.configuration.kubelet, &Node::default()).is_none());
    // With this flag the kubelet takes no threshold off.
    let flags = "kubelet --system-reserved=memory=10Gi --eviction-hard=memory.available<100Mi \
                 --experimental-allocatable-ignore-eviction";
    let ignored = Texts { kubelet_command_line: vec![text("cmdline", flags)], ..Texts::default() };
    let ignored = examine_texts(&ignored, &Overrides::default());
    assert_eq!(check(&ignored.configuration, &node(None)).errors, []);
}

/// As the kubelet computes what pods can request: the pool is requested by name.
#[test]
fn what_is_set_aside_for_huge_pages_is_taken_off_what_pods_can_request() {
    let of = |body: &str, huge_pages: &str| {
        let report = examine_texts(&own(body), &Overrides::default());
        assert_eq!(report.errors, [], "{body}");
        let node =
            Node { has_kubelet: true, memory: Some(bytes("10Gi")), huge_pages: bytes(huge_pages), ..Node::default() };
        let findings = check(&report.configuration, &node);
        assert!(findings.errors.is_empty(), "{body}");
        findings.headroom.expect("the capacity is known")
    };
    for (body, allocatable, may_use, missing) in [
        ("evictionHard: {memory.available: 500Mi}\nsystemReserved: {memory: 1Gi}", "6668Mi", "1Gi", None),
        // A percentage is one of all memory, as in the kubelet.
        ("evictionHard: {memory.available: 5%}\nsystemReserved: {memory: 1Gi}", "6979321848", "1Gi", None),
        (
            "evictionHard: {}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}\n\
             systemReserved: {memory: 512Mi}",
            "7680Mi",
            "0",
            Some("512Mi"),
        ),
    ] {
        let (without, with) = (of(body, "0"), of(body, "2Gi"));
        assert_eq!(with.huge_pages, bytes("2Gi"));
        assert_eq!(with.allocatable, bytes(allocatable), "{body}");
        assert_eq!(with.allocatable, without.allocatable.saturating_sub(bytes("2Gi")), "{body}");
        for headroom in [with, without] {
            assert_eq!(headroom.system_may_use(), bytes(may_use), "{body}");
            assert_eq!(headroom.missing(), missing.map(bytes), "{body}");
        }
    }
    let all = "evictionPolicy: kubelet\nevictionHard: {memory.available: 500Mi}";
    assert_eq!(of(all, "10Gi").allocatable, Bytes::ZERO, "nothing below it");
}

#[test]
fn a_soft_threshold_belongs_above_the_hard_one() {
    let grace = "evictionSoftGracePeriod: {memory.available: 1m, nodefs.available: 1m}";
    let below = |soft: &str, signal: &str, hard: &str| {
        vec![format!(
            "f:2: evictionSoft.{signal}: {soft:?}: not above the hard threshold of {hard}, which acts first; expected more"
        )]
    };
    for (hard, soft, memory, reported) in [
        ("memory.available: 500Mi", "memory.available: 500Mi", None, below("500Mi", "memory.available", "500Mi")),
        ("memory.available: 1Gi", "memory.available: 1000Mi", None, below("1000Mi", "memory.available", "1Gi")),
        ("memory.available: 10%", "memory.available: 5%", None, below("5%", "memory.available", "10%")),
        ("memory.available: 10%", "memory.available: 1Gi", Some("20Gi"), below("1Gi", "memory.available", "10%")),
        ("memory.available: 10%", "memory.available: 1Gi", Some("5Gi"), vec![]),
        // The sizes of disks are not known here.
        ("memory.available: 10%", "memory.available: 1Gi", None, vec![]),
        ("nodefs.available: 10%", "nodefs.available: 1Gi", Some("5Gi"), vec![]),
        ("nodefs.available: 10%", "nodefs.available: 9%", None, below("9%", "nodefs.available", "10%")),
        ("memory.available: 500Mi", "memory.available: 1Gi", None, vec![]),
    ] {
        let body =
            format!("evictionHard: {{{hard}}}\nevictionSoft: {{{soft}}}\n{grace}\nsystemReserved: {{memory: 4Gi}}");
        let body = if soft.starts_with("memory") {
            body.replace(", nodefs.available: 1m", "")
        } else {
            body.replace("memory.available: 1m, ", "")
        };
        let node = Node { memory: memory.map(bytes), ..Node::default() };
        assert_eq!(warnings(&own(&body), &node), reported, "{body}");
    }
}

#[test]
fn a_soft_threshold_on_allocatable_memory_belongs_above_the_hard_one_that_follows_from_memory() {
    let signal = "allocatableMemory.available";
    let body = format!(
        "evictionHard: {{memory.available: 500Mi}}\nevictionSoft: {{{signal}: 400Mi}}\nevictionSoftGracePeriod: {{{signal}: \
         1m}}\nmachine: {{podFacts: /run/pods/pods.json}}"
    );
    assert_eq!(
        warnings(&own(&body), &Node::default()),
        [
            "f:2: evictionSoft.allocatableMemory.available: \"400Mi\": not above the hard threshold of 500Mi, which acts first; \
          expected more"
        ]
    );
}

#[test]
fn a_soft_threshold_of_a_slice_belongs_above_its_hard_one() {
    let below = |soft: &str, hard: &str| {
        vec![format!(
            "f:3: machine.slices[1].evictionSoft.memory.available: {soft:?}: not above the hard threshold of {hard}, which acts \
             first; expected more"
        )]
    };
    for (hard, soft, reported) in [
        ("evictionHard: {memory.available: 64Mi}", "64Mi", below("64Mi", "64Mi")),
        ("evictionHard: {memory.available: 1Gi}", "1000Mi", below("1000Mi", "1Gi")),
        ("evictionHard: {memory.available: 10%}", "5%", below("5%", "10%")),
        ("evictionHard: {memory.available: 64Mi}", "65Mi", vec![]),
        ("evictionHard: {memory.available: 5%}", "10%", vec![]),
        // The limits of slices are not known here.
        ("evictionHard: {memory.available: 90%}", "1Mi", vec![]),
        ("evictionHard: {memory.available: 1Gi}", "1%", vec![]),
        ("evictionMinimumReclaim: {memory.available: 1Gi}", "1Mi", vec![]),
    ] {
        let body = format!(
            "evictionHard: {{memory.available: 500Mi}}\nmachine:\n  slices: [{{path: a, evictionHard: {{memory.available: \
             64Mi}}}}, {{path: b, {hard}, evictionSoft: {{memory.available: {soft}}}, evictionSoftGracePeriod: \
             {{memory.available: 1m}}}}]"
        );
        assert_eq!(warnings(&own(&body), &Node::default()), reported, "{body}");
    }
}

#[test]
fn a_threshold_belongs_above_what_the_kernels_counters_may_be_off_by() {
    let grace = "evictionSoftGracePeriod: {memory.available: 1m}";
    let hard = "f:1: evictionHard.memory.available: \"100Mi\"";
    let why = "the CPUs of this machine keep back parts of the kernel's counters, so that available memory may be off by 751Mi \
               until they fold them in; expected more";
    for (body, memory, uncertainty, reported) in [
        ("evictionHard: {memory.available: 100Mi}".to_owned(), "1Ti", Some("751Mi"), vec![format!("{hard}: {why}")]),
        ("evictionHard: {memory.available: 752Mi}".to_owned(), "1Ti", Some("751Mi"), vec![]),
        ("evictionHard: {memory.available: 0%, nodefs.available: 1Mi}".to_owned(), "1Ti", Some("751Mi"), vec![]),
        ("evictionHard: {memory.available: 1%}".to_owned(), "1Ti", Some("751Mi"), vec![]),
        (
            format!("evictionHard: {{}}\nevictionSoft: {{memory.available: 1%}}\n{grace}"),
            "64Gi",
            Some("751Mi"),
            vec![format!("f:2: evictionSoft.memory.available: \"1%\": {why}")],
        ),
        ("evictionHard: {memory.available: 100Mi}".to_owned(), "1Ti", None, vec![]),
    ] {
        let node = Node { memory: Some(bytes(memory)), uncertainty: uncertainty.map(bytes), ..Node::default() };
        assert_eq!(warnings(&own(&body), &node), reported, "{body}");
    }
}

#[test]
fn settings_without_effect_on_the_node_are_reported() {
    let file = |body: &str| Texts { kubelet_config: Some(text("k", &format!("{HEAD}{body}"))), ..Texts::default() };
    let swap = Node { has_kubelet: true, swaps: vec!["/dev/sda2".to_owned()], ..Node::default() };
    let v2 = |cgroup_v2| Node { cgroup_v2, ..Node::default() };
    let notification = "k:3: kernelMemcgNotification: \"true\": no effect on cgroup v2, where the kubelet has no such notification; \
         Plimsoll's own hooks report a crossing at once";
    for (texts, node, reported) in [
        (file("kernelMemcgNotification: true"), v2(Some(true)), vec![notification]),
        (file("kernelMemcgNotification: true"), v2(Some(false)), vec![]),
        (file("kernelMemcgNotification: true"), v2(None), vec![]),
        (file("kernelMemcgNotification: false"), v2(Some(true)), vec![]),
        (
            file("maxPods: 10"),
            swap.clone(),
            vec![
                "default: failSwapOn: \"true\": this kubelet does not start while there is swap (/dev/sda2); expected \
                 swapoff, or failSwapOn: false and memorySwap.swapBehavior",
            ],
        ),
        (file("failSwapOn: false"), swap.clone(), vec![]),
        // Without a kubelet, swap and requests are not checked.
        (
            own("evictionHard: {memory.available: 500Mi}"),
            Node { has_kubelet: false, memory: Some(bytes("10Gi")), ..swap },
            vec![],
        ),
    ] {
        assert_eq!(warnings(&texts, &node), reported, "{texts:?}");
    }
}

#[test]
fn daemon_sets_and_static_pods_without_priority_are_reported() {
    let pod = |name: &str, owner: Option<&str>, priority| Pod {
        name: name.to_owned(),
        daemon_set: owner.map(str::to_owned),
        priority,
    };
    let manifest = |spec: &str| {
        parse_static_pod(&format!("kind: Pod\nmetadata: {{name: etcd}}\nspec:\n{spec}"), "etcd.yaml").expect("a pod")
    };
    let node = Node {
        pods: vec![
            pod("kube-system/log-1", Some("kube-system/log"), 0),
            pod("kube-system/log-2", Some("kube-system/log"), 0),
            pod("kube-system/cni-1", Some("kube-system/cni"), 2_000_001_000),
            pod("a/web-1", None, 0),
        ],
        static_pods: vec![
            manifest("  priorityClassName: system-node-critical\n"),
            manifest("  priorityClassName: system-node-critical\n  priority: 2000001000\n"),
            manifest("  containers: []\n"),
        ],
        ..Node::default()
    };
    assert_eq!(
        warnings(&Texts::default(), &node),
        [
            "pods: DaemonSet kube-system/log: \"priority 0\": kube-system/log-1 and 1 more: evicted like any other, made \
             again on this node at once, and over the threshold again; expected a priorityClassName with a high priority, unless \
             it may only run where there is room",
            "etcd.yaml:4: static pod etcd: spec.priorityClassName: \"system-node-critical\": no component resolves this name \
             for a static pod, so that its priority is 0 for eviction and shutdown; expected spec.priority with the \
             class's number beside it",
        ]
    );
    for text in ["", "a: [", "- 1", "kind: Pod"] {
        assert!(!parse_static_pod(text, "f").expect_err("it is no pod").is_empty(), "{text}");
    }
}

/// What a check of these texts finds, and nothing else.
fn compare(texts: &Texts, node: &Node, errors: Vec<String>, warnings: Vec<String>) {
    let report = examine_texts(texts, &Overrides::default());
    assert_eq!(report.errors, []);
    let found = check(&report.configuration, node);
    let [found, warned] =
        [found.errors, found.warnings].map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!((found, warned), (errors, warnings), "{texts:?}");
}

#[test]
fn a_threshold_that_the_machine_cannot_have_is_an_error_in_plimsolls_own_file_and_a_warning_elsewhere() {
    let node = Node { memory: Some(bytes("16Gi")), available: Some(bytes("6Gi")), ..Node::default() };
    let kubelet = |body: &str| Texts { kubelet_config: Some(text("k", &format!("{HEAD}{body}"))), ..Texts::default() };
    let grace = "evictionSoftGracePeriod: {memory.available: 1m}";
    for (texts, errors, warnings) in [
        (
            own("evictionHard: {memory.available: 20Gi}"),
            vec![
                "f:1: evictionHard.memory.available: \"20Gi\": the machine has 16Gi, so that this is always met; expected less",
            ],
            vec![],
        ),
        (
            own(&format!("evictionSoft: {{memory.available: 16Gi}}\n{grace}")),
            vec![
                "f:1: evictionSoft.memory.available: \"16Gi\": the machine has 16Gi, so that this is always met; expected less",
            ],
            vec![],
        ),
        // Without a grace period it acts at once, like the hard one beside it.
        (
            own(&format!("evictionSoft: {{memory.available: 64Gi}}\n{}", grace.replace("1m", "0s"))),
            vec![
                "f:1: evictionSoft.memory.available: \"64Gi\": the machine has 16Gi, so that this is always met; expected less",
            ],
            vec![],
        ),
        (
            kubelet("evictionHard: {memory.available: 20Gi}"),
            vec![],
            vec![
                "k:3: evictionHard.memory.available: \"20Gi\": the machine has 16Gi, so that this is always met; expected less",
            ],
        ),
        (
            own("evictionHard: {memory.available: 99%}"),
            vec![],
            vec![
                "f:1: evictionHard.memory.available: \"99%\": 16609444Ki is more than half of what the machine has, 16Gi",
            ],
        ),
        (
            own("evictionHard: {memory.available: 9Gi}"),
            vec![],
            vec!["f:1: evictionHard.memory.available: \"9Gi\": 9Gi is more than half of what the machine has, 16Gi"],
        ),
        (
            own("evictionHard: {memory.available: 7Gi}"),
            vec![],
            vec![
                "f:1: evictionHard.memory.available: \"7Gi\": met right now: 6Gi is available, and the threshold is 7Gi",
            ],
        ),
        (own("evictionHard: {memory.available: 6Gi}"), vec![], vec![]),
        (own("evictionHard: {memory.available: 100%}"), vec![], vec![]),
    ] {
        let [errors, warnings] = [errors, warnings].map(|all| all.into_iter().map(str::to_owned).collect());
        compare(&texts, &node, errors, warnings);
    }
    // Defaults are the kubelet's, also where a machine has less.
    let report = examine_texts(&own("machine: {}"), &Overrides::default());
    let small = Node { memory: Some(bytes("64Mi")), ..Node::default() };
    assert_eq!(check(&report.configuration, &small).errors, []);
}

#[test]
fn a_minimum_reclaim_that_cannot_be_reached_is_an_error_in_plimsolls_own_file_and_a_warning_elsewhere() {
    let node = Node { memory: Some(bytes("16Gi")), available: Some(bytes("6Gi")), ..Node::default() };
    let kubelet = |body: &str| Texts { kubelet_config: Some(text("k", &format!("{HEAD}{body}"))), ..Texts::default() };
    let grace = "evictionSoftGracePeriod: {memory.available: 1m}";
    let reclaim = "evictionMinimumReclaim";
    let unending = |place: &str, value: &str| {
        format!(
            "{place}: {reclaim}.memory.available: {value:?}: with the threshold of 500Mi the machine, which has 16Gi, never has so \
             much available, so that evictions would not end; expected less"
        )
    };
    for (texts, errors, warnings) in [
        (
            own(&format!("evictionHard: {{memory.available: 500Mi}}\n{reclaim}: {{memory.available: 16Gi}}")),
            vec![unending("f:2", "16Gi")],
            vec![],
        ),
        (
            own(&format!("evictionHard: {{memory.available: 500Mi}}\n{reclaim}: {{memory.available: 98%}}")),
            vec![unending("f:2", "98%")],
            vec![],
        ),
        (
            kubelet(&format!("evictionHard: {{memory.available: 500Mi}}\n{reclaim}: {{memory.available: 100%}}")),
            vec![],
            vec![unending("k:4", "100%")],
        ),
        (
            own(&format!("evictionHard: {{memory.available: 500Mi}}\n{reclaim}: {{memory.available: 15Gi}}")),
            vec![],
            vec![],
        ),
        // A kubelet's minimum reclaim, and a threshold of Plimsoll's own file.
        (
            Texts {
                own: own("evictionHard: {memory.available: 500Mi}").own,
                ..kubelet(&format!("{reclaim}: {{memory.available: 100%}}"))
            },
            vec![],
            vec![unending("k:3", "100%")],
        ),
        // It is one value, of which one threshold is enough to say.
        (
            own(&format!(
                "evictionHard: {{memory.available: 500Mi}}\n{reclaim}: {{memory.available: 98%}}\n\
                 evictionSoft: {{memory.available: 600Mi}}\n{grace}"
            )),
            vec![unending("f:2", "98%")],
            vec![],
        ),
    ] {
        compare(&texts, &node, errors, warnings);
    }
}

#[test]
fn what_is_set_aside_for_huge_pages_is_available_by_the_kubelets_policy_alone() {
    let [memory, available] = ["16Gi", "15Gi"].map(|text| Some(bytes(text)));
    let node = Node { memory, available, huge_pages: bytes("8Gi"), ..Node::default() };
    let always = "f:1: evictionHard.memory.available: \"9Gi\": the machine has 8Gi beside what is set aside for huge pages, so \
                  that this is always met; expected less";
    let half = "f:1: evictionHard.memory.available: \"9Gi\": 9Gi is more than half of what the machine has, 16Gi";
    for (policy, expected) in [("plimsoll", [vec![always], vec![]]), ("kubelet", [vec![], vec![half]])] {
        let text = format!("evictionHard: {{memory.available: 9Gi}}\nevictionPolicy: {policy}");
        let report = examine_texts(&own(&text), &Overrides::default());
        let Findings { errors, warnings, .. } = check(&report.configuration, &node);
        let found = [errors, warnings].map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(found, expected, "{policy}");
    }
}

#[test]
fn a_path_that_the_shipped_unit_hides_is_warned_of() {
    let paths = "machine: {podFacts: /home/ops/pods/pods.json, killSwitch: /root/plimsoll/switch,\n\
                 imageRoot: /homes/images, runtimeSocket: /run/user/1000/podman.sock}";
    assert_eq!(
        warnings(&own(paths), &Node::default()),
        [
            "f:1: machine.podFacts: \"/home/ops/pods/pods.json\": below /home, which the shipped unit hides \
             (ProtectHome=yes); expected another place",
            "f:1: machine.killSwitch: \"/root/plimsoll/switch\": below /root, which the shipped unit hides \
             (ProtectHome=yes); expected another place",
            "f:2: machine.runtimeSocket: \"/run/user/1000/podman.sock\": below /run/user, which the shipped unit hides \
             (ProtectHome=yes); expected another place",
        ]
    );
}
