//! The addresses for programs and for other gateways.

use super::context::Context;
use crate::config::origin::ReplicaAddress;
use crate::config::read::{Setting, Unreadable};
use crate::config::written::Root;
use crate::config::{AdminConfig, ReplicaConfig};

pub(super) fn admin(root: &Root, context: &mut Context<'_, '_>) -> Option<AdminConfig> {
    let at = root.admin.set()?;
    let written = &at.value;
    if matches!(written.listen, Setting::Absent) {
        let hint = "listen = \"127.0.0.1:9464\"".to_owned();
        context.report.add(at.key.clone(), "`admin` needs a `listen`", Some(hint));
    }
    // A token that cannot be read is reported with it.
    let (has_token, token) = (written.token.set().is_some(), written.token.set().and_then(|at| context.source(at)));
    let listen = written.listen.set()?;
    let address = listen.value.0;
    if !address.ip().is_loopback() && !has_token {
        let message = format!("whoever reaches {address} could ask how Weir stands");
        context.report.add(listen.span.clone(), message, Some("token = { file = \"admin-token\" }".to_owned()));
    }
    Some(AdminConfig { listen: address, token })
}

/// The address for other gateways. `is_shared` is whether they can share a store.
pub(super) fn replica(root: &Root, is_shared: bool, context: &mut Context<'_, '_>) -> Option<ReplicaConfig> {
    let at = root.replica.set()?;
    let written = &at.value;
    if matches!(written.listen, Setting::Absent) {
        let hint = "listen = \"10.0.0.5:9465\"".to_owned();
        context.report.add(at.key.clone(), "`replica` needs a `listen`", Some(hint));
    }
    if !is_shared && root.store.set().is_none_or(|store| matches!(store.value.url, Setting::Absent)) {
        let hint = "url = \"redis://127.0.0.1:6379\" in the `[store]` table".to_owned();
        context.report.add(at.key.clone(), "other gateways are found at a store that they share", Some(hint));
    }
    let listen = written.listen.set()?;
    let address = listen.value.0;
    if address.ip().is_unspecified() && matches!(written.address, Setting::Absent) {
        let hint = "address = \"${env:POD_IP}\"".to_owned();
        context.report.add(listen.span.clone(), format!("others cannot reach this one at {address}"), Some(hint));
    }
    let Some(named) = written.address.set() else {
        return Some(ReplicaConfig { listen: address, host: None, port: None });
    };
    match context.expand(named)?.value.expose().parse::<ReplicaAddress>() {
        Ok(ReplicaAddress { host, port }) => Some(ReplicaConfig { listen: address, host: Some(host), port }),
        Err(Unreadable { message, hint }) => {
            context.report.add(named.span.clone(), message, Some(hint.into_owned()));
            None
        }
    }
}
