//! The load generator: some connections, each sending its next request when it has the answer to the last.
//!
//! It lives on one thread, so that counting and timing need no lock that anyone waits for and the second core is left to what
//! is measured. Connections and sessions are opened before the clock starts.

use crate::messages::{self, Era, Request, Target, Workload};
use crate::wire::{Inbox, Message, WireError};
use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Longest that one answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// One measurement to make.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) target: Target,
    pub(crate) era: Era,
    pub(crate) workload: Workload,
    pub(crate) connections: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

/// What one measurement found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    /// Answers each second.
    pub(crate) rate: f64,
    /// Median time to an answer, microseconds.
    pub(crate) p50: f64,
    /// Time that 99 of 100 answers stayed under, microseconds.
    pub(crate) p99: f64,
    /// CPU of the process under test for each answer, in microseconds, or its instructions.
    pub(crate) cpu: f64,
    /// All answers, those outside the window included.
    pub(crate) answers: u64,
}

/// Measures `load`; `cpu` tells what the process under test has used so far, in microseconds or instructions.
pub(crate) async fn measure(load: &Load, cpu: impl Fn() -> Result<f64>) -> Result<Figures> {
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        clients.push(Client::open(&load.target, load.era, load.workload).await?);
    }
    let shared = Arc::new(Shared::new()?);
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(client.run(Arc::clone(&shared)));
    }
    pause(&mut running, load.warm_up).await?;
    let (cpu_before, start) = (cpu()?, Instant::now());
    shared.phase.store(MEASURE, Ordering::Relaxed);
    pause(&mut running, load.window).await?;
    shared.phase.store(STOP, Ordering::Relaxed);
    let (elapsed, cpu_used) = (start.elapsed(), cpu()? - cpu_before);
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let times = shared.times.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(!times.is_empty(), "no answer within {:?}", load.window);
    let calls = times.len() as f64;
    Ok(Figures {
        rate: calls / elapsed.as_secs_f64(),
        p50: times.value_at_quantile(0.5) as f64 / 1000.0,
        p99: times.value_at_quantile(0.99) as f64 / 1000.0,
        cpu: cpu_used / calls,
        answers: shared.answers.load(Ordering::Relaxed),
    })
}

/// Waits for `time`, or less if a client ends, which before the end only a failed one does.
async fn pause(running: &mut JoinSet<Result<()>>, time: Duration) -> Result<()> {
    tokio::select! {
        () = tokio::time::sleep(time) => Ok(()),
        Some(ended) = running.join_next() => {
            ended??;
            Err(anyhow!("a client stopped too early"))
        }
    }
}

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

struct Shared {
    phase: AtomicU8,
    /// Nanoseconds to each answer.
    times: Mutex<Histogram<u64>>,
    answers: AtomicU64,
}

impl Shared {
    fn new() -> Result<Self> {
        let times = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        Ok(Self { phase: AtomicU8::new(WARM_UP), times: Mutex::new(times), answers: AtomicU64::new(0) })
    }
}

/// A connection with a session on it, where the era has sessions.
pub(crate) struct Client {
    connection: Connection,
    target: Target,
    session: Option<String>,
    workload: Workload,
    request: Request,
}

impl Client {
    /// Connects, initializes if the era asks for it, makes one call and reads its answer in full.
    pub(crate) async fn open(target: &Target, era: Era, workload: Workload) -> Result<Self> {
        /// Of two gateways each has half of the sessions, and half of the calls of each session, as behind a balancer that
        /// keeps nobody anywhere.
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let gateway = |number: usize| target.other.filter(|_| number % 2 == 1).unwrap_or(target.address);
        let mut connection = Connection::open_at(gateway(number)).await?;
        let session = match era {
            Era::Legacy => connection.initialize(target).await?,
            Era::Modern => None,
        };
        if target.other.is_some() {
            connection = Connection::open_at(gateway(number / 2)).await?;
        }
        let request = messages::request(target, era, workload, session.as_deref());
        let mut client = Self { connection, target: target.clone(), session, workload, request };
        let answer = client.connection.exchange(client.request.next()).await?;
        messages::check_fully(workload, client.request.id(), &answer)?;
        Ok(client)
    }

    async fn run(mut self, shared: Arc<Shared>) -> Result<()> {
        let mut sent = Instant::now();
        let mut counts = false;
        loop {
            let answer = self.connection.exchange(self.request.next()).await?;
            messages::check(self.workload, self.request.id(), &answer)?;
            shared.answers.fetch_add(1, Ordering::Relaxed);
            let now = Instant::now();
            let phase = shared.phase.load(Ordering::Relaxed);
            if phase == STOP {
                return self.close().await;
            }
            if counts {
                let nanos = u64::try_from((now - sent).as_nanos()).unwrap_or(u64::MAX);
                shared.times.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos);
            }
            counts = phase == MEASURE;
            sent = now;
        }
    }

    /// Ends the session, so that what is measured next does not carry it along.
    pub(crate) async fn close(mut self) -> Result<()> {
        if let Some(session) = &self.session {
            let answer = self.connection.exchange(&messages::delete(&self.target, session)).await?;
            ensure!((200..300).contains(&answer.status()), "DELETE answered {}", answer.status());
        }
        Ok(())
    }
}

/// A connection that is kept from call to call.
pub(crate) struct Connection {
    stream: TcpStream,
    inbox: Inbox,
}

impl Connection {
    pub(crate) async fn open(target: &Target) -> Result<Self> {
        Self::open_at(target.address).await
    }

    pub(crate) async fn open_at(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, inbox: Inbox::default() })
    }

    /// A connection from the address `127.0.0.<from>`.
    pub(crate) async fn open_from(from: u8, to: SocketAddr) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, from], 0)))?;
        let stream = socket.connect(to).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, inbox: Inbox::default() })
    }

    /// What is at a path, as text.
    pub(crate) async fn get(&mut self, path: &str) -> Result<String> {
        let answer = self.exchange(format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").as_bytes()).await?;
        ensure!(answer.status() == 200, "{path} answered {}", answer.status());
        Ok(String::from_utf8(answer.body.to_vec())?)
    }

    /// Opens a legacy session and returns its id, if it has one.
    pub(crate) async fn initialize(&mut self, target: &Target) -> Result<Option<String>> {
        let answer = self.exchange(messages::initialize(target).next()).await?;
        ensure!(answer.status() == 200, "initialize answered {}: {}", answer.status(), text(answer.body));
        let session = answer.header("mcp-session-id").map(text);
        let answer = self.exchange(messages::initialized(target, session.as_deref()).next()).await?;
        ensure!(answer.status() == 202, "notifications/initialized answered {}", answer.status());
        Ok(session)
    }

    /// Opens the stream of notifications of a legacy session. Nothing else can be asked for on this connection.
    pub(crate) async fn listen(&mut self, target: &Target, session: Option<&str>) -> Result<()> {
        self.stream.write_all(&messages::listen(target, session)).await?;
        let mut head = [0; 12];
        tokio::time::timeout(ANSWER_LIMIT, self.stream.read_exact(&mut head)).await??;
        ensure!(head == *b"HTTP/1.1 200", "GET answered {}", text(&head));
        Ok(())
    }

    /// Makes one call and reads its answer in full.
    pub(crate) async fn call(
        &mut self,
        target: &Target,
        era: Era,
        workload: Workload,
        session: Option<&str>,
    ) -> Result<()> {
        let mut request = messages::request(target, era, workload, session);
        let answer = self.exchange(request.next()).await?;
        Ok(messages::check_fully(workload, request.id(), &answer)?)
    }

    /// Whether the other end has left it open.
    pub(crate) fn is_open(&self) -> bool {
        match self.stream.try_read(&mut [0]) {
            Ok(read) => read > 0,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Message<'_>> {
        self.stream.write_all(request).await?;
        let answer = tokio::time::timeout(ANSWER_LIMIT, self.inbox.next(&mut self.stream)).await;
        let answer = answer.map_err(|_| anyhow!("no answer within {ANSWER_LIMIT:?}"))??;
        answer.ok_or_else(|| WireError::Closed.into())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}
