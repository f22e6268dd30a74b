//! `weir store`: whether the store can be used, and how its entries come into another one.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::{
    config::{Config, LoginStore, SharedStore, default_file, store_password},
    credential::{CredentialManager, StoreCopy, StoreReport, TokenStoreError},
    telemetry,
};

use super::{BadConfig, exit_code::UNREACHABLE, terminal};

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Check that the store can be used.
    ///
    /// Reaches its server, opens it with its key, writes to it and counts what it holds. Ends with 69 if the server does not
    /// answer, with 1 if anything else is wrong, with 64 if the configuration cannot be used.
    Check {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: StoreOptions,
    },
    /// Copy everything that the store of the configuration holds to another one, while gateways run.
    ///
    /// What was written there since is kept. It can be run again: then it copies what has changed here, and removes what was
    /// copied and is gone here. Both stores are opened with `store.key` or WEIR_STORE_KEY. Ends as `weir store check` does.
    #[command(after_help = "Examples:
  weir store migrate --to redis://weir@redis.internal:6379
  weir store migrate --to logins.redb")]
    Migrate {
        /// A URL as for `store.url`, with its password in WEIR_STORE_PASSWORD, or a file.
        #[arg(long, value_name = "URL|FILE")]
        to: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: StoreOptions,
    },
}

#[derive(Args, Debug)]
pub(super) struct StoreOptions {
    /// The configuration, as for `weir serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    /// The store is plain text.
    #[arg(long)]
    allow_plaintext_token_store: bool,
}

pub(super) fn run(command: &StoreCommand) -> anyhow::Result<ExitCode> {
    let _log = telemetry::start("warn");
    let (StoreCommand::Check { options, .. } | StoreCommand::Migrate { options, .. }) = command;
    let config = super::load(&options.config)?;
    let manager = CredentialManager::new(&config, options.allow_plaintext_token_store);
    let done = super::runtime()?.block_on(async {
        match command {
            StoreCommand::Check { json, .. } => check(&manager, *json).await,
            StoreCommand::Migrate { to, json, .. } => {
                let other = Config { store: target(to, &config)?, ..config };
                let other = CredentialManager::new(&other, options.allow_plaintext_token_store);
                migrate(&manager, &other, *json).await
            }
        }
    });
    done.or_else(|why| match why.downcast_ref::<TokenStoreError>() {
        Some(away) if away.is_away() => {
            terminal::complain(format_args!("weir: {away}"));
            Ok(ExitCode::from(UNREACHABLE))
        }
        _ => Err(why),
    })
}

/// Where entries go, as the configuration would have it.
fn target(to: &str, config: &Config) -> Result<LoginStore, BadConfig> {
    let key = config.store.key.clone();
    if !to.contains("://") {
        let path = std::path::absolute(to).map_err(|why| BadConfig(format!("weir: {to}: {why}")))?;
        return Ok(LoginStore { path: Some(path), shared: None, key });
    }
    let url = to.to_owned();
    let shared = SharedStore { url, prefix: None, password: store_password(), sentinel_password: None, ca: None };
    shared.target().map_err(|why| BadConfig(format!("weir: {why}")))?;
    Ok(LoginStore { path: config.store.path.clone(), shared: Some(shared), key })
}

async fn check(manager: &CredentialManager, json: bool) -> anyhow::Result<ExitCode> {
    /// A smaller difference of clocks harms nothing.
    const SOON: i64 = 1000;
    let mut text = manager.store_place();
    let report = manager.report_store().await?;
    if json {
        let report = report.map(|StoreReport { version, clock_ahead, entries }| {
            json!({ "version": version, "clock_ahead_ms": clock_ahead, "entries": entries })
        });
        terminal::put_json(&format!("{:#}", json!({ "place": text, "report": report })))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(StoreReport { version, clock_ahead, entries }) = report else {
        terminal::say(format_args!("{text} is not there yet: the first login makes it."))?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(version) = version {
        text.push_str(&format!(": {version}"));
    }
    text.push_str(&format!("\nIts key opens it, it can be written, and it holds {entries} entries.\n"));
    if let Some(ahead) = clock_ahead.filter(|ahead| ahead.abs() >= SOON) {
        let (seconds, way) = (ahead.abs() / 1000, if ahead > 0 { "ahead of" } else { "behind" });
        text.push_str(&format!("Its clock is {seconds} s {way} the one of this machine.\n"));
    }
    terminal::say(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

async fn migrate(manager: &CredentialManager, other: &CredentialManager, json: bool) -> anyhow::Result<ExitCode> {
    let Some(StoreCopy { copied, same, newer, removed, unreadable }) = manager.copy_store(other).await? else {
        anyhow::bail!("there is no store at {}, so nothing was copied", manager.store_place());
    };
    let done = if unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if json {
        let report = json!({
            "to": other.store_place(), "copied": copied, "same": same, "newer": newer, "removed": removed,
            "unreadable": unreadable,
        });
        terminal::put_json(&format!("{report:#}"))?;
        return Ok(done);
    }
    let mut text = format!("{} entries were copied to {}", copied.values().sum::<usize>(), other.store_place());
    for (namespace, count) in &copied {
        text.push_str(&format!("\n  {namespace}  {count}"));
    }
    let others = [
        (same, "there already"),
        (newer, "newer there, and kept"),
        (removed, "gone here, and removed there"),
        (unreadable, "not opened by the key, and left out"),
    ];
    for (count, what) in others.iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!("\n{what}: {count}"));
    }
    terminal::say(text)?;
    Ok(done)
}
