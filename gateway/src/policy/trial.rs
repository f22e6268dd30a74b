//! Asking a policy anything that the contract has, without a gateway.

use serde_json::Value;
use wasmtime::{
    Store,
    component::{ComponentExportIndex, Func, Type, Val, types::ComponentItem},
};

use super::{
    Policy, PolicyError, PolicyFault,
    guest_log::Readable,
    host::HostState,
    json,
    limits::{BODY, HANDOVER, InstanceSlot, ProcessorTime},
};

/// The functions of the contract, each with its interface.
const FUNCTIONS: [(&str, &str); 6] = [
    ("next", "connection"),
    ("decide", "credentials"),
    ("wants", "calls"),
    ("before", "calls"),
    ("after", "calls"),
    ("entries", "calls"),
];

impl Policy {
    /// The answer to a question as JSON: `function` with parameters by their names. Within the limits of any question. The
    /// answer is not checked: it may be one that Weir would not carry out.
    ///
    /// `secrets` are those that it may read, if it is granted that.
    ///
    /// # Errors
    ///
    /// When the question does not fit the contract, or has no answer.
    pub async fn ask(
        &self,
        function: &str,
        parameters: &Value,
        secrets: &[(String, String)],
    ) -> Result<Value, PolicyError> {
        self.prepare(function, parameters, secrets)?.ask().await
    }

    /// A question that can be asked again and again.
    ///
    /// # Errors
    ///
    /// When the contract or the component has no such function, or the question does not fit the contract.
    pub fn prepare(
        &self,
        function: &str,
        parameters: &Value,
        secrets: &[(String, String)],
    ) -> Result<PreparedQuestion<'_>, PolicyError> {
        let wrong = |what: String| self.fault(PolicyFault::Question(what));
        let Some((_, interface)) = FUNCTIONS.iter().find(|(name, _)| *name == function) else {
            let known: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
            return Err(wrong(format!("there is no function {function}; there are {}", known.join(", "))));
        };
        let component = self.0.loaded.ready.component();
        let of = component.get_export_index(None, format!("weir:policy/{interface}@0.1.0"));
        let found = of.and_then(|of| component.get_export(Some(&of), function));
        let Some((ComponentItem::ComponentFunc(ty), export)) = found else {
            return Err(wrong(format!("the component does not export {interface}")));
        };
        let expected: Vec<(String, Type)> = ty.params().map(|(name, ty)| (name.to_owned(), ty)).collect();
        let given = json::members(&expected, Some(parameters), "with").map_err(|why| wrong(why.to_string()))?;
        let given = given.into_iter().map(|(_, value)| value).collect();
        Ok(PreparedQuestion { policy: self, export, given, secrets: Readable::from(secrets) })
    }
}

/// A question as the contract has it.
pub struct PreparedQuestion<'p> {
    policy: &'p Policy,
    /// The function.
    export: ComponentExportIndex,
    given: Vec<Val>,
    secrets: Readable,
}

impl PreparedQuestion<'_> {
    /// The answer of a fresh instance, within the limits of one question.
    ///
    /// # Errors
    ///
    /// When it has no answer.
    pub async fn ask(&self) -> Result<Value, PolicyError> {
        self.open().await?.ask().await
    }

    /// An instance that answers it.
    ///
    /// # Errors
    ///
    /// When there is no instance.
    pub async fn open(&self) -> Result<OpenInstance<'_>, PolicyError> {
        let policy = self.policy;
        let slot = policy.slot().await?;
        let mut store = policy.store("", self.secrets.clone());
        store.set_hostcall_fuel(HANDOVER + 2 * BODY);
        let instance = policy.bounded(policy.0.loaded.ready.instantiate_async(&mut store)).await?;
        let asked = instance.get_func(&mut store, self.export);
        let asked =
            asked.ok_or_else(|| policy.fault(PolicyFault::Question("it is for another component".to_owned())))?;
        Ok(OpenInstance { question: self, store, asked, _slot: slot })
    }
}

/// An instance that answers a question more than once, which no instance of a gateway does.
pub struct OpenInstance<'q> {
    question: &'q PreparedQuestion<'q>,
    store: Store<HostState>,
    asked: Func,
    _slot: InstanceSlot,
}

impl OpenInstance<'_> {
    /// The answer, within the limits of one question.
    ///
    /// # Errors
    ///
    /// When there is no answer. The instance can be asked no more then.
    pub async fn ask(&mut self) -> Result<Value, PolicyError> {
        let Self { question, store, asked, .. } = self;
        let state = store.data_mut();
        (state.time, state.requests, state.operations) = (ProcessorTime::default(), 0, 0);
        let mut answers = [Val::Bool(false)];
        question.policy.bounded(asked.call_async(&mut *store, &question.given, &mut answers)).await?;
        Ok(json::shown(&answers[0]))
    }
}
