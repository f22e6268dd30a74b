//! A guest that calls its imports with whatever its settings say, and stops with how often it came back.
//!
//! `ops` is a list of lists: the import, a text, how often the text is repeated, and a number.

use weir_policy::{
    Credentials, Decision, Question, Settings,
    capability::{
        clock,
        http::{self, Method, Request},
        log, random, secrets,
        store::{self, Condition},
    },
    json::Json,
};

struct ImportFuzzer;

impl Credentials for ImportFuzzer {
    fn decide(about: Question) -> Decision {
        let settings = Settings::of(&about.upstream);
        let ops = settings.get("ops").map_or(&[][..], Json::elements);
        let done = ops.iter().filter(|op| call(op.elements()).is_some()).count();
        Decision::Stop(format!("came back {done} times"))
    }
}

fn call(op: &[Json]) -> Option<()> {
    let [import, text, times, number] = op else { return None };
    let number = number.as_number().unwrap_or_default();
    let small = u32::try_from(number).unwrap_or(u32::MAX);
    let text = text.as_text()?.repeat(usize::try_from(times.as_number()?).ok()?);
    match import.as_text()? {
        "log" if number % 2 == 0 => log::error(&text),
        "log" => log::debug(&text),
        "clock" => drop(clock::now()),
        "random" => drop(random::bytes(small)),
        "secret" => drop(secrets::read(&text)),
        "get" => drop(store::get(&text)),
        "keys" => drop(store::keys(&text)),
        "delete" => drop(store::delete(&text)),
        "set" => {
            let key = text.chars().take(usize::try_from(number % 300).unwrap_or_default()).collect::<String>();
            let when = [Condition::Always, Condition::Absent, Condition::Version(number)];
            let when = when.into_iter().nth(usize::try_from(number % 3).unwrap_or_default())?;
            drop(store::set(&key, text.as_bytes(), small, when));
        }
        "http" => {
            let methods = [Method::Get, Method::Head, Method::Post, Method::Put, Method::Patch, Method::Delete];
            let method = methods.into_iter().nth(usize::try_from(number % 6).unwrap_or_default())?;
            let headers = vec![(text.clone(), text.clone()), ("host".to_owned(), text.clone())];
            let url = if number % 5 == 0 { text.clone() } else { format!("https://allowed.example/{text}") };
            drop(http::send(&Request { method, url, headers, body: text.into_bytes(), extensions: Vec::new() }));
        }
        _ => return None,
    }
    Some(())
}

weir_policy::export_credentials!(ImportFuzzer);
