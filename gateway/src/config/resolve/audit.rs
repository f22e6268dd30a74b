//! The audit log.

use super::{context::Context, http};
use crate::config::quantity::Size;
use crate::config::read::Setting;
use crate::config::value::Count;
use crate::config::written::{OnFailure, Root, WrittenArguments, WrittenOtlp, WrittenSync};
use crate::config::{AuditArguments, AuditConfig, AuditSync, OtlpConfig};

pub(super) fn audit(root: &Root, context: &mut Context<'_, '_>) -> Option<AuditConfig> {
    let at = root.audit.set()?;
    let written = &at.value;
    if matches!(written.path, Setting::Absent) {
        let hint = "path = \"/var/lib/weir/audit.jsonl\"".to_owned();
        context.report.add(at.key.clone(), "`audit` needs a `path`", Some(hint));
    }
    Some(AuditConfig {
        path: context.base.join(&written.path.set()?.value.0),
        max_size: written.max_size.or(Size(64 << 20)).0,
        keep: written.keep.or(Count(30)).0,
        max_age: written.max_age.set().map(|at| at.value.0),
        sync: written.sync.or(WrittenSync(AuditSync::Interval)).0,
        arguments: written.arguments.or(WrittenArguments(AuditArguments::Digest)).0,
        refuse: written.on_failure.or(OnFailure::Refuse) == OnFailure::Refuse,
        otlp: otlp(&written.otlp, context),
    })
}

fn otlp(at: &Setting<WrittenOtlp>, context: &mut Context<'_, '_>) -> Option<OtlpConfig> {
    const LIKE: &str = "url = \"https://collector.example.com:4318/v1/logs\"";
    let at = at.set()?;
    let written = &at.value;
    if matches!(written.url, Setting::Absent) {
        context.report.add(at.key.clone(), "`otlp` needs a `url`", Some(LIKE.to_owned()));
    }
    let headers = http::headers(&written.headers, None, context);
    let url = http::address(written.url.set()?, LIKE, context)?;
    if http::has_credential(&written.headers) {
        http::warn_if_cleartext(&url, &at.key, context);
    }
    Some(OtlpConfig { url, headers })
}
