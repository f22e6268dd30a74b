//! What gateways at one store tell each other of the limits that they share.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_store::{Key, Value};

use crate::admission::{Admission, LimitUsage};

use super::{CredentialManager, TokenStoreError};

/// How often a gateway tells, and looks what others have told.
const PAUSE: Duration = Duration::from_secs(2);

/// How long what a gateway has told counts, if nothing more comes from it.
const KEPT: Duration = Duration::from_secs(10);

const NAMESPACE: &str = "limit-usage";

impl CredentialManager {
    /// Shares limits with the other gateways at a shared store, time and again until it is dropped; `gateway` is what they
    /// know this one by. While the store is away, each counts for itself.
    pub async fn share_limits(&self, gateway: &str, admission: impl Fn() -> Arc<Admission>) {
        if !self.is_shared() {
            return std::future::pending().await;
        }
        // From now on it is counted what is to be told.
        drop(admission().usage());
        let (mut was_empty, mut others_empty, mut before) = (true, true, None);
        loop {
            tokio::time::sleep(PAUSE).await;
            let admission = admission();
            let usage = admission.usage();
            let is_empty = usage.is_empty();
            let others = async {
                // What was told before ends by itself.
                if !(is_empty && was_empty) {
                    self.tell_usage(gateway, &usage).await?;
                }
                // What was told before may have ended, which is no change in the store.
                let now = Some(self.token_store.state(NAMESPACE).await?);
                let is_known = others_empty && now == before;
                before = now;
                if is_known { Ok(HashMap::new()) } else { self.told_usage(gateway).await }
            };
            match others.await {
                Ok(others) => {
                    others_empty = others.values().all(LimitUsage::is_empty);
                    admission.used_elsewhere(Some(&others));
                }
                Err(why) => {
                    tracing::debug!("each gateway counts limits for itself: {why}");
                    admission.used_elsewhere(None);
                }
            }
            was_empty = is_empty;
        }
    }

    async fn tell_usage(&self, gateway: &str, usage: &LimitUsage) -> Result<(), TokenStoreError> {
        let about = serde_json::to_string(usage).unwrap_or_default();
        let value = Value { about, secret: Default::default() };
        let store = self.token_store.open().await?.store.as_ref();
        store.put(&Key::new(NAMESPACE, &[gateway]), &value, Some(KEPT)).await?;
        Ok(())
    }

    /// What the others have told, by gateway.
    async fn told_usage(&self, gateway: &str) -> Result<HashMap<String, LimitUsage>, TokenStoreError> {
        let (all, own) = (Key::new(NAMESPACE, &[]), Key::new(NAMESPACE, &[gateway]));
        let told = self.token_store.peek(&[all]).await?.into_iter().filter(|listed| listed.key != own);
        // What a later release tells otherwise counts for nothing.
        let read =
            told.map(|listed| (format!("{:?}", listed.key), serde_json::from_str(&listed.about).unwrap_or_default()));
        Ok(read.collect())
    }
}
