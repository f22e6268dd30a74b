//! What the demo server offers: its tools, its one resource and its one prompt.

use serde_json::{Value, json};

pub(super) const INSTRUCTIONS: &str = "A small server to try Weir with: read demo://readme, or call a tool.";

pub(super) const README_URI: &str = "demo://readme";

pub(super) const README: &str = r#"# This comes from Weir

Weir is one address for all of a team's MCP servers. A host points at one URL, `/mcp`; behind it Weir reaches every
server, whatever transport and protocol version it speaks, with the credentials it needs.

What you read now comes from the demo server that is part of Weir. To serve real ones, write a `weir.toml`:

```toml
[upstreams.files]
command = "npx"
args    = ["-y", "@modelcontextprotocol/server-filesystem", "/srv/docs"]

[upstreams.search]
url = "https://search.example.com/mcp"
```

Then run `weir check --config weir.toml`, and when it is content, `weir serve --config weir.toml`. The tools appear as
`files__read_file`, `search__query` and so on; each server alone, with its own names, is at `/mcp/files` and
`/mcp/search`.
"#;

pub(super) fn server_info() -> Value {
    json!({"name": "weir-demo", "title": "Weir demo", "version": env!("CARGO_PKG_VERSION")})
}

pub(super) fn capabilities() -> Value {
    json!({"tools": {}, "resources": {}, "prompts": {}})
}

pub(super) fn tools() -> Value {
    let harmless = json!({"readOnlyHint": true, "idempotentHint": true, "openWorldHint": false});
    json!([
        {
            "name": "echo",
            "title": "Echo",
            "description": "Says what it is told.",
            "inputSchema": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "What to say"}},
                "required": ["text"],
            },
            "annotations": harmless,
        },
        {
            "name": "add",
            "title": "Add",
            "description": "Adds two numbers.",
            "inputSchema": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
            "outputSchema": {
                "type": "object",
                "properties": {"sum": {"type": "number"}},
                "required": ["sum"],
            },
            "annotations": harmless,
        },
        {
            "name": "countdown",
            "title": "Countdown",
            "description": "Counts down to zero and reports progress at every step.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "from": {"type": "integer", "minimum": 1, "maximum": 1000},
                    "pause_ms": {
                        "type": "integer", "minimum": 0, "maximum": 10000, "default": 200,
                        "description": "Milliseconds before each step",
                    },
                },
                "required": ["from"],
            },
            "annotations": harmless,
        },
    ])
}

pub(super) fn readme() -> Value {
    json!({
        "uri": README_URI,
        "name": "readme",
        "title": "What Weir is",
        "description": "What Weir is, and how to add a real server to it.",
        "mimeType": "text/markdown",
    })
}

pub(super) fn prompt() -> Value {
    json!({
        "name": "introduce",
        "title": "Introduce Weir",
        "description": "Introduces Weir to somebody.",
        "arguments": [{"name": "name", "description": "Whom to greet", "required": true}],
    })
}

pub(super) fn introduction(name: &str) -> String {
    format!("Read the resource {README_URI}, greet {name}, and explain in three sentences what Weir does for them.")
}
