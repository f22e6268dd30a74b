//! Why a policy is refused at load, or why one of its answers cannot be used. Every message names the policy.

use std::time::Duration;

use thiserror::Error;

use super::{
    grant::{self, PolicyGrant},
    limits::{COMPONENT, MEMORY, PATIENCE},
};

/// The engine cannot start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// The directory for compiled code is not ours alone. Code is loaded from there without another check, so whoever may
    /// write there may run code as us.
    #[error("the policy cache {path} cannot be used: {reason}")]
    Cache {
        /// The directory.
        path: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// wasmtime or the system refused.
    #[error("the policy engine cannot start: {0}")]
    Engine(String),
}

/// A component that is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("policy {policy} {fault}")]
pub struct LoadError {
    /// The policy.
    pub policy: String,
    /// What is wrong with it.
    pub fault: LoadFault,
}

/// A component that is no policy, or asks for more than it is granted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadFault {
    /// Neither a component nor a module.
    #[error("is not a WebAssembly component: its first bytes are not those of WebAssembly")]
    NotWasm,
    /// A module without the component around it.
    #[error("is a core WebAssembly module, not a component; `wasm-tools component new` makes it one")]
    CoreModule,
    /// More bytes than anyone compiles by intent.
    #[error("is {0} bytes long; at most {COMPONENT} are loaded")]
    TooLarge(usize),
    /// A component that does not hold together, or whose memory starts above the limit: the validator's finding.
    #[error("is not a valid component: {0}")]
    Invalid(String),
    /// The policy's settings are no JSON object, and where they break.
    #[error("has settings that are not a JSON object: {0}")]
    Settings(String),
    /// Capabilities in use that nobody granted.
    #[error("uses {}, which it is not granted; to grant it, write: {}", grant::list(missing), grant::line(all))]
    NotGranted {
        /// What it lacks.
        missing: Vec<PolicyGrant>,
        /// What it would have to be granted in all.
        all: Vec<PolicyGrant>,
    },
    /// An import that nobody can grant, as the component names it.
    #[error("imports {}, which does not exist here; the capabilities are {}", .0, grant::list(&PolicyGrant::ALL))]
    UnknownImport(String),
    /// Built against this interface and version, of a contract that this gateway does not speak.
    #[error("was built for {0}; this gateway speaks weir:policy@0.1")]
    WrongVersion(String),
    /// No interface of a policy among these exports.
    #[error(
        "decides nothing: it exports {}, where a policy exports connection, credentials or calls of weir:policy@0.1.0",
        exports(.0)
    )]
    WrongWorld(Vec<String>),
    /// An import or export of the right name and the wrong type: which one differs, and how.
    #[error("does not fit weir:policy@0.1.0: {0}")]
    Mismatch(String),
}

/// A question without a usable answer. The call that needed it fails; nothing else does.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("policy {policy} {fault}")]
pub struct PolicyError {
    /// The policy.
    pub policy: String,
    /// What it did, or could not be asked.
    pub fault: PolicyFault,
}

/// Why a question has no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyFault {
    /// The guest ended itself: a panic, an illegal instruction, or data beyond the bounds.
    #[error("failed: {0}")]
    Trapped(String),
    /// The guest used up its time.
    #[error("gave no answer in time")]
    TimedOut,
    /// The guest wanted more memory than it may have.
    #[error("wants more memory than the {MEMORY} bytes that it may have")]
    OutOfMemory,
    /// Too many questions are being answered already.
    #[error("is busy: none of its running decisions ended within {} ms", PATIENCE.as_millis())]
    TooBusy,
    /// It is not run for a while.
    #[error("was disabled {} s ago: {failures} questions in a row failed, the last: it {why}. Weir tries it again in {} s",
        since.as_secs(), after.as_secs() + 1)]
    Disabled {
        /// For how long.
        since: Duration,
        /// How many questions failed in a row.
        failures: u32,
        /// What the last of them came to.
        why: String,
        /// When it is tried again.
        after: Duration,
    },
    /// So many questions wait for those that are being answered.
    #[error("has {0} decisions queued already, as many as `limits.policy.queued` allows")]
    QueueFull(usize),
    /// The answer breaks this rule of the contract.
    #[error("gave an answer that cannot be used: {0}")]
    Malformed(String),
    /// This fact is larger than so many bytes, which is what is handed to a guest.
    #[error("was not asked: {0} is over {1} bytes")]
    TooMuch(&'static str, usize),
    /// The question is none that the contract has.
    #[error("was not asked: {0}")]
    Question(String),
    /// The component does not export the interface: `connections`, `credentials` or `calls`.
    #[error("does not decide {0}")]
    NotDecided(&'static str),
}

/// What is exported, for a sentence.
fn exports(found: &[String]) -> String {
    if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
}
