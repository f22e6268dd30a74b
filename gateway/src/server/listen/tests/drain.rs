//! The end of the gateway.

use std::os::fd::IntoRawFd;

use super::{Client, Fds, LIMITS, ListenLimits, Listener, SHORT, TcpStream, get, post, serve, serve_at, serve_with};

#[tokio::test]
async fn what_rests_is_closed_soon_and_what_runs_may_finish() {
    let mut served = serve().await;
    let mut resting = Client::connect(&served).await;
    assert_eq!(resting.ask(&post("/echo", "x")).await.body, "x");
    let mut silent = Client::connect(&served).await;
    let mut busy = Client::connect(&served).await;
    busy.send(&get("/held")).await;
    assert_eq!(served.seen.recv().await, Some("held"));

    served.stop.send(true).unwrap();
    assert_eq!(resting.rest().await, "");
    assert_eq!(silent.rest().await, "");
    assert!(TcpStream::connect(served.address).await.is_err());
    assert!(!served.serving.is_finished());

    served.app.release.notify_one();
    let reply = busy.reply().await;
    assert_eq!(reply.body, "held");
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    assert_eq!(busy.rest().await, "");
    served.serving.await.unwrap();
}

/// What rests may have a request on its way, so it is not closed before its next answer.
#[tokio::test]
async fn before_another_process_takes_over_each_connection_ends_with_its_answer() {
    let served = serve().await;
    let mut resting = Client::connect(&served).await;
    assert!(!resting.ask(&post("/echo", "x")).await.head.contains("connection: close"));
    served.settings.close_after_answers();
    let reply = resting.ask(&post("/echo", "y")).await;
    assert!(reply.body == "y" && reply.head.contains("connection: close"), "{}", reply.head);
    assert_eq!(resting.rest().await, "");
    let reply = Client::connect(&served).await.ask(&get("/none")).await;
    assert_eq!(reply.status(), "204", "others are still accepted");
}

#[tokio::test]
async fn a_client_that_has_just_connected_is_answered() {
    let served = serve().await;
    let mut client = Client::connect(&served).await;
    // Connections are accepted in their order, so the first one is no longer the system's.
    assert_eq!(Client::connect(&served).await.ask(&get("/none")).await.status(), "204");
    served.stop.send(true).unwrap();
    while TcpStream::connect(served.address).await.is_ok() {}
    assert_eq!(client.ask(&get("/none")).await.status(), "204");
    assert_eq!(client.rest().await, "");
    served.serving.await.unwrap();
}

#[tokio::test]
async fn what_does_not_finish_is_dropped() {
    let limits = ListenLimits { drain: SHORT, ..LIMITS };
    let mut served = serve_with(limits, None).await;
    let mut busy = Client::connect(&served).await;
    busy.send(&get("/held")).await;
    assert_eq!(served.seen.recv().await, Some("held"));
    served.stop.send(true).unwrap();
    served.serving.await.unwrap();
    assert_eq!(busy.rest().await, "");
    drop(served.app);
    // Nobody holds the other end: the handler is gone with what it held.
    assert_eq!(served.seen.recv().await, None);
}

#[tokio::test]
async fn a_gateway_whose_owner_is_gone_stops() {
    let served = serve().await;
    drop(served.stop);
    served.serving.await.unwrap();
}

#[tokio::test]
async fn who_has_connected_before_the_stop_is_answered() {
    let served = serve().await;
    // On one thread the accept loop has no turn between these and the stop.
    let late: Vec<_> = (0..16).map(|_| std::net::TcpStream::connect(served.address).unwrap()).collect();
    served.stop.send_replace(true);
    for stream in late {
        stream.set_nonblocking(true).unwrap();
        let mut client = Client(TcpStream::from_std(stream).unwrap());
        assert_eq!(client.ask("GET /none HTTP/1.1\r\nhost: x\r\n\r\n").await.status(), "204");
    }
    served.serving.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_was_just_told_to_stay_is_answered_once_more() {
    let served = serve().await;
    let mut client = Client::connect(&served).await;
    client.ask("GET /none HTTP/1.1\r\nhost: x\r\n\r\n").await;
    served.stop.send_replace(true);
    while TcpStream::connect(served.address).await.is_ok() {}
    let reply = client.ask("GET /none HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    assert_eq!(client.rest().await, "");
    served.serving.await.unwrap();
}

#[tokio::test]
async fn who_waits_when_another_process_takes_over_is_left_to_it() {
    let next = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    next.set_nonblocking(true).unwrap();
    let (address, mut inherited) = (next.local_addr().unwrap(), Fds::new());
    inherited.add(address.to_string(), next.try_clone().unwrap().into_raw_fd());
    let listener = Listener::new(None).unwrap().bind(&[address], inherited).unwrap();
    let served = serve_at(listener, LIMITS).await;
    assert_eq!(Client::connect(&served).await.ask(&get("/none")).await.status(), "204");
    served.settings.close_after_answers();
    let late: Vec<_> = (0..16).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    served.stop.send_replace(true);
    served.serving.await.unwrap();
    let taken = std::iter::from_fn(|| next.accept().ok()).count();
    // The accept loop may have had a few before it saw the stop.
    assert!(taken > 0, "all of {} are with the process that ends", late.len());
}
