//! The ends of a process, its own and ours: everybody learns of it, and nothing stays behind.

use std::time::Instant;

use super::super::write_queue::WriteQueue;
use super::super::{pipe, too_long};
use super::*;

fn exit_code(error: &SendError) -> Option<i32> {
    let SendError::BrokenOff(how) = error else { return None };
    how.split_once("exit status: ")?.1.split_once(')')?.0.parse().ok()
}

/// A process that has come to read its input, where what follows is measured in time.
async fn awake(command: &StdioCommand) -> Process {
    let process = start(command).await;
    all(&mut ask(&process, "echo", &json!({"text": 0})).await).await.unwrap();
    process
}

#[tokio::test]
async fn an_exit_ends_every_exchange_at_once() {
    let process = awake(&peer(&[])).await;
    let mut waiting = ask(&process, "say", &json!({"lines": []})).await;
    let mut fatal = ask(&process, "exit", &json!({"code": 3})).await;
    let began = Instant::now();
    assert_eq!(exit_code(&next(&mut fatal).await.unwrap_err()), Some(3));
    assert_eq!(exit_code(&next(&mut waiting).await.unwrap_err()), Some(3));
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(!process.alive());
    assert_eq!(exit_code(&refusal(&process).await), Some(3));
    let notice = parsed(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    assert_eq!(exit_code(&process.notify(&notice).await.unwrap_err()), Some(3));
    stop(&process).await;
}

#[tokio::test]
async fn an_answer_written_just_before_the_exit_arrives() {
    let process = start(&peer(&[])).await;
    let mut exchange = ask(&process, "exit", &json!({"code": 0, "answer": true})).await;
    assert_eq!(result(&mut exchange).await, Ok(json!("last words")));
    assert_eq!(exit_code(&refusal(&process).await), Some(0));
}

#[tokio::test]
async fn a_program_that_exits_at_once_says_so_to_the_first_request() {
    let process = start(&command("sh", &["-c", "echo bad option >&2; exit 64"])).await;
    assert_eq!(exit_code(&refusal(&process).await), Some(64));
}

#[tokio::test]
async fn a_crash_names_the_signal() {
    use std::os::unix::process::ExitStatusExt;
    let process = start(&peer(&[])).await;
    let error = next(&mut ask(&process, "die", &json!({})).await).await.unwrap_err();
    let Some(StdioError::Exited(status)) = process.end() else { panic!("{error}") };
    assert_eq!(status.signal(), Some(9));
    assert_eq!(error, StdioError::Exited(status).into());
}

#[tokio::test]
async fn a_closed_pipe_ends_the_exchanges_and_the_process() {
    let process = start(&peer(&[])).await;
    let mut exchange = ask(&process, "close", &json!({"fd": 1})).await;
    assert_eq!(next(&mut exchange).await, Err(StdioError::Closed.into()));
    assert!(!process.alive());
    stop(&process).await;

    let process = start(&peer(&[])).await;
    let mut exchange = ask(&process, "close", &json!({"fd": 0})).await;
    // Until the process has come to close its input, notifications still find room.
    let notice = parsed(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    while process.notify(&notice).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(next(&mut exchange).await, Err(StdioError::Closed.into()));
    stop(&process).await;
}

#[tokio::test]
async fn a_line_that_is_too_long_fails_its_own_request_and_no_other() {
    let process = start(&peer(&[])).await;
    let mut waiting = ask(&process, "say", &json!({"lines": []})).await;
    for (method, params) in [("big", json!({"bytes": LIMIT})), ("tail", json!({"bytes": LIMIT}))] {
        let mut exchange = ask(&process, method, &params).await;
        assert_eq!(next(&mut exchange).await, Err(too_long(LIMIT)), "{method}");
    }
    assert!(too_long(LIMIT).to_string().contains("`limits.message`"));
    // Nothing says whose this one is. Of two that run, none is guessed.
    let mut exchange = ask(&process, "endless", &json!({"mib": 17})).await;
    let mut other = ask(&process, "echo", &json!({"text": 1})).await;
    assert_eq!(next(&mut other).await, Err(too_long(LIMIT)), "its answer is the end of that line");
    assert_eq!(result(&mut ask(&process, "echo", &json!({"text": 2})).await).await, Ok(json!(2)));
    for still in [&mut waiting, &mut exchange] {
        assert!(timeout(Duration::ZERO, still.next()).await.is_err(), "it still waits for its answer");
    }
    assert!(process.alive());
    stop(&process).await;
}

#[tokio::test]
async fn a_line_that_is_too_long_fails_the_only_request_that_runs() {
    let process = start(&peer(&[])).await;
    let mut exchange = ask(&process, "endless", &json!({"mib": 17, "line": true})).await;
    assert_eq!(next(&mut exchange).await, Err(too_long(LIMIT)));
    assert_eq!(result(&mut ask(&process, "echo", &json!({"text": 2})).await).await, Ok(json!(2)));
    stop(&process).await;
}

#[tokio::test]
async fn answers_to_a_server_that_asks_and_does_not_read_are_bounded() {
    let (outbox, mut lines) = WriteQueue::new();
    let answer = Bytes::from(vec![b'x'; 1024]);
    let taken = (0..100_000).filter(|_| outbox.offer(answer.clone())).count();
    assert!(taken * answer.len() <= 16 * 1024 * 1024, "{taken} answers wait");
    lines.next().await.unwrap();
    assert!(outbox.offer(answer), "what has been written makes room");
}

#[tokio::test]
async fn a_flood_on_stderr_disturbs_nobody() {
    let process = start(&peer(&[])).await;
    let mut exchange = ask(&process, "complain", &json!({"count": 300_000})).await;
    assert_eq!(result(&mut exchange).await, Ok(json!("done")));
    stop(&process).await;
}

#[tokio::test]
async fn an_input_that_is_not_read_is_given_up() {
    let (outbox, lines) = WriteQueue::new();
    let (stdin, _unread) = tokio::io::duplex(16);
    outbox.send(Bytes::from_static(&[b' '; 64])).await.unwrap();
    let end = pipe::write_lines(stdin, lines, Duration::from_millis(20), || ()).await;
    assert_eq!(end, StdioError::Stuck);
    assert!(outbox.send(Bytes::from_static(b"{}")).await.is_err());
}

#[tokio::test]
async fn stop_lets_a_server_end_by_itself() {
    let process = awake(&peer(&[])).await;
    let mut exchange = ask(&process, "say", &json!({"lines": []})).await;
    let began = Instant::now();
    let (first, second) = (process.clone(), process.clone());
    tokio::join!(stop(&first), stop(&second));
    assert!(began.elapsed() < Duration::from_millis(1900), "it was waited for too long");
    assert_eq!(next(&mut exchange).await, Err(StdioError::Stopped.into()));
    assert_eq!(refusal(&process).await, StdioError::Stopped.into());
    stop(&process).await;
}

#[tokio::test]
async fn stop_kills_what_ignores_everything_and_what_it_started() {
    let process = start(&peer(&["deaf"])).await;
    let pids = result(&mut ask(&process, "fork", &json!({})).await).await.unwrap();
    let began = Instant::now();
    stop(&process).await;
    assert!(began.elapsed() >= Duration::from_secs(4), "no grace was given");
    for pid in pids.as_array().unwrap() {
        gone(pid.as_i64().unwrap()).await;
    }
}

#[tokio::test]
async fn an_exit_takes_the_rest_of_the_group_along() {
    let process = start(&peer(&[])).await;
    let pids = result(&mut ask(&process, "fork", &json!({})).await).await.unwrap();
    // The grandchild holds the pipes open.
    let began = Instant::now();
    let mut exchange = ask(&process, "exit", &json!({"code": 0})).await;
    assert_eq!(exit_code(&next(&mut exchange).await.unwrap_err()), Some(0));
    assert!(began.elapsed() < Duration::from_secs(10));
    gone(pids[1].as_i64().unwrap()).await;
}

#[tokio::test]
async fn the_last_handle_takes_the_process_along() {
    let process = start(&peer(&[])).await;
    let mut exchange = ask(&process, "fork", &json!({})).await;
    let pids = result(&mut exchange).await.unwrap();
    let mut open = ask(&process, "say", &json!({"lines": []})).await;
    let other = process.clone();
    drop(process);
    assert!(other.alive());
    drop(other);
    assert_eq!(next(&mut open).await, Err(StdioError::Stopped.into()));
    for pid in pids.as_array().unwrap() {
        gone(pid.as_i64().unwrap()).await;
    }
}

#[test]
fn the_end_of_the_runtime_takes_the_process_along() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (process, pids) = runtime.block_on(async {
        let process = start(&peer(&["deaf"])).await;
        let pids = result(&mut ask(&process, "fork", &json!({})).await).await.unwrap();
        (process, pids)
    });
    drop(runtime);
    assert!(!process.alive());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for pid in pids.as_array().unwrap() {
            gone(pid.as_i64().unwrap()).await;
        }
        assert_eq!(refusal(&process).await, StdioError::Stopped.into());
        stop(&process).await;
    });
}
