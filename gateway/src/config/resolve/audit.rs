//! The audit log, and the questions of policies that are recorded.

use super::{context::Context, http};
use crate::config::quantity::Size;
use crate::config::read::Setting;
use crate::config::value::Count;
use crate::config::written::{OnFailure, Root, WrittenArguments, WrittenOtlp, WrittenRecord, WrittenSync};
use crate::config::{AuditArguments, AuditConfig, AuditSync, OtlpConfig, RecordConfig, SHIPPED, UpstreamConfig};

/// The policies that decide where the configuration names none.
const UNNAMED: [&str; 3] = ["fallback", "bearer", "oauth"];

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

pub(super) fn record(root: &Root, upstreams: &[UpstreamConfig], context: &mut Context<'_, '_>) -> Option<RecordConfig> {
    let at = root.record.set()?;
    let written = &at.value;
    if matches!(written.path, Setting::Absent) || matches!(written.policies, Setting::Absent) {
        let hint = "path = \"/var/lib/weir/questions.jsonl\"\npolicies = [\"weir:pin\"]".to_owned();
        context.report.add(at.key.clone(), "`record` needs a `path` and `policies`", Some(hint));
    }
    Some(RecordConfig {
        path: context.base.join(&written.path.set()?.value.0),
        policies: policies(written, upstreams, context),
        bodies: written.bodies.or(false),
        max_size: written.max_size.or(Size(16 << 20)).0,
    })
}

/// The names of policies, each of an upstream.
fn policies(written: &WrittenRecord, upstreams: &[UpstreamConfig], context: &mut Context<'_, '_>) -> Vec<String> {
    let mut names = Vec::new();
    for at in written.policies.set().iter().flat_map(|all| &all.value.0) {
        let name = match at.value.0.strip_prefix(SHIPPED) {
            Some(name) if UNNAMED.contains(&name) => name.to_owned(),
            Some(_) => at.value.0.clone(),
            None => context.base.join(&at.value.0).display().to_string(),
        };
        let mut used = upstreams.iter().flat_map(|upstream| &upstream.policies);
        let clean = context.report.is_clean();
        if clean && !UNNAMED.contains(&&*name) && used.all(|policy| policy.component.name() != name) {
            let hint = "name it as `component` of the upstream does".to_owned();
            context.report.add(at.span.clone(), format!("no upstream has the policy {name}"), Some(hint));
        }
        names.push(name);
    }
    names
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
