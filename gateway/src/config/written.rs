//! The tables of the file as the operator writes them. Their doc comments are what the schema says of each key.

mod access;
mod auth;
mod limits;
mod policy;
mod telemetry;

use std::str::FromStr;

use super::SubjectPart;
use super::console::PageName;
use super::origin::{HostName, WebOrigin, WebUrl};
use super::quantity::{Memory, Period, Size};
use super::read::{Unreadable, table};
use super::string::{
    AccountName, Address, CredentialFile, FilePath, Inherited, Program, StoredName, SystemUserName, TemplateString,
    Variable, choice, strings,
};
use super::value::{Count, NamedValues, OneOrMore, Values};

pub(super) use access::{WrittenAccess, WrittenOverride, WrittenRule, WrittenSelection, WrittenToolset};
pub(super) use auth::{
    AuthorizationServer, AuthorizedClient, IdentityProvider, Introspection, Store, WrittenInbound, WrittenOAuth,
};
pub(super) use limits::{KeyLimits, OwnToolLimits, WrittenLimits, WrittenOwnLimits};
pub(super) use policy::{WrittenDigest, WrittenPolicy};
pub(super) use telemetry::WrittenTelemetry;

table! {
    /// The configuration of Weir. Relative paths begin at the folder of the file.
    struct Root("a table") {
        /// The address to listen on, or a list of them. Port 0 lets the system choose. Default: `"127.0.0.1:8080"`.
        listen: OneOrMore<Address>,
        /// Who may call. Default: everybody who reaches Weir.
        auth: OneOrMore<WrittenInbound>,
        /// Weir issues access tokens: to MCP clients that people sign in with, and to clients with an ID-JAG.
        authorization_server: AuthorizationServer,
        /// Whether programs may call with an API key (`weir key add`): `Authorization: Bearer weir_…` or `X-API-Key`.
        /// Everybody else needs a token of `auth`, if there is one. Default: `false`.
        api_keys: bool,
        /// Must be `true` to listen on anything but loopback without `auth`: everybody who reaches the address can then
        /// call every upstream with its credentials. Default: `false`.
        allow_unauthenticated: bool,
        /// What browsers and clients reach Weir by: `"https://weir.example.com"`. Default: what stands before `/mcp` in the
        /// `audience` of `auth`, else the address that it listens on.
        public_url: WebUrl,
        /// Where the document is that describes Weir to authorization servers (Client ID Metadata Document). With `{issuer}`
        /// in it each server reads one of its own, which Weir serves itself below `public_url`. Default: Weir registers
        /// itself where it can.
        client_metadata_url: WebUrl,
        /// Where logins are kept.
        store: Store,
        /// Host names that clients call Weir by, beside `localhost`, IP addresses and that of `public_url`. Other `Host` headers are
        /// refused, which keeps web pages from reaching Weir by a name of their own.
        allowed_hosts: Values<HostName>,
        /// Browser origins that may call Weir, beside those on loopback: `"https://app.example.com"`.
        allowed_origins: Values<WebOrigin>,
        /// Where policies are kept that were fetched or compiled. Default: `weir` in `$XDG_CACHE_HOME`, else in `~/.cache`.
        cache_dir: FilePath,
        /// How long names of tools may be for hosts (`weir client list`), each with the host's prefix: `{ cursor = 60 }`.
        /// `weir doctor` and `weir client connect` warn of longer ones. Default: what each host is known to take.
        name_budgets: NamedValues<Count>,
        /// What the pages for browsers are called, and an image at their top.
        console: WrittenConsole,
        /// Serve HTTPS with this certificate.
        tls: Tls,
        /// Where programs such as Prometheus ask how Weir stands, beside the Unix socket of operators.
        admin: WrittenAdmin,
        /// Where other gateways at the same store reach this one, so that a legacy session goes on at any of them.
        replica: WrittenReplica,
        /// Record calls, refusals and sign-ins in a file that shows whether somebody has changed it.
        audit: WrittenAudit,
        /// Send traces and metrics to a collector of OpenTelemetry.
        telemetry: WrittenTelemetry,
        /// Record the questions that policies are asked, and what they answer: `weir policy replay` asks them again.
        record: WrittenRecord,
        /// The bounds on what clients and upstreams may take.
        limits: WrittenLimits,
        /// What holds for each upstream that says nothing else.
        defaults: Defaults,
        /// Who may see and call what.
        access: WrittenAccess,
        /// Tools, prompts and resources that are served together, each at `/mcp/<name>`.
        toolsets: NamedValues<WrittenToolset>,
        /// The MCP servers behind Weir, by name: letters, digits, `-` and `_`, at most 32. A tool of the upstream
        /// `github` is called `github__<tool>` on `/mcp` and by its own name on `/mcp/github`.
        upstreams: NamedValues<WrittenUpstream>,
    }

    /// A certificate and its key, both PEM files.
    #[schemars(extend("required" = ["certificate", "key"]))]
    struct Tls("a table with `certificate` and `key`") {
        /// The certificate chain, leaf first.
        certificate: FilePath,
        /// The private key.
        key: FilePath,
        /// Clients may show a certificate of these CAs, a PEM file. Default: clients are asked for none.
        client_ca: FilePath,
        /// The revocation lists of these CAs, a PEM file: one for each CA. Default: none are read.
        client_crl: FilePath,
        /// Whether a client that brings no token and no API key is who its certificate says. Default: only where neither
        /// `[auth]` nor `api_keys` says who callers are.
        client_is_caller: bool,
        /// What of a certificate's subject names its caller's groups: `"organization"` or `"organizational_unit"`, each of
        /// them one group. Default: such callers have no groups.
        client_groups: SubjectPart,
        /// Whether each client must show one; otherwise a client without it is refused only if it brings nothing else.
        /// Default: `false`.
        client_required: bool,
    }

    /// What the pages for browsers are called, and an image at their top.
    #[schemars(rename = "Console")]
    struct WrittenConsole("a table such as { name = \"Example tools\" }") {
        /// What the pages are called, at most 64 characters. Default: `"Weir"`.
        name: PageName,
        /// A PNG, JPEG, WebP or SVG file of at most 32 KiB. Default: no image.
        logo: FilePath,
    }

    /// Where programs such as Prometheus ask how Weir stands, beside the Unix socket of operators.
    #[schemars(extend("required" = ["listen"]))]
    #[schemars(rename = "Admin")]
    struct WrittenAdmin("a table such as { listen = \"127.0.0.1:9464\" }") {
        /// The address of `GET /metrics`, `/status` and `/readyz`, over plain HTTP. Needed.
        listen: Address,
        /// Requests need it: `Authorization: Bearer <token>`. It may be left out on loopback.
        token: WrittenSecret,
    }

    /// Where other gateways at the same store reach this one, so that a legacy session goes on at any of them.
    #[schemars(extend("required" = ["listen"]))]
    #[schemars(rename = "Replica")]
    struct WrittenReplica("a table such as { listen = \"10.0.0.5:9465\" }") {
        /// The address for the other gateways. Only those get in that can read the store. Needed.
        listen: Address,
        /// What the others reach it by, with or without a port: `"${env:POD_IP}"`. Needed if `listen` is not one address.
        /// Default: `listen`.
        address: TemplateString,
    }

    /// Record calls, refusals and sign-ins in a file that shows whether somebody has changed it.
    #[schemars(extend("required" = ["path"]))]
    #[schemars(rename = "Audit")]
    struct WrittenAudit("a table with a `path`") {
        /// The file: JSON Lines, each record with the hash of the one before. Its key is beside it, in `<path>.key`.
        path: FilePath,
        /// A file that has grown to this size is complete: it gets the number of its last record for a suffix, and the
        /// next one begins. Default: `"64MiB"`.
        max_size: Size,
        /// How many complete files are kept. Default: 30.
        keep: Count,
        /// How long complete files are kept. Default: as long as there are no more than `keep`.
        max_age: Period,
        /// When records are on disk for certain: `"interval"` is four times a second, `"each"` some 20 ms after each call. Default: `"interval"`.
        sync: WrittenSync,
        /// What a record holds of a call's arguments: `"digest"` is an HMAC with the log's key, `"full"` also the arguments
        /// themselves, up to 64 KiB. Arguments may hold secrets. Default: `"digest"`.
        arguments: WrittenArguments,
        /// What happens while records cannot be written: `"refuse"` answers new calls with 503, `"continue"` counts the
        /// records that are lost. Default: `"refuse"`.
        on_failure: OnFailure,
        /// Send the records to a collector, too.
        otlp: WrittenOtlp,
    }

    /// Where records are sent, as logs of OpenTelemetry: OTLP over HTTP, in JSON.
    #[schemars(extend("required" = ["url"]))]
    #[schemars(rename = "Otlp")]
    struct WrittenOtlp("a table with a `url`") {
        /// The address for logs, whole: `"https://collector.example.com:4318/v1/logs"`.
        url: TemplateString,
        /// Headers for each request: `{ authorization = "Bearer ${file:collector-token}" }`.
        headers: NamedValues<TemplateString>,
    }

    /// Record the questions that policies are asked, and what they answer.
    #[schemars(extend("required" = ["path", "policies"]))]
    #[schemars(rename = "Record")]
    struct WrittenRecord("a table with `path` and `policies`") {
        /// The file: JSON Lines.
        path: FilePath,
        /// The policies, as `policies` of upstreams name them: `"weir:pin"`, `"./team-key.wasm"`.
        policies: Values<TemplateString>,
        /// Whether the texts of calls are recorded too: arguments, results and entries of lists. They may hold secrets.
        /// Default: `false`.
        bodies: bool,
        /// A file that has grown to this size takes the place of `<path>.1`, and the next one begins. Default: `"16MiB"`.
        max_size: Size,
    }

    /// What holds for each upstream that says nothing else.
    struct Defaults("a table") {
        /// How long to wait for an upstream.
        timeouts: WrittenTimeouts,
        /// Which of Weir's own environment variables a program gets, beside `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM` and
        /// `USER`; `LC_*` is every name that begins so. A pattern never covers `WEIR_*` and what this file refers to.
        /// Default: those for proxies, certificates, language and time zone.
        inherit_env: Values<Inherited>,
    }

    /// How long to wait for an upstream.
    #[schemars(rename = "Timeouts")]
    struct WrittenTimeouts("a table such as { connect = \"5s\" }") {
        /// For a connection, TLS included. Default: `"5s"`.
        connect: Period,
        /// For the answer to `initialize` or `server/discover` over HTTP, in each attempt. Default: `"10s"`.
        initialize: Period,
        /// Between two reads of an answer. Default: `"60s"`.
        read: Period,
        /// For a whole call, all attempts together. Default: `"5m"`.
        overall: Period,
        /// For a whole call that reports progress: each report puts off the end of `overall`, up to this. Default: `"1h"`.
        progress: Period,
        /// For its part in a list of all upstreams. Default: `"5s"`.
        list: Period,
        /// For a process from its start to its first answer: a download is part of it, waiting for one of `limits.concurrent_starts`
        /// is not. Default: `"2m"`.
        start: Period,
        /// For the answer to a probe: Weir asks each upstream now and then whether it still answers. Default: `"10s"`.
        probe: Period,
        /// From one probe to the next, `"1s"` at least. Default: `"30s"`.
        probe_interval: Period,
    }

    /// An MCP server: either `url` or `command`.
    #[schemars(extend("oneOf" = [
        { "anyOf": [{ "required": ["url"] }, { "required": ["httpUrl"] }] },
        { "required": ["command"] }
    ]))]
    #[schemars(rename = "Upstream")]
    struct WrittenUpstream("a table") {
        /// The address of a server: Streamable HTTP is tried first, then HTTP+SSE, unless `type` says which it is.
        /// `${env:NAME}` and `${file:PATH}` are expanded.
        url: TemplateString,
        /// Deprecated; as `url` with `type = "http"`, and instead of a `url` beside it. Known from configurations of
        /// other programs.
        #[schemars(rename = "httpUrl", extend("deprecated" = true))]
        http_url: TemplateString,
        /// The program of a server that speaks over its standard input and output.
        command: Program,
        /// The program's arguments. `${env:NAME}` and `${file:PATH}` are expanded.
        args: Values<TemplateString>,
        /// Environment variables for the program, over those that it inherits. `${env:NAME}` and `${file:PATH}` are
        /// expanded.
        env: NamedValues<TemplateString>,
        /// Which of Weir's own environment variables it inherits, instead of those in `defaults`.
        inherit_env: Values<Inherited>,
        /// The directory the program runs in. Default: the folder of this file.
        cwd: FilePath,
        /// The transport, where it should not be found out.
        r#type: WrittenTransport,
        /// Whether one process of the program serves all clients; otherwise each has its own. Default: `false`.
        shared: bool,
        /// A command that starts the program, with its arguments: `["bwrap", "--ro-bind", "/", "/", "--"]`. `command` and
        /// `args` follow it. `${env:NAME}` and `${file:PATH}` are expanded.
        wrapper: Values<TemplateString>,
        /// The user of the system that the program runs as, with the groups and the home of that user. Weir must run as
        /// root, on Linux. Default: the user that Weir runs as.
        user: SystemUserName,
        /// What each process may take.
        process_limits: WrittenProcessLimits,
        /// Whether to use this upstream. Default: `true`.
        enabled: bool,
        /// Headers to send along with each request. `${env:NAME}` and `${file:PATH}` are expanded.
        headers: NamedValues<TemplateString>,
        /// What opens the upstream. Default: `"bearer"` if there is a `bearer`; `"none"` if `headers` has an `Authorization`;
        /// else nothing, until the upstream asks for a login, which is then offered.
        auth: AuthKind,
        /// Whose login it is, or whose credential where a policy of your own decides about that: one for all callers, or
        /// one for each. Default: `"shared"`.
        owner: WrittenOwner,
        /// Several accounts of one service, each with its own login: `["work", "home"]`, at most 8. Each is an upstream of
        /// its own, `<name>-<account>`. The first is the default.
        accounts: Values<AccountName>,
        /// How a caller chooses an account on `/mcp`: by an `account` argument that each tool gets, or by the prefix
        /// `<name>-<account>__`. Default: `"argument"`.
        account_by: AccountBy,
        /// How Weir signs in, where `auth` is `"oauth"`, `"device"`, `"client_credentials"`, `"jwt_bearer"` or
        /// `"exchange"`.
        oauth: WrittenOAuth,
        /// Where the bearer token is: `{ env = "GITHUB_TOKEN" }` or `{ file = "github.token" }`.
        bearer: WrittenSecret,
        /// How long to wait for this upstream.
        timeouts: WrittenTimeouts,
        /// The tools that are served at all, on every endpoint and to every caller: a pattern, a list of them, or a table
        /// with `allow` and `deny`. Default: all.
        tools: WrittenSelection,
        /// The prompts, in the same way.
        prompts: WrittenSelection,
        /// The resources and templates, by address.
        resources: WrittenSelection,
        /// What this upstream may take, instead of what `limits.upstream` says of each.
        limits: WrittenOwnLimits,
        /// Components that decide how it is reached and with which credential; one for each decision at most.
        policies: Values<WrittenPolicy>,
    }

    /// What each process of an upstream may take. Each process that it starts may take as much again.
    #[schemars(rename = "ProcessLimits")]
    struct WrittenProcessLimits("a table such as { memory = \"1GiB\" }") {
        /// Private writable memory: heap and stacks, whether used or only reserved (`RLIMIT_DATA`). Linux only. Default: any
        /// amount.
        memory: Memory,
        /// Processor time from its start to its end, in whole seconds (`RLIMIT_CPU`). Default: any amount.
        cpu_time: Period,
        /// Open files, sockets and pipes (`RLIMIT_NOFILE`). Default: as many as Weir was allowed when it was started.
        open_files: Count,
        /// Processes and threads of its `user`, those of other upstreams included (`RLIMIT_NPROC`). Needs `user`. Default: any
        /// number.
        processes: Count,
    }

    /// Where a secret is, never the secret itself: in one of `env`, `file`, `credential` and `command`.
    #[schemars(extend("oneOf" = [{ "required": ["env"] }, { "required": ["file"] }, { "required": ["credential"] }, { "required": ["command"] }]))]
    #[schemars(rename = "Source")]
    struct WrittenSecret("{ env = \"NAME\" } or { file = \"PATH\" }") {
        /// The environment variable that holds it.
        env: Variable,
        /// The file that holds it, read anew each time; a final line break is not part of it.
        file: FilePath,
        /// The systemd credential that holds it (`LoadCredential=`, `SetCredentialEncrypted=`): a file in
        /// `$CREDENTIALS_DIRECTORY`.
        credential: CredentialFile,
        /// The name that `weir secret set` has put it into the login store under.
        stored: StoredName,
        /// A program and its arguments, which prints it within 10 seconds: `["vault", "kv", "get", "-field=token",
        /// "secret/github"]`. There is no shell, and nothing is expanded. While it fails, Weir uses what it printed last.
        command: Values<TemplateString>,
        /// How long Weir uses what the `command` printed before it runs again. Default: `"5m"`.
        refresh: Period,
        /// Which of Weir's own variables the `command` inherits, beside `HOME`, `PATH` and the like: `["VAULT_*"]`.
        /// Default: as for upstreams.
        inherit_env: Values<Inherited>,
    }
}

/// How a policy takes part in calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct WrittenMode(pub(super) super::PolicyMode);

/// A method of HTTP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HttpMethod(pub(super) &'static str);

/// What becomes of calls whose policy fails.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct WrittenFailure(pub(super) super::PolicyFailure);

/// A transport that can be asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WrittenTransport {
    Http,
    Sse,
    Stdio,
}

/// A way to open an upstream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AuthKind {
    None,
    Bearer,
    OAuth,
    Device,
    ClientCredentials,
    JwtBearer,
    Exchange,
}

/// Whose a login is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WrittenOwner {
    Shared,
    Principal,
}

/// How a caller chooses an account.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AccountBy {
    Argument,
    Prefix,
}

/// A signature of a JWT (RFC 7518 §3.1, RFC 8037 §3.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Algorithm(pub(super) &'static str);

/// What a token is said to be when it is exchanged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SubjectType(pub(super) super::SubjectType);

/// When records of the audit log are on disk for certain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct WrittenSync(pub(super) super::AuditSync);

/// What the audit log holds of arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct WrittenArguments(pub(super) super::AuditArguments);

/// What happens while the audit log cannot be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFailure {
    Refuse,
    Continue,
}

/// An import of a policy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant(pub(super) &'static str);

/// Types that are one of a few words: those that this version knows, and those that are yet to come.
macro_rules! words {
    ($($type:ty: $expected:literal, [$($word:literal => $value:expr),*], later [$($later:literal),*];)*) => {$(
        impl FromStr for $type {
            type Err = Unreadable;

            fn from_str(text: &str) -> Result<Self, Unreadable> {
                choice(text, &[$(($word, $value)),*], &[$($later),*])
            }
        }

        strings! { $type: $expected, { "type": "string", "enum": [$($word),*] }; }
    )*};
}

words! {
    WrittenTransport: "\"http\", \"sse\" or \"stdio\"", ["http" => Self::Http, "sse" => Self::Sse, "stdio" => Self::Stdio], later [];
    AuthKind: "the name of a way to sign in, as a string",
        ["none" => Self::None, "bearer" => Self::Bearer, "oauth" => Self::OAuth, "device" => Self::Device,
            "client_credentials" => Self::ClientCredentials, "jwt_bearer" => Self::JwtBearer, "exchange" => Self::Exchange],
        later [];
    WrittenOwner: "\"shared\" or \"principal\"", ["shared" => Self::Shared, "principal" => Self::Principal], later [];
    AccountBy: "\"argument\" or \"prefix\"", ["argument" => Self::Argument, "prefix" => Self::Prefix], later [];
    Algorithm: "the name of a signature, such as \"ES256\"",
        ["RS256" => Self("RS256"), "RS384" => Self("RS384"), "RS512" => Self("RS512"), "PS256" => Self("PS256"),
            "PS384" => Self("PS384"), "PS512" => Self("PS512"), "ES256" => Self("ES256"), "ES384" => Self("ES384"),
            "EdDSA" => Self("EdDSA")],
        later [];
    SubjectType: "\"access_token\", \"id_token\" or \"jwt\"",
        ["access_token" => Self(super::SubjectType::AccessToken), "id_token" => Self(super::SubjectType::IdToken),
            "jwt" => Self(super::SubjectType::Jwt)],
        later [];
    WrittenSync: "\"interval\" or \"each\"",
        ["interval" => Self(super::AuditSync::Interval), "each" => Self(super::AuditSync::Each)], later [];
    WrittenArguments: "\"digest\" or \"full\"",
        ["digest" => Self(super::AuditArguments::Digest), "full" => Self(super::AuditArguments::Full)], later [];
    WrittenMode: "\"enforce\", \"shadow\" or \"beside\"",
        ["enforce" => Self(super::PolicyMode::Enforce), "shadow" => Self(super::PolicyMode::Shadow),
            "beside" => Self(super::PolicyMode::Beside)],
        later [];
    WrittenFailure: "\"refuse\", \"skip\" or \"last_good\"",
        ["refuse" => Self(super::PolicyFailure::Refuse), "skip" => Self(super::PolicyFailure::Skip),
            "last_good" => Self(super::PolicyFailure::LastGood)],
        later [];
    OnFailure: "\"refuse\" or \"continue\"", ["refuse" => Self::Refuse, "continue" => Self::Continue], later [];
    Grant: "the name of a grant, as a string",
        ["log" => Self("log"), "clock" => Self("clock"), "random" => Self("random"), "secrets" => Self("secrets"),
            "http" => Self("http"), "store" => Self("store")],
        later [];
    HttpMethod: "a method, such as \"GET\"",
        ["GET" => Self("GET"), "HEAD" => Self("HEAD"), "POST" => Self("POST"), "PUT" => Self("PUT"),
            "PATCH" => Self("PATCH"), "DELETE" => Self("DELETE")],
        later [];
}
