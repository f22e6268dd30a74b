//! A guest of a world without imports: it opens the upstream for those whose token names their team, and tells the rest whom
//! to ask.

#[cfg(target_family = "wasm")]
mod component {
    #![allow(unsafe_code, reason = "generated code crosses the component boundary")]

    wit_bindgen::generate!({ path: "../../../wit", world: "minimal-credentials-policy", generate_all });

    use exports::weir::policy::credentials::{Choice, Guest, Minted, Question};

    struct Minimal;

    impl Guest for Minimal {
        fn choose(about: Question) -> Choice {
            let Some(principal) = about.principal else { return Choice::Stop("nobody is calling".into()) };
            if !principal.claims.contains("\"team\"") {
                return Choice::Stop("your token has no team; ask the platform team".into());
            }
            Choice::Mint(Minted { header: "x-caller".into(), scheme: None, text: principal.subject, holds_for: 60 })
        }
    }

    export!(Minimal);
}
