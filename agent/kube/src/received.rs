//! A pod as the API server sends it.

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::{Metadata, Resource};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// A pod with the metadata that is read here alone, and so without `metadata.managedFields`. Its author may send those with it,
/// and the API server keeps in them what it does not understand: a time that is later than any that can be read here, or values
/// in one another, deeper than `serde_json` follows them. One such pod would keep a list of all from being read. What is not
/// named here is passed over without being followed (`IgnoredAny`); what is named has the API's types, which no author can make
/// deeper.
#[derive(Clone, Debug)]
pub(crate) struct Received(pub(crate) Pod);

/// [`Pod`].
#[derive(Deserialize)]
struct Object {
    metadata: Option<Identity>,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

/// [`ObjectMeta`]: what is kept of a pod, and its version, by which a watch goes on.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for Received {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Object { metadata, spec, status } = Object::deserialize(deserializer)?;
        let Identity { namespace, name, uid, resource_version, deletion_timestamp, owner_references, annotations } =
            metadata.unwrap_or_default();
        let metadata = ObjectMeta {
            namespace,
            name,
            uid,
            resource_version,
            deletion_timestamp,
            owner_references,
            annotations,
            ..ObjectMeta::default()
        };
        Ok(Self(Pod { metadata, spec, status }))
    }
}

impl Resource for Received {
    type Scope = <Pod as Resource>::Scope;
    const API_VERSION: &'static str = Pod::API_VERSION;
    const GROUP: &'static str = Pod::GROUP;
    const KIND: &'static str = Pod::KIND;
    const VERSION: &'static str = Pod::VERSION;
    const URL_PATH_SEGMENT: &'static str = Pod::URL_PATH_SEGMENT;
}

impl Metadata for Received {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept;
    use crate::testing::{deep, line};
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::{Value, json};

    fn pod(managed_fields: &Value) -> Value {
        let owner =
            json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "s", "controller": true });
        let metadata = json!({ "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7",
            "deletionTimestamp": "2026-11-01T10:00:00Z", "ownerReferences": [owner],
            "annotations": { "kubernetes.io/config.mirror": "h" }, "labels": { "a": "b" }, "managedFields": managed_fields });
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "nodeName": "n1", "containers": [] },
            "status": { "phase": "Running" } })
    }

    #[test]
    fn a_pod_is_read_whatever_its_managed_fields_are_by_itself_in_a_list_and_in_a_watch() {
        let late = json!([{ "manager": "author", "time": "9999-12-31T23:59:59Z" }]);
        let deep = json!([{ "manager": "author", "fieldsV1": deep(200) }]);
        let plain: Pod = serde_json::from_value(pod(&json!([]))).expect("a pod");
        for managed_fields in [json!([]), Value::Null, late, deep] {
            let object = pod(&managed_fields);
            let Received(read) = serde_json::from_str(&object.to_string()).expect("a pod");
            assert_eq!(read.metadata.resource_version.as_deref(), Some("7"));
            assert_eq!(kept(read), kept(plain.clone()), "nothing is lost that is kept");
            let list = json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [object] });
            let list: ObjectList<Received> = serde_json::from_str(&list.to_string()).expect("a list");
            assert_eq!(list.items[0].0.metadata.uid.as_deref(), Some("u"));
            let event = line(&json!({ "type": "DELETED", "object": object }));
            let event = serde_json::from_str::<WatchEvent<Received>>(&event).expect("an event");
            assert!(matches!(event, WatchEvent::Deleted(Received(pod)) if pod.metadata.uid.as_deref() == Some("u")));
        }
    }

    #[test]
    fn a_pod_of_which_nothing_is_written_is_read() {
        for text in ["{}", r#"{ "metadata": null, "spec": null, "status": null, "new": [] }"#] {
            let Received(read) = serde_json::from_str(text).expect("a pod");
            assert_eq!(read, Pod::default());
        }
    }
}
