//! A connection inside another one.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use pingora_core::protocols::l4::{
    stream::Stream,
    virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection inside another one, for what takes a socket: through a proxy, or secured without pingora.
#[derive(Debug)]
pub struct Tunnel<S>(pub S);

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin + 'static> Tunnel<S> {
    /// The same as pingora has sockets.
    pub fn into_socket(self) -> Stream {
        VirtualSocketStream::new(Box::new(self)).into()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tunnel<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tunnel<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin> VirtualSocket for Tunnel<S> {
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        // Set where the outer connection was made.
        Ok(())
    }
}
