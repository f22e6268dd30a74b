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
            Some("broken") => Step::stop(forged(16, 16)),
            Some("endless") => Step::stop(forged(16, 1 << 30)),
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

/// A text that is no UTF-8, and said to be longer than it is.
#[allow(unsafe_code, reason = "no safe guest can tell this lie")]
fn forged(bytes: usize, said: usize) -> String {
    let text = vec![0xff_u8; bytes].leak();
    // SAFETY: none. The gateway has to hold against guests that keep no rule of their language.
    unsafe { String::from_raw_parts(text.as_mut_ptr(), said, said) }
}

weir_policy::export_connection!(Liar);
weir_policy::export_credentials!(Liar);
