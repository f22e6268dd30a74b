//! What does not go together in how Weir signs in at an upstream.

use std::ops::Range;
use std::time::Duration;

use super::context::Context;
use crate::config::read::Field;
use crate::config::written::OAuth;
use crate::config::{Flow, Owner};

/// The most that a token may be renewed ahead of its end.
const LONGEST_SKEW: Duration = Duration::from_secs(3600);

/// Reports it; `at` is where the way to sign in is named.
pub(super) fn check(flow: Flow, owner: Owner, written: &OAuth, at: &Range<usize>, context: &mut Context<'_, '_>) {
    if let Some(at) = written.skew.set().filter(|at| at.value.0 > LONGEST_SKEW) {
        context.report.add(at.span.clone(), "a token is renewed at most an hour ahead", None);
    }
    if (flow, owner) == (Flow::DeviceCode, Owner::Principal) && context.callers {
        let hint = "auth = \"oauth\", or owner = \"shared\"".to_owned();
        let message =
            "a code is asked for at a terminal, where nobody but the operator sits; callers sign in with a browser";
        context.report.add(at.clone(), message, Some(hint));
    }
    client(flow, written, at, context);
    exchange(flow, written, at, context);
}

/// In who Weir is to the authorization server.
fn client(flow: Flow, written: &OAuth, at: &Range<usize>, context: &mut Context<'_, '_>) {
    let knows = written.client_secret.key().is_some() || written.private_key.key().is_some();
    if flow == Flow::ClientCredentials && !knows && context.report.is_clean() {
        let hint = "oauth = { client_id = \"weir\", client_secret = { env = \"NAME\" } }".to_owned();
        let message = "`auth = \"client_credentials\"` needs a `client_id` and a `client_secret` or `private_key`";
        context.report.add(at.clone(), message, Some(hint));
    }
    if let (Some(_), Some(key)) = (written.client_secret.key(), written.private_key.key()) {
        context.report.add(key, "a client has a `client_secret` or a `private_key`, not both", None);
    }
}

/// In what is exchanged.
fn exchange(flow: Flow, written: &OAuth, at: &Range<usize>, context: &mut Context<'_, '_>) {
    if flow != Flow::TokenExchange {
        if let Some(key) = written.subject_token.key() {
            context.report.add(key, "a `subject_token` is exchanged", Some("auth = \"exchange\"".to_owned()));
        }
        return;
    }
    if matches!((&written.issuer, &written.identity_provider), (Field::Absent, Field::Absent)) {
        let hint = "oauth = { issuer = \"https://login.example.com\" }".to_owned();
        let message = "what is exchanged is shown to the server that is named here, and to none that the upstream names";
        context.report.add(at.clone(), message, Some(hint));
    }
}
