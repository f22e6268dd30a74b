//! A real authorization server, npm `oidc-provider`, and as much of a browser as signing in there takes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use http::Uri;
use ring::digest::{SHA256, digest};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::http::{Request, Response};
use crate::paths::{node, peers};
use crate::stub::Stub;

/// A running authorization server. It ends with the test.
pub struct Authority {
    issuer: String,
    settings: Value,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Authority {
    /// Starts one whose access tokens are good for so many seconds.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(lifetime: u32) -> Self {
        Self::with(&json!({ "access": lifetime }))
    }

    /// Starts one with settings of `peers/oauth/server.js`.
    ///
    /// # Panics
    /// When it does not start.
    pub fn with(settings: &Value) -> Self {
        let mut command = Command::new(node());
        command.arg(peers("oauth/server.js")).arg(settings.to_string()).env("NODE_NO_WARNINGS", "1");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("node starts");
        // Node makes the streams that it is given such that they may take nothing: the test's own must not be among them.
        let mut errors = child.stderr.take().expect("stderr is piped");
        thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr()));
        let input = child.stdin.take().expect("stdin is piped");
        let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let issuer = line(&mut output)["issuer"].as_str().expect("it says its issuer first").to_owned();
        Self { issuer, settings: settings.clone(), child, input, output }
    }

    /// Its name, which is its address.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The path at which Weir takes those who come back from it.
    pub fn callback(&self) -> String {
        let hash = digest(&SHA256, self.issuer.as_bytes());
        let name: String = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("/oauth/callback/{name}")
    }

    /// An upstream that wants its tokens.
    pub async fn upstream(&self) -> Stub {
        Stub::behind(&self.issuer, self.keys().await).await
    }

    /// What its tokens are signed with (RFC 7517).
    ///
    /// # Panics
    /// When its name is no URL.
    pub async fn keys(&self) -> Value {
        let jwks: Uri = format!("{}/jwks", self.issuer).parse().expect("the issuer is a URL");
        get(&jwks, "").await.json().await
    }

    /// How often a grant was asked for with success.
    pub fn grants(&mut self, grant: &str) -> u64 {
        self.ask("stats")[grant].as_u64().unwrap_or(0)
    }

    /// Every token, code and password that went through it.
    ///
    /// # Panics
    /// When it is gone.
    pub fn secrets(&mut self) -> Vec<String> {
        serde_json::from_value(self.ask("secrets")).expect("a list of texts")
    }

    /// All that was asked of it, in the order it came: `method`, `path`, `query`, `body` of a form, `status`, the scheme of
    /// its `authorization` and the `agent` that asked.
    ///
    /// # Panics
    /// When it is gone.
    pub fn requests(&mut self) -> Vec<Value> {
        serde_json::from_value(self.ask("requests")).expect("a list")
    }

    /// The requests to one path, so far.
    pub fn asked(&mut self, path: &str) -> Vec<Value> {
        self.requests().into_iter().filter(|request| request["path"] == path).collect()
    }

    /// A new private key, for [`Authority::sign_with`].
    pub fn new_key(&mut self) -> Value {
        self.ask("key")
    }

    /// Starts it again with these keys, of which the first one signs.
    ///
    /// # Panics
    /// When it does not start.
    pub fn sign_with(&mut self, keys: &[&Value]) {
        self.settings["keys"] = json!(keys);
        self.restart();
    }

    /// What goes wrong with it from now on, by path; see `peers/oauth/trouble.js`. `{}` for nothing.
    pub fn trouble(&mut self, trouble: &Value) {
        self.ask(&format!("trouble {trouble}"));
    }

    /// How many requests wait for the end of their trouble.
    pub fn waiting(&mut self) -> u64 {
        self.ask("waiting").as_u64().unwrap_or_default()
    }

    /// Stops it where it is: what is sent to it from now on waits.
    ///
    /// # Panics
    /// When it is gone.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    ///
    /// # Panics
    /// When it is gone.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.child.id().cast_signed()).expect("a process id is not zero");
        kill_process(id, signal).expect("the child is ours");
    }

    /// Starts it again where it is. It knows nothing more of what it has registered and given.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.stop();
        let port = self.issuer.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        let mut settings = self.settings.clone();
        settings["port"] = json!(port.expect("the issuer has a port"));
        *self = Self::with(&settings);
    }

    /// Ends it before its time.
    pub fn stop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn ask(&mut self, command: &str) -> Value {
        writeln!(self.input, "{command}").expect("it listens");
        line(&mut self.output)
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Opens `page` as a browser does, and follows where it leads until that is the last answer of all, which is shown.
///
/// # Panics
/// When there is no end to it.
pub async fn browse(page: &str) -> String {
    let mut cookies: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut at: Uri = page.parse().expect("the page is a URL");
    for _ in 0..20 {
        let host = at.authority().expect("an absolute URL").to_string();
        let mine = cookies.iter().filter(|((of, _), _)| *of == host);
        let all: Vec<String> = mine.map(|((_, name), value)| format!("{name}={value}")).collect();
        let response = get(&at, &all.join("; ")).await;
        for cookie in response.headers.get_all("set-cookie") {
            let text = cookie.to_str().expect("a cookie is text");
            let (name, value) = text.split(';').next().and_then(|pair| pair.split_once('=')).expect("name and value");
            cookies.insert((host.clone(), name.to_owned()), value.to_owned());
        }
        let Some(next) = response.header("location").map(str::to_owned) else {
            return String::from_utf8_lossy(&response.bytes().await).into_owned();
        };
        at = if next.starts_with('/') { format!("http://{host}{next}") } else { next }.parse().expect("a URL");
    }
    panic!("no end of redirects from {page}");
}

async fn get(at: &Uri, cookies: &str) -> Response {
    let address = at.authority().expect("an absolute URL").as_str().parse().expect("an address of this machine");
    let path = at.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header("host", &format!("{address}"));
    let request = if cookies.is_empty() { request } else { request.header("cookie", cookies) };
    request.send(address).await
}

fn line(output: &mut BufReader<ChildStdout>) -> Value {
    let mut text = String::new();
    loop {
        text.clear();
        assert!(output.read_line(&mut text).expect("it says something") > 0, "the authorization server has ended");
        if let Ok(value) = serde_json::from_str(&text) {
            return value;
        }
    }
}
