//! The requests.

use super::{Reporter, Write};
use crate::MANAGER;
use crate::error::Refusal;
use crate::eviction::{self, LEAST_GRACE_SECONDS};
use crate::node;
use crate::received::Received;
use crate::standard;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;

impl Reporter {
    /// Sends a request of this time, and waits for what comes of it.
    pub(super) async fn send(&mut self, write: Write, time: Timestamp) -> Result<(), Refusal> {
        let (client, node) = (&self.client, self.node.as_str());
        let conditions = self.conditions.as_deref().unwrap_or_default();
        let sent = match write {
            Write::Compare => node::read_conditions(client, node).await.map(|written| self.compare(&written)),
            Write::Conditions => node::write_conditions(client, node, conditions, time).await,
            Write::Taints => node::write_taints(client, node, &node::wanted(conditions, self.effect)).await,
            Write::Standard => standard::write(client, node, &self.standard.wanted(), time).await,
            Write::Patch(at) => self.patch(at, time).await,
            Write::Look(at) => return self.look(at).await,
            Write::Delete(at) => self.delete(at).await,
            Write::Event(at) => self.create_event(at).await,
            Write::Note(at) => self.create_note(at).await,
        };
        sent.map_err(|error| Refusal::of(&error))
    }

    fn pods_beside(&self, at: usize) -> Api<Received> {
        Api::namespaced(self.client.clone(), &self.outbox[at].entry.eviction.namespace)
    }

    async fn patch(&self, at: usize, time: Timestamp) -> kube::Result<()> {
        let eviction = &self.outbox[at].entry.eviction;
        let patch = Patch::Strategic(eviction::patch(eviction, time));
        let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        self.pods_beside(at).patch_status(&eviction.name, &parameters, &patch).await.map(drop)
    }

    /// A patch that is in conflict is one of another UID, or came at the same time as another one. Whether the pod is still
    /// there: one of the same name and another UID is none.
    async fn look(&self, at: usize) -> Result<(), Refusal> {
        let eviction = &self.outbox[at].entry.eviction;
        // With the rights that following pods takes.
        let named = ListParams::default().fields(&format!("metadata.name={}", eviction.name));
        let found = self.pods_beside(at).list(&named).await.map_err(|error| Refusal::of(&error))?;
        let is_there = found.items.iter().any(|Received(pod)| pod.metadata.uid.as_ref() == Some(&eviction.uid));
        if is_there { Ok(()) } else { Err(Refusal::Gone) }
    }

    async fn delete(&self, at: usize) -> kube::Result<()> {
        let eviction = &self.outbox[at].entry.eviction;
        let preconditions = Preconditions { uid: Some(eviction.uid.clone()), resource_version: None };
        let parameters = DeleteParams {
            grace_period_seconds: Some(eviction.grace_seconds.max(LEAST_GRACE_SECONDS)),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let request = Request::new(self.pods_beside(at).resource_url()).delete(&eviction.name, &parameters);
        // The answer may be the pod, of which `Api::delete` would read all before it is seen what it is.
        self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
    }

    async fn create_event(&self, at: usize) -> kube::Result<()> {
        let eviction = &self.outbox[at].entry.eviction;
        let api = Api::<Event>::namespaced(self.client.clone(), &eviction.namespace);
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        api.create(&parameters, &eviction::event(eviction, &self.node)).await.map(drop)
    }

    async fn create_note(&self, at: usize) -> kube::Result<()> {
        let api = Api::<Event>::namespaced(self.client.clone(), self.notes.namespace(at));
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        api.create(&parameters, &self.notes.event(at, &self.node)).await.map(drop)
    }
}
