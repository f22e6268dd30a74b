//! Files of other gateways, and command lines of bridges. `docs/migrating.md` has the usual ones.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

use proptest::prelude::*;
use weir_hosts::{DockerFiles, HostServers, Piece, Server, Template, Transport, read_command, read_gateway};

fn gateway(text: &str) -> HostServers {
    read_gateway(text, DockerFiles::default()).expect("a known form").expect("servers")
}

fn command(line: &[&str]) -> Option<HostServers> {
    read_command(&line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
}

fn words(server: &Server) -> Vec<&str> {
    server.command.iter().chain(&server.args).map(|word| word.as_literal().expect("a text")).collect()
}

#[test]
fn agentgateway_has_a_short_form_and_credentials_above_targets() {
    let found = gateway(
        "mcp:\n  port: 3000\n  prefixMode: never\n  policies:\n    backendAuth: { key: $KEY }\n  targets:\n  - name: a\n    \
         mcp: { host: a.example.com, port: 443, path: /mcp }\n    policies: { backendTLS: {} }\n  - name: b\n    \
         mcp: { backend: x }\n  - name: c\n    stdio: { cmd: uvx, args: [c], env: { K: v } }\n",
    );
    let [a, c] = found.servers.as_slice() else { panic!("{found:?}") };
    assert_eq!(a.url, Some(Template::literal("https://a.example.com:443/mcp")));
    assert!(a.headers.is_empty(), "the policies of a target take the place of those above: {a:?}");
    assert_eq!((words(c), c.transport, c.line), (vec!["uvx", "c"], Some(Transport::Stdio), 12));
    let lost = found.not_carried.join("\n");
    assert!(
        lost.contains("`port` is `listen`") && lost.contains("`prefixMode`") && lost.contains("`b` leads"),
        "{lost}"
    );
    let found = gateway(
        "mcp:\n  policies: { backendAuth: { key: $KEY } }\n  targets: [{ name: a, sse: { host: 'http://a/sse' } }]",
    );
    let key = Piece::Env { name: "KEY".into(), default: None };
    assert_eq!(found.servers[0].headers[0].1.0, [Piece::Literal("Bearer ".into()), key]);
    assert_eq!(found.servers[0].transport, Some(Transport::Sse));
}

#[test]
fn a_profile_of_docker_has_its_values_and_tools() {
    let found = gateway(
        "version: 1\nid: dev\nname: dev\nservers:\n- type: image\n  image: mcp/slack\n  config: { channel: general }\n  \
         tools: [send]\n  snapshot:\n    server:\n      name: slack\n      type: server\n      image: mcp/slack:1\n      \
         env: [{ name: CHANNEL, value: '{{slack.channel}}' }, { name: TEAM, value: '{{slack.team}}' }]\n      \
         command: ['{{slack.list|into}}']\n- type: remote\n  snapshot: { server: { name: web, type: remote, \
         remote: { url: 'https://web.example.com/mcp', headers: { Authorization: 'Bearer ${WEB}' } } } }\n\
         - snapshot: { server: { name: curl, type: poci, tools: [] } }\n",
    );
    let [slack, web] = found.servers.as_slice() else { panic!("{found:?}") };
    let args = words(slack);
    assert!(args.starts_with(&["docker", "run", "--rm", "-i"]), "{args:?}");
    assert!(args.ends_with(&["-e", "CHANNEL", "-e", "TEAM", "mcp/slack:1"]), "{args:?}");
    assert_eq!(slack.env[0].1, Template::literal("general"));
    assert!(matches!(&slack.env[1].1.0[..], [Piece::Input { id, .. }] if id == "slack.team"), "{slack:?}");
    assert_eq!(slack.tools.allowed, Some(vec!["send".to_owned()]));
    assert!(slack.not_carried[0].contains("slack.list"), "{slack:?}");
    assert_eq!((web.headers.len(), web.transport), (1, Some(Transport::Http)));
    assert!(found.not_carried[0].contains("`curl` starts a container for each call"), "{found:?}");
}

#[test]
fn the_registry_of_docker_alone_says_what_is_missing() {
    let found = gateway("registry:\n  github:\n    ref: \"\"\n");
    assert!(found.servers.is_empty() && found.not_carried[0].contains("import the catalog"), "{found:?}");
    let single = gateway("name: duck\ntype: server\nimage: mcp/duck\nallowHosts: [a:443]\n");
    assert!(single.servers[0].not_carried[0].contains("allowHosts"), "{single:?}");
}

#[test]
fn other_files_are_none_of_these() {
    for text in
        ["", "{}", "extensions: {}", "servers: { a: { url: b } }", "registry: nothing", "a: [", "name: x\ntype: y"]
    {
        assert!(read_gateway(text, DockerFiles::default()).is_none(), "{text}");
    }
    assert!(
        read_gateway("registry: { a: { image: b } }", DockerFiles { config: Some("a: ["), registry: None })
            .unwrap()
            .is_err()
    );
}

#[test]
fn bridges_show_what_they_serve() {
    let found = command(&[
        "npx",
        "-y",
        "supergateway",
        "--stdio",
        "npx -y '@x/server-two words' /a",
        "--port",
        "1",
        "--cors",
        "http://b",
    ]);
    let found = found.unwrap();
    assert_eq!(words(&found.servers[0]), ["npx", "-y", "@x/server-two words", "/a"]);
    assert_eq!(found.servers[0].name, "two words");
    let piped = command(&["supergateway", "--stdio", "cat x | uvx y"]).unwrap();
    assert_eq!(words(&piped.servers[0]), ["sh", "-c", "cat x | uvx y"]);
    let remote = command(&["npx", "supergateway", "--streamableHttp", "https://mcp.linear.app/mcp"]).unwrap();
    assert_eq!((remote.servers[0].name.as_str(), remote.servers[0].transport), ("linear", Some(Transport::Http)));
    let named = command(&[
        "mcp-proxy",
        "--named-server",
        "fetch",
        "uvx mcp-server-fetch",
        "-e",
        "K",
        "v",
        "--",
        "uvx",
        "mcp-server-time",
        "--utc",
    ]);
    let named = named.unwrap();
    assert_eq!(words(&named.servers[0]), ["uvx", "mcp-server-fetch"]);
    assert_eq!(
        (words(&named.servers[1]), named.servers[1].name.as_str()),
        (vec!["uvx", "mcp-server-time", "--utc"], "time")
    );
    assert!(named.servers[0].env.is_empty() && named.servers[1].env.len() == 1, "{named:?}");
    let flags = command(&["mcp-proxy", "--no-verify-ssl", "--digest", "https://a.example.com/sse"]).unwrap();
    assert_eq!(flags.servers[0].transport, Some(Transport::Sse));
    assert_eq!(flags.servers[0].not_carried.len(), 2, "{flags:?}");
    for other in [&["npx", "x"][..], &["mcp-remote"], &["supergateway", "--port", "1"], &[]] {
        assert!(command(other).is_none(), "{other:?}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(keys in proptest::collection::vec("(mcp|targets|binds|registry|servers|snapshot|image|remote|\\{\\{a\\.b\\|volume\\}\\}|: |- |\n|  |\\[|\\{|\\}|x)", 0..60)) {
        let text = keys.concat();
        let _ = read_gateway(&text, DockerFiles { registry: Some(&text), config: Some(&text) });
        let _ = read_command(&keys);
    }
}
