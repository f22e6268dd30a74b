//! One entry of a host's file.

use std::collections::HashSet;

use super::{bridge, oauth};
use crate::{
    Host, Piece, Server, Template, ToolFilter, Transport,
    template::Form,
    value::{Map, Node, Value},
};

/// Reads one entry; a sentence says why it is no server for Weir.
pub(super) fn read(host: Host, name: &str, map: &Map, inputs: &[Value]) -> Result<Server, String> {
    let mut entry = Entry { host, map, inputs, seen: HashSet::new(), notes: Vec::new() };
    let mut server = Server { name: name.to_owned(), enabled: entry.enabled(), ..Server::default() };
    server.transport = entry.transport(name)?;
    entry.remote(&mut server);
    entry.command(&mut server);
    entry.settle(&mut server)?;
    server.timeout_seconds = entry.timeout();
    server.tools = entry.tools();
    oauth::read(&mut entry, &mut server);
    entry.leftovers();
    server.not_carried = entry.notes;
    bridge::replace(&mut server);
    Ok(server)
}

/// The keys of an entry, and which of them were looked at.
pub(super) struct Entry<'a> {
    pub(super) host: Host,
    map: &'a Map,
    inputs: &'a [Value],
    seen: HashSet<&'static str>,
    pub(super) notes: Vec<String>,
}

impl<'a> Entry<'a> {
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'a Value> {
        self.seen.insert(key);
        self.map.get(key).filter(|value| value.node != Node::Null)
    }

    /// The first of these keys that is given.
    fn first(&mut self, keys: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        let mut given = keys.iter().filter_map(|key| Some((*key, self.take(key)?))).collect::<Vec<_>>().into_iter();
        let first = given.next();
        for (key, _) in given {
            self.notes.push(format!("`{key}` repeats `{}`.", first.map_or("", |(key, _)| key)));
        }
        first
    }

    pub(super) fn wrong(&mut self, key: &str, expected: &str) {
        self.notes.push(format!("`{key}` is not {expected}."));
    }

    fn texts(&mut self, keys: &[&'static str]) -> Option<Template> {
        let (key, value) = self.first(keys)?;
        let text = value.scalar();
        if text.is_none() {
            self.wrong(key, "a text");
        }
        Some(self.template(key, &text?))
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        let value = self.take(key)?;
        let text = value.scalar();
        if text.is_none() {
            self.wrong(key, "a text");
        }
        text
    }

    pub(super) fn list(&mut self, keys: &[&'static str]) -> Option<Vec<String>> {
        let (key, value) = self.first(keys)?;
        let list = value.list().map(|list| list.iter().filter_map(Value::scalar).collect::<Vec<_>>());
        if list.as_ref().map(Vec::len) != value.list().map(<[_]>::len) || list.is_none() {
            self.wrong(key, "a list of texts");
        }
        list
    }

    /// The references of a value, with what the file says about inputs.
    pub(super) fn template(&mut self, key: &str, text: &str) -> Template {
        let forms = self.host.forms();
        let mut template = Template::parse(text, forms);
        if template.has_unknown(forms) {
            self.notes.push(format!("`{key}` has a reference that Weir cannot resolve."));
        }
        for piece in &mut template.0 {
            if let Piece::Input { id, description, password } = piece {
                let same = |input: &&Value| input.at(&["id"]).and_then(Value::text) == Some(id);
                let input = self.inputs.iter().find(same);
                *description = input.and_then(|input| input.at(&["description"])?.scalar());
                *password = input.and_then(|input| input.at(&["password"])?.bool()).unwrap_or(false);
            }
        }
        template
    }

    /// Names with values. A variable without a value comes from the environment.
    fn pairs(&mut self, keys: &[&'static str]) -> Vec<(String, Template)> {
        let Some((key, value)) = self.first(keys) else { return Vec::new() };
        let Some(map) = value.map() else {
            self.wrong(key, "a map of texts");
            return Vec::new();
        };
        let mut pairs = Vec::new();
        for (name, value) in map {
            match value.scalar() {
                Some(text) => pairs.push((name.clone(), self.template(name, &text))),
                None if value.node == Node::Null => pairs.push((name.clone(), Template::env(name))),
                None => self.wrong(&format!("{key}.{name}"), "a text"),
            }
        }
        pairs
    }

    fn enabled(&mut self) -> bool {
        let enabled = self.take("enabled").and_then(Value::bool).unwrap_or(true);
        let disabled = self.take("disabled").and_then(Value::bool).unwrap_or(false);
        enabled && !disabled
    }

    fn transport(&mut self, name: &str) -> Result<Option<Transport>, String> {
        self.seen.insert("name");
        self.zed_source(name)?;
        let Some((key, value)) = self.first(&["type", "transport"]) else { return Ok(None) };
        let text = value.scalar().unwrap_or_default();
        match text.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
            "http" | "streamablehttp" | "streamable" => Ok(Some(Transport::Http)),
            "sse" | "sselegacy" => Ok(Some(Transport::Sse)),
            "stdio" | "local" => Ok(Some(Transport::Stdio)),
            "remote" | "auto" => Ok(None),
            "ws" | "websocket" => Err(format!("`{name}` uses WebSocket, which Weir does not speak.")),
            "builtin" | "platform" | "frontend" | "inlinepython" if self.host == Host::Goose => {
                Err(format!("`{name}` is a part of Goose and no MCP server."))
            }
            _ => {
                self.wrong(key, "a transport that Weir knows");
                Ok(None)
            }
        }
    }

    fn zed_source(&mut self, name: &str) -> Result<(), String> {
        let source = (self.host == Host::Zed).then(|| self.text("source")).flatten();
        let empty = !self.map.contains_key("command") && !self.map.contains_key("url");
        match source.as_deref() {
            Some("extension") => Err(format!("`{name}` comes from a Zed extension.")),
            None if self.host == Host::Zed && empty => Err(format!("`{name}` comes from a Zed extension.")),
            _ => Ok(()),
        }
    }

    fn remote(&mut self, server: &mut Server) {
        if server.transport.is_none() && self.map.contains_key("httpUrl") {
            server.transport = Some(Transport::Http);
        }
        server.url = self.texts(&["httpUrl", "serverUrl", "url", "uri"]);
        if self.host == Host::Codex {
            server.headers = self.pairs(&["http_headers"]);
            let from_env = self.pairs(&["env_http_headers"]).into_iter();
            let variable = |(name, value): (String, Template)| Some((name, Template::env(value.as_literal()?)));
            server.headers.extend(from_env.filter_map(variable));
            if self.take("headers").is_some() {
                self.notes.push("Codex ignores `headers`; it sends `http_headers`.".into());
            }
        } else {
            server.headers = self.pairs(&["headers", "http_headers"]);
        }
        // MetaMCP's.
        if let Some(token) = self.text("bearerToken").filter(|token| !token.is_empty()) {
            let token = self.template("bearerToken", &format!("Bearer {token}"));
            server.headers.push(("Authorization".to_owned(), token));
        }
    }

    fn command(&mut self, server: &mut Server) {
        let command = self.first(&["command", "cmd"]);
        server.args = self.args("args");
        server.env = self.pairs(&["env", "envs", "environment"]);
        let inherited = self.inherited();
        server.env.extend(inherited);
        server.env_file = self.texts(&["envFile", "env_file"]);
        server.cwd = self.texts(&["cwd"]);
        match command {
            Some((_, Value { node: Node::List(words), .. })) => {
                let mut words: Vec<_> =
                    words.iter().filter_map(Value::scalar).map(|word| self.template("command", &word)).collect();
                if !words.is_empty() {
                    server.command = Some(words.remove(0));
                }
                server.args.splice(0..0, words);
            }
            Some((_, Value { node: Node::Map(map), .. })) => self.nested(map, server),
            Some((key, value)) => server.command = value.scalar().map(|text| self.template(key, &text)),
            None => {}
        }
    }

    fn args(&mut self, key: &'static str) -> Vec<Template> {
        let args = self.list(&[key]).unwrap_or_default();
        args.iter().map(|arg| self.template(key, arg)).collect()
    }

    /// The names of variables that the host hands on: plain (Codex, Goose), or with a source (Codex).
    fn inherited(&mut self) -> Vec<(String, Template)> {
        let given = self.first(&["env_vars", "env_keys"]).and_then(|(_, value)| value.list()).unwrap_or_default();
        let names = given.iter().filter_map(|value| value.text().or_else(|| value.at(&["name"])?.text()));
        names.map(|name| (name.to_owned(), Template::env(name))).collect()
    }

    /// Older files of Zed have a map with `path`, `args` and `env`.
    fn nested(&mut self, map: &Map, server: &mut Server) {
        let mut inner = Entry { host: self.host, map, inputs: self.inputs, seen: HashSet::new(), notes: Vec::new() };
        server.command = inner.texts(&["path"]);
        server.args = inner.args("args");
        server.env = inner.pairs(&["env"]);
        inner.leftovers();
        self.notes.append(&mut inner.notes);
    }

    /// Decides between a URL and a command.
    fn settle(&mut self, server: &mut Server) -> Result<(), String> {
        let stdio = server.transport == Some(Transport::Stdio) || server.url.is_none();
        if stdio && server.command.is_none() {
            let missing = if server.transport == Some(Transport::Stdio) { "command" } else { "URL and no command" };
            return Err(format!("`{}` has no {missing}.", server.name));
        }
        if stdio {
            server.transport = Some(Transport::Stdio);
            self.drop_if("`url` has no use for a command.", server.url.take().is_some());
            let headers = std::mem::take(&mut server.headers);
            self.drop_if("`headers` have no use for a command.", !headers.is_empty());
            return Ok(());
        }
        if self.host == Host::Codex {
            server.transport = Some(Transport::Http);
        }
        let env = std::mem::take(&mut server.env);
        if self.host == Host::Goose {
            server.headers.iter_mut().for_each(|(_, value)| value.substitute(&env));
        }
        self.drop_if("The URL is used and the command is not.", server.command.take().is_some());
        self.drop_if("Variables have no use for a remote server.", !env.is_empty() && self.host != Host::Goose);
        self.drop_if("`envFile` has no use for a remote server.", server.env_file.take().is_some());
        server.args.clear();
        server.cwd = None;
        Ok(())
    }

    fn drop_if(&mut self, sentence: &str, given: bool) {
        if given {
            self.notes.push(sentence.to_owned());
        }
    }

    fn timeout(&mut self) -> Option<u64> {
        let (key, unit) = match self.host {
            Host::Codex => ("tool_timeout_sec", 1.0),
            Host::McpToml => ("timeout_seconds", 1.0),
            Host::Goose => ("timeout", 1.0),
            Host::ClaudeCode | Host::GeminiCli | Host::FastMcp => ("timeout", 1000.0),
            _ => return None,
        };
        let value = self.take(key)?;
        let seconds = value.number().map(|number| (number / unit).ceil()).filter(|seconds| *seconds >= 1.0);
        if seconds.is_none() {
            self.wrong(key, "a duration above zero");
        }
        // The conversion saturates.
        seconds.map(|seconds| seconds as u64)
    }

    fn tools(&mut self) -> ToolFilter {
        let mut allowed = self.list(&["includeTools", "enabled_tools", "enabledTools", "available_tools"]);
        if self.map.get("tools").is_some_and(|tools| tools.list().is_some()) {
            allowed = allowed.or(self.list(&["tools"]));
        }
        // In Goose, an empty list stands for all tools.
        let all =
            |list: &Vec<String>| list.iter().any(|tool| tool == "*") || list.is_empty() && self.host == Host::Goose;
        let allowed = allowed.filter(|list| !all(list));
        let denied = self.list(&["excludeTools", "disabled_tools", "disabledTools"]).unwrap_or_default();
        ToolFilter { allowed, denied }
    }

    fn leftovers(&mut self) {
        let keys = self.map.iter().filter(|(key, value)| !self.seen.contains(key.as_str()) && value.node != Node::Null);
        let sentences: Vec<_> = keys.map(|(key, _)| sentence(self.host, key)).collect();
        self.notes.extend(sentences);
    }
}

/// Why a key is not carried.
fn sentence(host: Host, key: &str) -> String {
    let why = match key {
        "headersHelper" | "headers_helper" => "runs a program for headers; give Weir a token instead",
        "trust" | "alwaysAllow" | "autoApprove" | "autoAllow" | "default_tools_approval_mode" | "tools" => {
            "is about approval, which stays with the host"
        }
        "description" | "icon" | "display_name" | "bundled" | "title" => "only describes the entry in the host",
        "timeout" if host == Host::OpenCode => "limits only how long opencode waits for the list of tools",
        "timeout" => "has no unit that Weir knows",
        "startup_timeout_sec" | "startup_timeout_ms" => "limits the start, which Weir limits itself",
        "sandboxEnabled" | "sandbox" => "is a sandbox of the host",
        "authProviderType" | "targetAudience" | "targetServiceAccount" => "is a sign-in of Google",
        _ => "has no counterpart in Weir",
    };
    format!("`{key}` {why}.")
}

pub(super) const BRACES: &[Form] = &[Form::Braces];
