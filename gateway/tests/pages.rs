//! The pages tell the truth: the reference is what the code says, each configuration is one that Weir takes, each link
//! leads somewhere. `UPDATE=1 cargo nextest run --workspace -E 'binary(pages)'` rewrites the reference.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;
use weir::config::{Config, Environment, FetchedSecret, Secret, SystemUser, schema};

/// An environment where every variable is set and every file is there.
struct Complete;

impl Environment for Complete {
    fn variable(&self, _: &str) -> Option<OsString> {
        Some("value".into())
    }

    fn file(&self, _: &Path) -> io::Result<Vec<u8>> {
        Ok(b"value".to_vec())
    }

    fn fetched(&self, _: &FetchedSecret) -> Result<Secret, String> {
        Ok(Secret::new("value".to_owned()))
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn exists(&self, _: &Path) -> bool {
        true
    }

    fn is_directory(&self, _: &Path) -> bool {
        true
    }

    fn is_program(&self, _: &Path) -> bool {
        true
    }

    fn user(&self, name: &str) -> Option<SystemUser> {
        Some(SystemUser { name: name.to_owned(), home: "/".into(), shell: "/bin/sh".into() })
    }

    fn may_change_user(&self) -> bool {
        true
    }
}

#[test]
fn the_reference_is_up_to_date() {
    let path = root().join("docs/configuration.md");
    let expected = reference(&schema());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == expected, "docs/configuration.md is out of date; UPDATE=1 rewrites it");
}

#[test]
fn every_configuration_in_the_pages_is_one_that_weir_takes() {
    let mut checked = 0;
    for (page, text) in pages() {
        for block in blocks(&text, "toml") {
            // Some show a part only: what belongs to an upstream, or what does not.
            let before = block.contains("[[upstreams.internal.policies]]");
            let upstream = if before { "[upstreams.internal]" } else { "[upstreams.any]" };
            let upstream = format!("\n{upstream}\nurl = \"https://mcp.example.com/mcp\"\n");
            let whole = if before { upstream + &block } else { block.clone() + &upstream };
            let parsed = Config::parse(&whole, &page, &Complete);
            assert!(parsed.is_ok(), "{}:\n{block}\n{}", page.display(), parsed.unwrap_err());
            checked += 1;
        }
        for block in blocks(&text, "json") {
            assert!(serde_json::from_str::<Value>(&block).is_ok(), "{}: no JSON:\n{block}", page.display());
        }
    }
    assert!(checked >= 10, "the pages have only {checked} configurations");
}

#[test]
fn every_link_leads_somewhere() {
    for (page, text) in pages() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            let there = link.contains("://") || file.is_empty() || page.parent().unwrap().join(file).exists();
            assert!(there, "{} links to {link}", page.display());
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pages() -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> =
        ["README.md", "SECURITY.md", "CONTRIBUTING.md"].iter().map(|name| root().join(name)).collect();
    for folder in ["docs", "docs/migrating"] {
        files.extend(fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    files.retain(|file| file.is_file());
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(&file).unwrap())).collect()
}

/// What the fenced blocks of this language hold.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())).collect()
}

/// The reference of all keys, from the schema and so from the code.
fn reference(schema: &Value) -> String {
    let mut page = String::from(
        "# Configuration\n\nEvery key of `weir.toml`. This page is generated from the code. `config/full.toml` has the same \
         as a file, with the defaults. [Variables](operations.md#override-a-setting) such as `WEIR__LISTEN` \
         override single keys.\n\n`${env:NAME}` and `${file:PATH}` are expanded inside values, after parsing. \
         Unknown keys are errors.\n",
    );
    page.push_str(&section("The file", schema));
    for (name, path) in TABLES {
        page.push_str(&section(path, &schema["$defs"][name]));
    }
    let known: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
    let missing: Vec<&String> =
        schema["$defs"].as_object().unwrap().keys().filter(|name| !known.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "no place in the reference for {missing:?}");
    page
}

/// The tables in the order of the page, and what each is called in a file.
const TABLES: &[(&str, &str)] = &[
    ("Upstream", "`[upstreams.<name>]`"),
    ("Timeouts", "`timeouts` of an upstream"),
    ("ProcessLimits", "`process_limits` of an upstream"),
    ("OwnLimits", "`limits` of an upstream"),
    ("OAuth", "`[upstreams.<name>.oauth]`"),
    ("IdentityProvider", "`identity_provider`"),
    ("Policy", "`[[upstreams.<name>.policies]]`"),
    ("Defaults", "`[defaults]`"),
    ("Access", "`[access]`"),
    ("Rule", "`[[access.rules]]`"),
    ("Approval", "`approve` of a rule"),
    ("Toolset", "`[toolsets.<name>]`"),
    ("Override", "`[toolsets.<name>.overrides.<tool>]`"),
    ("Inbound", "`[auth]`"),
    ("Introspection", "`[auth.introspection]`"),
    ("AuthorizationServer", "`[authorization_server]`"),
    ("AuthorizedClient", "`[[authorization_server.clients]]`"),
    ("Limits", "`[limits]`"),
    ("PrincipalLimits", "`[limits.principal]`"),
    ("UpstreamLimits", "`[limits.upstream]`"),
    ("ToolLimits", "`[limits.tool]`"),
    ("KeyLimits", "`[limits.keys.<name>]`"),
    ("OwnToolLimits", "`[limits.tools]`, by pattern"),
    ("PolicyLimits", "`[limits.policy]`"),
    ("Store", "`[store]`"),
    ("Console", "`[console]`"),
    ("Tls", "`[tls]`"),
    ("Admin", "`[admin]`"),
    ("Replica", "`[replica]`"),
    ("Audit", "`[audit]`"),
    ("Record", "`[record]`"),
    ("Otlp", "`[audit.otlp]`"),
    ("Telemetry", "`[telemetry]`"),
    ("OtlpTelemetry", "`[telemetry.otlp]`"),
    ("Source", "Where a secret is"),
];

fn section(title: &str, table: &Value) -> String {
    let text = |value: &Value| value["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
    let keys: BTreeMap<&String, &Value> = table["properties"].as_object().unwrap().iter().collect();
    let rows = keys.into_iter().map(|(key, value)| format!("| `{key}` | {} | {} |\n", kind(value), text(value)));
    format!(
        "\n## {title}\n\n{}\n\n| key | type | meaning |\n| --- | --- | --- |\n{}",
        text(table),
        rows.collect::<String>()
    )
}

/// What may be written, in few words.
fn kind(value: &Value) -> String {
    if let Some(name) = value["$ref"].as_str() {
        return match name.rsplit('/').next().unwrap() {
            "Source" => "[source](#where-a-secret-is)".to_owned(),
            _ => "table".to_owned(),
        };
    }
    if let Some(choices) = value["enum"].as_array() {
        return choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(any) = value["anyOf"].as_array() {
        return any.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    let pattern = value["pattern"].as_str().unwrap_or_default();
    match value["type"].as_str().unwrap_or("any") {
        "array" => format!("list of {}", kind(&value["items"])),
        "object" => "table".to_owned(),
        "integer" => "number".to_owned(),
        "string" if pattern.contains("ms|") => "duration".to_owned(),
        "string" if pattern.contains("KiB") => "size".to_owned(),
        "string" if pattern.contains("://") => "URL".to_owned(),
        "string" => "text".to_owned(),
        other => other.to_owned(),
    }
}
