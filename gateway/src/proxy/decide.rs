//! What the `calls` policies of an upstream decide about a request: the one place where policies refuse or change it.
//! What they decide about what comes back is in [`decided_answer`](super::decided_answer).

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use weir_mcp::{Era, Field, Message, Object, json, method, public};

use crate::{
    catalog,
    http::{HeaderName, HeaderValue},
    policy::{Asked, CallPolicy, CallQuestion, CallVerdict, Detail},
    telemetry::CallOutcome,
};

use super::{Answer, CallLog, Proxy, RequestContext, decided_answer::DecidedCall, route::Target};

/// What policies say of one call, for the log; shared by all that works on it.
pub(super) type SharedNotes = Arc<Mutex<PolicyNotes>>;

/// The same.
#[derive(Default)]
pub(super) struct PolicyNotes {
    pub(super) labels: Vec<(String, String)>,
    /// What policies in shadow mode would have made of its answer.
    pub(super) shadow: Vec<String>,
}

/// A request that goes on.
pub(super) struct Forwarded {
    /// The request, if it was changed.
    pub(super) context: Option<Box<RequestContext>>,
    pub(super) target: Target,
    /// What policies still decide: while the upstream works, or about what comes back. None if they have decided all.
    pub(super) call: Option<Box<DecidedCall>>,
}

/// Whether the policies of its upstream have to be asked about a request: not if they have said before that such ones go on.
pub(super) fn is_asked(context: &RequestContext, target: &Target, record: &CallLog) -> bool {
    let Some(policies) = target.upstream.policies() else { return false };
    let (caller, name) = (context.caller.as_ref(), named(context, target));
    let call = CallQuestion {
        id: None,
        upstream: policies.upstream(),
        endpoint: context.endpoint.name(),
        principal: caller.map(|caller| caller.principal()),
        principal_digest: caller.map(|caller| caller.digest()),
        client: record.client(),
        client_group: None,
        era: context.era,
        method: context.message.method(),
        name: name.as_deref(),
        labels: &[],
        input_schema: None,
    };
    // What a policy has said of this call is a fact for the others.
    record.has_notes() || !policies.let_pass(&call)
}

/// What a request names, as its upstream calls it.
pub(super) fn named<'a>(context: &'a RequestContext, target: &'a Target) -> Option<Cow<'a, str>> {
    let own = || context.message.name().or_else(|| context.message.uri());
    target.name.as_deref().map(Cow::from).or_else(own)
}

impl Proxy {
    /// Has the policies of its upstream decide about a request that the rules allow. The answer, if it ends here.
    pub(super) async fn decide(
        &self,
        context: &RequestContext,
        mut target: Target,
        record: &mut CallLog,
    ) -> Result<Forwarded, Box<Answer>> {
        let upstream = Arc::clone(&target.upstream);
        let Some(policies) = upstream.policies() else {
            return Ok(Forwarded { context: None, target, call: None });
        };
        let mut call = DecidedCall::new(context, &target, record);
        let mut changed: Option<Box<RequestContext>> = None;
        for (at, policy) in policies.all().iter().enumerate() {
            let interest = policy.interest();
            if !interest.concerns(&call.method, call.name.as_deref()) {
                continue;
            }
            call.follow(at, interest);
            if interest.request == Detail::Nothing {
                continue;
            }
            if policy.runs_beside() && self.only_reads(context, &target, call.name.as_deref()) {
                call.check_beside(at);
                continue;
            }
            let labels = call.labels();
            let shown = if policy.sees_params() { params(&target) } else { None };
            let schema = self.input_schema(context, &target, policy, call.name.as_deref());
            let facts =
                CallQuestion { input_schema: schema.as_deref(), ..call.facts(policy, policies.upstream(), &labels) };
            let asked = policy.before(&facts, || shown.as_deref()).await;
            let decision = match asked {
                Asked::Decided(decision) => decision,
                Asked::Skipped => continue,
                Asked::Refused(why) => return Err(Box::new(call.failed(why.to_string(), record))),
            };
            call.remember(at, decision.memory.clone());
            if !policy.is_enforced() {
                note_shadow(policy, &decision.verdict, record);
                continue;
            }
            call.label(&decision.labels);
            if !decision.headers.is_empty() {
                let context = changed.get_or_insert_with(|| Box::new(context.clone()));
                context.headers.retain(|(name, _)| decision.headers.iter().all(|(set, _)| set != name.as_str()));
                context.headers.extend(decision.headers.iter().filter_map(header));
            }
            let ended = match &decision.verdict {
                CallVerdict::Allow => None,
                CallVerdict::Ask(approve) => {
                    target.policy_approvals.push(policy.as_rule(approve.clone()));
                    None
                }
                CallVerdict::Deny(denial) => {
                    record.fail(CallOutcome::Denied, format!("policy {}: {}", policy.name(), denial.text));
                    Some(call.refusal(denial))
                }
                CallVerdict::Answer(result) => {
                    call.show(params(&target));
                    Some(Box::pin(call.answered_by(at, result)).await.recorded_in(record))
                }
                CallVerdict::Replace(params) => {
                    let context = changed.get_or_insert_with(|| Box::new(context.clone()));
                    let replaced = self.replace(context, &mut target, params, record);
                    replaced.err().map(|why| call.failed(format!("policy {} {why}", policy.name()), record))
                }
            };
            if let Some(answer) = ended {
                return Err(Box::new(answer));
            }
        }
        if call.is_checked() && policies.all().iter().any(|policy| policy.runs_beside() && policy.sees_params()) {
            call.show(params(&target));
        }
        let open = call.is_checked() || call.wants_more();
        Ok(Forwarded { context: changed, target, call: open.then(|| Box::new(call)) })
    }

    /// Whether nothing has happened if a request is refused after it has gone out.
    fn only_reads(&self, context: &RequestContext, target: &Target, name: Option<&str>) -> bool {
        let reads = |tool| self.catalog.only_reads(context.caller.as_ref(), &target.upstream, context.era, tool);
        match context.message.method() {
            method::TOOLS_CALL => name.is_some_and(reads),
            method => method::safe_to_repeat(method),
        }
    }

    /// The input schema of the tool that is called, where a policy wants it and the tool is listed to this caller.
    fn input_schema(
        &self,
        context: &RequestContext,
        target: &Target,
        policy: &CallPolicy,
        name: Option<&str>,
    ) -> Option<Bytes> {
        let is_wanted = policy.sees_params() && policy.interest().input_schema;
        let tool = name.filter(|_| is_wanted && context.message.method() == method::TOOLS_CALL)?;
        self.catalog.input_schema(context.caller.as_ref(), &target.upstream, context.era, tool)
    }

    /// Puts other `params` in place of those of a request, if rules allow that: in what is sent, and in what is known of
    /// the request.
    fn replace(
        &self,
        context: &mut RequestContext,
        target: &mut Target,
        params: &str,
        record: &mut CallLog,
    ) -> Result<(), &'static str> {
        const UNREADABLE: &str = "gave an answer that cannot be used: nobody can read the call any more";
        let kept = json::get(&target.body, &["params", "_meta"]).map(|meta| String::from_utf8_lossy(meta).into_owned());
        let members: Vec<String> =
            without_meta(params.as_bytes()).chain(kept.map(|meta| format!("\"_meta\":{meta}"))).collect();
        let params = format!("{{{}}}", members.join(","));
        let arguments = json::get(params.as_bytes(), &["arguments"]).map(<[u8]>::to_vec);
        let before = json::get(&target.body, &["params"]).ok_or(UNREADABLE)?;
        target.body = public::replaced(&target.body, vec![(before, params)]);
        Message::parse(target.body.clone()).map_err(|_| UNREADABLE)?;
        if arguments.is_some() || context.message.raw(Field::Arguments).is_some() {
            let arguments = arguments.unwrap_or_else(|| b"{}".to_vec());
            let edited = context.message.edit().put(Object::Body, "arguments", &arguments).finish();
            context.message = Message::parse(edited).map_err(|_| UNREADABLE)?;
            target.arguments = Some(String::from_utf8_lossy(&arguments).into_owned());
            self.mirror(context, target);
        }
        let decision = self.authorize(context, target);
        record.decided(&decision);
        if !decision.allowed {
            return Err("changed the call into one that no rule allows");
        }
        let known = |rule: &Arc<_>| target.approvals.iter().any(|known| Arc::ptr_eq(known, rule));
        let more: Vec<_> = decision.approvals.iter().filter(|rule| !known(rule)).cloned().collect();
        target.approvals.extend(more);
        Ok(())
    }

    /// Has the headers repeat the arguments that are sent, where they do (MCP 2026-07-28, basic/transports).
    fn mirror(&self, context: &mut RequestContext, target: &Target) {
        let is_tool = context.era == Era::Modern && context.message.method() == method::TOOLS_CALL;
        let Some(tool) = target.name.as_deref().filter(|_| is_tool) else { return };
        let mirrored = self.catalog.mirrored(context.caller.as_ref(), &target.upstream, Era::Modern, tool);
        if mirrored.is_empty() {
            return;
        }
        context.headers.retain(|(name, _)| !mirrored.iter().any(|one| one.header == name.as_str()));
        context.headers.extend(catalog::headers(&mirrored, &context.message));
    }
}

/// The `params` that are sent, without `_meta`, which is for clients and servers.
fn params(target: &Target) -> Option<String> {
    let params = json::get(&target.body, &["params"])?;
    Some(format!("{{{}}}", without_meta(params).collect::<Vec<_>>().join(",")))
}

fn without_meta(params: &[u8]) -> impl Iterator<Item = String> {
    let members = json::members(params).filter(|(key, _)| key != "_meta");
    members.map(|(key, raw)| format!("{}:{}", json::quote(&key), String::from_utf8_lossy(raw)))
}

/// A result as the client's era has it.
pub(super) fn complete(era: Era, result: &str) -> String {
    match result.strip_prefix('{').map(str::trim_start) {
        Some(rest) if era == Era::Modern && json::get(result.as_bytes(), &["resultType"]).is_none() => {
            let comma = if rest.starts_with('}') { "" } else { "," };
            format!("{{\"resultType\":\"complete\"{comma}{rest}")
        }
        _ => result.to_owned(),
    }
}

fn note_shadow(policy: &CallPolicy, verdict: &CallVerdict, record: &mut CallLog) {
    let would = match verdict {
        CallVerdict::Allow => return,
        CallVerdict::Deny(denial) => format!("deny: {}", denial.text),
        CallVerdict::Replace(_) => "replace".to_owned(),
        CallVerdict::Answer(_) => "answer".to_owned(),
        CallVerdict::Ask(approve) => format!("ask {approve}"),
    };
    record.shadowed(&format!("policy {} would {would}", policy.name()));
}

fn header((name, value): &(String, String)) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
}
