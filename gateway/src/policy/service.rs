//! The services that a policy may ask, seen from the policy. Who carries the requests stands above this module.

use std::{future::Future, pin::Pin};

/// Carries requests to the services that the configuration names, and to no others.
pub trait Service: Send + Sync {
    /// Sends a request. The error says what went wrong, without anything that was sent.
    fn send(
        &self,
        request: ServiceRequest,
    ) -> Pin<Box<dyn Future<Output = Result<ServiceResponse, String>> + Send + '_>>;
}

/// A policy's request.
pub struct ServiceRequest {
    /// How it asks: GET, HEAD, POST, PUT, PATCH or DELETE.
    pub method: &'static str,
    /// Where it goes.
    pub url: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

/// What a service answered.
pub struct ServiceResponse {
    /// The status.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// The body, whole.
    pub body: Vec<u8>,
}
