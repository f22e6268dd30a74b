//! Files that an earlier Weir wrote.

use super::*;

/// A login for all and one of a principal, as format 1 and as format 2 keep them.
const MOVED: [(&[&str], &[&str]); 2] = [
    (&["github", "https://as"], &["github", "shared", "https://as"]),
    (&["github", "https://as", "https://idp", "alice"], &["github", "principal", "https://idp", "alice", "https://as"]),
];

/// The file of format 1 that the code before this one would have written.
async fn former(folder: &Path) -> FileStore {
    let store = open(folder).await.unwrap();
    let db = Database::open(folder.join("store")).unwrap();
    let tx = db.begin_write().unwrap();
    {
        let mut entries = tx.open_table(ENTRIES).unwrap();
        let kept =
            MOVED.iter().map(|(before, _)| Key::new("login", before)).chain([Key::new("client", &["https://as"])]);
        for (version, key) in (1..).zip(kept) {
            let bytes = record::render(&store.0.seal, &key, &value(TOKEN), Version(version), None).unwrap();
            entries.insert(key.text(), bytes.as_slice()).unwrap();
        }
        let damaged = Key::new("login", &["docs", "https://as"]);
        entries.insert(damaged.text(), &[0; 40][..]).unwrap();
        let mut about = tx.open_table(FILE).unwrap();
        about.insert("format", 1_u32.to_be_bytes().as_slice()).unwrap();
        about.insert("last", 3_u64.to_be_bytes().as_slice()).unwrap();
    }
    tx.commit().unwrap();
    store
}

fn format(folder: &Path) -> u32 {
    database::read(&folder.join("store"), |tx| database::format(&folder.join("store"), tx)).unwrap()
}

/// Both logins are there, of the writings that they were.
async fn is_whole(store: &FileStore) {
    for (version, (_, parts)) in (1..).zip(MOVED) {
        let key = Key::new("login", parts);
        assert_eq!(text(store, &key).await.as_deref(), Some(TOKEN), "{key:?}");
        let below = Key::new("login", &parts[..parts.len() - 1]);
        let listed = store.list(std::slice::from_ref(&below)).await.unwrap();
        let found: Vec<_> = listed.iter().map(|row| (&row.key, row.version)).collect();
        assert_eq!(found, [(&key, Version(version))], "below {below:?}");
    }
    assert_eq!(text(store, &Key::new("client", &["https://as"])).await.as_deref(), Some(TOKEN));
    let damaged = store.get(&Key::new("login", &["docs", "shared", "https://as"])).await;
    assert!(matches!(damaged, Err(StoreError::Entry(_))), "{damaged:?}");
}

#[tokio::test]
async fn a_file_of_format_1_is_read_and_becomes_one_of_format_2_with_the_first_write() {
    let folder = tempfile::tempdir().unwrap();
    former(folder.path()).await;
    let store = open(folder.path()).await.unwrap();
    is_whole(&store).await;
    assert_eq!(format(folder.path()), 1, "to read changes nothing");
    let written = store.put(&key("other"), &value("b"), None).await.unwrap();
    assert_eq!((format(folder.path()), written), (2, Version(4)));
    is_whole(&store).await;
    is_whole(&open(folder.path()).await.unwrap()).await;
    let login = Key::new("login", MOVED[0].1);
    assert!(matches!(store.swap(&login, Some(Version(1)), &value("c"), None).await.unwrap(), Swap::Done(_)));
    assert!(store.get(&Key::new("login", MOVED[0].0)).await.unwrap().is_none());
}
