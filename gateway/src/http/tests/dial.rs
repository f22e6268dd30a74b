//! Which address of a host wins.

use std::{net::SocketAddr, time::Instant};

use tokio::net::TcpSocket;
use weir_oauth::AddressPolicy;

use super::{
    super::{
        address_cache::AddressCache,
        dial::race,
        target::{admitted, interleaved},
    },
    *,
};

/// A listener whose queue is full, so that the system drops what comes, with what fills it.
async fn silent() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        queue.push(stream.unwrap());
    }
    (address, listener, queue)
}

async fn refusing() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn an_address_that_never_answers_delays_the_next_by_a_moment() {
    let (silent, _full, _queue) = silent().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let open = listener.local_addr().unwrap();
    let begun = Instant::now();
    let won = race(&[silent, silent, open]).await.unwrap();
    assert_eq!(won.peer_addr().unwrap(), open);
    // Two delays of 250 ms, and far less than the seconds after which the system would say so.
    assert!((500..1_500).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_address_that_refuses_delays_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let open = listener.local_addr().unwrap();
    let begun = Instant::now();
    let addresses = [refusing().await, refusing().await, refusing().await, refusing().await, open];
    assert_eq!(race(&addresses).await.unwrap().peer_addr().unwrap(), open);
    assert!(begun.elapsed() < Duration::from_millis(250), "{:?}", begun.elapsed());
    assert_eq!(race(&addresses[..4]).await.unwrap_err(), Error::Connect("refused"));
    assert_eq!(race(&[]).await.unwrap_err(), Error::Resolve);
}

#[tokio::test]
async fn an_attempt_that_is_overtaken_may_still_win() {
    let (silent, listener, _queue) = silent().await;
    let refusing = refusing().await;
    let racing = tokio::spawn(async move { race(&[silent, refusing]).await });
    // Makes room. The other address has refused long before the system knocks again, after a second.
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    assert_eq!(racing.await.unwrap().unwrap().peer_addr().unwrap(), silent);
}

#[tokio::test]
async fn silence_is_over_with_the_connect_timeout() {
    let (silent, _full, _queue) = silent().await;
    let timeouts = HttpTimeouts { connect: Duration::from_millis(300), read: LONG.read };
    let target = HttpTarget::new(&Url::parse(&format!("http://{silent}/")).unwrap(), timeouts, None).unwrap();
    assert_eq!(HttpClient::new().send(&target, get()).await.err().unwrap(), Error::ConnectTimeout);
}

#[test]
fn both_families_are_tried_in_turn() {
    let order = |addresses: &str| {
        let found = addresses.split(' ').map(|address| SocketAddr::new(address.parse().unwrap(), 1));
        interleaved(found).iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(order("::1 ::2 ::3 1.0.0.1 1.0.0.2"), "::1 1.0.0.1 ::2 1.0.0.2 ::3");
    assert_eq!(order("1.0.0.1 1.0.0.2 ::1"), "1.0.0.1 ::1 1.0.0.2");
    let many = ["1.0.0.1"; 20].join(" ");
    assert_eq!(order(&many).split(' ').count(), 8);
}

#[tokio::test]
async fn a_name_is_looked_up_once_at_a_time() {
    let (cache, address) = (AddressCache::default(), SocketAddr::from(([127, 0, 0, 1], 1)));
    let (answer, slow) = tokio::sync::oneshot::channel::<()>();
    let slow = async move {
        slow.await.unwrap();
        Ok([address].into_iter())
    };
    let other = || async { Err::<std::array::IntoIter<_, 1>, _>(std::io::ErrorKind::NotFound.into()) };
    let impatient = Duration::from_millis(50);
    assert!(tokio::time::timeout(impatient, cache.get(|| slow)).await.is_err());
    assert!(tokio::time::timeout(impatient, cache.get(other)).await.is_err(), "it waits for the one that runs");
    answer.send(()).unwrap();
    for _ in 0..2 {
        assert_eq!(cache.get(other).await.as_deref(), Some(&[address][..]));
    }
    assert_eq!(AddressCache::default().get(other).await, None);
}

#[tokio::test]
async fn what_is_known_does_not_wait_long_for_the_resolver() {
    let (cache, address) = (AddressCache::default(), SocketAddr::from(([127, 0, 0, 1], 1)));
    assert!(cache.get(|| async move { Ok([address].into_iter()) }).await.is_some());
    cache.grow_old().await;
    let begun = Instant::now();
    let never = || std::future::pending::<std::io::Result<std::array::IntoIter<SocketAddr, 1>>>();
    let all = tokio::join!(cache.get(never), cache.get(never), cache.get(never));
    assert!(all.0.is_some() && all.0 == all.1 && all.1 == all.2);
    assert!((1_000..2_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_name_leads_only_where_it_may() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let abroad = AddressPolicy { loopback: false, private: true };
    let to = |host: &str, reach| {
        let url = Url::parse(&format!("http://{host}:{port}/")).unwrap();
        HttpClient::new().target(&url, LONG).unwrap().within(reach)
    };
    let refused = HttpClient::new().send(&to("localhost", abroad), get()).await.map(|answer| answer.status());
    let refused = refused.unwrap_err();
    assert_eq!(refused, Error::Forbidden("this machine"));
    assert!(!refused.may_have_run());
    assert!(
        tokio::time::timeout(Duration::from_millis(20), listener.accept()).await.is_err(),
        "nothing was connected to"
    );
    // What the configuration itself names is meant.
    for target in [to("127.0.0.1", abroad), to("localhost", AddressPolicy { loopback: true, ..abroad })] {
        let asked = tokio::spawn(async move { HttpClient::new().send(&target, get()).await.map(|it| it.status()) });
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send("HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(asked.await.unwrap(), Ok(204));
    }
}

#[test]
fn addresses_of_one_name_count_each() {
    let at = |texts: &[&str]| texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 443)).collect::<Vec<_>>();
    let reach = AddressPolicy { loopback: false, private: true };
    let metadata = ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254"];
    assert_eq!(admitted(reach, &at(&["10.0.0.1", "169.254.169.254"])).unwrap()[..], at(&["10.0.0.1"]));
    for address in metadata {
        assert!(matches!(admitted(reach, &at(&[address])), Err(Error::Forbidden(_))), "{address}");
    }
    let public = AddressPolicy { loopback: false, private: false };
    assert_eq!(admitted(public, &at(&["10.0.0.1"])), Err(Error::Forbidden("a private network")));
    assert_eq!(admitted(public, &at(&["93.184.216.34"])).unwrap().len(), 1);
}
