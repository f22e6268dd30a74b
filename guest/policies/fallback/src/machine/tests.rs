#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use weir_policy::Step::{Attempt as Go, Authorize as Login, Stop};

use super::*;

const MODERN: Candidate = Candidate::new(Transport::Http, Era::Modern);
const LEGACY: Candidate = Candidate::new(Transport::Http, Era::Legacy);
const SSE: Candidate = Candidate::new(Transport::Sse, Era::Legacy);
const CHILD: Candidate = Candidate::new(Transport::Stdio, Era::Modern);
const OLD_CHILD: Candidate = Candidate::new(Transport::Stdio, Era::Legacy);

fn upstream() -> Upstream {
    Upstream {
        name: "docs".into(),
        url: Some("https://docs.example.com/mcp".into()),
        required_transport: None,
        required_era: None,
        transports: vec![Transport::Http, Transport::Sse, Transport::Stdio],
        settings: "{}".into(),
        extensions: Vec::new(),
    }
}

fn command() -> Upstream {
    Upstream { url: None, ..upstream() }
}

fn challenge(error: &str) -> Challenge {
    let error = (!error.is_empty()).then(|| error.to_owned());
    Challenge { scheme: "Bearer".into(), error, scope: None, resource_metadata: None, extensions: Vec::new() }
}

fn unauthorized() -> Outcome {
    Outcome::Unauthorized(challenge(""))
}

fn not_this(status: u16) -> Outcome {
    Outcome::Unsupported(status)
}

/// Walks as the gateway does: each step has to be the expected one, and ends as the script says. The answer is the message
/// that the walk stops with, if it stops.
#[track_caller]
fn walk_through(to: &Upstream, script: &[(Step, Outcome)]) -> Option<String> {
    let (mut history, mut credential) = (Vec::new(), false);
    for (expected, outcome) in script {
        let step = next(to, &history);
        assert_eq!(step, *expected, "after {history:?}");
        let (Go(tried) | Login(tried)) = step else { panic!("a script has no stops") };
        // A script of logins that fail writes it as a second 401; here every login yields a credential.
        credential |= matches!(expected, Login(_));
        let Candidate { transport, era, .. } = tried;
        history.push(Attempt {
            transport,
            era,
            credential,
            outcome: outcome.clone(),
            duration_ms: 1,
            extensions: Vec::new(),
        });
        if *outcome == Outcome::Connected {
            return None;
        }
    }
    match next(to, &history) {
        Stop(message) => Some(message),
        step => panic!("{step:?} instead of the end, after {history:?}"),
    }
}

#[track_caller]
fn connects(to: &Upstream, script: &[(Step, Outcome)]) {
    assert_eq!(walk_through(to, script), None);
}

#[track_caller]
fn stops(to: &Upstream, script: &[(Step, Outcome)], message: &str) {
    assert_eq!(walk_through(to, script).as_deref(), Some(message));
}

#[test]
fn http_only() {
    connects(&upstream(), &[(Go(MODERN), Outcome::Connected)]);
    connects(&upstream(), &[(Go(MODERN), not_this(400)), (Go(LEGACY), Outcome::Connected)]);
    let html = Outcome::NotMcp("text/html".into());
    connects(&upstream(), &[(Go(MODERN), html), (Go(LEGACY), Outcome::Connected)]);
}

#[test]
fn sse_only() {
    for status in [400, 404, 405, 406, 415, 422] {
        let no = not_this(status);
        connects(&upstream(), &[(Go(MODERN), no.clone()), (Go(LEGACY), no), (Go(SSE), Outcome::Connected)]);
    }
}

#[test]
fn both_prefer_http() {
    connects(&upstream(), &[(Go(MODERN), Outcome::Connected)]);
}

#[test]
fn http_and_sse_fail() {
    stops(
        &upstream(),
        &[(Go(MODERN), not_this(404)), (Go(LEGACY), not_this(404)), (Go(SSE), not_this(404))],
        "it does not answer as MCP (Streamable HTTP, modern era: 404; Streamable HTTP, legacy era: 404; HTTP+SSE: 404); check its url",
    );
    stops(
        &upstream(),
        &[
            (Go(MODERN), Outcome::NotMcp("text/html".into())),
            (Go(LEGACY), not_this(405)),
            (Go(SSE), Outcome::NotMcp("text/html".into())),
        ],
        "it does not answer as MCP (Streamable HTTP, modern era: not MCP but text/html; Streamable HTTP, legacy era: 405; HTTP+SSE: not MCP but text/html); check its url",
    );
}

#[test]
fn a_400_with_a_modern_error_is_no_evidence_for_sse() {
    stops(
        &upstream(),
        &[(Go(MODERN), Outcome::Inconclusive(400))],
        "it speaks MCP but refused to begin (400); check which versions of the protocol it supports",
    );
}

#[test]
fn a_401_on_http_gets_one_credential() {
    connects(&upstream(), &[(Go(MODERN), unauthorized()), (Login(MODERN), Outcome::Connected)]);
    // The credential goes along to the next era.
    connects(
        &upstream(),
        &[(Go(MODERN), unauthorized()), (Login(MODERN), not_this(400)), (Go(LEGACY), Outcome::Connected)],
    );
    connects(
        &upstream(),
        &[(Go(MODERN), not_this(404)), (Go(LEGACY), unauthorized()), (Login(LEGACY), Outcome::Connected)],
    );
}

#[test]
fn a_refused_credential_leads_to_sse() {
    connects(
        &upstream(),
        &[(Go(MODERN), unauthorized()), (Login(MODERN), unauthorized()), (Go(SSE), Outcome::Connected)],
    );
    connects(
        &upstream(),
        &[
            (Go(MODERN), unauthorized()),
            (Login(MODERN), not_this(404)),
            (Go(LEGACY), unauthorized()),
            (Go(SSE), Outcome::Connected),
        ],
    );
}

#[test]
fn a_401_on_sse_gets_one_credential_too() {
    let no = || not_this(405);
    connects(
        &upstream(),
        &[(Go(MODERN), no()), (Go(LEGACY), no()), (Go(SSE), unauthorized()), (Login(SSE), Outcome::Connected)],
    );
    stops(
        &upstream(),
        &[(Go(MODERN), no()), (Go(LEGACY), no()), (Go(SSE), unauthorized()), (Login(SSE), unauthorized())],
        "it refused the credential that it was sent (401 over HTTP+SSE; it also failed otherwise: Streamable HTTP, modern era: 405; Streamable HTTP, legacy era: 405); replace it with a valid one",
    );
}

#[test]
fn the_longest_walk() {
    stops(
        &upstream(),
        &[
            (Go(MODERN), unauthorized()),
            (Login(MODERN), not_this(400)),
            (Go(LEGACY), unauthorized()),
            (Go(SSE), unauthorized()),
            (Login(SSE), unauthorized()),
        ],
        "it refused the credential that it was sent (401 over HTTP+SSE; it also failed otherwise: Streamable HTTP, modern era: 400); replace it with a valid one",
    );
}

#[test]
fn no_credential_to_be_had() {
    let attempt = |Candidate { transport, era, .. }, outcome| Attempt {
        transport,
        era,
        credential: false,
        outcome,
        duration_ms: 1,
        extensions: Vec::new(),
    };
    let history = [attempt(MODERN, unauthorized()), attempt(MODERN, unauthorized()), attempt(SSE, not_this(404))];
    assert_eq!(next(&upstream(), &history[..2]), Go(SSE));
    let message = r#"it asks for a credential (401 over Streamable HTTP; it also failed otherwise: HTTP+SSE: 404); give it one, such as bearer = { env = "NAME" } under [upstreams.docs]"#;
    assert_eq!(next(&upstream(), &history), Stop(message.into()));
}

#[test]
fn explicit_http_never_probes_sse() {
    let to = Upstream { required_transport: Some(Transport::Http), ..upstream() };
    stops(
        &to,
        &[(Go(MODERN), not_this(404)), (Go(LEGACY), not_this(405))],
        "it does not answer as MCP over Streamable HTTP (Streamable HTTP, modern era: 404; Streamable HTTP, legacy era: 405); check its url, or leave out type to try other transports",
    );
    stops(
        &to,
        &[(Go(MODERN), unauthorized()), (Login(MODERN), unauthorized())],
        "it refused the credential that it was sent (401 over Streamable HTTP); replace it with a valid one",
    );
}

#[test]
fn explicit_sse_never_probes_http() {
    let to = Upstream { required_transport: Some(Transport::Sse), ..upstream() };
    connects(&to, &[(Go(SSE), unauthorized()), (Login(SSE), Outcome::Connected)]);
    stops(
        &to,
        &[(Go(SSE), not_this(404))],
        "it does not answer as MCP over HTTP+SSE (HTTP+SSE: 404); check its url, or leave out type to try other transports",
    );
}

#[test]
fn an_outage_is_no_evidence() {
    let again = "try again when it has recovered";
    let cases = [
        (Outcome::Inconclusive(500), format!("it is out of order (500 over Streamable HTTP); {again}")),
        (Outcome::Inconclusive(503), format!("it is out of order (503 over Streamable HTTP); {again}")),
        (Outcome::Inconclusive(408), format!("it is out of order (408 over Streamable HTTP); {again}")),
        (Outcome::Inconclusive(429), "it turns requests away because there are too many (429); try again later".into()),
        (
            Outcome::Inconclusive(308),
            "it sends its callers elsewhere (308); set url to the address that it redirects to".into(),
        ),
        (Outcome::TimedOut, "it gave no answer in time over Streamable HTTP; check that it is running, or give it more with timeouts.initialize".into()),
        (Outcome::ConnectionTerminated, "it broke the connection off over Streamable HTTP; check that it is running".into()),
        (
            Outcome::Unreachable("connection refused".into()),
            "connection refused; check its url and that it is running".into(),
        ),
    ];
    for (outcome, message) in cases {
        stops(&upstream(), &[(Go(MODERN), outcome.clone())], &message);
        stops(&upstream(), &[(Go(MODERN), not_this(404)), (Go(LEGACY), outcome)], &message);
    }
}

#[test]
fn digits_in_a_text_are_no_status() {
    for text in ["status 401", "the tool gpt-4o-1401 is unknown", "401 Unauthorized"] {
        let no = Outcome::NotMcp(text.into());
        let script = [(Go(MODERN), no.clone()), (Go(LEGACY), no.clone()), (Go(SSE), no)];
        let message = walk_through(&upstream(), &script).unwrap();
        assert!(!message.contains("credential"), "{message}");
        stops(
            &upstream(),
            &[(Go(MODERN), Outcome::Unreachable(text.into()))],
            &format!("{text}; check its url and that it is running"),
        );
    }
}

#[test]
fn a_403_is_no_evidence() {
    stops(
        &upstream(),
        &[(Go(MODERN), Outcome::Forbidden(challenge("")))],
        "it does not let Weir in (403); check its url, or give it a credential",
    );
    stops(
        &upstream(),
        &[(Go(MODERN), unauthorized()), (Login(MODERN), Outcome::Forbidden(challenge("")))],
        "it accepts the credential but does not allow this (403); use one with more rights",
    );
    let more = || Challenge { scope: Some("files:read".into()), ..challenge("insufficient_scope") };
    connects(&upstream(), &[(Go(MODERN), Outcome::Forbidden(more())), (Login(MODERN), Outcome::Connected)]);
    stops(
        &upstream(),
        &[(Go(MODERN), Outcome::Forbidden(more())), (Login(MODERN), Outcome::Forbidden(more()))],
        "it accepts the credential but does not allow this (403); it asks for the scope files:read, so use one that has it",
    );
}

#[test]
fn the_client_needs_one_era() {
    let legacy = Upstream { required_era: Some(Era::Legacy), ..upstream() };
    connects(&legacy, &[(Go(LEGACY), not_this(404)), (Go(SSE), Outcome::Connected)]);
    let modern = Upstream { required_era: Some(Era::Modern), ..upstream() };
    stops(
        &modern,
        &[(Go(MODERN), not_this(404))],
        "it does not answer in the modern era, which the client needs (Streamable HTTP, modern era: 404); check its url, or use a client of the legacy era",
    );
    let child = Upstream { required_era: Some(Era::Legacy), ..command() };
    connects(&child, &[(Go(OLD_CHILD), Outcome::Connected)]);
}

#[test]
fn a_command_speaks_stdio_only() {
    connects(&command(), &[(Go(CHILD), Outcome::Connected)]);
    for outcome in [not_this(400), Outcome::TimedOut, Outcome::ConnectionTerminated, Outcome::NotMcp("a banner".into())]
    {
        connects(&command(), &[(Go(CHILD), outcome), (Go(OLD_CHILD), Outcome::Connected)]);
    }
    stops(
        &command(),
        &[(Go(CHILD), Outcome::Unreachable("no such file".into()))],
        "starting it failed (no such file); check its command and args",
    );
    stops(
        &command(),
        &[(Go(CHILD), Outcome::ConnectionTerminated), (Go(OLD_CHILD), Outcome::ConnectionTerminated)],
        "it ended before it answered; check its command and args",
    );
    stops(
        &command(),
        &[(Go(CHILD), Outcome::TimedOut), (Go(OLD_CHILD), Outcome::TimedOut)],
        "it gave no answer in time; give it more with timeouts.start, or run its command by hand to see what it does",
    );
    stops(
        &command(),
        &[(Go(CHILD), Outcome::TimedOut), (Go(OLD_CHILD), Outcome::NotMcp("a banner".into()))],
        "it does not answer as MCP (stdio, modern era: no answer in time; stdio, legacy era: not MCP but a banner); check its command and args",
    );
}

#[test]
fn sse_that_is_not_carried() {
    let to = Upstream { transports: vec![Transport::Http, Transport::Stdio], ..upstream() };
    stops(
        &to,
        &[(Go(MODERN), not_this(404)), (Go(LEGACY), not_this(405))],
        "it does not answer as MCP (Streamable HTTP, modern era: 404; Streamable HTTP, legacy era: 405), and HTTP+SSE, which would be next, is not carried by this Weir; check its url",
    );
    stops(
        &to,
        &[(Go(MODERN), unauthorized()), (Login(MODERN), unauthorized())],
        "it refused the credential that it was sent (401 over Streamable HTTP); replace it with a valid one",
    );
    let pinned = Upstream { required_transport: Some(Transport::Sse), ..to };
    stops(&pinned, &[], "it needs HTTP+SSE, which is not carried by this Weir; give it another address");
}

#[test]
fn what_cannot_be_tried_at_all() {
    let cases = [
        (
            Upstream { required_transport: Some(Transport::Stdio), ..upstream() },
            "it has a url and no command, so it cannot use stdio; take out its type",
        ),
        (
            Upstream { required_transport: Some(Transport::Http), ..command() },
            "it has a command and no url, so it cannot use Streamable HTTP; take out its type",
        ),
        (
            Upstream { required_transport: Some(Transport::Sse), required_era: Some(Era::Modern), ..upstream() },
            "it is set to HTTP+SSE, which has no modern era, and the client needs that era; take out its type",
        ),
        (
            Upstream { transports: vec![], ..upstream() },
            "it needs Streamable HTTP, which is not carried by this Weir; give it another address",
        ),
    ];
    for (to, message) in cases {
        stops(&to, &[], message);
    }
}

#[test]
fn a_lost_connection_is_tried_the_same_way() {
    let attempt = |Candidate { transport, era, .. }, outcome| Attempt {
        transport,
        era,
        credential: true,
        outcome,
        duration_ms: 1,
        extensions: Vec::new(),
    };
    let mut history = vec![attempt(MODERN, not_this(404)), attempt(LEGACY, Outcome::Connected)];
    assert_eq!(next(&upstream(), &history), Go(LEGACY));
    history.push(attempt(LEGACY, unauthorized()));
    assert_eq!(next(&upstream(), &history), Login(LEGACY));
}

/// Every outcome at every step, for every kind of upstream: the walk ends, keeps to what it may try, and says something.
#[test]
fn every_walk_ends() {
    let outcomes = [
        Outcome::Inconclusive(400),
        Outcome::Inconclusive(503),
        unauthorized(),
        Outcome::Forbidden(challenge("insufficient_scope")),
        Outcome::Forbidden(challenge("")),
        not_this(404),
        Outcome::Unreachable("refused".into()),
        Outcome::TimedOut,
        Outcome::ConnectionTerminated,
        Outcome::NotMcp("text/html".into()),
    ];
    let carried = [vec![], vec![Transport::Http, Transport::Stdio], vec![Transport::Sse], upstream().transports];
    for base in [upstream(), command()] {
        for required_transport in [None, Some(Transport::Http), Some(Transport::Sse), Some(Transport::Stdio)] {
            for required_era in [None, Some(Era::Modern), Some(Era::Legacy)] {
                for transports in carried.clone() {
                    let to = Upstream { required_transport, required_era, transports, ..base.clone() };
                    explore(&to, &outcomes, &mut Vec::new());
                }
            }
        }
    }
}

fn explore(to: &Upstream, outcomes: &[Outcome], history: &mut Vec<Attempt>) {
    assert!(history.len() <= 5, "a walk of more than five attempts: {history:?}");
    let tried = match next(to, history) {
        Stop(message) => {
            assert!(!message.starts_with("docs") && message.len() < 2048, "{message}");
            return;
        }
        Go(tried) => {
            let before = history.iter().any(|attempt| attempt.candidate() == tried);
            assert!(!before, "{tried:?} again without a new credential, after {history:?}");
            tried
        }
        Login(tried) => tried,
    };
    assert!(to.transports.contains(&tried.transport));
    assert!(to.required_transport.is_none_or(|required| required == tried.transport));
    assert!(to.required_era.is_none_or(|required| required == tried.era));
    assert_eq!(to.url.is_none(), tried.transport == Transport::Stdio);
    let Candidate { transport, era, .. } = tried;
    for outcome in outcomes {
        history.push(Attempt {
            transport,
            era,
            credential: true,
            outcome: outcome.clone(),
            duration_ms: 1,
            extensions: Vec::new(),
        });
        explore(to, outcomes, history);
        history.pop();
    }
}
