//! How a connection is made: by this process, or by another one for it.

#![forbid(unsafe_code)]

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

type Dialled<S> = Pin<Box<dyn Future<Output = io::Result<S>> + Send>>;
type Connect<A, S> = dyn Fn(&A) -> Dialled<S> + Send + Sync;

/// Makes connections `S` to what `A` names. A process that may not connect to anything has them made by another one and
/// handed in.
pub struct Dial<A: ?Sized, S>(Arc<Connect<A, S>>);

impl<A: ?Sized, S> Dial<A, S> {
    /// By `connect`. Where it takes longer than the call that needs the stream may, it is dropped.
    pub fn by<F>(connect: impl Fn(&A) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        Self(Arc::new(move |place| Box::pin(connect(place))))
    }

    /// The next connection.
    ///
    /// # Errors
    ///
    /// As `connect` gives them.
    pub async fn connect(&self, place: &A) -> io::Result<S> {
        (self.0)(place).await
    }
}

impl<A: ?Sized, S> Clone for Dial<A, S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: ?Sized, S> fmt::Debug for Dial<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dial")
    }
}

/// A connection that ends by being dropped alone. TLS and HTTP/2 would shut it down first (shutdown(2)), which a confined
/// process may be refused, and which changes nothing: no other process has it.
#[derive(Debug)]
pub struct EndedByDrop<S>(pub S);

impl<S: AsyncRead + Unpin> AsyncRead for EndedByDrop<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EndedByDrop<S> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn a_connection_is_shut_down_by_nothing_but_its_drop() {
        let dial = Dial::by(|word: &str| {
            let word = word.to_owned();
            async move {
                let (near, mut far) = UnixStream::pair()?;
                far.write_all(word.as_bytes()).await?;
                Ok((near, far))
            }
        });
        let (near, mut far) = dial.clone().connect("word").await.expect("a pair");
        let mut stream = EndedByDrop(near);
        let mut word = [0; 4];
        stream.read_exact(&mut word).await.expect("it was sent");
        assert_eq!(&word, b"word");
        stream.shutdown().await.expect("it is flushed");
        stream.write_all(b"more").await.expect("it is not shut down");
        drop(stream);
        let mut rest = String::new();
        far.read_to_string(&mut rest).await.expect("it ends");
        assert_eq!(rest, "more");
    }
}
