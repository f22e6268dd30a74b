//! Docker's MCP gateway: a catalog (`registry`), an exported profile (`servers`), or one server of either.

use super::{line, put, texts};
use crate::{
    Host, HostServers, MAX_SERVERS, Server,
    read::entry,
    value::{Map, Node, Value},
};

/// The options with which Docker's gateway starts containers, without its labels.
const RUN: &[&str] =
    &["run", "--rm", "-i", "--init", "--security-opt", "no-new-privileges", "--cpus", "1", "--memory", "2g"];
/// Keys that a server shows, and keys that only describe it.
const KNOWN: &[&str] = &[
    "name",
    "type",
    "title",
    "description",
    "icon",
    "image",
    "remote",
    "sseEndpoint",
    "command",
    "volumes",
    "user",
    "disableNetwork",
    "secrets",
    "env",
    "config",
    "tools",
    "toolsUrl",
    "prompts",
    "resources",
    "resourcesUrl",
    "promptsUrl",
    "metadata",
    "readme",
    "source",
    "upstream",
    "dateAdded",
    "ref",
    "longLived",
];

pub(super) fn is_file(root: &Value) -> bool {
    let has = |value: &Value, keys: &[&str]| keys.iter().any(|key| value.at(&[key]).is_some());
    let catalog = root.at(&["registry"]).and_then(Value::map);
    let profile = root.at(&["servers"]).and_then(Value::list);
    catalog.is_some_and(|all| all.values().any(|one| has(one, &["image", "remote", "ref", "sseEndpoint"])))
        || profile.is_some_and(|all| all.iter().any(|one| has(one, &["snapshot"])))
        || is_entry(root)
}

fn is_entry(root: &Value) -> bool {
    let kind = root.at(&["type"]).and_then(Value::text);
    root.at(&["name"]).is_some() && matches!(kind, Some("server" | "remote" | "poci"))
}

pub(super) fn read(text: &str, root: &Value, registry: Option<&Value>, config: Option<&Value>) -> HostServers {
    let mut found = HostServers::default();
    let used = registry.and_then(|registry| registry.at(&["registry"])).and_then(Value::map);
    let mut add = |name: &str, one: &Value, config: Option<&Value>, tools: Option<&Value>| {
        if found.servers.len() >= MAX_SERVERS {
            found.not_carried.push(format!("`{name}` is left out: there are more than {MAX_SERVERS}."));
            return;
        }
        match server(name, one, config, tools) {
            Ok(server) => found.servers.push(Server { line: line(text, one), ..server }),
            Err(sentence) => found.not_carried.push(sentence),
        }
    };
    let empty = Map::new();
    for (name, one) in root.at(&["registry"]).and_then(Value::map).unwrap_or(&empty) {
        if used.is_none_or(|used| used.contains_key(name)) {
            add(name, one, config, None);
        }
    }
    for one in root.at(&["servers"]).and_then(Value::list).unwrap_or_default() {
        let Some(snapshot) = one.at(&["snapshot", "server"]) else { continue };
        let name = snapshot.at(&["name"]).and_then(Value::scalar).unwrap_or_default();
        let own = one.at(&["config"]).map(|config| Map::from_iter([(name.clone(), config.clone())]));
        let own = own.map(|map| Value { node: Node::Map(map), at: 0 });
        add(&name, snapshot, own.as_ref(), one.at(&["tools"]));
    }
    if is_entry(root) {
        let name = root.at(&["name"]).and_then(Value::scalar).unwrap_or_default();
        add(&name, root, config, None);
    }
    found
}

/// One server as Weir would start or reach it; a sentence says why that cannot be.
fn server(name: &str, one: &Value, config: Option<&Value>, tools: Option<&Value>) -> Result<Server, String> {
    let reading = CatalogEntry { one, config };
    let mut notes = Vec::new();
    let mut map = if one.at(&["remote"]).or(one.at(&["sseEndpoint"])).is_some() {
        reading.remote()
    } else if one.at(&["image"]).is_some() {
        reading.container(&mut notes)
    } else if one.at(&["ref"]).is_some() {
        return Err(format!("`{name}` is only named here; import the catalog that describes it."));
    } else {
        return Err(format!("`{name}` starts a container for each call, which Weir does not."));
    };
    if let Some(tools) = tools.filter(|tools| tools.list().is_some()) {
        map.insert("includeTools".to_owned(), tools.clone());
    }
    for key in one.map().into_iter().flat_map(Map::keys).filter(|key| !KNOWN.contains(&key.as_str())) {
        notes.push(match key.as_str() {
            "allowHosts" => {
                "`allowHosts` is a network filter of Docker's gateway; limit the container yourself.".to_owned()
            }
            "oauth" if one.at(&["image"]).is_some() => "`oauth` is a sign-in of Docker Desktop.".to_owned(),
            "oauth" => {
                "`oauth` is a sign-in of Docker Desktop; Weir signs in itself, with `weir auth login`.".to_owned()
            }
            key => format!("`{key}` has no counterpart in Weir."),
        });
    }
    let mut server = entry::read(Host::McpHub, name, &map, &[])?;
    server.not_carried.append(&mut notes);
    Ok(server)
}

struct CatalogEntry<'a> {
    one: &'a Value,
    /// Maps of values by the names of servers.
    config: Option<&'a Value>,
}

impl<'a> CatalogEntry<'a> {
    fn remote(&self) -> Map {
        let mut map = Map::new();
        let text = |path: &[&str]| self.one.at(path).and_then(Value::scalar);
        let sse = self.one.at(&["remote"]).is_none() || text(&["remote", "transport_type"]).as_deref() == Some("sse");
        let url = text(&["remote", "url"]).or_else(|| text(&["sseEndpoint"])).unwrap_or_default();
        put(&mut map, "url", Node::Text(self.line(&url)));
        put(&mut map, "type", Node::Text(if sse { "sse" } else { "http" }.to_owned()));
        if let Some(headers) = self.one.at(&["remote", "headers"]).and_then(Value::map) {
            let header = |(name, value): (&String, &Value)| {
                let node = Node::Text(self.line(&value.scalar().unwrap_or_default()));
                (name.clone(), Value { node, at: 0 })
            };
            put(&mut map, "headers", Node::Map(headers.iter().map(header).collect()));
        }
        map
    }

    fn container(&self, notes: &mut Vec<String>) -> Map {
        let mut args: Vec<String> = RUN.iter().map(|arg| (*arg).to_owned()).collect();
        let mut env = Map::new();
        let named = |key: &str, value: &'a Value| value.at(&[key]).and_then(Value::scalar);
        for secret in self.list("secrets") {
            // A variable without a value comes from Weir's environment.
            env.extend(named("env", secret).map(|name| (name, Value { node: Node::Null, at: 0 })));
        }
        for variable in self.list("env") {
            let value = Node::Text(self.line(&named("value", variable).unwrap_or_default()));
            env.extend(named("name", variable).map(|name| (name, Value { node: value, at: 0 })));
        }
        args.extend(env.keys().flat_map(|name| ["-e".to_owned(), name.clone()]));
        let mut all = |key: &str| -> Vec<String> {
            let texts = self.list(key).iter().filter_map(Value::scalar);
            let known = |text: String| {
                let words = self.words(&text);
                if words.is_none() {
                    notes.push(format!("`{key}` has `{text}`, for which `config.yaml` has no value."));
                }
                words.unwrap_or_default()
            };
            texts.flat_map(known).collect()
        };
        let (volumes, command) = (all("volumes"), all("command"));
        args.extend(volumes.into_iter().flat_map(|volume| ["-v".to_owned(), volume]));
        if let Some(user) = self.one.at(&["user"]).and_then(Value::scalar) {
            args.extend(["--user".to_owned(), self.line(&user)]);
        }
        if self.one.at(&["disableNetwork"]).and_then(Value::bool) == Some(true) {
            args.extend(["--network".to_owned(), "none".to_owned()]);
        }
        args.extend(self.one.at(&["image"]).and_then(Value::scalar));
        args.extend(command);
        let mut map = Map::new();
        put(&mut map, "command", Node::Text("docker".to_owned()));
        put(&mut map, "args", texts(args));
        put(&mut map, "env", Node::Map(env));
        map
    }

    fn list(&self, key: &str) -> &'a [Value] {
        self.one.at(&[key]).and_then(Value::list).unwrap_or_default()
    }

    /// A text on one line. What `config.yaml` does not have is asked for.
    fn line(&self, text: &str) -> String {
        let mut line = String::new();
        let mut rest = text;
        while let Some((before, (expression, after))) =
            rest.split_once("{{").and_then(|(before, inner)| Some((before, inner.split_once("}}")?)))
        {
            let name = expression.split('|').next().unwrap_or_default().trim();
            let known = self.values(expression).filter(|values| values.len() == 1);
            line += before;
            line += &known.map_or_else(|| format!("${{input:{name}}}"), |mut values| values.remove(0));
            rest = after;
        }
        line + rest
    }

    /// A text as one argument, or one for each element of a list. None if a list is not known.
    fn words(&self, text: &str) -> Option<Vec<String>> {
        let whole =
            text.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")).filter(|inner| !inner.contains("{{"));
        match whole {
            Some(expression) if expression.contains('|') => self.values(expression),
            _ => Some(vec![self.line(text)]),
        }
    }

    /// The values of `server.key|filter`.
    fn values(&self, expression: &str) -> Option<Vec<String>> {
        let mut parts = expression.split('|').map(str::trim);
        let path: Vec<&str> = parts.next()?.split('.').collect();
        let value = self.config?.at(&path)?;
        let mut values = match value.list() {
            Some(list) => list.iter().filter_map(Value::scalar).collect(),
            None => vec![value.scalar()?],
        };
        for filter in parts {
            let apply: fn(String) -> String = match filter {
                "into" => |value| value,
                "volume" => |value| if value.contains(':') { value } else { format!("{value}:{value}") },
                "volume-target" => |value| value.split(':').nth(1).map_or(value.clone(), str::to_owned),
                _ => return None,
            };
            values = values.into_iter().map(apply).collect();
        }
        Some(values)
    }
}
