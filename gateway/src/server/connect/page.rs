//! The page where people sign in at upstreams: plain HTML that works without scripts, in one answer without anything to
//! fetch.
//!
//! Whatever comes from elsewhere (names, issuers, reasons) goes through [`HtmlText`], which is the only way into the page.

use std::{
    fmt,
    time::{Duration, UNIX_EPOCH},
};

use crate::{config::ConsoleConfig, credential::ClientGrant, upstream::ServerIdentity};

use super::console_page::ServerHealth;

/// Stands for all MCP clients where the id of one could be.
pub(super) const ALL: &str = "revoke";

/// What the page shows of one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Its name in the configuration.
    pub(super) name: String,
    /// How the caller stands there.
    pub(super) state: RowState,
    /// What it says of itself.
    pub(super) identity: ServerIdentity,
    /// How it stands itself, where that is shown.
    pub(super) health: Option<ServerHealth>,
}

/// What the pages with all servers have in common.
pub(super) struct Overview<'a> {
    pub(super) rows: &'a [Row],
    /// For whom, if that is not plain.
    pub(super) who: Option<&'a str>,
    pub(super) notice: Option<&'a Notice>,
    /// What waits for an approval, as HTML.
    pub(super) waiting: &'a str,
    /// Those that may call in the name of the caller.
    pub(super) clients: &'a [ClientGrant],
    /// Goes back with each form, so that no other site can send one (OWASP, synchronizer token).
    pub(super) key: &'a str,
    /// Whether the caller may sign in as somebody else.
    pub(super) can_change: bool,
}

/// How an upstream stands for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowState {
    /// It needs no login.
    Open,
    /// There is a login.
    SignedIn {
        /// Who issued it.
        issuer: String,
        /// Whether the caller may end it.
        own: bool,
    },
    /// There is none yet.
    SignedOut,
    /// There was one, and it is no longer good; the text says why.
    Expired(String),
    /// A login cannot be had here; the text says what to do.
    Unavailable(String),
}

/// What the caller has just done, to be said at the top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// It worked.
    Done(String),
    /// It did not; the text says why and what to do.
    Failed(String),
}

/// The page for signing in.
pub(super) fn page(overview: &Overview<'_>) -> Document {
    let more = "<p><a href=\"./\">Tools, hosts and more</a></p>";
    document("Sign in", format!("{}{more}{}", servers(overview), not_you(overview)))
}

/// Leads to a sign-in as somebody else.
pub(super) fn not_you(overview: &Overview<'_>) -> &'static str {
    match overview.can_change {
        true => {
            "<form class=\"alone\" method=\"post\" action=\"connect\"><button class=\"plain\">Not you?</button></form>"
        }
        false => "",
    }
}

/// The servers, with what the caller can do about each, and the clients of the caller.
pub(super) fn servers(&Overview { rows, who, notice, waiting, clients, key, .. }: &Overview<'_>) -> String {
    let mut body = who.map(|who| format!("<p class=\"who\">For {}</p>", HtmlText(who))).unwrap_or_default();
    match notice {
        Some(Notice::Done(text)) => body += &format!("<p class=\"notice done\" role=\"status\">{}</p>", HtmlText(text)),
        Some(Notice::Failed(text)) => {
            body += &format!("<p class=\"notice failed\" role=\"alert\">{}</p>", HtmlText(text))
        }
        None => {}
    }
    body += waiting;
    if rows.is_empty() {
        body += "<p>No server here needs a login.</p>";
    } else {
        body += "<ul>";
        for row in rows {
            body += &item(row, key);
        }
        body += "</ul>";
    }
    if !clients.is_empty() {
        body += "<h2>MCP clients</h2><p>You have allowed them to call in your name.</p><ul>";
        body.extend(clients.iter().map(|client| client_item(client, key)));
        let all = form(("clients", ALL), "Sign out all", "all clients", "plain", key);
        body += &format!("<li><div><h2>{} signed in</h2></div>{all}</li></ul>", clients.len());
    }
    body
}

/// A page with one sentence, and the way to the list, which is at `home`.
pub(super) fn message(title: &str, text: &str, home: &str) -> Document {
    document(title, format!("<p>{}</p><p><a href=\"{}\">All servers</a></p>", HtmlText(text), HtmlText(home)))
}

/// A page with one sentence, and the way to do once more what has not worked.
pub(super) fn again(title: &str, text: &str, to: &str) -> Document {
    document(title, format!("<p>{}</p><p><a href=\"{}\">Try again</a></p>", HtmlText(text), HtmlText(to)))
}

/// Tells `who` that a ticket is another's.
pub(super) fn another(who: &str, ticket: &str, home: &str) -> Document {
    let (who, ticket, home) = (HtmlText(who), HtmlText(ticket), HtmlText(home));
    let body = format!(
        "<p>You are signed in as <strong>{who}</strong>, and this link was made for somebody else. It was not used, and \
         nothing was changed.</p>\
         <p>If your own MCP client has shown you the link, sign in as the person that you are there. If somebody sent it \
         to you, close this page: they would have been given what you sign in to.</p>\
         <form class=\"alone\" method=\"post\" action=\"connect\"><input type=\"hidden\" name=\"ticket\" value=\"{ticket}\">\
         <button class=\"primary\">Sign in as somebody else</button></form>\
         <p><a href=\"{home}\">Your own servers</a></p>"
    );
    document("Not your link", body)
}

/// What a person is asked about a client that wants tokens.
pub(super) struct Consent<'a> {
    /// What it calls itself.
    pub(super) client: &'a str,
    /// Who else says that it is who it is.
    pub(super) publisher: Option<&'a str>,
    /// Where the browser returns to it.
    pub(super) redirect: &'a str,
    pub(super) who: &'a str,
    pub(super) resource: &'a str,
    /// The query of the request.
    pub(super) request: &'a str,
    pub(super) key: &'a str,
}

/// Asks whether a client may act for the person at the browser.
pub(super) fn consent(asked: &Consent<'_>) -> Document {
    let Consent { client, publisher, redirect, who, resource, request, key } = *asked;
    let publisher = publisher.unwrap_or("not known: the name is the client's own word");
    let rows = [("Client", client), ("Published by", publisher), ("Asks to call", resource), ("Returns to", redirect)];
    let rows: String = rows.iter().map(|(name, text)| format!("<dt>{name}</dt><dd>{}</dd>", HtmlText(text))).collect();
    let (who, request, key) = (HtmlText(who), HtmlText(request), HtmlText(key));
    let body = format!(
        "<p class=\"who\">For {who}</p><dl>{rows}</dl>\
         <p>The client can then do there what you can do. If you did not start this, do not allow it.</p>\
         <form class=\"alone\" method=\"post\" action=\"authorize\"><input type=\"hidden\" name=\"key\" value=\"{key}\">\
         <input type=\"hidden\" name=\"request\" value=\"{request}\">\
         <button class=\"primary\" name=\"decision\" value=\"allow\">Allow</button> \
         <button class=\"plain\" name=\"decision\" value=\"deny\">Do not allow</button></form>"
    );
    document("Allow this client?", body)
}

/// A page with one sentence, for whoever has no list.
pub(super) fn alone(title: &str, text: &str) -> Document {
    document(title, format!("<p>{}</p>", HtmlText(text)))
}

/// Asks whoever brings a ticket whether they are the one it was made for.
pub(super) fn welcome(who: &str, ticket: &str) -> Document {
    let (who, ticket) = (HtmlText(who), HtmlText(ticket));
    let body = format!(
        "<p>This link was made for <strong>{who}</strong>. What you sign in to from here is theirs to use.</p>\
         <p>If that is not you, or you did not ask for it, close this page.</p>\
         <form class=\"alone\" method=\"post\" action=\"connect\"><input type=\"hidden\" name=\"ticket\" value=\"{ticket}\">\
         <button class=\"primary\">That is me</button></form>"
    );
    document("Is this you?", body)
}

fn item(row: &Row, key: &str) -> String {
    let (name, face) = (HtmlText(&row.name), face(row));
    let (mark, class, says) = match &row.state {
        RowState::Open => ("●", "good", "needs no login".to_owned()),
        RowState::SignedIn { issuer, .. } => ("●", "good", format!("signed in at {}", HtmlText(issuer))),
        RowState::SignedOut => ("○", "idle", "not signed in".to_owned()),
        RowState::Expired(why) => ("○", "bad", format!("the login has ended: {}", HtmlText(why))),
        RowState::Unavailable(why) => ("○", "bad", HtmlText(why).to_string()),
    };
    let action = match &row.state {
        RowState::SignedOut | RowState::Expired(_) => form((&row.name, "login"), "Sign in", &row.name, "primary", key),
        RowState::SignedIn { own: true, .. } => form((&row.name, "logout"), "Sign out", &row.name, "plain", key),
        RowState::Open | RowState::SignedIn { own: false, .. } | RowState::Unavailable(_) => String::new(),
    };
    let Some(health) = &row.health else {
        return format!(
            "<li><div><h2><span class=\"mark {class}\" aria-hidden=\"true\">{mark}</span> {face}</h2>\
             <p>{says}</p></div>{action}</li>"
        );
    };
    let (mark, class) = if health.is_fine { ("●", "good") } else { ("○", "bad") };
    let retry = if health.can_retry && !health.is_fine {
        form((&row.name, "retry"), "Try again", &row.name, "plain", key)
    } else {
        String::new()
    };
    format!(
        "<li><div><h2><span class=\"mark {class}\" aria-hidden=\"true\">{mark}</span> {face}</h2>{health}<p>{says}</p></div>\
         <a href=\"connect/{name}/tools\" aria-label=\"Tools: {name}\">Tools</a>{retry}{action}</li>"
    )
}

/// The name that the operator has given a server, with the icon and the title that it has itself.
fn face(row: &Row) -> String {
    let ServerIdentity { title, icon } = &row.identity;
    let icon = icon.iter().map(|icon| format!("<img src=\"{}\" alt=\"\"> ", HtmlText(icon)));
    let title = title.iter().filter(|title| ***title != row.name);
    let title = title.map(|title| format!(" <span class=\"title\">{}</span>", HtmlText(title)));
    let (icon, title) = (icon.collect::<String>(), title.collect::<String>());
    format!("{icon}{}{title}", HtmlText(&row.name))
}

fn client_item(client: &ClientGrant, key: &str) -> String {
    let name = client.name();
    let action = form(("clients", &client.id), "Sign out", name, "plain", key);
    let [since, until] =
        [client.since, client.until].map(|at| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(at)));
    let (name, resource) = (HtmlText(name), HtmlText(&client.grant.resource));
    format!(
        "<li><div><h2>{name}</h2><p>calls {resource}, since {since}, until {until} at the latest</p></div>{action}</li>"
    )
}

/// A button that does `act` to the thing with this name; `about` is what people call it.
fn form((name, act): (&str, &str), label: &str, about: &str, class: &str, key: &str) -> String {
    let (name, about, key) = (HtmlText(name), HtmlText(about), HtmlText(key));
    format!(
        "<form method=\"post\" action=\"connect/{name}/{act}\"><input type=\"hidden\" name=\"key\" value=\"{key}\">\
         <button class=\"{class}\" aria-label=\"{label}: {about}\">{label}</button></form>"
    )
}

/// A page, without what the operator has all pages show.
#[derive(Debug)]
pub(super) struct Document {
    /// None for the first page, which has the name of all.
    title: Option<String>,
    body: String,
}

pub(super) fn document(title: &str, body: String) -> Document {
    Document { title: Some(title.to_owned()), body }
}

/// The first page.
pub(super) fn front(body: String) -> Document {
    Document { title: None, body }
}

impl Document {
    /// As the browser gets it.
    pub(super) fn html(&self, console: &ConsoleConfig) -> String {
        let (name, logo) = (HtmlText(&console.name), console.logo.as_deref());
        let logo = logo.map(|logo| format!("<img src=\"{}\" alt=\"\">", HtmlText(logo))).unwrap_or_default();
        let (title, top) = match &self.title {
            Some(title) => (format!("{} · {name}", HtmlText(title)), format!("{logo}{name}")),
            None => (name.to_string(), logo),
        };
        let heading = self.title.as_deref().map_or(HtmlText(&console.name), HtmlText);
        let top = match *console == ConsoleConfig::default() {
            true => String::new(),
            false => format!("<p class=\"top\">{top}</p>"),
        };
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>{STYLE}</style></head>\
             <body><main>{top}<h1>{heading}</h1>{}</main></body></html>",
            self.body
        )
    }
}

const STYLE: &str = include_str!("page.css");

/// Text that cannot become markup.
pub(super) struct HtmlText<'a>(pub(super) &'a str);

impl fmt::Display for HtmlText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            // What turns the direction of reading could make a text look like another.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Ok(()),
            c if c.is_control() => f.write_str(" "),
            c => fmt::Write::write_char(f, c),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::credential::TokenGrant;

    use super::*;

    fn row(name: &str, state: RowState) -> Row {
        let identity = ServerIdentity { title: Some(format!("{name} Inc.").into()), icon: Some(name.into()) };
        Row { name: name.into(), state, identity, health: None }
    }

    fn overview<'a>(rows: &'a [Row], clients: &'a [ClientGrant], key: &'a str) -> Overview<'a> {
        Overview { rows, who: None, notice: None, waiting: "", clients, key, can_change: false }
    }

    fn client(name: &str) -> ClientGrant {
        let grant = TokenGrant { client: name.into(), resource: name.into(), ..TokenGrant::default() };
        ClientGrant { id: "1".into(), since: 0, until: 1, grant }
    }

    #[test]
    fn each_state_has_its_words_and_its_button() {
        let signed_in = |own| RowState::SignedIn { issuer: "https://login.example.com".into(), own };
        let cases = [
            (RowState::Open, "needs no login", None),
            (signed_in(true), "signed in at https://login.example.com", Some("connect/github/logout")),
            (signed_in(false), "signed in at https://login.example.com", None),
            (RowState::SignedOut, "not signed in", Some("connect/github/login")),
            (
                RowState::Expired("it was revoked".into()),
                "the login has ended: it was revoked",
                Some("connect/github/login"),
            ),
            (RowState::Unavailable("set client_id".into()), "set client_id", None),
        ];
        for (state, says, action) in cases {
            let html = page(&overview(&[row("github", state.clone())], &[client("host")], "k"))
                .html(&ConsoleConfig::default());
            assert!(html.contains(says), "{state:?}: {html}");
            match action {
                Some(action) => assert!(html.contains(&format!("action=\"{action}\"")), "{state:?}: {html}"),
                None => assert!(!html.contains("action=\"connect/github"), "{state:?}: {html}"),
            }
        }
    }

    #[test]
    fn the_operator_names_the_pages_and_servers_show_their_own_titles() {
        let console = ConsoleConfig { name: "Acme <tools>".into(), logo: Some("data:image/png;base64,A".into()) };
        let page = page(&overview(&[row("github", RowState::Open)], &[], "k"));
        let html = page.html(&console);
        assert!(html.contains("<title>Sign in · Acme &lt;tools&gt;</title>"), "{html}");
        assert!(html.contains("<img src=\"data:image/png;base64,A\" alt=\"\">Acme &lt;tools&gt;</p>"), "{html}");
        assert!(html.contains("github <span class=\"title\">github Inc.</span>"), "{html}");
        assert!(!page.html(&ConsoleConfig::default()).contains("class=\"top\""));
        assert!(front(String::new()).html(&console).contains("<h1>Acme &lt;tools&gt;</h1>"));
    }

    #[test]
    fn nothing_from_elsewhere_becomes_markup() {
        let evil = "\"><script>alert(1)</script>'\u{202e}&";
        let rows = [row(evil, RowState::Expired(evil.into())), row(evil, RowState::Unavailable(evil.into()))];
        let failed = Notice::Failed(evil.into());
        let page = page(&Overview { who: Some(evil), notice: Some(&failed), ..overview(&rows, &[client(evil)], evil) });
        let console = ConsoleConfig { name: evil.into(), logo: Some(evil.into()) };
        let html = page.html(&console);
        assert!(!html.contains("<script") && !html.contains('\u{202e}'), "{html}");
        let others = [
            message(evil, evil, evil),
            again(evil, evil, evil),
            another(evil, evil, evil),
            alone(evil, evil),
            welcome(evil, evil),
            consent(&Consent {
                client: evil,
                publisher: Some(evil),
                redirect: evil,
                who: evil,
                resource: evil,
                request: evil,
                key: evil,
            }),
        ];
        let others = others.map(|page| page.html(&console));
        assert!(others.iter().all(|html| !html.contains("<script")), "{others:?}");
        assert!(others[0].contains("&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&#39;&amp;"));
    }
}
