//! Addresses of resources, as servers may read them.

use std::borrow::Cow;

/// What an address comes to when what is percent-encoded without need is decoded and its path is resolved (RFC 3986 §6.2.2),
/// with repeated slashes as one; none where that is the address itself. Some servers read what follows `://` as a path from
/// its first letter on, so `..` leads out of that too.
pub(super) fn resolved(address: &str) -> Option<String> {
    if !address.contains(['%', '\\']) && !address.contains("/.") && !address.contains("//") {
        return None;
    }
    let path_end = address.find(['?', '#']).unwrap_or(address.len());
    let (path, rest) = address.split_at(path_end);
    let (scheme, path) = path.split_once("://").map_or(("", path), |(scheme, path)| (scheme, path));
    let path = decoded(path);
    let mut segments: Vec<&str> = Vec::new();
    let all: Vec<&str> = path.split(['/', '\\']).collect();
    for (at, segment) in all.iter().enumerate() {
        let (first, last) = (at == 0, at + 1 == all.len());
        match *segment {
            ".." => drop(segments.pop()),
            "." => {}
            "" if !first && !last => {}
            segment => segments.push(segment),
        }
        if last && matches!(*segment, ".." | ".") {
            segments.push("");
        }
    }
    let between = if scheme.is_empty() { "" } else { "://" };
    let resolved = [scheme, between, &segments.join("/"), rest].concat();
    (resolved != address).then_some(resolved)
}

/// The path with those bytes decoded that mean the same decoded, and those that part it (RFC 3986 §2.3).
fn decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return path.into();
    }
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let byte = rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()).map(char::from);
        match byte.filter(|c| c.is_ascii_alphanumeric() || "-._~/\\".contains(*c)) {
            Some(c) => {
                out.push(c);
                rest = &rest[at + 3..];
            }
            None => {
                out.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_resolved_as_servers_do() {
        for (address, to) in [
            ("file:///public/../private/x", "file:///private/x"),
            ("file:///public/%2e%2E/private/x", "file:///private/x"),
            ("file:///public%2F..%2fprivate/x", "file:///private/x"),
            ("file:///public\\..\\private/x", "file:///private/x"),
            ("file:///%70rivate/x", "file:///private/x"),
            ("file:////private/./x?a=/../b", "file:///private/x?a=/../b"),
            ("db://public/../private/x", "db://private/x"),
            ("db://public/..", "db://"),
            ("public/../x", "x"),
        ] {
            assert_eq!(resolved(address).as_deref(), Some(to), "{address}");
        }
        for address in ["file:///a/b%20c", "file:///a/", "file:///", "db://", "db://a/.b/..c", "x:a%", "x://%zz%C3%A9"]
        {
            assert_eq!(resolved(address), None, "{address}");
        }
    }
}
