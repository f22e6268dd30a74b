//! How a caller shows its token: to be taken for whoever brings it, or with a proof of the key that it is bound to
//! (RFC 9449 §7.1).

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use tokio::sync::OnceCell;
use weir_oauth::{
    inbound::{ProofError, ProvedRequest, Rejected},
    proof::DPOP,
};

use crate::{
    credential::{IssuerStore, IssuerStoreError},
    server::listen::HttpExchange,
};

use super::{Proved, checked::Good};

/// How long a nonce is the newest, in seconds. It is good for as long again.
const PERIOD: u64 = 5 * 60;

/// The nonces that proofs must have (RFC 9449 §9): the time, under a key that all processes at the store have. So nothing is
/// kept of them.
pub(super) struct ProofNonces {
    store: IssuerStore,
    key: OnceCell<hmac::Key>,
}

impl ProofNonces {
    pub(super) fn new(store: IssuerStore) -> Self {
        Self { store, key: OnceCell::new() }
    }

    /// Those that are good at this time, the one to give first. The next one may come from a process whose clock is ahead.
    pub(super) async fn at(&self, now: SystemTime) -> Result<[String; 3], IssuerStoreError> {
        let read = || async { self.store.nonce_key().await.map(|key| hmac::Key::new(hmac::HMAC_SHA256, &key)) };
        Ok(nonces(self.key.get_or_try_init(read).await?, now))
    }
}

fn nonces(key: &hmac::Key, now: SystemTime) -> [String; 3] {
    let period = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / PERIOD;
    let nonce = |period: u64| URL_SAFE_NO_PAD.encode(&hmac::sign(key, &period.to_be_bytes()).as_ref()[..16]);
    [nonce(period), nonce(period.saturating_sub(1)), nonce(period + 1)]
}

/// A token and the scheme that it came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownToken<'a> {
    pub(super) scheme: TokenScheme,
    pub(super) token: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenScheme {
    /// RFC 6750 §2.1.
    Bearer,
    /// RFC 9449 §7.1.
    Dpop,
}

impl ShownToken<'_> {
    pub(super) fn is_bearer(&self) -> bool {
        self.scheme == TokenScheme::Bearer
    }
}

impl Proved {
    /// Whether tokens have to be bound to a key; none if nothing is said of such tokens. A proof names Weir's address, so who
    /// does not know what clients call it does not ask them for proofs.
    pub(super) fn demand(&self) -> Option<bool> {
        let required = !self.issuers.is_empty() && self.issuers.iter().all(|issuer| issuer.require_dpop);
        (required || self.resource.is_named()).then_some(required)
    }

    /// Whether a token is shown as it must be, and the key that it is bound to is proved. None stands for a bearer token that
    /// is known.
    pub(super) fn prove(
        &self,
        exchange: &HttpExchange,
        good: &Good,
        shown: Option<ShownToken<'_>>,
        nonces: &[String],
    ) -> Result<(), Rejected> {
        // The tokens that Weir issues are bound to nothing either.
        let required = || self.issuer(good.caller.principal().issuer.as_deref()).is_some_and(|one| one.require_dpop);
        let (thumbprint, token) = match (&good.key, shown.filter(|shown| !shown.is_bearer())) {
            (None, None) => return if required() { Err(Rejected::Unbound) } else { Ok(()) },
            (None, Some(_)) => return Err(Rejected::Unbound),
            (Some(_), None) => return Err(Rejected::Bound),
            (Some(key), Some(shown)) => (key, shown.token),
        };
        let mut proofs = exchange.headers().filter(|(name, _)| **name == DPOP);
        let (Some((_, proof)), None) = (proofs.next(), proofs.next()) else { return Err(ProofError::Count.into()) };
        let proof = proof.to_str().map_err(|_| ProofError::Malformed)?;
        let (url, principal) = (self.resource.url(exchange), good.caller.principal());
        // An issuer has no blank in it.
        let caller = format!("{} {}", principal.issuer.as_deref().unwrap_or_default(), principal.subject);
        let request =
            ProvedRequest { method: exchange.method(), url: &url, token, thumbprint, caller: &caller, nonces };
        Ok(self.proofs.check(proof, &request, self.clock.now())?)
    }
}

/// The token of an `Authorization` header.
pub(super) fn shown_token(value: &str) -> Option<ShownToken<'_>> {
    let (scheme, token) = value.trim_ascii().split_once(' ')?;
    let scheme = match scheme {
        _ if scheme.eq_ignore_ascii_case("bearer") => TokenScheme::Bearer,
        _ if scheme.eq_ignore_ascii_case("dpop") => TokenScheme::Dpop,
        _ => return None,
    };
    Some(ShownToken { scheme, token: token.trim_ascii() }).filter(|shown| !shown.token.is_empty())
}

/// Whether an `Authorization` header has a token that is bound to a key.
pub(super) fn is_dpop(value: &str) -> bool {
    shown_token(value).is_some_and(|shown| !shown.is_bearer())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_nonce_of_a_process_is_good_at_another_whose_clock_differs_and_for_a_period_more() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"of the store");
        let at = |seconds: u64| nonces(&key, UNIX_EPOCH + Duration::from_secs(seconds));
        let given = &at(10 * PERIOD)[0];
        for (seconds, is_good) in [
            (9 * PERIOD - 1, false),
            (10 * PERIOD - 1, true),
            (10 * PERIOD, true),
            (12 * PERIOD - 1, true),
            (12 * PERIOD, false),
        ] {
            assert_eq!(at(seconds).contains(given), is_good, "{seconds}");
        }
    }

    #[test]
    fn a_token_comes_in_one_header_and_one_scheme() {
        for (value, token) in [
            ("Bearer a.b.c", Some((TokenScheme::Bearer, "a.b.c"))),
            ("bearer  a.b.c ", Some((TokenScheme::Bearer, "a.b.c"))),
            ("DPoP a.b.c", Some((TokenScheme::Dpop, "a.b.c"))),
            ("dpop a.b.c", Some((TokenScheme::Dpop, "a.b.c"))),
            ("Basic a.b.c", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("a.b.c", None),
            ("", None),
        ] {
            assert_eq!(shown_token(value).map(|shown| (shown.scheme, shown.token)), token, "{value:?}");
        }
    }
}
