//! How a connection to a socket is made: by this process, or by another one for it.

use std::path::Path;

use tokio::net::UnixStream;

/// Makes connections to the socket at a path.
pub type Dial = plimsoll_dial::Dial<Path, UnixStream>;

/// By this process.
pub(crate) fn by_this_process() -> Dial {
    Dial::by(|socket: &Path| UnixStream::connect(socket.to_owned()))
}
