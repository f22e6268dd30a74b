//! Who a stored part belongs to.

use sha2::{Digest, Sha256};
use weir_policy::Principal;

/// What the keys of a caller begin with. No two callers have the same; those without a principal share one.
pub(crate) fn key(principal: Option<&Principal>) -> String {
    principal.map_or_else(|| "anonymous".to_owned(), digest)
}

/// A subject may be longer than a key of the store. The length keeps issuer and subject apart.
fn digest(principal: &Principal) -> String {
    let mut identity = Vec::new();
    match &principal.issuer {
        None => identity.push(0),
        Some(issuer) => {
            identity.push(1);
            identity.extend_from_slice(&(issuer.len() as u64).to_be_bytes());
            identity.extend_from_slice(issuer.as_bytes());
        }
    }
    identity.extend_from_slice(principal.subject.as_bytes());
    hex(&Sha256::digest(identity))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(issuer: Option<&str>, subject: &str) -> Principal {
        Principal {
            subject: subject.into(),
            issuer: issuer.map(str::to_owned),
            scopes: Vec::new(),
            claims: "{}".into(),
            extensions: Vec::new(),
        }
    }

    #[test]
    fn no_two_callers_share_a_key() {
        let callers = [
            None,
            Some(principal(None, "jane")),
            Some(principal(None, "anonymous")),
            Some(principal(Some(""), "jane")),
            Some(principal(Some("https://a.example"), "jane")),
            Some(principal(Some("https://a.examplej"), "ane")),
            Some(principal(Some("https://a.example"), "joe")),
        ];
        let keys: std::collections::BTreeSet<_> = callers.iter().map(|caller| key(caller.as_ref())).collect();
        assert_eq!(keys.len(), callers.len());
        assert!(keys.iter().all(|key| key.len() <= 64));
        assert_eq!(hex(&[0, 0x5f, 0xa0]), "005fa0");
    }
}
