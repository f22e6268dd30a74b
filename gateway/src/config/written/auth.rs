//! The tables that say who may call Weir, how it signs in at upstreams, and where it keeps what it got there.

use std::str::FromStr;

use crate::config::SubjectPart;
use crate::config::origin::WebUrl;
use crate::config::quantity::Period;
use crate::config::read::{Unreadable, table};
use crate::config::string::{FilePath, TemplateString, choice, strings};
use crate::config::value::{OneOrMore, Values};

use super::{Algorithm, SubjectType, WrittenSecret};

table! {
    /// Clients prove who they are with a token of this authorization server (RFC 9068). Without this table everybody
    /// who reaches Weir is the same local caller.
    #[schemars(extend("required" = ["issuer", "audience"]))]
    #[schemars(rename = "Inbound")]
    struct WrittenInbound("a table with `issuer` and `audience`") {
        /// The authorization server, exactly as the `iss` of its tokens.
        issuer: WebUrl,
        /// What the `aud` of a token must name: Weir's own address as clients know it.
        audience: TemplateString,
        /// What a token must allow, all of it. Clients are told to ask for these scopes. Default: none.
        scopes: Values<TemplateString>,
        /// The signatures that are accepted. Default: `["RS256", "ES256", "EdDSA"]`.
        algorithms: Values<Algorithm>,
        /// Where the server's keys are, if its metadata does not say.
        jwks: WebUrl,
        /// The claim that lists the groups of a caller: its name, or a path such as `"realm_access.roles"`. Default:
        /// `"groups"`.
        groups_claim: TemplateString,
        /// Weir's name at this server, where people who come to `/connect` with a browser say who they are (OpenID Connect).
        /// Default: its metadata URL, or what it is registered as when the first of them comes.
        client_id: TemplateString,
        /// Weir's password there.
        client_secret: WrittenSecret,
        /// The key that Weir signs with instead of sending a password (RFC 7523): a PEM file.
        private_key: WrittenSecret,
        /// Its tokens are no JWTs, or are to be checked by it whenever they come (RFC 7662): it is asked what each is good
        /// for. Needs `client_id`, and `client_secret` or `private_key`. `{}` asks where its metadata says.
        introspection: Introspection,
        /// Whether each token must be bound to a key that its caller proves to hold with each request (DPoP, RFC 9449). Proofs
        /// of tokens that are bound are checked in any case. Default: `false`.
        require_dpop: bool,
        /// Whether each proof must hold a nonce that Weir has given (RFC 9449 §9), so that none is made long before. A
        /// client without one is given it with a 401 `use_dpop_nonce`. Default: `false`.
        dpop_nonce: bool,
        /// Ask nobody at `/connect` who they are: whoever opens a link to sign in and confirms it is taken for the caller it
        /// was made for. Somebody who is sent the link of another and signs in has given *that* person their accounts, so
        /// this is only for a server that signs nobody in with a browser. Default: `false`.
        trust_sign_in_links: bool,
    }

    /// How an authorization server is asked what a token is good for.
    struct Introspection("a table such as { endpoint = \"https://login.example.com/introspect\" }") {
        /// Where it is asked. Default: what its metadata says.
        endpoint: WebUrl,
        /// How long an answer is good for: as long, a token that is revoked is still accepted. Default: `"60s"`; at most
        /// `"10m"`.
        cache: Period,
    }

    /// Weir issues access tokens itself: to MCP clients whose people sign in at the first issuer in `auth`, and to clients
    /// that bring an ID-JAG of any issuer in `auth`. Needs `public_url` and `auth`.
    struct AuthorizationServer("a table such as { access_token_lifetime = \"10m\" }") {
        /// How long an access token is good for. Default: `"10m"`; at most `"1h"`.
        access_token_lifetime: Period,
        /// Whether people sign in to Weir with their MCP clients (authorization code with PKCE). The metadata then leads
        /// clients to Weir first, else after the issuers in `auth`. Default: `true`.
        sign_in: bool,
        /// Whether any client may be used to sign in: one that registers itself (RFC 7591), or whose `client_id` is the URL
        /// of a document (Client ID Metadata Documents). If not, only those with `redirect_uris` below. Default: `true`.
        registration: bool,
        /// Whether documents of clients may be at private addresses; on this machine if Weir's own address is there.
        /// Default: `false`.
        private_network: bool,
        /// How long after a sign-in its client gets new access tokens. No refresh prolongs it. Default: `"7d"`; at most
        /// `"90d"`.
        refresh_token_lifetime: Period,
        /// The clients that the operator names.
        clients: OneOrMore<AuthorizedClient>,
    }

    /// A client of Weir as an authorization server. It shows `client_secret`, or signs with a key in `jwks`. One without
    /// either needs `redirect_uris`, and cannot bring an ID-JAG.
    #[schemars(extend("required" = ["client_id"]))]
    struct AuthorizedClient("a table such as { client_id = \"host\", client_secret = { env = \"HOST_SECRET\" } }") {
        /// Its name. An ID-JAG names it as `client_id`.
        client_id: TemplateString,
        /// Its secret (`client_secret_basic`, `client_secret_post`).
        client_secret: WrittenSecret,
        /// Where its keys are (`private_key_jwt`, RFC 7523).
        jwks: WebUrl,
        /// Where browsers may return to it after a sign-in. On this machine any port will do. Default: nowhere.
        redirect_uris: Values<TemplateString>,
    }

    /// How Weir is a client of the upstream's authorization server. Whatever is left out is found out.
    #[schemars(rename = "OAuth")]
    struct WrittenOAuth("a table such as { scopes = [\"read\"] }") {
        /// The authorization server, if the upstream's own word is not to be taken for it. Needed for `auth = "exchange"`
        /// without an `identity_provider`. Default: the one that the upstream names; where there is a secret to show, the
        /// one that it has named first.
        issuer: WebUrl,
        /// Weir's name at the authorization server. Default: its metadata URL, or what it is registered as when it first
        /// comes.
        client_id: TemplateString,
        /// Weir's password there.
        client_secret: WrittenSecret,
        /// The key that Weir signs with instead of sending a password (RFC 7523): a PEM file.
        private_key: WrittenSecret,
        /// How it signs. Default: what the key is for.
        algorithm: Algorithm,
        /// The token of the platform that Weir shows instead of a password (RFC 7523 §2.2): of Kubernetes, of SPIFFE, or any
        /// signed JWT. Read anew each time.
        client_assertion: WrittenSecret,
        /// The token of the platform that `auth = "jwt_bearer"` exchanges for one of the upstream (RFC 7523 §2.1). Read anew
        /// each time.
        assertion: WrittenSecret,
        /// The scopes to ask for. Default: those that the upstream names.
        scopes: Values<TemplateString>,
        /// The token that is exchanged, where all callers share what comes of it: a workload's identity. Read anew each time.
        /// Default: the token that the caller has brought.
        subject_token: WrittenSecret,
        /// What the token is said to be that is exchanged (RFC 8693). Default: `"access_token"`; with an `identity_provider`
        /// `"id_token"`.
        subject_token_type: SubjectType,
        /// For whom a token is exchanged (RFC 8693). Default: the upstream.
        audience: TemplateString,
        /// Whether requests name the upstream as `resource` (RFC 8707). Some servers refuse that. Default: `true`.
        resource: bool,
        /// Whether tokens are bound to a key that Weir proves to hold with each request (DPoP, RFC 9449). `true` refuses other
        /// tokens. Default: as the upstream asks.
        dpop: bool,
        /// Whether authorization servers may be at private addresses. Those of an upstream on this machine may. Default:
        /// `false`.
        private_network: bool,
        /// How long before its end a token is renewed. Default: `"60s"`.
        renew_before: Period,
        /// Where the identity is exchanged first, for `auth = "exchange"`.
        identity_provider: IdentityProvider,
    }

    /// The authorization server that vouches for callers.
    #[schemars(extend("required" = ["token_endpoint"]))]
    struct IdentityProvider("a table with a `token_endpoint`") {
        /// Where tokens are exchanged.
        token_endpoint: WebUrl,
        /// Weir's name there.
        client_id: TemplateString,
        /// Weir's password there.
        client_secret: WrittenSecret,
    }

    /// Where logins are kept, encrypted.
    struct Store("a table such as { path = \"logins.redb\" }") {
        /// The file. Default: `weir/logins.redb` in `$XDG_STATE_HOME`, else in `~/.local/state`.
        path: FilePath,
        /// A server of Redis or Valkey in place of the file, which several gateways share: `redis://user@host:6379/0`,
        /// `rediss://…` with TLS, `redis+unix:///path`, `redis+sentinel://host,host/service` or
        /// `redis+cluster://host,host`. It holds no password.
        url: TemplateString,
        /// The password at that server. Default: the variable `WEIR_STORE_PASSWORD`, else none.
        password: WrittenSecret,
        /// The password at its Sentinels. Default: none.
        sentinel_password: WrittenSecret,
        /// The certificates that are trusted there, a PEM file. Default: those of the system.
        ca: FilePath,
        /// What the names of all keys there begin with. Gateways with the same prefix share their state. Default: `"weir"`.
        prefix: TemplateString,
        /// Where the key is that encrypts it, 32 bytes in base64. Default: the variable `WEIR_STORE_KEY`; for a file also
        /// the keyring of the system, else a file beside the store that only its owner can read.
        key: WrittenSecret,
    }
}

impl FromStr for SubjectPart {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        choice(text, &[("organization", Self::Organization), ("organizational_unit", Self::OrganizationalUnit)], &[])
    }
}

strings! { SubjectPart: "\"organization\" or \"organizational_unit\"",
{ "type": "string", "enum": ["organization", "organizational_unit"] }; }
