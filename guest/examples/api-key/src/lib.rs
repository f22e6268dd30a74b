//! The smallest policy: it opens an upstream with a key in a header of its own, and never sees the key.
//!
//! `cargo build --release --target wasm32-wasip2` makes the component; the README shows the configuration for it.

use weir_policy::{Attachment, Choice, Credentials, Question};

struct ApiKey;

impl Credentials for ApiKey {
    fn choose(about: Question) -> Choice {
        if about.refused.is_some_and(|refused| refused.credential) {
            return Choice::Stop(format!("{} refused the key; replace it with a valid one", about.upstream.name));
        }
        Choice::Attach(Attachment { header: "x-api-key".into(), scheme: None, secret: "key".into(), holds_for: 3600 })
    }
}

weir_policy::export_credentials!(ApiKey);
