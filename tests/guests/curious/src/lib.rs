//! A guest that uses every capability there is, and says what it was given.

use weir_policy::{
    Credentials, Decision, Question,
    capability::{clock, log, random, secrets, store},
};

struct Curious;

impl Credentials for Curious {
    fn decide(about: Question) -> Decision {
        log::info("I look at everything");
        Decision::Stop(format!(
            "year {}, {} random bytes, token {:?}, other {:?}, store {:?}, settings {}",
            1970 + clock::now().as_secs() / 31_556_952,
            random::bytes(u32::MAX).len(),
            secrets::read("token"),
            secrets::read("other"),
            store::get("k"),
            about.upstream.settings,
        ))
    }
}

weir_policy::export_credentials!(Curious);
