//! What only the modern era has: headers that repeat arguments, answers that ask, and subscriptions.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::answer::{Response, error, event_stream, result};
use super::{Body, Offer, Seen, Shared, lock};

/// A client that listens for changes.
pub(super) struct Subscription {
    id: Value,
    events: mpsc::UnboundedSender<Bytes>,
}

impl Subscription {
    pub(super) fn is_open(&self) -> bool {
        !self.events.is_closed()
    }

    pub(super) fn say(&self, method: &str, mut params: Value) {
        params["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": self.id });
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        // A client that has gone hears nothing.
        let _ = self.events.send(format!("event: message\ndata: {message}\n\n").into());
    }
}

/// Grants all that is wished for.
pub(super) fn listen(message: &Value, shared: &Arc<Shared>) -> Response {
    let (events, receiver) = mpsc::unbounded_channel();
    let subscription = Subscription { id: message["id"].clone(), events };
    let granted = json!({ "notifications": message["params"]["notifications"] });
    subscription.say("notifications/subscriptions/acknowledged", granted);
    lock(&shared.subscriptions).push(subscription);
    event_stream(Body::Stream(receiver))
}

pub(super) fn regional(seen: &Seen, message: &Value, offer: &Offer) -> Response {
    let said = message["params"]["arguments"]["message"].as_str();
    if seen.header(&format!("mcp-param-{}", offer.param)) != said {
        return error(StatusCode::BAD_REQUEST, message, -32020, "a header is missing or wrong");
    }
    let text = said.unwrap_or_default();
    result(message, json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }] }))
}

pub(super) fn visit(message: &Value) -> Response {
    let said = &message["params"]["inputResponses"]["sign_in"];
    if said.is_null() {
        let params = json!({ "mode": "url", "message": "Sign in", "url": "https://sign.in.test/x" });
        let requests = json!({ "sign_in": { "method": "elicitation/create", "params": params } });
        let asked = json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "state" });
        return result(message, asked);
    }
    let text = format!("{} {}", said["action"].as_str().unwrap_or_default(), message["params"]["requestState"]);
    result(message, json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }] }))
}
