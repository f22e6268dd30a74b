//! From bytes to something that can be asked: every check that can be made before the first question is made here, so that a
//! wrong component stops the start and never a call.

use serde_json::Value;
use wasmtime::component::{
    Component, ComponentNamedList, InstancePre, Lift, Linker, Lower,
    types::{self, ComponentItem},
};

use super::{
    PolicySource,
    bindings::{
        exports::weir::policy::{calls, connection, credentials},
        weir::policy::types::{Attempt, Upstream},
    },
    error::LoadFault,
    grant::PolicyGrant,
    host::{self, HostState},
    limits::COMPONENT,
};

/// The first eight bytes of a component, and of a core module.
const COMPONENT_HEAD: &[u8] = b"\0asm\x0d\0\x01\0";
const MODULE_HEAD: &[u8] = b"\0asm\x01\0\0\0";
/// The package that imports and exports belong to.
const PACKAGE: &str = "weir:policy";
/// The parts of WASI that an empty one consists of.
const WASI: [&str; 6] = ["wasi:cli/", "wasi:io/", "wasi:clocks/", "wasi:filesystem/", "wasi:sockets/", "wasi:random/"];

/// A component that is compiled, linked and type-checked.
pub(super) struct Loaded {
    pub(super) ready: InstancePre<HostState>,
    pub(super) connection: Option<connection::GuestIndices>,
    pub(super) credentials: Option<credentials::GuestIndices>,
    pub(super) calls: Option<calls::GuestIndices>,
}

/// Compiles, links and type-checks.
pub(super) fn load(engine: &wasmtime::Engine, source: &PolicySource<'_>) -> Result<Loaded, LoadFault> {
    recognise(source)?;
    let component = Component::from_binary(engine, &source.wasm).map_err(|error| LoadFault::Invalid(reason(&error)))?;
    let wasi = imports(engine, &component, source)?;
    let exports = exports(engine, &component)?;

    let mismatch = |error: wasmtime::Error| LoadFault::Mismatch(reason(&error));
    let mut linker = Linker::new(engine);
    host::link(&mut linker, source.grants, wasi).map_err(mismatch)?;
    let ready = linker.instantiate_pre(&component).map_err(mismatch)?;
    let (mut connection, mut credentials, mut calls) = (None, None, None);
    if let Some(name) = exports.connection {
        check::<(&Upstream, &[Attempt]), (connection::Step,)>(engine, &component, &name, "next").map_err(mismatch)?;
        connection = Some(connection::GuestIndices::new(&ready).map_err(mismatch)?);
    }
    if let Some(name) = exports.credentials {
        check::<(&credentials::Question,), (credentials::Decision,)>(engine, &component, &name, "decide")
            .map_err(mismatch)?;
        credentials = Some(credentials::GuestIndices::new(&ready).map_err(mismatch)?);
    }
    if let Some(name) = exports.calls {
        check_calls(engine, &component, &name).map_err(mismatch)?;
        calls = Some(calls::GuestIndices::new(&ready).map_err(mismatch)?);
    }
    Ok(Loaded { ready, connection, credentials, calls })
}

/// The settings as a JSON object; none are an empty one.
pub(super) fn settings(source: &PolicySource<'_>) -> Result<String, LoadFault> {
    let text = source.settings.trim();
    if text.is_empty() {
        return Ok("{}".to_owned());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(_)) => Ok(text.to_owned()),
        Ok(_) => Err(LoadFault::Settings("they are another kind of value".to_owned())),
        Err(error) => Err(LoadFault::Settings(format!("line {}, column {}", error.line(), error.column()))),
    }
}

/// The whole chain of causes in one line.
fn reason(error: &wasmtime::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn recognise(source: &PolicySource<'_>) -> Result<(), LoadFault> {
    if source.wasm.starts_with(MODULE_HEAD) {
        Err(LoadFault::CoreModule)
    } else if !source.wasm.starts_with(COMPONENT_HEAD) {
        Err(LoadFault::NotWasm)
    } else if source.wasm.len() > COMPONENT {
        Err(LoadFault::TooLarge(source.wasm.len()))
    } else {
        Ok(())
    }
}

/// Whether WASI is imported, if everything that is imported may be.
fn imports(engine: &wasmtime::Engine, component: &Component, source: &PolicySource<'_>) -> Result<bool, LoadFault> {
    let (mut missing, mut all, mut wasi) = (Vec::new(), source.grants.to_vec(), false);
    for (import, _) in component.component_type().imports(engine) {
        if WASI.iter().any(|part| import.starts_with(part)) {
            wasi = true;
            continue;
        }
        let interface = interface(import)?;
        match interface.map(str::parse::<PolicyGrant>) {
            Some(Ok(grant)) if !source.grants.contains(&grant) => missing.push(grant),
            Some(Ok(_)) => {}
            Some(Err(_)) if interface == Some("types") => {}
            Some(Err(_)) | None => return Err(LoadFault::UnknownImport(import.to_owned())),
        }
    }
    if missing.is_empty() {
        return Ok(wasi);
    }
    missing.sort_unstable();
    missing.dedup();
    all.extend(&missing);
    all.sort_unstable();
    all.dedup();
    Err(LoadFault::NotGranted { missing, all })
}

/// What a component imports, by name and in order.
pub(super) fn imported(engine: &wasmtime::Engine, component: &Component) -> Vec<String> {
    let mut all: Vec<_> = component.component_type().imports(engine).map(|(name, _)| name.to_owned()).collect();
    all.sort_unstable();
    all
}

/// The capability that an import is.
pub(super) fn grant(import: &str) -> Option<PolicyGrant> {
    interface(import).ok().flatten()?.parse().ok()
}

/// The interfaces that a component exports, under its own names for them; at least one.
#[derive(Default)]
struct Exports {
    connection: Option<String>,
    credentials: Option<String>,
    calls: Option<String>,
}

fn exports(engine: &wasmtime::Engine, component: &Component) -> Result<Exports, LoadFault> {
    let (mut exports, mut found) = (Exports::default(), Vec::new());
    for (export, _) in component.component_type().exports(engine) {
        match interface(export)? {
            Some("connection") => exports.connection = Some(export.to_owned()),
            Some("credentials") => exports.credentials = Some(export.to_owned()),
            Some("calls") => exports.calls = Some(export.to_owned()),
            _ => found.push(export.to_owned()),
        }
    }
    if exports.connection.is_none() && exports.credentials.is_none() && exports.calls.is_none() {
        return Err(LoadFault::WrongWorld(found));
    }
    Ok(exports)
}

/// The same for each function of the interface `calls`.
fn check_calls(engine: &wasmtime::Engine, component: &Component, interface: &str) -> wasmtime::Result<()> {
    use calls::{AnswerDecision, Call, Content, Decision, Entry, EntryVerdict, Interest};
    check::<(&str,), (Result<Interest, String>,)>(engine, component, interface, "wants")?;
    check::<(&Call, Option<&str>), (Decision,)>(engine, component, interface, "before")?;
    check::<(&Call, &str, &Content), (AnswerDecision,)>(engine, component, interface, "after")?;
    check::<(&Upstream, &[Entry]), (Vec<EntryVerdict>,)>(engine, component, interface, "entries")
}

/// Whether an exported function has the type that it will be called with. wasmtime itself looks only when there is an
/// instance, which is a question too late.
fn check<Params, Answer>(
    engine: &wasmtime::Engine,
    component: &Component,
    interface: &str,
    function: &str,
) -> wasmtime::Result<()>
where
    Params: ComponentNamedList + Lower,
    Answer: ComponentNamedList + Lift,
{
    let all = component.component_type();
    let Some(ComponentItem::ComponentInstance(found)) = all.get_export(engine, interface).map(item) else {
        wasmtime::bail!("{interface} is not an interface");
    };
    let Some(ComponentItem::ComponentFunc(found)) = found.get_export(engine, function).map(item) else {
        wasmtime::bail!("{interface} has no function {function}");
    };
    found
        .typecheck::<Params, Answer>(&all.instance_type())
        .map_err(|error| error.context(format!("{interface} has a function {function} of another type")))
}

fn item(found: types::ComponentExtern<'_>) -> ComponentItem {
    found.ty
}

/// The interface of our package that `name` names, if it is of our package; refused if it is of a version that is not ours.
/// Within 0.1 versions only add, and wasmtime matches them as semver does.
fn interface(name: &str) -> Result<Option<&str>, LoadFault> {
    let Some(rest) = name.strip_prefix(PACKAGE).and_then(|rest| rest.strip_prefix('/')) else { return Ok(None) };
    let (interface, version) = rest.split_once('@').unwrap_or((rest, ""));
    if version.starts_with("0.1.") { Ok(Some(interface)) } else { Err(LoadFault::WrongVersion(name.to_owned())) }
}
