//! What the cases work with: components built once, an engine, facts to ask about.

use std::{
    borrow::Cow,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use weir::config::PolicyLimits;
use weir::policy::{Engine, LoadError, Policy, PolicyGrant, PolicySource, Secrets};
use weir_flow::facts::{Attempt, Candidate, Challenge, CredentialQuestion, Outcome, Refusal, Transport, UpstreamFacts};
use weir_mcp::Era;

pub(crate) const MODERN: Candidate = Candidate { transport: Transport::Http, era: Era::Modern };
pub(crate) const LEGACY: Candidate = Candidate { transport: Transport::Http, era: Era::Legacy };

/// A directory that nobody else uses.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// One engine for the tests that need no engine of their own.
pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(None, PolicyLimits::default()).unwrap())
}

pub(crate) fn try_load(name: &str, wasm: &[u8], grants: &[PolicyGrant], settings: &str) -> Result<Policy, LoadError> {
    engine().load(PolicySource {
        name,
        wasm: Cow::Borrowed(wasm),
        grants,
        settings: settings.into(),
        service: None,
        store: None,
    })
}

pub(crate) fn load(name: &str, wasm: &[u8]) -> Policy {
    try_load(name, wasm, &[], "").unwrap()
}

/// An upstream at an address, which may be reached in any way.
pub(crate) fn upstream() -> UpstreamFacts {
    UpstreamFacts {
        account: None,
        name: "docs".into(),
        url: Some("https://docs.example.com/mcp".into()),
        required_transport: None,
        required_era: None,
        transports: vec![Transport::Http, Transport::Stdio],
        settings: String::new(),
    }
}

pub(crate) fn attempt(how: Candidate, outcome: Outcome) -> Attempt {
    Attempt { transport: how.transport, era: how.era, credential: false, outcome, duration_ms: 12 }
}

pub(crate) fn question(secrets: &[&str], refused: Option<u16>) -> CredentialQuestion {
    CredentialQuestion {
        upstream: upstream(),
        principal: None,
        secrets: secrets.iter().map(|&name| name.into()).collect(),
        flows: Vec::new(),
        token: None,
        attempts: Vec::new(),
        refusal: refused.map(|status| Refusal { status, credential: Some(1), challenge: Challenge::default() }),
    }
}

/// Secrets that are easy to find where they must not be.
pub(crate) struct Vault;

impl Secrets for Vault {
    fn read(&self, name: &str) -> Option<String> {
        Some(format!("the text of {name}"))
    }
}
