//! What a server says of itself for people to see (MCP 2025-11-25, `Implementation`).

use std::sync::Arc;

use serde_json::Value;
use weir_mcp::json;

/// Where a server of the stateless era says who it is.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// The longest title, in characters.
const LONGEST_TITLE: usize = 80;
/// The largest icon, in bytes of its `data:` URL.
const LARGEST_ICON: usize = 16 * 1024;
/// How much of what it says is looked into, in bytes.
const LARGEST: usize = 256 * 1024;
/// The images that browsers show without running anything.
const IMAGES: [&str; 5] = ["png", "jpeg", "webp", "gif", "svg+xml"];

/// The title and the icon of a server, as far as it has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// What it calls itself.
    pub title: Option<Arc<str>>,
    /// An icon that it brings along, as a `data:` URL (RFC 2397). Icons at other addresses are not fetched: whoever
    /// serves them would learn who looks.
    pub icon: Option<Arc<str>>,
}

impl ServerIdentity {
    /// Out of the result of `initialize` or `server/discover`.
    #[must_use]
    pub fn of(said: &[u8]) -> Self {
        let raw = json::get(said, &["serverInfo"]).or_else(|| json::get(said, &["_meta", SERVER_INFO]));
        let raw = raw.filter(|raw| raw.len() <= LARGEST).unwrap_or_default();
        let info: Value = serde_json::from_slice(raw).unwrap_or_default();
        let title: String = info["title"].as_str().unwrap_or_default().trim().chars().take(LONGEST_TITLE).collect();
        let icons = info["icons"].as_array().into_iter().flatten();
        let icon = icons.filter_map(|icon| icon["src"].as_str()).find(|src| is_image(src));
        Self { title: (!title.is_empty()).then(|| title.into()), icon: icon.map(Arc::from) }
    }
}

fn is_image(src: &str) -> bool {
    let kind = src.strip_prefix("data:image/").and_then(|rest| rest.split([';', ',']).next());
    kind.is_some_and(|kind| IMAGES.contains(&kind)) && src.len() <= LARGEST_ICON
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(said: &Value) -> (Option<String>, Option<String>) {
        let ServerIdentity { title, icon } = ServerIdentity::of(said.to_string().as_bytes());
        (title.map(|title| title.to_string()), icon.map(|icon| icon.to_string()))
    }

    #[test]
    fn a_server_says_who_it_is_in_either_era() {
        let png = "data:image/png;base64,AAAA";
        let info = json!({ "name": "x", "title": " Files ", "icons": [{ "src": "https://x/a.png" }, { "src": png }] });
        let expected = (Some("Files".to_owned()), Some(png.to_owned()));
        assert_eq!(of(&json!({ "serverInfo": info })), expected);
        assert_eq!(of(&json!({ "_meta": { SERVER_INFO: info } })), expected);
    }

    #[test]
    fn what_is_odd_is_left_out() {
        let large = format!("data:image/png;base64,{}", "A".repeat(LARGEST_ICON));
        for src in ["https://x/a.png", "data:text/html,<b>", "data:image/png2;base64,A", "javascript:x", &large] {
            let said = json!({ "serverInfo": { "title": 5, "icons": [{ "src": src }, 7, {}] } });
            assert_eq!(of(&said), (None, None), "{src}");
        }
        assert_eq!(of(&json!({ "serverInfo": { "title": "é".repeat(200) } })).0, Some("é".repeat(LONGEST_TITLE)));
        assert_eq!(ServerIdentity::of(b"not json"), ServerIdentity::default());
    }
}
