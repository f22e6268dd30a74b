//! Whether an address fits a URI template (RFC 6570), to find whose resource it is.
//!
//! This is the question turned round: RFC 6570 says how to expand and leaves matching open (§1.5). A simple expression
//! stands for one path segment, every other kind for anything.

/// Whether `uri` may have been made from `template`.
///
/// Takes time in proportion to the lengths of both, multiplied: both come from strangers.
pub(super) fn fits(template: &str, uri: &str) -> bool {
    let Some((literal, mut rest)) = template.split_once('{') else { return template == uri };
    if !uri.starts_with(literal) {
        return false;
    }
    let uri = uri.as_bytes();
    // Where in the address what was read of the template may end.
    let mut ends = vec![false; uri.len() + 1];
    ends[literal.len()] = true;
    loop {
        let Some((expression, after)) = rest.split_once('}') else { return false };
        let simple = !expression.starts_with(['+', '#', '.', '/', ';', '?', '&']) && !expression.ends_with('*');
        ends = if simple { one_segment(&ends, uri) } else { anything(&ends) };
        let (literal, next) = after.split_once('{').map_or((after, None), |(literal, next)| (literal, Some(next)));
        ends = exactly(&ends, uri, literal.as_bytes());
        match next {
            Some(next) if ends.contains(&true) => rest = next,
            Some(_) => return false,
            None => return ends.last() == Some(&true),
        }
    }
}

/// A simple expression takes at least one character, and no `/`.
fn one_segment(ends: &[bool], uri: &[u8]) -> Vec<bool> {
    let mut open = false;
    let took = ends.iter().zip(uri).map(|(end, byte)| {
        open = (open || *end) && *byte != b'/';
        open
    });
    std::iter::once(false).chain(took).collect()
}

/// Operators take anything, also nothing.
fn anything(ends: &[bool]) -> Vec<bool> {
    let mut open = false;
    ends.iter()
        .map(|end| {
            open |= *end;
            open
        })
        .collect()
}

fn exactly(ends: &[bool], uri: &[u8], literal: &[u8]) -> Vec<bool> {
    let mut after = vec![false; ends.len()];
    for (start, _) in ends.iter().enumerate().filter(|(_, end)| **end) {
        if uri[start..].starts_with(literal) {
            after[start + literal.len()] = true;
        }
    }
    after
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

    #[test]
    fn a_hostile_template_costs_no_time() {
        let template = format!("x://{}!", "{+a}".repeat(40));
        assert!(!fits(&template, &format!("x://{}", "a".repeat(400))));
        assert!(fits(&template, &format!("x://{}!", "a".repeat(400))));
    }

    #[test]
    fn characters_beyond_ascii_are_kept_whole() {
        assert!(fits("x://{a}é{b}", "x://éééé"));
        assert!(!fits("x://{a}é", "x://é"));
    }
}
