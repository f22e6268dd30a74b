//! How gateways at one store know each other.
//!
//! All have the same key pair, made of a secret of their store. Both ends of a connection show its public half (raw public
//! keys, RFC 7250) and prove that they have the private one. So whoever can read the store gets in, and nobody else; no
//! certificate has to be issued, renewed or configured.

use std::sync::Arc;

use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, ServerConfig,
    SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring as provider, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};

/// What stands before the secret of an Ed25519 key in PKCS #8 (RFC 8410 §7).
const PKCS8: [u8; 16] = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];

/// What stands before its public half in a SubjectPublicKeyInfo (RFC 8410 §4).
const SPKI: [u8; 12] = [48, 42, 48, 5, 6, 3, 43, 101, 112, 3, 33, 0];

/// The key pair of all gateways at one store.
pub struct Identity {
    provider: Arc<CryptoProvider>,
    key: Arc<CertifiedKey>,
    same: Arc<SameKey>,
}

/// Lets in whoever has the same key.
#[derive(Debug)]
struct SameKey {
    public: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Identity {
    /// The one that a secret makes.
    ///
    /// # Errors
    ///
    /// When no key can be made of it.
    pub fn from_secret(secret: &[u8; 32]) -> Result<Self, Error> {
        let provider = Arc::new(provider::default_provider());
        let pair = Ed25519KeyPair::from_seed_unchecked(secret).map_err(|why| Error::General(why.to_string()))?;
        let public = [&SPKI[..], pair.public_key().as_ref()].concat();
        let private = PrivatePkcs8KeyDer::from([&PKCS8[..], secret].concat());
        let key = provider::sign::any_eddsa_type(&private)?;
        let key = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.clone())], key));
        let same = Arc::new(SameKey { public, algorithms: provider.signature_verification_algorithms });
        Ok(Self { provider, key, same })
    }

    /// For connections to another gateway.
    ///
    /// # Errors
    ///
    /// When TLS 1.3 cannot be had.
    pub fn client(&self) -> Result<Arc<ClientConfig>, Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider));
        let builder = builder.with_protocol_versions(&[&TLS13])?.dangerous();
        let builder = builder.with_custom_certificate_verifier(Arc::clone(&self.same) as Arc<dyn ServerCertVerifier>);
        let key = AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&self.key));
        Ok(Arc::new(builder.with_client_cert_resolver(Arc::new(key))))
    }

    /// For connections of other gateways.
    ///
    /// # Errors
    ///
    /// When TLS 1.3 cannot be had.
    pub fn server(&self) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider));
        let builder = builder.with_protocol_versions(&[&TLS13])?;
        let builder = builder.with_client_cert_verifier(Arc::clone(&self.same) as Arc<dyn ClientCertVerifier>);
        let key = AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.key));
        Ok(Arc::new(builder.with_cert_resolver(Arc::new(key))))
    }
}

impl SameKey {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        let is_same = shown.as_ref() == self.public;
        is_same.then_some(()).ok_or(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn check_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

/// Only TLS 1.3 is spoken.
const TOO_OLD: Error = Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic);

impl ServerCertVerifier for SameKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(TOO_OLD)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for SameKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(TOO_OLD)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    /// Whether both come through the handshake.
    fn speak(client: &Arc<ClientConfig>, server: &Identity) -> bool {
        let mut client = ClientConnection::new(Arc::clone(client), ServerName::try_from("weir").unwrap()).unwrap();
        let mut server = ServerConnection::new(server.server().unwrap()).unwrap();
        for _ in 0..4 {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            let mut sent = &wire[..];
            while !sent.is_empty() {
                server.read_tls(&mut sent).unwrap();
                if server.process_new_packets().is_err() {
                    return false;
                }
            }
            wire.clear();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            let mut sent = &wire[..];
            while !sent.is_empty() {
                client.read_tls(&mut sent).unwrap();
                if client.process_new_packets().is_err() {
                    return false;
                }
            }
        }
        !client.is_handshaking() && !server.is_handshaking()
    }

    #[test]
    fn only_those_with_the_same_secret_speak_with_each_other() {
        let [one, same, other] = [1, 1, 2].map(|byte| Identity::from_secret(&[byte; 32]).unwrap());
        assert!(speak(&one.client().unwrap(), &same));
        assert!(!speak(&one.client().unwrap(), &other));
        let builder = ClientConfig::builder_with_provider(Arc::clone(&one.provider));
        let builder = builder.with_protocol_versions(&[&TLS13]).unwrap().dangerous();
        let anonymous = builder.with_custom_certificate_verifier(Arc::clone(&one.same) as Arc<dyn ServerCertVerifier>);
        assert!(!speak(&Arc::new(anonymous.with_no_client_auth()), &same), "a client without a key");
    }
}
