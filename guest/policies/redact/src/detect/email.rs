//! Addresses of electronic mail (RFC 5322, `addr-spec`), as they are in use: no quotes, no comments, a host with a dot.

/// RFC 5321 section 4.5.3.1.1.
const LOCAL: usize = 64;
const HOST: usize = 253;

/// Where the address around the `@` at this place begins and ends.
pub(super) fn find(text: &str, at: usize) -> Option<(usize, usize)> {
    let (local, host) = (text.get(..at)?, text.get(at + 1..)?);
    let length: usize = local.chars().rev().take(LOCAL).take_while(|one| in_local(*one)).map(char::len_utf8).sum();
    let local =
        local[at - length..].trim_start_matches(['.', '\'', '-', '/', '=', '*', '`', '|', '{', '&', '?', '!', '#']);
    let host: usize = host.chars().take(HOST).take_while(|one| in_host(*one)).map(char::len_utf8).sum();
    let host = trimmed_host(&text[at + 1..at + 1 + host])?;
    // These are addresses of repositories and the names of images for dense screens.
    let other = local == "git" || (host.len() > 2 && matches!(&host.as_bytes()[..3], [b'1'..=b'4', b'x', b'.']));
    (!local.is_empty() && !other).then_some((at - local.len(), at + 1 + host.len()))
}

/// The host without what follows it; none if it is no host. Of several ends the last that can be one counts.
fn trimmed_host(host: &str) -> Option<&str> {
    let (mut start, mut best) = (0, None);
    for (index, label) in host.split('.').enumerate() {
        if label.is_empty() || label.starts_with('-') {
            break;
        }
        let letters: usize = label.chars().take_while(|one| one.is_alphabetic()).map(char::len_utf8).sum();
        let (word, rest) = label.split_at(letters);
        // In `jane@example.com-2024` the address ends before the hyphen.
        if index > 0 && label.starts_with("xn--") {
            best = Some(start + label.trim_end_matches('-').len());
        } else if index > 0 && word.chars().nth(1).is_some() && (rest.is_empty() || rest.starts_with('-')) {
            best = Some(start + letters);
        }
        if label.ends_with('-') {
            break;
        }
        start += label.len() + 1;
    }
    host.get(..best?)
}

/// Letters beyond ASCII count in scripts that have blanks between words.
fn in_local(one: char) -> bool {
    let sign = matches!(one, '!' | '#'..='\'' | '*' | '+' | '-'..='/' | '=' | '?' | '^'..='`' | '{'..='~');
    one.is_ascii_alphanumeric() || sign || is_letter(one)
}

fn in_host(one: char) -> bool {
    one.is_ascii_alphanumeric() || one == '.' || one == '-' || is_letter(one)
}

fn is_letter(one: char) -> bool {
    ('\u{a1}'..'\u{590}').contains(&one) && one.is_alphabetic()
}

#[cfg(test)]
mod tests {
    use crate::detect::tests::found;

    #[test]
    fn finds_addresses() {
        for email in [
            "jane@example.com",
            "jane.doe+tag@mail.example.co.uk",
            "o'neil@example.ie",
            "j_d-1@x-y.org",
            "1234@example.com",
            "jürgen@müller.de",
            "info@xn--mller-kva.xn--p1ai",
            "JANE@EXAMPLE.COM",
        ] {
            assert_eq!(found(email), [("email", email)]);
            for (front, back) in [
                ("<", ">"),
                ("'", "'"),
                ("mailto:", "?subject=x"),
                ("to ", ". Then"),
                ("(", ")"),
                ("\"", "\","),
                ("邮箱", "请"),
            ] {
                assert_eq!(found(&format!("{front}{email}{back}")), [("email", email)]);
            }
        }
    }

    #[test]
    fn the_address_ends_where_the_host_ends() {
        assert_eq!(found("jane@example.com-2024"), [("email", "jane@example.com")]);
        assert_eq!(found("jane@example.com.2"), [("email", "jane@example.com")]);
        assert_eq!(found("jane@example.com...or not"), [("email", "jane@example.com")]);
        assert_eq!(found("a@example.com;b@example.com").len(), 2);
    }

    #[test]
    fn other_uses_of_the_sign_are_none() {
        for text in ["@", "a@", "@b.com", "a@b", "a@b.c", "a@.com", "a@-b.com", "user@localhost", "1@2.3", "a@@b"] {
            assert_eq!(found(text), [], "{text}");
        }
    }

    #[test]
    fn a_host_of_many_short_labels_ends_in_time() {
        let text = format!("a@{}", "1.".repeat(100_000));
        assert_eq!(found(&text), []);
    }
}
