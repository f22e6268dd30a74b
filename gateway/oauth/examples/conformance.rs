//! The smallest MCP client that signs in with this crate, for the client scenarios of the conformance suite:
//!
//! ```text
//! conformance client --command target/debug/examples/conformance --suite auth
//! ```
//!
//! The suite starts it with the URL of a server as its last argument, and says in the environment which scenario it is.

#![allow(clippy::unwrap_used, reason = "it is a test")]

use std::{env, sync::Arc};

use anyhow::{Context, Result, bail};
use reqwest::{RequestBuilder, Response, StatusCode, header};
use serde_json::{Value, json};
use url::Url;
use weir_oauth::{
    AddressPolicy, Callback, Challenge, ClientAuth, Clock, Http, KnownClient, OAuthApplication, Prepared,
    PreparedUpstream, PrivateKey, ProofKey, Redirect, Registration, RequestLimits, Scopes, Secret, ServerMetadata,
    Subject, TokenEndpoint, TokenKind, Tokens, authorize, grants, prepare, proof,
};
use weir_store::MemoryStore;

const REDIRECT: &str = "http://127.0.0.1:41235/oauth/callback";
/// What the suite expects of a client that has a document; it is never fetched.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";

/// One more than a server needs that names its scopes one after the other.
const MAX_STEPS: u8 = 2;

struct Run {
    http: Http,
    plain: reqwest::Client,
    clock: Clock,
    store: MemoryStore,
    url: Url,
    modern: bool,
    scenario: String,
    context: Value,
    token: Option<Secret>,
    /// The key of a token that is bound to one.
    key: Option<Arc<ProofKey>>,
    scopes: Scopes,
    /// How often more scopes were asked for.
    steps: u8,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = env::args().next_back().context("no URL")?;
    let context = env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_else(|_| "{}".to_owned());
    let mut run = Run {
        http: Http::new(AddressPolicy { loopback: true, private: false }, RequestLimits::default(), &[])?,
        plain: reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build()?,
        clock: Clock::system(),
        store: MemoryStore::new(Clock::system()),
        url: url.parse()?,
        modern: env::var("MCP_CONFORMANCE_PROTOCOL_VERSION").is_ok_and(|version| version.as_str() >= "2026-07-28"),
        scenario: env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default(),
        context: serde_json::from_str(&context)?,
        token: None,
        key: None,
        scopes: Scopes::default(),
        steps: 0,
    };
    if !run.modern {
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "weir", "version": "0" },
        });
        run.request("initialize", hello, true).await?;
        run.request("notifications/initialized", json!({}), false).await?;
    }
    run.request("tools/list", json!({}), true).await?;
    run.request("tools/call", json!({ "name": "test-tool", "arguments": {} }), true).await
}

impl Run {
    /// One request, as often as signing in or stepping up makes sense.
    async fn request(&mut self, method: &str, params: Value, answered: bool) -> Result<()> {
        let mut signed_in = false;
        loop {
            let response = self.send(method, &params, answered).await?;
            let said =
                Challenge::token(response.headers().get_all(header::WWW_AUTHENTICATE).iter().map(|v| v.as_bytes()));
            match response.status() {
                StatusCode::UNAUTHORIZED if !signed_in => {
                    signed_in = true;
                    self.sign_in(said.as_ref(), None).await?;
                }
                StatusCode::FORBIDDEN
                    if said.as_ref().is_some_and(|said| said.get("error") == Some("insufficient_scope")) =>
                {
                    let said = said.context("no challenge")?;
                    let wanted = Scopes::parse(said.scope().unwrap_or_default());
                    self.steps += 1;
                    if self.steps > MAX_STEPS || self.scopes.covers(&wanted) {
                        bail!("no more scopes to ask for");
                    }
                    self.sign_in(Some(&said), Some(self.scopes.union(&wanted))).await?;
                }
                status if status.is_success() => return Ok(()),
                status => bail!("{method}: {status}"),
            }
        }
    }

    async fn send(&self, method: &str, params: &Value, answered: bool) -> Result<Response> {
        let mut params = params.clone();
        let mut request = self
            .plain
            .post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream");
        if self.modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": { "name": "weir", "version": "0" },
            });
            request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method);
            if let Some(name) = params["name"].as_str() {
                request = request.header("mcp-name", name);
            }
        } else if method != "initialize" {
            request = request.header("mcp-protocol-version", "2025-11-25");
        }
        let mut message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        if answered {
            message["id"] = json!(1);
        }
        let request = request.body(message.to_string());
        match (&self.key, &self.token) {
            (Some(key), Some(token)) => self.send_proved(request, key, token).await,
            (None, Some(token)) => Ok(request.bearer_auth(token.expose()).send().await?),
            _ => Ok(request.send().await?),
        }
    }

    /// With a proof (RFC 9449 §7.1), and once more with the nonce that the server names.
    async fn send_proved(&self, request: RequestBuilder, key: &ProofKey, token: &Secret) -> Result<Response> {
        let (mut again, hash) = (true, proof::hash(token.expose().as_bytes()));
        loop {
            let made = key.proof("POST", self.url.as_str(), Some(&hash), self.clock.now())?;
            let request = request.try_clone().context("a body that is gone")?;
            let authorization = format!("DPoP {}", token.expose());
            let response =
                request.header(header::AUTHORIZATION, authorization).header(proof::DPOP, made).send().await?;
            let said = response.headers().get_all(header::WWW_AUTHENTICATE).iter().map(|value| value.as_bytes());
            let asked =
                proof::asks_for_nonce(said) && key.learn(self.url.as_str(), response.headers().get(proof::DPOP_NONCE));
            if !asked || !std::mem::take(&mut again) {
                return Ok(response);
            }
        }
    }

    async fn sign_in(&mut self, said: Option<&Challenge>, scopes: Option<Scopes>) -> Result<()> {
        let upstream = PreparedUpstream {
            name: "conformance".to_owned(),
            url: self.url.clone(),
            issuer: None,
            registration: self.registration(),
            scopes: None,
            names_resource: true,
            signs_in: !self.scenario.contains("client-credentials"),
            dpop: None,
        };
        let mut prepared = prepare(&self.http, &self.store, &self.clock, &upstream, said, None).await?;
        if let Some(scopes) = scopes {
            prepared.scopes = scopes;
        }
        let tokens = match self.scenario.as_str() {
            name if name.contains("client-credentials") => {
                grants::client_credentials(&self.http, &prepared.endpoint(&self.clock), &prepared.scopes).await?
            }
            name if name.contains("enterprise-managed") => self.vouched(&prepared).await?,
            name if name.contains("wif") => {
                let statement = Secret::new(self.text("valid_jwt").context("no statement")?);
                grants::assertion(&self.http, &prepared.endpoint(&self.clock), &statement, &prepared.scopes).await?
            }
            _ => self.browse(&prepared).await?,
        };
        self.key = prepared.proof.filter(|_| tokens.is_bound()).map(|proof| proof.key);
        self.scopes = tokens.scopes.unwrap_or(prepared.scopes);
        self.token = Some(tokens.access);
        Ok(())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.context[name].as_str().map(str::to_owned)
    }

    fn registration(&self) -> Registration {
        let secret = |name| self.text(name).map(Secret::new);
        let auth = match (secret("private_key_pem"), secret("client_secret")) {
            (Some(pem), _) => {
                let algorithm = self.text("signing_algorithm").unwrap_or_else(|| "ES256".to_owned());
                ClientAuth::PrivateKey(PrivateKey { pem, algorithm, id: None })
            }
            (None, Some(secret)) => ClientAuth::Basic(secret),
            (None, None) => ClientAuth::None,
        };
        let known = self.text("client_id").map(|id| KnownClient {
            client: OAuthApplication { id, auth },
            issuer: None,
            upstream: None,
        });
        Registration {
            known,
            document: DOCUMENT.parse().ok(),
            name: "Weir".to_owned(),
            redirect: Some(Redirect::Below(REDIRECT.to_owned())),
            grants: vec!["authorization_code", "refresh_token"],
            key: None,
        }
    }

    /// Signs in as the suite's servers do it: they send the user back at once.
    async fn browse(&self, prepared: &Prepared) -> Result<Tokens> {
        let (url, pending) = authorize::begin(&self.http, prepared.sign_in())?;
        let response = self.plain.get(url.clone()).send().await?;
        let back = response.headers().get(header::LOCATION).context("no redirect")?.to_str()?;
        let back = url.join(back)?;
        Ok(pending.finish(&self.http, Callback::parse(&back[url::Position::BeforePath..]), &self.clock).await?)
    }

    async fn vouched(&self, prepared: &Prepared) -> Result<Tokens> {
        let provider = ServerMetadata {
            issuer: self.text("idp_issuer").context("no provider")?,
            token_endpoint: self.text("idp_token_endpoint").and_then(|url| url.parse().ok()),
            ..ServerMetadata::default()
        };
        let client = OAuthApplication::public(self.text("idp_client_id").context("no client at the provider")?);
        let identity = Secret::new(self.text("idp_id_token").context("no identity")?);
        let provider =
            TokenEndpoint { server: &provider, client: &client, resource: None, proof: None, clock: &self.clock };
        let subject = Subject { token: &identity, kind: TokenKind::Identity };
        let endpoint = prepared.endpoint(&self.clock);
        Ok(grants::vouched(&self.http, &provider, subject, &endpoint, &prepared.scopes).await?)
    }
}
