//! The connection to the server: one for all who ask, opened again when it is lost.
//!
//! Every command has one time limit, opening the connection included. While the server is away one of those who ask tries
//! to reach it, after growing pauses; the others are told at once.

use std::{pin::Pin, time::Duration};

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, ServerErrorKind, TlsCertificates, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cmd,
    io::tcp::TcpSettings,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use weir_flow::Backoff;

use crate::StoreError;

use super::target::{PasswordSource, RedisNode, RedisTarget, TargetKind};

/// How long anybody waits for the server.
const LIMIT: Duration = Duration::from_secs(3);
/// How many commands may be under way; more wait for their turn.
const CONCURRENT: usize = 128;

/// The connection to one server.
pub(super) struct Link {
    pub(super) target: RedisTarget,
    state: Mutex<LinkState>,
    opening: tokio::sync::Mutex<()>,
}

struct LinkState {
    connection: Option<RedisConnection>,
    /// Grows when a connection is lost, so that it is lost once for all who used it.
    life: u64,
    backoff: Backoff,
    /// Until when nobody tries, and why.
    away: Option<(Instant, String)>,
}

#[derive(Clone)]
enum RedisConnection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// What a failure of a command means.
enum Trouble {
    /// The connection is of no use.
    Lost(String),
    /// The server cannot do it now.
    Later(String),
    /// The server does not know the script.
    Script,
    /// It would fail again.
    Refused(String),
}

impl Link {
    pub(super) fn new(target: RedisTarget) -> Self {
        let state = LinkState { connection: None, life: 0, backoff: Backoff::STORE, away: None };
        Self { target, state: Mutex::new(state), opening: tokio::sync::Mutex::default() }
    }

    /// The answer to a command. One that only `reads` is sent again if the connection turns out to be gone.
    pub(super) async fn send(&self, command: &Cmd, reads: bool) -> Result<Value, StoreError> {
        self.script(|_| command.clone(), reads).await
    }

    /// The answer to a script, by its name, or else by its text: `command` is told which.
    pub(super) async fn script(&self, command: impl Fn(bool) -> Cmd, reads: bool) -> Result<Value, StoreError> {
        let end = Instant::now() + LIMIT;
        let (mut by_text, mut again) = (false, reads);
        loop {
            let (life, mut connection) = self.connection(end).await?;
            let answer = match timeout_at(end, connection.send(&command(by_text))).await {
                Ok(answer) => answer.map_err(|error| Trouble::of(&error)),
                Err(_) => {
                    again = false;
                    Err(Trouble::Lost(format!("it has not answered within {} s", LIMIT.as_secs())))
                }
            };
            match answer {
                Ok(value) => {
                    self.answered(life);
                    return Ok(value);
                }
                Err(Trouble::Script) if !by_text => by_text = true,
                Err(Trouble::Script) => return Err(self.refused("it does not keep scripts".to_owned())),
                Err(Trouble::Refused(reason)) => return Err(self.refused(reason)),
                Err(Trouble::Later(reason)) => return Err(self.away(reason)),
                Err(Trouble::Lost(reason)) => {
                    self.lost(life, &reason);
                    if !std::mem::take(&mut again) {
                        return Err(self.away(reason));
                    }
                }
            }
        }
    }

    async fn connection(&self, end: Instant) -> Result<(u64, RedisConnection), StoreError> {
        let away = match self.known()? {
            Ok(open) => return Ok(open),
            Err(away) => away,
        };
        let late = || self.away(format!("no connection within {} s", LIMIT.as_secs()));
        let _opening = match (self.opening.try_lock(), away) {
            (Ok(opening), _) => opening,
            // Somebody is finding out whether it is back.
            (Err(_), Some(reason)) => return Err(self.away(reason)),
            (Err(_), None) => timeout_at(end, self.opening.lock()).await.map_err(|_| late())?,
        };
        if let Ok(open) = self.known()? {
            return Ok(open);
        }
        let life = self.state.lock().life;
        let opened = match timeout_at(end, opening(&self.target)).await {
            Ok(opened) => opened.map_err(|error| match Trouble::of(&error) {
                Trouble::Refused(reason) => self.refused(reason),
                Trouble::Lost(reason) | Trouble::Later(reason) => self.away(reason),
                Trouble::Script => self.away("it does not keep scripts".to_owned()),
            }),
            Err(_) => Err(late()),
        };
        match opened {
            Ok(connection) => {
                self.state.lock().connection = Some(connection.clone());
                Ok((life, connection))
            }
            Err(error) => {
                let (StoreError::Away { reason, .. } | StoreError::Refused { reason, .. }) = &error else {
                    return Err(error);
                };
                self.lost(life, reason);
                Err(error)
            }
        }
    }

    /// The connection that is open; else why the server was away a moment ago. An error while nobody is to try.
    fn known(&self) -> Result<Result<(u64, RedisConnection), Option<String>>, StoreError> {
        let state = self.state.lock();
        if let Some(connection) = &state.connection {
            return Ok(Ok((state.life, connection.clone())));
        }
        match &state.away {
            Some((until, reason)) if Instant::now() < *until => Err(self.away(reason.clone())),
            away => Ok(Err(away.as_ref().map(|(_, reason)| reason.clone()))),
        }
    }

    fn answered(&self, life: u64) {
        let mut state = self.state.lock();
        if state.life == life {
            state.backoff.reset();
            state.away = None;
        }
    }

    /// Of all who used the connection the first counts. A connection that has worked is opened again at once.
    fn lost(&self, life: u64, reason: &str) {
        let mut state = self.state.lock();
        if state.life != life {
            return;
        }
        let has_worked = state.connection.take().is_some() && state.backoff.failures() == 0;
        let mut random = [0; 4];
        let _ = getrandom::fill(&mut random);
        let pause = state.backoff.pause(None, u32::from_ne_bytes(random));
        let until = Instant::now() + if has_worked { Duration::ZERO } else { pause };
        state.life += 1;
        state.away = Some((until, reason.to_owned()));
    }

    pub(super) fn away(&self, reason: String) -> StoreError {
        StoreError::Away { place: self.target.to_string(), reason }
    }

    pub(super) fn refused(&self, reason: String) -> StoreError {
        StoreError::Refused { place: self.target.to_string(), reason }
    }
}

impl RedisConnection {
    async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let answer = match self {
            Self::Server(connection) => connection.req_packed_command(command).await,
            Self::Cluster(connection) => connection.req_packed_command(command).await,
        };
        answer?.extract_error()
    }
}

impl Trouble {
    /// The text of an error may repeat what was sent, so only what is known to be harmless is passed on.
    fn of(error: &RedisError) -> Self {
        use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoPerm, NoScript, ReadOnly, TryAgain};
        let code = error.code().unwrap_or_default().to_owned();
        let detail = error.detail().unwrap_or_default();
        match error.kind() {
            ErrorKind::Server(NoScript) => Self::Script,
            ErrorKind::Server(NoPerm) => Self::Refused(format!("its user may not do that (NOPERM {detail})")),
            ErrorKind::Server(kind @ (Ask | BusyLoading | ClusterDown | MasterDown | Moved | ReadOnly | TryAgain)) => {
                Self::Lost(match kind {
                    BusyLoading => "it is loading its data".to_owned(),
                    ReadOnly => "it is a replica now".to_owned(),
                    _ => format!("a part of it cannot serve now ({code})"),
                })
            }
            ErrorKind::AuthenticationFailed => Self::Refused("it does not take the user or the password".to_owned()),
            ErrorKind::Server(_) | ErrorKind::Extension => match code.as_str() {
                "OOM" => Self::Later("its memory is full".to_owned()),
                "MISCONF" | "NOREPLICAS" | "BUSY" | "UNBLOCKED" => {
                    Self::Later(format!("it does not write now ({code})"))
                }
                "WRONGPASS" | "NOAUTH" => Self::Refused("it does not take the user or the password".to_owned()),
                _ => Self::Refused(format!("its answer is {code}")),
            },
            ErrorKind::UnexpectedReturnType | ErrorKind::Client => {
                Self::Refused("its answer is not as it should be".into())
            }
            ErrorKind::MasterNameNotFoundBySentinel => Self::Lost("no Sentinel knows its service".to_owned()),
            ErrorKind::InvalidClientConfig => Self::Refused(error.to_string()),
            _ if error.is_timeout() => Self::Lost("it has not answered in time".to_owned()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

/// Boxed, for few ever wait for it, and all would have room for it.
fn opening(target: &RedisTarget) -> Pin<Box<dyn Future<Output = Result<RedisConnection, RedisError>> + Send + '_>> {
    Box::pin(open(target))
}

async fn open(target: &RedisTarget) -> Result<RedisConnection, RedisError> {
    let certificates = certificates(target).await?;
    let settings = settings(target)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMIT))
        .set_response_timeout(Some(LIMIT))
        .set_concurrency_limit(CONCURRENT);
    let client = match &target.kind {
        TargetKind::Cluster(nodes) => {
            let nodes = nodes.iter().map(|node| information(address(node), settings.clone()));
            let mut builder = ClusterClientBuilder::new(nodes.collect::<Result<Vec<_>, _>>()?)
                .connection_timeout(LIMIT)
                .response_timeout(LIMIT)
                .connection_concurrency_limit(CONCURRENT);
            if let Some(certificates) = certificates {
                builder = builder.certs(certificates);
            }
            return Ok(RedisConnection::Cluster(builder.build()?.get_async_connection().await?));
        }
        TargetKind::Sentinel { sentinels, service } => {
            let mut builder = SentinelClientBuilder::new(
                sentinels.iter().map(address),
                service.as_str(),
                SentinelServerType::Master,
            )?
            .set_client_to_redis_db(target.db)
            .set_client_to_redis_tcp_settings(TcpSettings::default().set_nodelay(true));
            if let Some(username) = &target.username {
                builder = builder.set_client_to_redis_username(username);
            }
            if let Some(password) = settings.password() {
                builder = builder.set_client_to_redis_password(password);
            }
            if let Some(password) = &target.sentinel_password {
                builder = builder.set_client_to_sentinel_password(secret(password)?.expose());
            }
            if sentinels.iter().any(|node| node.tls) {
                builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            }
            if let Some(certificates) = certificates {
                builder = builder.set_client_to_redis_certificates(certificates.clone());
                builder = builder.set_client_to_sentinel_certificates(certificates);
            }
            builder.build()?.async_get_client().await?
        }
        TargetKind::Unix(path) => Client::open(information(ConnectionAddr::Unix(path.clone()), settings)?)?,
        TargetKind::Server(node) => match certificates {
            Some(certificates) => Client::build_with_tls(information(address(node), settings)?, certificates)?,
            None => Client::open(information(address(node), settings)?)?,
        },
    };
    let mut connection = RedisConnection::Server(client.get_multiplexed_async_connection_with_config(&config).await?);
    // A server that hangs accepts connections all the same.
    connection.send(&cmd("TIME")).await?;
    Ok(connection)
}

/// What is trusted; none where nothing is encrypted.
async fn certificates(target: &RedisTarget) -> Result<Option<TlsCertificates>, RedisError> {
    let is_tls = match &target.kind {
        TargetKind::Unix(_) => false,
        TargetKind::Server(node) => node.tls,
        TargetKind::Sentinel { sentinels: nodes, .. } | TargetKind::Cluster(nodes) => nodes.iter().any(|node| node.tls),
    };
    if !is_tls {
        return Ok(None);
    }
    let root_cert = match &target.ca {
        Some(path) => Some(tokio::fs::read(path).await.map_err(|error| {
            client_error(format!("the certificates in {} cannot be read: {error}", path.display()))
        })?),
        None => None,
    };
    Ok(Some(TlsCertificates { client_tls: None, root_cert }))
}

fn settings(target: &RedisTarget) -> Result<RedisConnectionInfo, RedisError> {
    let mut settings = RedisConnectionInfo::default().set_db(target.db).set_skip_set_lib_name();
    if let Some(username) = &target.username {
        settings = settings.set_username(username);
    }
    if let Some(password) = &target.password {
        settings = settings.set_password(secret(password)?.expose());
    }
    Ok(settings)
}

fn secret(source: &PasswordSource) -> Result<crate::Secret, RedisError> {
    source().map_err(|why| client_error(format!("its password cannot be had: {why}")))
}

fn address(node: &RedisNode) -> ConnectionAddr {
    let RedisNode { host, port, tls } = node.clone();
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

fn information(address: ConnectionAddr, settings: RedisConnectionInfo) -> Result<ConnectionInfo, RedisError> {
    let settings_of_tcp = TcpSettings::default().set_nodelay(true);
    Ok(address.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(settings_of_tcp))
}

fn client_error(text: String) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, "", text))
}
