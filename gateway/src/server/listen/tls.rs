//! The certificate, and the protocols that are offered with it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use pingora_core::listeners::tls::Acceptor;
use pingora_rustls::{
    ClientCertVerifier, RootCertStore, ServerConfig, WebPkiClientVerifier, install_default_crypto_provider,
    load_ca_file_into_store, load_certs_and_key_files,
};
use rustls::pki_types::{CertificateRevocationListDer, pem::PemObject};

use crate::config::{SubjectPart, Tls};

use super::ListenError;

/// How often the files are looked at. What is found twice alike is taken for what their writer wanted.
const LOOK: Duration = Duration::from_secs(2);

/// What handshakes use: the certificate, and whose certificates of clients are good. Both follow their files.
pub struct TlsFiles {
    tls: Tls,
    acceptor: ArcSwap<Acceptor>,
    /// The files as they were before they were read.
    read: Vec<FileState>,
}

/// When a file was written, and its length; none if it cannot be read.
type FileState = Option<(SystemTime, u64)>;

impl TlsFiles {
    /// What the files have now.
    ///
    /// # Errors
    ///
    /// When they cannot be used.
    pub(super) fn new(tls: &Tls) -> Result<Self, ListenError> {
        let read = states(tls);
        Ok(Self { acceptor: ArcSwap::from_pointee(acceptor(tls)?), tls: tls.clone(), read })
    }

    /// What the next handshake uses.
    pub(super) fn acceptor(&self) -> Arc<Acceptor> {
        self.acceptor.load_full()
    }

    /// Whether clients are asked for a certificate.
    pub(super) const fn asks_clients(&self) -> bool {
        self.tls.client_ca.is_some()
    }

    /// What of a client's certificate names its groups.
    pub(super) const fn client_groups(&self) -> Option<SubjectPart> {
        self.tls.client_groups
    }

    /// Reads the files again when they have changed, until it is dropped. Connections that are open stay as they are. What
    /// cannot be used changes nothing.
    pub async fn follow(self: Arc<Self>) {
        let (mut known, mut before) = (self.read.clone(), self.read.clone());
        loop {
            tokio::time::sleep(LOOK).await;
            let tls = self.tls.clone();
            let Ok(now) = tokio::task::spawn_blocking(move || states(&tls)).await else { return };
            if now == known || now != before {
                before = now;
                continue;
            }
            let tls = self.tls.clone();
            match tokio::task::spawn_blocking(move || acceptor(&tls)).await {
                Ok(Ok(acceptor)) => {
                    self.acceptor.store(Arc::new(acceptor));
                    tracing::info!("new connections get the certificate as its files are now");
                }
                Ok(Err(why)) => tracing::error!("the certificate stays as it was: {why}"),
                Err(_) => return,
            }
            known = now;
        }
    }
}

fn files(tls: &Tls) -> impl Iterator<Item = &PathBuf> {
    [&tls.certificate, &tls.key].into_iter().chain(&tls.client_ca).chain(&tls.client_crl)
}

fn states(tls: &Tls) -> Vec<FileState> {
    let state = |file: &PathBuf| {
        let data = fs::metadata(file).ok()?;
        Some((data.modified().ok()?, data.len()))
    };
    files(tls).map(state).collect()
}

fn acceptor(tls: &Tls) -> Result<Acceptor, ListenError> {
    let config = config(tls).map_err(|why| ListenError::Tls {
        certificate: tls.certificate.display().to_string(),
        key: tls.key.display().to_string(),
        why,
    })?;
    Ok(Acceptor::from_server_config(Arc::new(config)))
}

fn config(tls: &Tls) -> Result<ServerConfig, String> {
    install_default_crypto_provider();
    for file in files(tls) {
        // Pingora's message does not say which of them.
        fs::metadata(file).map_err(|why| format!("{}: {why}", file.display()))?;
    }
    let loaded = load_certs_and_key_files(&tls.certificate.to_string_lossy(), &tls.key.to_string_lossy());
    let (chain, key) = loaded
        .map_err(|_| "they are not PEM files".to_owned())?
        .ok_or_else(|| "there is no certificate in the one or no private key in the other".to_owned())?;
    let builder = match &tls.client_ca {
        Some(file) => ServerConfig::builder().with_client_cert_verifier(clients(file, tls)?),
        None => ServerConfig::builder().with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|why| why.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Checks certificates of clients against the CAs in a file. With revocation lists each certificate below such a CA needs
/// one of its issuer, those of intermediate CAs too. A list that is past its `nextUpdate` still counts: what it has revoked
/// stays so.
fn clients(file: &Path, tls: &Tls) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let name = file.display();
    let mut roots = RootCertStore::empty();
    load_ca_file_into_store(file, &mut roots).map_err(|_| format!("{name} is no PEM file of certificates alone"))?;
    let mut verifier = WebPkiClientVerifier::builder(Arc::new(roots));
    if let Some(file) = &tls.client_crl {
        let lists = CertificateRevocationListDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let lists = lists.ok().filter(|lists| !lists.is_empty());
        let lists = lists.ok_or_else(|| format!("{} is no PEM file of revocation lists", file.display()))?;
        verifier = verifier.with_crls(lists);
    }
    let verifier = if tls.client_required { verifier } else { verifier.allow_unauthenticated() };
    verifier.build().map_err(|why| format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
        KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
    };
    use rustls::pki_types::UnixTime;

    use super::*;

    type Ca = CertifiedIssuer<'static, KeyPair>;

    fn params(name: &str, serial: u64) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(serial));
        params
    }

    fn ca(name: &str, serial: u64) -> CertificateParams {
        let mut params = params(name, serial);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }

    fn list(issuer: &Ca, revoked: Option<u64>) -> String {
        let revoked = revoked.map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2036, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.into_iter().collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(issuer).unwrap().pem().unwrap()
    }

    #[test]
    fn each_certificate_below_the_ca_has_to_be_in_good_standing() {
        install_default_crypto_provider();
        let key = || KeyPair::generate().unwrap();
        let root = Ca::self_signed(ca("root", 1), key()).unwrap();
        let between = Ca::signed_by(ca("between", 2), key(), &root).unwrap();
        let client = params("client", 3).signed_by(&key(), &between).unwrap();
        let folder = std::env::temp_dir().join(format!("weir-between-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        fs::write(path("ca.pem"), root.pem()).unwrap();
        let tls = Tls {
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            client_ca: None,
            client_crl: Some(path("crl.pem")),
            client_is_caller: true,
            client_groups: None,
            client_required: true,
        };
        let is_good = |lists: &[String]| {
            fs::write(path("crl.pem"), lists.concat()).unwrap();
            let verifier = clients(&path("ca.pem"), &tls).unwrap();
            verifier.verify_client_cert(client.der(), &[between.der().clone()], UnixTime::now()).is_ok()
        };
        let good = [list(&root, None), list(&between, None)];
        assert!(is_good(&good));
        assert!(!is_good(&[list(&root, Some(2)), list(&between, None)]), "the CA between was revoked");
        assert!(!is_good(&[list(&root, None), list(&between, Some(3))]), "the client was revoked");
        assert!(!is_good(&good[..1]) && !is_good(&good[1..]), "nothing says that both are good");
        fs::remove_dir_all(folder).unwrap();
    }
}
