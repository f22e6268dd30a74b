//! The calls of a day, written down so that a restart gives nobody a new budget, and several processes count together.
//!
//! Principals are spread over a few values of the store, each a JSON object of counts that anybody may see who can read
//! the file. What was counted since is added to what is there, so that no process undoes what another has written.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ring::digest::{SHA256, digest};
use weir_store::{Key, Listed, Swap, Value};

use crate::{
    admission::{DayBudget, day},
    telemetry::LogThrottle,
};

use super::{
    CredentialManager, TokenStoreError,
    token_store::{StorePlace, StoreState},
};

/// How often counts are written: a crash forgets no more.
const PAUSE: Duration = Duration::from_secs(10);

/// The same where other machines count too: as long, they do not know of a call.
const PAUSE_SHARED: Duration = Duration::from_secs(2);

/// How long counts are kept; those of yesterday count no more.
const KEPT: Duration = Duration::from_secs(48 * 3600);

/// Over how many values principals are spread.
const VALUES: u8 = 64;

/// How often another process may be faster.
const TRIES: usize = 8;

const NAMESPACE: &str = "calls-per-day";

type Counts = BTreeMap<String, u64>;

impl CredentialManager {
    /// Reads what was counted today. Needs no key of the store, and makes no file.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn read_calls(&self, budget: &DayBudget) -> Result<(), TokenStoreError> {
        if !budget.is_limited() {
            return Ok(());
        }
        let today = day(std::time::SystemTime::now());
        let below = [Key::new(NAMESPACE, &[&today.to_string()])];
        for Listed { about, .. } in self.token_store.peek(&below).await? {
            for (principal, written) in counts(&about) {
                budget.note(today, &principal, written, 0);
            }
        }
        Ok(())
    }

    /// Writes what is counted, time and again until it is dropped.
    pub async fn keep_calls(&self, budget: &DayBudget) {
        let told = LogThrottle::default();
        let pause = if self.is_shared() { PAUSE_SHARED } else { PAUSE };
        let mut before = None;
        let mut was_limited = budget.is_limited();
        loop {
            tokio::time::sleep(pause).await;
            let is_limited = budget.is_limited();
            let begins = is_limited && !was_limited;
            was_limited = is_limited;
            let mut done = self.write_calls(budget).await;
            if begins && done.is_ok() {
                // A reload has set a limit: what was counted before on this day counts.
                done = self.read_calls(budget).await;
            }
            if self.is_shared() && is_limited && done.is_ok() {
                done = self.read_changed_calls(budget, &mut before).await;
            }
            if let Err(why) = done
                // That a shared store is away is told already.
                && !(self.is_shared() && why.is_away())
                && told.is_due()
            {
                tracing::error!("a restart would forget the calls of today, which cannot be written: {why}");
            }
        }
    }

    /// Reads what was counted by others since.
    async fn read_changed_calls(
        &self,
        budget: &DayBudget,
        before: &mut Option<StoreState>,
    ) -> Result<(), TokenStoreError> {
        let now = Some(self.token_store.state(NAMESPACE).await?);
        if now != *before {
            self.read_calls(budget).await?;
            *before = now;
        }
        Ok(())
    }

    /// Adds what was counted since the last time to what is in the store.
    ///
    /// # Errors
    /// If the store cannot be written. What was counted is then written the next time.
    pub async fn write_calls(&self, budget: &DayBudget) -> Result<(), TokenStoreError> {
        let (today, unwritten) = budget.unwritten();
        if unwritten.is_empty() || matches!(self.token_store.place, StorePlace::Nowhere) {
            return Ok(());
        }
        let mut values: BTreeMap<u8, Vec<(Arc<str>, u64)>> = BTreeMap::new();
        for (principal, calls) in unwritten {
            let hash = digest(&SHA256, principal.as_bytes());
            let value = hash.as_ref().first().copied().unwrap_or_default() % VALUES;
            values.entry(value).or_default().push((principal, calls));
        }
        let store = self.token_store.open().await?.store.as_ref();
        for (value, added) in values {
            let key = Key::new(NAMESPACE, &[&today.to_string(), &format!("{value:02x}")]);
            for _ in 0..TRIES {
                let there = store.get(&key).await?;
                let mut all = there.as_ref().map(|entry| counts(&entry.value.about)).unwrap_or_default();
                for (principal, calls) in &added {
                    *all.entry(principal.to_string()).or_default() += calls;
                }
                let about = serde_json::to_string(&all).unwrap_or_default();
                let value = Value { about, secret: Default::default() };
                let version = there.map(|entry| entry.version);
                if let Swap::Done(_) = store.swap(&key, version, &value, Some(KEPT)).await? {
                    for (principal, calls) in &added {
                        budget.note(today, principal, all.get(&**principal).copied().unwrap_or_default(), *calls);
                    }
                    break;
                }
            }
        }
        Ok(())
    }
}

fn counts(about: &str) -> Counts {
    serde_json::from_str(about).unwrap_or_default()
}
