//! Commands that only carry MCP from one transport to another: `mcp-remote`, `supergateway`, `mcp-proxy`.

use super::entry::BRACES;
use crate::{
    HostServers, Piece, Server, Template, Transport,
    value::{self, Format, Value},
};

/// What starts a program of a package, with the words that go with it.
const RUNNERS: &[&str] = &[
    "cmd", "/c", "npx", "bunx", "pnpx", "pnpm", "yarn", "dlx", "uvx", "uv", "tool", "run", "pipx", "npm", "exec",
    "bun", "x",
];
/// Options of runners that a value follows.
const RUNNER_VALUES: &[&str] = &["-p", "--package", "--from", "--with", "--python"];

/// A program that reaches a remote server for a host that cannot.
struct Bridge {
    name: &'static str,
    /// How many values follow an option.
    values: fn(&str) -> usize,
    /// Adds what an option says; false if Weir cannot.
    option: fn(&mut Remote, &str, &[Template]) -> bool,
}

const BRIDGES: &[Bridge] = &[
    Bridge { name: "mcp-remote", values: remote_values, option: remote_option },
    Bridge { name: "supergateway", values: supergateway_values, option: supergateway_option },
    Bridge { name: "mcp-proxy", values: proxy_values, option: proxy_option },
];

/// What the arguments of a bridge mean.
#[derive(Default)]
struct Remote {
    server: Server,
    /// Whether the arguments ask for a command to be served instead.
    serves: bool,
    /// The command that is served, in words.
    words: Vec<Template>,
    /// Commands that are served under a name of their own.
    named: Vec<(String, Vec<Template>)>,
}

/// Turns a server that starts a bridge into the remote server behind it.
pub(super) fn replace(server: &mut Server) {
    let Some((bridge, args)) = find(server) else { return };
    let remote = understand(bridge, &args, &server.env);
    if remote.serves || remote.server.url.is_none() {
        return;
    }
    let env = std::mem::take(&mut server.env);
    let used =
        |name: &str| args.iter().any(|arg| mentions(arg, name)) || bridge.name == "mcp-proxy" && name == PROXY_TOKEN;
    for (name, _) in env.iter().filter(|(name, _)| !used(name)) {
        server.not_carried.push(format!("The variable `{name}` is for {}.", bridge.name));
    }
    server.not_carried.extend(remote.server.not_carried);
    server.transport = remote.server.transport;
    server.url = remote.server.url;
    server.headers = remote.server.headers;
    server.oauth = remote.server.oauth.or(server.oauth.take());
    server.tools.denied.extend(remote.server.tools.denied);
    server.bridge = Some(bridge.name.to_owned());
    server.command = None;
    server.args = Vec::new();
}

/// The servers behind a command line such as `supergateway --stdio COMMAND` or `mcp-remote URL`, which Weir reaches itself.
///
/// None if the program is no such bridge, or nothing is behind it.
pub fn read_command(words: &[String]) -> Option<HostServers> {
    let (program, args) = words.split_first()?;
    let mut server = Server {
        command: Some(Template::literal(program)),
        args: args.iter().map(Template::literal).collect(),
        line: 1,
        enabled: true,
        ..Server::default()
    };
    let (bridge, args) = find(&server)?;
    let mut remote = understand(bridge, &args, &[]);
    let mut servers = Vec::new();
    if let Some(url) = remote.server.url.as_ref().filter(|_| !remote.serves) {
        server.name = name_of_url(url.0.first());
        replace(&mut server);
        servers.push(server);
    } else {
        let served = Server { line: 1, enabled: true, bridge: Some(bridge.name.to_owned()), ..remote.server };
        let stdio = |name: String, words: Vec<Template>, server: Server| {
            let mut words = words.into_iter();
            let (command, transport) = (words.next(), Some(Transport::Stdio));
            Server { name, transport, command, args: words.collect(), headers: Vec::new(), ..server }
        };
        for (name, words) in std::mem::take(&mut remote.named) {
            // Variables and a directory are those of the command without a name.
            let own = Server { env: Vec::new(), cwd: None, ..served.clone() };
            servers.push(stdio(name, words, own));
        }
        if !remote.words.is_empty() {
            servers.push(stdio(name_of_program(&remote.words), remote.words, served));
        }
    }
    servers.retain(|server| server.url.is_some() || server.command.is_some());
    (!servers.is_empty()).then_some(HostServers { servers, not_carried: Vec::new() })
}

/// `https://mcp.linear.app/sse` is `linear`.
fn name_of_url(first: Option<&Piece>) -> String {
    let Some(Piece::Literal(url)) = first else { return "remote".to_owned() };
    let host = url.split("://").nth(1).unwrap_or_default().split(['/', ':', '?']).next().unwrap_or_default();
    let labels: Vec<&str> = host.split('.').collect();
    match labels.as_slice() {
        _ if host.parse::<std::net::IpAddr>().is_ok() => "remote".to_owned(),
        [.., name, _] => (*name).to_owned(),
        _ => host.to_owned(),
    }
}

/// `npx -y @modelcontextprotocol/server-filesystem /data` is `filesystem`.
fn name_of_program(words: &[Template]) -> String {
    let words = words.iter().filter_map(Template::as_literal);
    let mut names = words.filter(|word| !word.starts_with('-')).map(base).filter(|word| !RUNNERS.contains(word));
    let name = names.next().unwrap_or("server");
    let short = ["mcp-server-", "server-", "mcp-"].iter().find_map(|start| name.strip_prefix(start)).unwrap_or(name);
    ["-mcp-server", "-mcp"].iter().find_map(|end| short.strip_suffix(end)).unwrap_or(short).to_owned()
}

const PROXY_TOKEN: &str = "API_ACCESS_TOKEN";

fn mentions(arg: &Template, name: &str) -> bool {
    arg.0.iter().any(|piece| matches!(piece, Piece::Env { name: found, .. } if found == name))
}

/// The bridge that a server starts, and its arguments with references told apart.
fn find(server: &Server) -> Option<(&'static Bridge, Vec<Template>)> {
    let mut words = server.command.iter().chain(&server.args);
    let program = loop {
        let word = words.next()?.as_literal()?;
        if RUNNER_VALUES.contains(&word) {
            words.next();
        } else if !word.starts_with('-') && !RUNNERS.contains(&base(word).to_ascii_lowercase().as_str()) {
            break base(word);
        }
    };
    let bridge = BRIDGES.iter().find(|bridge| bridge.name == program)?;
    Some((bridge, words.map(references).collect()))
}

/// `/usr/bin/npx` and `npx.cmd` are `npx`; `npm:mcp-remote@latest` is `mcp-remote`.
fn base(word: &str) -> &str {
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word);
    let name = if name.is_empty() { word } else { name };
    let name = name.strip_prefix("npm:").unwrap_or(name);
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    name.strip_suffix(".cmd").or(name.strip_suffix(".exe")).unwrap_or(name)
}

/// Bridges resolve `${VAR}` themselves, whatever the host does.
fn references(arg: &Template) -> Template {
    let mut parsed = Template::default();
    for piece in &arg.0 {
        match piece {
            Piece::Literal(text) => Template::parse(text, BRACES).0.into_iter().for_each(|piece| parsed.push(piece)),
            piece => parsed.push(piece.clone()),
        }
    }
    parsed
}

fn understand(bridge: &Bridge, args: &[Template], env: &[(String, Template)]) -> Remote {
    let mut remote = Remote::default();
    let mut rest = args;
    while let Some((arg, after)) = rest.split_first() {
        rest = after;
        if arg.as_literal() == Some("--") {
            remote.serve(rest);
            break;
        }
        let Some(option) = arg.as_literal().filter(|text| text.starts_with('-')) else {
            positional(bridge, &mut remote, arg);
            continue;
        };
        let (option, inline) = match option.split_once('=') {
            Some((option, value)) => (option, vec![Template::literal(value)]),
            None => (option, Vec::new()),
        };
        let count = if inline.is_empty() { (bridge.values)(option).min(rest.len()) } else { 0 };
        let (values, after) = rest.split_at(count);
        rest = after;
        let values = if inline.is_empty() { values } else { &inline };
        if bridge.name != "mcp-remote" && LISTENING.contains(&option) {
            remote.note(format!("The option `{option}` is `listen` in Weir's configuration."));
        } else if !(bridge.option)(&mut remote, option, values) {
            remote.note(format!("The option `{option}` of {} has no counterpart in Weir.", bridge.name));
        }
    }
    if bridge.name == "mcp-proxy" {
        remote.server.transport.get_or_insert(Transport::Sse);
        if env.iter().any(|(name, _)| name == PROXY_TOKEN) {
            remote.bearer(&Template::env(PROXY_TOKEN));
        }
    }
    let Server { headers, url, .. } = &mut remote.server;
    headers.iter_mut().map(|(_, value)| value).chain(url).for_each(|value| value.substitute(env));
    remote
}

/// A URL, the command of `mcp-proxy`, or the port for the callback of `mcp-remote`, behind the URL.
fn positional(bridge: &Bridge, remote: &mut Remote, arg: &Template) {
    let text = match arg.0.first() {
        Some(Piece::Literal(text)) => text.as_str(),
        _ => "",
    };
    match text.parse::<u16>() {
        // Origins, behind `--cors`.
        _ if bridge.name == "supergateway" => {}
        _ if remote.server.url.is_none() && remote.words.is_empty() && is_url(text) => {
            remote.server.url = Some(arg.clone());
        }
        Ok(port) if remote.server.url.is_some() => {
            remote.note(format!("The port {port} is for the callback of mcp-remote."));
        }
        _ if bridge.name == "mcp-proxy" => remote.serve(std::slice::from_ref(arg)),
        _ => remote.serves = true,
    }
}

/// Where a bridge that serves a command listens.
const LISTENING: &[&str] = &["--port", "--host", "--sse-port", "--sse-host"];

fn is_url(text: &str) -> bool {
    text.starts_with("https://") || text.starts_with("http://")
}

fn remote_values(option: &str) -> usize {
    let flags = ["--allow-http", "--debug", "--silent", "--enable-proxy", "--insecure", "--clean"];
    usize::from(!flags.contains(&option))
}

fn remote_option(remote: &mut Remote, option: &str, values: &[Template]) -> bool {
    let text = values.first().and_then(Template::as_literal);
    match (option, text) {
        ("--allow-http" | "--debug" | "--silent" | "--clean", _) => {}
        ("--transport", Some("http-only")) => remote.server.transport = Some(Transport::Http),
        ("--transport", Some("sse-only")) => remote.server.transport = Some(Transport::Sse),
        ("--transport", Some("http-first")) => remote.server.transport = None,
        ("--ignore-tool", Some(tool)) => remote.server.tools.denied.push(tool.to_owned()),
        ("--resource", Some(resource)) => {
            remote.server.oauth.get_or_insert_default().resource = Some(resource.to_owned());
        }
        ("--static-oauth-client-info", Some(json)) => return remote.client(json),
        ("--header", _) => return values.first().is_some_and(|header| remote.header(header)),
        _ => return false,
    }
    true
}

fn supergateway_values(option: &str) -> usize {
    usize::from(!matches!(option, "--cors" | "--stateful"))
}

fn supergateway_option(remote: &mut Remote, option: &str, values: &[Template]) -> bool {
    match (option, values.first()) {
        ("--sse", Some(url)) => remote.at(Transport::Sse, url),
        ("--streamableHttp", Some(url)) => remote.at(Transport::Http, url),
        ("--header", Some(header)) => return remote.header(header),
        ("--oauth2Bearer", Some(token)) => remote.bearer(token),
        ("--stdio", Some(command)) => remote.serve(&shell(command)),
        ("--outputTransport", Some(output)) => remote.serves |= output.as_literal() != Some("stdio"),
        ("--logLevel", _) => {}
        _ => return false,
    }
    true
}

fn proxy_values(option: &str) -> usize {
    match option {
        "-H" | "--headers" | "-e" | "--env" | "--named-server" => 2,
        "--debug"
        | "--no-debug"
        | "--pass-environment"
        | "--no-pass-environment"
        | "--stateless"
        | "--no-stateless" => 0,
        "--digest" | "--no-verify-ssl" | "--version" => 0,
        _ => 1,
    }
}

fn proxy_option(remote: &mut Remote, option: &str, values: &[Template]) -> bool {
    match (option, values) {
        ("-H" | "--headers", [name, value]) => {
            let Some(name) = name.as_literal() else { return false };
            remote.server.headers.push((name.to_owned(), value.clone()));
        }
        ("--transport", [transport]) => {
            let http = transport.as_literal().is_some_and(|text| text.starts_with("streamable"));
            remote.server.transport = Some(if http { Transport::Http } else { Transport::Sse });
        }
        ("-e" | "--env", [name, value]) => {
            let Some(name) = name.as_literal() else { return false };
            remote.server.env.push((name.to_owned(), value.clone()));
        }
        ("--cwd", [directory]) => remote.server.cwd = Some(directory.clone()),
        ("--named-server", [name, command]) => {
            let Some(name) = name.as_literal() else { return false };
            remote.serves = true;
            remote.named.push((name.to_owned(), shell(command)));
        }
        ("--pass-environment", _) => {
            remote.note(
                "`--pass-environment` passes all variables; name those that it needs in `inherit_env`.".to_owned(),
            );
        }
        ("--debug" | "--no-debug", _) => {}
        _ => return false,
    }
    true
}

/// The words of a command that a shell would start. What only a shell can do stays with `sh -c`.
fn shell(command: &Template) -> Vec<Template> {
    let plain = |text: &&str| !text.contains(['|', '&', ';', '<', '>', '$', '`', '(', '*', '?', '~']);
    let words = command.as_literal().filter(plain).and_then(shlex::split).filter(|words| !words.is_empty());
    match words {
        Some(words) => words.into_iter().map(Template::literal).collect(),
        None => vec![Template::literal("sh"), Template::literal("-c"), command.clone()],
    }
}

impl Remote {
    fn serve(&mut self, words: &[Template]) {
        self.serves = true;
        self.words.extend_from_slice(words);
    }

    fn note(&mut self, sentence: String) {
        self.server.not_carried.push(sentence);
    }

    fn at(&mut self, transport: Transport, url: &Template) {
        self.server.transport = Some(transport);
        self.server.url = Some(url.clone());
    }

    fn bearer(&mut self, token: &Template) {
        let mut value = Template::literal("Bearer ");
        token.0.iter().for_each(|piece| value.push(piece.clone()));
        self.server.headers.push(("Authorization".into(), value));
    }

    /// `Name: value`
    fn header(&mut self, header: &Template) -> bool {
        let Some((Piece::Literal(first), rest)) = header.0.split_first() else { return false };
        let Some((name, value)) = first.split_once(':') else { return false };
        let mut template = Template::default();
        if !value.trim_start().is_empty() {
            template.push(Piece::Literal(value.trim_start().to_owned()));
        }
        rest.iter().for_each(|piece| template.push(piece.clone()));
        self.server.headers.push((name.trim().to_owned(), template));
        true
    }

    fn client(&mut self, json: &str) -> bool {
        let Ok(info) = value::parse(Format::Jsonc, json) else { return false };
        let field = |key: &str| info.at(&[key]).and_then(Value::text).map(Template::literal);
        let oauth = self.server.oauth.get_or_insert_default();
        (oauth.client_id, oauth.client_secret) = (field("client_id"), field("client_secret"));
        oauth.client_id.is_some()
    }
}
