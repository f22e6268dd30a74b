//! Where programs ask how Weir stands.

use std::net::SocketAddr;

use super::SecretSource;

/// An address beside the Unix socket of operators, for programs that cannot open that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where Weir listens, over plain HTTP.
    pub listen: SocketAddr,
    /// The bearer token that requests bring; none where everybody on this machine may ask.
    pub token: Option<SecretSource>,
}
