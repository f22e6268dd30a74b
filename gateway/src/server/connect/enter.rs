//! How somebody comes in: with the link that a call has shown, or without one.
//!
//! Where callers prove who they are, so does whoever sits at a browser, at the same issuer; a ticket then only says for
//! whom a link was made, and nobody else's browser uses it up. Otherwise a person who was sent the link of another, and
//! signs in, gives that other one their accounts. That is so where the configuration has links trusted (`trust_sign_in_links`):
//! there whoever brings a ticket first, and confirms it, is taken for its owner. On a listener that only this machine
//! reaches everybody is let in.

use std::{net::IpAddr, sync::Arc, time::Instant};

use crate::{
    caller::Caller,
    sign_in_links::Redeemed,
    telemetry::{AuthRecord, Refusals},
};

use super::{
    super::{App, listen::HttpExchange},
    BrowserReply,
    browser_sessions::BrowserSession,
    missing, name_of,
    oidc::{OidcFailure, OidcLogin, OidcLogins},
    page, value,
};

/// Sign-ins that came to nothing: strangers can begin them too.
static FAILED_SIGN_INS: Refusals = Refusals::new();

impl App {
    /// Opens the page, with a link or without.
    pub(super) async fn arrive(
        &self,
        exchange: &HttpExchange,
        browser: Option<Arc<BrowserSession>>,
        cookie: &mut Option<String>,
    ) -> BrowserReply {
        let ticket = value(exchange.query().unwrap_or_default().as_bytes(), "ticket");
        match (self.connect.logins.is_empty(), ticket, browser) {
            (false, None, None) if exchange.path() != "/connect" => {
                let next = format!("{}/", self.connect.invitations.root());
                self.sign_in_for(exchange, &next, cookie).await
            }
            (false, ticket, None) => self.ask(exchange, ticket.as_deref(), cookie).await,
            (false, Some(ticket), Some(browser)) => self.redeem(&ticket, &browser, exchange.peer().ip()),
            (true, Some(ticket), browser) => self.invited(&ticket, browser),
            (_, None, Some(browser)) => self.overview(&browser, exchange.path() == "/").await,
            (true, None, None) => self.stranger(exchange, cookie).await,
        }
    }

    /// A button that says who somebody is: the one for whom a link was made, or somebody else than just now.
    pub(super) async fn confirm(
        &self,
        exchange: &HttpExchange,
        ticket: &str,
        cookie: &mut Option<String>,
    ) -> BrowserReply {
        if !self.connect.logins.is_empty() {
            return self.send(exchange, Some(ticket).filter(|ticket| !ticket.is_empty()), true, cookie).await;
        }
        match self.connect.invitations.take(ticket).and_then(|caller| self.connect.browser_sessions.open(caller)) {
            Some((browser, set)) => {
                record(browser.caller(), exchange.peer().ip()).done("link opened");
                *cookie = Some(set);
                BrowserReply::Go(self.connect.invitations.page())
            }
            None => self.over(),
        }
    }

    /// The end of a sign-in at the issuer of callers.
    pub(super) async fn vouched_for(
        &self,
        exchange: &HttpExchange,
        target: &str,
        browser: Option<&Arc<BrowserSession>>,
        cookie: &mut Option<String>,
    ) -> BrowserReply {
        let came_back = |logins: &&OidcLogins| logins.comes_back_to(exchange.path());
        let Some(logins) = self.connect.logins.iter().find(came_back) else { return missing() };
        let Some(OidcLogin { ticket, next, who }) = logins.end(&exchange.cookies(), target).await else {
            return self.not_begun(browser.map(AsRef::as_ref));
        };
        let caller = match who {
            Ok(caller) => caller,
            Err(why) => {
                if let Some(suppressed) = FAILED_SIGN_INS.admit(Instant::now()) {
                    let (issuer, suppressed) = (Some(logins.issuer()), Some(suppressed).filter(|count| *count > 0));
                    let record = AuthRecord::of(None, Some(exchange.peer().ip()));
                    AuthRecord { issuer, suppressed, ..record }.refused_unsaid("sign-in failed", &why.to_string());
                }
                return self.stopped(&why, ticket.as_deref(), next.as_deref());
            }
        };
        match browser {
            // One who is known already may have begun something, which is bound to this browser as it is.
            Some(browser) if Caller::is_same(Some(browser.caller()), Some(&caller)) => {
                self.connect.browser_sessions.renew(browser, caller);
            }
            _ => {
                let Some((opened, set)) = self.connect.browser_sessions.open(caller) else { return no_randomness() };
                record(opened.caller(), exchange.peer().ip()).done("signed in");
                *cookie = Some(set);
                if let Some(before) = browser {
                    self.connect.browser_sessions.close(before);
                }
            }
        }
        BrowserReply::Go(next.map_or_else(|| self.page_with(ticket.as_deref()), String::from))
    }

    /// Has the person at a browser sign in, and sends the browser to `next` then.
    pub(super) async fn sign_in_for(
        &self,
        exchange: &HttpExchange,
        next: &str,
        cookie: &mut Option<String>,
    ) -> BrowserReply {
        let Some(logins) = self.connect.logins.first() else { return missing() };
        match logins.begin((&exchange.cookies(), exchange.principal()), None, Some(next), false).await {
            Ok((url, set)) => {
                *cookie = Some(set);
                BrowserReply::Go(url.into())
            }
            Err(why) => self.stopped(&why, None, Some(next)),
        }
    }

    /// Has a browser that is not known say who it is for.
    async fn ask(&self, exchange: &HttpExchange, ticket: Option<&str>, cookie: &mut Option<String>) -> BrowserReply {
        match self.elsewhere(exchange) {
            Some(reply) => reply,
            None => self.send(exchange, ticket, false, cookie).await,
        }
    }

    /// Sends a browser to the issuer of the caller for whom a ticket was made, without one to the first. A ticket that is
    /// over leads nowhere. `anew` to be somebody else than the one whom the issuer remembers.
    async fn send(
        &self,
        exchange: &HttpExchange,
        ticket: Option<&str>,
        anew: bool,
        cookie: &mut Option<String>,
    ) -> BrowserReply {
        let invited = ticket.map(|ticket| self.connect.invitations.see(ticket));
        if let Some(None) = invited {
            return self.over();
        }
        let caller = invited.flatten();
        let Some(logins) = self.connect.logins.iter().find(|logins| logins.is_of(caller.as_deref())) else {
            return BrowserReply::Page(403, page::alone("Not for a browser", "This link was made for a program."));
        };
        match logins.begin((&exchange.cookies(), exchange.principal()), ticket, None, anew).await {
            Ok((url, set)) => {
                *cookie = Some(set);
                BrowserReply::Go(url.into())
            }
            Err(why) => self.stopped(&why, ticket, None),
        }
    }

    /// The way in with a ticket of one who is known.
    fn redeem(&self, ticket: &str, browser: &BrowserSession, address: IpAddr) -> BrowserReply {
        let page = self.connect.invitations.page();
        match self.connect.invitations.redeem(ticket, browser.caller()) {
            Redeemed::Theirs => {
                browser.use_up(ticket);
                record(browser.caller(), address).done("link opened");
                BrowserReply::Go(page)
            }
            Redeemed::Another => {
                record(browser.caller(), address).refused("link refused", "it was made for somebody else");
                BrowserReply::Page(403, page::another(&name_of(browser.caller()), ticket, &page))
            }
            // Clients show one link for each server that wants a login, and all of them are the same.
            Redeemed::Gone if browser.has_used(ticket) => BrowserReply::Go(page),
            Redeemed::Gone => self.over(),
        }
    }

    /// The way in with a ticket alone. Whoever opens the link is asked first: a program that looks at links must not use
    /// the ticket up, and nobody is to sign in for somebody else without a warning.
    fn invited(&self, ticket: &str, browser: Option<Arc<BrowserSession>>) -> BrowserReply {
        let invited = self.connect.invitations.see(ticket);
        let known = browser.filter(|browser| {
            invited.as_ref().is_none_or(|caller| Caller::is_same(Some(caller), Some(browser.caller())))
        });
        match (known, invited) {
            (Some(_), _) => BrowserReply::Go(self.connect.invitations.page()),
            (None, Some(caller)) => BrowserReply::Page(200, page::welcome(&name_of(&caller), ticket)),
            (None, None) => self.over(),
        }
    }

    /// A browser that is not known and brings nothing.
    async fn stranger(&self, exchange: &HttpExchange, cookie: &mut Option<String>) -> BrowserReply {
        if !self.authn.are_local() {
            let text = "Weir does not know this browser. Have your MCP client use a server that needs a sign-in, \
                        and open the link that it shows.";
            return BrowserReply::Page(401, page::alone("Who are you?", text));
        }
        if let Some(reply) = self.elsewhere(exchange) {
            return reply;
        }
        match self.enter_locally(cookie) {
            Some(browser) => self.overview(&browser, exchange.path() == "/").await,
            None => no_randomness(),
        }
    }

    /// Lets a browser in without a question, where only this machine reaches Weir.
    pub(super) fn enter_locally(&self, cookie: &mut Option<String>) -> Option<Arc<BrowserSession>> {
        let (browser, set) = self.connect.browser_sessions.open(self.authn.are_local().then(Caller::local)?)?;
        *cookie = Some(set);
        Some(browser)
    }

    /// Sends a browser to the name that it will be sent back to, for its cookie belongs to that.
    pub(super) fn elsewhere(&self, exchange: &HttpExchange) -> Option<BrowserReply> {
        let root = self.connect.invitations.root();
        let by_name = exchange.host().is_some_and(|host| host.starts_with("localhost"));
        let differs = by_name && !root.contains("://localhost") && root.contains("://127.0.0.1");
        let query = exchange.query().map(|query| format!("?{query}")).unwrap_or_default();
        differs.then(|| BrowserReply::Go(format!("{root}{}{query}", exchange.path())))
    }

    /// The page, with the ticket that somebody came with.
    fn page_with(&self, ticket: Option<&str>) -> String {
        let page = self.connect.invitations.page();
        ticket.map_or_else(|| page.clone(), |ticket| format!("{page}?ticket={ticket}"))
    }

    /// Why somebody is not let in, with the way to try once more.
    fn stopped(&self, why: &OidcFailure, ticket: Option<&str>, next: Option<&str>) -> BrowserReply {
        let (status, title) = match why {
            OidcFailure::Operator(_) => (500, "Nobody can sign in here yet"),
            OidcFailure::Later(_) => (503, "Not now"),
            OidcFailure::Refused(_) => (400, "Not signed in"),
        };
        let link = ticket.map_or("", |_| " The link is as good as before.");
        let text = format!("{why} Nothing was changed.{link}");
        BrowserReply::Page(
            status,
            page::again(title, &text, &next.map_or_else(|| self.page_with(ticket), str::to_owned)),
        )
    }

    fn over(&self) -> BrowserReply {
        let title = "This link is over";
        let text =
            "This link was used already, or is too old. Have your MCP client call again: it will show a new one.";
        let html = match self.connect.logins.is_empty() {
            false => page::message(title, text, &self.connect.invitations.page()),
            true => page::alone(title, text),
        };
        BrowserReply::Page(410, html)
    }
}

fn record(caller: &Caller, address: IpAddr) -> AuthRecord<'_> {
    AuthRecord::of(Some(caller.principal()), Some(address))
}

fn no_randomness() -> BrowserReply {
    BrowserReply::Page(500, page::alone("Trouble", "The system has no randomness to give."))
}
