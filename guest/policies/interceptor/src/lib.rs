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

/// What has a result that interceptors are hooked to, and what brings it later where the call became a task.
const CALL: &str = "tools/call";
const TASKS: [&str; 2] = ["tasks/result", "tasks/get"];

struct Interceptors;

impl Calls for Interceptors {
    fn wants(settings: String) -> Result<Interest, String> {
        let settings = InterceptorSettings::read(&settings)?;
        let has_calls = settings.events.iter().any(|event| settings::covers(event, CALL));
        let tasks = TASKS.into_iter().filter(|_| has_calls);
        let seen = |phase| if settings.phases.contains(&phase) { Detail::Body } else { Detail::Nothing };
        Ok(Interest {
            request: seen(Phase::Request),
            answer: seen(Phase::Response),
            ..Interest::in_methods(settings.events.iter().map(String::as_str).chain(tasks))
        })
    }

    fn before(about: Call, params: Option<String>) -> Decision {
        let Some(params) = params.filter(|_| !is_task(&about)) else { return Decision::allow() };
        let Some(params) = Json::parse(&params) else { fail("the params are no JSON") };
        match passed(&about, Phase::Request, params) {
            Ok(Chain { payload: Some(params), labels }) => Decision { labels, ..Decision::replace(params.to_string()) },
            Ok(Chain { labels, payload: None }) => Decision { labels, ..Decision::allow() },
            Err(ChainStop::Refused(why)) => Decision::deny(why),
            Err(ChainStop::Failed(why)) => fail(&why),
        }
    }

    fn after(about: Call, memory: String, what: Content) -> AnswerDecision {
        // What is no result has nothing that an interceptor is hooked to.
        let Content::Result(Some(result)) = what else { return AnswerDecision::pass(memory) };
        let Some(mut whole) = Json::parse(&result) else { fail("the result is no JSON") };
        // Since 2026-07-28 the result of a finished task is within the task.
        let is_within = about.method == TASKS[1];
        let Some(result) = (if is_within { whole.get("result").cloned() } else { Some(whole.clone()) }) else {
            return AnswerDecision::pass(memory);
        };
        match passed(&about, Phase::Response, result) {
            Ok(Chain { payload: Some(result), labels }) => {
                if is_within {
                    whole.set("result", result);
                } else {
                    whole = result;
                }
                AnswerDecision { labels, ..AnswerDecision::replace(whole.to_string(), memory) }
            }
            Ok(Chain { labels, payload: None }) => AnswerDecision { labels, ..AnswerDecision::pass(memory) },
            Err(ChainStop::Refused(why)) => AnswerDecision::cut(why),
            Err(ChainStop::Failed(why)) => fail(&why),
        }
    }

    fn entries(_: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        entries.iter().map(|_| EntryVerdict::Show).collect()
    }
}

fn is_task(about: &Call) -> bool {
    TASKS.contains(&about.method.as_str())
}

/// What the interceptors make of a payload.
fn passed(about: &Call, phase: Phase, payload: Json) -> Result<Chain, ChainStop> {
    let settings = InterceptorSettings::read(&about.upstream.settings).map_err(ChainStop::Failed)?;
    if !settings.phases.contains(&phase) {
        return Ok(Chain::default());
    }
    // The result of a task is that of its call.
    let event = if is_task(about) { CALL } else { about.method.as_str() };
    chain::run(&settings, (about, event), phase, payload)
}

/// A policy has no words for a failure of its own: one that traps has failed, and the configuration says what that means.
fn fail(why: &str) -> ! {
    log::warn(why);
    std::process::abort()
}

weir_policy::export_calls!(Interceptors);
