#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

fn text(letter: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(letter.repeat(32))
}

fn write(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_key_that_is_there_wins_over_one_that_would_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let variable = Some(("KEY".to_owned(), Secret::new(text("b"))));
    let sources = KeySources { keyring: None, file: Some(file.clone()), variable };
    assert_eq!(sources.find_or_make().unwrap().bytes(), "b".repeat(32).as_bytes());
    assert!(!file.exists());
    write(&file, &format!("{}\n", text("a")));
    assert_eq!(sources.find_or_make().unwrap().bytes(), "a".repeat(32).as_bytes());
    assert_eq!(sources.find(|key| key.bytes()[0] == b'b').unwrap().bytes(), "b".repeat(32).as_bytes());
}

#[test]
fn a_made_key_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let sources = KeySources { keyring: None, file: Some(folder.path().join("key")), variable: None };
    let made = sources.find_or_make().unwrap();
    assert_eq!(fs::metadata(folder.path().join("key")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(sources.find(|_| true).unwrap().bytes(), made.bytes());
    assert_ne!(MasterKey::random().unwrap().bytes(), made.bytes());
    assert_eq!(format!("{made:?}"), "MasterKey");
}

#[test]
fn both_alphabets_are_read_and_anything_else_is_refused() {
    let bytes = [0xfb; 32];
    for encoded in [
        base64::engine::general_purpose::STANDARD.encode(bytes),
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes),
    ] {
        assert_eq!(MasterKey::parse(&encoded, "env K").unwrap().bytes(), bytes);
    }
    for wrong in ["", "secret", &text("a")[..20], &format!("{}{}", text("a"), text("a"))] {
        let refused = MasterKey::parse(wrong, "env K").unwrap_err();
        assert_eq!(refused, KeyError::Malformed("env K".to_owned()));
    }
}

#[test]
fn without_any_place_there_is_no_key() {
    assert!(matches!(KeySources::default().find_or_make(), Err(KeyError::NoPlace(_))));
}
