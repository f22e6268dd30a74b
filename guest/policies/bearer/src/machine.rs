//! The decision: the token goes along from the first request, and a token that was refused is not sent again.

use weir_policy::{Attachment, Challenge, Decision, Question, Refusal, Settings};

/// The name of the one secret that this policy places.
pub const SECRET: &str = "token";

/// How long a decision holds, in seconds. It names the secret and does not contain it, so it does not age; a refusal makes
/// Weir ask again at once.
const TTL_SECONDS: u32 = 3600;

/// The longest word of a server that is repeated in a message, in bytes.
const WORD: usize = 100;

/// Which credential to use.
pub fn decide(about: &Question) -> Decision {
    match &about.refusal {
        _ if !about.secrets.iter().any(|name| name == SECRET) => Decision::Stop(missing(about)),
        Some(refused) if refused.credential => Decision::Stop(refusal(about, refused)),
        _ => Decision::Attach(Attachment {
            header: "authorization".into(),
            scheme: Some("Bearer".into()),
            secret: SECRET.into(),
            ttl_seconds: TTL_SECONDS,
            extensions: Vec::new(),
        }),
    }
}

fn missing(about: &Question) -> String {
    let name = &about.upstream.name;
    format!(r#"there is no token to send; set bearer = {{ env = "NAME" }} under [upstreams.{name}]"#)
}

fn refusal(about: &Question, refused: &Refusal) -> String {
    let token = match Settings::of(&about.upstream).text("source") {
        Some(source) => format!("the token from {source}"),
        None => "the configured token".to_owned(),
    };
    let Challenge { error, scope, .. } = &refused.challenge;
    if refused.status == 403 {
        let needs = quoted(scope, "; it asks for the scope ");
        format!("it accepts {token} but does not allow this (403){needs}; use a token with more rights")
    } else {
        let why = quoted(error, ", ");
        format!("it refused {token} ({}{why}); replace it with a valid one", refused.status)
    }
}

/// A server's word behind `before`, if it is of the characters that RFC 6750 §3 allows and short enough for a sentence.
fn quoted(word: &Option<String>, before: &str) -> String {
    match word {
        Some(word) if !word.is_empty() && word.len() <= WORD && word.bytes().all(|b| (b' '..=b'~').contains(&b)) => {
            format!("{before}{word}")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use weir_policy::{Transport, Upstream};

    use super::*;

    fn question(settings: &str, secrets: &[&str], refusal: Option<Refusal>) -> Question {
        Question {
            upstream: Upstream {
                name: "github".into(),
                url: Some("https://api.example.com/mcp".into()),
                required_transport: None,
                required_era: None,
                transports: vec![Transport::Http],
                settings: settings.into(),
                extensions: Vec::new(),
            },
            principal: None,
            secrets: secrets.iter().map(|&name| name.into()).collect(),
            flows: Vec::new(),
            token: None,
            refusal,
            attempts: Vec::new(),
            extensions: Vec::new(),
        }
    }

    fn refused(status: u16, credential: bool, error: Option<&str>, scope: Option<&str>) -> Option<Refusal> {
        let challenge = Challenge {
            scheme: "Bearer".into(),
            error: error.map(Into::into),
            scope: scope.map(Into::into),
            resource_metadata: None,
            extensions: Vec::new(),
        };
        Some(Refusal { status, credential, challenge, extensions: Vec::new() })
    }

    const FROM_ENV: &str = r#"{"source":"env GITHUB_TOKEN"}"#;

    #[test]
    fn the_token_goes_along_from_the_first_request() {
        let expected = Decision::Attach(Attachment {
            header: "authorization".into(),
            scheme: Some("Bearer".into()),
            secret: "token".into(),
            ttl_seconds: 3600,
            extensions: Vec::new(),
        });
        assert_eq!(decide(&question(FROM_ENV, &["token"], None)), expected);
        assert_eq!(decide(&question("{}", &["other", "token"], None)), expected);
        // Somebody asked without the token: there is something left to try.
        assert_eq!(decide(&question(FROM_ENV, &["token"], refused(401, false, None, None))), expected);
    }

    #[test]
    fn what_it_stops_with() {
        let cases = [
            (
                question(FROM_ENV, &[], None),
                r#"there is no token to send; set bearer = { env = "NAME" } under [upstreams.github]"#,
            ),
            (
                question(FROM_ENV, &["token"], refused(401, true, None, None)),
                "it refused the token from env GITHUB_TOKEN (401); replace it with a valid one",
            ),
            (
                question(FROM_ENV, &["token"], refused(401, true, Some("invalid_token"), None)),
                "it refused the token from env GITHUB_TOKEN (401, invalid_token); replace it with a valid one",
            ),
            (
                question("{}", &["token"], refused(401, true, Some("bad\u{1b}[2J"), None)),
                "it refused the configured token (401); replace it with a valid one",
            ),
            (
                question(FROM_ENV, &["token"], refused(403, true, None, Some("repo read:org"))),
                "it accepts the token from env GITHUB_TOKEN but does not allow this (403); it asks for the scope repo read:org; use a token with more rights",
            ),
            (
                question(FROM_ENV, &["token"], refused(403, true, None, Some(&"x".repeat(101)))),
                "it accepts the token from env GITHUB_TOKEN but does not allow this (403); use a token with more rights",
            ),
        ];
        for (about, message) in cases {
            assert_eq!(decide(&about), Decision::Stop(message.into()));
        }
    }
}
