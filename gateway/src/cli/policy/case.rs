//! Case files: questions for a policy, and what it should answer.

use std::{
    collections::BTreeMap,
    fs,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Mutex,
};

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::policy::{Service, ServiceRequest, ServiceResponse};

/// One file. All questions of it share what the policy keeps.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseFile {
    /// The settings of the policy.
    #[serde(default)]
    pub(super) settings: Map<String, Value>,
    /// The texts of secrets, by name.
    #[serde(default)]
    pub(super) secrets: BTreeMap<String, String>,
    /// What services answer, each once.
    #[serde(default)]
    pub(super) services: Vec<ServiceAnswer>,
    pub(super) questions: Vec<Question>,
}

/// One question.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    /// The function of the contract.
    pub(super) ask: String,
    /// Its parameters by name.
    #[serde(default)]
    pub(super) with: Map<String, Value>,
    /// The answer, as far as it matters.
    pub(super) expect: Value,
}

/// What a service answers to one request.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceAnswer {
    #[serde(default = "get")]
    method: String,
    url: String,
    #[serde(default = "ok")]
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Value,
}

/// Services that answer as a case says.
pub(super) struct WrittenServices(Mutex<Vec<ServiceAnswer>>);

fn get() -> String {
    "GET".to_owned()
}

const fn ok() -> u16 {
    200
}

/// The case files that are meant, in order: files, and those in folders.
pub(super) fn found(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        if path.is_dir() {
            let listed = fs::read_dir(path).with_context(|| format!("{} cannot be read", path.display()))?;
            let mut files: Vec<_> = listed.filter_map(|file| Some(file.ok()?.path())).collect();
            files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
            files.sort_unstable();
            all.extend(files);
        } else {
            all.push(path.clone());
        }
    }
    if all.is_empty() {
        bail!("there are no case files (*.json) to try");
    }
    Ok(all)
}

impl CaseFile {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no case file", path.display()))
    }

    /// The parameters of a question, with the settings where the contract has them.
    pub(super) fn parameters(&self, question: &Question) -> Value {
        parameters(&question.ask, question.with.clone(), &Value::Object(self.settings.clone()))
    }
}

/// The parameters of a function with settings, unless they have others.
pub(super) fn parameters(function: &str, mut with: Map<String, Value>, settings: &Value) -> Value {
    if let Some(holder) = settings_holder(function, &mut with) {
        holder.entry("settings").or_insert_with(|| settings.clone());
    }
    Value::Object(with)
}

/// Puts other settings into the parameters of a function.
pub(super) fn set_settings(function: &str, with: &mut Map<String, Value>, settings: &Value) {
    if let Some(holder) = settings_holder(function, with) {
        holder.insert("settings".to_owned(), settings.clone());
    }
}

/// Where the parameters of a function have the settings; none if something else is there.
fn settings_holder<'a>(function: &str, with: &'a mut Map<String, Value>) -> Option<&'a mut Map<String, Value>> {
    let path: &[&str] = match function {
        "wants" => &[],
        "next" => &["to"],
        "entries" => &["of"],
        _ => &["about", "upstream"],
    };
    path.iter()
        .try_fold(with, |here, step| here.entry(*step).or_insert_with(|| Value::Object(Map::new())).as_object_mut())
}

/// How an answer differs from what is expected: objects may have more, everything else is the same. A text that should be a
/// document is read as one.
pub(super) fn differences(expected: &Value, found: &Value, at: &str, all: &mut Vec<String>) {
    let below = |step: &str| if at.is_empty() { step.to_owned() } else { format!("{at}.{step}") };
    match (expected, found) {
        (Value::Object(_) | Value::Array(_), Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(document) => differences(expected, &document, at, all),
            Err(_) => all.push(difference(at, expected, found)),
        },
        (Value::Object(fields), Value::Object(has)) => {
            for (name, expected) in fields {
                differences(expected, has.get(name).unwrap_or(&Value::Null), &below(name), all);
            }
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => {
            for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
                differences(expected, found, &format!("{at}[{index}]"), all);
            }
        }
        _ if expected == found => {}
        _ => all.push(difference(at, expected, found)),
    }
}

fn difference(at: &str, expected: &Value, found: &Value) -> String {
    let at = if at.is_empty() { "the answer" } else { at };
    format!("{at}\n  expected  {expected}\n  found     {found}")
}

impl WrittenServices {
    pub(super) fn new(answers: &[ServiceAnswer]) -> Self {
        Self(Mutex::new(answers.to_vec()))
    }

    fn answer(&self, request: &ServiceRequest) -> Result<ServiceResponse, String> {
        let mut answers = self.0.lock().map_err(|why| why.to_string())?;
        let fits = |answer: &ServiceAnswer| answer.method == request.method && answer.url == request.url;
        let Some(at) = answers.iter().position(fits) else {
            return Err(format!("the case has no answer to {} {}", request.method, request.url));
        };
        let ServiceAnswer { status, headers, body, .. } = answers.remove(at);
        let body = match body {
            Value::Null => String::new(),
            Value::String(text) => text,
            document => document.to_string(),
        };
        Ok(ServiceResponse { status, headers: headers.into_iter().collect(), body: body.into_bytes() })
    }
}

impl Service for WrittenServices {
    fn send(
        &self,
        request: ServiceRequest,
    ) -> Pin<Box<dyn Future<Output = Result<ServiceResponse, String>> + Send + '_>> {
        Box::pin(async move { self.answer(&request) })
    }
}
