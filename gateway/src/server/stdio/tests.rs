#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    lines::{InputLine, LineCutter},
    out,
};

const LIMIT: usize = 10_000;

fn text(text: impl AsRef<[u8]>) -> InputLine {
    InputLine::Text(Bytes::copy_from_slice(text.as_ref()))
}

async fn lines(chunks: &[&[u8]]) -> Vec<InputLine> {
    let (mut sender, receiver) = tokio::io::duplex(1 << 20);
    let mut lines = LineCutter::new(receiver, LIMIT);
    let mut all = Vec::new();
    for chunk in chunks {
        sender.write_all(chunk).await.unwrap();
        // Reading as far as possible after each chunk: how the input is cut must not matter, nor that a read is dropped.
        loop {
            tokio::select! {
                biased;
                line = lines.next() => all.extend(line),
                () = std::future::ready(()) => break,
            }
        }
    }
    drop(sender);
    while let Some(line) = lines.next().await {
        all.push(line);
    }
    all
}

#[tokio::test]
async fn lines_are_the_same_however_they_are_cut() {
    let long = "x".repeat(LIMIT);
    let longer = "y".repeat(LIMIT + 1);
    let input = format!("a\r\n\n  \t \nb c \n{long}\n{longer}\nd\n{longer}{longer}\r\n\u{e4}\nlast");
    let expected = [
        text("a"),
        text("b c"),
        text(&long),
        InputLine::TooLong,
        text("d"),
        InputLine::TooLong,
        text("\u{e4}"),
        text("last"),
    ];
    for size in [1, 7, 4096, 16 * 1024, input.len()] {
        let chunks: Vec<&[u8]> = input.as_bytes().chunks(size).collect();
        assert_eq!(lines(&chunks).await, expected, "in chunks of {size}");
    }
    assert_eq!(lines(&[longer.as_bytes()]).await, [InputLine::TooLong], "a last line may be too long as well");
    assert_eq!(lines(&[b"\n\n"]).await, []);
}

#[tokio::test]
async fn whoever_is_not_read_waits() {
    let (out, waiting) = out::channel();
    let (output, mut input) = tokio::io::duplex(64);
    let writer = tokio::spawn(out::write(output, waiting));
    let line = Bytes::from(vec![b'z'; 1024]);
    let mut said = 0;
    while tokio::time::timeout(std::time::Duration::from_millis(200), out.say(line.clone())).await.is_ok() {
        said += 1;
        assert!(said < 1000, "nobody reads, and still there is room");
    }
    drop(out);
    let mut all = Vec::new();
    input.read_to_end(&mut all).await.unwrap();
    writer.await.unwrap().unwrap();
    assert_eq!(all.len(), said * 1025, "what was left is written, and nothing that was not");
}

#[tokio::test]
async fn a_closed_output_is_an_error() {
    let (out, waiting) = out::channel();
    let (output, input) = tokio::io::duplex(64);
    drop(input);
    let writer = tokio::spawn(out::write(output, waiting));
    out.say(Bytes::from_static(b"{}")).await;
    assert!(writer.await.unwrap().is_err());
    // Saying more does not hang.
    out.say(Bytes::from_static(b"{}")).await;
}
