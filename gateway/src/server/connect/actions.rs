//! What the buttons of the page do: a sign-in at an upstream, from the click to its end, and a sign-out.

use std::{net::IpAddr, sync::Arc};

use crate::{
    credential::{CredentialOwner, Secret, SignInFailure},
    telemetry::AuthRecord,
};

use super::{
    super::App,
    BrowserReply, Connect,
    browser_sessions::BrowserSession,
    missing,
    page::{self, Notice},
};

impl App {
    /// Does what a button says.
    pub(super) async fn act(&self, browser: &BrowserSession, name: &str, act: &str, address: IpAddr) -> BrowserReply {
        let Connect { manager, invitations, .. } = &self.connect;
        let owner = manager.account(name).and_then(|account| account.asker(Some(browser.caller()))).map(|by| by.owner);
        let owner = owner.filter(|_| self.proxy.snapshot().may_use(Some(browser.caller()), name));
        // What everybody shares is not one principal's to give or to take.
        let own = owner.filter(|owner| browser.caller().is_local() || *owner != CredentialOwner::Shared);
        let Some(owner) = own else { return missing() };
        let done = match act {
            "login" => {
                let binding = binding(browser);
                match manager.begin_sign_in(name, &owner, invitations.redirect(), binding).await {
                    Ok(url) => return BrowserReply::Go(url.into()),
                    Err(why) if why.is_away() => return self.trouble(true, &why),
                    Err(why) => Notice::Failed(format!("{name}: {why}")),
                }
            }
            "logout" => match self.sign_out(name, &owner, &record(browser, address).at(name)).await {
                Ok(text) => Notice::Done(text),
                Err(why) if why.is_away() => return self.trouble(true, &why),
                Err(why) => Notice::Failed(format!("{name}: {why}")),
            },
            _ => return missing(),
        };
        browser.tell(done);
        BrowserReply::Go(invitations.page())
    }

    async fn sign_out(
        &self,
        name: &str,
        owner: &CredentialOwner,
        record: &AuthRecord<'_>,
    ) -> Result<String, SignInFailure> {
        let Some(account) = self.connect.manager.account(name) else {
            return Err(SignInFailure::Not("there is no such server".to_owned()));
        };
        let said = account.sign_out(owner).await?;
        if said.is_some() {
            record.done("signed out");
        }
        match said {
            None => Ok(format!("Nobody was signed in at {name}.")),
            Some(Ok(())) => Ok(format!("Signed out of {name}.")),
            Some(Err(why)) => Ok(format!("Signed out of {name}; its server was told and said: {why}.")),
        }
    }

    /// The end of a sign-in.
    pub(super) async fn come_back(
        &self,
        target: &str,
        browser: Option<Arc<BrowserSession>>,
        address: IpAddr,
    ) -> BrowserReply {
        let Some(browser) = browser else { return self.not_begun(None) };
        let notice = match self.connect.manager.finish_sign_in(target, &binding(&browser)).await {
            Ok((upstream, _)) => {
                record(&browser, address).at(&upstream).done("signed in");
                Notice::Done(format!("Signed in at {upstream}. You can go back to your work."))
            }
            Err(why) => {
                record(&browser, address).refused("sign-in failed", &why.to_string());
                if why.is_away() {
                    return self.trouble(true, &why);
                }
                Notice::Failed(format!("Not signed in: {why}."))
            }
        };
        browser.tell(notice);
        BrowserReply::Go(self.connect.invitations.page())
    }

    /// Nobody waits for what a browser has brought back.
    pub(super) fn not_begun(&self, browser: Option<&BrowserSession>) -> BrowserReply {
        let text = "This browser has not begun a sign-in, or too long ago. Nothing was changed.";
        let page = self.connect.invitations.page();
        match browser {
            Some(browser) => {
                browser.tell(Notice::Failed(format!("Not signed in. {text}")));
                BrowserReply::Go(page)
            }
            None => BrowserReply::Page(400, page::message("Not signed in", text, &page)),
        }
    }
}

fn record(browser: &BrowserSession, address: IpAddr) -> AuthRecord<'_> {
    AuthRecord::of(Some(browser.caller().principal()), Some(address))
}

/// What only this browser of this caller can bring back.
fn binding(browser: &BrowserSession) -> Secret {
    Secret::new(format!("{}\n{}", browser.id(), browser.caller().id()))
}
