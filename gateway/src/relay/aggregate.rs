//! What Weir answers by itself on `/mcp`, from what it knows of all upstreams.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{Era, Message, answer, era, json};

use crate::catalog::{Kind, Merged};

use super::{Answer, Body, Delivery, Inquiry, Relay, delivery::Wants};

/// Weir as a server, as JSON.
const INFO: &str = concat!(r#"{"name":"weir","title":"Weir","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

const EMPTY: Bytes = Bytes::from_static(b"{}");

impl Relay {
    /// The answer to what concerns no single upstream; none if it does.
    pub(super) async fn answer(self: &Arc<Self>, inquiry: &Inquiry) -> Option<Answer> {
        let message = &inquiry.message;
        if let Some(kind) = Kind::of_method(message.method()) {
            // Weir's lists have one page, so it has never given out a cursor.
            if message.cursor().is_some() {
                let text = "this cursor is not from here";
                return Some(Answer::error(inquiry.era, message, answer::INVALID_PARAMS, text));
            }
            let offers = self.catalog.merged(inquiry.era).await;
            return Some(Answer::result(message, offers.result(kind).clone()));
        }
        match (inquiry.era, message.method()) {
            (Era::Legacy, "ping") => Some(Answer::result(message, EMPTY)),
            (Era::Legacy, "logging/setLevel") => {
                self.set_log_level(inquiry).await;
                Some(Answer::result(message, EMPTY))
            }
            (Era::Modern, "server/discover") => {
                let offers = self.catalog.merged(Era::Modern).await;
                Some(Answer::result(message, discovered(&offers)))
            }
            (Era::Modern, "subscriptions/listen") => Some(self.subscribe(message)),
            _ => None,
        }
    }

    /// Remembers the level for upstreams opened later, and tells those that are open.
    async fn set_log_level(self: &Arc<Self>, inquiry: &Inquiry) {
        let Some(session) = &inquiry.session else { return };
        *crate::session::lock(&session.log_level) = Some(inquiry.message.clone());
        let mut telling = tokio::task::JoinSet::new();
        for (place, channel) in session.lines.all() {
            let (relay, message) = (Arc::clone(self), inquiry.message.clone());
            telling.spawn(async move { relay.set_level(place, &channel, &message).await });
        }
        telling.join_all().await;
    }

    fn subscribe(&self, message: &Message) -> Answer {
        let wish = message.params().and_then(|params| json::get(params, &["notifications"])).unwrap_or(b"{}");
        let wants = |key: &str| json::get(wish, &[key]) == Some(b"true");
        let wants = Wants {
            tools: wants("toolsListChanged"),
            prompts: wants("promptsListChanged"),
            resources: wants("resourcesListChanged"),
        };
        let id = message.id().unwrap_or(b"null");
        let delivery = Delivery::subscription(id, self.catalog.changes(), wants);
        Answer { status: 200, session: None, allow: None, body: Body::Events(Box::new(delivery)), record: None }
    }
}

/// The result of `initialize` on `/mcp`.
pub(super) fn initialized(offers: &Merged, version: &str) -> Bytes {
    let capabilities = &offers.capabilities;
    let instructions = instructions(offers);
    format!(r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"serverInfo":{INFO}{instructions}}}"#)
        .into()
}

/// The result of `server/discover` on `/mcp`.
fn discovered(offers: &Merged) -> Bytes {
    let capabilities = &offers.capabilities;
    let instructions = instructions(offers);
    let version = era::LATEST_MODERN;
    format!(
        r#"{{"resultType":"complete","supportedVersions":["{version}"],"capabilities":{capabilities}{instructions},"ttlMs":0,"cacheScope":"private","_meta":{{"io.modelcontextprotocol/serverInfo":{INFO}}}}}"#
    )
    .into()
}

fn instructions(offers: &Merged) -> String {
    offers.instructions.as_deref().map_or_else(String::new, |text| format!(r#","instructions":{}"#, json::quote(text)))
}
