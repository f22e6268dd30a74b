//! Requests as streams of one HTTP/2 connection (RFC 9113).

use std::{
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use ::http::{
    Uri,
    header::{CONTENT_LENGTH, TE, UPGRADE},
};
use h2::client::Builder;
use pingora_core::{
    ErrorType,
    connectors::http::v2::ConnectionRef,
    protocols::{
        Digest, Stream,
        http::v2::{
            client::{Http2Session, drive_connection},
            write_body,
        },
    },
};
use pingora_http::RequestHeader;
use tokio::{sync::watch, time::timeout};

use super::{Error, HeaderName, HttpTarget, Request, is_framing};

/// How many requests share a connection.
const MAX_STREAMS: usize = 64;

/// How much of one answer may arrive before it is read, in bytes. That of a whole connection is so much for each stream:
/// an answer that nobody reads holds up no other.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The longest head of an answer, as RFC 9113 §6.5.2 counts it, in bytes. No memory budget counts it.
const MAX_HEAD: u32 = 256 * 1024;

/// How often a connection is asked whether it is alive. Unanswered for five seconds, it is closed.
const PING: Duration = Duration::from_secs(15);

/// Headers of one connection, which a stream must not have (RFC 9113 §8.2.2), beside those that frame a message.
const CONNECTION_SPECIFIC: [HeaderName; 4] =
    [TE, UPGRADE, HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection")];

/// Connections that take more than one request at a time, and when each was last used.
#[derive(Default)]
pub(super) struct MultiplexedConnections(Vec<(Instant, ConnectionRef)>);

impl MultiplexedConnections {
    /// One with room for another stream.
    pub(super) fn find(&mut self) -> Option<ConnectionRef> {
        let (used, connection) = self.0.iter_mut().find(|(_, connection)| connection.can_accept_streams(1))?;
        *used = Instant::now();
        Some(connection.clone())
    }

    /// Keeps one more. One without a stream that takes none either is of no use: a server could have any number kept.
    pub(super) fn put(&mut self, connection: ConnectionRef) {
        self.0.retain(|(_, connection)| !connection.is_idle() || connection.can_accept_streams(1));
        self.0.push((Instant::now(), connection));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lets go of those that take no more streams, or have had none for so long. Streams that are open go on.
    pub(super) fn sweep(&mut self, idle: Duration) {
        self.0.retain(|(used, connection)| {
            let open = !connection.is_closed() && !connection.is_shutting_down();
            open && (!connection.is_idle() || used.elapsed() < idle)
        });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Begins HTTP/2 on a connection that has agreed to it. Pingora's own handshake takes heads of 16 MiB.
pub(super) async fn connect(stream: Stream) -> Result<ConnectionRef, Error> {
    let id = stream.id();
    let (requests, connection) = Builder::new()
        .enable_push(false)
        .initial_max_send_streams(MAX_STREAMS)
        .max_frame_size(64 * 1024)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * MAX_STREAMS as u32)
        .max_header_list_size(MAX_HEAD)
        .handshake(stream)
        .await
        .map_err(|_| Error::Connect("its HTTP/2 cannot be used"))?;
    let ((closing, closed), is_silent) = (watch::channel(false), Arc::<AtomicBool>::default());
    // It ends with the connection: when its server closes it, or the last stream and the pool have let go of it.
    tokio::spawn(drive_connection(connection, id, closing, Some(PING), Arc::clone(&is_silent)));
    Ok(ConnectionRef::new(requests, closed, is_silent, id, MAX_STREAMS, Digest::default()))
}

/// A stream on a connection; none if others have taken the last, or the server takes no more. Then it is not asked again.
pub(super) async fn open(connection: &ConnectionRef) -> Option<Box<Http2Session>> {
    let opened = connection.spawn_stream().await.unwrap_or_else(|_| {
        connection.mark_shutdown();
        None
    });
    opened.map(Box::new)
}

/// Sends a request and returns when the head of the answer is here. Dropping the session resets the stream.
pub(super) async fn send(
    mut session: Box<Http2Session>,
    target: &HttpTarget,
    path: &str,
    request: &Request<'_>,
) -> Result<Http2Session, Error> {
    let patience = target.timeouts.read;
    let body = request.body.clone().filter(|body| !body.is_empty());
    let head = Box::new(head(target, path, request)?);
    session.write_request_header(head, body.is_none()).map_err(|_| Error::Refused)?;
    let connection = session.conn.clone();
    // Its server may have died behind something that answers for it. Requests to come are spared that.
    let silent = |_| {
        connection.mark_shutdown();
        Error::ReadTimeout
    };
    let writer = session.take_request_body_writer();
    let read = {
        let mut reading = pin!(session.read_response_header());
        let mut early = None;
        if let (Some(body), Some(mut writer)) = (body, writer) {
            tokio::select! {
                // A server may answer before it has read the whole request, and read no more of it (RFC 9113 §8.1).
                head = &mut reading => early = Some(head),
                // Where writing fails, reading says why.
                sent = timeout(patience, write_body(&mut writer, body, true, None)) => {
                    let _ = sent.map_err(silent)?;
                }
            }
        }
        match early {
            Some(head) => head,
            None => timeout(patience, reading).await.map_err(silent)?,
        }
    };
    match read {
        Ok(()) => Ok(*session),
        Err(error) => {
            if error.etype == ErrorType::H2Downgrade {
                target.pool.require_http1();
            }
            Err(Error::reading_head(&error))
        }
    }
}

fn head(target: &HttpTarget, path: &str, request: &Request<'_>) -> Result<RequestHeader, Error> {
    const UNFIT: Error = Error::Url("it fits no request of HTTP/2");
    let uri = Uri::builder().scheme("https").authority(target.authority()).path_and_query(path).build();
    let head = RequestHeader::build_no_case(request.method.clone(), b"/", Some(request.headers.len() + 1));
    let mut head = head.map_err(|_| UNFIT)?;
    head.set_uri(uri.map_err(|_| UNFIT)?);
    for (name, value) in request.headers {
        if !is_framing(name) && !CONNECTION_SPECIFIC.contains(name) {
            head.append_header(name, value).map_err(|_| UNFIT)?;
        }
    }
    if let Some(body) = &request.body {
        head.insert_header(CONTENT_LENGTH, body.len()).map_err(|_| UNFIT)?;
    }
    Ok(head)
}
