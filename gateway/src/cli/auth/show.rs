//! How Weir stands with its upstreams, in a table.

use std::{
    collections::BTreeSet,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{
    cli::terminal,
    config::{Auth, LoginFlow},
    credential::{CredentialOwner, SignInState, Standing, UpstreamAuth},
    telemetry::printable,
};

use super::{CommandScope, address};

/// How long an upstream may take to say whether it asks for a login.
const PATIENCE: Duration = Duration::from_secs(5);

/// One line of a table.
#[derive(Serialize)]
struct TableLine {
    name: String,
    /// How somebody signs in.
    how: String,
    /// How it stands, in one word.
    state: &'static str,
    #[serde(rename = "text")]
    standing: String,
}

/// Shows one upstream, or all that take a login.
pub(super) async fn status(
    about: &CommandScope,
    name: Option<&str>,
    account: Option<&str>,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let accounts = match name {
        Some(name) => {
            let accounts = about.accounts(name, account)?;
            let names = if accounts.is_empty() { vec![name] } else { accounts };
            names.into_iter().map(|name| about.account(name)).collect::<Result<_, _>>()?
        }
        None => about.manager.accounts(),
    };
    let (mut lines, mut wanting) = (Vec::new(), false);
    for account in &accounts {
        let Some(asker) = account.asker(None) else {
            lines.push(personal(about, account, 0));
            continue;
        };
        let state = account.state(&asker.owner).await?;
        if state.standing == Standing::Unasked && name.is_none() {
            continue;
        }
        // Of what stands in no file nothing is known before it is asked.
        let asks = match state.standing {
            Standing::Unasked if name.is_some_and(address::is_address) => asks(account).await,
            _ => None,
        };
        let needs = matches!(state.standing, Standing::Missing | Standing::Ended | Standing::TooLittle);
        wanting |= (needs && account.is_for_people()) || asks == Some(true);
        lines.push(line(about, account, &state, asks));
    }
    print(&lines, "No login is kept, and none is configured. `weir auth list` asks the upstreams.", as_json)?;
    Ok(if wanting { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Lists every upstream that takes a login or asks for one, and logins of upstreams that are gone.
pub(super) async fn list(about: &CommandScope, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut asking = tokio::task::JoinSet::new();
    let accounts = about.manager.accounts();
    for (place, account) in accounts.iter().cloned().enumerate() {
        asking.spawn(async move {
            let asks = match account.is_configured() {
                true => Some(true),
                false => asks(&account).await,
            };
            (place, asks)
        });
    }
    let mut asked = asking.join_all().await;
    asked.sort_unstable();
    let kept = about.manager.list().await?;
    let mut lines = Vec::new();
    let mut names = BTreeSet::new();
    for ((_, asks), account) in asked.into_iter().zip(&accounts) {
        names.insert(account.name().to_owned());
        let Some(asker) = account.asker(None) else {
            let all = kept.iter().filter(|login| login.key.upstream == account.name() && !login.ended);
            let owners: BTreeSet<&str> = all
                .filter_map(|login| match &login.key.owner {
                    CredentialOwner::Principal(_, subject) => Some(subject.as_str()),
                    CredentialOwner::Shared => None,
                })
                .collect();
            lines.push(personal(about, account, owners.len()));
            continue;
        };
        let state = account.state(&asker.owner).await?;
        if asks == Some(true) || state.login.is_some() {
            lines.push(line(about, account, &state, asks));
        }
    }
    for login in kept {
        if names.insert(login.key.upstream.clone()) {
            let how = "not in the configuration".to_owned();
            let standing = "a login is kept; `weir auth logout` forgets it".to_owned();
            lines.push(TableLine { name: login.key.upstream, how, state: "not_configured", standing });
        }
    }
    print(&lines, "No upstream takes a login.", as_json)?;
    Ok(ExitCode::SUCCESS)
}

/// What there is to say of a login, for the end of a sentence.
pub(super) fn details(state: &SignInState) -> String {
    let Some(login) = &state.login else { return String::new() };
    let mut parts = Vec::new();
    let scopes = login.scopes.render();
    if !scopes.is_empty() {
        parts.push(format!("scopes {scopes}"));
    }
    let renewed = if login.refreshable || !state.for_people { ", then renewed by itself" } else { "" };
    match login.expires.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default()) {
        Some(left) if left.is_zero() => parts.push(format!("ended{renewed}")),
        Some(left) => parts.push(format!("for {}{renewed}", span(left))),
        None => {}
    }
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) }
}

/// Whether an upstream asks for a login; none if it does not say.
async fn asks(account: &UpstreamAuth) -> Option<bool> {
    tokio::time::timeout(PATIENCE, account.asks()).await.ok().and_then(Result::ok)
}

fn line(about: &CommandScope, account: &UpstreamAuth, state: &SignInState, asks: Option<bool>) -> TableLine {
    let sign_in = format!("sign in with `weir auth login {}`", account.argument());
    let standing = match state.standing {
        Standing::Good => format!("signed in{}", details(state)),
        Standing::Ended if account.is_for_people() => format!("the login has ended; {sign_in}"),
        Standing::TooLittle => format!("the login may do too little; {sign_in}"),
        Standing::Missing if account.is_for_people() => format!("not signed in; {sign_in}"),
        Standing::Unasked if asks == Some(true) => format!("not signed in; {sign_in}"),
        Standing::Unasked => "not signed in, and not asked to".to_owned(),
        Standing::Ended | Standing::Missing => "no token yet; Weir gets one when it is needed".to_owned(),
    };
    let state = match state.standing {
        Standing::Good => "good",
        Standing::Ended => "expired",
        Standing::TooLittle => "scopes_missing",
        Standing::Missing => "missing",
        Standing::Unasked if asks == Some(true) => "missing",
        Standing::Unasked => "not_asked",
    };
    TableLine { name: account.name().to_owned(), how: how(about, account), state, standing }
}

fn personal(about: &CommandScope, account: &UpstreamAuth, count: usize) -> TableLine {
    let mut standing = "each caller signs in at the gateway".to_owned();
    if count > 0 {
        standing.push_str(&format!("; {count} did"));
    }
    TableLine { name: account.name().to_owned(), how: how(about, account), state: "of_each_caller", standing }
}

fn how(about: &CommandScope, account: &UpstreamAuth) -> String {
    let written = about.config.upstreams.iter().find(|upstream| upstream.name.as_str() == account.name());
    match written.map(|upstream| &upstream.auth) {
        Some(Auth::OAuth(oauth)) => match oauth.flow {
            LoginFlow::AuthorizationCode => "oauth",
            LoginFlow::DeviceCode => "device",
            LoginFlow::ClientCredentials => "client_credentials",
            LoginFlow::JwtBearer => "jwt_bearer",
            LoginFlow::TokenExchange => "exchange",
        },
        _ => "detected",
    }
    .to_owned()
}

fn print(lines: &[TableLine], empty: &str, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return Ok(terminal::put_json(&serde_json::to_string(lines)?)?);
    }
    if lines.is_empty() {
        return Ok(terminal::say(empty)?);
    }
    let width = |of: fn(&TableLine) -> &str| lines.iter().map(|line| of(line).len()).max().unwrap_or(0);
    let (name, how) = (width(|line| &line.name), width(|line| &line.how));
    for line in lines {
        let standing = printable(&line.standing);
        terminal::say(format_args!("{:name$}  {:how$}  {standing}", line.name, line.how))?;
    }
    Ok(())
}

pub(in crate::cli) fn span(left: Duration) -> String {
    match left.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}
