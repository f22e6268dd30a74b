//! Where users come back to. Each issuer has an address of its own (RFC 9700 §4.4.2.2).
//!
//! A hostile server can lead users to the page of an honest one. What they bring back then belongs to the honest one.
//! It comes to the address of the honest server, or to none: that server sends Weir's users nowhere else. So Weir
//! brings a code only to the server to whose address it came.

use ring::digest::{SHA256, digest};

/// An address to which users come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// This one, which belongs to one issuer alone.
    At(String),
    /// One for each issuer, below this one.
    Below(String),
}

/// How much of the hash of an issuer names it, in bytes. Nobody finds another issuer with the same name.
const NAME: usize = 16;

impl Redirect {
    /// The address for an issuer.
    pub fn of(&self, issuer: &str) -> String {
        match self {
            Self::At(address) => address.clone(),
            Self::Below(_) => self.named(&name(issuer)),
        }
    }

    /// The address for the issuer of this name.
    pub fn named(&self, name: &str) -> String {
        match self {
            Self::At(address) => address.clone(),
            Self::Below(base) => format!("{base}/{name}"),
        }
    }
}

/// The name of an issuer in an address, in small letters and digits: some servers compare paths without regard to case.
pub fn name(issuer: &str) -> String {
    hex::encode(&digest(&SHA256, issuer.as_bytes()).as_ref()[..NAME])
}

/// Whether it is what [`name`] makes.
pub fn is_name(text: &str) -> bool {
    text.len() == 2 * NAME && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_issuer_has_an_address_of_its_own_that_stays() {
        let below = Redirect::Below("https://weir.example/oauth/callback".to_owned());
        assert_eq!(
            below.of("https://login.example"),
            "https://weir.example/oauth/callback/ced4229bf4ad3faa114cd9e344f79886"
        );
        // Another tenant, and the same with a slash: issuers are compared letter by letter.
        for other in ["https://login.example/", "https://login.example/tenant", "https://evil.example"] {
            assert_ne!(below.of("https://login.example"), below.of(other), "{other}");
        }
        let at = Redirect::At("https://weir.example/connect/callback".to_owned());
        assert_eq!(at.of("https://login.example"), "https://weir.example/connect/callback");
    }
}
