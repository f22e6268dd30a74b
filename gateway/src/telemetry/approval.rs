//! One line for whatever becomes of a call that needs an approval: it was asked for, given, or refused.

use super::audit;

/// A request for an approval.
#[derive(Clone, Copy, Debug)]
pub struct ApprovalRecord<'a> {
    /// The call that asked first.
    pub call: &'a str,
    /// The subject of the caller; empty for an unknown caller.
    pub caller: &'a str,
    /// The endpoint that was called.
    pub endpoint: &'a str,
    /// The upstream.
    pub upstream: &'a str,
    /// The tool.
    pub tool: &'a str,
    /// The rule that wants the approval.
    pub rule: &'a str,
    /// Who may give it.
    pub by: &'a str,
}

impl ApprovalRecord<'_> {
    /// Writes that it was asked for.
    pub fn asked(&self) {
        self.write("approval asked", "approval_asked", "deferred", self.caller, None);
    }

    /// Writes that somebody has answered it.
    pub fn answered(&self, approver: &str, issuer: Option<&str>, approved: bool) {
        let (text, event, decision) = match approved {
            true => ("approval given", "approval_given", "allowed"),
            false => ("approval refused", "approval_refused", "denied"),
        };
        self.write(text, event, decision, approver, issuer);
    }

    fn write(&self, text: &str, event: &str, decision: &str, principal: &str, issuer: Option<&str>) {
        let Self { call, caller, endpoint, upstream, tool, rule, by } = self;
        tracing::info!(target: "weir::approval", call_id = call, principal, caller, endpoint, upstream, tool, rule, by, "{text}");
        audit::write(event, |record| {
            record.text("principal_id", principal);
            record.maybe("issuer", issuer);
            record.text("caller", caller);
            // Not `call_id`, by which the record of the call itself is found.
            record.text("asked_by_call", call);
            record.text("endpoint", endpoint);
            record.text("upstream", upstream);
            record.text("name", tool);
            record.text("rule", rule);
            record.text("approvers", by);
            record.text("decision", decision);
        });
    }
}
