//! The authorization endpoint (RFC 6749 §3.1): a client asks for tokens, and the person at the browser allows it or not.
//!
//! The person signs in at the company first. Then Weir shows the name of the client and where the browser goes, each time.
//! The form brings the key of this browser's own page, so no other site can send it. What is wrong with a request is said on
//! a page: nobody is redirected before the person has seen where to (RFC 9700 §4.11.2).

use std::{net::IpAddr, sync::Arc};

use url::Url;

use crate::{
    caller::Caller,
    credential::{ClientGrant, CodeBinding, TokenGrant},
    telemetry::AuthRecord,
};

use super::{
    super::{
        App,
        authorization::{AuthorizationServer, Form, PublicClient, is_challenge, short_id},
        listen::HttpExchange,
    },
    BrowserReply, FORM, bad_form,
    browser_sessions::BrowserSession,
    missing, name_of,
    page::{self, ALL, Consent, Notice},
    value,
};

/// Where clients send browsers.
pub(in crate::server) const AUTHORIZE: &str = "/oauth/authorize";

/// The longest query of a request, in bytes: it is kept while the person signs in.
const LONGEST: usize = 4 * 1024;

/// A request that is as it should be.
struct AuthorizationRequest {
    client_id: String,
    client: Arc<PublicClient>,
    state: Option<String>,
    binding: CodeBinding,
    resource: String,
}

impl App {
    /// A client has sent a browser.
    pub(super) async fn authorize(
        &self,
        exchange: &HttpExchange,
        browser: Option<Arc<BrowserSession>>,
        cookie: &mut Option<String>,
    ) -> BrowserReply {
        let Some(server) = self.sign_in_server() else { return missing() };
        let query = exchange.query().unwrap_or_default();
        if query.len() > LONGEST {
            return wrong("the request is too long");
        }
        // A sign-in that is older than what would come of it is done again.
        let Some(browser) = browser.filter(|browser| browser.age() < server.refresh_lifetime()) else {
            let next = format!("{}{AUTHORIZE}?{query}", self.connect.invitations.root());
            return self.sign_in_for(exchange, &next, cookie).await;
        };
        let request = match self.requested(server, query, &browser).await {
            Ok(request) => request,
            Err(why) => return wrong(&why),
        };
        BrowserReply::Page(
            200,
            page::consent(&Consent {
                client: &request.client.name,
                publisher: request.client.publisher.as_deref(),
                redirect: &request.binding.redirect,
                who: &name_of(browser.caller()),
                resource: &request.resource,
                request: query,
                key: browser.key(),
            }),
        )
    }

    /// The person has allowed a client, or not.
    pub(super) async fn decide(
        &self,
        exchange: &mut HttpExchange,
        browser: Option<Arc<BrowserSession>>,
    ) -> BrowserReply {
        let Ok(form) = exchange.read_body(FORM).await else { return bad_form() };
        let Some(server) = self.sign_in_server() else { return missing() };
        let key = value(&form, "key").unwrap_or_default();
        let Some(browser) = browser.filter(|browser| browser.is_key(&key)) else {
            let text = "This page is too old, or was not made for this browser. Have your client begin again.";
            return BrowserReply::Page(403, page::alone("Not done", text));
        };
        let query = value(&form, "request").unwrap_or_default();
        let request = match self.requested(server, &query, &browser).await {
            Ok(request) => request,
            Err(why) => return wrong(&why),
        };
        let principal = browser.caller().principal();
        let record = AuthRecord::of(Some(principal), Some(exchange.peer().ip()));
        let AuthorizationRequest { client_id, client, state, binding, resource } = request;
        let redirect = binding.redirect.clone();
        let record = AuthRecord { client: Some(short_id(&client_id)), ..record };
        let back = |name: &str, value: &str| go_back(server, &redirect, state.as_deref(), (name, value));
        if value(&form, "decision").as_deref() != Some("allow") {
            record.refused("client not allowed", "the person did not allow it");
            return back("error", "access_denied");
        }
        let scope = self.authn.scopes(principal.issuer.as_deref()).join(" ");
        let grant = TokenGrant {
            client_name: client.name.clone(),
            configured: server.has_configured(&client_id),
            ..TokenGrant::new(principal, client_id.clone(), scope, resource)
        };
        match server.store().issue_code(grant, binding, browser.age()).await {
            Ok(Some(code)) => {
                record.done("client allowed");
                back("code", code.expose())
            }
            Ok(None) => back("error", "temporarily_unavailable"),
            Err(why) => {
                tracing::error!("no code can be issued: {why}");
                back("error", "server_error")
            }
        }
    }

    /// The clients that may call in the name of a caller. None if the store cannot be read.
    pub(super) async fn allowed_clients(&self, caller: &Caller) -> Vec<ClientGrant> {
        match self.sign_in_server() {
            Some(server) => server.store().grants(Some(caller.principal())).await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Revokes what a person has allowed one client, or all (`id` is [`ALL`]).
    pub(super) async fn sign_out_clients(&self, browser: &BrowserSession, id: &str, address: IpAddr) -> BrowserReply {
        let Some(server) = self.sign_in_server() else { return missing() };
        let principal = browser.caller().principal();
        let is_meant = |grant: &ClientGrant| id == ALL || grant.id == id;
        browser.tell(match server.store().revoke_grants(Some(principal), is_meant).await {
            Ok(revoked) => {
                for grant in &revoked {
                    let client = Some(short_id(&grant.grant.client));
                    AuthRecord { client, ..AuthRecord::of(Some(principal), Some(address)) }.done("client signed out");
                }
                let (count, minutes) = (revoked.len(), server.access_lifetime().as_secs().div_ceil(60));
                Notice::Done(format!("Signed out {count}. The tokens that they have expire within {minutes} min."))
            }
            Err(why) => Notice::Failed(format!("Not signed out: {why}")),
        });
        BrowserReply::Go(self.connect.invitations.page())
    }

    /// Weir as an authorization server, if people sign in there with their clients.
    fn sign_in_server(&self) -> Option<&AuthorizationServer> {
        self.authorization.as_ref().filter(|server| server.signs_in())
    }

    /// What a client asks for in the browser of a person; else what is wrong with it.
    async fn requested(
        &self,
        server: &AuthorizationServer,
        query: &str,
        browser: &BrowserSession,
    ) -> Result<AuthorizationRequest, String> {
        let form = Form::parse(query.as_bytes()).map_err(|why| why.to_string())?;
        let need = |name: &str| form.need(name).map_err(|why| why.to_string());
        let client_id = need("client_id")?;
        let client = server.public_client(client_id, browser.caller().id()).await?;
        let (redirect, challenge) = (need("redirect_uri")?, need("code_challenge")?);
        if !client.may_return_to(redirect) {
            return Err("its `redirect_uri` is not registered".to_owned());
        }
        if form.get("response_type") != Some("code") {
            return Err("its `response_type` is not `code`".to_owned());
        }
        if form.get("code_challenge_method") != Some("S256") || !is_challenge(challenge) {
            return Err("it brings no `code_challenge` with the method S256 (PKCE, RFC 7636)".to_owned());
        }
        let resource = self.authn.resource(form.get("resource"));
        let resource = resource.ok_or("its `resource` is no endpoint of this gateway")?;
        Ok(AuthorizationRequest {
            client_id: client_id.to_owned(),
            client,
            state: form.get("state").map(str::to_owned),
            binding: CodeBinding { redirect: redirect.to_owned(), challenge: challenge.to_owned() },
            resource,
        })
    }
}

/// Tells the person what is wrong with a request.
fn wrong(why: &str) -> BrowserReply {
    let text = format!("The client that sent you here made a mistake: {why}. Nothing was changed.");
    BrowserReply::Page(400, page::alone("This request cannot be answered", &text))
}

/// Sends a browser back to its client (RFC 6749 §4.1.2; `iss`, RFC 9207).
fn go_back(
    server: &AuthorizationServer,
    redirect: &str,
    state: Option<&str>,
    (name, value): (&str, &str),
) -> BrowserReply {
    let Ok(mut url) = Url::parse(redirect) else { return missing() };
    let mut query = url.query_pairs_mut();
    query.append_pair(name, value).extend_pairs(state.map(|state| ("state", state)));
    query.append_pair("iss", server.issuer());
    drop(query);
    BrowserReply::Go(url.into())
}
