//! Asking a policy anything that the contract has, without a gateway.

use serde_json::Value;
use wasmtime::component::{Func, Type, Val};

use super::{
    Policy, PolicyError, PolicyFault,
    guest_log::Readable,
    host::HostState,
    json,
    limits::{BODY, HANDOVER},
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
        let wrong = |what: String| self.fault(PolicyFault::Question(what));
        let Some((_, interface)) = FUNCTIONS.iter().find(|(name, _)| *name == function) else {
            let known: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
            return Err(wrong(format!("there is no function {function}; there are {}", known.join(", "))));
        };
        let _slot = self.slot().await?;
        let mut store = self.store("", Readable::from(secrets));
        store.set_hostcall_fuel(HANDOVER + 2 * BODY);
        self.bounded(async {
            let instance = self.0.loaded.ready.instantiate_async(&mut store).await?;
            let name = format!("weir:policy/{interface}@0.1.0");
            let found = instance.get_export_index(&mut store, None, &name);
            let found = found.and_then(|of| instance.get_export_index(&mut store, Some(&of), function));
            let Some(asked) = found.and_then(|found| instance.get_func(&mut store, found)) else {
                return Ok(Err(wrong(format!("the component does not export {interface}"))));
            };
            let given = match filled(asked, &store, parameters) {
                Ok(given) => given,
                Err(why) => return Ok(Err(wrong(why.to_string()))),
            };
            let mut answers = [Val::Bool(false)];
            asked.call_async(&mut store, &given, &mut answers).await?;
            Ok(Ok(json::shown(&answers[0])))
        })
        .await?
    }
}

fn filled(asked: Func, store: &wasmtime::Store<HostState>, parameters: &Value) -> Result<Vec<Val>, json::Unfit> {
    let ty = asked.ty(store);
    let expected: Vec<(String, Type)> = ty.params().map(|(name, ty)| (name.to_owned(), ty)).collect();
    let given = json::members(&expected, Some(parameters), "with")?;
    Ok(given.into_iter().map(|(_, value)| value).collect())
}
