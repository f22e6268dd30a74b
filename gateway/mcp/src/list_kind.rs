//! What a server can list.

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// `tools/list`
    Tool,
    /// `prompts/list`
    Prompt,
    /// `resources/list`
    Resource,
    /// `resources/templates/list`
    Template,
}

impl ListKind {
    /// All kinds, in the order they are fetched.
    pub const ALL: [Self; 4] = [Self::Tool, Self::Prompt, Self::Resource, Self::Template];

    /// The kind that a method lists.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// The method that lists it.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tool => "tools/list",
            Self::Prompt => "prompts/list",
            Self::Resource => "resources/list",
            Self::Template => "resources/templates/list",
        }
    }

    /// What one entry is called.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::Template => "resource template",
        }
    }

    /// The member of a result that holds the list.
    #[must_use]
    pub const fn list(self) -> &'static str {
        match self {
            Self::Tool => "tools",
            Self::Prompt => "prompts",
            Self::Resource => "resources",
            Self::Template => "resourceTemplates",
        }
    }

    /// The member of an entry that names it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Tool | Self::Prompt => "name",
            Self::Resource => "uri",
            Self::Template => "uriTemplate",
        }
    }

    /// The capability of a server that has such lists.
    #[must_use]
    pub const fn capability(self) -> &'static str {
        match self {
            Self::Tool => "tools",
            Self::Prompt => "prompts",
            Self::Resource | Self::Template => "resources",
        }
    }

    /// Whether entries have names, which differ from server to server, and no addresses.
    #[must_use]
    pub const fn is_renamed(self) -> bool {
        matches!(self, Self::Tool | Self::Prompt)
    }
}
