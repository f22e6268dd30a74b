//! Standard input and output in front, for hosts that start a program rather than call a URL: one client, one message
//! for each line.
//!
//! It is one more front of the same proxy, so policies, fallback and translation are those of HTTP. Requests run side
//! by side and are answered by id; what the server asks of its client goes out and comes back the same way. Whatever
//! ends it, each request that still runs gets an answer.
//!
//! Memory is bounded by what may run and what may wait to be written ([`out`]): while nobody reads the output, answers
//! stay with their upstreams and no further line is read.

mod answers;
mod client;
mod lines;
mod out;
mod over_http;

#[cfg(test)]
mod tests;

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinHandle,
};

use crate::{proxy::Proxy, session::Endpoint};

use client::StdioClient;
use lines::{InputLine, LineCutter};

/// How long requests that run may go on after the input has ended: whoever pipes requests in wants their answers, and
/// a host that closes the input sends SIGTERM two seconds later.
const GRACE: Duration = Duration::from_millis(1500);

/// How long the last words may take: answers to what still runs, and the end of the session at the upstream.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// What the one client may take.
#[derive(Clone, Copy, Debug)]
pub struct StdioLimits {
    /// The longest line, in bytes.
    pub line: usize,
    /// How long a request may take, those that have no end excepted.
    pub request: Duration,
}

/// What the front has to do next.
enum StdioEvent {
    Line(InputLine),
    Ended(client::MessageEnd),
}

/// Serves one client at `endpoint` until its input ends or `stop` resolves.
///
/// # Errors
///
/// When nobody can read the output any more.
pub async fn serve<I, O>(
    proxy: Arc<Proxy>,
    endpoint: Endpoint,
    (input, output): (I, O),
    limits: StdioLimits,
    stop: impl Future<Output = ()>,
) -> io::Result<()>
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin + Send + 'static,
{
    let (out, waiting) = out::channel();
    let mut writer = tokio::spawn(out::write(output, waiting));
    let mut client = StdioClient::new(proxy, endpoint, limits, out);
    let mut lines = LineCutter::new(input, limits.line);
    let served = async {
        loop {
            let event = tokio::select! {
                Some(ended) = client.ended() => StdioEvent::Ended(ended),
                line = lines.next() => match line {
                    Some(line) => StdioEvent::Line(line),
                    None => break,
                },
            };
            match event {
                StdioEvent::Line(line) => client.take(line).await,
                StdioEvent::Ended(ended) => client.settle(ended).await,
            }
        }
        // What it still waits for is answered in `close`.
        drop(tokio::time::timeout(GRACE, client.finish()).await);
    };
    let broken = tokio::select! {
        biased;
        () = stop => None,
        ended = &mut writer => Some(ended),
        () = served => None,
    };
    // If nobody reads, nobody misses it.
    drop(tokio::time::timeout(CLOSE_LIMIT, client.close()).await);
    match broken {
        Some(ended) => ended.unwrap_or_else(|why| Err(io::Error::other(why))),
        None => written(writer).await,
    }
}

/// Waits until the last line is out, unless nobody reads it.
async fn written(mut writer: JoinHandle<io::Result<()>>) -> io::Result<()> {
    match tokio::time::timeout(CLOSE_LIMIT, &mut writer).await {
        Ok(ended) => ended.unwrap_or_else(|why| Err(io::Error::other(why))),
        Err(_) => {
            writer.abort();
            Ok(())
        }
    }
}
