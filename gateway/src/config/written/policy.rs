//! The components that decide about an upstream.

use std::str::FromStr;

use super::{Grant, HttpMethod, WrittenFailure, WrittenMode, WrittenSecret};
use crate::config::SHIPPED;
use crate::config::origin::{ServiceOrigin, WebUrl};
use crate::config::read::{Unreadable, table};
use crate::config::string::{FilePath, strings};
use crate::config::value::{Count, Json, NamedValues, Values};

table! {
    /// A WebAssembly component that decides about calls.
    #[schemars(extend("anyOf" = [{"required": ["component"]}, {"required": ["interceptor"]}]))]
    #[schemars(rename = "Policy")]
    struct WrittenPolicy("a table with a `component` or an `interceptor`") {
        /// The component's file, or one that Weir brings along: `"weir:pin"`, `"weir:redact"`, `"weir:schema"`,
        /// `"weir:shape"` or `"weir:interceptor"`. Or where Weir fetches it: `"https://…"`, or `"oci://HOST/REPOSITORY:TAG@sha256:…"` in a registry.
        component: FilePath,
        /// An MCP server whose interceptors are asked about calls and their results (SEP-2624), instead of a component:
        /// `"https://guard.example.com/mcp"`.
        interceptor: WebUrl,
        /// The SHA-256 of a component at a URL. Default: as the lock file says, which `weir policy lock` writes.
        sha256: WrittenDigest,
        /// The public key of minisign whose signature the component must have. The signature is beside it: at the same place,
        /// with `.minisig` behind the name.
        signed_by: WrittenSigner,
        /// The imports it may use.
        grants: Values<Grant>,
        /// What its store is called among those of this upstream. Default: the last part of the component's name, without
        /// tag and digest. Two policies share a store only where both name it.
        store: WrittenStoreName,
        /// Its own settings, handed to it as JSON. Nothing is expanded in them; they are no place for secrets.
        settings: Json,
        /// Secrets it may place in a request without seeing them, by the names it knows them under. To read them as well
        /// needs the grant `"secrets"`.
        secrets: NamedValues<WrittenSecret>,
        /// The services it may ask, by origin: `["https://tokens.example.com"]`; needs the grant `"http"`.
        http: Values<ServiceOrigin>,
        /// The methods of its requests. Default: `["GET", "POST"]`.
        http_methods: Values<HttpMethod>,
        /// How many requests it may send in a minute, to all services together. Default: 1000.
        http_requests_per_minute: Count,
        /// Whether what it decides about calls is carried out, or only logged. `"beside"` carries it out, and requests that
        /// only read go out meanwhile. Default: `"enforce"`.
        mode: WrittenMode,
        /// What becomes of calls while it fails: they are refused, they go on without it, or its last decision about the
        /// same facts stands. Default: `"refuse"`.
        on_failure: WrittenFailure,
    }
}

/// The SHA-256 of a component.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::config) struct WrittenDigest(pub(in crate::config) super::super::ComponentDigest);

impl FromStr for WrittenDigest {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        text.parse().map(Self).map_err(|why: String| Unreadable::new(why, "`sha256sum FILE` prints it"))
    }
}

/// Whose signature a component must have.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::config) struct WrittenSigner(pub(in crate::config) super::super::ComponentSigner);

impl FromStr for WrittenSigner {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let hint = "the second line of the file that `minisign -G` makes: \"RWQ…\"";
        text.parse().map(Self).map_err(|why: String| Unreadable::new(why, hint))
    }
}

/// What the store of a policy is called.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::config) struct WrittenStoreName(pub(in crate::config) String);

impl FromStr for WrittenStoreName {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let is_name = (1..=255).contains(&text.len()) && !text.contains(char::is_control);
        // Names of files are among them: that is what a store is called where nobody names it.
        if !is_name || text.starts_with(SHIPPED) {
            let message = format!("the name of a store has 1 to 255 bytes and does not begin with `{SHIPPED}`");
            return Err(Unreadable::new(message, ""));
        }
        Ok(Self(text.to_owned()))
    }
}

strings! {
    WrittenDigest: "a SHA-256 in hexadecimal digits", { "type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{64}$" };
    WrittenStoreName: "the name of a store, as a string", { "type": "string", "minLength": 1, "maxLength": 255 };
    WrittenSigner: "a public key of minisign", { "type": "string", "pattern": "^RW[0-9A-Za-z+/]{54}$" };
}
