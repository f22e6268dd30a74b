//! The tables that say who may see and call what, and what is served together.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::config::access::{Approver, Effect, ItemPattern};
use crate::config::problem::ProblemReport;
use crate::config::quantity::Period;
use crate::config::read::{Node, Setting, SettingKind, field, mistyped, refuse_unknown, table};
use crate::config::string::{TemplateString, choice, strings};
use crate::config::value::{Json, NamedValues, OneOrMore, Values};
use crate::config::{Condition, Pattern, read::Unreadable};

table! {
    /// Who may see and call what. As soon as there is a rule, what no rule allows is denied: it is on no list, and a
    /// call of it is answered as if it did not exist. Without this table everybody who may call may call everything.
    #[schemars(rename = "Access", extend("required" = ["rules"]))]
    struct WrittenAccess("a table with `rules`") {
        /// Whether the rules are enforced. If `false`, what they would refuse is logged and allowed. Default: `true`.
        enforce: bool,
        /// The rules. A rule that denies wins over those that allow; their order has no meaning.
        rules: Values<WrittenRule>,
    }

    /// One rule. It concerns a call that matches each key; within a list one match is enough. In patterns `*` stands
    /// for any characters and `?` for one.
    #[schemars(rename = "Rule")]
    struct WrittenRule("a table such as { groups = [\"ops\"], tools = [\"*\"] }") {
        /// Its name in the log. Default: `rule-1`, `rule-2` and so on.
        name: TemplateString,
        /// `"allow"`, or `"deny"`, which wins over every other rule. Default: `"allow"`.
        effect: Effect,
        /// Subjects: the `sub` of a token, the name of an API key, or `local`.
        subjects: OneOrMore<Pattern>,
        /// Groups; one of the caller's is enough.
        groups: OneOrMore<Pattern>,
        /// Scopes; one of the token's is enough.
        scopes: OneOrMore<Pattern>,
        /// Issuers.
        issuers: OneOrMore<Pattern>,
        /// API keys, by name.
        keys: OneOrMore<Pattern>,
        /// Endpoints: `mcp` for `/mcp`, else what follows `/mcp/`.
        endpoints: OneOrMore<Pattern>,
        /// Upstreams. The name of one with `accounts` means all of them.
        upstreams: OneOrMore<Pattern>,
        /// Accounts of upstreams that have `accounts`.
        accounts: OneOrMore<Pattern>,
        /// Tools, as the upstream calls them, or as `<upstream>__<tool>`. Once a rule names tools, prompts or resources,
        /// it concerns no others.
        tools: OneOrMore<ItemPattern>,
        /// Prompts, in the same way.
        prompts: OneOrMore<ItemPattern>,
        /// Resources, by address.
        resources: OneOrMore<ItemPattern>,
        /// A condition in CEL over `caller` (`subject`, `issuer`, `groups`, `scopes`, `key`, `claims`), `call`
        /// (`endpoint`, `method`, `upstream`, `account`, `kind`, `name`) and `args`, the arguments: `"args.amount <= 100"`.
        when: Condition,
        /// Who must approve a call of these tools before it goes out. For a rule that allows and names `tools` alone.
        approve: WrittenApproval,
        /// Whether it is enforced. If `false`, only what it would change is logged. Default: `true`.
        enforce: bool,
    }

    /// Who must approve a call. One approval is good for one call with the same arguments.
    #[schemars(rename = "Approval", extend("required" = ["by"]))]
    struct WrittenApproval("a table such as { by = \"group:ops\" }") {
        /// `"caller"` (the person at the client), `"group:NAME"` or `"subject:NAME"`; one of them is enough. Unless `by` has
        /// `"caller"`, nobody approves their own call.
        by: OneOrMore<Approver>,
        /// A condition in CEL, as in the rule. Without it each call needs approval. If it cannot be evaluated, the call
        /// needs approval.
        when: Condition,
        /// How long a request waits, and how long an approval is good. At most a day. Default: `"10m"`.
        expires: Period,
    }

    /// What is served together at `/mcp/<name>`. Once it names tools, prompts or resources, it has no others.
    #[schemars(rename = "Toolset")]
    struct WrittenToolset("a table such as { upstreams = [\"github\"] }") {
        /// The upstreams it picks from, in the order of their lists. Default: all.
        upstreams: OneOrMore<Pattern>,
        /// The tools, in the order of their list, as the upstream calls them or as `<upstream>__<tool>`.
        tools: WrittenSelection,
        /// The prompts, in the same way.
        prompts: WrittenSelection,
        /// The resources, by address.
        resources: WrittenSelection,
        /// Whether names begin with that of their upstream. Default: `true`.
        prefix: bool,
        /// What its `instructions` are. Default: those of its upstreams.
        instructions: TemplateString,
        /// How a tool is shown and called otherwise, by `<upstream>__<tool>`.
        overrides: NamedValues<WrittenOverride>,
    }

    /// How a tool is shown and called otherwise.
    #[schemars(rename = "Override")]
    struct WrittenOverride("a table such as { name = \"search\" }") {
        /// The name that clients know, without that of an upstream.
        name: TemplateString,
        /// Its `title`.
        title: TemplateString,
        /// Its `description`.
        description: TemplateString,
        /// Its `annotations`, instead of the upstream's.
        annotations: Json,
        /// Arguments that are always sent so. Clients do not see them and cannot change them.
        fixed: Json,
        /// Arguments that clients do not see and cannot send.
        hidden: Values<TemplateString>,
    }
}

/// A pattern or several to allow, or a table with `allow` and `deny`.
#[derive(Default)]
pub(in crate::config) struct WrittenSelection {
    pub(in crate::config) allow: Setting<OneOrMore<ItemPattern>>,
    pub(in crate::config) deny: Setting<OneOrMore<ItemPattern>>,
}

impl SettingKind for WrittenSelection {
    const EXPECTED: &'static str = "a pattern, a list of them, or a table with `allow` or `deny`";

    fn read(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<Self> {
        let at = |value| {
            let (key, span) = (node.span(), node.span());
            Setting::Set(crate::config::read::At { key, span, value })
        };
        if node.get_ref().is_array() || node.get_ref().is_str() {
            return OneOrMore::read(node, report).map(|list| Self { allow: at(list), ..Self::default() });
        }
        let Some(table) = node.get_ref().as_table() else { return mistyped(node, report) };
        refuse_unknown(table, &["allow", "deny"], report);
        Some(Self { allow: field(table, "allow", report), deny: field(table, "deny", report) })
    }
}

impl JsonSchema for WrittenSelection {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Selection".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = json_schema!({ "type": "string", "minLength": 1 });
        let list = json_schema!({ "type": "array", "items": pattern });
        let patterns = json_schema!({ "anyOf": [pattern, list] });
        json_schema!({ "anyOf": [pattern, list, {
            "type": "object", "properties": { "allow": patterns, "deny": patterns }, "additionalProperties": false
        }] })
    }
}

impl std::str::FromStr for Effect {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        choice(text, &[("allow", Self::Allow), ("deny", Self::Deny)], &[])
    }
}

impl std::str::FromStr for Approver {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let named = text.split_once(':').filter(|(_, name)| !name.is_empty());
        match (text, named) {
            ("caller", _) => Ok(Self::Caller),
            (_, Some(("group", name))) => Ok(Self::Group(name.to_owned())),
            (_, Some(("subject", name))) => Ok(Self::Subject(name.to_owned())),
            _ => Err(Unreadable::new(
                format!("`{}` names nobody who may approve", text.escape_debug()),
                r#""caller", "group:NAME" or "subject:NAME""#,
            )),
        }
    }
}

strings! { Approver: "\"caller\", \"group:NAME\" or \"subject:NAME\"",
{ "type": "string", "pattern": "^(caller|group:.+|subject:.+)$" }; }
strings! { Effect: "\"allow\" or \"deny\"", { "type": "string", "enum": ["allow", "deny"] }; }
