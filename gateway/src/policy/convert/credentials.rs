//! The facts and answers of a `credentials` policy.

use weir_flow::facts;

use super::{
    super::{
        bindings::exports::weir::policy::credentials,
        limits::{DOCUMENT, TEXT},
    },
    Broken, TooMuch, all, broken, challenge, cut, message, types, upstream, whole,
};

/// What a `credentials` policy is asked.
pub(in crate::policy) fn question(
    fact: &facts::CredentialQuestion,
    settings: &str,
) -> Result<credentials::Question, TooMuch> {
    Ok(credentials::Question {
        upstream: upstream(&fact.upstream, settings)?,
        principal: fact.principal.as_ref().map(principal).transpose()?,
        secrets: all("the names of secrets", &fact.secrets)?,
        refusal: fact.refusal.as_ref().map(|refusal| types::Refusal {
            status: refusal.status,
            credential: refusal.credential.is_some(),
            challenge: challenge(&refusal.challenge),
            extensions: Vec::new(),
        }),
        flows: fact.flows.iter().copied().map(flow).collect(),
        token: fact.token.as_ref().map(token).transpose()?,
        attempts: fact.attempts.iter().map(attempt).collect(),
        extensions: Vec::new(),
    })
}

/// The decision, if it names a secret that may be placed and a header that may carry it.
pub(in crate::policy) fn decision(
    answer: credentials::Decision,
    about: &facts::CredentialQuestion,
) -> Result<facts::CredentialDecision, Broken> {
    match answer {
        credentials::Decision::None => Ok(facts::CredentialDecision::None),
        credentials::Decision::Stop(text) => Ok(facts::CredentialDecision::Stop(message(&text)?)),
        credentials::Decision::Attach(attachment) => Ok(facts::CredentialDecision::Attach(attach(attachment, about)?)),
        credentials::Decision::Present(chosen) => Ok(facts::CredentialDecision::Present(present(chosen, about)?)),
        credentials::Decision::Mint(minted) => Ok(facts::CredentialDecision::Mint(mint(minted)?)),
        credentials::Decision::Renew => match &about.token {
            Some(token) if token.renewable => Ok(facts::CredentialDecision::Renew),
            _ => broken("it wants to renew a token that is not there or cannot be renewed".to_owned()),
        },
        credentials::Decision::Obtain(request) => Ok(facts::CredentialDecision::Obtain(obtain(request, about)?)),
    }
}

/// Who is calling.
pub(super) fn principal(fact: &facts::Principal) -> Result<types::Principal, TooMuch> {
    Ok(types::Principal {
        subject: whole("the principal's subject", &fact.subject, TEXT)?,
        issuer: fact.issuer.as_deref().map(|issuer| whole("the principal's issuer", issuer, TEXT)).transpose()?,
        scopes: all("the principal's scopes", &fact.scopes)?,
        claims: whole("the principal's claims", &fact.claims, DOCUMENT)?,
        extensions: identity(fact)?,
    })
}

/// What the record has no field for.
fn identity(fact: &facts::Principal) -> Result<Vec<(String, String)>, TooMuch> {
    let mut identity = Vec::new();
    if !fact.groups.is_empty() {
        let groups = serde_json::Value::from(all("the principal's groups", &fact.groups)?).to_string();
        identity.push(("groups".to_owned(), groups));
    }
    identity.extend(fact.key.as_ref().map(|key| ("key".to_owned(), key.clone())));
    Ok(identity)
}

fn token(fact: &facts::Token) -> Result<credentials::Token, TooMuch> {
    Ok(credentials::Token {
        issuer: whole("the token's issuer", &fact.issuer, TEXT)?,
        scopes: all("the token's scopes", &fact.scopes)?,
        age_seconds: fact.age_seconds,
        expires_in_seconds: fact.expires_in_seconds,
        accepted: fact.accepted,
        renewable: fact.renewable,
        extensions: Vec::new(),
    })
}

fn attempt(fact: &facts::TokenAttempt) -> credentials::TokenAttempt {
    let operation = match fact.operation {
        facts::TokenOperation::Renew => credentials::TokenOperation::Renew,
        facts::TokenOperation::Obtain(way) => credentials::TokenOperation::Obtain(flow(way)),
    };
    let outcome = match &fact.outcome {
        facts::TokenOutcome::Done => credentials::TokenOutcome::Done,
        facts::TokenOutcome::Denied(why) => credentials::TokenOutcome::Denied(cut(why, TEXT).to_owned()),
        facts::TokenOutcome::Failed(why) => credentials::TokenOutcome::Failed(cut(why, TEXT).to_owned()),
    };
    credentials::TokenAttempt { operation, outcome, extensions: Vec::new() }
}

fn flow(fact: facts::Flow) -> credentials::Flow {
    match fact {
        facts::Flow::AuthorizationCode => credentials::Flow::AuthorizationCode,
        facts::Flow::DeviceCode => credentials::Flow::DeviceCode,
        facts::Flow::ClientCredentials => credentials::Flow::ClientCredentials,
        facts::Flow::TokenExchange => credentials::Flow::TokenExchange,
    }
}

fn attach(answer: credentials::Attachment, about: &facts::CredentialQuestion) -> Result<facts::Attachment, Broken> {
    let credentials::Attachment { header, scheme, secret, ttl_seconds, extensions: _ } = answer;
    if !about.secrets.contains(&secret) {
        return broken(format!("it chose the secret {:?}, which this upstream does not have", cut(&secret, TEXT)));
    }
    let (header, scheme) = place(&header, scheme)?;
    Ok(facts::Attachment { header, scheme, secret, ttl_seconds })
}

fn present(
    answer: credentials::Presentation,
    about: &facts::CredentialQuestion,
) -> Result<facts::Presentation, Broken> {
    let credentials::Presentation { header, scheme, ttl_seconds, extensions: _ } = answer;
    if about.token.is_none() {
        return broken("it chose the token of an upstream that has none".to_owned());
    }
    let (header, scheme) = place(&header, scheme)?;
    Ok(facts::Presentation { header, scheme, ttl_seconds })
}

fn mint(answer: credentials::MintedToken) -> Result<facts::MintedToken, Broken> {
    let credentials::MintedToken { header, scheme, text, ttl_seconds, extensions: _ } = answer;
    let (header, scheme) = place(&header, scheme)?;
    if text.is_empty() || text.len() > DOCUMENT || !text.bytes().all(|b| matches!(b, b' '..=b'~')) {
        return broken("it made a token that no header can carry".to_owned());
    }
    Ok(facts::MintedToken { header, scheme, text, ttl_seconds })
}

fn obtain(answer: credentials::TokenRequest, about: &facts::CredentialQuestion) -> Result<facts::TokenRequest, Broken> {
    let flow = match answer.flow {
        credentials::Flow::AuthorizationCode => facts::Flow::AuthorizationCode,
        credentials::Flow::DeviceCode => facts::Flow::DeviceCode,
        credentials::Flow::ClientCredentials => facts::Flow::ClientCredentials,
        credentials::Flow::TokenExchange => facts::Flow::TokenExchange,
    };
    if !about.flows.contains(&flow) {
        return broken(format!("it chose {flow}, which the configuration does not allow here"));
    }
    let size: usize = answer.scopes.iter().map(|scope| scope.len() + 1).sum();
    if size > TEXT || !answer.scopes.iter().all(|scope| scope_token(scope)) {
        return broken("it asked for scopes that are too long or malformed".to_owned());
    }
    Ok(facts::TokenRequest { flow, scopes: answer.scopes })
}

/// The header that a credential goes into, and what stands before it, if they may be used for that.
pub(super) fn place(header: &str, scheme: Option<String>) -> Result<(String, Option<String>), Broken> {
    let header = header.to_ascii_lowercase();
    if header.len() > TEXT || !token_text(&header) {
        return broken("it chose a header whose name is not a token".to_owned());
    }
    if !may_carry(&header) {
        return broken(format!("it chose the header {header}, which belongs to the gateway"));
    }
    if scheme.as_deref().is_some_and(|scheme| scheme.len() > TEXT || !token_text(scheme)) {
        return broken("it chose an authentication scheme that is not a token".to_owned());
    }
    Ok((header, scheme))
}

/// RFC 6749 §3.3.
fn scope_token(scope: &str) -> bool {
    !scope.is_empty() && scope.bytes().all(|b| matches!(b, b'!' | b'#'..=b'[' | b']'..=b'~'))
}

/// Headers that frame or route the message are never a policy's to set.
fn may_carry(header: &str) -> bool {
    const OURS: [&str; 18] = [
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "origin",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "user-agent",
    ];
    !OURS.contains(&header) && !header.starts_with("mcp-")
}

/// RFC 9110 §5.6.2.
fn token_text(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}
