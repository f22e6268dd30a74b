//! `${env:NAME}` and `${file:PATH}` inside a value; `$${` stands for the two characters `${`.

use super::secret::SecretSource;

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    /// Text that stands for itself.
    Plain(&'t str),
    /// What is found there; the path of a file is as written.
    Reference(SecretSource),
}

/// A `${` that is not followed by `env:NAME}` or `file:PATH}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadReference;

/// Takes a value apart.
pub(super) fn pieces(text: &str) -> Result<Vec<Piece<'_>>, BadReference> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            pieces.extend([Piece::Plain(before), Piece::Plain("${")]);
            rest = &rest[at + 2..];
            continue;
        }
        let (inside, after) = rest[at + 2..].split_once('}').ok_or(BadReference)?;
        let source = match inside.split_once(':') {
            Some(("env", name)) if !name.is_empty() && !name.contains('=') => SecretSource::Env(name.to_owned()),
            Some(("file", path)) if !path.is_empty() => SecretSource::File(path.into()),
            _ => return Err(BadReference),
        };
        pieces.extend([Piece::Plain(&rest[..at]), Piece::Reference(source)]);
        rest = after;
    }
    pieces.push(Piece::Plain(rest));
    pieces.retain(|piece| *piece != Piece::Plain(""));
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::{BadReference, Piece, pieces};
    use crate::config::SecretSource;

    #[test]
    fn takes_values_apart() {
        let env = |name: &str| Piece::Reference(SecretSource::Env(name.to_owned()));
        let file = |path: &str| Piece::Reference(SecretSource::File(path.into()));
        let plain = Piece::Plain;
        for (text, expected) in [
            ("", vec![]),
            ("a $b {c} $", vec![plain("a $b {c} $")]),
            ("${env:A}", vec![env("A")]),
            ("x${env:A}${file:/run/b}y", vec![plain("x"), env("A"), file("/run/b"), plain("y")]),
            ("$${env:A}", vec![plain("${"), plain("env:A}")]),
            ("$$${env:A}", vec![plain("$"), plain("${"), plain("env:A}")]),
        ] {
            assert_eq!(pieces(text), Ok(expected), "{text}");
        }
        for bad in ["${", "${A}", "${env:}", "${file:}", "${env:A", "${vault:x}", "x ${env:A} ${B}"] {
            assert_eq!(pieces(bad), Err(BadReference), "{bad}");
        }
    }
}
