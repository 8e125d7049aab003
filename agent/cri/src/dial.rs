//! How a connection to a socket is made: by this process, or by another one for it.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

type Dialled = Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send>>;

/// Makes connections. A process that may not connect to anything has them made by another one and handed in.
#[derive(Clone)]
pub struct Dial(Arc<dyn Fn(&Path) -> Dialled + Send + Sync>);

impl Default for Dial {
    /// By this process.
    fn default() -> Self {
        Self::by(|socket| UnixStream::connect(socket.to_owned()))
    }
}

impl Dial {
    /// By `connect`, which gives a stream that is connected to the socket at this path. Where it takes longer than the call
    /// that needs the stream may, it is dropped.
    pub fn by<F>(connect: impl Fn(&Path) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        Self(Arc::new(move |socket| Box::pin(connect(socket))))
    }

    pub(crate) async fn connect(&self, socket: &Path) -> io::Result<Stream> {
        (self.0)(socket).await.map(Stream)
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dial")
    }
}

/// A connection that ends by being dropped alone. HTTP/2 would shut it down first (shutdown(2)), which a confined process
/// may be refused, and which changes nothing: no other process has it.
pub(crate) struct Stream(UnixStream);

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
