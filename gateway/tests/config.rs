//! Configurations from files: the examples load, the schema is up to date, and each mistake in `tests/config` is told
//! in the words of the `.err` file beside it, with what is only warned of or not on this machine. `UPDATE=1 cargo test --test config` rewrites what differs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use weir::config::{
    Auth, Config, Environment, FetchedSecret, HttpTransport, Limits, LoginFlow, LoginOwner, Reach, Secret,
    SecretSource, SystemUser, Timeouts, schema,
};

/// What a secret of the fake environment looks like; nothing may print it.
const SECRET: &str = "s3cr3t";

/// An environment where a few variables are set and most files are there.
struct Fake;

impl Environment for Fake {
    fn variable(&self, name: &str) -> Option<OsString> {
        match name {
            "HOME" => Some("/home/me".into()),
            "PATH" => Some("/usr/bin:/bin".into()),
            "EMPTY" => Some("".into()),
            "NUL" => Some("a\0b".into()),
            "LINES" => Some(format!("{SECRET}\n{SECRET}").into()),
            "HOST" => Some(format!("{SECRET}.example").into()),
            "WEIR_STORE_KEY" => Some("c2VjcmV0IGtleSBvZiB0aGUgc3RvcmUsIDMyIGJ5dGU=".into()),
            "REPLICA_ADDRESS" => Some("10.0.0.1".into()),
            "TOKEN" | "KEY" | "GITHUB_TOKEN" | "WEIR_CLIENT_SECRET" => Some(SECRET.into()),
            _ => None,
        }
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        match path.file_name().unwrap().to_str().unwrap() {
            "token" => Ok(format!("{SECRET}\n").into_bytes()),
            "binary" => Ok(vec![0xff, 0xfe]),
            "forbidden" => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn fetched(&self, _: &FetchedSecret) -> Result<Secret, String> {
        Ok(Secret::new(SECRET.to_owned()))
    }

    fn names(&self) -> Vec<String> {
        ["HOME", "LC_ALL", "LC_TIME", "WEIR_CLIENT_SECRET", "AWS_REGION", "AWS_SECRET"].map(str::to_owned).to_vec()
    }

    fn exists(&self, path: &Path) -> bool {
        !path.to_string_lossy().contains("missing")
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.exists(path)
    }

    fn is_program(&self, path: &Path) -> bool {
        self.exists(path)
    }

    fn user(&self, name: &str) -> Option<SystemUser> {
        let user = |name: &str| SystemUser { name: name.into(), home: "/srv/mcp".into(), shell: "/bin/sh".into() };
        (name != "nobody-here").then(|| user(name))
    }

    fn may_change_user(&self) -> bool {
        true
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// The configurations in a folder of the repository, sorted: TOML, and JSON of other hosts.
fn files(name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path());
    let is_config = |path: &PathBuf| {
        let is_other =
            ["weir.schema.json", "grafana-dashboard.json", "compose.yaml"].iter().any(|other| path.ends_with(other));
        path.extension().is_some_and(|end| ["toml", "json", "yaml"].iter().any(|known| end == *known)) && !is_other
    };
    let mut files: Vec<_> = entries.filter(is_config).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Compares with a file of the repository, or writes it if asked to.
fn assert_file(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, actual).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert!(actual == expected, "{} differs; UPDATE=1 rewrites it\n{actual}", path.display());
}

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("/etc/weir/weir.toml"), &Fake).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn mistakes_are_told_in_the_words_of_the_golden_files() {
    for path in files("tests/config") {
        let text = fs::read_to_string(&path).unwrap();
        let name = Path::new("/etc/weir").join(path.file_name().unwrap());
        let told = match Config::parse(&text, &name, &Fake) {
            Ok(config) => {
                let warnings = config.warnings.iter().map(|warning| format!("warning: {warning}\n"));
                let missing = config.missing.iter().map(|missing| format!("missing: {missing}\n"));
                warnings.chain(missing).collect()
            }
            Err(problems) => format!("{problems}\n"),
        };
        assert!(!told.is_empty(), "{} has no mistake", path.display());
        assert!(!told.contains(SECRET), "a secret is told:\n{told}");
        assert_file(&path.with_extension("err"), &told);
    }
}

#[test]
fn every_example_loads() {
    for path in files("config") {
        let text = fs::read_to_string(&path).unwrap();
        if let Err(problems) = Config::parse(&text, &path, &Fake) {
            panic!("{problems}");
        }
    }
}

#[test]
fn the_full_example_shows_the_defaults() {
    let full = parse(&fs::read_to_string(folder("config/full.toml")).unwrap());
    let small = parse("upstreams.example.url = 'https://mcp.example.com/mcp'");
    assert_eq!(full.listen, small.listen);
    assert_eq!(full.limits, Limits::default());
    assert_eq!(small.limits, Limits::default());
    assert_eq!(full.upstreams[0], small.upstreams[0]);
    assert_eq!(full.upstreams[1].timeouts, Timeouts::default());
    assert_eq!(full.cache_dir, Some("/home/me/.cache/weir".into()));
}

#[test]
fn the_full_example_has_every_key() {
    let full = fs::read_to_string(folder("config/full.toml")).unwrap();
    let schema = schema();
    let tables = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    for key in tables.flat_map(|table| table["properties"].as_object().unwrap().keys()) {
        let tables = [format!("[{key}"), format!(".{key}]"), format!(".{key}.")];
        let written = full.contains(&format!("{key} =")) || tables.iter().any(|table| full.contains(table));
        assert!(written, "{key} is not in full.toml");
    }
}

#[test]
fn the_schema_is_up_to_date() {
    let path = folder("config/weir.schema.json");
    let schema = schema();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, serde_json::to_string_pretty(&schema).unwrap() + "\n").unwrap();
    }
    // Values, not bytes: the order of keys depends on how serde_json was built.
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(written == schema, "weir.schema.json is out of date; UPDATE=1 rewrites it");
}

#[test]
fn a_configuration_prints_without_its_secrets() {
    let config = parse(
        r#"
        [upstreams.web]
        url = "https://${env:HOST}/${file:token}/mcp?key=s3cr3t"
        bearer = { env = "TOKEN" }
        headers = { x-key = "s3cr3t", x-more = "a${env:KEY}b" }
        [upstreams.process]
        command = "run"
        args = ["--key", "s3cr3t", "${env:KEY}"]
        env = { KEY = "s3cr3t", MORE = "${file:token}" }
        "#,
    );
    let debug = format!("{config:#?}");
    assert!(!debug.contains(SECRET), "{debug}");
    let Reach::Http(web) = &config.upstreams[0].reach else { panic!("web is http") };
    assert_eq!(web.url.as_url().as_str(), "https://s3cr3t.example/s3cr3t/mcp?key=s3cr3t");
    assert_eq!(web.url.to_string(), "https://${env:HOST}/${file:token}/mcp?key=***");
    assert_eq!(web.headers[1].1.expose(), "as3cr3tb");
    let Reach::Stdio(process) = &config.upstreams[1].reach else { panic!("process is stdio") };
    assert_eq!(process.args[2].expose(), SECRET);
    assert_eq!(process.env[1].1.expose(), SECRET);
}

/// A new version in a registry keeps the store of the last one.
#[test]
fn tag_and_digest_of_a_component_are_no_part_of_its_stores_name() {
    let digest = format!("sha256:{}", "0".repeat(64));
    for (component, store) in [
        ("https://h.example/v1/a.wasm", "a.wasm"),
        ("oci://h.example/team/keys:1.4", "keys"),
        (&*format!("oci://h.example:5000/keys:1.4@{digest}"), "keys"),
    ] {
        let policy = |more: &str| {
            let text = format!(
                "[[upstreams.a.policies]]\ncomponent = {component:?}\n{more}\n[upstreams.a]\nurl = \"http://a.example\""
            );
            parse(&text).upstreams[0].policies[0].clone()
        };
        assert_eq!(policy("").store_name(), store, "{component}");
        assert_eq!(policy("store = \"mine\"").store_name(), "mine", "{component}");
    }
}

#[test]
fn upstreams_keep_their_order_and_paths_their_folder() {
    let config = parse(
        r#"
        cache_dir = "cache"
        listen = ["127.0.0.1:0", "[::1]:0"]
        tls = { certificate = "cert.pem", key = "/keys/key.pem" }
        [upstreams.zeta]
        command = "bin/server"
        cwd = "work"
        [upstreams.alpha]
        url = "http://localhost:3001/mcp"
        type = "http"
        bearer = { file = "token" }
        [[upstreams.zeta.policies]]
        component = "policies/a.wasm"
        grants = ["log", "secrets", "log"]
        settings = { b = 1, a = [1.5, true, 2026-11-21, { c = "${env:NOT_EXPANDED}" }] }
        secrets = { token = { env = "TOKEN" } }
        "#,
    );
    assert_eq!(config.listen.len(), 2);
    assert_eq!(config.cache_dir, Some("/etc/weir/cache".into()));
    let tls = config.tls.unwrap();
    assert_eq!((tls.certificate, tls.key), ("/etc/weir/cert.pem".into(), "/keys/key.pem".into()));
    let [zeta, alpha] = &config.upstreams[..] else { panic!("two upstreams") };
    assert_eq!((zeta.name.as_str(), alpha.name.as_str()), ("zeta", "alpha"));
    let Reach::Stdio(process) = &zeta.reach else { panic!("zeta is stdio") };
    assert_eq!(process.command, "/etc/weir/bin/server");
    assert_eq!(process.cwd, Path::new("/etc/weir/work"));
    let Reach::Http(web) = &alpha.reach else { panic!("alpha is http") };
    assert_eq!(web.pinned, Some(HttpTransport::Streamable));
    assert_eq!(alpha.auth, Auth::Bearer(SecretSource::File("/etc/weir/token".into())));
    let policy = &zeta.policies[0];
    assert_eq!(policy.component.file(), Some(Path::new("/etc/weir/policies/a.wasm")));
    assert_eq!(policy.grants, ["log", "secrets"]);
    assert_eq!(policy.store_name(), "a.wasm");
    let settings: serde_json::Value = serde_json::from_str(&policy.settings).unwrap();
    let expected = serde_json::json!({ "b": 1, "a": [1.5, true, "2026-11-21", { "c": "${env:NOT_EXPANDED}" }] });
    assert_eq!(settings, expected);
    assert_eq!(policy.secrets, [("token".to_owned(), SecretSource::Env("TOKEN".to_owned()))]);
    assert_eq!(policy.line, 12);
}

#[test]
fn an_imported_address_is_streamable_http_and_goes_before_another() {
    let config = parse(
        r#"
        [upstreams.a]
        url = "https://old.example/sse"
        httpUrl = "https://new.example/mcp"
        bearer = { env = "TOKEN" }
        "#,
    );
    let Reach::Http(web) = &config.upstreams[0].reach else { panic!("a is http") };
    assert_eq!(
        (web.url.to_string().as_str(), web.pinned),
        ("https://new.example/mcp", Some(HttpTransport::Streamable))
    );
    assert_eq!(config.upstreams[0].auth, Auth::Bearer(SecretSource::Env("TOKEN".to_owned())));
    let [warning] = &config.warnings[..] else { panic!("one warning: {:?}", config.warnings) };
    let told =
        "/etc/weir/weir.toml:4:9: `httpUrl` is deprecated\n  hint: url = \"…\" with type = \"http\" means the same";
    assert_eq!(warning.to_string(), told);
}

#[test]
fn logins_and_callers() {
    let config = parse(
        r#"
        listen = "0.0.0.0:8080"
        public_url = "https://weir.example.com/"
        [auth]
        issuer = "https://login.example.com/"
        audience = "https://weir.example.com/mcp"
        scopes = ["mcp:read", "mcp:call"]
        [upstreams.plain]
        url = "https://plain.example.com/mcp"
        [upstreams.person]
        url = "https://person.example.com/mcp"
        auth = "oauth"
        owner = "principal"
        oauth = { scopes = ["read", "write"], resource = false }
        [upstreams.machine]
        url = "https://machine.example.com/mcp"
        auth = "client_credentials"
        oauth = { client_id = "weir", client_secret = { env = "TOKEN" } }
        "#,
    );
    let inbound = config.inbound.into_iter().next().unwrap();
    assert_eq!(inbound.issuer, "https://login.example.com/", "compared as it is written");
    assert_eq!(inbound.algorithms, ["RS256", "ES256", "EdDSA"]);
    assert_eq!(inbound.scopes, ["mcp:read", "mcp:call"]);
    assert_eq!(config.public_url.unwrap(), "https://weir.example.com");
    assert_eq!(config.store.path.unwrap(), Path::new("/home/me/.local/state/weir/logins.redb"));
    let [plain, person, machine] = &config.upstreams[..] else { panic!("three upstreams") };
    assert_eq!(plain.auth, Auth::Unsaid);
    let Auth::OAuth(person) = &person.auth else { panic!("a login") };
    assert_eq!((person.flow, person.owner), (LoginFlow::AuthorizationCode, LoginOwner::Principal));
    assert_eq!((person.scopes.len(), person.resource), (2, false));
    let Auth::OAuth(machine) = &machine.auth else { panic!("a login") };
    assert_eq!((machine.flow, machine.owner), (LoginFlow::ClientCredentials, LoginOwner::Shared));
    assert_eq!(machine.client_secret, Some(SecretSource::Env("TOKEN".to_owned())));
}

#[test]
fn each_issuer_may_have_a_document_of_its_own() {
    let parsed = |url: &str| {
        let upstream = "[upstreams.u]\nurl = \"https://u.example.com/mcp\"";
        let text = format!("client_metadata_url = \"{url}\"\n{upstream}");
        Config::parse(&text, Path::new("/etc/weir.toml"), &Fake)
    };
    for url in ["https://weir.example.com/client/{issuer}.json", "https://weir.example.com/client.json"] {
        assert_eq!(parsed(url).unwrap().client_metadata_url.as_deref(), Some(url));
    }
    for url in ["https://weir.example.com/{name}.json", "https://weir.example.com/{issuer.json"] {
        let problems = parsed(url).unwrap_err().to_string();
        assert!(problems.contains("only `{issuer}` can be in braces here"), "{problems}");
    }
}

/// Beside a login it would be a second one: see `tests/config/headers.toml`.
#[test]
fn a_header_that_opens_an_upstream_leaves_no_room_for_a_login() {
    for name in ["Authorization", "authorization", "AUTHORIZATION"] {
        for (auth, expected) in [("", Auth::None), ("auth = \"none\"", Auth::None)] {
            let text =
                format!("[upstreams.a]\nurl = \"http://a.example/mcp\"\n{auth}\nheaders = {{ {name} = \"Basic x\" }}");
            assert_eq!(parse(&text).upstreams[0].auth, expected, "{name} {auth}");
        }
    }
    let other = parse("[upstreams.a]\nurl = \"http://a.example/mcp\"\nheaders = { x-key = \"x\" }");
    assert_eq!(other.upstreams[0].auth, Auth::Unsaid);
}

#[test]
fn a_program_inherits_what_is_named_and_no_secret_by_a_pattern() {
    let inherited = |toml: &str| {
        let config = parse(toml);
        let Reach::Stdio(process) = &config.upstreams[0].reach else { panic!("it is stdio") };
        process.inherit.clone()
    };
    let usual = inherited("upstreams.a.command = 'run'");
    assert!(usual.contains(&"HTTPS_PROXY".to_owned()) && usual.contains(&"LC_TIME".to_owned()), "{usual:?}");
    assert!(!usual.iter().any(|name| name.starts_with("WEIR_") || name.contains('*')), "{usual:?}");
    assert_eq!(inherited("upstreams.a = { command = 'run', inherit_env = [] }"), [""; 0]);
    assert_eq!(
        inherited("defaults.inherit_env = ['AWS_*']\nupstreams.a.command = 'run'"),
        ["AWS_REGION", "AWS_SECRET"]
    );
    let secret = "[upstreams.a]\ncommand = 'run'\ninherit_env = ['AWS_*', 'LC_*']\n\
                  [upstreams.b]\nenabled = false\nurl = 'https://b.example/mcp'\nbearer = { env = 'AWS_SECRET' }";
    assert_eq!(inherited(secret), ["AWS_REGION", "LC_ALL", "LC_TIME"]);
    assert_eq!(inherited(&secret.replace("LC_*", "AWS_SECRET")), ["AWS_REGION", "AWS_SECRET"], "named, it is meant");
}

/// The values and variables of Claude Code, VS Code, Gemini CLI, Cursor and Windsurf.
#[test]
fn the_json_of_other_hosts_is_taken_as_it_is() {
    let config = parse(
        r#"{
          // As VS Code writes it.
          "servers": {
            "local": { "type": "stdio", "command": "npx", "args": ["-y", "server", "--port", 3000],
                       "env": { "KEY": "${env:KEY}", "DEBUG": true, "GONE": null, "LEVEL": "${LEVEL:-info}" }, },
            "Web Search": { "type": "http", "url": "https://a.example/mcp", "headers": { "X-Key": "Bearer ${TOKEN}" } },
            "old": { "transport": "sse", "serverUrl": "https://b.example/sse", "disabled": true },
            "new": { "httpUrl": "https://c.example/mcp", "url": "https://c.example/sse", "type": "streamable-http" },
            "login": { "url": "https://d.example/mcp", "oauth": { "clientId": "weir", "scopes": ["read"] } },
          },
        }"#,
    );
    let names: Vec<&str> = config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    assert_eq!(names, ["local", "Web-Search", "old", "new", "login"]);
    let Reach::Stdio(local) = &config.upstreams[0].reach else { panic!("local is stdio") };
    let args: Vec<&str> = local.args.iter().map(|arg| arg.expose()).collect();
    assert_eq!(args, ["-y", "server", "--port", "3000"]);
    let env: Vec<(&str, &str)> = local.env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(env, [("KEY", SECRET), ("DEBUG", "true"), ("LEVEL", "info")]);
    let web = |at: usize| match &config.upstreams[at].reach {
        Reach::Http(web) => web,
        Reach::Stdio(_) => panic!("{at} is http"),
    };
    assert_eq!(web(1).headers[0].1.expose(), "Bearer s3cr3t");
    assert_eq!((web(2).pinned, config.upstreams[2].enabled), (Some(HttpTransport::Sse), false));
    assert_eq!((web(3).url.to_string(), web(3).pinned), ("https://c.example/mcp".to_owned(), None));
    let Auth::OAuth(login) = &config.upstreams[4].auth else { panic!("a login") };
    assert_eq!((login.client_id.as_deref(), login.scopes.len()), (Some("weir"), 1));
    // What is shown of it can be pasted.
    let shown = config.warnings.iter().find_map(|warning| warning.hint.as_ref()?.split_once(":\n")).unwrap().1;
    let pasted = parse(shown);
    assert_eq!(pasted.upstreams.len(), 5, "{shown}");
    assert_eq!(pasted.upstreams[4], config.upstreams[4], "{shown}");
}

#[test]
fn a_configuration_that_others_can_write_is_warned_of() {
    let folder = std::env::temp_dir().join(format!("weir-config-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let file = folder.join("weir.toml");
    fs::write(&file, "upstreams.a.url = 'https://a.example/mcp'").unwrap();
    let warnings = |file_mode: u32, folder_mode: u32| {
        fs::set_permissions(&file, fs::Permissions::from_mode(file_mode)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(folder_mode)).unwrap();
        let warnings = Config::load(&file).unwrap().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(warnings(0o640, 0o755), "");
    assert_eq!(warnings(0o644, 0o1777), "", "only its owner replaces a file there");
    assert!(warnings(0o646, 0o755).contains("others can write this file (mode 646)"));
    assert!(warnings(0o644, 0o777).contains("others can write the folder of this file (mode 777)"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn timeouts_fall_back_key_by_key() {
    let config = parse(
        r#"
        defaults.timeouts = { connect = "1s", read = "2s" }
        upstreams.a = { url = "http://a/mcp", timeouts = { read = "3s" } }
        "#,
    );
    let timeouts = config.upstreams[0].timeouts;
    let seconds = [timeouts.connect, timeouts.read, timeouts.overall].map(|timeout| timeout.as_secs());
    assert_eq!(seconds, [1, 3, 300]);
}

#[test]
fn what_a_disabled_upstream_refers_to_need_not_exist() {
    let config = parse(
        r#"
        [upstreams.web]
        enabled = false
        url = "${env:NOWHERE}"
        bearer = { env = "NOWHERE" }
        headers = { x-key = "${env:NOWHERE}" }
        [[upstreams.web.policies]]
        component = "missing.wasm"
        "#,
    );
    let Reach::Http(web) = &config.upstreams[0].reach else { panic!("web is http") };
    assert!(!config.upstreams[0].enabled);
    assert_eq!(web.url.to_string(), "${env:NOWHERE}");
}

#[test]
fn a_file_that_cannot_be_read_is_one_problem() {
    let problems = Config::load(Path::new("/nowhere/weir.toml")).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "/nowhere/weir.toml: the configuration cannot be read: there is no such file\n  hint: name another file with \
         --config, or try Weir out without one: weir demo"
    );
}

#[test]
fn hostile_text_is_refused_without_harm() {
    let deep_list = format!("upstreams.a.policies = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_table = format!("{}x = 1", "a.".repeat(100_000));
    let deep_settings = format!("[[upstreams.a.policies]]\nsettings.{}x = 1", "a.".repeat(100_000));
    let many = "unknown".to_owned() + &(0..2_000).map(|key| format!("{key} = 1\n")).collect::<String>();
    for text in [deep_list, deep_table, deep_settings, many, "\u{feff}\0".to_owned()] {
        assert!(Config::parse(&text, Path::new("weir.toml"), &Fake).is_err());
    }
}
