//! The address for programs.

use super::context::Context;
use crate::config::AdminConfig;
use crate::config::read::Setting;
use crate::config::written::Root;

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
