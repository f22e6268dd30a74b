//! Where Weir keeps what must outlive it: logins, registrations, and who is refreshing what.
//!
//! [`Store`] is one small trait. [`FileStore`] keeps everything in one encrypted file that several processes may share;
//! [`RedisStore`] shares it between machines; [`MemoryStore`] forgets when it is dropped. What a value is about
//! ([`Value::about`]) can be listed without the key. What it holds ([`Value::secret`]) cannot be had without it, nor printed
//! by accident.

mod clock;
mod file;
mod key;
mod memory;
mod redis;
mod seal;
mod secret;
mod store;

pub use self::redis::{PasswordSource, RedisReport, RedisServer, RedisStore, RedisTarget, RedisUrlError};
pub use clock::Clock;
pub use file::FileStore;
pub use key::{KeyError, KeySources, MasterKey};
pub use memory::MemoryStore;
pub use seal::Protection;
pub use secret::Secret;
pub use store::{Entry, Key, Lease, Listed, Store, StoreError, Swap, Value, Version};
