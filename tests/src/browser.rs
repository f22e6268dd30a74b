//! As much of a browser as signing in takes: it keeps cookies, follows redirects, and sends the forms that it is shown.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::http::Request;
use crate::tokens::encoded;

/// A browser. As in real ones, cookies are kept by host whatever the port (RFC 6265 §8.5).
#[derive(Clone, Default)]
pub struct Browser {
    cookies: BTreeMap<String, String>,
}

/// What a browser shows.
#[derive(Clone, Debug)]
pub struct Page {
    /// Where it ended.
    pub url: String,
    /// With which status.
    pub status: u16,
    /// What it shows.
    pub text: String,
}

/// The most redirects in a row.
const REDIRECTS: usize = 20;

impl Browser {
    /// One that has been nowhere yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One of a person whom npm `oidc-provider` signs in by that name.
    pub fn of(person: &str) -> Self {
        let mut browser = Self::default();
        browser.is_of(person);
        browser
    }

    /// Another person sits down at it, who takes over what it is signed in to.
    pub fn is_of(&mut self, person: &str) {
        self.cookies.insert("person".to_owned(), person.to_owned());
    }

    /// What it keeps under a name.
    pub fn cookie(&self, name: &str) -> Option<&str> {
        self.cookies.get(name).map(String::as_str)
    }

    /// Has it keep another value, as somebody could who has come by one.
    pub fn set_cookie(&mut self, name: &str, value: &str) {
        self.cookies.insert(name.to_owned(), value.to_owned());
    }

    /// Its cookies, by name.
    pub fn cookies(&self) -> &BTreeMap<String, String> {
        &self.cookies
    }

    /// Opens an address, and goes where that leads.
    ///
    /// # Panics
    /// When there is no end of redirects, or one leads away from this machine.
    pub async fn open(&mut self, url: &str) -> Page {
        self.go(url, None, |_| false).await
    }

    /// The same, but stops before an address that `before` knows.
    ///
    /// # Panics
    /// As [`open`](Self::open).
    pub async fn open_until(&mut self, url: &str, before: impl Fn(&str) -> bool) -> Page {
        self.go(url, None, before).await
    }

    /// Presses the button of the form whose action has `action` in it.
    ///
    /// # Panics
    /// When there is no such form, and as [`open`](Self::open).
    pub async fn press(&mut self, page: &Page, action: &str) -> Page {
        self.press_until(page, action, |_| false).await
    }

    /// The same, but stops before an address that `before` knows.
    ///
    /// # Panics
    /// As [`press`](Self::press).
    pub async fn press_until(&mut self, page: &Page, action: &str, before: impl Fn(&str) -> bool) -> Page {
        let (to, fields) = page.form(action);
        self.go(&to, Some(form(&fields)), before).await
    }

    /// Sends a form with these fields.
    ///
    /// # Panics
    /// As [`open`](Self::open).
    pub async fn submit(&mut self, to: &str, fields: &[(String, String)]) -> Page {
        self.go(to, Some(form(fields)), |_| false).await
    }

    /// The same, but stops before an address that `before` knows.
    ///
    /// # Panics
    /// As [`open`](Self::open).
    pub async fn submit_until(&mut self, to: &str, fields: &[(String, String)], before: impl Fn(&str) -> bool) -> Page {
        self.go(to, Some(form(fields)), before).await
    }

    /// Sends any form.
    ///
    /// # Panics
    /// As [`open`](Self::open).
    pub async fn send(&mut self, url: &str, body: &str) -> Page {
        self.go(url, Some(body.to_owned()), |_| false).await
    }

    async fn go(&mut self, url: &str, mut form: Option<String>, before: impl Fn(&str) -> bool) -> Page {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS {
            if before(&url) {
                return Page { url, status: 0, text: String::new() };
            }
            let (address, path) = parts(&url);
            let mut request = match form.take() {
                None => Request::get(path).header("accept", "text/html,application/xhtml+xml,*/*;q=0.8"),
                Some(body) => Request::new("POST", path)
                    .header("content-type", "application/x-www-form-urlencoded")
                    .header("origin", &format!("http://{address}"))
                    .body(body),
            };
            if !self.cookies.is_empty() {
                let all: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
                request = request.header("cookie", &all.join("; "));
            }
            let response = request.send(address).await;
            for cookie in response.headers.get_all("set-cookie") {
                let pair = cookie.to_str().ok().and_then(|text| text.split(';').next()?.split_once('='));
                let (name, value) = pair.expect("a cookie has a name and a value");
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
            match response.header("location") {
                Some(next) => url = join(&url, next),
                None => {
                    let status = response.status;
                    let text = String::from_utf8_lossy(&response.bytes().await).into_owned();
                    return Page { url, status, text };
                }
            }
        }
        panic!("no end of redirects at {url}");
    }
}

impl Page {
    /// The address and the fields of a form.
    ///
    /// # Panics
    /// When there is none.
    pub fn form(&self, action: &str) -> (String, Vec<(String, String)>) {
        let forms = self.text.split("<form").skip(1).map(|rest| rest.split("</form>").next().unwrap_or_default());
        let of = |tag: &str, name: &str| {
            let value = tag.split(&format!("{name}=\"")).nth(1)?.split('"').next()?;
            Some(value.replace("&amp;", "&").replace("&#39;", "'"))
        };
        for form in forms {
            let Some(to) = of(form, "action").filter(|to| to.contains(action)) else { continue };
            let inputs = form.split("<input").skip(1).map(|rest| rest.split('>').next().unwrap_or_default());
            let fields = inputs.filter_map(|tag| Some((of(tag, "name")?, of(tag, "value")?))).collect();
            return (join(&self.url, &to), fields);
        }
        panic!("no form to {action} at {}: {}", self.url, self.text);
    }
}

fn form(fields: &[(String, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    fields.join("&")
}

fn parts(url: &str) -> (SocketAddr, &str) {
    let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("not on this machine: {url}"));
    let rest = rest.split('#').next().unwrap_or_default();
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let host = host.replace("localhost", "127.0.0.1");
    (host.parse().unwrap_or_else(|_| panic!("not on this machine: {url}")), path)
}

/// The address that `next` names on the page at `url`.
fn join(url: &str, next: &str) -> String {
    if next.starts_with("http") {
        return next.to_owned();
    }
    let path = url.find("://").map_or(0, |at| at + 3);
    let root = url[path..].find('/').map_or(url.len(), |at| path + at);
    match next.strip_prefix('/') {
        Some(rest) => format!("{}/{rest}", &url[..root]),
        None => {
            let folder = url[..url.find('?').unwrap_or(url.len())].rfind('/').map_or(url.len(), |at| at.max(root));
            format!("{}/{next}", &url[..folder])
        }
    }
}
