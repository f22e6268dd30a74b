//! What upstreams can do, as far as the way of a message depends on it, and what they can do together.

use std::fmt::Write as _;

use weir_mcp::{Era, json, translate::TASKS};

use super::CatalogSnapshot;

/// What one upstream has declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// Log messages.
    pub logging: bool,
    /// Resources of any kind.
    pub resources: bool,
    /// Resources that can be watched.
    pub subscribe: bool,
    /// Tasks, as the era of the client has them.
    pub tasks: bool,
    /// A list of tasks.
    pub task_list: bool,
    prompts: bool,
    completions: bool,
    task_cancel: bool,
    task_calls: bool,
    /// By name, with their settings, raw.
    extensions: Vec<(String, String)>,
    experiments: Vec<(String, String)>,
}

impl Traits {
    /// What an upstream means to clients of an era.
    pub(super) fn of(era: Era, view: &CatalogSnapshot) -> Self {
        let raw = |path: &[&str]| json::get(&view.capabilities, path).filter(|raw| *raw != b"null" && *raw != b"false");
        let has = |path: &[&str]| raw(path).is_some();
        let named = |key: &str| {
            let members = raw(&[key]).into_iter().flat_map(json::members);
            members.map(|(name, value)| (name.into_owned(), String::from_utf8_lossy(value).into_owned())).collect()
        };
        let legacy = era == Era::Legacy;
        Self {
            logging: has(&["logging"]),
            resources: has(&["resources"]),
            subscribe: has(&["resources", "subscribe"]),
            // Tasks are another thing in each era, and neither is translated.
            tasks: if legacy { has(&["tasks"]) } else { has(&["extensions", TASKS]) },
            task_list: legacy && has(&["tasks", "list"]),
            prompts: has(&["prompts"]),
            completions: has(&["completions"]),
            task_cancel: legacy && has(&["tasks", "cancel"]),
            task_calls: legacy && has(&["tasks", "requests", "tools", "call"]),
            extensions: named("extensions"),
            experiments: named("experimental"),
        }
    }

    /// Whether a method belongs to an extension that it declared: one with the name that the method begins with, the
    /// vendor in front or not.
    pub(super) fn declares(&self, method: &str) -> bool {
        let belongs = |(name, _): &(String, String)| {
            let short = name.rsplit('/').next().unwrap_or_default();
            [name.as_str(), short].iter().any(|name| {
                !name.is_empty()
                    && method.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        self.extensions.iter().chain(&self.experiments).any(belongs)
    }
}

/// The union of what upstreams can do, in Weir's own words: lists change when upstreams come and go.
///
/// A legacy client reads it once. So unless `all_known`, it has what an upstream may bring that is not there yet.
pub(super) fn capabilities<'a>(era: Era, traits: impl Iterator<Item = &'a Traits> + Clone, all_known: bool) -> String {
    let has = |has: fn(&Traits) -> bool| traits.clone().any(has);
    let any = |may: fn(&Traits) -> bool| !all_known || has(may);
    let mut text = String::from(r#"{"tools":{"listChanged":true}"#);
    if any(|traits| traits.prompts) {
        text.push_str(r#","prompts":{"listChanged":true}"#);
    }
    if any(|traits| traits.resources) {
        // Writing to a string cannot fail.
        let subscribe = any(|traits| traits.subscribe);
        let _ = write!(text, r#","resources":{{"listChanged":true,"subscribe":{subscribe}}}"#);
    }
    for (there, name) in [(any(|traits| traits.logging), "logging"), (any(|traits| traits.completions), "completions")]
    {
        if there {
            let _ = write!(text, r#","{name}":{{}}"#);
        }
    }
    if era == Era::Legacy && has(|traits| traits.tasks) {
        let parts = [
            (has(|traits| traits.task_list), r#""list":{}"#),
            (has(|traits| traits.task_cancel), r#""cancel":{}"#),
            (has(|traits| traits.task_calls), r#""requests":{"tools":{"call":{}}}"#),
        ];
        let parts: Vec<&str> = parts.into_iter().filter_map(|(there, part)| there.then_some(part)).collect();
        let _ = write!(text, r#","tasks":{{{}}}"#, parts.join(","));
    }
    for (key, of) in [
        ("extensions", (|traits| &traits.extensions) as NamedExtension),
        ("experimental", |traits| &traits.experiments),
    ] {
        let named = alone(traits.clone(), of);
        if !named.is_empty() {
            let _ = write!(text, r#","{key}":{{{}}}"#, named.join(","));
        }
    }
    text.push('}');
    text
}

type NamedExtension = fn(&Traits) -> &Vec<(String, String)>;

/// The extensions that can be had at an endpoint for all: those that exactly one upstream has, since nothing in a method
/// says which one is meant, and those whose methods name something that does.
fn alone<'a>(traits: impl Iterator<Item = &'a Traits> + Clone, of: NamedExtension) -> Vec<String> {
    /// MCP Apps have no methods; tasks are found by their ids.
    const ROUTED: [&str; 2] = [TASKS, "io.modelcontextprotocol/ui"];
    let mut found: Vec<(&str, &str, usize)> = Vec::new();
    for (name, settings) in traits.flat_map(of) {
        match found.iter_mut().find(|(known, ..)| *known == name.as_str()) {
            Some((.., count)) => *count += 1,
            None => found.push((name.as_str(), settings.as_str(), 1)),
        }
    }
    found.retain(|(name, _, count)| *count == 1 || ROUTED.contains(name));
    found.iter().map(|(name, settings, _)| format!("{}:{settings}", json::quote(name))).collect()
}
