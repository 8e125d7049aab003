//! How a connection to the API server is made: by this process, or by another one for it.

use std::io;
use std::net::SocketAddr;

use plimsoll_dial::EndedByDrop;
use tokio::net::TcpStream;

/// Makes connections to the one API server that is configured.
pub type Dial = plimsoll_dial::Dial<(), TcpStream>;

/// By this process.
pub fn dial_to(address: SocketAddr) -> Dial {
    Dial::by(move |()| TcpStream::connect(address))
}

/// The next connection, which may have been under way when it was given.
pub(crate) async fn connect(dial: &Dial) -> io::Result<EndedByDrop<TcpStream>> {
    let stream = dial.connect(&()).await?;
    // One that was begun without waiting is there, or has failed, once it can be written to (connect(2), EINPROGRESS).
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(EndedByDrop(stream)),
    }
}
