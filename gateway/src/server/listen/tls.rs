//! The certificate, and the protocols that are offered with it.

use std::{path::Path, sync::Arc};

use pingora_core::listeners::tls::Acceptor;
use pingora_rustls::{ServerConfig, install_default_crypto_provider, load_certs_and_key_files};

use crate::config::Tls;

use super::ListenError;

pub(super) fn acceptor(tls: &Tls) -> Result<Acceptor, ListenError> {
    let config = config(&tls.certificate, &tls.key).map_err(|why| ListenError::Tls {
        certificate: tls.certificate.display().to_string(),
        key: tls.key.display().to_string(),
        why,
    })?;
    Ok(Acceptor::from_server_config(Arc::new(config)))
}

fn config(certificate: &Path, key: &Path) -> Result<ServerConfig, String> {
    install_default_crypto_provider();
    for file in [certificate, key] {
        // Pingora's message does not say which of the two.
        std::fs::metadata(file).map_err(|why| format!("{}: {why}", file.display()))?;
    }
    let loaded = load_certs_and_key_files(&certificate.to_string_lossy(), &key.to_string_lossy());
    let (chain, key) = loaded
        .map_err(|_| "they are not PEM files".to_owned())?
        .ok_or_else(|| "there is no certificate in the one or no private key in the other".to_owned())?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
    let mut config = config.map_err(|why| why.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
