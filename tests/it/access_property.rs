//! Whatever the rules: no list shows and no call reaches what they deny. What they come to is found out here a second time,
//! in the plainest way, and compared with what clients get in each era, at each endpoint and through `weir connect`.

use std::fmt::Write;

use serde_json::{Value, json};
use weir_tests::client::initialize;
use weir_tests::stub::Offer;
use weir_tests::{Bridge, Client, Gateway, Issuer, LEGACY, Stub};

use crate::callers::AUDIENCE;

const GROUPS: [&str; 2] = ["red", "blue"];
const UPSTREAMS: [&str; 2] = ["one", "two"];
const TOOLS: [&str; 3] = ["echo", "burst", "extra"];
const PROMPTS: [&str; 2] = ["greet", "scold"];
const RESOURCES: [&str; 2] = ["public/a", "private/b"];
/// The message that conditions ask for, and another.
const MESSAGES: [&str; 2] = ["hi", "ho"];
/// How many sets of rules are tried.
const SETS: u64 = 6;

/// Numbers that are the same in each run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    /// One of these, or none as often as `none` says in ten.
    fn maybe(&mut self, none: usize, all: &[&'static str]) -> Option<&'static str> {
        (self.below(10) >= none).then(|| all[self.below(all.len())])
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tool,
    Prompt,
    Resource,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    kind: Kind,
    upstream: &'static str,
    name: &'static str,
}

#[derive(Debug, Default)]
struct Rule {
    denies: bool,
    group: Option<&'static str>,
    endpoint: Option<&'static str>,
    upstream: Option<&'static str>,
    tools: Option<&'static str>,
    prompts: Option<&'static str>,
    resources: Option<&'static str>,
    /// Whether it asks for the first of the messages.
    when: bool,
}

impl Rule {
    fn any(numbers: &mut Numbers) -> Self {
        Self {
            denies: numbers.below(3) == 0,
            group: numbers.maybe(4, &GROUPS),
            endpoint: numbers.maybe(7, &["mcp", "one"]),
            upstream: numbers.maybe(6, &UPSTREAMS),
            tools: numbers.maybe(5, &["echo", "e*", "one__burst", "two__*", "*"]),
            prompts: numbers.maybe(7, &["greet", "two__greet", "*"]),
            resources: numbers.maybe(7, &["one://public/*", "*/b", "*"]),
            when: numbers.below(4) == 0,
        }
    }

    fn write(&self, config: &mut String) {
        config.push_str("[[access.rules]]\n");
        if self.denies {
            config.push_str("effect = \"deny\"\n");
        }
        for (key, value) in [
            ("groups", self.group),
            ("endpoints", self.endpoint),
            ("upstreams", self.upstream),
            ("tools", self.tools),
            ("prompts", self.prompts),
            ("resources", self.resources),
        ] {
            if let Some(value) = value {
                writeln!(config, "{key} = [\"{value}\"]").unwrap();
            }
        }
        if self.when {
            writeln!(config, "when = \"args.message == '{}'\"", MESSAGES[0]).unwrap();
        }
    }

    /// Whether it is about an item, whatever the arguments.
    fn concerns(&self, group: &str, endpoint: &str, item: Item) -> bool {
        let is = |wanted: Option<&str>, value: &str| wanted.is_none_or(|wanted| wanted == value);
        let pattern = match item.kind {
            Kind::Tool => self.tools,
            Kind::Prompt => self.prompts,
            Kind::Resource => self.resources,
        };
        let names_none = [self.tools, self.prompts, self.resources].iter().all(Option::is_none);
        let named = names_none || pattern.is_some_and(|pattern| item.fits(pattern));
        is(self.group, group) && is(self.endpoint, endpoint) && is(self.upstream, item.upstream) && named
    }
}

impl Item {
    fn all() -> impl Iterator<Item = Self> {
        let of = |upstream| {
            let item = move |kind| move |name: &&'static str| Self { kind, upstream, name: *name };
            let names = TOOLS.iter().map(item(Kind::Tool)).chain(PROMPTS.iter().map(item(Kind::Prompt)));
            names.chain(RESOURCES.iter().map(item(Kind::Resource)))
        };
        UPSTREAMS.into_iter().flat_map(of)
    }

    fn fits(self, pattern: &str) -> bool {
        let fits = |text: &str| match pattern.split_once('*') {
            Some((before, after)) => text.starts_with(before) && text.ends_with(after),
            None => text == pattern,
        };
        match self.kind {
            Kind::Resource => fits(&self.address()),
            Kind::Tool | Kind::Prompt => fits(self.name) || fits(&format!("{}__{}", self.upstream, self.name)),
        }
    }

    fn address(self) -> String {
        format!("{}://{}", self.upstream, self.name)
    }

    /// What clients call it.
    fn public(self, endpoint: &str) -> String {
        match self.kind {
            Kind::Resource => self.address(),
            Kind::Tool | Kind::Prompt if endpoint == "mcp" => format!("{}__{}", self.upstream, self.name),
            Kind::Tool | Kind::Prompt => self.name.to_owned(),
        }
    }

    fn request(self, endpoint: &str, message: &str) -> (&'static str, Value) {
        let public = self.public(endpoint);
        match self.kind {
            Kind::Tool => ("tools/call", json!({ "name": public, "arguments": { "message": message } })),
            Kind::Prompt => ("prompts/get", json!({ "name": public, "arguments": { "message": message } })),
            Kind::Resource => ("resources/read", json!({ "uri": public })),
        }
    }
}

/// Whether an item is listed: with some arguments it could be had.
fn is_shown(rules: &[Rule], group: &str, endpoint: &str, item: Item) -> bool {
    let of =
        |denies: bool| rules.iter().filter(move |rule| rule.denies == denies && rule.concerns(group, endpoint, item));
    of(false).count() > 0 && of(true).all(|rule| rule.when)
}

/// Whether a request reaches it. A resource has no arguments: a condition on them cannot be judged, which denies.
fn is_reached(rules: &[Rule], group: &str, endpoint: &str, item: Item, message: &str) -> bool {
    let has_arguments = item.kind != Kind::Resource;
    let holds = |rule: &&Rule| match (rule.when, has_arguments) {
        (false, _) => true,
        (true, true) => message == MESSAGES[0],
        (true, false) => rule.denies,
    };
    let of =
        |denies: bool| rules.iter().filter(move |rule| rule.denies == denies && rule.concerns(group, endpoint, item));
    of(false).any(|rule| holds(&rule)) && !of(true).any(|rule| holds(&rule))
}

/// One way of a client to Weir.
enum Way {
    Http(Box<Client>),
    Stdio(Box<Bridge>, bool),
    /// Nothing is there for this caller.
    Closed,
}

impl Way {
    async fn ask(&mut self, method: &str, params: Value) -> Value {
        match self {
            Self::Http(client) => client.ask(method, params).await,
            Self::Stdio(bridge, true) => bridge.ask_modern(method, params).await,
            Self::Stdio(bridge, false) => bridge.ask(method, params).await,
            Self::Closed => json!({}),
        }
    }

    /// What is listed, by name or address.
    async fn listed(&mut self, kind: Kind) -> Vec<String> {
        let (list, key) = match kind {
            Kind::Tool => ("tools", "name"),
            Kind::Prompt => ("prompts", "name"),
            Kind::Resource => ("resources", "uri"),
        };
        let answer = self.ask(&format!("{list}/list"), json!({})).await;
        let entries = answer["result"][list].as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
    }
}

async fn ways(gateway: &Gateway, endpoint: &str, token: &str) -> Vec<(&'static str, Way)> {
    let path = if endpoint == "mcp" { "/mcp".to_owned() } else { format!("/mcp/{endpoint}") };
    let hello = || initialize(&path, LEGACY, &json!({})).header("authorization", &format!("Bearer {token}"));
    if gateway.send(hello()).await.status != 200 {
        let (_, list) = Client::modern(gateway, &path).with_token(token).request("tools/list", json!({}));
        assert_eq!(gateway.send(list).await.status, 404);
        return vec![("no way", Way::Closed)];
    }
    let header = format!("authorization: Bearer {token}");
    let bridge = || Bridge::start(&["--header", &header, "--http", &gateway.url(&path)]);
    let mut legacy = bridge();
    legacy.shake_hands(json!({})).await;
    vec![
        ("legacy", Way::Http(Box::new(Client::legacy_with(gateway, &path, token, &json!({})).await))),
        ("modern", Way::Http(Box::new(Client::modern(gateway, &path).with_token(token)))),
        ("legacy through weir connect", Way::Stdio(Box::new(legacy), false)),
        ("modern through weir connect", Way::Stdio(Box::new(bridge()), true)),
    ]
}

async fn stub(name: &str) -> Stub {
    let named = |names: &[&str]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
    let resources = RESOURCES.map(|path| json!({ "uri": format!("{name}://{path}"), "name": path }));
    Stub::offering(Offer {
        tools: TOOLS.map(str::to_owned).to_vec(),
        capabilities: json!({ "prompts": {}, "resources": {} }),
        lists: json!({ "prompts/list": named(&PROMPTS), "resources/list": resources }),
        ..Offer::default()
    })
    .await
}

#[tokio::test]
async fn no_list_shows_and_no_call_reaches_what_the_rules_deny() {
    let (issuer, stubs) = (Issuer::start().await, [stub("one").await, stub("two").await]);
    let reached = |method: &str| stubs.iter().map(|stub| stub.asked(method).len()).sum::<usize>();
    let (mut allowed, mut denied) = (0, 0);
    let random = |seed| {
        let mut numbers = Numbers(seed);
        (0..2 + numbers.below(4)).map(|_| Rule::any(&mut numbers)).collect()
    };
    // Nothing is hidden, and yet not everything may be called.
    let by_arguments = vec![
        Rule { when: true, ..Rule::default() },
        Rule { denies: true, tools: Some("e*"), when: true, ..Rule::default() },
    ];
    let sets: Vec<Vec<Rule>> = (0..SETS).map(random).chain([by_arguments]).collect();
    for (seed, rules) in sets.iter().enumerate() {
        let mut config = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
        rules.iter().for_each(|rule| rule.write(&mut config));
        config += &(stubs[0].config("one") + &stubs[1].config("two"));
        let gateway = Gateway::start(&config).await;
        gateway.logs("Weir is ready for clients").await;
        for (group, endpoint) in GROUPS.iter().flat_map(|group| ["mcp", "one"].map(|endpoint| (*group, endpoint))) {
            let mut claims = issuer.claims(group, AUDIENCE);
            claims["groups"] = json!([group]);
            let token = issuer.sign(&claims);
            for (how, mut way) in ways(&gateway, endpoint, &token).await {
                let place = || format!("set {seed}, {group} at {endpoint}, {how}: {rules:#?}");
                let mut shown = Vec::new();
                for kind in [Kind::Tool, Kind::Prompt, Kind::Resource] {
                    shown.extend(way.listed(kind).await);
                }
                let here = || Item::all().filter(|item| endpoint == "mcp" || item.upstream == endpoint);
                let expected = here().filter(|item| is_shown(rules, group, endpoint, *item));
                let mut expected: Vec<String> = expected.map(|item| item.public(endpoint)).collect();
                shown.sort();
                expected.sort();
                assert_eq!(shown, expected, "{}", place());
                for (item, message) in here().flat_map(|item| MESSAGES.map(|message| (item, message))) {
                    let (method, params) = item.request(endpoint, message);
                    let before = reached(method);
                    let answer = way.ask(method, params).await;
                    let expected = is_reached(rules, group, endpoint, item, message);
                    let got = answer.get("result").is_some_and(|result| result["isError"] != true);
                    assert_eq!(got, expected, "{item:?} with {message}: {answer}\n{}", place());
                    assert_eq!(reached(method) - before, usize::from(expected), "{item:?} with {message}\n{}", place());
                    *(if expected { &mut allowed } else { &mut denied }) += 1;
                }
            }
        }
    }
    assert!(allowed > 200 && denied > 200, "the sets say too little: {allowed} allowed and {denied} denied");
}
