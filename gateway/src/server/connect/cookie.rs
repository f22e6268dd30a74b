//! A cookie of Weir: for browsers alone, for this host alone, and with it when another site sends the browser back.

use std::time::Duration;

/// One of them, whatever its value.
pub(super) struct Cookie {
    /// With TLS the name itself says that no other host and no plain page has set it (RFC 6265bis §4.1.3.2).
    name: String,
    /// Whether it is for TLS only.
    secure: bool,
}

impl Cookie {
    pub(super) fn new(name: &str, secure: bool) -> Self {
        let name = if secure { format!("__Host-{name}") } else { name.to_owned() };
        Self { name, secure }
    }

    /// What makes a browser keep it, until it is closed or for as long as given.
    pub(super) fn set(&self, value: &str, keep: Option<Duration>) -> String {
        // `Lax`: it must come along when an authorization server sends the browser back.
        let age = keep.map(|keep| format!("; Max-Age={}", keep.as_secs())).unwrap_or_default();
        let more = if self.secure { "; Secure" } else { "" };
        format!("{}={value}; Path=/; HttpOnly; SameSite=Lax{age}{more}", self.name)
    }

    /// The values that it has among all cookies.
    pub(super) fn values<'c>(&self, cookies: &'c str) -> impl Iterator<Item = &'c str> {
        let pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(name, _)| *name == self.name).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_tls_it_is_for_tls() {
        let (plain, safe) = (Cookie::new("weir", false), Cookie::new("weir", true));
        assert_eq!(plain.set("1", None), "weir=1; Path=/; HttpOnly; SameSite=Lax");
        let kept = safe.set("1", Some(Duration::from_secs(600)));
        assert_eq!(kept, "__Host-weir=1; Path=/; HttpOnly; SameSite=Lax; Max-Age=600; Secure");
    }

    #[test]
    fn only_its_own_name_counts() {
        let cookie = Cookie::new("weir", false);
        let found: Vec<&str> = cookie.values("a=b; weir=1;weir=2; weir-visit=3; xweir=4; weir").collect();
        assert_eq!(found, ["1", "2"]);
        assert_eq!(cookie.values("").count(), 0);
    }
}
