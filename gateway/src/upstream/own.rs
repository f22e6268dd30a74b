//! The messages that Weir sends in its own name.

use std::sync::LazyLock;

use bytes::Bytes;
use weir_mcp::{Message, era, translate::Asks};

/// `initialize`, declaring no capability: what Weir asks for itself needs none.
pub(super) fn initialize() -> Message {
    static MESSAGE: LazyLock<Bytes> = LazyLock::new(|| Asks::default().initialize(INFO));
    parsed(&MESSAGE)
}

/// `initialize` for clients that let a server ask this, who share the session.
pub fn initialize_with(asks: Asks) -> Message {
    parsed(&asks.initialize(INFO))
}

/// `notifications/initialized`.
pub fn initialized() -> Message {
    static MESSAGE: Bytes = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    parsed(&MESSAGE)
}

/// `ping`, in the legacy era.
pub(super) fn ping() -> Message {
    static MESSAGE: Bytes = Bytes::from_static(br#"{"jsonrpc":"2.0","id":"ping","method":"ping"}"#);
    parsed(&MESSAGE)
}

/// `server/discover`.
pub(super) fn discover() -> Message {
    modern("server/discover", None)
}

/// A request for one page of a list, in the era of the upstream.
pub fn page(era: weir_mcp::Era, method: &str, cursor: Option<&[u8]>) -> Message {
    match era {
        weir_mcp::Era::Modern => modern(method, cursor),
        weir_mcp::Era::Legacy => {
            let params =
                cursor.map_or_else(String::new, |cursor| format!(r#""cursor":{}"#, String::from_utf8_lossy(cursor)));
            parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}}}}}"#).into())
        }
    }
}

/// A modern request of Weir's own, which declares no capability.
pub fn modern(method: &str, cursor: Option<&[u8]>) -> Message {
    let cursor = cursor.map(|cursor| format!(r#""cursor":{},"#, String::from_utf8_lossy(cursor)));
    modern_with(method, &cursor.unwrap_or_default())
}

/// A call of a tool, in the era of the upstream. The arguments are an object.
pub fn call(era: weir_mcp::Era, tool: &str, arguments: &serde_json::Value) -> Message {
    let tool = weir_mcp::json::quote(tool);
    match era {
        weir_mcp::Era::Modern => modern_with("tools/call", &format!(r#""name":{tool},"arguments":{arguments},"#)),
        weir_mcp::Era::Legacy => {
            let params = format!(r#"{{"name":{tool},"arguments":{arguments}}}"#);
            parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#).into())
        }
    }
}

/// `subscriptions/listen` for every change of a list.
pub fn listen() -> Message {
    let lists = r#""notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true},"#;
    modern_with("subscriptions/listen", lists)
}

fn modern_with(method: &str, params: &str) -> Message {
    let version = era::LATEST_MODERN;
    parsed(
        &format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}"_meta":{{"io.modelcontextprotocol/protocolVersion":"{version}","io.modelcontextprotocol/clientInfo":{INFO},"io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
        )
        .into(),
    )
}

/// Weir as a client, as JSON.
const INFO: &str = concat!(r#"{"name":"weir","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

#[allow(clippy::expect_used, reason = "the text is Weir's own, and a cursor in it has been validated as JSON")]
fn parsed(bytes: &Bytes) -> Message {
    Message::parse(bytes.clone()).expect("Weir's own message is valid")
}
