//! The capabilities that the configuration grants by name. A component imports those that it calls and no others.
//!
//! Outside of WebAssembly there is no Weir to ask, so each has a stand-in that makes tests possible.

/// Lines in Weir's log; granted by `"log"`. Outside of WebAssembly they go to the standard error.
pub mod log {
    use crate::bindings::connection::weir::policy::log::Level;

    /// For whoever follows the policy's reasoning.
    pub fn debug(message: &str) {
        write(Level::Debug, message);
    }

    /// Worth knowing.
    pub fn info(message: &str) {
        write(Level::Info, message);
    }

    /// Worth acting on.
    pub fn warn(message: &str) {
        write(Level::Warn, message);
    }

    /// Something failed.
    pub fn error(message: &str) {
        write(Level::Error, message);
    }

    /// Has the messages of panics logged, for whoever follows the policy's reasoning; else they are lost, but for a component
    /// with WASI, which prints them. An instance answers one question, so this comes first in each.
    pub fn panics() {
        #[cfg(target_family = "wasm")]
        std::panic::set_hook(Box::new(|panic| debug(&panic.to_string())));
    }

    #[cfg(target_family = "wasm")]
    fn write(level: Level, message: &str) {
        crate::bindings::connection::weir::policy::log::write(level, message);
    }

    #[cfg(not(target_family = "wasm"))]
    fn write(level: Level, message: &str) {
        eprintln!("{level:?}: {message}");
    }
}

/// The time; granted by `"clock"`. Outside of WebAssembly it is the machine's.
pub mod clock {
    use std::time::Duration;

    /// The time since 1970-01-01 00:00 UTC, in whole milliseconds.
    pub fn now() -> Duration {
        Duration::from_millis(millis())
    }

    #[cfg(target_family = "wasm")]
    fn millis() -> u64 {
        crate::bindings::connection::weir::policy::clock::now()
    }

    #[cfg(not(target_family = "wasm"))]
    fn millis() -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Randomness fit for secrets; granted by `"random"`. Outside of WebAssembly it is fit for tests only.
pub mod random {
    /// That many random bytes, at most 1024.
    #[cfg(target_family = "wasm")]
    pub fn bytes(len: u32) -> Vec<u8> {
        crate::bindings::connection::weir::policy::random::bytes(len)
    }

    /// That many random bytes, at most 1024.
    #[cfg(not(target_family = "wasm"))]
    pub fn bytes(len: u32) -> Vec<u8> {
        use std::hash::{BuildHasher, RandomState};
        (0..len.min(1024)).map(|at| RandomState::new().hash_one(at).to_le_bytes()[0]).collect()
    }
}

/// The text of secrets; granted by `"secrets"`. Outside of WebAssembly there are none.
pub mod secrets {
    /// The secret of that name, if it is one of [`crate::Question::secrets`].
    #[cfg(target_family = "wasm")]
    pub fn read(name: &str) -> Option<String> {
        crate::bindings::connection::weir::policy::secrets::read(name)
    }

    /// The secret of that name, if it is one of [`crate::Question::secrets`].
    #[cfg(not(target_family = "wasm"))]
    pub fn read(_: &str) -> Option<String> {
        None
    }
}

/// Requests to services that the configuration names; granted by `"http"`. Outside of WebAssembly there are none.
pub mod http {
    pub use crate::bindings::connection::weir::policy::http::{Method, Request, Response};

    /// Sends a request and waits for its answer; the error says what went wrong.
    #[cfg(target_family = "wasm")]
    pub fn send(request: &Request) -> Result<Response, String> {
        crate::bindings::connection::weir::policy::http::send(request)
    }

    /// Sends a request and waits for its answer; the error says what went wrong.
    #[cfg(not(target_family = "wasm"))]
    pub fn send(_: &Request) -> Result<Response, String> {
        Err("there are no services outside of Weir".to_owned())
    }
}
