//! Commands that only reach a remote server: `mcp-remote`, `supergateway`, `mcp-proxy`.

use super::entry::BRACES;
use crate::{
    Piece, Server, Template, Transport,
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
}

/// Turns a server that starts a bridge into the remote server behind it.
pub(super) fn replace(server: &mut Server) {
    let Some((bridge, args)) = find(server) else { return };
    let Some(remote) = understand(bridge, &args, server.env.clone()) else { return };
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

fn understand(bridge: &Bridge, args: &[Template], env: Vec<(String, Template)>) -> Option<Remote> {
    let mut remote = Remote::default();
    let mut rest = args;
    while let Some((arg, after)) = rest.split_first() {
        rest = after;
        let Some(option) = arg.as_literal().filter(|text| text.starts_with('-')) else {
            positional(&mut remote, arg);
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
        if !(bridge.option)(&mut remote, option, values) {
            remote
                .server
                .not_carried
                .push(format!("The option `{option}` of {} has no counterpart in Weir.", bridge.name));
        }
    }
    if bridge.name == "mcp-proxy" {
        remote.server.transport.get_or_insert(Transport::Sse);
        if env.iter().any(|(name, _)| name == PROXY_TOKEN) {
            remote.bearer(&Template::env(PROXY_TOKEN));
        }
    }
    remote.server.headers.iter_mut().for_each(|(_, value)| value.substitute(&env));
    remote.server.url.as_mut()?.substitute(&env);
    (!remote.serves).then_some(remote)
}

/// A URL; or the port for the callback of `mcp-remote`, behind the URL.
fn positional(remote: &mut Remote, arg: &Template) {
    let text = match arg.0.first() {
        Some(Piece::Literal(text)) => text.as_str(),
        _ => "",
    };
    match text.parse::<u16>() {
        _ if remote.server.url.is_none() && is_url(text) => remote.server.url = Some(arg.clone()),
        Ok(port) if remote.server.url.is_some() => {
            remote.server.not_carried.push(format!("The port {port} is for the callback of mcp-remote."));
        }
        _ => remote.serves = true,
    }
}

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
        ("--stdio", _) => remote.serves = true,
        ("--outputTransport", Some(output)) => remote.serves |= output.as_literal() != Some("stdio"),
        ("--logLevel", _) => {}
        _ => return false,
    }
    true
}

fn proxy_values(option: &str) -> usize {
    match option {
        "-H" | "--headers" => 2,
        "--debug" | "--no-debug" | "--pass-environment" | "--no-pass-environment" | "--stateless" | "--version" => 0,
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
        ("--port" | "--sse-port" | "--named-server", _) => remote.serves = true,
        ("--debug" | "--no-debug", _) => {}
        _ => return false,
    }
    true
}

impl Remote {
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
