//! Signing in and out, and renewing.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use weir_flow::facts::TokenOutcome;
use weir_oauth::{Loopback, TokenError, authorize::SIGN_IN_TIME};

use crate::{
    caller::Caller,
    cli::terminal,
    credential::{CredentialOwner, TokenSubject, UpstreamAuth},
    telemetry::{AuthRecord, printable},
};

use super::{CommandScope, NamedUpstream, browser, show};

/// How a sign-in is to go.
pub(super) struct How {
    pub(super) device: bool,
    pub(super) no_browser: bool,
    pub(super) port: Option<u16>,
    pub(super) scopes: Option<Vec<String>>,
}

/// Signs in.
pub(super) async fn run(about: &CommandScope, name: &str, how: &How) -> anyhow::Result<ExitCode> {
    let account = about.account(name)?;
    let asker = about.asker(&account)?;
    if how.device || account.is_by_code() {
        with_code(&account, &asker, how).await?;
    } else {
        with_browser(&account, &asker, how).await?;
    }
    record(&asker.owner, &Caller::local()).at(account.name()).done("signed in");
    let state = account.state(&asker.owner).await?;
    done(&format!("Signed in at {name}{}.", show::details(&state)))
}

async fn with_browser(account: &UpstreamAuth, asker: &TokenSubject, how: &How) -> anyhow::Result<()> {
    let loopback = match (how.port, Loopback::bind(how.port.unwrap_or(Loopback::PORT)).await) {
        (_, Ok(loopback)) => loopback,
        (None, Err(_)) => Loopback::bind(0).await.context("no port to come back to")?,
        (Some(port), Err(why)) => return Err(why).with_context(|| format!("port {port} cannot be come back to")),
    };
    let redirect = loopback.redirect().clone();
    let prepared = account.prepare(&asker.owner, Some(redirect), how.scopes.clone()).await?;
    let (page, pending) = account.begin(&prepared)?;
    let opened = !how.no_browser && browser::open(&page);
    let what = if opened { "A browser was opened to sign in. If it was not, open" } else { "To sign in, open" };
    eprintln!("{what} this page:\n\n  {page}\n");
    let callback =
        waiting(SIGN_IN_TIME, loopback.wait(&pending)).await?.context("the port could not be listened on")?;
    account.end(&asker.owner, &prepared, pending, callback).await?;
    Ok(())
}

async fn with_code(account: &UpstreamAuth, asker: &TokenSubject, how: &How) -> anyhow::Result<()> {
    let (prepared, begun) = account.begin_with_code(&asker.owner, how.scopes.clone()).await?;
    eprintln!(
        "To sign in, open this page on any device:\n\n  {}\n\nand type this code:\n\n  {}\n",
        begun.page,
        printable(&begun.code)
    );
    if let Some(page) = &begun.page_with_code {
        eprintln!("or open this page, which knows the code:\n\n  {page}\n");
        if !how.no_browser {
            browser::open(page);
        }
    }
    let lifetime = begun.lifetime;
    waiting(lifetime, account.end_with_code(&asker.owner, &prepared, begun)).await??;
    Ok(())
}

/// Whose login it is. A shared one is the local caller's.
fn record<'a>(owner: &'a CredentialOwner, local: &'a Caller) -> AuthRecord<'a> {
    match owner {
        CredentialOwner::Shared => AuthRecord::of(Some(local.principal()), None),
        CredentialOwner::Principal(issuer, subject) => {
            AuthRecord { subject: Some(subject), issuer: Some(issuer), ..AuthRecord::default() }
        }
    }
}

/// Signs out: as everybody, or as one of many.
pub(super) async fn out(
    about: &CommandScope,
    named: &NamedUpstream,
    principal: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let name = about.upstream(named)?;
    let is_theirs = |owner: &CredentialOwner| matches!(owner, CredentialOwner::Principal(_, subject) if Some(subject.as_str()) == principal);
    // A login from before the upstream had accounts is nobody else's.
    if name != named.name && named.account.is_none() {
        let whose = |owner: &CredentialOwner| principal.is_none() || is_theirs(owner);
        if let Some(ended) = forget(about, &named.name, whose, "").await? {
            return Ok(ended);
        }
    }
    let account = match (about.account(name), principal) {
        (_, Some(subject)) => {
            return forget(about, name, is_theirs, &format!("of {subject} "))
                .await?
                .map_or_else(|| done(&format!("There is no login of {subject} at {name}.")), Ok);
        }
        // It may have been there once.
        (Err(why), None) => return forget(about, name, |_| true, "").await?.ok_or(why),
        (Ok(account), None) => account,
    };
    let asker = match about.asker(&account) {
        Ok(asker) => asker,
        // One that was for all, before each had their own.
        Err(why) => {
            let ended = forget(about, name, |owner| *owner == CredentialOwner::Shared, "for all ").await?;
            return ended.ok_or_else(|| why.context("name one of them with `--principal`"));
        }
    };
    let said = account.sign_out(&asker.owner).await?;
    if said.is_some() {
        record(&asker.owner, &Caller::local()).at(account.name()).done("signed out");
    }
    match said {
        None => done(&format!("There is no login at {name}.")),
        Some(Ok(())) => done(&format!("Signed out of {name}; its server has forgotten the login too.")),
        Some(Err(TokenError::Unsupported(_))) => done(&format!(
            "Signed out of {name}. Its server has no way to be told; the login ends there with its time."
        )),
        Some(Err(why)) => bail!("the login at {name} is forgotten here, and its server was not told: {why}"),
    }
}

/// Forgets what is kept under a name; none if there is nothing.
async fn forget(
    about: &CommandScope,
    name: &str,
    whose: impl Fn(&CredentialOwner) -> bool,
    of: &str,
) -> anyhow::Result<Option<ExitCode>> {
    let said = about.manager.forget(name, whose).await?;
    if said.is_empty() {
        return Ok(None);
    }
    for (owner, _) in &said {
        record(owner, &Caller::local()).at(name).done("signed out");
    }
    let unsupported = |why: &TokenError| matches!(why, TokenError::Unsupported(_));
    let (untold, trouble): (Vec<TokenError>, Vec<TokenError>) =
        said.into_iter().filter_map(|(_, said)| said.err()).partition(unsupported);
    if let Some(why) = trouble.first() {
        bail!("what was kept {of}at {name} is forgotten here, and its server was not told: {why}");
    }
    let rest = match untold.is_empty() {
        true => "; its server has forgotten it too.",
        false => ". Its server has no way to be told; it ends there with its time.",
    };
    done(&format!("Forgot what was kept {of}at {name}{rest}")).map(Some)
}

/// Renews.
pub(super) async fn refresh(about: &CommandScope, name: &str) -> anyhow::Result<ExitCode> {
    let account = about.account(name)?;
    let asker = about.asker(&account)?;
    let ending = match account.stored(&asker.owner).await? {
        Some(stored) if account.fact(&stored, true).renewable => account.renew(&asker, &stored, None).await,
        None if !account.is_for_people() => account.obtain(&asker, &[], None, None).await,
        Some(_) => {
            bail!("the login at {name} cannot be renewed; sign in again with `weir auth login {}`", account.argument())
        }
        None => bail!("there is no login at {name}; sign in with `weir auth login {}`", account.argument()),
    };
    match ending {
        TokenOutcome::Done => {
            let state = account.state(&asker.owner).await?;
            done(&format!("Renewed the login at {name}{}.", show::details(&state)))
        }
        TokenOutcome::Denied(why) => bail!("the login at {name} was not renewed: {why}"),
        TokenOutcome::Failed(why) => bail!("the login at {name} is kept, and was not renewed: {why}"),
    }
}

/// Waits for a person, and shows that it does.
async fn waiting<T>(limit: Duration, person: impl Future<Output = T>) -> anyhow::Result<T> {
    let start = Instant::now();
    let terminal = io::stderr().is_terminal();
    if !terminal {
        eprintln!(
            "Waiting for at most {} minutes. Ctrl-C ends this and changes nothing.",
            limit.as_secs().div_ceil(60)
        );
    }
    let progress = async {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tick.tick().await;
            if terminal {
                let left = limit.saturating_sub(start.elapsed()).as_secs();
                eprint!("\rWaiting; {}:{:02} left. Ctrl-C ends this and changes nothing. ", left / 60, left % 60);
            }
        }
    };
    let ended = tokio::select! {
        ended = tokio::time::timeout(limit, person) => ended,
        () = progress => bail!("nobody waits any more"),
    };
    if terminal {
        eprintln!();
    }
    ended.context("nobody signed in in time; nothing was changed")
}

/// The end of a command that did what it was to do.
fn done(text: &str) -> anyhow::Result<ExitCode> {
    terminal::say(printable(text))?;
    Ok(ExitCode::SUCCESS)
}
