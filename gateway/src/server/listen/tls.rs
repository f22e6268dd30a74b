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

use crate::config::Tls;

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

/// Checks certificates of clients against the CAs in a file, and against their revocation lists. A list that is past its
/// `nextUpdate` still counts: what it has revoked stays so.
fn clients(file: &Path, tls: &Tls) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let name = file.display();
    let mut roots = RootCertStore::empty();
    load_ca_file_into_store(file, &mut roots).map_err(|_| format!("{name} is no PEM file of certificates alone"))?;
    let mut verifier = WebPkiClientVerifier::builder(Arc::new(roots));
    if let Some(file) = &tls.client_crl {
        let lists = CertificateRevocationListDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let lists = lists.ok().filter(|lists| !lists.is_empty());
        let lists = lists.ok_or_else(|| format!("{} is no PEM file of revocation lists", file.display()))?;
        verifier = verifier.with_crls(lists).only_check_end_entity_revocation();
    }
    let verifier = if tls.client_required { verifier } else { verifier.allow_unauthenticated() };
    verifier.build().map_err(|why| format!("{name}: {why}"))
}
