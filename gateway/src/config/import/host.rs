//! Files of hosts that are no JSON: the TOML of Codex and of programs with `[mcp.servers.NAME]`, the YAML of Goose.

use std::{ops::Range, path::Path};

use toml::{Spanned, de::DeValue};
use weir_hosts::{Host, MAX_BYTES, OAuth, Piece, Server, Template, detect, read};

use crate::config::{Environment, name, problem::ProblemReport, read::Node};

use super::Table;

/// The host that the file belongs to, if it is neither Weir's own nor JSON.
pub(in crate::config) fn host(path: &Path, text: &str) -> Option<Host> {
    let is_yaml =
        path.extension().is_some_and(|end| end.eq_ignore_ascii_case("yaml") || end.eq_ignore_ascii_case("yml"));
    // Most files are Weir's own, and need not be read a second time to know that.
    let may_be = is_yaml || (text.contains("mcp") && text.contains("servers") && !text.contains("[upstreams"));
    let host = (may_be && text.len() <= MAX_BYTES).then(|| detect(path, text))?;
    host.filter(|host| matches!(host, Host::Codex | Host::McpToml | Host::Goose))
}

/// The tree of the same servers as Weir has them; none if the file cannot be read, which has been reported.
pub(in crate::config) fn tree(
    host: Host,
    text: &str,
    environment: &dyn Environment,
    report: &mut ProblemReport<'_>,
) -> Option<Node<'static>> {
    let lines = Lines::of(text);
    let servers = match read(host, text) {
        Ok(servers) => servers,
        Err(why) => {
            report.add(lines.range(why.line), format!("{}: {}", host.title(), why.problem), Some(why.remedy));
            return None;
        }
    };
    for lost in &servers.not_carried {
        report.warn(0..0, lost.clone(), None);
    }
    let mut upstreams = Table::new();
    for server in &servers.servers {
        let at = lines.range(server.line);
        let name = name::nearest(&server.name).map_or_else(|| server.name.clone(), |name| name.to_string());
        if name != server.name {
            report.warn(
                at.clone(),
                format!("the server `{}` is called `{name}` here", server.name.escape_debug()),
                None,
            );
        }
        for lost in &server.not_carried {
            report.warn(at.clone(), format!("upstream `{name}`: {lost}"), None);
        }
        let mut import = ServerImport { at: at.clone(), table: toml::Table::new(), environment, report };
        import.server(server);
        let table = placed(import.table.into(), &at);
        if upstreams.insert(Spanned::new(at.clone(), name.clone().into()), table).is_some() {
            report.add(
                at,
                format!("the upstream `{name}` is written twice"),
                Some("another name for one of them".into()),
            );
        }
    }
    let whole = 0..text.len();
    super::announce(&format!("a file of {}", host.title()), &upstreams, report);
    Some(super::file_tree(whole.clone(), upstreams, whole))
}

/// Where lines begin and end.
struct Lines(Vec<Range<usize>>);

impl Lines {
    fn of(text: &str) -> Self {
        let mut start = 0;
        let line = |line: &str| {
            let range = start..start + line.trim_end().len();
            start += line.len();
            range
        };
        Self(text.split_inclusive('\n').map(line).collect())
    }

    fn range(&self, line: usize) -> Range<usize> {
        line.checked_sub(1).and_then(|at| self.0.get(at)).cloned().unwrap_or_default()
    }
}

/// One server on its way. All that is said of it is said at its line.
struct ServerImport<'i, 't> {
    at: Range<usize>,
    table: toml::Table,
    environment: &'i dyn Environment,
    report: &'i mut ProblemReport<'t>,
}

impl ServerImport<'_, '_> {
    fn server(&mut self, server: &Server) {
        for (key, template) in [("url", &server.url), ("command", &server.command), ("cwd", &server.cwd)] {
            if let Some(template) = template {
                let text = self.text(template);
                self.put(key, text);
            }
        }
        let arguments: Vec<String> = server.args.iter().map(|argument| self.text(argument)).collect();
        if !arguments.is_empty() {
            self.put("args", arguments);
        }
        for (key, pairs) in [("headers", &server.headers), ("env", &server.env)] {
            let pairs = pairs.iter().map(|(name, value)| (name.clone(), self.text(value).into())).collect();
            self.put_table(key, pairs);
        }
        if let Some(kind) = server.required_type() {
            self.put("type", kind);
        }
        if let Some(variable) = &server.bearer_env {
            self.put_table("bearer", [("env".to_owned(), variable.as_str().into())].into_iter().collect());
        }
        if let Some(oauth) = server.oauth.as_ref().filter(|_| server.bearer_env.is_none()) {
            self.oauth(oauth);
        }
        if let Some(seconds) = server.timeout_seconds {
            let limit = ("overall".to_owned(), format!("{seconds}s").into());
            self.put_table("timeouts", [limit].into_iter().collect());
        }
        let allowed = server.tools.allowed.as_ref().map(|names| ("allow".to_owned(), names.clone().into()));
        let denied = Some(&server.tools.denied).filter(|names| !names.is_empty());
        let denied = denied.map(|names| ("deny".to_owned(), names.clone().into()));
        self.put_table("tools", [allowed, denied].into_iter().flatten().collect());
        if !server.enabled {
            self.put("enabled", false);
        }
        if server.env_file.is_some() {
            self.report.warn(self.at.clone(), "its file of variables is left out; name them in `env`", None);
        }
    }

    fn oauth(&mut self, oauth: &OAuth) {
        self.put("auth", "oauth");
        let mut table = toml::Table::new();
        if let Some(id) = &oauth.client_id {
            table.insert("client_id".to_owned(), self.text(id).into());
        }
        if !oauth.scopes.is_empty() {
            table.insert("scopes".to_owned(), oauth.scopes.clone().into());
        }
        match oauth.client_secret.as_ref().map(|secret| &*secret.0) {
            None => {}
            Some([Piece::Env { name, default: None }]) => {
                let source = toml::Table::from_iter([("env".to_owned(), name.as_str().into())]);
                table.insert("client_secret".to_owned(), source.into());
            }
            Some(_) => {
                self.refuse("its client secret is text of the file", "`weir import` puts it into a file of its own")
            }
        }
        self.put_table("oauth", table);
    }

    /// A text with its references as Weir writes them.
    fn text(&mut self, template: &Template) -> String {
        template.0.iter().map(|piece| self.piece(piece)).collect()
    }

    fn piece(&mut self, piece: &Piece) -> String {
        match piece {
            Piece::Literal(text) => text.replace("${", "$${"),
            Piece::Env { name, default } => {
                let is_set = self.environment.variable(name).is_some_and(|value| !value.is_empty());
                match default {
                    Some(default) if !is_set => default.clone(),
                    _ => format!("${{env:{name}}}"),
                }
            }
            Piece::UserHome => "${env:HOME}".to_owned(),
            Piece::Input { .. } | Piece::WorkspaceFolder | Piece::Command(_) => {
                self.refuse("a value is one that only the host can find out", "write what it stands for");
                String::new()
            }
        }
    }

    fn put(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.table.insert(key.to_owned(), value.into());
    }

    fn put_table(&mut self, key: &str, table: toml::Table) {
        if !table.is_empty() {
            self.put(key, table);
        }
    }

    fn refuse(&mut self, message: &str, hint: &str) {
        self.report.add(self.at.clone(), message, Some(hint.to_owned()));
    }
}

/// The value, all of which stands at this place.
fn placed(value: toml::Value, at: &Range<usize>) -> Node<'static> {
    let value = match value {
        toml::Value::Table(table) => DeValue::Table(
            table.into_iter().map(|(key, value)| (Spanned::new(at.clone(), key.into()), placed(value, at))).collect(),
        ),
        toml::Value::Array(values) => DeValue::Array(values.into_iter().map(|value| placed(value, at)).collect()),
        toml::Value::Boolean(yes) => DeValue::Boolean(yes),
        toml::Value::String(text) => DeValue::String(text.into()),
        // Nothing else is made here.
        other => DeValue::String(other.to_string().into()),
    };
    Spanned::new(at.clone(), value)
}
