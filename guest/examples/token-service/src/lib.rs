//! A policy that gets its token from a service of your own: it asks the service named in its settings, and places what the
//! service answers.
//!
//! ```toml
//! [[upstreams.internal.policies]]
//! component = "target/wasm32-wasip2/release/token_service.wasm"
//! grants    = ["http"]
//! http      = ["https://tokens.example.com"]
//! settings  = { service = "https://tokens.example.com/mcp" }
//! ```

use weir_policy::{
    Credentials, Decision, MintedToken, Question, Settings,
    capability::http::{self, Method, Request},
};

/// How long a token is used before the service is asked again, in seconds.
const TTL_SECONDS: u32 = 300;

struct TokenService;

impl Credentials for TokenService {
    fn decide(about: Question) -> Decision {
        let name = &about.upstream.name;
        let Some(url) = Settings::of(&about.upstream).text("service") else {
            return Decision::Stop(format!("{name} has no token service; set service in its policy's settings"));
        };
        let body = name.as_bytes().to_vec();
        let request = Request { method: Method::Post, url, headers: Vec::new(), body, extensions: Vec::new() };
        match http::send(&request) {
            Ok(answer) if answer.status == 200 => match String::from_utf8(answer.body) {
                Ok(token) => Decision::Mint(MintedToken {
                    header: "authorization".into(),
                    scheme: Some("Bearer".into()),
                    text: token.trim().into(),
                    ttl_seconds: TTL_SECONDS,
                    extensions: Vec::new(),
                }),
                Err(_) => Decision::Stop(format!("the token service of {name} answered with something else than text")),
            },
            Ok(answer) => Decision::Stop(format!("the token service of {name} answered with status {}", answer.status)),
            Err(why) => Decision::Stop(format!("the token service of {name} cannot be asked: {why}")),
        }
    }
}

weir_policy::export_credentials!(TokenService);
