//! A guest whose answers break the rule that its settings name.

use weir_policy::{
    Attachment, Attempt, Connection, Credentials, Decision, Era, Question, Settings, Step, Transport, Upstream,
};

struct Liar;

impl Connection for Liar {
    fn next(to: Upstream, _: Vec<Attempt>) -> Step {
        match Settings::of(&to).text("lie").as_deref() {
            Some("stdio") => Step::attempt(Transport::Stdio, Era::Modern),
            Some("long") => Step::stop("x".repeat(64 << 10)),
            Some("huge") => Step::stop("x".repeat(4 << 20)),
            _ => Step::stop(" "),
        }
    }
}

impl Credentials for Liar {
    fn decide(about: Question) -> Decision {
        let lie = Settings::of(&about.upstream).text("lie").unwrap_or_default();
        let pick = |field: &str, truth: &str| match lie.split_once('=') {
            Some((name, value)) if name == field => value.to_owned(),
            _ => truth.to_owned(),
        };
        Decision::Attach(Attachment {
            header: pick("header", "authorization"),
            scheme: Some(pick("scheme", "Bearer")),
            secret: pick("secret", "token"),
            ttl_seconds: 1,
            extensions: Vec::new(),
        })
    }
}

weir_policy::export_connection!(Liar);
weir_policy::export_credentials!(Liar);
