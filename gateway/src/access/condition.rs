//! Whether the condition of a rule holds.

use std::{cell::RefCell, sync::Arc};

use cel::{Context, Env, Value, to_value};
use serde::Serialize;
use weir_flow::facts::Principal;
use weir_mcp::ListKind;

use crate::config::Condition;

use super::{CallFacts, Item, arguments::Arguments};

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

/// Whether a condition holds. `call` is none while only the caller is known, and its arguments while they are not.
pub(super) fn holds(
    condition: &Condition,
    caller: &Value,
    call: Option<(&CallFacts<'_>, Option<&Arguments<'_>>)>,
) -> Verdict {
    let (call, arguments) = match call {
        None if condition.is_of_caller() => (None, None),
        None => return Verdict::Open,
        Some((call, arguments)) => (Some(call), arguments),
    };
    let arguments = match arguments {
        _ if !condition.uses_arguments() => Some(Value::Null),
        None => return Verdict::Open,
        Some(arguments) => arguments.given_to(condition),
    };
    let Some(arguments) = arguments else { return Verdict::Failed };
    CONTEXT.with_borrow_mut(|context| {
        context.add_variable_from_value("caller", caller.clone());
        if let Some(call) = call {
            context.add_variable_from_value("call", named(call));
        }
        context.add_variable_from_value("args", arguments);
        let result = condition.program().execute(context);
        // Nothing of a call is kept.
        context.add_variable_from_value("args", Value::Null);
        match result {
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
