// The contract of policies for Weir, made of `policy.wit`. Do not edit it.

/**
 * The words that the decisions share.
 * The upstream, the principal, and what has happened at the upstream so far.
 */
declare module "weir:policy/types@0.1.0" {
  /**
   * What later versions may add to a record: keys and values. What Weir sends, and what it reads, stands at the record;
   * elsewhere it is an empty list today. Weir ignores everything else that a policy puts into it.
   */
  export type Extensions = Array<[string, string]>;
  /** How bytes travel to an upstream. */
  export type Transport =
    /** Streamable HTTP (2025-03-26 and later). */
    | "http"
    /** HTTP+SSE (2024-11-05). It exists in the legacy era only. */
    | "sse"
    /** A child process that speaks one message per line. */
    | "stdio";
  /** Which of the protocol's two designs is spoken. */
  export type Era =
    /** 2026-07-28 and later: every request stands alone. */
    | "modern"
    /** 2024-11-05 to 2025-11-25: `initialize`, then a session. */
    | "legacy";
  /** The MCP server to be reached. Weir fills it in from its configuration. */
  export interface Upstream {
    /** Its name in the configuration, for messages. */
    name: string;
    /** Its address; none for a child process. */
    url?: string | null | undefined;
    /** The transport that the configuration insists on (`type = "http"`). No other may be tried. */
    requiredTransport?: Transport | null | undefined;
    /** The era that the waiting client needs; none when either will do. No other may be tried. */
    requiredEra?: Era | null | undefined;
    /** The transports that this Weir can carry. No other may be tried. */
    transports: Array<Transport>;
    /** The policy's own `settings` from the configuration, as a JSON object; `{}` when there are none. */
    settings: string;
    /**
     * `account`: which of the `accounts` in the configuration it is. `client-group`: the group of
     * clients that see the list or make the call (`calls.interest`). `batch`: which part of a long list `calls.entries`
     * is asked about, and of how many (`2/3`). What later versions may add.
     */
    extensions: Extensions;
  }
  /** Who the client has proved to be. Weir fills it in from the client's verified token. */
  export interface Principal {
    /** The subject (`sub`), unique within the issuer. */
    subject: string;
    /** The authorization server that issued the token (`iss`); none for a local caller. */
    issuer?: string | null | undefined;
    /** The scopes that the token grants. */
    scopes: Array<string>;
    /** The token's claims, as a JSON object. */
    claims: string;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /**
   * What a server asked for when it refused a request (`WWW-Authenticate`, RFC 9110 section 11.6.1). Weir fills it in
   * from the answer and cuts each text at 2 KiB.
   */
  export interface Challenge {
    /** The authentication scheme in small letters, such as `bearer`; empty if the server sent no challenge. */
    scheme: string;
    /** The `error` parameter (RFC 6750 section 3.1), such as `invalid_token` or `insufficient_scope`. */
    error?: string | null | undefined;
    /** The `scope` parameter: the scopes that would do. */
    scope?: string | null | undefined;
    /** The `resource_metadata` parameter (RFC 9728 section 5.1): where the server names its authorization servers. */
    resourceMetadata?: string | null | undefined;
    /** What later versions may add, such as other parameters of the challenge. */
    extensions: Extensions;
  }
  /** How an attempt to connect ended. */
  export type Outcome =
    /** The server spoke MCP, in the era of the attempt. */
    | { tag: "connected" }
    /**
     * An HTTP status that says nothing of transport or era: 408, 429, any 5xx, a redirect that may not be followed,
     * or a 400 that carries an error of the modern era.
     */
    | { tag: "inconclusive"; val: number }
    /** 401. Known from the status alone, never from the text of an answer. */
    | { tag: "unauthorized"; val: Challenge }
    /** 403. */
    | { tag: "forbidden"; val: Challenge }
    /**
     * Any other HTTP status from 400 to 499: the server does not support what was sent to it. Another transport or
     * era may do.
     */
    | { tag: "unsupported"; val: number }
    /** No connection, or no child process; the text says why. */
    | { tag: "unreachable"; val: string }
    /** No answer in time. */
    | { tag: "timed-out" }
    /** The connection, or the child process, ended before the answer was whole. */
    | { tag: "connection-terminated" }
    /** An answer that is not MCP; the text says what came instead. */
    | { tag: "not-mcp"; val: string };
  /** One attempt to connect and its outcome. Weir fills it in after each attempt. */
  export interface Attempt {
    /** The transport used. */
    transport: Transport;
    /** The era opened with. */
    era: Era;
    /** Whether a credential went along. */
    credential: boolean;
    /** How it ended. */
    outcome: Outcome;
    /** How long it took, in milliseconds. */
    durationMs: number;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** The upstream's refusal of a request. Weir fills it in from the answer. */
  export interface Refusal {
    /** The HTTP status: 401 or 403. */
    status: number;
    /** Whether a credential went along. */
    credential: boolean;
    /** What the server asked for. */
    challenge: Challenge;
    /** What later versions may add. */
    extensions: Extensions;
  }
}

/**
 * The decisions: a component exports the interfaces of those that it makes.
 * Decides how an upstream is reached. Weir asks when it needs a connection, and again after every attempt, until the upstream
 * is connected or the policy stops.
 */
declare module "weir:policy/connection@0.1.0" {
  export type Extensions = import("weir:policy/types@0.1.0").Extensions;
  export type Upstream = import("weir:policy/types@0.1.0").Upstream;
  export type Attempt = import("weir:policy/types@0.1.0").Attempt;
  export type Transport = import("weir:policy/types@0.1.0").Transport;
  export type Era = import("weir:policy/types@0.1.0").Era;
  /** A way to the upstream. The policy fills it in. */
  export interface Candidate {
    /** The transport to use. */
    transport: Transport;
    /** The era to open with. */
    era: Era;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** What to do next. */
  export type Step =
    /** Try this candidate, with the credential in hand if there is one. */
    | { tag: "attempt"; val: Candidate }
    /**
     * Get a new credential, then try this candidate. Where no credential can be had, the history grows by an attempt
     * that ended in `unauthorized`, and Weir asks the policy again.
     */
    | { tag: "authorize"; val: Candidate }
    /** Give up. The text is one sentence for the operator: what happened, and what to do about it. */
    | { tag: "stop"; val: string };
  /**
   * The next step. `history` holds the attempts since the connection was needed, oldest first; it is empty at the first
   * question. Weir caps the number of attempts whatever the policy says.
   */
  export function next(to: Upstream, history: Array<Attempt>): Step;
}

/**
 * Decides which credential opens an upstream. Weir asks before the first request, when the last decision has expired, after
 * a 401 or 403, and after each token request that it made for the policy, until there is a credential or the policy
 * stops.
 */
declare module "weir:policy/credentials@0.1.0" {
  export type Extensions = import("weir:policy/types@0.1.0").Extensions;
  export type Upstream = import("weir:policy/types@0.1.0").Upstream;
  export type Principal = import("weir:policy/types@0.1.0").Principal;
  export type Refusal = import("weir:policy/types@0.1.0").Refusal;
  /** How Weir can get a token from an authorization server. */
  export type Flow =
    /** A person signs in with a browser (RFC 6749 section 4.1, RFC 7636). */
    | "authorization-code"
    /** A person types a code on another device (RFC 8628). */
    | "device-code"
    /** Weir authenticates as itself (RFC 6749 section 4.4). */
    | "client-credentials"
    /** The caller's own token is exchanged (RFC 8693). */
    | "token-exchange";
  /** A token that Weir stores for this upstream and principal. Weir fills it in, and never tells the token's text. */
  export interface Token {
    /** The authorization server that issued it. */
    issuer: string;
    /** The scopes that it grants, as far as the server said. */
    scopes: Array<string>;
    /** How long ago it was issued, in seconds. */
    ageSeconds: number;
    /** How long it is still valid, in seconds; 0 when it has expired, none when the server did not say. */
    expiresInSeconds?: number | null | undefined;
    /** Whether the upstream has accepted it, as far as Weir remembers. */
    accepted: boolean;
    /**
     * Whether Weir can renew it without a person: with a refresh token (RFC 6749 section 6), or by the flow
     * `client-credentials` or `token-exchange`.
     */
    renewable: boolean;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** What Weir did to get a token. */
  export type TokenOperation =
    /** It renewed the token. */
    | { tag: "renew" }
    /** It got a new one by this flow. */
    | { tag: "obtain"; val: Flow };
  /** How a token operation ended. */
  export type TokenOutcome =
    /** There is a new token; `question.token` tells of it. */
    | { tag: "done" }
    /** The authorization server refused, and would refuse again. The text says why. */
    | { tag: "denied"; val: string }
    /** It did not work this time: an outage, too many requests, no answer. Nothing was lost. The text says why. */
    | { tag: "failed"; val: string };
  /** A token operation and its outcome. Weir fills it in after each `renew` and `obtain`. */
  export interface TokenAttempt {
    /** What Weir did. */
    operation: TokenOperation;
    /** How it ended. */
    outcome: TokenOutcome;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** What there is to decide about. Weir fills it in. */
  export interface Question {
    /** The upstream to be opened. */
    upstream: Upstream;
    /**
     * For whom; none when all callers share the credential, as they do unless the configuration says
     * `owner = "principal"`.
     */
    principal?: Principal | null | undefined;
    /** The names of the secrets that the policy may place, from `secrets` in the configuration. */
    secrets: Array<string>;
    /** The flows that the configuration allows, the preferred one first. */
    flows: Array<Flow>;
    /** The token that Weir stores, if it does. */
    token?: Token | null | undefined;
    /** How the upstream refused the credential in hand, if it did. */
    refusal?: Refusal | null | undefined;
    /**
     * The token operations for this question so far, oldest first. A renewal a moment ago counts too, if the upstream
     * now refuses the token that came of it and has never accepted it: another would not help.
     */
    attempts: Array<TokenAttempt>;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** A secret on its way into a header. The policy fills it in; it names the secret and never sees it. */
  export interface Attachment {
    /** The header's name, such as `authorization`. */
    header: string;
    /** The authentication scheme before the secret, such as `Bearer`; none for the bare secret. */
    scheme?: string | null | undefined;
    /** The name of the secret, one of `question.secrets`. */
    secret: string;
    /** How long this decision holds, in seconds. */
    ttlSeconds: number;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** The token that Weir stores, on its way into a header. The policy fills it in. */
  export interface Presentation {
    /** The header's name, such as `authorization`. */
    header: string;
    /** The authentication scheme before the token, such as `Bearer`; none for the bare token. */
    scheme?: string | null | undefined;
    /** How long this decision holds, in seconds. */
    ttlSeconds: number;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** A token of the policy's own making, such as one that it got from a service through `http`. The policy fills it in. */
  export interface MintedToken {
    /** The header's name, such as `authorization`. */
    header: string;
    /** The authentication scheme before the token, such as `Bearer`; none for the bare token. */
    scheme?: string | null | undefined;
    /** The token's text. */
    text: string;
    /** How long this decision holds, in seconds. */
    ttlSeconds: number;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** A request for a new token. The policy fills it in. */
  export interface TokenRequest {
    /** The flow to use, one of `question.flows`. */
    flow: Flow;
    /**
     * The scopes to ask for; an empty list leaves it to the servers' metadata (MCP 2026-07-28, basic/authorization,
     * "Scope Selection Strategy").
     */
    scopes: Array<string>;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** What to do. */
  export type Decision =
    /** Go without a credential. */
    | { tag: "none" }
    /** Place a secret in a header of the request. It travels only to the origin that the secret was configured for. */
    | { tag: "attach"; val: Attachment }
    /** Place the token that Weir stores. It travels only to the origin that it was issued for. */
    | { tag: "present"; val: Presentation }
    /** Place this token. It travels only to the origin of the upstream. */
    | { tag: "mint"; val: MintedToken }
    /** Renew the token, and ask again. */
    | { tag: "renew" }
    /**
     * Get a new token, and ask again. Where a person has to sign in, Weir tells the caller how, and this question
     * ends. Weir keeps the present token until the new one has come.
     */
    | { tag: "obtain"; val: TokenRequest }
    /** Give up. The text is one sentence for the operator: what happened, and what to do about it. */
    | { tag: "stop"; val: string };
  /** Which credential to use. Weir caps the number of token operations whatever the policy says. */
  export function decide(about: Question): Decision;
}

/**
 * Decides about the calls to an upstream: the requests, what comes back, and the entries of its lists. At load a policy says
 * what it wants to see. What it does not want to see never crosses to it.
 */
declare module "weir:policy/calls@0.1.0" {
  export type Extensions = import("weir:policy/types@0.1.0").Extensions;
  export type Upstream = import("weir:policy/types@0.1.0").Upstream;
  export type Principal = import("weir:policy/types@0.1.0").Principal;
  export type Era = import("weir:policy/types@0.1.0").Era;
  /** How much of something a policy wants to see. */
  export type Detail =
    /** Nothing: it is not asked. */
    | "nothing"
    /** What there is beside the text. Weir may keep the answer for as long as the policy says. */
    | "facts"
    /** The text too. */
    | "body";
  /** The lists of an upstream. */
  export type EntryKind =
    /** `tools/list`. */
    | "tool"
    /** `prompts/list`. */
    | "prompt"
    /** `resources/list`. */
    | "resource"
    /** `resources/templates/list`. */
    | "template";
  /** What a policy wants to see. The policy fills it in. In a pattern `*` stands for any text and `?` for one character. */
  export interface Interest {
    /** Patterns of the methods that it decides about, such as `tools/call`. */
    methods: Array<string>;
    /**
     * Patterns of the names of tools and prompts and of the URIs of resources, as the upstream has them. An empty list
     * stands for all, and for requests without a name.
     */
    names: Array<string>;
    /** How much of each request, before it goes out. */
    request: Detail;
    /** How much of its answer: a result or an error. */
    answer: Detail;
    /** How much of each message that comes before the answer, such as progress. */
    event: Detail;
    /** The lists whose entries it decides about, whatever `methods` and `names` say. */
    entries: Array<EntryKind>;
    /**
     * `clients`: the groups of clients that see different entries, as a JSON array of pairs: a pattern of what clients
     * call themselves, in small letters, and the name of a group. The first pattern that fits a client counts. Weir
     * asks about the entries once for each group, of which there are at most 8, and once for all other clients.
     * `input-schema`, with an empty value: calls of tools bring the input schema of the tool, where `request` is `body`.
     * What later versions may add.
     */
    extensions: Extensions;
  }
  /** A request. Weir fills it in. */
  export interface Call {
    /** What the log calls it; empty where only facts are asked for, for the answer may be kept. */
    id: string;
    /** Where it goes. */
    upstream: Upstream;
    /** Where it came in: `mcp`, or what follows `/mcp/`. */
    endpoint: string;
    /** Who calls; none where everybody may. */
    principal?: Principal | null | undefined;
    /** What the client calls itself, with its version. It proves nothing. */
    client?: string | null | undefined;
    /** Which design the client speaks. */
    era: Era;
    /** The method, such as `tools/call`. */
    method: string;
    /** The name of the tool or prompt, or the URI of the resource, as the upstream has it. */
    name?: string | null | undefined;
    /** The labels that the policies before this one have added. */
    labels: Array<[string, string]>;
    /**
     * `input-schema`: the input schema of the tool as its server listed it (`interest`). It is missing where Weir has no
     * list of the tool, or the schema has over 128 KiB. What later versions may add.
     */
    extensions: Extensions;
  }
  /** A refusal. The policy fills it in. */
  export interface Denial {
    /**
     * The code of a JSON-RPC error. Without one a tool call ends in a tool error, which the model reads; any other
     * request ends in the code -32603.
     */
    code?: number | null | undefined;
    /** One sentence for the model: what is not allowed, and what to do instead. */
    text: string;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** A request for a person's approval. The policy fills it in. */
  export interface Approval {
    /**
     * Who may approve, as `by` in `approve` of an access rule: `caller`, `group:NAME` or `subject:NAME`. One of them
     * is enough.
     */
    by: Array<string>;
    /** How long the request waits, and how long an approval is good, in seconds. */
    expiresInSeconds: number;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** What becomes of a request. */
  export type Verdict =
    /** It goes on. */
    | { tag: "allow" }
    /** It ends here. */
    | { tag: "deny"; val: Denial }
    /**
     * It goes on with these `params`, a JSON object. The method and the name stay; access rules decide anew. It takes
     * the detail `body`.
     */
    | { tag: "replace"; val: string }
    /** It ends here with this `result`, a JSON object. */
    | { tag: "answer"; val: string }
    /** It goes on once a person has approved it. */
    | { tag: "ask"; val: Approval };
  /** A decision about a request. The policy fills it in. */
  export interface Decision {
    /** What becomes of it. */
    verdict: Verdict;
    /** Headers for the upstream, where it is reached over HTTP. None that Weir or a credential sets. */
    headers: Array<[string, string]>;
    /** Words for the log and the audit record. */
    labels: Array<[string, string]>;
    /** Whatever this policy wants to be told again about the same call. */
    memory: string;
    /**
     * How long the decision holds for calls with the same facts, in seconds; 0 for this one. It counts only where the
     * policy wants to see no more than facts.
     */
    ttlSeconds: number;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** Something that comes back. Weir fills it in. */
  export type Content =
    /** The `result` of the answer, a JSON object; none where only facts are asked for. */
    | { tag: "result"; val: string | null | undefined }
    /** The `error` of the answer, a JSON object. */
    | { tag: "error"; val: string | null | undefined }
    /** A message before the answer, whole: a notification, or a request of the upstream. */
    | { tag: "event"; val: string | null | undefined };
  /** What becomes of something that comes back. */
  export type AnswerVerdict =
    /** It goes on. */
    | { tag: "pass" }
    /** It goes on as this, in the form in which it came. It takes the detail `body`. */
    | { tag: "replace"; val: string }
    /** The client does not get it. This is for notifications only. */
    | { tag: "drop" }
    /** The call ends here, and its client gets this instead. */
    | { tag: "cut"; val: Denial };
  /** A decision about something that comes back. The policy fills it in. */
  export interface AnswerDecision {
    /** What becomes of it. */
    verdict: AnswerVerdict;
    /** Words for the log and the audit record. */
    labels: Array<[string, string]>;
    /** What replaces `memory`. */
    memory: string;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** One entry of a list. Weir fills it in. */
  export interface Entry {
    /** Which list has it. */
    kind: EntryKind;
    /** Its name, URI or template, as the upstream has it. */
    name: string;
    /** The entry, a JSON object. */
    body: string;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** What becomes of an entry. */
  export type EntryVerdict =
    /** Clients see it. */
    | { tag: "show" }
    /** Clients neither see it nor may use it. The text is one sentence for the operator. */
    | { tag: "hide"; val: string }
    /** Clients see this instead, a JSON object of the same name. */
    | { tag: "edit"; val: string };
  /**
   * What the policy wants to see. Weir asks once, at load. An error refuses the configuration; it is one sentence for
   * the operator. `settings` are those of the configuration, as in `upstream`.
   */
  export function wants(settings: string): Interest;
  /** What becomes of a request. `params` is there if the policy wants to see it. */
  export function before(about: Call, params: string | null | undefined): Decision;
  /** What becomes of something that comes back. `memory` is what the policy has said of this call last. */
  export function after(about: Call, memory: string, what: Content): AnswerDecision;
  /** What becomes of some entries of the upstream's lists: as many verdicts, in the same order. */
  export function entries(of: Upstream, entries: Array<Entry>): Array<EntryVerdict>;
}

/**
 * The capabilities: a component imports those that the configuration grants it.
 * Lines in Weir's own log. Granted by `"log"`.
 */
declare module "weir:policy/log@0.1.0" {
  /** The severity of a line. */
  export type Level =
    /** For whoever follows the policy's reasoning. */
    | "debug"
    /** Worth knowing. */
    | "info"
    /** Worth acting on. */
    | "warn"
    /** Something failed. */
    | "error";
  /**
   * Write a line. Weir adds the names of the policy and of the upstream, shortens long lines, and drops lines beyond a
   * fixed number. Do not write secrets or anything that belongs to a user; Weir masks secrets that the policy has read.
   */
  export function write(level: Level, message: string): void;
}

/** The time. Granted by `"clock"`. */
declare module "weir:policy/clock@0.1.0" {
  /** Milliseconds since 1970-01-01 00:00 UTC. */
  export function now(): bigint;
}

/** Randomness fit for secrets. Granted by `"random"`. */
declare module "weir:policy/random@0.1.0" {
  /** `len` random bytes, at most 1024; a greater number gives 1024. */
  export function bytes(len: number): Uint8Array;
}

/**
 * The text of secrets. Granted by `"secrets"`. A policy that only places secrets in headers does not need it: see
 * `credentials.attachment`. Whoever grants it trusts the component with the secrets of every upstream that it serves.
 */
declare module "weir:policy/secrets@0.1.0" {
  /** The secret of that name, if it is one of `question.secrets`. Always none while a connection is decided. */
  export function read(name: string): string | null | undefined;
}

/** Requests to services that the configuration names (`http = ["https://tokens.example.com"]`). Granted by `"http"`. */
declare module "weir:policy/http@0.1.0" {
  export type Extensions = import("weir:policy/types@0.1.0").Extensions;
  /** The method of a request (RFC 9110 section 9.3, RFC 5789). The configuration allows GET and POST, or those that it names. */
  export type Method =
    /** GET. */
    | "get"
    /** HEAD. */
    | "head"
    /** POST. */
    | "post"
    /** PUT. */
    | "put"
    /** PATCH. */
    | "patch"
    /** DELETE. */
    | "delete";
  /** A request. The policy fills it in. */
  export interface Request {
    /** The method. */
    method: Method;
    /** An absolute URL of an origin that the configuration names. */
    url: string;
    /** Headers by name and value, beside those that frame the message. */
    headers: Array<[string, string]>;
    /** The body. */
    body: Uint8Array;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** The answer. Weir fills it in. It follows no redirect: one is an answer like any other. */
  export interface Response {
    /** The HTTP status. */
    status: number;
    /** Its headers by name and value. */
    headers: Array<[string, string]>;
    /** The body, at most 256 KiB. */
    body: Uint8Array;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** Send a request and wait for its answer; at most 16 for one question. The error says what went wrong. */
  export function send(request: Request): Response;
}

/**
 * A small store of the policy's own. Granted by `"store"`. What a policy keeps for one upstream, no other policy sees, and
 * no other upstream. It outlives a restart, and is encrypted as logins are. All instances of the policy share it, those of
 * other processes too.
 */
declare module "weir:policy/store@0.1.0" {
  export type Extensions = import("weir:policy/types@0.1.0").Extensions;
  /** What is kept under a key. Weir fills it in. */
  export interface Item {
    /** The value. */
    value: Uint8Array;
    /** Which writing of it this is. */
    version: bigint;
    /** What later versions may add. */
    extensions: Extensions;
  }
  /** When a value is written. */
  export type Condition =
    /** Whatever is there. */
    | { tag: "always" }
    /** If nothing is there. */
    | { tag: "absent" }
    /** If what is there is this writing. */
    | { tag: "version"; val: bigint };
  /** Why nothing was read or written. */
  export type StoreError =
    /** The condition does not hold. */
    | { tag: "changed" }
    /** It would be more than the policy may keep, or do for one question. The text says which. */
    | { tag: "limit"; val: string }
    /** The store cannot be had now. The text says why. */
    | { tag: "unavailable"; val: string };
  /** What is kept under a key of at most 256 bytes; none if there is nothing, or its time is over. */
  export function get(key: string): Item | null | undefined;
  /**
   * Keep a value of at most 128 KiB, for so many seconds; 0 for good. The answer is the version of this writing. A policy
   * may keep 2 MiB and 1,024 values for one upstream.
   */
  export function set(key: string, value: Uint8Array, ttlSeconds: number, when: Condition): bigint;
  /** Forget what is under a key. */
  function _delete(key: string): void;
  export { _delete as delete };
  /** The keys that begin with this text, in order. */
  export function keys(prefix: string): Array<string>;
}
