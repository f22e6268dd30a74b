//! The policy `weir:schema`: input schemas that a vendor of models rejects are rewritten in the lists of tools.
//!
//! One tool with a reference, a union or a format that the vendor does not know makes its API refuse all tools. Servers write
//! such schemas, and clients pass them on. This policy says the same in words that the vendor takes. What it cannot say so it
//! says in descriptions, or leaves out: the upstream checks arguments against its own schema as before. A tool that cannot
//! be rewritten is hidden, and the others stay.
//!
//! | setting | meaning |
//! | --- | --- |
//! | `for` | `"gemini"`, `"openai"`, `"anthropic"`, or `"any"` (default): what all of them take |
//! | `description` | the longest description, in characters; 1024 unless it is said |

mod family;
mod rewrite;

use family::Family;
use weir_policy::{Settings, Upstream, calls::*, json::Json};

struct Schema;

/// The longest description unless the settings say otherwise, in characters.
const DESCRIPTION: u64 = 1024;

/// How much longer than twice a tool may become, in bytes.
const SLACK: usize = 1000;

fn read(text: &str) -> Result<(Family, usize), String> {
    let settings = Settings::read(text);
    let known = ["for", "description"];
    if let Some(other) = settings.unknown(&known) {
        return Err(format!("there is no setting `{other}`; there are {}", known.join(", ")));
    }
    let family = match settings.get("for").map(Json::as_text) {
        None => Family::Any,
        Some(name) => name.and_then(Family::of).ok_or("`for` is \"gemini\", \"openai\", \"anthropic\" or \"any\"")?,
    };
    let longest = settings.get("description").map_or(Some(DESCRIPTION), Json::as_number);
    let longest = longest.filter(|longest| (64..=65_536).contains(longest));
    let longest = longest.ok_or("`description` is a number from 64 to 65536")?;
    Ok((family, usize::try_from(longest).unwrap_or(usize::MAX)))
}

impl Calls for Schema {
    fn wants(settings: String) -> Result<Interest, String> {
        read(&settings).map(|_| Interest::in_entries([EntryKind::Tool]))
    }

    fn before(_: Call, _: Option<String>) -> Decision {
        Decision::allow()
    }

    fn after(_: Call, memory: String, _: Content) -> AnswerDecision {
        AnswerDecision::pass(memory)
    }

    fn entries(of: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        let verdict =
            |entry: &Entry| match read(&of.settings).and_then(|(family, longest)| tool(entry, family, longest)) {
                Ok(None) => EntryVerdict::Show,
                Ok(Some(rewritten)) => EntryVerdict::Edit(rewritten),
                Err(why) => EntryVerdict::Hide(format!("the schema of {} cannot be rewritten: {why}", entry.name)),
            };
        entries.iter().map(verdict).collect()
    }
}

/// The tool as the family takes it; none if it is that already.
fn tool(entry: &Entry, family: Family, longest: usize) -> Result<Option<String>, String> {
    let before = Json::parse(&entry.body).filter(Json::is_object).ok_or("it is no JSON object, or too deep")?;
    let mut after = before.clone();
    let schema = after.remove("inputSchema").unwrap_or(Json::Object(Vec::new()));
    let rewritten = rewrite::input(&schema, family, longest)?;
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
