//! Stores that cannot be used as they should be: cut off, of a newer version, not to be written.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use redb::{Database, TableDefinition};
use tempfile::TempDir;
use weir_tests::gateway::{NEEDS_SIGN_IN, UNREACHABLE};
use weir_tests::process::{Process, without_rights};
use weir_tests::terminal::{
    ENVIRONMENT, auth, command, config, echo, ended, failed, lines, sign_in, start, tells, told, works,
};
use weir_tests::wait::until;
use weir_tests::{Authority, Gateway, Stub};

/// What the store keeps of itself.
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("file");

/// A folder that takes its rights back when it goes.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("logins.redb")
    }

    /// The configuration of an upstream `u` whose logins are kept here.
    fn config(&self, upstream: &Stub) -> String {
        config(upstream, "auth = \"oauth\"").replace("logins.redb", self.store().to_str().unwrap())
    }

    /// Nobody may write here any more.
    fn seal(&self) {
        for entry in fs::read_dir(self.0.path()).unwrap() {
            fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o400)).unwrap();
        }
        fs::set_permissions(self.0.path(), Permissions::from_mode(0o500)).unwrap();
    }

    /// As it was.
    fn unseal(&self) {
        fs::set_permissions(self.0.path(), Permissions::from_mode(0o700)).unwrap();
        for entry in fs::read_dir(self.0.path()).unwrap() {
            fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o600)).unwrap();
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.unseal();
    }
}

/// A store with a login in it, its upstream, and who made the login.
async fn signed_in(folder: &Folder, authority: &Authority) -> Stub {
    let upstream = authority.upstream().await;
    let gateway = Gateway::start_with(&folder.config(&upstream), &ENVIRONMENT).await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    upstream
}

/// `weir auth`, to which the rights of files apply though it may be run as root.
fn humbly(gateway: &Gateway, arguments: &[&str]) -> Process {
    Process::start("weir auth", &mut without_rights(&command(gateway, arguments)))
}

#[tokio::test]
async fn a_store_that_cannot_be_written_serves_what_is_in_it() {
    for locked_before in [true, false] {
        let (mut authority, folder) = (Authority::start(3600), Folder::new());
        let upstream = signed_in(&folder, &authority).await;
        if !locked_before {
            // As where the file was brought by itself: a volume, a secret of a cluster.
            fs::remove_file(folder.0.path().join("logins.redb.lock")).unwrap();
        }
        folder.seal();
        let before = fs::read(folder.store()).unwrap();
        let gateway = Gateway::start_without_rights(&folder.config(&upstream), &ENVIRONMENT).await;
        gateway.healthy(&["u"]).await;
        for _ in 0..10 {
            assert!(works(&gateway).await, "a good token is used");
        }
        tells(&gateway, (0, 0)).await;
        let (code, said) = ended(humbly(&gateway, &["status"])).await;
        assert!(code == Some(0) && said.contains("signed in"), "{said}");

        // Somebody who would sign in is told before and not after.
        let (code, said) = ended(humbly(&gateway, &["login", "u", "--no-browser"])).await;
        assert!(code == Some(1) && says_why(&said, &folder.store()), "{said}");
        assert!(!said.contains("To sign in, open"), "{said}");
        let (code, said) = ended(humbly(&gateway, &["logout", "u"])).await;
        assert!(code == Some(1) && says_why(&said, &folder.store()), "{said}");

        // What could not be kept is not fetched: the refresh token is as good as before.
        upstream.hurry(3605);
        for _ in 0..10 {
            let refused = echo(&gateway).await.to_string();
            assert!(says_why(&refused, &folder.store()) && !refused.contains("sign-in"), "{refused}");
        }
        assert_eq!(authority.grants("refresh_token"), 0);
        failed(&gateway, 10).await;
        // Weir itself may have noticed too.
        assert!(told(&gateway).0 < 2 && told(&gateway).1 == 0, "{}", gateway.log());
        assert_eq!(fs::read(folder.store()).unwrap(), before);

        upstream.hurry(0);
        folder.unseal();
        let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
        assert_eq!(code, Some(0), "{said}");
        until("it goes on", || lines(&gateway, "panicked") == 0).await;
        assert!(works(&gateway).await);
    }
}

fn says_why(text: &str, store: &Path) -> bool {
    text.contains(store.to_str().unwrap()) && text.contains("cannot be written")
}

/// Where there is no store yet and none can be made, that concerns nobody until somebody signs in.
#[tokio::test]
async fn a_folder_that_cannot_be_written_is_said_to_who_signs_in() {
    let (authority, folder, other) = (Authority::start(3600), Folder::new(), Stub::start().await);
    let upstream = authority.upstream().await;
    folder.seal();
    let config = folder.config(&upstream) + &other.config("other");
    let gateway = Gateway::start_without_rights(&config, &ENVIRONMENT).await;
    gateway.healthy(&["other"]).await;
    gateway.logs(NEEDS_SIGN_IN).await;
    for _ in 0..3 {
        assert!(echo(&gateway).await.to_string().contains(&gateway.url("/connect")));
    }
    tells(&gateway, (0, 1)).await;
    let (code, said) = ended(humbly(&gateway, &["login", "u", "--no-browser"])).await;
    assert!(code == Some(1) && said.contains("Permission denied"), "{said}");
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 0);
}

/// Cut off at several places, or written by a newer version: one error, and what is there stays as it is.
#[tokio::test]
async fn a_store_that_cannot_be_read_is_one_error_and_left_alone() {
    let (authority, folder) = (Authority::start(3600), Folder::new());
    let upstream = signed_in(&folder, &authority).await;
    let path = folder.store();
    let whole = fs::read(&path).unwrap();
    let newer = {
        let database = Database::open(&path).unwrap();
        let writing = database.begin_write().unwrap();
        writing.open_table(ABOUT).unwrap().insert("format", 7_u32.to_be_bytes().as_slice()).unwrap();
        writing.commit().unwrap();
        drop(database);
        fs::read(&path).unwrap()
    };
    let half = &whole[..whole.len() / 2];
    let contents = [
        (&whole[..0], "is damaged"),
        (&whole[..100], "is damaged"),
        (half, "is damaged"),
        (&newer[..], "has the format 7, and this version of weir reads up to 2; use a newer weir"),
    ];
    for (content, why) in contents {
        fs::write(&path, content).unwrap();
        let gateway = Gateway::start_with(&folder.config(&upstream), &ENVIRONMENT).await;
        gateway.logs(UNREACHABLE).await;
        for _ in 0..10 {
            let answer = echo(&gateway).await.to_string();
            assert!(answer.contains(why), "{answer}");
        }
        failed(&gateway, 10).await;
        tells(&gateway, (1, 0)).await;
        for arguments in [&["login", "u", "--no-browser"][..], &["status"], &["logout", "u"], &["list"]] {
            let (code, said) = ended(auth(&gateway, arguments)).await;
            assert!(code == Some(1) && said.contains(why) && said.lines().count() < 4, "{arguments:?}: {said}");
        }
        assert_eq!(fs::read(&path).unwrap(), content, "it was written to");
    }
}

/// What happens to the file of a running gateway stops no call with a token that it has.
#[tokio::test]
async fn a_store_that_is_cut_off_while_it_is_in_use_stops_no_call() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    let path = gateway.directory().join("logins.redb");
    let whole = fs::read(&path).unwrap();
    for content in [&whole[..whole.len() / 2], &whole[..0], &whole[..]] {
        fs::write(&path, content).unwrap();
        // Longer than it takes to look whether the file has changed.
        let looked = tokio::time::Instant::now() + std::time::Duration::from_secs(2);
        while tokio::time::Instant::now() < looked {
            assert!(works(&gateway).await, "{}", gateway.log());
        }
    }
    tells(&gateway, (0, 1)).await;
}
