//! The ports of the loopback that a control plane listens on.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::Context;

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

    /// Ports that are free now. Another program may take one before a server does, which then ends with a sentence.
    pub(super) fn free() -> anyhow::Result<Self> {
        // All at once, so that no port is given twice.
        let listeners = [(); 5].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let mut ports = [0; 5];
        for (port, listener) in ports.iter_mut().zip(listeners) {
            *port = listener.and_then(|it| it.local_addr()).context("no port of the loopback is free")?.port();
        }
        let [api, clients, peers, controller_manager, scheduler] = ports;
        Ok(Self { api, etcd: [clients, peers], controller_manager, scheduler })
    }
}

#[cfg(test)]
mod tests {
    use super::Ports;

    #[test]
    fn no_port_is_given_twice() {
        let Ports { api, etcd: [clients, peers], controller_manager, scheduler } = Ports::free().expect("free ports");
        let distinct = std::collections::BTreeSet::from([api, clients, peers, controller_manager, scheduler]);
        assert!(distinct.len() == 5 && !distinct.contains(&0), "{distinct:?}");
    }
}
