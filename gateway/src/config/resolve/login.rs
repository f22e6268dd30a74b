//! What does not go together in how Weir signs in at an upstream.

use std::ops::Range;
use std::time::Duration;

use super::context::Context;
use crate::config::read::Setting;
use crate::config::written::WrittenOAuth;
use crate::config::{LoginFlow, LoginOwner};

/// The most that a token may be renewed ahead of its end.
const LONGEST_RENEW_BEFORE: Duration = Duration::from_secs(3600);

/// Reports it; `at` is where the way to sign in is named.
pub(super) fn check(
    flow: LoginFlow,
    owner: LoginOwner,
    written: &WrittenOAuth,
    at: &Range<usize>,
    context: &mut Context<'_, '_>,
) {
    if let Some(at) = written.renew_before.set().filter(|at| at.value.0 > LONGEST_RENEW_BEFORE) {
        context.report.add(at.span.clone(), "a token is renewed at most an hour ahead", None);
    }
    if (flow, owner) == (LoginFlow::DeviceCode, LoginOwner::Principal) && context.callers {
        let hint = "auth = \"oauth\", or owner = \"shared\"".to_owned();
        let message =
            "a code is asked for at a terminal, where nobody but the operator sits; callers sign in with a browser";
        context.report.add(at.clone(), message, Some(hint));
    }
    client(flow, written, at, context);
    exchange(flow, written, at, context);
}

/// In who Weir is to the authorization server.
fn client(flow: LoginFlow, written: &WrittenOAuth, at: &Range<usize>, context: &mut Context<'_, '_>) {
    let secrets = [
        ("client_secret", written.client_secret.key()),
        ("private_key", written.private_key.key()),
        ("client_assertion", written.client_assertion.key()),
    ];
    let secrets: Vec<_> = secrets.into_iter().filter_map(|(name, key)| Some((name, key?))).collect();
    if flow == LoginFlow::ClientCredentials && secrets.is_empty() {
        let hint = "oauth = { client_id = \"weir\", client_secret = { env = \"NAME\" } }".to_owned();
        let message = "`auth = \"client_credentials\"` needs a `client_id` and a `client_secret`, `private_key` or \
                       `client_assertion`";
        context.report.add(at.clone(), message, Some(hint));
    }
    if let [(first, _), (second, key), ..] = &secrets[..] {
        context.report.add(key.clone(), format!("a client has a `{first}` or a `{second}`, not both"), None);
    }
    workload(flow, written, at, context);
    if matches!(written.client_id, Setting::Absent) {
        for (name, key) in secrets {
            let hint = "client_id = \"weir\"".to_owned();
            context.report.add(key, format!("a `{name}` goes with a `client_id`"), Some(hint));
        }
    }
}

/// In what says who the workload is.
fn workload(flow: LoginFlow, written: &WrittenOAuth, at: &Range<usize>, context: &mut Context<'_, '_>) {
    let hint = "auth = \"jwt_bearer\"\n\
                oauth = { client_id = \"weir\", assertion = { file = \"/var/run/secrets/tokens/weir\" } }";
    let is_whole = !matches!((&written.client_id, &written.assertion), (Setting::Absent, _) | (_, Setting::Absent));
    if flow == LoginFlow::JwtBearer && !is_whole {
        let message = "`auth = \"jwt_bearer\"` needs a `client_id` and an `assertion`";
        context.report.add(at.clone(), message, Some(hint.to_owned()));
    }
    if let Some(key) = written.assertion.key().filter(|_| flow != LoginFlow::JwtBearer) {
        let message = "`assertion` is for `auth = \"jwt_bearer\"`; a client shows who it is with `client_assertion`";
        context.report.add(key, message, Some(hint.to_owned()));
    }
}

/// In what is exchanged.
fn exchange(flow: LoginFlow, written: &WrittenOAuth, at: &Range<usize>, context: &mut Context<'_, '_>) {
    if flow != LoginFlow::TokenExchange {
        let only = [
            ("subject_token", written.subject_token.key()),
            ("subject_token_type", written.subject_token_type.key()),
            ("audience", written.audience.key()),
            ("identity_provider", written.identity_provider.key()),
        ];
        for (name, key) in only {
            let Some(key) = key else { continue };
            let hint = "auth = \"exchange\"".to_owned();
            context.report.add(key, format!("`{name}` is for what is exchanged"), Some(hint));
        }
        return;
    }
    if matches!((&written.issuer, &written.identity_provider), (Setting::Absent, Setting::Absent)) {
        let hint = "oauth = { issuer = \"https://login.example.com\" }".to_owned();
        let message =
            "what is exchanged is shown to the server that is named here, and to none that the upstream names";
        context.report.add(at.clone(), message, Some(hint));
    }
    if matches!(written.subject_token, Setting::Absent) && !context.callers {
        let hint = "name the issuer of your clients' tokens in [auth], or what is exchanged for all of them:\n\
                    oauth = { subject_token = { file = \"identity.jwt\" } }";
        let message = "without `[auth]` callers bring no token that could be exchanged";
        context.report.add(at.clone(), message, Some(hint.to_owned()));
    }
}
