//! HTTP/1.1: one request after the other on a connection.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use bytes::BytesMut;
use pingora_core::{
    ErrorType,
    protocols::{
        Stream,
        http::{ServerSession, v1::server::HttpSession},
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, timeout},
};

use crate::task::on_heap;

use super::{
    Handler, HttpExchange, HttpServer, LAST_REQUEST, ListenLimits,
    alarm::Alarm,
    exchange::{ConnectionEnd, Peer},
    wire::{ConnectionState, Wire},
};

/// The longest head of a request, in bytes; more is answered with 431 (RFC 6585 §5).
const MAX_HEAD: usize = 64 * 1024;

/// How long a client may still send what nobody reads, so that it comes to see its answer (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(2);

/// Serves a connection to its end. The head of its first request must be here at `end`.
pub(super) async fn serve<H: Handler>(
    server: Arc<HttpServer<H>>,
    wire: Wire,
    line: Arc<ConnectionState>,
    peer: Peer,
    end: Instant,
) {
    let mut alarm = Alarm::new(end);
    let mut stream: Stream = Box::new(wire);
    let mut prefix: Option<BytesMut> = None;
    let mut patience = HeadPatience::Head(end);
    loop {
        let mut session = HttpSession::new(stream);
        // All waiting is timed here.
        session.set_read_timeout(None);
        session.set_pipelining_enabled(true);
        if let Some(prefix) = prefix.take() {
            session.set_pipelined_prefix(prefix);
            line.go_on(MAX_HEAD);
        } else if matches!(patience, HeadPatience::Head(_)) && line.is_busy() {
            // What was read to see which protocol is spoken.
            line.go_on(MAX_HEAD);
        } else {
            line.rest(MAX_HEAD);
        }
        match head(&mut session, &line, &mut alarm, patience, server.limits()).await {
            RequestHead::Whole => line.end_head(),
            RequestHead::None => return,
            RequestHead::Bad(status) => return Box::pin(refuse(session, status)).await,
        }
        let (server, mut exchange) = (&server, exchange(&server, session, peer.clone(), &line));
        // An `async fn` would hold the exchange a second time.
        let answered = || async move {
            server.handler.handle(&mut exchange).await;
            exchange.finish().await
        };
        // On the heap, so that a connection that rests does not hold the room that a call needs.
        match on_heap(answered).await {
            ConnectionEnd::Reusable(next) => (stream, prefix) = next.into_parts(),
            ConnectionEnd::Unread(stream) => return Box::pin(linger(stream)).await,
            ConnectionEnd::Closed => return,
        }
        // Its client may have been told before the gateway was stopped that it can send more.
        let is_stopped = server.draining.load(Ordering::SeqCst);
        let rest = if is_stopped { LAST_REQUEST } else { server.limits().idle_timeout };
        patience = HeadPatience::Rest(Instant::now() + rest);
    }
}

fn exchange<H>(server: &HttpServer<H>, session: HttpSession, peer: Peer, line: &Arc<ConnectionState>) -> HttpExchange {
    let shared = (Arc::clone(&server.settings.closing), Arc::clone(&server.settings.bodies));
    HttpExchange::new(ServerSession::H1(session), peer, server.limits().into(), shared, Some(Arc::clone(line)))
}

/// What is waited for, and until when.
#[derive(Clone, Copy)]
enum HeadPatience {
    /// The rest of a head.
    Head(Instant),
    /// The first byte of one.
    Rest(Instant),
}

enum RequestHead {
    Whole,
    /// The client closed, or was too slow.
    None,
    /// The head cannot be accepted, with the status that says so.
    Bad(u16),
}

async fn head(
    session: &mut HttpSession,
    line: &ConnectionState,
    alarm: &mut Alarm,
    mut patience: HeadPatience,
    limits: ListenLimits,
) -> RequestHead {
    let mut reading = pin!(session.read_request());
    let read = poll_fn(|context| {
        if let Poll::Ready(read) = reading.as_mut().poll(context) {
            return Poll::Ready(Some(read));
        }
        if matches!(patience, HeadPatience::Rest(_)) && line.is_busy() {
            patience = HeadPatience::Head(Instant::now() + limits.header_timeout);
        }
        let (HeadPatience::Head(deadline) | HeadPatience::Rest(deadline)) = patience;
        alarm.poll(context, deadline).map(|()| None)
    });
    match read.await {
        Some(Ok(Some(_))) => RequestHead::Whole,
        Some(Err(_)) if line.is_exhausted() => RequestHead::Bad(431),
        Some(Err(error)) if error.etype == ErrorType::InvalidHTTPHeader => RequestHead::Bad(400),
        Some(Ok(None) | Err(_)) | None => RequestHead::None,
    }
}

async fn refuse(session: HttpSession, status: u16) {
    let mut session = ServerSession::H1(session);
    let answered = timeout(LINGER, session.respond_error(status)).await;
    if let (Ok(Ok(())), ServerSession::H1(session)) = (answered, session) {
        linger(session.into_inner()).await;
    }
}

/// Ends a connection whose client may still be sending. Closing at once would make the system throw away the answer
/// that the client has not read yet.
pub(super) async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let sink = async {
        stream.shutdown().await?;
        let mut unread = Vec::with_capacity(8 * 1024);
        while stream.read_buf(&mut unread).await? > 0 {
            unread.clear();
        }
        Ok::<_, std::io::Error>(())
    };
    drop(timeout(LINGER, sink).await);
}
