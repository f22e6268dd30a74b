//! The forward proxies that the environment names.

use std::{env, fmt, sync::Arc};

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use thiserror::Error;
use url::Url;

use super::{is_loopback, origin};

/// What `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` say, in upper or lower case, read by curl's rules.
///
/// This machine is never reached through a proxy, whatever they say.
#[derive(Clone, Debug, Default)]
pub struct ForwardProxies(Option<Arc<ProxyRules>>);

/// A forward proxy for one URL.
#[derive(Clone, Debug)]
pub struct ForwardProxy {
    /// Its address, without user and password.
    pub url: Url,
    /// `Proxy-Authorization`, marked sensitive.
    pub authorization: Option<HeaderValue>,
    variable: &'static str,
}

/// A variable that names no proxy of use, which must not mean that requests go without one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "`{0}` is not the address of an HTTP proxy; write http://host:port or https://host:port, or name in `NO_PROXY` the hosts \
     that need none"
)]
pub struct UnusableProxy(&'static str);

#[derive(Debug)]
struct ProxyRules {
    matcher: Matcher,
    https: ProxyVariable,
    http: ProxyVariable,
}

/// The variable that decides about one scheme, and its value.
#[derive(Debug)]
struct ProxyVariable {
    name: &'static str,
    is_usable: bool,
}

impl ForwardProxies {
    /// Those of this process.
    pub fn from_env() -> Self {
        Self::read(|name| env::var(name).ok())
    }

    /// Those that these variables name.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name: &str| {
            let some = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
            some(name).or_else(|| some(&name.to_ascii_lowercase()))
        };
        let no = value("NO_PROXY").unwrap_or_default();
        // The matcher takes the star for every name, and not for addresses.
        if no.trim() == "*" {
            return Self(None);
        }
        let decides = |name| [name, "ALL_PROXY"].into_iter().find_map(|name| Some((name, value(name)?)));
        let (https, http) = (decides("HTTPS_PROXY"), decides("HTTP_PROXY"));
        if https.is_none() && http.is_none() {
            return Self(None);
        }
        let (https, https_value) = ProxyVariable::checked(https);
        let (http, http_value) = ProxyVariable::checked(http);
        let matcher = Matcher::builder().https(https_value).http(http_value).no(no).build();
        Self(Some(Arc::new(ProxyRules { matcher, https, http })))
    }

    /// The one that requests to `url` go through; none where they go straight there.
    ///
    /// # Errors
    /// If the variable that decides about it names no proxy of use.
    pub fn for_url(&self, url: &Url) -> Result<Option<ForwardProxy>, UnusableProxy> {
        let Some(rules) = self.0.as_deref().filter(|_| !is_loopback(url)) else { return Ok(None) };
        let found = origin(url).parse().ok().and_then(|url: Uri| rules.matcher.intercept(&url));
        let Some(found) = found else { return Ok(None) };
        let variable = if url.scheme() == "https" { &rules.https } else { &rules.http };
        let url = Url::parse(&found.uri().to_string()).ok().filter(|_| variable.is_usable);
        let url = url.ok_or(UnusableProxy(variable.name))?;
        Ok(Some(ForwardProxy { url, authorization: found.basic_auth().cloned(), variable: variable.name }))
    }
}

impl ProxyVariable {
    /// Without a variable there is no value, with an unusable one another: the matcher would leave it out.
    fn checked(variable: Option<(&'static str, String)>) -> (Self, String) {
        let Some((name, value)) = variable else { return (Self { name: "", is_usable: true }, String::new()) };
        // The first `@` ends a password for the matcher, and the last one for everybody else.
        let value = match Url::parse(&value) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.path() == "/" => url.into(),
            _ => value,
        };
        let any = Uri::from_static("http://any.invalid");
        let found = Matcher::builder().all(value.as_str()).build().intercept(&any);
        let is_usable = found.is_some_and(|found| matches!(found.uri().scheme_str(), Some("http" | "https")));
        (Self { name, is_usable }, if is_usable { value } else { "http://unusable.invalid".to_owned() })
    }
}

impl ForwardProxy {
    /// A message about it. `what` follows its name.
    pub fn fault(&self, what: impl fmt::Display) -> String {
        format!("the proxy {self} of `{}` {what}; `NO_PROXY` names the hosts that need none", self.variable)
    }
}

impl fmt::Display for ForwardProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&origin(&self.url))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    /// Which proxy, with the variables of `environment`.
    fn proxy(environment: &[(&str, &str)], url: &str) -> String {
        let variable = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        match ForwardProxies::read(variable).for_url(&Url::parse(url).unwrap()) {
            Ok(Some(proxy)) => proxy.to_string(),
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_scheme_has_its_proxy() {
        let both = [("HTTPS_PROXY", "http://one:1"), ("http_proxy", "two:2"), ("ALL_PROXY", "https://three")];
        assert_eq!(proxy(&both, "https://a.example/x"), "http://one:1");
        assert_eq!(proxy(&both, "http://a.example"), "http://two:2");
        assert_eq!(proxy(&both[2..], "http://a.example"), "https://three");
        assert_eq!(proxy(&both[..1], "http://a.example"), "none");
        assert_eq!(proxy(&[], "https://a.example"), "none");
        // An empty one is none at all.
        assert_eq!(proxy(&[("HTTPS_PROXY", ""), ("https_proxy", "http://one:1")], "https://a.example"), "http://one:1");
    }

    #[test]
    fn some_hosts_need_none() {
        let with = |no| [("ALL_PROXY", "http://one:1"), ("NO_PROXY", no)];
        for (no, straight, through) in [
            ("example.com", "https://api.example.com", "https://notexample.com"),
            (".corp, 10.0.0.0/8", "http://10.1.2.3:8080", "http://11.1.2.3"),
            ("fd00::/8,x", "https://[fd00::1]", "https://[2606::1]"),
        ] {
            assert_eq!(proxy(&with(no), straight), "none");
            assert_eq!(proxy(&with(no), through), "http://one:1");
        }
        for here in ["http://127.0.0.1:1", "https://localhost", "http://[::1]:1", "http://x.localhost"] {
            assert_eq!(proxy(&with(""), here), "none", "{here}");
        }
        assert_eq!(proxy(&with("*"), "http://11.1.2.3"), "none");
        assert_eq!(proxy(&with("*"), "http://a.example"), "none");
    }

    #[test]
    fn a_password_is_in_the_header_alone() {
        let proxies = ForwardProxies::read(|name| (name == "HTTPS_PROXY").then(|| "http://u:p%40ss@one:1".to_owned()));
        let proxy = proxies.for_url(&Url::parse("https://a.example").unwrap()).unwrap().unwrap();
        let authorization = proxy.authorization.clone().unwrap();
        assert_eq!(authorization, "Basic dTpwQHNz");
        for said in [format!("{proxies:?}"), format!("{proxy:?} {proxy} {}", proxy.fault("fails"))] {
            assert!(!said.contains("ss@") && !said.contains("dTpw") && !said.contains("p%40ss"), "{said}");
        }
    }

    #[test]
    fn a_password_may_have_an_at_sign() {
        for value in ["http://u:p@ss@one:1", "http://u:p%40ss@one:1/"] {
            let proxies = ForwardProxies::read(|name| (name == "HTTPS_PROXY").then(|| value.to_owned()));
            let proxy = proxies.for_url(&Url::parse("https://a.example").unwrap()).unwrap().unwrap();
            assert_eq!(
                (proxy.url.as_str(), proxy.authorization.unwrap()),
                ("http://one:1/", "Basic dTpwQHNz".parse().unwrap())
            );
        }
    }

    #[test]
    fn an_unusable_one_is_not_gone_around() {
        for value in ["socks5://one:1", "http://:x:", "ftp://one", "http://corp\\u:p@one:1"] {
            let said = proxy(&[("ALL_PROXY", value)], "https://a.example");
            assert!(said.starts_with("`ALL_PROXY` is not the address"), "{value}: {said}");
            assert_eq!(proxy(&[("ALL_PROXY", value), ("HTTPS_PROXY", "one:1")], "https://a.example"), "http://one:1");
            assert_eq!(proxy(&[("ALL_PROXY", value), ("NO_PROXY", "a.example")], "https://a.example"), "none");
        }
    }
}
