//! What a server says of its interceptors (SEP-2624, "Interceptor Discovery").

use weir_policy::json::Json;

/// When an interceptor is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Request,
    Response,
}

/// What an interceptor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterceptorKind {
    /// It may refuse.
    Validator,
    /// It may change.
    Mutator,
}

#[derive(Clone, Debug)]
pub(crate) struct Interceptor {
    pub(crate) name: String,
    pub(crate) kind: InterceptorKind,
    /// Whether what it says is only logged.
    pub(crate) is_audit: bool,
    /// Whether the call goes on without it where it fails.
    pub(crate) fails_open: bool,
    hooks: Vec<Json>,
    priority: Json,
}

impl Phase {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Response => "response",
        }
    }
}

impl Interceptor {
    /// An entry of `interceptors/list`; none if it neither refuses nor changes.
    ///
    /// # Errors
    ///
    /// If it does not say what it is: it might have had to be asked.
    pub(crate) fn read(entry: &Json) -> Result<Option<Self>, String> {
        let text = |key: &str| entry.get(key).and_then(Json::as_text);
        let (Some(name), Some(kind)) = (text("name"), text("type")) else {
            return Err(format!("an interceptor has no name or no type: {entry}"));
        };
        let kind = match kind {
            "validation" => InterceptorKind::Validator,
            "mutation" => InterceptorKind::Mutator,
            _ => return Ok(None),
        };
        // One hook in earlier drafts, several in later ones.
        let hooks = match entry.get("hooks") {
            Some(hooks) => hooks.elements().to_vec(),
            None => entry.get("hook").cloned().into_iter().collect(),
        };
        Ok(Some(Self {
            name: name.to_owned(),
            kind,
            is_audit: entry.get("mode").and_then(Json::as_text) == Some("audit"),
            fails_open: entry.get("failOpen").and_then(Json::as_bool) == Some(true),
            hooks,
            priority: entry.get("priorityHint").cloned().unwrap_or_default(),
        }))
    }

    /// Whether it is asked about an event in a phase.
    pub(crate) fn is_hooked(&self, event: &str, phase: Phase) -> bool {
        self.hooks.iter().any(|hook| {
            let in_phase = match hook.get("phase").and_then(Json::as_text) {
                None | Some("both") => true,
                Some(word) => word == phase.word(),
            };
            let mut events = hook.get("events").map_or(&[][..], Json::elements).iter().filter_map(Json::as_text);
            in_phase && events.any(|pattern| matches(pattern, event, phase))
        })
    }

    /// Where it comes among the mutators of a phase: lower first, then by name.
    pub(crate) fn order(&self, phase: Phase) -> (i64, &str) {
        let hint = self.priority.get(phase.word()).unwrap_or(&self.priority);
        let hint = if let Json::Number(digits) = hint { digits.parse().unwrap_or(0) } else { 0 };
        (hint, &self.name)
    }
}

/// `*`, `*/request`, `*/response` and `tools/*` stand for several events.
fn matches(pattern: &str, event: &str, phase: Phase) -> bool {
    match pattern.strip_prefix("*/") {
        Some(word @ ("request" | "response")) => word == phase.word(),
        _ => match pattern.strip_suffix('*') {
            Some(start) => event.starts_with(start),
            None => pattern == event,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a test may stop at the first surprise")]

    use super::*;

    fn interceptor(entry: &str) -> Interceptor {
        Interceptor::read(&Json::parse(entry).expect("it is JSON")).expect("it is read").expect("it is an interceptor")
    }

    #[test]
    fn hooks_say_when_it_is_asked() {
        let cases = [
            (r#""hook":{"events":["tools/call"],"phase":"request"}"#, [true, false]),
            (
                r#""hooks":[{"events":["prompts/get"],"phase":"both"},{"events":["tools/*"],"phase":"response"}]"#,
                [false, true],
            ),
            (r#""hook":{"events":["*"],"phase":"both"}"#, [true, true]),
            (r#""hook":{"events":["*/response"]}"#, [false, true]),
            (r#""hook":{"events":["tools"],"phase":"both"}"#, [false, false]),
            (r#""x":0"#, [false, false]),
        ];
        for (hook, expected) in cases {
            let one = interceptor(&format!(r#"{{"name":"a","type":"mutation",{hook}}}"#));
            let asked = [Phase::Request, Phase::Response].map(|phase| one.is_hooked("tools/call", phase));
            assert_eq!(asked, expected, "{hook}");
        }
    }

    #[test]
    fn mutators_have_an_order_in_each_phase() {
        let order = |hint: &str, phase| {
            interceptor(&format!(r#"{{"name":"a","type":"mutation","priorityHint":{hint}}}"#)).order(phase).0
        };
        assert_eq!(order("-500", Phase::Request), -500);
        assert_eq!(order(r#"{"request":-1000}"#, Phase::Request), -1000);
        assert_eq!(order(r#"{"request":-1000}"#, Phase::Response), 0);
        assert_eq!(order("null", Phase::Response), 0);
        let read = |entry: &str| Interceptor::read(&Json::parse(entry).expect("it is JSON"));
        assert!(read(r#"{"name":"a","type":"sink"}"#).is_ok_and(|found| found.is_none()));
        for bad in [r#"{"name":"a"}"#, r#"{"type":"validation"}"#, r#"{"name":1,"type":"validation"}"#, "[]"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
