//! What a client on a pipe need not know of, and a server that is reached over HTTP expects: arguments that travel in
//! headers too (MCP 2026-07-28, basic/transports). Whoever speaks HTTP in the client's name does it for the client.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{Era, Message, answer, message::Object, method, mirrored};

use crate::{
    caller::Caller,
    catalog,
    http::{HeaderName, HeaderValue},
    proxy::{Proxy, RequestContext},
    session::Endpoint,
    upstream::Upstream,
};

/// A list or a call of tools at a server of the modern era.
pub(super) struct OverHttp {
    proxy: Arc<Proxy>,
    caller: Option<Arc<Caller>>,
    upstream: Arc<Upstream>,
    /// The tool that is called; none for a list.
    tool: Option<String>,
}

impl OverHttp {
    /// None for what has nothing to do with it.
    pub(super) fn of(proxy: &Arc<Proxy>, context: &RequestContext) -> Option<Self> {
        let Endpoint::One(upstream) = &context.endpoint else { return None };
        let message = &context.message;
        let tool = match message.method() {
            method::TOOLS_LIST => None,
            method::TOOLS_CALL => Some(message.name()?.into_owned()),
            _ => return None,
        };
        let modern =
            context.era == Era::Modern && upstream.carries_headers() && upstream.only_other(Era::Modern).is_none();
        let (proxy, caller, upstream) = (Arc::clone(proxy), context.caller.clone(), Arc::clone(upstream));
        modern.then_some(Self { proxy, caller, upstream, tool })
    }

    /// The headers of a call, as far as its tool is known.
    pub(super) fn headers(&self, message: &Message) -> Vec<(HeaderName, HeaderValue)> {
        let Some(tool) = &self.tool else { return Vec::new() };
        catalog::headers(
            &self.proxy.catalog().mirrored(self.caller.as_ref(), &self.upstream, Era::Modern, tool),
            message,
        )
    }

    /// The same after the server has said that they are wrong: its list is looked at again.
    pub(super) async fn headers_anew(&self, message: &Message) -> Vec<(HeaderName, HeaderValue)> {
        let Some(tool) = &self.tool else { return Vec::new() };
        let mirrored =
            self.proxy.catalog().look_up(self.caller.as_ref(), &self.upstream, tool).await.unwrap_or_default();
        catalog::headers(&mirrored, message)
    }

    /// The response as the client is told it: a list without tools that nobody could call. None for a call that is to be
    /// made `again`.
    pub(super) fn line(&self, response: &Message, again: bool) -> Option<Bytes> {
        if self.tool.is_some() {
            let mismatch = response.error_code() == Some(answer::HEADER_MISMATCH);
            return if mismatch && again { None } else { Some(response.one_line()) };
        }
        let Some(tools) = response.member("tools") else { return Some(response.one_line()) };
        self.proxy.catalog().hear_tools(&self.upstream, tools);
        let Some(offered) = mirrored::offered(tools) else { return Some(response.one_line()) };
        let told = response.edit().put(Object::Body, "tools", offered).finish();
        Some(weir_mcp::message::one_line(&told))
    }
}
