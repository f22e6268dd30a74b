//! Where programs ask how Weir stands, and where other gateways reach it.

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

/// An address for other gateways at the same store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Where Weir listens. Port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The host that the others reach it by; none for that of `listen`.
    pub host: Option<String>,
    /// The port that the others reach it by; none for that of `listen`.
    pub port: Option<u16>,
}
