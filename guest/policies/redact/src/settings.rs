//! The settings of the policy. What is wrong with them is one sentence that names the setting.

use weir_policy::json::Json;

use crate::{
    detect::{Detector, Detectors},
    pattern::Pattern,
};

const PATTERNS: usize = 32;
const KEEP_LAST: u64 = 16;
/// A week: placeholders of an older conversation are of no use.
const TTL_SECONDS: u64 = 7 * 24 * 3600;

/// What the operator has chosen.
pub(crate) struct RedactSettings {
    pub(crate) detectors: Detectors,
    pub(crate) reversible: bool,
    pub(crate) keep_last: usize,
    pub(crate) ttl_seconds: u32,
}

impl RedactSettings {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let Some(object) = Json::parse(text).filter(Json::is_object) else {
            return Err("`settings` is not a JSON object".to_owned());
        };
        let known = ["find", "patterns", "reversible", "keep_last", "ttl_seconds"];
        if let Some(key) = object.members().iter().map(|(key, _)| key).find(|key| !known.contains(&key.as_str())) {
            return Err(format!("`{}` is no setting of this policy; it has {}", shown(key), known.join(", ")));
        }
        let find = find(object.get("find"))?;
        let patterns = patterns(object.get("patterns"))?;
        let reversible = match object.get("reversible").map(Json::as_bool) {
            None => false,
            Some(Some(flag)) => flag,
            Some(None) => return Err("`reversible` is neither true nor false".to_owned()),
        };
        let keep_last = number(&object, "keep_last", 0, 0..=KEEP_LAST)?;
        let ttl_seconds = number(&object, "ttl_seconds", 3600, 1..=TTL_SECONDS)?;
        Ok(Self {
            detectors: Detectors::new(find, patterns),
            reversible,
            keep_last: usize::try_from(keep_last).unwrap_or_default(),
            ttl_seconds: u32::try_from(ttl_seconds).unwrap_or(3600),
        })
    }
}

fn find(value: Option<&Json>) -> Result<Vec<Detector>, String> {
    let Some(value) = value else { return Ok(Detector::ALL.to_vec()) };
    let Json::Array(names) = value else {
        return Err("`find` is not a list of names of detectors".to_owned());
    };
    let detector = |name: &Json| {
        let text = name.as_text().unwrap_or_default();
        Detector::ALL.into_iter().find(|detector| detector.name() == text).ok_or_else(|| {
            let all = Detector::ALL.map(Detector::name).join(", ");
            format!("`find` has `{}`, but the detectors are {all}", shown(text))
        })
    };
    names.iter().map(detector).collect()
}

fn patterns(value: Option<&Json>) -> Result<Vec<(String, Pattern)>, String> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let Json::Object(object) = value else {
        return Err("`patterns` is not an object of names and patterns".to_owned());
    };
    if object.len() > PATTERNS {
        return Err(format!("`patterns` has more than {PATTERNS} patterns"));
    }
    let pattern = |(name, pattern): &(String, Json)| {
        if !is_name(name) {
            return Err(format!(
                "`patterns` has the name `{}`; a name is up to 32 of a-z, 0-9, - and _, after a letter",
                shown(name)
            ));
        }
        if Detector::ALL.iter().any(|detector| detector.name() == name) {
            return Err(format!("`patterns` has the name `{name}`, which is that of a detector"));
        }
        let text = pattern.as_text().ok_or_else(|| format!("`patterns.{name}` is not a text"))?;
        let pattern = Pattern::read(text).map_err(|why| format!("`patterns.{name}` {why}"))?;
        Ok((name.clone(), pattern))
    };
    object.iter().map(pattern).collect()
}

/// A name stands in placeholders and labels, so it may hold nothing that ends a placeholder.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    name.len() <= 32 && name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(allowed)
}

fn number(object: &Json, key: &str, default: u64, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let Some(value) = object.get(key) else { return Ok(default) };
    value
        .as_number()
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("`{key}` is no whole number from {} to {}", range.start(), range.end()))
}

/// What an operator wrote, cut to what a message can hold.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_default() {
        let settings = RedactSettings::read("{}").expect("nothing is needed");
        assert!(!settings.reversible);
        assert_eq!((settings.keep_last, settings.ttl_seconds), (0, 3600));
        assert_eq!(settings.detectors.names().collect::<Vec<_>>(), ["card", "iban", "email", "phone", "ssn", "key"]);
    }

    #[test]
    fn reads_what_is_set() {
        let json =
            r#"{"find":["iban"],"patterns":{"staff":"EMP-####"},"reversible":true,"keep_last":4,"ttl_seconds":60}"#;
        let settings = RedactSettings::read(json).expect("these are right");
        assert!(settings.reversible);
        assert_eq!((settings.keep_last, settings.ttl_seconds), (4, 60));
        assert_eq!(settings.detectors.names().collect::<Vec<_>>(), ["iban", "staff"]);
    }

    #[test]
    fn an_empty_list_finds_nothing() {
        let settings = RedactSettings::read(r#"{"find":[]}"#).expect("it is a list");
        assert_eq!(settings.detectors.names().count(), 0);
    }

    #[test]
    fn names_the_setting_that_is_wrong() {
        for (json, setting) in [
            ("", "settings"),
            ("[]", "settings"),
            (r#"{"finds":[]}"#, "`finds`"),
            (r#"{"find":"card"}"#, "`find`"),
            (r#"{"find":["ipv4"]}"#, "`find`"),
            (r#"{"find":[1]}"#, "`find`"),
            (r#"{"patterns":[]}"#, "`patterns`"),
            (r#"{"patterns":{"Name":"a"}}"#, "`Name`"),
            (r#"{"patterns":{"a>":"a"}}"#, "`a>`"),
            (r#"{"patterns":{"":"a"}}"#, "`patterns`"),
            (r#"{"patterns":{"card":"a"}}"#, "`card`"),
            (r#"{"patterns":{"a":1}}"#, "`patterns.a`"),
            (r#"{"patterns":{"a":""}}"#, "`patterns.a`"),
            (r#"{"patterns":{"a":"**"}}"#, "`patterns.a`"),
            (r#"{"reversible":"yes"}"#, "`reversible`"),
            (r#"{"keep_last":-1}"#, "`keep_last`"),
            (r#"{"keep_last":17}"#, "`keep_last`"),
            (r#"{"keep_last":1.5}"#, "`keep_last`"),
            (r#"{"ttl_seconds":0}"#, "`ttl_seconds`"),
            (r#"{"ttl_seconds":604801}"#, "`ttl_seconds`"),
        ] {
            let Err(why) = RedactSettings::read(json) else { panic!("{json} is wrong") };
            assert!(why.contains(setting), "{json}: {why}");
            assert!(why.split_whitespace().count() <= 20, "{why}");
        }
    }

    #[test]
    fn refuses_more_patterns_than_fit() {
        let of = |count: usize| {
            let patterns: Vec<_> = (0..count).map(|at| format!(r#""p{at}":"A-#""#)).collect();
            RedactSettings::read(&format!(r#"{{"patterns":{{{}}}}}"#, patterns.join(",")))
        };
        assert!(of(32).is_ok());
        assert!(of(33).is_err());
    }
}
