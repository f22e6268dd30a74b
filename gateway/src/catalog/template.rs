//! Whether an address fits a URI template (RFC 6570), to find whose resource it is.
//!
//! This is the question turned round: RFC 6570 says how to expand and leaves matching open (§1.5). A simple expression
//! stands for one path segment, every other kind for anything.

/// Whether `uri` may have been made from `template`.
pub(super) fn fits(template: &str, uri: &str) -> bool {
    let Some((literal, rest)) = template.split_once('{') else { return template == uri };
    let Some(uri) = uri.strip_prefix(literal) else { return false };
    let Some((expression, rest)) = rest.split_once('}') else { return false };
    let simple = !expression.starts_with(['+', '#', '.', '/', ';', '?', '&']) && !expression.ends_with('*');
    let reach = if simple { uri.find('/').unwrap_or(uri.len()) } else { uri.len() };
    // A simple expression takes at least one character; operators may expand to nothing.
    let least = usize::from(simple);
    (least..=reach).rev().filter_map(|end| uri.get(end..)).any(|tail| fits(rest, tail))
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn simple_expressions_take_one_segment() {
        assert!(fits("test://template/{id}/data", "test://template/123/data"));
        assert!(!fits("test://template/{id}/data", "test://template/1/2/data"));
        assert!(!fits("test://template/{id}/data", "test://template//data"));
        assert!(!fits("test://template/{id}", "test://template/"));
        assert!(fits("a://{x}-{y}", "a://1-2"));
    }

    #[test]
    fn operators_take_anything() {
        assert!(fits("file:///{+path}", "file:///a/b/c.txt"));
        assert!(fits("file://{/path*}", "file:///a/b"));
        assert!(fits("x://search{?q}", "x://search?q=1"));
        assert!(fits("x://search{?q}", "x://search"));
    }

    #[test]
    fn what_is_no_template_is_compared() {
        assert!(fits("a://b", "a://b"));
        assert!(!fits("a://b", "a://bc"));
        assert!(!fits("a://{b", "a://x"));
    }
}
