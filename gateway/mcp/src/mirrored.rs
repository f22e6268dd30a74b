//! Arguments of tools that travel in headers too (`x-mcp-header`; MCP 2026-07-28, basic/transports).
//!
//! Whoever calls such a tool over HTTP repeats the argument in `Mcp-Param-{Name}`, so that what stands between can route
//! by it; whoever serves it checks that both say the same. Where a schema breaks the rules, nobody can tell what belongs
//! into the header, so clients leave out the whole tool.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::{
    headers::{PARAM_PREFIX, decode_value, param_value},
    json,
};

/// Where a schema says that its value is repeated in a header.
const KEY: &str = "x-mcp-header";

/// Keywords whose schemas describe only some of the arguments that may come; a header for such a one cannot be due.
const CONDITIONAL: [&str; 20] = [
    "items",
    "prefixItems",
    "contains",
    "additionalProperties",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
    "oneOf",
    "anyOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "$defs",
    "definitions",
];

/// Of these, the ones that hold schemas by name.
const NAMED: [&str; 5] = ["patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"];

/// How deep a schema is looked into. What lies deeper is not looked at, as if it had no headers.
const DEPTH: usize = 64;

/// How many headers one tool may have.
const MOST: usize = 64;

/// One argument that has a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// The header's whole name, in lower case.
    pub header: String,
    path: Vec<String>,
}

/// Why a tool cannot be offered over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Invalid {
    /// In a place where it is not certain that the argument is there.
    #[error("`x-mcp-header` where no chain of `properties` leads")]
    Place,
    /// No header can have this name.
    #[error("`x-mcp-header` that is no header name")]
    Name,
    /// Two arguments for one header.
    #[error("`x-mcp-header` twice with the same name")]
    Twice,
    /// Not a string, an integer or a boolean.
    #[error("`x-mcp-header` on something other than a string, an integer or a boolean")]
    Type,
    /// More headers than anybody needs.
    #[error("`x-mcp-header` more than {MOST} times")]
    TooMany,
}

impl Mirrored {
    /// What the header says for these arguments, raw JSON; none if there must be no header.
    pub fn value(&self, arguments: &[u8]) -> Option<String> {
        param_value(self.argument(arguments)?)
    }

    /// Whether a header, or none, says what these arguments say.
    pub fn agrees(&self, arguments: &[u8], header: Option<&str>) -> bool {
        let argument = self.argument(arguments).filter(|raw| param_value(raw).is_some());
        match (argument, header) {
            (None, None) => true,
            (Some(argument), Some(header)) => same(argument, header),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    fn argument<'a>(&self, arguments: &'a [u8]) -> Option<&'a [u8]> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        json::get(arguments, &path)
    }
}

/// Whether a header's value says what an argument says. Numbers are compared as numbers.
fn same(argument: &[u8], header: &str) -> bool {
    let Some(header) = decode_value(header) else { return false };
    match argument.first() {
        Some(b'"') => json::string(argument).is_some_and(|text| text == header),
        Some(b'-' | b'0'..=b'9') => {
            let argument = String::from_utf8_lossy(argument);
            argument == header || argument.parse::<f64>().is_ok_and(|number| header.parse() == Ok(number))
        }
        _ => argument == header.as_bytes(),
    }
}

/// The arguments of a tool that have headers. `tool` is one entry of `tools/list`, raw and checked.
pub fn mirrored(tool: &[u8]) -> Result<Vec<Mirrored>, Invalid> {
    let mut found = ParamHeader::default();
    // Most tools have none, and a word is found faster than a schema is walked.
    if memchr::memmem::find(tool, KEY.as_bytes()).is_some()
        && let Some(schema) = json::get(tool, &["inputSchema"])
    {
        found.visit(schema, &mut Vec::new(), true, 0)?;
    }
    Ok(found.all)
}

/// The entries of a `tools/list` that can be offered over HTTP, as an array; none if that is all of them.
pub fn offered(tools: &[u8]) -> Option<Vec<u8>> {
    memchr::memmem::find(tools, KEY.as_bytes())?;
    let valid: Vec<&[u8]> = json::elements(tools).filter(|tool| mirrored(tool).is_ok()).collect();
    if valid.len() == json::elements(tools).count() {
        return None;
    }
    Some([b"[", &valid.join(&b","[..])[..], b"]"].concat())
}

#[derive(Default)]
struct ParamHeader {
    all: Vec<Mirrored>,
    names: BTreeSet<String>,
}

impl ParamHeader {
    fn visit(&mut self, schema: &[u8], path: &mut Vec<String>, certain: bool, depth: usize) -> Result<(), Invalid> {
        if depth > DEPTH {
            return Ok(());
        }
        for (key, value) in json::members(schema) {
            match key.as_ref() {
                KEY => self.note(schema, value, path, certain)?,
                "properties" => {
                    for (name, property) in json::members(value) {
                        path.push(name.into_owned());
                        self.visit(property, path, certain, depth + 1)?;
                        path.pop();
                    }
                }
                name if NAMED.contains(&name) => {
                    for (_, named) in json::members(value) {
                        self.visit(named, path, false, depth + 1)?;
                    }
                }
                name if CONDITIONAL.contains(&name) => {
                    self.visit(value, path, false, depth + 1)?;
                    for element in json::elements(value) {
                        self.visit(element, path, false, depth + 1)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn note(&mut self, schema: &[u8], name: &[u8], path: &[String], certain: bool) -> Result<(), Invalid> {
        if !certain || path.is_empty() {
            return Err(Invalid::Place);
        }
        let name = json::string(name).filter(|name| is_token(name)).ok_or(Invalid::Name)?;
        let kind = json::get(schema, &["type"]).and_then(json::string);
        if !matches!(kind.as_deref(), Some("string" | "integer" | "boolean")) {
            return Err(Invalid::Type);
        }
        let header = format!("{PARAM_PREFIX}{}", name.to_ascii_lowercase());
        if !self.names.insert(header.clone()) {
            return Err(Invalid::Twice);
        }
        if self.all.len() >= MOST {
            return Err(Invalid::TooMany);
        }
        self.all.push(Mirrored { header, path: path.to_vec() });
        Ok(())
    }
}

/// Whether a header can have this name (RFC 9110 §5.6.2).
fn is_token(name: &str) -> bool {
    let mark = |byte| b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || mark(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(schema: &str) -> String {
        format!(r#"{{"name":"t","inputSchema":{schema}}}"#)
    }

    fn headers(schema: &str) -> Result<Vec<String>, Invalid> {
        let found = mirrored(tool(schema).as_bytes())?;
        Ok(found.into_iter().map(|one| one.header).collect())
    }

    const NESTED: &str = r#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "where":{"type":"object","properties":{"n":{"x-mcp-header":"N-1","type":"integer"}}},
        "x-mcp-header":{"type":"string"}}}"#;

    #[test]
    fn headers_are_found_at_any_depth_of_properties() {
        assert_eq!(headers(NESTED).unwrap(), ["mcp-param-region", "mcp-param-n-1"]);
        assert_eq!(headers(r#"{"type":"object"}"#).unwrap(), Vec::<String>::new());
        assert!(mirrored(b"{}").unwrap().is_empty());
    }

    #[test]
    fn a_schema_that_breaks_a_rule_spoils_the_tool() {
        let property = |text: &str| format!(r#"{{"properties":{{"a":{text}}}}}"#);
        let header = r#"{"type":"string","x-mcp-header":"A"}"#;
        for (schema, why) in [
            (header.to_owned(), Invalid::Place),
            (property(&format!(r#"{{"items":{header}}}"#)), Invalid::Place),
            (property(&format!(r#"{{"anyOf":[{{}},{header}]}}"#)), Invalid::Place),
            (format!(r#"{{"$defs":{{"d":{}}}}}"#, property(header)), Invalid::Place),
            (property(r#"{"type":"string","x-mcp-header":""}"#), Invalid::Name),
            (property(r#"{"type":"string","x-mcp-header":"a b"}"#), Invalid::Name),
            (property(r#"{"type":"string","x-mcp-header":1}"#), Invalid::Name),
            (property(r#"{"type":"number","x-mcp-header":"A"}"#), Invalid::Type),
            (property(r#"{"x-mcp-header":"A"}"#), Invalid::Type),
            (format!(r#"{{"properties":{{"a":{header},"b":{}}}}}"#, header.replace('A', "a")), Invalid::Twice),
        ] {
            assert_eq!(headers(&schema), Err(why), "{schema}");
        }
        let (good, bad) = (tool(NESTED), tool(header));
        assert_eq!(offered(format!("[{good}]").as_bytes()), None);
        assert_eq!(offered(format!("[{bad},{good},{bad}]").as_bytes()).unwrap(), format!("[{good}]").as_bytes());
    }

    #[test]
    fn a_header_says_what_the_argument_says() {
        let found = mirrored(tool(NESTED).as_bytes()).unwrap();
        let [region, number] = &found[..] else { panic!("{found:?}") };
        let arguments = r#"{"region":"größe","where":{"n":7}}"#.as_bytes();
        assert_eq!(region.value(arguments).unwrap(), "=?base64?Z3LDtsOfZQ==?=");
        assert_eq!(number.value(arguments).unwrap(), "7");
        assert!(region.agrees(arguments, Some("=?base64?Z3LDtsOfZQ==?=")) && number.agrees(arguments, Some(" 7.0 ")));
        assert!(!number.agrees(arguments, Some("8")) && !number.agrees(arguments, None));
        for absent in ["{}", r#"{"region":null}"#, "null", ""] {
            assert_eq!(region.value(absent.as_bytes()), None);
            assert!(region.agrees(absent.as_bytes(), None) && !region.agrees(absent.as_bytes(), Some("x")));
        }
        assert!(!region.agrees(arguments, Some("=?base64?*?=")) && !region.agrees(arguments, Some("")));
    }
}
