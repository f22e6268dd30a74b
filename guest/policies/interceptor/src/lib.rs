//! The policy `weir:interceptor`: asks the interceptors of an MCP server about calls and their results (SEP-2624).
//!
//! A mutator changes what is sent or what comes back, a validator refuses it. The server is asked over Streamable HTTP, in
//! either era of the protocol.
//!
//! | setting | meaning |
//! | --- | --- |
//! | `url` | the MCP server with the interceptors |
//! | `names` | which of its interceptors; all that are hooked to the event unless it is said |
//! | `events` | the methods that it is asked about; `["tools/call"]` unless it is said |
//! | `phase` | `"request"`, `"response"` or `"both"` (default) |
//! | `config` | what each interceptor gets as `config` |
//!
//! What cannot be asked fails, and `on_failure` of the configuration decides what becomes of the call.

mod answer;
mod chain;
mod interceptor;
mod server;
mod settings;

use weir_policy::{Upstream, calls::*, capability::log, json::Json};

use chain::{Chain, ChainStop};
use interceptor::Phase;
use settings::InterceptorSettings;

struct Interceptors;

impl Calls for Interceptors {
    fn wants(settings: String) -> Result<Interest, String> {
        let settings = InterceptorSettings::read(&settings)?;
        let seen = |phase| if settings.phases.contains(&phase) { Detail::Body } else { Detail::Nothing };
        Ok(Interest {
            request: seen(Phase::Request),
            answer: seen(Phase::Response),
            ..Interest::in_methods(settings.events.iter().map(String::as_str))
        })
    }

    fn before(about: Call, params: Option<String>) -> Decision {
        let Some(params) = params else { return Decision::allow() };
        let Some(params) = Json::parse(&params) else { fail("the params are no JSON") };
        match passed(&about, Phase::Request, params) {
            Ok(Chain { payload: Some(params), labels, .. }) => {
                Decision { labels, ..Decision::replace(params.to_string()) }
            }
            Ok(Chain { labels, .. }) => Decision { labels, ..Decision::allow() },
            Err(ChainStop::Refused(why)) => Decision::deny(why),
            Err(ChainStop::Failed(why)) => fail(&why),
        }
    }

    fn after(about: Call, memory: String, what: Content) -> AnswerDecision {
        // What is no result has nothing that an interceptor is hooked to.
        let Content::Result(Some(result)) = what else { return AnswerDecision::pass(memory) };
        let Some(result) = Json::parse(&result) else { fail("the result is no JSON") };
        match passed(&about, Phase::Response, result) {
            Ok(Chain { payload: Some(result), labels, .. }) => {
                AnswerDecision { labels, ..AnswerDecision::replace(result.to_string(), memory) }
            }
            Ok(Chain { labels, .. }) => AnswerDecision { labels, ..AnswerDecision::pass(memory) },
            Err(ChainStop::Refused(why)) => AnswerDecision::cut(why),
            Err(ChainStop::Failed(why)) => fail(&why),
        }
    }

    fn entries(_: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        entries.iter().map(|_| EntryVerdict::Show).collect()
    }
}

/// What the interceptors make of a payload.
fn passed(about: &Call, phase: Phase, payload: Json) -> Result<Chain, ChainStop> {
    let settings = InterceptorSettings::read(&about.upstream.settings).map_err(ChainStop::Failed)?;
    if !settings.phases.contains(&phase) {
        return Ok(Chain::default());
    }
    chain::run(&settings, about, phase, payload)
}

/// A policy has no words for a failure of its own: one that traps has failed, and the configuration says what that means.
fn fail(why: &str) -> ! {
    log::warn(why);
    std::process::abort()
}

weir_policy::export_calls!(Interceptors);
