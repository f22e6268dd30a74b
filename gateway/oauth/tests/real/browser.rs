//! As much of a browser as signing in takes: it keeps cookies, follows redirects and sends forms.

use std::collections::BTreeMap;

use reqwest::{Response, header, redirect};
use url::Url;

#[derive(Default)]
pub(crate) struct Browser {
    cookies: BTreeMap<String, String>,
}

impl Browser {
    /// Follows the way to `redirect`, and says with what it ends there.
    pub(crate) async fn sign_in(mut self, url: &Url, redirect: &str) -> Url {
        let mut at = url.clone();
        for _ in 0..20 {
            let response = self.get(&at).await;
            at = next(&response, &at);
            if at.as_str().starts_with(redirect) {
                return at;
            }
        }
        panic!("no end of redirects");
    }

    /// Types the code of a device and agrees.
    pub(crate) async fn enter_code(mut self, page: &Url, code: &str) {
        self.answer_code(page, code, "confirm").await;
    }

    /// Types the code of a device and refuses.
    pub(crate) async fn refuse_code(mut self, page: &Url, code: &str) {
        self.answer_code(page, code, "abort").await;
    }

    /// Opens a page that must be there.
    pub(crate) async fn open(mut self, page: &Url) {
        let answer = self.get(page).await;
        assert!(answer.status().is_success(), "{}", answer.status());
    }

    /// Sends a form.
    pub(crate) async fn post(mut self, page: &Url, form: String) {
        let answer = self.send(page, Some(form)).await;
        assert!(answer.status().is_success(), "{}", answer.status());
    }

    async fn answer_code(&mut self, page: &Url, code: &str, answer: &str) {
        let form = self.get(page).await.text().await.unwrap();
        let token = form.split("name=\"xsrf\" value=\"").nth(1).unwrap().split('"').next().unwrap();
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("xsrf", token), ("user_code", code), (answer, "yes")])
            .finish();
        let mut response = self.send(page, Some(body)).await;
        let mut at = page.clone();
        while response.status().is_redirection() {
            at = next(&response, &at);
            response = self.get(&at).await;
        }
    }

    async fn get(&mut self, url: &Url) -> Response {
        self.send(url, None).await
    }

    async fn send(&mut self, url: &Url, form: Option<String>) -> Response {
        let provider = rustls::crypto::ring::default_provider();
        let _ = provider.install_default();
        let client = reqwest::Client::builder().redirect(redirect::Policy::none()).no_proxy().build().unwrap();
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = match form {
            None => client.get(url.clone()),
            Some(body) => {
                client.post(url.clone()).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
            }
        };
        let response = request.header(header::COOKIE, cookies.join("; ")).send().await.unwrap();
        for cookie in response.headers().get_all(header::SET_COOKIE) {
            let (name, value) = cookie.to_str().unwrap().split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        response
    }
}

fn next(response: &Response, at: &Url) -> Url {
    let status = response.status();
    let location = response.headers().get(header::LOCATION).unwrap_or_else(|| panic!("{status} from {}", at.path()));
    at.join(location.to_str().unwrap()).unwrap()
}
