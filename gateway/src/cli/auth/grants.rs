//! The MCP clients that people have signed in at Weir: who they are, and how an operator signs them out.

use std::{
    process::ExitCode,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    cli::terminal,
    credential::ClientGrant,
    telemetry::{AuthRecord, printable},
};

use super::{AuthOptions, CommandScope};

/// As much of a `client_id` as is shown, in characters: a client that has registered itself has a long one.
const SHOWN: usize = 64;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum GrantsCommand {
    /// List the clients that people have signed in, the latest first.
    List {
        /// Those of one person: the subject (`sub`) in their token.
        #[arg(long, value_name = "SUBJECT")]
        subject: Option<String>,
        /// As JSON, with times in seconds since 1970.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: AuthOptions,
    },
    /// Revoke grants, of a person, of a client, or of both together.
    ///
    /// The clients get no more access tokens, from a running gateway too. Those that they have expire after
    /// `authorization_server.access_token_lifetime`.
    Revoke {
        #[command(flatten)]
        which: RevokedGrants,
        #[command(flatten)]
        options: AuthOptions,
    },
}

#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(in crate::cli) struct RevokedGrants {
    /// Whose grants: the subject (`sub`) in their token.
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// Only those of people of this issuer, as listed. Without it, of any issuer.
    #[arg(long, value_name = "ISSUER")]
    issuer: Option<String>,
    /// Of which client: its name or its `client_id`, as listed.
    #[arg(long, value_name = "CLIENT")]
    client: Option<String>,
}

pub(super) async fn run(about: &CommandScope, command: &GrantsCommand) -> anyhow::Result<ExitCode> {
    if about.config.authorization_server.is_none() {
        bail!("clients do not sign in at this gateway; an `[authorization_server]` in the configuration lets them");
    }
    match command {
        GrantsCommand::List { subject, json, .. } => list(about, subject.as_deref(), *json).await,
        GrantsCommand::Revoke { which, .. } => revoke(about, which).await,
    }
}

async fn list(about: &CommandScope, subject: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    let mut all = about.manager.issuer_store().grants(None).await?;
    all.retain(|grant| subject.is_none_or(|subject| grant.grant.subject == subject));
    if json {
        terminal::put_json(&format!("{:#}", Value::from(all.iter().map(as_json).collect::<Vec<_>>())))?;
        return Ok(ExitCode::SUCCESS);
    }
    if all.is_empty() {
        terminal::say("No client is signed in.")?;
    }
    for grant in &all {
        let [since, until] =
            [grant.since, grant.until].map(|at| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(at)));
        let ClientGrant { grant: granted, .. } = grant;
        let (subject, client) = (printable(&granted.subject), printable(shown_id(grant)));
        let (name, issuer) = (printable(grant.name()), printable(&granted.vouched_by));
        terminal::say(format_args!("{subject}  {name}  since {since}  until {until}"))?;
        terminal::say(format_args!("  calls {}  client_id {client}  issuer {issuer}", printable(&granted.resource)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(grant: &ClientGrant) -> Value {
    let ClientGrant { since, until, grant: granted, .. } = grant;
    json!({
        "subject": granted.subject, "issuer": granted.vouched_by, "name": grant.name(), "client_id": granted.client,
        "resource": granted.resource, "since": since, "until": until,
    })
}

async fn revoke(about: &CommandScope, which: &RevokedGrants) -> anyhow::Result<ExitCode> {
    let is_meant = |grant: &ClientGrant| {
        let is_client =
            |client: &str| client == grant.name() || client == grant.grant.client || client == shown_id(grant);
        which.subject.as_ref().is_none_or(|subject| *subject == grant.grant.subject)
            && which.issuer.as_ref().is_none_or(|issuer| *issuer == grant.grant.vouched_by)
            && which.client.as_deref().is_none_or(is_client)
    };
    let revoked = about.manager.issuer_store().revoke_grants(None, is_meant).await?;
    for grant in &revoked {
        let (subject, issuer) = (Some(&*grant.grant.subject), Some(&*grant.grant.vouched_by));
        AuthRecord { subject, issuer, client: Some(shown_id(grant)), ..AuthRecord::default() }.done("grant revoked");
    }
    match revoked.len() {
        0 => bail!("there is no such grant; `weir auth grants list` shows all"),
        1 => terminal::say("Revoked 1 grant.")?,
        count => terminal::say(format_args!("Revoked {count} grants."))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn shown_id(grant: &ClientGrant) -> &str {
    let id = &grant.grant.client;
    id.char_indices().nth(SHOWN).map_or(id, |(end, _)| &id[..end])
}
