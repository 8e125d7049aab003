//! A pod as the API server sends it.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A pod without `metadata.managedFields`. Its author may send those with it, and the API server keeps in them what it does not
/// understand, as a time that is later than any that can be read here: one such pod would keep a list of all from being read.
#[derive(Clone, Debug)]
pub(crate) struct Received(pub(crate) Pod);

impl<'de> Deserialize<'de> for Received {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        Pod::deserialize(object).map(Self).map_err(serde::de::Error::custom)
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
