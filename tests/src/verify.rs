//! Tokens as an upstream checks them: with `jsonwebtoken`, by the keys that the issuer publishes.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, new_error};
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey, Validation, decode, decode_header};
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use serde_json::Value;
use signature::Verifier;

/// What `token` says, if one of `keys` (RFC 7517) has signed it, as `issuer`, for `audience`, and it has not ended by a
/// clock that is `ahead` of this machine's by so many seconds.
pub(crate) fn claims(token: &str, keys: &Value, issuer: &str, audience: &str, ahead: u64) -> Result<Value, Error> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| PROVIDER.install_default().expect("nobody else has chosen one"));
    let keys: JwkSet = serde_json::from_value(keys.clone())?;
    let id = decode_header(token)?.kid.unwrap_or_default();
    let key = keys.find(&id).ok_or_else(|| new_error(ErrorKind::InvalidKeyFormat))?;
    let mut validation = Validation::new(Algorithm::RS256);
    validation.set_required_spec_claims(&["iss", "aud", "exp"]);
    validation.set_issuer(&[issuer]);
    validation.set_audience(&[audience]);
    validation.leeway = 0;
    validation.reject_tokens_expiring_in_less_than = ahead;
    Ok(decode(token, &DecodingKey::from_jwk(key)?, &validation)?.claims)
}

/// The one algorithm that the authorization servers of the tests sign with. `jsonwebtoken` leaves the arithmetic to others.
static PROVIDER: CryptoProvider =
    CryptoProvider { signer_factory: signer, verifier_factory: verifier, key_utils: KeyUtils::new_unimplemented() };

struct Rs256(DecodingKey);

fn signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn jsonwebtoken::crypto::JwtSigner>, Error> {
    Err(new_error(ErrorKind::InvalidAlgorithm))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    match algorithm {
        Algorithm::RS256 => Ok(Box::new(Rs256(key.clone()))),
        _ => Err(new_error(ErrorKind::InvalidAlgorithm)),
    }
}

impl JwtVerifier for Rs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

impl Verifier<Vec<u8>> for Rs256 {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), signature::Error> {
        let DecodingKeyKind::RsaModulusExponent { n, e } = self.0.kind() else { return Err(signature::Error::new()) };
        let key = RsaPublicKeyComponents { n, e };
        key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signed).map_err(|_| signature::Error::new())
    }
}
