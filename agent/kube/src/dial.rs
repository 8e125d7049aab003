//! How a connection is made: by this process, or by another one for it.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

type Dialled = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Makes connections to the API server. A process that may not connect to anything has them made by another one.
#[derive(Clone)]
pub struct Dial(Arc<dyn Fn() -> Dialled + Send + Sync>);

impl Dial {
    /// By `connect`, which gives a stream whose connection may still be under way.
    pub fn by<F>(connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<TcpStream>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(connect())))
    }

    /// By this process.
    pub fn to(address: SocketAddr) -> Self {
        Self::by(move || TcpStream::connect(address))
    }

    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        let stream = (self.0)().await?;
        // One that was begun without waiting is there, or has failed, once it can be written to (connect(2), EINPROGRESS).
        stream.writable().await?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(Stream(stream)),
        }
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dial")
    }
}

/// A connection that ends by being dropped alone. TLS and HTTP/2 would shut it down first (shutdown(2)), which a confined
/// process may be refused, and which changes nothing: no other process has it.
pub(crate) struct Stream(TcpStream);

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
