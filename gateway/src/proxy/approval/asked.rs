//! A legacy client's person is asked on the stream of a call, which waits for the answer.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use weir_mcp::{answer, method};

use crate::{
    credential::Approval,
    quota::Permit,
    session::{RunningRequest, Session},
    telemetry::CallOutcome,
};

use super::{
    super::{
        Answer, AnswerStream, Body, CallLog, Proxy, RequestContext, StreamItem,
        route::Target,
        translate::{InputItem, Reporter},
    },
    Reply, ReplyAction, action, answerer, failed,
};

/// A request for an approval, and the question for the person at the client.
pub(super) struct PendingApproval {
    /// What the request stands under in the store.
    pub(super) key: String,
    pub(super) waiting: Box<Approval>,
    pub(super) form: String,
}

/// A call whose client's person is being asked.
pub(super) struct AskedCall {
    pub(super) proxy: Arc<Proxy>,
    pub(super) context: RequestContext,
    pub(super) target: Target,
    pub(super) request: PendingApproval,
    pub(super) record: CallLog,
    pub(super) run: Option<Arc<RunningRequest>>,
    /// Its place among the calls that wait for their clients.
    pub(super) room: Permit,
}

impl AskedCall {
    /// Asks, and goes on with the call: with what the person says, or once somebody else has answered on the page.
    pub(super) async fn finish(self, session: &Arc<Session>, expires: Duration, reporter: &Reporter) -> InputItem {
        let Self { proxy, context, mut target, request, mut record, run, room } = self;
        let PendingApproval { key, waiting, form } = request;
        let mut question = session.ask_for_call();
        let number = question.id.to_string();
        reporter.ask(answer::request(number.as_bytes(), "elicitation/create", Some(form.as_bytes()))).await;
        let elsewhere = async {
            let approvals = proxy.prompt.as_ref().map(|prompt| prompt.manager.approvals());
            match approvals {
                Some(approvals) if approvals.answered(&key, answerer(&context)).await.is_ok() => {}
                _ => std::future::pending().await,
            }
        };
        let (reply, over) = tokio::select! {
            said = question.answer() => (said.map(|said| action(said.result())), None),
            // The approval counts, and not what is said here.
            () = elsewhere => (Some(ReplyAction::Cancel), Some("the question was answered elsewhere")),
            () = tokio::time::sleep(expires) => (None, Some("the question has expired")),
        };
        drop(room);
        if let Some(why) = over {
            let params = format!("{{\"requestId\":{number},\"reason\":\"{why}\"}}");
            reporter.ask(answer::notification(method::CANCELLED, Some(params.as_bytes()))).await;
        }
        let answer = match reply {
            None => failed(&context, &mut record, "the question was not answered in time; call again"),
            Some(action) => {
                let reply = Reply { id: waiting.id, action, page: None };
                // What denies the call may have come since.
                let decision = proxy.authorize(&context, &target);
                let upstream = proxy.upstream(target.upstream.name());
                let is_there = upstream.is_some_and(|upstream| Arc::ptr_eq(&upstream, &target.upstream))
                    && proxy.still(&context.endpoint, context.caller.as_ref());
                if !is_there {
                    failed(&context, &mut record, "its server is not what it was; call again")
                } else if let Err(why) = proxy.limit(&context, &target, true, &mut record) {
                    Answer::not_admitted(&context, &why, &mut record)
                } else if decision.allowed {
                    target.approvals = decision.approvals;
                    proxy.approve(&context, target, Some(reply), &mut record).await
                } else {
                    failed(&context, &mut record, "it is not allowed any more")
                }
            }
        };
        deliver(answer, record, run.as_deref(), reporter, &context).await
    }
}

/// An answer as an item of the stream of a call that has begun.
async fn deliver(
    answer: Answer,
    record: CallLog,
    run: Option<&RunningRequest>,
    reporter: &Reporter,
    context: &RequestContext,
) -> InputItem {
    reporter.attempts.store(record.attempts, Ordering::Relaxed);
    let mut stream = match answer.body {
        Body::Whole(parts) => {
            let message = parts.concat().into();
            return InputItem::Answer { message, outcome: record.outcome, failure: record.failure };
        }
        Body::Json(pending) => {
            let whole = pending.gather().await;
            return InputItem::Answer { message: whole.message, outcome: whole.outcome, failure: whole.failure };
        }
        Body::Events(stream) => stream,
        Body::Empty => Box::new(AnswerStream::nothing()),
    };
    stream.record = Some(record);
    loop {
        match stream.next().await {
            StreamItem::Message(message) => reporter.say(message, true).await,
            StreamItem::Last(message) => {
                let log = stream.take_log();
                let (outcome, failure) = log.map(|log| (log.outcome, log.failure)).unwrap_or_default();
                return InputItem::Answer { message, outcome, failure };
            }
            StreamItem::Replayed(_) => {}
            StreamItem::End => break,
        }
    }
    // Its client has cancelled it: it is to hear nothing more.
    if let Some(run) = run {
        run.cancel();
        std::future::pending::<()>().await;
    }
    let why = "the call came to nothing";
    let message = answer::error(context.message.id(), answer::INTERNAL, why, None);
    InputItem::Answer { message, outcome: CallOutcome::Failed, failure: Some(why.to_owned()) }
}
