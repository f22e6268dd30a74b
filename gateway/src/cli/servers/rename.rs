//! `weir rename`: another name for an upstream, and for its logins.

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
    match moved_logins(options) {
        Ok((0, Some(store))) if !store.exists() => {
            note.push_str(&format!("; there are no logins in {}, where this user keeps them", store.display()));
        }
        Ok((0, _)) => {}
        Ok((1, _)) => note.push_str("; its login came along"),
        Ok((count, _)) => note.push_str(&format!("; its {count} logins came along")),
        Err(why) => terminal::complain(format_args!(
            "The login stays under the old name: {why}\n`weir auth login {new}` signs in again, and `weir auth logout {name}` \
             forgets the old login."
        )),
    }
    terminal::say(format_args!("`{name}` is called `{new}` now{note}"))?;
    Ok(ExitCode::SUCCESS)
}

/// How many logins came along, and where logins are kept.
fn moved_logins(options: &RenameOptions) -> anyhow::Result<(usize, Option<PathBuf>)> {
    let RenameOptions { name, new, file, allow_plaintext_token_store } = options;
    let config = load(&file.config)?;
    let store = config.store.path.clone().filter(|_| config.store.shared.is_none());
    let moved = move_logins(config, name, new.as_str(), *allow_plaintext_token_store);
    Ok((runtime()?.block_on(moved)?, store))
}

/// Moves what is kept for an upstream, or for each account of a service; gives how many logins there were.
async fn move_logins(mut config: Config, old: &str, new: &str, plaintext: bool) -> Result<usize, TokenStoreError> {
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
    let mut moved = 0;
    for (name, former) in moves {
        if let Some(account) = manager.account(name.as_str()) {
            moved += account.take_over(&former).await?;
        }
    }
    manager.close().await;
    Ok(moved)
}
