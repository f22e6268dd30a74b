//! The files of other gateways: agentgateway's, and those of Docker's MCP gateway.

mod agentgateway;
mod docker;

use crate::{
    HostServers, ReadError,
    value::{self, Format, Map, Node, Value},
};

/// What Docker's gateway keeps beside a catalog.
#[derive(Clone, Copy, Debug, Default)]
pub struct DockerFiles<'a> {
    /// `registry.yaml`: which servers of the catalog are used. Without it, all are.
    pub registry: Option<&'a str>,
    /// `config.yaml`: the values for `{{server.key}}`.
    pub config: Option<&'a str>,
}

/// Reads the servers of another gateway's file. None if the text is no such file.
///
/// `beside` is used for catalogs of Docker's gateway only.
pub fn read_gateway(text: &str, beside: DockerFiles<'_>) -> Option<Result<HostServers, ReadError>> {
    let root = parse(text).ok()?;
    if agentgateway::is_file(&root) {
        return Some(Ok(agentgateway::read(text, &root)));
    }
    docker::is_file(&root).then(|| {
        let other = |text: Option<&str>| text.map(parse).transpose();
        Ok(docker::read(text, &root, other(beside.registry)?.as_ref(), other(beside.config)?.as_ref()))
    })
}

fn parse(text: &str) -> Result<Value, ReadError> {
    let json = value::without_bom(text).trim_start().starts_with('{');
    value::parse(if json { Format::Jsonc } else { Format::Yaml }, text)
}

/// An entry in the form that most hosts share.
fn put(entry: &mut Map, key: &str, node: Node) {
    entry.insert(key.to_owned(), Value { node, at: 0 });
}

fn texts(all: impl IntoIterator<Item = String>) -> Node {
    Node::List(all.into_iter().map(|text| Value { node: Node::Text(text), at: 0 }).collect())
}

fn line(text: &str, value: &Value) -> usize {
    value::error(text, value.at, "", "").line
}
