//! Requests to a collector of OpenTelemetry: OTLP over HTTP, in JSON (OTLP 1.5, "OTLP/HTTP").

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use tokio::time::timeout;

use crate::{
    config::{SafeUrl, Secret},
    http::{
        CONTENT_TYPE, Error, HeaderName, HeaderValue, HttpClient, HttpTarget, HttpTimeouts, Method, Request, Response,
    },
    telemetry::printable,
};

/// How long a collector may take.
const TIMEOUTS: HttpTimeouts = HttpTimeouts { connect: Duration::from_secs(10), read: Duration::from_secs(30) };
/// The longest answer that is read, in bytes, and the longest pause that a collector may ask for.
const ANSWER: usize = 64 * 1024;
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// One address of a collector.
pub struct Collector {
    client: HttpClient,
    target: HttpTarget,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// What became of a request.
#[derive(Debug)]
pub enum Sent {
    /// It was taken, but for some of the items that it has.
    Taken(Option<Rejected>),
    /// It cannot be taken, now or later.
    Refused {
        /// The status.
        status: u16,
    },
    /// Later it may be taken.
    Failed {
        /// Why it was not.
        why: String,
        /// The status; none without an answer.
        status: Option<u16>,
        /// How long to wait at least.
        pause: Duration,
    },
}

/// Items that a collector has not taken although it answers with 200.
#[derive(Debug)]
pub struct Rejected {
    /// How many.
    pub count: u64,
    /// What the collector says.
    pub why: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Answer {
    partial_success: Option<PartialSuccess>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialSuccess {
    /// A text or a number.
    #[serde(alias = "rejectedSpans", alias = "rejectedDataPoints")]
    rejected_log_records: serde_json::Value,
    error_message: String,
}

impl Collector {
    /// The collector at this address; nothing is sent.
    ///
    /// # Errors
    ///
    /// If the address cannot be used.
    pub fn new(url: &SafeUrl, headers: &[(String, Secret)], client: HttpClient) -> Result<Self, Error> {
        let header = |(name, value): &(String, Secret)| {
            let mut value = HeaderValue::from_str(value.expose()).ok()?;
            value.set_sensitive(true);
            Some((name.parse().ok()?, value))
        };
        let mut headers: Vec<_> = headers.iter().filter_map(header).collect();
        headers.push((CONTENT_TYPE, HeaderValue::from_static("application/json")));
        let target = client.target(url.as_url(), TIMEOUTS)?;
        Ok(Self { client, target, headers })
    }

    /// Sends one request.
    pub async fn post(&self, body: Vec<u8>) -> Sent {
        let request = Request { method: Method::POST, headers: &self.headers, body: Some(body.into()) };
        let response = match self.client.send(&self.target, request).await {
            Ok(response) => response,
            Err(why) => return Sent::Failed { why: why.to_string(), status: None, pause: Duration::ZERO },
        };
        match response.status() {
            200..=299 => Sent::Taken(rejected(response).await),
            // What a collector can never take.
            status @ (400 | 413 | 422) => Sent::Refused { status },
            status => {
                let pause = response.retry_after().unwrap_or_default().min(LONGEST_PAUSE);
                Sent::Failed { why: format!("status {status}"), status: Some(status), pause }
            }
        }
    }
}

/// Items that are rejected one by one come to nothing if they are sent again.
async fn rejected(response: Response) -> Option<Rejected> {
    // The collector has taken the others, whatever becomes of its answer.
    let body: Bytes = timeout(TIMEOUTS.read, response.collect(ANSWER)).await.ok()?.ok()?;
    // An answer in Protocol Buffers, or none, says nothing of that.
    let answer: Answer = serde_json::from_slice(&body).ok()?;
    let partial = answer.partial_success?;
    let rejected = &partial.rejected_log_records;
    let count = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).filter(|count| *count > 0)?;
    Some(Rejected { count, why: printable(&partial.error_message).into_owned() })
}
