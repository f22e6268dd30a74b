//! The policy `weir:interceptor`: asks the interceptors of an MCP server about calls and their results (SEP-2624).
//!
//! A mutator changes what is sent or what comes back, a validator refuses it. The server is asked over Streamable HTTP, in
//! either era of the protocol.
//!
//! | setting | meaning |
//! | --- | --- |
//! | `url` | the MCP server with the interceptors |
//! | `names` | which of its interceptors; all that are hooked to the event unless it is said |
//! | `events` | the methods that it is asked about, those of questions to the client too; `["tools/call"]` unless it is said |
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
/// What an upstream may ask the client before it answers one of these calls.
const QUESTIONS: [&str; 3] = ["elicitation/create", "sampling/createMessage", "roots/list"];
const ASKING: [&str; 3] = [CALL, "prompts/get", "resources/read"];

struct Interceptors;

impl Calls for Interceptors {
    fn wants(settings: String) -> Result<Interest, String> {
        let settings = InterceptorSettings::read(&settings)?;
        let has_calls = settings.has(CALL);
        let tasks = TASKS.into_iter().filter(|_| has_calls);
        let has_requests = settings.phases.contains(&Phase::Request);
        let has_questions = has_requests && QUESTIONS.iter().any(|event| settings.has(event));
        let asking = ASKING.into_iter().filter(|method| has_questions && !settings.has(method));
        let seen = |wanted: bool| if wanted { Detail::Body } else { Detail::Nothing };
        Ok(Interest {
            request: seen(has_requests),
            // Since 2026-07-28 a question is a result that wants input.
            answer: seen(settings.phases.contains(&Phase::Response) || has_questions),
            event: seen(has_questions),
            ..Interest::in_methods(settings.events.iter().map(String::as_str).chain(tasks).chain(asking))
        })
    }

    fn before(about: Call, params: Option<String>) -> Decision {
        let Some(params) = params.filter(|_| !is_task(&about)) else { return Decision::allow() };
        let Some(params) = Json::parse(&params) else { fail("the params are no JSON") };
        match passed(&about, &about.method, Phase::Request, params) {
            Ok(Chain { payload: Some(params), labels }) => Decision { labels, ..Decision::replace(params.to_string()) },
            Ok(Chain { labels, payload: None }) => Decision { labels, ..Decision::allow() },
            Err(ChainStop::Refused(why)) => Decision::deny(why),
            Err(ChainStop::Failed(why)) => fail(&why),
        }
    }

    fn after(about: Call, memory: String, what: Content) -> AnswerDecision {
        // What is neither a question nor a result has nothing that an interceptor is hooked to.
        let (Content::Result(Some(text)) | Content::Event(Some(text))) = &what else {
            return AnswerDecision::pass(memory);
        };
        let Some(mut whole) = Json::parse(text) else { fail("what came back is no JSON") };
        if let Content::Event(_) = what {
            return decided(asked(&about, &mut whole), whole, memory);
        }
        if whole.get("resultType").and_then(Json::as_text) == Some("input_required") {
            return decided(asked_for_input(&about, &mut whole), whole, memory);
        }
        // Since 2026-07-28 the result of a finished task is within the task.
        let is_within = about.method == TASKS[1];
        let Some(result) = (if is_within { whole.get("result").cloned() } else { Some(whole.clone()) }) else {
            return AnswerDecision::pass(memory);
        };
        // The result of a task is that of its call.
        let event = if is_task(&about) { CALL } else { about.method.as_str() };
        let mut chain = passed(&about, event, Phase::Response, result);
        if let Ok(Chain { payload: Some(result), .. }) = &mut chain {
            let result = std::mem::take(result);
            match is_within {
                true => whole.set("result", result),
                false => whole = result,
            }
        }
        decided(chain, whole, memory)
    }

    fn entries(_: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        entries.iter().map(|_| EntryVerdict::Show).collect()
    }
}

fn is_task(about: &Call) -> bool {
    TASKS.contains(&about.method.as_str())
}

/// What the interceptors make of a payload.
fn passed(about: &Call, event: &str, phase: Phase, payload: Json) -> Result<Chain, ChainStop> {
    let settings = InterceptorSettings::read(&about.upstream.settings).map_err(ChainStop::Failed)?;
    if !settings.phases.contains(&phase) || !settings.has(event) {
        return Ok(Chain::default());
    }
    chain::run(&settings, (about, event), phase, payload)
}

/// What they make of a request of the upstream, whose `params` they may change.
fn asked(about: &Call, request: &mut Json) -> Result<Chain, ChainStop> {
    let event = request.get("method").and_then(Json::as_text).unwrap_or_default().to_owned();
    if !QUESTIONS.contains(&event.as_str()) {
        return Ok(Chain::default());
    }
    let params = request.get("params").cloned().unwrap_or(Json::Object(Vec::new()));
    let chain = passed(about, &event, Phase::Request, params)?;
    chain.payload.iter().for_each(|params| request.set("params", params.clone()));
    Ok(chain)
}

/// The same of all requests in a result that wants input.
fn asked_for_input(about: &Call, result: &mut Json) -> Result<Chain, ChainStop> {
    let mut all = Chain::default();
    if let Some(Json::Object(requests)) = result.get_mut("inputRequests") {
        for (_, request) in requests {
            let chain = asked(about, request)?;
            all.labels.extend(chain.labels);
            all.payload = chain.payload.or(all.payload);
        }
    }
    Ok(all)
}

/// The decision about what came back, of which `whole` is what the interceptors have made.
fn decided(chain: Result<Chain, ChainStop>, whole: Json, memory: String) -> AnswerDecision {
    match chain {
        Ok(Chain { labels, payload: Some(_) }) => {
            AnswerDecision { labels, ..AnswerDecision::replace(whole.to_string(), memory) }
        }
        Ok(Chain { labels, payload: None }) => AnswerDecision { labels, ..AnswerDecision::pass(memory) },
        Err(ChainStop::Refused(why)) => AnswerDecision::cut(why),
        Err(ChainStop::Failed(why)) => fail(&why),
    }
}

/// A policy has no words for a failure of its own: one that traps has failed, and the configuration says what that means.
fn fail(why: &str) -> ! {
    log::warn(why);
    std::process::abort()
}

weir_policy::export_calls!(Interceptors);
