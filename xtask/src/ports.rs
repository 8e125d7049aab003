//! Ports of this machine's loopback.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::Context;

/// So many ports that are free now, none of them twice. Another program may take one before it is used.
pub(crate) fn free<const N: usize>() -> anyhow::Result<[u16; N]> {
    // All at once: one that is let go of is free again.
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener.and_then(|it| it.local_addr()).context("no port of the loopback is free")?.port();
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_port_is_given_twice() {
        let ports = super::free::<5>().expect("free ports");
        let distinct = std::collections::BTreeSet::from(ports);
        assert!(distinct.len() == 5 && !distinct.contains(&0), "{distinct:?}");
    }
}
