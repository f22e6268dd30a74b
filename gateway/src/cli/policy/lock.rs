//! `weir policy lock`: components of the network are fetched and pinned.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    process::ExitCode,
};

use anyhow::Context;

use crate::{
    cli::terminal,
    components::{ComponentCache, fetch_apart},
    config::{
        self, ComponentDigest, ComponentLock, ComponentSigner, Config, PolicyComponent, PolicyConfig, RemoteComponent,
        SystemEnvironment,
    },
};

/// What stands at the beginning of the file.
const HEAD: &str = "# Which components the configuration means. `weir policy lock` writes this file; keep it with the configuration.\n\n";

pub(super) fn run(path: &Path, update: bool) -> anyhow::Result<ExitCode> {
    let config = crate::cli::load(path)?;
    let cache = ComponentCache::new(config.cache_dir.as_deref());
    let file = ComponentLock::path(path);
    let mut failed = false;
    let mut locked = BTreeMap::new();
    for component in components(&config) {
        let pinned = pinned(&component, &signers(&config, &component), &cache, update);
        let digest = match pinned {
            Ok(digest) => {
                terminal::say(format_args!("{component}  {digest}"))?;
                Some(digest)
            }
            Err(why) => {
                terminal::complain(format_args!("{why:#}"));
                failed = true;
                component.digest.as_ref().map(ToString::to_string)
            }
        };
        if let Some(digest) = digest.filter(|_| component.is_locked) {
            locked.insert(component.to_string(), digest);
        }
    }
    write(&file, &ComponentLock { components: locked })?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Who must have signed a component.
fn signers<'c>(config: &'c Config, component: &RemoteComponent) -> Vec<&'c ComponentSigner> {
    let policies = config.upstreams.iter().flat_map(|upstream| &upstream.policies);
    let named =
        |policy: &&PolicyConfig| matches!(&policy.component, PolicyComponent::Remote(named) if named == component);
    policies.filter(named).filter_map(|policy| policy.signed_by.as_ref()).collect()
}

/// The components of all upstreams, each once.
fn components(config: &Config) -> Vec<RemoteComponent> {
    let mut names = BTreeSet::new();
    let policies = config.upstreams.iter().flat_map(|upstream| &upstream.policies);
    let remote = policies.filter_map(|policy| match &policy.component {
        PolicyComponent::Remote(component) => Some(component.clone()),
        _ => None,
    });
    remote
        .filter(|component| names.insert((component.to_string(), component.digest.as_ref().map(ToString::to_string))))
        .collect()
}

/// Has a component on this machine with the signatures that it must have, and says which it is.
fn pinned(
    component: &RemoteComponent,
    signers: &[&ComponentSigner],
    cache: &ComponentCache,
    update: bool,
) -> anyhow::Result<String> {
    let digest = fetched(component, cache, update)?;
    let pinned = RemoteComponent { digest: Some(digest.clone()), ..component.clone() };
    for signer in signers {
        cache.verify(&PolicyComponent::Remote(pinned.clone()), &cache.read(&pinned)?, signer)?;
    }
    Ok(digest.to_string())
}

/// Has a component on this machine.
fn fetched(component: &RemoteComponent, cache: &ComponentCache, update: bool) -> anyhow::Result<ComponentDigest> {
    if let Some(digest) = component.digest.as_ref().filter(|_| !(update && component.is_locked)) {
        cache.read(component)?;
        return Ok(digest.clone());
    }
    let fetched = fetch_apart(&RemoteComponent { digest: None, ..component.clone() })?;
    cache.keep(&fetched)?;
    Ok(fetched.digest)
}

/// Writes the lock file if it changes, and removes one that says nothing.
fn write(path: &Path, lock: &ComponentLock) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    let before = match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(why) if why.kind() == io::ErrorKind::NotFound => None,
        Err(why) => return Err(why).with_context(shown),
    };
    if before.is_none() && lock.components.is_empty() {
        return Ok(());
    }
    let text = format!("{HEAD}{}", toml::to_string(lock)?);
    let is_same = before.is_some() && ComponentLock::read(path, &SystemEnvironment).is_ok_and(|before| before == *lock);
    if !is_same {
        config::replace(path, before.as_deref(), &text)
            .with_context(shown)?
            .with_context(|| format!("{} has changed meanwhile, so nothing was written; try again", path.display()))?;
    }
    Ok(())
}
