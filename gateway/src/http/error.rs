//! What can go wrong on the way to a server, sorted by whether the request may have arrived.

use std::io;

use pingora_core::{Error as PingoraError, ErrorType};

/// Why there is no answer. The texts hold nothing of what was sent or received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The answer is not HTTP.
    #[error("the answer is not HTTP/1.1")]
    BadResponse,
    /// The connection ended too soon.
    #[error("the connection broke off")]
    BrokenOff {
        /// Whether the connection had been used before, so that the server may have closed it while it was idle.
        reused: bool,
        /// Whether it ended before the first byte of an answer.
        before_response: bool,
    },
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
    /// The forward proxy gives no connection, with its name and what to do.
    #[error("{0}")]
    Proxy(String),
    /// No answer in time.
    #[error("no answer in time")]
    ReadTimeout,
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
    #[must_use]
    pub const fn may_have_run(&self) -> bool {
        match self {
            Self::Busy(_)
            | Self::Connect(_)
            | Self::ConnectTimeout
            | Self::Proxy(_)
            | Self::Resolve
            | Self::Tls(_)
            | Self::Url(_) => false,
            Self::BadResponse
            | Self::BrokenOff { .. }
            | Self::CrossOrigin
            | Self::ReadTimeout
            | Self::TooLarge(_)
            | Self::TooManyRedirects => true,
        }
    }

    /// A failure of the system to connect.
    pub(super) fn connecting(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::ConnectTimeout,
            io::ErrorKind::ConnectionRefused => Self::Connect("refused"),
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

    /// A failure while the head of an answer was awaited.
    pub(super) fn reading_head(error: &PingoraError, reused: bool) -> Self {
        match error.etype {
            ErrorType::ConnectionClosed | ErrorType::ReadError => {
                // Pingora tells only in its text. If that changes, nothing is taken for unanswered that was not.
                let nothing_came = error.context.as_ref().is_some_and(|text| text.as_str().ends_with(" read: 0"));
                Self::BrokenOff { reused, before_response: nothing_came }
            }
            _ => Self::BadResponse,
        }
    }

    /// A failure while a body was read.
    pub(super) fn reading_body(error: &PingoraError) -> Self {
        match error.etype {
            ErrorType::ConnectionClosed | ErrorType::ReadError => {
                Self::BrokenOff { reused: false, before_response: false }
            }
            _ => Self::BadResponse,
        }
    }
}
