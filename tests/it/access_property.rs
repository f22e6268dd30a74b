//! Whatever the rules: no list shows and no call reaches what they deny. What they come to is found out here a second time,
//! in the plainest way, and compared with what clients get in each era, at each endpoint and through `weir connect`.

use std::fmt::Write;

use serde_json::{Value, json};
use weir_tests::client::initialize;
use weir_tests::issuer::now as unix_now;
use weir_tests::stub::Offer;
use weir_tests::{Bridge, Client, Gateway, Issuer, LEGACY, Stub};

use crate::callers::AUDIENCE;

const GROUPS: [&str; 2] = ["red", "blue"];
const UPSTREAMS: [&str; 2] = ["one", "two"];
const TOOLS: [&str; 3] = ["echo", "burst", "extra"];
/// A tool that each upstream has and the configuration does not serve.
const WITHHELD: &str = "withheld";
const PROMPTS: [&str; 2] = ["greet", "scold"];
const RESOURCES: [&str; 2] = ["public/a", "private/b"];
const TEMPLATE: &str = "public/{x}";
const ENDPOINTS: [&str; 3] = ["mcp", "one", "desk"];
const TOOLSET: &str =
    "[toolsets.desk]\nupstreams = [\"two\", \"one\"]\ntools = [\"e*\", \"two__burst\"]\nresources = [\"one://*\"]\n";
/// The message that conditions ask for, and another.
const MESSAGES: [&str; 2] = ["hi", "ho"];
/// How many sets of rules are tried in each run, and how many others. `WEIR_TESTS_SEED` is the first of those.
const SETS: u64 = 4;
const OTHERS: u64 = 1;

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
    Template,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Item {
    kind: Kind,
    upstream: &'static str,
    /// Of its address.
    scheme: &'static str,
    name: &'static str,
}

/// What a rule asks for beside the names that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum When {
    #[default]
    Always,
    /// The first of the messages.
    Message,
    /// The first of the groups.
    Group,
    /// Both.
    GroupAndMessage,
    /// The first of the upstreams.
    Upstream,
    /// Another name than that of the first tool.
    OtherName,
}

impl When {
    const ALL: [Self; 5] = [Self::Message, Self::Group, Self::GroupAndMessage, Self::Upstream, Self::OtherName];

    const fn text(self) -> &'static str {
        match self {
            Self::Always => "true",
            Self::Message => "args.message == 'hi'",
            Self::Group => "caller.groups.exists(group, group == 'red')",
            Self::GroupAndMessage => "caller.subject == 'red' && args.message == 'hi'",
            Self::Upstream => "call.upstream == 'one'",
            Self::OtherName => "call.name != 'echo'",
        }
    }

    const fn uses_message(self) -> bool {
        matches!(self, Self::Message | Self::GroupAndMessage)
    }

    /// Whether it holds of a caller and an item, apart from the message.
    fn holds(self, group: &str, item: Item) -> bool {
        match self {
            Self::Always | Self::Message => true,
            Self::Group | Self::GroupAndMessage => group == GROUPS[0],
            Self::Upstream => item.upstream == UPSTREAMS[0],
            Self::OtherName => item.kind != Kind::Tool || item.name != TOOLS[0],
        }
    }
}

#[derive(Debug, Default)]
struct Rule {
    denies: bool,
    /// Whether it is only tried out.
    shadow: bool,
    subject: Option<&'static str>,
    group: Option<&'static str>,
    endpoint: Option<&'static str>,
    upstream: Option<&'static str>,
    tools: Option<&'static str>,
    prompts: Option<&'static str>,
    resources: Option<&'static str>,
    when: When,
}

impl Rule {
    fn any(numbers: &mut Numbers) -> Self {
        Self {
            denies: numbers.below(3) == 0,
            shadow: numbers.below(8) == 0,
            subject: numbers.maybe(8, &GROUPS),
            group: numbers.maybe(4, &GROUPS),
            endpoint: numbers.maybe(6, &ENDPOINTS),
            upstream: numbers.maybe(6, &UPSTREAMS),
            tools: numbers.maybe(5, &["echo", "e*", "one__burst", "two__*", "*"]),
            prompts: numbers.maybe(7, &["greet", "two__greet", "*"]),
            resources: numbers.maybe(7, &["one://public/*", "one://*", "*/b", "*"]),
            when: if numbers.below(2) == 0 { When::Always } else { When::ALL[numbers.below(5)] },
        }
    }

    fn write(&self, config: &mut String) {
        config.push_str("[[access.rules]]\n");
        if self.denies {
            config.push_str("effect = \"deny\"\n");
        }
        if self.shadow {
            config.push_str("enforce = false\n");
        }
        for (key, value) in [
            ("subjects", self.subject),
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
        if self.when != When::Always {
            writeln!(config, "when = \"{}\"", self.when.text()).unwrap();
        }
    }

    /// Whether it is about an item, whatever the arguments.
    fn concerns(&self, group: &str, endpoint: &str, item: Item) -> bool {
        let is = |wanted: Option<&str>, value: &str| wanted.is_none_or(|wanted| wanted == value);
        let pattern = match item.kind {
            Kind::Tool => self.tools,
            Kind::Prompt => self.prompts,
            Kind::Resource | Kind::Template => self.resources,
        };
        let names_none = [self.tools, self.prompts, self.resources].iter().all(Option::is_none);
        let named = names_none || pattern.is_some_and(|pattern| item.fits(pattern));
        let who = is(self.subject, group) && is(self.group, group);
        who && is(self.endpoint, endpoint) && is(self.upstream, item.upstream) && named
    }
}

impl Rule {
    /// Whether it is about each address of a template that it concerns.
    fn is_of_whole(&self, template: Item) -> bool {
        let names_none = [self.tools, self.prompts, self.resources].iter().all(Option::is_none);
        names_none || self.resources.is_some_and(|pattern| template.fits_whole(pattern))
    }
}

impl Item {
    fn all() -> impl Iterator<Item = Self> {
        let of = |upstream| {
            let item = move |kind| move |name: &&'static str| Self { kind, upstream, scheme: upstream, name: *name };
            let names = TOOLS.iter().map(item(Kind::Tool)).chain(PROMPTS.iter().map(item(Kind::Prompt)));
            names.chain(RESOURCES.iter().map(item(Kind::Resource))).chain([&TEMPLATE].map(item(Kind::Template)))
        };
        UPSTREAMS.into_iter().flat_map(of)
    }

    /// Whether an endpoint has it.
    fn is_at(self, endpoint: &str) -> bool {
        match (endpoint, self.kind) {
            ("desk", Kind::Tool) => self.fits("e*") || self.fits("two__burst"),
            ("desk", Kind::Prompt) => false,
            ("desk", Kind::Resource | Kind::Template) => self.scheme == "one",
            ("mcp", _) => true,
            (upstream, _) => self.upstream == upstream,
        }
    }

    /// The same address at the other upstream. What nobody lists goes to the only upstream that a caller sees.
    fn elsewhere(self) -> Option<Self> {
        let upstream = UPSTREAMS.into_iter().find(|upstream| *upstream != self.upstream)?;
        matches!(self.kind, Kind::Resource | Kind::Template).then_some(Self { upstream, ..self })
    }

    /// Whether a pattern matches it; of a template, whether it matches some of its addresses.
    fn fits(self, pattern: &str) -> bool {
        let fits = |text: &str| match pattern.split_once('*') {
            Some((before, after)) => text.starts_with(before) && text.ends_with(after),
            None => text == pattern,
        };
        match self.kind {
            Kind::Resource => fits(&self.address()),
            Kind::Template => self.fits_whole(pattern) || pattern == "*/b",
            Kind::Tool | Kind::Prompt => fits(self.name) || fits(&format!("{}__{}", self.upstream, self.name)),
        }
    }

    /// Whether a pattern matches each address of a template.
    fn fits_whole(self, pattern: &str) -> bool {
        pattern == "*" || pattern == format!("{}://public/*", self.scheme) || pattern == format!("{}://*", self.scheme)
    }

    fn address(self) -> String {
        format!("{}://{}", self.scheme, self.name)
    }

    /// What clients call it.
    fn public(self, endpoint: &str) -> String {
        match self.kind {
            Kind::Resource | Kind::Template => self.address(),
            Kind::Tool | Kind::Prompt if endpoint != "one" => format!("{}__{}", self.upstream, self.name),
            Kind::Tool | Kind::Prompt => self.name.to_owned(),
        }
    }

    fn request(self, endpoint: &str, message: &str) -> (&'static str, Value) {
        let public = self.public(endpoint);
        match self.kind {
            Kind::Tool => ("tools/call", json!({ "name": public, "arguments": { "message": message } })),
            Kind::Prompt => ("prompts/get", json!({ "name": public, "arguments": { "message": message } })),
            Kind::Resource => ("resources/read", json!({ "uri": public })),
            Kind::Template => completion(json!({ "type": "ref/resource", "uri": public })),
        }
    }

    /// What else reaches it without arguments.
    fn other(self, endpoint: &str, how: &str) -> Option<(&'static str, Value)> {
        let public = self.public(endpoint);
        match self.kind {
            Kind::Prompt => Some(completion(json!({ "type": "ref/prompt", "name": public }))),
            Kind::Resource if how == "legacy" => Some(("resources/subscribe", json!({ "uri": public }))),
            _ => None,
        }
    }
}

fn completion(of: Value) -> (&'static str, Value) {
    ("completion/complete", json!({ "ref": of, "argument": { "name": "x", "value": "" } }))
}

/// Whether an item is listed: with some arguments it could be had.
fn is_shown(rules: &[Rule], group: &str, endpoint: &str, item: Item) -> bool {
    let of = |denies: bool| {
        let enforced = rules.iter().filter(|rule| !rule.shadow);
        enforced.filter(move |rule| rule.denies == denies && rule.concerns(group, endpoint, item))
    };
    let shows = |rule: &Rule| rule.when.uses_message() || rule.when.holds(group, item);
    let hides = |rule: &Rule| {
        let whole = item.kind != Kind::Template || rule.is_of_whole(item);
        !rule.when.uses_message() && rule.when.holds(group, item) && whole
    };
    rules.iter().all(|rule| rule.shadow) || of(false).any(shows) && !of(true).any(hides)
}

/// Whether a request reaches it. A resource has no arguments: a condition on them cannot be judged, which denies.
fn is_reached(rules: &[Rule], group: &str, endpoint: &str, item: Item, message: Option<&str>) -> bool {
    let message = message.filter(|_| matches!(item.kind, Kind::Tool | Kind::Prompt));
    let holds = |rule: &&Rule| match (rule.when, message) {
        // A template stands for many addresses, and each has a name of its own.
        (When::OtherName, _) if item.kind == Kind::Template => rule.denies,
        (when, _) if !when.holds(group, item) => false,
        (when, Some(message)) if when.uses_message() => message == MESSAGES[0],
        (when, None) if when.uses_message() => rule.denies,
        _ if item.kind == Kind::Template => rule.denies || rule.is_of_whole(item),
        _ => true,
    };
    let of = |denies: bool| {
        let enforced = rules.iter().filter(|rule| !rule.shadow);
        enforced.filter(move |rule| rule.denies == denies && rule.concerns(group, endpoint, item))
    };
    rules.iter().all(|rule| rule.shadow) || of(false).any(|rule| holds(&rule)) && !of(true).any(|rule| holds(&rule))
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
        let (method, list, key) = match kind {
            Kind::Tool => ("tools/list", "tools", "name"),
            Kind::Prompt => ("prompts/list", "prompts", "name"),
            Kind::Resource => ("resources/list", "resources", "uri"),
            Kind::Template => ("resources/templates/list", "resourceTemplates", "uriTemplate"),
        };
        let answer = self.ask(method, json!({})).await;
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

/// The addresses of which a modern client hears, of all that there are.
async fn granted(client: &Client) -> Vec<Value> {
    let all = Item::all().filter(|item| item.kind == Kind::Resource).map(Item::address);
    let wish = json!({ "notifications": { "resourceSubscriptions": all.collect::<Vec<_>>() } });
    let (_, request) = client.request("subscriptions/listen", wish);
    let first = client.send(request).await.events().next_message().await.unwrap();
    let granted = &first["params"]["notifications"]["resourceSubscriptions"];
    granted.as_array().cloned().unwrap_or_default()
}

async fn stub(name: &str) -> Stub {
    let named = |names: &[&str]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
    let resources = RESOURCES.map(|path| json!({ "uri": format!("{name}://{path}"), "name": path }));
    Stub::offering(Offer {
        listens: true,
        tools: [&TOOLS[..], &[WITHHELD]].concat().into_iter().map(str::to_owned).collect(),
        capabilities: json!({ "prompts": {}, "resources": { "subscribe": true }, "completions": {} }),
        lists: json!({
            "prompts/list": named(&PROMPTS),
            "resources/list": resources,
            "resources/templates/list": [{ "uriTemplate": format!("{name}://{TEMPLATE}"), "name": "t" }],
        }),
        ..Offer::default()
    })
    .await
}

#[tokio::test]
async fn no_list_shows_and_no_call_reaches_what_the_rules_deny() {
    let (issuer, stubs) = (Issuer::start().await, [stub("one").await, stub("two").await]);
    let reached = |upstream: &str, method: &str| stubs[usize::from(upstream == "two")].asked(method).len();
    let (mut allowed, mut denied) = (0, 0);
    let random = |seed| {
        let mut numbers = Numbers(seed);
        (0..2 + numbers.below(4)).map(|_| Rule::any(&mut numbers)).collect()
    };
    // Nothing is hidden, and yet not everything may be called.
    let by_arguments = vec![
        Rule { when: When::Message, ..Rule::default() },
        Rule { denies: true, tools: Some("e*"), when: When::Message, ..Rule::default() },
    ];
    let given = std::env::var("WEIR_TESTS_SEED").ok().and_then(|seed| seed.parse().ok());
    let others = given.unwrap_or_else(|| unix_now() << 8);
    let seeds = (0..SETS).chain(others..others + OTHERS);
    let sets: Vec<_> = seeds.map(|seed| (seed, random(seed))).chain([(0, by_arguments)]).collect();
    for (seed, rules) in &sets {
        let mut config = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
        rules.iter().for_each(|rule| rule.write(&mut config));
        config += TOOLSET;
        let deny = format!("tools.deny = [{WITHHELD:?}]\n");
        config += &(stubs[0].config("one") + &deny + &stubs[1].config("two") + &deny);
        let gateway = Gateway::start(&config).await;
        gateway.logs("Weir is ready for clients").await;
        for (group, endpoint) in GROUPS.iter().flat_map(|group| ENDPOINTS.map(|endpoint| (*group, endpoint))) {
            let mut claims = issuer.claims(group, AUDIENCE);
            claims["groups"] = json!([group]);
            let token = issuer.sign(&claims);
            for (how, mut way) in ways(&gateway, endpoint, &token).await {
                let place = || format!("set {seed}, {group} at {endpoint}, {how}: {rules:#?}");
                let mut shown = Vec::new();
                for kind in [Kind::Tool, Kind::Prompt, Kind::Resource, Kind::Template] {
                    shown.extend(way.listed(kind).await);
                }
                let expected = Item::all()
                    .filter(|item| item.is_at(endpoint))
                    .filter(|item| is_shown(rules, group, endpoint, *item));
                let mut expected: Vec<String> = expected.map(|item| item.public(endpoint)).collect();
                shown.sort();
                expected.sort();
                assert_eq!(shown, expected, "{}", place());
                for name in [WITHHELD.to_owned(), format!("one__{WITHHELD}"), format!("two__{WITHHELD}")] {
                    way.ask("tools/call", json!({ "name": name, "arguments": {} })).await;
                }
                // Who sees a resource hears of its changes.
                let may = |item: Item| item.is_at(endpoint) && is_shown(rules, group, endpoint, item);
                if let ("modern", Way::Http(client)) = (how, &way) {
                    let granted = granted(client).await;
                    for item in Item::all().filter(|item| item.kind == Kind::Resource) {
                        let (is_granted, expected) = (granted.contains(&json!(item.address())), may(item));
                        let fits = if expected { is_granted } else { !is_granted || item.elsewhere().is_some_and(may) };
                        assert!(
                            fits,
                            "{item:?} of {granted:?}
{}",
                            place()
                        );
                    }
                }
                // Also what a toolset does not have. At the address of one upstream the names of the other lead to its own.
                let asked = || Item::all().filter(|item| endpoint != "one" || item.upstream == "one");
                let calls = asked().flat_map(|item| MESSAGES.map(|message| (item, Some(message))));
                for (item, message) in calls.chain(asked().map(|item| (item, None))) {
                    let request = match message {
                        Some(message) => Some(item.request(endpoint, message)),
                        None => item.other(endpoint, how),
                    };
                    let Some((method, params)) = request else { continue };
                    let before = reached(item.upstream, method);
                    let answer = way.ask(method, params).await;
                    let may = |item: Item| item.is_at(endpoint) && is_reached(rules, group, endpoint, item, message);
                    let expected = may(item);
                    let got = answer.get("result").is_some_and(|result| result["isError"] != true);
                    let asked = || format!("{item:?} with {message:?} by {method}: {answer}\n{}", place());
                    assert!(if expected { got } else { !got || item.elsewhere().is_some_and(may) }, "{}", asked());
                    assert_eq!(reached(item.upstream, method) - before, usize::from(expected), "{}", asked());
                    *(if expected { &mut allowed } else { &mut denied }) += 1;
                }
            }
        }
        let names = stubs.iter().flat_map(|stub| stub.asked("tools/call"));
        assert!(names.map(|seen| seen.message()).all(|call| call["params"]["name"] != WITHHELD), "set {seed}");
    }
    assert!(allowed > 200 && denied > 200, "the sets say too little: {allowed} allowed and {denied} denied");
}
