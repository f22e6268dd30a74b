//! A guest that decides about calls as its settings say, to the point of breaking the contract.
//!
//! `see` names what it wants to see: `facts`, `body`, `answers`, `events`, `tools`, `templates`, `nothing`; it panics at `trap`. `on` is the
//! pattern of methods that concern it, `tools/*` if it is not there. `do` names what it does, with what follows the first `=`.

use std::time::Duration;

use weir_policy::{
    Upstream,
    calls::*,
    capability::{clock, store},
};

struct Judge;

/// A text of the settings, which are simple enough not to be parsed.
fn setting(settings: &str, key: &str) -> String {
    let rest = settings.split_once(&format!("\"{key}\":\"")).map_or("", |(_, rest)| rest);
    rest.split_once('"').map_or("", |(text, _)| text).replace('\'', "\"")
}

/// What is to be done, and with what.
fn task(upstream: &Upstream) -> (String, String) {
    let text = setting(&upstream.settings, "do");
    let (word, with) = text.split_once('=').unwrap_or((&text, ""));
    (word.to_owned(), with.to_owned())
}

fn misbehave(word: &str) {
    match word {
        "trap" => panic!("on purpose"),
        "spin" => loop {
            std::hint::black_box(());
        },
        "recurse" => drop(deeper(1)),
        "fill" => {
            let mut all: Vec<Vec<u8>> = Vec::new();
            loop {
                all.push(vec![1; 1 << 20]);
                std::hint::black_box(&all);
            }
        }
        _ => {}
    }
}

/// How many calls somebody has made, with this one.
fn counted(who: &str) -> Result<u64, store::StoreError> {
    loop {
        let found = store::get(who)?;
        let when = found.as_ref().map_or(store::Condition::Absent, |item| store::Condition::Version(item.version));
        let count = found.map_or(0, |item| u64::from_le_bytes(item.value.try_into().unwrap_or_default())) + 1;
        match store::set(who, &count.to_le_bytes(), 0, when) {
            Err(store::StoreError::Changed) => {}
            written => return written.map(|_| count),
        }
    }
}

/// Calls itself until the stack is full.
fn deeper(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 64]);
    if room[0] == u64::MAX { 0 } else { 1 + std::hint::black_box(deeper(room[0] + 1)) }
}

impl Calls for Judge {
    fn wants(settings: String) -> Result<Interest, String> {
        let see = setting(&settings, "see");
        let sees = |word: &str| see.split(' ').any(|one| one == word);
        if sees("nobody") {
            return Err("set `see` to something".into());
        }
        if sees("trap") {
            panic!("on purpose");
        }
        let detail = |wanted: bool, detail: Detail| if wanted { detail } else { Detail::Nothing };
        let request = if sees("body") { Detail::Body } else { detail(sees("facts"), Detail::Facts) };
        let on = setting(&settings, "on");
        let on = if on.is_empty() { "tools/*" } else { &on };
        let methods =
            if sees("facts") || sees("body") || sees("answers") || sees("events") { vec![on] } else { vec![] };
        let mut interest = Interest::in_methods(methods);
        interest.request = request;
        interest.answer = detail(sees("answers"), Detail::Body);
        interest.event = detail(sees("events"), Detail::Body);
        if sees("tools") {
            interest.entries.push(EntryKind::Tool);
        }
        if sees("templates") {
            interest.entries.push(EntryKind::Template);
        }
        Ok(interest)
    }

    fn before(about: Call, params: Option<String>) -> Decision {
        let (word, with) = task(&about.upstream);
        misbehave(&word);
        let seen = params.unwrap_or_default();
        match word.as_str() {
            "deny" => Decision::deny(with),
            // Long enough for others to do something meanwhile.
            "late" => {
                let start = clock::now();
                while clock::now() - start < Duration::from_millis(70) {}
                Decision::deny(with)
            }
            "code" => {
                let mut denial = Denial::new("by code");
                denial.code = with.parse().ok();
                let mut decision = Decision::allow();
                decision.verdict = Verdict::Deny(denial);
                decision
            }
            "swap" => {
                let (old, new) = with.split_once('>').unwrap_or_default();
                Decision::replace(seen.replace(old, new))
            }
            "blind" => Decision::replace("{}"),
            "answer" => Decision::answer(with),
            "ask" => Decision::ask([with.as_str()]),
            "header" => {
                let (name, value) = with.split_once(':').unwrap_or_default();
                Decision::allow().header(name, value)
            }
            "label" => Decision::allow().label("seen", with),
            "team" => {
                let who = about.principal.map(|principal| format!("{} {:?}", principal.subject, principal.extensions));
                Decision::deny(format!(
                    "{} {} {} {who:?} {:?}",
                    about.endpoint,
                    about.method,
                    about.name.unwrap_or_default(),
                    about.client
                ))
            }
            // Each decision of its own, so that a kept one is told from a new one, and says what it was about.
            "once" => {
                let who = about.principal.map(|principal| principal.subject);
                Decision::deny(format!("at {} {who:?} {:?}", clock::now().as_nanos(), about.name)).for_seconds(60)
            }
            "keep" if with.is_empty() => Decision::allow().for_seconds(3600),
            "keep" => Decision::allow().for_seconds(3600).label("seen", with),
            "memory" => Decision::allow().remember(with),
            "calls" => {
                let most = with.parse().unwrap_or(0);
                match counted(&about.principal.map_or_else(String::new, |principal| principal.subject)) {
                    Ok(count) if count > most => Decision::deny(format!("these were your {most} calls")),
                    Ok(count) => Decision::allow().label("count", count.to_string()),
                    Err(why) => Decision::deny(format!("{why:?}")),
                }
            }
            "hoard" => {
                let kept = (0..100).try_for_each(|number: u32| {
                    store::set(&number.to_string(), &[1; 100 << 10], 0, store::Condition::Always).map(drop)
                });
                Decision::deny(format!("{kept:?}"))
            }
            "huge" => Decision::deny("x".repeat(4 << 20)),
            _ => Decision::allow(),
        }
    }

    fn after(about: Call, memory: String, what: Content) -> AnswerDecision {
        let (word, with) = task(&about.upstream);
        let (text, is_event) = match &what {
            Content::Result(text) | Content::Error(text) => (text.clone().unwrap_or_default(), false),
            Content::Event(text) => (text.clone().unwrap_or_default(), true),
        };
        match word.as_str() {
            "mask" => {
                let (old, new) = with.split_once('>').unwrap_or_default();
                AnswerDecision::replace(text.replace(old, new), memory)
            }
            "memory" => AnswerDecision::replace(text.replace("hello", &memory), memory),
            "mute" if is_event => AnswerDecision::drop(memory),
            "cut" => AnswerDecision::cut(with),
            // The first two pass.
            "count" if is_event && memory.len() >= 2 => AnswerDecision::cut("enough"),
            "count" if is_event => AnswerDecision::pass(memory + "."),
            "swallow" => AnswerDecision::drop(memory),
            "broken" => AnswerDecision::replace("{\"a\":", memory),
            "after-trap" => panic!("on purpose"),
            _ => AnswerDecision::pass(memory),
        }
    }

    fn entries(of: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        let (word, with) = task(&of);
        if word == "few" {
            return Vec::new();
        }
        misbehave(&word);
        let verdict = |entry: &Entry| match word.as_str() {
            "hide" if entry.name == with => EntryVerdict::Hide("it is not for models".into()),
            "edit" if entry.name == "echo" => {
                EntryVerdict::Edit(entry.body.replace("\"description\":\"", &format!("\"description\":\"{with}")))
            }
            "rename" => EntryVerdict::Edit(entry.body.replace("echo", "other")),
            _ => EntryVerdict::Show,
        };
        entries.iter().map(verdict).collect()
    }
}

weir_policy::export_calls!(Judge);
