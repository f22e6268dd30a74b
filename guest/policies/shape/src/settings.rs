//! The settings of the policy. What is wrong with them is one sentence that names the setting.

use std::ops::RangeInclusive;

use weir_policy::json::Json;

use crate::{path::Paths, pattern};

const BUDGET: RangeInclusive<u64> = 1024..=262_144;
const ITEMS: RangeInclusive<u64> = 1..=1_000_000;
const TTL_SECONDS: RangeInclusive<u64> = 60..=86_400;
/// The most entries of `tools`, and the most patterns of one.
const TOOLS: usize = 64;
/// The longest pattern, in bytes.
const PATTERN: usize = 128;

/// What the operator has chosen.
pub(crate) struct ShapeSettings {
    all: Rules,
    tools: Vec<(Vec<String>, Rules)>,
    pub(crate) ttl_seconds: u32,
}

/// What a result may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) budget: usize,
    pub(crate) items: Option<usize>,
    pub(crate) keep: Paths,
    pub(crate) drop: Paths,
}

impl Rules {
    /// The same without what holds for documents only.
    pub(crate) fn budget_only(&self) -> Self {
        Self { budget: self.budget, ..Self::default() }
    }

    /// Whether only the budget counts.
    pub(crate) const fn is_budget_only(&self) -> bool {
        self.items.is_none() && self.keep.is_empty() && self.drop.is_empty()
    }
}

impl ShapeSettings {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let Some(object) = Json::parse(text).filter(Json::is_object) else {
            return Err("`settings` is not a JSON object".to_owned());
        };
        if let Some(key) = unknown(&object, &["budget_bytes", "items", "ttl_seconds", "tools"]) {
            return Err(format!(
                "`{key}` is no setting of this policy; it has budget_bytes, items, ttl_seconds, tools"
            ));
        }
        let budget = number(&object, "budget_bytes", BUDGET)?.unwrap_or(32_768);
        let all = Rules { budget, items: number(&object, "items", ITEMS)?, ..Rules::default() };
        let ttl_seconds = number(&object, "ttl_seconds", TTL_SECONDS)?.and_then(|seconds| u32::try_from(seconds).ok());
        let tools = match object.get("tools") {
            None => Vec::new(),
            Some(Json::Array(tools)) if tools.len() <= TOOLS => {
                let tool = |tool: &Json| self::tool(tool, &all).map_err(|why| format!("an entry of `tools` {why}"));
                tools.iter().map(tool).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(format!("`tools` is not a list of at most {TOOLS} objects")),
        };
        Ok(Self { all, tools, ttl_seconds: ttl_seconds.unwrap_or(3600) })
    }

    /// What holds for the results of a tool; none where it is not known.
    pub(crate) fn rules(&self, tool: Option<&str>) -> &Rules {
        let fits = |names: &[String]| tool.is_some_and(|tool| names.iter().any(|name| pattern::matches(name, tool)));
        self.tools.iter().find(|(names, _)| fits(names)).map_or(&self.all, |(_, rules)| rules)
    }
}

fn tool(tool: &Json, all: &Rules) -> Result<(Vec<String>, Rules), String> {
    if !tool.is_object() {
        return Err("is not an object".to_owned());
    }
    if let Some(key) = unknown(tool, &["names", "keep", "drop", "items", "budget_bytes"]) {
        return Err(format!("has `{key}`; it can have names, keep, drop, items, budget_bytes"));
    }
    let names = texts(tool, "names")?;
    if names.is_empty() || names.len() > TOOLS || names.iter().any(|name| name.is_empty() || name.len() > PATTERN) {
        return Err(format!("needs `names`: 1 to {TOOLS} patterns of at most {PATTERN} bytes"));
    }
    let paths = |key: &str| {
        let texts = texts(tool, key)?;
        Paths::read(texts.iter().map(String::as_str)).map_err(|why| format!("is wrong: `{key}` {why}"))
    };
    let within = |why: String| format!("is wrong: {why}");
    let rules = Rules {
        budget: number(tool, "budget_bytes", BUDGET).map_err(within)?.unwrap_or(all.budget),
        items: number(tool, "items", ITEMS).map_err(within)?.or(all.items),
        keep: paths("keep")?,
        drop: paths("drop")?,
    };
    Ok((names, rules))
}

fn unknown(object: &Json, known: &[&str]) -> Option<String> {
    let key = object.members().iter().map(|(key, _)| key).find(|key| !known.contains(&key.as_str()))?;
    Some(key.chars().take(40).collect())
}

fn texts(object: &Json, key: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("is wrong: `{key}` is not a list of texts");
    let Some(value) = object.get(key) else { return Ok(Vec::new()) };
    let Json::Array(texts) = value else { return Err(wrong()) };
    texts.iter().map(|text| text.as_text().map(str::to_owned).ok_or_else(wrong)).collect()
}

fn number(object: &Json, key: &str, range: RangeInclusive<u64>) -> Result<Option<usize>, String> {
    let Some(value) = object.get(key) else { return Ok(None) };
    let number = value.as_number().filter(|number| range.contains(number));
    let number = number.and_then(|number| usize::try_from(number).ok());
    number.map(Some).ok_or_else(|| format!("`{key}` is no whole number from {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_default() {
        let settings = ShapeSettings::read("{}").expect("nothing is needed");
        let expected = Rules { budget: 32_768, ..Rules::default() };
        assert_eq!((settings.rules(Some("any")), settings.ttl_seconds), (&expected, 3600));
    }

    #[test]
    fn the_first_entry_that_fits_counts() {
        let json = r#"{"items":50,"ttl_seconds":60,"tools":[
            {"names":["list_*","find"],"keep":["a.*.b"],"budget_bytes":1024},{"names":["*"],"drop":["c"],"items":1}]}"#;
        let settings = ShapeSettings::read(json).expect("these are right");
        let first = settings.rules(Some("find"));
        assert_eq!((first.budget, first.items, first.drop.is_empty()), (1024, Some(50), true));
        assert_eq!(settings.rules(Some("list_a")), first);
        let second = settings.rules(Some("other"));
        assert_eq!((second.budget, second.items, second.keep.is_empty()), (32_768, Some(1), true));
        assert_eq!((settings.rules(None).items, settings.ttl_seconds), (Some(50), 60));
        assert!(settings.rules(None).drop.is_empty());
    }

    #[test]
    fn names_the_setting_that_is_wrong() {
        for (json, setting) in [
            ("", "settings"),
            ("[]", "settings"),
            (r#"{"budget":1}"#, "`budget`"),
            (r#"{"budget_bytes":1023}"#, "`budget_bytes`"),
            (r#"{"budget_bytes":262145}"#, "`budget_bytes`"),
            (r#"{"budget_bytes":"1k"}"#, "`budget_bytes`"),
            (r#"{"items":0}"#, "`items`"),
            (r#"{"ttl_seconds":59}"#, "`ttl_seconds`"),
            (r#"{"ttl_seconds":86401}"#, "`ttl_seconds`"),
            (r#"{"tools":{}}"#, "`tools`"),
            (r#"{"tools":[1]}"#, "`tools`"),
            (r#"{"tools":[{}]}"#, "`names`"),
            (r#"{"tools":[{"names":[]}]}"#, "`names`"),
            (r#"{"tools":[{"names":[""]}]}"#, "`names`"),
            (r#"{"tools":[{"names":"a"}]}"#, "`names`"),
            (r#"{"tools":[{"names":["a"],"kep":[]}]}"#, "`kep`"),
            (r#"{"tools":[{"names":["a"],"keep":"a"}]}"#, "`keep`"),
            (r#"{"tools":[{"names":["a"],"keep":["a..b"]}]}"#, "`keep`"),
            (r#"{"tools":[{"names":["a"],"drop":[1]}]}"#, "`drop`"),
            (r#"{"tools":[{"names":["a"],"items":-1}]}"#, "`items`"),
            (r#"{"tools":[{"names":["a"],"budget_bytes":1}]}"#, "`budget_bytes`"),
        ] {
            let Err(why) = ShapeSettings::read(json) else { panic!("{json} is wrong") };
            assert!(why.contains(setting), "{json}: {why}");
            assert!(why.split_whitespace().count() <= 20, "{why}");
        }
    }
}
