//! HTTP/1.1 as a test wants it: every header under control, each exchange on a connection of its own, and a body that
//! can be read as it arrives or abandoned.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::AbortHandle;

use crate::events::Events;
use crate::wait::within;

/// A request that is not yet sent.
#[derive(Clone, Debug)]
pub struct Request {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Request {
    /// A GET without headers but `Host`.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// Any method, without headers but `Host`.
    ///
    /// # Panics
    /// When `method` is not a token.
    pub fn new(method: &str, path: &str) -> Self {
        let method = method.parse().expect("a method is a token");
        Self { method, path: path.to_owned(), headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// A POST of `body` with the headers that every MCP client sends.
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        Self::new("POST", path)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(body)
    }

    /// Sets a header, in place of one of the same name.
    ///
    /// # Panics
    /// When the name or the value cannot go over the wire.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().expect("a header name is a token");
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header value has no line breaks");
        self.headers.insert(name, value);
        self
    }

    /// Sets a header beside those of the same name.
    ///
    /// # Panics
    /// As [`header`](Self::header).
    #[must_use]
    pub fn also(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().expect("a header name is a token");
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header value has no line breaks");
        self.headers.append(name, value);
        self
    }

    /// Takes a header away.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it on a connection of its own and awaits the head of the answer.
    ///
    /// # Panics
    /// When there is no connection, no answer or no HTTP in it.
    pub async fn send(self, address: SocketAddr) -> Response {
        self.send_from(Ipv4Addr::LOCALHOST, address).await
    }

    /// The same from another address of this machine: all of 127.0.0.0/8 are.
    ///
    /// # Panics
    /// As [`send`](Self::send).
    pub async fn send_from(self, source: Ipv4Addr, address: SocketAddr) -> Response {
        let what = format!("the answer to {} {}", self.method, self.path);
        match within(&what, self.try_send_from(source, address)).await {
            Ok(response) => response,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Sends it on a connection of its own and awaits the head of the answer.
    ///
    /// # Errors
    /// When there is no connection, or it breaks before the head of an answer.
    pub async fn try_send(self, address: SocketAddr) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
        self.try_send_from(Ipv4Addr::LOCALHOST, address).await
    }

    async fn try_send_from(
        self,
        source: Ipv4Addr,
        address: SocketAddr,
    ) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
        let stream = if source == Ipv4Addr::LOCALHOST {
            TcpStream::connect(address).await?
        } else {
            let socket = TcpSocket::new_v4()?;
            socket.bind((source, 0).into())?;
            socket.connect(address).await?
        };
        stream.set_nodelay(true)?;
        self.try_send_over(stream).await
    }

    /// Sends it as the only request of a connection, and awaits the head of the answer.
    ///
    /// # Panics
    /// As [`send`](Self::send).
    pub async fn send_over(self, stream: TcpStream) -> Response {
        let what = format!("the answer to {} {}", self.method, self.path);
        match within(&what, self.try_send_over(stream)).await {
            Ok(response) => response,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    async fn try_send_over(self, stream: TcpStream) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
        let address = stream.peer_addr()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = Connection(tokio::spawn(async move { drop(connection.await) }).abort_handle());

        let mut request = hyper::Request::new(Full::new(self.body));
        *request.method_mut() = self.method;
        *request.uri_mut() = self.path.parse()?;
        *request.headers_mut() = self.headers;
        if !request.headers().contains_key("host") {
            request.headers_mut().insert("host", HeaderValue::from_str(&address.to_string())?);
        }
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok(Response { status: head.status.as_u16(), headers: head.headers, body, connection })
    }
}

/// The head of an answer, with the body still to come. Dropping it closes the connection.
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
    connection: Connection,
}

impl Response {
    /// The value of a header, if it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether the body is a stream of events.
    pub fn is_stream(&self) -> bool {
        self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// The whole body.
    ///
    /// # Panics
    /// When it breaks off or does not end.
    pub async fn bytes(self) -> Bytes {
        match within("the end of a body", self.body.collect()).await {
            Ok(body) => body.to_bytes(),
            Err(error) => panic!("the body broke off: {error}"),
        }
    }

    /// The whole body, if it comes to an end.
    pub async fn whole(self) -> Option<Bytes> {
        Some(self.body.collect().await.ok()?.to_bytes())
    }

    /// The whole body as JSON.
    ///
    /// # Panics
    /// When it is not JSON.
    pub async fn json(self) -> Value {
        let body = self.bytes().await;
        match serde_json::from_slice(&body) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}): {}", String::from_utf8_lossy(&body)),
        }
    }

    /// The body as events, one by one as they arrive.
    ///
    /// # Panics
    /// When it is not a stream of events.
    pub fn events(self) -> Events {
        assert!(self.is_stream(), "not a stream of events but {:?} with status {}", self.headers, self.status);
        Events::new(self.body, self.connection)
    }

    /// The JSON-RPC messages in the body, whether it is one message, an array of them or a stream that ends.
    ///
    /// # Panics
    /// When it is none of them.
    pub async fn messages(self) -> Vec<Value> {
        if self.is_stream() {
            return self.events().messages().await;
        }
        match self.json().await {
            Value::Array(messages) => messages,
            message => vec![message],
        }
    }
}

/// Closes a connection on drop.
pub(crate) struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}
