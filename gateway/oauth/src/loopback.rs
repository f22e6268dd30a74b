//! Where a user comes back to who signed in from a terminal: a port of this machine, for one visit (RFC 8252 §7.3).
//!
//! Anybody on the machine, and any page in the browser, can knock at it. Only the visit with the right state ends the
//! waiting; all others get an answer and change nothing.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use weir_store::Secret;

use crate::{Callback, PendingSignIn, Redirect, authorize::same};

/// A port of this machine that waits for a user.
#[derive(Debug)]
pub struct Loopback {
    listener: TcpListener,
    redirect: Redirect,
}

/// Below which users come back, each to the address of one issuer.
const PATH: &str = "/oauth/callback";
/// Connections at the same time.
const MAX_CONNECTIONS: usize = 32;
/// For the head of a request; a code may be long.
const MAX_HEAD: u64 = 32 * 1024;
/// For one request.
const PATIENCE: Duration = Duration::from_secs(10);

impl Loopback {
    /// The port that users come back to, if it is free: a server that knows Weir's address with a port in it need not be told
    /// another one each time.
    pub const PORT: u16 = 41_789;

    /// Listens on a port of 127.0.0.1; on a free one for 0, which a server that registered this address without a port
    /// must accept (RFC 8252 §7.3).
    ///
    /// # Errors
    /// If the port is taken.
    pub async fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        Ok(Self { redirect: Self::redirect_at(listener.local_addr()?.port()), listener })
    }

    /// The address to come back to at a port of this machine.
    pub fn redirect_at(port: u16) -> Redirect {
        Redirect::Below(format!("http://127.0.0.1:{port}{PATH}"))
    }

    pub const fn redirect(&self) -> &Redirect {
        &self.redirect
    }

    /// Waits for the visit that ends this sign-in. Waits for ever: the caller sets the limit.
    ///
    /// # Errors
    /// If the port cannot be listened on any more.
    pub async fn wait(self, sign_in: &PendingSignIn) -> io::Result<Callback> {
        let (found, mut ended) = mpsc::channel(1);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                Some(callback) = ended.recv() => return Ok(callback),
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                    let (stream, _) = accepted?;
                    let expected = (sign_in.state().clone(), sign_in.what().redirect.clone());
                    let found = found.clone();
                    connections.spawn(async move {
                        if let Ok(Ok(Some(callback))) = timeout(PATIENCE, visit(stream, &expected)).await {
                            // The second of two is as good as none.
                            let _ = found.try_send(callback);
                        }
                    });
                }
            }
        }
    }
}

/// Answers one request; says what it brought, if it has the right state.
async fn visit(stream: TcpStream, (state, redirect): &(Secret, String)) -> io::Result<Option<Callback>> {
    let mut stream = BufReader::new(stream);
    let mut head = (&mut stream).take(MAX_HEAD);
    let mut first = String::new();
    head.read_line(&mut first).await?;
    let mut line = String::new();
    while head.read_line(&mut line).await? > 0 && !line.trim().is_empty() {
        line.clear();
    }
    let mut words = first.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let callback = Callback::parse(target);
    let known = callback.state.as_ref().is_some_and(|given| same(given.expose(), state.expose()));
    let ours = target.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
    let (status, text, callback) = match method {
        "GET" if !ours => ("404 Not Found", "There is nothing here.", None),
        "GET" if !known => ("400 Bad Request", "This link does not belong to the sign-in that waits here.", None),
        "GET" if !callback.is_at(redirect) => (
            "400 Bad Request",
            "Another server than the one asked sent you here. The sign-in was stopped; go back to the terminal.",
            Some(callback),
        ),
        "GET" if callback.is_refusal() => {
            ("200 OK", "The sign-in was refused. You can close this page.", Some(callback))
        }
        "GET" => {
            ("200 OK", "Weir has what it needs. You can close this page and go back to the terminal.", Some(callback))
        }
        _ => ("405 Method Not Allowed", "There is nothing here.", None),
    };
    stream.write_all(page(status, text).as_bytes()).await?;
    stream.shutdown().await?;
    Ok(callback)
}

/// A page that loads nothing, leaves nothing behind, and tells nobody where the user was.
fn page(status: &str, text: &str) -> String {
    let body = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Weir</title><p>{text}</p></html>\n"
    );
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\
         cache-control: no-store\r\nreferrer-policy: no-referrer\r\ncontent-security-policy: default-src 'none'\r\n\
         x-content-type-options: nosniff\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests;
