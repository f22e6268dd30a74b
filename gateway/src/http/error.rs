//! What can go wrong on the way to a server, sorted by whether the request may have arrived.

use pingora_core::{Error as PingoraError, ErrorType};

/// Why there is no answer. The texts hold nothing of what was sent or received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request itself cannot be written as HTTP.
    #[error("the request cannot be written as HTTP")]
    BadRequest,
    /// The answer is not HTTP.
    #[error("the answer is not HTTP")]
    BadResponse,
    /// The connection ended too soon.
    #[error("the connection broke off")]
    BrokenOff {
        /// Whether the connection had been used before, so that the server may have closed it while it was idle.
        reused: bool,
    },
    /// No connection.
    #[error("no connection: {0}")]
    Connect(&'static str),
    /// A redirect that leads to another origin, where a credential must not follow.
    #[error("it redirects to another origin; configure the address that it redirects to")]
    CrossOrigin,
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
            Self::BadRequest | Self::Connect(_) | Self::Resolve | Self::Tls(_) | Self::Url(_) => false,
            Self::BadResponse
            | Self::BrokenOff { .. }
            | Self::CrossOrigin
            | Self::ReadTimeout
            | Self::TooLarge(_)
            | Self::TooManyRedirects => true,
        }
    }

    /// A failure while a connection was made.
    pub(super) fn connecting(error: &PingoraError) -> Self {
        match error.etype {
            ErrorType::ConnectTimedout => Self::Connect("no answer in time"),
            ErrorType::ConnectRefused => Self::Connect("refused"),
            ErrorType::ConnectNoRoute => Self::Connect("no route"),
            ErrorType::TLSHandshakeTimedout => Self::Tls("no answer in time"),
            ErrorType::InvalidCert => Self::Tls("its certificate is not trusted for this name"),
            ErrorType::TLSHandshakeFailure | ErrorType::HandshakeError => {
                Self::Tls("the handshake failed; the certificate may not be trusted, or it does not speak TLS")
            }
            _ => Self::Connect("failed"),
        }
    }

    /// A failure after bytes of the request may have left.
    pub(super) fn after_sending(error: &PingoraError, reused: bool) -> Self {
        match error.etype {
            ErrorType::ReadTimedout | ErrorType::WriteTimedout => Self::ReadTimeout,
            ErrorType::InvalidHTTPHeader | ErrorType::H1Error => Self::BadResponse,
            _ => Self::BrokenOff { reused },
        }
    }
}
