//! The smallest policy: it opens an upstream with a key in a header of its own, and never sees the key.
//!
//! `cargo build --release --target wasm32-wasip2` makes the component; the README shows the configuration for it.

use weir_policy::{Attachment, Credentials, Decision, Question};

struct ApiKey;

impl Credentials for ApiKey {
    fn decide(about: Question) -> Decision {
        if about.refusal.is_some_and(|refused| refused.credential) {
            return Decision::Stop(format!("{} refused the key; replace it with a valid one", about.upstream.name));
        }
        Decision::Attach(Attachment {
            header: "x-api-key".into(),
            scheme: None,
            secret: "key".into(),
            ttl_seconds: 3600,
            extensions: Vec::new(),
        })
    }
}

weir_policy::export_credentials!(ApiKey);
