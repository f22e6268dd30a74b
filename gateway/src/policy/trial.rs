//! Asking a policy anything that the contract has, without a gateway.

use serde_json::Value;
use wasmtime::{
    Store,
    component::{Func, Type, Val},
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
        self.open(function, secrets).await?.ask(parameters).await
    }

    /// An instance that answers questions for one function.
    ///
    /// # Errors
    ///
    /// When the contract or the component has no such function, or there is no instance.
    pub async fn open(&self, function: &str, secrets: &[(String, String)]) -> Result<OpenInstance<'_>, PolicyError> {
        let wrong = |what: String| self.fault(PolicyFault::Question(what));
        let Some((_, interface)) = FUNCTIONS.iter().find(|(name, _)| *name == function) else {
            let known: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
            return Err(wrong(format!("there is no function {function}; there are {}", known.join(", "))));
        };
        let slot = self.slot().await?;
        let mut store = self.store("", Readable::from(secrets));
        store.set_hostcall_fuel(HANDOVER + 2 * BODY);
        let instance = self.bounded(self.0.loaded.ready.instantiate_async(&mut store)).await?;
        let name = format!("weir:policy/{interface}@0.1.0");
        let found = instance.get_export_index(&mut store, None, &name);
        let found = found.and_then(|of| instance.get_export_index(&mut store, Some(&of), function));
        let asked = found.and_then(|found| instance.get_func(&mut store, found));
        let asked = asked.ok_or_else(|| wrong(format!("the component does not export {interface}")))?;
        Ok(OpenInstance { policy: self, store, asked, _slot: slot })
    }
}

/// An instance that answers more than one question, which no instance of a gateway does.
pub struct OpenInstance<'a> {
    policy: &'a Policy,
    store: Store<HostState>,
    asked: Func,
    _slot: InstanceSlot,
}

impl OpenInstance<'_> {
    /// The answer to a question, within the limits of one.
    ///
    /// # Errors
    ///
    /// When the question does not fit the contract, or has no answer. The instance can be asked no more then.
    pub async fn ask(&mut self, parameters: &Value) -> Result<Value, PolicyError> {
        let Self { policy, store, asked, .. } = self;
        let wrong = |why: json::Unfit| policy.fault(PolicyFault::Question(why.to_string()));
        let given = filled(*asked, store, parameters).map_err(wrong)?;
        let state = store.data_mut();
        (state.time, state.requests, state.operations) = (ProcessorTime::default(), 0, 0);
        let mut answers = [Val::Bool(false)];
        policy.bounded(asked.call_async(&mut *store, &given, &mut answers)).await?;
        Ok(json::shown(&answers[0]))
    }
}

fn filled(asked: Func, store: &Store<HostState>, parameters: &Value) -> Result<Vec<Val>, json::Unfit> {
    let ty = asked.ty(store);
    let expected: Vec<(String, Type)> = ty.params().map(|(name, ty)| (name.to_owned(), ty)).collect();
    let given = json::members(&expected, Some(parameters), "with")?;
    Ok(given.into_iter().map(|(_, value)| value).collect())
}
