//! The console: what is behind Weir, what each tool takes, and a form to try it as oneself.
//!
//! A call from a form takes the way of every call, as the person at the browser. Nothing here changes the configuration and
//! nothing starts a program: pages show the commands that do.

use std::{pin::pin, sync::Arc};

use serde_json::Value;
use url::form_urlencoded;
use weir_flow::UpstreamState;
use weir_hosts::{Command, Entry, Host};
use weir_mcp::{Era, Message, method};

use crate::{
    caller::Caller,
    proxy::{CallLog, RequestContext, activity::EndedCall, recorder},
    session::Endpoint,
    upstream::{Upstream, own},
};

use super::{
    super::{App, listen::HttpExchange, messages::Messages, slow},
    BrowserReply, bad_form,
    browser_sessions::BrowserSession,
    console_page::{self, CallResult, HostEntry, ServerHealth, ToolPage},
    missing, page, schema_form, value,
};

/// The longest form with arguments, in bytes.
const FORM: usize = 256 * 1024;
/// How many pages of a list are fetched.
const MAX_PAGES: usize = 20;
/// How many of the last calls are shown.
const LAST_CALLS: usize = 10;
/// What stands for the gateway in the files of hosts.
const NAME: &str = "weir";

impl App {
    /// The first page of the console.
    pub(super) fn console(&self, overview: &page::Overview<'_>, caller: &Arc<Caller>) -> page::Document {
        console_page::console(overview, &last_calls(caller), &self.host_entries())
    }

    /// What each host needs, for those that have a form for it.
    fn host_entries(&self) -> Vec<HostEntry> {
        let url = format!("{}/mcp", self.connect.invitations.root());
        let entry = |host: Host| {
            let command = (host == Host::ClaudeDesktop).then(|| Command {
                program: "weir".to_owned(),
                args: vec!["connect".to_owned(), url.clone()],
                env: Vec::new(),
            });
            let entry = Entry { name: NAME.to_owned(), url: url.clone(), bearer: None, command };
            let snippet = weir_hosts::snippet(host, &entry).ok()?;
            let link = weir_hosts::link(host, &entry);
            Some(HostEntry { title: host.title(), file: snippet.file, text: snippet.text, link })
        };
        // A file of that kind is no program with a name that people know.
        Host::ALL.into_iter().filter(|host| *host != Host::McpToml).filter_map(entry).collect()
    }

    /// The tools of a server, or one of them with its form.
    pub(super) async fn tools(
        &self,
        exchange: &mut HttpExchange,
        browser: &BrowserSession,
        name: &str,
    ) -> BrowserReply {
        let Some(endpoint) = self.proxy.endpoint(name, Some(browser.caller())) else { return missing() };
        let named = value(exchange.query().unwrap_or_default().as_bytes(), "name");
        match (self.list_tools(exchange, browser, &endpoint).await, named) {
            (Err(why), _) => self.tools_failed(name, &why),
            (Ok(tools), None) => {
                BrowserReply::Page(200, console_page::tools(name, &tools, browser.caller().is_local()))
            }
            (Ok(tools), Some(named)) => match tools.iter().find(|tool| tool["name"] == *named) {
                Some(tool) => {
                    let page = ToolPage { server: name, tool, key: browser.key(), result: None };
                    BrowserReply::Page(200, console_page::tool(&page))
                }
                None => missing(),
            },
        }
    }

    /// Calls a tool with what a form brings.
    pub(super) async fn try_tool(
        &self,
        exchange: &mut HttpExchange,
        browser: Option<Arc<BrowserSession>>,
        name: &str,
    ) -> BrowserReply {
        let Ok(form) = exchange.read_body(FORM).await else { return bad_form() };
        let form: Vec<(String, String)> =
            form_urlencoded::parse(&form).into_owned().take(schema_form::MAX_PAIRS).collect();
        let field = |name: &str| form.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let Some(browser) = browser.filter(|browser| field("key").is_some_and(|key| browser.is_key(key))) else {
            return self.old_page();
        };
        let Some(endpoint) = self.proxy.endpoint(name, Some(browser.caller())) else { return missing() };
        let tools = match self.list_tools(exchange, &browser, &endpoint).await {
            Ok(tools) => tools,
            Err(why) => return self.tools_failed(name, &why),
        };
        let named = field("tool").unwrap_or_default();
        let Some(tool) = tools.iter().find(|tool| tool["name"] == *named) else { return missing() };
        let result = match schema_form::arguments(&tool["inputSchema"], &form) {
            Ok(arguments) => {
                let call = own::call(Era::Modern, named, &arguments.into());
                CallResult::of(self.request_as(exchange, &browser, &endpoint, call).await)
            }
            Err(why) => CallResult::Refused(why),
        };
        let page = ToolPage { server: name, tool, key: browser.key(), result: Some(&result) };
        BrowserReply::Page(200, console_page::tool(&page))
    }

    /// Has a server be reached anew.
    pub(super) fn retry(&self, browser: &BrowserSession, name: &str) -> BrowserReply {
        let catalog = self.proxy.catalog();
        match catalog.snapshot().upstream(name).filter(|_| browser.caller().is_local()) {
            Some(upstream) => {
                catalog.poke(upstream);
                browser.tell(page::Notice::Done(format!("Weir reaches for {name} again.")));
                BrowserReply::Go(self.connect.invitations.root().to_owned() + "/")
            }
            None => missing(),
        }
    }

    async fn list_tools(
        &self,
        exchange: &mut HttpExchange,
        browser: &BrowserSession,
        endpoint: &Endpoint,
    ) -> Result<Vec<Value>, String> {
        let (mut tools, mut cursor) = (Vec::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let cursor_json = cursor.as_deref().map(|cursor| Value::from(cursor).to_string());
            let page = own::page(Era::Modern, "tools/list", cursor_json.as_deref().map(str::as_bytes));
            let mut answer = self.request_as(exchange, browser, endpoint, page).await?;
            match answer["result"]["tools"].take() {
                Value::Array(more) => tools.extend(more),
                _ => return Err(console_page::error_text(&answer)),
            }
            match answer["result"]["nextCursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
        Ok(tools)
    }

    /// The answer to a request of the person at the browser.
    async fn request_as(
        &self,
        exchange: &mut HttpExchange,
        browser: &BrowserSession,
        endpoint: &Endpoint,
        message: Message,
    ) -> Result<Value, String> {
        let caller = browser.caller();
        let principal = if caller.is_local() { exchange.principal() } else { caller.id() };
        let context = RequestContext {
            era: Era::Modern,
            endpoint: endpoint.clone(),
            caller: Some(Arc::clone(caller)),
            principal: Arc::clone(principal),
            message,
            version: None,
            headers: Vec::new(),
            session: None,
        };
        let mut record = CallLog::new(&context);
        record.peer = Some(exchange.peer());
        let answer = {
            let asked = pin!(self.proxy.request(&context, &mut record));
            slow::while_there(exchange, asked).await
        };
        let (mut messages, mut last) = (Messages::of(answer.recorded(record)), None);
        while let Some(message) = messages.next().await {
            last = Some(message);
        }
        let last = last.ok_or("there was no answer")?;
        serde_json::from_slice(&last).map_err(|_| "the answer is no JSON".to_owned())
    }

    fn tools_failed(&self, name: &str, why: &str) -> BrowserReply {
        let text = format!("The tools of {name} cannot be listed: {why}");
        BrowserReply::Page(502, page::message("Not now", &text, &self.connect.invitations.page()))
    }
}

/// The last calls of a caller that asked an upstream for something, the newest first.
fn last_calls(caller: &Arc<Caller>) -> Vec<EndedCall> {
    let is_theirs = |call: &EndedCall| {
        let asks = matches!(call.facts.method(), method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ);
        asks && call.facts.is_of(caller)
    };
    recorder::calls().1.into_iter().filter(is_theirs).take(LAST_CALLS).collect()
}

/// How an upstream stands. What may name machines and programs is for the operator alone.
pub(super) fn server_health(upstream: &Upstream, caller: &Caller) -> ServerHealth {
    let (status, is_operator) = (upstream.status(), caller.is_local());
    let how = [status.transport.map(|it| it.to_string()), status.era.map(|it| it.to_string())];
    ServerHealth {
        state: status.state.to_string(),
        is_fine: status.state == UpstreamState::Healthy,
        how: how.into_iter().flatten().collect(),
        tools: status.tools,
        reason: status.error.filter(|_| is_operator),
        can_retry: is_operator,
    }
}
