//! What the configuration says.

use weir_policy::{Settings, json::Json};

use crate::interceptor::Phase;

/// The longest address; what is remembered of a server is kept under it.
const LONGEST_URL: usize = 200;

pub(crate) struct InterceptorSettings {
    /// The MCP server with the interceptors.
    pub(crate) url: String,
    /// Which of its interceptors; none for all.
    pub(crate) names: Option<Vec<String>>,
    /// The methods that it is asked about.
    pub(crate) events: Vec<String>,
    pub(crate) phases: Vec<Phase>,
    /// What each interceptor gets.
    pub(crate) config: Option<Json>,
}

impl InterceptorSettings {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let written = Settings::read(text);
        let known = ["url", "names", "events", "phase", "config"];
        if let Some(other) = written.unknown(&known) {
            return Err(format!("there is no setting `{other}`; there are {}", known.join(", ")));
        }
        let url = written.text("url").filter(|url| url.starts_with("http://") || url.starts_with("https://"));
        let url = url.ok_or(
            "`url` is the address of an MCP server with interceptors, such as \"https://guard.example.com/mcp\"",
        )?;
        if url.len() > LONGEST_URL {
            return Err(format!("`url` has more than {LONGEST_URL} bytes"));
        }
        let phases = match written.get("phase").map(Json::as_text) {
            None | Some(Some("both")) => vec![Phase::Request, Phase::Response],
            Some(Some("request")) => vec![Phase::Request],
            Some(Some("response")) => vec![Phase::Response],
            Some(_) => return Err("`phase` is \"request\", \"response\" or \"both\"".into()),
        };
        let config = written.get("config").cloned();
        if config.as_ref().is_some_and(|config| !config.is_object()) {
            return Err("`config` is a table".into());
        }
        let events = texts(&written, "events")?.unwrap_or_else(|| vec!["tools/call".into()]);
        if let Some(other) = events.iter().find(|event| event.trim_end_matches('*').contains(['*', '?'])) {
            return Err(format!("`{other}` among the `events` is neither a method nor the beginning of one with `*`"));
        }
        Ok(Self { url, names: texts(&written, "names")?, events, phases, config })
    }
}

impl InterceptorSettings {
    /// Whether it is asked about a method.
    pub(crate) fn has(&self, method: &str) -> bool {
        self.events.iter().any(|event| covers(event, method))
    }
}

/// Whether an event of the settings stands for a method.
fn covers(event: &str, method: &str) -> bool {
    event.strip_suffix('*').map_or(event == method, |start| method.starts_with(start.trim_end_matches('*')))
}

/// A list of texts with something in it.
fn texts(written: &Settings, key: &str) -> Result<Option<Vec<String>>, String> {
    let Some(list) = written.get(key) else { return Ok(None) };
    let texts: Option<Vec<String>> = list.elements().iter().map(|one| one.as_text().map(str::to_owned)).collect();
    match texts {
        Some(texts) if !texts.is_empty() => Ok(Some(texts)),
        _ => Err(format!("`{key}` is a list of texts")),
    }
}
