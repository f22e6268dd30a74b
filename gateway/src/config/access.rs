//! Who may see and call what, and what is served together.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use weir_mcp::json::is_like;

use super::{Condition, Pattern, UpstreamName};

/// The endpoint `/mcp`, as rules call it.
pub const MERGED_ENDPOINT: &str = "mcp";

/// The rules on who may do what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessConfig {
    /// Whether the rules are enforced; otherwise each call that they would refuse is logged.
    pub enforce: bool,
    /// The rules in the order of the file, at least one.
    pub rules: Vec<RuleConfig>,
    /// The accounts that conditions may ask for, by the names of their upstreams.
    pub accounts: HashMap<UpstreamName, Arc<str>>,
}

/// One rule. A list that is empty restricts nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleConfig {
    /// Its name in the log; unique.
    pub name: Arc<str>,
    /// What it does with what it matches.
    pub effect: Effect,
    /// The callers it concerns.
    pub who: Who,
    /// The endpoints it concerns: `mcp`, or what follows `/mcp/`.
    pub endpoints: Vec<Pattern>,
    /// The upstreams it concerns.
    pub upstreams: Vec<Pattern>,
    /// What of them it concerns.
    pub items: ItemPatterns,
    /// What must be true of the caller, the call and its arguments.
    pub when: Option<Condition>,
    /// Who must approve a call that it allows.
    pub approve: Option<ApprovalConfig>,
    /// Whether it is enforced; otherwise only what it would change is logged.
    pub enforce: bool,
}

/// Who must approve a call before it goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalConfig {
    /// One of these is enough; at least one.
    pub by: Vec<Approver>,
    /// Which calls need it; none for all.
    pub when: Option<Condition>,
    /// How long a request waits, and how long an approval is good.
    pub expires: Duration,
}

/// Who may approve a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approver {
    /// The caller itself.
    Caller,
    /// A member of a group, other than the caller.
    Group(String),
    /// The principal of this subject, other than the caller.
    Subject(String),
}

/// What a rule does with what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It allows it, unless another rule denies it.
    Allow,
    /// It denies it, whatever other rules say.
    Deny,
}

/// The callers that a rule concerns: those that match each list that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// By subject.
    pub subjects: Vec<Pattern>,
    /// By group; one of the caller's is enough.
    pub groups: Vec<Pattern>,
    /// By scope; one of the token's is enough.
    pub scopes: Vec<Pattern>,
    /// By issuer.
    pub issuers: Vec<Pattern>,
    /// By API key.
    pub keys: Vec<Pattern>,
}

/// Tools, prompts and resources by pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ItemPatterns {
    /// Tools; none if nothing is said of them.
    pub tools: Option<Vec<ItemPattern>>,
    /// Prompts.
    pub prompts: Option<Vec<ItemPattern>>,
    /// Resources and templates, by address.
    pub resources: Option<Vec<ItemPattern>>,
}

/// A pattern of names or addresses. With `__` in it, the name of an upstream must match what is before that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemPattern {
    /// Of the upstream's name.
    pub upstream: Option<Pattern>,
    /// Of what the upstream itself calls it.
    pub native: Pattern,
}

/// What of a kind is served: what `allow` matches and `deny` does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// None for all.
    pub allow: Option<Vec<ItemPattern>>,
    /// Taken out again.
    pub deny: Vec<ItemPattern>,
}

/// What of each kind is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selections {
    /// Tools; none if nothing is said of them.
    pub tools: Option<Selection>,
    /// Prompts.
    pub prompts: Option<Selection>,
    /// Resources and templates, by address.
    pub resources: Option<Selection>,
}

/// What is served together at `/mcp/<name>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolsetConfig {
    /// Its name; no upstream has it.
    pub name: UpstreamName,
    /// The upstreams it picks from, in this order; all if empty.
    pub upstreams: Vec<Pattern>,
    /// What it picks. Once one kind is named, the others are left out unless they are named too.
    pub items: Selections,
    /// Whether names begin with that of the upstream.
    pub prefix: bool,
    /// Its `instructions`, instead of those of its upstreams.
    pub instructions: Option<String>,
    /// What is shown and sent otherwise, by the tool it concerns.
    pub overrides: Vec<(ItemPattern, ToolOverride)>,
}

/// How a tool is shown and called otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOverride {
    /// The name that clients know.
    pub name: Option<String>,
    /// Its `title`.
    pub title: Option<String>,
    /// Its `description`.
    pub description: Option<String>,
    /// Its `annotations`, a JSON object.
    pub annotations: Option<String>,
    /// Arguments that are always sent so and never shown: a name and a JSON value.
    pub fixed: Vec<(String, String)>,
    /// Arguments that are neither shown nor passed on.
    pub hidden: Vec<String>,
}

impl RuleConfig {
    /// A rule that restricts nothing and has a call approved.
    #[must_use]
    pub fn asking(name: Arc<str>, approve: ApprovalConfig) -> Self {
        Self {
            name,
            effect: Effect::Allow,
            who: Who::default(),
            endpoints: Vec::new(),
            upstreams: Vec::new(),
            items: ItemPatterns::default(),
            when: None,
            approve: Some(approve),
            enforce: true,
        }
    }
}

/// As it was written.
impl fmt::Display for Approver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller => f.write_str("caller"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Subject(name) => write!(f, "subject:{name}"),
        }
    }
}

impl fmt::Display for ApprovalConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.by.iter().enumerate().try_for_each(|(at, by)| write!(f, "{}{by}", if at == 0 { "" } else { " or " }))
    }
}

/// As it was written.
impl fmt::Display for ItemPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.upstream {
            Some(upstream) => write!(f, "{}__{}", upstream.as_str(), self.native.as_str()),
            None => f.write_str(self.native.as_str()),
        }
    }
}

impl ItemPattern {
    /// Whether it matches what an upstream offers under a name or address.
    #[must_use]
    pub fn matches(&self, upstream: &str, native: &str) -> bool {
        self.upstream.as_ref().is_none_or(|pattern| pattern.matches(upstream)) && self.native.matches(native)
    }

    /// Whether it may match some address that a template (RFC 6570) stands for, by what both begin with.
    #[must_use]
    pub fn may_match(&self, upstream: &str, template: &str) -> bool {
        let start = template.split('{').next().unwrap_or_default();
        self.upstream.as_ref().is_none_or(|pattern| pattern.matches(upstream)) && self.native.may_begin(start)
    }
}

impl ToolOverride {
    /// Whether clients do not see an argument, and cannot send it. Nor can they in other case, which some servers ignore.
    #[must_use]
    pub fn hides(&self, argument: &str) -> bool {
        let same = |name: &String| name == argument || is_like(argument, name);
        self.hidden.iter().any(same) || self.fixed.iter().any(|(name, _)| same(name))
    }
}
