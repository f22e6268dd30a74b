//! What a host's file says about its servers.

use crate::Template;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE, which MCP deprecated.
    Sse,
    Stdio,
}

/// One server as the host's file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    pub name: String,
    /// The line of the entry, from 1.
    pub line: usize,
    /// The project directory an entry of Claude Code is for. Without one, it is for all.
    pub project: Option<String>,
    /// Without one, the client tries Streamable HTTP first and HTTP+SSE then.
    pub transport: Option<Transport>,
    pub url: Option<Template>,
    pub headers: Vec<(String, Template)>,
    pub command: Option<Template>,
    pub args: Vec<Template>,
    pub env: Vec<(String, Template)>,
    pub env_file: Option<Template>,
    pub cwd: Option<Template>,
    pub enabled: bool,
    /// Rounded up.
    pub timeout_seconds: Option<u64>,
    /// Given where the entry says that the host signs in with OAuth.
    pub oauth: Option<OAuth>,
    /// The variable that holds a bearer token.
    pub bearer_env: Option<String>,
    pub tools: ToolFilter,
    /// The program, such as `mcp-remote`, that the entry starts to reach the remote server given here.
    pub bridge: Option<String>,
    /// One sentence for each key that this server does not show.
    pub not_carried: Vec<String>,
}

impl Server {
    /// The transport, where it must not be found out by trying: `http` means all of HTTP to most hosts.
    pub const fn required_type(&self) -> Option<&'static str> {
        match self.transport {
            Some(Transport::Sse) => Some("sse"),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OAuth {
    pub client_id: Option<Template>,
    pub client_secret: Option<Template>,
    pub scopes: Vec<String>,
    pub resource: Option<String>,
    pub callback_port: Option<u16>,
    /// The metadata document of the authorization server.
    pub metadata_url: Option<String>,
}

/// Which tools of a server are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolFilter {
    /// Without a list, all are.
    pub allowed: Option<Vec<String>>,
    pub denied: Vec<String>,
}

/// All servers of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostServers {
    pub servers: Vec<Server>,
    /// One sentence for each entry that is no server Weir can reach.
    pub not_carried: Vec<String>,
}

impl HostServers {
    /// Leaves out the servers of other projects. The project's own servers come before the user's of the same name.
    pub fn in_project(mut self, directory: &str) -> Self {
        self.servers.retain(|server| server.project.as_deref().is_none_or(|project| project == directory));
        self.servers.sort_by_key(|server| server.project.is_none());
        let mut names = std::collections::HashSet::new();
        self.servers.retain(|server| names.insert(server.name.clone()));
        self
    }
}
