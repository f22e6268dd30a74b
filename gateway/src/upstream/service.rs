//! Carries the requests of policies to the services that the configuration names for them, and to no others.

use std::{
    future::Future,
    pin::Pin,
    str::FromStr,
    time::{Duration, Instant},
};

use url::Url;
use weir_oauth::AddressPolicy;

use crate::{
    config::PolicyConfig,
    http::{HeaderName, HeaderValue, HttpClient, HttpTimeouts, Method, Request},
    policy::{Service, ServiceRequest, ServiceResponse},
    rate::RateLimiter,
};

/// The longest answer of a service, in bytes.
const ANSWER: usize = 256 << 10;

/// How long a service may take: to be reached, and for its next bytes.
const TIMEOUTS: HttpTimeouts = HttpTimeouts { connect: Duration::from_secs(3), read: Duration::from_secs(12) };

/// The services of one policy.
pub struct Services {
    client: HttpClient,
    /// Each as browsers write it: `https://tokens.example.com`.
    origins: Vec<String>,
    methods: Vec<&'static str>,
    rate: RateLimiter,
}

impl Services {
    /// The services that the configuration names for a policy.
    pub fn new(client: HttpClient, policy: &PolicyConfig) -> Self {
        let rate = RateLimiter::new(policy.http_requests_per_minute, Duration::from_secs(60));
        Self { client, origins: policy.http.clone(), methods: policy.http_methods.clone(), rate }
    }

    async fn carry(&self, request: ServiceRequest) -> Result<ServiceResponse, String> {
        let url = Url::parse(&request.url).map_err(|_| "this is not a URL".to_owned())?;
        let origin = url.origin().ascii_serialization();
        if !self.origins.contains(&origin) {
            return Err(format!(
                "{origin} is not named in the configuration; to allow it, write: http = [\"{origin}\"]"
            ));
        }
        if !self.methods.contains(&request.method) {
            return Err(format!(
                "{method} is not allowed; to allow it, write: http_methods = [\"{method}\"]",
                method = request.method
            ));
        }
        if let Err(wait) = self.rate.take(&(), Instant::now()) {
            return Err(format!("too many requests in a minute; the next may go in {} s", wait.as_secs() + 1));
        }
        // The configuration names the service. Who answers for its name must not make it this machine.
        let reach = AddressPolicy { private: true, ..AddressPolicy::toward(&url) };
        let target = self.client.target(&url, TIMEOUTS).map_err(|why| why.to_string())?.within(reach);
        let headers = request.headers.iter().map(header).collect::<Result<Vec<_>, _>>()?;
        let method = Method::from_str(request.method).map_err(|why| why.to_string())?;
        let body = (!request.body.is_empty() || request.method == "POST").then(|| request.body.into());
        // A redirect within the origin is followed, one that leads elsewhere is an error.
        let sent = self.client.send(&target, Request { method, headers: &headers, body }).await;
        let response = sent.map_err(|why| why.to_string())?;
        let status = response.status();
        let headers = response.headers().filter_map(told).collect();
        let body = response.collect(ANSWER).await.map_err(|why| why.to_string())?;
        Ok(ServiceResponse { status, headers, body: body.to_vec() })
    }
}

impl Service for Services {
    fn send(
        &self,
        request: ServiceRequest,
    ) -> Pin<Box<dyn Future<Output = Result<ServiceResponse, String>> + Send + '_>> {
        Box::pin(self.carry(request))
    }
}

fn header((name, value): &(String, String)) -> Result<(HeaderName, HeaderValue), String> {
    match (HeaderName::from_str(name), HeaderValue::from_str(value)) {
        (Ok(name), Ok(mut value)) => {
            value.set_sensitive(true);
            Ok((name, value))
        }
        _ => Err("one of the headers is not a header".to_owned()),
    }
}

fn told((name, value): (&HeaderName, &HeaderValue)) -> Option<(String, String)> {
    Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
}
