//! What Weir answers by itself on `/mcp`, from what it knows of all upstreams.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{Era, ListKind, answer, era, json, method, public, translate::rank};

use crate::{
    caller::Caller,
    catalog::{ClientInfo, MergedLists, STATUS},
    session::Endpoint,
    upstream::Upstream,
};

use super::{
    Answer, AnswerStream, Proxy, RequestContext,
    answer_stream::{ListFilter, Looker},
    restore::repeat,
    sign_in::told,
    viewer,
};

/// Weir as a server, as JSON.
const INFO: &str = concat!(r#"{"name":"weir","title":"Weir","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

const EMPTY: Bytes = Bytes::from_static(b"{}");

impl Proxy {
    /// The answer to what concerns no single upstream; none if it does.
    pub(super) async fn answer(self: &Arc<Self>, context: &RequestContext) -> Option<Answer> {
        let message = &context.message;
        if let Some(kind) = ListKind::of_method(message.method()) {
            let offers = self.catalog.merged(context.viewer(), context.era).await;
            let Some(cursor) = message.cursor() else {
                if let Some(session) = &context.session {
                    session.sees(offers.seen(), &[kind]);
                }
                return Some(Answer::result(message, offers.result(kind).clone()));
            };
            return Some(match offers.page(context.era, kind, &cursor, self.catalog.seal()) {
                Some(page) => Answer::result(message, page.clone()),
                None => bad_cursor(context),
            });
        }
        match (context.era, message.method()) {
            (Era::Legacy, "ping") => Some(Answer::result(message, EMPTY)),
            (Era::Legacy, "logging/setLevel") => {
                if public::log_level(message).as_deref().and_then(rank).is_none() {
                    let text = "there is no such log level";
                    return Some(Answer::error(context.era, message, answer::INVALID_PARAMS, text));
                }
                self.set_log_level(context).await;
                Some(Answer::result(message, EMPTY))
            }
            (Era::Legacy, method::TASKS_LIST) => self.list_tasks(context).await,
            (Era::Modern, "server/discover") => {
                let offers = self.catalog.merged(context.viewer(), Era::Modern).await;
                Some(Answer::result(message, discovered(&offers)))
            }
            (Era::Modern, method::LISTEN) => Some(self.subscribe(context).await),
            _ => None,
        }
    }

    /// The answer to a call of Weir's own tool; none if it is another's. It is not always listed, but always answers.
    pub(super) fn status(&self, context: &RequestContext) -> Option<Answer> {
        let message = &context.message;
        if message.method() != method::TOOLS_CALL || message.name().as_deref() != Some(STATUS) {
            return None;
        }
        Some(told(context, &self.catalog.status(&context.viewer())?, false))
    }

    /// Remembers the level for upstreams opened later, and tells those that are open.
    async fn set_log_level(&self, context: &RequestContext) {
        let Some(session) = &context.session else { return };
        session.set_level(&context.message);
        let offers = self.catalog.known(context.viewer(), context.era);
        let mut telling = tokio::task::JoinSet::new();
        let declares = |upstream: &Upstream| offers.traits(upstream.key()).is_none_or(|traits| traits.logging);
        for (upstream, channel) in session.channels.all().into_iter().filter(|(upstream, _)| declares(upstream)) {
            let (message, caller) = (context.message.clone(), context.caller.clone());
            // How it answers is in the log.
            telling.spawn(async move { drop(repeat(caller.as_ref(), &upstream, &channel, &message).await) });
        }
        telling.join_all().await;
    }

    async fn subscribe(self: &Arc<Self>, context: &RequestContext) -> Answer {
        let message = &context.message;
        let wish = message.params().and_then(|params| json::get(params, &["notifications"])).unwrap_or(b"{}");
        let wants = |key: &str| json::get(wish, &[key]) == Some(b"true");
        let wants = ListFilter {
            tools: wants("toolsListChanged"),
            prompts: wants("promptsListChanged"),
            resources: wants("resourcesListChanged"),
        };
        let id = message.id().unwrap_or(b"null");
        // Before anything is waited for, so that no change is missed.
        let changes = (self.catalog.announced(), self.catalog.latest());
        let client = context.client().map(|client| client.name().into_owned());
        let looks = self.looker(context.endpoint.clone(), (context.caller.clone(), client), context.era);
        let seen = looks().unwrap_or_default();
        let watched = self.watch(context, wish).await;
        let moved = Box::pin(Arc::clone(self).moved(context.endpoint.clone(), context.caller.clone()));
        Answer::events(AnswerStream::subscription(id, (changes, (seen, looks)), wants, (watched, moved)))
    }
}

impl Proxy {
    /// What a client finds at an endpoint whenever it looks: its lists, if they are known.
    pub(super) fn looker(
        &self,
        endpoint: Endpoint,
        (caller, client): (Option<Arc<Caller>>, Option<String>),
        era: Era,
    ) -> Looker {
        let catalog = Arc::clone(&self.catalog);
        Box::new(move || {
            let client = client.as_deref().map(ClientInfo::Name);
            catalog.seen(viewer(Some(&endpoint), caller.as_ref(), client), era)
        })
    }
}

/// The answer to a cursor that does not lead anywhere.
pub(super) fn bad_cursor(context: &RequestContext) -> Answer {
    let text = "this cursor is not from here, or the list has changed since; ask again without one";
    Answer::error(context.era, &context.message, answer::INVALID_PARAMS, text)
}

/// The result of `initialize` on `/mcp`.
pub(super) fn initialized(offers: &MergedLists, version: &str) -> Bytes {
    let capabilities = &offers.capabilities;
    let instructions = instructions(offers);
    format!(r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"serverInfo":{INFO}{instructions}}}"#)
        .into()
}

/// The result of `server/discover` on `/mcp`.
fn discovered(offers: &MergedLists) -> Bytes {
    let capabilities = &offers.capabilities;
    let instructions = instructions(offers);
    let (version, freshness) = (era::LATEST_MODERN, &offers.freshness);
    format!(
        r#"{{"supportedVersions":["{version}"],"capabilities":{capabilities}{instructions}{freshness},"_meta":{{"io.modelcontextprotocol/serverInfo":{INFO}}}}}"#
    )
    .into()
}

fn instructions(offers: &MergedLists) -> String {
    offers.instructions.as_deref().map_or_else(String::new, |text| format!(r#","instructions":{}"#, json::quote(text)))
}
