//! Answers as lines.

use bytes::Bytes;
use weir_mcp::{Message, answer};

use crate::{
    proxy::{Answer, AnswerStream, Body, StreamItem, WholeAnswer},
    telemetry::CallOutcome,
};

use super::out::StdioWriter;

/// Says what an answer comes to; its last message is the response to the request called `id`.
pub(super) async fn give(answer: Answer, id: &[u8], out: &StdioWriter) {
    give_as(answer, id, out, |response| Some(response.one_line())).await;
}

/// The same with the response as `line` has it; `false` if that has none, and so nothing was said.
pub(super) async fn give_as(
    answer: Answer,
    id: &[u8],
    out: &StdioWriter,
    line: impl Fn(&Message) -> Option<Bytes>,
) -> bool {
    let Answer { status, body, mut record, .. } = answer;
    let mut sent = 0;
    let failure = match body {
        Body::Events(mut delivery) => {
            let answered = hear(&mut delivery, Some(id), out).await;
            record = delivery.take_log();
            match answered.map(|response| line(&response)) {
                Some(Some(line)) => {
                    sent = line.len() as u64;
                    out.say(line).await;
                    None
                }
                Some(None) => return false,
                None if delivery.is_cancelled() => None,
                None => {
                    let why = "the upstream's answer broke off".to_owned();
                    out.say(error(id, &why)).await;
                    Some(why)
                }
            }
        }
        body => {
            let Some(slot) = out.slot().await else { return true };
            let (gathered, failed) = gathered(status, body).await;
            match gathered.and_then(|bytes| response(bytes, id)).map(|response| line(&response)) {
                Ok(Some(line)) => {
                    sent = line.len() as u64;
                    slot.say(line);
                    failed
                }
                Ok(None) => return false,
                Err(why) => {
                    slot.say(error(id, &why));
                    Some(why)
                }
            }
        }
    };
    if let Some(mut record) = record {
        if let Some(why) = failure {
            record.fail(CallOutcome::Failed, why);
        }
        record.finish(status, sent);
    }
    true
}

/// Says what comes on a stream, up to the response to `id` if it has one, which is given.
pub(super) async fn hear(delivery: &mut AnswerStream, id: Option<&[u8]>, out: &StdioWriter) -> Option<Message> {
    while let StreamItem::Message(data) | StreamItem::Last(data) = delivery.next().await {
        let Ok(message) = Message::parse(data) else { continue };
        match id.and_then(|id| message.answer_to(id)) {
            Some(response) => return Some(response),
            None => out.say(message.one_line()).await,
        }
    }
    None
}

/// An error of Weir's own in place of an answer.
pub(super) fn error(id: &[u8], why: &str) -> Bytes {
    answer::error(Some(id), answer::INTERNAL, why, None)
}

/// The message of a body; and why it is an error, if Weir knows.
async fn gathered(status: u16, body: Body) -> (Result<Bytes, String>, Option<String>) {
    match body {
        Body::Whole(parts) => (Ok(parts.concat().into()), None),
        Body::Json(pending) => {
            let WholeAnswer { message, failure, .. } = pending.gather().await;
            (Ok(message), failure)
        }
        Body::Empty | Body::Events(_) => {
            (Err(format!("the upstream answered with status {status} and nothing else")), None)
        }
    }
}

fn response(bytes: Bytes, id: &[u8]) -> Result<Message, String> {
    let message = Message::parse(bytes).map_err(|why| format!("the upstream's answer: {why}"))?;
    message.answer_to(id).ok_or_else(|| "the upstream answered something else".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn response(text: &str) -> Result<String, String> {
        let response = super::response(Bytes::copy_from_slice(text.as_bytes()), b"7")?;
        Ok(String::from_utf8(response.one_line().to_vec()).unwrap())
    }

    #[test]
    fn an_answer_is_one_line_with_the_id_of_its_request() {
        let pretty = "{\r\n  \"jsonrpc\": \"2.0\",\n  \"id\": 7,\n  \"result\": {}\n}\n";
        assert_eq!(response(pretty).unwrap().trim_ascii_end(), r#"{    "jsonrpc": "2.0",   "id": 7,   "result": {} }"#);
        for nameless in [
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#,
            r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"no"}}"#,
        ] {
            let line = response(nameless).unwrap();
            let message = Message::parse(line.into()).unwrap();
            assert_eq!((message.id(), message.error_code()), (Some(&b"7"[..]), Some(-32600)));
        }
        for other in [
            r#"{"jsonrpc":"2.0","id":8,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"7","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#,
            "<html>",
            "",
        ] {
            assert!(response(other).is_err(), "{other}");
        }
    }
}
