//! Files that are not what was written, and keys that do not fit.

use super::*;

/// A store with one value in it, as bytes.
async fn written(folder: &Path) -> Vec<u8> {
    open(folder).await.unwrap().put(&key("github"), &value(TOKEN), None).await.unwrap();
    fs::read(folder.join("store")).unwrap()
}

#[tokio::test]
async fn a_truncated_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let whole = written(folder.path()).await;
    let path = folder.path().join("store");
    let mut lengths: Vec<usize> = (0..20).map(|part| whole.len() * part / 20).collect();
    lengths.extend([1, 8, 9, 63, 64, 65, 320, 4095, 4096, 4097, whole.len() - 1]);
    for length in lengths {
        fs::write(&path, &whole[..length]).unwrap();
        let opened = open(folder.path()).await;
        let read = match &opened {
            Ok(store) => store.get(&key("github")).await.map(drop),
            Err(_) => Ok(()),
        };
        let refused = opened.err().or(read.err());
        assert!(matches!(refused, Some(StoreError::Damaged { .. })), "at {length}: {refused:?}");
        assert_eq!(fs::read(&path).unwrap(), &whole[..length], "at {length}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(text(&open(folder.path()).await.unwrap(), &key("github")).await.as_deref(), Some(TOKEN));
}

#[tokio::test]
async fn what_is_no_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    for garbage in [vec![0; 8192], b"[upstreams.github]\n".repeat(400), vec![0xff; 70_000]] {
        fs::write(&path, &garbage).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let refused = open(folder.path()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains("was left as it is"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), garbage);
    }
    let other = Database::create(folder.path().join("other")).unwrap();
    drop(other);
    fs::rename(folder.path().join("other"), &path).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(matches!(open(folder.path()).await.unwrap_err(), StoreError::Damaged { .. }));
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path()).await;
    let store = open(folder.path()).await.unwrap();
    let path = folder.path().join("store");
    let db = Database::open(&path).unwrap();
    let tx = db.begin_write().unwrap();
    tx.open_table(FILE).unwrap().insert("format", 3_u32.to_be_bytes().as_slice()).unwrap();
    tx.commit().unwrap();
    drop(db);
    assert!(matches!(open(folder.path()).await, Err(StoreError::Newer { found: 3, known: 2, .. })));
    assert!(matches!(store.get(&key("github")).await, Err(StoreError::Newer { .. })));
    assert!(matches!(store.put(&key("a"), &value("b"), None).await, Err(StoreError::Newer { .. })));
}

#[tokio::test]
async fn a_file_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path()).await;
    for name in ["store.key", "store"] {
        let path = folder.path().join(name);
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        let refused = open(folder.path()).await.unwrap_err().to_string();
        assert!(refused.contains("chmod 600") && refused.contains("640"), "{refused}");
    }
}

#[tokio::test]
async fn another_key_opens_nothing_and_destroys_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let whole = written(folder.path()).await;
    let path = folder.path().join("store");
    let kept = fs::read_to_string(folder.path().join("store.key")).unwrap();
    fs::remove_file(folder.path().join("store.key")).unwrap();
    let none = open(folder.path()).await.unwrap_err().to_string();
    assert!(none.contains("no key there"), "{none}");
    assert!(!folder.path().join("store.key").exists(), "no key is made for a store that has one");

    let another = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let mut sources = sources(folder.path());
    sources.variable = Some(("env WEIR_STORE_KEY".to_owned(), Secret::new(another.to_owned())));
    let refused = FileStore::open(path.clone(), Protection::Encrypted(sources.clone()), Clock::system()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("env WEIR_STORE_KEY (another key)") && !refused.contains(another), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), whole);

    sources.variable = Some(("env WEIR_STORE_KEY".to_owned(), Secret::new(kept)));
    let store = FileStore::open(path, Protection::Encrypted(sources), Clock::system()).await.unwrap();
    assert_eq!(text(&store, &key("github")).await.as_deref(), Some(TOKEN));
}

#[tokio::test]
async fn plain_text_is_never_taken_for_encrypted_or_the_other_way() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path()).await;
    let path = folder.path().join("store");
    let opened = FileStore::open(path.clone(), Protection::Plaintext, Clock::system()).await;
    assert!(matches!(opened, Err(StoreError::Protection { found: "encrypted", .. })), "{opened:?}");
    fs::remove_file(&path).unwrap();
    let plain = FileStore::open(path, Protection::Plaintext, Clock::system()).await.unwrap();
    plain.put(&key("github"), &value(TOKEN), None).await.unwrap();
    assert!(matches!(open(folder.path()).await, Err(StoreError::Protection { found: "plain text", .. })));
}

#[tokio::test]
async fn an_entry_that_was_changed_or_moved_does_not_open() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path()).await;
    let path = folder.path().join("store");
    let db = Database::open(&path).unwrap();
    let tx = db.begin_write().unwrap();
    {
        let mut entries = tx.open_table(ENTRIES).unwrap();
        let bytes = entries.get(key("github").text()).unwrap().unwrap().value().to_vec();
        entries.insert(key("evil").text(), bytes.as_slice()).unwrap();
        let mut changed = bytes.clone();
        let at = changed.windows(1).position(|byte| byte == b"a").unwrap();
        changed[at] = b'b';
        entries.insert(key("about").text(), changed.as_slice()).unwrap();
        entries.insert(key("short").text(), &bytes[..7]).unwrap();
    }
    tx.commit().unwrap();
    drop(db);
    let store = open(folder.path()).await.unwrap();
    for name in ["evil", "about", "short"] {
        assert!(matches!(store.get(&key(name)).await, Err(StoreError::Entry(_))), "{name}");
    }
    assert_eq!(text(&store, &key("github")).await.as_deref(), Some(TOKEN), "the others stay");
    store.put(&key("short"), &value("new"), None).await.unwrap();
    assert_eq!(text(&store, &key("short")).await.as_deref(), Some("new"), "and it can be replaced");
}
