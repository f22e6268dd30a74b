#![doc = include_str!("../README.md")]

#[doc(hidden)]
pub mod bindings;
pub mod calls;
pub mod capability;
pub mod json;
mod settings;
mod words;

pub use bindings::{
    connection::{
        exports::weir::policy::connection::{Candidate, Guest as Connection, Step},
        weir::policy::types::{Attempt, Challenge, Era, Outcome, Principal, Refusal, Transport, Upstream},
    },
    credentials::exports::weir::policy::credentials::{
        Attachment, Decision, Flow, Guest as Credentials, MintedToken, Presentation, Question, Token, TokenAttempt,
        TokenOperation, TokenOutcome, TokenRequest,
    },
};
pub use settings::Settings;

/// Exports a type that implements [`Connection`] from the component. Outside of WebAssembly it only checks the type.
#[macro_export]
macro_rules! export_connection {
    ($policy:ident) => {
        #[cfg(target_family = "wasm")]
        $crate::bindings::connection::export_connection!($policy with_types_in $crate::bindings::connection);
        #[cfg(not(target_family = "wasm"))]
        const _: fn($crate::Upstream, Vec<$crate::Attempt>) -> $crate::Step = <$policy as $crate::Connection>::next;
    };
}

/// Exports a type that implements [`Credentials`] from the component. Outside of WebAssembly it only checks the type.
#[macro_export]
macro_rules! export_credentials {
    ($policy:ident) => {
        #[cfg(target_family = "wasm")]
        $crate::bindings::credentials::export_credentials!($policy with_types_in $crate::bindings::credentials);
        #[cfg(not(target_family = "wasm"))]
        const _: fn($crate::Question) -> $crate::Decision = <$policy as $crate::Credentials>::decide;
    };
}

/// Exports a type that implements [`calls::Calls`] from the component. Outside of WebAssembly it only checks the type.
#[macro_export]
macro_rules! export_calls {
    ($policy:ident) => {
        #[cfg(target_family = "wasm")]
        $crate::bindings::calls::export_calls!($policy with_types_in $crate::bindings::calls);
        #[cfg(not(target_family = "wasm"))]
        const _: fn(String) -> Result<$crate::calls::Interest, String> = <$policy as $crate::calls::Calls>::wants;
    };
}
