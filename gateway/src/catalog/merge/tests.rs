#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use weir_mcp::json;

use crate::catalog::snapshot::ListEntry;

use super::*;

fn view(tools: &[&str], resources: &[&str]) -> Option<Arc<CatalogSnapshot>> {
    let entry =
        |key: &str, raw: String| ListEntry { raw: raw.into(), key: key.to_owned(), public: None, modern_only: false };
    let tools = tools.iter().map(|name| entry(name, format!(r#"{{"x":1e400,"name":"{name}","y":[]}}"#))).collect();
    let resources = resources.iter().map(|uri| entry(uri, format!(r#"{{"uri":"{uri}"}}"#))).collect();
    let capabilities = r#"{"tools":{},"resources":{"subscribe":true}}"#.into();
    Some(Arc::new(
        CatalogSnapshot { capabilities, lasts: Freshness { ttl: None, public: true }, ..CatalogSnapshot::default() }
            .with(ListKind::Tool, tools)
            .with(ListKind::Resource, resources),
    ))
}

fn name(text: &str) -> UpstreamName {
    text.parse().unwrap()
}

/// Where an address leads.
fn found<'a>(merged: &'a MergedLists, uri: &'a str) -> Option<(&'a str, &'a str)> {
    merged.find_resource(uri).map(|(upstream, native)| (upstream.as_str(), native))
}

fn merge(era: Era, names: &[&str], views: &[Option<Arc<CatalogSnapshot>>]) -> MergedLists {
    paged(era, names, views, 1000, &SealedState::default())
}

fn paged(
    era: Era,
    names: &[&str],
    views: &[Option<Arc<CatalogSnapshot>>],
    size: usize,
    seal: &SealedState,
) -> MergedLists {
    MergedLists::new(
        era,
        &known(names, views, &vec![false; names.len()]),
        Toolset::all(),
        Paging { seal, size, private: false },
    )
}

fn starting(era: Era, names: &[&str], views: &[Option<Arc<CatalogSnapshot>>], starting: &[bool]) -> MergedLists {
    MergedLists::new(
        era,
        &known(names, views, starting),
        Toolset::all(),
        Paging { seal: &SealedState::default(), size: 1000, private: false },
    )
}

fn known(names: &[&str], views: &[Option<Arc<CatalogSnapshot>>], starting: &[bool]) -> Vec<KnownUpstream> {
    let known = |((text, view), starting): ((&&str, &Option<Arc<CatalogSnapshot>>), &bool)| KnownUpstream {
        name: name(text),
        account: None,
        view: view.clone(),
        starting: *starting,
    };
    names.iter().zip(views).zip(starting).map(known).collect()
}

fn text(merged: &MergedLists, kind: ListKind) -> &str {
    std::str::from_utf8(merged.result(kind)).unwrap()
}

/// Two accounts of `s`, each with what it is known to have.
fn accounts(views: [Option<Arc<CatalogSnapshot>>; 2]) -> Vec<KnownUpstream> {
    let account = |own: &str| Account { service: name("s"), name: own.into(), by_argument: true };
    let known = known(&["s-a", "s-b"], &views, &[false; 2]);
    known
        .into_iter()
        .zip(["a", "b"])
        .map(|(known, own)| KnownUpstream { account: Some(account(own)), ..known })
        .collect()
}

/// A view with these tools, or prompts.
fn raw(kind: ListKind, entries: &[&'static str]) -> Option<Arc<CatalogSnapshot>> {
    let entry = |raw: &&'static str| {
        let key = json::get(raw.as_bytes(), &["name"]).and_then(json::string).unwrap().into_owned();
        ListEntry { raw: Bytes::from_static(raw.as_bytes()), key, public: None, modern_only: false }
    };
    Some(Arc::new(CatalogSnapshot::default().with(kind, entries.iter().map(entry).collect())))
}

fn chosen(views: [Option<Arc<CatalogSnapshot>>; 2]) -> MergedLists {
    let paging = Paging { seal: &SealedState::default(), size: 1000, private: false };
    MergedLists::new(Era::Modern, &accounts(views), Toolset::all(), paging)
}

#[test]
fn accounts_of_a_service_share_their_tools_and_prompts() {
    let plain = r#"{"name":"t","inputSchema":{"type":"object"},"x":1e400}"#;
    let both = chosen([raw(ListKind::Tool, &[plain]), raw(ListKind::Tool, &[plain])]);
    let property = r#""account":{"type":"string","enum":["a","b"],"default":"a","description":"The account at s."}"#;
    assert!(text(&both, ListKind::Tool).contains(&format!(
        r#"[{{"name":"s__t","inputSchema":{{"properties":{{{property}}},"type":"object"}},"x":1e400}}]"#
    )));
    // Who has an argument of that name keeps it, in whichever case.
    let own = r#"{"name":"t","inputSchema":{"type":"object","properties":{"Account":{}},"required":["Account"]}}"#;
    let kept = chosen([raw(ListKind::Tool, &[own]), None]);
    assert!(text(&kept, ListKind::Tool).contains(r#""properties":{"weir_account":{"type":"string","enum":["a","b"],"#));
    assert!(text(&kept, ListKind::Tool).contains(r#""Account":{}},"required":["Account"]"#));
    // What the first account does not have is its default no longer, and must be chosen.
    let second = chosen([raw(ListKind::Tool, &[]), raw(ListKind::Tool, &[own])]);
    assert!(text(&second, ListKind::Tool).contains(r#""weir_account":{"type":"string","enum":["b"],"description""#));
    assert!(text(&second, ListKind::Tool).contains(r#""required":["weir_account","Account"]"#));
    let accounts = second.find(ListKind::Tool, "s__t").unwrap().accounts.as_ref().unwrap();
    assert_eq!(accounts.choose(Some(br#"{"weir_account":"b"}"#)), Ok((&name("s-b"), true)));
    for arguments in
        ["{}", r#"{"weir_account":"a"}"#, r#"{"weir_account":1}"#, r#"{"weir_account":"b","weir_account":"a"}"#]
    {
        assert!(accounts.choose(Some(arguments.as_bytes())).is_err(), "{arguments}");
    }
    let prompts = chosen([raw(ListKind::Prompt, &[r#"{"name":"p"}"#]), raw(ListKind::Prompt, &[r#"{"name":"p"}"#])]);
    let argument =
        r#"{"arguments":[{"name":"account","description":"The account at s.","required":false}],"name":"s__p"}"#;
    assert!(text(&prompts, ListKind::Prompt).contains(argument), "{}", text(&prompts, ListKind::Prompt));
}

#[test]
fn names_are_public_and_the_rest_of_an_entry_is_untouched() {
    let merged = merge(Era::Legacy, &["a", "b"], &[view(&["t"], &[]), view(&["t"], &[])]);
    assert_eq!(
        text(&merged, ListKind::Tool),
        r#"{"tools":[{"x":1e400,"name":"a__t","y":[]},{"x":1e400,"name":"b__t","y":[]}]}"#
    );
    assert_eq!(
        merged.find(ListKind::Tool, "b__t"),
        Some(&Offer { upstream: name("b"), native: "t".into(), accounts: None })
    );
    assert_eq!(merged.find(ListKind::Tool, "t"), None);
}

#[test]
fn the_first_in_the_configuration_has_an_address() {
    let merged = merge(Era::Legacy, &["a", "b"], &[view(&[], &["x://1"]), view(&[], &["x://1", "x://2"])]);
    assert_eq!(text(&merged, ListKind::Resource), r#"{"resources":[{"uri":"x://1"},{"uri":"x://2"}]}"#);
    assert_eq!(found(&merged, "x://1"), Some(("a", "x://1")));
    assert_eq!(found(&merged, "x://2"), Some(("b", "x://2")));
    assert_eq!(found(&merged, "x://3"), None, "both have such");
}

#[test]
fn an_upstream_that_is_not_there_costs_the_others_nothing() {
    let merged = merge(Era::Legacy, &["dead", "b"], &[None, view(&["t"], &[])]);
    assert_eq!(merged.find(ListKind::Tool, "b__t").unwrap().upstream, name("b"));
}

#[test]
fn a_modern_list_lives_as_long_as_its_shortest_part() {
    let with = |ttl, public| {
        let view = CatalogSnapshot { lasts: Freshness { ttl, public }, ..CatalogSnapshot::default() };
        Some(Arc::new(view))
    };
    let end = |views: &[Option<Arc<CatalogSnapshot>>]| {
        let merged = merge(Era::Modern, &["a", "b"], views);
        text(&merged, ListKind::Tool).to_owned()
    };
    let (minute, hour) = (Some(Duration::from_secs(60)), Some(Duration::from_secs(3600)));
    assert_eq!(
        end(&[with(minute, true), with(hour, true)]),
        r#"{"tools":[],"resultType":"complete","ttlMs":60000,"cacheScope":"public"}"#
    );
    assert!(end(&[with(minute, true), with(hour, false)]).ends_with(r#""cacheScope":"private"}"#));
    assert!(end(&[with(minute, true), with(None, true)]).contains(r#""ttlMs":0"#));
    assert!(end(&[]).contains(r#""cacheScope":"private""#), "nothing known is nothing to share");
}

#[test]
fn an_address_of_a_policy_leads_to_the_upstream_that_it_names_whoever_lists_it() {
    let merged = merge(
        Era::Modern,
        &["a", "b"],
        &[view(&["tool"], &[]), view(&["tool"], &["weir-shape://a/0123", "weir-shape://c/0123"])],
    );
    assert_eq!(found(&merged, "weir-shape://a/0123"), Some(("a", "weir-shape://a/0123")));
    assert_eq!(found(&merged, "weir-shape://b/0123"), Some(("b", "weir-shape://b/0123")));
    assert_eq!(found(&merged, "weir-shape://c/0123"), Some(("b", "weir-shape://c/0123")), "there is no upstream `c`");
}

#[test]
fn capabilities_are_what_some_upstream_has() {
    let merged = merge(Era::Legacy, &["a"], &[view(&[], &[])]);
    assert_eq!(
        merged.capabilities,
        r#"{"tools":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true}}"#
    );
    let modern = merge(Era::Modern, &["a"], &[view(&[], &[])]);
    assert_eq!(modern.capabilities, merged.capabilities);
}

#[test]
fn a_long_list_comes_in_pages_and_a_cursor_knows_its_list() {
    let names: Vec<String> = (0..10_000).map(|index| format!("t{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let seal = SealedState::default();
    let at = |names: &[&str]| paged(Era::Modern, &["a"], &[view(names, &[])], 999, &seal);
    let merged = at(&names);
    let cursor = |page: &Bytes| json::get(page, &["nextCursor"]).and_then(json::string).map(|text| text.into_owned());
    let (mut page, mut seen) = (merged.result(ListKind::Tool), Vec::new());
    loop {
        let tools = json::elements(json::get(page, &["tools"]).unwrap());
        seen.extend(tools.map(|tool| json::string(json::get(tool, &["name"]).unwrap()).unwrap().into_owned()));
        assert!(page.ends_with(br#""cacheScope":"public"}"#));
        let Some(next) = cursor(page) else { break };
        page = merged.page(Era::Modern, ListKind::Tool, &next, &seal).unwrap();
    }
    assert_eq!(seen, names.iter().map(|name| format!("a__{name}")).collect::<Vec<_>>());

    let next = cursor(merged.result(ListKind::Tool)).unwrap();
    assert!(at(&names).page(Era::Modern, ListKind::Tool, &next, &seal).is_some(), "the same list, merged again");
    assert_eq!(at(&names[1..]).page(Era::Modern, ListKind::Tool, &next, &seal), None, "another list");
    assert_eq!(merged.page(Era::Modern, ListKind::Prompt, &next, &seal), None);
    assert_eq!(merged.page(Era::Legacy, ListKind::Tool, &next, &seal), None);
    assert_eq!(merged.page(Era::Modern, ListKind::Tool, &next.replace(&next[20..24], "AAAA"), &seal), None);
    assert_eq!(merged.page(Era::Modern, ListKind::Tool, "", &seal), Some(merged.result(ListKind::Tool)));
}

#[test]
fn what_is_not_listed_goes_to_the_only_one_that_may_have_it() {
    let merged = merge(Era::Legacy, &["a", "b"], &[view(&[], &["x://1"]), view(&[], &["y://1"])]);
    assert_eq!(found(&merged, "x://9"), Some(("a", "x://9")));
    assert_eq!(found(&merged, "y://9"), Some(("b", "y://9")));
    assert_eq!(found(&merged, "z://9"), None);
    let alone = merge(Era::Legacy, &["a"], &[view(&[], &[])]);
    assert_eq!(found(&alone, "z://9"), Some(("a", "z://9")));
}

#[test]
fn a_tool_keeps_the_interface_of_its_own_server() {
    let tool = ListEntry {
        raw: r#"{"name":"t","_meta":{"ui":{"resourceUri":"ui://v"}}}"#.into(),
        key: "t".into(),
        public: None,
        modern_only: false,
    };
    let resource =
        ListEntry { raw: r#"{"uri":"ui://v"}"#.into(), key: "ui://v".into(), public: None, modern_only: false };
    let view = || CatalogSnapshot::default().with(ListKind::Tool, vec![tool.clone()]);
    let listed = || Some(Arc::new(view().with(ListKind::Resource, vec![resource.clone()])));
    let merged = merge(Era::Legacy, &["a", "b", "c"], &[listed(), listed(), Some(Arc::new(view()))]);
    let tool = |name: &str, uri: &str| format!(r#"{{"name":"{name}","_meta":{{"ui":{{"resourceUri":"{uri}"}}}}}}"#);
    let tools = [tool("a__t", "ui://v"), tool("b__t", "ui://b__v"), tool("c__t", "ui://c__v")].join(",");
    assert_eq!(text(&merged, ListKind::Tool), format!(r#"{{"tools":[{tools}]}}"#));
    assert_eq!(text(&merged, ListKind::Resource), r#"{"resources":[{"uri":"ui://v"},{"uri":"ui://b__v"}]}"#);
    for (public, upstream) in [("ui://v", "a"), ("ui://b__v", "b"), ("ui://c__v", "c")] {
        assert_eq!(found(&merged, public), Some((upstream, "ui://v")), "{public}");
    }
    assert_eq!(merged.public_address(&name("b"), "ui://v"), Some("ui://b__v"));
}

#[test]
fn an_extension_belongs_to_who_declared_it() {
    let with = |capabilities: &'static str| {
        Some(Arc::new(CatalogSnapshot { capabilities: capabilities.into(), ..CatalogSnapshot::default() }))
    };
    let search = r#"{"extensions":{"com.example/search":{"deep":true}}}"#;
    let merged = merge(Era::Modern, &["a", "b"], &[with("{}"), with(search)]);
    for method in ["search/query", "com.example/search", "com.example/search/query", "search"] {
        assert_eq!(merged.declaring(method).collect::<Vec<_>>(), [&name("b")], "{method}");
    }
    for method in ["searching/query", "example/search", "", "com.example"] {
        assert_eq!(merged.declaring(method).count(), 0, "{method}");
    }
    assert!(merged.capabilities.contains(r#""extensions":{"com.example/search":{"deep":true}}"#));
    let both = merge(Era::Modern, &["a", "b"], &[with(search), with(search)]);
    assert!(!both.capabilities.contains("search"));
}

#[test]
fn tasks_are_there_when_an_upstream_has_them() {
    let with = |capabilities: &'static str| {
        Some(Arc::new(CatalogSnapshot { capabilities: capabilities.into(), ..CatalogSnapshot::default() }))
    };
    let core = r#"{"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}"#;
    let legacy = merge(Era::Legacy, &["a", "b"], &[with("{}"), with(core)]);
    assert_eq!(
        legacy.capabilities,
        r#"{"tools":{"listChanged":true},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}"#
    );
    assert!(legacy.traits(&name("b")).unwrap().tasks && !legacy.traits(&name("a")).unwrap().tasks);
    let modern = merge(Era::Modern, &["a"], &[with(core)]);
    assert!(!modern.traits(&name("a")).unwrap().tasks, "tasks of one era are none in the other");
    assert!(!modern.capabilities.contains("tasks"));
}

#[test]
fn before_anything_is_known_answers_are_whole() {
    for era in [Era::Legacy, Era::Modern] {
        let merged = starting(era, &["a", "b"], &[None, None], &[true, true]);
        assert_eq!(json::scan(merged.capabilities.as_bytes()), Ok(()), "{}", merged.capabilities);
        for key in ["tools", "prompts", "resources", "logging", "completions"] {
            assert!(json::get(merged.capabilities.as_bytes(), &[key]).is_some(), "{key} may come");
        }
        let text = merged.instructions.as_deref().unwrap();
        assert!(text.contains("`a`, `b`"), "{text}");
        for kind in ListKind::ALL {
            let list = json::get(merged.result(kind), &[kind.list()]).unwrap();
            assert_eq!(json::elements(list).count(), usize::from(kind == ListKind::Tool), "{kind:?}");
        }
        assert!(text.contains("starting") && merged.result(ListKind::Tool).windows(12).any(|at| at == b"weir__status"));
    }
}

#[test]
fn the_status_tool_goes_with_the_last_start_and_yields_to_an_upstream() {
    let tools = |names: &[&str], views: &[Option<Arc<CatalogSnapshot>>], still: &[bool]| {
        let merged = starting(Era::Legacy, names, views, still);
        let list = json::elements(json::get(merged.result(ListKind::Tool), &["tools"]).unwrap());
        list.map(|tool| json::string(json::get(tool, &["name"]).unwrap()).unwrap().into_owned()).collect::<Vec<_>>()
    };
    let there = || view(&["t"], &[]);
    assert_eq!(tools(&["a", "b"], &[there(), None], &[false, true]), ["a__t", "weir__status"]);
    assert_eq!(tools(&["a", "b"], &[there(), None], &[false, false]), ["a__t"], "`b` has failed");
    let status = view(&["status"], &[]);
    assert_eq!(tools(&["weir", "b"], &[status, None], &[false, true]), ["weir__status"]);
}

#[test]
fn what_is_about_to_change_is_not_kept() {
    let lasts = Freshness { ttl: Some(Duration::from_secs(60)), public: true };
    let views = [Some(Arc::new(CatalogSnapshot { lasts, discovery_lasts: lasts, ..CatalogSnapshot::default() })), None];
    let merged = starting(Era::Modern, &["a", "b"], &views, &[false, true]);
    assert!(merged.freshness.contains(r#""ttlMs":0"#) && merged.freshness.contains("private"), "{}", merged.freshness);
    assert!(text(&merged, ListKind::Prompt).contains(r#""ttlMs":0"#));
}

#[test]
fn an_entry_that_legacy_clients_refuse_is_shown_to_modern_ones() {
    let tool = |name: &str, modern_only| ListEntry {
        raw: format!(r#"{{"name":"{name}"}}"#).into(),
        key: name.into(),
        public: None,
        modern_only,
    };
    let view =
        Some(Arc::new(CatalogSnapshot::default().with(ListKind::Tool, vec![tool("new", true), tool("t", false)])));
    let modern = merge(Era::Modern, &["a"], std::slice::from_ref(&view));
    assert!(modern.find(ListKind::Tool, "a__new").is_some() && modern.find(ListKind::Tool, "a__t").is_some());
    assert_eq!(text(&merge(Era::Legacy, &["a"], &[view]), ListKind::Tool), r#"{"tools":[{"name":"a__t"}]}"#);
}
