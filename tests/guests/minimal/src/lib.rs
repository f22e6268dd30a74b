//! A guest of a world without imports: it opens the upstream for those whose token names their team, and tells the rest whom
//! to ask.

#[cfg(target_family = "wasm")]
mod component {
    #![allow(unsafe_code, reason = "generated code crosses the component boundary")]

    wit_bindgen::generate!({ path: "../../../wit", world: "minimal-credentials-policy", generate_all });

    use exports::weir::policy::credentials::{Decision, Guest, MintedToken, Question};

    struct Minimal;

    impl Guest for Minimal {
        fn decide(about: Question) -> Decision {
            let Some(principal) = about.principal else { return Decision::Stop("nobody is calling".into()) };
            if !principal.claims.contains("\"team\"") {
                return Decision::Stop("your token has no team; ask the platform team".into());
            }
            Decision::Mint(MintedToken {
                header: "x-caller".into(),
                scheme: None,
                text: principal.subject,
                ttl_seconds: 60,
                extensions: Vec::new(),
            })
        }
    }

    export!(Minimal);
}
