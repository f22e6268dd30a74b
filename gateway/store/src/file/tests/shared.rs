//! One file and several processes, some of which are killed.

use super::*;

const FOLDER: &str = "WEIR_STORE_TEST_FOLDER";
const ROUNDS: &str = "WEIR_STORE_TEST_ROUNDS";

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
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "file::tests::shared::child", "--nocapture"])
        .env(FOLDER, folder)
        .env(ROUNDS, rounds.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
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
