//! A policy that gets a key for each team from a service of your own, and uses it until it expires. `../javascript`,
//! `../python` and `../go` are the same in other languages.
//!
//! ```toml
//! [upstreams.internal]
//! url   = "https://tickets.example.com/mcp"
//! owner = "principal"
//!
//! [[upstreams.internal.policies]]
//! component = "target/wasm32-wasip2/release/token_service.wasm"
//! grants    = ["http", "log"]
//! http      = ["https://keys.example.com"]
//! settings  = { service = "https://keys.example.com/mint" }
//! ```

use weir_policy::{
    Credentials, Decision, MintedToken, Question, Settings,
    capability::{
        http::{self, Method, Request, Response},
        log,
    },
    json::Json,
};

struct TokenService;

impl Credentials for TokenService {
    fn decide(about: Question) -> Decision {
        let name = &about.upstream.name;
        let Some(service) = Settings::of(&about.upstream).text("service").filter(|url| !url.is_empty()) else {
            return Decision::Stop(format!("{name} has no key service; set `service` in the settings of its policy"));
        };
        let claims = about.principal.and_then(|principal| Json::parse(&principal.claims)).unwrap_or_default();
        let Some(team) = claims.get("team").and_then(Json::as_text).filter(|team| !team.is_empty()) else {
            return Decision::Stop(format!("your token has no team, which {name} needs; ask whoever gives out tokens"));
        };
        let answer = match asked(service, &Json::from([("upstream", name.as_str().into()), ("team", team.into())])) {
            Ok(answer) if answer.status == 200 => answer,
            Ok(Response { status, .. }) => {
                return Decision::Stop(format!(
                    "the key service of {name} answered with status {status}; try again later"
                ));
            }
            Err(why) => return Decision::Stop(format!("the key service of {name} cannot be asked: {why}")),
        };
        let Some((text, ttl_seconds)) = read(answer.body) else {
            return Decision::Stop(format!("the key service of {name} gave no key; ask whoever runs it"));
        };
        log::info(&format!("a key for the team {team}, for {ttl_seconds} s"));
        Decision::Mint(MintedToken {
            header: "authorization".into(),
            scheme: Some("Bearer".into()),
            text,
            ttl_seconds,
            extensions: Vec::new(),
        })
    }
}

/// The answer of the service, or what went wrong.
fn asked(url: String, question: &Json) -> Result<Response, String> {
    let headers = vec![("content-type".into(), "application/json".into())];
    let body = question.to_string().into_bytes();
    http::send(&Request { method: Method::Post, url, headers, body, extensions: Vec::new() })
}

/// The key in an answer, and for how many seconds it is good.
fn read(body: Vec<u8>) -> Option<(String, u32)> {
    let answer = Json::parse(&String::from_utf8(body).ok()?)?;
    let seconds = answer.get("expires_in")?.as_number()?;
    let key = answer.get("key")?.as_text().filter(|key| !key.is_empty())?;
    Some((key.to_owned(), seconds.try_into().ok()?))
}

weir_policy::export_credentials!(TokenService);
