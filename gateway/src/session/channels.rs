//! The upstreams that one session has opened.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    config::UpstreamName,
    upstream::{Channel, ConnectError, Upstream},
};

/// The open upstreams of a session.
#[derive(Default)]
pub struct UpstreamChannels {
    slots: Mutex<HashMap<UpstreamName, Arc<ChannelSlot>>>,
}

struct ChannelSlot {
    upstream: Arc<Upstream>,
    channel: Mutex<Option<Channel>>,
    /// Held while the upstream is opened, so that concurrent first calls open it once.
    opening: tokio::sync::Mutex<()>,
}

impl UpstreamChannels {
    /// The way to an upstream, if it is open and still carries.
    pub fn get(&self, upstream: &Upstream) -> Option<Channel> {
        let slot = self.slots.lock().get(upstream.key()).cloned()?;
        if !std::ptr::eq(&*slot.upstream, upstream) {
            return None;
        }
        let channel = slot.channel.lock();
        channel.as_ref().filter(|channel| channel.alive()).cloned()
    }

    /// The way to an upstream, opened by `open` if it is not open.
    ///
    /// # Errors
    ///
    /// What `open` gives.
    pub async fn get_or_open<F>(
        &self,
        upstream: &Arc<Upstream>,
        open: impl FnOnce() -> F,
    ) -> Result<Channel, ConnectError>
    where
        F: Future<Output = Result<Channel, ConnectError>>,
    {
        let slot = self.slot(upstream);
        let _opening = slot.opening.lock().await;
        if let Some(channel) = self.get(upstream) {
            return Ok(channel);
        }
        let channel = open().await?;
        *slot.channel.lock() = Some(channel.clone());
        Ok(channel)
    }

    /// Keeps a way that was opened already.
    pub fn put(&self, upstream: &Arc<Upstream>, channel: Channel) {
        *self.slot(upstream).channel.lock() = Some(channel);
    }

    /// Forgets a way that no longer carries, unless another call has replaced it already.
    pub fn forget(&self, upstream: &Upstream, lost: &Channel) {
        if let Some(slot) = self.slots.lock().get(upstream.key()) {
            slot.channel.lock().take_if(|channel| channel.is_same(lost));
        }
    }

    /// Forgets an upstream that is not in force any more, and gives what was open there.
    pub fn leave(&self, upstream: &Arc<Upstream>) -> Option<Channel> {
        let mut slots = self.slots.lock();
        let slot = slots.get(upstream.key()).filter(|slot| Arc::ptr_eq(&slot.upstream, upstream))?;
        let channel = slot.channel.lock().take();
        slots.remove(upstream.key());
        channel
    }

    /// All that are open.
    pub fn all(&self) -> Vec<(Arc<Upstream>, Channel)> {
        let slots = self.slots.lock();
        slots.values().filter_map(|slot| Some((Arc::clone(&slot.upstream), slot.channel.lock().clone()?))).collect()
    }

    /// Takes all that are open, to close them.
    pub fn take(&self) -> Vec<(Arc<Upstream>, Channel)> {
        let slots = self.slots.lock();
        slots.values().filter_map(|slot| Some((Arc::clone(&slot.upstream), slot.channel.lock().take()?))).collect()
    }

    fn slot(&self, upstream: &Arc<Upstream>) -> Arc<ChannelSlot> {
        let new = || ChannelSlot {
            upstream: Arc::clone(upstream),
            channel: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        };
        let mut slots = self.slots.lock();
        let slot = slots.entry(upstream.key().clone()).or_insert_with(|| Arc::new(new()));
        match Arc::ptr_eq(&slot.upstream, upstream) {
            true => Arc::clone(slot),
            // What is opened for a call that began before is no other's.
            false if upstream.is_retired() => Arc::new(new()),
            false => {
                *slot = Arc::new(new());
                Arc::clone(slot)
            }
        }
    }
}
