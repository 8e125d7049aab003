//! Reports to the service manager (sd_notify(3)), and waits for it in no case: where its queue is full, as it may be
//! just when memory is short, a report is lost.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variables by which it asks for reports; none of the processes that the supervisor starts is to have them.
pub(crate) const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Where it listens.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// How long it waits between two reports that this process runs; absent where it does not.
    pub(crate) watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment names; `None` where this process is not started by one.
    pub(crate) fn from_environment() -> io::Result<Option<Self>> {
        let [address, microseconds, process] = VARIABLES.map(env::var_os);
        let Some(address) = address else { return Ok(None) };
        // The interval may be meant for a process that this one was started by (sd_watchdog_enabled(3)).
        let is_meant = process.is_none_or(|process| process == *std::process::id().to_string());
        let microseconds = microseconds.filter(|_| is_meant).and_then(|text| text.to_str()?.parse().ok());
        Self::at(&address, microseconds.map(Duration::from_micros)).map(Some)
    }

    /// The one that listens at a path, or at an abstract address, which begins with `@`.
    fn at(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match address.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(address)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address, watchdog })
    }

    /// Reports it, as `READY=1`. False: it could not be taken just now.
    pub(crate) fn report(&self, what: &str) -> bool {
        self.socket.send_to_addr(what.as_bytes(), &self.address).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_arrive_and_a_manager_that_does_not_read_holds_up_nothing() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("notify");
        let name = format!("plimsoll-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("a name");
        for (socket, address) in [
            (UnixDatagram::bind(&path), path.into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name), format!("@{name}").into()),
        ] {
            let socket = socket.expect("a socket");
            let manager = ServiceManager::at(&address, None).expect("an address");
            assert!(manager.report("READY=1"));
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes).expect("it came");
            assert_eq!(&bytes[..length], b"READY=1");
            assert!((0..10_000).any(|_| !manager.report("WATCHDOG=1")), "its queue has an end");
        }
    }
}
