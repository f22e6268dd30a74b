//! The keyring of the operating system, which may be missing, locked, or never answer.

use zeroize::Zeroizing;

/// What is in the entry; none if there is no keyring, no entry, or no answer.
#[cfg(feature = "keyring")]
pub(super) fn read(service: &str, account: &str) -> Option<Zeroizing<String>> {
    let (service, account) = (service.to_owned(), account.to_owned());
    in_time(move || ::keyring::Entry::new(&service, &account).ok()?.get_password().ok().map(Zeroizing::new))
}

/// Puts a text into the entry; says whether it is really there now.
#[cfg(feature = "keyring")]
pub(super) fn write(service: &str, account: &str, text: &Zeroizing<String>) -> bool {
    let (name, holder, value) = (service.to_owned(), account.to_owned(), text.clone());
    let written = in_time(move || ::keyring::Entry::new(&name, &holder).ok()?.set_password(&value).ok());
    written.is_some() && read(service, account).as_ref() == Some(text)
}

/// The keyring asks another process, and that perhaps a person.
#[cfg(feature = "keyring")]
fn in_time<T: Send + 'static>(work: impl FnOnce() -> Option<T> + Send + 'static) -> Option<T> {
    /// Long enough to type a password into the dialog of a locked keyring.
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
    let (done, result) = std::sync::mpsc::sync_channel(1);
    // A thread of its own: the keyring brings an executor, which must not find another one around it.
    let asking = std::thread::Builder::new().name("keyring".to_owned()).spawn(move || {
        let _ = done.send(work());
    });
    asking.ok()?;
    result.recv_timeout(PATIENCE).ok().flatten()
}

#[cfg(not(feature = "keyring"))]
pub(super) fn read(_: &str, _: &str) -> Option<Zeroizing<String>> {
    None
}

#[cfg(not(feature = "keyring"))]
pub(super) fn write(_: &str, _: &str, _: &Zeroizing<String>) -> bool {
    false
}
