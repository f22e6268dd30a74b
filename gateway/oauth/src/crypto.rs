//! The signatures of JSON Web Tokens by the same library that everything else here is encrypted with. What the library of
//! tokens brings itself is a second one: in C, or with RSA that leaks its key by its timing (RUSTSEC-2023-0071).
//!
//! Symmetric algorithms are left out: nothing here shares a key with an authorization server, and a checker that knows
//! them can be talked into taking a public key for one.

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{Error, ErrorKind, new_error},
};
use ring::{
    rand::SystemRandom,
    signature::{self as ring_sig, EcdsaKeyPair, Ed25519KeyPair, RsaKeyPair, VerificationAlgorithm},
};
use signature::{Signer, Verifier};

/// Makes the library of tokens use these. Whoever calls first wins, and all callers here want the same.
pub(crate) fn install() {
    static PROVIDER: CryptoProvider =
        CryptoProvider { signer_factory: signer, verifier_factory: verifier, key_utils: KeyUtils::new_unimplemented() };
    let _ = PROVIDER.install_default();
}

enum Pair {
    Rsa(RsaKeyPair, &'static dyn ring_sig::RsaEncoding),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

struct RingSigner {
    algorithm: Algorithm,
    pair: Pair,
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    let wrong = |_| new_error(ErrorKind::InvalidKeyFormat);
    let ec = |curve| EcdsaKeyPair::from_pkcs8(curve, key.as_bytes(), &SystemRandom::new()).map_err(wrong).map(Pair::Ec);
    if key.family() != algorithm.family() {
        return Err(new_error(ErrorKind::InvalidKeyFormat));
    }
    let pair = match algorithm {
        Algorithm::ES256 => ec(&ring_sig::ECDSA_P256_SHA256_FIXED_SIGNING)?,
        Algorithm::ES384 => ec(&ring_sig::ECDSA_P384_SHA384_FIXED_SIGNING)?,
        Algorithm::EdDSA => Pair::Ed(Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.as_bytes()).map_err(wrong)?),
        other => {
            let (encoding, _) = rsa(*other).ok_or_else(|| new_error(ErrorKind::InvalidAlgorithm))?;
            Pair::Rsa(RsaKeyPair::from_der(key.as_bytes()).map_err(wrong)?, encoding)
        }
    };
    Ok(Box::new(RingSigner { algorithm: *algorithm, pair }))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() || algorithm.family() == AlgorithmFamily::Hmac {
        return Err(new_error(ErrorKind::InvalidAlgorithm));
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
}

impl Signer<Vec<u8>> for RingSigner {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair, encoding) => {
                let mut signed = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &random, message, &mut signed).map_err(|_| signature::Error::new())?;
                Ok(signed)
            }
            Pair::Ec(pair) => Ok(pair.sign(&random, message).map_err(|_| signature::Error::new())?.as_ref().to_vec()),
            Pair::Ed(pair) => Ok(pair.sign(message).as_ref().to_vec()),
        }
    }
}

impl JwtSigner for RingSigner {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), signature::Error> {
        let no = |_| signature::Error::new();
        match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let (_, parameters) = rsa(self.algorithm).ok_or_else(signature::Error::new)?;
                ring_sig::RsaPublicKeyComponents { n, e }.verify(parameters, message, signed).map_err(no)
            }
            DecodingKeyKind::SecretOrDer(key) => {
                let algorithm: &'static dyn VerificationAlgorithm = match self.algorithm {
                    Algorithm::ES256 => &ring_sig::ECDSA_P256_SHA256_FIXED,
                    Algorithm::ES384 => &ring_sig::ECDSA_P384_SHA384_FIXED,
                    Algorithm::EdDSA => &ring_sig::ED25519,
                    other => rsa(other).ok_or_else(signature::Error::new)?.1,
                };
                ring_sig::UnparsedPublicKey::new(algorithm, key).verify(message, signed).map_err(no)
            }
        }
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

fn rsa(algorithm: Algorithm) -> Option<(&'static dyn ring_sig::RsaEncoding, &'static ring_sig::RsaParameters)> {
    Some(match algorithm {
        Algorithm::RS256 => (&ring_sig::RSA_PKCS1_SHA256, &ring_sig::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => (&ring_sig::RSA_PKCS1_SHA384, &ring_sig::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => (&ring_sig::RSA_PKCS1_SHA512, &ring_sig::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => (&ring_sig::RSA_PSS_SHA256, &ring_sig::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => (&ring_sig::RSA_PSS_SHA384, &ring_sig::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => (&ring_sig::RSA_PSS_SHA512, &ring_sig::RSA_PSS_2048_8192_SHA512),
        _ => return None,
    })
}
