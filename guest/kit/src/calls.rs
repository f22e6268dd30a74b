//! What a policy about calls is written with.
//!
//! ```
//! use weir_policy::{Upstream, calls::*};
//!
//! struct NoDeletes;
//!
//! impl Calls for NoDeletes {
//!     fn wants(_settings: String) -> Result<Interest, String> {
//!         Ok(Interest { request: Detail::Facts, ..Interest::in_methods(["tools/call"]).of_names(["delete_*"]) })
//!     }
//!
//!     fn before(_: Call, _: Option<String>) -> Decision {
//!         Decision::deny("nothing is deleted through this gateway; archive it instead").for_seconds(60)
//!     }
//!
//!     fn after(_: Call, memory: String, _: Content) -> AnswerDecision {
//!         AnswerDecision::pass(memory)
//!     }
//!
//!     fn entries(_: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
//!         entries.iter().map(|_| EntryVerdict::Show).collect()
//!     }
//! }
//!
//! weir_policy::export_calls!(NoDeletes);
//! # fn main() {}
//! ```

use crate::{Upstream, json::Json};

pub use crate::bindings::calls::exports::weir::policy::calls::{
    AnswerDecision, AnswerVerdict, Approval, Call, Content, Decision, Denial, Detail, Entry, EntryKind, EntryVerdict,
    Guest as Calls, Interest, Verdict,
};

impl Upstream {
    /// The group of clients that a list is for; none for clients in no group.
    pub fn client_group(&self) -> Option<&str> {
        let group = self.extensions.iter().find(|(key, _)| key == "client-group");
        group.map(|(_, group)| group.as_str())
    }
}

impl Call {
    /// The input schema of the tool as its server listed it, where the interest has it and Weir knows it.
    pub fn input_schema(&self) -> Option<&str> {
        let schema = self.extensions.iter().find(|(key, _)| key == "input-schema");
        schema.map(|(_, schema)| schema.as_str())
    }
}

impl Interest {
    /// An interest in nothing of these methods, to be filled in.
    pub fn in_methods<'a>(methods: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            methods: methods.into_iter().map(str::to_owned).collect(),
            names: Vec::new(),
            request: Detail::Nothing,
            answer: Detail::Nothing,
            event: Detail::Nothing,
            entries: Vec::new(),
            extensions: Vec::new(),
        }
    }

    /// An interest in the entries of these lists.
    pub fn in_entries(lists: impl IntoIterator<Item = EntryKind>) -> Self {
        Self { entries: lists.into_iter().collect(), ..Self::in_methods([]) }
    }

    /// The same, which tells clients apart in lists: patterns of their names in small letters, each with the name of a
    /// group. [`Upstream::client_group`] says whom a list is for.
    pub fn of_clients<'a>(mut self, groups: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let pair = |(pattern, group): (&str, &str)| Json::from(vec![pattern.into(), group.into()]);
        let pairs: Vec<Json> = groups.into_iter().map(pair).collect();
        if !pairs.is_empty() {
            self.extensions.push(("clients".to_owned(), Json::from(pairs).to_string()));
        }
        self
    }

    /// The same, where calls of tools bring the input schema of the tool: [`Call::input_schema`].
    pub fn with_input_schemas(mut self) -> Self {
        self.extensions.push(("input-schema".to_owned(), String::new()));
        self
    }

    /// The same for these names only.
    pub fn of_names<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.names = names.into_iter().map(str::to_owned).collect();
        self
    }
}

impl Decision {
    /// The request goes on.
    pub fn allow() -> Self {
        Self::of(Verdict::Allow)
    }

    /// It ends here; the text is for the model.
    pub fn deny(text: impl Into<String>) -> Self {
        Self::of(Verdict::Deny(Denial::new(text)))
    }

    /// It goes on with these `params`.
    pub fn replace(params: impl Into<String>) -> Self {
        Self::of(Verdict::Replace(params.into()))
    }

    /// It ends here with this `result`.
    pub fn answer(result: impl Into<String>) -> Self {
        Self::of(Verdict::Answer(result.into()))
    }

    /// It goes on once one of these has approved it, within ten minutes.
    pub fn ask<'a>(by: impl IntoIterator<Item = &'a str>) -> Self {
        let by = by.into_iter().map(str::to_owned).collect();
        Self::of(Verdict::Ask(Approval { by, expires_in_seconds: 600, extensions: Vec::new() }))
    }

    /// The same, which holds for so long for calls with the same facts.
    pub const fn for_seconds(mut self, seconds: u32) -> Self {
        self.ttl_seconds = seconds;
        self
    }

    /// The same with a word for the log.
    pub fn label(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.labels.push((name.into(), text.into()));
        self
    }

    /// The same with a header for the upstream.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same, of which this is told again about this call.
    pub fn remember(mut self, memory: impl Into<String>) -> Self {
        self.memory = memory.into();
        self
    }

    const fn of(verdict: Verdict) -> Self {
        Self {
            verdict,
            headers: Vec::new(),
            labels: Vec::new(),
            memory: String::new(),
            ttl_seconds: 0,
            extensions: Vec::new(),
        }
    }
}

impl AnswerDecision {
    /// It goes on.
    pub const fn pass(memory: String) -> Self {
        Self::of(AnswerVerdict::Pass, memory)
    }

    /// It goes on as this.
    pub fn replace(with: impl Into<String>, memory: String) -> Self {
        Self::of(AnswerVerdict::Replace(with.into()), memory)
    }

    /// The client does not get it; for notifications.
    pub const fn drop(memory: String) -> Self {
        Self::of(AnswerVerdict::Drop, memory)
    }

    /// The call ends here; the text is for the model.
    pub fn cut(text: impl Into<String>) -> Self {
        Self::of(AnswerVerdict::Cut(Denial::new(text)), String::new())
    }

    const fn of(verdict: AnswerVerdict, memory: String) -> Self {
        Self { verdict, labels: Vec::new(), memory, extensions: Vec::new() }
    }
}

impl Denial {
    /// A refusal without a code of its own.
    pub fn new(text: impl Into<String>) -> Self {
        Self { code: None, text: text.into(), extensions: Vec::new() }
    }
}
