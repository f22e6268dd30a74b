//! Files: who else can read or write them, and whether certificates are good.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Finding, Findings, Severity};
use crate::{
    config::{Auth, Config, SecretSource},
    server::listen::Listener,
};

/// The days before a certificate expires, from which on that is a warning, and a note.
const DAYS: (i64, i64) = (14, 30);

/// The bits that the login store and its key must not have: Weir itself opens neither with them.
const STORE_BITS: u32 = 0o077;

/// The bits of a mode to clear.
#[derive(Debug)]
pub(super) struct Fix {
    pub(super) path: PathBuf,
    pub(super) clear: u32,
}

impl Fix {
    /// Clears them; gives the mode as it is then.
    pub(super) fn apply(&self) -> io::Result<u32> {
        let mut permissions = fs::metadata(&self.path)?.permissions();
        let mode = permissions.mode() & 0o7777 & !self.clear;
        permissions.set_mode(mode);
        fs::set_permissions(&self.path, permissions)?;
        Ok(mode)
    }
}

/// Looks who else can read the files that have secrets in them.
pub(super) fn permissions(config: &Config, findings: &mut Findings) {
    let store = config.store.path.as_deref().filter(|_| config.store.shared.is_none());
    let key = store.and_then(|store| {
        let name = format!("{}.key", store.file_name()?.to_str()?);
        Some(store.with_file_name(name))
    });
    // Weir opens these only if nobody else can read them.
    for (what, path) in [("the login store", store), ("the key of the login store", key.as_deref())] {
        private(what, path, (STORE_BITS, "go-rwx", Severity::Error), findings);
    }
    for (path, what) in secret_files(config) {
        private(what, Some(&path), (0o007, "o-rwx", Severity::Warning), findings);
    }
    if has_plain_values(&config.file) {
        let what = "the configuration, which has values of variables or headers,";
        private(what, Some(&config.file), (0o007, "o-rwx", Severity::Warning), findings);
    }
}

/// The files of secrets that a configuration names, and what is in them.
fn secret_files(config: &Config) -> BTreeMap<PathBuf, &'static str> {
    let mut files = BTreeMap::new();
    let mut add = |what, source: &SecretSource| {
        if let SecretSource::File(path) = source {
            files.insert(path.clone(), what);
        }
    };
    if let Some(key) = &config.store.key {
        add("the key of the login store", key);
    }
    if let Some(shared) = &config.store.shared {
        let passwords = [&shared.password, &shared.sentinel_password];
        passwords.into_iter().flatten().for_each(|source| add("a password of the store", source));
    }
    for upstream in config.upstreams.iter().filter(|upstream| upstream.enabled) {
        if let Auth::Bearer(source) = &upstream.auth {
            add("a token", source);
        }
        upstream.policies.iter().flat_map(|policy| &policy.secrets).for_each(|(_, source)| add("a secret", source));
    }
    if let Some(tls) = &config.tls {
        files.insert(tls.key.clone(), "the key of the certificate");
    }
    files
}

/// Looks whether a file has no more than these bits in its mode.
fn private(what: &str, path: Option<&Path>, (bits, letters, severity): (u32, &str, Severity), findings: &mut Findings) {
    let Some((path, found)) = path.and_then(|path| Some((path, fs::metadata(path).ok()?))) else { return };
    let mode = found.mode() & 0o777;
    let shown = path.display();
    if mode & bits == 0 {
        return findings.ok("files", format_args!("nobody else can use {shown}"));
    }
    // A service may read what belongs to root by just these bits.
    let user = rustix::process::geteuid();
    let is_own = found.is_file() && found.uid() == user.as_raw() && (bits == STORE_BITS || !user.is_root());
    let repair = match is_own {
        true => format!("chmod {letters} {shown}"),
        false => format!("give {shown} to the user or group of the service, then: chmod {letters} {shown}"),
    };
    findings.push(Finding {
        severity,
        check: "files",
        text: format!("{what} can be used by others: {shown} has mode {mode:o}"),
        repair: Some(repair),
        fix: is_own.then(|| Fix { path: path.to_owned(), clear: bits }),
    });
}

/// Whether a configuration has values of variables or headers that come from nowhere else: they may be secret.
fn has_plain_values(path: &Path) -> bool {
    let table: Option<toml::Table> = fs::read_to_string(path).ok().and_then(|text| text.parse().ok());
    let upstreams = table.as_ref().and_then(|table| table.get("upstreams")?.as_table());
    let tables =
        upstreams.into_iter().flatten().flat_map(|(_, upstream)| ["env", "headers"].map(|key| upstream.get(key)));
    let mut values = tables.flatten().filter_map(toml::Value::as_table).flatten();
    values.any(|(_, value)| value.as_str().is_some_and(|text| !text.contains("${")))
}

/// Looks whether the certificate can be served, and for how long.
pub(super) fn certificates(config: &Config, findings: &mut Findings) {
    let Some(tls) = &config.tls else { return };
    if let Err(why) = Listener::new(Some(tls)) {
        return findings.add(Severity::Error, "certificate", why, None);
    }
    let shown = tls.certificate.display();
    let Some((begin, end)) = validity(&tls.certificate) else {
        return findings.add(
            Severity::Warning,
            "certificate",
            format_args!("{shown} has no dates that can be read"),
            None,
        );
    };
    let now =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let (severity, text) = judge(begin, end, now);
    let repair =
        (severity != Severity::Ok).then(|| "renew it in place; Weir reads the new files within seconds".to_owned());
    findings.add(severity, "certificate", format_args!("{shown} {text}"), repair);
}

/// What there is to say of a certificate; times are in seconds since 1970.
fn judge(begin: i64, end: i64, now: i64) -> (Severity, String) {
    let days = (end - now) / (24 * 60 * 60);
    match () {
        () if now < begin => (Severity::Error, "is not valid yet".to_owned()),
        () if end <= now => (Severity::Error, "has expired".to_owned()),
        () if days < DAYS.0 => (Severity::Warning, format!("expires in {days} days")),
        () if days < DAYS.1 => (Severity::Note, format!("expires in {days} days")),
        () => (Severity::Ok, format!("expires in {days} days")),
    }
}

/// From when to when the first certificate of a file is valid, in seconds since 1970.
fn validity(path: &Path) -> Option<(i64, i64)> {
    let first = CertificateDer::pem_file_iter(path).ok()?.next()?.ok()?;
    let (_, certificate) = X509Certificate::from_der(&first).ok()?;
    let validity = certificate.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_judged_by_its_days() {
        const DAY: i64 = 24 * 60 * 60;
        let now = 20_000 * DAY;
        for (begin, end, severity) in [
            (now - DAY, now + 90 * DAY, Severity::Ok),
            (now - DAY, now + 29 * DAY, Severity::Note),
            (now - DAY, now + 13 * DAY, Severity::Warning),
            (now - DAY, now + 1, Severity::Warning),
            (now - DAY, now, Severity::Error),
            (now + 1, now + 90 * DAY, Severity::Error),
        ] {
            assert_eq!(judge(begin, end, now).0, severity, "{begin} {end}");
        }
    }
}
