//! The certificate of a client, once the handshake has verified it.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use pingora_core::protocols::Ssl;
use ring::digest::{SHA256, digest};
use serde_json::json;
use weir_flow::facts::Principal;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::{caller::Caller, config::SubjectPart};

/// The longest name that is one, in bytes.
const MAX_NAME: usize = 1024;

/// A client that has shown a certificate of a CA that the configuration names.
pub struct ClientCertificate {
    /// Who it is.
    pub caller: Arc<Caller>,
    /// The SHA-256 of the certificate, as tokens that are bound to it name it (RFC 8705 §3.1).
    pub thumbprint: String,
    /// When it expires.
    pub ends: SystemTime,
}

impl ClientCertificate {
    /// The certificate that the other end of a connection has shown; none if it has shown none, or one without a name.
    /// `groups` says what of it names its groups.
    pub(super) fn of(stream: &impl Ssl, groups: Option<SubjectPart>) -> Option<Self> {
        Self::read(stream.get_ssl()?.peer_certificate_der()?, groups)
    }

    fn read(der: &[u8], groups: Option<SubjectPart>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = name(&certificate).filter(|name| !name.is_empty() && name.len() <= MAX_NAME)?;
        let issuer = format!("mtls:{}", certificate.issuer());
        let thumbprint = URL_SAFE_NO_PAD.encode(digest(&SHA256, der));
        let claims = json!({ "sub": subject, "iss": issuer, "x5t#S256": thumbprint }).to_string();
        let groups = groups.map(|part| names(&certificate, part)).unwrap_or_default();
        let caller = Caller::signed_in(Principal { claims, groups, ..Principal::named(subject, Some(issuer)) });
        let ends = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
        Some(Self { caller, thumbprint, ends: UNIX_EPOCH.checked_add(Duration::from_secs(ends))? })
    }
}

/// Who a certificate is for: the first URI, DNS name or address of its alternative names (RFC 5280 §4.2.1.6), in this
/// order; else its common name.
fn name<'c>(certificate: &'c X509Certificate<'_>) -> Option<&'c str> {
    let names = certificate.subject_alternative_name().ok()?;
    let names = names.as_ref().map_or(&[][..], |names| &names.value.general_names);
    let first = |of: fn(&GeneralName<'c>) -> Option<&'c str>| names.iter().find_map(of);
    first(|name| if let GeneralName::URI(text) = name { Some(text) } else { None })
        .or_else(|| first(|name| if let GeneralName::DNSName(text) = name { Some(text) } else { None }))
        .or_else(|| first(|name| if let GeneralName::RFC822Name(text) = name { Some(text) } else { None }))
        .or_else(|| certificate.subject().iter_common_name().next()?.as_str().ok())
}

/// What a part of the subject names, each once.
fn names(certificate: &X509Certificate<'_>, part: SubjectPart) -> Vec<String> {
    let subject = certificate.subject();
    let all: BTreeSet<&str> = match part {
        SubjectPart::Organization => subject.iter_organization().filter_map(|name| name.as_str().ok()).collect(),
        SubjectPart::OrganizationalUnit => {
            subject.iter_organizational_unit().filter_map(|name| name.as_str().ok()).collect()
        }
    };
    all.into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn subject(names: &[SanType], common: Option<&str>) -> Option<String> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names.to_vec();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let read = ClientCertificate::read(certificate.der(), None)?;
        assert_eq!(read.thumbprint.len(), 43);
        Some(read.caller.principal().subject.clone())
    }

    #[test]
    fn a_certificate_is_for_its_first_name_of_the_best_kind() {
        let uri = SanType::URI("spiffe://example.org/ci".try_into().unwrap());
        let dns = SanType::DnsName("ci.example.org".try_into().unwrap());
        let mail = SanType::Rfc822Name("ci@example.org".try_into().unwrap());
        let all = [mail.clone(), dns.clone(), uri];
        assert_eq!(subject(&all, Some("CI")).as_deref(), Some("spiffe://example.org/ci"));
        assert_eq!(subject(&all[..2], Some("CI")).as_deref(), Some("ci.example.org"));
        assert_eq!(subject(&[mail], Some("CI")).as_deref(), Some("ci@example.org"));
        assert_eq!(subject(&[], Some("CI")).as_deref(), Some("CI"));
        for (names, common) in [(&[][..], None), (&[], Some("")), (&[], Some(&*"x".repeat(MAX_NAME + 1)))] {
            assert_eq!(subject(names, common), None);
        }
        for broken in [&b""[..], &[0x30; 64]] {
            assert!(ClientCertificate::read(broken, Some(SubjectPart::Organization)).is_none());
        }
    }

    #[test]
    fn a_part_of_the_subject_names_the_groups() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "CI");
        params.distinguished_name.push(DnType::OrganizationName, "builders");
        params.distinguished_name.push(DnType::OrganizationalUnitName, "");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let groups = |part| ClientCertificate::read(certificate.der(), part).unwrap().caller.principal().groups.clone();
        assert_eq!(groups(Some(SubjectPart::Organization)), ["builders"]);
        assert!(groups(Some(SubjectPart::OrganizationalUnit)).is_empty() && groups(None).is_empty());
    }
}
