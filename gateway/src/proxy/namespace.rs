//! What an upstream says, on its way to a client of an endpoint for all upstreams.
//!
//! There ids of questions and tasks must be unique among all upstreams, a log message must say who speaks, and a change of
//! a list concerns the merged one. Each message is looked at once; most go on as they came.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{
    Era, ListKind, Message, answer,
    message::Kind,
    method,
    public::{self, PublicNames},
    translate::is_logged,
};

use crate::{
    access::Item,
    catalog::Catalog,
    config::UpstreamName,
    session::{RunningRequest, Session},
    upstream::Upstream,
};

use super::{authorize::is_shown, viewer};

/// Where messages cross.
pub(super) struct Namespace {
    pub(super) catalog: Arc<Catalog>,
    pub(super) upstream: Arc<Upstream>,
    /// A legacy client's; a modern client has none, and cannot be asked anything.
    pub(super) session: Option<Arc<Session>>,
    /// The request that the messages answer; none for what an upstream says of its own accord.
    pub(super) run: Option<Arc<RunningRequest>>,
    /// Where the client of that request wants to hear of progress, raw.
    pub(super) token: Option<Bytes>,
    pub(super) asked: PublicNames,
}

impl Namespace {
    /// What a message on the way to the answer becomes for the client; none if it is not for the client.
    pub(super) fn take(&self, message: &Message) -> Option<Bytes> {
        let run = (self.run.as_deref(), self.token.as_deref());
        cross(message, &self.catalog, &self.upstream, self.session.as_ref(), run)
    }

    /// The answer in the names that the client knows.
    pub(super) fn answer(&self, answer: &Message) -> Bytes {
        public::outward(answer, self.upstream.name(), &self.asked).unwrap_or_else(|| answer.bytes().clone())
    }
}

/// The same for what an upstream says of its own accord to a session. Nothing there is an answer to a client's request. An
/// upstream that the rules have taken from the caller since is heard as long as a call of the session runs there.
pub(super) fn mapped(
    message: &Message,
    session: &Arc<Session>,
    catalog: &Catalog,
    upstream: &Arc<Upstream>,
) -> Option<Bytes> {
    let caller = session.caller();
    let who = (caller.as_ref(), session.client_info());
    let is_shown = || is_shown(catalog, &session.endpoint, who, upstream, Item::Any);
    if !is_shown() && !session.is_busy_at(upstream) {
        if message.kind() == Kind::Request {
            refuse(upstream, session, message, "the client may not use this server any more");
        }
        return None;
    }
    cross(message, catalog, upstream, Some(session), (None, None))
}

fn cross(
    message: &Message,
    catalog: &Catalog,
    upstream: &Arc<Upstream>,
    session: Option<&Arc<Session>>,
    run: (Option<&RunningRequest>, Option<&[u8]>),
) -> Option<Bytes> {
    let named =
        || public::outward(message, upstream.name(), &PublicNames::Plain).unwrap_or_else(|| message.bytes().clone());
    match (message.kind(), message.method()) {
        (Kind::Response | Kind::Error, _) => None,
        (Kind::Request, method::TASKS_LIST) => {
            // The client's tasks for all upstreams would be told to one of them.
            if let Some(session) = session {
                refuse(upstream, session, message, "the client's tasks cannot be listed from here");
            }
            None
        }
        (Kind::Request, _) => session?.ask(upstream.key(), &Message::parse(named()).ok()?),
        // What an upstream cancels is a question of its own, which the client knows by another id.
        (Kind::Notification, method::CANCELLED) => session?.withdraw(upstream.key(), message),
        (Kind::Notification, change) if change.ends_with("/list_changed") => {
            // The client hears of the merged list when that has changed.
            catalog.poke(upstream);
            None
        }
        (Kind::Notification, method::PROGRESS) => {
            advances(message, upstream.key(), session.map(AsRef::as_ref), run).then(named)
        }
        (Kind::Notification, method::LOG_MESSAGE) => session.is_none_or(|session| wants(session, message)).then(named),
        (Kind::Notification, method::UPDATED) => {
            let (session, uri) = (session?, message.uri()?);
            let (endpoint, caller) = (&session.endpoint, session.caller());
            let item = Item::One(ListKind::Resource, &uri);
            // Some servers tell each client of all changes.
            let (caller, client) = (caller.as_ref(), session.client_info());
            if !is_shown(catalog, endpoint, (caller, client), upstream, item) {
                return None;
            }
            let offers = catalog.known(viewer(Some(endpoint), caller, client), Era::Legacy);
            let public = offers.public_address(upstream.key(), &uri);
            Some(public.map_or_else(|| message.bytes().clone(), |public| public::readdressed(message, public)))
        }
        (Kind::Notification, _) => Some(named()),
    }
}

/// Whether progress is news of a request that runs. A task's goes on when its request is long answered.
fn advances(
    progress: &Message,
    upstream: &UpstreamName,
    session: Option<&Session>,
    (run, token): (Option<&RunningRequest>, Option<&[u8]>),
) -> bool {
    let Some(session) = session else {
        return (token.is_some() && progress.progress_token() == token) || public::is_of_task(progress);
    };
    match run.filter(|run| run.hears(progress)) {
        Some(run) => run.advances(progress),
        None => match session.makes_progress(upstream, progress) {
            Some(run) => run.advances(progress),
            None => public::is_of_task(progress),
        },
    }
}

/// Whether a log message is severe enough for the client, if it said so. Some servers send them all.
fn wants(session: &Session, message: &Message) -> bool {
    match &session.log_level() {
        Some(set) => public::log_level(set).is_none_or(|level| is_logged(&level, message)),
        None => true,
    }
}

fn refuse(upstream: &Arc<Upstream>, session: &Arc<Session>, question: &Message, text: &str) {
    let (Some(id), Some(channel)) = (question.id(), session.channels.get(upstream)) else { return };
    let refusal = Message::parse(answer::error(Some(id), answer::METHOD_NOT_FOUND, text, None));
    if let Ok(refusal) = refusal {
        let (to, caller, bytes) = (Arc::clone(upstream), session.caller(), refusal.bytes().len());
        let tell = async move { to.tell(caller.as_ref(), &channel, &refusal, None).await };
        session.replies.send(upstream.name(), bytes, tell);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn progress_is_for_the_client_that_asked_for_it() {
        let progress = |token: &str, meta: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1{meta}}}}}"#
            );
            Message::parse(text.into()).unwrap()
        };
        let name: UpstreamName = "a".parse().unwrap();
        let goes_on = |progress: &Message, token: Option<&[u8]>| advances(progress, &name, None, (None, token));
        assert!(goes_on(&progress("7", ""), Some(b"7")));
        assert!(!goes_on(&progress("8", ""), Some(b"7")));
        assert!(!goes_on(&progress("7", ""), None));
        // A task's progress outlives the request.
        let of_task = progress("8", r#","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}"#);
        assert!(goes_on(&of_task, Some(b"7")) && goes_on(&of_task, None));
    }
}
