//! The configuration files of MCP hosts: where they are, which servers they have, and how Weir gets into them.
//!
//! [`read()`] takes the servers out of a host's file. What a host resolves itself, such as `${env:TOKEN}`, comes as a
//! [`Template`]; whatever Weir cannot carry comes as a sentence. [`connect`] writes one entry into a file, and [`disconnect`] restores it byte for byte.
//!
//! [`read_gateway`] does the same for files of other gateways, and [`read_command`] for command lines of bridges.
//!
//! Everything here is pure: paths, texts and names come from arguments, and nothing is read from the machine.

mod budget;
mod edit;
mod error;
mod host;
mod permissions;
mod read;
mod secret;
mod server;
mod template;
mod value;

pub use edit::{Bearer, Command, Entry, Snippet, connect, disconnect, link, snippet};
pub use error::{EditError, ReadError};
pub use host::{Directories, Host, HostFile, Os, Scope, detect};
pub use permissions::{MovedServer, RuleEdit, is_rewritten, rewrite_rules, whole_server_rule};
pub use read::{DockerFiles, MAX_SERVERS, read, read_command, read_gateway};
pub use secret::looks_secret;
pub use server::{HostServers, OAuth, Server, ToolFilter, Transport};
pub use template::{Piece, Template};
pub use value::{MAX_BYTES, MAX_DEPTH};
