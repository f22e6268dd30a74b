//! Other gateways at the same store: who serves, and how one sends a request to another.
//!
//! Each gateway says every few seconds in the store that it serves. A request for what only one of them can have, such as a
//! legacy session, goes to that one over TLS, on which both prove that they can read the store ([`identity`]). The request
//! brings along who its caller has proved to be, so that is found out once.

mod identity;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::{
    sync::{OnceCell, watch},
    task::JoinSet,
    time::Instant,
};
use url::Url;

use crate::{
    credential::{Replica, ReplicaStore, TokenStoreError},
    http::{self, HeaderName, HttpClient, HttpTarget, HttpTimeouts, Method, Request, Response},
    telemetry::LogThrottle,
};

pub use identity::Identity;

/// How often a gateway says that it serves.
const ANNOUNCED: Duration = Duration::from_secs(2);

/// How long it counts as one that serves after that.
const ALIVE: Duration = Duration::from_secs(8);

/// How often the gateways that serve are read at most, for one that is not known.
const READ_AGAIN: Duration = Duration::from_millis(250);

/// How long a connection to another gateway may take.
const CONNECT: Duration = Duration::from_secs(2);

/// How often a connection to another gateway is opened that breaks before the request is sent, and the pause between.
const TRIES: u32 = 3;
const OPENED_AGAIN: Duration = Duration::from_millis(50);

/// How long an answer may take to begin. A call has its own deadline; a gateway that dies is noticed by [`Replicas::lost`].
const ANSWER: Duration = Duration::from_secs(24 * 3600);

/// After how many words that it serves a gateway looks who is at its own address.
const LOOKS: u32 = 5;

/// The gateway that has answered.
pub const ANSWERED_BY: HeaderName = HeaderName::from_static("weir-replica");

/// How many other gateways have connections at rest. Those that were there once are forgotten.
const TARGETS: usize = 256;

/// This gateway among the others at its store.
pub struct Replicas {
    me: Replica,
    store: ReplicaStore,
    /// Those that serve by their ids, as far as the store has told.
    serving: watch::Sender<HashMap<String, SeenReplica>>,
    /// When that was, if it has told.
    read_at: Mutex<Option<Instant>>,
    /// When somebody asked for one that was not known. One reads for all who ask.
    asked: tokio::sync::Mutex<Option<Instant>>,
    link: OnceCell<HttpClient>,
    targets: Mutex<HashMap<String, Arc<HttpTarget>>>,
    /// Whether this one answers others.
    listens: AtomicBool,
    told: LogThrottle,
    told_of_address: LogThrottle,
}

/// A gateway that serves.
struct SeenReplica {
    address: String,
    /// When the store had it last.
    at: Instant,
}

/// Why another gateway has not answered.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// It is not there any more, and has not seen the request.
    #[error("it does not serve any more")]
    Gone,
    /// It cannot be reached, and has not seen the request.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It may have seen the request.
    #[error("{0}")]
    BrokenOff(http::Error),
    /// The same, and it does not serve any more.
    #[error("it does not say any more that it serves")]
    Lost,
}

impl Replicas {
    /// This gateway, which others reach at an address.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub fn new(store: ReplicaStore, address: &str) -> Result<Self, getrandom::Error> {
        // They grow with time: the greater one of two at one address has it last.
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let id = format!("{millis:011x}{:05x}", getrandom::u32()? >> 12);
        let me = Replica { id, address: address.to_owned() };
        Ok(Self {
            me,
            store,
            serving: watch::Sender::default(),
            read_at: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
            link: OnceCell::new(),
            targets: Mutex::default(),
            listens: AtomicBool::new(false),
            told: LogThrottle::default(),
            told_of_address: LogThrottle::default(),
        })
    }

    /// This gateway.
    #[must_use]
    pub const fn me(&self) -> &Replica {
        &self.me
    }

    /// What gateways keep for each other.
    #[must_use]
    pub const fn store(&self) -> &ReplicaStore {
        &self.store
    }

    /// What gateways prove to each other.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn identity(&self) -> Result<Identity, TokenStoreError> {
        Identity::from_secret(&self.store.secret("replica-key").await?).map_err(|_| TokenStoreError::NoKey)
    }

    /// Says that this gateway serves, time and again until it is dropped. Calls `returned` when the others may have taken it
    /// for dead meanwhile.
    pub async fn announce<F: Future<Output = ()>>(&self, returned: impl Fn() -> F) {
        let mut last = Instant::now();
        for count in 0_u32.. {
            let looked = self.look().await;
            let has_read = looked.is_ok();
            match looked {
                Ok(()) => {
                    if last.elapsed() >= ALIVE {
                        returned().await;
                    }
                    last = Instant::now();
                }
                // That the store is away is told already.
                Err(why) if !why.is_away() && self.told.is_due() => {
                    tracing::error!("other gateways are not told that this one serves: {why}");
                }
                Err(_) => {}
            }
            let looking = async {
                if count % LOOKS == 0 {
                    self.check_address().await;
                }
            };
            let forgetting = async {
                if has_read {
                    self.forget_ended().await;
                }
            };
            // Whatever comes of it, the others hear of this one in time.
            let _ = tokio::join!(tokio::time::sleep(ANNOUNCED), tokio::time::timeout(ANNOUNCED, looking), forgetting);
        }
    }

    /// Says once that this process is reached at an address for so long, by the one that takes over from it.
    ///
    /// # Errors
    ///
    /// When the store cannot be written.
    pub async fn announce_at(&self, address: &str, ttl: Duration) -> Result<Replica, TokenStoreError> {
        let reached = Replica { id: self.me.id.clone(), address: address.to_owned() };
        self.store.announce(&reached, ttl).await?;
        Ok(reached)
    }

    /// Says that this gateway answers others from now on, or does no more.
    pub fn set_listening(&self, listens: bool) {
        self.listens.store(listens, Ordering::Relaxed);
    }

    /// Tells the operator if the address of this gateway leads to another one: sessions would go back and forth.
    async fn check_address(&self) {
        if !self.listens.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(client) = self.client().await
            && let Some(other) = answering_at(client, &self.me.address).await
            && other != self.me.id
            && self.listens.load(Ordering::Relaxed)
            && self.told_of_address.is_due()
        {
            tracing::error!(
                address = self.me.address,
                "the address of this gateway leads to another gateway; set `replica.address` to one of its own at each, \
                 such as \"${{env:POD_IP}}\""
            );
        }
    }

    async fn client(&self) -> Result<&HttpClient, ReplicaError> {
        let unreachable = |why: &dyn ToString| ReplicaError::Unreachable(why.to_string());
        let client = self.link.get_or_try_init(|| async {
            let identity = self.identity().await.map_err(|why| unreachable(&why))?;
            Ok(HttpClient::secured_by(identity.client().map_err(|why| unreachable(&why))?))
        });
        client.await
    }

    async fn look(&self) -> Result<(), TokenStoreError> {
        self.store.announce(&self.me, ALIVE).await?;
        self.read().await
    }

    /// Reads which gateways serve. One that is missing counts until it does [not answer](Self::forget_ended) either.
    async fn read(&self) -> Result<(), TokenStoreError> {
        let read = self.store.gateways().await;
        let now = Instant::now();
        let had_failed = std::mem::replace(&mut *self.read_at.lock(), read.is_ok().then_some(now)).is_none();
        let read = read?;
        self.serving.send_modify(|serving| {
            // After an outage they come back one after the other.
            if had_failed {
                serving.values_mut().for_each(|seen| seen.at = now);
            }
            for Replica { id, address } in read {
                serving.insert(id, SeenReplica { address, at: now });
            }
        });
        Ok(())
    }

    /// Reads them, unless that was a moment ago: whoever makes ids up costs the store no more than that.
    async fn read_again(&self) {
        let mut asked = self.asked.lock().await;
        let is_due = |at: Instant| at.elapsed() >= READ_AGAIN;
        if asked.is_none_or(is_due) && self.read_at.lock().is_none_or(is_due) {
            drop(self.read().await);
            *asked = Some(Instant::now());
        }
    }

    /// Forgets the gateways that the store has no more, unless they answer: one that is cut off from the store alone still
    /// serves.
    async fn forget_ended(&self) {
        let missing = |(id, seen): (&String, &SeenReplica)| {
            let is_missing = seen.at.elapsed() >= ANNOUNCED;
            is_missing.then(|| Replica { id: id.clone(), address: seen.address.clone() })
        };
        let missing: Vec<Replica> = self.serving.borrow().iter().filter_map(missing).collect();
        let Ok(client) = self.client().await else { return };
        let asked = missing.into_iter().map(|gateway| {
            let client = client.clone();
            async move {
                let answering = tokio::time::timeout(ANNOUNCED, answering_at(&client, &gateway.address)).await;
                (answering.is_ok_and(|id| id.as_ref() == Some(&gateway.id)), gateway.id)
            }
        });
        for (answers, id) in asked.collect::<JoinSet<_>>().join_all().await {
            self.serving.send_if_modified(|serving| match serving.get_mut(&id) {
                Some(seen) if answers => {
                    seen.at = Instant::now();
                    false
                }
                // It may have come back meanwhile.
                Some(seen) if seen.at.elapsed() >= ANNOUNCED => serving.remove(&id).is_some(),
                _ => false,
            });
        }
    }

    /// Says that this gateway serves no more.
    pub async fn withdraw(&self) {
        // Without a word others find out when its time is over.
        drop(self.store.withdraw(&self.me).await);
    }

    /// Whether a gateway has said lately that it serves, as far as the store can be asked.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn is_serving(&self, gateway: &Replica) -> Result<bool, TokenStoreError> {
        Ok(self.store.gateways().await?.contains(gateway))
    }

    /// The other gateways that serve, at addresses of their own. Those that have begun last, which end last, come first.
    pub async fn others(&self) -> Vec<Replica> {
        self.read_again().await;
        let replica = |(id, seen): (&String, &SeenReplica)| Replica { id: id.clone(), address: seen.address.clone() };
        let is_other = |other: &Replica| other.address != self.me.address;
        let mut others: Vec<_> = self.serving.borrow().iter().map(replica).filter(is_other).collect();
        others.sort_unstable_by(|one, other| other.id.cmp(&one.id));
        others
    }

    /// Another gateway that serves, by its id.
    pub async fn other(&self, id: &str) -> Option<Replica> {
        if id == self.me.id {
            return None;
        }
        let known = |serving: &HashMap<String, SeenReplica>| serving.get(id).map(|seen| seen.address.clone());
        let mut address = known(&self.serving.borrow());
        // One that has just begun is not known yet.
        if address.is_none() {
            self.read_again().await;
            address = known(&self.serving.borrow());
        }
        Some(Replica { id: id.to_owned(), address: address? })
    }

    /// Resolves when a gateway does not serve any more: it has not said so for a while, and does not answer. Who only
    /// connects to it by then has found that out already.
    pub async fn lost(&self, gateway: &Replica) {
        // One that has just begun, or that was cut off from the store before this one began, is not known yet.
        self.serving.send_if_modified(|serving| {
            let seen = || SeenReplica { address: gateway.address.clone(), at: Instant::now() };
            serving.entry(gateway.id.clone()).or_insert_with(seen);
            false
        });
        let mut serving = self.serving.subscribe();
        loop {
            // This side is never closed.
            let _ = serving.wait_for(|serving| !serving.contains_key(&gateway.id)).await;
            tokio::time::sleep(CONNECT).await;
            if !serving.borrow().contains_key(&gateway.id) {
                return;
            }
        }
    }

    /// Whether a gateway was where this one is reached now, and has ended.
    #[must_use]
    pub fn is_replaced_by_me(&self, gateway: &Replica) -> bool {
        let began_before = gateway.id < self.me.id;
        began_before && gateway.address == self.me.address && !self.serving.borrow().contains_key(&gateway.id)
    }

    /// Sends a request to another gateway, and returns when the head of its answer is here.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub async fn send(&self, to: &Replica, path: &str, request: Request<'_>) -> Result<Response, ReplicaError> {
        let unreachable = |why: &dyn ToString| ReplicaError::Unreachable(why.to_string());
        let client = self.client().await?;
        let target = self.target(client, to).map_err(|why| unreachable(&why))?;
        let mut tries = 1..=TRIES;
        loop {
            let (method, body) = (request.method.clone(), request.body.clone());
            let sent = client.send_at(&target, path, Request { method, body, ..request }).await;
            tries.next();
            return match sent {
                // Its port is closed, so the process that had it has ended, and no other one takes it over.
                Err(why) if why.is_refused() && tries.is_empty() => {
                    if self.me.address.is_empty() {
                        // Nobody else finds out that the process before has ended.
                        self.serving.send_if_modified(|serving| serving.remove(&to.id).is_some());
                    }
                    Err(ReplicaError::Gone)
                }
                Err(why) if why.may_have_run() => Err(ReplicaError::BrokenOff(why)),
                // A process that ends closes its connections before its port, and that before the next one opens it.
                Err(why) if why != http::Error::ConnectTimeout && !tries.is_empty() => {
                    tokio::time::sleep(OPENED_AGAIN).await;
                    continue;
                }
                Err(why) => Err(unreachable(&why)),
                Ok(response) if response.status() == MISDIRECTED => Err(match gateway_of(&response) {
                    // The process before still has the address of this one, until it has come to its end.
                    Some(other) if other < to.id.as_str() => unreachable(&"another gateway still has its address"),
                    _ => ReplicaError::Gone,
                }),
                Ok(response) => Ok(response),
            };
        }
    }

    fn target(&self, client: &HttpClient, to: &Replica) -> Result<Arc<HttpTarget>, http::Error> {
        let mut targets = self.targets.lock();
        if let Some(target) = targets.get(&to.address) {
            return Ok(Arc::clone(target));
        }
        let target = Arc::new(new_target(client, &to.address, ANSWER)?);
        if targets.len() >= TARGETS {
            targets.clear();
        }
        targets.insert(to.address.clone(), Arc::clone(&target));
        Ok(target)
    }
}

/// The gateway that answers a new connection to an address, if one does.
async fn answering_at(client: &HttpClient, address: &str) -> Option<String> {
    let target = new_target(client, address, CONNECT).ok()?;
    let request = Request { method: Method::GET, headers: &[], body: None };
    let response = client.send_at(&target, "/", request).await.ok()?;
    Some(gateway_of(&response)?.to_owned())
}

/// The gateway that an answer is of, where it is not the one that was meant.
fn gateway_of(response: &Response) -> Option<&str> {
    response.header(&ANSWERED_BY)?.to_str().ok()
}

fn new_target(client: &HttpClient, address: &str, read: Duration) -> Result<HttpTarget, http::Error> {
    let url = Url::parse(&format!("https://{address}/")).map_err(|_| http::Error::Url("it is no address"))?;
    client.target(&url, HttpTimeouts { connect: CONNECT, read })
}

/// 421: the gateway that is meant is not the one that was reached, or has not what it was asked for (RFC 9110 §15.5.20).
pub const MISDIRECTED: u16 = 421;
