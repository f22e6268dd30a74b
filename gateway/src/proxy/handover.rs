//! What clients carry for Weir, and what Weir remembers of their approved calls: it goes over to the process that takes over.
//!
//! Calls at legacy upstreams that wait for their clients' answers do not: they stand at connections, and to processes, of
//! this process.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::Proxy;

/// It, as it is written down.
#[derive(Serialize, Deserialize)]
struct StoredState {
    /// The keys of cursors, and of the state of calls whose clients were asked to sign in.
    cursors: Option<[u8; 32]>,
    sign_ins: Option<[u8; 32]>,
    /// The approved calls whose clients were asked something by their upstreams.
    continued: Vec<([u8; 32], String, Duration)>,
}

impl Proxy {
    /// What another process needs to go on with what clients carry; none where no client carries anything.
    #[must_use]
    pub fn written_state(&self) -> Option<Zeroizing<Vec<u8>>> {
        let sign_ins = self.prompt.as_ref().and_then(|prompt| prompt.seal.key_in_use());
        let state = StoredState {
            cursors: self.catalog.seal().key_in_use().map(|key| *key),
            sign_ins: sign_ins.map(|key| *key),
            continued: self.continued.written(),
        };
        let is_needed = state.cursors.is_some() || state.sign_ins.is_some() || !state.continued.is_empty();
        serde_json::to_vec(&state).ok().filter(|_| is_needed).map(Zeroizing::new)
    }

    /// Takes what another process has written, before anything is sealed here.
    pub fn add_written_state(&self, value: &[u8]) {
        let Ok(state) = serde_json::from_slice::<StoredState>(value) else { return };
        if let Some(key) = state.cursors {
            self.catalog.seal().adopt(&key);
        }
        if let (Some(prompt), Some(key)) = (&self.prompt, state.sign_ins) {
            prompt.seal.adopt(&key);
        }
        self.continued.add_written(state.continued);
    }
}
