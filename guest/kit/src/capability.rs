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

/// A small store of the policy's own; granted by `"store"`. Outside of WebAssembly it is the memory of the thread.
pub mod store {
    pub use crate::bindings::connection::weir::policy::store::{Condition, Item, StoreError};

    /// What is kept under a key; none if there is nothing, or its time is over.
    #[cfg(target_family = "wasm")]
    pub fn get(key: &str) -> Result<Option<Item>, StoreError> {
        crate::bindings::connection::weir::policy::store::get(key)
    }

    /// Keeps a value for so many seconds, 0 for good, and answers with the version of this writing.
    #[cfg(target_family = "wasm")]
    pub fn set(key: &str, value: &[u8], ttl_seconds: u32, when: Condition) -> Result<u64, StoreError> {
        crate::bindings::connection::weir::policy::store::set(key, value, ttl_seconds, when)
    }

    /// Forgets what is under a key.
    #[cfg(target_family = "wasm")]
    pub fn delete(key: &str) -> Result<(), StoreError> {
        crate::bindings::connection::weir::policy::store::delete(key)
    }

    /// The keys that begin with this text, in order.
    #[cfg(target_family = "wasm")]
    pub fn keys(prefix: &str) -> Result<Vec<String>, StoreError> {
        crate::bindings::connection::weir::policy::store::keys(prefix)
    }

    #[cfg(not(target_family = "wasm"))]
    pub use native::{delete, get, keys, set};

    /// Nothing expires here.
    #[cfg(not(target_family = "wasm"))]
    mod native {
        use std::{cell::RefCell, collections::BTreeMap};

        use super::{Condition, Item, StoreError};

        thread_local! {
            static KEPT: RefCell<(u64, BTreeMap<String, Item>)> = const { RefCell::new((0, BTreeMap::new())) };
        }

        /// What is kept under a key; none if there is nothing.
        pub fn get(key: &str) -> Result<Option<Item>, StoreError> {
            Ok(KEPT.with_borrow(|(_, kept)| kept.get(key).cloned()))
        }

        /// Keeps a value, and answers with the version of this writing.
        pub fn set(key: &str, value: &[u8], _: u32, when: Condition) -> Result<u64, StoreError> {
            KEPT.with_borrow_mut(|(version, kept)| {
                let there = kept.get(key).map(|item| item.version);
                let holds = match when {
                    Condition::Always => true,
                    Condition::Absent => there.is_none(),
                    Condition::Version(expected) => there == Some(expected),
                };
                if !holds {
                    return Err(StoreError::Changed);
                }
                *version += 1;
                kept.insert(key.into(), Item { value: value.into(), version: *version, extensions: Vec::new() });
                Ok(*version)
            })
        }

        /// Forgets what is under a key.
        pub fn delete(key: &str) -> Result<(), StoreError> {
            KEPT.with_borrow_mut(|(_, kept)| kept.remove(key));
            Ok(())
        }

        /// The keys that begin with this text, in order.
        pub fn keys(prefix: &str) -> Result<Vec<String>, StoreError> {
            Ok(KEPT.with_borrow(|(_, kept)| kept.keys().filter(|key| key.starts_with(prefix)).cloned().collect()))
        }
    }
}
