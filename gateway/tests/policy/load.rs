//! What is refused before anybody asks, and with which words.

use std::{borrow::Cow, fs, os::unix::fs::PermissionsExt};

use weir::config::PolicyLimits;
use weir::policy::{Engine, EngineError, LoadError, LoadFault, PolicyGrant, PolicySource, shipped};

use weir_flow::facts::{CredentialDecision, Principal};

use crate::bench::{Vault, question, scratch, try_load};

/// The component with `old` replaced by `new`, which has to be of the same length.
fn patched(wasm: &[u8], old: &str, new: &str) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let mut wasm = wasm.to_vec();
    let places: Vec<_> = (0..=wasm.len() - old.len()).filter(|&at| wasm[at..].starts_with(old.as_bytes())).collect();
    assert!(!places.is_empty(), "{old} is nowhere");
    for at in places {
        wasm[at..at + new.len()].copy_from_slice(new.as_bytes());
    }
    wasm
}

#[test]
fn what_is_no_component() {
    let refused = |fault| LoadError { policy: "policies/x.wasm".into(), fault };
    let load = |wasm: &[u8]| try_load("policies/x.wasm", wasm, &[], "").unwrap_err();
    assert_eq!(load(b""), refused(LoadFault::NotWasm));
    assert_eq!(load(b"#!/bin/sh\necho hello"), refused(LoadFault::NotWasm));
    assert_eq!(load(b"\0asm\x01\0\0\0"), refused(LoadFault::CoreModule));
    assert!(matches!(load(b"\0asm\x0d\0\x01\0 and then noise").fault, LoadFault::Invalid(_)));
    let half = &shipped::BEARER.wasm()[..shipped::BEARER.wasm().len() / 2];
    assert!(matches!(load(half).fault, LoadFault::Invalid(_)));
    let mut large = shipped::BEARER.wasm().to_vec();
    large.resize((64 << 20) + 1, 0);
    assert!(matches!(load(&large).fault, LoadFault::TooLarge(_)));
    assert_eq!(
        load(b"\0asm\x0d\0\x01\0").to_string(),
        "policy policies/x.wasm decides nothing: it exports nothing, where a policy exports connection, credentials or calls of weir:policy@0.1.0"
    );
}

/// A component that instantiates one module so many times. `section` is what the module has.
fn crowd(section: &[u8], instances: u8) -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    module.extend_from_slice(section);
    let mut component = b"\0asm\x0d\0\x01\0".to_vec();
    component.extend([1, u8::try_from(module.len()).unwrap()]);
    component.extend(module);
    let payload = 1 + 3 * u16::from(instances);
    component.extend([2, u8::try_from(payload & 0x7f).unwrap() | 0x80, u8::try_from(payload >> 7).unwrap()]);
    component.push(instances);
    component.extend([0, 0, 0].repeat(usize::from(instances)));
    component
}

#[test]
fn a_component_that_takes_the_slots_of_others() {
    // A memory of one page; a table of one function, and one of four thousand million; nothing.
    let memory: &[u8] = &[5, 3, 1, 0, 1];
    let table: &[u8] = &[4, 4, 1, 0x70, 0, 1];
    let bomb: &[u8] = &[4, 8, 1, 0x70, 0, 0xff, 0xff, 0xff, 0xff, 0x0f];
    for (section, most, what) in
        [(memory, 4, "linear memories"), (table, 8, "tables"), (&[], 64, "core module instances")]
    {
        let fault = |instances| try_load("crowd", &crowd(section, instances), &[], "").unwrap_err().fault;
        let refused = fault(most + 1);
        assert!(matches!(&refused, LoadFault::Invalid(why) if why.contains(what)), "{refused}");
        assert_eq!(fault(most), LoadFault::WrongWorld(Vec::new()), "{what}");
    }
    let refused = try_load("bomb", &crowd(bomb, 1), &[], "").unwrap_err();
    assert!(refused.to_string().contains("table"), "{refused}");
}

#[test]
fn the_wrong_world() {
    let refused = try_load("stranger", weir_guests::STRANGER, &[], "").unwrap_err();
    let found = vec!["tests:stranger/greeting@1.0.0".to_owned()];
    assert_eq!(refused, LoadError { policy: "stranger".into(), fault: LoadFault::WrongWorld(found) });
}

#[test]
fn the_right_names_with_the_wrong_types() {
    let refused = try_load("misfit", weir_guests::MISFIT, &[], "").unwrap_err();
    assert!(matches!(refused.fault, LoadFault::Mismatch(_)), "{refused}");
    let text = "policy misfit does not fit weir:policy@0.1.0: weir:policy/connection@0.1.0 has a function next of another type";
    assert!(refused.to_string().starts_with(text), "{refused}");
}

#[test]
fn another_version_of_the_contract() {
    let later = patched(shipped::BEARER.wasm(), "weir:policy/credentials@0.1.0", "weir:policy/credentials@0.2.0");
    let refused = try_load("later", &later, &[], "").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "policy later was built for weir:policy/credentials@0.2.0; this gateway speaks weir:policy@0.1"
    );
    let patch = patched(shipped::BEARER.wasm(), "weir:policy/credentials@0.1.0", "weir:policy/credentials@0.1.7");
    assert!(try_load("patch", &patch, &[], "").unwrap().decides_credentials());
}

#[test]
fn a_capability_that_nobody_granted() {
    let refused = try_load("curious", weir_guests::CURIOUS, &[PolicyGrant::Secrets, PolicyGrant::Log], "").unwrap_err();
    assert_eq!(
        refused.to_string(),
        r#"policy curious uses clock, random, store, which it is not granted; to grant it, write: grants = ["log", "clock", "random", "secrets", "store"]"#
    );
    assert!(try_load("curious", weir_guests::CURIOUS, &PolicyGrant::ALL, "").is_ok());
}

#[tokio::test]
async fn a_component_of_a_world_without_imports_needs_no_grant() {
    let policy = try_load("minimal", weir_guests::MINIMAL, &[], "").unwrap();
    assert!(policy.decides_credentials() && !policy.decides_connections());
    let mut about = question(&[], None);
    assert_eq!(policy.decide(&about, &Vault).await, Ok(CredentialDecision::Stop("nobody is calling".into())));
    let claims = r#"{"team":"blue"}"#.to_owned();
    about.principal = Some(Principal { claims, ..Principal::named("ada", None) });
    let choice = policy.decide(&about, &Vault).await;
    assert!(matches!(&choice, Ok(CredentialDecision::Mint(minted)) if minted.text == "ada"), "{choice:?}");
}

#[test]
fn a_capability_that_does_not_exist() {
    let wasm = patched(weir_guests::CURIOUS, "weir:policy/log@0.1.0", "weir:policy/dns@0.1.0");
    let refused = try_load("curious", &wasm, &PolicyGrant::ALL, "").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "policy curious imports weir:policy/dns@0.1.0, which does not exist here; the capabilities are log, clock, random, secrets, http, store"
    );
}

#[test]
fn compiled_code_is_kept_in_a_directory_of_our_own() {
    let cache = scratch("policy-cache").join("made");
    let load = || {
        let engine = Engine::new(Some(&cache), PolicyLimits::default()).unwrap();
        engine
            .load(PolicySource {
                name: "fallback",
                wasm: Cow::Borrowed(shipped::FALLBACK.wasm()),
                grants: &[],
                settings: String::new(),
                service: None,
                store: None,
            })
            .unwrap();
    };
    load();
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    let files = || walk(&cache);
    let kept = files();
    assert!(kept.iter().any(|file| file.extension().is_none()), "{kept:?}");
    load();
    let again: Vec<_> = files().into_iter().filter(|file| file.extension().is_none()).collect();
    let before: Vec<_> = kept.into_iter().filter(|file| file.extension().is_none()).collect();
    assert_eq!(before, again);

    fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = Engine::new(Some(&cache), PolicyLimits::default()).unwrap_err();
    assert!(matches!(&refused, EngineError::Cache { .. }), "{refused}");
    assert!(refused.to_string().contains("run: chmod 700 "), "{refused}");
}

/// Every file below, sorted.
fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}
