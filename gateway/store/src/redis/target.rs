//! Where a shared store is: a server, the Sentinels of one, or the nodes of a Cluster.

use std::{fmt, path::PathBuf, sync::Arc};

use thiserror::Error;

use crate::Secret;

/// Reads a password whenever a connection is opened, so that it can be rotated.
pub type PasswordSource = Arc<dyn Fn() -> Result<Secret, String> + Send + Sync>;

/// A server of Redis or Valkey, and what Weir uses of it.
#[derive(Clone)]
pub struct RedisTarget {
    pub(super) kind: TargetKind,
    pub(super) db: i64,
    pub(super) username: Option<String>,
    /// Of the servers.
    pub password: Option<PasswordSource>,
    /// Of the Sentinels, which have passwords of their own.
    pub sentinel_password: Option<PasswordSource>,
    /// The certificates that are trusted instead of the system's, in PEM.
    pub ca: Option<PathBuf>,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// The URL, which holds no secret.
    url: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetKind {
    Unix(PathBuf),
    Server(RedisNode),
    Sentinel { sentinels: Vec<RedisNode>, service: String },
    Cluster(Vec<RedisNode>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedisNode {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
}

/// Why a URL leads to no store. Never holds the URL.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RedisUrlError {
    #[error("the URL of a store has a password in it")]
    Password,
    #[error(
        "the URL of a store begins with redis://, rediss://, redis+unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or rediss+cluster://"
    )]
    Scheme,
    #[error("the URL of a store names no host, or a port that is none")]
    Host,
    #[error("the URL of Sentinels ends with the name of their service: redis+sentinel://HOST:26379,HOST:26379/SERVICE")]
    Service,
    #[error("the database in the URL of a store is no number")]
    Database,
    #[error("the URL of a store has something behind its path")]
    Rest,
    #[error("the prefix of a store has 1 to 64 letters, digits, `-`, `_`, `.` or `:`")]
    Prefix,
}

/// What the names of keys begin with unless the operator says otherwise.
const PREFIX: &str = "weir";
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl RedisTarget {
    /// The target of a URL such as `redis://user@host:6379/0`. Hosts of Sentinels and Clusters stand side by side, with
    /// commas in between.
    ///
    /// # Errors
    /// If it is none, or has a password in it.
    pub fn parse(url: &str) -> Result<Self, RedisUrlError> {
        let (scheme, rest) = url.split_once("://").ok_or(RedisUrlError::Scheme)?;
        if rest.contains(['?', '#']) || rest.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
            return Err(RedisUrlError::Rest);
        }
        let (engine, form) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match engine {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(RedisUrlError::Scheme),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, _)) if user.contains(':') => return Err(RedisUrlError::Password),
            Some((user, hosts)) => (Some(user.to_owned()).filter(|user| !user.is_empty()), hosts),
            None => (None, authority),
        };
        let nodes =
            |port| hosts.split(',').map(|host| RedisNode::parse(host, port, tls)).collect::<Result<Vec<_>, _>>();
        let (kind, db) = match form {
            "unix" if !tls && hosts.is_empty() && !path.is_empty() => (TargetKind::Unix(format!("/{path}").into()), ""),
            "" => match nodes(PORT)?.as_slice() {
                [node] => (TargetKind::Server(node.clone()), path),
                _ => return Err(RedisUrlError::Host),
            },
            "sentinel" => {
                let (service, db) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(RedisUrlError::Service);
                }
                (TargetKind::Sentinel { sentinels: nodes(SENTINEL_PORT)?, service: service.to_owned() }, db)
            }
            "cluster" if path.is_empty() => (TargetKind::Cluster(nodes(PORT)?), ""),
            "cluster" => return Err(RedisUrlError::Database),
            "unix" => return Err(RedisUrlError::Host),
            _ => return Err(RedisUrlError::Scheme),
        };
        let db = if db.is_empty() { 0 } else { db.parse::<u16>().map_err(|_| RedisUrlError::Database)?.into() };
        Ok(Self {
            kind,
            db,
            username: user,
            password: None,
            sentinel_password: None,
            ca: None,
            prefix: PREFIX.to_owned(),
            url: url.to_owned(),
        })
    }

    /// The same with another prefix, so that several may share a server.
    ///
    /// # Errors
    /// If names of keys cannot begin with it.
    pub fn with_prefix(self, prefix: &str) -> Result<Self, RedisUrlError> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        if !(1..=64).contains(&prefix.len()) || !prefix.bytes().all(is_letter) {
            return Err(RedisUrlError::Prefix);
        }
        Ok(Self { prefix: prefix.to_owned(), ..self })
    }
}

impl RedisNode {
    fn parse(text: &str, default: u16, tls: bool) -> Result<Self, RedisUrlError> {
        let end = text.rfind(']').map_or(0, |at| at + 1);
        let colon = text.get(end..).and_then(|rest| rest.rfind(':')).map(|at| end + at);
        let (host, port) = match colon {
            Some(at) => (&text[..at], text[at + 1..].parse().map_err(|_| RedisUrlError::Host)?),
            None => (text, default),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(['[', ']', '/', '@']) {
            return Err(RedisUrlError::Host);
        }
        Ok(Self { host: host.to_owned(), port, tls })
    }
}

/// The URL.
impl fmt::Display for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl fmt::Debug for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisTarget({self}, prefix {})", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn node(host: &str, port: u16, tls: bool) -> RedisNode {
        RedisNode { host: host.to_owned(), port, tls }
    }

    #[test]
    fn a_url_says_where_the_store_is() {
        let server = |url: &str| {
            let target = RedisTarget::parse(url).unwrap();
            (target.kind, target.db, target.username)
        };
        let one = TargetKind::Server(node("a", 6379, false));
        assert_eq!(server("redis://a"), (one.clone(), 0, None));
        assert_eq!(server("valkey://weir@a:6379/3"), (one, 3, Some("weir".to_owned())));
        assert_eq!(server("rediss://[::1]:7"), (TargetKind::Server(node("::1", 7, true)), 0, None));
        assert_eq!(server("redis+unix:///run/redis"), (TargetKind::Unix("/run/redis".into()), 0, None));
        let sentinels = vec![node("a", 26379, false), node("b", 1, false)];
        let sentinel = TargetKind::Sentinel { sentinels, service: "main".to_owned() };
        assert_eq!(server("redis+sentinel://a,b:1/main/2"), (sentinel, 2, None));
        let cluster = TargetKind::Cluster(vec![node("a", 1, true), node("b", 2, true)]);
        assert_eq!(server("rediss+cluster://a:1,b:2"), (cluster.clone(), 0, None));
        assert_eq!(server("valkeys+cluster://a:1,b:2"), (cluster, 0, None));
    }

    #[test]
    fn what_leads_nowhere_is_refused_and_not_repeated() {
        for (url, why) in [
            ("logins.redb", RedisUrlError::Scheme),
            ("http://a", RedisUrlError::Scheme),
            ("redis+tls+cluster://a", RedisUrlError::Scheme),
            ("redis://:hunter2@a", RedisUrlError::Password),
            ("redis://u:hunter2@a", RedisUrlError::Password),
            ("redis://", RedisUrlError::Host),
            ("redis://a,b", RedisUrlError::Host),
            ("redis://a:x", RedisUrlError::Host),
            ("redis+unix://a/b", RedisUrlError::Host),
            ("redis://a/b", RedisUrlError::Database),
            ("redis+cluster://a/1", RedisUrlError::Database),
            ("redis+sentinel://a", RedisUrlError::Service),
            ("rediss://a#insecure", RedisUrlError::Rest),
            ("redis://a?protocol=resp3", RedisUrlError::Rest),
        ] {
            let refused = RedisTarget::parse(url).unwrap_err();
            assert_eq!(refused, why, "{url}");
            assert!(!refused.to_string().contains("hunter2"));
        }
        for prefix in ["", "a b", "a{b}", &"a".repeat(65)] {
            assert!(RedisTarget::parse("redis://a").unwrap().with_prefix(prefix).is_err(), "{prefix}");
        }
    }
}
