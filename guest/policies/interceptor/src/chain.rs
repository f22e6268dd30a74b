//! What the interceptors of a server make of a payload, in the order of SEP-2624 ("Execution Model"): what is sent is changed
//! and then checked, what comes back is checked and then changed.

use weir_policy::{calls::Call, json::Json};

use crate::{
    interceptor::{Interceptor, InterceptorKind, Phase},
    server::InterceptorServer,
    settings::InterceptorSettings,
};

/// The longest text for a model, and the longest label, in bytes.
const LONGEST_TEXT: usize = 500;
const LONGEST_LABEL: usize = 200;

/// What came of asking them all.
#[derive(Default)]
pub(crate) struct Chain {
    /// The payload, if it was changed.
    pub(crate) payload: Option<Json>,
    /// For the log.
    pub(crate) labels: Vec<(String, String)>,
}

/// Why the call does not go on.
pub(crate) enum ChainStop {
    /// A validator refuses it; the text is for the model.
    Refused(String),
    /// It is not known whether it may go on.
    Failed(String),
}

/// One that was asked.
enum InterceptorVerdict {
    Fine,
    /// It has something against the payload, and whether that stops the call.
    Invalid {
        text: String,
        is_error: bool,
    },
    Modified(Json),
}

pub(crate) fn run(
    settings: &InterceptorSettings,
    (about, event): (&Call, &str),
    phase: Phase,
    payload: Json,
) -> Result<Chain, ChainStop> {
    let mut server = InterceptorServer::new(&settings.url, format!("{}-{}", about.id, phase.word()));
    let all = server.interceptors().map_err(ChainStop::Failed)?;
    let mut chain = Chain::default();
    let mut current = payload;
    for interceptor in ordered(all, settings, event, phase)? {
        let verdict = match invoke(&mut server, &interceptor, (settings, about, event, phase), &current) {
            Ok(verdict) => verdict,
            Err(why) if interceptor.fails_open || interceptor.is_audit => {
                chain.label("interceptor-failed", &format!("{}: {why}", interceptor.name));
                continue;
            }
            Err(why) => return Err(ChainStop::Failed(format!("interceptor `{}`: {why}", interceptor.name))),
        };
        let name = &interceptor.name;
        match verdict {
            InterceptorVerdict::Fine => {}
            InterceptorVerdict::Invalid { text, is_error: true } if !interceptor.is_audit => {
                return Err(ChainStop::Refused(cut(&format!("refused by interceptor `{name}`: {text}"), LONGEST_TEXT)));
            }
            InterceptorVerdict::Invalid { text, .. } => chain.label("interceptor-warned", &format!("{name}: {text}")),
            InterceptorVerdict::Modified(_) if interceptor.is_audit => chain.label("interceptor-would-modify", name),
            InterceptorVerdict::Modified(payload) => {
                chain.label("interceptor-modified", name);
                current = payload.clone();
                chain.payload = Some(payload);
            }
        }
    }
    Ok(chain)
}

/// Those that are asked, in their order.
fn ordered(
    mut all: Vec<Interceptor>,
    settings: &InterceptorSettings,
    event: &str,
    phase: Phase,
) -> Result<Vec<Interceptor>, ChainStop> {
    if let Some(names) = &settings.names {
        let missing = names.iter().find(|name| all.iter().all(|one| one.name != **name));
        if let Some(missing) = missing {
            return Err(ChainStop::Failed(format!("the interceptor server {} has no `{missing}`", settings.url)));
        }
        all.retain(|one| names.contains(&one.name));
    }
    all.retain(|one| one.is_hooked(event, phase));
    all.sort_by(|one, other| one.order(phase).cmp(&other.order(phase)));
    let first = match phase {
        Phase::Request => InterceptorKind::Mutator,
        Phase::Response => InterceptorKind::Validator,
    };
    // Stable, so that each kind keeps its order.
    all.sort_by_key(|one| one.kind != first);
    Ok(all)
}

fn invoke(
    server: &mut InterceptorServer<'_>,
    interceptor: &Interceptor,
    (settings, about, event, phase): (&InterceptorSettings, &Call, &str, Phase),
    payload: &Json,
) -> Result<InterceptorVerdict, String> {
    let mut params = Json::from([
        ("name", interceptor.name.as_str().into()),
        ("event", event.into()),
        ("phase", phase.word().into()),
        ("payload", payload.clone()),
    ]);
    if let Some(config) = &settings.config {
        params.set("config", config.clone());
    }
    if let Some(principal) = &about.principal {
        let principal = Json::from([("type", "user".into()), ("id", principal.subject.as_str().into())]);
        params.set("context", [("principal", principal)]);
    }
    let result = server.ask("interceptor/invoke", params)?;
    let flag = |name: &str| result.get(name).and_then(Json::as_bool);
    match (interceptor.kind, flag("valid"), flag("modified")) {
        (InterceptorKind::Validator, Some(true), _) | (InterceptorKind::Mutator, _, Some(false)) => {
            Ok(InterceptorVerdict::Fine)
        }
        (InterceptorKind::Validator, Some(false), _) => Ok(invalid(&result)),
        (InterceptorKind::Mutator, _, Some(true)) => match modified(&result) {
            Some(payload) => Ok(InterceptorVerdict::Modified(payload)),
            None => Err("its new payload is no object".into()),
        },
        (InterceptorKind::Validator, None, _) => Err("its result does not say whether the payload is valid".into()),
        (InterceptorKind::Mutator, _, None) => Err("its result does not say whether the payload is modified".into()),
    }
}

/// Only an error stops a call; what names no severity is one.
fn invalid(result: &Json) -> InterceptorVerdict {
    let is_error = |of: &Json| !matches!(of.get("severity").and_then(Json::as_text), Some("info" | "warn"));
    let stops = is_error(result);
    let messages = result.get("messages").map_or(&[][..], Json::elements).iter();
    let telling = messages.filter(|message| !stops || is_error(message));
    let texts: Vec<&str> = telling.filter_map(|message| message.get("message")?.as_text()).collect();
    let text = if texts.is_empty() { "it gives no reason".to_owned() } else { texts.join("; ") };
    InterceptorVerdict::Invalid { text, is_error: stops }
}

/// The new payload, also where it comes as a whole request.
fn modified(result: &Json) -> Option<Json> {
    let payload = result.get("payload").filter(|payload| payload.is_object())?;
    let params = payload.get("params").filter(|_| payload.get("method").is_some());
    Some(params.unwrap_or(payload).clone())
}

impl Chain {
    /// Notes something for the log, behind what was noted under the same name.
    fn label(&mut self, name: &str, text: &str) {
        match self.labels.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = cut(&format!("{known}, {text}"), LONGEST_LABEL),
            None => self.labels.push((name.to_owned(), cut(text, LONGEST_LABEL))),
        }
    }
}

/// No more than so many bytes of a text.
fn cut(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
