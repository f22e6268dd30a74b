//! The policy `weir:schema`: input schemas that a vendor of models rejects are rewritten in the lists of tools.
//!
//! One tool with a reference, a union or a format that the vendor does not know makes its API refuse all tools. Servers write
//! such schemas, and clients pass them on. This policy says the same in words that the vendor takes. What it cannot say so it
//! says in descriptions, or leaves out: the upstream checks arguments against its own schema as before. A tool that cannot
//! be rewritten is hidden, and the others stay.
//!
//! | setting | meaning |
//! | --- | --- |
//! | `for` | `"auto"` (default): what the client that asks is known to need, and `"any"` for others; `"gemini"`, `"openai"`, `"anthropic"`; `"any"`: what all of them take; `"none"`: nothing is rewritten |
//! | `clients` | patterns of what clients call themselves, and one of the words above for each; the longest that fits counts |
//! | `rename` | whether properties get names that the vendor takes, and their own again in calls; otherwise such a tool is hidden |
//! | `validate_arguments` | whether arguments are validated against the schema that the server listed; no unless it is said |
//! | `description` | the longest description, in characters; 1024 unless it is said |

mod family;
mod names;
mod rewrite;
mod validation;

use family::Family;
use weir_policy::{Settings, Upstream, calls::*, json::Json};

struct Schema;

/// The longest description unless the settings say otherwise, in characters.
const DESCRIPTION: u64 = 1024;

/// How much longer than twice a tool may become, in bytes.
const SLACK: usize = 1000;

struct Policy {
    /// For clients in no group; none if nothing is rewritten.
    family: Option<Family>,
    /// Patterns of clients, and the names of their families.
    clients: Vec<(String, String)>,
    longest: usize,
    renames: bool,
    validates: bool,
}

fn read(text: &str) -> Result<Policy, String> {
    let settings = Settings::read(text);
    let known = ["for", "clients", "rename", "validate_arguments", "description"];
    if let Some(other) = settings.unknown(&known) {
        return Err(format!("there is no setting `{other}`; there are {}", known.join(", ")));
    }
    const FAMILIES: &str = r#""gemini", "openai", "anthropic", "any" or "none""#;
    let chosen = settings.get("for").map_or(Some("auto"), Json::as_text);
    let is_auto = chosen == Some("auto");
    let family = if is_auto { Some(Some(Family::Any)) } else { chosen.and_then(Family::of) };
    let family = family.ok_or_else(|| format!("`for` is \"auto\", {FAMILIES}"))?;
    let mut clients = Vec::new();
    for (pattern, name) in settings.get("clients").map_or(&[][..], Json::members) {
        let name = name.as_text().filter(|name| Family::of(name).is_some());
        let name = name.ok_or_else(|| format!("`clients` gives {pattern:?} none of {FAMILIES}"))?;
        // The longest first.
        let pattern = pattern.to_lowercase();
        let at = clients.partition_point(|(longer, _): &(String, String)| longer.len() >= pattern.len());
        clients.insert(at, (pattern, name.to_owned()));
    }
    if is_auto {
        clients.extend(family::CLIENTS.map(|(pattern, name)| (pattern.to_owned(), name.to_owned())));
    }
    let longest = settings.get("description").map_or(Some(DESCRIPTION), Json::as_number);
    let longest = longest.filter(|longest| (64..=65_536).contains(longest));
    let longest = longest.ok_or("`description` is a number from 64 to 65536")?;
    let flag = |name: &str| settings.get(name).map_or(Some(false), Json::as_bool);
    let renames = flag("rename").ok_or("`rename` is true or false")?;
    let validates = flag("validate_arguments").ok_or("`validate_arguments` is true or false")?;
    Ok(Policy { family, clients, longest: usize::try_from(longest).unwrap_or(usize::MAX), renames, validates })
}

impl Policy {
    /// The family for a list or a call of this upstream.
    fn family(&self, of: &Upstream) -> Option<Family> {
        of.client_group().and_then(Family::of).unwrap_or(self.family)
    }
}

impl Calls for Schema {
    fn wants(settings: String) -> Result<Interest, String> {
        let Policy { clients, renames, validates, .. } = read(&settings)?;
        let mut interest = Interest::in_entries([EntryKind::Tool]);
        if validates {
            interest = interest.with_input_schemas();
        }
        if renames || validates {
            interest = Interest { methods: vec!["tools/call".to_owned()], request: Detail::Body, ..interest };
        }
        Ok(interest.of_clients(clients.iter().map(|(pattern, name)| (&**pattern, &**name))))
    }

    fn before(about: Call, params: Option<String>) -> Decision {
        let policy = read(&about.upstream.settings).ok();
        let params = params.and_then(|params| Json::parse(&params));
        let Some((policy, mut params)) = policy.zip(params) else { return Decision::allow() };
        let is_renamed = policy.renames && policy.family(&about.upstream).is_some_and(Family::has_plain_names);
        let is_restored = is_renamed && params.get_mut("arguments").is_some_and(names::restore);
        if policy.validates
            && let Err(why) = validate(&about, &params, is_renamed)
        {
            return Decision::deny(format!("the arguments are not valid: {why}"));
        }
        if is_restored { Decision::replace(params.to_string()) } else { Decision::allow() }
    }

    fn after(_: Call, memory: String, _: Content) -> AnswerDecision {
        AnswerDecision::pass(memory)
    }

    fn entries(of: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        let verdict = |policy: &Policy, entry: &Entry| match policy.family(&of) {
            None => EntryVerdict::Show,
            Some(family) => match tool(entry, family, policy) {
                Ok(None) => EntryVerdict::Show,
                Ok(Some(rewritten)) => EntryVerdict::Edit(rewritten),
                Err(why) => EntryVerdict::Hide(format!("the schema of {} cannot be rewritten: {why}", entry.name)),
            },
        };
        match read(&of.settings) {
            Ok(policy) => entries.iter().map(|entry| verdict(&policy, entry)).collect(),
            Err(why) => entries.iter().map(|_| EntryVerdict::Hide(why.clone())).collect(),
        }
    }
}

/// Why the arguments of a call are not valid, where the schema is known. With `is_renamed` the model knows other names.
fn validate(about: &Call, params: &Json, is_renamed: bool) -> Result<(), String> {
    let Some(schema) = about.input_schema().and_then(Json::parse) else { return Ok(()) };
    let none = Json::Object(Vec::new());
    let arguments = params.get("arguments").filter(|arguments| **arguments != Json::Null);
    validation::arguments(&schema, arguments.unwrap_or(&none), is_renamed)
}

/// The tool as the family takes it; none if it is that already.
fn tool(entry: &Entry, family: Family, policy: &Policy) -> Result<Option<String>, String> {
    let &Policy { longest, renames, .. } = policy;
    let before = Json::parse(&entry.body).filter(Json::is_object).ok_or("it is no JSON object, or too deep")?;
    let mut after = before.clone();
    let schema = after.remove("inputSchema").unwrap_or(Json::Object(Vec::new()));
    let rewritten = rewrite::input(&schema, family, (longest, renames))?;
    if let Some(Json::Text(text)) = after.get_mut("description") {
        rewrite::cut(text, longest);
    }
    // Where nothing changes, not even the order of keys does.
    if rewrite::same(&rewritten, &schema) && before.get("description") == after.get("description") {
        return Ok(None);
    }
    let mut edited = before;
    edited.set("inputSchema", rewritten);
    if let Some(description) = after.remove("description") {
        edited.set("description", description);
    }
    // All of them together have to cross to Weir.
    let text = edited.to_string();
    if text.len() > 2 * entry.body.len() + SLACK {
        Err("it is too large, references followed".into())
    } else {
        Ok(Some(text))
    }
}

weir_policy::export_calls!(Schema);

#[cfg(test)]
mod tests;
