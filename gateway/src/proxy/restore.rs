//! What a legacy client has told an upstream, said again where its session at the upstream is a new one.
//!
//! An upstream that has just started may not take a subscription or a log level yet, so what is not taken is tried again
//! beside the calls. What is refused each time is in the log, and the client that wants to hear of warnings is told.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use weir_flow::Backoff;
use weir_mcp::{Era, Field, Kind, Message, answer, json, method, translate};

use crate::{
    caller::Caller,
    session::Session,
    task,
    telemetry::printable,
    upstream::{Channel, Upstream},
};

/// How often what is not taken is tried again.
const AGAIN: u32 = 3;

/// Something that a client has told an upstream.
enum ClientSetting {
    /// The last `logging/setLevel`.
    LogLevel,
    /// `resources/subscribe` for this address.
    Subscription(String),
}

/// Why an upstream has not taken a message.
pub(super) enum NotTaken {
    /// Its answer is an error.
    Refused(String),
    /// It has not answered.
    Unanswered(String),
}

impl ClientSetting {
    /// What is to be said, if that is still so.
    fn request(&self, session: &Session, upstream: &Upstream) -> Option<Message> {
        match self {
            Self::LogLevel => session.log_level(),
            Self::Subscription(uri) => {
                session.watched(upstream.key()).contains(uri).then_some(())?;
                let id = json::quote(&format!("watch-{uri}"));
                let params = format!("{{\"uri\":{}}}", json::quote(uri));
                let request = answer::request(id.as_bytes(), method::SUBSCRIBE, Some(params.as_bytes()));
                Message::parse(request).ok()
            }
        }
    }
}

/// Has an upstream hear from which severity on the client wants the log, if it `logs`, and what the client watches. A
/// silent upstream is not waited for more than once.
pub(super) async fn restore(session: &Arc<Session>, upstream: &Arc<Upstream>, channel: &Channel, logs: bool) {
    let level = (logs && session.log_level().is_some()).then_some(ClientSetting::LogLevel);
    let watched = session.watched(upstream.key()).into_iter().map(ClientSetting::Subscription);
    let (caller, mut left, mut is_silent) = (session.caller(), Vec::new(), false);
    for setting in level.into_iter().chain(watched) {
        let Some(request) = setting.request(session, upstream).filter(|_| !is_silent) else {
            left.push(setting);
            continue;
        };
        if let Err(why) = repeat(caller.as_ref(), upstream, channel, &request).await {
            is_silent = matches!(why, NotTaken::Unanswered(_));
            left.push(setting);
        }
    }
    if !left.is_empty() {
        // The task belongs to the session, so it must not keep the session alive.
        let work = restore_later(Arc::downgrade(session), Arc::clone(upstream), channel.clone(), left);
        let ended = session.ended();
        session.openings.lock().spawn(async move {
            task::until(ended, work).await;
        });
    }
}

/// Tries again, as long as this is the session's channel.
async fn restore_later(
    session: Weak<Session>,
    upstream: Arc<Upstream>,
    channel: Channel,
    mut left: Vec<ClientSetting>,
) {
    let mut backoff = Backoff::CONNECT;
    for round in 1..=AGAIN {
        task::back_off(&mut backoff).await;
        let Some(session) = session.upgrade() else { return };
        let (caller, mut is_silent) = (session.caller(), false);
        for setting in std::mem::take(&mut left) {
            let is_current = || session.channels.get(&upstream).is_some_and(|now| now.is_same(&channel));
            if !is_current() {
                // Whoever has opened another channel says all of it there.
                return;
            }
            let Some(request) = setting.request(&session, &upstream) else { continue };
            if is_silent {
                left.push(setting);
                continue;
            }
            match repeat(caller.as_ref(), &upstream, &channel, &request).await {
                Ok(()) => {}
                Err(NotTaken::Refused(why)) if round == AGAIN && is_current() => {
                    give_up(&session, &upstream, &setting, &why);
                }
                Err(why) => {
                    is_silent = matches!(why, NotTaken::Unanswered(_));
                    left.push(setting);
                }
            }
        }
        if left.is_empty() {
            return;
        }
        if round == AGAIN {
            let why = within(upstream.timeouts.list);
            left.iter().for_each(|setting| give_up(&session, &upstream, setting, &why));
        }
    }
}

/// Says that the client does not hear what it wants to hear.
fn give_up(session: &Session, upstream: &Upstream, setting: &ClientSetting, why: &str) {
    let what = match setting {
        ClientSetting::LogLevel => "the log level".to_owned(),
        // It stays among what the client watches: the next session there may take it.
        ClientSetting::Subscription(uri) => format!("the subscription to {}", printable(uri)),
    };
    let (name, why) = (upstream.name(), printable(why));
    tracing::warn!(upstream = name, session = &*session.shown, "{what} is not taken in a new session: {why}");
    let text = format!("upstream `{name}` was opened again and does not take {what}: {why}");
    let params = format!("{{\"level\":\"warning\",\"logger\":\"weir\",\"data\":{}}}", json::quote(&text));
    let told = answer::notification(method::LOG_MESSAGE, Some(params.as_bytes()));
    let is_wanted = |told: &Message| session.level().is_some_and(|level| translate::is_logged(&level, told));
    if Message::parse(told.clone()).is_ok_and(|told| is_wanted(&told)) {
        session.queue.push(told);
    }
}

/// Tells an upstream what its client has said already.
///
/// # Errors
///
/// When it does not take that.
pub(super) async fn repeat(
    caller: Option<&Arc<Caller>>,
    upstream: &Upstream,
    channel: &Channel,
    message: &Message,
) -> Result<(), NotTaken> {
    let told = upstream.ask(caller, channel, Era::Legacy, message);
    let why = match tokio::time::timeout(upstream.timeouts.list, told).await {
        Ok(Ok(answer)) if answer.kind() == Kind::Response => return Ok(()),
        Ok(Ok(answer)) => NotTaken::Refused(answer.text(Field::ErrorMessage).unwrap_or_default().into_owned()),
        Ok(Err(why)) => NotTaken::Unanswered(why.to_string()),
        Err(_) => NotTaken::Unanswered(within(upstream.timeouts.list)),
    };
    let (NotTaken::Refused(text) | NotTaken::Unanswered(text)) = &why;
    tracing::debug!(upstream = upstream.name(), method = message.method(), error = %printable(text), "not taken");
    Err(why)
}

fn within(limit: Duration) -> String {
    format!("no answer within {} s (`timeouts.list`)", limit.as_secs())
}
