//! A schema in the words of a family.

use weir_policy::json::Json;

use crate::{family::Family, names};

/// As much is looked at, in bytes, all references followed: references to references double.
const WORK: usize = 2 << 20;
/// What each value costs beside its text, in bytes.
const VALUE: usize = 16;
/// As deep as they lie in each other.
const DEPTH: usize = 24;
/// What a schema says that nobody can follow any further.
const CUT_OFF: &str = "(goes on in the same way)";

/// The input schema of a tool.
pub(crate) fn input(schema: &Json, family: Family, (longest, renames): (usize, bool)) -> Result<Json, String> {
    let mut rewriter = Rewriter { root: schema, family, longest, renames, left: WORK, depth: 0, followed: Vec::new() };
    let mut rewritten = rewriter.schema(schema)?;
    match rewritten.get("type").and_then(Json::as_text) {
        Some("object") => {}
        // Nothing is said of it, and arguments are an object.
        _ if schema.members().is_empty() || rewritten.get("properties").is_some() => rewritten.set("type", "object"),
        _ => return Err("its arguments are no object".into()),
    }
    if rewritten.get("properties").is_none() {
        rewritten.set("properties", Json::Object(Vec::new()));
    }
    Ok(rewritten)
}

/// Whether two values are the same but for the order of keys.
pub(crate) fn same(one: &Json, other: &Json) -> bool {
    let (members, elements) = (one.members(), one.elements());
    match (one, other) {
        (Json::Object(_), Json::Object(others)) => {
            let found = |(key, value): &(String, Json)| other.get(key).is_some_and(|other| same(value, other));
            members.len() == others.len() && members.iter().all(found)
        }
        (Json::Array(_), Json::Array(others)) => {
            elements.len() == others.len() && elements.iter().zip(others).all(|(one, other)| same(one, other))
        }
        _ => one == other,
    }
}

/// Cuts a text, and says so.
pub(crate) fn cut(text: &mut String, longest: usize) {
    if let Some((at, _)) = text.char_indices().nth(longest) {
        let end = text.char_indices().nth(longest - 1).map_or(at, |(at, _)| at);
        text.truncate(end);
        text.push('…');
    }
}

struct Rewriter<'s> {
    root: &'s Json,
    family: Family,
    longest: usize,
    /// Whether properties get other names where theirs are rejected.
    renames: bool,
    left: usize,
    depth: usize,
    /// The references that lead here.
    followed: Vec<String>,
}

impl Rewriter<'_> {
    fn schema(&mut self, schema: &Json) -> Result<Json, String> {
        let mut merged = Json::Object(Vec::new());
        if self.depth == DEPTH {
            end(&mut merged);
            return Ok(merged);
        }
        self.depth += 1;
        let followed = self.followed.len();
        self.gather(schema, &mut merged)?;
        let rewritten = self.flat(&merged);
        self.followed.truncate(followed);
        self.depth -= 1;
        rewritten
    }

    /// Puts what a schema says, what it refers to and all of its `allOf` into one.
    fn gather(&mut self, schema: &Json, into: &mut Json) -> Result<(), String> {
        let Json::Object(members) = schema else { return Ok(()) };
        self.left = self.left.checked_sub(weight(schema)).ok_or("it is too large, references followed")?;
        for (key, value) in members {
            match (key.as_str(), value) {
                ("$ref" | "allOf", _) => {}
                ("properties", Json::Object(properties)) => {
                    let mut all = into.remove("properties").unwrap_or(Json::Object(Vec::new()));
                    properties.iter().for_each(|(name, property)| all.set(name, property.clone()));
                    into.set("properties", all);
                }
                ("required", Json::Array(names)) => {
                    let mut all = into.remove("required").map_or(Vec::new(), |all| all.elements().to_vec());
                    all.extend(names.iter().filter(|name| !all.contains(name)).cloned().collect::<Vec<_>>());
                    into.set("required", all);
                }
                _ if into.get(key).is_none() => into.set(key, value.clone()),
                _ => {}
            }
        }
        for part in schema.get("allOf").map_or(&[][..], Json::elements) {
            self.gather(part, into)?;
        }
        let Some(reference) = schema.get("$ref").and_then(Json::as_text) else { return Ok(()) };
        if self.followed.iter().any(|followed| followed == reference) || self.followed.len() >= DEPTH {
            // What it says beside that stays.
            if into.members().is_empty() {
                end(into);
            }
            return Ok(());
        }
        let target = resolved(self.root, reference).ok_or_else(|| format!("{reference} leads nowhere in it"))?;
        self.followed.push(reference.to_owned());
        self.gather(target, into)
    }

    fn flat(&mut self, schema: &Json) -> Result<Json, String> {
        let mut out = Json::Object(Vec::new());
        let mut is_nullable = false;
        for (key, value) in schema.members() {
            match (key.as_str(), value) {
                ("type", Json::Array(types)) => is_nullable |= self.types(types, &mut out),
                ("nullable", value) => is_nullable |= value.as_bool() == Some(true),
                ("const", value) => self.constants(std::slice::from_ref(value), &mut out),
                ("enum", Json::Array(values)) => self.constants(values, &mut out),
                ("format", Json::Text(format)) if !self.family.takes_format(format) => {}
                ("properties", Json::Object(properties)) => out.set("properties", self.properties(properties)?),
                ("items" | "prefixItems" | "anyOf" | "oneOf" | "required" | "description", _) => {}
                // What patterns allow would be forbidden.
                ("additionalProperties", _) if schema.get("patternProperties").is_some() => {}
                (key, value) if self.family.takes(key) && fits(key, value) => out.set(key, value.clone()),
                _ => {}
            }
        }
        if let Some(description @ Json::Text(_)) = schema.get("description") {
            out.set("description", description.clone());
        }
        for union in ["anyOf", "oneOf"] {
            if let Some(Json::Array(variants)) = schema.get(union) {
                is_nullable |= self.union(variants, &mut out)?;
            }
        }
        let is_object = out.get("type").is_none_or(|kind| *kind == "object".into());
        if !is_object && out.get("type").is_some_and(|kind| kind.as_text().is_some()) {
            drop(out.remove("properties"));
        }
        if out.get("anyOf").is_some() && !self.family.has_typed_unions() {
            drop(out.remove("type"));
        }
        self.elements(schema, &mut out)?;
        self.required(schema, &mut out);
        if out.get("type").is_none() && out.get("anyOf").is_none() && !self.family.has_untyped() {
            let is_object = out.get("properties").is_some();
            out.set("type", if is_object { "object" } else { "string" });
        }
        if let Some(Json::Text(text)) = out.get_mut("description") {
            cut(text, self.longest);
        }
        if is_nullable && self.family == Family::Gemini {
            out.set("nullable", true);
        }
        if is_nullable && self.family.has_type_lists() {
            self.null(&mut out);
        }
        Ok(out)
    }

    /// Says in the words of OpenAI and Anthropic that it may be null.
    fn null(&self, out: &mut Json) {
        if let Some(Json::Array(values)) = out.get_mut("enum")
            && !values.contains(&Json::Null)
        {
            values.push(Json::Null);
        }
        if let Some(Json::Text(kind)) = out.get("type").cloned() {
            out.set("type", vec![kind.into(), "null".into()]);
        } else if let Some(Json::Array(variants)) = out.get_mut("anyOf") {
            variants.push(Json::from([("type", "null".into())]));
        }
    }

    /// One of a list of types; whether null is among them.
    fn types(&self, types: &[Json], out: &mut Json) -> bool {
        let null = Json::from("null");
        let others: Vec<Json> = types.iter().filter(|kind| **kind != null).cloned().collect();
        match &others[..] {
            [] => {}
            [one] => out.set("type", one.clone()),
            _ if self.family.has_type_lists() => out.set("type", types.to_vec()),
            // A text can be written for each of them, and the upstream reads what it needs.
            [first, ..] => {
                out.set("type", if others.contains(&"string".into()) { "string".into() } else { first.clone() })
            }
        }
        types.contains(&null) && others.len() <= 1 || types.contains(&null) && !self.family.has_type_lists()
    }

    fn constants(&self, values: &[Json], out: &mut Json) {
        let is_word = |value: &&Json| value.as_text().is_some_and(|text| !text.is_empty());
        let words: Vec<Json> = values.iter().filter(is_word).cloned().collect();
        if words.len() == values.len() || self.family.has_mixed_enums() {
            out.set("enum", values.to_vec());
        } else {
            let all: Vec<String> = values.iter().map(ToString::to_string).collect();
            note(out, &format!("One of: {}.", all.join(", ")));
        }
        if out.get("type").is_none() && !self.family.has_untyped() {
            let kind = match values.first() {
                Some(Json::Number(digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => "integer",
                Some(Json::Number(_)) => "number",
                Some(Json::Bool(_)) => "boolean",
                _ => "string",
            };
            out.set("type", kind);
        }
    }

    fn properties(&mut self, properties: &[(String, Json)]) -> Result<Json, String> {
        let mut out = Vec::with_capacity(properties.len());
        for (name, property) in properties {
            // In a call it would be read as another one.
            let is_taken = self.renames && names::read(name).is_some();
            let Some(shown) = self.name(name).filter(|_| !is_taken) else {
                return Err(format!("the name of its property {name:?} is not one that models are given"));
            };
            // `false`: there is no such property.
            if *property != Json::Bool(false) {
                out.push((shown, self.schema(property)?));
            }
        }
        Ok(Json::Object(out))
    }

    /// The name of a property as the family takes it; none if it takes no such name.
    fn name(&self, name: &str) -> Option<String> {
        if !self.family.has_plain_names() || names::is_plain(name) {
            return Some(name.to_owned());
        }
        if self.renames { names::written(name) } else { None }
    }

    /// Says what the variants have in common, or all of them; whether one is null.
    fn union(&mut self, variants: &[Json], out: &mut Json) -> Result<bool, String> {
        let null = Json::from("null");
        let is_null = |variant: &Json| variant.get("type") == Some(&null) || variant.get("const") == Some(&Json::Null);
        let others: Vec<&Json> = variants.iter().filter(|variant| !is_null(variant)).collect();
        let is_object = |variant: &Json| variant.get("type").and_then(Json::as_text) == Some("object");
        // Arguments are an object, and what only says which properties it needs is about one, too.
        let is_root = self.depth == 1;
        let about_object = is_root || is_object(out) || out.get("properties").is_some();
        let mut rewritten = Vec::with_capacity(others.len());
        for variant in &others {
            let mut variant = (*variant).clone();
            let is_open = ["type", "$ref", "enum", "const", "anyOf", "oneOf", "allOf"]
                .iter()
                .all(|key| variant.get(key).is_none());
            if about_object && is_open {
                variant.set("type", "object");
            }
            rewritten.push(self.schema(&variant)?);
        }
        if is_root {
            rewritten.retain(is_object);
        }
        match &rewritten[..] {
            [] => {}
            [one] => one.members().iter().for_each(|(key, value)| add(out, key, value)),
            all if all.iter().all(is_object) && (!self.family.has_unions() || out.get("properties").is_some()) => {
                self.forms(all, out);
            }
            // At the root there is an object, and no union (OpenAI, Anthropic).
            all if self.family.has_unions() && !all.iter().all(is_object) => out.set("anyOf", all.to_vec()),
            all if all.iter().all(is_object) => self.forms(all, out),
            [first, ..] => {
                first.members().iter().for_each(|(key, value)| add(out, key, value));
                note(out, "Other forms are taken too.");
            }
        }
        Ok(others.len() < variants.len())
    }

    /// Objects of several forms as one: the properties of all, of which those are required that all require.
    fn forms(&self, all: &[Json], out: &mut Json) {
        out.set("type", "object");
        let mut properties = out.remove("properties").unwrap_or(Json::Object(Vec::new()));
        for (name, property) in all.iter().filter_map(|form| form.get("properties")).flat_map(Json::members) {
            match properties.get_mut(name) {
                None => properties.set(name, property.clone()),
                Some(there) => self.widen(there, property),
            }
        }
        out.set("properties", properties);
        let names = |form: &Json| form.get("required").map_or(Vec::new(), |names| names.elements().to_vec());
        let mut required = all.first().map_or(Vec::new(), names);
        required.retain(|name| all.iter().all(|form| names(form).contains(name)));
        if !required.is_empty() {
            let mut there = names(out);
            there.extend(required);
            out.set("required", there);
        }
        note(out, "It has one of several forms; each has some of these properties.");
    }

    /// A property that has another meaning in another form takes both, as far as that can be said.
    fn widen(&self, there: &mut Json, other: &Json) {
        if same(there, other) {
            return;
        }
        let both = match (there.get("enum"), other.get("enum")) {
            (Some(Json::Array(values)), Some(Json::Array(more))) => {
                let more = more.iter().filter(|value| !values.contains(value));
                Some(values.iter().chain(more).cloned().collect::<Vec<_>>())
            }
            _ => None,
        };
        if there.get("type") == other.get("type") {
            drop(there.remove("enum"));
            both.into_iter().for_each(|both| there.set("enum", both));
        } else if self.family.has_unions() {
            let mut variants = match there.get("anyOf") {
                Some(Json::Array(variants)) => variants.clone(),
                _ => vec![there.clone()],
            };
            if !variants.iter().any(|variant| same(variant, other)) {
                variants.push(other.clone());
            }
            *there = Json::from([("anyOf", variants.into())]);
        } else {
            drop(there.remove("enum"));
            note(there, "Other forms are taken too.");
        }
    }

    fn elements(&mut self, schema: &Json, out: &mut Json) -> Result<(), String> {
        let is_array =
            out.get("type").is_some_and(|kind| *kind == "array".into() || kind.elements().contains(&"array".into()));
        let first = schema.get("prefixItems").and_then(|items| items.elements().first());
        let items = match schema.get("items") {
            Some(Json::Array(tuple)) => tuple.first(),
            Some(items @ Json::Object(_)) => Some(items),
            _ => None,
        };
        match first.or(items) {
            Some(items) => {
                let items = self.schema(items)?;
                out.set("items", items);
            }
            None if is_array && self.family.has_untyped() => out.set("items", Json::Object(Vec::new())),
            None if is_array => out.set("items", Json::from([("type", "string".into())])),
            None => {}
        }
        Ok(())
    }

    /// Only what is there can be required.
    fn required(&self, schema: &Json, out: &mut Json) {
        let own = schema.get("required").map_or(&[][..], Json::elements);
        let own = own.iter().filter_map(|name| Some(Json::from(self.name(name.as_text()?)?)));
        let mut names: Vec<Json> = own.collect();
        names.extend(out.remove("required").map_or(Vec::new(), |names| names.elements().to_vec()));
        let properties = out.get("properties").cloned().unwrap_or_default();
        let mut kept: Vec<Json> = Vec::new();
        for name in names {
            if name.as_text().is_some_and(|name| properties.get(name).is_some()) && !kept.contains(&name) {
                kept.push(name);
            }
        }
        if !kept.is_empty() {
            out.set("required", kept);
        }
    }
}

/// What it costs to look at a value.
fn weight(value: &Json) -> usize {
    let text = value.as_text().map_or(0, str::len);
    let members = value.members().iter().map(|(name, value)| name.len() + weight(value));
    VALUE + text + members.chain(value.elements().iter().map(weight)).sum::<usize>()
}

/// Whether the value of a keyword is one that it can have.
fn fits(keyword: &str, value: &Json) -> bool {
    const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "object", "array", "null"];
    match keyword {
        "type" => value.as_text().is_some_and(|kind| TYPES.contains(&kind)),
        "title" | "format" => value.as_text().is_some(),
        // Lookaround and the like are not of the patterns that vendors have.
        "pattern" => value.as_text().is_some_and(|pattern| !pattern.contains("(?")),
        "uniqueItems" | "additionalProperties" => value.as_bool().is_some(),
        "default" | "x-mcp-header" => true,
        _ => matches!(value, Json::Number(_)),
    }
}

/// Stands for a schema that has no end.
fn end(into: &mut Json) {
    *into = Json::from([("type", "object".into()), ("description", CUT_OFF.into())]);
}

fn add(out: &mut Json, key: &str, value: &Json) {
    if out.get(key).is_none() {
        out.set(key, value.clone());
    }
}

/// Adds a sentence to the description, once.
fn note(out: &mut Json, sentence: &str) {
    match out.get("description").and_then(Json::as_text) {
        Some(text) if text.contains(sentence) => {}
        Some(text) => out.set("description", format!("{text} {sentence}")),
        None => out.set("description", sentence),
    }
}

/// What a reference within the document leads to (RFC 6901).
pub(crate) fn resolved<'s>(root: &'s Json, reference: &str) -> Option<&'s Json> {
    let path = reference.strip_prefix('#').filter(|path| path.is_empty() || path.starts_with('/'))?;
    path.split('/').skip(1).try_fold(root, |here, part| {
        let part = part.replace("~1", "/").replace("~0", "~");
        match here {
            Json::Array(elements) => elements.get(part.parse::<usize>().ok()?),
            _ => here.get(&part),
        }
    })
}
