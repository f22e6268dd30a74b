//! Components of policies that come over the network: pinned, fetched once, and never another one.

use std::{
    env, fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use oci_client::{
    Client as Registry, Reference,
    client::{ClientConfig, ClientProtocol, Config, ImageLayer},
    secrets::RegistryAuth,
};
use serde_json::json;
use weir_tests::{Client, Gateway, Stub, paths, process::Process};

/// What `htpasswd -B` makes of the password below.
const USERS: &str = "team:$2b$04$xIOlo5zukw2TAzHYBEO7ieY2Lk/e.TOm/91Rgdxp774WcGqWkZ3wi\n";
const PASSWORD: &str = "r3gistry-pass";

/// A folder with a configuration, and what Weir keeps.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(config: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write(config);
        folder
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, config: &str) {
        let config = format!("cache_dir = {:?}\n{config}", self.path("cache"));
        fs::write(self.path("weir.toml"), config).unwrap();
    }

    /// How a command ends, and what it prints.
    fn weir(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(paths::weir());
        command.args(arguments).current_dir(self.0.path()).env("DOCKER_CONFIG", self.0.path());
        let path = env::var_os("PATH").unwrap();
        let programs = [self.0.path().to_owned()].into_iter().chain(env::split_paths(&path));
        command.env("PATH", env::join_paths(programs).unwrap());
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (code, text) = self.weir(arguments);
        assert_eq!(code, Some(0), "weir {arguments:?}: {text}");
        text
    }

    fn refused(&self, arguments: &[&str], why: &str) {
        let (code, text) = self.weir(arguments);
        assert!(
            code != Some(0) && text.contains(why),
            "weir {arguments:?} ended with {code:?} without {why:?}: {text}"
        );
        assert!(!text.contains(PASSWORD), "{text}");
    }

    fn forget(&self) {
        fs::remove_dir_all(self.path("cache").join("components")).unwrap();
    }
}

/// A web server with one file.
#[derive(Clone)]
struct WebServer {
    address: String,
    /// The whole answer, after the status line.
    answer: Arc<Mutex<(&'static str, Vec<u8>)>>,
    /// What is beside the file, as its signature.
    signature: Arc<Mutex<Vec<u8>>>,
    requests: Arc<AtomicUsize>,
}

impl WebServer {
    fn start(file: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap().to_string(),
            answer: Arc::default(),
            signature: Arc::default(),
            requests: Arc::default(),
        };
        server.has("200 OK", file);
        let serving = server.clone();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| serving.answer(stream)));
        server
    }

    fn has(&self, status: &'static str, body: &[u8]) {
        *self.answer.lock().unwrap() = (status, body.to_vec());
    }

    fn url(&self) -> String {
        format!("http://{}/policy.wasm", self.address)
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut request = [0; 4096];
        let length = stream.read(&mut request).unwrap();
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (status, mut body) = self.answer.lock().unwrap().clone();
        if request[..length].starts_with(b"GET /policy.wasm.minisig ") {
            body = self.signature.lock().unwrap().clone();
        }
        let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
        // Whoever has had enough closes.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    }
}

fn policy(component: &str) -> String {
    format!("[[upstreams.a.policies]]\ncomponent = {component:?}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_at_a_url_is_used_once_it_is_pinned() {
    let (stub, server) = (Stub::start().await, WebServer::start(weir_guests::MASK_CARDS));
    let config = stub.config("a") + &policy(&server.url());
    let folder = Folder::new(&config);
    folder.refused(&["check"], "`weir policy lock` pins it");
    assert_eq!(server.requests.load(Ordering::Relaxed), 0, "what is not pinned is not fetched");

    let locked = folder.done(&["policy", "lock"]);
    assert!(locked.starts_with(&format!("{}  sha256:", server.url())), "{locked}");
    let file = fs::read_to_string(folder.path("weir.lock")).unwrap();
    assert!(file.contains(locked.trim().split_once("  ").unwrap().1), "{file}");
    folder.done(&["check"]);
    folder.done(&["policy", "lock"]);
    assert_eq!(server.requests.load(Ordering::Relaxed), 1, "it is fetched once");

    // Another file at the same place is not used, whether or not the first is still here.
    server.has("200 OK", weir_guests::JUDGE);
    folder.done(&["check"]);
    folder.forget();
    folder.refused(&["check"], "weir policy lock --update");
    folder.done(&["policy", "lock", "--update"]);
    assert_ne!(fs::read_to_string(folder.path("weir.lock")).unwrap(), file);
    // What was changed on this disk is fetched again.
    server.has("200 OK", weir_guests::MASK_CARDS);
    folder.done(&["policy", "lock", "--update"]);
    for entry in fs::read_dir(folder.path("cache").join("components")).unwrap() {
        fs::write(entry.unwrap().path(), "changed").unwrap();
    }
    let before = server.requests.load(Ordering::Relaxed);
    folder.done(&["check"]);
    assert_eq!(server.requests.load(Ordering::Relaxed), before + 1);

    // With its digest beside it, it needs no lock file.
    let digest = locked.trim().rsplit_once(':').unwrap().1;
    let gateway = Gateway::start(&format!("{config}sha256 = {digest:?}\n")).await;
    let client = Client::legacy(&gateway, "/mcp/a").await;
    let answer = client.call("echo", json!({ "message": "paid with 4111 1111 1111 1111" })).await;
    assert!(answer.to_string().contains("**** **** **** 1111"), "{answer}");
    folder.write(&stub.config("a"));
    folder.done(&["policy", "lock"]);
    assert!(
        !fs::read_to_string(folder.path("weir.lock")).unwrap().contains("sha256"),
        "what is not named is not locked"
    );
}

#[test]
fn a_server_that_sends_something_else_is_named_with_the_reason() {
    let server = WebServer::start(b"<html>");
    let folder = Folder::new(&format!("[upstreams.a]\nurl = \"http://127.0.0.1:1/mcp\"\n{}", policy(&server.url())));
    folder.refused(&["policy", "lock"], "it does not begin as a WebAssembly component");
    server.has("404 Not Found", b"nothing here");
    folder.refused(&["policy", "lock"], "the server answers 404");
    server.has("302 Found\r\nlocation: /policy.wasm", b"");
    folder.refused(&["policy", "lock"], "too many redirects");
    server.has("200 OK", &vec![0; (64 << 20) + 1]);
    folder.refused(&["policy", "lock"], "longer than 64 MiB");
    assert!(!folder.path("weir.lock").exists());
    assert!(!folder.path("cache").join("components").exists(), "nothing of it is kept");
    folder.write(&format!(
        "[upstreams.a]\nurl = \"http://127.0.0.1:1/mcp\"\n{}",
        policy("oci://127.0.0.1:1/team/policy@sha256:12")
    ));
    folder.refused(&["check"], "this is no reference to an OCI artifact");
}

/// A registry that lets in those who log in.
async fn registry(folder: &Path) -> (Process, String) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    fs::write(folder.join("users"), USERS).unwrap();
    let config = json!({
        "version": 0.1,
        "storage": { "filesystem": { "rootdirectory": folder.join("registry") } },
        "http": { "addr": address },
        "auth": { "htpasswd": { "realm": "team", "path": folder.join("users") } },
    });
    fs::write(folder.join("registry.yml"), config.to_string()).unwrap();
    let mut command = Command::new("docker-registry");
    let mut process = Process::start("docker-registry", command.arg("serve").arg(folder.join("registry.yml")));
    process.says("that it listens", |output| output.contains("listening on").then_some(())).await;
    (process, address)
}

/// Publishes a component, and returns the digest of its manifest.
async fn publish(address: &str, wasm: &[u8], media_type: &str) -> String {
    // Another test may have done it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let protocol = ClientProtocol::HttpsExcept(vec![address.to_owned()]);
    let registry = Registry::new(ClientConfig { protocol, ..ClientConfig::default() });
    let reference: Reference = format!("{address}/team/policy:1.0").parse().unwrap();
    let login = RegistryAuth::Basic("team".to_owned(), PASSWORD.to_owned());
    let layer = ImageLayer::new(wasm.to_vec(), media_type.to_owned(), None);
    let config = Config::new(b"{}".to_vec(), "application/vnd.wasm.config.v0+json".to_owned(), None);
    let pushed = registry.push(&reference, &[layer], config, &login, None).await.unwrap();
    pushed.manifest_url.rsplit_once('/').unwrap().1.to_owned()
}

/// A credential helper of Docker for that registry, where `folder` looks for programs.
fn helper(folder: &Folder, registry: &str) {
    let path = folder.path("docker-credential-weir-test");
    let answer = json!({ "ServerURL": registry, "Username": "team", "Secret": PASSWORD });
    let script =
        format!("#!/bin/sh\n[ \"$1\" = get ] && read -r server; [ \"$server\" = '{registry}' ] && echo '{answer}'\n");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_in_a_registry_is_the_one_that_was_pinned() {
    let stub = Stub::start().await;
    let folder = Folder::new("");
    let (process, address) = registry(folder.0.path()).await;
    let first = publish(&address, weir_guests::MASK_CARDS, "application/wasm").await;
    folder.write(&(stub.config("a") + &policy(&format!("oci://{address}/team/policy:1.0"))));
    folder.refused(&["policy", "lock"], "cannot be fetched");
    let wrong = json!({ "auths": { address.clone(): { "auth": BASE64_STANDARD.encode("team:wrong") } } });
    fs::write(folder.path("config.json"), wrong.to_string()).unwrap();
    folder.refused(&["policy", "lock"], "cannot be fetched");

    let auth = BASE64_STANDARD.encode(format!("team:{PASSWORD}"));
    fs::write(folder.path("config.json"), json!({ "auths": { address.clone(): { "auth": auth } } }).to_string())
        .unwrap();
    assert!(folder.done(&["policy", "lock"]).contains(&first));
    folder.done(&["check"]);

    // A credential helper has the login as well. One that fails is named where the registry wants a login.
    folder.forget();
    fs::write(folder.path("config.json"), json!({ "credHelpers": { address.clone(): "weir-test" } }).to_string())
        .unwrap();
    folder.refused(&["check"], "`docker-credential-weir-test` cannot be started");
    helper(&folder, &address);
    folder.done(&["check"]);

    // The tag moves on. What is pinned is still there.
    let second = publish(&address, weir_guests::JUDGE, "application/wasm").await;
    assert_ne!(first, second);
    folder.forget();
    folder.done(&["check"]);
    assert!(folder.done(&["policy", "lock"]).contains(&first));
    assert!(folder.done(&["policy", "lock", "--update"]).contains(&second));
    let inspected = folder.done(&["policy", "inspect", &format!("oci://{address}/team/policy:1.0@{first}")]);
    assert!(inspected.contains("decides  calls"), "{inspected}");

    // Without the registry, what is here is enough. The digest may also be part of the name.
    folder.write(&(stub.config("a") + &policy(&format!("oci://{address}/team/policy:1.0@{first}"))));
    drop(process);
    folder.done(&["check"]);
    folder.forget();
    folder.refused(&["check"], "cannot be fetched");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_that_is_no_component_is_refused() {
    let folder = Folder::new("");
    let (_process, address) = registry(folder.0.path()).await;
    let auth = BASE64_STANDARD.encode(format!("team:{PASSWORD}"));
    fs::write(folder.path("config.json"), json!({ "auths": { address.clone(): { "auth": auth } } }).to_string())
        .unwrap();
    publish(&address, b"layer", "application/vnd.oci.image.layer.v1.tar").await;
    let config = "[upstreams.a]\nurl = \"http://127.0.0.1:1/mcp\"\n".to_owned();
    folder.write(&(config + &policy(&format!("oci://{address}/team/policy:1.0"))));
    folder.refused(&["policy", "lock"], "no layer of the type application/wasm");
    publish(&address, b"not wasm", "application/wasm").await;
    folder.refused(&["policy", "lock"], "it does not begin as a WebAssembly component");
}

#[test]
fn a_component_is_used_only_with_the_signature_that_it_must_have() {
    /// Keys of minisign. The first has signed the component; nobody has either secret any more.
    const SIGNER: &str = "RWRVFEplpUq7WwT8vUyYPLB2IMq7OJ7vNGZ3ywgN17Y+mUHsAQFoh+4F";
    const OTHER: &str = "RWQ1+c0M6YH2BZEZP68cDydx0TUPO2T+mVLxR3k6l09sBFbonlu4vceY";
    let of_contract = |name: &str| fs::read(paths::tests().join("contracts/0.1.0").join(name)).unwrap();
    let (wasm, signature) = (of_contract("calls.wasm"), of_contract("calls.wasm.minisig"));
    let signed = |component: &str, key: &str, more: &str| {
        let grants = "grants = [\"clock\", \"store\"]\n";
        format!(
            "[upstreams.a]\nurl = \"http://127.0.0.1:9/mcp\"\n{}{grants}settings = {{ see = \"body\", do = \"calls=1\" }}\nsigned_by = {key:?}\n{more}",
            policy(component)
        )
    };
    let folder = Folder::new(&signed("calls.wasm", SIGNER, ""));
    fs::write(folder.path("calls.wasm"), &wasm).unwrap();
    folder.refused(&["check"], "calls.wasm.minisig: No such file");
    fs::write(folder.path("calls.wasm.minisig"), &signature).unwrap();
    folder.done(&["check"]);
    folder.write(&signed("calls.wasm", OTHER, ""));
    folder.refused(&["check"], "has no good signature by the key in `signed_by`");
    folder.write(&signed("calls.wasm", SIGNER, ""));
    // The same component with a section that does nothing.
    fs::write(folder.path("calls.wasm"), [&wasm[..], &[0, 2, 1, b'x']].concat()).unwrap();
    folder.refused(&["check"], "has no good signature by the key in `signed_by`");

    let server = WebServer::start(&wasm);
    let pinned = "sha256 = \"cfd451eac20ac38c1947b3b52a2ae04349a819289e4755d361113c93255c1dcc\"\n";
    folder.write(&signed(&server.url(), SIGNER, pinned));
    *server.signature.lock().unwrap() = b"by hand".to_vec();
    folder.refused(&["check"], "it is not a signature of minisign");
    *server.signature.lock().unwrap() = signature;
    folder.done(&["check"]);
    let requests = server.requests.load(Ordering::Relaxed);
    folder.done(&["check"]);
    assert_eq!(server.requests.load(Ordering::Relaxed), requests, "both are kept");
    folder.write(&signed(&server.url(), OTHER, pinned));
    folder.refused(&["check"], "has no good signature by the key in `signed_by`");

    folder.write(&signed("weir:pin", SIGNER, ""));
    folder.refused(&["check"], "`signed_by` is for files and URLs");
    folder.write(&signed("calls.wasm", "RWQ", ""));
    folder.refused(&["check"], "this is not a public key of minisign");
}
