//! Whether the condition of a rule holds.

use std::{
    cell::OnceCell,
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, Value,
    common::{
        types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt},
        value::{CowVal, Val},
    },
    context::VariableResolver,
};
use serde::Serialize;
use weir_flow::facts::Principal;
use weir_mcp::ListKind;

use crate::config::Condition;

use super::{
    AccessRequest, Item,
    arguments::{Arguments, ReadValue},
    evaluation::{Unevaluated, evaluate, truth},
};

/// What conditions call the caller.
const CALLER: &str = "caller";

/// What conditions call the call.
pub(super) const CALL: &str = "call";

/// What they call its arguments.
pub(super) const ARGUMENTS: &str = "args";

/// The functions of CEL.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// What a condition comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Yes,
    No,
    /// The call or its arguments decide, and they are not known yet.
    Open,
    /// It cannot be evaluated: a missing argument, a type that does not fit, or too much of it.
    Failed,
}

/// What conditions know. All that are asked about a call share it, and what none of them asks for is not made.
pub(super) struct Facts<'a, 'json> {
    caller: &'a dyn Val,
    call: Option<(&'a AccessRequest<'a>, &'a str)>,
    /// The call as conditions see it.
    seen: OnceCell<Box<dyn Val + 'a>>,
    arguments: Option<&'a Arguments<'json>>,
}

impl<'a, 'json> Facts<'a, 'json> {
    /// A caller, as [`caller`] makes it, and nothing else.
    pub(super) const fn of_caller(caller: &'a dyn Val) -> Self {
        Self { caller, call: None, seen: OnceCell::new(), arguments: None }
    }

    /// A call at an account, which is empty if its upstream has none; with its arguments where they are known.
    pub(super) const fn of_call(
        caller: &'a dyn Val,
        call: (&'a AccessRequest<'a>, &'a str),
        arguments: Option<&'a Arguments<'json>>,
    ) -> Self {
        Self { caller, call: Some(call), seen: OnceCell::new(), arguments }
    }

    /// Whether a condition holds.
    pub(super) fn satisfy(&self, condition: &Condition) -> Verdict {
        if self.call.is_none() && !condition.is_of_caller() {
            return Verdict::Open;
        }
        // It would have to be asked about each address that a template stands for.
        if condition.is_of_name() && self.call.is_some_and(|(call, _)| matches!(call.item, Item::Each(_))) {
            return Verdict::Failed;
        }
        if condition.uses_arguments() {
            match self.arguments {
                None => return Verdict::Open,
                Some(arguments) if !arguments.may_be_judged_by(condition) => return Verdict::Failed,
                Some(_) => {}
            }
        }
        match evaluate(condition.program().expression(), self).and_then(truth) {
            Ok(true) => Verdict::Yes,
            Ok(false) => Verdict::No,
            Err(Unevaluated::Failed) => Verdict::Failed,
            Err(Unevaluated::NotPlain) => self.interpret(condition),
        }
    }

    /// Has the interpreter of CEL evaluate a condition.
    pub(super) fn interpret(&self, condition: &Condition) -> Verdict {
        let variables = Variables {
            caller: self.caller,
            call: self.call(),
            arguments: self.arguments.filter(|_| condition.uses_arguments()).and_then(Arguments::value),
        };
        let mut context = Context::with_env(Arc::clone(&ENV));
        context.set_variable_resolver(&variables);
        match condition.program().execute(&context) {
            Ok(Value::Bool(true)) => Verdict::Yes,
            Ok(Value::Bool(false)) => Verdict::No,
            Ok(_) | Err(_) => Verdict::Failed,
        }
    }

    /// A member of the call; none if there is no such, or no call.
    pub(super) fn of_the_call(&self, member: &str) -> Option<&str> {
        let (_, text) = members(self.call?).into_iter().find(|(name, _)| *name == member)?;
        Some(text)
    }

    /// A member of the arguments, or that there is no such; nothing where they are no small object.
    pub(super) fn argument(&self, member: &str) -> Option<Option<&ReadValue<'json>>> {
        self.arguments?.member(member)
    }

    /// What a variable stands for; none if that cannot be known.
    pub(super) fn variable(&self, name: &str) -> Option<&dyn Val> {
        match name {
            CALLER => Some(self.caller),
            CALL => Some(self.call()),
            ARGUMENTS => Some(self.arguments?.value()?),
            _ => None,
        }
    }

    fn call(&self) -> &dyn Val {
        &**self.seen.get_or_init(|| seen(self.call))
    }
}

/// What the interpreter asks for, which any thread might.
struct Variables<'a> {
    caller: &'a dyn Val,
    call: &'a dyn Val,
    arguments: Option<&'a dyn Val>,
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let value = match variable {
            CALLER => self.caller,
            CALL => self.call,
            ARGUMENTS => self.arguments?,
            _ => return None,
        };
        Some(CowVal::Borrowed(value))
    }
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

/// The caller as conditions see them.
pub(super) fn caller(principal: Option<&Principal>) -> Box<dyn Val> {
    let claims = principal.and_then(|principal| serde_json::from_str(&principal.claims).ok()).unwrap_or_default();
    let facts = CallerFacts {
        subject: principal.map_or("", |principal| &principal.subject),
        issuer: principal.and_then(|principal| principal.issuer.as_deref()).unwrap_or_default(),
        groups: principal.map_or(&[], |principal| &principal.groups),
        scopes: principal.map_or(&[], |principal| &principal.scopes),
        key: principal.and_then(|principal| principal.key.as_deref()).unwrap_or_default(),
        claims,
    };
    value(serde_json::to_value(facts).unwrap_or_default())
}

/// Whom conditions see that are not about the caller.
pub(super) fn nobody() -> &'static dyn Val {
    &CelNull
}

/// The call as conditions see it.
fn seen<'a>(call: Option<(&'a AccessRequest<'a>, &'a str)>) -> Box<dyn Val + 'a> {
    let Some(call) = call else { return Box::new(CelNull) };
    let member = |(key, text)| (CelMapKey::from(key), Box::new(CelString::from(text)) as Box<dyn Val + 'a>);
    Box::new(CelMap::from(members(call).map(member).into_iter().collect::<HashMap<_, _>>()))
}

fn members<'a>((call, account): (&'a AccessRequest<'a>, &'a str)) -> [(&'static str, &'a str); 6] {
    let AccessRequest { endpoint, method, upstream, item, .. } = *call;
    let (kind, name) = match item {
        Item::One(ListKind::Tool, name) => ("tool", name),
        Item::One(ListKind::Prompt, name) => ("prompt", name),
        Item::One(ListKind::Resource | ListKind::Template, name) | Item::Each(name) => ("resource", name),
        Item::Any | Item::Whole => ("", ""),
    };
    [
        ("endpoint", endpoint),
        ("method", method),
        ("upstream", upstream),
        ("account", account),
        ("kind", kind),
        ("name", name),
    ]
}

/// JSON as CEL has it. A whole number is an `int` where it fits, so that conditions can reckon with it.
fn value(json: serde_json::Value) -> Box<dyn Val> {
    match json {
        serde_json::Value::Null => Box::new(CelNull),
        serde_json::Value::Bool(yes) => Box::new(CelBool::from(yes)),
        serde_json::Value::String(text) => Box::new(CelString::from(text)),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Box::new(CelInt::from(whole)),
            (None, Some(whole)) => Box::new(CelUInt::from(whole)),
            (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        serde_json::Value::Array(all) => Box::new(CelList::from(all.into_iter().map(value).collect::<Vec<_>>())),
        serde_json::Value::Object(all) => {
            let members = all.into_iter().map(|(key, json)| (CelMapKey::from(key), value(json)));
            Box::new(CelMap::from(members.collect::<HashMap<_, _>>()))
        }
    }
}
