//! What another process sends of pods. It is not trusted: it can send anything, as fast as it likes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use plimsoll_inventory::{MESSAGE, PodMessage};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// So many messages are taken at a time.
const BATCH: usize = 256;

/// The core's end.
#[derive(Debug)]
pub(in crate::core) struct PodSocket(OwnedFd);

/// What was there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) messages: Vec<PodMessage>,
    /// How many others.
    pub(super) malformed: usize,
    /// There will be no more.
    pub(super) is_over: bool,
}

impl PodSocket {
    pub(in crate::core) const fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Takes the next messages, without waiting for any.
    pub(super) fn receive(&self) -> Received {
        let mut received = Received::default();
        // What is longer than a message is seen to be.
        let mut buffer = [0; MESSAGE + 1];
        for _ in 0..BATCH {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => received.is_over = true,
                Ok((length, _)) => match PodMessage::decode(&buffer[..length]) {
                    Some(message) => received.messages.push(message),
                    None => received.malformed += 1,
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => received.is_over = true,
            }
            if received.is_over {
                break;
            }
        }
        received
    }
}

impl AsFd for PodSocket {
    /// Readable when there is a message.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::Uid;
    use plimsoll_state::handover;
    use rustix::net::{SendFlags, send};

    #[test]
    fn messages_are_taken_some_at_a_time_and_what_is_none_is_counted() {
        let (core, services) = handover::facts_pair().expect("sockets");
        let socket = PodSocket::new(core);
        let put = |bytes: &[u8]| send(&services, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok();
        let gone = PodMessage::Gone(Uid(7));
        let mut buffer = [0; MESSAGE];
        let bytes = gone.encode(&mut buffer);
        assert_eq!(socket.receive(), Received::default());
        assert!(put(&[255; 9]) && put(bytes) && put(&[&[0; MESSAGE][..], bytes].concat()));
        assert_eq!(socket.receive(), Received { messages: vec![gone], malformed: 2, is_over: false });
        let sent = (0..10_000).take_while(|_| put(bytes)).count();
        let taken = std::iter::repeat_with(|| socket.receive().messages.len()).take_while(|count| *count > 0);
        let taken: Vec<_> = taken.collect();
        assert!(taken.iter().all(|count| *count <= BATCH) && taken.iter().sum::<usize>() == sent, "{sent} {taken:?}");
        drop(services);
        assert_eq!(socket.receive(), Received { is_over: true, ..Received::default() });
    }
}
