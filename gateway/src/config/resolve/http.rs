//! An upstream behind a URL: its address, its headers and the token that opens it.

use std::ops::Range;

use url::Host;

use super::context::Context;
use crate::config::read::{At, Setting};
use crate::config::string::TemplateString;
use crate::config::value::NamedValues;
use crate::config::written::{AuthKind, WrittenTransport, WrittenUpstream};
use crate::config::{Auth, HttpReach, HttpTransport, SafeUrl, Secret};

/// Header fields that Weir sets itself or that belong to one hop (RFC 9110 §7.6.1), beside `mcp-*` and `proxy-*`.
const OWN_HEADERS: &[&str] = &[
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "dpop",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What stands for the address of a disabled upstream whose real one is not looked up (RFC 2606 §2).
const NOWHERE: &str = "http://disabled.invalid/";

/// The key that has the address.
pub(super) fn url(upstream: &WrittenUpstream) -> &Setting<TemplateString> {
    match &upstream.http_url {
        Setting::Absent => &upstream.url,
        given => given,
    }
}

pub(super) fn reach(upstream: &WrittenUpstream, context: &mut Context<'_, '_>) -> Option<HttpReach> {
    let url = address(url(upstream).set()?, "url = \"https://mcp.example.com/mcp\"", context);
    let headers = headers(&upstream.headers, token(upstream), context);
    let pinned = upstream.r#type.set().and_then(|kind| match kind.value {
        WrittenTransport::Http => Some(HttpTransport::Streamable),
        WrittenTransport::Sse => Some(HttpTransport::Sse),
        WrittenTransport::Stdio => None,
    });
    let pinned = match upstream.http_url.key() {
        None => pinned,
        Some(key) => {
            deprecated(key, pinned, context);
            Some(HttpTransport::Streamable)
        }
    };
    Some(HttpReach { url: url?, pinned, headers })
}

fn deprecated(key: Range<usize>, pinned: Option<HttpTransport>, context: &mut Context<'_, '_>) {
    if pinned == Some(HttpTransport::Sse) {
        let hint = "url = \"…\" with type = \"sse\"".to_owned();
        context.report.add(key, "`httpUrl` is the address of a server of Streamable HTTP, not of HTTP+SSE", Some(hint));
    } else {
        let hint = "url = \"…\" with type = \"http\" means the same".to_owned();
        context.report.warn(key, "`httpUrl` is deprecated", Some(hint));
    }
}

pub(super) fn address(url: &At<TemplateString>, like: &str, context: &mut Context<'_, '_>) -> Option<SafeUrl> {
    let expanded = context.expand(url)?;
    let text = if expanded.referred && !context.live { NOWHERE } else { expanded.value.expose() };
    match text.parse::<SafeUrl>() {
        Ok(safe) if expanded.referred => Some(safe.shown_as(&url.value.0)),
        Ok(safe) => Some(safe),
        Err(error) => {
            context.report.add(url.span.clone(), error.to_string(), Some(like.to_owned()));
            None
        }
    }
}

/// Headers to send, names in lower case. `token` is the key that sets `authorization`, if one does.
pub(super) fn headers(
    written: &Setting<NamedValues<TemplateString>>,
    token: Option<&str>,
    context: &mut Context<'_, '_>,
) -> Vec<(String, Secret)> {
    let mut headers: Vec<(String, Secret)> = Vec::new();
    for (name, at) in written.set().iter().flat_map(|headers| &headers.value.0) {
        let lower = name.to_ascii_lowercase();
        let taken = headers.iter().any(|(other, _)| *other == lower);
        if let Some(message) = refusal(&lower, taken, token) {
            context.report.add(at.key.clone(), message, None);
        }
        let Some(value) = context.expand_words(at).map(|expanded| expanded.value) else {
            continue;
        };
        if !value.is_printable() {
            context.report.add(at.span.clone(), "a header carries one line of printable ASCII (RFC 9110 §5.5)", None);
        }
        headers.push((lower, value));
    }
    headers
}

/// Warns of a credential that goes over a network unencrypted.
pub(super) fn warn_of_cleartext(
    reach: &HttpReach,
    auth: &Auth,
    upstream: &WrittenUpstream,
    at: &Range<usize>,
    context: &mut Context<'_, '_>,
) {
    let has_credential = matches!(auth, Auth::Bearer(_) | Auth::OAuth(_)) || has_credential(&upstream.headers);
    if context.live && has_credential {
        warn_if_cleartext(&reach.url, at, context);
    }
}

/// The same for a URL that a credential is sent to.
pub(super) fn warn_if_cleartext(url: &SafeUrl, at: &Range<usize>, context: &mut Context<'_, '_>) {
    let is_here = match url.as_url().host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => true,
    };
    if !is_here && !url.is_https() {
        let message = "a credential goes over the network unencrypted: this URL is `http` and not of this machine";
        context.report.warn(at.clone(), message, Some("url = \"https://…\", if the server can".to_owned()));
    }
}

/// Whether a header carries a credential, as far as the file tells.
pub(super) fn has_credential(headers: &Setting<NamedValues<TemplateString>>) -> bool {
    let headers = headers.set().map_or(&[][..], |headers| &headers.value.0);
    headers.iter().any(|(name, at)| is_credential(&name.to_ascii_lowercase(), &at.value.0))
}

/// Whether a header carries something that opens the upstream, as far as its name and where its value is tell.
fn is_credential(name: &str, value: &str) -> bool {
    let names = ["authorization", "cookie", "key", "secret", "token"];
    value.contains("${") || names.iter().any(|each| name.contains(each))
}

/// The key of the upstream that sets `authorization`, if one does.
fn token(upstream: &WrittenUpstream) -> Option<&'static str> {
    let kind = upstream.auth.set().map(|at| at.value);
    match kind {
        _ if upstream.bearer.key().is_some() => Some("bearer"),
        Some(AuthKind::None) | None => None,
        Some(_) => Some("auth"),
    }
}

/// Why a header of this name cannot be sent, if it cannot.
fn refusal(name: &str, taken: bool, token: Option<&str>) -> Option<String> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(letter) {
        return Some("this is not the name of a header (RFC 9110 §5.1)".to_owned());
    }
    if OWN_HEADERS.contains(&name) || name.starts_with("mcp-") || name.starts_with("proxy-") {
        return Some(format!("`{name}` is for Weir to set"));
    }
    if let Some(key) = token.filter(|_| name == "authorization") {
        return Some(format!("`{key}` sets `authorization` already"));
    }
    taken.then(|| format!("`{name}` is set twice; the names of headers do not depend on case"))
}
