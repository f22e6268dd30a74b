//! `subscriptions/listen` of a modern client, fed by what a legacy upstream says in its session.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use tokio::sync::broadcast::{self, error::RecvError};
use weir_mcp::{Message, answer, json, method, translate::subscribed};

use super::shared_session::{ResourceWatch, SharedSession};

/// How many resources one subscription may watch.
const WATCHED: usize = 256;

/// What one client hears of a legacy upstream.
pub(in crate::proxy) struct TranslatedSubscription {
    changes: broadcast::Receiver<Message>,
    /// The id of the request that opened it, raw.
    id: Bytes,
    /// The notifications that were asked for.
    lists: Vec<&'static str>,
    watched: Vec<ResourceWatch>,
    waiting: VecDeque<Bytes>,
}

/// What can be asked for, the capability that grants it, and the notification that it is about.
pub(super) const LISTS: [(&str, &str, &str); 3] = [
    ("toolsListChanged", "tools", "notifications/tools/list_changed"),
    ("promptsListChanged", "prompts", "notifications/prompts/list_changed"),
    ("resourcesListChanged", "resources", "notifications/resources/list_changed"),
];

impl TranslatedSubscription {
    /// Grants what the upstream can give of what the client wishes for.
    pub(super) async fn open(session: Arc<SharedSession>, request: &Message) -> Self {
        // Before anything is watched, so that nothing is missed.
        let changes = session.changes();
        let wish = request.params().and_then(|params| json::get(params, &["notifications"])).unwrap_or(b"{}");
        let wished = |key: &str| json::get(wish, &[key]) == Some(b"true");
        let granted =
            LISTS.iter().filter(|(key, capability, _)| wished(key) && session.can(&[capability, "listChanged"]));
        let granted: Vec<_> = granted.collect();
        let lists = granted.iter().map(|(_, _, method)| *method).collect();
        let id = Bytes::copy_from_slice(request.id().unwrap_or(b"null"));
        let mut subscription = Self { changes, id, lists, watched: Vec::new(), waiting: VecDeque::new() };
        if session.can(&["resources", "subscribe"]) {
            let uris = json::get(wish, &["resourceSubscriptions"]).into_iter().flat_map(json::elements);
            for uri in uris.filter_map(json::string).take(WATCHED) {
                if !subscription.watches(&uri)
                    && let Some(watching) = session.watch(&uri).await
                {
                    subscription.watched.push(watching);
                }
            }
        }
        let mut honoured: Vec<String> = granted.iter().map(|(key, _, _)| format!("\"{key}\":true")).collect();
        if !subscription.watched.is_empty() {
            let uris: Vec<String> = subscription.watched.iter().map(|watching| json::quote(&watching.uri)).collect();
            honoured.push(format!("\"resourceSubscriptions\":[{}]", uris.join(",")));
        }
        let params = format!("{{\"notifications\":{{{}}}}}", honoured.join(","));
        subscription.say(answer::notification("notifications/subscriptions/acknowledged", Some(params.as_bytes())));
        subscription
    }

    /// The next message, and whether it is the last. Cancel-safe.
    pub(in crate::proxy) async fn next(&mut self) -> (Bytes, bool) {
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return (message, false);
            }
            match self.changes.recv().await {
                Ok(message) if self.concerns(&message) => self.say(message.bytes().clone()),
                Ok(_) => {}
                // Which changes were lost is unknown, so everything may have changed.
                Err(RecvError::Lagged(_)) => {
                    for method in self.lists.clone() {
                        self.say(answer::notification(method, None));
                    }
                    let uris: Vec<String> = self.watched.iter().map(|watching| watching.uri.clone()).collect();
                    for uri in uris {
                        self.say(updated(&uri));
                    }
                }
                Err(RecvError::Closed) => return (self.last(), true),
            }
        }
    }

    fn concerns(&self, message: &Message) -> bool {
        let uri = || message.uri().is_some_and(|uri| self.watches(&uri));
        self.lists.contains(&message.method()) || (message.method() == method::UPDATED && uri())
    }

    fn watches(&self, uri: &str) -> bool {
        self.watched.iter().any(|watching| watching.uri == uri)
    }

    fn say(&mut self, notification: Bytes) {
        if let Ok(message) = Message::parse(notification) {
            self.waiting.push_back(subscribed(&message, &self.id));
        }
    }

    /// The answer that ends it well.
    pub(in crate::proxy) fn last(&self) -> Bytes {
        let id = String::from_utf8_lossy(&self.id);
        let result =
            format!(r#"{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}"#);
        answer::result(&self.id, result.as_bytes())
    }
}

/// Says that a resource may have changed.
pub(super) fn updated(uri: &str) -> Bytes {
    let params = format!("{{\"uri\":{}}}", json::quote(uri));
    answer::notification(method::UPDATED, Some(params.as_bytes()))
}
