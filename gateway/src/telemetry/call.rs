//! The line of each call.

use std::{
    borrow::Cow,
    fmt,
    net::SocketAddr,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use weir_flow::facts::Principal;
use weir_mcp::Era;

use super::{
    CallSpan, TraceParent,
    audit::{self, RecordedArguments},
    put::put_number,
};

/// How much of a name that a client sent goes into the log, in characters.
const NAME_IN_LOG: usize = 128;

/// Why a call came to nothing whose caller, or somebody else, has to sign in first.
pub const NEEDS_SIGN_IN: &str = "needs a sign-in";

/// What one call is called in the log, in the audit log and in some answers: unique, also across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId(u64);

impl CallId {
    /// One that no other call has: milliseconds at the start of the process in front, a count behind.
    pub fn next() -> Self {
        static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
            let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            AtomicU64::new(u64::try_from(start).unwrap_or_default() << 20)
        });
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// A number for decisions by chance. Those of calls that follow each other spread evenly over all of `u32`: the factor
    /// is 2⁶⁴ ÷ φ.
    pub(super) fn chance(self) -> u32 {
        let spread = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> u32::BITS;
        u32::try_from(spread).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// What a call came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallOutcome {
    /// It has its answer.
    #[default]
    Ok,
    /// The upstream answered with an error of JSON-RPC.
    Error,
    /// Its tool says that it failed (`isError`).
    ToolError,
    /// Nothing is broken: somebody is asked to sign in, and told so elsewhere.
    SignIn,
    /// Nothing is broken: a person has to approve it first.
    Approval,
    /// The client asked for what is not there or may not be.
    Refused,
    /// A limit that several clients share leaves no room.
    Limited,
    /// A policy decided against it, or did not decide.
    Denied,
    /// The client does not want the answer any more.
    Cancelled,
    /// The upstream gave no answer that could be passed on.
    Failed,
}

/// One finished call, for the log.
#[derive(Clone, Debug)]
pub struct CallRecord<'a> {
    /// Which call it is.
    pub id: CallId,
    /// When it ended.
    pub at: SystemTime,
    /// The upstream that answered; `-` if Weir did.
    pub upstream: &'a str,
    /// Which account of its service that is, where it has several.
    pub account: Option<&'a str>,
    /// The JSON-RPC method.
    pub method: &'a str,
    /// The tool, prompt or resource asked for; a resource's address without its query.
    pub name: &'a str,
    /// The request's id, as the client wrote it.
    pub request: &'a str,
    /// The client's era.
    pub era: Era,
    /// Who called, as far as is known; somebody without an issuer is of this machine.
    pub principal: Option<&'a Principal>,
    /// What the client calls itself.
    pub client: Option<&'a str>,
    /// A hash of the session's id, which is a secret itself.
    pub session: Option<&'a str>,
    /// The trace that its client says it belongs to.
    pub trace: Option<&'a TraceParent>,
    /// Its own span, if it is traced.
    pub span: Option<&'a CallSpan>,
    /// The other end of the connection.
    pub peer: Option<SocketAddr>,
    /// The HTTP status of the answer.
    pub status: u16,
    /// How often the request was sent.
    pub attempts: u32,
    /// From the end of the request to the end of the answer.
    pub took: Duration,
    /// The bytes of the request's message.
    pub received: u64,
    /// The bytes of the answer's body.
    pub sent: u64,
    /// What it came to.
    pub outcome: CallOutcome,
    /// The rule that allowed or denied it.
    pub rule: Option<&'a str>,
    /// Who has approved it.
    pub approved_by: Option<&'a str>,
    /// What would have been decided if all rules were enforced, where that is something else.
    pub shadow: Option<&'a str>,
    /// What policies have said of it.
    pub labels: &'a [(String, String)],
    /// Why the call failed; none if it did not.
    pub failure: Option<&'a str>,
    /// For the audit log.
    pub arguments: Option<&'a RecordedArguments>,
}

impl CallRecord<'_> {
    /// Writes the line. Only what an operator should look at is a warning or an error.
    pub fn write(&self) {
        let (call_id, client_address) = (self.id.to_string(), self.peer.map(address_text));
        self.audit(&call_id, client_address.as_deref());
        if let Some(span) = self.span {
            span.write(self, &call_id, client_address.as_deref());
        }
        let Self {
            upstream,
            account,
            method,
            request,
            client,
            session,
            status,
            attempts,
            rule,
            approved_by,
            shadow,
            failure,
            ..
        } = self;
        let (name, era, outcome) = (shown(self.name), self.era.text(), self.outcome.text());
        let proved = self.principal.filter(|principal| principal.issuer.is_some());
        let principal = proved.map(|principal| principal.subject.as_str());
        let trace_id = self.span.map(CallSpan::context).or(self.trace).map(TraceParent::trace);
        let (bytes_received, bytes_sent) = (self.received, self.sent);
        let duration_ms = self.took.as_secs_f64() * 1000.0;
        let duration_ms = (duration_ms * 1000.0).round() / 1000.0;
        let words: Vec<String> = self.labels.iter().map(|(name, text)| format!("{name}={text}")).collect();
        let labels = (!words.is_empty()).then(|| words.join(" "));
        macro_rules! line {
            ($level:ident, $text:literal) => {
                tracing::$level!(
                    target: "weir::call",
                    upstream, account, method, name, era, outcome, error = failure, rule, approved_by, shadow, labels, status, attempts, duration_ms,
                    call_id, request_id = request, principal, client, session, trace_id, client_address, bytes_received, bytes_sent, $text
                )
            };
        }
        match self.outcome {
            CallOutcome::Ok
            | CallOutcome::ToolError
            | CallOutcome::SignIn
            | CallOutcome::Approval
            | CallOutcome::Refused
            | CallOutcome::Limited
            | CallOutcome::Cancelled => {
                line!(info, "call");
            }
            CallOutcome::Error | CallOutcome::Denied => line!(warn, "call failed"),
            CallOutcome::Failed => line!(error, "call failed"),
        }
    }

    fn audit(&self, call_id: &str, client_address: Option<&str>) {
        audit::write_at(self.at, "call", |record| {
            if let Some(principal) = self.principal {
                record.text("principal_id", &principal.subject);
                record.maybe("issuer", principal.issuer.as_deref());
                record.texts("groups", &principal.groups);
                record.maybe("key", principal.key.as_deref());
            }
            record.text("call_id", call_id);
            record.maybe("client", self.client);
            record.maybe("session", self.session);
            record.maybe("client_address", client_address);
            if let Some(trace) = self.span.map(CallSpan::context).or(self.trace) {
                record.text("trace_id", trace.trace());
            }
            if let Some(span) = self.span {
                record.text("span_id", span.context().span());
            }
            if let Some(trace) = self.trace {
                record.text("parent_span_id", trace.span());
            }
            record.text("upstream", self.upstream);
            record.maybe("account", self.account);
            record.text("method", self.method);
            record.text("name", without_query(self.name));
            record.text("request_id", self.request);
            record.text("era", self.era.text());
            record.text("decision", self.outcome.decision());
            record.text("outcome", self.outcome.text());
            record.maybe("rule", self.rule);
            record.maybe("approved_by", self.approved_by);
            record.maybe("shadow", self.shadow);
            record.pairs("labels", self.labels);
            record.maybe("error", self.failure);
            record.number("status", self.status.into());
            record.number("attempts", self.attempts.into());
            record.number("duration_us", u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX));
            record.number("bytes_received", self.received);
            record.number("bytes_sent", self.sent);
            if let Some(arguments) = self.arguments {
                arguments.record(record);
            }
        });
    }
}

impl CallOutcome {
    /// Each of them, in the order of the type.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Error,
        Self::ToolError,
        Self::SignIn,
        Self::Approval,
        Self::Refused,
        Self::Limited,
        Self::Denied,
        Self::Cancelled,
        Self::Failed,
    ];

    pub const fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::ToolError => "tool_error",
            Self::SignIn => "sign_in",
            Self::Approval => "approval",
            Self::Refused => "refused",
            Self::Limited => "limited",
            Self::Denied => "denied",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// Who is to blame that a call has no result; none if nobody is.
    pub const fn blame(self) -> &'static str {
        match self {
            Self::Ok | Self::SignIn | Self::Approval => "none",
            Self::Error | Self::ToolError | Self::Failed => "upstream",
            Self::Refused | Self::Cancelled => "client",
            Self::Limited => "operator",
            Self::Denied => "policy",
        }
    }

    /// Whether it is what an attempt at the upstream came to.
    pub(super) const fn is_of_attempt(self) -> bool {
        matches!(self, Self::Error | Self::ToolError | Self::Failed | Self::Cancelled)
    }

    /// Whether it was let through, whatever came of it.
    const fn decision(self) -> &'static str {
        match self {
            Self::Refused | Self::Limited | Self::Denied => "denied",
            Self::SignIn | Self::Approval => "deferred",
            Self::Ok | Self::Error | Self::ToolError | Self::Cancelled | Self::Failed => "allowed",
        }
    }
}

impl fmt::Display for CallOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A client's name for something, fit for a log: bounded, and without the query of an address, which may hold a secret.
pub(super) fn shown(name: &str) -> &str {
    let name = without_query(name);
    name.char_indices().nth(NAME_IN_LOG).and_then(|(end, _)| name.get(..end)).unwrap_or(name)
}

/// An address as text. Its `Display` takes ten times as long, which is seen in the cost of a call.
fn address_text(address: SocketAddr) -> String {
    let SocketAddr::V4(address) = address else { return address.to_string() };
    let mut text = Vec::with_capacity("255.255.255.255:65535".len());
    for (octet, end) in address.ip().octets().into_iter().zip(*b"...:") {
        put_number(octet.into(), &mut text);
        text.push(end);
    }
    put_number(address.port().into(), &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// A query may hold a secret.
pub(super) fn without_query(name: &str) -> &str {
    if name.contains("://") { name.split(['?', '#']).next().unwrap_or(name) } else { name }
}

/// The address of a resource without user, query and fragment (RFC 3986, section 3). Each of them may hold a secret.
pub(super) fn without_secrets(uri: &str) -> Cow<'_, str> {
    let uri = uri.split(['?', '#']).next().unwrap_or(uri);
    let Some((scheme, rest)) = uri.split_once("//") else { return Cow::Borrowed(uri) };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => Cow::Owned(format!("{scheme}//{host}{path}")),
        None => Cow::Borrowed(uri),
    }
}

#[cfg(test)]
mod tests {
    use super::{CallId, address_text, shown, without_secrets};

    #[test]
    fn names_in_the_log_are_bounded_and_without_queries() {
        assert_eq!(shown("echo"), "echo");
        assert_eq!(shown("https://x.test/doc?token=secret#a"), "https://x.test/doc");
        assert_eq!(shown(&"é".repeat(500)).chars().count(), 128);
    }

    #[test]
    fn an_address_is_written_as_its_type_writes_it() {
        for address in ["127.0.0.1:8080", "255.0.10.99:1", "[::1]:65535", "[fe80::1%7]:443", "[::ffff:10.0.0.1]:80"] {
            assert_eq!(address.parse().map(address_text).as_deref(), Ok(address));
        }
    }

    #[test]
    fn addresses_in_spans_have_no_user_query_or_fragment() {
        for (uri, expected) in [
            ("test://static-text", "test://static-text"),
            ("db://eve:secret@host:5432/a?key=secret#secret", "db://host:5432/a"),
            ("db://eve:se@cret@host", "db://host"),
            ("https://x.test/doc/@me?mail=a@b.test", "https://x.test/doc/@me"),
            ("file:///home/eve@x/a", "file:///home/eve@x/a"),
            ("mem:note?key=secret", "mem:note"),
            ("mem:note#secret", "mem:note"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(uri), expected, "{uri}");
        }
    }

    #[test]
    fn a_share_of_the_calls_is_a_share_of_those_that_follow_each_other() {
        for (share, expected) in [(u32::MAX / 2, 500), (u32::MAX / 10, 100), (0, 0)] {
            let under = (0..1000).filter(|_| CallId::next().chance() < share).count();
            assert!(under.abs_diff(expected) < 20, "{under} instead of {expected}");
        }
    }
}
