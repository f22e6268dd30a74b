//! agentgateway: `binds` with `listeners`, `routes`, `backends` and `mcp.targets`, or the short form with `mcp` alone.

use super::{line, put};
use crate::{
    Host, HostServers, MAX_SERVERS, Server,
    read::entry,
    value::{Map, Node, Value},
};

/// Keys that lead to targets.
const LEVELS: &[&str] = &["binds", "listeners", "routes", "backends", "mcp"];
/// Keys that only name or weigh what they stand in.
const SILENT: &[&str] = &["name", "namespace", "ruleName", "weight", "protocol"];

pub(super) fn is_file(root: &Value) -> bool {
    let targets = |path: &[&str]| root.at(path).and_then(Value::list).is_some();
    targets(&["binds"]) || targets(&["mcp", "targets"])
}

pub(super) fn read(text: &str, root: &Value) -> HostServers {
    let mut reading = TargetReader { text, found: HostServers::default() };
    reading.level(root, None);
    reading.found
}

struct TargetReader<'a> {
    text: &'a str,
    found: HostServers,
}

impl TargetReader<'_> {
    /// Looks for targets below a value. `policies` are those of the levels above, the nearest ones.
    fn level(&mut self, value: &Value, policies: Option<&Value>) {
        for value in value.list().unwrap_or_default() {
            self.level(value, policies);
        }
        let Some(map) = value.map() else { return };
        let policies = map.get("policies").or(policies);
        for (key, inner) in map {
            match key.as_str() {
                "targets" => inner.list().unwrap_or_default().iter().for_each(|target| self.target(target, policies)),
                "policies" => self.policies(inner),
                key if LEVELS.contains(&key) => self.level(inner, policies),
                key if SILENT.contains(&key) => {}
                key => self.note(key),
            }
        }
    }

    fn policies(&mut self, policies: &Value) {
        for key in policies.map().into_iter().flat_map(Map::keys).filter(|key| !CARRIED.contains(&key.as_str())) {
            self.note(key);
        }
    }

    /// Says once why a key is left out.
    fn note(&mut self, key: &str) {
        let why = match key {
            "port" => "is `listen` in Weir's configuration",
            "tls" => "is `[tls]` in Weir's configuration",
            "mcpAuthentication" | "jwtAuth" | "oidc" => "is `[auth]` in Weir's configuration",
            "apiKey" => "is `weir key add` in Weir",
            "mcpAuthorization" | "authorization" => "is `[[access.rules]]` in Weir's configuration",
            "localRateLimit" | "remoteRateLimit" => "is `[limits]` in Weir's configuration",
            "matches" | "hostnames" => "has no counterpart; each server has its own path, `/mcp/NAME`",
            _ => "has no counterpart in Weir",
        };
        let sentence = format!("`{key}` {why}.");
        if !self.found.not_carried.contains(&sentence) {
            self.found.not_carried.push(sentence);
        }
    }

    fn target(&mut self, target: &Value, policies: Option<&Value>) {
        let name = target.at(&["name"]).and_then(Value::scalar).unwrap_or_default();
        let full = self.found.servers.len() >= MAX_SERVERS;
        match entry_of(&name, target).and_then(|entry| entry::read(Host::GeminiCli, &name, &entry, &[])) {
            _ if full => {
                self.found.not_carried.push(format!("`{name}` is left out: there are more than {MAX_SERVERS}."))
            }
            _ if self.found.servers.iter().any(|server| server.name == name) => {
                self.found.not_carried.push(format!("`{name}` is given twice; the first target wins."));
            }
            Err(sentence) => self.found.not_carried.push(sentence),
            Ok(mut server) => {
                server.line = line(self.text, target);
                let own = target.at(&["policies"]);
                own.into_iter().for_each(|own| self.policies(own));
                credential(&mut server, own.or(policies));
                if target.at(&["stdio", "clear_env"]).or(target.at(&["stdio", "clearEnv"])).is_none() {
                    let env =
                        "agentgateway gives the program all of its environment; name what it needs in `inherit_env`.";
                    server.not_carried.extend(server.url.is_none().then(|| env.to_owned()));
                }
                self.found.servers.push(server);
            }
        }
    }
}

/// Policies that a server shows.
const CARRIED: &[&str] = &["backendAuth", "backendTLS"];

/// A target in the form that most hosts share.
fn entry_of(name: &str, target: &Value) -> Result<Map, String> {
    let mut entry = Map::new();
    let kinds = ["stdio", "mcp", "sse"].into_iter();
    let Some((kind, spec)) = kinds.filter_map(|kind| Some((kind, target.at(&[kind])?))).next() else {
        let openapi = target.at(&["openapi"]).is_some();
        let why = if openapi {
            "makes tools of an OpenAPI document, which Weir does not"
        } else {
            "has no kind that Weir knows"
        };
        return Err(format!("`{name}` {why}."));
    };
    if kind == "stdio" {
        for (theirs, ours) in [("cmd", "command"), ("args", "args"), ("env", "env")] {
            if let Some(value) = spec.at(&[theirs]) {
                entry.insert(ours.to_owned(), value.clone());
            }
        }
        return Ok(entry);
    }
    let part = |key: &str| spec.at(&[key]).and_then(Value::scalar);
    let tls = target.at(&["policies", "backendTLS"]).is_some();
    let url = match (part("host"), part("port"), part("path")) {
        (Some(url), None, None) if url.contains("://") => url,
        (Some(host), port, path) => {
            let port = port.map_or_else(String::new, |port| format!(":{port}"));
            format!("{}://{host}{port}{}", if tls { "https" } else { "http" }, path.unwrap_or_default())
        }
        (None, ..) => return Err(format!("`{name}` leads to a backend by its name; give its URL to `weir add`.")),
    };
    put(&mut entry, "url", Node::Text(url));
    put(&mut entry, "type", Node::Text(if kind == "sse" { "sse" } else { "http" }.to_owned()));
    Ok(entry)
}

/// The key of `backendAuth` as a bearer token.
fn credential(server: &mut Server, policies: Option<&Value>) {
    let Some(auth) = policies.and_then(|policies| policies.at(&["backendAuth"])).filter(|_| server.url.is_some())
    else {
        return;
    };
    match auth.at(&["key"]) {
        Some(key) if key.text().is_some() => {
            let text = format!("Bearer {}", key.text().unwrap_or_default());
            let value = crate::Template::parse(&text, Host::GeminiCli.forms());
            server.headers.push(("Authorization".to_owned(), value));
        }
        Some(key) if key.at(&["file"]).is_some() => {
            server.not_carried.push("`backendAuth` reads a file; write `bearer = { file = \"PATH\" }`.".to_owned());
        }
        _ => server.not_carried.push("`backendAuth` is of a kind other than `key`; see `auth` of Weir.".to_owned()),
    }
}
