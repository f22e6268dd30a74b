//! A guest that uses every capability there is, and says what it was given.

use weir_policy::{
    Choice, Credentials, Question,
    capability::{clock, log, random, secrets},
};

struct Curious;

impl Credentials for Curious {
    fn choose(about: Question) -> Choice {
        log::info("I look at everything");
        Choice::Stop(format!(
            "year {}, {} random bytes, token {:?}, other {:?}, settings {}",
            1970 + clock::now().as_secs() / 31_556_952,
            random::bytes(u32::MAX).len(),
            secrets::read("token"),
            secrets::read("other"),
            about.upstream.settings,
        ))
    }
}

weir_policy::export_credentials!(Curious);
