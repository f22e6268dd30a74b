#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::Semaphore,
};

use super::{guard::PendingLookup, *};
use crate::tests::scripted::{Scripted, ScriptedReply, http, nobody};

/// Names that mean what a test says, perhaps something else each time.
struct Fixed(Mutex<VecDeque<Vec<&'static str>>>);

impl Lookup for Fixed {
    fn lookup(&self, _: &str) -> PendingLookup {
        let mut answers = self.0.lock();
        let answer = if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() };
        Box::pin(async move { Ok(answer.iter().map(|address| address.parse().unwrap()).collect()) })
    }
}

fn with_names(reach: AddressPolicy, answers: &[&[&'static str]]) -> Http {
    let names = Fixed(Mutex::new(answers.iter().map(|answer| answer.to_vec()).collect()));
    let limits = RequestLimits { connect: Duration::from_millis(300), ..RequestLimits::default() };
    Http::build(reach, limits, tls(&[]).unwrap(), Arc::new(names), ForwardProxies::default()).unwrap()
}

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

#[tokio::test]
async fn a_url_from_outside_leads_to_no_place_inside() {
    for (text, reach) in [
        ("https://127.0.0.1/x?secret=hunter2", AddressPolicy::default()),
        ("https://2130706433/", AddressPolicy::default()),
        ("https://0x7f.1/", AddressPolicy::default()),
        ("https://[::1]/", AddressPolicy::default()),
        ("https://[::ffff:127.0.0.1]/", AddressPolicy::default()),
        ("https://10.0.0.1/", AddressPolicy { loopback: true, private: false }),
        ("https://192.168.1.1/", AddressPolicy::default()),
        ("https://100.64.1.1/", AddressPolicy::default()),
        ("https://[fd00::1]/", AddressPolicy { loopback: true, private: false }),
        ("https://169.254.169.254/latest/meta-data", AddressPolicy { loopback: true, private: true }),
        ("https://[fe80::1]/", AddressPolicy { loopback: true, private: true }),
        ("https://[fd00:ec2::254]/", AddressPolicy { loopback: true, private: true }),
        ("https://224.0.0.1/", AddressPolicy { loopback: true, private: true }),
        ("https://0.0.0.0/", AddressPolicy { loopback: true, private: true }),
    ] {
        let refused = Http::new(reach, RequestLimits::default(), &[]).unwrap().get(&url(text)).await.err().unwrap();
        assert!(matches!(refused, HttpError::Forbidden { .. }), "{text}: {refused}");
        assert!(!refused.to_string().contains("hunter2") && !refused.is_temporary());
        // What cannot be opened is not said to be.
        let never = reach == AddressPolicy { loopback: true, private: true };
        assert_eq!(refused.to_string().contains("oauth = { private_network = true }"), !never, "{refused}");
    }
}

#[tokio::test]
async fn a_name_that_leads_inside_is_refused_when_dialled() {
    for address in ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1"] {
        let refused =
            with_names(AddressPolicy::default(), &[&[address]]).get(&url("https://evil.example/")).await.err().unwrap();
        assert!(matches!(refused, HttpError::Forbidden { .. }), "{address}: {refused}");
    }
    let private = with_names(AddressPolicy { private: true, loopback: false }, &[&["127.0.0.1"]]);
    assert!(matches!(private.get(&url("https://evil.example/")).await, Err(HttpError::Forbidden { .. })));
}

#[tokio::test]
async fn a_name_that_changes_its_mind_gains_nothing() {
    let server = Scripted::start(|_, _| ScriptedReply::status(200)).await;
    let http = with_names(AddressPolicy::default(), &[&["192.0.0.1"], &["127.0.0.1"]]);
    let rebound = url(&format!("https://evil.example:{}/", server.url.port().unwrap()));
    for _ in 0..3 {
        assert!(matches!(http.get(&rebound).await, Err(HttpError::Forbidden { .. })));
    }
    assert!(server.seen("").is_empty());
}

#[test]
fn plain_http_stays_on_this_machine() {
    let local =
        Http::new(AddressPolicy::toward(&url("http://localhost:8080/mcp")), RequestLimits::default(), &[]).unwrap();
    for allowed in
        ["http://127.0.0.1:1/", "http://localhost/", "http://a.localhost/", "http://[::1]:1/", "https://a.example/"]
    {
        assert_eq!(local.check(&url(allowed)), Ok(()), "{allowed}");
    }
    let outside =
        Http::new(AddressPolicy::toward(&url("https://a.example/mcp")), RequestLimits::default(), &[]).unwrap();
    for refused in ["http://127.0.0.1/", "http://localhost/", "http://a.example/"] {
        assert!(matches!(outside.check(&url(refused)), Err(HttpError::Insecure(_))), "{refused}");
    }
    for refused in ["http://10.0.0.1/", "http://localhost.a.example/"] {
        assert!(matches!(local.check(&url(refused)), Err(HttpError::Insecure(_))), "{refused}");
    }
    for refused in ["file:///etc/passwd", "javascript:alert(1)", "https://user:hunter2@a.example/", "ftp://a.example/"]
    {
        let error = local.check(&url(refused)).unwrap_err();
        assert!(matches!(error, HttpError::Url(_)) && !error.to_string().contains("hunter2"), "{refused}");
    }
}

#[tokio::test]
async fn redirects_stay_on_their_origin() {
    let other = Scripted::start(|_, _| ScriptedReply::text(200, "stolen")).await;
    let elsewhere = other.at("/x").to_string();
    let server = Scripted::start(move |_, seen| match seen.path.as_str() {
        "/same" => ScriptedReply::status(302).with("location", "/there"),
        "/there" => ScriptedReply::text(200, "here"),
        "/other" => ScriptedReply::status(302).with("location", elsewhere.clone()),
        "/inside" => ScriptedReply::status(307).with("location", "http://169.254.169.254/latest"),
        "/loop" => ScriptedReply::status(301).with("location", "/loop"),
        _ => ScriptedReply::status(302),
    })
    .await;
    assert_eq!(http().get(&server.at("/same")).await.ok().unwrap().body.as_slice(), b"here");
    for path in ["/other", "/inside", "/loop", "/nowhere"] {
        assert!(matches!(http().get(&server.at(path)).await, Err(HttpError::Redirect(_))), "{path}");
    }
    assert_eq!(server.seen("/loop").len(), 4);
    assert!(other.seen("").is_empty());
    let posted =
        http().post(&server.at("/same"), "application/json", String::new(), HeaderMap::new()).await.ok().unwrap();
    assert_eq!(posted.status, 302, "a request with a body is never sent on");
}

#[tokio::test]
async fn an_answer_is_bounded_in_size_and_time() {
    let never = Arc::new(Semaphore::new(0));
    let server = Scripted::start(move |_, seen| match seen.path.as_str() {
        "/huge" => ScriptedReply::text(200, vec![b'x'; 600 * 1024]),
        "/silent" => ScriptedReply::status(200).hold(&never),
        _ => ScriptedReply::text(200, vec![b'x'; 1000]).stop_after(500),
    })
    .await;
    assert!(matches!(http().get(&server.at("/huge")).await, Err(HttpError::TooLarge(..))));
    let limits = RequestLimits { whole: Duration::from_millis(200), ..RequestLimits::default() };
    let hasty = Http::new(AddressPolicy { loopback: true, private: false }, limits, &[]).unwrap();
    for path in ["/silent", "/half"] {
        let error = hasty.get(&server.at(path)).await.err().unwrap();
        assert!(matches!(error, HttpError::TimedOut(_)) && error.is_temporary(), "{path}: {error}");
    }
}

#[tokio::test]
async fn what_is_down_is_temporary() {
    let (gone, _socket) = nobody("/x?token=hunter2");
    let error = http().get(&gone).await.err().unwrap();
    assert!(matches!(error, HttpError::Unreachable { .. }) && error.is_temporary(), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

/// A proxy that refuses every tunnel, and what it was asked for.
async fn refusing_proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut head).await.unwrap();
            }
            seen.lock().push(String::from_utf8(head).unwrap());
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        }
    });
    (address.to_string(), heads)
}

#[tokio::test]
async fn a_proxy_is_asked_for_what_may_be_reached() {
    let (address, heads) = refusing_proxy().await;
    let behind = |answers: &[&[&'static str]]| {
        let proxy = format!("http://u:hunter2@{address}");
        let direct = with_names(AddressPolicy { loopback: true, private: false }, answers);
        let proxies = ForwardProxies::read(move |name| (name == "HTTPS_PROXY").then(|| proxy.clone()));
        Http { proxies, ..direct }
    };
    // A name that leads inside here, and one address: neither is the proxy's to reach.
    for (answers, refused) in [(&["10.0.0.1"][..], "https://inside.example/"), (&[], "https://169.254.169.254/")] {
        let error = behind(&[answers]).get(&url(refused)).await.err().unwrap();
        assert!(matches!(error, HttpError::Forbidden { .. }), "{error}");
    }
    assert!(heads.lock().is_empty());
    // A name that nobody knows here may be known there.
    let error = behind(&[&[]]).get(&url("https://outside.example/x?secret")).await.err().unwrap().to_string();
    assert!(error.contains(&format!("the proxy http://{address} of `HTTPS_PROXY` gives no connection")), "{error}");
    assert!(!error.contains("hunter2") && !error.contains("secret"), "{error}");
    let asked = heads.lock().join("");
    assert!(asked.starts_with("CONNECT outside.example:443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.to_ascii_lowercase().contains("proxy-authorization: basic dtpodw50zxiy\r\n"), "{asked}");
    // This machine is never asked for.
    let server = Scripted::start(|_, _| ScriptedReply::text(200, "here")).await;
    assert_eq!(behind(&[&["127.0.0.1"]]).get(&server.at("/")).await.ok().unwrap().body.as_slice(), b"here");
}
