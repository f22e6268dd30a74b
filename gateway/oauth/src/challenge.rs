//! First step: what the upstream says when it refuses, in `WWW-Authenticate` (RFC 9110 §11.6.1, RFC 6750 §3).
//!
//! The grammar puts a list of schemes and, inside each, a list of parameters behind the same comma. What follows a comma
//! is a parameter if a `=` follows its first word, and a scheme otherwise. Of a broken header as much counts as was read
//! before the break.

/// One scheme with what the server says of it. Written by a stranger: nothing in it may be printed as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// In small letters: `bearer`.
    pub scheme: String,
    /// Names in small letters, values without their quotes; the first of each name.
    pub parameters: Vec<(String, String)>,
}

/// The longest header that is read. A challenge carries a URL and scopes.
const MAX_HEADER: usize = 8 * 1024;
/// Of challenges in all headers, and of parameters in one.
const MAX_ITEMS: usize = 32;

impl Challenge {
    /// All challenges in the values of all `WWW-Authenticate` headers.
    pub fn parse_all<'a>(headers: impl IntoIterator<Item = &'a [u8]>) -> Vec<Self> {
        let mut all = Vec::new();
        for header in headers {
            let shown = header.get(..MAX_HEADER).unwrap_or(header);
            ChallengeReader { rest: shown }.challenges(&mut all);
        }
        all
    }

    /// The challenge that OAuth answers, of all in these headers.
    pub fn token<'a>(headers: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        Self::token_of(&Self::parse_all(headers)).cloned()
    }

    /// The challenge that OAuth answers: `Bearer` (RFC 6750 §3) or `DPoP` (RFC 9449 §7.1). Of both, the one that names an
    /// error is about the token that was sent.
    pub fn token_of(all: &[Self]) -> Option<&Self> {
        let of = |scheme| all.iter().find(move |challenge| challenge.scheme == scheme);
        match (of("bearer"), of("dpop")) {
            (Some(bearer), Some(dpop)) if bearer.get("error").is_none() && dpop.get("error").is_some() => Some(dpop),
            (bearer, dpop) => bearer.or(dpop),
        }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Where the metadata of the resource is (RFC 9728 §5.1).
    pub fn resource_metadata(&self) -> Option<&str> {
        self.get("resource_metadata")
    }

    /// Which scopes are needed (RFC 6750 §3).
    pub fn scope(&self) -> Option<&str> {
        self.get("scope").filter(|scope| !scope.trim().is_empty())
    }
}

struct ChallengeReader<'a> {
    rest: &'a [u8],
}

impl<'a> ChallengeReader<'a> {
    fn challenges(&mut self, all: &mut Vec<Challenge>) {
        // Whether a parameter or a token68 may follow the last scheme without a comma (RFC 9110 §11.2).
        let mut open = false;
        loop {
            self.skip(is_space);
            open &= self.rest.first() != Some(&b',');
            self.skip(|byte| is_space(byte) || byte == b',');
            let before = self.rest;
            let Some(word) = self.token() else { return };
            let (spaces, full) = (self.skip(is_space), all.len() >= MAX_ITEMS);
            match all.last_mut() {
                Some(challenge) if self.is_bound() => {
                    let Some(value) = self.value() else { return };
                    challenge.add(word, value);
                    open = false;
                }
                Some(_) if open => {
                    self.rest = before;
                    self.skip(|byte| !is_space(byte) && byte != b',');
                    open = false;
                }
                _ if full => return,
                _ => {
                    all.push(Challenge { scheme: word.to_ascii_lowercase(), parameters: Vec::new() });
                    open = spaces;
                }
            }
        }
    }

    /// Whether the `=` here binds a value, and does not pad a token68.
    fn is_bound(&self) -> bool {
        let Some(after) = self.rest.strip_prefix(b"=") else { return false };
        !matches!(after.first(), None | Some(b',' | b'='))
    }

    fn value(&mut self) -> Option<String> {
        self.rest = self.rest.strip_prefix(b"=")?;
        self.skip(is_space);
        if self.rest.first() == Some(&b'"') { self.quoted() } else { self.token() }
    }

    fn quoted(&mut self) -> Option<String> {
        let mut text = Vec::new();
        let mut bytes = self.rest.iter().enumerate().skip(1);
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'"' => {
                    self.rest = self.rest.get(at + 1..)?;
                    return String::from_utf8(text).ok();
                }
                b'\\' => text.push(*bytes.next()?.1),
                other => text.push(*other),
            }
        }
        None
    }

    fn token(&mut self) -> Option<String> {
        let end = self.rest.iter().position(|byte| !is_token(*byte)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let word = std::str::from_utf8(word).ok()?;
        (!word.is_empty()).then(|| word.to_owned())
    }

    fn skip(&mut self, is: impl Fn(u8) -> bool) -> bool {
        let end = self.rest.iter().position(|byte| !is(*byte)).unwrap_or(self.rest.len());
        self.rest = self.rest.get(end..).unwrap_or_default();
        end > 0
    }
}

impl Challenge {
    fn add(&mut self, name: String, value: String) {
        let name = name.to_ascii_lowercase();
        if self.parameters.len() < MAX_ITEMS && self.get(&name).is_none() {
            self.parameters.push((name, value));
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// RFC 9110 §5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn parse(header: &str) -> Vec<Challenge> {
        Challenge::parse_all([header.as_bytes()])
    }

    #[test]
    fn a_bearer_challenge_is_read_in_every_notation() {
        for header in [
            r#"Bearer resource_metadata="https://a.example/m?x=1,2", scope="a b", error="invalid_token""#,
            r#"bearer   resource_metadata = "https://a.example/m?x=1,2" ,scope="a b",  error=invalid_token"#,
            r#"Basic realm="x, Bearer scope=\"no\"", Bearer error=invalid_token, RESOURCE_METADATA="https://a.example/m?x=1,2", Scope="a \b""#,
            r#"Negotiate, Bearer scope="a b",resource_metadata="https://a.example/m?x=1,2",error="invalid_token", DPoP algs="ES256""#,
            r#"Negotiate dG9rZW4=, Bearer scope="a b",resource_metadata="https://a.example/m?x=1,2",error="invalid_token""#,
            r#",, Bearer scope="a b", resource_metadata="https://a.example/m?x=1,2",, error=invalid_token, scope="other""#,
        ] {
            let found = Challenge::token([header.as_bytes()]).unwrap();
            assert_eq!(found.resource_metadata(), Some("https://a.example/m?x=1,2"), "{header}");
            assert_eq!(found.scope(), Some("a b"), "{header}");
            assert_eq!(found.get("error"), Some("invalid_token"), "{header}");
        }
    }

    #[test]
    fn schemes_are_told_apart() {
        let all = parse(r#"Negotiate YWJj==, NTLM, Basic realm="a", Bearer, Digest qop=auth, nonce=x"#);
        let schemes: Vec<&str> = all.iter().map(|challenge| challenge.scheme.as_str()).collect();
        assert_eq!(schemes, ["negotiate", "ntlm", "basic", "bearer", "digest"]);
        assert_eq!(all[4].parameters.len(), 2);
        assert_eq!(all[0].parameters, []);
        let several = [b"Basic realm=a".as_slice(), b"Bearer scope=b"];
        assert_eq!(Challenge::token(several).unwrap().scope(), Some("b"));
    }

    #[test]
    fn of_a_broken_header_what_came_before_the_break_counts() {
        for (header, scope) in [
            (r#"Bearer scope="a", resource_metadata="https://never"#, Some("a")),
            (r#"Bearer scope="a", error="x\"#, Some("a")),
            ("Bearer scope=a, =b, error=x", Some("a")),
            ("Bearer scope=\"\"", None),
            ("Bearer scope=\"  \"", None),
            ("Bearer \u{1}", None),
            ("Bearer", None),
        ] {
            assert_eq!(Challenge::token([header.as_bytes()]).unwrap().scope(), scope, "{header}");
        }
        for header in ["", ",", "=", "\"Bearer\"", "= = =", "\u{ff}Bearer"] {
            assert_eq!(Challenge::token([header.as_bytes()]), None, "{header}");
        }
        assert_eq!(Challenge::token([b"Bearer scope=\"\xff\"".as_slice()]).unwrap().scope(), None);
    }

    #[test]
    fn no_header_makes_it_work_without_end() {
        let parameters = format!("Bearer {}", (0..1000).map(|n| format!("p{n}=1,")).collect::<String>());
        assert_eq!(parse(&parameters)[0].parameters.len(), MAX_ITEMS);
        assert_eq!(parse(&"a,".repeat(1000)).len(), MAX_ITEMS);
        assert!(parse(&format!("Bearer scope=\"{}\"", "x".repeat(100_000)))[0].parameters.is_empty());
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let alphabet = b"Bearer=\", \\\t\xff\x00a==";
        let mut state: u32 = 7;
        for length in 0..64 {
            for _ in 0..200 {
                let bytes: Vec<u8> = (0..length)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        alphabet[(state >> 16) as usize % alphabet.len()]
                    })
                    .collect();
                let _ = Challenge::parse_all([bytes.as_slice()]);
            }
        }
    }
}
