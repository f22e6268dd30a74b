//! `weir rename`: another name for an upstream, for its logins, and for what policies keep for it.

use std::{path::PathBuf, process::ExitCode};

use super::{ConfigFile, RenameOptions, save, unusable};
use crate::{
    cli::{load, runtime, terminal},
    config::Config,
    credential::{CredentialManager, TokenStoreError},
};

pub(super) fn run(options: &RenameOptions) -> anyhow::Result<ExitCode> {
    let RenameOptions { name, new, file, .. } = options;
    let mut changed = ConfigFile::open(&file.config)?;
    changed.rename(name, new).map_err(unusable)?;
    save(changed)?;
    let mut note = String::new();
    // Names first: a login that cannot be moved stays good under the old name, for `weir rename` back.
    match moved(options) {
        Ok((Moved { logins: 0, kept: 0 }, Some(store))) if !store.exists() => {
            note.push_str(&format!("; there are no logins in {}, where this user keeps them", store.display()));
        }
        Ok((Moved { logins, kept }, _)) => {
            note.push_str(&match logins {
                0 => String::new(),
                1 => "; its login came along".to_owned(),
                count => format!("; its {count} logins came along"),
            });
            if kept > 0 {
                note.push_str("; what its policies keep came along");
            }
        }
        Err(why) => terminal::complain(format_args!(
            "The login, and what policies keep, stays under the old name: {why}\n`weir auth login {new}` signs in again, and \
             `weir auth logout {name}` forgets the old login."
        )),
    }
    terminal::say(format_args!("`{name}` is called `{new}` now{note}"))?;
    Ok(ExitCode::SUCCESS)
}

/// How much came along.
#[derive(Default)]
struct Moved {
    logins: usize,
    /// Values that policies keep.
    kept: usize,
}

/// What came along, and where it is kept.
fn moved(options: &RenameOptions) -> anyhow::Result<(Moved, Option<PathBuf>)> {
    let RenameOptions { name, new, file } = options;
    let config = load(&file.config)?;
    let store = config.store.path.clone().filter(|_| config.store.shared.is_none());
    let moved = move_all(config, name, new.as_str(), file.allow_plaintext_token_store);
    Ok((runtime()?.block_on(moved)?, store))
}

/// Moves what is kept for an upstream, or for each account of a service.
async fn move_all(mut config: Config, old: &str, new: &str, plaintext: bool) -> Result<Moved, TokenStoreError> {
    let mut moves = Vec::new();
    for upstream in &mut config.upstreams {
        let former = match &upstream.account {
            Some(account) if account.service.as_str() == new => format!("{old}-{}", account.name),
            _ if upstream.name.as_str() == new => old.to_owned(),
            _ => continue,
        };
        // One that is disabled has its login too.
        upstream.enabled = true;
        moves.push((upstream.name.clone(), former));
    }
    let manager = CredentialManager::new(&config, plaintext);
    let (mut moved, stores) = (Moved::default(), manager.policy_stores());
    for (name, former) in moves {
        if let Some(account) = manager.account(name.as_str()) {
            moved.logins += account.take_over(&former).await?;
        }
        moved.kept += stores.take_over(&former, name.as_str()).await?;
    }
    manager.close().await;
    Ok(moved)
}
