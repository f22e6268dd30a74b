//! A store that several gateways share: a server of Redis or Valkey, with Sentinels, or a Cluster.
//!
//! What changes something is one script, so the server does it as a whole or not at all. Times are the server's: gateways
//! whose clocks differ agree on what has expired. Values are sealed as in a file; the server never has the key.

use std::{collections::HashSet, fmt, ops::Range, sync::Arc, time::Duration};

use ::redis::{Value as Answer, cmd, from_redis_value};
use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use zeroize::Zeroizing;

use crate::{
    Entry, Key, Lease, Listed, Protection, Store, StoreError, Swap, Value, Version,
    seal::{ValueCipher, bound},
};

use link::Link;
use script::Script;

pub use target::{PasswordSource, RedisTarget, RedisUrlError};

mod link;
mod script;
mod target;

/// The format that this code writes and reads.
const FORMAT: u32 = 1;

/// Longer than anything is kept, and short enough to be added to a time.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// A server, without the key of what it holds. Nothing is connected before something is asked.
#[derive(Clone)]
pub struct RedisServer(Arc<ServerShared>);

struct ServerShared {
    link: Link,
    /// The namespaces that the server has in its list.
    namespaces: Mutex<HashSet<String>>,
}

/// What a server is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisReport {
    /// Its kind and version, such as `valkey 8.0.1`.
    pub version: String,
    /// Its time, in milliseconds since 1970.
    pub millis: u64,
}

/// A store at a server.
#[derive(Clone)]
pub struct RedisStore {
    server: RedisServer,
    cipher: Arc<ValueCipher>,
}

impl RedisServer {
    /// The server of this target.
    #[must_use]
    pub fn new(target: RedisTarget) -> Self {
        Self(Arc::new(ServerShared { link: Link::new(target), namespaces: Mutex::default() }))
    }

    /// Whether a key opens the store; where there is none yet, whether what is there for it are keys. Makes nothing.
    ///
    /// # Errors
    /// As [`RedisStore::open`].
    pub async fn check_key(&self, protection: &Protection) -> Result<(), StoreError> {
        match (self.cipher(protection).await?, protection) {
            (None, Protection::Encrypted(sources)) => Ok(sources.check()?),
            _ => Ok(()),
        }
    }

    /// What [`Store::list`] says, for those who need not and perhaps cannot open values.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn list(&self, below: &[Key]) -> Result<Vec<Listed>, StoreError> {
        let mut listed = Vec::new();
        for key in below {
            let Range { start, end } = key.below();
            let (mut from, to) = (format!("[{start}"), format!("({end}"));
            loop {
                let bounds = script::list_bounds();
                let [count, size, bytes] = bounds.each_ref().map(String::as_bytes);
                let arguments = [b"", from.as_bytes(), to.as_bytes(), count, size, bytes];
                let answer = self.script(&script::LIST, &key.namespace(), &arguments, true).await?;
                let (last, rows): (String, Vec<(String, u64, Vec<u8>)>) = self.read(answer)?;
                for (name, version, about) in rows {
                    let key = Key::from_text(&name);
                    let about = String::from_utf8(about).ok().filter(|_| version > 0);
                    let about = about.ok_or_else(|| self.damaged(&key))?;
                    listed.push(Listed { key, about, version: Version(version) });
                }
                if last.is_empty() {
                    break;
                }
                from = format!("({last}");
            }
        }
        Ok(listed)
    }

    /// A number that is another one after each write in a namespace.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn last_version(&self, namespace: &str) -> Result<u64, StoreError> {
        let mut command = cmd("GET");
        command.arg(format!("{}:v", self.base(namespace)));
        let last: Option<u64> = self.read(self.0.link.send(&command, true).await?)?;
        Ok(last.unwrap_or_default())
    }

    /// Writes something of no meaning, which expires soon.
    ///
    /// # Errors
    /// If the server takes no writes: its memory is full, or it is a replica.
    pub async fn check_write(&self) -> Result<(), StoreError> {
        let mut command = cmd("SET");
        command.arg(self.name("written")).arg("").arg("EX").arg(60);
        self.0.link.send(&command, true).await.map(drop)
    }

    /// What the server is like.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn report(&self) -> Result<RedisReport, StoreError> {
        let mut command = cmd("EVAL");
        command.arg("return {redis.call('TIME'), redis.call('INFO', 'server')}").arg(1).arg(self.name("store"));
        let ((seconds, micros), info): ((u64, u64), String) = self.read(self.0.link.send(&command, true).await?)?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        let version = match field("valkey_version:") {
            "" => format!("redis {}", field("redis_version:")),
            version => format!("valkey {version}"),
        };
        Ok(RedisReport { version, millis: seconds * 1000 + micros / 1000 })
    }

    /// The namespaces that something was ever written in.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn namespaces(&self) -> Result<Vec<String>, StoreError> {
        let mut command = cmd("SMEMBERS");
        command.arg(self.name("namespaces"));
        let mut names: Vec<String> = self.read(self.0.link.send(&command, true).await?)?;
        names.sort_unstable();
        Ok(names)
    }

    /// Names a namespace in the list of them, which is elsewhere in a Cluster: before something is written there, as long
    /// as this process does not know that it is named.
    async fn register(&self, namespace: &str) -> Result<(), StoreError> {
        if self.0.namespaces.lock().contains(namespace) {
            return Ok(());
        }
        let mut command = cmd("SADD");
        command.arg(self.name("namespaces")).arg(namespace);
        self.0.link.send(&command, true).await?;
        self.0.namespaces.lock().insert(namespace.to_owned());
        Ok(())
    }

    /// How values are sealed; none if the store is not begun.
    async fn cipher(&self, protection: &Protection) -> Result<Option<ValueCipher>, StoreError> {
        /// Of what the store says of itself.
        const MOST: u32 = 4096;
        let mut command = cmd("GETRANGE");
        command.arg(self.name("store")).arg(0).arg(MOST);
        let head: Vec<u8> = self.read(self.0.link.send(&command, true).await?)?;
        if head.is_empty() {
            return Ok(None);
        }
        let damaged = || StoreError::Entry(format!("{}: {}", self.0.link.target, self.name("store")));
        let head: Json = serde_json::from_slice(&head).map_err(|_| damaged())?;
        let format = head["format"].as_u64().and_then(|format| u32::try_from(format).ok()).ok_or_else(damaged)?;
        if format > FORMAT {
            let place = self.0.link.target.to_string();
            return Err(StoreError::Newer { place, found: format, known: FORMAT });
        }
        let check = head["check"].as_str().and_then(|check| STANDARD.decode(check).ok()).ok_or_else(damaged)?;
        let name = head["protection"].as_str().unwrap_or_default();
        let cipher = ValueCipher::of_existing(&self.0.link.target.to_string(), name.as_bytes(), &check, protection);
        cipher.ok_or_else(damaged)?.map(Some)
    }

    async fn script(
        &self,
        script: &Script,
        namespace: &str,
        arguments: &[&[u8]],
        reads: bool,
    ) -> Result<Answer, StoreError> {
        let base = self.base(namespace);
        let command = |by_text: bool| match by_text {
            true => script.by_text(&base, arguments),
            false => script.by_name(&base, arguments),
        };
        self.0.link.script(command, reads).await
    }

    fn name(&self, name: &str) -> String {
        format!("{}:{name}", self.0.link.target.prefix)
    }

    /// What the names of a namespace begin with; in braces is what chooses the slot in a Cluster.
    fn base(&self, namespace: &str) -> String {
        self.name(&format!("{{{namespace}}}"))
    }

    fn damaged(&self, key: &Key) -> StoreError {
        StoreError::Entry(format!("{} ({}:e:{})", self.0.link.target, self.base(&key.namespace()), key.text()))
    }

    fn read<T: ::redis::FromRedisValue>(&self, answer: Answer) -> Result<T, StoreError> {
        from_redis_value(answer).map_err(|_| self.0.link.refused("its answer is not as it should be".to_owned()))
    }
}

impl RedisStore {
    /// Opens the store at a server, or begins it.
    ///
    /// # Errors
    /// If the server cannot be asked, the store is of a newer version or protected in another way than asked; if no key is
    /// found, or none that opens it.
    pub async fn open(server: RedisServer, protection: &Protection) -> Result<Self, StoreError> {
        let cipher = match server.cipher(protection).await? {
            Some(cipher) => cipher,
            None => {
                server.begin(protection).await?;
                // Another process may have been faster, perhaps with another key.
                let begun = server.cipher(protection).await?;
                begun.ok_or_else(|| server.0.link.away("it forgets what was just written".to_owned()))?
            }
        };
        Ok(Self { server, cipher: Arc::new(cipher) })
    }

    /// Writes if what is there has the version `expected`; whatever is there where that is not given.
    async fn write(
        &self,
        key: &Key,
        expected: Option<Option<Version>>,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<Swap, StoreError> {
        value.check()?;
        let sealed = self.cipher.close(&bound(key, value.about.as_bytes()), &value.secret);
        let sealed =
            sealed.map_err(|()| self.server.0.link.refused("there are no random numbers to encrypt with".into()))?;
        let namespace = key.namespace();
        self.server.register(&namespace).await?;
        let expected =
            expected.map_or_else(|| "*".to_owned(), |version| version.map_or(0, Version::number).to_string());
        let ttl = ttl.map(|ttl| ttl.min(LONGEST).as_millis().to_string()).unwrap_or_default();
        // What has no answer is sent again, in a Cluster by the client itself.
        let mut writing = [0; 16];
        getrandom::fill(&mut writing)
            .map_err(|_| self.server.0.link.refused("there are no random numbers to write with".to_owned()))?;
        let (name, about) = (key.text().as_bytes(), value.about.as_bytes());
        let arguments = [name, expected.as_bytes(), ttl.as_bytes(), about, sealed.as_slice(), &writing];
        let answer = self.server.script(&script::WRITE, &namespace, &arguments, true).await?;
        let (done, version, is_new): (bool, u64, bool) = self.server.read(answer)?;
        if is_new {
            // The server may have been emptied. If this fails the next write names it.
            self.server.0.namespaces.lock().remove(&namespace);
            let _ = self.server.register(&namespace).await;
        }
        Ok(match (done, version) {
            (true, version) => Swap::Done(Version(version)),
            (false, 0) => Swap::Lost(None),
            (false, version) => Swap::Lost(Some(Version(version))),
        })
    }

    async fn remove(&self, key: &Key, only: Option<Version>) -> Result<bool, StoreError> {
        let only = only.map_or_else(|| "*".to_owned(), |version| version.number().to_string());
        let arguments = [key.text().as_bytes(), only.as_bytes()];
        let answer = self.server.script(&script::REMOVE, &key.namespace(), &arguments, false).await?;
        self.server.read(answer)
    }
}

impl RedisServer {
    async fn begin(&self, protection: &Protection) -> Result<(), StoreError> {
        let cipher = match protection {
            Protection::Plaintext => ValueCipher::Plaintext,
            Protection::Encrypted(sources) => ValueCipher::Encrypted(sources.find_or_make()?),
        };
        let check = cipher.check().map_err(|()| self.0.link.refused("there are no random numbers".to_owned()))?;
        let head = json!({ "format": FORMAT, "protection": cipher.name(), "check": STANDARD.encode(check) });
        let mut command = cmd("SET");
        command.arg(self.name("store")).arg(head.to_string()).arg("NX");
        self.0.link.send(&command, true).await.map(drop)
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let bounds = script::read_bounds();
        let arguments = [key.text().as_bytes(), bounds.as_bytes()];
        let answer = self.server.script(&script::READ, &key.namespace(), &arguments, true).await?;
        let damaged = || self.server.damaged(key);
        let (version, about, sealed, left) = match self.server.read::<Vec<Answer>>(answer)?.as_slice() {
            [Answer::Int(0)] => return Ok(None),
            [Answer::Int(1), row @ ..] => {
                from_redis_value::<(u64, Vec<u8>, Vec<u8>, i64)>(Answer::Array(row.to_vec())).map_err(|_| damaged())?
            }
            _ => return Err(damaged()),
        };
        let about = String::from_utf8(about).map_err(|_| damaged())?;
        let secret = self.cipher.open(&bound(key, about.as_bytes()), &sealed).ok_or_else(damaged)?;
        // It is less than zero for what does not expire.
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        Ok(Some(Entry { value: Value { about, secret }, version: Version(version), left }))
    }

    async fn put(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Version, StoreError> {
        match self.write(key, None, value, ttl).await? {
            Swap::Done(version) => Ok(version),
            Swap::Lost(_) => Err(self.server.0.link.refused("its answer is not as it should be".to_owned())),
        }
    }

    async fn swap(
        &self,
        key: &Key,
        expected: Option<Version>,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<Swap, StoreError> {
        self.write(key, Some(expected), value, ttl).await
    }

    async fn delete(&self, key: &Key) -> Result<bool, StoreError> {
        self.remove(key, None).await
    }

    async fn list(&self, below: &[Key]) -> Result<Vec<Listed>, StoreError> {
        self.server.list(below).await
    }

    async fn lease(&self, key: &Key, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        let nothing = Value { about: String::new(), secret: Zeroizing::default() };
        Ok(match self.write(key, Some(None), &nothing, Some(ttl)).await? {
            Swap::Done(version) => Some(Lease { key: key.clone(), version }),
            Swap::Lost(_) => None,
        })
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.remove(&lease.key, Some(lease.version)).await.map(drop)
    }
}

/// Where it is.
impl fmt::Display for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.link.target.fmt(f)
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisServer({self})")
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({})", self.server)
    }
}
