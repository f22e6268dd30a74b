//! Texts with references that a host resolves, such as `Bearer ${env:TOKEN}`.

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Literal(String),
    /// An environment variable.
    Env {
        name: String,
        /// What stands for an unset variable.
        default: Option<String>,
    },
    /// What the host asks the user for.
    Input {
        id: String,
        description: Option<String>,
        password: bool,
    },
    /// The directory of the open project.
    WorkspaceFolder,
    UserHome,
    /// The output of a command.
    Command(String),
}

/// A value whose references are told apart from its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(pub Vec<Piece>);

/// How a host writes a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `${VAR}`
    Braces,
    /// `${ VAR }`
    Spaced,
    /// `${VAR:-default}`
    Default,
    /// `$VAR`
    Bare,
    /// `${env:VAR}`
    EnvPrefix,
    /// `{env:VAR}`
    CurlyEnv,
    /// `${input:id}`
    Input,
    /// `${workspaceFolder}`
    Workspace,
    /// `${userHome}`
    Home,
    /// `${cmd: command}`
    Command,
}

/// How deep braces may nest within a reference. It bounds the search for the end.
const MAX_BRACES: usize = 4;

impl Template {
    /// A text without references.
    pub fn literal(text: impl Into<String>) -> Self {
        Self(vec![Piece::Literal(text.into())])
    }

    /// An environment variable alone.
    pub fn env(name: impl Into<String>) -> Self {
        Self(vec![Piece::Env { name: name.into(), default: None }])
    }

    /// The text, if there are no references in it.
    pub fn as_literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    pub(crate) fn parse(text: &str, forms: &[Form]) -> Self {
        let mut template = Self::default();
        let mut rest = text;
        while let Some(at) = rest.find(['$', '{']) {
            let (before, tail) = rest.split_at(at);
            template.push_text(before);
            let (piece, length) = reference(tail, forms).unwrap_or((Piece::Literal(tail[..1].to_owned()), 1));
            template.push(piece);
            rest = &tail[length..];
        }
        template.push_text(rest);
        template
    }

    /// Whether a reference is left that Weir does not know.
    pub(crate) fn has_unknown(&self, forms: &[Form]) -> bool {
        let unknown = |text: &str| text.contains("${") || forms.contains(&Form::CurlyEnv) && text.contains("{file:");
        !forms.is_empty() && self.0.iter().any(|piece| matches!(piece, Piece::Literal(text) if unknown(text)))
    }

    /// Replaces variables by what `env` has for them.
    pub(crate) fn substitute(&mut self, env: &[(String, Self)]) {
        let mut resolved = Self::default();
        for piece in std::mem::take(&mut self.0) {
            let value = match &piece {
                Piece::Env { name, .. } => env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()),
                _ => None,
            };
            value.unwrap_or(Self(vec![piece])).0.into_iter().for_each(|piece| resolved.push(piece));
        }
        *self = resolved;
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        match (self.0.last_mut(), piece) {
            (Some(Piece::Literal(last)), Piece::Literal(more)) => last.push_str(&more),
            (_, piece) => self.0.push(piece),
        }
    }

    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Piece::Literal(text.to_owned()));
        }
    }
}

/// The reference at the start of a text, and its length.
fn reference(text: &str, forms: &[Form]) -> Option<(Piece, usize)> {
    if let Some(inner) = text.strip_prefix("${") {
        let end = closing(inner)?;
        return Some((braced(&inner[..end], forms)?, end + 3));
    }
    if let Some(inner) = text.strip_prefix("{env:") {
        let end = inner.find(|c: char| !is_name_char(c)).filter(|&end| inner[end..].starts_with('}'))?;
        let name = Some(&inner[..end]).filter(|name| forms.contains(&Form::CurlyEnv) && is_name(name))?;
        return Some((env(name), end + 6));
    }
    let name = text.strip_prefix('$').filter(|_| forms.contains(&Form::Bare))?;
    let end = name.find(|c: char| !is_name_char(c)).unwrap_or(name.len());
    Some((env(Some(&name[..end]).filter(|name| is_name(name))?), end + 1))
}

/// Where the brace that is open before `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut open = 1;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' if open == MAX_BRACES => return None,
            b'{' => open += 1,
            b'}' if open == 1 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn braced(body: &str, forms: &[Form]) -> Option<Piece> {
    let known = |form| forms.contains(&form);
    match body.split_once(':') {
        Some(("env", name)) if known(Form::EnvPrefix) && is_name(name) => Some(env(name)),
        Some(("input", id)) if known(Form::Input) => {
            Some(Piece::Input { id: id.to_owned(), description: None, password: false })
        }
        Some(("cmd", command)) if known(Form::Command) => Some(Piece::Command(command.trim().to_owned())),
        Some((name, default)) if known(Form::Default) && is_name(name) => {
            Some(Piece::Env { name: name.to_owned(), default: Some(default.strip_prefix('-')?.to_owned()) })
        }
        None if body == "workspaceFolder" && known(Form::Workspace) => Some(Piece::WorkspaceFolder),
        None if body == "userHome" && known(Form::Home) => Some(Piece::UserHome),
        None if known(Form::Braces) && is_name(body) => Some(env(body)),
        None if known(Form::Spaced) && is_name(body.trim()) => Some(env(body.trim())),
        _ => None,
    }
}

fn env(name: &str) -> Piece {
    Piece::Env { name: name.to_owned(), default: None }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| is_name_char(c) && !c.is_ascii_digit()) && name.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
