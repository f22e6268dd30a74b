//! The guard at dial time: names are looked up here, and only addresses that may be connected to come out.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use thiserror::Error;

use super::AddressPolicy;

pub(super) trait Lookup: Send + Sync {
    fn lookup(&self, host: &str) -> PendingLookup;
}

pub(super) type PendingLookup = std::pin::Pin<Box<dyn Future<Output = std::io::Result<Vec<IpAddr>>> + Send>>;

/// As the system does it.
pub(super) struct System;

impl Lookup for System {
    fn lookup(&self, host: &str) -> PendingLookup {
        let host = host.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// Gives the connector only addresses that it may connect to.
pub(super) struct AddressGuard {
    pub(super) reach: AddressPolicy,
    pub(super) names: Arc<dyn Lookup>,
}

/// All addresses of a name lead to where they must not.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct RefusedAddress(pub(super) &'static str);

impl Resolve for AddressGuard {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, found) = (self.reach, self.names.lookup(name.as_str()));
        Box::pin(async move {
            let allowed = admitted(reach, found.await?).map_err(RefusedAddress)?;
            Ok(Box::new(allowed.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

/// Those of the addresses of one name that may be connected to; what is wrong with them if there are none.
pub(super) fn admitted(reach: AddressPolicy, mut found: Vec<IpAddr>) -> Result<Vec<IpAddr>, &'static str> {
    let mut refused = None;
    found.retain(|&address| reach.allows(address).map_err(|place| refused = Some(place)).is_ok());
    match refused {
        Some(place) if found.is_empty() => Err(place),
        _ => Ok(found),
    }
}
