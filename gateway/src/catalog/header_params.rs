//! Arguments of tools that travel in headers too, where no refresher keeps the lists that tell of them.
//!
//! `weir connect` asks a server for nothing that its client does not ask for. What it must know of the tools it learns
//! from the lists that pass through.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use weir_mcp::{
    Field, Message, json,
    mirrored::{Mirrored, mirrored},
};

use crate::{
    config::UpstreamName,
    http::{HeaderName, HeaderValue},
};

/// How many tools are remembered.
const ROOM: usize = 10_000;

/// Tools of modern upstreams that have such arguments.
#[derive(Default)]
pub(super) struct HeaderParams {
    tools: Mutex<HashMap<ToolHeaders, Arc<[Mirrored]>>>,
}

/// The upstream, and the tool's name.
type ToolHeaders = (UpstreamName, String);

impl HeaderParams {
    /// Reads a list, raw.
    pub(super) fn list(&self, upstream: &UpstreamName, tools: &[u8]) {
        for tool in json::elements(tools) {
            let Some(name) = json::get(tool, &["name"]).and_then(json::string) else { continue };
            self.tool(upstream, &name, mirrored(tool).unwrap_or_default().into());
        }
    }

    /// Takes note of one tool.
    pub(super) fn tool(&self, upstream: &UpstreamName, name: &str, mirrored: Arc<[Mirrored]>) {
        let mut tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (upstream.clone(), name.to_owned());
        if mirrored.is_empty() {
            tools.remove(&key);
        } else if tools.len() < ROOM || tools.contains_key(&key) {
            tools.insert(key, mirrored);
        }
    }

    /// Forgets the tools of an upstream.
    pub(super) fn forget(&self, upstream: &UpstreamName) {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _), _| of != upstream);
    }

    /// What is known of a tool.
    pub(super) fn get(&self, upstream: &UpstreamName, name: &str) -> Arc<[Mirrored]> {
        let tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools.get(&(upstream.clone(), name.to_owned())).cloned().unwrap_or_default()
    }
}

/// The headers that a call is sent with.
#[must_use]
pub fn headers(mirrored: &[Mirrored], call: &Message) -> Vec<(HeaderName, HeaderValue)> {
    let arguments = call.raw(Field::Arguments).unwrap_or(b"{}");
    let header = |one: &Mirrored| {
        let value = HeaderValue::from_str(&one.value(arguments)?).ok()?;
        Some((HeaderName::from_bytes(one.header.as_bytes()).ok()?, value))
    };
    mirrored.iter().filter_map(header).collect()
}
