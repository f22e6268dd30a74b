//! Why a policy is refused at load, or why one of its answers cannot be used. Every message names the policy.

use thiserror::Error;

use super::{
    grant::{self, PolicyGrant},
    limits::PATIENCE,
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

/// A component that is no policy, or asks for more than it is granted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// Neither a component nor a module.
    #[error("policy {policy} is not a WebAssembly component: its first bytes are not those of WebAssembly")]
    NotWasm {
        /// The policy.
        policy: String,
    },
    /// A module without the component around it.
    #[error("policy {policy} is a core WebAssembly module, not a component; `wasm-tools component new` makes it one")]
    CoreModule {
        /// The policy.
        policy: String,
    },
    /// More bytes than anyone compiles by intent.
    #[error("policy {policy} is {size} bytes long; at most {most} are loaded")]
    TooLarge {
        /// The policy.
        policy: String,
        /// Its size in bytes.
        size: usize,
        /// The most that is accepted.
        most: usize,
    },
    /// A component that does not hold together, or whose memory starts above the limit.
    #[error("policy {policy} is not a valid component: {reason}")]
    Invalid {
        /// The policy.
        policy: String,
        /// The validator's finding.
        reason: String,
    },
    /// The policy's settings are not a JSON object.
    #[error("the settings of policy {policy} are not a JSON object: {reason}")]
    Settings {
        /// The policy.
        policy: String,
        /// Where they break.
        reason: String,
    },
    /// Capabilities in use that nobody granted.
    #[error(
        "policy {policy} uses {}, which it is not granted; to grant it, write: {}",
        grant::list(missing),
        grant::line(all)
    )]
    NotGranted {
        /// The policy.
        policy: String,
        /// What it lacks.
        missing: Vec<PolicyGrant>,
        /// What it would have to be granted in all.
        all: Vec<PolicyGrant>,
    },
    /// An import that nobody can grant.
    #[error("policy {policy} imports {import}, which does not exist here; the capabilities are {}", grant::list(&PolicyGrant::ALL))]
    UnknownImport {
        /// The policy.
        policy: String,
        /// The import as the component names it.
        import: String,
    },
    /// Built against a contract that this gateway does not speak.
    #[error("policy {policy} was built for {found}; this gateway speaks weir:policy@0.1")]
    WrongVersion {
        /// The policy.
        policy: String,
        /// The interface and version found.
        found: String,
    },
    /// No interface of a policy among the exports.
    #[error(
        "policy {policy} decides nothing: it exports {}, where a policy exports weir:policy/connection@0.1.0 or weir:policy/credentials@0.1.0",
        exports(found)
    )]
    WrongWorld {
        /// The policy.
        policy: String,
        /// What it exports instead.
        found: Vec<String>,
    },
    /// An import or export of the right name and the wrong type.
    #[error("policy {policy} does not fit weir:policy@0.1.0: {reason}")]
    Mismatch {
        /// The policy.
        policy: String,
        /// Which item differs, and how.
        reason: String,
    },
}

/// A question without a usable answer. The call that needed it fails; nothing else does.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// The guest ended itself: a panic, an illegal instruction, or data beyond the bounds.
    #[error("policy {policy} failed: {reason}")]
    Trapped {
        /// The policy.
        policy: String,
        /// The trap.
        reason: String,
    },
    /// The guest used up its time.
    #[error("policy {policy} gave no answer in time")]
    TimedOut {
        /// The policy.
        policy: String,
    },
    /// The guest wanted more memory than it may have.
    #[error("policy {policy} wants more memory than the {most} bytes that it may have")]
    OutOfMemory {
        /// The policy.
        policy: String,
        /// The limit in bytes.
        most: usize,
    },
    /// Too many questions are being answered already.
    #[error("policy {policy} is busy: none of its running decisions ended within {} ms", PATIENCE.as_millis())]
    TooBusy {
        /// The policy.
        policy: String,
    },
    /// Too many questions wait for those that are being answered.
    #[error("policy {policy} has {most} decisions queued already, as many as `limits.policy.queued` allows")]
    QueueFull {
        /// The policy.
        policy: String,
        /// How many may wait.
        most: usize,
    },
    /// The answer breaks a rule of the contract.
    #[error("policy {policy} gave an answer that cannot be used: {rule}")]
    Malformed {
        /// The policy.
        policy: String,
        /// The rule, in words.
        rule: String,
    },
    /// The facts are larger than what is handed to a guest.
    #[error("policy {policy} was not asked: {what} is over {most} bytes")]
    TooMuch {
        /// The policy.
        policy: String,
        /// Which fact.
        what: &'static str,
        /// The limit in bytes.
        most: usize,
    },
    /// The component does not export the interface.
    #[error("policy {policy} does not decide {interface}")]
    NotDecided {
        /// The policy.
        policy: String,
        /// `connections` or `credentials`.
        interface: &'static str,
    },
}

/// What is exported, for a sentence.
fn exports(found: &[String]) -> String {
    if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
}
