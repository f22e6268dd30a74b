//! The certificate, and the protocols that are offered with it.

use std::{path::Path, sync::Arc};

use pingora_core::listeners::tls::Acceptor;
use pingora_rustls::{
    ClientCertVerifier, RootCertStore, ServerConfig, WebPkiClientVerifier, install_default_crypto_provider,
    load_ca_file_into_store, load_certs_and_key_files,
};

use crate::config::Tls;

use super::ListenError;

pub(super) fn acceptor(tls: &Tls) -> Result<Acceptor, ListenError> {
    let config = config(tls).map_err(|why| ListenError::Tls {
        certificate: tls.certificate.display().to_string(),
        key: tls.key.display().to_string(),
        why,
    })?;
    Ok(Acceptor::from_server_config(Arc::new(config)))
}

fn config(tls: &Tls) -> Result<ServerConfig, String> {
    let Tls { certificate, key, client_ca, client_required } = tls;
    install_default_crypto_provider();
    for file in [certificate, key].into_iter().chain(client_ca) {
        // Pingora's message does not say which of the two.
        std::fs::metadata(file).map_err(|why| format!("{}: {why}", file.display()))?;
    }
    let loaded = load_certs_and_key_files(&certificate.to_string_lossy(), &key.to_string_lossy());
    let (chain, key) = loaded
        .map_err(|_| "they are not PEM files".to_owned())?
        .ok_or_else(|| "there is no certificate in the one or no private key in the other".to_owned())?;
    let builder = match client_ca {
        Some(file) => ServerConfig::builder().with_client_cert_verifier(clients(file, *client_required)?),
        None => ServerConfig::builder().with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|why| why.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Checks certificates of clients against the CAs in a file.
fn clients(file: &Path, required: bool) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let name = file.display();
    let mut roots = RootCertStore::empty();
    load_ca_file_into_store(file, &mut roots).map_err(|_| format!("{name} is no PEM file of certificates alone"))?;
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
    let verifier = if required { verifier } else { verifier.allow_unauthenticated() };
    verifier.build().map_err(|why| format!("{name}: {why}"))
}
