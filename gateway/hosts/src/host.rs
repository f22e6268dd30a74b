//! The MCP hosts that Weir knows, and where they keep their configuration.

use std::path::{Path, PathBuf};

use crate::{
    template::Form,
    value::{self, Format, Value},
};

/// A program that connects to MCP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    ClaudeCode,
    ClaudeDesktop,
    VsCode,
    Cursor,
    Windsurf,
    GeminiCli,
    Codex,
    Goose,
    Zed,
    OpenCode,
    Inspector,
    FastMcp,
    McpHub,
    /// Any program with tables `[mcp.servers.NAME]` in TOML.
    McpToml,
}

/// The operating system a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Os {
    Linux,
    MacOs,
}

/// The directories that paths start from.
#[derive(Clone, Debug)]
pub struct Directories {
    pub home: PathBuf,
    /// `$XDG_CONFIG_HOME`, or `~/.config`; on macOS too.
    pub config: PathBuf,
    /// Without one, there are no files of a project.
    pub project: Option<PathBuf>,
    pub os: Os,
}

/// Whom a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    User,
    Project,
}

/// A place where a host looks for servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    pub path: PathBuf,
    pub scope: Scope,
}

impl Host {
    pub const ALL: [Self; 14] = [
        Self::ClaudeCode,
        Self::ClaudeDesktop,
        Self::VsCode,
        Self::Cursor,
        Self::Windsurf,
        Self::GeminiCli,
        Self::Codex,
        Self::Goose,
        Self::Zed,
        Self::OpenCode,
        Self::Inspector,
        Self::FastMcp,
        Self::McpHub,
        Self::McpToml,
    ];

    /// The host with this name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|host| host.name().eq_ignore_ascii_case(name))
    }

    /// What users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::ClaudeDesktop => "claude-desktop",
            Self::VsCode => "vscode",
            Self::Cursor => "cursor",
            Self::Windsurf => "windsurf",
            Self::GeminiCli => "gemini-cli",
            Self::Codex => "codex",
            Self::Goose => "goose",
            Self::Zed => "zed",
            Self::OpenCode => "opencode",
            Self::Inspector => "inspector",
            Self::FastMcp => "fastmcp",
            Self::McpHub => "mcp-hub",
            Self::McpToml => "mcp-toml",
        }
    }

    /// What users read.
    pub fn title(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::ClaudeDesktop => "Claude Desktop",
            Self::VsCode => "VS Code",
            Self::Cursor => "Cursor",
            Self::Windsurf => "Windsurf",
            Self::GeminiCli => "Gemini CLI",
            Self::Codex => "Codex",
            Self::Goose => "Goose",
            Self::Zed => "Zed",
            Self::OpenCode => "opencode",
            Self::Inspector => "MCP Inspector",
            Self::FastMcp => "FastMCP",
            Self::McpHub => "MCP Hub",
            Self::McpToml => "TOML with `mcp.servers`",
        }
    }

    /// Where the host looks for servers, the file that Weir writes first in each scope.
    pub fn files(self, directories: &Directories) -> Vec<HostFile> {
        let (base, user, project) = self.places(directories);
        let user = user.iter().map(|path| HostFile { path: base.join(path), scope: Scope::User });
        let root = directories.project.iter();
        let project = root.flat_map(|root| project.iter().map(|path| root.join(path)));
        user.chain(project.map(|path| HostFile { path, scope: Scope::Project })).collect()
    }

    /// The directory of the user's files, these files, and the files of a project.
    fn places(self, directories: &Directories) -> (PathBuf, &'static [&'static str], &'static [&'static str]) {
        let Directories { home, config, os, .. } = directories;
        let application = match os {
            Os::Linux => config.clone(),
            Os::MacOs => home.join("Library/Application Support"),
        };
        match self {
            Self::ClaudeCode => (home.clone(), &[".claude.json"], &[".mcp.json"]),
            Self::ClaudeDesktop => (application, &["Claude/claude_desktop_config.json"], &[]),
            Self::VsCode => (application, &["Code/User/mcp.json", "Code/User/settings.json"], &[".vscode/mcp.json"]),
            Self::Cursor => (home.clone(), &[".cursor/mcp.json"], &[".cursor/mcp.json"]),
            Self::Windsurf => (home.clone(), &[".codeium/windsurf/mcp_config.json"], &[]),
            Self::GeminiCli => (home.clone(), &[".gemini/settings.json"], &[".gemini/settings.json"]),
            Self::Codex => (home.clone(), &[".codex/config.toml"], &[".codex/config.toml"]),
            Self::Goose => (config.clone(), &["goose/config.yaml"], &[]),
            Self::Zed => (config.clone(), &["zed/settings.json"], &[".zed/settings.json"]),
            Self::OpenCode => {
                let user = &["opencode/opencode.json", "opencode/opencode.jsonc"];
                (config.clone(), user, &["opencode.json", "opencode.jsonc", ".opencode/opencode.json"])
            }
            Self::Inspector | Self::FastMcp => (home.clone(), &[], &["mcp.json"]),
            Self::McpHub => (config.clone(), &["mcphub/servers.json"], &[".mcphub/servers.json"]),
            Self::McpToml => (home.clone(), &[], &[]),
        }
    }

    pub(crate) fn format(self) -> Format {
        match self {
            Self::Codex | Self::McpToml => Format::Toml,
            Self::Goose => Format::Yaml,
            Self::McpHub => Format::Json5,
            _ => Format::Jsonc,
        }
    }

    /// The keys under which servers may stand; a new file gets the first. Where both have a name, the first wins.
    pub(crate) fn roots(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::VsCode => &[&["servers"], &["mcp", "servers"], &["mcp.servers"], &["mcpServers"]],
            Self::Codex => &[&["mcp_servers"]],
            Self::Goose => &[&["extensions"]],
            Self::Zed => &[&["context_servers"]],
            Self::OpenCode => &[&["mcp", "servers"], &["mcp"]],
            Self::McpHub => &[&["mcpServers"], &["servers"]],
            Self::McpToml => &[&["mcp", "servers"]],
            _ => &[&["mcpServers"]],
        }
    }

    /// The references that the host resolves in values.
    pub(crate) fn forms(self) -> &'static [Form] {
        match self {
            Self::ClaudeCode => &[Form::Braces, Form::Default],
            Self::VsCode => &[Form::EnvPrefix, Form::Input, Form::Workspace, Form::Home],
            Self::Cursor => &[Form::EnvPrefix, Form::Workspace, Form::Home],
            Self::Windsurf => &[Form::EnvPrefix],
            Self::GeminiCli => &[Form::Braces, Form::Default, Form::Bare],
            Self::Goose => &[Form::Spaced, Form::Bare],
            Self::OpenCode => &[Form::CurlyEnv],
            Self::McpHub => &[Form::Braces, Form::EnvPrefix, Form::Input, Form::Workspace, Form::Home, Form::Command],
            Self::ClaudeDesktop | Self::Codex | Self::Zed | Self::Inspector | Self::FastMcp | Self::McpToml => &[],
        }
    }
}

/// Which host a file belongs to: by its name, else by what it holds.
pub fn detect(path: &Path, text: &str) -> Option<Host> {
    by_name(path).or_else(|| by_shape(path, text))
}

fn by_name(path: &Path) -> Option<Host> {
    let part = |path: &Path| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
    let directory = path.parent().map(part).unwrap_or_default();
    Some(match (directory.as_str(), part(path).as_str()) {
        (_, ".claude.json" | ".mcp.json") => Host::ClaudeCode,
        (_, "claude_desktop_config.json") => Host::ClaudeDesktop,
        (_, "mcp_config.json") => Host::Windsurf,
        (_, "opencode.json" | "opencode.jsonc") => Host::OpenCode,
        (".vscode" | "user", "mcp.json" | "settings.json") => Host::VsCode,
        (".cursor", "mcp.json") => Host::Cursor,
        (".gemini", "settings.json") => Host::GeminiCli,
        (".zed" | "zed", "settings.json") => Host::Zed,
        (".codex", "config.toml") => Host::Codex,
        ("goose", "config.yaml") => Host::Goose,
        ("mcphub" | ".mcphub", "servers.json") => Host::McpHub,
        _ => return None,
    })
}

fn by_shape(path: &Path, text: &str) -> Option<Host> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let formats: &[Format] = match extension.to_ascii_lowercase().as_str() {
        "json" | "jsonc" | "json5" => &[Format::Jsonc, Format::Json5],
        "toml" => &[Format::Toml],
        "yaml" | "yml" => &[Format::Yaml],
        _ => &[Format::Jsonc, Format::Json5, Format::Toml, Format::Yaml],
    };
    formats.iter().find_map(|&format| of_value(format, &value::parse(format, text).ok()?))
}

fn of_value(format: Format, root: &Value) -> Option<Host> {
    let has = |path: &[&str]| root.at(path).is_some_and(|value| value.map().is_some());
    match format {
        Format::Toml if has(&["mcp_servers"]) => Some(Host::Codex),
        Format::Toml if has(&["mcp", "servers"]) => Some(Host::McpToml),
        Format::Yaml if has(&["extensions"]) => Some(Host::Goose),
        Format::Toml | Format::Yaml => None,
        Format::Json5 if has(&["mcpServers"]) || has(&["servers"]) => Some(Host::McpHub),
        Format::Json5 => None,
        Format::Jsonc if has(&["context_servers"]) => Some(Host::Zed),
        Format::Jsonc if has(&["mcpServers"]) => Some(of_mcp_servers(root)),
        Format::Jsonc if has(&["servers"]) || has(&["mcp.servers"]) => Some(Host::VsCode),
        Format::Jsonc => of_mcp(root),
    }
}

/// Most hosts share the key `mcpServers`; some are known by a key that only they use.
fn of_mcp_servers(root: &Value) -> Host {
    let servers = root.at(&["mcpServers"]).and_then(Value::map);
    let any = |test: &dyn Fn(&Value) -> bool| servers.is_some_and(|servers| servers.values().any(test));
    let any_key = |key: &str| any(&|server| server.at(&[key]).is_some());
    match () {
        () if any_key("serverUrl") => Host::Windsurf,
        () if any_key("httpUrl") => Host::GeminiCli,
        () if any_key("transport") => Host::FastMcp,
        () if any(&|server| server.at(&["type"]).and_then(Value::text) == Some("streamable-http")) => Host::Inspector,
        () => Host::ClaudeCode,
    }
}

/// opencode and the settings of VS Code share the key `mcp`; only opencode has the types `local` and `remote`.
fn of_mcp(root: &Value) -> Option<Host> {
    let typed = |path: &[&str]| {
        let servers = root.at(path).and_then(Value::map)?;
        let kind = |server: &Value| server.at(&["type"]).and_then(Value::text).map(str::to_owned);
        Some(servers.values().filter_map(kind).any(|kind| kind == "local" || kind == "remote"))
    };
    match (typed(&["mcp"]), typed(&["mcp", "servers"])) {
        (Some(true), _) | (_, Some(true)) => Some(Host::OpenCode),
        (_, Some(false)) => Some(Host::VsCode),
        _ => None,
    }
}
