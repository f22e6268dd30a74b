//! The groups that a token lists, wherever its issuer puts them.
//!
//! A list that is not whole makes a token as good as none: an access rule that refuses a group would let in whoever is
//! in it, if that group were left out.

use serde_json::{Map, Value};

/// The most groups of one token. Entra ID lists as many at most.
pub(super) const MAX_GROUPS: usize = 200;
/// The longest name of a group, in bytes.
pub(super) const MAX_GROUP: usize = 256;

/// The groups at `path`: a text is one, and no claim is none. Without an answer the list is too long, not of texts, or
/// elsewhere (OpenID Connect Core 1.0 §5.6.2).
pub(super) fn find(claims: &Map<String, Value>, path: &str) -> Option<Vec<String>> {
    let elsewhere = claims.get("_claim_names").and_then(|names| names.get(path));
    let listed = match claim(claims, path) {
        None | Some(Value::Null) if elsewhere.is_some() => return None,
        None | Some(Value::Null) => return Some(Vec::new()),
        Some(Value::Array(all)) => all.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    if listed.len() > MAX_GROUPS {
        return None;
    }
    let text = |group: &Value| group.as_str().filter(|text| text.len() <= MAX_GROUP).map(str::to_owned);
    listed.iter().map(text).collect()
}

/// A name that is a URL has dots in it: so the whole path is tried as a name first.
fn claim<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    claims.get(path).or_else(|| {
        let (first, rest) = path.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn groups(claims: &Value, path: &str) -> Option<Vec<String>> {
        find(claims.as_object()?, path)
    }

    #[test]
    fn groups_are_where_the_configuration_says() {
        let claims = json!({
            "groups": ["staff", "ops"], "role": "admin", "roles": [], "none": null,
            "realm_access": { "roles": ["user"] }, "https://weir.example/groups": ["far"],
        });
        for (path, expected) in [
            ("groups", &["staff", "ops"][..]),
            ("role", &["admin"]),
            ("roles", &[]),
            ("none", &[]),
            ("absent", &[]),
            ("realm_access.roles", &["user"]),
            ("realm_access.groups", &[]),
            ("groups.roles", &[]),
            ("https://weir.example/groups", &["far"]),
        ] {
            assert_eq!(
                groups(&claims, path).as_deref(),
                Some(&expected.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()[..]),
                "{path}"
            );
        }
    }

    #[test]
    fn a_list_that_is_not_whole_is_refused() {
        let long = |bytes: usize| json!({ "groups": ["x".repeat(bytes)] });
        let many = |count: usize| json!({ "groups": vec!["x"; count] });
        for claims in [
            long(MAX_GROUP + 1),
            many(MAX_GROUPS + 1),
            json!({ "groups": ["a", 1] }),
            json!({ "groups": { "a": "b" } }),
            json!({ "groups": true }),
            json!({ "_claim_names": { "groups": "src1" } }),
        ] {
            assert_eq!(groups(&claims, "groups"), None, "{claims}");
        }
        assert!(groups(&long(MAX_GROUP), "groups").is_some() && groups(&many(MAX_GROUPS), "groups").is_some());
    }
}
