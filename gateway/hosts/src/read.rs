//! Reads the servers out of a host's file.

mod bridge;
mod entry;
mod gateway;
mod oauth;

pub use bridge::read_command;
pub use gateway::{DockerFiles, read_gateway};

use std::collections::HashSet;

use crate::{
    Host, HostServers, ReadError, Server,
    value::{self, Map, Node, Value},
};

/// How many servers a file may have.
pub const MAX_SERVERS: usize = 1_000;

/// Reads all servers of a host's file. A file without any is no error.
pub fn read(host: Host, text: &str) -> Result<HostServers, ReadError> {
    let root = value::parse(host.format(), text)?;
    let mut reading = Reading { host, text, root: &root, names: HashSet::new(), found: HostServers::default() };
    for (path, value) in containers(host, &root) {
        reading.container(&path.join("."), value, None)?;
    }
    if host == Host::ClaudeCode {
        reading.projects()?;
    }
    Ok(reading.found)
}

/// The maps of servers in a file, the one that wins first.
pub(crate) fn containers(host: Host, root: &Value) -> Vec<(&'static [&'static str], &Value)> {
    let usable = |(path, value): &(&[&str], &Value)| match (host, *path) {
        // A server of the first form may be called `servers`.
        (Host::OpenCode, ["mcp", "servers"]) => !is_server(value),
        // Settings of the host have a key `mcp` for other things.
        (Host::VsCode, ["mcp", "servers"]) => value.map().is_some(),
        _ => value.node != Node::Null,
    };
    host.roots().iter().filter_map(|path| Some((*path, root.at(path)?))).filter(usable).collect()
}

fn is_server(value: &Value) -> bool {
    ["type", "url", "command"].iter().any(|key| value.at(&[key]).is_some_and(|value| value.map().is_none()))
}

struct Reading<'a> {
    host: Host,
    text: &'a str,
    root: &'a Value,
    /// Per project.
    names: HashSet<(Option<String>, String)>,
    found: HostServers,
}

impl Reading<'_> {
    fn container(&mut self, path: &str, value: &Value, project: Option<&str>) -> Result<(), ReadError> {
        let Some(servers) = value.map() else {
            let problem = format!("`{path}` is not a map of servers");
            return Err(value::error(self.text, value.at, problem, "Write one key for each server below it"));
        };
        for (name, value) in servers {
            let nested = self.host == Host::OpenCode && path == "mcp";
            if !(nested && (name == "timeout" || name == "servers" && !is_server(value))) {
                self.server(name, value, project)?;
            }
        }
        Ok(())
    }

    fn server(&mut self, name: &str, value: &Value, project: Option<&str>) -> Result<(), ReadError> {
        if !self.names.insert((project.map(str::to_owned), name.to_owned())) {
            self.found.not_carried.push(format!("`{name}` is given twice; the other entry wins."));
            return Ok(());
        }
        if self.names.len() > MAX_SERVERS {
            let problem = format!("The file has more than {MAX_SERVERS} servers");
            return Err(value::error(self.text, value.at, problem, "Remove servers that are not used"));
        }
        let read = match value.map() {
            Some(map) => entry::read(self.host, name, map, self.inputs()),
            None => Err(format!("`{name}` is not a map of keys.")),
        };
        match read {
            Ok(server) => {
                let line = value::error(self.text, value.at, "", "").line;
                self.found.servers.push(Server { line, project: project.map(str::to_owned), ..server });
            }
            Err(sentence) => self.found.not_carried.push(sentence),
        }
        Ok(())
    }

    /// What VS Code and MCP Hub ask the user for.
    fn inputs(&self) -> &[Value] {
        let inputs = self.root.at(&["inputs"]).or_else(|| self.root.at(&["mcp", "inputs"]));
        inputs.and_then(Value::list).unwrap_or_default()
    }

    fn projects(&mut self) -> Result<(), ReadError> {
        let empty = Map::new();
        for (directory, project) in self.root.at(&["projects"]).and_then(Value::map).unwrap_or(&empty) {
            if let Some(servers) = project.at(&["mcpServers"]).filter(|servers| servers.node != Node::Null) {
                self.container(&format!("projects.{directory}.mcpServers"), servers, Some(directory))?;
            }
        }
        Ok(())
    }
}
