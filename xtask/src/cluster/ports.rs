//! The ports of the loopback that a control plane listens on.

use std::net::{Ipv4Addr, TcpListener};

use crate::ports::free;

/// The API server's where a node is saved, which has it in its kubeconfig. It is below those that a kernel gives to programs
/// that ask for any.
pub(super) const OF_A_SAVED_NODE: u16 = 16443;

/// One for each server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) api: u16,
    /// For clients, and for members of which there are none.
    pub(super) etcd: [u16; 2],
    pub(super) controller_manager: u16,
    pub(super) scheduler: u16,
}

impl Ports {
    /// Those that each program has unless it is configured.
    pub(super) const USUAL: Self = Self { api: 6443, etcd: [2379, 2380], controller_manager: 10257, scheduler: 10259 };

    /// Whether the API server's is free now.
    pub(super) fn api_is_free(self) -> bool {
        TcpListener::bind((Ipv4Addr::LOCALHOST, self.api)).is_ok()
    }

    /// Ports that are free now. Another program may take one before a server does, which then ends with a sentence.
    pub(super) fn free() -> anyhow::Result<Self> {
        let [api, clients, peers, controller_manager, scheduler] = free()?;
        Ok(Self { api, etcd: [clients, peers], controller_manager, scheduler })
    }
}
