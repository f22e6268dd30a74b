//! Questions of upstreams that the client has been asked, under ids and progress tokens of Weir's own.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tokio::sync::oneshot;
use weir_mcp::{Message, message::Field};

use crate::config::UpstreamName;

use super::Session;

/// How many questions of upstreams may wait for one client's answer.
const MAX_ASKED: usize = 256;

/// The questions that wait.
#[derive(Default)]
pub(super) struct ClientQuestions {
    next: u64,
    /// In the order in which they were asked.
    waiting: BTreeMap<u64, QuestionOrigin>,
}

/// Who has asked.
enum QuestionOrigin {
    /// An upstream.
    Upstream(UpstreamQuestion),
    /// A call at an upstream that cannot ask by itself.
    Call(oneshot::Sender<Message>),
}

/// A question as its upstream knows it.
struct UpstreamQuestion {
    upstream: UpstreamName,
    /// What the upstream calls it, and where it wants to hear of progress; both raw.
    id: Box<[u8]>,
    token: Option<Box<[u8]>>,
}

/// A question that the client has been asked for a call; given up when it is dropped.
#[must_use]
pub struct ClientQuestion {
    /// The id that the client knows it by.
    pub id: u64,
    answer: oneshot::Receiver<Message>,
    session: Arc<Session>,
}

impl Session {
    /// Gives an upstream's request an id, and where it has one a progress token, that is unique among all upstreams of
    /// this session.
    ///
    /// A client need not answer what it was asked; when too much waits, the oldest question is given up.
    #[must_use]
    pub fn ask(&self, upstream: &UpstreamName, request: &Message) -> Option<Bytes> {
        let (id, token) = (request.id()?.into(), request.progress_token().map(Box::from));
        let origin = UpstreamQuestion { upstream: upstream.clone(), id, token };
        let id = self.questions.lock().add(QuestionOrigin::Upstream(origin)).to_string();
        Some(request.edit().set(Field::Id, &id).set(Field::ProgressToken, &id).finish())
    }

    /// A question for a call at an upstream that cannot ask by itself.
    pub fn ask_for_call(self: &Arc<Self>) -> ClientQuestion {
        let (tell, answer) = oneshot::channel();
        let id = self.questions.lock().add(QuestionOrigin::Call(tell));
        ClientQuestion { id, answer, session: Arc::clone(self) }
    }

    /// Takes an answer to a question that was asked for a call; `false` if it is for somebody else.
    #[must_use]
    pub fn settle(&self, answer: &Message) -> bool {
        let Some(id) = answer.id().and_then(number) else { return false };
        let mut questions = self.questions.lock();
        if !matches!(questions.waiting.get(&id), Some(QuestionOrigin::Call(_))) {
            return false;
        }
        let asker = questions.waiting.remove(&id);
        drop(questions);
        if let Some(QuestionOrigin::Call(tell)) = asker {
            // The call may have ended in this moment.
            drop(tell.send(answer.clone()));
        }
        true
    }

    /// Turns an upstream's cancellation of its own question into one that the client understands; none if the client
    /// was not asked, or has answered.
    #[must_use]
    pub fn withdraw(&self, upstream: &UpstreamName, cancelled: &Message) -> Option<Bytes> {
        let own = cancelled.request_id()?;
        let mut questions = self.questions.lock();
        let is_it = |asker: &QuestionOrigin| matches!(asker, QuestionOrigin::Upstream(q) if q.upstream == *upstream && *q.id == *own);
        let (&id, _) = questions.waiting.iter().find(|(_, asker)| is_it(asker))?;
        questions.waiting.remove(&id);
        drop(questions);
        Some(cancelled.edit().set(Field::RequestId, id.to_string().as_bytes()).finish())
    }

    /// Whether the question with this id waits for an answer.
    pub(super) fn has_asked(&self, id: &[u8]) -> bool {
        number(id).is_some_and(|id| self.questions.lock().waiting.contains_key(&id))
    }

    /// Has the ids of questions begin here.
    pub(super) fn ask_from(&self, id: u64) {
        self.questions.lock().next = id;
    }

    /// Finds whose question a client's answer is for, and gives the answer that question's own id back.
    #[must_use]
    pub fn answered(&self, answer: &Message) -> Option<(UpstreamName, Bytes)> {
        match self.questions.lock().waiting.remove(&number(answer.id()?)?)? {
            QuestionOrigin::Upstream(origin) => {
                Some((origin.upstream, answer.edit().set(Field::Id, &origin.id).finish()))
            }
            QuestionOrigin::Call(_) => None,
        }
    }

    /// Finds whose question makes progress, and gives the progress that question's own token back.
    #[must_use]
    pub fn progressed(&self, progress: &Message) -> Option<(UpstreamName, Bytes)> {
        let questions = self.questions.lock();
        let asker = questions.waiting.get(&number(progress.progress_token()?)?)?;
        let QuestionOrigin::Upstream(UpstreamQuestion { upstream, token, .. }) = asker else { return None };
        Some((upstream.clone(), progress.edit().set(Field::ProgressToken, token.as_deref()?).finish()))
    }
}

impl ClientQuestions {
    /// Adds a question and gives it an id.
    fn add(&mut self, asker: QuestionOrigin) -> u64 {
        if self.waiting.len() >= MAX_ASKED {
            self.waiting.pop_first();
        }
        let id = self.next;
        self.next += 1;
        self.waiting.insert(id, asker);
        id
    }
}

impl ClientQuestion {
    /// The client's answer; none if so much waits that the question was given up. Cancel-safe.
    pub async fn answer(&mut self) -> Option<Message> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for ClientQuestion {
    fn drop(&mut self) {
        self.session.questions.lock().waiting.remove(&self.id);
    }
}

pub(super) fn number(raw: &[u8]) -> Option<u64> {
    std::str::from_utf8(raw).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::time::Duration;

    use crate::{
        http::HeaderValue,
        quota::Shares,
        session::{Endpoint, SessionOwner, Sessions},
    };

    use super::*;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn parsed(bytes: &Bytes) -> Message {
        Message::parse(bytes.clone()).unwrap()
    }

    fn session() -> Session {
        let initialize = message(r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#);
        let shares = Shares { total: 1, principal: 1, upstream: 1 };
        let sessions = Sessions::new(shares, Duration::MAX, shares);
        let (owner, version) =
            (SessionOwner::new(&sessions, None, &"ada".into()), HeaderValue::from_static("2025-11-25"));
        Session::new(
            owner.unwrap(),
            Endpoint::Merged(Arc::clone(crate::access::Toolset::all())),
            &initialize,
            version,
            sessions.memory(),
        )
        .unwrap()
    }

    fn names() -> [UpstreamName; 3] {
        ["a", "b", "c"].map(|name| name.parse().unwrap())
    }

    fn question(id: &str) -> Message {
        message(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"sampling/createMessage","params":{{"_meta":{{"progressToken":"p"}}}}}}"#
        ))
    }

    #[test]
    fn questions_with_equal_ids_are_answered_where_they_came_from() {
        let (session, [a, b, _]) = (session(), names());
        let ids = [&a, &b].map(|upstream| {
            let questions = parsed(&session.ask(upstream, &question("\"q\"")).unwrap());
            assert_eq!(questions.progress_token(), questions.id());
            String::from_utf8(questions.id().unwrap().to_vec()).unwrap()
        });
        assert_ne!(ids[0], ids[1]);
        for (upstream, id) in [(b, &ids[1]), (a, &ids[0])] {
            let progress = message(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progress":1}}}}"#
            ));
            let (of, bytes) = session.progressed(&progress).unwrap();
            assert_eq!((&of, parsed(&bytes).progress_token()), (&upstream, Some(&br#""p""#[..])));
            let answer = message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
            let (of, bytes) = session.answered(&answer).unwrap();
            assert_eq!((of, &bytes[..]), (upstream, &br#"{"jsonrpc":"2.0","id":"q","result":{}}"#[..]));
            assert_eq!(session.answered(&answer), None);
            assert_eq!(session.progressed(&progress), None, "an answered question makes no progress");
        }
    }

    #[test]
    fn an_upstream_withdraws_its_own_question_and_no_other() {
        let (session, [a, b, c]) = (session(), names());
        session.ask(&a, &question("7")).unwrap();
        session.ask(&b, &question("7")).unwrap();
        let cancelled = message(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#);
        let withdrawn = session.withdraw(&b, &cancelled).unwrap();
        assert_eq!(parsed(&withdrawn).request_id(), Some(&b"1"[..]));
        assert_eq!(session.withdraw(&b, &cancelled), None);
        assert_eq!(session.withdraw(&c, &cancelled), None);
    }

    #[test]
    fn questions_that_nobody_answers_do_not_stop_the_next() {
        let (session, [a, ..]) = (session(), names());
        for id in 0..2 * MAX_ASKED {
            assert!(session.ask(&a, &question(&id.to_string())).is_some());
        }
        assert_eq!(session.questions.lock().waiting.len(), MAX_ASKED);
    }

    #[tokio::test]
    async fn a_question_for_a_call_is_answered_there() {
        let session = Arc::new(session());
        let (mut first, second) = (session.ask_for_call(), session.ask_for_call());
        let answer = |id: u64| message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        assert!(session.settle(&answer(first.id)) && !session.settle(&answer(first.id)));
        assert_eq!(first.answer().await.unwrap().id(), Some(first.id.to_string().as_bytes()));
        let id = second.id;
        drop(second);
        assert!(!session.settle(&answer(id)));
        let questions = session.ask(&names()[0], &question("1")).unwrap();
        let id = number(parsed(&questions).id().unwrap()).unwrap();
        assert!(!session.settle(&answer(id)) && session.answered(&answer(id)).is_some());
    }
}
