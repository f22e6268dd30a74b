//! The pages of the console: plain HTML that works without scripts.

use std::fmt;

use serde_json::Value;

use crate::proxy::activity::EndedCall;

use super::{
    page::{self, Document, HtmlText, Overview, document},
    schema_form,
};

/// The longest text of a result that is shown, in characters.
const MAX_TEXT: usize = 64 * 1024;

/// How a server stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerHealth {
    pub(super) state: String,
    pub(super) is_fine: bool,
    /// Transport and version, as far as they are known.
    pub(super) how: Vec<String>,
    pub(super) tools: Option<usize>,
    /// Why it is not fine, for those who may know.
    pub(super) reason: Option<String>,
    pub(super) can_retry: bool,
}

/// What to paste into a host's file.
pub(super) struct HostEntry {
    pub(super) title: &'static str,
    pub(super) file: &'static str,
    pub(super) text: String,
    /// What opens the host and has it add the entry.
    pub(super) link: Option<String>,
}

/// A tool and its form.
pub(super) struct ToolPage<'a> {
    pub(super) server: &'a str,
    /// As the server lists it.
    pub(super) tool: &'a Value,
    pub(super) key: &'a str,
    /// What the call before came to.
    pub(super) result: Option<&'a CallResult>,
}

/// What a call came to.
pub(super) enum CallResult {
    /// It was not made, or not answered.
    Refused(String),
    Answered {
        is_error: bool,
        parts: Vec<String>,
    },
}

/// The first page.
pub(super) fn console(overview: &Overview<'_>, calls: &[EndedCall], hosts: &[HostEntry]) -> Document {
    let mut body = page::servers(overview);
    if !calls.is_empty() {
        body += "<h2>Your last calls</h2><ul>";
        body.extend(calls.iter().map(call_item));
        body += "</ul>";
    }
    body += "<h2>Point a host here</h2><p>Paste this into the host's file.</p><div class=\"hosts\">";
    for HostEntry { title, file, text, link } in hosts {
        let link = link.as_ref().map(|link| format!("<p><a href=\"{}\">Open in {title}</a></p>", HtmlText(link)));
        let (link, file) = (link.unwrap_or_default(), HtmlText(file));
        body += &format!("<details><summary>{title}</summary><p>{file}</p><pre>{}</pre>{link}</details>", Pre(text));
    }
    page::front(body + "</div>" + page::not_you(overview))
}

/// The commands that change a server, and what each changes in the configuration. Nothing here runs them.
fn changes(server: &str) -> String {
    let name = HtmlText(server);
    let rows = [
        ("Test it", format!("weir test {name}"), "changes nothing"),
        ("Disable it", format!("weir disable {name}"), "enabled = false"),
        ("Rename it", format!("weir rename {name} NEW-NAME"), "its table, its logins and its pins get the new name"),
        ("Remove it", format!("weir remove {name}"), "its table and the files of its tokens are removed"),
    ];
    let row = |(what, command, change): &(&str, String, &str)| {
        format!("<dt>{what}</dt><dd><code>{command}</code><br>{change}</dd>")
    };
    let rows: String = rows.iter().map(row).collect();
    format!("<details><summary>Change it in [upstreams.{name}]</summary><dl>{rows}</dl></details>")
}

/// A call that ended: what became of it, and which rule decided.
fn call_item(call: &EndedCall) -> String {
    let upstream = call.facts.upstream.as_ref().map_or("Weir", |name| name.as_str());
    let ago = call.facts.start.elapsed().saturating_sub(call.took).as_secs();
    let ago = if ago < 120 { format!("{ago} s ago") } else { format!("{} min ago", ago / 60) };
    let rule = call.rule.as_deref().map(|rule| format!(" · rule {}", HtmlText(rule))).unwrap_or_default();
    let failure = call.failure.as_deref();
    let failure = failure.map(|why| format!("<p class=\"bad\">{}</p>", HtmlText(why))).unwrap_or_default();
    format!(
        "<li><div><h2>{}</h2><p>{} · {} · {} ms · {ago}{rule}</p>{failure}</div></li>",
        HtmlText(call.facts.name()),
        HtmlText(upstream),
        call.outcome,
        call.took.as_millis()
    )
}

/// The tools of a server.
pub(super) fn tools(server: &str, tools: &[Value], is_operator: bool) -> Document {
    let mut body = "<p><a href=\"../../\">All servers</a></p>".to_owned();
    if is_operator {
        body += &changes(server);
    }
    if tools.is_empty() {
        body += "<p>It has no tools for you.</p>";
        return document(server, body);
    }
    body += "<ul>";
    for tool in tools {
        let name = text(tool, "name");
        let query = url::form_urlencoded::Serializer::new(String::new()).append_pair("name", name).finish();
        let about = text(tool, "description").lines().next().unwrap_or_default();
        body += &format!(
            "<li><div><h2><a href=\"tools?{}\">{}</a></h2><p>{}</p></div></li>",
            HtmlText(&query),
            HtmlText(name),
            HtmlText(about)
        );
    }
    document(server, body + "</ul>")
}

/// One tool, with a form to call it.
pub(super) fn tool(&ToolPage { server, tool, key, result }: &ToolPage<'_>) -> Document {
    let name = text(tool, "name");
    let schema = serde_json::to_string_pretty(&tool["inputSchema"]).unwrap_or_default();
    let mut body = format!("<p><a href=\"tools\">All tools of {}</a></p>", HtmlText(server));
    if let Some(result) = result {
        body += &result.to_string();
    }
    body += &format!("<pre class=\"text\">{}</pre>", Pre(text(tool, "description")));
    for (hint, says) in [("destructiveHint", "It may delete or overwrite."), ("readOnlyHint", "It only reads.")] {
        if tool["annotations"][hint] == true {
            body += &format!("<p>{says} The server says so.</p>");
        }
    }
    body += &format!(
        "<form class=\"call\" method=\"post\" action=\"call\"><input type=\"hidden\" name=\"key\" value=\"{}\">\
         <input type=\"hidden\" name=\"tool\" value=\"{}\">{}<button class=\"primary\">Call</button></form>\
         <details><summary>Schema</summary><pre>{}</pre></details>",
        HtmlText(key),
        HtmlText(name),
        schema_form::html(&tool["inputSchema"]),
        Pre(&schema)
    );
    document(name, body)
}

/// What an answer says that is no result.
pub(super) fn error_text(answer: &Value) -> String {
    answer["error"]["message"].as_str().unwrap_or("the answer has no result").to_owned()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

impl CallResult {
    /// What an answer came to.
    pub(super) fn of(answer: Result<Value, String>) -> Self {
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => return Self::Refused(why),
        };
        let result = &answer["result"];
        if !result.is_object() {
            return Self::Refused(error_text(&answer));
        }
        if result["resultType"] == "input_required" {
            let text = "This tool asks something while it works. Call it with your MCP client, or with `weir call`.";
            return Self::Refused(text.to_owned());
        }
        let content = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut parts: Vec<String> = content.iter().map(part).collect();
        if let Some(structured) = result.get("structuredContent") {
            parts.push(serde_json::to_string_pretty(structured).unwrap_or_default());
        }
        Self::Answered { is_error: result["isError"] == true, parts }
    }
}

/// A part of a result as text.
fn part(content: &Value) -> String {
    let data = || content["data"].as_str().or_else(|| content["resource"]["blob"].as_str()).map_or(0, str::len);
    match (text(content, "type"), content["resource"]["text"].as_str()) {
        ("text", _) => text(content, "text").to_owned(),
        ("resource", Some(text)) => text.to_owned(),
        ("resource_link", _) => text(content, "uri").to_owned(),
        (kind, _) => format!("{kind} of {} bytes ({})", data() / 4 * 3, text(content, "mimeType")),
    }
}

impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, role, title) = match self {
            Self::Refused(_) => ("failed", "alert", "Not done"),
            Self::Answered { is_error: true, .. } => ("failed", "alert", "The tool failed"),
            Self::Answered { is_error: false, .. } => ("done", "status", "Result"),
        };
        write!(f, "<section class=\"notice {class}\" role=\"{role}\"><h2>{title}</h2>")?;
        match self {
            Self::Refused(why) => write!(f, "<p>{}</p>", HtmlText(why))?,
            Self::Answered { parts, .. } => parts.iter().try_for_each(|part| write!(f, "<pre>{}</pre>", Pre(part)))?,
        }
        f.write_str("</section>")
    }
}

impl fmt::Display for ServerHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<p>{}", HtmlText(&self.state))?;
        self.how.iter().try_for_each(|how| write!(f, " · {}", HtmlText(how)))?;
        if let Some(tools) = self.tools {
            write!(f, " · {tools} tools")?;
        }
        f.write_str("</p>")?;
        match &self.reason {
            Some(reason) => write!(f, "<p class=\"bad\">{}</p>", HtmlText(reason)),
            None => Ok(()),
        }
    }
}

/// Text of several lines that cannot become markup.
struct Pre<'a>(&'a str);

impl fmt::Display for Pre<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = MAX_TEXT;
        for (at, line) in self.0.split('\n').enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            let end = line.char_indices().nth(left).map_or(line.len(), |(end, _)| end);
            write!(f, "{}", HtmlText(&line[..end]))?;
            left = left.saturating_sub(line.len() + 1);
            if left == 0 {
                return f.write_str("\n… more is left out");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::ConsoleConfig;

    #[test]
    fn nothing_of_a_server_becomes_markup() {
        let evil = "\"><script>alert(1)</script>'\u{202e}&";
        let offered = json!({ "name": evil, "description": evil, "inputSchema": { "title": evil } });
        let content = [json!({ "type": "text", "text": evil }), json!({ "type": evil, "mimeType": evil })];
        let answer = json!({ "result": { "content": content, "structuredContent": { evil: evil } } });
        let result = CallResult::of(Ok(answer));
        let page = ToolPage { server: evil, tool: &offered, key: evil, result: Some(&result) };
        let refused = CallResult::of(Ok(json!({ "error": { "message": evil } })));
        let health = ServerHealth {
            state: evil.into(),
            is_fine: false,
            how: vec![evil.into()],
            tools: None,
            reason: Some(evil.into()),
            can_retry: true,
        };
        let html = |page: Document| page.html(&ConsoleConfig::default());
        let listed = html(tools(evil, std::slice::from_ref(&offered), true));
        let pages = [listed, html(tool(&page)), refused.to_string(), health.to_string()];
        for html in pages {
            assert!(!html.contains("<script") && !html.contains('\u{202e}'), "{html}");
        }
    }

    #[test]
    fn a_result_says_what_it_came_to() {
        let shown = |answer: Value| CallResult::of(Ok(answer)).to_string();
        let text =
            json!([{ "type": "text", "text": "a\nb" }, { "type": "image", "data": "AAAA", "mimeType": "image/png" }]);
        let done = shown(json!({ "result": { "content": text } }));
        assert!(
            done.contains(">Result<") && done.contains("a\nb") && done.contains("image of 3 bytes (image/png)"),
            "{done}"
        );
        let failed = shown(json!({ "result": { "isError": true, "content": text } }));
        assert!(failed.contains("The tool failed"), "{failed}");
        let asks = shown(json!({ "result": { "resultType": "input_required" } }));
        assert!(asks.contains("weir call"), "{asks}");
        assert!(shown(json!({ "error": { "message": "no" } })).contains("<p>no</p>"));
    }

    #[test]
    fn a_long_result_is_cut() {
        let long = "é".repeat(MAX_TEXT) + "\nend";
        let html = Pre(&long).to_string();
        assert!(html.ends_with("… more is left out") && html.chars().count() <= MAX_TEXT + 32, "{}", html.len());
    }
}
