//! Weir as an OAuth client of its upstreams, and the checks of who calls it.
//!
//! # The way to a token
//!
//! 1. [`challenge`]: the upstream refuses, and says where to look.
//! 2. [`resource`]: what the upstream says of itself names the issuer that makes tokens for it.
//! 3. [`server`]: what the issuer says of itself. These three in a row are [`discover()`].
//! 4. [`registration`]: who Weir is to that server, and to which address users come back from it ([`redirect`]).
//! 5. [`scope`]: what to ask for.
//!    All of these together are [`prepare()`].
//! 6. A sign-in ([`authorize`], with [`Loopback`] to come back to; [`device`]) or none ([`grants`]) ends with [`Tokens`].
//!    Where the upstream asks for it, they are bound to a key ([`proof`]).
//! 7. [`Logins`] keeps them, and hands out what is good now, refreshed if need be. [`revoke`] gives them back.
//!
//! Every request goes through [`Http`], which guards where it may lead. Every error says what to do and holds no secret.
//! The other way round, [`inbound`] checks the tokens of those who call, [`issue`] signs those that Weir gives itself, and
//! [`identity`] asks who sits at a browser.

pub mod authorize;
pub mod challenge;
mod client;
mod crypto;
pub mod device;
pub mod discover;
pub mod grants;
mod http;
pub mod identity;
pub mod inbound;
pub mod issue;
mod login;
mod logins;
mod loopback;
mod prepare;
mod probe;
pub mod proof;
pub mod redirect;
pub mod registration;
pub mod resource;
pub mod revoke;
pub mod scope;
pub mod server;
#[cfg(test)]
mod tests;
mod token;

pub use authorize::{Callback, PendingSignIn, PendingSignIns, SignIn, SignInError};
pub use challenge::Challenge;
pub use client::{ClientAuth, KeyFault, OAuthApplication, PrivateKey};
pub use device::DeviceSignIn;
pub use discover::{Discovered, DiscoveryError, discover};
pub use grants::{Subject, TokenKind};
pub use http::{AddressPolicy, ForwardProxies, ForwardProxy, Http, HttpError, RequestLimits, UnusableProxy};
pub use identity::IdentityError;
pub use login::{CredentialOwner, Login, LoginKey, LoginSummary};
pub use logins::{LoginError, Logins, Obtain, RenameError, Renewal, Stale};
pub use loopback::Loopback;
pub use prepare::{PrepareError, Prepared, PreparedUpstream, prepare, prepare_again};
pub use probe::{Probed, probe};
pub use proof::{KeyBinding, ProofDemand, ProofKey};
pub use redirect::Redirect;
pub use registration::{KnownClient, Registration, RegistrationError};
pub use revoke::Revoked;
pub use scope::{Scopes, Wishes};
pub use server::ServerMetadata;
pub use token::{TokenEndpoint, TokenError, Tokens};
pub use weir_store::{Clock, Secret};
