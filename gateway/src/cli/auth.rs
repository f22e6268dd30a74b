//! `weir auth`: the logins at upstreams, from a terminal. A gateway that runs with the same store notices at once what is
//! done here.

mod browser;
mod grants;
mod login;
mod metadata;
pub(super) mod show;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use crate::{
    config::{self, Auth, Config, default_file},
    credential::{CredentialManager, TokenSubject, UpstreamAuth},
    telemetry,
};

use super::{address, exit_code::INTERRUPTED, suggestion};
use grants::GrantsCommand;

#[derive(Debug, Subcommand)]
pub(super) enum AuthCommand {
    /// Sign in at an upstream.
    ///
    /// Opens the page in a browser, and prints its address for those who have none here. The login is kept, encrypted,
    /// and a running gateway uses it at once. Ends with 0 when it is kept, with 1 if it came to nothing, with 130 on
    /// Ctrl-C; in the latter cases a login that was there is as good as before.
    #[command(after_help = "Examples:
  weir auth login github
  weir auth login github --as work
  weir auth login https://mcp.example.com/mcp --no-browser")]
    Login {
        #[command(flatten)]
        named: NamedUpstream,
        /// Sign in with a code that is typed on another device (RFC 8628).
        #[arg(long)]
        device: bool,
        /// Print the address and open no browser.
        #[arg(long)]
        no_browser: bool,
        /// The port of this machine that the browser comes back to, for a client that is registered with one; left out, 41789,
        /// or any other while that is taken.
        #[arg(long, conflicts_with = "device", value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
        /// What the login must be good for, beside what the upstream asks for.
        #[arg(long, value_name = "SCOPES")]
        scopes: Option<String>,
        #[command(flatten)]
        options: AuthOptions,
    },
    /// Show how Weir stands with each upstream that takes a login, or with one.
    ///
    /// Asks nobody, but for an address, and needs no key. Ends with 1 if somebody has to sign in.
    Status {
        /// The upstream, or an address; all upstreams if it is left out.
        name: Option<String>,
        /// One of its accounts; all of them if it is left out.
        #[arg(long = "as", value_name = "ACCOUNT", requires = "name")]
        account: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: AuthOptions,
    },
    /// Forget the login at an upstream, and have its server forget it (RFC 7009).
    ///
    /// Forgets all logins of an upstream that is not in the configuration any more, or is disabled there.
    Logout {
        #[command(flatten)]
        named: NamedUpstream,
        /// Of callers that have a login each, the one with this subject (`sub`) in their token.
        #[arg(long, value_name = "SUBJECT")]
        principal: Option<String>,
        #[command(flatten)]
        options: AuthOptions,
    },
    /// Renew the login at an upstream now.
    Refresh {
        #[command(flatten)]
        named: NamedUpstream,
        #[command(flatten)]
        options: AuthOptions,
    },
    /// Print what authorization servers are told of Weir: the addresses that they may send browsers back to.
    ///
    /// It is what to publish at `client_metadata_url`, and what to write where Weir is registered by hand. Asks the upstreams
    /// who their authorization servers are: each has addresses of its own.
    Metadata {
        /// The upstream; those of the configuration at which people sign in, if it is left out.
        name: Option<String>,
        #[command(flatten)]
        options: AuthOptions,
    },
    /// Show or revoke what people have granted: the MCP clients that they have signed in at Weir.
    #[command(subcommand)]
    Grants(GrantsCommand),
    /// List the upstreams that take a login: those of which the configuration says so, and those that ask for one.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: AuthOptions,
    },
}

#[derive(Args, Debug)]
pub(super) struct NamedUpstream {
    /// The upstream, or the address of a server that `weir connect` leads to.
    name: String,
    /// Which of its `accounts`; the first if it is left out.
    #[arg(long = "as", value_name = "ACCOUNT")]
    account: Option<String>,
}

#[derive(Args, Debug)]
pub(super) struct AuthOptions {
    /// The configuration, as for `weir serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    /// Keep logins as plain text: whoever reads the file has them.
    #[arg(long)]
    allow_plaintext_token_store: bool,
}

/// What a command is about.
struct CommandScope {
    config: Config,
    manager: Arc<CredentialManager>,
}

/// Signs in at an upstream, as `weir auth login NAME` does.
pub(super) fn sign_in(name: &str, config: &Path) -> anyhow::Result<ExitCode> {
    let options = AuthOptions { config: config.to_owned(), allow_plaintext_token_store: false };
    let named = NamedUpstream { name: name.to_owned(), account: None };
    run(AuthCommand::Login { named, device: false, no_browser: false, port: None, scopes: None, options })
}

pub(super) fn run(command: AuthCommand) -> anyhow::Result<ExitCode> {
    let _log = telemetry::start("warn,weir::auth=info");
    let options = match &command {
        AuthCommand::Login { options, .. }
        | AuthCommand::Status { options, .. }
        | AuthCommand::Logout { options, .. }
        | AuthCommand::Refresh { options, .. }
        | AuthCommand::Metadata { options, .. }
        | AuthCommand::Grants(GrantsCommand::List { options, .. } | GrantsCommand::Revoke { options, .. })
        | AuthCommand::List { options, .. } => options,
    };
    let config = match command.address() {
        Some(address) => address::config("weir auth", address, toml::Table::new())?,
        None => super::load(&options.config)?,
    };
    // The others change nothing, and whoever runs them may not be able to write the log.
    let _audit = match command {
        AuthCommand::Login { .. } | AuthCommand::Logout { .. } | AuthCommand::Grants(GrantsCommand::Revoke { .. }) => {
            super::audit::start(&config)?
        }
        _ => None,
    };
    let manager = CredentialManager::new(&config, options.allow_plaintext_token_store);
    let about = CommandScope { config, manager };
    let interrupted = command.interrupted();
    let runtime = super::runtime()?;
    let ended = runtime.block_on(async {
        let work = async {
            match command {
                AuthCommand::Login { named, device, no_browser, port, scopes, .. } => {
                    let name = about.upstream(&named)?;
                    let scopes = scopes.map(|all| all.split_ascii_whitespace().map(str::to_owned).collect());
                    login::run(&about, name, &login::How { device, no_browser, port, scopes }).await
                }
                AuthCommand::Status { name, account, json, .. } => {
                    show::status(&about, name.as_deref(), account.as_deref(), json).await
                }
                AuthCommand::Logout { named, principal, .. } => login::out(&about, &named, principal.as_deref()).await,
                AuthCommand::Refresh { named, .. } => login::refresh(&about, about.upstream(&named)?).await,
                AuthCommand::Metadata { name, .. } => metadata::print(&about, name.as_deref()).await,
                AuthCommand::Grants(command) => grants::run(&about, &command).await,
                AuthCommand::List { json, .. } => show::list(&about, json).await,
            }
        };
        let ended = tokio::select! {
            ended = work => ended,
            _ = tokio::signal::ctrl_c() => {
                eprintln!("\nInterrupted. {interrupted}");
                Ok(ExitCode::from(INTERRUPTED))
            }
        };
        about.manager.close().await;
        ended
    });
    runtime.shutdown_background();
    ended
}

impl AuthCommand {
    /// What became of it if it was interrupted.
    const fn interrupted(&self) -> &'static str {
        match self {
            Self::Login { .. } | Self::Status { .. } | Self::Metadata { .. } | Self::List { .. } => {
                "Nothing was changed."
            }
            Self::Grants(_) => "What is granted still is what `weir auth grants list` says.",
            // It may have been all but done, and what a server has given meanwhile is kept.
            Self::Logout { .. } | Self::Refresh { .. } => "How far it got is what `weir auth status` says.",
        }
    }

    /// The address that it is about; none if it is about upstreams of a configuration.
    fn address(&self) -> Option<&str> {
        let name = match self {
            Self::Login { named, .. } | Self::Logout { named, .. } | Self::Refresh { named, .. } => Some(&named.name),
            Self::Status { name, .. } => name.as_ref(),
            Self::Metadata { .. } | Self::Grants(_) | Self::List { .. } => None,
        };
        name.map(String::as_str).filter(|name| address::is_address(name))
    }
}

impl CommandScope {
    /// The upstreams that an account of a service is, or all of its accounts; none if the name is no service's.
    fn accounts(&self, service: &str, account: Option<&str>) -> anyhow::Result<Vec<&str>> {
        let all = self.config.upstreams.iter().filter_map(|upstream| Some((upstream, upstream.account.as_ref()?)));
        let all: Vec<_> = all.filter(|(_, known)| known.service.as_str() == service).collect();
        let wanted = all.iter().filter(|(_, known)| account.is_none_or(|account| *account == *known.name));
        let wanted: Vec<&str> = wanted.map(|(upstream, _)| upstream.name.as_str()).collect();
        match account {
            Some(_) if address::is_address(service) => bail!("`--as` goes with an upstream of the configuration"),
            Some(account)
                if all.is_empty() && self.config.upstreams.iter().any(|known| known.name.as_str() == service) =>
            {
                bail!("`{service}` has no accounts; write them below [upstreams.{service}]: accounts = [\"{account}\"]")
            }
            Some(_) if all.is_empty() => Ok(Vec::new()),
            Some(account) if wanted.is_empty() => {
                let hint = suggestion::hint(account, all.iter().map(|(_, known)| &*known.name));
                bail!("`{service}` has no account `{account}`; {hint}")
            }
            _ => Ok(wanted),
        }
    }

    /// The upstream that is meant: of a service with several accounts the one, or the first.
    fn upstream<'a>(&'a self, NamedUpstream { name, account }: &'a NamedUpstream) -> anyhow::Result<&'a str> {
        let accounts = self.accounts(name, account.as_deref())?;
        Ok(accounts.first().copied().unwrap_or(name))
    }

    /// The account at an upstream, or why there is none.
    fn account(&self, name: &str) -> anyhow::Result<Arc<UpstreamAuth>> {
        let named = address::is_address(name).then(|| address::name(name));
        let name = named.as_deref().unwrap_or(name);
        if let Some(account) = self.manager.account(name) {
            return Ok(account);
        }
        let Some(upstream) = self.config.upstreams.iter().find(|upstream| upstream.name.as_str() == name) else {
            let accounts = self.manager.accounts();
            let known = accounts.iter().map(|account| account.name());
            let unknown = suggestion::unknown("upstream", name, known);
            bail!("{unknown}; `weir auth list` has those that take a login");
        };
        match (&upstream.reach, &upstream.auth) {
            _ if !upstream.enabled => bail!("`{name}` is disabled in the configuration"),
            (config::Reach::Stdio(_), _) => bail!("`{name}` is a process that Weir starts; it takes no login"),
            (_, Auth::Bearer(source)) => bail!("`{name}` is opened by the token from {source}, and not by a login"),
            _ => bail!("`{name}` takes no login (`auth = \"none\"`)"),
        }
    }

    /// As whom a terminal signs in.
    fn asker(&self, account: &UpstreamAuth) -> anyhow::Result<TokenSubject> {
        let page = self.config.public_url.as_deref().map_or_else(String::new, |url| format!(", at {url}/connect"));
        account.asker(None).with_context(|| {
            format!("each caller has a login of their own at `{}`, and gets it from the gateway{page}", account.name())
        })
    }
}
