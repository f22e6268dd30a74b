//! Whether the condition of a rule holds.

use std::{cell::RefCell, sync::Arc};

use cel::{Context, Env, Value, to_value};
use serde::Serialize;
use weir_flow::facts::Principal;
use weir_mcp::ListKind;

use crate::config::Condition;

use super::{CallFacts, Item};

/// What a condition comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Yes,
    No,
    /// The arguments decide, and they are not known yet.
    Open,
    /// It cannot be evaluated: a missing argument, a type that does not fit, or too much of it.
    Failed,
}

/// What a condition knows of the caller.
#[derive(Serialize)]
struct CallerFacts<'a> {
    subject: &'a str,
    issuer: &'a str,
    groups: &'a [String],
    scopes: &'a [String],
    key: &'a str,
    claims: serde_json::Value,
}

/// What it knows of the call.
#[derive(Serialize)]
struct NamedCall<'a> {
    endpoint: &'a str,
    method: &'a str,
    upstream: &'a str,
    kind: &'a str,
    name: &'a str,
}

/// The caller as conditions see them.
pub(super) fn caller(principal: Option<&Principal>) -> Value {
    let claims = principal.and_then(|principal| serde_json::from_str(&principal.claims).ok()).unwrap_or_default();
    let facts = CallerFacts {
        subject: principal.map_or("", |principal| &principal.subject),
        issuer: principal.and_then(|principal| principal.issuer.as_deref()).unwrap_or_default(),
        groups: principal.map_or(&[], |principal| &principal.groups),
        scopes: principal.map_or(&[], |principal| &principal.scopes),
        key: principal.and_then(|principal| principal.key.as_deref()).unwrap_or_default(),
        claims,
    };
    to_value(facts).unwrap_or(Value::Null)
}

/// Whether a condition holds. `call` is none while only the caller is known.
pub(super) fn holds(condition: &Condition, caller: &Value, call: Option<&CallFacts<'_>>) -> Verdict {
    let call = match call {
        None if condition.is_of_caller() => None,
        None => return Verdict::Open,
        Some(call) => Some(call),
    };
    let mut arguments = Value::Null;
    if condition.uses_arguments() {
        let Some(raw) = call.and_then(|call| call.arguments) else { return Verdict::Open };
        if condition.is_too_costly(raw.len()) {
            return Verdict::Failed;
        }
        let parsed = serde_json::from_slice::<serde_json::Value>(raw).ok();
        let Some(parsed) = parsed.and_then(|parsed| to_value(parsed).ok()) else { return Verdict::Failed };
        arguments = parsed;
    }
    CONTEXT.with_borrow_mut(|context| {
        context.add_variable_from_value("caller", caller.clone());
        if let Some(call) = call {
            context.add_variable_from_value("call", named(call));
        }
        context.add_variable_from_value("args", arguments);
        match condition.program().execute(context) {
            Ok(Value::Bool(true)) => Verdict::Yes,
            Ok(Value::Bool(false)) => Verdict::No,
            Ok(_) | Err(_) => Verdict::Failed,
        }
    })
}

thread_local! {
    /// The functions of CEL, and the variables of the condition that is evaluated: they are set anew for each.
    static CONTEXT: RefCell<Context<'static, 'static>> = RefCell::new(Context::with_env(Arc::new(Env::stdlib())));
}

fn named(call: &CallFacts<'_>) -> Value {
    let (kind, name) = match call.item {
        Item::One(ListKind::Tool, name) => ("tool", name),
        Item::One(ListKind::Prompt, name) => ("prompt", name),
        Item::One(ListKind::Resource | ListKind::Template, name) => ("resource", name),
        Item::Any | Item::Whole => ("", ""),
    };
    let CallFacts { endpoint, method, upstream, .. } = *call;
    to_value(NamedCall { endpoint, method, upstream, kind, name }).unwrap_or(Value::Null)
}
