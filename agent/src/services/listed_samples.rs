//! What a container runtime lists, for tests.

use std::collections::BTreeMap;

use plimsoll_cri::{Container, ContainerId, ContainerState, ImageUse, Sandbox, SandboxId, SandboxState};

pub(crate) fn sandbox(id: &str, uid: &str, name: &str) -> Sandbox {
    Sandbox {
        id: SandboxId::try_from(id.to_owned()).expect("an id"),
        uid: uid.to_owned(),
        name: name.to_owned(),
        namespace: "default".to_owned(),
        attempt: 0,
        state: SandboxState::Ready,
        created: None,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

pub(crate) fn container(id: &str, sandbox: &str, name: &str, state: ContainerState) -> Container {
    Container {
        id: ContainerId::try_from(id.to_owned()).expect("an id"),
        sandbox: SandboxId::try_from(sandbox.to_owned()).expect("an id"),
        name: name.to_owned(),
        attempt: 0,
        state,
        created: None,
        image: ImageUse::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}
