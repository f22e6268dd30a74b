//! `/connect`: where a caller sees how they stand with each upstream, and signs in there.
//!
//! Plain pages and forms, nothing that runs in the browser. What changes something is a POST with the key of the browser's
//! own page; who the browser is, [`browser_sessions`] knows, once its person has come in ([`enter`]): as a rule by a sign-in at
//! the issuer of callers ([`oidc`]). What the buttons do is in [`actions`]. Below `/oauth/callback` is where authorization
//! servers send browsers back to, each to an address of its own. A sign-in belongs to the browser and the caller that began it: nobody else can end it, and it
//! ends once. Where Weir issues tokens, people let clients have them in [`authorize`].

mod actions;
mod approve;
mod authorize;
mod browser_sessions;
mod console;
mod console_page;
mod cookie;
mod enter;
mod page;
mod oidc;
mod schema_form;

use std::sync::Arc;

use url::form_urlencoded;

use crate::{
    caller::Caller,
    config::{Config, ConsoleConfig},
    credential::{
        CredentialManager, CredentialOwner, SignInState as LoginState, Standing, StoreStanding, TokenStoreError,
    },
    http::{HeaderName, HeaderValue, RETRY_AFTER},
    sign_in_links::{CALLBACK, SignInLinks, VISIT},
    telemetry::audit,
};

use super::{App, authn::Authenticator, client_metadata::ClientMetadata, listen::HttpExchange};

pub(super) use authorize::AUTHORIZE;
use browser_sessions::{BrowserSession, BrowserSessions};
use cookie::Cookie;
use oidc::OidcLogins;
use page::{Document, Row, RowState};

/// Where requests for approvals are, below the page.
const APPROVE: &str = "approve";

/// What signs out MCP clients, below the page.
const CLIENTS: &str = "clients";

/// The longest form, in bytes.
pub(super) const FORM: usize = 16 * 1024;

/// How much of a page may be icons of servers, in bytes. The rest show none.
const ICONS: usize = 64 * 1024;

const LOCATION: HeaderName = HeaderName::from_static("location");
const SET_COOKIE: HeaderName = HeaderName::from_static("set-cookie");

/// What every page says to the browser: nothing is loaded, nothing runs, nobody frames it, nothing is kept, and no address
/// with a ticket or a code in it is told to another site.
const HEADERS: [(&str, &str); 6] = [
    ("content-type", "text/html; charset=utf-8"),
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// What it takes to sign in with a browser.
pub struct Connect {
    manager: Arc<CredentialManager>,
    invitations: Arc<SignInLinks>,
    browser_sessions: BrowserSessions,
    /// How people say who they are, for each issuer; none where nobody is asked.
    logins: Vec<OidcLogins>,
    client: ClientMetadata,
    trusts_links: bool,
    console: ConsoleConfig,
    /// Says which gateway knows a browser.
    gateway: Cookie,
}

/// What a browser is given.
enum BrowserReply {
    Page(u16, Document),
    /// Elsewhere, which is got and not posted to (RFC 9110 §15.4.4).
    Go(String),
}

impl Connect {
    /// How a shared store stands.
    pub(super) fn store_standing(&self) -> StoreStanding {
        self.manager.store_standing()
    }

    /// Over these logins, for browsers that come by these links and whose people are callers.
    pub fn new(
        config: &Config,
        manager: Arc<CredentialManager>,
        invitations: Arc<SignInLinks>,
        authn: &Authenticator,
    ) -> Self {
        let secure = invitations.root().starts_with("https:");
        let asked = config.inbound.iter().zip(authn.providers()).filter(|_| !config.trusts_sign_in_links());
        let redirects = invitations.visit_redirects(config.inbound.iter().map(|inbound| inbound.issuer.as_str()));
        let logins = asked.zip(redirects).map(|((inbound, provider), (_, redirect))| {
            OidcLogins::new(manager.identity(config, inbound), provider.clone(), redirect, secure)
        });
        let logins = logins.collect();
        let client = ClientMetadata::new(config, &invitations);
        Self {
            manager,
            invitations,
            browser_sessions: BrowserSessions::new(secure),
            logins,
            client,
            trusts_links: config.trusts_sign_in_links(),
            console: config.console.clone(),
            gateway: Cookie::new("weir-gateway", secure),
        }
    }

    /// The gateway that knows a browser: that of the link that it opens, or the one that it was at.
    pub(super) fn gateway_of(&self, exchange: &HttpExchange) -> Option<String> {
        let ticket = exchange.query().and_then(|query| value(query.as_bytes(), "ticket"));
        let of_ticket = ticket.as_deref().and_then(SignInLinks::gateway_of).map(str::to_owned);
        of_ticket.or_else(|| self.gateway.values(&exchange.cookies()).next().map(str::to_owned))
    }

    /// What authorization servers read of Weir at a path, if anything.
    pub(super) fn client_metadata(&self, path: &str) -> Option<bytes::Bytes> {
        Some(self.client.at(path)?.to_string().into())
    }
}

/// Whether a browser opens the console.
pub(super) fn is_console(exchange: &HttpExchange) -> bool {
    let is_page = |accept: &str| accept.split(',').any(|range| range.trim().starts_with("text/html"));
    (exchange.method(), exchange.path()) == ("GET", "/") && exchange.header("accept").is_some_and(is_page)
}

/// The server that a path of the console names.
fn console_path<'p>(path: &'p str, page: &str) -> Option<&'p str> {
    let (name, rest) = path.strip_prefix("/connect/")?.split_once('/')?;
    (rest == page).then_some(name)
}

/// Whether browsers come there.
fn lets_in(method: &str, path: &str) -> bool {
    let takes_away = path.ends_with("/logout") || path.starts_with("/connect/clients/");
    match method {
        "POST" => !takes_away,
        _ => is_callback(path) || path.starts_with(VISIT),
    }
}

pub(super) fn is_page(path: &str) -> bool {
    path == "/connect" || path == AUTHORIZE || path.starts_with("/connect/") || is_callback(path)
}

/// Whether an authorization server sends browsers there.
fn is_callback(path: &str) -> bool {
    path.strip_prefix(CALLBACK).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl App {
    /// Answers a browser.
    pub(super) async fn connect(&self, exchange: &mut HttpExchange) {
        let path = exchange.path().to_owned();
        let mut cookie = None;
        let reply = match self.refused(exchange) {
            Some(refused) => refused,
            None => self.page(exchange, &path, &mut cookie).await,
        };
        let mut head: Vec<(HeaderName, HeaderValue)> = HEADERS
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        if let Some(mut cookie) = cookie.and_then(|cookie: String| HeaderValue::from_str(&cookie).ok()) {
            cookie.set_sensitive(true);
            head.push((SET_COOKIE, cookie));
        }
        if let Some(registry) = self.proxy.registry() {
            let known = self.connect.gateway.set(&registry.replicas().me().id, None);
            head.extend(HeaderValue::from_str(&known).ok().map(|known| (SET_COOKIE, known)));
        }
        if matches!(reply, BrowserReply::Page(503, _)) {
            head.push((RETRY_AFTER, HeaderValue::from_static("5")));
        }
        match reply {
            BrowserReply::Page(status, page) => {
                exchange.respond(status, &head, page.html(&self.connect.console).into()).await;
            }
            BrowserReply::Go(to) => {
                if let Ok(to) = HeaderValue::from_str(&to) {
                    head.push((LOCATION, to));
                }
                exchange.respond(303, &head, bytes::Bytes::new()).await;
            }
        }
    }

    /// Why a request is turned away before it is looked at: a host that is not served here, a form from another site, what
    /// cannot be recorded, or a gateway at which nobody is known.
    fn refused(&self, exchange: &HttpExchange) -> Option<BrowserReply> {
        if let Err(why) = self.origin_check.admit(exchange.host(), None) {
            self.note_refusal(exchange, "origin refused", &why);
            return Some(BrowserReply::Page(403, page::alone("Not here", &why.to_string())));
        }
        let (origin, root) = (exchange.header("origin"), self.connect.invitations.root());
        if origin.is_some_and(|origin| !self.is_own(origin, root)) {
            return Some(BrowserReply::Page(403, page::alone("Not here", "This form was sent by another site.")));
        }
        if lets_in(exchange.method(), exchange.path()) && audit::refusal().is_some() {
            let text = "What is done here has to be recorded, and that cannot be done now. Try again later.";
            return Some(BrowserReply::Page(503, page::alone("Not now", text)));
        }
        if !self.authn.are_proved() && !self.authn.are_local() {
            let text = "Everybody may call this gateway, so nobody is known here. Its operator signs in with: weir auth login NAME";
            return Some(BrowserReply::Page(403, page::alone("Sign in elsewhere", text)));
        }
        if self.authn.are_proved() && self.connect.logins.is_empty() && !self.connect.trusts_links {
            let text = "Programs call this gateway, and nobody says here who sits at a browser. Its operator signs in with: weir auth login NAME";
            return Some(BrowserReply::Page(403, page::alone("Sign in elsewhere", text)));
        }
        None
    }

    fn is_own(&self, origin: &str, root: &str) -> bool {
        let origin_of = |url: &str| url::Url::parse(url).map(|url| url.origin().ascii_serialization()).ok();
        origin_of(root).is_some_and(|own| own == origin)
    }

    async fn page(&self, exchange: &mut HttpExchange, path: &str, cookie: &mut Option<String>) -> BrowserReply {
        let browser = self.connect.browser_sessions.get(&exchange.cookies());
        let address = exchange.peer().ip();
        match (exchange.method(), path) {
            ("GET", "/" | "/connect") => self.arrive(exchange, browser, cookie).await,
            ("POST", "/connect") => {
                let Ok(form) = exchange.read_body(FORM).await else { return bad_form() };
                let ticket = value(&form, "ticket").unwrap_or_default();
                self.confirm(exchange, &ticket, cookie).await
            }
            ("GET", AUTHORIZE) => self.authorize(exchange, browser, cookie).await,
            ("POST", AUTHORIZE) => self.decide(exchange, browser).await,
            ("GET", path) if is_callback(path) => self.come_back(&target(exchange), browser, address).await,
            ("GET", path) if path.starts_with(VISIT) => {
                self.vouched_for(exchange, &target(exchange), browser.as_ref(), cookie).await
            }
            ("POST", path) if let Some(name) = console_path(path, "call") => {
                self.try_tool(exchange, browser, name).await
            }
            ("POST", path) => {
                let Some((name, act)) = path.strip_prefix("/connect/").and_then(|rest| rest.split_once('/')) else {
                    return missing();
                };
                let (name, act) = (name.to_owned(), act.to_owned());
                let Ok(form) = exchange.read_body(FORM).await else { return bad_form() };
                let key = value(&form, "key").unwrap_or_default();
                match browser.filter(|browser| browser.is_key(&key)) {
                    Some(browser) if name == APPROVE && !matches!(&*act, "login" | "logout") => {
                        let answer = value(&form, "answer").unwrap_or_default();
                        self.answer_approval(&browser, (&act, &answer)).await
                    }
                    Some(browser) if name == CLIENTS && !matches!(&*act, "login" | "logout") => {
                        self.sign_out_clients(&browser, &act, address).await
                    }
                    Some(browser) if act == "retry" => self.retry(&browser, &name),
                    Some(browser) => self.act(&browser, &name, &act, address).await,
                    None => self.old_page(),
                }
            }
            ("GET", path) if let Some(name) = console_path(path, "tools") => {
                if let Some(reply) = self.elsewhere(exchange) {
                    return reply;
                }
                match browser.or_else(|| self.enter_locally(cookie)) {
                    Some(browser) => self.tools(exchange, &browser, name).await,
                    None => self.arrive(exchange, None, cookie).await,
                }
            }
            ("GET", path) => match (path.strip_prefix("/connect/approve/"), browser) {
                (Some(id), Some(browser)) => self.approval(&browser, id).await,
                // The page that follows the sign-in lists what waits.
                (Some(_), None) => self.arrive(exchange, None, cookie).await,
                (None, _) => missing(),
            },
            _ => BrowserReply::Page(405, page::alone("Not done", "This cannot be done here.")),
        }
    }

    /// The form is not of a page that was made for this browser, or too old.
    fn old_page(&self) -> BrowserReply {
        let text = "This page is too old, or was not made for this browser. Open it again.";
        BrowserReply::Page(403, page::message("Not done", text, &self.connect.invitations.page()))
    }

    /// The page with all servers: for signing in, or the console.
    async fn overview(&self, browser: &BrowserSession, is_console: bool) -> BrowserReply {
        let waiting = self.waiting_for(browser.caller()).await;
        let clients = self.allowed_clients(browser.caller()).await;
        match (self.rows(browser.caller(), is_console).await, waiting) {
            (Ok(rows), Ok(waiting)) => {
                let who = (!browser.caller().is_local()).then(|| name_of(browser.caller()));
                let (who, notice) = (who.as_deref(), browser.notice());
                let (notice, key) = (notice.as_ref(), browser.key());
                let (clients, waiting) = (&clients[..], &*waiting);
                let can_change = !self.connect.logins.is_empty();
                let overview = page::Overview { rows: &rows, who, notice, waiting, clients, key, can_change };
                let page = if is_console { self.console(&overview, browser.caller()) } else { page::page(&overview) };
                BrowserReply::Page(200, page)
            }
            (Err(why), _) => self.trouble(why.is_away(), &why),
            (_, Err(why)) => self.trouble(why.is_away(), &why),
        }
    }

    /// Weir cannot do it, or not now.
    fn trouble(&self, is_away: bool, why: &dyn std::fmt::Display) -> BrowserReply {
        let (status, title) = if is_away { (503, "Not now") } else { (500, "Trouble") };
        let text = if is_away { format!("{why}. Look again later whether it was done.") } else { why.to_string() };
        BrowserReply::Page(status, page::message(title, &text, &self.connect.invitations.page()))
    }

    /// How a caller stands with every upstream, and if wanted how it stands itself.
    async fn rows(&self, caller: &Arc<Caller>, with_health: bool) -> Result<Vec<Row>, TokenStoreError> {
        let states = self.connect.manager.states(Some(caller)).await?;
        let mut room = ICONS;
        let row = |upstream: &Arc<crate::upstream::Upstream>| {
            let (name, status) = (upstream.name(), upstream.status());
            let mut identity = status.identity;
            match room.checked_sub(identity.icon.as_deref().map_or(0, str::len)) {
                Some(left) => room = left,
                None => identity.icon = None,
            }
            let state = states.iter().find(|state| state.upstream == name).filter(|state| state.for_people);
            let asks = status.state.wants_login();
            let state = state.map_or(RowState::Open, |state| self.state(state, caller, asks));
            let health = with_health.then(|| console::server_health(upstream, caller));
            Row { name: name.to_owned(), state, identity, health }
        };
        let snapshot = self.proxy.snapshot();
        let usable = |upstream: &&Arc<crate::upstream::Upstream>| snapshot.may_use(Some(caller), upstream.name());
        Ok(snapshot.upstreams().filter(usable).map(row).collect())
    }

    fn state(&self, login: &LoginState, caller: &Caller, asks: bool) -> RowState {
        let own = caller.is_local() || login.owner != CredentialOwner::Shared;
        let by_code = self.connect.manager.account(&login.upstream).filter(|account| account.is_by_code());
        match (login.standing, by_code) {
            (Standing::Good, _) => {
                let issuer = login.login.as_ref().map(|login| login.key.issuer.clone()).unwrap_or_default();
                RowState::SignedIn { issuer, own }
            }
            (Standing::Unasked, _) if !asks => RowState::Open,
            _ if !own => RowState::Unavailable("its operator signs in for all".to_owned()),
            (_, Some(account)) => {
                RowState::Unavailable(format!("sign in at a terminal: weir auth login {}", account.argument()))
            }
            (Standing::Ended, None) => RowState::Expired("sign in again".to_owned()),
            (Standing::TooLittle, None) => RowState::Expired("it may do too little for what was called".to_owned()),
            (Standing::Missing | Standing::Unasked, None) => RowState::SignedOut,
        }
    }
}

/// With what a browser came.
fn target(exchange: &HttpExchange) -> String {
    format!("{}?{}", exchange.path(), exchange.query().unwrap_or_default())
}

/// Who somebody is, for themselves.
fn name_of(caller: &Caller) -> String {
    let claims: serde_json::Value = serde_json::from_str(&caller.principal().claims).unwrap_or_default();
    let shown = ["email", "preferred_username", "name"].iter().find_map(|claim| claims[*claim].as_str());
    let subject = &caller.principal().subject;
    shown.map_or_else(|| subject.clone(), |shown| format!("{shown} ({subject})"))
}

/// The first value of a name in a query or a form.
fn value(text: &[u8], name: &str) -> Option<String> {
    form_urlencoded::parse(text).take(32).find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
}

fn missing() -> BrowserReply {
    BrowserReply::Page(404, page::alone("Nothing here", "There is no such page, or no such server for you."))
}

fn bad_form() -> BrowserReply {
    BrowserReply::Page(400, page::alone("Not done", "The form did not arrive."))
}
