//! The calls that wait for an approval, for those who may give it: a list, a page for each, and what its buttons do.

use crate::{
    caller::Caller,
    credential::{Approval, ApprovalError, ApprovalState, Listing},
};

use super::{
    super::App,
    BrowserReply, Connect,
    browser_sessions::BrowserSession,
    missing,
    page::{self, Document, HtmlText, Notice},
};

/// How many requests the list shows.
const LISTED: usize = 50;

impl App {
    /// The requests that wait for whoever sits at a browser, as a part of the overview; empty without any.
    pub(super) async fn waiting_for(&self, caller: &Caller) -> Result<String, ApprovalError> {
        let snapshot = self.proxy.snapshot();
        // Policies may ask somebody as rules do.
        let asks = snapshot.access().wants_approvals() || snapshot.upstreams().any(|one| one.policies().is_some());
        if !asks {
            return Ok(String::new());
        }
        let all = self.connect.manager.approvals().all().await?;
        let waiting: Vec<&Approval> =
            all.iter().filter(|one| may_answer(one, caller)).map(|one| &one.approval).take(LISTED).collect();
        Ok(list(&waiting))
    }

    /// The page of one request.
    pub(super) async fn approval(&self, browser: &BrowserSession, id: &str) -> BrowserReply {
        let approvals = self.connect.manager.approvals();
        let found = match approvals.find(id).await {
            Ok(found) => found.filter(|found| may_answer(found, browser.caller())),
            Err(why) => return self.no_approvals(&why),
        };
        let Some(found) = found else { return missing() };
        match approvals.arguments(&found).await {
            Ok(arguments) => BrowserReply::Page(200, whole(&found.approval, arguments.as_deref(), browser.key())),
            Err(why) => self.no_approvals(&why),
        }
    }

    /// Does what a button of it says.
    pub(super) async fn answer_approval(&self, browser: &BrowserSession, (id, answer): (&str, &str)) -> BrowserReply {
        let Connect { manager, invitations, .. } = &self.connect;
        let found = match manager.approvals().find(id).await {
            Ok(found) => found.filter(|found| may_answer(found, browser.caller())),
            Err(why) => return self.no_approvals(&why),
        };
        let Some(found) = found else { return missing() };
        let principal = browser.caller().principal();
        let approver = principal.subject.clone();
        let (state, approved) = match answer {
            "approve" => (ApprovalState::Given(approver), true),
            "refuse" => (ApprovalState::Refused(approver), false),
            _ => return missing(),
        };
        let Approval { tool, upstream, .. } = &found.approval;
        let notice = match manager.approvals().answer(&found, state).await {
            Ok(true) => {
                found.approval.told(&principal.subject, principal.issuer.as_deref(), approved);
                let what = if approved { "Approved" } else { "Refused" };
                let then = if approved { " The caller can call again now." } else { "" };
                Notice::Done(format!("{what}: {tool} of {upstream}.{then}"))
            }
            Ok(false) => Notice::Failed("Somebody else has answered this request just now.".to_owned()),
            Err(why) => return self.no_approvals(&why),
        };
        browser.tell(notice);
        BrowserReply::Go(invitations.page())
    }

    fn no_approvals(&self, why: &ApprovalError) -> BrowserReply {
        self.trouble(why.is_away(), why)
    }
}

/// Whether a request waits, and for an answer of this caller. To everybody else it does not exist.
fn may_answer(one: &Listing, caller: &Caller) -> bool {
    let waits = one.approval.state == ApprovalState::Waiting;
    waits && one.approval.may_be_answered_by(caller.id(), Some(caller.principal()))
}

fn list(waiting: &[&Approval]) -> String {
    if waiting.is_empty() {
        return String::new();
    }
    let mut html = "<h2>Waiting for your approval</h2><ul>".to_owned();
    for Approval { id, subject, tool, upstream, .. } in waiting {
        let (id, subject, tool, upstream) = (HtmlText(id), HtmlText(subject), HtmlText(tool), HtmlText(upstream));
        html += &format!(
            "<li><div><h2>{tool}</h2><p>{subject} calls it at {upstream}</p></div><a href=\"connect/approve/{id}\">Look</a></li>"
        );
    }
    html + "</ul>"
}

fn whole(approval: &Approval, arguments: Option<&str>, key: &str) -> Document {
    let Approval { id, subject, tool, upstream, endpoint, rule, expires, length, .. } = approval;
    let minutes = expires.div_ceil(60_000).to_string();
    let path = if endpoint == crate::config::MERGED_ENDPOINT { "/mcp".to_owned() } else { format!("/mcp/{endpoint}") };
    let caller = if subject.is_empty() { "an unknown caller" } else { subject };
    let rows = [("Caller", caller), ("Tool", tool), ("Server", upstream), ("Endpoint", &path), ("Rule", rule)];
    let rows: String = rows.iter().map(|(name, text)| format!("<dt>{name}</dt><dd>{}</dd>", HtmlText(text))).collect();
    let arguments = match arguments {
        Some(text) => format!("<pre>{}</pre>", HtmlText(text)),
        None => format!("<p><strong>{length} bytes, too long to be shown here.</strong></p>"),
    };
    let (id, key) = (HtmlText(id), HtmlText(key));
    let body = format!(
        "<dl>{rows}</dl><h2>Arguments</h2>{arguments}\
         <p>An approval is good for one call with these arguments, within {minutes} min.</p>\
         <form class=\"alone\" method=\"post\" action=\"{id}\"><input type=\"hidden\" name=\"key\" value=\"{key}\">\
         <button class=\"primary\" name=\"answer\" value=\"approve\">Approve</button> \
         <button class=\"plain\" name=\"answer\" value=\"refuse\">Refuse</button></form>"
    );
    page::document("Approve this call?", body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConsoleConfig;

    #[test]
    fn nothing_of_a_call_becomes_markup() {
        let evil = "\"><script>alert(1)</script>'&".to_owned();
        let approval = Approval {
            id: evil.clone(),
            principal: evil.clone(),
            subject: evil.clone(),
            endpoint: evil.clone(),
            upstream: evil.clone(),
            tool: evil.clone(),
            rule: evil.clone(),
            by: vec!["caller".to_owned()],
            call: evil.clone(),
            expires: 1,
            until: 1,
            length: 1,
            state: ApprovalState::Waiting,
        };
        let whole = |arguments| whole(&approval, arguments, &evil).html(&ConsoleConfig::default());
        for html in [list(&[&approval]), whole(Some(&evil)), whole(None)] {
            assert!(!html.contains("<script"), "{html}");
        }
    }
}
