//! The upstreams that one session has opened.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::upstream::{Channel, ConnectError};

use super::lock;

/// The open upstreams of a session, by their place in the configuration.
#[derive(Default)]
pub struct UpstreamChannels {
    channels: Mutex<HashMap<usize, Arc<ChannelSlot>>>,
}

#[derive(Default)]
struct ChannelSlot {
    channel: Mutex<Option<Channel>>,
    /// Held while the upstream is opened, so that concurrent first calls open it once.
    opening: tokio::sync::Mutex<()>,
}

impl UpstreamChannels {
    /// The way to an upstream, if it is open and still carries.
    #[must_use]
    pub fn get(&self, upstream: usize) -> Option<Channel> {
        let line = lock(&self.channels).get(&upstream).cloned()?;
        let channel = lock(&line.channel);
        channel.as_ref().filter(|channel| channel.alive()).cloned()
    }

    /// The way to an upstream, opened by `open` if it is not open.
    ///
    /// # Errors
    ///
    /// What `open` gives.
    pub async fn get_or_open<F>(&self, upstream: usize, open: impl FnOnce() -> F) -> Result<Channel, ConnectError>
    where
        F: Future<Output = Result<Channel, ConnectError>>,
    {
        let line = Arc::clone(lock(&self.channels).entry(upstream).or_default());
        let _opening = line.opening.lock().await;
        if let Some(channel) = self.get(upstream) {
            return Ok(channel);
        }
        let channel = open().await?;
        *lock(&line.channel) = Some(channel.clone());
        Ok(channel)
    }

    /// Keeps a way that was opened already.
    pub fn put(&self, upstream: usize, channel: Channel) {
        let line = Arc::clone(lock(&self.channels).entry(upstream).or_default());
        *lock(&line.channel) = Some(channel);
    }

    /// Forgets a way that no longer carries, unless another call has replaced it already.
    pub fn forget(&self, upstream: usize, lost: &Channel) {
        if let Some(line) = lock(&self.channels).get(&upstream) {
            lock(&line.channel).take_if(|channel| channel.is_same(lost));
        }
    }

    /// All that are open.
    #[must_use]
    pub fn all(&self) -> Vec<(usize, Channel)> {
        let channels = lock(&self.channels);
        channels.iter().filter_map(|(upstream, line)| Some((*upstream, lock(&line.channel).clone()?))).collect()
    }

    /// Takes all that are open, to close them.
    #[must_use]
    pub fn take(&self) -> Vec<(usize, Channel)> {
        let channels = lock(&self.channels);
        channels.iter().filter_map(|(upstream, line)| Some((*upstream, lock(&line.channel).take()?))).collect()
    }
}
