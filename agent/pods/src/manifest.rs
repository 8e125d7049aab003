//! The manifest of a static pod: a file in YAML or JSON, which no API server has filled in.

use crate::json::ReadError;
use crate::pod::Pod;
use crate::spec::{FieldError, Spec, bytes};
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plimsoll_policy::kubelet::{Amounts, PodSpec};
use serde_saphyr::{DuplicateKeyPolicy, options};
use std::collections::BTreeMap;

/// The namespace of a manifest that names none (`NamespaceDefault`).
const NAMESPACE: &str = "default";
/// The grace of a pod that names none, in seconds (`DefaultTerminationGracePeriodSeconds`).
const GRACE_SECONDS: i64 = 30;

/// Reads the manifest of a static pod as a kubelet does: with the API's defaults, and with nothing that only the kubelet or an
/// API server may say of a pod (`applyDefaults`, pkg/kubelet/config/common.go): no status, deletion, owner or annotation of
/// the author's counts. A priority class gives no priority: no component resolves it for a static pod.
///
/// The name is the manifest's own: the kubelet appends `-` and the node's name. The UID is empty unless the manifest has one:
/// a kubelet computes it over its own structures. Of several YAML documents the first one counts that is not empty.
///
/// # Errors
/// Where it is no pod with a name, or a quantity in it cannot be read.
pub fn read_manifest(manifest: &[u8]) -> Result<Pod, ReadError> {
    // Of a key that is repeated the last one counts, as for the kubelet's parser.
    let options = options! { duplicate_keys: DuplicateKeyPolicy::LastWins, with_snippet: false };
    // What reads the first document of several takes other encodings, and has signs in place of what is none.
    let text = str::from_utf8(manifest).map_err(|error| ReadError::whole(1, &error.to_string()))?;
    let mut bytes = text.as_bytes();
    let mut documents = serde_saphyr::read_with_options(&mut bytes, options);
    let first = documents.next().ok_or_else(|| ReadError::whole(1, "there is nothing in it"))?;
    let read = first.map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |location| usize::try_from(location.line()).unwrap_or(usize::MAX));
        let why = error.to_string();
        let why = why.lines().next().unwrap_or_default();
        // The place is reported beside it.
        ReadError::whole(line, why.rsplit_once(" at line ").map_or(why, |(why, _)| why))
    })?;
    let of_field = |FieldError { path, why }| ReadError { line: 1, key: path, why };
    let api::Pod { metadata, spec, status: _ } = read;
    if metadata.name.as_ref().is_none_or(String::is_empty) {
        let why = "missing; every static pod has it".to_owned();
        return Err(of_field(FieldError { path: "metadata.name".to_owned(), why }));
    }
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    let metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace.filter(|it| !it.is_empty()).or_else(|| Some(NAMESPACE.to_owned())),
        uid: metadata.uid,
        annotations: Some(BTreeMap::from([source])),
        ..ObjectMeta::default()
    };
    let mut spec = spec.unwrap_or_default();
    fill_in(&mut spec).map_err(of_field)?;
    Pod::try_from(api::Pod { metadata, spec: Some(spec), status: None }).map_err(of_field)
}

/// The defaults of the API that something here is computed from (`SetDefaults_Pod`, pkg/apis/core/v1/defaults.go).
fn fill_in(spec: &mut api::PodSpec) -> Result<(), FieldError> {
    spec.termination_grace_period_seconds.get_or_insert(GRACE_SECONDS);
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if let Some(resources) = &mut container.resources {
            // What is limited is requested.
            let mut requests = resources.limits.clone().unwrap_or_default();
            requests.extend(resources.requests.take().unwrap_or_default());
            resources.requests = Some(requests);
        }
    }
    fill_in_pod_level(spec)
}

/// Of a pod that is limited as a whole and does not say what it requests so: its containers' memory; where these request none,
/// as much as the limit (`defaultPodRequests`). Of processors nothing here is computed.
fn fill_in_pod_level(spec: &mut api::PodSpec) -> Result<(), FieldError> {
    const MEMORY: &str = "memory";
    let Some(level) = &spec.resources else { return Ok(()) };
    let has = |written: &Option<BTreeMap<String, Quantity>>| written.as_ref().is_some_and(|it| it.contains_key(MEMORY));
    if level.limits.as_ref().is_none_or(BTreeMap::is_empty) || has(&level.requests) {
        return Ok(());
    }
    let of_limit = level.limits.as_ref().and_then(|limits| limits.get(MEMORY)).cloned();
    let of_containers = Spec::read(api::PodSpec { resources: None, overhead: None, ..spec.clone() })?
        .with(|spec| PodSpec { pod_level: None, overhead: Amounts::default(), ..spec }.memory_request());
    let request = if of_containers.is_zero() { of_limit } else { Some(Quantity(bytes(of_containers).0.to_string())) };
    if let (Some(level), Some(request)) = (&mut spec.resources, request) {
        level.requests.get_or_insert_default().insert(MEMORY.to_owned(), request);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::kubelet::{Critical, QosClass};
    use plimsoll_units::Bytes;

    /// As kubeadm writes it, in short.
    const ETCD: &str = "apiVersion: v1
kind: Pod
metadata:
  annotations:
    kubeadm.kubernetes.io/etcd.advertise-client-urls: https://192.0.2.1:2379
  creationTimestamp: null
  labels: {component: etcd, tier: control-plane}
  name: etcd
  namespace: kube-system
spec:
  containers:
  - command: [etcd, --data-dir=/var/lib/etcd]
    image: registry.k8s.io/etcd:3.6.4-0
    livenessProbe:
      httpGet: {host: 127.0.0.1, path: /livez, port: probe-port, scheme: HTTP}
      initialDelaySeconds: 10
    name: etcd
    ports: [{containerPort: 2381, name: probe-port, protocol: TCP}]
    resources:
      requests: {cpu: 100m, memory: 100Mi}
    volumeMounts: [{mountPath: /var/lib/etcd, name: etcd-data}]
  hostNetwork: true
  priority: 2000001000
  priorityClassName: system-node-critical
  volumes:
  - hostPath: {path: /var/lib/etcd, type: DirectoryOrCreate}
    name: etcd-data
status: {}
";

    fn read(text: &str) -> Pod {
        read_manifest(text.as_bytes()).expect(text)
    }

    /// A pod with these lines of its specification.
    fn pod(spec: &str) -> Pod {
        read(&format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  {}\n", spec.replace('\n', "\n  ")))
    }

    #[test]
    fn what_kubeadm_writes_is_read_and_the_pod_is_static() {
        let etcd = read(ETCD);
        assert_eq!((etcd.full_name().as_str(), etcd.uid.as_str()), ("kube-system/etcd", ""));
        assert_eq!(etcd.facts.critical, Some(Critical::Static));
        assert_eq!((etcd.facts.priority, etcd.facts.grace_seconds), (2_000_001_000, Some(30)));
        assert_eq!((etcd.memory_request(), etcd.qos), (Bytes::mib(100), QosClass::Burstable));
        assert_eq!(pod("priorityClassName: system-node-critical").facts.priority, 0, "no component resolves it");
        assert_eq!(pod("terminationGracePeriodSeconds: 0").facts.grace_seconds, Some(0));
    }

    #[test]
    fn json_is_read_in_the_same_way() {
        let text = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"7"},
            "spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":1,"memory":1048576}}}]}}"#;
        let pod = read(text);
        assert_eq!((pod.full_name().as_str(), pod.uid.as_str()), ("default/a", "7"));
        assert_eq!((pod.memory_request(), pod.qos), (Bytes::mib(1), QosClass::Guaranteed));
    }

    #[test]
    fn what_is_limited_is_requested_unless_something_else_is() {
        let container = |name: &str, resources: &str| format!("- {{name: {name}, resources: {{{resources}}}}}\n");
        let limited = container("a", "limits: {memory: 64Mi, ephemeral-storage: 1Gi}");
        let asks = container("b", "requests: {memory: 16Mi}, limits: {memory: 64Mi}");
        let none = container("c", "");
        let of = |containers: &[&str]| format!("containers:\n{}", containers.concat());
        let level = |level: &str, containers: &[&str]| format!("resources: {{{level}}}\n{}", of(containers));
        for (spec, expected) in [
            (of(&[&limited, &asks, &none]), 80),
            (format!("init{}{}", of(&[&limited]).replace("containers", "Containers"), of(&[&asks])), 64),
            (level("limits: {memory: 256Mi}", &[&none]), 256),
            (level("limits: {memory: 256Mi}", &[&asks]), 16),
            (level("limits: {cpu: 1}", &[&asks]), 16),
            (level("limits: {memory: 256Mi}, requests: {memory: 128Mi}", &[&asks]), 128),
            (level("", &[&limited]), 64),
        ] {
            assert_eq!(pod(&spec).memory_request(), Bytes::mib(expected), "{spec}");
        }
        let (storage, limit) = pod(&of(&[&limited])).storage();
        assert_eq!((storage, limit), (Bytes::mib(1024), Some(Bytes::mib(1024))));
    }

    #[test]
    fn what_only_a_kubelet_or_an_api_server_may_say_counts_for_nothing() {
        let pod = read(
            "kind: Pod\nmetadata:\n  name: a\n  deletionTimestamp: '2026-01-01T00:00:00Z'\n  annotations:\n    \
             kubernetes.io/config.mirror: 0123456789abcdef0123456789abcdef\n    \
             kubernetes.io/config.hash: 0123456789abcdef0123456789abcdef\n    kubernetes.io/config.source: api\n  \
             ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: '1', controller: true}]\nspec: {containers: []}\n\
             status: {phase: Succeeded, startTime: '2026-01-01T00:00:00Z'}\n",
        );
        assert_eq!((pod.static_uid, pod.daemon_set, pod.ends, pod.started), (None, None, None, None));
        assert_eq!((pod.has_ended, pod.facts.critical), (false, Some(Critical::Static)));
    }

    #[test]
    fn what_is_no_manifest_is_refused_with_the_reason_and_in_one_line() {
        let quantity = "metadata: {name: a}\nspec:\n  containers: [{name: c, resources: {limits: {memory: lots}}}]\n";
        let level = "metadata: {name: a}\nspec: {containers: [], resources: {limits: {memory: lots}}}\n";
        let deep = format!("metadata: {{name: a}}\nspec: {}{}", "[".repeat(10_000), "]".repeat(10_000));
        let nested = |it| format!("a{it}: &a{it} [{}]\n", format!("*a{}, ", it - 1).repeat(9));
        let levels: Vec<String> = (1..12).map(nested).collect();
        let laughs = format!("a0: &a0 [x, x, x, x, x, x, x, x, x]\n{}metadata: {{name: a}}\n", levels.concat());
        for (text, begin) in [
            ("", "1: "),
            ("[", "1: unclosed bracket '['"),
            ("\u{7}", "1: "),
            ("kind: Deployment\nmetadata: {name: a}\n", "1: "),
            ("kind: Pod\nmetadata: {namespace: b}\nspec: {}\n", "1: metadata.name: missing"),
            ("kind: Pod\nmetadata: {name: ''}\n", "1: metadata.name: missing"),
            ("metadata: {name: a}\nspec: {containers: 7}\n", "2: "),
            (
                quantity,
                "1: spec.containers[0].resources.requests.memory: expected a quantity such as 500Mi, not \"lots\"",
            ),
            (level, "1: spec.resources."),
            (&deep, "2: "),
            (&laughs, ""),
        ] {
            let error = read_manifest(text.as_bytes()).map(drop).expect_err(&text[..text.len().min(80)]).to_string();
            assert!(error.starts_with(begin) && !error.contains('\n'), "{error}");
        }
        let error = read_manifest(b"metadata: {name: \xff}").expect_err("no UTF-8");
        assert!(!error.why.is_empty());
    }

    #[test]
    fn of_a_key_that_is_repeated_the_last_one_counts() {
        assert_eq!(read("metadata: {name: a}\nmetadata: {name: b}\n").name, "b");
    }

    #[test]
    fn of_several_documents_the_first_one_counts() {
        for (before, after) in [("", "---\nkind: Other\n"), ("---\n", "...\n"), ("# a comment\n---\n", "---\n[")] {
            let pod = read(&format!("{before}{ETCD}{after}"));
            assert_eq!((pod.name.as_str(), pod.memory_request()), ("etcd", Bytes::mib(100)), "{before:?} {after:?}");
        }
        let error = read_manifest(b"kind: Other\n---\nkind: Pod\nmetadata: {name: a}\n");
        assert!(error.is_err(), "a pod that comes later is none of a kubelet's");
    }
}
