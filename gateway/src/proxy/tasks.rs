//! The tasks of all upstreams as one list (2025-11-25, basic/utilities/tasks).
//!
//! Nobody but the upstreams knows which tasks there are, and each knows only those of the session it is asked in. So this
//! list is not held but asked for, all upstreams at once, and its cursor carries each one's own.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;
use weir_mcp::{
    Era, Message, Object,
    cursor::CursorPosition,
    json,
    public::{self, PublicNames},
};

use crate::{
    session::{Endpoint, Session},
    upstream::{SendError, Upstream},
};

use super::{
    Answer, Body, CallLog, Proxy, RequestContext, aggregate::bad_cursor, decide::Forwarded, legacy::patiently,
    route::Target,
};

/// What the cursors of this list are good for.
const PURPOSE: &[u8] = b"cursor tasks/list";

impl Proxy {
    /// Answers `tasks/list` on `/mcp`; none where no upstream has such a list.
    pub(super) async fn list_tasks(self: &Arc<Self>, context: &RequestContext) -> Option<Answer> {
        let (message, session) = (&context.message, context.session.as_ref()?);
        let offers = self.catalog.known(context.viewer(), Era::Legacy);
        let listing = self.upstreams_with(&offers, |traits| traits.task_list);
        if listing.is_empty() {
            return None;
        }
        let parts = match message.cursor().filter(|cursor| !cursor.is_empty()) {
            None => listing.into_iter().map(|upstream| (upstream, None)).collect(),
            Some(cursor) => match self.read_until(&cursor, &listing) {
                Some(parts) => parts,
                None => return Some(bad_cursor(context)),
            },
        };
        let mut asking = JoinSet::new();
        for (order, (upstream, cursor)) in parts.into_iter().enumerate() {
            let (proxy, session, context) = (Arc::clone(self), Arc::clone(session), context.clone());
            asking.spawn(async move {
                let page = proxy.page_of_tasks(&session, &upstream, context, cursor).await;
                (order, upstream, page)
            });
        }
        let mut pages = asking.join_all().await;
        pages.sort_by_key(|(order, ..)| *order);
        let (mut tasks, mut next) = (Vec::new(), Vec::new());
        for (_, upstream, page) in pages {
            let name = upstream.name();
            let page = match page {
                Ok(page) => page,
                Err(why) => {
                    tracing::debug!(upstream = name, error = %why, "tasks not listed");
                    continue;
                }
            };
            let result = page.result().unwrap_or_default();
            let listed = json::get(result, &["tasks"]).into_iter().flat_map(json::elements);
            tasks.extend(listed.map(|task| String::from_utf8_lossy(task).into_owned()));
            if let Some(cursor) = json::get(result, &["nextCursor"]).and_then(json::string) {
                next.push((name.to_owned(), cursor.into_owned()));
            }
        }
        let mut result = format!("{{\"tasks\":[{}]", tasks.join(","));
        if !next.is_empty() {
            match self.catalog.seal().seal(&CursorPosition::Read(next).encode(), PURPOSE) {
                Some(cursor) => result.push_str(&format!(",\"nextCursor\":{}", json::quote(&cursor))),
                None => tracing::warn!("the cursors of the upstreams' tasks are too long; the rest is left out"),
            }
        }
        result.push('}');
        Some(Answer::result(message, result.into()))
    }

    /// The upstreams that have more, of those that the caller sees, and where.
    fn read_until(&self, cursor: &str, listing: &[Arc<Upstream>]) -> Option<Vec<(Arc<Upstream>, Option<String>)>> {
        let CursorPosition::Read(parts) = CursorPosition::decode(&self.catalog.seal().open(cursor, PURPOSE)?)? else {
            return None;
        };
        let upstream = |name: &str| listing.iter().find(|upstream| upstream.name() == name).cloned();
        parts.into_iter().map(|(name, cursor)| Some((upstream(&name)?, Some(cursor)))).collect()
    }

    async fn page_of_tasks(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<Upstream>,
        context: RequestContext,
        cursor: Option<String>,
    ) -> Result<Message, String> {
        let edit = context.message.edit().remove(Object::Body, "cursor");
        let body = match cursor {
            Some(cursor) => edit.put(Object::Body, "cursor", json::quote(&cursor)).finish(),
            None => edit.finish(),
        };
        let message = Message::parse(body).map_err(|why| why.to_string())?;
        let context = RequestContext { endpoint: Endpoint::One(Arc::clone(upstream)), message, ..context };
        let asked = self.ask_decided(session, upstream, &context);
        let answer = match tokio::time::timeout(upstream.timeouts.list, asked).await {
            Ok(answer) => answer?,
            Err(_) => return Err(SendError::TimedOut.to_string()),
        };
        if answer.bytes().len() > upstream.list_limit() {
            return Err("its tasks are over `limits.list`".to_owned());
        }
        let named = public::outward(&answer, upstream.name(), &PublicNames::Tasks);
        named.map_or(Ok(answer), |bytes| Message::parse(bytes).map_err(|why| why.to_string()))
    }

    /// Asks an upstream something of which the client gets a part. Its policies decide about that and about the answer.
    async fn ask_decided(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<Upstream>,
        context: &RequestContext,
    ) -> Result<Message, String> {
        let target = Target::unchanged(upstream, &context.message, Era::Legacy);
        let whole = |answer: Answer| match answer.body {
            Body::Whole(parts) => Message::parse(parts.concat().into()).map_err(|why| why.to_string()),
            Body::Empty | Body::Json(_) | Body::Events(_) => Err("a policy has ended it".to_owned()),
        };
        let mut record = CallLog::of(&context.message, context.era, context.caller.as_ref());
        let Forwarded { target, call, .. } = match self.decide(context, target, &mut record).await {
            Ok(forwarded) => forwarded,
            Err(answer) => return whole(*answer),
        };
        if !target.policy_approvals.is_empty() {
            return Err("a policy wants it approved, which no list can wait for".to_owned());
        }
        let answer = self.ask_in(session, upstream, target.body).await?;
        let Some(mut call) = call else { return Ok(answer) };
        if let Some(ended) = call.check().await {
            return whole(ended.answer);
        }
        let (answer, failure) = call.whole(answer.bytes().clone()).await;
        failure.map_or_else(|| Message::parse(answer).map_err(|why| why.to_string()), Err)
    }

    /// Asks an upstream something in a session of its own with this client, past all that comes before the answer.
    pub(super) async fn ask_in(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<Upstream>,
        request: Bytes,
    ) -> Result<Message, String> {
        let channel = patiently(upstream, &mut 0, || self.open_channel(session, upstream))
            .await
            .map_err(|why| why.to_string())?;
        let message = Message::parse(request).map_err(|why| why.to_string())?;
        let caller = session.caller();
        let answer = upstream.ask(caller.as_ref(), &channel, Era::Legacy, &message).await;
        answer.map_err(|why| why.to_string())
    }
}
