//! The kinds of value that are written as strings, and why some strings will not do.

use std::net::SocketAddr;
use std::str::FromStr;

use super::inherit::{STORE_KEY, STORE_PASSWORD};
use super::problem::ProblemReport;
use super::quantity::{Memory, Period, Size};
use super::read::{Node, SettingKind, Unreadable, mistyped};
use super::suggest;

/// A string in which `${…}` is expanded later.
pub(super) struct TemplateString(pub(super) String);

/// A path; what it means is settled later.
pub(super) struct FilePath(pub(super) String);

/// The name or path of a program.
pub(super) struct Program(pub(super) String);

/// The name of an environment variable, or with a `*` at its end the beginning of many.
pub(super) struct Inherited(pub(super) String);

/// The name of an environment variable.
pub(super) struct Variable(pub(super) String);

/// The name of a credential that systemd hands over.
pub(super) struct CredentialFile(pub(super) String);

/// The name of a secret in the login store.
pub(super) struct StoredName(pub(super) String);

/// The name of an account at a service.
pub(super) struct AccountName(pub(super) String);

/// The name of a user of the system.
pub(super) struct SystemUserName(pub(super) String);

/// An address to listen on.
#[derive(Clone, Copy)]
pub(super) struct Address(pub(super) SocketAddr);

/// Reads a string by its `FromStr`.
pub(super) fn parsed<T: SettingKind + FromStr<Err = Unreadable>>(
    node: &Node<'_>,
    report: &mut ProblemReport<'_>,
) -> Option<T> {
    let Some(text) = node.get_ref().as_str() else {
        return mistyped(node, report);
    };
    let Unreadable { message, hint } = match text.parse() {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    report.add(node.span(), message, (!hint.is_empty()).then(|| hint.into_owned()));
    None
}

/// Strings that read themselves, with what the schema says of them.
macro_rules! strings {
    ($($type:ty: $expected:literal, $schema:tt;)*) => {$(
        impl $crate::config::read::SettingKind for $type {
            const EXPECTED: &'static str = $expected;

            fn read(
                node: &$crate::config::read::Node<'_>,
                report: &mut $crate::config::problem::ProblemReport<'_>,
            ) -> Option<Self> {
                $crate::config::string::parsed(node, report)
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    )*};
}
pub(super) use strings;

strings! {
    AccountName: "the name of an account, as a string", { "type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,31}$" };
    Address: "an address such as \"127.0.0.1:8080\"", { "type": "string" };
    CredentialFile: "the name of a credential, as a string", { "type": "string", "pattern": "^[^/]+$" };
    FilePath: "a path, as a string", { "type": "string", "minLength": 1 };
    Inherited: "the name of a variable or \"LC_*\", as a string", { "type": "string", "pattern": "^[^=$%*]+[*]?$" };
    Memory: "a size such as \"512MiB\"", { "type": "string", "pattern": "^[0-9]+ *(B|[kK]B|KiB|[MG]i?B)$" };
    Period: "a duration such as \"30s\"", { "type": "string", "pattern": "^[0-9]+ *(ms|s|m|h|d)$" };
    Program: "a program, as a string", { "type": "string", "minLength": 1 };
    Size: "a size such as \"4MiB\"", { "type": "string", "pattern": "^[0-9]+ *(B|[kK]B|KiB|[MG]i?B)$" };
    StoredName: "the name of a stored secret, as a string", { "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$" };
    SystemUserName: "the name of a user, as a string", { "type": "string", "minLength": 1 };
    TemplateString: "a string", { "type": "string" };
    Variable: "the name of a variable, as a string", { "type": "string", "pattern": "^[^=]+$" };
}

impl FromStr for TemplateString {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        if text.contains('\0') {
            return Err(Unreadable::new("a value cannot hold a NUL character", ""));
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for AccountName {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let letters = text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        if !letters || text.is_empty() || text.starts_with('-') || text.len() > 32 {
            let hint = "small letters, digits and `-`, at most 32 of them: \"work\"";
            return Err(Unreadable::new("this cannot be the name of an account", hint));
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for SystemUserName {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        unexpanded(text, "a user").map(Self)
    }
}

impl FromStr for CredentialFile {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        if text.is_empty() || text.contains(['/', '\0', '$']) || text.starts_with('.') {
            let hint = "only its name, as in LoadCredential=: { credential = \"github-token\" }";
            return Err(Unreadable::new("this cannot be the name of a credential", hint));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Whether a secret in the login store can have this name.
#[must_use]
pub fn is_stored_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(letter)
}

impl FromStr for StoredName {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let refused = || Unreadable::new("this cannot be the name of a stored secret", "as `weir secret list` has it");
        if is_stored_name(text) { Ok(Self(text.to_owned())) } else { Err(refused()) }
    }
}

impl FromStr for FilePath {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        unexpanded(text, "a path").map(Self)
    }
}

impl FromStr for Program {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let mut words = text.split_whitespace();
        let program = words.next().unwrap_or_default();
        if words.next().is_some() && !program.contains('/') {
            return Err(Unreadable::new(
                "`command` is one program; there is no shell to split it",
                "command = \"npx\", args = [\"…\"], and variables in env = { NAME = \"…\" }",
            ));
        }
        unexpanded(text, "a program").map(Self)
    }
}

impl FromStr for Inherited {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let name = text.strip_suffix('*').unwrap_or(text);
        if name.is_empty() || name.contains(['=', '\0', '$', '%', '*']) {
            let hint = "a name, or the beginning of names: [\"AWS_REGION\", \"LC_*\"]";
            return Err(Unreadable::new("this cannot be the name of a variable", hint));
        }
        if [STORE_KEY, STORE_PASSWORD].contains(&text) {
            let hint = "leave it out";
            return Err(Unreadable::new(format!("`{text}` opens the login store and is for no program"), hint));
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for Variable {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        if text.is_empty() || text.contains(['=', '\0', '$', '%']) {
            return Err(Unreadable::new("this cannot be the name of a variable", "only its name: { env = \"TOKEN\" }"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// A text that is printed in messages and therefore takes no secrets in.
fn unexpanded(text: &str, what: &str) -> Result<String, Unreadable> {
    if text.is_empty() || text.contains('\0') {
        return Err(Unreadable::new(format!("{what} cannot be empty or hold a NUL character"), ""));
    }
    if text.contains("${") {
        return Err(Unreadable::new(
            format!("`${{…}}` is not expanded in {what}"),
            "it is in `url`, `args`, `env` and `headers`; a relative path begins at the folder of this file",
        ));
    }
    if text == "~" || text.starts_with("~/") {
        return Err(Unreadable::new(
            "`~` is not expanded",
            "write the whole path, or one relative to the folder of this file",
        ));
    }
    Ok(text.to_owned())
}

impl FromStr for Address {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let refused = |hint: String| Unreadable::new("this is not an address to listen on", hint);
        if let Ok(address) = text.parse() {
            return Ok(Self(address));
        }
        let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
        let port = port.parse::<u16>().unwrap_or(8080);
        let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
        Err(refused(match host {
            "" | "*" => format!("\"0.0.0.0:{port}\" for every interface, \"127.0.0.1:{port}\" for this machine alone"),
            "localhost" => format!("listen = [\"127.0.0.1:{port}\", \"[::1]:{port}\"]"),
            _ => format!("an IP address and a port: \"127.0.0.1:{port}\" or \"[::1]:{port}\""),
        }))
    }
}

/// One of a few words.
pub(super) fn choice<T: Copy>(word: &str, known: &[(&'static str, T)], later: &[&str]) -> Result<T, Unreadable> {
    if let Some((_, value)) = known.iter().find(|(each, _)| *each == word) {
        return Ok(*value);
    }
    let words: Vec<_> = known.iter().map(|(each, _)| *each).collect();
    if later.contains(&word) {
        let hint = format!("this version knows {}", words.join(", "));
        return Err(Unreadable::new(format!("`{word}` is not in this version of Weir"), hint));
    }
    // A token that was put here by mistake must not be repeated.
    let harmless = word.len() <= 24 && word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'-' | b'_'));
    let shown = if harmless { format!("`{word}`") } else { "this".to_owned() };
    Err(Unreadable::new(format!("{shown} is not known here"), suggest::hint(word, &words)))
}
