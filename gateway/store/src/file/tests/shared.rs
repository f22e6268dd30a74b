//! One file and several processes, some of which are killed.

use super::*;

const FOLDER: &str = "WEIR_STORE_TEST_FOLDER";
const ROUNDS: &str = "WEIR_STORE_TEST_ROUNDS";
const HOLDER: &str = "WEIR_STORE_TEST_HOLDER";
const HOUR: Duration = Duration::from_secs(3600);

/// What the other processes do: count up in one entry. Does nothing unless it is started as one of them.
#[tokio::test]
async fn child() {
    let (Ok(folder), Ok(rounds)) = (std::env::var(FOLDER), std::env::var(ROUNDS)) else { return };
    let store = open(Path::new(&folder)).await.unwrap();
    for _ in 0..rounds.parse::<u32>().unwrap() {
        count(&store).await;
    }
}

async fn count(store: &FileStore) {
    loop {
        let entry = store.get(&key("count")).await.unwrap();
        let found = entry.as_ref().map_or(0, |entry| number(&entry.value.secret));
        let next = value(&format!("{} {}", found + 1, "x".repeat(3000)));
        let expected = entry.map(|entry| entry.version);
        if matches!(store.swap(&key("count"), expected, &next, None).await.unwrap(), Swap::Done(_)) {
            return;
        }
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().split(' ').next().unwrap().parse().unwrap()
}

fn start(folder: &Path, rounds: u32) -> Child {
    child_process("child").env(FOLDER, folder).env(ROUNDS, rounds.to_string()).spawn().unwrap()
}

/// One of the tests here, in a process of its own.
fn child_process(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("file::tests::shared::{test}"), "--nocapture"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[tokio::test]
async fn several_processes_create_and_change_it_as_one() {
    let folder = tempfile::tempdir().unwrap();
    for mut child in (0..4).map(|_| start(folder.path(), 15)).collect::<Vec<_>>() {
        let status = child.wait().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(status.success(), "{said}");
    }
    let store = open(folder.path()).await.unwrap();
    assert_eq!(number(&store.get(&key("count")).await.unwrap().unwrap().value.secret), 60);
}

#[tokio::test]
async fn a_process_that_is_killed_takes_nothing_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await.unwrap();
    store.put(&key("login"), &value(TOKEN), None).await.unwrap();
    let mut last = 0;
    for _ in 0..12 {
        let mut child = start(folder.path(), 1_000_000);
        // Killed in whatever it does after it has written again at least once.
        let now = loop {
            let entry = store.get(&key("count")).await.unwrap();
            let now = entry.map_or(0, |entry| number(&entry.value.secret));
            if now > last {
                break now;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        count(&store).await;
        let after = number(&store.get(&key("count")).await.unwrap().unwrap().value.secret);
        assert!(after > now, "{after} after {now}");
        assert_eq!(text(&store, &key("login")).await.as_deref(), Some(TOKEN));
        last = after;
    }
}

/// What another process does: hold a lease, until it is killed. Does nothing unless it is started as that.
#[tokio::test]
async fn holder() {
    let Ok(folder) = std::env::var(HOLDER) else { return };
    let store = open(Path::new(&folder)).await.unwrap();
    let _held = store.lease(&key("lease"), HOUR).await.unwrap().unwrap();
    store.put(&key("held"), &value(TOKEN), None).await.unwrap();
    std::future::pending().await
}

#[tokio::test]
async fn a_lease_ends_with_the_process_that_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await.unwrap();
    let mut child = tokio::process::Command::from(child_process("holder"));
    let mut child = child.env(HOLDER, folder.path()).kill_on_drop(true).spawn().unwrap();
    while store.get(&key("held")).await.unwrap().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it held anything");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(store.lease(&key("lease"), HOUR).await.unwrap().is_none(), "its holder lives");
    child.kill().await.unwrap();
    // Nobody holds it any more.
    let held = store.lease(&key("lease"), HOUR).await.unwrap().unwrap();
    assert!(open(folder.path()).await.unwrap().lease(&key("lease"), HOUR).await.unwrap().is_none());
    store.release(held).await.unwrap();
    assert_eq!(left(folder.path()), Vec::<String>::new());
}

/// A process that was killed and whose lease nobody wanted in its time leaves nothing for good either.
#[tokio::test]
async fn what_shows_that_a_lease_is_held_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await.unwrap();
    let held = store.lease(&key("lease"), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(left(folder.path()).len(), 1);
    store.put(&key("other"), &value(TOKEN), None).await.unwrap();
    assert_eq!(left(folder.path()), Vec::<String>::new());
    store.release(held).await.unwrap();
}

/// Files that show that a lease is held.
fn left(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    files.filter(|name| name.contains("lease")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_of_one_process_count_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = store.clone();
        tasks.spawn(async move { count(&store).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(number(&store.get(&key("count")).await.unwrap().unwrap().value.secret), 20);
}
