//! A policy about credentials: the secret `token` goes into `Authorization`.

use weir_policy::{Attachment, Credentials, Decision, Question};

struct Policy;

impl Credentials for Policy {
    fn decide(about: Question) -> Decision {
        let name = &about.upstream.name;
        if let Some(refusal) = &about.refusal {
            return Decision::Stop(format!("{name} answers {} to its token; set another one", refusal.status));
        }
        if !about.secrets.iter().any(|secret| secret == "token") {
            return Decision::Stop(format!("{name} has no secret `token`; add it to the `secrets` of its policy"));
        }
        Decision::Attach(Attachment {
            header: "authorization".into(),
            scheme: Some("Bearer".into()),
            secret: "token".into(),
            ttl_seconds: 300,
            extensions: Vec::new(),
        })
    }
}

weir_policy::export_credentials!(Policy);
