//! Takes in the names of pods that `services` sends.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_report::{NAME_MESSAGE, Reporter, lock};
use tokio::net::UnixDatagram;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// So many names of pods are taken in before a pause: `services` is not trusted, and metrics are served meanwhile.
const BATCH: usize = 256;
const PAUSE: Duration = Duration::from_millis(20);

/// Names are taken in from one way, until this is dropped.
pub(super) struct Taken(JoinHandle<()>);

impl Taken {
    pub(super) fn from(way: OwnedFd, reporter: &Arc<Mutex<Reporter>>) -> std::io::Result<Self> {
        let way = UnixDatagram::from_std(way.into())?;
        Ok(Self(tokio::spawn(take_all(way, Arc::clone(reporter)))))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Takes in what `services` sends of names of pods, until it has ended.
async fn take_all(way: UnixDatagram, reporter: Arc<Mutex<Reporter>>) {
    // What is longer than a message is seen to be.
    let mut buffer = [0; NAME_MESSAGE + 1];
    loop {
        for _ in 0..BATCH {
            match way.recv(&mut buffer).await {
                // The end, or a message that is empty, which none of its is.
                Ok(0) | Err(_) => return,
                Ok(length) => lock(&reporter).take_names(&buffer[..length]),
            }
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{logged, reporter};
    use super::*;
    use crate::record::{Braked, EnforcementRecord};
    use plimsoll_config::LogFormat;
    use plimsoll_policy::Uid;
    use plimsoll_report::{NameMessage, PodNames};
    use plimsoll_state::handover;
    use plimsoll_units::MonotonicNs;
    use rustix::net::SendFlags;

    #[test]
    fn names_of_pods_are_taken_from_the_newest_way_alone() {
        let reporter = reporter();
        let path = b"kubepods/besteffort/pod01234567-89ab-cdef-0123-456789abcdee";
        let frozen = |at: u64| {
            let brake = EnforcementRecord::Brake { path, at: MonotonicNs(at), what: Braked::Frozen };
            lock(&reporter).report(&brake.into());
        };
        let lines = logged(LogFormat::Text, &reporter, async |send| {
            let way = || {
                let (theirs, ours) = handover::messages_pair().expect("sockets");
                handover::send_names(&send, theirs).expect("room");
                ours
            };
            let put = |way: &OwnedFd, message: &[u8]| {
                rustix::net::send(way, message, SendFlags::NOSIGNAL).expect("room");
            };
            let give = |way: &OwnedFd, name: &str| {
                let pod = PodNames::new(Uid::of("01234567-89ab-cdef-0123-456789abcdee"), "default", name);
                for message in [NameMessage::Begin, NameMessage::Pod(pod), NameMessage::Complete] {
                    put(way, message.encode(&mut [0; NAME_MESSAGE]));
                }
            };
            // All that is there is taken in before the other task has so many turns.
            let turns = async || {
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            };
            let first = way();
            give(&first, "web");
            turns().await;
            frozen(1);
            let second = way();
            turns().await;
            assert!(rustix::net::send(&first, b"x", SendFlags::NOSIGNAL).is_err(), "it is closed");
            frozen(2);
            give(&second, "shop");
            turns().await;
            frozen(3);
            put(&second, &[0; NAME_MESSAGE + 1]);
            drop(second);
            turns().await;
            frozen(4);
        });
        let names: Vec<_> = lines.lines().filter_map(|line| line.split_once("(pod ")?.1.split_once(')')).collect();
        assert_eq!(
            names.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["default/web", "default/web", "default/shop", "default/shop"],
            "{lines}"
        );
        assert_eq!(lines.matches("cannot be read are left out").count(), 1, "{lines}");
    }
}
