//! What an upstream says, on its way to a client of an endpoint for all upstreams.
//!
//! There ids of questions and tasks must be unique among all upstreams, a log message must say who speaks, and a change of
//! a list concerns the merged one. Each message is looked at once; most go on as they came.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{
    Era, Message, answer,
    message::Kind,
    method,
    public::{self, Asked},
    translate::is_logged,
};

use crate::{
    catalog::Catalog,
    session::{Run, Session},
    upstream::SendError,
};

/// Where messages cross.
pub(super) struct Crossing {
    pub(super) catalog: Arc<Catalog>,
    pub(super) upstream: usize,
    /// A legacy client's; a modern client has none, and cannot be asked anything.
    pub(super) session: Option<Arc<Session>>,
    /// The request that the messages answer; none for what an upstream says of its own accord.
    pub(super) run: Option<Arc<Run>>,
    pub(super) asked: Asked,
}

impl Crossing {
    /// What one message becomes for the client, and whether it is the answer; none if it is not for the client.
    pub(super) fn take(&self, data: &Bytes) -> Result<Option<(Bytes, bool)>, SendError> {
        let (session, run) = (self.session.as_ref(), self.run.as_deref());
        cross(data, &self.catalog, self.upstream, session, run, &self.asked)
    }
}

/// The same for what an upstream says of its own accord to a session.
pub(super) fn mapped(
    data: &Bytes,
    session: &Arc<Session>,
    catalog: &Catalog,
    upstream: usize,
) -> Result<Option<(Bytes, bool)>, SendError> {
    cross(data, catalog, upstream, Some(session), None, &Asked::Plain)
}

fn cross(
    data: &Bytes,
    catalog: &Catalog,
    upstream: usize,
    session: Option<&Arc<Session>>,
    run: Option<&Run>,
    asked: &Asked,
) -> Result<Option<(Bytes, bool)>, SendError> {
    if data.is_empty() {
        // The priming event of a resumable stream.
        return Ok(None);
    }
    let message = Message::parse(data.clone()).map_err(|why| SendError::NotMcp(why.to_string()))?;
    let name = catalog.upstreams()[upstream].name();
    let named = || public::outward(&message, name, asked).unwrap_or_else(|| data.clone());
    let crossed = match (message.kind(), message.method()) {
        (Kind::Response | Kind::Error, _) => return Ok(Some((named(), true))),
        (Kind::Request, method::TASKS_LIST) => {
            // The client's tasks for all upstreams would be told to one of them.
            if let Some(session) = session {
                refuse(catalog, upstream, session, &message);
            }
            None
        }
        (Kind::Request, _) => {
            let message = Message::parse(named()).map_err(|why| SendError::NotMcp(why.to_string()))?;
            session.and_then(|session| session.ask(upstream, &message))
        }
        // What an upstream cancels is a question of its own, which the client knows by another id.
        (Kind::Notification, method::CANCELLED) => session.and_then(|session| session.withdraw(upstream, &message)),
        (Kind::Notification, change) if change.ends_with("/list_changed") => {
            // The client hears of the merged list when that has changed.
            catalog.poke(upstream);
            None
        }
        (Kind::Notification, method::PROGRESS) => {
            advances(&message, upstream, session.map(AsRef::as_ref), run).then(named)
        }
        (Kind::Notification, method::LOG_MESSAGE) => session.is_none_or(|session| wants(session, &message)).then(named),
        (Kind::Notification, method::UPDATED) => {
            let offers = catalog.known(session.and_then(|session| session.caller()).as_ref(), Era::Legacy);
            let public = message.uri().and_then(|uri| offers.public_address(upstream, &uri));
            Some(public.map_or_else(|| data.clone(), |public| public::readdressed(&message, public)))
        }
        (Kind::Notification, _) => Some(named()),
    };
    Ok(crossed.map(|bytes| (bytes, false)))
}

/// Whether progress is news of a request that runs. A task's goes on when its request is long answered.
fn advances(progress: &Message, upstream: usize, session: Option<&Session>, run: Option<&Run>) -> bool {
    let Some(session) = session else { return true };
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

fn refuse(catalog: &Catalog, upstream: usize, session: &Arc<Session>, question: &Message) {
    let (Some(id), Some(channel)) = (question.id(), session.lines.get(upstream)) else { return };
    let text = "the client's tasks cannot be listed from here";
    let refusal = Message::parse(answer::error(Some(id), answer::METHOD_NOT_FOUND, text, None));
    let (upstream, caller) = (Arc::clone(&catalog.upstreams()[upstream]), session.caller());
    if let Ok(refusal) = refusal {
        tokio::spawn(async move { upstream.tell(caller.as_ref(), &channel, &refusal).await });
    }
}
