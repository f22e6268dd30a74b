//! What the answers on the way to an upstream say of its transport and era.

use weir_flow::facts::{Attempt, Outcome, Transport};
use weir_mcp::{Era, Field, Message, answer, era, message::Kind};

use crate::{http::HeaderValue, upstream::credential::CredentialError};

use super::ConnectError;

/// `MCP-Protocol-Version` of the modern era.
pub(super) static MODERN: HeaderValue = HeaderValue::from_static(era::LATEST_MODERN);

/// Whether an answer opens the era that was asked for (mcp.md's ladder: MCP 2026-07-28, streamable-http, "Backward
/// Compatibility").
pub(super) fn opening(era: Era, status: u16, answer: &Message) -> Result<(), Outcome> {
    let speaks = match (era, answer.kind()) {
        // A clean answer is no proof: some servers answer `server/discover` and negotiate down.
        (Era::Modern, Kind::Response) => answer
            .result()
            .and_then(|result| weir_mcp::json::get(result, &["supportedVersions"]))
            .is_some_and(|versions| {
                weir_mcp::json::elements(versions)
                    .any(|v| weir_mcp::json::string(v).as_deref() == Some(era::LATEST_MODERN))
            }),
        (Era::Legacy, Kind::Response) => {
            answer.result().is_some_and(|result| weir_mcp::json::get(result, &["protocolVersion"]).is_some())
        }
        _ => false,
    };
    match status {
        _ if speaks => Ok(()),
        // A server of the modern era that refuses this one request: no other transport will do.
        400 if era == Era::Modern && refuses_as_modern(answer) => Err(Outcome::Inconclusive(status)),
        200..300 => Err(Outcome::NotMcp("it answered, but not with what opens this era".into())),
        status => Err(Outcome::of_status(status)),
    }
}

/// Whether an answer to `server/discover` refuses a version and names the very one that was spoken among those that are
/// supported. Whoever is told so picks from the list and asks once more (MCP 2026-07-28, basic/versioning).
pub(super) fn asks_again(era: Era, answer: &Message) -> bool {
    let supported = || {
        let supported = answer.raw(Field::ErrorData).and_then(|data| weir_mcp::json::get(data, &["supported"]));
        supported.into_iter().flat_map(weir_mcp::json::elements)
    };
    era == Era::Modern
        && answer.error_code() == Some(answer::UNSUPPORTED_VERSION)
        && supported().any(|version| weir_mcp::json::string(version).as_deref() == Some(era::LATEST_MODERN))
}

/// Whether an error is one that only the modern era has, and leaves no legacy version to try.
fn refuses_as_modern(answer: &Message) -> bool {
    match answer.error_code() {
        Some(answer::UNSUPPORTED_VERSION) => {
            let error = serde_json::from_slice::<serde_json::Value>(answer.bytes()).unwrap_or_default();
            let supported = error["error"]["data"]["supported"].as_array();
            supported.is_some_and(|all| {
                !all.is_empty() && all.iter().filter_map(|v| v.as_str()).all(|v| v >= era::LATEST_MODERN)
            })
        }
        Some(answer::HEADER_MISMATCH | answer::MISSING_CAPABILITY) => true,
        _ => false,
    }
}

/// What `MCP-Protocol-Version` says from now on.
pub(super) fn agreed(era: Era, answer: &Message) -> Option<HeaderValue> {
    match era {
        Era::Modern => Some(MODERN.clone()),
        Era::Legacy => {
            let raw = weir_mcp::json::get(answer.result()?, &["protocolVersion"])?;
            HeaderValue::from_str(&weir_mcp::json::string(raw)?).ok()
        }
    }
}

/// What a policy's stop means to the caller; `denied` is why there is no other credential than the one refused.
pub(super) fn stopped(why: String, denied: Option<CredentialError>, history: &[Attempt]) -> ConnectError {
    let refused = |attempt: &Attempt| matches!(attempt.outcome, Outcome::Unauthorized(_));
    let Some(last) = history.last() else { return ConnectError::Stopped(why) };
    let stdio = last.transport == Transport::Stdio;
    match &last.outcome {
        Outcome::Forbidden(_) => refused_for(why, denied),
        // One transport asks for a credential and the rest are not there: that is what the operator can mend.
        Outcome::Unauthorized(_) | Outcome::Unsupported(_) | Outcome::NotMcp(_) if history.iter().any(refused) => {
            refused_for(why, denied)
        }
        // A process that ends is not started again at once.
        Outcome::ConnectionTerminated if stdio => ConnectError::Silent(why),
        Outcome::Inconclusive(408 | 429 | 500..) | Outcome::ConnectionTerminated => ConnectError::Outage(why),
        // A program that cannot be started is an error of the configuration.
        Outcome::Unreachable(_) if !stdio => ConnectError::Outage(why),
        Outcome::TimedOut => ConnectError::Silent(why),
        _ => ConnectError::Stopped(why),
    }
}

/// The upstream wants another credential than the one it refused, whoever it is that does not give it.
fn refused_for(why: String, denied: Option<CredentialError>) -> ConnectError {
    match denied {
        None => ConnectError::Unauthorized(why),
        Some(CredentialError::Denied(why)) => ConnectError::Unauthorized(why),
        Some(denied) => denied.into(),
    }
}

/// Whether an outcome tells of transport or era rather than of an outage or a missing credential.
pub(super) const fn is_evidence(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unsupported(_) | Outcome::NotMcp(_))
}

#[cfg(test)]
mod tests {
    use weir_flow::facts::Challenge;

    use super::*;

    #[test]
    fn a_policy_that_stops_after_a_401_leaves_a_login_to_be_wanted() {
        let outcome = Outcome::Unauthorized(Challenge::default());
        let refused =
            Attempt { transport: Transport::Http, era: Era::Modern, credential: true, outcome, duration_ms: 1 };
        let denied = CredentialError::Denied("ask the platform team".into());
        let said = stopped("401".into(), Some(denied.clone()), &[refused]);
        assert_eq!(said, ConnectError::Unauthorized("ask the platform team".into()));
        assert_eq!(ConnectError::from(denied), ConnectError::Denied("ask the platform team".into()));
    }
}
