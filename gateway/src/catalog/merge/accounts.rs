//! Several accounts of one service, where an argument chooses among them.
//!
//! Each tool and prompt is listed once, under the name of the service, as the first account has it. It gets an argument
//! that names the account. Weir takes that out of the call and sends the call to the upstream of that account.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use weir_mcp::{Era, ListKind, json, public};

use crate::{
    catalog::snapshot::ListEntry,
    config::{Account, UpstreamName},
};

use super::KnownUpstream;

/// What the argument is called.
const ARGUMENT: &str = "account";

/// What stands before that as often as it takes, where a tool has an argument of that name.
const PREFIX: &str = "weir_";

/// How a call chooses the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountChoice {
    service: UpstreamName,
    /// The argument that names it.
    pub argument: String,
    accounts: Vec<(Arc<str>, UpstreamName)>,
    /// Whether the first is meant where none is named.
    has_default: bool,
}

impl AccountChoice {
    /// A choice among these, the first of them by default; none if there is nothing to choose from.
    #[must_use]
    pub fn among<'a>(accounts: impl Iterator<Item = (&'a Account, &'a UpstreamName)>) -> Option<Self> {
        let mut service = None;
        let named = |(account, upstream): (&Account, &UpstreamName)| {
            service.get_or_insert_with(|| account.service.clone());
            (Arc::clone(&account.name), upstream.clone())
        };
        let accounts: Vec<_> = accounts.map(named).collect();
        Some(Self { service: service?, argument: ARGUMENT.to_owned(), accounts, has_default: true })
    }

    /// The upstream of the account that the arguments name, and whether they name one.
    ///
    /// # Errors
    /// What to write instead.
    pub fn choose(&self, arguments: Option<&[u8]>) -> Result<(&UpstreamName, bool), String> {
        // Where it is there twice, the last one counts, as for most readers.
        let mut members = arguments.into_iter().flat_map(json::members).filter(|(name, _)| *name == self.argument);
        let given = members.by_ref().last().map(|(_, raw)| raw);
        let named = given.and_then(json::string);
        let found = match (given, &named) {
            (None, _) => self.accounts.first().filter(|_| self.has_default),
            (Some(_), named) => self.accounts.iter().find(|(name, _)| named.as_deref() == Some(&**name)),
        };
        found.map(|(_, upstream)| (upstream, given.is_some())).ok_or_else(|| {
            let names: Vec<String> = self.accounts.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            format!("`{}` must be an account at `{}`: {}", self.argument, self.service, names.join(" or "))
        })
    }

    /// Whether an upstream is one of them.
    fn has(&self, upstream: &UpstreamName) -> bool {
        self.accounts.iter().any(|(_, known)| known == upstream)
    }

    /// The entry with the argument.
    pub(super) fn shown(&self, kind: ListKind, raw: &Bytes) -> Bytes {
        let (argument, text) = (json::quote(&self.argument), json::quote(&format!("The account at {}.", self.service)));
        if kind == ListKind::Prompt {
            let is_required = !self.has_default;
            let argument = format!("{{\"name\":{argument},\"description\":{text},\"required\":{is_required}}}");
            return with_first(raw, "arguments", ('[', ']'), &argument);
        }
        let Some(schema) = json::get(raw, &["inputSchema"]) else { return raw.clone() };
        let names: Vec<String> = self.accounts.iter().map(|(name, _)| json::quote(name)).collect();
        let default = names.first().filter(|_| self.has_default).map(|name| format!(",\"default\":{name}"));
        let property = format!(
            "{argument}:{{\"type\":\"string\",\"enum\":[{}]{},\"description\":{text}}}",
            names.join(","),
            default.unwrap_or_default()
        );
        let mut changed = with_first(&Bytes::copy_from_slice(schema), "properties", ('{', '}'), &property);
        if !self.has_default {
            changed = with_first(&changed, "required", ('[', ']'), &argument);
        }
        public::replaced(raw, vec![(schema, String::from_utf8_lossy(&changed).into_owned())])
    }
}

/// An object whose member of that name, an object or an array, begins with `part`.
fn with_first(object: &Bytes, member: &str, (open, close): (char, char), part: &str) -> Bytes {
    let begun = |open: char, rest: &[u8], part: &str| {
        let rest = String::from_utf8_lossy(rest);
        let comma = if rest.trim_start().starts_with(['}', ']']) { "" } else { "," };
        format!("{open}{part}{comma}{rest}")
    };
    match json::get(object, &[member]) {
        Some(there) => match there.split_first() {
            Some((first, rest)) if char::from(*first) == open => {
                public::replaced(object, vec![(there, begun(open, rest, part))])
            }
            _ => object.clone(),
        },
        None => {
            let part = format!("{}:{open}{part}{close}", json::quote(member));
            begun('{', object.get(1..).unwrap_or(b"}"), &part).into()
        }
    }
}

/// The services of which a list has accounts.
pub(super) struct Services<'a> {
    /// By upstream.
    services: HashMap<&'a UpstreamName, &'a UpstreamName>,
    /// By service: those of more than one account, where arguments choose among them.
    accounts: HashMap<&'a UpstreamName, Vec<ServiceAccount<'a>>>,
}

struct ServiceAccount<'a> {
    account: &'a Account,
    known: &'a KnownUpstream,
    /// By [`ListKind`]: tools and prompts. None where it is not known what it has.
    has: Option<[HashSet<&'a str>; 2]>,
}

impl<'a> Services<'a> {
    pub(super) fn new(era: Era, upstreams: &'a [KnownUpstream]) -> Self {
        let (mut services, mut accounts) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        for known in upstreams {
            let Some(account) = &known.account else { continue };
            services.insert(&known.name, &account.service);
            if !account.by_argument {
                continue;
            }
            let view = known.view.as_ref().filter(|view| !view.waits);
            let has = view.map(|view| {
                [ListKind::Tool, ListKind::Prompt].map(|kind| {
                    let entries = view.entries(kind).iter().filter(|entry| era == Era::Modern || !entry.modern_only);
                    entries.map(|entry| entry.key.as_str()).collect()
                })
            });
            accounts.entry(&account.service).or_default().push(ServiceAccount { account, known, has });
        }
        accounts.retain(|_, accounts| accounts.len() > 1);
        Self { services, accounts }
    }

    /// Whether both upstreams are accounts of one service.
    pub(super) fn are_one(&self, one: &UpstreamName, other: &UpstreamName) -> bool {
        self.services.get(one).is_some_and(|service| self.services.get(other) == Some(service))
    }

    /// How a call of an entry chooses among the accounts that have it, or may have; none where there is nothing to choose.
    pub(super) fn choice(&self, kind: ListKind, known: &KnownUpstream, entry: &ListEntry) -> Option<AccountChoice> {
        let at = match kind {
            ListKind::Tool => 0,
            ListKind::Prompt => 1,
            ListKind::Resource | ListKind::Template => return None,
        };
        let accounts = self.accounts.get(&known.account.as_ref()?.service)?;
        let waits = |known: &KnownUpstream| known.view.as_ref().is_some_and(|view| view.waits);
        let stands_in = waits(known);
        let may_have = |one: &&ServiceAccount<'_>| match &one.has {
            // What stands in for an account is no tool of the others.
            _ if stands_in => waits(one.known),
            Some(has) => has[at].contains(entry.key.as_str()),
            None => true,
        };
        let of = accounts.iter().filter(may_have).map(|one| (one.account, &one.known.name));
        let mut choice = AccountChoice::among(of)?;
        if stands_in && choice.accounts.len() == 1 {
            return None;
        }
        // The default must not turn into another account because the first does not have this now.
        choice.has_default = stands_in || accounts.first().is_some_and(|first| choice.has(&first.known.name));
        let schema = json::get(&entry.raw, &["inputSchema", "properties"]).unwrap_or(b"{}");
        let own: Vec<_> = match kind {
            ListKind::Tool => json::members(schema).map(|(name, _)| name.into_owned()).collect(),
            _ => {
                let arguments = json::get(&entry.raw, &["arguments"]).unwrap_or(b"[]");
                let names = json::elements(arguments).filter_map(|one| json::string(json::get(one, &["name"])?));
                names.map(|name| name.into_owned()).collect()
            }
        };
        while own.iter().any(|own| *own == choice.argument || json::is_like(own, &choice.argument)) {
            choice.argument.insert_str(0, PREFIX);
        }
        Some(choice)
    }
}
