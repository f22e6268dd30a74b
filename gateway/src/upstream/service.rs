//! Carries the requests of policies to the services that the configuration names for them, and to no others.

use std::{future::Future, pin::Pin, str::FromStr, time::Duration};

use url::Url;

use crate::{
    http::{HeaderName, HeaderValue, HttpClient, HttpTimeouts, Method, Request},
    policy::{Service, ServiceRequest, ServiceResponse},
};

/// The longest answer of a service, in bytes.
const ANSWER: usize = 64 << 10;

/// How long a service may take: to be reached, and for its next bytes.
const TIMEOUTS: HttpTimeouts = HttpTimeouts { connect: Duration::from_secs(3), read: Duration::from_secs(5) };

/// The services of one policy.
pub struct Services {
    client: HttpClient,
    origins: Vec<String>,
}

impl Services {
    /// The services at these origins, each as browsers write it: `https://tokens.example.com`.
    pub fn new(client: HttpClient, origins: Vec<String>) -> Self {
        Self { client, origins }
    }

    async fn carry(&self, request: ServiceRequest) -> Result<ServiceResponse, String> {
        let url = Url::parse(&request.url).map_err(|_| "this is not a URL".to_owned())?;
        let origin = url.origin().ascii_serialization();
        if !self.origins.contains(&origin) {
            return Err(format!(
                "{origin} is not named in the configuration; to allow it, write: http = [\"{origin}\"]"
            ));
        }
        let target = self.client.target(&url, TIMEOUTS).map_err(|why| why.to_string())?;
        let headers = request.headers.iter().map(header).collect::<Result<Vec<_>, _>>()?;
        let method = if request.post { Method::POST } else { Method::GET };
        let body = request.post.then(|| request.body.into());
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
