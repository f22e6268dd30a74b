//! What is listed of an upstream that nobody can look into before a sign-in: one tool that leads there.
//!
//! Without it a model would not know that the upstream exists, and nobody would ever be asked to sign in.

use bytes::Bytes;
use weir_mcp::json;

use super::{CatalogSnapshot, ListKind, snapshot::ListEntry};

/// What the tool is called, after the name of its upstream.
pub const SIGN_IN: &str = "sign_in";

impl CatalogSnapshot {
    /// Stands in for an upstream until there is a login.
    pub(super) fn waiting(upstream: &str) -> Self {
        let title = json::quote(&format!("Sign in at {upstream}"));
        let text = json::quote(&format!(
            "The tools of `{upstream}` are listed when its user has signed in there. Call this to get the link, and \
             show it to the user."
        ));
        let raw = format!(
            r#"{{"name":"{SIGN_IN}","title":{title},"description":{text},"inputSchema":{{"type":"object","properties":{{}}}}}}"#
        );
        let mut view = Self { waits: true, ..Self::default() };
        let entry = ListEntry { raw: Bytes::from(raw), key: SIGN_IN.to_owned(), public: None, modern_only: false };
        view.lists[ListKind::Tool as usize].push(entry);
        view
    }
}
