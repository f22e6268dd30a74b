//! The components that decide about an upstream: where each is, what it may use and which secrets it may place.

use url::Url;

use super::context::Context;
use crate::config::origin::WebUrl;
use crate::config::read::{At, Setting};
use crate::config::string::FilePath;
use crate::config::value::{NamedValues, Values};
use crate::config::written::{self, Grant, WrittenDigest, WrittenSecret};
use crate::config::{ComponentPlace, PolicyComponent, PolicyConfig, RemoteComponent, SHIPPED, SecretSource};

/// The methods that a policy may use if the configuration names none.
const METHODS: [&str; 2] = ["GET", "POST"];
/// The requests that it may send in a minute if the configuration says nothing.
const REQUESTS: usize = 1000;
/// The longest name of a policy's secret.
const SECRET_NAME: usize = 64;

pub(super) fn resolve(
    written: &Setting<Values<written::WrittenPolicy>>,
    context: &mut Context<'_, '_>,
) -> Vec<PolicyConfig> {
    let policies = written.set().map_or(&[][..], |policies| &policies.value.0);
    let resolved: Vec<_> = policies.iter().filter_map(|at| Some((at, policy(at, context)?))).collect();
    refuse_shared_stores(&resolved, context);
    resolved.into_iter().map(|(_, policy)| policy).collect()
}

/// Two policies share a store only where both name it. What Weir brings along shares by design: the placeholders of one
/// `weir:redact` are those of the next.
fn refuse_shared_stores(policies: &[(&At<written::WrittenPolicy>, PolicyConfig)], context: &mut Context<'_, '_>) {
    let own =
        |(_, policy): &&(_, PolicyConfig)| policy.keeps() && !matches!(policy.component, PolicyComponent::Shipped(_));
    let stores: Vec<_> = policies.iter().filter(own).collect();
    for (index, (at, policy)) in stores.iter().enumerate() {
        let name = policy.store_name();
        let is_shared = |(_, other): &&&(_, PolicyConfig)| {
            other.store_name() == name && (other.store.is_none() || policy.store.is_none())
        };
        if !stores[..index].iter().any(|other| is_shared(&other)) {
            continue;
        }
        let hint = format!(
            "`store = \"{name}\"` in both policies keeps it shared; another name in one of them begins an empty store"
        );
        let message = format!("two policies of this upstream have the store `{name}`");
        context.report.add(at.span.clone(), message, Some(hint));
    }
}

fn policy(at: &At<written::WrittenPolicy>, context: &mut Context<'_, '_>) -> Option<PolicyConfig> {
    let written = &at.value;
    if matches!((&written.component, &written.interceptor), (Setting::Absent, Setting::Absent)) {
        let hint = "component = \"policies/example.wasm\"".to_owned();
        context.report.add(at.span.clone(), "a policy needs a `component`", Some(hint));
    }
    if let Some(url) = written.interceptor.set() {
        return interceptor(at, url, context);
    }
    let component = written.component.set().and_then(|path| component(path, &written.sha256, context));
    if let (Some(key), Some(PolicyComponent::Shipped(name))) = (written.store.key(), &component) {
        context.report.add(key, format!("`store` does not go with `{SHIPPED}{name}`, which has its own"), None);
    }
    if let (Some(key), Some(component)) = (written.signed_by.key(), &component) {
        let why = match component {
            PolicyComponent::Shipped(_) => Some("what Weir brings along is signed with Weir"),
            PolicyComponent::Remote(RemoteComponent { place: ComponentPlace::Registry(_), .. }) => {
                Some("in a registry there is no signature of minisign; the digest pins the component")
            }
            PolicyComponent::File(_) | PolicyComponent::Remote(_) => None,
        };
        if let Some(why) = why {
            context.report.add(key, format!("`signed_by` is for files and URLs: {why}"), None);
        }
    }
    Some(plain(at, component?, context))
}

/// A policy as it is written, with this component.
fn plain(at: &At<written::WrittenPolicy>, component: PolicyComponent, context: &mut Context<'_, '_>) -> PolicyConfig {
    let written = &at.value;
    PolicyConfig {
        component,
        signed_by: written.signed_by.set().map(|key| key.value.0.clone()),
        grants: grants(&written.grants),
        store: written.store.set().map(|name| name.value.0.clone()),
        secrets: secrets(&written.secrets, context),
        settings: written.settings.set().map_or_else(|| "{}".to_owned(), |settings| settings.value.0.clone()),
        http: written.http.set().iter().flat_map(|all| &all.value.0).map(|origin| origin.value.0.clone()).collect(),
        http_methods: match written.http_methods.set() {
            Some(methods) => methods.value.0.iter().map(|method| method.value.0).collect(),
            None => METHODS.to_vec(),
        },
        http_requests_per_minute: written.http_requests_per_minute.set().map_or(REQUESTS, |count| count.value.0),
        mode: written.mode.set().map(|mode| mode.value.0).unwrap_or_default(),
        on_failure: written.on_failure.set().map(|failure| failure.value.0).unwrap_or_default(),
        line: context.report.position(at.span.start).line,
    }
}

/// The component that asks an MCP server with interceptors, and nothing else.
fn interceptor(
    at: &At<written::WrittenPolicy>,
    url: &At<WebUrl>,
    context: &mut Context<'_, '_>,
) -> Option<PolicyConfig> {
    let written = &at.value;
    let others = [
        ("component", written.component.key()),
        ("grants", written.grants.key()),
        ("http", written.http.key()),
        ("sha256", written.sha256.key()),
        ("signed_by", written.signed_by.key()),
        ("store", written.store.key()),
    ];
    for (name, key) in others.into_iter().filter_map(|(name, key)| Some((name, key?))) {
        context.report.add(key, format!("`{name}` does not go with `interceptor`"), None);
    }
    let text = &url.value.0;
    let mut settings = written.settings.set().and_then(|settings| serde_json::from_str(&settings.value.0).ok());
    let settings: &mut serde_json::Map<String, serde_json::Value> = settings.get_or_insert_default();
    settings.insert("url".to_owned(), text.as_str().into());
    let component = PolicyComponent::Shipped("interceptor".to_owned());
    let http = vec![Url::parse(text).ok()?.origin().ascii_serialization()];
    Some(PolicyConfig {
        settings: serde_json::Value::from(settings.clone()).to_string(),
        http,
        ..plain(at, component, context)
    })
}

fn component(
    path: &At<FilePath>,
    sha256: &Setting<WrittenDigest>,
    context: &mut Context<'_, '_>,
) -> Option<PolicyComponent> {
    let text = &path.value.0;
    let Some(remote) = RemoteComponent::parse(text) else {
        if let Some(key) = sha256.key() {
            context.report.add(key, "`sha256` goes with a `component` at a URL", None);
        }
        return match text.strip_prefix(SHIPPED) {
            Some(name) => Some(PolicyComponent::Shipped(name.to_owned())),
            None => context.existing(path).map(PolicyComponent::File),
        };
    };
    let pinned = remote.and_then(|component| match (component.place.clone(), sha256.set()) {
        (ComponentPlace::Registry(_), Some(_)) => {
            Err("in a registry the digest is part of the name: @sha256:…".to_owned())
        }
        (_, Some(digest)) => Ok(RemoteComponent { digest: Some(digest.value.0.clone()), ..component }),
        (_, None) if component.digest.is_some() => Ok(component),
        (_, None) => {
            let digest = context.lock()?.digest(&component)?;
            Ok(RemoteComponent { digest, is_locked: true, ..component })
        }
    });
    let component = match pinned {
        Ok(component) => component,
        Err(why) => {
            context.report.add(path.span.clone(), why, None);
            return None;
        }
    };
    if context.live && component.digest.is_none() {
        let message = format!("{component} has no digest, so it may become another component at any time");
        context.report.miss(path.span.clone(), message, Some("`weir policy lock` pins it".to_owned()));
    }
    Some(PolicyComponent::Remote(component))
}

fn grants(written: &Setting<Values<Grant>>) -> Vec<String> {
    let mut grants: Vec<String> = Vec::new();
    for grant in written.set().iter().flat_map(|grants| &grants.value.0) {
        if !grants.iter().any(|other| other == grant.value.0) {
            grants.push(grant.value.0.to_owned());
        }
    }
    grants
}

fn secrets(
    written: &Setting<NamedValues<WrittenSecret>>,
    context: &mut Context<'_, '_>,
) -> Vec<(String, SecretSource)> {
    let Some(written) = written.set() else {
        return Vec::new();
    };
    let mut secrets = Vec::new();
    for (name, source) in &written.value.0 {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > SECRET_NAME || !name.bytes().all(plain) {
            let message = "the name of a secret has up to 64 letters, digits, `-` and `_`";
            context.report.add(source.key.clone(), message, None);
        }
        secrets.extend(context.source(source).map(|source| (name.clone(), source)));
    }
    secrets
}
