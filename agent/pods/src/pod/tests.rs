//! Pods as the API writes them, and what is taken from them.

use super::*;
use crate::read_pods;

fn pod(annotations: &str, spec: &str, status: &str) -> Pod {
    let text = format!(
        r#"{{"items": [{{"metadata": {{"name": "a", "namespace": "n", "uid": "u", "annotations": {annotations}}},
        "spec": {spec}, "status": {status}}}]}}"#
    );
    read_pods(text.as_bytes()).expect("it is a list").remove(0)
}

#[test]
fn a_pod_has_its_class_its_requests_and_why_it_is_never_evicted() {
    let container = |requests: &str, limits: &str| {
        format!(
            r#"{{"containers": [{{"name": "c", "resources": {{"requests": {requests}, "limits": {limits}}}}}],
            "priority": 7, "nodeName": "x"}}"#
        )
    };
    for (requests, limits, qos, request, is_limit) in [
        ("{}", "{}", QosClass::BestEffort, 0, false),
        (r#"{"memory": "1Mi"}"#, r#"{"memory": "2Mi"}"#, QosClass::Burstable, 1 << 20, false),
        (r#"{"memory": "2Mi"}"#, r#"{"memory": "2Mi"}"#, QosClass::Burstable, 2 << 20, true),
        ("{}", r#"{"memory": "2Mi"}"#, QosClass::Burstable, 0, true),
        (r#"{"memory": "2Mi", "cpu": 1}"#, r#"{"memory": "2Mi", "cpu": 1}"#, QosClass::Guaranteed, 2 << 20, true),
    ] {
        let pod = pod("null", &container(requests, limits), "{}");
        assert_eq!((pod.qos, pod.memory_request()), (qos, Bytes(request)), "{requests} {limits}");
        assert_eq!(pod.spec.is_limited_to_request(), is_limit, "{requests} {limits}");
        assert_eq!((&*pod.full_name(), &*pod.node, pod.facts.priority, pod.has_ended), ("n/a", "x", 7, false));
        assert_eq!((pod.has_uid("u"), pod.static_uid.clone(), pod.protected()), (true, None, None));
    }
    let mirror = r#"{"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}"#;
    let mirror = pod(mirror, r#"{"priorityClassName": "system-node-critical"}"#, r#"{"phase": "Failed"}"#);
    assert_eq!((mirror.protected(), mirror.is_node_critical, mirror.has_ended), (Some(Protected::Mirror), true, true));
    assert_eq!(["u", "h", "a"].map(|uid| mirror.has_uid(uid)), [true, true, false]);
    let no_mirror = pod(r#"{"kubernetes.io/config.hash": "h"}"#, "{}", "{}");
    assert!(!no_mirror.has_uid("h"), "its author would have it taken for another");
    let of_file = r#"{"kubernetes.io/config.source": "file"}"#;
    assert_eq!(pod(of_file, "{}", "{}").protected(), Some(Protected::Static));
    let critical = pod("{}", r#"{"priority": 2000001000, "priorityClassName": "system-node-critical"}"#, "{}");
    assert_eq!((critical.protected(), critical.is_node_critical), (Some(Protected::Critical), true));
    let classed = pod("{}", r#"{"priorityClassName": "system-node-critical"}"#, "{}");
    assert!(!classed.is_node_critical, "the class alone makes no pod critical");
}

#[test]
fn a_pod_is_one_of_a_daemon_set_by_its_controller_alone() {
    let is_one = |kind: &str, version: &str, controller: &str| {
        let owner = format!(r#"{{"kind": "{kind}", "apiVersion": "{version}", "name": "d", "uid": "9"{controller}}}"#);
        let text = format!(r#"{{"metadata": {{"name": "a", "uid": "1", "ownerReferences": [{owner}]}}}}"#);
        serde_json::from_str::<Pod>(&text).expect("a pod").daemon_set.is_some()
    };
    let own = r#", "controller": true"#;
    assert!(is_one("DaemonSet", "apps/v1", own));
    // What the author of a pod can name without a DaemonSet that takes the pod for its own.
    for (kind, version, controller) in [
        ("DaemonSet", "apps/v1", ""),
        ("DaemonSet", "apps/v1", r#", "controller": false"#),
        ("DaemonSet", "shop.example/v1", own),
        ("DaemonSet", "apps/x", own),
        ("ReplicaSet", "apps/v1", own),
    ] {
        assert!(!is_one(kind, version, controller), "{kind} {version} {controller}");
    }
}

#[test]
fn a_pod_that_others_wait_for_is_known() {
    let mounts = |propagation: &str| {
        format!(
            r#"{{"containers": [{{"name": "c", "volumeMounts": [{{"name": "v", "mountPath": "/v",
            "mountPropagation": "{propagation}"}}]}}]}}"#
        )
    };
    let privileged =
        |of: &str, is| format!(r#"{{"{of}": [{{"name": "c", "securityContext": {{"privileged": {is}}}}}]}}"#);
    let host = |path: &str| format!(r#"{{"volumes": [{{"name": "v", "hostPath": {{"path": "{path}"}}}}]}}"#);
    for (spec, serves) in [
        ("{}".to_owned(), false),
        (r#"{"hostPID": true}"#.to_owned(), true),
        (r#"{"hostNetwork": true}"#.to_owned(), false),
        (mounts("Bidirectional"), true),
        (mounts("HostToContainer"), false),
        (host("/var/lib/kubelet/plugins/ebs.csi.aws.com/"), true),
        (host("/dev/fuse"), true),
        (host("/var/log"), false),
        (host("/dev/"), true),
        (host("/var/lib/kubelet"), true),
        (host("/"), true),
        (host("/var/lib/kubelet/pods"), false),
        (privileged("containers", true), true),
        (privileged("containers", false), false),
        (privileged("initContainers", true), true),
        (privileged("ephemeralContainers", true), true),
        (privileged("ephemeralContainers", false), false),
        (mounts("Bidirectional").replace("containers", "ephemeralContainers"), true),
    ] {
        assert_eq!(pod("null", &spec, "null").serves_others(Path::new(KUBELET)), serves, "{spec}");
    }
    for (path, serves) in [
        ("/data/kubelet/plugins/ebs.csi.aws.com", true),
        ("/data/kubelet/plugins_registry", true),
        ("/data", true),
        ("/data/kubelet/pods", false),
        ("/var/lib/kubelet/plugins", true),
    ] {
        let pod = pod("null", &host(path), "null");
        assert_eq!(pod.serves_others(Path::new("/data/kubelet")), serves, "{path}");
    }
}

#[test]
fn each_container_has_its_own_oom_score_adj() {
    let asks = |name: &str, memory: &str, more: &str| {
        format!(r#"{{"name": "{name}", "resources": {{"requests": {{"memory": "{memory}"}}}}{more}}}"#)
    };
    let spec = format!(
        r#"{{"containers": [{}, {}], "initContainers": [{}, {}]}}"#,
        asks("big", "400", ""),
        asks("small", "100", ""),
        asks("beside", "0", r#", "restartPolicy": "Always""#),
        asks("before", "10", ""),
    );
    let status = r#"{"containerStatuses": [{"name": "big", "containerID": "containerd://abc"}],
                     "initContainerStatuses": [{"name": "beside"}]}"#;
    let scores = |pod: &Pod| -> Vec<i32> {
        pod.spec.running().map(|container| pod.oom_score_adj(container, Bytes(1000))).collect()
    };
    let in_parts = pod("null", &spec, status);
    let running: Vec<_> = in_parts.spec.running().map(|it| (it.name.as_str(), it.id.as_deref())).collect();
    assert_eq!(running, [("beside", None), ("big", Some("abc")), ("small", None)]);
    assert_eq!(scores(&in_parts), [900, 600, 900]);
    let level = spec.replacen('{', r#"{"resources": {"requests": {"memory": "900"}}, "#, 1);
    let level = scores(&pod("null", &level, "{}"));
    assert_eq!(level, [800, 500, 800], "a quarter of the 400 that the pod asks for beyond them");
}

#[test]
fn ephemeral_containers_request_nothing_and_run_until_they_end() {
    let spec = r#"{"containers": [{"name": "web", "resources": {"requests": {"memory": "500"}}}],
        "ephemeralContainers": [{"name": "debugger-1"}, {"name": "debugger-2"}, {"name": "debugger-3"}]}"#;
    let status = r#"{"ephemeralContainerStatuses": [
        {"name": "debugger-1", "containerID": "containerd://1", "state": {"terminated": {"exitCode": 0}}},
        {"name": "debugger-2", "containerID": "containerd://2", "state": {"running": {}}}]}"#;
    let pod = pod("null", spec, status);
    let running: Vec<_> = pod.spec.running().map(|it| (it.name.as_str(), it.id.as_deref())).collect();
    assert_eq!(running, [("web", None), ("debugger-2", Some("2")), ("debugger-3", None)]);
    assert_eq!((pod.memory_request(), pod.qos), (Bytes(500), QosClass::Burstable));
    let scores: Vec<_> = pod.spec.running().map(|it| pod.oom_score_adj(it, Bytes(1000))).collect();
    assert_eq!(scores, [500, 999, 999]);
}

/// A container whose request and limit of memory were changed, as `kubectl get pod -o json` prints it.
fn resized(request: &str, limit: &str, allocated: &str, in_force: &str, conditions: &str) -> Pod {
    let spec = format!(
        r#"{{"containers": [{{"name": "web", "image": "nginx", "resizePolicy": [
                {{"resourceName": "memory", "restartPolicy": "NotRequired"}}],
            "resources": {{"limits": {{"cpu": "1", "memory": "{limit}"}},
                "requests": {{"cpu": "1", "memory": "{request}", "ephemeral-storage": "1Gi"}}}}}}]}}"#
    );
    let status = format!(
        r#"{{"conditions": [{conditions}], "phase": "Running", "qosClass": "Guaranteed", "containerStatuses": [
            {{"name": "web", "containerID": "containerd://ab", "image": "nginx", "imageID": "", "ready": true,
            "restartCount": 0, "state": {{"running": {{}}}}, {allocated}
            "resources": {{"limits": {{"cpu": "1", "memory": "{in_force}"}},
                "requests": {{"cpu": "1", "memory": "{in_force}", "ephemeral-storage": "1Gi"}}}}}}]}}"#
    );
    pod("null", &spec, &status)
}

#[test]
fn a_resize_that_is_not_admitted_keeps_the_request_that_was() {
    let allocated = |memory: &str| {
        format!(r#""allocatedResources": {{"cpu": "1", "memory": "{memory}", "ephemeral-storage": "1Gi"}},"#)
    };
    let pending = |reason: &str| format!(r#"{{"type": "PodResizePending", "status": "True", "reason": "{reason}"}}"#);
    let in_progress = r#"{"type": "PodResizeInProgress", "status": "True"}"#;
    for (allocated, in_force, conditions, request) in [
        (allocated("1Gi"), "1Gi", pending("Deferred"), 1024),
        (allocated("1Gi"), "1Gi", pending("Infeasible"), 1024),
        // The kubelet has not seen it yet.
        (allocated("1Gi"), "1Gi", String::new(), 1024),
        (allocated("2Gi"), "1Gi", in_progress.to_owned(), 2048),
        (allocated("2Gi"), "2Gi", String::new(), 2048),
        // A kubelet that resizes nothing.
        (String::new(), "1Gi", String::new(), 2048),
    ] {
        let pod = resized("2Gi", "2Gi", &allocated, in_force, &conditions);
        assert_eq!(pod.memory_request(), Bytes::mib(request), "{allocated} {conditions}");
        assert_eq!(pod.storage().0, Bytes::mib(1024), "it cannot be resized");
        assert_eq!(pod.qos, QosClass::Guaranteed, "{allocated} {conditions}");
        assert!(pod.spec.is_limited_to_request(), "{allocated} {conditions}");
    }
    let smaller = resized("1Gi", "1Gi", &allocated("2Gi"), "2Gi", &pending("Deferred"));
    assert_eq!((smaller.memory_request(), smaller.qos), (Bytes::mib(2048), QosClass::Guaranteed));
}

#[test]
fn a_resize_of_a_sidecar_and_of_a_pod_as_a_whole_is_taken_from_the_status_as_well() {
    let spec = r#"{"initContainers": [{"name": "proxy", "restartPolicy": "Always",
        "resources": {"requests": {"memory": "3Mi"}}}], "containers": [{"name": "web"}]}"#;
    let status = r#"{"initContainerStatuses": [{"name": "proxy", "allocatedResources": {"memory": "2Mi"}}]}"#;
    assert_eq!(pod("null", spec, status).memory_request(), Bytes::mib(2));
    let spec = r#"{"resources": {"requests": {"memory": "9Mi"}}, "containers": [{"name": "web"}]}"#;
    let whole = pod("null", spec, r#"{"allocatedResources": {"memory": "7Mi"}}"#);
    assert_eq!((whole.memory_request(), whole.qos), (Bytes::mib(7), QosClass::Burstable));
    let wrong = r#"{"items": [{"metadata": {"name": "a", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}, "status":
        {"containerStatuses": [{"name": "c", "allocatedResources": {"memory": "1Q"}}]}}]}"#;
    let error = read_pods(wrong.as_bytes()).expect_err("it is no quantity").to_string();
    assert!(error.contains("status.containerStatuses[0].allocatedResources.memory"), "{error}");
}

#[test]
fn overhead_widens_a_limit_that_is_not_zero() {
    for (limits, printed) in
        [(&["0"][..], Some("0")), (&["0", "1Mi"], Some("1025Mi")), (&["1Mi", "0"], Some("1025Mi")), (&[], None)]
    {
        let limit = |limit: &&str| format!(r#"{{"resources": {{"limits": {{"ephemeral-storage": "{limit}"}}}}}}"#);
        let containers = limits.iter().map(limit).collect::<Vec<_>>().join(",");
        let spec = format!(r#"{{"containers": [{containers}], "overhead": {{"ephemeral-storage": "1Gi"}}}}"#);
        let limit = pod("null", &spec, "null").spec.storage_limit();
        assert_eq!(limit.map(|limit| limit.to_string()).as_deref(), printed);
    }
}
