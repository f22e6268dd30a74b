//! What can go wrong on the way to a server, sorted by whether the request may have arrived.

use std::io;

use h2::Reason;
use pingora_core::{Error as PingoraError, ErrorType};

/// What the system says where nobody listens.
const REFUSED: &str = "refused";

/// Why there is no answer. The texts hold nothing of what was sent or received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The answer is not HTTP.
    #[error("the answer is not HTTP")]
    BadResponse,
    /// The connection ended too soon.
    #[error("the connection broke off")]
    BrokenOff,
    /// As many connections as there may be are in use.
    #[error("it has {0} connections in use already, as many as `limits.upstream.connections` allows")]
    Busy(usize),
    /// No TCP connection.
    #[error("no connection: {0}")]
    Connect(&'static str),
    /// No connection in time.
    #[error("no connection in time")]
    ConnectTimeout,
    /// A redirect that leads to another origin, where a credential must not follow.
    #[error("it redirects to another origin; configure the address that it redirects to")]
    CrossOrigin,
    /// A name that leads where it must not.
    #[error("its host name leads to {0}; to allow that, configure the address instead of the name")]
    Forbidden(&'static str),
    /// The forward proxy gives no connection, with its name and what to do.
    #[error("{0}")]
    Proxy(String),
    /// No answer in time.
    #[error("no answer in time")]
    ReadTimeout,
    /// The server gave the request back, or took none at all any more (RFC 9113 §8.7).
    #[error("it refused the request before it did anything about it")]
    Refused,
    /// The name has no address.
    #[error("its host name cannot be resolved")]
    Resolve,
    /// The connection cannot be secured.
    #[error("no secure connection: {0}")]
    Tls(&'static str),
    /// More bytes than are gathered.
    #[error("the answer is over {0} bytes")]
    TooLarge(usize),
    /// A redirect that does not end.
    #[error("it redirects too often")]
    TooManyRedirects,
    /// An address that is not `http` or `https`.
    #[error("its address cannot be used: {0}")]
    Url(&'static str),
}

impl Error {
    /// Whether the server may have received the request and acted on it.
    pub const fn may_have_run(&self) -> bool {
        match self {
            Self::Busy(_)
            | Self::Connect(_)
            | Self::ConnectTimeout
            | Self::Forbidden(_)
            | Self::Proxy(_)
            | Self::Refused
            | Self::Resolve
            | Self::Tls(_)
            | Self::Url(_) => false,
            Self::BadResponse
            | Self::BrokenOff
            | Self::CrossOrigin
            | Self::ReadTimeout
            | Self::TooLarge(_)
            | Self::TooManyRedirects => true,
        }
    }

    /// Whether nobody listens there: the system of the other end has said so.
    pub fn is_refused(&self) -> bool {
        *self == Self::Connect(REFUSED)
    }

    /// A failure of the system to connect.
    pub(super) fn connecting(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::ConnectTimeout,
            io::ErrorKind::ConnectionRefused => Self::Connect(REFUSED),
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Connect("no route"),
            _ => Self::Connect("failed"),
        }
    }

    /// A failure of pingora's connector, which adds TLS to a connection.
    pub(super) fn securing(error: &PingoraError) -> Self {
        match error.etype {
            ErrorType::InvalidCert | ErrorType::TLSHandshakeFailure | ErrorType::HandshakeError => {
                Self::Tls("its certificate is not trusted for this name, or it does not speak TLS here")
            }
            _ => Self::Connect("failed"),
        }
    }

    /// A failure while an answer was read.
    pub(super) fn reading(error: &PingoraError) -> Self {
        if let Some(stream) = error.root_cause().downcast_ref::<h2::Error>() {
            return if stream.is_library() { Self::BadResponse } else { Self::BrokenOff };
        }
        match error.etype {
            ErrorType::ConnectionClosed | ErrorType::ReadError => Self::BrokenOff,
            _ => Self::BadResponse,
        }
    }

    /// The same before the head of an answer on a stream of HTTP/2.
    ///
    /// A stream ends with GOAWAY only where it comes after the last that the server has looked at (RFC 9113 §6.8).
    pub(super) fn reading_head(error: &PingoraError) -> Self {
        const UNPROCESSED: [Option<Reason>; 2] = [Some(Reason::REFUSED_STREAM), Some(Reason::HTTP_1_1_REQUIRED)];
        let untouched = |stream: &h2::Error| {
            stream.is_remote() && (stream.is_go_away() || stream.is_reset() && UNPROCESSED.contains(&stream.reason()))
        };
        match error.root_cause().downcast_ref() {
            Some(stream) if untouched(stream) => Self::Refused,
            _ => Self::reading(error),
        }
    }
}
