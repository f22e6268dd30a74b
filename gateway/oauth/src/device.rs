//! Signing in with another device, where there is no browser (RFC 8628).

use std::time::Duration;

use oauth2::StandardDeviceAuthorizationResponse;
use url::Url;
use weir_flow::Backoff;

use crate::{Http, Scopes, TokenEndpoint, TokenError, Tokens};

/// A sign-in that waits for its user at another device.
pub struct DeviceSignIn {
    /// Where the user goes. From the server: to be shown as text, and as a link only because it is http or https.
    pub page: Url,
    /// What the user types there.
    pub code: String,
    /// The same page with the code in it already.
    pub page_with_code: Option<Url>,
    /// How long the code is good.
    pub lifetime: Duration,
    details: StandardDeviceAuthorizationResponse,
}

/// Longer than anybody waits at a terminal; some servers say years.
const MAX_LIFETIME: Duration = Duration::from_secs(1800);
/// RFC 8628 §3.4.
const DEVICE_CODE: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Between two questions: a server that says 0 means soon, and not without a break.
const SHORTEST: Duration = Duration::from_secs(1);
/// Added for each `slow_down` (RFC 8628 §3.5).
const SLOWER: Duration = Duration::from_secs(5);
/// In trouble.
const LONGEST: Duration = Duration::from_secs(10);
/// More than a person types.
const MAX_CODE: usize = 64;

/// Asks the server for a code.
///
/// # Errors
/// If it has none for this client.
pub async fn begin(http: &Http, endpoint: &TokenEndpoint<'_>, scopes: &Scopes) -> Result<DeviceSignIn, TokenError> {
    let url = endpoint.server.device_authorization_endpoint.as_ref();
    let url = url.ok_or(TokenError::Unsupported("device flow"))?;
    let malformed = || TokenError::Malformed(crate::http::origin(url));
    let answer = endpoint.post_for_resource(http, url, &[("scope", &scopes.render())]).await?;
    let details: StandardDeviceAuthorizationResponse = serde_json::from_slice(&answer).map_err(|_| malformed())?;
    let web = |text: &str| Url::parse(text).ok().filter(|url| matches!(url.scheme(), "https" | "http"));
    let code = details.user_code().secret().clone();
    if code.is_empty() || code.len() > MAX_CODE || code.chars().any(char::is_control) {
        return Err(malformed());
    }
    Ok(DeviceSignIn {
        page: web(details.verification_uri()).ok_or_else(malformed)?,
        page_with_code: details.verification_uri_complete().and_then(|uri| web(uri.secret())),
        code,
        lifetime: details.expires_in().min(MAX_LIFETIME),
        details,
    })
}

impl DeviceSignIn {
    /// Waits until the user has signed in, asking as often as the server allows. May be dropped at any time.
    ///
    /// # Errors
    /// If the user said no, or did not come in time.
    pub async fn finish(self, http: &Http, endpoint: &TokenEndpoint<'_>) -> Result<Tokens, TokenError> {
        self.finish_with(http, endpoint, tokio::time::sleep).await
    }

    async fn finish_with<F: Future<Output = ()>>(
        self,
        http: &Http,
        endpoint: &TokenEndpoint<'_>,
        sleep: impl Fn(Duration) -> F,
    ) -> Result<Tokens, TokenError> {
        let code = self.details.device_code().secret().as_str();
        let until = endpoint.clock.now() + self.lifetime;
        let mut interval = self.details.interval().clamp(SHORTEST, MAX_LIFETIME);
        let (mut wait, mut backoff) = (interval, None);
        loop {
            if endpoint.clock.now() + wait > until {
                return Err(TokenError::Expired);
            }
            sleep(wait).await;
            match endpoint.grant(http, &[("grant_type", DEVICE_CODE), ("device_code", code)]).await {
                Err(TokenError::Refused(code)) if code == "authorization_pending" => {}
                Err(TokenError::Refused(code)) if code == "slow_down" => interval += SLOWER,
                // RFC 8628 §3.5: longer each time the server cannot be reached, but not so long that nobody waits.
                Err(TokenError::Temporary { retry_after, .. }) => {
                    let backoff = backoff.get_or_insert(Backoff::new(interval * 2, LONGEST));
                    let asked = retry_after.unwrap_or_default().min(MAX_LIFETIME);
                    wait = backoff.pause(Some(asked.max(interval)), getrandom::u32().unwrap_or_default());
                    continue;
                }
                done => return done,
            }
            (wait, backoff) = (interval, None);
        }
    }
}

#[cfg(test)]
mod tests;
