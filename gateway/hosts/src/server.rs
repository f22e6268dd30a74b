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
    /// A host starts programs of a project in its directory.
    fn in_its_project(&mut self) {
        if let (Some(project), None, Some(_)) = (&self.project, &self.cwd, &self.command) {
            self.cwd = Some(Template::literal(project));
        }
    }

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
    /// How many servers are of projects other than this one.
    pub fn elsewhere(&self, directory: &str) -> usize {
        let projects = self.servers.iter().filter_map(|server| server.project.as_deref());
        projects.filter(|project| *project != directory).count()
    }

    /// The servers of all projects, this one's first. Programs of a project get its directory. Another server of the same name
    /// is called after its project too.
    pub fn in_all_projects(mut self, directory: &str) -> Self {
        self.servers.sort_by_key(|server| {
            server.project.as_ref().map_or(1, |project| if project == directory { 0 } else { 2 })
        });
        let mut all: Vec<Server> = Vec::new();
        for mut server in self.servers {
            server.in_its_project();
            let same = |other: &Server| {
                Server { line: other.line, project: other.project.clone(), ..server.clone() } == *other
            };
            if all.iter().any(same) {
                continue;
            }
            let project = server.project.as_deref().unwrap_or_default();
            let folder = project.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or("user").to_owned();
            let own = server.name.clone();
            for number in 1.. {
                let is_taken = all.iter().any(|other| other.name == server.name);
                match (is_taken, number) {
                    (false, _) => break,
                    (true, 1) => server.name = format!("{own}-{folder}"),
                    (true, _) => server.name = format!("{own}-{folder}-{number}"),
                }
            }
            all.push(server);
        }
        self.servers = all;
        self
    }

    /// Leaves out the servers of other projects. The project's own servers come before the user's of the same name.
    pub fn in_project(mut self, directory: &str) -> Self {
        self.servers.retain(|server| server.project.as_deref().is_none_or(|project| project == directory));
        self.servers.sort_by_key(|server| server.project.is_none());
        let mut names = std::collections::HashSet::new();
        self.servers.retain(|server| names.insert(server.name.clone()));
        self.servers.iter_mut().for_each(Server::in_its_project);
        self
    }
}
