//! `weir policy serve`: a component as the interceptors of an MCP server (SEP-2624).

use std::{path::Path, process::ExitCode};

use anyhow::bail;
use serde_json::{Map, Value, json};
use tokio::io::BufReader;
use weir_mcp::{
    Era,
    answer::{INTERNAL, INVALID_PARAMS, METHOD_NOT_FOUND},
    era::{MODERN_VERSIONS, negotiate},
    method,
};

use crate::{
    policy::{CallInterest, Detail, Policy, PolicyGrant},
    stdio_server::{Failure, Incoming, next_line, write_line},
};

use super::{Component, case, store_in_memory};

const EXTENSION: &str = "io.modelcontextprotocol/interceptors";

/// What an interceptor does with a component: SEP-2624 has one that refuses and one that changes, and a policy does both.
const KINDS: [(&str, &str); 2] = [("validator", "validation"), ("mutator", "mutation")];

/// A component whose decisions are offered as interceptors.
struct PolicyServer {
    policy: Policy,
    interest: CallInterest,
    settings: Value,
    name: String,
}

/// What `interceptor/invoke` asks for.
struct Invocation<'a> {
    interceptor: &'a str,
    event: &'a str,
    is_request: bool,
    /// What the policy is asked about: `params` or a result.
    content: &'a Value,
    /// The whole request that `content` was in, if it was in one.
    envelope: Option<&'a Value>,
    subject: Option<&'a str>,
}

/// What a policy makes of something.
enum ServedVerdict {
    Pass,
    Refuse(String),
    Change(Value),
}

pub(super) fn run(component: &Component, settings: &str, name: Option<String>) -> anyhow::Result<ExitCode> {
    let (policy, _) = component.load(settings.to_owned(), None, Some(store_in_memory()))?;
    if !policy.decides_calls() {
        bail!("{} decides nothing about calls, which is what interceptors do", policy.name());
    }
    if policy.imported_grants().contains(&PolicyGrant::Http) {
        bail!("{} asks services, which it cannot do here; name it in the configuration of a gateway", policy.name());
    }
    let runtime = super::super::runtime()?;
    let interest = runtime.block_on(policy.wants())?;
    if (interest.request, interest.answer) == (Detail::Nothing, Detail::Nothing) {
        bail!("{} decides about lists and events only, which interceptors do not see", policy.name());
    }
    let name = name.unwrap_or_else(|| {
        let last = policy.name().rsplit(['/', ':']).next().unwrap_or_default();
        Path::new(last).file_stem().map_or_else(|| last.to_owned(), |stem| stem.to_string_lossy().into_owned())
    });
    let settings = serde_json::from_str(settings)?;
    let server = PolicyServer { policy, interest, settings, name };
    runtime.block_on(server.serve())?;
    // Standard input is read by a thread that cannot be woken; there is nothing left to wait for.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

impl PolicyServer {
    /// Answers one request after the other until standard input ends.
    async fn serve(&self) -> std::io::Result<()> {
        let (mut stdin, mut stdout) = (BufReader::new(tokio::io::stdin()), tokio::io::stdout());
        let info = json!({ "name": "weir-policy", "title": self.policy.name(), "version": env!("CARGO_PKG_VERSION") });
        let mut line = Vec::new();
        while let Some(line) = next_line(&mut stdin, &mut line).await? {
            match Incoming::read(line) {
                Incoming::Nothing | Incoming::Cancelled(_) => {}
                Incoming::Refused(answer) => write_line(&mut stdout, &answer).await?,
                Incoming::Request(request) => {
                    let outcome = self.perform(request.era, &request.method, &request.params, &info).await;
                    write_line(&mut stdout, &request.answered(outcome, &info)).await?;
                }
            }
        }
        Ok(())
    }

    async fn perform(&self, era: Era, method: &str, params: &Value, info: &Value) -> Result<Value, Failure> {
        let events: Vec<&str> = self.interest.methods().collect();
        let capabilities = json!({ "extensions": { EXTENSION: { "supportedEvents": events } } });
        match (method, era) {
            (method::INITIALIZE, Era::Legacy) => Ok(json!({
                "protocolVersion": negotiate(params["protocolVersion"].as_str().unwrap_or_default()),
                "capabilities": capabilities,
                "serverInfo": info,
            })),
            (method::PING, Era::Legacy) => Ok(json!({})),
            (method::DISCOVER, Era::Modern) => {
                Ok(json!({ "supportedVersions": MODERN_VERSIONS, "capabilities": capabilities }))
            }
            ("interceptors/list", _) => Ok(json!({ "interceptors": self.listed(params["event"].as_str()) })),
            ("interceptor/invoke", _) => self.invoke(params).await,
            _ => Err(Failure::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))),
        }
    }

    /// The interceptors, or those that an event concerns.
    fn listed(&self, event: Option<&str>) -> Vec<Value> {
        if event.is_some_and(|event| !self.interest.concerns_method(event)) {
            return Vec::new();
        }
        let sees = |detail| detail != Detail::Nothing;
        let phase = match (sees(self.interest.request), sees(self.interest.answer)) {
            (true, true) => "both",
            (true, false) => "request",
            (false, _) => "response",
        };
        let hook = json!({ "events": self.interest.methods().collect::<Vec<_>>(), "phase": phase });
        let entry = |(what, kind): (&str, &str)| {
            json!({ "name": format!("{}-{what}", self.name), "type": kind, "hook": hook, "hooks": [hook],
                    "description": format!("The policy {}", self.policy.name()) })
        };
        KINDS.map(entry).into()
    }

    async fn invoke(&self, params: &Value) -> Result<Value, Failure> {
        let asked = self.invocation(params)?;
        let kind = KINDS.iter().find(|(what, _)| asked.interceptor == format!("{}-{what}", self.name));
        let Some((_, kind)) = kind else {
            return Err(Failure::new(INVALID_PARAMS, format!("Unknown interceptor: {}", asked.interceptor)));
        };
        let verdict = self.verdict(&asked).await?;
        let phase = if asked.is_request { "request" } else { "response" };
        let mut result = json!({ "interceptor": asked.interceptor, "type": kind, "phase": phase });
        match (*kind, verdict) {
            ("validation", ServedVerdict::Refuse(text)) => {
                result["valid"] = false.into();
                result["severity"] = "error".into();
                result["messages"] = json!([{ "message": text, "severity": "error" }]);
            }
            ("validation", _) => result["valid"] = true.into(),
            (_, ServedVerdict::Refuse(text)) => return Err(Failure::new(INTERNAL, text)),
            (_, ServedVerdict::Pass) => {
                result["modified"] = false.into();
                result["payload"] = params["payload"].clone();
            }
            (_, ServedVerdict::Change(content)) => {
                result["modified"] = true.into();
                result["payload"] = match asked.envelope.cloned() {
                    Some(mut envelope) => {
                        envelope["params"] = content;
                        envelope
                    }
                    None => content,
                };
            }
        }
        Ok(result)
    }

    fn invocation<'a>(&self, params: &'a Value) -> Result<Invocation<'a>, Failure> {
        let wrong = |what: &str| Failure::new(INVALID_PARAMS, what);
        let text = |name: &str| params[name].as_str();
        let is_request = match text("phase") {
            Some("request") => true,
            Some("response") => false,
            _ => return Err(wrong("`phase` is \"request\" or \"response\"")),
        };
        let payload = params.get("payload").filter(|payload| payload.is_object());
        let payload = payload.ok_or_else(|| wrong("`payload` is an object"))?;
        let envelope =
            (is_request && payload["method"].is_string() && payload["params"].is_object()).then_some(payload);
        // What the policy wants to see was asked with its own settings.
        if params.get("config").is_some_and(|config| *config != self.settings) {
            return Err(wrong("`config` cannot differ from the settings of `weir policy serve --settings`"));
        }
        Ok(Invocation {
            interceptor: text("name").ok_or_else(|| wrong("`name` is missing"))?,
            event: text("event").ok_or_else(|| wrong("`event` is missing"))?,
            is_request,
            content: envelope.map_or(payload, |envelope| &envelope["params"]),
            envelope,
            subject: params["context"]["principal"]["id"].as_str(),
        })
    }

    async fn verdict(&self, asked: &Invocation<'_>) -> Result<ServedVerdict, Failure> {
        let named = ["name", "uri"].iter().find_map(|key| asked.content[key].as_str()).filter(|_| asked.is_request);
        let wanted = if asked.is_request { self.interest.request } else { self.interest.answer };
        // An answer does not name what was asked for.
        let concerns = match asked.is_request {
            true => self.interest.concerns(asked.event, named),
            false => self.interest.concerns_method(asked.event),
        };
        if wanted == Detail::Nothing || !concerns {
            return Ok(ServedVerdict::Pass);
        }
        let mut about =
            json!({ "method": asked.event, "endpoint": "interceptor", "upstream": { "name": "interceptor" } });
        about["name"] = named.into();
        if let Some(subject) = asked.subject {
            about["principal"] = json!({ "subject": subject, "claims": "{}" });
        }
        let content = (wanted == Detail::Body).then(|| asked.content.to_string());
        let (function, with) = match asked.is_request {
            true => ("before", json!({ "about": about, "params": content })),
            false => ("after", json!({ "about": about, "memory": "", "what": { "result": content } })),
        };
        let Value::Object(with) = with else { return Ok(ServedVerdict::Pass) };
        let with = case::parameters(function, with, &self.settings.to_string().into());
        let answer = self.policy.ask(function, &with, &[]).await;
        let answer = answer.map_err(|why| Failure::new(INTERNAL, why.to_string()))?;
        decided(&answer["verdict"])
    }
}

/// A verdict of the contract as interceptors have it.
fn decided(verdict: &Value) -> Result<ServedVerdict, Failure> {
    let one = verdict.as_object().and_then(|case: &Map<_, _>| case.iter().next());
    match one.map(|(case, value)| (case.as_str(), value)) {
        Some(("deny" | "cut", denial)) => {
            Ok(ServedVerdict::Refuse(denial["text"].as_str().unwrap_or_default().to_owned()))
        }
        Some(("replace", text)) => {
            let content = text.as_str().and_then(|text| serde_json::from_str(text).ok());
            content
                .map(ServedVerdict::Change)
                .ok_or_else(|| Failure::new(INTERNAL, "the policy's replacement is no JSON"))
        }
        Some(("answer", _)) => Err(Failure::new(INTERNAL, "the policy answers by itself, which no interceptor can")),
        Some(("ask", _)) => Ok(ServedVerdict::Refuse("a person has to approve this call first".to_owned())),
        _ => Ok(ServedVerdict::Pass),
    }
}
